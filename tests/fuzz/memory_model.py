"""A reference for views and writes, in plain NumPy: tensors are arrays of indices into memory.

Memory is a flat array of real components (a complex number has two). A handle is an integer array
of the components it shows, ``(*shape, components)``, and every view is that view of the integers.
Derivatives are kept beside the memory: one row per component, with respect to all components of all
leaves, carried forward by the rules of calculus. Nothing of oplib is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

__all__ = ["Family", "Handle", "Memory", "Model", "Refused"]

Array = np.ndarray[Any, Any]


class Refused(Exception):  # noqa: N818
    """The write or use is one that must raise and change nothing."""


@dataclass(eq=False)
class Memory:
    """One buffer: its components, their derivatives, and the number of writes."""

    dtype: np.dtype[Any]
    data: Array
    rows: Array
    leaf: bool = False
    version: int = 0
    families: list[Family] = field(default_factory=list)

    @property
    def parts(self) -> int:
        """Components of an element."""
        return 2 if self.dtype.kind == "c" else 1


@dataclass(eq=False)
class Family:
    """Handles that share a history."""

    root: Array
    tracked: bool
    detached: bool = False
    overwritten: bool = False


@dataclass(eq=False)
class Handle:
    """A view: which components it shows; its dtype may be that of the parts of the memory's."""

    memory: Memory
    at: Array
    family: Family

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape without the axis of components."""
        return self.at.shape[:-1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Complex where an element has two components."""
        real = self.memory.data.dtype
        return np.dtype(f"c{2 * real.itemsize}") if self.at.shape[-1] == 2 else real

    @property
    def value(self) -> Array:
        """The elements, as an array of `dtype`."""
        parts = np.ascontiguousarray(self.memory.data[self.at])
        return parts.view(self.dtype)[..., 0]

    @property
    def repeats(self) -> bool:
        """Whether a component is shown twice."""
        return len(np.unique(self.at)) < self.at.size

    def is_same(self, other: Any) -> bool:
        """Return whether two handles show the same: assigning one to the other does nothing."""
        same = isinstance(other, Handle) and other.family is self.family
        return same and np.array_equal(self.at, other.at)

    def meets(self, components: Array) -> bool:
        """Return whether a component is among others."""
        return bool(np.intersect1d(self.at, components).size)


def _parts(value: Array, dtype: np.dtype[Any]) -> Array:
    """Return the components of numbers, as those of `dtype`."""
    value = np.array(value, dtype)[..., None]
    return value.view(value.real.dtype) if dtype.kind == "c" else value


