"""Custom operators for random programs: opaque writes, overlapping arguments, lists, user views.

The kernels compute exactly (no rounding that depends on layout), and those that read what they have
just written show every mistake in how aliases are rebuilt. Gradient rules are those of the operators
on arguments that do not overlap.
"""

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


def _inc(x: Array, k: float) -> None:
    x += np.asarray(k, x.dtype)


inc_ = define("inc_(Tensor(a!) x, *, float k=1.0) -> Tensor(a!)", _inc)
inc_.register_vjp(x=lambda grad: grad)


def _axpy(x: Array, y: Array) -> None:
    """Add 2 y to x element by element, so that an overlapping y is read after it was written."""
    for index in np.ndindex(x.shape):
        x[index] += y[index] + y[index]


axpy_ = define("axpy_(Tensor(a!) x, Tensor y) -> Tensor(a!)", _axpy)
axpy_.register_vjp(x=lambda grad: grad, y=lambda grad: grad * 2)


def _two(x: Array, y: Array, z: Array) -> Array:
    x += z.flat[0] if z.size else 0
    y -= x.flat[0] if x.size else 0
    return z.copy()


two_ = define("two_(Tensor(a!) x, Tensor(b!) y, Tensor z) -> Tensor", _two)
two_.register_fake(lambda x, y, z: oplib.TensorSpec(z.shape, z.dtype))


@two_.register_vjp
def _two_grad(
    grad_out: Tensor, grad_x: Tensor, grad_y: Tensor, x_spec: Any, y_spec: Any, z_spec: Any
) -> Any:
    first_y = grad_y.sum() if y_spec.shape != () else grad_y
    to_x = grad_x - _first_only(first_y, x_spec)
    to_z = grad_out + _first_only(to_x.sum(), z_spec)
    return to_x, grad_y, to_z


def _first_only(total: Tensor, spec: Any) -> Any:
    """Return zeros like a spec with a number at the first element."""
    size = int(np.prod(spec.shape))
    if size == 0:
        return total.new_zeros(list(spec.shape))
    return oplib.ops.std.strided_add(total, list(spec.shape), [], [], 0)


def _lst(xs: list[Array | None], s: Array) -> None:
    for x in xs:
        if x is not None:
            x += s


lst_ = define("lst_(Tensor(a!)?[] xs, Tensor s) -> ()", _lst)


@lst_.register_vjp
def _lst_grad(grad_xs: Any, s_spec: Any) -> Any:
    total = None
    for gradient in grad_xs or []:
        if gradient is not None:
            part = gradient.sum()
            total = part if total is None else total + part
    return [*(grad_xs or [])], total


def _opt(x: Array | None, y: Array) -> Array:
    if x is not None:
        x *= 2
    return y.copy()


opt_ = define("opt_(Tensor(a!)? x, Tensor y) -> Tensor", _opt)
opt_.register_fake(lambda x, y: oplib.TensorSpec(y.shape, y.dtype))
opt_.register_vjp(
    x=lambda grad_x: None if grad_x is None else grad_x * 2, y=lambda grad_out: grad_out
)


def _swap(self: Array, other: Array) -> None:
    kept = self.copy()
    self[...] = other
    other[...] = kept


swap_ = define("swap_(Tensor(a!) self, Tensor(b!) other) -> ()", _swap)
swap_.register_vjp(self=lambda grad_other: grad_other, other=lambda grad_self: grad_self)


# ---------------------------------------------------------------------- a twin, used when disjoint


def _scale(x: Array, y: Array) -> None:
    for index in np.ndindex(x.shape):
        x[index] = x[index] * y[index]


scale_ = define("scale_(Tensor(a!) x, Tensor y) -> Tensor(a!)", _scale)
scale_.register_functional(lambda x, y: x * y)
scale_.register_vjp(x=lambda grad, y: grad * y.conj(), y=lambda grad, x: grad * x.conj())


# ---------------------------------------------------------------------- views

evens = define("evens(Tensor(a) x) -> Tensor(a)", lambda x: x[::2])


@evens.register_view
def _evens_view(g: Geometry) -> Geometry:
    shape = (-(-g.shape[0] // 2), *g.shape[1:])
    return Geometry(g.dtype, shape, (g.strides[0] * 2, *g.strides[1:]), g.offset)


turned = define("turned(Tensor(a) x) -> Tensor(a)", lambda x: x[::-1])
turned.register_fake(lambda x: x.flip([0]))
