"""Regions and functional arrays: memory as values.

A *region* is a run of bytes with one current value, a tensor of the level below; every functional
tensor is a geometry into a region. Reading and writing go by addresses, so views, overlaps and
orders of axes need no case of their own. Values are never mutated.

Imports floors 0 to 4. Read next: `opaque.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dispatch.interpreter import Frame
from ..dtypes import Device
from ..errors import AliasError
from ..prims import (
    contiguous_last,
    detach,
    permute,
    strided_get,
    strided_put,
    view_as_complex,
    view_as_real,
    with_layout,
)
from ..tensor.addressing import Address, address_in, real_parts
from ..tensor.geometry import Geometry, extent, same_geometry
from ..tensor.storage import Storage
from ..tensor.tensor import Tensor

__all__ = ["FunctionalArray", "Region", "form_of", "with_strides"]


class Region:
    """A run of bytes and its current value.

    Attributes
    ----------
    value : Tensor
        Of the level below; its elements in logical order are those of `form`.
    form : Geometry
        Where these elements lie, in bytes from the start of the region.
    version : int
        Number of writes; what was read at an older version is stale.
    storage : Storage
        The storage this region belongs to, shared by its handles.
    written_through : set of int
        The inputs through whose handles, or views of them, it was written.
    all_no_grad : bool
        Whether every write so far was made with recording off.
    is_input : bool
        Whether it is memory the caller gave.
    """

    __slots__ = ("all_no_grad", "form", "is_input", "storage", "value", "version", "written_through")

    def __init__(self, value: Tensor, form: Geometry, storage: Storage) -> None:
        self.value = value
        self.form = form
        self.storage = storage
        self.version = 0
        self.written_through: set[int] = set()
        self.all_no_grad = True
        self.is_input = False


def form_of(tensor: Any) -> Geometry:
    """Return the geometry of a tensor in a buffer that begins at its lowest address."""
    lowest, _ = extent(Geometry(tensor.dtype, tensor.shape, tensor.strides))
    return Geometry(tensor.dtype, tensor.shape, tensor.strides, -lowest)


class FunctionalArray:
    """The array of a functional tensor: a geometry into a region.

    Attributes
    ----------
    frame : Frame
        The level it belongs to.
    region : Region
    geometry : Geometry
        In bytes from the start of the region.
    origin : int or None
        The input whose handle this is, or is a view of.
    detached : bool
        Whether reads give a value without history (views by ``detach``).
    """

    __slots__ = ("_cached", "_cached_version", "detached", "frame", "geometry", "origin", "region")

    def __init__(
        self,
        frame: Frame,
        region: Region,
        geometry: Geometry,
        origin: int | None = None,
        detached: bool = False,
    ) -> None:
        self.frame = frame
        self.region = region
        self.geometry = geometry
        self.origin = origin
        self.detached = detached
        self._cached: Tensor | None = None
        self._cached_version = -1

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every axis."""
        return self.geometry.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in bytes."""
        return self.geometry.strides

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.geometry.dtype

    @property
    def device(self) -> Device:
        """Device of the value."""
        return self.region.value.device

    @property
    def storage(self) -> Storage:
        """The storage shared by all handles on this memory."""
        return self.region.storage

    def view(self, geometry: Geometry, detached: bool = False) -> FunctionalArray:
        """Return another geometry into the same region."""
        detached = self.detached or detached
        return FunctionalArray(self.frame, self.region, geometry, self.origin, detached)

    @property
    def is_whole(self) -> bool:
        """Whether this handle addresses exactly the elements of the region's value."""
        return same_geometry(self.geometry, self.region.form)

    def read(self) -> Tensor:
        """Return the current value, a tensor of the level below."""
        region = self.region
        if self._cached is None or self._cached_version != region.version:
            value = region.value if self.is_whole else _Access(self).get(region.value)
            self._cached = detach(value) if self.detached else value
            self._cached_version = region.version
        assert self._cached is not None
        return self._cached

    def write(self, value: Tensor) -> Tensor:
        """Return the region's value after `value` was stored through this handle.

        `value` has the handle's dtype and shape. Nothing is changed yet.
        """
        if self.is_whole:
            return value
        return _Access(self).put(self.region.value, value)

    def remember(self, value: Tensor) -> None:
        """Keep what was just stored, so that reading it back costs nothing."""
        self._cached = value
        self._cached_version = self.region.version

    def __repr__(self) -> str:
        return f"FunctionalArray({self.geometry}, level {self.frame.level})"


