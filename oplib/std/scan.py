"""Running sums and products.

Imports floors 0 to 4, `declare.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..shapes import like_spec, normalize_dim
from ..tensor.tensor import Tensor
from .declare import declare
from .reductions import sum_dtype

__all__ = ["cumsum"]

cumsum = declare(
    "cumsum(Tensor x, int dim, *, ScalarType? dtype=None) -> Tensor",
    "Running sum along an axis; integers in 64 bits.",
    "flexible_layout",
)
cumsum.register_kernel(
    "cpu", lambda x, dim, *, dtype: np.cumsum(x, normalize_dim(dim, np.ndim(x)), dtype)
)


@cumsum.register_fake
def _cumsum_spec(x: Any, dim: int, *, dtype: Any) -> Any:
    normalize_dim(dim, x.ndim)
    return like_spec(x, dtype or sum_dtype(x.dtype))


@cumsum.register_vjp
def _cumsum_grad(grad: Tensor, dim: int) -> Tensor:
    """Sum from each position to the end."""
    return grad.flip(dim).cumsum(dim).flip(dim)