class Model:
    """All memory of a program, and the operations on it; `count` is the width of a derivative."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.memories: list[Memory] = []
        self.recording = True
        self.saved: list[tuple[Memory, int]] = []

    # ------------------------------------------------------------------ memory

    def new(self, value: Array, rows: Array | None, layout: Array, tracked: bool) -> Handle:
        """Return a handle on new memory that lies in the order of `layout`, another array."""
        parts = 2 if value.dtype.kind == "c" else 1
        real = value.real.dtype
        steps = [step // layout.itemsize * parts for step in layout.strides]
        cells = np.arange(max(value.size, 1) * parts)
        at = as_strided(cells, (*value.shape, parts), [8 * step for step in (*steps, 1)])
        data = np.zeros(value.size * parts, real)
        data[at] = _parts(value, value.dtype)
        memory = Memory(value.dtype, data, np.zeros((data.size, self.count)))
        if rows is not None and data.size:
            memory.rows[at] = rows
        self.memories.append(memory)
        memory.families.append(Family(at, tracked))
        return Handle(memory, at, memory.families[0])

    def use(self, x: Handle) -> None:
        """Refuse a handle whose memory was written by strangers with a history."""
        if self.recording and x.family.overwritten:
            raise Refused("overwritten")

    def rows(self, x: Handle) -> Array:
        """Return the derivatives of what a handle shows: zero for a constant."""
        rows: Array = x.memory.rows[x.at]
        return rows if x.family.tracked and self.recording else np.zeros_like(rows)

    def is_tracked(self, x: Any) -> bool:
        """Return whether an operand has a history."""
        return isinstance(x, Handle) and x.family.tracked and self.recording

    # ------------------------------------------------------------------ handles

    def view(self, x: Handle, show: Callable[[Array], Array]) -> Handle:
        """Return the handle that shows `show` of the components."""
        self.use(x)
        return Handle(x.memory, show(x.at), x.family)

    def apart(self, x: Handle, detached: bool) -> Handle:
        """Return a handle without history on the same components."""
        family = Family(x.at, False, detached)
        x.memory.families.append(family)
        return Handle(x.memory, x.at, family)

    # ------------------------------------------------------------------ arithmetic

    def computed(self, name: str, x: Handle, y: Any) -> Handle:
        """Return ``x + y``, ``x - y``, ``x * y`` (`y` a handle or a number) or a clone."""
        self.use(x)
        if isinstance(y, Handle):
            self.use(y)
        value, rows = self._result(name, x, y)
        shadow = [h.at[..., 0] for h in (x, y) if isinstance(h, Handle)]
        layout = np.add(shadow[0], shadow[-1])
        tracked = (self.is_tracked(x) or self.is_tracked(y)) and value.dtype.kind in "fc"
        return self.new(value, rows, np.asarray(layout), tracked)

    def _result(self, name: str, x: Handle, y: Any, keeps_x: bool = True) -> tuple[Array, Array]:
        """Return elements and derivatives; a product keeps its factors, a written one no copy."""
        other = y.value if isinstance(y, Handle) else y
        with np.errstate(all="ignore"):
            value = np.asarray(_FUNCTIONS[name](x.value, other))
        shape, kind = value.shape, value.dtype
        if name in ("clone", "copy"):
            rows = self._spread(x if name == "clone" else y, shape)
            return value, _from_complex(rows, kind)
        left, right = self._spread(x, shape), self._spread(y, shape)
        if name != "mul":
            return value, _from_complex(left + right if name == "add" else left - right, kind)
        a, b = (np.broadcast_to(v, shape)[..., None] for v in (x.value, other))
        if self.is_tracked(x) and isinstance(y, Handle):
            self.saved.append((y.memory, y.memory.version))
        if self.is_tracked(y) and keeps_x:
            self.saved.append((x.memory, x.memory.version))
        return value, _from_complex(left * b + a * right, kind)

    def _spread(self, x: Any, shape: tuple[int, ...]) -> Array:
        """Return derivatives as (complex) numbers per element, broadcast; zero of a number."""
        if not isinstance(x, Handle):
            return np.zeros((*shape, self.count))
        rows = self.rows(x)
        numbers = rows[..., 0, :] + (1j * rows[..., 1, :] if rows.shape[-2] == 2 else 0)
        return np.broadcast_to(numbers, (*shape, self.count))

    # ------------------------------------------------------------------ writes

    def unrecorded_copy(self, x: Handle, y: Handle) -> None:
        """Copy values only."""
        recording, self.recording = self.recording, False
        try:
            self.write(x, "copy", y)
        finally:
            self.recording = recording

    def write(self, x: Handle, name: str, y: Any) -> None:
        """Store ``x + y``, ``x * y``, a copy of y, ... into x; `y` a handle or a number."""
        self.use(x)
        if isinstance(y, Handle):
            self.use(y)
        value, rows = self._result(name, x, y, keeps_x=False)
        if not np.can_cast(value.dtype, x.dtype, "same_kind"):
            raise Refused("kind")
        if np.broadcast_shapes(value.shape, x.shape) != x.shape:
            raise Refused("shape")
        uniform = name == "copy" and not (isinstance(y, Handle) and y.at[..., 0].size != 1)
        if x.repeats and not uniform:
            raise Refused("overlap")
        self.check(x)
        cells = np.broadcast_to(_parts(value, x.dtype), x.at.shape)
        if rows.shape[-2] < x.at.shape[-1]:
            rows = np.concatenate([rows, np.zeros_like(rows)], axis=-2)
        rows = np.broadcast_to(rows, (*x.at.shape, self.count))
        self.store(x, cells, rows, self.is_tracked(x) or self.is_tracked(y))

    def check(self, x: Handle) -> None:
        """Refuse a recorded write to a leaf, and one behind the back of another history."""
        if not self.recording:
            return
        if x.family.tracked and x.memory.leaf:
            raise Refused("leaf")
        for family in x.memory.families:
            if family is not x.family and family.tracked and x.meets(family.root):
                raise Refused("stranger")

    def store(self, x: Handle, cells: Array, rows: Array, tracked: bool) -> None:
        """Write components (and derivatives, if recorded) and count it."""
        x.memory.data[x.at] = cells
        x.memory.version += 1
        if tracked:
            x.memory.rows[x.at] = rows
            x.family.tracked = True
            for family in x.memory.families:
                if family is not x.family and not family.detached and x.meets(family.root):
                    family.overwritten = True

    def swap(self, x: Handle, y: Handle) -> None:
        """Exchange two handles that show different components."""
        for handle in (x, y):
            self.use(handle)
        for handle in (x, y):
            self.check(handle)
        kept = x.memory.data[x.at], self.rows(x), y.memory.data[y.at], self.rows(y)
        tracked = self.is_tracked(x) or self.is_tracked(y)
        self.store(x, kept[2], kept[3], tracked)
        self.store(y, kept[0], kept[1], tracked)
        if x.memory is y.memory:
            x.memory.version -= 1  # one call counts once

    # ------------------------------------------------------------------ gradients

    def is_stale(self) -> bool:
        """Return whether something a product kept may have been written since."""
        return any(memory.version > version for memory, version in self.saved)

    def gradient(self, outputs: list[Handle], seeds: list[Array]) -> Array:
        """Return the derivative of Σ Re(conj(seed) output) by every component of every leaf."""
        total = np.zeros(self.count)
        for output, seed in zip(outputs, seeds, strict=True):
            parts = _parts(seed, output.dtype).ravel()
            total += parts @ output.memory.rows[output.at].reshape(-1, self.count)
        return total


def _from_complex(rows: Array, dtype: np.dtype[Any]) -> Array:
    """Return derivatives per component."""
    if dtype.kind == "c":
        return np.stack([rows.real, rows.imag], axis=-2)
    return rows.real[..., None, :]


_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "clone": lambda x, y: x,
    "copy": lambda x, y: y if isinstance(y, np.ndarray) else np.asarray(y, np.result_type(y, x)),
}
