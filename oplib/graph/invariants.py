"""The invariants of graphs: one function each.

An invariant is a generator that yields what breaks it, as (node, message); its name, its rule in
words and the dialects it holds in are entered into `INVARIANTS`.

The dialects are *functional* (after capture: no call writes), *buffers* (calls may write), and
*joint* (forward and backward in one functional graph).

Imports `ir.py`, `builder.py`, `fitting.py`, `text.py`. Read next: `verify.py`, which runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from keyword import iskeyword
from typing import Any, Final, Literal, TypeAlias

from .._tree import leaves
from ..dispatch.operator import Operator
from ..dispatch.registry import get_op
from ..errors import OplibError
from ..schema import Argument
from ..tensor.geometry import Geometry, extent, self_overlap
from .fitting import describe, fits_argument, fits_result
from .ir import (
    KNOWN_FLAGS,
    Call,
    Constant,
    Functionalized,
    Graph,
    Node,
    OperatorNode,
    Output,
    Placeholder,
    Rebind,
    Role,
    Write,
    defined_values,
    used_values,
)
from .literals import is_literal, symbols_in
from .text import line_of
from .values import Meta, Reference, Same, TensorMeta, TokenMeta, Value, same_sizes

__all__ = ["DIALECTS", "INVARIANTS", "Dialect", "Invariant", "Subject"]

Dialect: TypeAlias = Literal["functional", "buffers", "joint"]
DIALECTS: Final[tuple[Dialect, ...]] = ("functional", "buffers", "joint")

Problem: TypeAlias = tuple[Node | None, str]
Recompute: TypeAlias = Callable[[OperatorNode], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Subject:
    """What the invariants look at: the graph, and what else is known about it."""

    graph: Graph
    dialect: Dialect
    resolve: Callable[[str], Operator[..., Any]] = get_op
    recompute: Recompute | None = None
    signature: Sequence[tuple[Role, Meta]] | None = None


Check: TypeAlias = Callable[[Subject], Iterator[Problem]]


@dataclass(frozen=True, slots=True)
class Invariant:
    """A rule that graphs of some dialects obey: a name, the rule in words, the function."""

    name: str
    rule: str
    check: Check
    dialects: tuple[Dialect, ...]


INVARIANTS: Final[dict[str, Invariant]] = {}
"""All invariants by name, in the order they are checked."""


def invariant(rule: str, dialects: tuple[Dialect, ...] = DIALECTS) -> Callable[[Check], Check]:
    """Enter a function into `INVARIANTS` under its name."""

    def enter(check: Check) -> Check:
        name = check.__name__
        INVARIANTS[name] = Invariant(name, rule, check, dialects)
        return check

    return enter


# Order, definitions, names ------------------------------------------------------------------------

_RANKS: Final = {
    Placeholder: 0,
    Constant: 1,
    Call: 1,
    Functionalized: 1,
    Write: 2,
    Rebind: 3,
    Output: 4,
}


@invariant("placeholders, constants and calls, writes, rebinds, one output")
def node_order(subject: Subject) -> Iterator[Problem]:
    """Check the order of kinds, and that the output ends the graph."""
    before = 0
    for node in subject.graph.nodes:
        rank = _RANKS[type(node)]
        if rank < before:
            yield node, f"a {type(node).__name__.lower()} stands too late"
        before = max(before, rank)
    outputs = [node for node in subject.graph.nodes if isinstance(node, Output)]
    if len(outputs) != 1:
        yield None, f"there are {len(outputs)} outputs"


@invariant("a call uses what is defined above it")
def defined_before_use(subject: Subject) -> Iterator[Problem]:
    """Check that operands are values of the same graph, defined earlier."""
    defined: set[Value] = set()
    for node in subject.graph.nodes:
        if not isinstance(node, Write | Rebind | Output):
            for value in used_values(node):
                if value not in defined:
                    yield node, f"`{value.stem}` is not defined above it"
        defined.update(defined_values(node))


@invariant("the tail uses what the graph defines")
def tail_defined(subject: Subject) -> Iterator[Problem]:
    """Check that writes, rebinds and results name values of the graph."""
    defined = subject.graph.producers
    for node in subject.graph.nodes:
        if isinstance(node, Write | Rebind | Output):
            for value in used_values(node):
                if value not in defined:
                    yield node, f"`{value.stem}` is not defined in the graph"


@invariant("every value is defined once")
def own_results(subject: Subject) -> Iterator[Problem]:
    """Check that the results of a node are values of its own, no operands and nobody else's."""
    owners: dict[Value, Node] = {}
    for node in subject.graph.nodes:
        for value in defined_values(node):
            if value in owners:
                yield node, f"`{value.stem}` is defined twice"
            owners[value] = node


