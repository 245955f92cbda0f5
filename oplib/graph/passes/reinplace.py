"""Re-inplacing: from a functional graph to one whose calls write into buffers that nobody needs.

Imports `manager.py`, `../ir.py`. Read next: `memory_plan.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..._tree import leaves, tree_map
from ...dispatch.operator import Operator
from ...dispatch.registry import get_op, has_op
from ...tensor.geometry import self_overlap
from ...tensor.methods import IN_PLACE
from ..ir import Call, Functionalized, Graph, Node, Write, defined_values, substitute
from ..values import Reference, Value
from .manager import graph_pass

__all__ = ["Buffers", "reinplace"]


class Buffers:
    """Which buffers every value of a graph may lie in, and when each is used for the last time.

    A view shares the buffers of what it is a view of; any other result of a call, and a region of a
    functionalized node, is a buffer of its own. A buffer is named by the value that came first.

    Attributes
    ----------
    last : dict
        Per buffer the position of the last node that uses a value in it; what a call with an
        effect has seen is used until the end.
    owned : set
        The buffers that a call of the graph allocates: no inputs, no constants.
    """

    def __init__(self, graph: Graph) -> None:
        self.last: dict[Value, int] = {}
        self.owned: set[Value] = set()
        self._of: dict[Value, frozenset[Value]] = {}
        self._joined: dict[Value, Value] = {}
        for position, node in enumerate(graph.nodes):
            effects = isinstance(node, Call | Functionalized) and bool(node.op.effects)
            for value in _read(node):
                for buffer in self._of.get(value, ()):
                    until = len(graph.nodes) if effects else position
                    self.last[buffer] = max(until, self.last[buffer])
            for value, sources in _allocated(node):
                shared = [buffer for source in sources for buffer in self._of[source]]
                self._of[value] = frozenset(shared or [value])
                if not sources and isinstance(node, Call | Functionalized):
                    self.owned.add(value)
                for buffer in self._of[value]:
                    self.last[buffer] = max(position, self.last.get(buffer, position))

    def of(self, value: Value) -> frozenset[Value]:
        """Return the buffers a value may lie in."""
        return frozenset(map(self._root, self._of[value]))

    def join(self, new: Value, old: Value) -> None:
        """Note that the buffer `new` is the buffer of `old` from now on."""
        (buffer,) = self.of(old)
        self.last[buffer] = max(self.last[new], self.last[buffer])
        self._joined[new] = buffer

    def _root(self, buffer: Value) -> Value:
        while buffer in self._joined:
            buffer = self._joined[buffer]
        return buffer


def _read(node: Node) -> list[Value]:
    """Return the values whose contents a node needs (a write does not read its target)."""
    if isinstance(node, Call | Functionalized):
        trees: Any = node.arguments
    elif isinstance(node, Write):
        trees = (node.value,)
    else:
        trees = getattr(node, "results", None) or getattr(node, "reference", ())
    found = (leaf.value if isinstance(leaf, Reference) else leaf for leaf in leaves(trees))
    return [value for value in found if isinstance(value, Value)]


def _allocated(node: Node) -> Iterator[tuple[Value, list[Value]]]:
    """Iterate over the tensors a node defines, with the operands they may be views of."""
    schema = node.op.schema if isinstance(node, Call) else None
    if schema is None or not schema.is_view:
        for value in defined_values(node):
            yield value, []
        return
    arguments = dict(zip((a.name for a in schema.arguments), node.arguments, strict=True))  # type: ignore[union-attr]
    for index, result in enumerate(node.results):  # type: ignore[union-attr]
        viewed = [arguments[name] for name in schema.aliased_arguments(index)]
        sources = [leaf for leaf in leaves(viewed) if isinstance(leaf, Value)]
        for value in leaves(result):
            if isinstance(value, Value):
                yield value, sources
    for token in node.tokens:  # type: ignore[union-attr]
        yield token, []


@graph_pass(accepts=("functional",), yields="buffers", after=("cse", "peepholes"))
def reinplace(graph: Graph) -> Graph:
    """Let calls write into the buffer of an operand that is not needed afterwards.

    A built-in elementwise operator becomes its in-place form if its first operand has the result's
    dtype, shape and layout; a functionalized node whose regions are whole values becomes the
    mutating call. Both only if the buffer was allocated in this graph and nothing that may lie in
    it is used later, or is another operand of the call (except the same value, element by element).

    Preserves values bitwise, results, writes, effects in order, for runs that record no gradient;
    inputs and constants are not written. May change nodes and names. Idempotent.
    """
    buffers = Buffers(graph)
    replaced: dict[Value, Value] = {}
    nodes: list[Node] = []
    for position, node in enumerate(graph.nodes):
        written: Call | None = None
        if isinstance(node, Call):
            written = _elementwise(node, position, buffers)
            pairs = [(node.arguments[0], node.results[0])] if written else []
        elif isinstance(node, Functionalized):
            written = _opaque(node, position, buffers)
            pairs = list(zip(node.bases, node.regions, strict=True)) if written else []
        if written is not None:
            for old, new in pairs:
                buffers.join(new, old)
                replaced[new] = replaced.get(old, old)
        nodes.append(substitute(written or node, replaced))
    return Graph(graph.name, tuple(nodes)) if replaced else graph


def _elementwise(node: Call, position: int, buffers: Buffers) -> Call | None:
    """Return the in-place form of an elementwise call, if it may write its first operand."""
    partner = _partner(node.op)
    target = node.arguments[0] if node.arguments else None
    if partner is None or not isinstance(target, Value) or target.meta != node.results[0].meta:
        return None
    others = [leaf for leaf in leaves(node.arguments[1:]) if leaf is not target]
    if not _is_free(target, others, position, buffers):
        return None
    return replace(node, op=partner, results=(None,))


def _partner(op: Operator[..., Any]) -> Operator[..., Any] | None:
    """Return ``std::name_`` for an elementwise ``std::name`` it is derived from."""
    name = f"std::{op.name}_"
    known = op.namespace == "std" and not op.schema.overload_name and op.name in IN_PLACE
    return get_op(name) if known and has_op(name) else None


def _opaque(node: Functionalized, position: int, buffers: Buffers) -> Call | None:
    """Return the mutating call of a functionalized node, if it may write what it would copy."""
    found = [leaf for leaf in leaves(node.arguments) if isinstance(leaf, Reference)]
    plain = [leaf for leaf in leaves(node.arguments) if isinstance(leaf, Value)]
    if any(leaf.geometry is not None for leaf in found):
        return None
    for base in node.bases:
        others = [*plain, *(other for other in node.bases if other is not base)]
        if not _is_free(base, others, position, buffers):
            return None
    arguments = tree_map(lambda x: x.value if isinstance(x, Reference) else x, node.arguments)
    fresh = node.op.schema.fresh_returns(arguments)
    results = iter(node.results)
    returns = range(len(node.op.schema.returns))
    complete = tuple(next(results) if index in fresh else None for index in returns)
    return Call(node.op, arguments, complete, node.after, node.tokens, node.flags, node.where)


def _is_free(target: Value, others: list[Any], position: int, buffers: Buffers) -> bool:
    """Return whether the node at `position` may write all of `target`."""
    mine = buffers.of(target)
    return (
        len(mine) == 1
        and mine <= buffers.owned
        and all(buffers.last[buffer] <= position for buffer in mine)
        and not any(mine & buffers.of(o) for o in others if isinstance(o, Value))
        and not self_overlap(target.tensor.form)
    )
