"""Triangles of matrices, and selections by a condition.

Imports floors 0 to 4, `declare.py`, `creation.py`.
"""

from __future__ import annotations

from ..errors import ArgumentError
from ..prims import mask
from ..tensor.tensor import Tensor
from .creation import arange
from .declare import composite

__all__ = ["tril", "triu"]


def _below(x: Tensor, diagonal: int, name: str) -> Tensor:
    """Return where ``column - row <= diagonal``."""
    if x.ndim < 2:
        raise ArgumentError(f"std::{name} takes matrices, got {list(x.shape)}")
    rows = arange(0, x.shape[-2], device=x.device).unsqueeze(-1)
    return arange(0, x.shape[-1], device=x.device) - rows <= diagonal


@composite(
    "tril(Tensor x, int diagonal=0) -> Tensor",
    "`numpy.tril`: the lower triangle of matrices, up to a diagonal; zero above.",
)
def tril(x: Tensor, diagonal: int) -> Tensor:
    """Keep what lies on and below a diagonal."""
    return mask(x, _below(x, diagonal, "tril"))


@composite(
    "triu(Tensor x, int diagonal=0) -> Tensor",
    "`numpy.triu`: the upper triangle of matrices, from a diagonal; zero below.",
)
def triu(x: Tensor, diagonal: int) -> Tensor:
    """Keep what lies on and above a diagonal."""
    return mask(x, _below(x, diagonal - 1, "triu").logical_not())