@invariant("stems are identifiers")
def names(subject: Subject) -> Iterator[Problem]:
    """Check what names are made of; that they are distinct and no keywords follows from that."""
    for node in subject.graph.nodes:
        for value in defined_values(node):
            if not (value.stem.isidentifier() and value.stem.isascii()):
                yield node, f"{value.stem!r} is no identifier"
    name = subject.graph.name
    if not name.isidentifier() or iskeyword(name):
        yield None, f"{name!r} is no name of a function"


# Operators and their arguments --------------------------------------------------------------------


@invariant("operators are the registered ones")
def registered_operators(subject: Subject) -> Iterator[Problem]:
    """Check that every operator is registered, with the schema it had when it was recorded."""
    good: set[Operator[..., Any]] = set()
    for node in subject.graph.calls:
        op = node.op
        if op in good:
            continue
        try:
            found = subject.resolve(op.qualname)
        except OplibError as error:
            yield node, str(error)
            continue
        if found.schema != op.schema:
            yield node, f"recorded {op.schema}, registered {found.schema}"
        elif found is not op:
            yield node, f"{op.qualname} was removed and defined again"
        good.add(op)


@invariant("arguments fit the schema")
def arguments_fit(subject: Subject) -> Iterator[Problem]:
    """Check number, types and list lengths; nothing is converted."""
    for node in subject.graph.calls:
        parameters = node.op.schema.arguments
        if len(parameters) != len(node.arguments):
            yield node, f"{len(node.arguments)} arguments for {node.op.schema}"
            continue
        for parameter, value in zip(parameters, node.arguments, strict=True):
            if not fits_argument(value, parameter.type, isinstance(node, Functionalized)):
                yield node, f"`{parameter.name}` is a {parameter.type}, got {describe(value)}"


@invariant("results fit the returns")
def results_fit(subject: Subject) -> Iterator[Problem]:
    """Check number and kinds of results; None stands for absent optionals, written arguments."""
    for node in subject.graph.calls:
        schema = node.op.schema
        if len(node.arguments) != len(schema.arguments):
            continue  # `arguments_fit` says so
        fresh = schema.fresh_returns(node.arguments)
        indices = fresh if isinstance(node, Functionalized) else range(len(schema.returns))
        if len(indices) != len(node.results):
            yield node, f"{len(node.results)} results, {len(indices)} expected of {schema}"
            continue
        for index, result in zip(indices, node.results, strict=True):
            type_ = schema.returns[index].type
            may_be_absent = index not in fresh and result is None
            if not may_be_absent and not fits_result(result, type_):
                yield node, f"return {index} is a {type_}, the result is {describe(result)}"


@invariant("literals are of the allowed types")
def literals(subject: Subject) -> Iterator[Problem]:
    """Check the leaves of arguments and results that are no values."""
    for node in subject.graph.nodes:
        trees = node.arguments if isinstance(node, Call | Functionalized) else ()
        trees = node.results if isinstance(node, Output) else trees
        allowed = (Value, Reference, Same) if isinstance(node, Output) else (Value, Reference)
        for leaf in leaves(trees):
            if not isinstance(leaf, allowed) and not is_literal(leaf):
                yield (
                    node,
                    f"{describe(leaf)} is no literal: pass tensors for arrays, register enums with "
                    "oplib.register_opaque_type, and let an operator of its own hold a function",
                )


@invariant("flags are known, sorted words")
def known_flags(subject: Subject) -> Iterator[Problem]:
    """Check the words behind the exclamation mark."""
    for node in subject.graph.nodes:
        flags = getattr(node, "flags", ())
        unknown = [flag for flag in flags if flag not in KNOWN_FLAGS]
        if unknown:
            yield node, f"`{unknown[0]}` is not one of {', '.join(KNOWN_FLAGS)}"
        elif list(flags) != sorted(set(flags)):
            yield node, f"{' '.join(flags)} is not sorted"


# Writes and regions -------------------------------------------------------------------------------


@invariant("a call writes nothing", ("functional", "joint"))
def nothing_written(subject: Subject) -> Iterator[Problem]:
    """Check that operators that write occur as functionalized nodes only."""
    for node in subject.graph.calls:
        if isinstance(node, Call):
            for parameter, value in _written(node):
                yield node, f"`{parameter.name}` is written, and is {describe(value)}"


@invariant("a written argument does not overlap itself", ("buffers",))
def written_buffers(subject: Subject) -> Iterator[Problem]:
    """Check that what calls write has one address per element."""
    for node in subject.graph.calls:
        if isinstance(node, Call):
            for parameter, value in _written(node):
                if value.is_tensor and self_overlap(value.tensor.form):
                    yield node, f"`{parameter.name}` is {value.meta}"


