"""Graphs as data: the kinds of nodes, and `Graph`, an immutable list of them.

A graph is in SSA form. Its nodes come in one order: placeholders, then constants and calls as they
were recorded, then the tail (`Write`, `Rebind`, one `Output`). Names exist only in text; they are
computed here, from the stems of values in node order.

Nested data in arguments and results are Python lists, tuples and dicts whose leaves are values,
references or literals; nobody changes them once a node holds them.

Imports floors 0 to 3, `literals.py`, `values.py`. Read next: `builder.py`, which records nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from .._dims import SymInt
from .._tree import leaves, tree_map
from ..dispatch.operator import Operator
from ..tensor.geometry import Geometry
from .names import Namer, is_symbol
from .values import Digest, Reference, TensorMeta, Value

__all__ = [
    "KNOWN_FLAGS",
    "BodyNode",
    "Call",
    "Constant",
    "Functionalized",
    "Graph",
    "Node",
    "OperatorNode",
    "Output",
    "Placeholder",
    "Provenance",
    "Rebind",
    "Role",
    "Write",
    "defined_values",
    "hooks",
    "substitute",
    "used_values",
]

AnyOperator: TypeAlias = Operator[..., Any]
Role: TypeAlias = Literal["argument", "captured", "span"]

KNOWN_FLAGS: Final = ("backward", "forward", "layout_free", "no_grad")
"""Words after ``!``: the half of a joint graph, strides that nobody observes, grad mode off."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a node was recorded: the user's line, the user's innermost function.

    Attributes
    ----------
    filename : str
    line : int
    function : str
    forward : Call, Functionalized or None
        For a node of a backward pass, the node it differentiates.
    """

    filename: str
    line: int
    function: str = ""
    forward: OperatorNode | None = None

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}" + (f" in {self.function}" if self.function else "")


# Nodes --------------------------------------------------------------------------------------------


class _Printed:
    """What all nodes share: they print as their line in a graph, with stems for names."""

    __slots__ = ()

    def __str__(self) -> str:
        return hooks.line(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Placeholder(_Printed):
    """A value that the caller supplies.

    `role` says which: an ``argument`` leaf, a tensor ``captured`` from the enclosing scope, or a
    ``span`` of memory that several arguments lie in.
    """

    value: Value
    role: Role = "argument"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Constant(_Printed):
    """A tensor fixed at capture. `data` is an array nobody writes, or the digest of one."""

    value: Value
    data: np.ndarray[Any, Any] | Digest
    where: Provenance | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(_Printed):
    """One call of one resolved operator.

    Attributes
    ----------
    op : Operator
    arguments : tuple
        One per parameter of the schema, in its order, keyword-only ones and defaults included.
    results : tuple
        One per return of the schema: a value, a list or tuple of them, None for an absent
        optional and for a return that is a written argument itself.
    after : tuple of Value
        The token that the previous call of each of its chains left, in the order of `tokens`.
    tokens : tuple of Value
        One new token per effect, ordered by name.
    flags : tuple of str
        Sorted, from `KNOWN_FLAGS`.
    where : Provenance or None
    """

    op: AnyOperator
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]
    after: tuple[Value, ...] = ()
    tokens: tuple[Value, ...] = ()
    flags: tuple[str, ...] = ()
    where: Provenance | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Functionalized(_Printed):
    """A mutating operator made pure: clone the regions, rebuild the references, run, return all.

    Attributes
    ----------
    op : Operator
    arguments : tuple
        As in `Call`; every tensor that lives in a written region is a `Reference`.
    results : tuple
        One per return that ``schema.fresh_returns`` names; written arguments and their views are
        no results.
    regions : tuple of Value
        The new value of each region, in order of first appearance among the references (`bases`).
    after, tokens, flags, where
        As in `Call`.
    """

    op: AnyOperator
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]
    regions: tuple[Value, ...]
    after: tuple[Value, ...] = ()
    tokens: tuple[Value, ...] = ()
    flags: tuple[str, ...] = ()
    where: Provenance | None = None

    @property
    def bases(self) -> tuple[Value, ...]:
        """The old value of each region, in order of first appearance."""
        references = (leaf for leaf in leaves(self.arguments) if isinstance(leaf, Reference))
        return tuple(dict.fromkeys(reference.value for reference in references))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Write(_Printed):
    """Store a value into the memory of a placeholder when all values are computed.

    Attributes
    ----------
    target : Value
        A placeholder's value.
    value : Value
        What is stored; `target` itself when only the version moves.
    only : tuple of Geometry
        The written geometries, from the lowest address of the target's form; empty for all of it.
    times : int
        How many calls wrote the storage: by this much its version rises.
    flags : tuple of str
    """

    target: Value
    value: Value
    only: tuple[Geometry, ...] = ()
    times: int = 1
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rebind(_Printed):
    """Give the caller's handle `target` (an argument) the memory of a reference."""

    target: Value
    reference: Reference


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Output(_Printed):
    """The results: values, references, `Same`, literals, nested in lists, tuples and dicts.

    A bare value is a result in a buffer of its own; the same value twice is two buffers.
    References to one value share one buffer.
    """

    results: tuple[Any, ...] = ()


