"""What a functional run leaves behind, as data: values, writes, results.

`functionalize` settles an outcome at once on the tensors it was called with; a captured program
settles it at every call. Everything is computed before anything is stored, so a run that raises has
changed nothing.

Imports floors 0 to 4, `opaque.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from .. import _state
from .._tree import TreeDef, unflatten
from ..dispatch.keys import AUTOGRAD
from ..errors import AliasError
from ..prims import clone, copy_, with_layout
from ..tensor.geometry import Geometry
from ..tensor.tensor import Tensor, engine, tensor_from_array
from .opaque import view_at

__all__ = [
    "InputResult",
    "InputView",
    "LiteralResult",
    "Outcome",
    "Record",
    "SameResult",
    "SpanInput",
    "ValueResult",
    "ValueView",
    "WriteBack",
    "settle",
    "span_tensor",
]


@dataclass(frozen=True, slots=True)
class InputResult:
    """A result that is an input itself."""

    index: int


@dataclass(frozen=True, slots=True)
class InputView:
    """A result that is a view of an input, relative to the input's own geometry."""

    index: int
    base: Geometry
    geometry: Geometry
    detached: bool


@dataclass(frozen=True, slots=True)
class ValueResult:
    """A result in a buffer of its own, with promised strides."""

    value: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ValueView:
    """A result that is a view of a temporary, which other results may share."""

    value: int
    form: Geometry
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class SameResult:
    """A result that is the same object as an earlier one."""

    result: int


@dataclass(frozen=True, slots=True)
class LiteralResult:
    """A result that is no tensor."""

    value: Any


Record: TypeAlias = InputResult | InputView | ValueResult | ValueView | SameResult | LiteralResult


@dataclass(frozen=True, slots=True)
class WriteBack:
    """A value to store into an input when the run is over."""

    index: int
    value: int
    no_grad: bool


@dataclass(frozen=True, slots=True)
class SpanInput:
    """An input that is the memory several inputs lie in, as a flat tensor."""

    members: tuple[int, ...]


@dataclass(slots=True)
class Outcome:
    """Everything a functional run leaves behind.

    Attributes
    ----------
    writes : list of WriteBack
    versions : list of (input index, count)
        By how much the version of an input's storage rises, once per written storage.
    records : list of Record
        One per leaf of the result.
    structure : TreeDef
    gradients : list of (input index, value index)
        Gradients that arrived at inputs inside the run.
    """

    writes: list[WriteBack] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    structure: TreeDef = field(default_factory=lambda: TreeDef(None))
    gradients: list[tuple[int, int]] = field(default_factory=list)


def settle(outcome: Outcome, inputs: Sequence[Tensor], values: Sequence[Tensor]) -> Any:
    """Store what was written, and return the results.

    Parameters
    ----------
    outcome : Outcome
    inputs : sequence of Tensor
        What the run was called with.
    values : sequence of Tensor
        The values the outcome names by index.
    """
    written = {id(inputs[write.index]._storage) for write in outcome.writes}
    stored = [_unshared(values[write.value], written) for write in outcome.writes]
    results = _results_in_values(outcome, inputs, values)
    _check_destinations(outcome, inputs)
    before = [inputs[index]._storage.version for index, _ in outcome.versions]
    for write, value in zip(outcome.writes, stored, strict=True):
        _store(inputs[write.index], value, write)
    for (index, count), version in zip(outcome.versions, before, strict=True):
        inputs[index]._storage.version = version + count
    _settle_gradients(outcome, inputs, values)
    for position, record in enumerate(outcome.records):
        if isinstance(record, InputResult):
            results[position] = inputs[record.index]
        elif isinstance(record, InputView):
            results[position] = _input_view(inputs[record.index], record)
    for position, record in enumerate(outcome.records):
        if isinstance(record, SameResult):
            results[position] = results[record.result]
    return unflatten(outcome.structure, iter(results))


def _unshared(value: Tensor, written: set[int]) -> Tensor:
    """Return a value that no store can change before it is stored itself."""
    return clone(value) if id(value._storage) in written else value


def _results_in_values(
    outcome: Outcome, inputs: Sequence[Tensor], values: Sequence[Tensor]
) -> list[Any]:
    """Return results that live in buffers of their own; None for those that are inputs."""
    taken = {id(tensor._storage) for tensor in inputs}
    roots: dict[int, Tensor] = {}
    results: list[Any] = []
    for record in outcome.records:
        if isinstance(record, ValueResult):
            value = _laid_out(values[record.value], record.strides)
            value = clone(value) if id(value._storage) in taken else value
            taken.add(id(value._storage))
            results.append(value)
        elif isinstance(record, ValueView):
            if record.value not in roots:
                root = _laid_out(values[record.value], record.form.strides)
                root = clone(root) if id(root._storage) in taken else root
                taken.add(id(root._storage))
                roots[record.value] = root
            results.append(view_at(roots[record.value], record.form, record.geometry))
        elif isinstance(record, LiteralResult):
            results.append(record.value)
        else:
            results.append(None)
    return results


def _laid_out(value: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return a value with the strides its handle had."""
    if 0 in value.shape or all(
        have == want
        for n, have, want in zip(value.shape, value.strides, strides, strict=True)
        if n != 1
    ):
        return value
    item = value.itemsize
    return with_layout(value, [step // item for step in strides])  # type: ignore[no-any-return]


def _check_destinations(outcome: Outcome, inputs: Sequence[Tensor]) -> None:
    for write in outcome.writes:
        array = inputs[write.index].array
        if isinstance(array, np.ndarray) and not array.flags.writeable:
            raise AliasError(
                f"input {write.index} is written by the program, but its array is read-only\n"
                "  pass a writable copy: x.clone()"
            )


def _store(target: Tensor, value: Tensor, write: WriteBack) -> None:
    state = _state.current()
    user = state.user & ~AUTOGRAD if write.no_grad else state.user
    with _state.enter(state.replace(user=user)):
        copy_(target, value)


def _settle_gradients(outcome: Outcome, inputs: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Add gradients that arrived inside the run to the tensors outside."""
    for index, value in outcome.gradients:
        target = inputs[index]
        if target.requires_grad:
            engine.backward([target], [values[value]], False, False)


def _input_view(base: Tensor, record: InputView) -> Tensor:
    view = view_at(base, record.base, record.geometry)
    return view.detach() if record.detached else view  # type: ignore[attr-defined,no-any-return]


def span_tensor(members: Sequence[Tensor]) -> tuple[Tensor, list[Geometry]]:
    """Return the memory several NumPy-backed tensors lie in, and where each of them lies in it.

    Raises
    ------
    AliasError
        If they are not of one dtype at whole elements, or not in NumPy's memory.
    """
    arrays = [tensor.array for tensor in members]
    dtype = arrays[0].dtype
    if any(not isinstance(a, np.ndarray) or a.dtype != dtype for a in arrays):
        raise AliasError(
            "inputs that share memory are written, and they differ in dtype or backend\n"
            "  pass one tensor and take its views inside the function"
        )
    bounds = [np.lib.array_utils.byte_bounds(array) for array in arrays]
    low, high = min(b[0] for b in bounds), max(b[1] for b in bounds)
    first = arrays[[b[0] for b in bounds].index(low)]
    index = tuple(-1 if s < 0 else 0 for s in first.strides)
    start = first[index + (None,)] if index else first.reshape(1)
    count = math.ceil((high - low) / dtype.itemsize)
    flat = np.lib.stride_tricks.as_strided(start, (count,), (dtype.itemsize,))
    geometries = [Geometry.of_array(array, low) for array in arrays]
    return tensor_from_array(flat), geometries