@invariant("regions of a functionalized node keep their form")
def regions(subject: Subject) -> Iterator[Problem]:
    """Check that written arguments are references inside their regions, one result per region."""
    for node in subject.graph.calls:
        if not isinstance(node, Functionalized):
            continue
        for parameter, _ in _written(node):
            yield node, f"`{parameter.name}` is written, but not passed as a reference"
        for leaf in leaves(node.arguments):
            if isinstance(leaf, Reference):
                yield from _misplaced(node, leaf)
        if len(node.bases) != len(node.regions):
            yield node, f"{len(node.bases)} regions have {len(node.regions)} results"
            continue
        for base, new in zip(node.bases, node.regions, strict=True):
            if base.meta != new.meta:
                yield node, f"the region {base.stem}: {base.meta} becomes {new.meta}"


def _written(node: OperatorNode) -> Iterator[tuple[Argument, Value]]:
    """Iterate over the values passed as they are for arguments that the operator writes."""
    for parameter, argument in zip(node.op.schema.arguments, node.arguments, strict=False):
        if parameter.is_written:
            for leaf in leaves(argument):
                if isinstance(leaf, Value):
                    yield parameter, leaf


def _misplaced(node: Node, reference: Reference) -> Iterator[Problem]:
    """Yield the problem if a reference leaves the memory of its value."""
    if not reference.value.is_tensor:
        yield node, f"`{reference.value.stem}` is no tensor and has no memory"
    elif reference.geometry is not None:
        yield from _outside(node, reference.geometry, reference.value)


def _outside(node: Node, geometry: Geometry, base: Value) -> Iterator[Problem]:
    if not base.is_tensor:
        return
    low, high = extent(geometry)
    _, size = extent(base.tensor.form)
    if low != high and (low < 0 or high > size):
        yield node, f"{geometry} covers bytes {low}:{high} of `{base.stem}`, which has {size}"


@invariant("a placeholder is written at most once, inside its memory")
def one_write_each(subject: Subject) -> Iterator[Problem]:
    """Check the targets and the geometries of writes."""
    inputs = {node.value for node in subject.graph.placeholders}
    written: set[Value] = set()
    for node in subject.graph.writes:
        if node.target not in inputs and node.target in subject.graph.producers:
            yield node, f"`{node.target.stem}` is no placeholder"
        if node.target in written:
            yield node, f"`{node.target.stem}` is written twice"
        if node.times < 1:
            yield node, f"{node.times} calls cannot have written it"
        written.add(node.target)
        for geometry in node.only:
            yield from _outside(node, geometry, node.target)


@invariant("a written value has the dtype and the shape of its target")
def written_value_fits(subject: Subject) -> Iterator[Problem]:
    """Check what is stored against where it is stored."""
    for node in subject.graph.writes:
        old, new = node.target.meta, node.value.meta
        if not isinstance(old, TensorMeta) or not isinstance(new, TensorMeta):
            yield node, f"{new} cannot be stored into {old}"
        elif old.dtype != new.dtype or not same_sizes(old.shape, new.shape):
            yield node, f"{new} is stored into {old}"


@invariant("an argument is rebound at most once, inside its memory")
def rebinds(subject: Subject) -> Iterator[Problem]:
    """Check the targets and the references of rebinds."""
    arguments = {node.value for node in subject.graph.placeholders if node.role == "argument"}
    bound: set[Value] = set()
    for node in subject.graph.rebinds:
        if node.target not in arguments and node.target in subject.graph.producers:
            yield node, f"`{node.target.stem}` is no argument"
        if node.target in bound:
            yield node, f"`{node.target.stem}` is rebound twice"
        bound.add(node.target)
        yield from _misplaced(node, node.reference)


@invariant("references of the output lie in their memory, `same` points back")
def output_references(subject: Subject) -> Iterator[Problem]:
    """Check references and repetitions among the results."""
    output = subject.graph.output
    found = list(leaves(output.results))
    for index, leaf in enumerate(found):
        if isinstance(leaf, Reference):
            yield from _misplaced(output, leaf)
        if isinstance(leaf, Same):
            if not 0 <= leaf.index < index:
                yield output, f"same({leaf.index}) is result {index}"
            elif isinstance(found[leaf.index], Same):
                yield output, f"same({leaf.index}) names a result that is another's repetition"


@invariant("constants are not written and nothing aliases them")
def constants_stay(subject: Subject) -> Iterator[Problem]:
    """Check that no reference of the tail, and no call that writes, reaches a constant."""
    constants = {node.value for node in subject.graph.constants}
    for node in subject.graph.nodes:
        reached: list[Value] = []
        if isinstance(node, Call):
            reached = [value for _, value in _written(node)]
        elif isinstance(node, Rebind):
            reached = [node.reference.value]
        elif isinstance(node, Output):
            found = leaves(node.results)
            reached = [leaf.value for leaf in found if isinstance(leaf, Reference)]
        for value in reached:
            if value in constants:
                yield node, f"`{value.stem}` is a constant"


