"""`readiness`: is an operator ready for the graph mode of a device vendor.

Graph compilers for accelerators match arguments by position, convert attributes of a few types,
infer on fakes of a device the machine need not have, and take functional nodes. Each requirement is
a function that returns None where it does not apply, an empty string where it holds, or else what
is wrong and what to do.

Imports floors 0 to 4.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from .._dims import Facts
from .._text import join_names
from .._tree import tree_map
from ..dispatch import registry
from ..dispatch.bind import bind_arguments
from ..dispatch.facets import SAMPLES
from ..dispatch.keys import CPU, META
from ..dispatch.lifting import tensor_leaves
from ..dispatch.operator import Operator
from ..dispatch.plan import implementations, resolve
from ..dtypes import as_device
from ..errors import OplibError
from ..schema import BasicType, ListType, OptionalType, Type, tensors_of
from ..tensor.meta_array import meta_array
from ..tensor.tensor import Tensor, tensor_from_result

__all__ = ["Readiness", "readiness"]

AnyOperator: TypeAlias = Operator[..., Any]
Verdict: TypeAlias = str | None
Call: TypeAlias = Sequence[Any]

_ATTRIBUTES: Final = frozenset({"int", "SymInt", "float", "bool", "str", "ScalarType"})
_DEVICE: Final = as_device("npu:0")


class Readiness(NamedTuple):
    """What `readiness` found; prints one line per requirement.

    Attributes
    ----------
    op : str
        Qualified name.
    verdicts : dict
        By requirement: ``""`` if it holds, None if it does not apply or no example call is known,
        else what is wrong and the call that mends it.
    """

    op: str
    verdicts: Mapping[str, Verdict]

    @property
    def missing(self) -> dict[str, str]:
        """The requirements that do not hold."""
        return {name: verdict for name, verdict in self.verdicts.items() if verdict}

    @property
    def ready(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing

    def __str__(self) -> str:
        words = {None: "-", "": "pass"}
        lines = [f"  {name:18} {words.get(v, f'FAIL  {v}')}" for name, v in self.verdicts.items()]
        return "\n".join([f"{self.op}: {'ready' if self.ready else 'not ready'}", *lines])


def readiness(op: AnyOperator | str, /, *args: Any, **kwargs: Any) -> Readiness:
    """Report whether an operator meets what graph modes of device vendors expect.

    Parameters
    ----------
    op : Operator, OperatorPacket or str
        However it was made: `custom_op` or `Library`.
    *args, **kwargs
        An example call with real tensors, beside those of `register_samples`. Examples are run on
        copies, on fakes of a device that does not exist, and with symbolic sizes.

    Examples
    --------
    >>> import oplib
    >>> oplib.graph.readiness("std::add").ready
    True
    """
    op = registry.resolve(op)
    samples = op.payload(SAMPLES)
    calls = [bind_arguments(op, args, kwargs)] if args or kwargs else []
    calls += [] if samples is None else [bind_arguments(op, a, k) for a, k in samples()]
    found = {name: check(op) for name, check in _OF_SCHEMA.items()}
    for name, check in _OF_CALLS.items():
        verdicts = [check(op, call) for call in calls]
        found[name] = next(filter(None, verdicts), "" if "" in verdicts else None)
    return Readiness(op.qualname, found)


# ---------------------------------------------------------------------- by what is declared


def _order(op: AnyOperator) -> Verdict:
    ranks = [_rank(argument.type) for argument in op.schema.arguments]
    highest = itertools.accumulate(ranks, max)
    late = [
        argument.name
        for argument, rank, before in zip(op.schema.arguments, ranks, highest, strict=True)
        if rank < before
    ]
    if late:
        return f"move {join_names(late)} forward: tensors, then lists of them, then the rest"
    return ""


def _rank(kind: Type) -> int:
    """Return the place of an argument: 0 for tensors, 1 for lists of tensors, 2 for the rest."""
    if not any(tensors_of(kind)):
        return 2
    while isinstance(kind, OptionalType):
        kind = kind.element
    return 1 if isinstance(kind, ListType) else 0


def _returns(op: AnyOperator) -> Verdict:
    schema = op.schema
    returned = [schema.returned_argument(i) for i in range(len(schema.returns))]
    if any(returned) and not (schema.is_inplace or schema.is_out):
        fresh = [str(r) for r, name in zip(schema.returns, returned, strict=True) if name is None]
        names = join_names([name for name in returned if name])
        return f"{names} returned beside what is fresh; return ({', '.join(fresh)}) only"
    return ""


def _attributes(op: AnyOperator) -> Verdict:
    wrong = []
    for argument in op.schema.arguments:
        kind = argument.type
        while isinstance(kind, OptionalType | ListType):
            kind = kind.element
        known = isinstance(kind, BasicType) and kind.name in _ATTRIBUTES
        if not known and not any(tensors_of(kind)):
            wrong.append(f"{argument.type} {argument.name}")
    if not wrong:
        return ""
    return f"{join_names(wrong, 'and')}: converters take int, float, bool, str, dtypes and lists"


def _kernel(op: AnyOperator) -> Verdict:
    keys = [key for key in op.kernels if not key.startswith(("Meta", "Autograd"))]
    return "" if keys else f'none; add one: oplib.register_kernel("{op.qualname}", "cpu", fn)'


def _fake_rule(op: AnyOperator) -> Verdict:
    by_geometry = op.schema.is_view and op.view_rule is not None
    if by_geometry or resolve(op, META).kind != "missing":
        return ""
    return f'none; add one: oplib.register_fake("{op.qualname}")'


def _functional(op: AnyOperator) -> Verdict:
    """Ask for a twin, or for the kernel that a functionalized node runs."""
    if not op.schema.is_mutable:
        return None
    served = op.twin is not None or not _kernel(op)
    return "" if served else f'neither twin nor kernel; oplib.register_functional("{op.qualname}")'


def _effects(op: AnyOperator) -> Verdict:
    if op.schema.returns or op.schema.is_mutable:
        return None
    return "" if op.effects else "no result, no write, and effects=(): passes would drop its calls"


_OF_SCHEMA: Final[dict[str, Callable[[AnyOperator], Verdict]]] = {
    "argument order": _order,
    "returns": _returns,
    "attribute types": _attributes,
    "kernel": _kernel,
    "fake rule": _fake_rule,
    "functional form": _functional,
    "effects": _effects,
}


# ---------------------------------------------------------------------- by example calls


def _writes(op: AnyOperator, call: Call) -> Verdict:
    """Run the kernel on copies, and compare what it may not write."""
    given = tensor_leaves(call)
    if not all(isinstance(t.array, np.ndarray) for t in given) or not any(implementations(op, CPU)):
        return None
    copies = tree_map(lambda v: v.detach().clone() if isinstance(v, Tensor) else v, list(call))
    op.call_positional(copies)
    for argument, old, new in zip(op.schema.arguments, call, copies, strict=True):
        if argument.name in op.schema.mutated_arguments:
            continue
        for a, b in zip(tensor_leaves([old]), tensor_leaves([new]), strict=True):
            if a.array.tobytes() != b.array.tobytes():
                return f"`{argument.name}` is written; declare it: Tensor(a!) {argument.name}"
    return ""


def _device(op: AnyOperator, call: Call) -> Verdict:
    return _on_fakes(op, call, lambda shape: shape)


def _symbols(op: AnyOperator, call: Call) -> Verdict:
    """Run on fakes all of whose sizes above 1 are symbols: equal sizes, equal symbols."""
    facts, known = Facts(), {}

    def symbolic(shape: Sequence[int]) -> tuple[Any, ...]:
        for length in shape:
            if length > 1 and length not in known:
                known[length] = facts.fresh(2)
        return tuple([known.get(length, length) for length in shape])

    return _on_fakes(op, call, symbolic)


def _on_fakes(op: AnyOperator, call: Call, sizes: Callable[[Any], Any]) -> Verdict:
    if _fake_rule(op):
        return None

    def fake(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return tensor_from_result(meta_array(sizes(leaf.shape), leaf.dtype, _DEVICE))

    try:
        op.call_positional(tree_map(fake, list(call)))
    except OplibError as error:
        notes = [note for note in getattr(error, "__notes__", ()) if "fake rule" in note]
        return "; ".join([str(error).splitlines()[0], *notes])
    return ""


_OF_CALLS: Final[dict[str, Callable[[AnyOperator, Call], Verdict]]] = {
    "declared writes": _writes,
    "fakes on npu:0": _device,
    "symbolic sizes": _symbols,
}
