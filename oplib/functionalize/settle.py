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
from ..tensor.handles import become
from ..tensor.storage import is_read_only
from ..tensor.tensor import Tensor, alias_of, engine
from .access import laid_out, recorded, view_at
from .outcome import (
    InputResult,
    InputView,
    LiteralResult,
    Outcome,
    Past,
    Record,
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
    results = _Results(outcome, inputs, values, {id(s) for s in kept} | _storages(inputs))
    found = [results.result(record) for record in outcome.records]
    moved = [results.result(each.place) for each in outcome.rebindings]
    before = [inputs[index]._storage.version for index, _ in outcome.versions]
    with _asked_inside(inputs):
        _check_destinations(outcome, inputs, values)
        pairs = list(zip(outcome.writes, stored, strict=True))
        for write, value in sorted(pairs, key=lambda pair: _is_tracked(inputs, *pair)):
            _store(inputs[write.index], value, write)
    results.rewrite()
    for (index, count), version in zip(outcome.versions, before, strict=True):
        inputs[index]._storage.version = version + count
    for index, flag in outcome.flags:
        inputs[index].requires_grad = flag
    _settle_gradients(outcome, inputs, values)
    for record, result in zip(outcome.places, [*found, *moved], strict=True):
        if isinstance(record, InputView | ValueView):
            _place_in_time(result, record.past.requires_grad)
    for each, place in zip(outcome.rebindings, moved, strict=True):
        become(inputs[each.index], place)
    for position, record in enumerate(outcome.records):
        if isinstance(record, SameResult):
            found[position] = found[record.result]
    return unflatten(outcome.structure, iter(found))


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
        if isinstance(array, np.ndarray) and is_read_only(array, target._storage):
            raise AliasError(
                f"input {write.index} is written by the program, but its array is read-only\n"
                "  pass a writable copy: x.clone()"
            )
        tracked = target.requires_grad or values[write.value]._keys & AUTOGRAD
        if recording and not write.no_grad and tracked:
            engine.check_write("the program", f"input {write.index}", target)


def _asked_inside(inputs: Sequence[Tensor]) -> _state.enter:
    """Return a context in which inputs may be written beside each other: the run has been asked."""
    state = _state.current()
    known = {id(t) for t in inputs} | {id(t._view.family) for t in inputs if t._view is not None}
    return _state.enter(state.with_config(strangers_asked=frozenset(known)))


def _is_tracked(inputs: Sequence[Tensor], write: WriteBack, value: Tensor) -> bool:
    """Return whether a store is recorded: those come last, and leave strangers behind."""
    return bool((inputs[write.index]._keys | value._keys) & AUTOGRAD) and not write.no_grad


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
    state = _state.current()
    with _state.enter(state.replace(user=state.user & ~AUTOGRAD)):
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
            engine.backward_from(_root_of(target), value, False, False)
        elif target.is_leaf:
            engine.set_grad(target, None if value is None else owned(value))
        elif target.requires_grad:
            engine.backward_from(target, value, False, False)


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
    """Makes the results, before anything is stored: views see the stores as they do in eager code.

    Parameters
    ----------
    outcome : Outcome
    inputs, values : sequence of Tensor
    taken : set of int
        The storages no result of its own may lie in.
    """

    def __init__(
        self,
        outcome: Outcome,
        inputs: Sequence[Tensor],
        values: Sequence[Tensor],
        taken: set[int],
    ) -> None:
        self.inputs = inputs
        self.values = values
        self.taken = taken
        self.roots: dict[int, Tensor] = {}
        self.given_out: set[int] = set()
        self.detached: list[tuple[Tensor, Tensor]] = []
        self.rewritten = {
            record.value
            for record in outcome.places
            if isinstance(record, ValueView) and record.past.value is not None
        }

    def result(self, record: Record) -> Any:
        """Return the result of a record; None for one that is the same as another."""
        match record:
            case InputResult(index):
                return self.inputs[index]
            case InputView():
                return self._input_view(record)
            case LiteralResult(value):
                return value
            case ValueResult():
                with recorded():
                    value = self._own(laid_out(self.values[record.value], record.form, True))
                    return value if record.requires_grad else _plain(value)
            case ValueView():
                return self._value_view(record)
        return None

    def rewrite(self) -> None:
        """Store what is there already through detached handles that have a history of their own."""
        for handle, value in self.detached:
            storage = handle._storage
            strangers, storage.strangers = storage.strangers, ()  # inside it was asked already
            try:
                with recorded():
                    copy_(handle, value)
            finally:
                storage.strangers = strangers

    def _own(self, value: Tensor) -> Tensor:
        """Return a value in a buffer that no other result and no input lies in."""
        if id(value._storage) in self.taken:
            value = clone(value)
        self.taken.add(id(value._storage))
        return value

    def _input_view(self, record: InputView) -> Tensor:
        steps, start = record.past.steps, record.past.start
        base = self.inputs[record.index if steps is None or start is None else start]
        return self._view(record.past, base, record.base, record.geometry)

    def _value_view(self, record: ValueView) -> Tensor:
        root = self.roots.get(record.value)
        if root is None:
            with recorded():
                value = laid_out(self.values[record.value], record.form, True)
                if record.value in self.rewritten:
                    value = clone(value)
                root = self.roots[record.value] = self._own(value)
        is_root = record.past == Past(None, (), bool(root._keys & AUTOGRAD))
        if is_root and record.value not in self.given_out:
            self.given_out.add(record.value)
            return root
        return self._view(record.past, root, record.form, record.geometry)

    def _view(self, past: Past, root: Tensor, form: Geometry, geometry: Geometry) -> Tensor:
        """Return a view of a buffer that came about as the handle inside the run did."""
        if past.steps is None:
            view = view_at(root, form, geometry)
        else:
            view = _replayed(root, past.steps[: past.detached_at])
            if past.value is not None:
                self._note_detached(view, self.values[past.value])
            view = _replayed(view, past.steps[past.detached_at :])
        return alias(root) if view is root else view

    def _note_detached(self, handle: Tensor, value: Tensor) -> None:
        if self_overlap(form_of(handle)):
            raise AliasError(
                "a detached view that overlaps itself leaves a functional run with a history of "
                "its own\n  return a copy: x.clone()"
            )
        if id(value._storage) in self.taken:
            with recorded():
                value = clone(value)
        self.detached.append((handle, value))


def _place_in_time(view: Tensor, requires_grad: bool) -> None:
    """Let a view be behind its family, or not, as the handle inside the run was.

    One that was taken under no_grad has no history until a recorded write makes it stale.
    """
    record = view._view
    if requires_grad:
        if record is not None and not view._keys & AUTOGRAD:
            record.epoch = -1
    else:
        if record is not None:
            record.epoch = record.family.epoch
        view._keys &= ~AUTOGRAD


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
