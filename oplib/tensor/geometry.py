"""How a tensor addresses its storage: `Geometry`, and the questions one asks about it.

Pure integer functions; nothing here knows of tensors. A geometry counts *bytes* from the first byte
of the storage, as NumPy's strides do. Every question is answered exactly, or with the answer that
refuses (overlapping, not covering) where an exact one takes too long. Sizes may be symbolic:
annotations say ``int``, and a `SymInt` passes wherever the answer does not depend on its value.

Imports `_dims.py` and `errors.py`. Read next: `view_rules.py`, the geometries of view operators,
and `strided.py`, which reads and writes arrays through geometries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._dims import SymInt, same, shorter
from .._record import record
from ..errors import AliasError, DataDependentError

__all__ = [
    "Geometry",
    "check_inside",
    "contiguous_strides",
    "covers",
    "dense_strides",
    "element_offsets",
    "extent",
    "flat_positions",
    "is_contiguous",
    "is_dense",
    "keep_layout",
    "memory_order",
    "numel",
    "overlap",
    "same_geometry",
    "self_overlap",
]

Ints: TypeAlias = tuple[int, ...]

_WORK_LIMIT: Final = 2**16
"""Candidates the overlap search looks at before it answers "unknown", which counts as yes."""
_COVER_LIMIT: Final = 2**20
"""Bytes the cover test lists before it answers "unknown", which counts as no."""


@record
class Geometry:
    """How one handle addresses a storage: element i is at ``offset + Σ i[k] * strides[k]``.

    Attributes
    ----------
    dtype : numpy.dtype
    shape : tuple of int
    strides : tuple of int
        In bytes; zero and negative strides are allowed.
    offset : int
        Byte of the storage at which the element of index 0 begins.

    Notes
    -----
    ``str()`` counts elements: ``[3]:[2]+1`` has shape 3, stride 2, offset 1. ``==`` compares all
    four fields; `same_geometry` compares what can be observed.
    """

    dtype: np.dtype[Any]
    shape: Ints
    strides: Ints
    offset: int = 0

    @classmethod
    def contiguous(cls, shape: Ints, dtype: np.dtype[Any], offset: int = 0) -> Geometry:
        """Return the geometry of a C-ordered array that begins at byte `offset`."""
        return cls(dtype, shape, contiguous_strides(shape, dtype.itemsize), offset)

    @classmethod
    def of_array(cls, array: NDArray[Any], base_address: int) -> Geometry:
        """Return the geometry of `array` in a storage whose first byte is at `base_address`."""
        address = array.__array_interface__["data"][0]
        return cls(array.dtype, array.shape, array.strides, address - base_address)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes the elements take, each counted once."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        """Show shape, strides and offset in elements, in bytes where they are not whole."""
        unit, suffix = self.dtype.itemsize, ""
        if not all(same(count % unit, 0) for count in (*self.strides, self.offset)):
            unit, suffix = 1, " bytes"
        strides = [stride // unit for stride in self.strides]
        return f"{list(self.shape)}:{strides}+{self.offset // unit}{suffix}"


def numel(shape: Ints) -> int:
    """Return the number of elements of `shape`."""
    return math.prod(shape)


# -- layouts ----------------------------------------------------------------------------------


def contiguous_strides(shape: Ints, itemsize: int) -> Ints:
    """Return the strides of a fresh C-ordered array in bytes; an empty axis counts as one."""
    strides = [0] * len(shape)
    step = itemsize
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step
        length = shape[axis]
        if isinstance(length, SymInt) or length:
            step = step * length
    return tuple(strides)


def dense_strides(shape: Ints, order: Sequence[int], itemsize: int) -> Ints:
    """Return strides without holes; `order` names the axes from the outermost to the innermost."""
    strides = [0] * len(shape)
    dense = contiguous_strides(tuple([shape[axis] for axis in order]), itemsize)
    for axis, stride in zip(order, dense, strict=True):
        strides[axis] = stride
    return tuple(strides)


def is_contiguous(geometry: Geometry) -> bool:
    """Return whether memory order is C order, without holes; axes of length one do not count."""
    return _is_contiguous(geometry.shape, geometry.strides, geometry.dtype.itemsize)


def _is_contiguous(shape: Ints, strides: Ints, itemsize: int) -> bool:
    contiguous = True
    step = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if not isinstance(length, SymInt):
            if length == 1:
                continue
            if length == 0:
                return True
        contiguous = contiguous and same(stride, step)
        step = step * length
    return contiguous


def memory_order(strides: Ints) -> Ints:
    """Return the axes by falling |stride|; ties keep C order."""

    def compare(a: int, b: int) -> int:
        first, second = abs(strides[a]), abs(strides[b])
        return int(shorter(first, second)) - int(shorter(second, first))

    return tuple(sorted(range(len(strides)), key=functools.cmp_to_key(compare)))


def keep_layout(shape: Ints, operands: Sequence[tuple[Ints, Ints]], itemsize: int) -> Ints:
    """Return the strides of a fresh elementwise result, as NumPy's ufuncs choose them.

    Begin with C order. Take the axes from the inside outwards and insert each among those already
    placed, looking from its neighbour inwards: it passes inside a placed axis if and only if some
    operand has strides on both and every such operand gives it the strictly smaller one. Axes that
    no operand has both of are passed over; at any other the search stops. The result is dense in
    the order found, so it is C-ordered where operands disagree.

    Parameters
    ----------
    shape : tuple of int
        Of the result; the operands broadcast to it.
    operands : sequence of (shape, strides)
        Signs and units of the strides do not matter.
    itemsize : int
        Of the result.
    """
    distances = [_distances(*operand) for operand in operands] if len(shape) > 1 else []
    if all(map(_falls_inwards, distances)):
        return contiguous_strides(shape, itemsize)
    order: list[int] = []  # from the inside outwards; axis 0 is the last one
    for axis in range(len(shape)):
        place = axis
        for position in range(axis - 1, -1, -1):
            inside = _goes_inside(distances, axis, order[position])
            if inside:
                place = position
            elif inside is False:
                break
        order.insert(place, axis)
    return dense_strides(shape, [len(shape) - 1 - axis for axis in reversed(order)], itemsize)


def _distances(shape: Ints, strides: Ints) -> list[int]:
    """Return |strides| from the last axis to the first, 0 for axes of length one."""
    return [
        0 if same(length, 1) else abs(stride)
        for length, stride in zip(reversed(shape), reversed(strides), strict=True)
    ]


def _falls_inwards(distances: list[int]) -> bool:
    """Return whether an operand asks for nothing else than C order."""
    inner = 0
    for distance in distances:
        if not same(distance, 0):
            if shorter(distance, inner):
                return False
            inner = distance
    return True


def _goes_inside(distances: list[list[int]], axis: int, placed: int) -> bool | None:
    """Return whether `axis` passes inside `placed`, or None if no operand has strides on both."""
    verdict = None
    for operand in distances:
        if axis >= len(operand) or placed >= len(operand):
            continue
        if same(operand[axis], 0) or same(operand[placed], 0):
            continue
        if not shorter(operand[axis], operand[placed]):
            return False
        verdict = True
    return verdict


# -- memory -----------------------------------------------------------------------------------


def same_geometry(a: Geometry, b: Geometry) -> bool:
    """Return whether two geometries are the same to every observer; undecided counts as no.

    Strides of axes of length one do not count, nor strides and offset of an empty shape.
    """
    if a.dtype != b.dtype or len(a.shape) != len(b.shape) or not all(map(same, a.shape, b.shape)):
        return False
    if _is_empty(a.shape):
        return True
    return same(a.offset, b.offset) and all(
        same(length, 1) or same(first, second)
        for length, first, second in zip(a.shape, a.strides, b.strides, strict=True)
    )


def extent(geometry: Geometry) -> tuple[int, int]:
    """Return the half-open interval of bytes the elements lie in, empty if there are none."""
    low = high = geometry.offset
    for length, stride in zip(geometry.shape, geometry.strides, strict=True):
        if same(length, 0):
            return geometry.offset, geometry.offset
        if stride >= 0:
            high = high + (length - 1) * stride
        else:
            low = low + (length - 1) * stride
    return low, high + geometry.dtype.itemsize


def check_inside(geometry: Geometry, nbytes: int) -> None:
    """Raise `AliasError` unless the elements lie in a storage of `nbytes` bytes."""
    low, high = extent(geometry)
    if not same(low, high) and (low < 0 or high > nbytes):
        raise AliasError(
            f"view {geometry} reaches bytes {low}..{high} of a storage that has bytes 0..{nbytes}"
        )


def self_overlap(geometry: Geometry) -> bool:
    """Return whether two index tuples share a byte; what cannot be decided counts as yes."""
    if is_contiguous(geometry) or _is_empty(geometry.shape):
        return False
    try:
        return _self_overlap(geometry.shape, geometry.strides, geometry.dtype.itemsize)
    except DataDependentError:
        return True


def overlap(g: Geometry, h: Geometry) -> bool:
    """Return whether two geometries of one storage share a byte; undecided counts as yes."""
    if _is_empty(g.shape) or _is_empty(h.shape):
        return False
    try:
        g_low, g_high = extent(g)
        h_low, h_high = extent(h)
        if g_high <= h_low or h_high <= g_low:
            return False
        # g_low + Σ |s|·x + i == h_low + Σ |t|·y + j for bytes i and j of two elements; y is
        # counted from the far end, so that all terms add up
        terms = [
            (abs(stride), length - 1)
            for geometry in (g, h)
            for length, stride in zip(geometry.shape, geometry.strides, strict=True)
        ]
        far = h_high - h.dtype.itemsize - g_low
        return _reaches(terms, far - g.dtype.itemsize + 1, far + h.dtype.itemsize - 1)
    except DataDependentError:
        return True


def is_dense(geometry: Geometry) -> bool:
    """Return whether each byte of the extent is covered exactly once; undecided counts as no."""
    if is_contiguous(geometry) or _is_empty(geometry.shape):
        return True
    try:
        low, high = extent(geometry)
        return bool(high - low == geometry.nbytes) and not self_overlap(geometry)
    except DataDependentError:
        return False


def covers(g: Geometry, h: Geometry) -> bool:
    """Return whether every byte of `h` is a byte of `g`; undecided counts as no."""
    if _is_empty(h.shape) or same_geometry(g, h):
        return True
    try:
        (g_low, g_high), (h_low, h_high) = extent(g), extent(h)
        if not (g_low <= h_low and h_high <= g_high):
            return False
        if is_dense(g):
            return True
        if g.nbytes > _COVER_LIMIT or h.nbytes > _COVER_LIMIT:
            return False
        return bool(np.isin(_bytes(h), _bytes(g)).all())
    except DataDependentError:
        return False


def _is_empty(shape: Ints) -> bool:
    return any(same(length, 0) for length in shape)


def _bytes(geometry: Geometry) -> NDArray[np.int64]:
    """Return the byte numbers of all elements."""
    inner = np.arange(geometry.dtype.itemsize, dtype=np.int64)
    return np.asarray(element_offsets(geometry)[..., None] + inner)


def _self_overlap(shape: Ints, strides: Ints, itemsize: int) -> bool:
    axes = [axis for axis in reversed(memory_order(strides)) if not same(shape[axis], 1)]
    inner: list[tuple[int, int]] = []  # (step, count) of the axes so far, from the smallest step
    reach = itemsize
    for axis in axes:
        if not abs(strides[axis]) >= reach:
            break
        reach = reach + abs(strides[axis]) * (shape[axis] - 1)
    else:
        return False
    # Two elements that share a byte differ by some d. Let the outermost axis they differ on be
    # this one: d >= 1 on it by symmetry, while on inner axes d is counted from its lower end.
    least = 0
    for axis in axes:
        step, count = abs(strides[axis]), shape[axis] - 1
        window = 1 - itemsize + least - step, itemsize - 1 + least - step
        if _reaches([(step, count - 1), *inner], *window):
            return True
        inner.append((step, 2 * count))
        least += step * count
    return False


def _reaches(terms: Sequence[tuple[int, int]], low: int, high: int) -> bool:
    """Return whether ``low <= Σ step * x <= high`` for some ints ``0 <= x <= count``.

    `terms` holds (step, count) pairs, no step negative. Bounded depth-first search from the largest
    step, cut by what smaller steps reach and by their common divisor; giving up counts as yes.
    """
    left: list[tuple[int, int]] = []
    for step, count in sorted(term for term in terms if term[0] and term[1]):
        if not left and step <= high - low + 1:
            low -= step * count  # the window moves by less than its width: it becomes wider
        elif left and left[-1][0] == step:
            left[-1] = (step, left[-1][1] + count)
        else:
            left.append((step, count))
    reach = [0]
    divisor = [0]
    for step, count in left:
        reach.append(reach[-1] + step * count)
        divisor.append(math.gcd(divisor[-1], step))
    work = _WORK_LIMIT

    def search(n: int, low: int, high: int) -> bool:
        """Search with the `n` smallest steps."""
        nonlocal work
        work -= 1
        least, most = max(low, 0), min(high, reach[n])
        if least > most or (n and most // divisor[n] * divisor[n] < least):
            return False
        if n <= 1 or work < 0:
            return True
        step, count = left[n - 1]
        first = max(0, -((reach[n - 1] - low) // step))
        last = min(count, high // step)
        return any(search(n - 1, low - step * x, high - step * x) for x in range(first, last + 1))

    return search(len(left), low, high)


def flat_positions(size: Ints, stride: Ints, offset: int) -> NDArray[np.int64]:
    """Return ``offset + Σ i[k] * stride[k]`` for every index tuple i, in an array of shape size."""
    positions = np.asarray(offset, dtype=np.int64)
    for length, step in zip(size, stride, strict=True):
        positions = positions[..., None] + np.arange(length, dtype=np.int64) * step
    return positions


def element_offsets(geometry: Geometry) -> NDArray[np.int64]:
    """Return the storage byte at which each element begins, as an array of the geometry's shape."""
    return flat_positions(geometry.shape, geometry.strides, geometry.offset)
