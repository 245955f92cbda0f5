"""Softmax and its logarithm.

Imports floors 0 to 4, `declare.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..shapes import TensorSpec, like_spec, normalize_dim
from ..tensor.tensor import Tensor
from .declare import Array, declare, inexact, inexact_dtype

__all__ = ["log_softmax", "softmax"]


def _spec(x: Any, dim: int) -> TensorSpec:
    normalize_dim(dim, x.ndim)
    return like_spec(x, inexact_dtype(x.dtype))


def _shifted(x: Any, dim: int) -> Array:
    """Return x minus its maximum, so that `exp` stays in range."""
    x = inexact(x)
    dim = normalize_dim(dim, x.ndim)
    return np.asarray(x - x.max(dim, keepdims=True)) if x.size else x.copy(order="K")


softmax = declare(
    "softmax(Tensor x, int dim=-1) -> Tensor",
    "``exp(x) / sum(exp(x))`` along an axis.",
    "flexible_layout",
)


@softmax.register_kernel("cpu")
def _softmax(x: Any, dim: int) -> Any:
    power = np.exp(_shifted(x, dim))
    return power / power.sum(dim, keepdims=True)


softmax.register_fake(_spec)


@softmax.register_vjp
def _softmax_grad(grad: Tensor, out: Tensor, dim: int) -> Tensor:
    weighted = grad * out.conj()
    return weighted - out.conj() * weighted.sum(dim, True)


log_softmax = declare(
    "log_softmax(Tensor x, int dim=-1) -> Tensor",
    "``x - log(sum(exp(x)))`` along an axis.",
    "flexible_layout",
)


@log_softmax.register_kernel("cpu")
def _log_softmax(x: Any, dim: int) -> Any:
    shifted = _shifted(x, dim)
    return shifted - np.log(np.exp(shifted).sum(dim, keepdims=True))


log_softmax.register_fake(_spec)


@log_softmax.register_vjp
def _log_softmax_grad(grad: Tensor, out: Tensor, dim: int) -> Tensor:
    return grad - out.exp().conj() * grad.sum(dim, True)