# Effects ------------------------------------------------------------------------------------------


@invariant("calls of one effect form one chain in node order")
def token_chains(subject: Subject) -> Iterator[Problem]:
    """Check that each call follows the previous one of its chains, and tokens go nowhere else."""
    last: dict[str, Value] = {}
    for node in subject.graph.nodes:
        if isinstance(node, Call | Functionalized):
            effects = [str(token.meta)[6:-1] for token in node.tokens]
            expected = [last[effect] for effect in effects if effect in last]
            if list(node.after) != expected:
                producers = subject.graph.producers
                wanted = ", ".join(line_of(subject.graph, producers[token]) for token in expected)
                yield node, f"it should follow {wanted or 'no other call'}"
            last.update(zip(effects, node.tokens, strict=True))
        after = getattr(node, "after", ())
        for value in used_values(node):
            if value.is_token and value not in after:
                yield node, f"the token `{value.stem}` is used as a value"


@invariant("a call has one token per effect of its operator")
def tokens_match_effects(subject: Subject) -> Iterator[Problem]:
    """Check tokens against effects; ``random:1`` is a chain of the effect ``random``."""
    for node in subject.graph.calls:
        metas = [token.meta for token in node.tokens]
        names = [meta.effect for meta in metas if isinstance(meta, TokenMeta)]
        if len(names) != len(metas) or names != sorted(set(names)):
            yield node, "its tokens are not one per effect, by name"
        elif {name.partition(":")[0] for name in names} != node.op.effects:
            wanted = ", ".join(sorted(node.op.effects)) or "none"
            yield node, f"effects of {node.op.qualname}: {wanted}; tokens: {names}"


# Metadata -----------------------------------------------------------------------------------------


@invariant("metadata are what the shape rules say")
def metadata(subject: Subject) -> Iterator[Problem]:
    """Compare stored metas with recomputed ones; strides do not count where nobody sees them."""
    if subject.recompute is None:
        return
    for node in subject.graph.calls:
        fresh = [meta for meta in leaves(tuple(subject.recompute(node))) if meta is not None]
        stored = [value for value in defined_values(node) if not value.is_token]
        if len(fresh) != len(stored):
            yield node, f"{len(stored)} results are stored, {len(fresh)} computed"
            continue
        for value, meta in zip(stored, fresh, strict=True):
            known = value.meta
            if "layout_free" in node.flags and isinstance(known, TensorMeta):
                known = replace(known, strides=getattr(meta, "strides", ()))
            if known != meta:
                yield node, f"`{value.stem}` is stored as {value.meta}, computed as {meta}"


@invariant("symbols are bound before they are used")
def symbols_bound(subject: Subject) -> Iterator[Problem]:
    """Check that a result of an earlier node, or of the same, has each symbol as a length."""
    bound: set[str] = set()
    for node in subject.graph.nodes:
        used = [*leaves(node.arguments)] if isinstance(node, Call | Functionalized) else []
        for symbol in symbols_in(used) - bound:
            yield node, f"{symbol} is not bound above it"
        for value in defined_values(node):
            bound |= {symbol for symbol, _ in subject.graph.symbol_sites.get(value, ())}
        for value in defined_values(node):
            if isinstance(value.meta, TensorMeta):
                for symbol in symbols_in((*value.meta.shape, *value.meta.strides)) - bound:
                    yield node, f"{symbol} in {value.meta} is not bound"


@invariant("placeholders are those of the signature")
def signature(subject: Subject) -> Iterator[Problem]:
    """Compare placeholders with the leaves and captured tensors of a signature, one to one."""
    if subject.signature is None:
        return
    found = [(node.role, node.value.meta) for node in subject.graph.placeholders]
    if len(found) != len(subject.signature):
        yield None, f"{len(found)} placeholders, the signature has {len(subject.signature)}"
        return
    for node, have, want in zip(subject.graph.placeholders, found, subject.signature, strict=True):
        if have != tuple(want):
            yield node, f"the signature has {want[0]} {want[1]} here"


@invariant("every call is forward or backward, and nothing flows back", ("joint",))
def halves(subject: Subject) -> Iterator[Problem]:
    """Check that no forward call uses a backward value."""
    backward: set[Value] = set()
    for node in subject.graph.calls:
        half = {"forward", "backward"}.intersection(node.flags)
        if len(half) != 1:
            yield node, "it is not flagged forward or backward, one of them"
        if half == {"backward"}:
            backward.update(defined_values(node))
        elif any(value in backward for value in used_values(node)):
            yield node, "a forward call uses a backward value"
