"""The operators the framework itself calls, with all their facets.

They live in namespace ``std`` like every built-in; what sets them apart is that the engine,
functionalization and graphs below `std/` rely on them. Written with the public API only.

Imports floors 0 to 3, `library.py`, `shapes.py`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .dispatch.keys import WEAK
from .dtypes import CPU
from .errors import AliasError, ArgumentError, AutogradError
from .library import Library
from .shapes import TensorSpec, broadcast_shapes, broadcast_spec, like_spec
from .tensor import strided, view_rules
from .tensor.geometry import Geometry, keep_layout, self_overlap
from .tensor.tensor import Tensor

__all__ = [
    "PRIMS",
    "add",
    "alias",
    "bitcast",
    "cast",
    "clone",
    "conj",
    "copy_",
    "detach",
    "full",
    "graft",
    "layer_boundary",
    "lift",
    "new_full",
    "permute",
    "real",
    "strided_add",
    "strided_get",
    "strided_put",
    "strided_view",
    "sum_to",
    "view_as_complex",
    "view_as_real",
    "with_layout",
]

PRIMS: Final = Library("std", "FRAGMENT")


def _define(schema: str, *tags: str) -> Any:
    return PRIMS.define(schema, tags=tags).op


# ---------------------------------------------------------------------- arithmetic

add = _define("add(Tensor x, Tensor y) -> Tensor", "pointwise", "flexible_layout")
add.register_kernel("cpu", np.add)
add.register_fake(lambda x, y: broadcast_spec(x, y))
add.register_vjp(x=lambda grad: grad, y=lambda grad: grad)

conj = _define("conj(Tensor x) -> Tensor", "pointwise", "flexible_layout")
conj.register_kernel("cpu", np.conjugate)
conj.register_fake(like_spec)
conj.register_vjp(x=lambda grad: conj(grad))

sum_to = _define("sum_to(Tensor x, SymInt[] shape) -> Tensor", "reduction", "flexible_layout")
"""Sum over the axes along which `shape` was broadcast to the shape of `x`."""


def sum_to_array(x: np.ndarray[Any, Any], shape: Any) -> np.ndarray[Any, Any]:
    """Return `x` summed to `shape`, which must broadcast to the shape of `x`."""
    shape = tuple(shape)
    if np.broadcast_shapes(shape, x.shape) != x.shape:
        raise ArgumentError(f"{x.shape} is no broadcast of {shape}")
    lead = x.ndim - len(shape)
    axes = tuple(range(lead)) + tuple(
        lead + axis for axis, length in enumerate(shape) if length == 1 != x.shape[lead + axis]
    )
    return np.asarray(x.sum(axis=axes, keepdims=True, dtype=x.dtype).reshape(shape))


sum_to.register_kernel("cpu", sum_to_array, on_alias="copy")
sum_to.register_fake(lambda x, shape: TensorSpec(tuple(shape), x.dtype))
sum_to.register_vjp(x=lambda grad, x_spec: broadcast_to(grad, x_spec.shape))

broadcast_to = _define(
    "broadcast_to(Tensor x, SymInt[] shape) -> Tensor", "pointwise", "flexible_layout"
)
"""Repeat `x` along new and length-1 axes (a copy; the view is ``expand``)."""
broadcast_to.register_kernel("cpu", lambda x, shape: np.broadcast_to(x, tuple(shape)).copy())
broadcast_to.register_fake(lambda x, shape: TensorSpec(tuple(shape), x.dtype))
broadcast_to.register_vjp(x=lambda grad, x_spec: sum_to(grad, x_spec.shape))


# ---------------------------------------------------------------------- dtype and layout

cast = _define("cast(Tensor x, ScalarType dtype) -> Tensor", "pointwise", "flexible_layout")
"""Convert to another dtype; complex to real takes the real part."""


def cast_array(x: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return a copy of `x` in `dtype`, keeping its layout."""
    x = np.asarray(x)
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        x = x.real
    return x.astype(dtype, copy=True)


cast.register_kernel("cpu", cast_array)
cast.register_fake(lambda x, dtype: like_spec(x, dtype))
cast.register_vjp(x=lambda grad, x_spec: cast(grad, x_spec.dtype))

clone = _define("clone(Tensor x) -> Tensor", "pointwise", "flexible_layout")
clone.register_kernel("cpu", lambda x: np.positive(x) if x.dtype != bool else x.copy(order="K"))
clone.register_fake(like_spec)
clone.register_vjp(x=lambda grad: grad)

