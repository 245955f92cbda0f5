"""The rows in HIPS autograd, where recording lasts as long as `grad` does."""

from __future__ import annotations

import numpy as np

from ..cases import SIZE
from ..operators import multiply
from .rows import Rows, repeated

__all__ = ["autograd_rows"]


def autograd_rows() -> Rows:
    """Return the rows in HIPS autograd, where recording lasts as long as `grad` does."""
    from autograd import grad
    from autograd.extend import defvjp, primitive

    product = primitive(multiply)
    defvjp(
        product,
        lambda result, x, y: lambda g: product(g, y),
        lambda result, x, y: lambda g: product(g, x),
    )
    a, b = np.ones(SIZE), np.ones(SIZE)
    one = grad(lambda x, y: repeated(product, x, y)[0], 0)
    both = grad(lambda xy: repeated(product, *xy)[0])

    return {
        "call": {"primitive": lambda: product(a, b)},
        "chain_one": {"primitive": lambda: one(a, b)},
        "chain_both": {"primitive": lambda: both((a, b))},
    }
