"""Running sums, products and extremes along an axis.

Imports floors 0 to 4, `declare.py`, `reductions.py`, `joining.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..dispatch.operator import Operator
from ..errors import ArgumentError
from ..shapes import TensorSpec, like_spec, normalize_dim
from ..tensor.tensor import Tensor
from .declare import Array, composite, declare
from .joining import concat
from .reductions import sum_dtype

__all__ = ["cumsum"]


def _declare_scan(name: str, what: str, kernel: Callable[..., Any]) -> Operator[..., Any]:
    op = declare(
        f"{name}(Tensor x, int dim, *, ScalarType? dtype=None) -> Tensor",
        f"Running {what} along an axis (`numpy.{name}`); integers in 64 bits.",
        "flexible_layout",
    )
    op.register_kernel(
        "cpu", lambda x, dim, *, dtype: kernel(x, normalize_dim(dim, np.ndim(x)), dtype)
    )

    @op.register_fake
    def spec(x: Any, dim: int, *, dtype: Any) -> Any:
        normalize_dim(dim, x.ndim)
        return like_spec(x, dtype or sum_dtype(x.dtype))

    return op


cumsum = _declare_scan("cumsum", "sum", np.cumsum)
cumprod = _declare_scan("cumprod", "product", np.cumprod)


@cumsum.register_vjp
def _cumsum_grad(grad: Tensor, dim: int) -> Tensor:
    """Sum from each position to the end."""
    return grad.flip(dim).cumsum(dim).flip(dim)


@cumprod.register_vjp
def _cumprod_grad(grad: Tensor, x: Tensor, out: Tensor, dim: int) -> Tensor:
    """Differentiate without division, exact at zeros: ``P[i-1] r[i]``, r the sum of what follows.

    ``r[i] = g[i] + x[i+1] r[i+1]`` is a linear recurrence: log2(n) steps of pairs, as in Hillis and
    Steele, "Data Parallel Algorithms" (1986).
    """
    length = x.shape[dim]
    if length == 0:
        return grad
    factors = x.conj()
    one = factors.narrow(dim, 0, 1) * 0 + 1
    before = concat([one, out.conj().narrow(dim, 0, length - 1)], dim)
    weight = concat([factors.narrow(dim, 1, length - 1), one * 0], dim)
    total, step = grad, 1
    while step < length:
        total = total + weight * _shifted(total, dim, step)
        weight = weight * _shifted(weight, dim, step)
        step *= 2
    return before * total


def _shifted(x: Tensor, dim: int, step: int) -> Tensor:
    """Return ``y[i] = x[i + step]``, zero where that is beyond the end."""
    rest = x.narrow(dim, step, x.shape[dim] - step)
    return concat([rest, x.narrow(dim, 0, step) * 0], dim)


def _declare_running_extreme(name: str, ufunc: np.ufunc) -> None:
    arg = declare(
        f"cumarg{name}(Tensor x, int dim) -> Tensor",
        f"The position of the running {name}imum along an axis, the last of equal ones; int64.",
    )

    @arg.register_kernel("cpu")
    def kernel(x: Any, dim: int) -> Array:
        x = np.asarray(x)
        axis = normalize_dim(dim, x.ndim)
        places = np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        found = np.where((x == ufunc.accumulate(x, axis)) | (x != x), places, 0)  # NaN stays
        return np.asarray(np.maximum.accumulate(found, axis), np.int64, order="C")

    @arg.register_fake
    def spec(x: Any, dim: int) -> TensorSpec:
        normalize_dim(dim, x.ndim)
        return TensorSpec(x.shape, np.int64)

    arg.register_vjp(x=None)

    @composite(
        f"cum{name}(Tensor x, int dim) -> (Tensor values, Tensor indices)",
        f"The running {name}imum along an axis, and its position.",
    )
    def running(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        indices = arg(x, dim)
        return x.take_along_dim(indices, dim), indices


_declare_running_extreme("max", np.maximum)
_declare_running_extreme("min", np.minimum)


@composite(
    "diff(Tensor x, int n=1, int dim=-1) -> Tensor",
    "The n-th differences of neighbours along an axis (`numpy.diff`).",
)
def diff(x: Tensor, n: int, dim: int) -> Tensor:
    """Subtract neighbours n times; bools differ or not, as in NumPy."""
    if n < 0:
        raise ArgumentError(f"std::diff: n counts differences, got {n}")
    dim = normalize_dim(dim, x.ndim)
    for _ in range(n):
        later, earlier = (x[(*[slice(None)] * dim, part)] for part in (slice(1, None), slice(-1)))
        x = later.ne(earlier) if x.dtype == "bool" else later - earlier
    return x if n > 0 else x.clone()