with_layout = _define("with_layout(Tensor x, SymInt[] stride) -> Tensor")
"""A copy of `x` with the given strides, in elements."""


def _with_layout(x: np.ndarray[Any, Any], stride: list[int]) -> np.ndarray[Any, Any]:
    strides = tuple(step * x.itemsize for step in stride)
    if self_overlap(Geometry(x.dtype, x.shape, strides, 0)):
        raise ArgumentError(f"strides {stride} of shape {x.shape} overlap themselves")
    reach = [(n - 1) * s for n, s in zip(x.shape, strides, strict=True)]
    low = sum(min(0, r) for r in reach)
    high = sum(max(0, r) for r in reach) + x.itemsize
    buffer = np.zeros(max(high - low, 0) if x.size else 0, np.uint8)
    result: np.ndarray[Any, Any] = np.ndarray(x.shape, x.dtype, buffer, -low if x.size else 0, strides)
    result[...] = x
    return result


with_layout.register_kernel("cpu", _with_layout)
with_layout.register_fake(
    lambda x, stride: TensorSpec(x.shape, x.dtype, tuple(s * x.dtype.itemsize for s in stride))
)
with_layout.register_vjp(x=lambda grad: grad)

bitcast = _define("bitcast(Tensor x, ScalarType dtype) -> Tensor", "flexible_layout")
"""The same bytes read as another dtype, along a contiguous last axis."""
bitcast.register_kernel("cpu", lambda x, dtype: x.copy().view(dtype))
bitcast.register_fake(
    lambda x, dtype: TensorSpec(
        view_rules.view_dtype(Geometry.contiguous(x.shape, x.dtype), dtype).shape, dtype
    )
)
bitcast.register_vjp(x=None)


# ---------------------------------------------------------------------- creation

full = _define(
    "full(SymInt[] size, Scalar value, *, ScalarType? dtype=None, Device? device=None) -> Tensor"
)


def _fill_dtype(value: Any, dtype: Any) -> np.dtype[Any]:
    return np.result_type(type(value)) if dtype is None else dtype


def _full(
    size: list[int], value: Any, *, dtype: Any = None, device: Any = None
) -> np.ndarray[Any, Any]:
    return np.full(tuple(size), value, _fill_dtype(value, dtype))


full.register_kernel("cpu", _full)
full.register_fake(
    lambda size, value, *, dtype, device: TensorSpec(
        tuple(size), _fill_dtype(value, dtype), device=device
    )
)

new_full = _define(
    "new_full(Tensor x, SymInt[] size, Scalar value, *, ScalarType? dtype=None) -> Tensor"
)
"""A tensor filled with a number, on the device (and level) of `x`, of its dtype by default."""
new_full.register_kernel(
    "cpu",
    lambda x, size, value, *, dtype: np.full(tuple(size), value, x.dtype if dtype is None else dtype),
)
new_full.register_fake(
    lambda x, size, value, *, dtype: TensorSpec(tuple(size), x.dtype if dtype is None else dtype)
)
new_full.register_vjp(x=None)


# ---------------------------------------------------------------------- aliases and views

alias = _define("alias(Tensor(a) x) -> Tensor(a)")
"""A second handle on the same elements, joined to its base by autograd."""
alias.register_kernel("cpu", lambda x: x.view())
alias.register_view(lambda geometry: geometry)
alias.register_vjp(x=lambda grad: grad)

detach = _define("detach(Tensor(a) x) -> Tensor(a)")
"""A second handle on the same elements, without history."""
detach.register_kernel("cpu", lambda x: x.view())
detach.register_view(lambda geometry: geometry)
detach.register_vjp(x=None)

permute = _define("permute(Tensor(a) x, int[] dims) -> Tensor(a)")
permute.register_kernel("cpu", lambda x, dims: x.transpose(view_rules.normalize_dims(dims, x.ndim)))
permute.register_view(lambda geometry, dims: view_rules.transpose(geometry, dims))
permute.register_vjp(x=lambda grad, dims: permute(grad, _inverse(dims)))


def _inverse(dims: list[int]) -> list[int]:
    positions = [dim % len(dims) for dim in dims]
    return sorted(range(len(positions)), key=positions.__getitem__)


view_as_real = _define("view_as_real(Tensor(a) x) -> Tensor(a)")
"""A complex tensor as real numbers with one more axis of length 2."""


