"""Random numbers from the `numpy.random.Generator` passed as ``rng``.

Without ``rng`` they come from NumPy's global generator, which `numpy.random.seed` seeds. Drawing is
an effect: graphs never merge, drop or reorder calls on one generator.

Imports floors 0 to 4, `declare.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..shapes import TensorSpec
from ..tensor.tensor import Tensor
from .declare import composite, declare

__all__ = ["rand"]

_OPTIONS = "*, Generator? rng=None, ScalarType? dtype=None, Device? device=None"


def _drawing(rng: np.random.Generator | None) -> np.random.Generator:
    if rng is not None:
        return rng
    shared: Any = np.random
    return np.random.Generator(shared.get_bit_generator())


def _declare(
    name: str, arguments: str, doc: str, default: type, draw: Callable[..., Any]
) -> Callable[..., Tensor]:
    """Declare an operator whose last positional argument is the size of what it draws."""
    op = declare(f"{name}({arguments}, {_OPTIONS}) -> Tensor", doc, "nondeterministic")

    @op.register_kernel("cpu")
    def kernel(*args: Any, rng: Any, dtype: Any, device: Any) -> Any:
        return np.asarray(draw(_drawing(rng), *args)).astype(dtype or default, copy=False)

    @op.register_fake
    def spec(*args: Any, rng: Any, dtype: Any, device: Any) -> TensorSpec:
        size = args[-1]
        return TensorSpec(
            (size,) if isinstance(size, int) else tuple(size), np.dtype(dtype or default)
        )

    return op


rand = _declare(
    "rand",
    "SymInt[] size",
    "Elements uniform on [0, 1) (`numpy.random.Generator.random`).",
    float,
    lambda rng, size: rng.random(size),
)
_declare(
    "randn",
    "SymInt[] size",
    "Elements normal with mean 0 and variance 1 (`numpy.random.Generator.standard_normal`).",
    float,
    lambda rng, size: rng.standard_normal(size),
)
_declare(
    "randint",
    "int low, int high, SymInt[] size",
    "Elements from low up to, not including, high (`numpy.random.Generator.integers`).",
    int,
    lambda rng, low, high, size: rng.integers(low, high, size),
)
_declare(
    "randperm",
    "SymInt n",
    "The integers below n in random order; 1-d (`numpy.random.Generator.permutation`).",
    int,
    lambda rng, n: rng.permutation(n),
)


@composite(
    "bernoulli(Tensor p, *, Generator? rng=None) -> Tensor",
    "1 with probability ``p[i]``, else 0, in the dtype of p; no gradient.",
)
def bernoulli(p: Tensor, *, rng: Any) -> Tensor:
    """Compare uniform numbers."""
    return (rand(list(p.shape), rng=rng, device=p.device) < p).cast(p.dtype)


@composite(
    "dropout(Tensor x, float p=0.5, bool training=True, *, Generator? rng=None) -> Tensor",
    "Elements zeroed with probability p, others over ``1 - p`` (Srivastava et al., JMLR 2014).",
)
def dropout(x: Tensor, p: float, training: bool, *, rng: Any) -> Tensor:
    """Multiply by a random mask."""
    if not 0 <= p <= 1:
        raise ArgumentError(f"std::dropout: p is a probability, got {p}")
    if not training or p == 0:
        return x.clone()
    keep = rand(list(x.shape), rng=rng, device=x.device) >= p
    return x * keep.cast(x.dtype) * (1 / (1 - p) if p < 1 else 0.0)
