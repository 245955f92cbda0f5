"""Where the elements of a view lie in its root: the one address computation.

Autograd through views and functionalization both ask it. The answer, an `Address`, counts elements
of the root in the order in which `strided_get` and `strided_put` read it: logical C order of the
root, after its axes were brought into the order they have in memory (`MemoryOrder`).

Imports `geometry.py`, `view_rules.py`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from .._record import record
from . import view_rules
from .geometry import Geometry, is_contiguous, is_dense, memory_order

__all__ = ["Address", "MemoryOrder", "address_in", "geometry_of", "real_parts"]

Ints: TypeAlias = tuple[int, ...]
Access: TypeAlias = tuple[list[int], list[int], int]
"""Size, stride and offset, as `strided_get` takes them."""


@record
class MemoryOrder:
    """How the logical axes of a dense root relate to its memory.

    Attributes
    ----------
    root : tuple of int
        Shape of the root.
    order : tuple of int
        Its axes from the outermost in memory to the innermost.
    flipped : tuple of bool
        Per axis of `order`, whether it runs backwards.
    """

    root: Ints
    order: Ints
    flipped: tuple[bool, ...]

    @property
    def shape(self) -> Ints:
        """Shape of the root with its axes in the order of memory."""
        return tuple([self.root[axis] for axis in self.order])

    @property
    def inverse(self) -> list[int]:
        """The permutation that undoes `order`."""
        return sorted(range(len(self.order)), key=self.order.__getitem__)

    def into(self) -> Access:
        """Return how the root is read so that its elements come in the order of memory."""
        weights = _c_weights(self.root)
        return self._access(self.shape, [weights[axis] for axis in self.order], self.flipped)

    def back(self) -> Access:
        """Return how elements in the order of memory are read to get the root."""
        weights, inverse = _c_weights(self.shape), self.inverse
        flipped = tuple([self.flipped[place] for place in inverse])
        return self._access(self.root, [weights[place] for place in inverse], flipped)

    @staticmethod
    def _access(shape: Ints, weights: list[int], flipped: tuple[bool, ...]) -> Access:
        stride = [-w if flip else w for w, flip in zip(weights, flipped, strict=True)]
        ends = [(n - 1) * w for n, w, flip in zip(shape, weights, flipped, strict=True) if flip]
        return list(shape), stride, sum(ends)


@record
class Address:
    """The elements of a view, as positions in its root.

    Attributes
    ----------
    size, stride : tuple of int
    offset : int
        In elements of the root read as a flat sequence.
    order : MemoryOrder or None
        What is done to the root before it is read; None for a root in C order.
    """

    size: Ints
    stride: Ints
    offset: int
    order: MemoryOrder | None


def geometry_of(array: Any, relative_to: Any = None) -> Geometry:
    """Return the geometry of an array; of a NumPy array relative to another's first element.

    Other arrays have a ``geometry`` over their storage, or an ``offset`` in it, in bytes.
    """
    if not isinstance(array, np.ndarray):
        own: Geometry | None = getattr(array, "geometry", None)
        return own or Geometry(array.dtype, array.shape, array.strides, array.offset)
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
    strides = tuple([0 if n == 1 else s for n, s in zip(view.shape, view.strides, strict=True)])
    if any(count % item for count in (distance, *strides)):
        return None
    if is_dense(root):
        return _in_dense(view.shape, strides, root, distance)
    return _in_grid(view.shape, strides, root, distance)


def _in_dense(shape: Ints, strides: Ints, root: Geometry, distance: int) -> Address | None:
    """Return the address in a dense root: a flat run of elements in the order of memory."""
    order, lowest = None, 0
    if not is_contiguous(root):
        axes = memory_order(root.strides)
        order = MemoryOrder(root.shape, axes, tuple([root.strides[axis] < 0 for axis in axes]))
        lowest = sum(min(0, (n - 1) * s) for n, s in zip(root.shape, root.strides, strict=True))
    item = root.dtype.itemsize
    stride = tuple([s // item for s in strides])
    offset = (distance - lowest) // item
    if not _inside(shape, stride, offset, root.numel):
        return None
    return Address(shape, stride, offset, order)


def _inside(size: Ints, stride: Ints, offset: int, count: int) -> bool:
    reach = [(n - 1) * s for n, s in zip(size, stride, strict=True)]
    low = offset + sum(r for r in reach if r < 0)
    high = offset + sum(r for r in reach if r > 0)
    return bool(low >= 0 and high < count)


def _in_grid(shape: Ints, strides: Ints, root: Geometry, distance: int) -> Address | None:
    """Return the address in a root with gaps: every byte step must be a step of root indices.

    An axis of the view steps through the root as its second element does from the first.
    """
    start = _index_at(distance, root)
    if start is None:
        return None
    steps = []
    for length, stride in zip(shape, strides, strict=True):
        second = _index_at(distance + stride, root) if length > 1 else start
        if second is None:
            return None
        steps.append([b - a for a, b in zip(start, second, strict=True)])
    for axis in range(root.ndim):
        reach = [(n - 1) * step[axis] for n, step in zip(shape, steps, strict=True)]
        low = start[axis] + sum(r for r in reach if r < 0)
        high = start[axis] + sum(r for r in reach if r > 0)
        if low < 0 or high >= root.shape[axis]:
            return None
    weights = _c_weights(root.shape)
    return Address(
        shape, tuple([_dot(step, weights) for step in steps]), _dot(start, weights), None
    )


def _index_at(distance: int, root: Geometry) -> list[int] | None:
    """Return the index of the root's element that lies `distance` bytes from its first one."""
    left = distance - sum(
        min(0, (n - 1) * s) for n, s in zip(root.shape, root.strides, strict=True)
    )
    index = [0] * root.ndim
    for axis in sorted(range(root.ndim), key=lambda axis: -abs(root.strides[axis])):
        length, stride = root.shape[axis], root.strides[axis]
        if length > 1 and stride:
            count = min(left // abs(stride), length - 1)
            left -= count * abs(stride)
            index[axis] = count if stride > 0 else length - 1 - count
    return None if left else index


def _c_weights(shape: Ints) -> list[int]:
    weights, step = [], 1
    for length in reversed(shape):
        weights.append(step)
        step *= length
    return weights[::-1]


def _dot(a: list[int], b: list[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))
