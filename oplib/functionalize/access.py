"""Reading and writing the elements of a handle in the value of its region.

A region has one value; a handle is a geometry into it. `Access` is how the second lies in the
first, found once per pair of geometries: `get` gathers by address, `put` stores by address.
Elements of another dtype meet as real numbers (complex and its parts) or as bytes (all others).

Imports floors 0 to 4. Read next: `storage.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import numpy as np

from .. import _state
from .._dims import SymInt
from ..dispatch.keys import AUTOGRAD
from ..errors import AliasError
from ..prims import (
    bitcast,
    byte_view,
    contiguous_last,
    expand,
    from_memory_order,
    in_memory_order,
    strided_get,
    strided_put,
    strided_view,
    view_as_complex,
    view_as_real,
    with_layout,
)
from ..tensor.addressing import Address, address_in, real_parts
from ..tensor.geometry import (
    Geometry,
    contiguous_strides,
    keep_layout,
    self_overlap,
)
from ..tensor.tensor import Tensor

__all__ = ["access", "laid_out", "recorded", "view_at"]

_BYTE: Final = np.dtype(np.uint8)


def recorded() -> _state.enter:
    """Return a context in which calls are recorded, whatever the grad mode of the program.

    What functionalization does to a value (take a part, put parts together, lay it out) is not what
    the program does: a value read under no_grad may be used with recording on later.
    """
    state = _state.current()
    return _state.enter(state if state.user & AUTOGRAD else state.replace(user=-1))


@functools.lru_cache(maxsize=4096)
def access(part: Geometry, form: Geometry) -> Access | None:
    """Return how `part` lies in `form`, or None if it reaches bytes `form` does not cover."""
    if part.dtype == form.dtype:
        address = address_in(part, form)
        return None if address is None else Access(address, part)
    complex_form, complex_part = form.dtype.kind == "c", part.dtype.kind == "c"
    if complex_form and not complex_part and part.dtype == real_parts(form).dtype:
        address = address_in(part, real_parts(form))
        return None if address is None else _RealPartAccess(address, part)
    if complex_part and not complex_form and form.dtype == real_parts(part).dtype:
        address = address_in(real_parts(part), form)
        return None if address is None else _ComplexAccess(address, part)
    address = address_in(_bytes_of(part), _bytes_of(form))
    return None if address is None else _ByteAccess(address, part, form)


def _bytes_of(g: Geometry) -> Geometry:
    """Return a geometry as single bytes, with one more axis."""
    return Geometry(_BYTE, (*g.shape, g.dtype.itemsize), (*g.strides, 1), g.offset)


class Access:
    """Where the elements of a handle lie in the value of its region, in elements of that value."""

    __slots__ = ("address", "part", "short", "stride")

    def __init__(self, address: Address, part: Geometry) -> None:
        self.address = address
        self.part = part
        self.stride = list(address.stride)
        self.short = [
            1 if step == 0 and n and 0 not in part.shape else n
            for n, step in zip(address.size, address.stride, strict=True)
        ]

    def get(self, value: Tensor) -> Tensor:
        """Return the handle's elements of a region's value, with its strides of zero."""
        flat = self._flat(value)
        found: Tensor = strided_get(flat, self.short, self.stride, self.address.offset)
        return _repeated(self._as_elements(found), self.part)

    def put(self, value: Tensor, stored: Tensor) -> Tensor:
        """Return a region's value with the handle's elements replaced.

        Axes of stride zero store one element; what is stored there is uniform.
        """
        parts = _shortened(self._as_parts(stored), self.short)
        flat = strided_put(self._flat(value), parts, self.short, self.stride, self.address.offset)
        return self._restored(flat)

    def _flat(self, value: Tensor) -> Tensor:
        """Return a region's value in the order of its memory."""
        return in_memory_order(value, self.address.order)

    def _restored(self, flat: Tensor) -> Tensor:
        """Undo `_flat`."""
        return from_memory_order(flat, self.address.order)

    def _as_elements(self, found: Tensor) -> Tensor:
        """Return what was found at the addresses as elements of the handle's dtype."""
        return found

    def _as_parts(self, stored: Tensor) -> Tensor:
        """Return what is stored as elements of the region's dtype."""
        return stored


class _RealPartAccess(Access):
    """Real elements in a complex region."""

    __slots__ = ()

    def _flat(self, value: Tensor) -> Tensor:
        return super()._flat(view_as_real(value))

    def _restored(self, flat: Tensor) -> Tensor:
        return view_as_complex(contiguous_last(super()._restored(flat)))


class _ComplexAccess(Access):
    """Complex elements in a region of their real parts."""

    __slots__ = ()

    def _as_elements(self, found: Tensor) -> Tensor:
        return view_as_complex(contiguous_last(found))

    def _as_parts(self, stored: Tensor) -> Tensor:
        return view_as_real(stored)


