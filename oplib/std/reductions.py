"""Reductions: sums, products, extremes, norms, over some or all axes.

``dim`` is an int, several, or None for all; ``keepdim`` keeps them with length one. The axes that
remain keep their order in memory; index results are C-contiguous. A rule computes with the result
in `keepdim` form, so that it broadcasts against the operand.

Imports floors 0 to 4, `declare.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from .._dims import same
from ..dispatch.operator import Operator
from ..errors import ArgumentError
from ..prims import broadcast_to, mask, new_full
from ..shapes import TensorSpec, normalize_dim, normalize_dims, reduced, reduced_shape, reduced_spec
from ..tensor.tensor import Tensor
from .declare import Array, Rule, declare, inexact, inexact_dtype, real_dtype
from .joining import concat, stack

__all__ = ["sum_dtype"]


def _axes(dim: list[int] | None) -> tuple[int, ...] | None:
    """Return a ``dim`` argument as NumPy's ``axis``."""
    return None if dim is None else tuple(dim)


def _reduce(kernel: Callable[..., Any], x: Any, dim: list[int] | None, **options: Any) -> Array:
    """Run a NumPy reduction; what is wrong with `dim` is said as the fake rule says it."""
    try:
        return np.asarray(kernel(x, axis=_axes(dim), **options))
    except ValueError:
        reduced_shape(np.shape(x), dim, False)
        raise


def _kept(reduced: Tensor, x_spec: Any, dim: Any, keepdim: bool) -> Tensor:
    """Return a reduced tensor with its reduced axes back, of length one."""
    if keepdim or dim is None:
        return reduced
    return reduced.reshape(reduced_shape(x_spec.shape, dim, True))


def _count(x: Any, dim: Any) -> Any:
    """Return how many elements each result is made of."""
    count = 1
    for axis in normalize_dims(dim, x.ndim):
        count = count * x.shape[axis]
    return count


