"""View operators: other shapes, orders and parts of the same elements.

Each has a kernel on arrays, a geometry rule (`tensor/view_rules.py`) that says the same without
data, and a gradient rule: moved axes move back, parts are added into zeros at their addresses.
`reshape` and its kin are views where strides allow it and copies otherwise: their schemas say
``Tensor(*)``, their geometry rules return None for a copy, which the fake rule then describes.

Imports floors 0 to 4, `declare.py`, `joining.py`.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided as numpy_as_strided

from ..errors import ArgumentError
from ..prims import strided_add
from ..shapes import TensorSpec, normalize_dim, normalize_dims
from ..tensor import view_rules
from ..tensor.geometry import Geometry, check_inside, is_contiguous, numel
from ..tensor.storage import owner_of
from ..tensor.tensor import Tensor
from .declare import Array, composite, declare
from .joining import concat, stack

__all__ = ["dense", "reshape", "scatter", "transpose"]


# ---------------------------------------------------------------------- gradients by address


def dense(x: Any) -> Geometry:
    """Return the geometry `x` would have in C order."""
    return Geometry.contiguous(x.shape, x.dtype)


def scatter(grad: Tensor, x_spec: TensorSpec, part: Geometry) -> Tensor:
    """Return zeros like x with `grad` added where `part`, a view of the `dense` x, is."""
    item = x_spec.dtype.itemsize
    stride = [step // item for step in part.strides]
    return strided_add(grad, x_spec.shape, part.shape, stride, part.offset // item)


# ---------------------------------------------------------------------- the order of axes

transpose = declare(
    "transpose(Tensor(a) x, int[]? dims=None) -> Tensor(a)",
    "Permute the axes: axis k of the result is axis ``dims[k]`` of `x`; reversed without `dims`.",
)


@transpose.register_kernel("cpu")
def _transpose(x: Array, dims: list[int] | None) -> Array:
    try:
        return x.transpose(dims)
    except ValueError:
        view_rules.transpose(dense(x), dims)  # says better what is wrong
        raise


transpose.register_view(view_rules.transpose)


@transpose.register_vjp
def _transpose_grad(grad: Tensor, dims: list[int] | None) -> Tensor:
    if dims is None:
        return transpose(grad)
    order = normalize_dims(dims, grad.ndim)
    return transpose(grad, sorted(range(grad.ndim), key=order.__getitem__))


@composite(
    "swapaxes(Tensor(a) x, int dim1, int dim2) -> Tensor(a)",
    "`numpy.swapaxes`.",
)
def swapaxes(x: Tensor, dim1: int, dim2: int) -> Tensor:
    """Transpose by the permutation that swaps them."""
    return transpose(x, view_rules.swapped_dims(x.ndim, dim1, dim2))


@composite(
    "movedim(Tensor(a) x, int[1] source, int[1] destination) -> Tensor(a)",
    "Move axes to new places, as `numpy.moveaxis` does.",
)
def movedim(x: Tensor, source: list[int], destination: list[int]) -> Tensor:
    """Transpose by the permutation that moves them."""
    return transpose(x, view_rules.moved_dims(x.ndim, source, destination))


# ---------------------------------------------------------------------- shapes

reshape = declare(
    "reshape(Tensor(*) x, SymInt[] size) -> Tensor(*)",
    "The elements of `x`, in C order, in another shape; one size may be -1. A view where possible.",
)


@reshape.register_kernel("cpu")
def _reshape(x: Array, size: list[int]) -> Array:
    try:
        return x.reshape(size)
    except ValueError:
        view_rules.infer_size(size, x.size)  # says better what is wrong
        raise


reshape.register_view(
    lambda g, size: view_rules.reshape(g, view_rules.infer_size(size, numel(g.shape)))
)
reshape.register_fake(
    lambda x, size: TensorSpec(view_rules.infer_size(size, numel(x.shape)), x.dtype)
)
reshape.register_vjp(x=lambda grad, x_spec: reshape(grad, x_spec.shape))

contiguous = declare(
    "contiguous(Tensor(*) x) -> Tensor(*)",
    "The elements of `x` in C order: a view if they are already, else a copy.",
)


@contiguous.register_kernel("cpu")
def _contiguous(x: Array) -> Array:
    return x.view() if x.flags.c_contiguous else x.copy(order="C")


contiguous.register_view(lambda g: g if is_contiguous(g) else None)
contiguous.register_fake(lambda x: TensorSpec(x.shape, x.dtype))
contiguous.register_vjp(x=lambda grad: grad)


@composite(
    "flatten(Tensor(*) x, int start_dim=0, int end_dim=-1) -> Tensor(*)",
    "Join the axes from `start_dim` to `end_dim`, inclusive; a 0-d tensor becomes 1-d.",
)
def flatten(x: Tensor, start_dim: int, end_dim: int) -> Tensor:
    """Reshape to one axis in place of several."""
    if x.ndim == 0:
        return reshape(x, [1])
    start, end = normalize_dim(start_dim, x.ndim), normalize_dim(end_dim, x.ndim)
    if end < start:
        raise ArgumentError(f"std::flatten needs start_dim <= end_dim, got {start_dim}, {end_dim}")
    length = numel(x.shape[start : end + 1])
    return reshape(x, [*x.shape[:start], length, *x.shape[end + 1 :]])


@composite(
    "unflatten(Tensor(*) x, int dim, SymInt[] size) -> Tensor(*)",
    "Cut axis `dim` into axes of the given sizes, of which one may be -1.",
)
def unflatten(x: Tensor, dim: int, size: list[Any]) -> Tensor:
    """Reshape to several axes in place of one."""
    axis = normalize_dim(dim, x.ndim)
    lengths = view_rules.infer_size(size, x.shape[axis])
    return reshape(x, [*x.shape[:axis], *lengths, *x.shape[axis + 1 :]])


view = declare(
    "view(Tensor(a) x, ScalarType dtype) -> Tensor(a)",
    "The bytes of `x` as elements of another dtype, as `numpy.ndarray.view`; gradients pass "
    "between complex numbers and their real parts only.",
)
view.register_kernel("cpu", lambda x, dtype: x.view(_checked_view(x, dtype)))
view.register_view(view_rules.view_dtype)


def _checked_view(x: Array, dtype: Any) -> Any:
    view_rules.view_dtype(Geometry(x.dtype, x.shape, x.strides), dtype)  # says what does not fit
    return dtype


squeeze = declare(
    "squeeze(Tensor(a) x, int[1]? dim=None) -> Tensor(a)",
    "`numpy.squeeze`, without axes of length one: those among `dim`, or all; longer ones stay.",
)


@squeeze.register_kernel("cpu")
def _squeeze(x: Array, dim: list[int] | None) -> Array:
    axes = [axis for axis in normalize_dims(dim, x.ndim) if x.shape[axis] == 1]
    return x.squeeze(tuple(axes)) if axes else x.view()


squeeze.register_view(view_rules.squeeze)
squeeze.register_vjp(x=lambda grad, x_spec: reshape(grad, x_spec.shape))

unsqueeze = declare(
    "unsqueeze(Tensor(a) x, int[1] dim) -> Tensor(a)",
    "Insert axes of length one, so that they stand at `dim` of the result.",
)
unsqueeze.register_kernel(
    "cpu", lambda x, dim: np.expand_dims(x, normalize_dims(dim, x.ndim + len(dim)))
)
unsqueeze.register_view(view_rules.unsqueeze)
unsqueeze.register_vjp(x=lambda grad, x_spec: reshape(grad, x_spec.shape))

# ---------------------------------------------------------------------- parts

select = declare(
    "select(Tensor(a) x, int dim, SymInt index) -> Tensor(a)",
    "One position of an axis, which disappears.",
)


@select.register_kernel("cpu")
def _select(x: Array, dim: int, index: int) -> Array:
    key: tuple[Any, ...] = (*(slice(None),) * normalize_dim(dim, x.ndim), index, ...)
    return x[key]


select.register_view(view_rules.select)
select.register_vjp(
    x=lambda grad, x_spec, dim, index: scatter(
        grad, x_spec, view_rules.select(dense(x_spec), dim, index)
    )
)

slice_ = declare(
    "slice(Tensor(a) x, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1)"
    " -> Tensor(a)",
    "``start:end:step`` of an axis, clipped as Python clips; the step may be negative.",
)


@slice_.register_kernel("cpu")
def _slice(x: Array, dim: int, start: int | None, end: int | None, step: int) -> Array:
    if step == 0:
        raise ArgumentError("the step of a slice cannot be zero")
    return x[(*(slice(None),) * normalize_dim(dim, x.ndim), slice(start, end, step))]


slice_.register_view(view_rules.slice_dim)
slice_.register_vjp(
    x=lambda grad, x_spec, dim, start, end, step: scatter(
        grad, x_spec, view_rules.slice_dim(dense(x_spec), dim, start, end, step)
    )
)


@composite(
    "narrow(Tensor(a) x, int dim, SymInt start, SymInt length) -> Tensor(a)",
    "`length` positions of an axis, from `start` on.",
)
def narrow(x: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    """Slice, after checking that all positions exist."""
    whole = x.shape[normalize_dim(dim, x.ndim)]
    first = start + whole if start < 0 else start
    if first < 0 or length < 0 or first + length > whole:
        raise ArgumentError(
            f"std::narrow: {length} positions from {start} are not inside an axis of length {whole}"
        )
    return slice_(x, dim, first, first + length)


@composite(
    "flip(Tensor(a) x, int[1]? dim=None) -> Tensor(a)",
    "`numpy.flip`: axes reversed, all without `dim`.",
)
def flip(x: Tensor, dim: list[int] | None) -> Tensor:
    """Slice with step -1."""
    for axis in normalize_dims(dim, x.ndim):
        x = slice_(x, axis, None, None, -1)
    return x


diagonal = declare(
    "diagonal(Tensor(a) x, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)",
    "The diagonal of two axes, as the last axis; `offset` is how far `dim2` is ahead of `dim1`.",
)


@diagonal.register_kernel("cpu")
def _diagonal(x: Array, offset: int, dim1: int, dim2: int) -> Array:
    view_rules.diagonal(dense(x), offset, dim1, dim2)  # what it refuses is refused here
    view = x.diagonal(offset, dim1, dim2)
    view.flags.writeable = x.flags.writeable  # NumPy's own diagonals are read-only
    return view


diagonal.register_view(view_rules.diagonal)
diagonal.register_vjp(
    x=lambda grad, x_spec, offset, dim1, dim2: scatter(
        grad, x_spec, view_rules.diagonal(dense(x_spec), offset, dim1, dim2)
    )
)

unfold = declare(
    "unfold(Tensor(a) x, int dim, int size, int step) -> Tensor(a)",
    "All windows of `size` along an axis, `step` apart; the window is the last axis.",
)


@unfold.register_kernel("cpu")
def _unfold(x: Array, dim: int, size: int, step: int) -> Array:
    return _at(x, view_rules.unfold(Geometry(x.dtype, x.shape, x.strides), dim, size, step))


unfold.register_view(view_rules.unfold)
unfold.register_vjp(
    x=lambda grad, x_spec, dim, size, step: scatter(
        grad, x_spec, view_rules.unfold(dense(x_spec), dim, size, step)
    )
)

as_strided = declare(
    "as_strided(Tensor(a) x, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None)"
    " -> Tensor(a)",
    "Address the storage of `x` anew, counting elements from its start. Gradients go by address.",
    "std:absolute_addresses",
)


@as_strided.register_kernel("cpu")
def _as_strided(x: Array, size: list[int], stride: list[int], storage_offset: int | None) -> Array:
    owner = owner_of(x)
    if not isinstance(owner, np.ndarray):
        raise ArgumentError("std::as_strided needs memory a NumPy array owns; x.clone() has it")
    buffer = owner.ravel(order="K").view(np.uint8)
    start = Geometry.of_array(x, buffer.__array_interface__["data"][0])
    part = view_rules.as_strided(start, size, stride, storage_offset)
    check_inside(part, buffer.nbytes)
    view: Array = np.ndarray(part.shape, part.dtype, buffer, part.offset, part.strides)
    view.flags.writeable = x.flags.writeable
    return view


as_strided.register_view(view_rules.as_strided)


def _at(x: Array, part: Geometry) -> Array:
    """Return the view of `x` with the shape and strides of `part`, beginning where `x` begins."""
    return numpy_as_strided(x, part.shape, part.strides, writeable=x.flags.writeable)


# ---------------------------------------------------------------------- several parts

split = declare(
    "split(Tensor(a) x, SymInt[1] size, int dim=0) -> Tensor(a)[]",
    "Cut an axis into parts of the given sizes, or of one size (the last part may be shorter).",
)


def _sizes(x: Any, size: list[int], dim: int) -> list[int]:
    if len(size) != 1:
        return size
    return view_rules.split_sizes(x.shape[normalize_dim(dim, len(x.shape))], size[0])


@split.register_kernel("cpu")
def _split(x: Array, size: list[int], dim: int) -> list[Array]:
    sizes = _sizes(x, size, dim)
    view_rules.split(dense(x), sizes, dim)  # what it refuses is refused here
    lead = (slice(None),) * normalize_dim(dim, x.ndim)
    ends = [*itertools.accumulate(sizes)]
    return [x[(*lead, slice(end - n, end))] for n, end in zip(sizes, ends, strict=True)]


split.register_view(lambda g, size, dim: view_rules.split(g, _sizes(g, size, dim), dim))
split.register_vjp(x=lambda grad, dim: concat(grad, dim))


@composite(
    "chunk(Tensor(a) x, int chunks, int dim=0) -> Tensor(a)[]",
    "Cut an axis into at most `chunks` parts of one size, the last of which may be shorter.",
)
def chunk(x: Tensor, chunks: int, dim: int) -> list[Tensor]:
    """Split by the sizes that many chunks have."""
    sizes = view_rules.chunk_sizes(x.shape[normalize_dim(dim, x.ndim)], chunks)
    return split(x, sizes, dim)


unbind = declare(
    "unbind(Tensor(a) x, int dim=0) -> Tensor(a)[]",
    "Every position of an axis, as a tensor without it.",
)


@unbind.register_kernel("cpu")
def _unbind(x: Array, dim: int) -> list[Array]:
    return [_select(x, dim, index) for index in range(x.shape[normalize_dim(dim, x.ndim)])]


unbind.register_view(view_rules.unbind)
unbind.register_vjp(x=lambda grad, dim: stack(grad, dim))