OperatorNode: TypeAlias = Call | Functionalized
BodyNode: TypeAlias = Constant | Call | Functionalized
Node: TypeAlias = Placeholder | Constant | Call | Functionalized | Write | Rebind | Output


def defined_values(node: Node) -> list[Value]:
    """Return the values a node defines, in the order they are printed."""
    if type(node) is Call:
        return [*_values_in(node.results), *node.tokens]
    if type(node) is Functionalized:
        return [*_values_in(node.results), *node.regions, *node.tokens]
    if type(node) is Placeholder or type(node) is Constant:
        return [node.value]
    return []


def used_values(node: Node) -> list[Value]:
    """Return the values a node uses, in the order they are printed, repetitions included."""
    if type(node) is Call or type(node) is Functionalized:
        return [*_values_in(node.arguments), *node.after]
    if type(node) is Write:
        return [node.target, node.value]
    if type(node) is Rebind:
        return [node.target, node.reference.value]
    if type(node) is Output:
        return _values_in(node.results)
    return []


def _values_in(tree: tuple[Any, ...]) -> list[Value]:
    found: list[Value] = []
    for item in tree:
        kind = type(item)
        if kind is Value:
            found.append(item)
        elif kind is Reference:
            found.append(item.value)
        elif kind is list or kind is tuple:
            found += _values_in(item)
        elif kind is dict:
            found += _values_in(tuple(item.values()))
    return found


def substitute(node: Node, values: Mapping[Value, Value]) -> Node:
    """Return `node` with the values it uses replaced; the same object when nothing changes."""
    if not any(value in values for value in used_values(node)):
        return node

    def change(leaf: Any) -> Any:
        if type(leaf) is Value:
            return values.get(leaf, leaf)
        if type(leaf) is Reference:
            return replace(leaf, value=values.get(leaf.value, leaf.value))
        return leaf

    match node:
        case Call() | Functionalized():
            after = tuple(values.get(token, token) for token in node.after)
            return replace(node, arguments=tree_map(change, node.arguments), after=after)
        case Write():
            return replace(node, target=change(node.target), value=change(node.value))
        case Rebind():
            return Rebind(change(node.target), change(node.reference))
        case Output():
            return Output(tree_map(change, node.results))
    return node


# The graph ----------------------------------------------------------------------------------------


class _Hooks:
    """Functions of later files of this package that graphs and nodes call; set at import."""

    line: Callable[[Any], str]
    text: Callable[..., str]
    equal: Callable[[Graph, Graph], bool]
    dot: Callable[[Graph], str]
    mermaid: Callable[[Graph], str]
    html: Callable[[Graph], str]
    svg: Callable[[Graph], str]


