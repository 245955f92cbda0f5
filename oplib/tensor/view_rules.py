"""View operators as functions of geometries: where the elements of the result are.

One function per view, `Geometry -> Geometry` (or a list of them, or None where only a copy would
do). Nothing is read or written and no storage is asked, so the same rule serves real tensors, fake
ones and functional graphs. Dimensions may be negative; sizes may be symbolic. An index outside its
axis is an `IndexError`, every other misfit an `ArgumentError`.

Imports `geometry.py`, `_dims.py` and `errors.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np

from .._dims import SymInt, same, sym_max, sym_min
from ..errors import ArgumentError
from .geometry import Geometry, contiguous_strides, is_contiguous, numel

__all__ = [
    "Index",
    "as_strided",
    "basic_index",
    "chunk_sizes",
    "diagonal",
    "expand",
    "imag",
    "infer_size",
    "moved_dims",
    "normalize_dim",
    "normalize_dims",
    "real",
    "reshape",
    "select",
    "slice_dim",
    "split",
    "split_sizes",
    "squeeze",
    "swapped_dims",
    "transpose",
    "unbind",
    "unfold",
    "unsqueeze",
    "view_as_complex",
    "view_as_real",
    "view_dtype",
]

Ints: TypeAlias = tuple[int, ...]
Index: TypeAlias = int | slice | EllipsisType | None
"""One part of a basic index."""


# -- dimensions and sizes ---------------------------------------------------------------------


def normalize_dim(dim: int, ndim: int) -> int:
    """Return `dim` counted from the front: ``-1`` is the last of `ndim` dimensions."""
    if -ndim <= dim < ndim:
        return dim + ndim if dim < 0 else dim
    if ndim == 0:
        raise ArgumentError(f"dim {dim} does not exist: the tensor has no dimensions")
    raise ArgumentError(f"dim {dim} is out of range: {-ndim} <= dim < {ndim} was expected")


def normalize_dims(dims: int | Sequence[int] | None, ndim: int) -> Ints:
    """Return `dims` as a tuple of distinct dimensions counted from the front; None means all."""
    if dims is None:
        return tuple(range(ndim))
    if isinstance(dims, int):
        return (normalize_dim(dims, ndim),)
    found = tuple([normalize_dim(dim, ndim) for dim in dims])
    if len(set(found)) != len(found):
        raise ArgumentError(f"dims {list(dims)} name a dimension twice")
    return found


def infer_size(shape: Sequence[int], count: int) -> Ints:
    """Return `shape` with its one ``-1`` replaced so that it holds `count` elements.

    Raises
    ------
    ArgumentError
        If no size fits, if there are two ``-1``, or another negative size.
    """
    sizes = tuple(shape)
    unknown = [axis for axis, size in enumerate(sizes) if same(size, -1)]
    if not unknown:
        if numel(_checked_size(sizes)) == count:
            return sizes
        raise ArgumentError(f"shape {list(sizes)} does not hold {count} elements")
    if len(unknown) > 1:
        raise ArgumentError(f"only one size of a shape can be -1, got {list(sizes)}")
    axis = unknown[0]
    known = numel(_checked_size(sizes[:axis] + sizes[axis + 1 :]))
    if same(known, 0) or count % known != 0:
        raise ArgumentError(f"no size for -1 lets shape {list(sizes)} hold {count} elements")
    return (*sizes[:axis], count // known, *sizes[axis + 1 :])


def split_sizes(length: int, size: int) -> list[int]:
    """Return `length` cut into parts of `size`, the last one possibly shorter; never no part."""
    if size < 0 or (size == 0 and length != 0):
        raise ArgumentError(f"cannot split an axis of length {length} into parts of size {size}")
    if length == 0:
        return [0]
    return [min(size, length - start) for start in range(0, length, size)]


def chunk_sizes(length: int, count: int) -> list[int]:
    """Return `length` cut into at most `count` parts of one size, the last one possibly shorter."""
    if count < 1:
        raise ArgumentError(f"the number of chunks must be at least 1, got {count}")
    if length == 0:
        return [0] * count
    return split_sizes(length, -(-length // count))


def _checked_size(size: Ints) -> Ints:
    for length in size:
        if not isinstance(length, SymInt) and length < 0:
            raise ArgumentError(f"sizes must not be negative, got {list(size)}")
    return size


# -- the order of axes ------------------------------------------------------------------------


def transpose(g: Geometry, dims: Sequence[int] | None = None) -> Geometry:
    """Permute the axes: axis k of the result is axis ``dims[k]``; None reverses them."""
    if dims is None:
        return Geometry(g.dtype, g.shape[::-1], g.strides[::-1], g.offset)
    ndim = len(g.shape)
    if len(dims) != ndim:
        raise ArgumentError(f"transpose of {ndim} dimensions got dims {list(dims)}")
    order = normalize_dims(dims, ndim)
    shape = tuple([g.shape[dim] for dim in order])
    return Geometry(g.dtype, shape, tuple([g.strides[dim] for dim in order]), g.offset)


def swapped_dims(ndim: int, first: int, second: int) -> Ints:
    """Return the permutation for `transpose` that swaps two axes."""
    order = list(range(ndim))
    first, second = normalize_dim(first, ndim), normalize_dim(second, ndim)
    order[first], order[second] = second, first
    return tuple(order)


def moved_dims(ndim: int, source: int | Sequence[int], target: int | Sequence[int]) -> Ints:
    """Return the permutation for `transpose` that moves axes, as `numpy.moveaxis` does."""
    sources, targets = normalize_dims(source, ndim), normalize_dims(target, ndim)
    if len(sources) != len(targets):
        raise ArgumentError(f"cannot move dims {source} to {target}: their numbers differ")
    order = [dim for dim in range(ndim) if dim not in sources]
    for place, dim in sorted(zip(targets, sources, strict=True)):
        order.insert(place, dim)
    return tuple(order)


# -- shapes -----------------------------------------------------------------------------------


def reshape(g: Geometry, shape: Ints) -> Geometry | None:
    """Give the elements another shape; None if that takes a copy, as for `numpy.reshape`.

    `shape` has no ``-1``: see `infer_size`.
    """
    if numel(_checked_size(shape)) != numel(g.shape):
        raise ArgumentError(
            f"cannot reshape {list(g.shape)} into {list(shape)}: {numel(g.shape)} elements are not "
            f"{numel(shape)}"
        )
    if is_contiguous(g):
        return Geometry(g.dtype, shape, contiguous_strides(shape, g.dtype.itemsize), g.offset)
    strides = _regrouped(g, shape)
    return None if strides is None else Geometry(g.dtype, shape, strides, g.offset)


def _regrouped(g: Geometry, shape: Ints) -> Ints | None:
    """Return strides for `shape`, or None.

    Cuts old and new axes into the shortest groups of equal size. The old axes of each group must
    follow each other in memory like one axis, whose stride is then dealt out to the new ones.
    """
    old = [
        (length, stride)
        for length, stride in zip(g.shape, g.strides, strict=True)
        if not same(length, 1)
    ]
    strides: list[int] = []
    start, taken = 0, 0
    while start < len(old) and taken < len(shape):
        end, first = start + 1, taken
        size, wanted = old[start][0], shape[taken]
        taken += 1
        while size != wanted:
            if wanted < size:
                wanted = wanted * shape[taken]
                taken += 1
            else:
                size = size * old[end][0]
                end += 1
        for (_, outer), (length, inner) in zip(old[start:], old[start + 1 : end], strict=False):
            if outer != length * inner:
                return None
        step = old[end - 1][1]
        dealt: list[int] = []
        for axis in range(taken - 1, first - 1, -1):
            dealt.append(step)
            step = step * shape[axis]
        strides += reversed(dealt)
        start = end
    last = strides[-1] if strides else g.dtype.itemsize
    return (*strides, *[last] * (len(shape) - len(strides)))  # what is left has length one


def expand(g: Geometry, shape: Sequence[int]) -> Geometry:
    """Broadcast to `shape` by axes of stride zero; ``-1`` keeps the length of an axis."""
    added = len(shape) - len(g.shape)
    if added < 0:
        raise ArgumentError(f"cannot expand {list(g.shape)} to the fewer dimensions {list(shape)}")
    sizes = list(shape)
    strides = [0] * added
    for axis, (length, stride) in enumerate(zip(g.shape, g.strides, strict=True), added):
        wanted = sizes[axis]
        if same(wanted, -1) or same(wanted, length):
            sizes[axis] = length
            strides.append(stride)
        elif same(length, 1):
            strides.append(0)
        elif wanted == length:  # by a fact about symbols
            strides.append(stride)
        else:
            raise ArgumentError(
                f"cannot expand {list(g.shape)} to {list(shape)}: axis {axis - added} has length "
                f"{length}, neither 1 nor {wanted}"
            )
    return Geometry(g.dtype, _checked_size(tuple(sizes)), tuple(strides), g.offset)


def squeeze(g: Geometry, dims: int | Sequence[int] | None = None) -> Geometry:
    """Drop the axes of length one among `dims`; longer ones stay."""
    chosen = normalize_dims(dims, len(g.shape))
    kept = [
        axis
        for axis, length in enumerate(g.shape)
        if axis not in chosen or not (same(length, 1) if dims is None else length == 1)
    ]
    shape = tuple([g.shape[axis] for axis in kept])
    return Geometry(g.dtype, shape, tuple([g.strides[axis] for axis in kept]), g.offset)


def unsqueeze(g: Geometry, dims: int | Sequence[int]) -> Geometry:
    """Insert axes of length one, so that they are at `dims` of the result."""
    ndim = len(g.shape) + (1 if isinstance(dims, int) else len(dims))
    shape, strides = list(g.shape), list(g.strides)
    for dim in sorted(normalize_dims(dims, ndim)):
        shape.insert(dim, 1)
        strides.insert(dim, 0)
    return Geometry(g.dtype, tuple(shape), tuple(strides), g.offset)


# -- parts ------------------------------------------------------------------------------------


def select(g: Geometry, dim: int, index: int) -> Geometry:
    """Take one position of an axis, which disappears."""
    dim = normalize_dim(dim, len(g.shape))
    offset = g.offset + _position(index, g.shape[dim], dim) * g.strides[dim]
    return Geometry(
        g.dtype, g.shape[:dim] + g.shape[dim + 1 :], g.strides[:dim] + g.strides[dim + 1 :], offset
    )


def slice_dim(
    g: Geometry,
    dim: int,
    start: int | None = None,
    stop: int | None = None,
    step: int | None = None,
) -> Geometry:
    """Take ``start:stop:step`` of an axis, clipped as Python clips; the step may be negative."""
    dim = normalize_dim(dim, len(g.shape))
    first, length, step = _slice_bounds(slice(start, stop, step), g.shape[dim])
    stride = g.strides[dim]
    return Geometry(
        g.dtype,
        (*g.shape[:dim], length, *g.shape[dim + 1 :]),
        (*g.strides[:dim], stride * step, *g.strides[dim + 1 :]),
        g.offset + first * stride,
    )


def basic_index(g: Geometry, index: Sequence[Index]) -> Geometry:
    """Index with ints, slices, ``None`` and at most one ``...``, as NumPy does."""
    ndim = len(g.shape)
    used = sum(part is not None and part is not Ellipsis for part in index)
    if sum(part is Ellipsis for part in index) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if used > ndim:
        raise IndexError(
            f"too many indices for tensor: tensor is {ndim}-dimensional, but {used} were indexed"
        )
    shape: list[int] = []
    strides: list[int] = []
    offset, axis = g.offset, 0
    for part in index:
        if part is None:
            shape.append(1)
            strides.append(0)
        elif part is Ellipsis:
            end = axis + ndim - used
            shape += g.shape[axis:end]
            strides += g.strides[axis:end]
            axis = end
        elif isinstance(part, slice):
            first, length, step = _slice_bounds(part, g.shape[axis])
            shape.append(length)
            strides.append(g.strides[axis] * step)
            offset = offset + first * g.strides[axis]
            axis += 1
        else:
            offset = offset + _position(part, g.shape[axis], axis) * g.strides[axis]
            axis += 1
    return Geometry(g.dtype, (*shape, *g.shape[axis:]), (*strides, *g.strides[axis:]), offset)


def diagonal(g: Geometry, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Geometry:
    """Take the elements whose index along `dim2` exceeds that along `dim1` by `offset`.

    The diagonal is the last axis of the result; it is empty if it lies outside.
    """
    ndim = len(g.shape)
    dim1, dim2 = normalize_dim(dim1, ndim), normalize_dim(dim2, ndim)
    if dim1 == dim2:
        raise ArgumentError(f"diagonal needs two different dims, got {dim1} twice")
    down, right = max(0, -offset), max(0, offset)
    length = sym_max(0, sym_min(g.shape[dim1] - down, g.shape[dim2] - right))
    kept = [axis for axis in range(ndim) if axis not in (dim1, dim2)]
    begin = g.offset + down * g.strides[dim1] + right * g.strides[dim2]
    return Geometry(
        g.dtype,
        (*[g.shape[axis] for axis in kept], length),
        (*[g.strides[axis] for axis in kept], g.strides[dim1] + g.strides[dim2]),
        g.offset if same(length, 0) else begin,
    )


def unfold(g: Geometry, dim: int, size: int, step: int) -> Geometry:
    """Take all windows of `size` along an axis, `step` apart; the window is the last axis."""
    dim = normalize_dim(dim, len(g.shape))
    length = g.shape[dim]
    if size < 0 or step < 1 or size > length:
        raise ArgumentError(
            f"unfold of an axis of length {length} needs 0 <= size <= {length} and step >= 1, got "
            f"size {size}, step {step}"
        )
    stride = g.strides[dim]
    return Geometry(
        g.dtype,
        (*g.shape[:dim], (length - size) // step + 1, *g.shape[dim + 1 :], size),
        (*g.strides[:dim], stride * step, *g.strides[dim + 1 :], stride),
        g.offset,
    )


def as_strided(
    g: Geometry, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Geometry:
    """Address the storage of `g` anew; counts are elements, from the first byte of the storage.

    Without an `offset` the view begins where `g` does. Whether it stays inside its storage is for
    `geometry.check_inside` to say.
    """
    if len(size) != len(stride):
        raise ArgumentError(
            f"as_strided needs one stride per size, got size {list(size)}, stride {list(stride)}"
        )
    itemsize = g.dtype.itemsize
    begin = g.offset if offset is None else offset * itemsize
    strides = tuple([step * itemsize for step in stride])
    return Geometry(g.dtype, _checked_size(tuple(size)), strides, begin)


def split(g: Geometry, sizes: Sequence[int], dim: int = 0) -> list[Geometry]:
    """Cut an axis into parts of the given sizes (see `split_sizes` and `chunk_sizes`)."""
    dim = normalize_dim(dim, len(g.shape))
    if sum(_checked_size(tuple(sizes))) != g.shape[dim]:
        raise ArgumentError(
            f"parts {list(sizes)} do not add up to length {g.shape[dim]} of axis {dim}"
        )
    parts = []
    offset, stride = g.offset, g.strides[dim]
    for size in sizes:
        shape = (*g.shape[:dim], size, *g.shape[dim + 1 :])
        parts.append(Geometry(g.dtype, shape, g.strides, offset))
        offset = offset + size * stride
    return parts


def unbind(g: Geometry, dim: int = 0) -> list[Geometry]:
    """Return every position of an axis as a view without it."""
    dim = normalize_dim(dim, len(g.shape))
    return [select(g, dim, index) for index in range(g.shape[dim])]


def _position(index: Any, length: int, axis: int) -> int:
    """Return `index` counted from the front of an axis."""
    if type(index) is not int and not isinstance(index, SymInt):
        if isinstance(index, (bool, np.bool_)) or not hasattr(index, "__index__"):
            raise ArgumentError(
                "a basic index has ints, slices, None and ..., got "
                f"{type(index).__name__} for axis {axis}"
            )
        index = operator.index(index)
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of bounds for axis {axis} with size {length}")
    position: int = index + length if index < 0 else index
    return position


def _slice_bounds(part: slice, length: int) -> tuple[int, int, int]:
    """Return (first position, number of positions, step) of a slice of an axis."""
    if same(part.step, 0):
        raise ArgumentError("the step of a slice cannot be zero")
    if not isinstance(length, SymInt):
        start, stop, step = part.indices(length)
        return start, len(range(start, stop, step)), step
    step = 1 if part.step is None else operator.index(part.step)
    low, high = (0, length) if step > 0 else (-1, length - 1)

    def clip(bound: int | None, default: int) -> int:
        if bound is None:
            return default
        position: int = bound + length if bound < 0 else bound
        clipped: int = sym_max(low, sym_min(high, position))
        return clipped

    start = clip(part.start, low if step > 0 else high)
    stop = clip(part.stop, high if step > 0 else low)
    return start, sym_max(0, -((start - stop) // step)), step


# -- other dtypes -----------------------------------------------------------------------------


def view_as_real(g: Geometry) -> Geometry:
    """Show a complex geometry as real with a last axis of length two: real part, imaginary part."""
    dtype = _component(g, "view_as_real")
    return Geometry(dtype, (*g.shape, 2), (*g.strides, dtype.itemsize), g.offset)


def view_as_complex(g: Geometry) -> Geometry:
    """Show pairs of reals, the last axis of length two and without gaps, as complex numbers."""
    if g.dtype.kind != "f" or g.dtype.itemsize not in (4, 8):
        raise ArgumentError(f"view_as_complex needs float32 or float64, got {g.dtype}")
    pairs = bool(g.shape) and same(g.shape[-1], 2)
    if not pairs or not (
        same(g.strides[-1], g.dtype.itemsize) or any(same(length, 0) for length in g.shape)
    ):
        raise ArgumentError(f"view_as_complex needs a last axis of length 2 and stride 1, got {g}")
    dtype = np.dtype(f"c{2 * g.dtype.itemsize}")
    return Geometry(dtype, g.shape[:-1], g.strides[:-1], g.offset)


def real(g: Geometry) -> Geometry:
    """Show the real parts; a real geometry is its own real part."""
    if g.dtype.kind != "c":
        return g
    return Geometry(_component(g, "real"), g.shape, g.strides, g.offset)


def imag(g: Geometry) -> Geometry:
    """Show the imaginary parts; those of a real tensor are fresh zeros, so no view of it."""
    dtype = _component(g, "imag")
    return Geometry(dtype, g.shape, g.strides, g.offset + dtype.itemsize)


def view_dtype(g: Geometry, dtype: np.dtype[Any]) -> Geometry:
    """Show the bytes as elements of `dtype`.

    Another itemsize changes the length of the last axis, which must then be contiguous. Bytes
    other than 0 and 1 are no ``bool``, so views to or from it are refused.
    """
    if dtype == g.dtype:
        return g
    if dtype.kind == "b" or g.dtype.kind == "b":
        raise ArgumentError(f"a view cannot turn {g.dtype} into {dtype}: use astype")
    old, new = g.dtype.itemsize, dtype.itemsize
    if old == new:
        return Geometry(dtype, g.shape, g.strides, g.offset)
    why = f"cannot view {g.dtype} {list(g.shape)} as {dtype}"
    if not g.shape:
        raise ArgumentError(f"{why}: without dimensions the itemsize must stay {old}, not {new}")
    length, empty = g.shape[-1], any(same(n, 0) for n in g.shape)
    if not (empty or same(length, 1) or g.strides[-1] == old):
        raise ArgumentError(
            f"{why}: the last axis must be contiguous, its stride is not {old} bytes"
        )
    if old % new if new < old else length * old % new != 0:
        raise ArgumentError(f"{why}: elements of {new} bytes do not fill the last axis evenly")
    return Geometry(dtype, (*g.shape[:-1], length * old // new), (*g.strides[:-1], new), g.offset)


def _component(g: Geometry, name: str) -> np.dtype[Any]:
    if g.dtype.kind != "c":
        raise ArgumentError(f"{name} needs a complex dtype, got {g.dtype}")
    return np.dtype(f"f{g.dtype.itemsize // 2}")