def _view_at(x: np.ndarray[Any, Any], geometry: Geometry) -> np.ndarray[Any, Any]:
    """Return the view of `x` whose geometry, in bytes from its first element, is given.

    Addresses are stepped with NumPy's own strided views, so memory before the first element of `x`
    is reached too, as long as it belongs to the same owner.
    """
    step = np.lib.stride_tricks.as_strided
    if 0 in geometry.shape:
        return step(x.view() if x.dtype == geometry.dtype else x.real, geometry.shape, geometry.strides)
    item = geometry.dtype.itemsize
    first = step(x, (1,), (x.itemsize,)).view(geometry.dtype)
    two = step(first[:1], (2,), (geometry.offset,)) if geometry.offset else None
    start = first[:1] if two is None else two[1:]
    assert start.itemsize == item
    return step(start, geometry.shape, geometry.strides)


view_as_real.register_kernel(
    "cpu",
    lambda x: _view_at(x, view_rules.view_as_real(Geometry(x.dtype, x.shape, x.strides))),
)
view_as_real.register_view(view_rules.view_as_real)
view_as_real.register_vjp(x=lambda grad: view_as_complex(contiguous_last(grad)))

view_as_complex = _define("view_as_complex(Tensor(a) x) -> Tensor(a)")
"""A real tensor whose last axis has length 2 and stride 1 as complex numbers."""
view_as_complex.register_kernel(
    "cpu",
    lambda x: _view_at(x, view_rules.view_as_complex(Geometry(x.dtype, x.shape, x.strides))),
)
view_as_complex.register_view(view_rules.view_as_complex)
view_as_complex.register_vjp(x=lambda grad: view_as_real(grad))


def contiguous_last(x: Tensor) -> Tensor:
    """Return `x`, copied to C order unless its last axis is contiguous."""
    return x if x.strides[-1] == x.itemsize else with_layout(x, _c_strides(x.shape))


def _c_strides(shape: Any) -> list[int]:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return strides[::-1]


strided_view = _define(
    "strided_view(Tensor(a) x, SymInt[] size, SymInt[] stride, SymInt offset) -> Tensor(a)"
)
"""The view of `x`'s memory at the given addresses, in elements from the first element of `x`."""


def _strided_view_rule(g: Geometry, size: Any, stride: Any, offset: Any) -> Geometry:
    item = g.dtype.itemsize
    strides = tuple(step * item for step in stride)
    return Geometry(g.dtype, tuple(size), strides, g.offset + offset * item)


strided_view.register_kernel(
    "cpu",
    lambda x, size, stride, offset: _view_at(
        x, _strided_view_rule(Geometry(x.dtype, x.shape, x.strides), size, stride, offset)
    ),
)
strided_view.register_view(_strided_view_rule)

real = _define("real(Tensor(a) x) -> Tensor(a)")
"""The real part of a complex tensor, as a view; a real tensor itself."""
real.register_kernel("cpu", lambda x: x.real if x.dtype.kind == "c" else x.view())
real.register_view(lambda g: view_rules.real(g) if g.dtype.kind == "c" else g)
real.register_vjp(x=lambda grad, x_spec: cast(grad, x_spec.dtype))


# ---------------------------------------------------------------------- strided access
#
# `base` is read as the flat sequence of its elements in logical C order; index tuple i is at
# offset + Σ i[k] * stride[k], counted in elements.

strided_get = _define(
    "strided_get(Tensor base, SymInt[] size, SymInt[] stride, SymInt offset) -> Tensor"
)


def _strided_get(base: Any, size: Any, stride: Any, offset: int) -> np.ndarray[Any, Any]:
    """Return the elements as a fresh array that keeps the order of their addresses."""
    view = strided.strided_get(base, tuple(size), tuple(stride), offset)
    overlapping = self_overlap(Geometry(view.dtype, view.shape, view.strides))
    return view.copy(order="C" if overlapping else "K")


strided_get.register_kernel("cpu", _strided_get)


def _strided_get_fake(base: Any, size: Any, stride: Any, offset: Any) -> TensorSpec:
    item = base.dtype.itemsize
    strides = tuple(step * item for step in stride)
    if self_overlap(Geometry(base.dtype, tuple(size), strides, 0)):
        return TensorSpec(tuple(size), base.dtype)
    kept = keep_layout(tuple(size), [(tuple(size), strides)], item)
    return TensorSpec(tuple(size), base.dtype, kept)