# ---------------------------------------------------------------------- sums


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype NumPy accumulates in: integers in at least 64 bits."""
    if dtype.kind not in "biu":
        return dtype
    return np.result_type(dtype, np.uint64 if dtype.kind == "u" else np.int64)


def _declare_sum(
    name: str, kernel: Callable[..., Any], doc: str, result: Callable[..., Any]
) -> Operator[..., Any]:
    """Declare a reduction with a choice of dtype, by default ``result(x.dtype)``."""
    op = declare(
        f"{name}(Tensor x, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None)"
        " -> Tensor",
        doc,
        "reduction",
        "flexible_layout",
    )

    @op.register_kernel("cpu")
    def reduce(x: Any, dim: Any, keepdim: bool, *, dtype: Any) -> Any:
        return _reduce(kernel, x, dim, keepdims=keepdim, dtype=dtype)

    @op.register_fake
    def spec(x: Any, dim: Any, keepdim: bool, *, dtype: Any) -> TensorSpec:
        return reduced_spec(x, dim, keepdim, result(x.dtype) if dtype is None else dtype)

    return op


sum_ = _declare_sum(
    "sum", np.add.reduce, "`numpy.sum` over axes `dim`; integers are summed in 64 bits.", sum_dtype
)


@sum_.register_vjp
def _sum_grad(grad: Tensor, x_spec: Any, dim: Any, keepdim: bool) -> Tensor:
    return broadcast_to(_kept(grad, x_spec, dim, keepdim), x_spec.shape)


def _mean(x: Any, axis: Any, keepdims: bool, dtype: Any) -> Any:
    """Return `numpy.mean`, without its detours where sum and result have the dtype of x."""
    if dtype is not None or getattr(x, "dtype", None) not in _PLAIN_MEAN:
        return np.mean(x, axis, dtype, keepdims=keepdims)
    total = np.add.reduce(x, axis, keepdims=keepdims)  # type: ignore[call-overload]
    return total / (x.size // (total.size or 1))


_PLAIN_MEAN: Final = frozenset(map(np.dtype, ("float32", "float64", "complex64", "complex128")))

mean = _declare_sum("mean", _mean, "`numpy.mean` over axes `dim`.", inexact_dtype)


@mean.register_vjp
def _mean_grad(grad: Tensor, x_spec: Any, dim: Any, keepdim: bool) -> Tensor:
    part = _kept(grad, x_spec, dim, keepdim) / _count(x_spec, dim)
    return broadcast_to(part, x_spec.shape)


prod = _declare_sum(
    "prod", np.multiply.reduce, "`numpy.prod` over axes `dim`; integers in 64 bits.", sum_dtype
)


@prod.register_vjp
def _prod_grad(grad: Tensor, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    return _kept(grad, x, dim, keepdim) * _products_of_others(x, dim).conj()


def _products_of_others(x: Tensor, dim: Any) -> Tensor:
    """Return, per element, the product over `dim` of the others; no division, exact at zeros."""
    dims = normalize_dims(dim, x.ndim)
    order = [*(axis for axis in range(x.ndim) if axis not in dims), *dims]
    rest = [x.shape[axis] for axis in order[: x.ndim - len(dims)]]
    joined = x.permute(order).reshape([*rest, _count(x, dim)])
    others = _others(joined).reshape([x.shape[axis] for axis in order])
    return others.permute([order.index(axis) for axis in range(x.ndim)])


def _others(x: Tensor) -> Tensor:
    """Return the products of others along the last axis: for pairs first, then within each pair."""
    length = x.shape[-1]
    if length <= 1:
        return new_full(x, x.shape, 1)
    if length % 2:
        one = new_full(x, [*x.shape[:-1], 1], 1)
        return _others(concat([x, one], -1))[..., :length]
    left, right = x[..., 0::2], x[..., 1::2]
    outside = _others(left * right)
    return stack([outside * right, outside * left], -1).reshape(x.shape)


# ---------------------------------------------------------------------- extremes


def _declare_extreme(name: str, kernel: Callable[..., Any]) -> None:
    op = declare(
        f"{name}(Tensor x, int[1]? dim=None, bool keepdim=False) -> Tensor",
        f"`numpy.{name}` over axes `dim`; elements equal to it share its gradient.",
        "reduction",
        "flexible_layout",
    )

    @op.register_kernel("cpu")
    def reduce(x: Any, dim: Any, keepdim: bool) -> Any:
        _require_elements(name, x, dim)
        return _reduce(kernel, x, dim, keepdims=keepdim)

    @op.register_fake
    def spec(x: Any, dim: Any, keepdim: bool) -> TensorSpec:
        _require_elements(name, x, dim)
        return reduced_spec(x, dim, keepdim)

    @op.register_vjp
    def rule(grad: Tensor, x: Tensor, out: Tensor, dim: Any, keepdim: bool) -> Tensor:
        return _shared(_kept(grad, x, dim, keepdim), x == _kept(out, x, dim, keepdim), dim)


def _require_elements(name: str, x: Any, dim: Any) -> None:
    """Refuse an extreme of nothing, unless the result has no elements either."""
    shape = np.shape(x) if isinstance(x, int | float | complex) else x.shape
    if any(same(length, 0) for length in shape):
        left = reduced_shape(shape, dim, False)
        if not any(same(length, 0) for length in left):
            raise ArgumentError(f"std::{name} over no elements has no value")


def _shared(grad: Tensor, chosen: Tensor, dim: Any) -> Tensor:
    """Return `grad` divided evenly among the chosen elements along `dim`."""
    count = chosen.sum(dim, True, dtype=grad.dtype)
    return mask(grad / _guarded(count), chosen)


_declare_extreme("max", np.maximum.reduce)
_declare_extreme("min", np.minimum.reduce)


def _declare_index_of_extreme(name: str, kernel: Callable[..., Any]) -> None:
    op = declare(
        f"{name}(Tensor x, int? dim=None, bool keepdim=False) -> Tensor",
        f"`numpy.{name}`: the first index along `dim`, without it in the flattened tensor; int64.",
        "reduction",
    )

    @op.register_kernel("cpu")
    def reduce(x: Any, dim: Any, keepdim: bool) -> Any:
        _require_elements(name, x, dim)
        axis = None if dim is None else normalize_dim(dim, np.ndim(x))
        return np.asarray(kernel(x, axis=axis, keepdims=keepdim), order="C")

    @op.register_fake
    def spec(x: Any, dim: Any, keepdim: bool) -> TensorSpec:
        _require_elements(name, x, dim)
        return TensorSpec(reduced_shape(x.shape, dim, keepdim), np.int64)

    op.register_vjp(x=None)


_declare_index_of_extreme("argmax", np.argmax)
_declare_index_of_extreme("argmin", np.argmin)


def _declare_truth(name: str, kernel: Callable[..., Any]) -> None:
    op = declare(
        f"{name}(Tensor x, int[1]? dim=None, bool keepdim=False) -> Tensor",
        f"`numpy.{name}`: whether {name} elements over axes `dim` are true.",
        "reduction",
        "flexible_layout",
    )

    @op.register_kernel("cpu")
    def reduce(x: Any, dim: Any, keepdim: bool) -> Any:
        return _reduce(kernel, x, dim, keepdims=keepdim)

    op.register_fake(reduced("x", dtype=np.dtype(bool)))
    op.register_vjp(x=None)


_declare_truth("any", np.logical_or.reduce)
_declare_truth("all", np.logical_and.reduce)


# ---------------------------------------------------------------------- moments and norms


def _guarded(divisor: Tensor) -> Tensor:
    """Return a divisor with ones for zeros: what is divided there is zero, and stays it."""
    return divisor + (divisor == 0)


def _declare_moment(name: str, kernel: Callable[..., Any], rule: Rule, doc: str) -> None:
    op = declare(
        f"{name}(Tensor x, int[1]? dim=None, float correction=1, bool keepdim=False) -> Tensor",
        f"{doc} over axes `dim`: squares are divided by their number minus `correction`.",
        "reduction",
        "flexible_layout",
    )

    @op.register_kernel("cpu")
    def reduce(x: Any, dim: Any, correction: float, keepdim: bool) -> Any:
        return _reduce(kernel, x, dim, ddof=correction, keepdims=keepdim)

    @op.register_fake
    def spec(x: Any, dim: Any, correction: float, keepdim: bool) -> TensorSpec:
        return reduced_spec(x, dim, keepdim, real_dtype(x.dtype))

    op.register_vjp(rule)


def _deviation(x: Tensor, dim: Any, correction: float) -> Tensor:
    """Return half the derivative of the variance: (x - mean) / (n - correction)."""
    return (x - x.mean(dim, True)) / (_count(x, dim) - correction)


def _var_grad(grad: Tensor, x: Tensor, dim: Any, correction: float, keepdim: bool) -> Tensor:
    return 2 * _kept(grad, x, dim, keepdim) * _deviation(x, dim, correction)


def _std_grad(
    grad: Tensor, x: Tensor, out: Tensor, dim: Any, correction: float, keepdim: bool
) -> Tensor:
    scale = _kept(grad / _guarded(out), x, dim, keepdim)
    return scale * _deviation(x, dim, correction)


_declare_moment("var", np.var, _var_grad, "`numpy.var`")
_declare_moment("std", np.std, _std_grad, "`numpy.std`")

norm = declare(
    "norm(Tensor x, float ord=2.0, int[1]? dim=None, bool keepdim=False) -> Tensor",
    "Norm over axes `dim`: ``(sum |x|^ord)^(1/ord)``; ``inf`` and ``-inf`` are extremes, 0 counts "
    "non-zeros.",
    "reduction",
    "flexible_layout",
)


@norm.register_kernel("cpu")
def _norm(x: Any, ord: float, dim: Any, keepdim: bool) -> Any:
    size = np.abs(inexact(x))
    if math.isinf(ord):
        _require_elements("norm", x, dim)
        return _reduce(np.max if ord > 0 else np.min, size, dim, keepdims=keepdim)
    if ord == 0:
        return _reduce(np.sum, size != 0, dim, dtype=size.dtype, keepdims=keepdim)
    if ord == 1:
        return _reduce(np.sum, size, dim, keepdims=keepdim)
    if ord == 2:
        return np.sqrt(_reduce(np.sum, np.square(size), dim, keepdims=keepdim))
    return np.power(_reduce(np.sum, np.power(size, ord), dim, keepdims=keepdim), 1 / ord)


@norm.register_fake
def _norm_spec(x: Any, ord: float, dim: Any, keepdim: bool) -> TensorSpec:
    if math.isinf(ord):
        _require_elements("norm", x, dim)
    return reduced_spec(x, dim, keepdim, real_dtype(x.dtype))


@norm.register_vjp
def _norm_grad(grad: Tensor, x: Tensor, out: Tensor, ord: float, dim: Any, keepdim: bool) -> Tensor:
    """Differentiate: ``sign(x) (|x| / norm)^(ord - 1)``, zero where the norm is zero."""
    grad, out = _kept(grad, x, dim, keepdim), _kept(out, x, dim, keepdim)
    if math.isinf(ord):
        return _shared(grad, x.abs() == out, dim) * x.sign()
    if ord == 0:
        return new_full(x, x.shape, 0)
    if ord == 1:
        return grad * x.sign()
    if ord == 2:
        return grad * x / _guarded(out)
    return grad * x.sign() * (x.abs() / _guarded(out)) ** (ord - 1)


logsumexp = declare(
    "logsumexp(Tensor x, int[1]? dim=None, bool keepdim=False) -> Tensor",
    "``log(sum(exp(x)))`` over axes `dim`, without overflow.",
    "reduction",
    "flexible_layout",
)


@logsumexp.register_kernel("cpu")
def _logsumexp(x: Any, dim: Any, keepdim: bool) -> Any:
    x = inexact(x)
    axis = normalize_dims(dim, x.ndim)
    top = np.max(x, axis=axis, keepdims=True) if x.size else np.zeros((1,) * x.ndim, x.dtype)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):  # the sum over nothing, or of exp(-inf), has log -inf
        result = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return result if keepdim else np.squeeze(result, axis)


logsumexp.register_fake(reduced("x", dtype=inexact_dtype))


@logsumexp.register_vjp
def _logsumexp_grad(grad: Tensor, x: Tensor, out: Tensor, dim: Any, keepdim: bool) -> Tensor:
    share = (x - _kept(out, x, dim, keepdim)).exp()
    return _kept(grad, x, dim, keepdim) * share.conj()