class _Access:
    """How a handle's elements lie in its region's value; complex values and their parts meet as reals."""

    __slots__ = ("address", "form_to_real", "handle_to_real")

    def __init__(self, array: FunctionalArray) -> None:
        form, part = array.region.form, array.geometry
        self.form_to_real = form.dtype.kind == "c" != part.dtype.kind
        self.handle_to_real = part.dtype.kind == "c" != form.dtype.kind
        if self.form_to_real:
            form = real_parts(form)
        if self.handle_to_real:
            part = real_parts(part)
        address = address_in(part, form) if form.dtype == part.dtype else None
        if address is None:
            raise AliasError(
                f"a view {array.geometry} of dtype {array.dtype} does not address whole elements of "
                f"the memory it lies in ({array.region.form}, dtype {array.region.form.dtype}), "
                "so it cannot be made functional\n  take the view of a copy: x.clone()"
            )
        self.address: Address = address

    def get(self, value: Tensor) -> Tensor:
        """Return the handle's elements of a region's value."""
        at = self.address
        part: Tensor = strided_get(self._flat(value), list(at.size), list(at.stride), at.offset)
        return view_as_complex(contiguous_last(part)) if self.handle_to_real else part

    def put(self, value: Tensor, part: Tensor) -> Tensor:
        """Return a region's value with the handle's elements replaced."""
        at = self.address
        size, stride = list(at.size), list(at.stride)
        if self.handle_to_real:
            part = view_as_real(part)
        part, size = _distinct(part, size, stride)
        flat: Tensor = strided_put(self._flat(value), part, size, stride, at.offset)
        if at.order is not None:
            flat = permute(flat, at.inverse)
        return view_as_complex(contiguous_last(flat)) if self.form_to_real else flat

    def _flat(self, value: Tensor) -> Tensor:
        if self.form_to_real:
            value = view_as_real(value)
        order = self.address.order
        return value if order is None else permute(value, list(order))


def _distinct(part: Tensor, size: list[int], stride: list[int]) -> tuple[Tensor, list[int]]:
    """Return value and size with the axes of stride zero shortened to one (the value is uniform)."""
    short = [min(n, 1) if step == 0 else n for n, step in zip(size, stride, strict=True)]
    if short == size:
        return part, size
    steps, step = [], 1
    for length in reversed(size):
        steps.append(step)
        step *= length
    return strided_get(part, short, steps[::-1], 0), short


def with_strides(value: Tensor, geometry: Geometry, exact: bool) -> Tensor:
    """Return `value` laid out as a handle says: exactly, or in the same order of axes.

    Whether ``reshape`` gives a view depends on strides, and strides of results follow those of
    operands; a value in another order would turn a copy into a view.
    """
    if 0 in geometry.shape:
        return value
    item = geometry.dtype.itemsize
    have, want = value.strides, geometry.strides
    if all(h == w for n, h, w in zip(geometry.shape, have, want, strict=True) if n != 1):
        return value
    if not exact and _same_order(geometry.shape, have, want):
        return value
    if any(step % item for step in want) or 0 in want:
        return value
    return with_layout(value, [abs(step) // item for step in want])  # type: ignore[no-any-return]


def _same_order(shape: tuple[int, ...], have: tuple[int, ...], want: tuple[int, ...]) -> bool:
    """Return whether two layouts compare alike for every pair of axes longer than one."""
    axes = [axis for axis, length in enumerate(shape) if length != 1]
    if any((have[a] == 0) != (want[a] == 0) for a in axes):
        return False
    by_have = sorted(axes, key=lambda a: (abs(have[a]), a))
    by_want = sorted(axes, key=lambda a: (abs(want[a]), a))
    return by_have == by_want