strided_get.register_fake(_strided_get_fake)
strided_get.register_vjp(
    base=lambda grad, base_spec, size, stride, offset: strided_add(
        grad, base_spec.shape, size, stride, offset
    )
)

strided_put = _define(
    "strided_put(Tensor base, Tensor value, SymInt[] size, SymInt[] stride, SymInt offset) -> Tensor"
)
"""A copy of `base` in which the addresses hold `value`; of equal addresses the last one wins."""
strided_put.register_kernel(
    "cpu",
    lambda base, value, size, stride, offset: strided.strided_put(
        base, np.asarray(value, base.dtype), tuple(size), tuple(stride), offset
    ),
)
strided_put.register_fake(lambda base, value, size, stride, offset: like_spec(base))


def _put_base_vjp(grad: Tensor, size: Any, stride: Any, offset: Any) -> Tensor:
    zero = new_full(grad, [], 0)
    return strided_put(grad, zero, size, stride, offset)


def _put_value_vjp(grad: Tensor, value_spec: Any, size: Any, stride: Any, offset: Any) -> Tensor:
    gathered = strided_get(grad, size, stride, offset)
    kept = strided.winners(tuple(size), tuple(stride))
    if not kept.all():
        gathered = mask(gathered, kept)
    return sum_to(gathered, value_spec.shape)


strided_put.register_vjp(base=_put_base_vjp, value=_put_value_vjp)

strided_add = _define(
    "strided_add(Tensor value, SymInt[] shape, SymInt[] size, SymInt[] stride, SymInt offset)"
    " -> Tensor"
)
"""Zeros of `shape` with `value` added at the addresses; equal addresses sum."""
strided_add.register_kernel(
    "cpu",
    lambda value, shape, size, stride, offset: strided.strided_add(
        value, tuple(shape), tuple(size), tuple(stride), offset
    ),
)
strided_add.register_fake(
    lambda value, shape, size, stride, offset: TensorSpec(tuple(shape), value.dtype)
)
strided_add.register_vjp(
    value=lambda grad, value_spec, size, stride, offset: sum_to(
        strided_get(grad, size, stride, offset), value_spec.shape
    )
)

mask = _define("mask(Tensor x, Tensor keep) -> Tensor", "pointwise", "flexible_layout")
"""`x` where the bool tensor `keep` is true, else zero."""
mask.register_kernel("cpu", lambda x, keep: np.where(keep, x, x.dtype.type(0)))
mask.register_fake(lambda x, keep: broadcast_spec(x, keep, dtype=x.dtype))
mask.register_vjp(x=lambda grad, x_spec, keep: sum_to(mask(grad, keep), x_spec.shape), keep=None)

graft = _define("graft(Tensor value, Tensor history) -> Tensor", "flexible_layout")
"""`value` with the gradient history of `history`: what a write under no_grad means."""
graft.register_kernel("cpu", lambda value, history: value.copy(order="K"))
graft.register_fake(lambda value, history: like_spec(value))
graft.register_vjp(value=None, history=lambda grad: grad)


layer_boundary = _define("layer_boundary(Tensor value, Tensor[] inputs, str layer) -> Tensor")
"""`value`, computed from `inputs` by a PyLayer whose gradient is known on the level above only."""
layer_boundary.register_kernel("cpu", lambda value, inputs, layer: value.copy(order="K"))
layer_boundary.register_fake(lambda value, inputs, layer: like_spec(value))


def _no_gradient_below(grad: Tensor, layer: str) -> Any:
    raise AutogradError(
        f"the gradient of PyLayer {layer} was asked for outside of the function that was "
        "functionalized or captured, and only its forward is known there\n"
        "  call backward inside that function, or make the layer an operator: custom_op with "
        "register_autograd"
    )


layer_boundary.register_vjp(value=None, inputs=_no_gradient_below)

# ---------------------------------------------------------------------- writing

copy_ = _define("copy_(Tensor(a!) x, Tensor value) -> Tensor(a!)", "std:own_overlap_check")


def store(
    destination: np.ndarray[Any, Any], value: Any, name: str = "copy_"
) -> np.ndarray[Any, Any]:
    """Write `value` into an array: cast with same_kind, broadcast to its shape, C order.

    Raises
    ------
    TypeError
        If the cast is not of the same kind.
    ArgumentError
        If the value does not broadcast to the destination.
    AliasError
        If the destination overlaps itself and the stored value is not uniform.
    """
    value = _fitting(destination, value, name)
    geometry = Geometry(destination.dtype, destination.shape, destination.strides, 0)
    if not destination.flags.forc and self_overlap(geometry):
        destination = _distinct_addresses(destination, value, name)
        value = value.reshape(-1)[:1].reshape((1,) * destination.ndim) if value.size else value
    np.copyto(destination, value, casting="same_kind")
    return destination


