"""Comparisons, logic and bits: elementwise operators without a gradient.

Imports floors 0 to 4, `declare.py`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from .declare import declare, ufunc_spec

__all__ = ["COMPARISONS"]

COMPARISONS: Final[dict[str, np.ufunc]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": np.logical_not,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_not": np.invert,
    "bitwise_left_shift": np.left_shift,
    "bitwise_right_shift": np.right_shift,
    "isnan": np.isnan,
    "isfinite": np.isfinite,
    "isinf": np.isinf,
    "signbit": np.signbit,
}
"""Name -> ufunc; those of comparisons and logic give bools, those of bits give integers."""


def _declare_comparison(name: str, ufunc: np.ufunc) -> None:
    arguments = "Tensor x" if ufunc.nin == 1 else "Tensor x, Tensor y"
    op = declare(
        f"{name}({arguments}) -> Tensor",
        f"`numpy.{ufunc.__name__}` of every element; operands broadcast.",
        "pointwise",
        "flexible_layout",
    )
    op.register_kernel("cpu", ufunc)
    if ufunc.nin == 1:
        op.register_fake(lambda x: ufunc_spec(ufunc, x))
        op.register_vjp(x=None)
    else:
        op.register_fake(lambda x, y: ufunc_spec(ufunc, x, y))
        op.register_vjp(x=None, y=None)


for _name, _ufunc in COMPARISONS.items():
    _declare_comparison(_name, _ufunc)
