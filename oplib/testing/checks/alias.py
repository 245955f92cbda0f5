"""Check ``alias``: results share memory exactly as the schema declares.

Overlap is decided on addresses. Arrays without elements share nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ...errors import AliasError
from ...functionalize.views import ABSOLUTE
from ...schema import FunctionSchema
from ...tensor.tensor import Tensor
from ..calls import Call, Outcome
from ..compare import Array, same_bytes
from ..memory import overlap, same_owner
from ..session import Check, Problem, Trial

__all__ = ["ALIAS"]


def _examine(trial: Trial) -> Iterator[Problem]:
    schema = trial.subject.schema
    assert schema is not None
    for fault in trial.session.faults:
        if isinstance(fault.error, AliasError):
            trial.run += 1
            yield Problem(fault.call, "", str(fault.error), cause=fault.error)
    seen_view = [False] * len(schema.returns)
    last = None
    for call in trial.calls():
        outcome = call.fresh().run()
        if outcome.error is not None:
            continue
        last = call
        for index, value in enumerate(outcome.results):
            returned = schema.returned_argument(index)
            if returned is not None:
                yield from _is_argument(call, outcome, index, returned, value)
            elif schema.aliased_arguments(index) or _is_wildcard(schema, index):
                viewed = _viewed(outcome, value)
                seen_view[index] = seen_view[index] or bool(viewed)
                yield from _declared_view(call, outcome, index, value, viewed)
            else:
                yield from _fresh(call, outcome, index, value)
        yield from _apart(call, outcome)
        yield from _kept(call, outcome)
    for index in range(len(schema.returns)):
        if last is not None and _is_wildcard(schema, index) and not seen_view[index]:
            yield Problem(
                last,
                trial.subject.result_name(index),
                "is declared to be a view of anything and is one in no sample",
                advice="declare the return without an alias set",
                facet="schema",
            )


def _is_wildcard(schema: FunctionSchema, index: int) -> bool:
    slots = [slot for slot in schema.output_slots if slot.index == index]
    return any(slot.alias is not None and slot.alias.is_wildcard for slot in slots)


def _arrays(value: Any, name: str) -> list[tuple[str, Array]]:
    """Return the arrays of a result: of the tensor, or of the elements of a container."""
    if isinstance(value, Tensor):
        return [(name, value.array)]
    if isinstance(value, list | tuple):
        return [pair for i, v in enumerate(value) for pair in _arrays(v, f"{name}[{i}]")]
    if isinstance(value, dict):
        return [pair for k, v in value.items() for pair in _arrays(v, f"{name}[{k!r}]")]
    return []


def _is_argument(
    call: Call, outcome: Outcome, index: int, name: str, value: Any
) -> Iterator[Problem]:
    given = dict(outcome.call.named).get(name)
    if isinstance(given, Tensor) and value is not given:
        where = call.subject.result_name(index)
        yield Problem(call, where, f"is not the argument `{name}` itself", f"`{name}`", "a copy")


def _viewed(outcome: Outcome, value: Any) -> list[str]:
    """Return the names of the arguments that a result overlaps, or whose storage it addresses."""
    op = outcome.call.subject.op
    share = same_owner if op is not None and ABSOLUTE in op.tags else overlap
    return [
        name
        for name, tensor in outcome.call.tensors
        if any(share(array, tensor.array) for _, array in _arrays(value, ""))
    ]


def _declared_view(
    call: Call, outcome: Outcome, index: int, value: Any, viewed: list[str]
) -> Iterator[Problem]:
    schema = call.subject.schema
    assert schema is not None
    declared = schema.aliased_arguments(index)
    where = call.subject.result_name(index)
    arguments = {id(t.array) for _, t in outcome.call.tensors}
    if any(id(a) in arguments for _, a in _arrays(value, "")) and not _is_wildcard(schema, index):
        yield Problem(call, where, "is the array of an argument, not a view of it")
    for name in viewed:
        root = name.partition("[")[0]
        if declared and root not in declared and not _is_wildcard(schema, index):
            if _same_memory(outcome.call, name, declared):
                continue
            expected = " or ".join(f"`{each}`" for each in declared)
            yield Problem(
                call, where, "is a view of an argument it is not declared on", expected, f"`{name}`"
            )
    has_elements = any(array.size for _, array in _arrays(value, ""))
    if has_elements and not viewed and not _is_wildcard(schema, index):
        yield Problem(
            call,
            where,
            "is declared a view and is a copy",
            f"a view of {' or '.join(f'`{each}`' for each in declared)}",
            "memory of its own",
            "return a view for every layout, or declare the return without an alias set",
        )


def _same_memory(call: Call, name: str, declared: tuple[str, ...]) -> bool:
    """Return whether an argument shares memory with one of the declared ones."""
    tensors = dict(call.tensors)
    return any(
        overlap(tensors[name].array, tensor.array)
        for other, tensor in call.tensors
        if other.partition("[")[0] in declared
    )


def _fresh(call: Call, outcome: Outcome, index: int, value: Any) -> Iterator[Problem]:
    for name, array in _arrays(value, call.subject.result_name(index)):
        for argument, tensor in outcome.call.tensors:
            if overlap(array, tensor.array):
                yield Problem(
                    call,
                    name,
                    f"shares memory with argument `{argument}`, undeclared",
                    "memory of its own",
                    f"memory of `{argument}`",
                    f"return a copy, or declare it: Tensor(a) {argument} -> Tensor(a)",
                )


def _apart(call: Call, outcome: Outcome) -> Iterator[Problem]:
    """Yield fresh results, elements of lists included, that share memory with each other."""
    schema = call.subject.schema
    assert schema is not None
    fresh: list[tuple[str, Array]] = []
    for index, value in enumerate(outcome.results):
        declared = schema.aliased_arguments(index) or _is_wildcard(schema, index)
        if schema.returned_argument(index) is None and not declared:
            fresh += _arrays(value, call.subject.result_name(index))
    for position, (name, array) in enumerate(fresh):
        for other, earlier in fresh[:position]:
            if overlap(array, earlier):
                yield Problem(
                    call,
                    name,
                    f"shares memory with {other}",
                    "memory of its own",
                    f"memory of {other}",
                    "return copies",
                )


def _kept(call: Call, outcome: Outcome) -> Iterator[Problem]:
    """Yield results that the next call changes, or that it returns again."""
    before = outcome.frozen()
    next_outcome = call.fresh().run()
    if next_outcome.error is not None:
        return
    for (name, array), (_, again) in zip(outcome.arrays, next_outcome.arrays, strict=False):
        if overlap(array, again):
            yield Problem(
                call,
                name,
                "lies in memory that the next call returns again",
                "memory of its own",
                "a buffer that the kernel keeps",
                "allocate the result in every call",
            )
    for (name, leaf), (_, copy) in zip(outcome.leaves, before, strict=True):
        if isinstance(leaf, Tensor) and not same_bytes(leaf.array, copy):
            yield Problem(call, name, "was changed by the next call")


ALIAS: Final = Check(
    "alias", ("given", "size", "option", "layout", "dtype"), _examine, needs_samples=False
)
