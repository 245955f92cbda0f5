"""Where the elements of a view lie in its root: the one address computation.

Autograd through views and functionalization both ask it. The answer, an `Address`, counts elements
of the root in the order in which `strided_get` and `strided_put` read it: logical C order of the
root, after `order` has permuted its axes into the order they have in memory.

Imports `geometry.py`, `view_rules.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from . import view_rules
from .geometry import Geometry, is_contiguous, is_dense, memory_order

__all__ = ["Address", "address_in", "geometry_of", "real_parts"]

Ints: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Address:
    """The elements of a view, as positions in its root.

    Attributes
    ----------
    size, stride : tuple of int
    offset : int
        In elements of the root read as a flat sequence.
    order : tuple of int or None
        Axes of the root from the outermost in memory to the innermost; None for C order.
    """

    size: Ints
    stride: Ints
    offset: int
    order: Ints | None

    @property
    def inverse(self) -> list[int]:
        """The permutation that undoes `order`."""
        assert self.order is not None
        return sorted(range(len(self.order)), key=self.order.__getitem__)


def geometry_of(array: Any, relative_to: Any = None) -> Geometry:
    """Return the geometry of an array; of a NumPy array relative to another's first element.

    Arrays that are not NumPy's have a ``geometry`` over their storage.
    """
    if not isinstance(array, np.ndarray):
        own: Geometry = array.geometry
        return own
    base = array if relative_to is None else relative_to
    return Geometry.of_array(array, base.__array_interface__["data"][0])


def real_parts(geometry: Geometry) -> Geometry:
    """Return a complex geometry as one of its real parts, with one more axis of length 2."""
    return view_rules.view_as_real(geometry)


def address_in(view: Geometry, root: Geometry) -> Address | None:
    """Return where the elements of `view` lie in `root`, or None if the model has no answer.

    Both have one itemsize. There is no answer where the view addresses bytes between the elements
    of the root, outside of it, or in an irregular pattern.
    """
    item = root.dtype.itemsize
    distance = view.offset - root.offset
    if 0 in view.shape:
        return Address(view.shape, (0,) * view.ndim, 0, None)
    if any(count % item for count in (distance, *view.strides)):
        return None
    if is_dense(root):
        return _in_dense(view, root, distance, item)
    return _in_grid(view, root, distance)


def _in_dense(view: Geometry, root: Geometry, distance: int, item: int) -> Address | None:
    """A dense root is a flat run of elements in memory order."""
    order = None
    if not is_contiguous(root):
        if any(s < 0 for n, s in zip(root.shape, root.strides, strict=True) if n > 1):
            return _in_grid(view, root, distance)
        order = memory_order(root.strides)
    stride = tuple([s // item for s in view.strides])
    offset = distance // item
    if not _inside(view.shape, stride, offset, root.numel):
        return None
    return Address(view.shape, stride, offset, order)


def _inside(size: Ints, stride: Ints, offset: int, count: int) -> bool:
    reach = [(n - 1) * s for n, s in zip(size, stride, strict=True)]
    low = offset + sum(r for r in reach if r < 0)
    high = offset + sum(r for r in reach if r > 0)
    return bool(low >= 0 and high < count)


def _in_grid(view: Geometry, root: Geometry, distance: int) -> Address | None:
    """Return the address in a root with gaps: every byte step must be a step of root indices."""
    axes = sorted(
        (axis for axis in range(root.ndim) if root.shape[axis] > 1),
        key=lambda axis: -abs(root.strides[axis]),
    )
    start = _indices(distance, root, axes)
    steps = [_indices(stride, root, axes) for stride in view.strides]
    if start is None or any(step is None for step in steps):
        return None
    for axis in range(root.ndim):
        reach = [(n - 1) * s[axis] for n, s in zip(view.shape, steps, strict=True) if s]
        low = start[axis] + sum(r for r in reach if r < 0)
        high = start[axis] + sum(r for r in reach if r > 0)
        if low < 0 or high >= root.shape[axis]:
            return None
    weights = _c_weights(root.shape)
    stride = tuple([_dot(step, weights) for step in steps if step is not None])
    return Address(view.shape, stride, _dot(start, weights), None)


def _indices(distance: int, root: Geometry, axes: list[int]) -> list[int] | None:
    """Return a byte distance as steps along the root's axes, largest stride first."""
    steps = [0] * root.ndim
    for axis in axes:
        stride = root.strides[axis]
        if stride:
            steps[axis] = int(distance / stride)
            distance -= steps[axis] * stride
    return None if distance else steps


def _c_weights(shape: Ints) -> list[int]:
    weights, step = [], 1
    for length in reversed(shape):
        weights.append(step)
        step *= length
    return weights[::-1]


def _dot(a: list[int], b: list[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))