class _ByteAccess(Access):
    """Elements of one dtype in a region of another: both are runs of bytes."""

    __slots__ = ("elements", "form")

    def __init__(self, address: Address, part: Geometry, form: Geometry) -> None:
        super().__init__(address, part)
        self.form = form
        whole = address_in(form, form)
        assert whole is not None
        self.elements = whole.order

    def _flat(self, value: Tensor) -> Tensor:
        value = in_memory_order(value, self.elements)
        return bitcast(_reshaped(value, (*value.shape, 1)), _BYTE)

    def _restored(self, flat: Tensor) -> Tensor:
        shape = self.form.shape if self.elements is None else self.elements.shape
        return from_memory_order(_reshaped(bitcast(flat, self.form.dtype), shape), self.elements)

    def _as_elements(self, found: Tensor) -> Tensor:
        elements: Tensor = bitcast(found, self.part.dtype)
        return _reshaped(elements, elements.shape[:-1])

    def _as_parts(self, stored: Tensor) -> Tensor:
        return bitcast(_reshaped(stored, (*stored.shape, 1)), _BYTE)


def _reshaped(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the elements of `value`, in C order, in another shape."""
    return strided_get(value, list(shape), list(contiguous_strides(shape, 1)), 0)


def _shortened(part: Tensor, short: list[int]) -> Tensor:
    """Return one element of every axis along which `part` is uniform."""
    if list(part.shape) == short:
        return part
    return strided_get(part, short, list(contiguous_strides(part.shape, 1)), 0)


def _repeated(value: Tensor, g: Geometry) -> Tensor:
    """Return `value` repeated, by strides of zero, along the axes on which `g` has them."""
    return value if value.shape == g.shape else expand(value, list(g.shape))


# ---------------------------------------------------------------------- layouts


def laid_out(value: Tensor, geometry: Geometry, exact: bool) -> Tensor:
    """Return `value` with the strides of a handle: exactly, or in the same order of axes.

    Whether ``reshape`` gives a view depends on strides, and strides of results follow those of
    operands; a value in another order would turn a copy into a view. Strides that overlap, other
    than those of zero, cannot be had by a value of its own: it is laid out as a result would be.
    """
    have, want, shape = value.strides, geometry.strides, value.shape  # geometry's may be symbols
    if any(isinstance(step, SymInt) for step in want) or have == want or 0 in shape:
        return value
    if all(h == w for n, h, w in zip(shape, have, want, strict=True) if n != 1):
        return value
    if not exact and _same_order(shape, have, want):
        return value
    if any(step == 0 and n > 1 for n, step in zip(shape, want, strict=True)):
        return _repeated(laid_out(*_without_repeats(value, geometry), exact), geometry)
    item = geometry.dtype.itemsize
    if any(step % item for step in want) or _overlaps(geometry):
        want = keep_layout(shape, [(shape, want)], item)
        if _same_order(shape, have, want):
            return value
    return with_layout(value, [step // item for step in want])


def _without_repeats(value: Tensor, g: Geometry) -> tuple[Tensor, Geometry]:
    """Return a value, and its geometry, with axes of stride zero shortened to one element."""
    short = [1 if step == 0 else n for n, step in zip(g.shape, g.strides, strict=True)]
    return _shortened(value, short), Geometry(g.dtype, tuple(short), g.strides, g.offset)


def _overlaps(g: Geometry) -> bool:
    return self_overlap(Geometry(g.dtype, g.shape, g.strides))


def _same_order(shape: Sequence[int], have: Sequence[int], want: Sequence[int]) -> bool:
    """Return whether two layouts compare alike for every pair of axes longer than one."""
    axes = [axis for axis, length in enumerate(shape) if length != 1]
    if any((have[a] == 0) != (want[a] == 0) for a in axes):
        return False
    return sorted(axes, key=lambda a: (abs(have[a]), -a)) == sorted(
        axes, key=lambda a: (abs(want[a]), -a)
    )


# ---------------------------------------------------------------------- views of real buffers


def view_at(root: Tensor, form: Geometry, geometry: Geometry) -> Tensor:
    """Return the view of `root` that has `geometry`, where `root` has `form`.

    Raises
    ------
    AliasError
        For a view of another dtype of what requires grad, except complex numbers and their parts.
    """
    if geometry.dtype == form.dtype:
        item = form.dtype.itemsize
    elif form.dtype.kind == "c" and geometry.dtype == real_parts(form).dtype:
        root = view_as_real(root)
        form = real_parts(form)
        item = geometry.dtype.itemsize
    elif geometry.dtype.kind == "c" and form.dtype == real_parts(geometry).dtype:
        return view_as_complex(view_at(root, form, real_parts(geometry)))
    elif root._keys & AUTOGRAD:
        raise AliasError(
            f"a view of dtype {geometry.dtype} of a tensor of dtype {form.dtype} that requires "
            "grad has no gradient\n  take the view of x.detach()"
        )
    else:
        offset = geometry.offset - form.offset
        return byte_view(root, geometry.dtype, list(geometry.shape), list(geometry.strides), offset)
    same = geometry.shape == root.shape and geometry.strides == root.strides
    if same and geometry.offset == form.offset:
        return root
    stride = [step // item for step in geometry.strides]
    offset = (geometry.offset - form.offset) // item
    return strided_view(root, list(geometry.shape), stride, offset)
