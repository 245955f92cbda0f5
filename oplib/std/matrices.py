"""Norms, powers and ranks of matrices.

Imports floors 0 to 4, `declare.py`, `linalg.py`, `decompositions.py`.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import ArgumentError
from ..prims import expand
from ..tensor.tensor import Tensor
from .declare import composite, fresh, inexact_dtype
from .decompositions import inv, matrix, svd
from .linalg import matmul

__all__: list[str] = []


@composite(
    'matrix_norm(Tensor x, str ord="fro", bool keepdim=False) -> Tensor',
    "A norm of matrices (`numpy.linalg.matrix_norm`): ``fro``, ``nuc``, or a number as text: the "
    "largest (``1``) or least (``-1``) sum of a column, of a row (``inf``), or singular value "
    "(``2``).",
)
def matrix_norm(x: Tensor, ord: str, keepdim: bool) -> Tensor:
    """Reduce the last two axes, by singular values where the norm is made of them."""
    matrix("matrix_norm", x, square=False)
    if ord == "fro":
        return x.norm(2.0, [-2, -1], keepdim)
    if ord == "nuc":
        found = svd(x)[1].sum(-1)
    else:
        try:
            p = float(ord)
        except ValueError:
            p = math.nan
        if abs(p) not in (1, 2, math.inf):
            raise ArgumentError(f"std::matrix_norm knows fro, nuc, ±1, ±2, ±inf, got {ord!r}")
        parts = svd(x)[1] if abs(p) == 2 else x.norm(1.0, -2 if abs(p) == 1 else -1)
        found = parts.max(-1) if p > 0 else parts.min(-1)
    return found.unsqueeze([-2, -1]) if keepdim else found


@composite(
    "matrix_power(Tensor x, int n) -> Tensor",
    "``x @ x @ ...`` of square matrices, n times; the identity for 0, powers of the inverse below.",
)
def matrix_power(x: Tensor, n: int) -> Tensor:
    """Square, and multiply where the exponent has a bit."""
    matrix("matrix_power", x)
    if n == 0:
        one = x.new_ones([x.shape[-1], x.shape[-1]]).tril().triu()
        return fresh(expand(one, x.shape).clone(), x)
    base, n = (inv(x), -n) if n < 0 else (x, n)
    power = None
    while n:
        if n % 2:
            power = base if power is None else matmul(power, base)
        n //= 2
        base = matmul(base, base) if n else base
    assert power is not None
    return fresh(power, x)


@composite(
    "matrix_rank(Tensor x, float? rtol=None) -> Tensor",
    "How many singular values of matrices exceed ``rtol`` times the largest; int64.",
)
def matrix_rank(x: Tensor, rtol: float | None) -> Tensor:
    """Count; rtol is by default the longer side times the precision, as in NumPy."""
    rows, columns = matrix("matrix_rank", x, square=False).shape[-2:]
    values = svd(x)[1]
    if rtol is None:
        rtol = max(rows, columns) * float(np.finfo(inexact_dtype(x.dtype)).eps)
    return (values > values.narrow(-1, 0, min(1, values.shape[-1])) * rtol).sum(-1)
