"""Check ``mutation``: the kernel writes what the schema declares, all of it, and nothing else.

Decided on the bytes of the owning buffers, and by a run on write-protected arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ...dtypes import is_inexact
from ...tensor.tensor import Tensor
from ..calls import Call, Outcome, user_traceback
from ..compare import same_bytes
from ..memory import Snapshot
from ..session import Check, Problem, Trial

__all__ = ["MUTATION"]


def _examine(trial: Trial) -> Iterator[Problem]:
    written_somewhere: set[str] = set()
    written_never: dict[str, Call] = {}
    for call in trial.calls():
        given = call.fresh()
        before = given.snapshot()
        versions = {name: t.inplace_version for name, t in given.tensors}
        outcome = given.run()
        if outcome.error is not None:
            continue
        yield from _undeclared(call, given, before, outcome)
        yield from _versions(call, given, versions)
        yield from _protected(call)
        for name, tensor in given.written():
            slot = name.partition("[")[0]
            if before.changed(tensor.array):
                written_somewhere.add(slot)
            elif tensor.size and call.kind != "values":
                written_never.setdefault(slot, call)
        if trial.subject.schema is not None and trial.subject.schema.is_out:
            yield from _left_unwritten(trial, call, outcome)
    for slot, call in written_never.items():
        if slot not in written_somewhere:
            yield Problem(
                call,
                f"argument `{slot}`",
                f"declares writing `{slot}` and never does",
                advice=f"write it, or declare `{slot}` without `!`",
                facet="schema",
            )
    for refusal in trial.session.refused:
        yield from _half_written(trial, refusal)


def _undeclared(call: Call, given: Call, before: Snapshot, outcome: Outcome) -> Iterator[Problem]:
    """Yield changes that the schema does not declare; a PyLayer may write what it returns."""
    written = [tensor.array for _, tensor in given.written()]
    if call.subject.schema is None:
        returned = {id(leaf) for _, leaf in outcome.leaves}
        written = [t.array for _, t in given.tensors if id(t) in returned]
    declared = {name.partition("[")[0] for name, _ in given.written()}
    for change in before.changes(written):
        root = change.where.partition("[")[0]
        if root in declared and change.what in ("writeable flag", "strides"):
            continue
        yield Problem(
            call,
            f"argument `{change.where}`",
            f"{change.what} was changed by the call, undeclared",
            change.expected,
            change.got,
            f"work on a copy, or declare the write: Tensor(a!) {root}",
        )


def _versions(call: Call, given: Call, versions: dict[str, int]) -> Iterator[Problem]:
    """Yield storages whose version did not grow by one for a declared write, by none otherwise."""
    written = {id(t._storage) for _, t in given.written()}
    for name, tensor in given.tensors:
        grown = tensor.inplace_version - versions[name]
        expected = 1 if id(tensor._storage) in written else 0
        if grown != expected and call.subject.schema is not None:
            yield Problem(
                call,
                f"argument `{name}`",
                "the version of its storage grew wrongly",
                f"by {expected}",
                f"by {grown}",
                facet="schema",
            )


def _protected(call: Call) -> Iterator[Problem]:
    """Run with read-only arrays where no write is declared: writing equal values fails too."""
    declared = {id(tensor) for _, tensor in call.written()}
    if call.subject.schema is None:
        return
    outcome = call.fresh(lambda leaf: id(leaf) not in declared).run()
    if outcome.error is None:
        return
    undeclared = [name for name, t in call.tensors if id(t) not in declared]
    yield Problem(
        call,
        "argument " + " or ".join(f"`{name}`" for name in undeclared),
        "the kernel fails when arguments it must not write are write-protected",
        got=user_traceback(outcome.error),
        advice="it writes an argument, perhaps with equal values; work on a copy",
    )


def _left_unwritten(trial: Trial, call: Call, outcome: Outcome) -> Iterator[Problem]:
    """Yield elements of ``out=`` arguments that depend on what they held before."""
    given = call.fresh()
    for _, tensor in given.written():
        _fill(tensor)
    again = given.run()
    if again.error is not None:
        return
    for (name, first), (_, second) in zip(
        outcome.call.written(), again.call.written(), strict=True
    ):
        if same_bytes(first.array, second.array):
            continue
        differ = ~((first.array == second.array) | _both_nan(first.array, second.array))
        if differ.any():
            index = tuple(map(int, np.unravel_index(int(differ.argmax()), differ.shape)))
            yield Problem(
                call,
                f"argument `{name}`",
                f"element {list(index)} is left unwritten: it depends on what `{name}` held before",
                f"{first.array[index]}",
                f"{second.array[index]}",
                "write every element",
            )


def _fill(tensor: Tensor) -> None:
    """Fill an output with something it does not hold."""
    array = tensor.array
    if is_inexact(array.dtype):
        array[...] = 12345.0
    else:
        array[...] = ~array if array.dtype.kind == "b" else array + 1


def _both_nan(a: Any, b: Any) -> Any:
    return (a != a) & (b != b)


def _half_written(trial: Trial, refusal: Outcome) -> Iterator[Problem]:
    """Yield refused calls that wrote an argument without counting the write."""
    given = refusal.call.fresh()
    before = given.snapshot()
    versions = [t.inplace_version for _, t in given.written()]
    if given.run().error is None:
        return
    for (name, tensor), version in zip(given.written(), versions, strict=True):
        if before.changed(tensor.array) and tensor.inplace_version == version:
            yield Problem(
                refusal.call,
                f"argument `{name}`",
                "was written by a call that raised, and its version did not grow",
            )


MUTATION: Final = Check("mutation", ("given", "size", "option", "layout"), _examine)