def _fitting(destination: np.ndarray[Any, Any], value: Any, name: str) -> np.ndarray[Any, Any]:
    """Return `value` as an array that can be stored, or raise before anything is written."""
    array = storable(value, destination.dtype, name)
    if array.shape not in ((), destination.shape):
        check_fits(array.shape, destination.shape, name)
    return array


def storable(value: Any, dtype: np.dtype[Any], name: str) -> np.ndarray[Any, Any]:
    """Return an array or number as an array that can be stored into `dtype`, or raise TypeError."""
    weak = isinstance(value, bool | int | float | complex)
    array = np.asarray(value, np.result_type(value, dtype)) if weak else np.asarray(value)
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise TypeError(
            f"std::{name} cannot store {array.dtype} into {dtype}; "
            f"convert it first: value.cast({dtype.name!r})"
        )
    return array


def check_fits(shape: Any, destination: Any, name: str) -> None:
    """Raise `ArgumentError` unless a value of `shape` broadcasts to the destination's."""
    try:
        fits = broadcast_shapes(shape, destination) == tuple(destination)
    except ValueError:
        fits = False
    if not fits:
        raise ArgumentError(
            f"std::{name} stores a value of shape {tuple(shape)} into shape {tuple(destination)}, "
            "to which it does not broadcast; a write never changes a shape"
        )


def _distinct_addresses(
    destination: np.ndarray[Any, Any], value: np.ndarray[Any, Any], name: str
) -> np.ndarray[Any, Any]:
    """Return a self-overlapping destination for one uniform value, or raise."""
    if value.size > 1:
        raise AliasError(
            f"std::{name}: the destination overlaps itself (shape {destination.shape}, strides "
            f"{destination.strides}), so the result would depend on the order of the writes\n"
            "  write to a copy: x.clone()"
        )
    index = tuple(
        slice(0, 1) if stride == 0 else slice(None) for stride in destination.strides
    )
    return destination[index]


copy_.register_kernel("cpu", lambda x, value: store(x, value))


copy_.register_vjp(
    x=lambda grad: new_full(grad, grad.shape, 0),
    value=lambda grad, value_spec: sum_to(grad, value_spec.shape),
)


def _copied(x: Tensor, value: Tensor) -> Tensor:
    """Return what `x` holds after ``copy_(x, value)``."""
    if value._keys & WEAK:
        return filled_like(x, value.array.item(), "copy_")
    return broadcast_to_like(cast_same_kind(value, x, "copy_"), x)


def filled_like(x: Tensor, number: Any, name: str) -> Tensor:
    """Return a tensor like `x` filled with a number that must fit its dtype."""
    kind = np.result_type(number, x.dtype)
    if not np.can_cast(kind, x.dtype, "same_kind"):
        raise TypeError(f"std::{name} cannot store {kind} into {x.dtype}")
    device = None if x.device == CPU else x.device
    return full(list(x.shape), number, dtype=x.dtype, device=device)  # type: ignore[no-any-return]


copy_.register_functional(_copied, pre_state=True)

lift = _define("lift(Tensor x) -> Tensor")
"""A fresh copy of a constant; in a graph, what makes each run start from its own."""
lift.register_kernel("cpu", lambda x: x.copy(order="K"))
lift.register_fake(like_spec)
lift.register_vjp(x=lambda grad: grad)


def cast_same_kind(value: Tensor, destination: Tensor, name: str) -> Tensor:
    """Return `value` in the destination's dtype; raise as a write would."""
    if value.dtype == destination.dtype:
        return value
    if not np.can_cast(value.dtype, destination.dtype, "same_kind"):
        raise TypeError(
            f"std::{name} cannot store {value.dtype} into {destination.dtype}; "
            f"convert it first: value.cast({destination.dtype.name!r})"
        )
    return cast(value, destination.dtype)


def broadcast_to_like(value: Tensor, destination: Tensor, name: str = "copy_") -> Tensor:
    """Return `value` broadcast to the destination's shape; raise as a write would."""
    if value.shape == destination.shape:
        return value
    check_fits(value.shape, destination.shape, name)
    return broadcast_to(value, destination.shape)
