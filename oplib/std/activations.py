"""Activations, made of other operators.

Imports floors 0 to 4, `declare.py`, `elementwise.py`.
"""

from __future__ import annotations

import math
from typing import Any

from ..errors import ArgumentError
from ..tensor.tensor import Tensor
from .declare import composite
from .elementwise import where
from .special import erf, logaddexp

__all__ = ["gelu"]


@composite(
    "softplus(Tensor x, float beta=1.0) -> Tensor",
    "``log(1 + exp(beta x)) / beta``, without overflow.",
    "pointwise",
)
def softplus(x: Tensor, beta: float) -> Tensor:
    """Add logarithms."""
    return logaddexp(x * beta, 0.0) / beta


@composite(
    "log_sigmoid(Tensor x) -> Tensor", "``log(sigmoid(x))``, exact in both tails.", "pointwise"
)
def log_sigmoid(x: Tensor) -> Tensor:
    """Mirror softplus."""
    return -logaddexp(-x, 0.0)


@composite(
    "silu(Tensor x) -> Tensor",
    "``x sigmoid(x)`` (Elfwing et al., arXiv:1702.03118).",
    "pointwise",
)
def silu(x: Tensor) -> Tensor:
    """Multiply."""
    return x * x.sigmoid()


@composite(
    'gelu(Tensor x, str approximate="none") -> Tensor',
    "``x Φ(x)``, Φ the normal distribution; ``approximate='tanh'`` does without SciPy "
    "(Hendrycks and Gimpel, arXiv:1606.08415).",
    "pointwise",
)
def gelu(x: Tensor, approximate: str) -> Tensor:
    """Use the error function, or tanh."""
    if approximate == "none":
        return x * (erf(x * math.sqrt(0.5)) + 1) * 0.5
    if approximate == "tanh":
        inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
        return x * (inner.tanh() + 1) * 0.5
    raise ArgumentError(f"std::gelu: approximate is 'none' or 'tanh', got {approximate!r}")


@composite(
    "leaky_relu(Tensor x, float slope=0.01) -> Tensor", "x, or ``slope x`` below zero.", "pointwise"
)
def leaky_relu(x: Tensor, slope: float) -> Tensor:
    """Choose by sign."""
    return where(x > 0, x, x * slope)


@composite(
    "elu(Tensor x, float alpha=1.0) -> Tensor",
    "x, or ``alpha (exp(x) - 1)`` below zero (Clevert et al., arXiv:1511.07289).",
    "pointwise",
)
def elu(x: Tensor, alpha: float) -> Tensor:
    """Choose by sign; what is not chosen stays finite."""
    return where(x > 0, x, x.clamp(max=0).expm1() * alpha)


@composite(
    "lerp(Tensor x, Tensor y, Tensor weight) -> Tensor", "``x + weight (y - x)``.", "pointwise"
)
def lerp(x: Tensor, y: Tensor, weight: Any) -> Tensor:
    """Interpolate."""
    return x + weight * (y - x)