hooks: Final = _Hooks()


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """An immutable graph: a name, and its nodes in order.

    Two graphs are equal when they compute the same in the same steps: operators, arguments by bits,
    metadata and tails agree. Names and provenance do not count.

    Attributes
    ----------
    name : str
    nodes : tuple of nodes
    """

    name: str
    nodes: tuple[Node, ...]

    # What the graph holds, by kind ----------------------------------------------------------------

    @cached_property
    def placeholders(self) -> tuple[Placeholder, ...]:
        """The placeholders, in order: `evaluate` takes one input for each."""
        return tuple(node for node in self.nodes if type(node) is Placeholder)

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        """The constants, in order."""
        return tuple(node for node in self.nodes if type(node) is Constant)

    @cached_property
    def body(self) -> tuple[BodyNode, ...]:
        """Constants and calls, in order."""
        return tuple(
            node
            for node in self.nodes
            if type(node) is Call or type(node) is Functionalized or type(node) is Constant
        )

    @cached_property
    def calls(self) -> tuple[OperatorNode, ...]:
        """The nodes that run an operator, in order."""
        return tuple(
            node for node in self.nodes if type(node) is Call or type(node) is Functionalized
        )

    @cached_property
    def writes(self) -> tuple[Write, ...]:
        """The writes, in order."""
        return tuple(node for node in self.nodes if type(node) is Write)

    @cached_property
    def rebinds(self) -> tuple[Rebind, ...]:
        """The rebinds, in order."""
        return tuple(node for node in self.nodes if type(node) is Rebind)

    @cached_property
    def output(self) -> Output:
        """The one output node (an empty one while the graph is malformed)."""
        outputs = [node for node in self.nodes if type(node) is Output]
        return outputs[-1] if outputs else Output()

    @cached_property
    def tail_values(self) -> tuple[Value, ...]:
        """The values that writes, rebinds and the output name, each once, in order."""
        tail: tuple[Node, ...] = (*self.writes, *self.rebinds, self.output)
        return tuple(dict.fromkeys(value for node in tail for value in used_values(node)))

    # What is derived ------------------------------------------------------------------------------

    @cached_property
    def producers(self) -> Mapping[Value, Node]:
        """The node that defines each value."""
        return {value: node for node in self.nodes for value in defined_values(node)}

    @cached_property
    def users(self) -> Mapping[Value, tuple[Node, ...]]:
        """The nodes that use each value, in order; values without use are absent."""
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(used_values(node)):
                found.setdefault(value, []).append(node)
        return {value: tuple(nodes) for value, nodes in found.items()}

    @cached_property
    def names(self) -> Mapping[Value, str]:
        """The printed name of each value: its stem, numbered in node order.

        Results that nothing uses have no name and print as ``_``; tokens, placeholders and what
        binds a symbol always have one. Namespaces of the operators in the graph are no names.
        """
        namer = Namer(self.namespaces)
        users, sites = self.users, self.symbol_sites
        return {
            value: namer.name(value.stem)
            for node in self.nodes
            for value in defined_values(node)
            if value in users or value.is_token or value in sites or type(node) is Placeholder
        }

    @cached_property
    def dead_after(self) -> Mapping[Node, tuple[Value, ...]]:
        """For each node, the values that nothing needs once it has run; the tail's never are.

        Nodes without such values are absent. A result that nothing uses is dead after its own node.
        """
        needed = set(self.tail_values)
        found: dict[Node, tuple[Value, ...]] = {}
        for node in reversed((*self.placeholders, *self.body)):
            touched = dict.fromkeys((*used_values(node), *defined_values(node)))
            dead = tuple(v for v in touched if v not in needed and not v.is_token)
            if dead:
                found[node] = dead
                needed.update(dead)
        return found

    @cached_property
    def symbol_sites(self) -> Mapping[Value, tuple[tuple[str, int], ...]]:
        """Where symbolic sizes get their numbers: for a value, (symbol, axis) pairs.

        A symbol is bound at the first axis, in node order, that has it as its length.
        """
        bound: set[str] = set()
        found: dict[Value, list[tuple[str, int]]] = {}
        for value in (value for node in self.nodes for value in defined_values(node)):
            if not isinstance(value.meta, TensorMeta):
                continue
            for axis, size in enumerate(value.meta.shape):
                name = str(size)
                if type(size) is SymInt and name not in bound and is_symbol(name):
                    bound.add(name)
                    found.setdefault(value, []).append((name, axis))
        return {value: tuple(sites) for value, sites in found.items()}

    @cached_property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces of the operators in the graph, sorted."""
        return tuple(sorted({node.op.namespace for node in self.calls}))

    # Text, identity -------------------------------------------------------------------------------

    def text(self, *, lines: bool = False, defaults: bool = False, types: bool = True) -> str:
        """Return the graph as text.

        Parameters
        ----------
        lines : bool
            Add the user's line of each node as a comment.
        defaults : bool
            Print trailing arguments that equal their default too.
        types : bool
            Print the type after each name. Text without types does not parse.
        """
        return hooks.text(self, lines=lines, defaults=defaults, types=types)

    def dot(self) -> str:
        """Return the graph in the language of Graphviz."""
        return hooks.dot(self)

    def mermaid(self) -> str:
        """Return the graph as a Mermaid flowchart."""
        return hooks.mermaid(self)

    def html(self) -> str:
        """Return a web page with the graph as a drawing and as text; it loads nothing else."""
        return hooks.html(self)

    def _repr_html_(self) -> str:
        """Return the drawing for notebooks."""
        return hooks.svg(self)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self.placeholders)} inputs, {len(self.calls)} calls>"

    def __eq__(self, other: object) -> bool:
        return hooks.equal(self, other) if isinstance(other, Graph) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(node.op.qualname for node in self.calls))

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __reduce__(self) -> tuple[Any, ...]:
        return Graph, (self.name, self.nodes)  # what was derived is derived again
