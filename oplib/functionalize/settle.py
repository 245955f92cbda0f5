"""The end of a run: store what was written, hand out the results.

The order matters: all values are there; those that share memory with something about to be stored
are copied; destinations are checked; then everything is stored, and results that are inputs, or
views of them, are taken from what is there now.

Imports floors 0 to 4, `access.py`, `outcome.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from .. import _state
from .._tree import unflatten
from ..dispatch.keys import AUTOGRAD
from ..errors import AliasError
from ..prims import alias, clone, copy_, detach, strided_view
from ..tensor.geometry import Geometry, self_overlap
from ..tensor.tensor import Tensor, alias_of, engine
from .access import laid_out, recorded, view_at
from .outcome import (
    InputResult,
    InputView,
    LiteralResult,
    Outcome,
    Past,
    SameResult,
    ValueResult,
    ValueView,
    WriteBack,
)
from .storage import ViewStep, form_of

__all__ = ["settle"]


def settle(
    outcome: Outcome,
    inputs: Sequence[Tensor],
    values: Sequence[Tensor],
    kept: Collection[Any] = (),
) -> Any:
    """Store what was written, and return the results.

    Parameters
    ----------
    outcome : Outcome
    inputs : sequence of Tensor
        What the run was called with.
    values : sequence of Tensor
        The values the outcome names by index.
    kept : collection of Storage, optional
        Memory that belongs to others (constants of a program): no result may lie in it.
    """
    with recorded():
        stored = _values_to_store(outcome, inputs, values)
        results = _Results(outcome, values, {id(s) for s in kept} | _storages(inputs)).found()
    _check_destinations(outcome, inputs, values)
    before = [inputs[index]._storage.version for index, _ in outcome.versions]
    for write, value in zip(outcome.writes, stored, strict=True):
        _store(inputs[write.index], value, write)
    for index, flag in outcome.flags:
        inputs[index].requires_grad = flag
    _settle_gradients(outcome, inputs, values)
    for position, record in enumerate(outcome.records):
        if isinstance(record, InputResult):
            results[position] = inputs[record.index]
        elif isinstance(record, InputView):
            results[position] = _input_view(record, inputs, values)
    for (index, count), version in zip(outcome.versions, before, strict=True):
        inputs[index]._storage.version = version + count
    for position, record in enumerate(outcome.records):
        if isinstance(record, SameResult):
            results[position] = results[record.result]
    return unflatten(outcome.structure, iter(results))


def _storages(tensors: Sequence[Tensor]) -> set[int]:
    return {id(tensor._storage) for tensor in tensors}


# ---------------------------------------------------------------------- stores


def _values_to_store(
    outcome: Outcome, inputs: Sequence[Tensor], values: Sequence[Tensor]
) -> list[Tensor]:
    """Return what is stored, copied where another store could change it before."""
    written = _storages([inputs[write.index] for write in outcome.writes])
    found = []
    for write in outcome.writes:
        value = values[write.value]
        found.append(clone(value) if id(value._storage) in written else value)
    return found


def _check_destinations(
    outcome: Outcome, inputs: Sequence[Tensor], values: Sequence[Tensor]
) -> None:
    """Raise before anything is stored if something cannot be."""
    recording = _state.current().mask & AUTOGRAD
    for write in outcome.writes:
        target = inputs[write.index]
        array = target.array
        if isinstance(array, np.ndarray) and not array.flags.writeable:
            raise AliasError(
                f"input {write.index} is written by the program, but its array is read-only\n"
                "  pass a writable copy: x.clone()"
            )
        tracked = target.requires_grad or values[write.value]._keys & AUTOGRAD
        if recording and not write.no_grad and tracked:
            engine.check_write("the program", f"input {write.index}", target)


def _store(target: Tensor, value: Tensor, write: WriteBack) -> None:
    state = _state.current()
    user = state.user & ~AUTOGRAD if write.no_grad else state.user
    with _state.enter(state.replace(user=user)):
        _copy(target, value)


def _copy(target: Tensor, value: Tensor) -> None:
    """Copy a value into a tensor; where that overlaps itself, equal elements meet.

    No gradient is recorded for such a tensor, so its parts need no history.
    """
    if not self_overlap(form_of(target)):
        copy_(target, value)
        return
    axis = next(i for i, length in enumerate(target.shape) if length > 1)
    count = 1 if target.strides[axis] == 0 else target.shape[axis]
    for position in range(count):
        _copy(_selected(target, axis, position), _selected(value, axis, position))


def _selected(tensor: Tensor, axis: int, position: int) -> Tensor:
    """Return one position along an axis, which keeps length one."""
    stride = [step // tensor.itemsize for step in tensor.strides]
    size = [*tensor.shape[:axis], 1, *tensor.shape[axis + 1 :]]
    return detach(strided_view(detach(tensor), size, stride, position * stride[axis]))


def _settle_gradients(outcome: Outcome, inputs: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Hand the gradients that arrived inside the run to the tensors outside."""
    for gradient in outcome.gradients:
        target = inputs[gradient.index]
        value = None if gradient.value is None else values[gradient.value]
        if gradient.of_root:
            engine.backward([_root_of(target)], [value], False, False)
        elif target.is_leaf:
            engine.set_grad(target, None if value is None else owned(value))
        elif target.requires_grad:
            engine.backward([target], [value], False, False)


