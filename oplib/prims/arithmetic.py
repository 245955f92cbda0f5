"""Primitive operators that compute: sums and choices of elements, dtypes, layouts, copies.

Imports floors 0 to 3, `library.py`, `shapes/`, `declare.py`. Read next: `views.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from .._dims import same
from ..dispatch.keys import device_bit
from ..dtypes import Device
from ..errors import ArgumentError, AutogradError
from ..shapes import (
    TensorSpec,
    allocate,
    broadcast_shapes,
    broadcast_spec,
    like_spec,
    reduced_spec,
)
from ..tensor.geometry import Geometry, extent, self_overlap
from ..tensor.strided import array_at
from ..tensor.tensor import ARRAY_TYPES, Tensor, tensor_from_result
from ..tensor.view_rules import view_dtype
from .declare import POINTWISE, Array, TensorOperator, declare

__all__ = [
    "FROM_NUMPY",
    "add",
    "bitcast",
    "broadcast_to",
    "cast",
    "clone",
    "conj",
    "full",
    "graft",
    "layer_boundary",
    "lift",
    "mask",
    "new_full",
    "overwrite",
    "sum_to",
    "to_device",
    "with_layout",
]


# ---------------------------------------------------------------------- elements

add: TensorOperator = declare("add(Tensor x, Tensor y) -> Tensor", "x + y.", *POINTWISE)
add.register_kernel("cpu", np.add)
add.register_fake(lambda x, y: broadcast_spec(x, y))
add.register_vjp(x=lambda grad: grad, y=lambda grad: grad)

conj: TensorOperator = declare(
    "conj(Tensor x) -> Tensor", "The complex conjugate; a copy of a real tensor.", *POINTWISE
)
conj.register_kernel("cpu", np.conjugate)
conj.register_fake(lambda x: like_spec(x, np.conjugate(np.empty(0, x.dtype)).dtype))  # int8 of bool
conj.register_vjp(x=lambda grad: conj(grad))

mask: TensorOperator = declare(
    "mask(Tensor x, Tensor keep) -> Tensor",
    "`x` where the bool tensor `keep` is true, else zero.",
    *POINTWISE,
)


@mask.register_kernel("cpu")
def _mask(x: Any, keep: Any) -> Any:
    """Choose; of many elements, clear the bits of the others: five times as fast."""
    dtype = x.dtype
    if (
        getattr(x, "size", 0) < _MANY
        or dtype.kind not in "fciu"
        or dtype.itemsize > 8
        or getattr(keep, "dtype", None) != np.bool_
        or keep.shape != x.shape
        or not (x.flags.c_contiguous and keep.flags.c_contiguous)
    ):
        return np.where(keep, x, dtype.type(0))
    bits = np.negative(keep.view(np.int8), dtype=f"i{dtype.itemsize}")  # -1 has all of them
    result = np.empty(x.shape, dtype)
    np.bitwise_and(x.view(bits.dtype), bits, out=result.view(bits.dtype))
    return result


_MANY: Final = 1000
"""Elements from which on the better way is worth its five calls."""


mask.register_fake(lambda x, keep: broadcast_spec(x, keep, dtype=x.dtype))
mask.register_vjp(x=lambda grad, keep: mask(grad, keep), keep=None)


# ---------------------------------------------------------------------- broadcasting

sum_to: TensorOperator = declare(
    "sum_to(Tensor x, SymInt[] shape) -> Tensor",
    "Sum over the axes along which `shape` was broadcast to the shape of `x`.",
    "reduction",
    "flexible_layout",
)


def _summed_axes(shape: Sequence[Any], full: Sequence[Any]) -> list[int]:
    """Return the axes of `full` that `shape`, which must broadcast to it, lacks or has length 1."""
    lead = len(full) - len(shape)
    axes = [*range(lead)]
    fits = lead >= 0
    for axis, length in enumerate(shape if fits else (), lead):
        if same(length, 1) and not same(full[axis], 1):
            axes.append(axis)
        elif not (same(length, full[axis]) or length == full[axis]):
            fits = False
    if not fits:
        raise ArgumentError(f"std::sum_to: {tuple(full)} is no broadcast of {tuple(shape)}")
    return axes


@sum_to.register_kernel("cpu")
def _sum_to(x: Array, shape: Sequence[int]) -> Array:
    axes = _summed_axes(shape, x.shape)
    if not axes:
        return copied(x)
    if len(axes) == x.ndim - len(shape):  # none to keep with length 1
        return np.asarray(np.add.reduce(x, tuple(axes), x.dtype))
    return np.add.reduce(x, tuple(axes), x.dtype, keepdims=True).reshape(shape)


@sum_to.register_fake
def _sum_to_spec(x: Any, shape: Sequence[Any]) -> TensorSpec:
    spec = reduced_spec(x, _summed_axes(shape, x.shape), keepdim=True)
    assert spec.strides is not None
    return TensorSpec(shape, x.dtype, spec.strides[x.ndim - len(shape) :])


sum_to.register_vjp(x=lambda grad, x_spec: broadcast_to(grad, x_spec.shape))

broadcast_to: TensorOperator = declare(
    "broadcast_to(Tensor x, SymInt[] shape) -> Tensor",
    "Repeat `x` along new axes and axes of length 1: a copy in C order.",
    *POINTWISE,
)
broadcast_to.register_kernel("cpu", lambda x, shape: np.broadcast_to(x, shape).copy())


@broadcast_to.register_fake
def _broadcast_to_spec(x: Any, shape: Sequence[Any]) -> TensorSpec:
    if broadcast_shapes(x.shape, tuple(shape)) != tuple(shape):
        raise ValueError(f"shape {x.shape} does not broadcast to {tuple(shape)}")
    return TensorSpec(shape, x.dtype)


broadcast_to.register_vjp(x=lambda grad, x_spec: sum_to(grad, x_spec.shape))


# ---------------------------------------------------------------------- copies


def copied(x: Any, dtype: Any = None) -> Array:
    """Return a fresh array with the elements of `x`, in the layout of an elementwise result."""
    x = np.asarray(x)
    if x.flags.c_contiguous:
        return np.array(x, dtype)
    result = allocate(like_spec(x, dtype))
    result[...] = x
    return result


cast: TensorOperator = declare(
    "cast(Tensor x, ScalarType dtype) -> Tensor",
    "Convert to another dtype; complex to real takes the real part.",
    *POINTWISE,
)
cast.register_kernel(
    "cpu",
    lambda x, dtype: copied(np.real(x) if dtype.kind not in "cb" else x, dtype),
)
cast.register_fake(lambda x, dtype: like_spec(x, dtype))
cast.register_vjp(x=lambda grad, x_spec: cast(grad, x_spec.dtype))

clone: TensorOperator = declare("clone(Tensor x) -> Tensor", "A copy of `x`.", *POINTWISE)
clone.register_kernel("cpu", copied)
clone.register_fake(like_spec)
clone.register_vjp(x=lambda grad: grad)

FROM_NUMPY: Final[dict[str, Callable[[Array], Any]]] = {}
"""Device type -> what copies a NumPy array to it; backends fill it."""

to_device: TensorOperator = declare(
    "to_device(Tensor x, Device device) -> Tensor",
    "A copy of `x` on another device; `Tensor.to` is how it is called.",
    "flexible_layout",
)


@to_device.register_kernel(None)
def _copy_to_device(x: Tensor, device: Device) -> Tensor:
    if device.type not in FROM_NUMPY:
        device_bit(device.type)  # says what serves it
        raise ArgumentError("std::to_device copies values, and device 'meta' holds none; use x.to")
    values = ARRAY_TYPES[type(x.array)].to_numpy(x.array)
    return tensor_from_result(FROM_NUMPY[device.type](values))


to_device.register_fake(lambda x, device: TensorSpec(x.shape, x.dtype, device=device))


def _keep_device(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.device = inputs[0].device


to_device.register_autograd(lambda ctx, grad: grad.to(ctx.device), setup_context=_keep_device)

lift: TensorOperator = declare(
    "lift(Tensor x) -> Tensor",
    "A copy of a constant; in a graph, what makes each run start from its own.",
)
lift.register_kernel("cpu", copied)
lift.register_fake(like_spec)
lift.register_vjp(x=lambda grad: grad)

graft: TensorOperator = declare(
    "graft(Tensor value, Tensor history) -> Tensor",
    "`value` with the gradient history of `history`: what a write under no_grad means.",
    "flexible_layout",
)
graft.register_kernel("cpu", lambda value, history: copied(value))
graft.register_fake(lambda value, history: like_spec(value))
graft.register_vjp(value=None, history=lambda grad: grad)

overwrite: TensorOperator = declare(
    "overwrite(Tensor value, Tensor old) -> Tensor",
    "`value` in place of `old`, on which it does not depend: a recorded write of a constant.",
    "flexible_layout",
)
overwrite.register_kernel("cpu", lambda value, old: copied(value))
overwrite.register_fake(lambda value, old: like_spec(value))
overwrite.register_vjp(value=lambda grad: grad, old=lambda grad: new_full(grad, grad.shape, 0))

layer_boundary: TensorOperator = declare(
    "layer_boundary(Tensor value, Tensor[] inputs, str layer) -> Tensor",
    "`value`, computed from `inputs` by a PyLayer whose gradient only the level above knows.",
)
layer_boundary.register_kernel("cpu", lambda value, inputs, layer: copied(value))
layer_boundary.register_fake(lambda value, inputs, layer: like_spec(value))


def _no_gradient_below(grad: Any, layer: str) -> Any:
    raise AutogradError(
        f"the gradient of PyLayer {layer} was asked for outside of the function that was "
        "functionalized or captured, and only its forward is known there\n"
        "  call backward inside that function, or make the layer an operator: custom_op with "
        "register_autograd"
    )


layer_boundary.register_vjp(value=None, inputs=_no_gradient_below)

with_layout: TensorOperator = declare(
    "with_layout(Tensor x, SymInt[] stride) -> Tensor",
    "A copy of `x` with the given strides, in elements.",
)


def _laid_out(x: Any, stride: Sequence[Any]) -> Geometry:
    """Return the geometry of a copy, in a buffer that begins at its lowest byte."""
    strides = tuple([step * x.dtype.itemsize for step in stride])
    geometry = Geometry(x.dtype, x.shape, strides)
    if self_overlap(geometry):
        raise ArgumentError(f"std::with_layout: strides {list(stride)} of {x.shape} overlap")
    return Geometry(x.dtype, x.shape, strides, -extent(geometry)[0])


@with_layout.register_kernel("cpu")
def _with_layout(x: Array, stride: Sequence[int]) -> Array:
    geometry = _laid_out(x, stride)
    result = array_at(np.zeros(extent(geometry)[1], np.uint8), geometry)
    result[...] = x
    return result


with_layout.register_fake(
    lambda x, stride: TensorSpec(x.shape, x.dtype, _laid_out(x, stride).strides)
)
with_layout.register_vjp(x=lambda grad: grad)

bitcast: TensorOperator = declare(
    "bitcast(Tensor x, ScalarType dtype) -> Tensor",
    "The bytes of `x` in C order, read as another dtype along the last axis.",
    "flexible_layout",
)
bitcast.register_kernel("cpu", lambda x, dtype: x.copy().view(dtype))
bitcast.register_fake(
    lambda x, dtype: TensorSpec(
        view_dtype(Geometry.contiguous(x.shape, x.dtype), dtype).shape, dtype
    )
)
bitcast.register_vjp(x=None)


# ---------------------------------------------------------------------- creation

full: TensorOperator = declare(
    "full(SymInt[] size, Scalar value, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
    "A tensor filled with a number, of that number's dtype by default.",
)


@full.register_kernel("cpu")
def _full(size: Sequence[int], value: Any, *, dtype: Any, device: Any) -> Array:
    return np.full(size, value, dtype or np.result_type(type(value)))


@full.register_fake
def _full_spec(size: Sequence[Any], value: Any, *, dtype: Any, device: Any) -> TensorSpec:
    return TensorSpec(size, dtype or np.result_type(type(value)), device=device)


new_full: TensorOperator = declare(
    "new_full(Tensor x, SymInt[] size, Scalar value, *, ScalarType? dtype=None) -> Tensor",
    "A tensor filled with a number, on the device (and level) of `x`, of its dtype by default.",
)
new_full.register_kernel(
    "cpu", lambda x, size, value, *, dtype: np.full(size, value, dtype or x.dtype)
)
new_full.register_fake(lambda x, size, value, *, dtype: TensorSpec(size, dtype or x.dtype))
new_full.register_vjp(x=None)
