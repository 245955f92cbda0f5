"""Elementwise operators: arithmetic, elementary functions, and choices between elements.

Shapes broadcast, dtypes promote as `numpy.result_type` says, Python numbers are weak. A gradient
rule returns a gradient of the result's shape; the engine sums it to the argument's. For complex
numbers ``grad`` is dL/dRe + i dL/dIm, so a holomorphic f has the gradient ``grad * conj(f'(x))``;
`conj` of a real tensor is the tensor itself.

Imports floors 0 to 4, `declare.py`. Read next: `inplace.py`, which derives ``exp_`` from ``exp``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..dispatch.gradient_rule import derivative
from ..errors import ArgumentError
from ..prims import cast, cast_same_kind, mask, new_full
from ..shapes import TensorSpec, broadcast_spec, like_spec, result_type
from ..tensor.protocols import is_weak
from ..tensor.tensor import Tensor
from .declare import (
    Array,
    Rule,
    composite,
    declare,
    declare_binary,
    inexact,
    inexact_dtype,
    ufunc_spec,
)

__all__ = ["BINARY", "UNARY"]


def zeros(grad: Tensor) -> Tensor:
    """Return the gradient of a function that is constant almost everywhere."""
    return new_full(grad, grad.shape, 0)


# ---------------------------------------------------------------------- one operand


def _sigmoid(x: Any) -> Array:
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        return np.asarray(1 / (1 + np.exp(-inexact(x))))


def _rsqrt(x: Any) -> Array:
    return np.asarray(1 / np.sqrt(inexact(x)))


def _relu(x: Any) -> Array:
    return np.maximum(x, 0)


def _real(grad: Tensor) -> Tensor:
    """Return the real part: where `abs_` stores a real result among complex numbers."""
    return grad.real if grad.dtype.kind == "c" else grad


def _sign_grad(grad: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """Differentiate z / |z|: ``(g - s² conj(g)) / 2|z|``, zero at 0; a real sign is constant."""
    if x.dtype.kind != "c":
        return zeros(grad)
    size = x.abs()
    grad = mask(grad, size > 0)
    return (grad - out * out * grad.conj()) / (2 * (size + (size == 0)))


UNARY: Final[dict[str, tuple[Callable[..., Any], Rule]]] = {
    # f               NumPy's f      gradient of x
    "neg": (np.negative, lambda grad: -grad),
    "abs": (np.absolute, lambda grad, x: _real(grad) * x.sign()),
    "square": (np.square, derivative(lambda x: 2 * x)),
    "reciprocal": (np.reciprocal, lambda grad, out: -grad * (out * out).conj()),
    "sqrt": (np.sqrt, lambda grad, out: grad / (2 * out).conj()),
    "rsqrt": (_rsqrt, derivative(lambda out: out * out * out * -0.5)),
    "exp": (np.exp, derivative(lambda out: out)),
    "expm1": (np.expm1, derivative(lambda out: out + 1)),
    "exp2": (np.exp2, lambda grad, out: grad * out.conj() * float(np.log(2))),
    "cbrt": (np.cbrt, lambda grad, out: grad / (3 * out * out)),
    "deg2rad": (np.deg2rad, lambda grad: grad * float(np.pi / 180)),
    "rad2deg": (np.rad2deg, lambda grad: grad * float(180 / np.pi)),
    "log": (np.log, lambda grad, x: grad / x.conj()),
    "log2": (np.log2, lambda grad, x: grad / (x.conj() * float(np.log(2)))),
    "log10": (np.log10, lambda grad, x: grad / (x.conj() * float(np.log(10)))),
    "log1p": (np.log1p, lambda grad, x: grad / (x + 1).conj()),
    "sin": (np.sin, derivative(lambda x: x.cos())),
    "cos": (np.cos, derivative(lambda x: -x.sin())),
    "tan": (np.tan, derivative(lambda out: 1 + out * out)),
    "asin": (np.arcsin, lambda grad, x: grad / (1 - x * x).sqrt().conj()),
    "acos": (np.arccos, lambda grad, x: -grad / (1 - x * x).sqrt().conj()),
    "atan": (np.arctan, lambda grad, x: grad / (1 + x * x).conj()),
    "sinh": (np.sinh, derivative(lambda x: x.cosh())),
    "cosh": (np.cosh, derivative(lambda x: x.sinh())),
    "tanh": (np.tanh, derivative(lambda out: 1 - out * out)),
    "asinh": (np.arcsinh, lambda grad, x: grad / (x * x + 1).sqrt().conj()),
    "acosh": (np.arccosh, lambda grad, x: grad / ((x - 1).sqrt() * (x + 1).sqrt()).conj()),
    "atanh": (np.arctanh, lambda grad, x: grad / (1 - x * x).conj()),
    "sigmoid": (_sigmoid, derivative(lambda out: out * (1 - out))),
    "relu": (_relu, lambda grad, out: mask(grad, out > 0)),
    "sign": (np.sign, _sign_grad),
    "floor": (np.floor, zeros),
    "ceil": (np.ceil, zeros),
    "trunc": (np.trunc, zeros),
}
"""Functions of one tensor: name -> (kernel, gradient rule)."""

_COMPUTED_IN: Final[dict[str, Callable[[Any], TensorSpec]]] = {
    "sigmoid": lambda x: like_spec(x, inexact_dtype(x.dtype)),
    "rsqrt": lambda x: like_spec(x, inexact_dtype(x.dtype)),
    "relu": lambda x: like_spec(x, result_type(x, 0)),
}
"""Fake rules of the kernels that are no ufuncs."""


_FORMULAS: Final = {
    "sigmoid": "``1 / (1 + exp(-x))``",
    "rsqrt": "``1 / sqrt(x)``",
    "relu": "``max(x, 0)``",
}


def _declare_unary(name: str, kernel: Callable[..., Any], rule: Rule) -> None:
    what = f"`numpy.{kernel.__name__}`" if isinstance(kernel, np.ufunc) else _FORMULAS[name]
    op = declare(
        f"{name}(Tensor x) -> Tensor", f"{what} of every element.", "pointwise", "flexible_layout"
    )
    op.register_kernel("cpu", kernel)
    op.register_fake(
        (lambda x: ufunc_spec(kernel, x)) if isinstance(kernel, np.ufunc) else _COMPUTED_IN[name]
    )
    op.register_vjp(x=rule)


for _name, (_kernel, _rule) in UNARY.items():
    _declare_unary(_name, _kernel, _rule)


round_ = declare(
    "round(Tensor x, int decimals=0) -> Tensor",
    "Every element to a number of decimals, half to even (`numpy.round`).",
    "pointwise",
)
round_.register_kernel("cpu", np.round)
round_.register_fake(
    lambda x, decimals: like_spec(x, np.round(np.empty(0, x.dtype), decimals).dtype)
)
round_.register_vjp(x=zeros)


# ---------------------------------------------------------------------- two operands


def _pow_x(grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Differentiate x ** y in x: ``y x^(y-1)``, and zero where x and y are both zero."""
    if is_weak(y):
        n = y.item()
        return grad * (n * x ** (n - 1)).conj() if n != 0 else zeros(grad)
    lowered = where((x == 0).logical_and(y == 0), 0, y - 1)
    return grad * (y * x**lowered).conj()