def _root_of(tensor: Tensor) -> Tensor:
    """Return a handle on the tensor that an input is a view of."""
    assert tensor._view is not None
    family = tensor._view.family
    root = alias_of(tensor, family.root_array)
    root.autograd_meta = family.root
    root._keys |= AUTOGRAD
    return root


def owned(value: Tensor) -> Tensor:
    """Return a gradient that shares no memory with anything a run knows."""
    with recorded():
        return clone(value)


# ---------------------------------------------------------------------- results


class _Results:
    """Makes the results that live in buffers of their own."""

    def __init__(self, outcome: Outcome, values: Sequence[Tensor], taken: set[int]) -> None:
        self.outcome = outcome
        self.values = values
        self.taken = taken
        self.roots: dict[int, Tensor] = {}
        self.given_out: set[int] = set()
        self.rewritten = {
            record.value
            for record in outcome.records
            if isinstance(record, ValueView) and record.past.value is not None
        }

    def found(self) -> list[Any]:
        """Return one result per record; None for those that are inputs or views of them."""
        return [self._result(record) for record in self.outcome.records]

    def _result(self, record: Any) -> Any:
        if isinstance(record, LiteralResult):
            return record.value
        if isinstance(record, ValueResult):
            value = self._own(laid_out(self.values[record.value], record.form, True))
            return value if record.requires_grad else _plain(value)
        if isinstance(record, ValueView):
            return self._view(record)
        return None

    def _own(self, value: Tensor) -> Tensor:
        """Return a value in a buffer that no other result and no input lies in."""
        if id(value._storage) in self.taken:
            value = clone(value)
        self.taken.add(id(value._storage))
        return value

    def _view(self, record: ValueView) -> Tensor:
        root = self.roots.get(record.value)
        if root is None:
            value = laid_out(self.values[record.value], record.form, True)
            if record.value in self.rewritten:
                value = clone(value)
            root = self.roots[record.value] = self._own(value)
        whole = record.past == Past(None, (), bool(root._keys & AUTOGRAD))
        if whole and record.value not in self.given_out:
            self.given_out.add(record.value)
            return root
        return _remembering(record.past, root, record.form, record.geometry, self.values)


def _input_view(record: InputView, inputs: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    steps, start = record.past.steps, record.past.start
    base = inputs[record.index if steps is None or start is None else start]
    return _remembering(record.past, base, record.base, record.geometry, values)


def _remembering(
    past: Past, root: Tensor, form: Geometry, geometry: Geometry, values: Sequence[Tensor]
) -> Tensor:
    """Return a view of a buffer with the past that the handle had inside the run."""
    view = view_at(root, form, geometry) if past.steps is None else _replayed(root, past.steps)
    if view is root:
        view = alias(root)
    if past.value is not None:
        with recorded():
            _copy(view, values[past.value])  # what is there already, for the sake of its history
    if past.requires_grad:
        if not view._keys & AUTOGRAD and view._view is not None:
            view._view.epoch = -1  # taken under no_grad, before a recorded write made it stale
    elif view._keys & AUTOGRAD:
        view.requires_grad = False
    return view


def _replayed(root: Tensor, steps: Sequence[ViewStep]) -> Tensor:
    """Return what view operators make of a handle, each in the grad mode it had."""
    view = root
    state = _state.current()
    for step in steps:
        user = state.user & ~AUTOGRAD if step.no_grad else -1
        with _state.enter(state.replace(user=user)):
            result = step.op.call_positional([view, *step.args])
        view = result if step.part is None else result[step.part]
    return view


def _plain(value: Tensor) -> Tensor:
    return detach(value) if value._keys & AUTOGRAD else value
