"""What a functional run left behind, found when its function has returned.

Imports floors 0 to 4, `outcome.py`, `interpreter.py`. Read next: `run.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from .._tree import flatten
from ..prims import clone
from ..tensor.geometry import same_geometry
from ..tensor.grad_meta import AccumulationNode
from ..tensor.storage import Storage
from ..tensor.tensor import Tensor
from .access import laid_out
from .interpreter import Functionalize
from .outcome import (
    Gradient,
    InputResult,
    InputView,
    LiteralResult,
    Outcome,
    Past,
    Rebinding,
    Record,
    SameResult,
    ValueResult,
    ValueView,
    WriteBack,
)
from .storage import Detached, FunctionalArray, Region

__all__ = ["Finish"]


class Run(Protocol):
    """What is asked of a run. See `FunctionalRun`."""

    interpreter: Functionalize
    inputs: list[Tensor]
    inner: list[Tensor]
    handles: list[Tensor]
    leaves: dict[int, tuple[AccumulationNode, Any]]
    roots: list[tuple[int, AccumulationNode]]
    flags: dict[int, bool]

    def adopt(self, tensor: Tensor) -> Tensor:
        """Return the handle of a tensor of the enclosing scope."""

    def first_version(self, storage: Storage) -> int:
        """Return the version a storage had at the beginning."""


class Finish:
    """Describes what a run left behind, with the values this names."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.owns = run.interpreter.owns
        self.places = run.interpreter.places
        self.values: list[Tensor] = []
        self.roots: dict[int, int] = {}

    def outcome(self, result: Any) -> tuple[Outcome, list[Tensor]]:
        """Return the outcome and its values."""
        run, found = self.run, Outcome()
        leaves, found.structure = flatten(result)
        leaves = [run.adopt(x) if self._is_outside(x) else x for x in leaves]
        self._writes(found)
        moved = [i for i, handle in enumerate(run.handles) if self._is_moved(i, handle.array)]
        seen: dict[int, int] = {}
        shared = self._shared_regions([*leaves, *(run.handles[index] for index in moved)])
        for position, leaf in enumerate(leaves):
            earlier = seen.setdefault(id(leaf), position)
            if isinstance(leaf, Tensor) and earlier != position:
                found.records.append(SameResult(earlier))
            else:
                found.records.append(self._record(leaf, shared))
        for index in moved:
            found.rebindings.append(Rebinding(index, self._place(run.handles[index], shared)))
        self._gradients(found)
        found.flags = list(run.flags.items())
        return found, self.values

    def _is_outside(self, leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and not self.owns(leaf)

    def _is_moved(self, index: int, array: FunctionalArray) -> bool:
        """Return whether the handle of an input lies elsewhere than at the beginning."""
        before = self.places[index]
        return array is not before and (
            array.region is not before.region
            or array.history is not before.history
            or not same_geometry(array.geometry, before.geometry)
        )

    def _writes(self, found: Outcome) -> None:
        """Describe what is stored into the inputs, and by how much versions rise."""
        counted = set()
        for index, array in enumerate(self.places):
            region = array.region
            if index not in region.written_through:
                continue
            recorded = index in region.recorded_through
            no_grad = not recorded and self.run.inputs[index].requires_grad
            found.writes.append(WriteBack(index, self._add(array.read()), no_grad))
            storage = self.run.interpreter.storages[index]
            if id(storage) not in counted:
                counted.add(id(storage))
                count = storage.version - self.run.first_version(storage)
                found.versions.append((index, count))

    def _add(self, value: Tensor) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _shared_regions(self, leaves: Iterable[Any]) -> set[int]:
        """Return the regions that several different results live in."""
        handles: dict[int, set[int]] = {}
        for leaf in leaves:
            if self.owns(leaf):
                handles.setdefault(id(leaf.array.region), set()).add(id(leaf))
        return {region for region, found in handles.items() if len(found) > 1}

    def _record(self, leaf: Any, shared: set[int]) -> Record:
        if not isinstance(leaf, Tensor):
            return LiteralResult(leaf)
        for index, handle in enumerate(self.run.handles):
            if handle is leaf:
                return InputResult(index)
        return self._place(leaf, shared)

    def _place(self, leaf: Tensor, shared: set[int]) -> Record:
        """Return where a handle lies that is no input as it was."""
        array: FunctionalArray = leaf.array
        region = array.region
        if array.origin is not None:
            base = self.places[array.origin]
            past = self._past(leaf, base.history)
            return InputView(array.origin, base.geometry, array.geometry, past)
        requires_grad = leaf.requires_grad
        if array.is_whole and array.history is None and id(region) not in shared:
            return ValueResult(self._root(region), region.form, requires_grad)
        return ValueView(self._root(region), region.form, array.geometry, self._past(leaf, None))

    def _past(self, leaf: Tensor, of_base: Any) -> Past:
        """Return what a view remembers besides its addresses."""
        array: FunctionalArray = leaf.array
        requires_grad = leaf.requires_grad
        has_own = requires_grad and array.history is not of_base
        if not has_own:
            return Past(array.start, array.steps, requires_grad)
        history = array.history
        if not isinstance(history, Detached):
            count = len(array.steps or ())
            return Past(array.start, array.steps, requires_grad, self._add(array.read()), count)
        detached = FunctionalArray(array.frame, array.region, history.geometry, None, history)
        value = self._add(detached.read())
        return Past(array.start, array.steps, requires_grad, value, history.steps)

    def _root(self, region: Region) -> int:
        """Return the value of a temporary, in a buffer that no input and no other result has."""
        found = self.roots.get(id(region))
        if found is None:
            value = laid_out(region.value, region.form, True)
            known = [*self.run.inner, *(self.values[i] for i in self.roots.values())]
            if any(value is other for other in known):
                value = clone(value)
            found = self.roots[id(region)] = self._add(value)
        return found

    def _gradients(self, found: Outcome) -> None:
        """Describe the gradients that arrived at inputs inside the run."""
        for index, (node, before) in self.run.leaves.items():
            is_cleared = index in self.run.interpreter.cleared
            if node.grad is before and not is_cleared:
                continue
            value = None if node.grad is None else self._add(self._value(node.grad))
            found.gradients.append(Gradient(index, value, adds=not is_cleared))
        for index, node in self.run.roots:
            if node.grad is not None:
                value = self._add(self._value(node.grad))
                found.gradients.append(Gradient(index, value, of_root=True))

    def _value(self, gradient: Tensor) -> Tensor:
        """Return the value of a gradient, which the program may have taken from outside."""
        handle = self.run.adopt(gradient) if self._is_outside(gradient) else gradient
        return handle.array.read()  # type: ignore[no-any-return]