def _pow_y(grad: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """Differentiate x ** y in y: ``out log x``, and zero where x is zero."""
    base = where(x == 0, 1, x)
    return grad * (out * cast(base, out.dtype).log()).conj()


def _larger(grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Give `grad` to x where it is larger than y; equals share it."""
    return (mask(grad, x > y) + mask(grad, x >= y)) / 2


BINARY: Final[dict[str, tuple[np.ufunc, Rule, Rule]]] = {
    # f          NumPy's f     gradient of x, gradient of y
    "sub": (np.subtract, lambda grad: grad, lambda grad: -grad),
    "mul": (np.multiply, derivative(lambda y: y), derivative(lambda x: x)),
    "div": (
        np.divide,
        lambda grad, y: grad / y.conj(),
        lambda grad, x, y: -grad * (x / y / y).conj(),
    ),
    "pow": (np.power, _pow_x, _pow_y),
    "maximum": (
        np.maximum,
        lambda grad, x, y: _larger(grad, x, y),
        lambda grad, x, y: _larger(grad, y, x),
    ),
    "minimum": (
        np.minimum,
        lambda grad, x, y: _larger(grad, y, x),
        lambda grad, x, y: _larger(grad, x, y),
    ),
    "floor_divide": (np.floor_divide, zeros, zeros),
    "remainder": (np.remainder, lambda grad: grad, lambda grad, x, y: -grad * (x // y)),
}
"""Functions of two tensors: name -> (ufunc, rule for x, rule for y); `add` is in `prims.py`."""


for _name, (_ufunc, _x_rule, _y_rule) in BINARY.items():
    declare_binary(_name, _ufunc, _x_rule, _y_rule)


# ---------------------------------------------------------------------- choices

where = declare(
    "where(Tensor condition, Tensor x, Tensor y) -> Tensor",
    "`numpy.where`: `x` where `condition` is true, else `y`; all three broadcast.",
    "pointwise",
    "flexible_layout",
)
where.register_kernel("cpu", np.where)
where.register_fake(
    lambda condition, x, y: broadcast_spec(condition, x, y, dtype=result_type(x, y))
)
where.register_vjp(
    condition=None,
    x=lambda grad, condition: mask(grad, condition),
    y=lambda grad, condition: mask(grad, condition.logical_not()),
)

clamp = declare(
    "clamp(Tensor x, Scalar? min=None, Scalar? max=None) -> Tensor",
    "`numpy.clip`: every element limited to `min` and `max`; either may be left out.",
    "pointwise",
    "flexible_layout",
)


def _given(low: Any, high: Any) -> list[Any]:
    """Return the bounds that are given, at least one."""
    bounds = [bound for bound in (low, high) if bound is not None]
    if not bounds:
        raise ArgumentError("std::clamp needs min, max, or both")
    return bounds


@clamp.register_kernel("cpu")
def _clamp(x: Any, min: Any, max: Any) -> Any:
    return np.clip(x, min, max) if _given(min, max) else x


clamp.register_fake(lambda x, min, max: like_spec(x, result_type(x, *_given(min, max))))


@clamp.register_vjp
def _clamp_grad(grad: Tensor, x: Tensor, min: Any, max: Any) -> Tensor:
    """Pass the gradient where the element lies in the closed interval."""
    if min is not None:
        grad = mask(grad, x >= min)
    return grad if max is None else mask(grad, x <= max)


@composite(
    "masked_fill(Tensor x, Tensor mask, Tensor value) -> Tensor",
    "`x` with `value` where `mask` is true, in the shape and dtype of `x`; all broadcast.",
    "pointwise",
)
def masked_fill(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """Choose `value`, converted without changing its kind."""
    return where(mask, cast_same_kind(value, x, "masked_fill"), x)
