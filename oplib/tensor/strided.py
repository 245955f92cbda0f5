"""Reading and writing arrays through geometries: the kernels of the strided operators.

`strided_get`, `strided_put` and `strided_add` take an array as the flat sequence of its elements in
logical C order and count *elements*: index tuple i is at ``offset + Σ i[k] * stride[k]``. Steps may
be zero or negative and addresses may repeat. What then happens is part of the contract, so nothing
here assigns through a view that overlaps itself: the order NumPy does that in follows memory.

Imports `geometry.py` and `errors.py`.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from .geometry import Geometry, check_inside, flat_positions, self_overlap

__all__ = ["array_at", "strided_add", "strided_get", "strided_put", "winners"]

Ints: TypeAlias = tuple[int, ...]


def array_at(owner: NDArray[Any], geometry: Geometry) -> NDArray[Any]:
    """Return the view of a dense `owner`, which holds the storage from its first byte on.

    Raises
    ------
    AliasError
        If the view would reach outside of `owner`.
    """
    try:
        return np.ndarray(geometry.shape, geometry.dtype, owner, geometry.offset, geometry.strides)
    except (ValueError, TypeError):
        check_inside(geometry, owner.nbytes)
        raise


def strided_get(base: NDArray[Any], size: Ints, stride: Ints, offset: int) -> NDArray[Any]:
    """Return ``flat[offset + Σ i[k] * stride[k]]`` for the elements of `base` in logical C order.

    The result has exactly these strides, in elements; it is a view of `base` if that is
    C-contiguous, and of a C-ordered copy otherwise.

    Raises
    ------
    IndexError
        If an address is not one of an element of `base`. `strided_put` and `strided_add` likewise.
    """
    _check_access(size, stride, offset, base.size)
    return _strided_view(base if base.flags.c_contiguous else base.copy(), size, stride, offset)


def strided_put(
    base: NDArray[Any], value: NDArray[Any], size: Ints, stride: Ints, offset: int
) -> NDArray[Any]:
    """Return a copy of `base` with `value`, broadcast to `size`, stored at the addresses.

    Stores in logical C order, so that a repeated address keeps the value with the greatest index.
    Shape, dtype and order of axes in memory are those of `base`.
    """
    _check_access(size, stride, offset, base.size)
    if value.dtype != base.dtype:
        raise ArgumentError(f"strided_put stores {base.dtype} elements, got {value.dtype}")
    values = _broadcast(value, size)
    result = base.copy(order="K")
    flat = result if result.flags.c_contiguous else result.copy()
    if 0 in size:
        return result
    if _repeats(size, stride):
        flat.reshape(-1)[flat_positions(size, stride, offset).ravel()] = values.ravel()
    else:
        _strided_view(flat, size, stride, offset)[...] = values
    if flat is not result:
        result[...] = flat
    return result


def strided_add(
    value: NDArray[Any], shape: Ints, size: Ints, stride: Ints, offset: int
) -> NDArray[Any]:
    """Return zeros of `shape` to which `value`, broadcast to `size`, was added at the addresses.

    A repeated address holds a sum: this is the gradient of `strided_get`.
    """
    _check_access(size, stride, offset, math.prod(shape))
    values = _broadcast(value, size)
    result = np.zeros(shape, value.dtype)
    if 0 in size:
        return result
    if _repeats(size, stride):
        _add_repeated(result, values, stride, offset)
    else:
        _strided_view(result, size, stride, offset)[...] = values
    return result


def _add_repeated(result: NDArray[Any], values: NDArray[Any], stride: Ints, offset: int) -> None:
    """Add at addresses that repeat: a slice without repetition at a time, if few are enough.

    Windows that overlap (of a convolution, say) become one addition per place in the window, ten
    times as fast as `numpy.add.at`, which takes elements one by one.
    """
    size = values.shape
    kept, looped = _apart(size, stride)
    if 64 * math.prod([size[axis] for axis in looped]) > math.prod([size[axis] for axis in kept]):
        np.add.at(result.reshape(-1), flat_positions(size, stride, offset), values)
        return
    places = _strided_view(result, size, stride, offset)
    for index in np.ndindex(*[size[axis] for axis in looped]):
        part: list[Any] = [slice(None)] * len(size)
        for axis, i in zip(looped, index, strict=True):
            part[axis] = i
        places[tuple(part)] += values[tuple(part)]


def _apart(size: Ints, stride: Ints) -> tuple[Ints, list[int]]:
    """Return axes along which no address repeats, as long as can be found fast, and the others."""
    kept: Ints = ()
    for axis in sorted(range(len(size)), key=lambda axis: -size[axis]):
        tried = (*kept, axis)
        if not _repeats(tuple([size[i] for i in tried]), tuple([stride[i] for i in tried])):
            kept = tried
    return kept, [axis for axis in range(len(size)) if axis not in kept]


def winners(size: Ints, stride: Ints) -> NDArray[np.bool_]:
    """Return where `strided_put` stores a value that no later index overwrites.

    The gradient of its value is the gathered gradient there, and zero elsewhere.
    """
    if 0 in size or not _repeats(size, stride):
        return np.ones(size, np.bool_)
    positions = flat_positions(size, stride, 0).ravel()
    positions -= positions.min()
    order = np.arange(positions.size)
    last = np.empty(int(positions.max()) + 1, np.int64)
    last[positions] = order
    return np.asarray(last[positions] == order).reshape(size)


def _strided_view(flat: NDArray[Any], size: Ints, stride: Ints, offset: int) -> NDArray[Any]:
    itemsize = flat.itemsize
    strides = tuple([step * itemsize for step in stride])
    start = 0 if 0 in size else offset * itemsize
    return array_at(flat, Geometry(flat.dtype, size, strides, start))


_ELEMENT = np.dtype(np.uint8)


def _repeats(size: Ints, stride: Ints) -> bool:
    """Return whether some address occurs twice; elements are one unit long."""
    return self_overlap(Geometry(_ELEMENT, size, stride))


def _broadcast(value: NDArray[Any], size: Ints) -> NDArray[Any]:
    try:
        return np.broadcast_to(value, size)
    except ValueError:
        raise ArgumentError(
            f"a value of shape {value.shape} cannot be broadcast to size {size}"
        ) from None


def _check_access(size: Ints, stride: Ints, offset: int, count: int) -> None:
    if len(size) != len(stride):
        raise ArgumentError(f"size {size} and stride {stride} must have the same length")
    if any(length < 0 for length in size):
        raise ArgumentError(f"size must not be negative, got {size}")
    low = offset + sum(min(0, (n - 1) * step) for n, step in zip(size, stride, strict=True))
    high = offset + sum(max(0, (n - 1) * step) for n, step in zip(size, stride, strict=True))
    if 0 not in size and not 0 <= low <= high < count:
        raise IndexError(
            f"strided access {list(size)}:{list(stride)}+{offset} reaches elements {low} to {high}"
            f" of a base with {count} elements"
        )
