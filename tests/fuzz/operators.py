"""Custom operators for random programs: opaque writes, overlapping arguments, lists, user views.

The kernels compute exactly (no rounding that depends on layout), and those that read what they have
just written show every mistake in how aliases are rebuilt. Gradient rules are those of the
operators on arguments that do not overlap."""

from __future__ import annotations

from typing import Any

import numpy as np

import oplib
from oplib import Tensor
from oplib.tensor.geometry import Geometry

LIB = oplib.Library("fz", "FRAGMENT")
Array = np.ndarray[Any, Any]


def define(schema: str, kernel: Any, *tags: str) -> Any:
    """Define an operator with a CPU kernel and return it."""
    op = LIB.define(schema, tags=tags).op
    op.register_kernel("cpu", kernel)
    return op


# ---------------------------------------------------------------------- functional

mix = define("mix(Tensor x, Tensor y) -> Tensor", lambda x, y: np.asarray(x * 2 + y))
mix.register_fake(lambda x, y: oplib.TensorSpec(*_mixed(x, y)))
mix.register_vjp(x=lambda grad: grad * 2, y=lambda grad: grad)


def _mixed(x: Any, y: Any) -> tuple[Any, ...]:
    meta = np.broadcast_shapes(x.shape, y.shape)
    # the layout is NumPy's for two elementwise steps in turn
    first = oplib.shapes.like_spec(x, np.result_type(x.dtype, 2))
    spec = oplib.shapes.broadcast_spec(first, y)
    return meta, spec.dtype, spec.strides


# ---------------------------------------------------------------------- writes without a twin
#
# Kernels and fake rules share their checks, so that a run without data refuses what a run refuses.


def check_fits(x: Any, *values: Any) -> None:
    """Raise unless values can be stored into x element by element."""
    for value in values:
        if value.shape != x.shape:
            raise ValueError(f"{value.shape} does not fit {x.shape}")
    check_kinds(x, *values)


def check_kinds(x: Any, *values: Any) -> None:
    """Raise unless the dtypes of values can be cast to that of x."""
    for value in values:
        if not np.can_cast(value.dtype, x.dtype, "same_kind"):
            raise TypeError(f"{value.dtype} does not fit {x.dtype}")


def _inc(x: Array, k: float) -> None:
    x += np.asarray(k).astype(x.dtype)


inc_ = define("inc_(Tensor(a!) x, *, float k=1.0) -> Tensor(a!)", _inc)
inc_.register_vjp(x=lambda grad: grad)


def _axpy(x: Array, y: Array) -> None:
    """Add 2 y to x element by element, so that an overlapping y is read after it was written."""
    check_fits(x, y)
    for index in np.ndindex(x.shape):
        x[index] += y[index] + y[index]


axpy_ = define("axpy_(Tensor(a!) x, Tensor y) -> Tensor(a!)", _axpy)
axpy_.register_fake(check_fits)
axpy_.register_vjp(x=lambda grad: grad, y=lambda grad: grad * 2)


def _two(x: Array, y: Array, z: Array) -> Array:
    _two_spec(x, y, z)
    if z.size:
        x += z.flat[0]
    if x.size:
        y -= x.flat[0]
    return z.copy()


two_ = define("two_(Tensor(a!) x, Tensor(b!) y, Tensor z) -> Tensor", _two)


@two_.register_fake
def _two_spec(x: Any, y: Any, z: Any) -> Any:
    check_kinds(x, z)
    check_kinds(y, x)
    return oplib.TensorSpec(z.shape, z.dtype)


@two_.register_vjp
def _two_grad(grad_out: Tensor, grad_x: Tensor, grad_y: Tensor, x_spec: Any, z_spec: Any) -> Any:
    to_x = grad_x - _first_only(grad_y.sum(), x_spec)
    return to_x, grad_y, grad_out + _first_only(to_x.sum(), z_spec)


def _first_only(total: Tensor, spec: Any) -> Any:
    """Return zeros like a spec with a number at the first element."""
    shape = list(spec.shape)
    if 0 in shape:
        return total.new_zeros(shape)
    return oplib.ops.std.strided_add(total, shape, [], [], 0)


def _lst(xs: list[Array | None], s: Array) -> None:
    _lst_spec(xs, s)
    for x in xs:
        if x is not None:
            x += s


lst_ = define("lst_(Tensor(a!)?[] xs, Tensor s) -> ()", _lst)


@lst_.register_fake
def _lst_spec(xs: Any, s: Any) -> None:
    for x in xs:
        if x is not None:
            if np.broadcast_shapes(x.shape, s.shape) != x.shape:
                raise ValueError(f"{s.shape} does not fit {x.shape}")
            check_kinds(x, s)


@lst_.register_vjp
def _lst_grad(grad: Any) -> Any:
    total = None
    for gradient in grad:
        if gradient is not None:
            total = gradient.sum() if total is None else total + gradient.sum()
    return list(grad), total


def _opt(x: Array | None, y: Array) -> Array:
    if x is not None:
        x *= np.asarray(2, x.dtype)
    return y.copy()


opt_ = define("opt_(Tensor(a!)? x, Tensor y) -> Tensor", _opt)
opt_.register_fake(lambda x, y: oplib.TensorSpec(y.shape, y.dtype))
opt_.register_vjp(
    x=lambda grad_x: None if grad_x is None else grad_x * 2, y=lambda grad_out: grad_out
)


def _swap(self: Array, other: Array) -> None:
    _swap_spec(self, other)
    kept = self.copy()
    self[...] = other
    other[...] = kept


swap_ = define("swap_(Tensor(a!) self, Tensor(b!) other) -> ()", _swap)


@swap_.register_fake
def _swap_spec(self: Any, other: Any) -> None:
    check_fits(self, other)
    check_fits(other, self)


swap_.register_vjp(self=lambda grad_other: grad_other, other=lambda grad_self: grad_self)


# ---------------------------------------------------------------------- a twin, used when disjoint


def _scale(x: Array, y: Array) -> None:
    check_fits(x, y)
    for index in np.ndindex(x.shape):
        x[index] = x[index] * y[index]


def _scaled(x: Tensor, y: Tensor) -> Tensor:
    check_fits(x, y)
    return (x * y).cast(x.dtype)


scale_ = define("scale_(Tensor(a!) x, Tensor y) -> Tensor(a!)", _scale)
scale_.register_functional(_scaled)
scale_.register_vjp(x=lambda grad, y: grad * y.conj(), y=lambda grad, x: grad * x.conj())


# ---------------------------------------------------------------------- views

evens = define("evens(Tensor(a) x) -> Tensor(a)", lambda x: x[::2])


@evens.register_view
def _evens_view(g: Geometry) -> Geometry:
    shape = (-(-g.shape[0] // 2), *g.shape[1:])
    return Geometry(g.dtype, shape, (g.strides[0] * 2, *g.strides[1:]), g.offset)


turned = define("turned(Tensor(a) x) -> Tensor(a)", lambda x: x[::-1])
turned.register_fake(lambda x: x.flip([0]))
