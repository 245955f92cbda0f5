"""One call of an operator that writes: checks, the pure form of the call, and new values.

The checks come first and in the order of eager code: history, read-only memory, a destination that
overlaps itself. A twin is run where it computes the same; any other operator becomes one
`functionalized` call on clones of the regions it writes.

Imports floors 0 to 4, `opaque.py`, `level.py`. Read next: `interpreter.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from .. import _state
from .._tree import tree_map
from ..dispatch.keys import AUTOGRAD
from ..dispatch.lifting import tensor_leaves
from ..dispatch.operator import Operator
from ..dispatch.plan import python_call
from ..errors import AliasError, ReturnError
from ..prims import clone
from ..prims.writing import check_order
from ..tensor.geometry import overlap, self_overlap
from ..tensor.storage import is_read_only
from ..tensor.tensor import Tensor
from .access import laid_out, recorded
from .level import Level, facts_of
from .opaque import At, functionalized, rebased
from .storage import FunctionalArray
from .tapes import is_recorded
from .views import inferred_views

__all__ = ["WritingCall"]

_CHECKS_ORDER: Final = "std:own_overlap_check"
"""Tag of operators that may write what overlaps itself, if what they store allows it."""


class WritingCall:
    """One call of a mutating operator.

    Attributes
    ----------
    args : tuple
        As given: tensors of the level, of the scope around it, and plain values.
    is_recorded : bool
        Whether what is written gets a new history.
    written : list of FunctionalArray
        The arrays of the destinations, in the order of the schema.
    """

    def __init__(self, level: Level, op: Operator[..., Any], args: tuple[Any, ...]) -> None:
        self.level = level
        self.op = op
        self.args = args
        self.is_recorded = is_recorded(op, args)
        self.owned = tuple([tree_map(level.own, value) for value in args])
        handles = self._destinations()
        self.written: list[FunctionalArray] = [handle.array for handle in handles]
        self.storages = {id(handle._storage): handle._storage for handle in handles}

    def run(self) -> Any:
        """Run the call and return its results."""
        for array in self.written:
            before_write = array.region.before_write
            if before_write is not None:
                before_write()
        twin = self.op.twin
        if twin is not None and (twin.pre_state or not self._overlaps()):
            fresh = self._run_twin(twin.twin)
        else:
            fresh = self._run_opaque()
        for storage in self.storages.values():
            storage.version += 1
            storage.writer = self.op.qualname
        return self._results(fresh)

    # ------------------------------------------------------------------ checks

    def _destinations(self) -> list[Tensor]:
        """Return the handles that are written, after all checks."""
        found = []
        arguments = zip(self.op.schema.arguments, self.args, self.owned, strict=True)
        for argument, given, owned in arguments:
            if argument.name not in self.op.schema.mutated_arguments:
                continue
            pairs = zip(tensor_leaves([given]), tensor_leaves([owned]), strict=True)
            for original, handle in pairs:
                self._check(argument.name, original, handle)
                found.append(handle)
        return found

    def _check(self, name: str, original: Tensor, handle: Tensor) -> None:
        op, level = self.op, self.level
        if not level.owns(handle):
            raise AliasError(f"{op.qualname}: argument `{name}` is a constant")
        if self.is_recorded or original._view is not None:
            level.check_history(op, name, handle, self.is_recorded)
        if _is_read_only(handle):
            raise AliasError(
                f"{op.qualname}: argument `{name}` is written, but its array is read-only\n"
                "  pass a writable copy: x.clone()"
            )
        geometry = handle.array.geometry
        if _CHECKS_ORDER in op.tags:
            for other in tensor_leaves(self.args[1:]):
                check_order(geometry, other.shape, op.name)
        elif self_overlap(geometry):
            raise AliasError(
                f"{op.qualname}: argument `{name}` overlaps itself, so the result would depend on "
                "the order of the writes\n  pass a copy: x.clone()"
            )

    def _overlaps(self) -> bool:
        """Return whether a written tensor overlaps another tensor of the call."""
        arrays = [t.array for t in tensor_leaves(self.owned) if self.level.owns(t)]
        for destination in self.written:
            for other in arrays:
                if other is destination or other.region is not destination.region:
                    continue
                if overlap(other.geometry, destination.geometry):
                    return True
        return len({id(array) for array in self.written}) != len(self.written)

    # ------------------------------------------------------------------ the twin

    def _run_twin(self, twin: Callable[..., Any]) -> tuple[Any, ...]:
        """Run the functional twin, store the new values, and return the fresh results."""
        level = self.level
        result = python_call(self.op, twin)(*level.values_of(facts_of(self.op), self.args))
        schema = self.op.schema
        count = len(schema.fresh_returns(self.args))
        is_one = count + len(schema.mutated_arguments) == 1 and not isinstance(result, tuple)
        parts = (result,) if is_one else tuple(result)
        fresh, new = parts[:count], tensor_leaves(list(parts[count:]))
        self._check_new(count, new)
        for array, stored in zip(self.written, new, strict=True):
            value = self._apart_from_inputs(stored)
            is_as_given = self._commit(array, array.write(value))
            if is_as_given and self.is_recorded == bool(value._keys & AUTOGRAD):
                array.remember(value)
        return tuple([level.wrap(value) for value in fresh])

    def _check_new(self, count: int, new: Sequence[Tensor]) -> None:
        """Raise unless a twin returned a new value for every written tensor, of its geometry."""
        wanted = [(array.geometry.shape, array.geometry.dtype) for array in self.written]
        if [(value.array.shape, value.array.dtype) for value in new] != wanted:
            raise ReturnError(
                f"{self.op.qualname}: its functional twin returns {count} fresh results and then "
                f"the new values of {', '.join(self.op.schema.mutated_arguments)}\n"
                f"  expected  {', '.join(f'{dtype}{list(shape)}' for shape, dtype in wanted)}\n"
                f"  got       {', '.join(value.describe() for value in new)}"
            )

    def _apart_from_inputs(self, value: Tensor) -> Tensor:
        """Return a value that no store at the end reaches, if a gradient may save it."""
        level = self.level
        if level.differentiates() and any(value._storage is t._storage for t in level.inner):
            with recorded():
                return clone(value)
        return value

    def _commit(self, array: FunctionalArray, new: Tensor) -> bool:
        """Give a handle's region its value after a write; return whether it is `new` as it is."""
        region = array.region
        before = region.value
        self._note_input(array)
        is_as_given = region.replace(array.history, new, self.is_recorded) is new
        self.level.after_write(before, region.value)
        return is_as_given

    def _note_input(self, array: FunctionalArray) -> None:
        """Take note that an input was written through a handle."""
        if array.origin is not None:
            array.region.written_through.add(array.origin)
            if self.is_recorded and not array.detached:
                array.region.recorded_through.add(array.origin)

    # ------------------------------------------------------------------ functionalized

    def _run_opaque(self) -> tuple[Any, ...]:
        """Run the operator as one `functionalized` call and return the fresh results."""
        if self.is_recorded:
            self._refuse_several_histories()
        first = self._first_in_each_region()
        forms = [array.region.form for array in first]
        with recorded():
            bases = [
                laid_out(array.region.current(array.history), form, True)
                for array, form in zip(first, forms, strict=True)
            ]
        position = {id(array.region): i for i, array in enumerate(first)}
        recording = _state.current().mask & AUTOGRAD

        def rebuilt(leaf: Any) -> Any:
            handle = self.level.own(leaf)
            owned = self.level.owns(handle)
            index = position.get(id(handle.array.region)) if owned else None
            if index is None:
                return self.level.value_of(leaf, True, recording)
            if recording:
                self._check_same_history(leaf, handle.array, first[index], bases[index])
            return At(index, rebased(handle.array.geometry, forms[index]))

        arguments = tuple([tree_map(rebuilt, value) for value in self.args])
        places = tuple([rebased(form, form) for form in forms])
        fresh, new = functionalized.call_positional([self.op.qualname, arguments, bases, places])
        for array, value in zip(first, new, strict=True):
            self._commit(array, value)
            self._share(array)
        return tuple([tree_map(self.level.wrap, part) for part in fresh])

    def _first_in_each_region(self) -> list[FunctionalArray]:
        """Return one destination per region, in order of first appearance."""
        found: dict[int, FunctionalArray] = {}
        for array in self.written:
            found.setdefault(id(array.region), array)
        return list(found.values())

    def _share(self, array: FunctionalArray) -> None:
        """Let the other destinations in a region have the value one of them got."""
        for other in self.written:
            if other.region is array.region and other is not array:
                self._note_input(other)
                if self.is_recorded:
                    array.region.share(array.history, other.history)

    def _check_same_history(
        self, leaf: Tensor, array: FunctionalArray, destination: FunctionalArray, base: Tensor
    ) -> None:
        """Raise if an argument in a written region sees that with another history."""
        same = array.history == destination.history
        differs = leaf._keys ^ base._keys if same else leaf._keys | base._keys
        if differs & AUTOGRAD:
            raise AliasError(
                f"{self.op.qualname} writes memory that its arguments see with different histories "
                "(one of them is detached)\n  pass a copy instead: x.detach().clone()"
            )

    def _refuse_several_histories(self) -> None:
        """Raise if one memory is written through handles with different histories."""
        for one, other in itertools.combinations(self.written, 2):
            different = one.region is other.region and one.history != other.history
            if different and overlap(one.geometry, other.geometry):
                raise AliasError(
                    f"{self.op.qualname} writes one memory through arguments with different "
                    "histories\n  pass views of one tensor"
                )

    # ------------------------------------------------------------------ results

    def _results(self, fresh: Sequence[Any]) -> Any:
        """Return the results: the written arguments, views of them, fresh ones."""
        schema = self.op.schema
        given = {a.name: value for a, value in zip(schema.arguments, self.args, strict=True)}
        values = dict(zip(schema.fresh_returns(self.args), fresh, strict=True))
        complete = []
        for i in range(len(schema.returns)):
            name = schema.returned_argument(i)
            if i in values:
                complete.append(values[i])
            elif name is not None:
                complete.append(given[name])
            else:
                complete.append(self._written_view(i, given))
        if not complete:
            return None
        return complete[0] if len(complete) == 1 else tuple(complete)

    def _written_view(self, index: int, given: dict[str, Any]) -> Any:
        """Return a result that is a view of a written argument, as its fake rule describes it."""
        base = self.level.own(given[self.op.schema.aliased_arguments(index)[0]])
        geometry = inferred_views(self.op, base, self.args, index)
        return self.level.view_handle(self.op, base, geometry, None)


def _is_read_only(tensor: Tensor) -> bool:
    """Return whether the memory of a tensor, at the outermost level, cannot be written."""
    array = tensor.array
    while type(array) is FunctionalArray and array.origin is not None:
        tensor = array.frame.interpreter.inputs[array.origin]  # type: ignore[attr-defined]
        array = tensor.array
    return isinstance(array, np.ndarray) and is_read_only(array, tensor._storage)
