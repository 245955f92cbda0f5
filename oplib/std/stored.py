"""Forms that write of elementwise operators which have no kernel that could do so.

``name_(x, ...)`` copies what ``name(x, ...)`` computes into x, so values, checks and gradients are
those of the two. Where a ufunc can write into x itself, `inplace.py` derives the form.

Imports floors 0 to 4, `declare.py`.
"""

from __future__ import annotations

from typing import Any

from ..dispatch.registry import get_op
from ..prims import clone, copy_
from ..tensor.methods import STORED
from ..tensor.tensor import Tensor
from .declare import composite

__all__: list[str] = []


def _declare_stored(name: str) -> None:
    op = get_op(f"std::{name}")
    arguments = ["Tensor(a!) x", *map(str, op.schema.arguments[1:])]
    declared = composite(
        f"{name}_({', '.join(arguments)}) -> Tensor(a!)",
        f"`{name}` stored into x, in the dtype and shape of x.",
    )

    @declared
    def stored(x: Tensor, *others: Any) -> Tensor:
        old = clone(x)  # what the gradient rule saves must not be written to
        return copy_(x, op(old, *[old if other is x else other for other in others]))


for _name in STORED:
    _declare_stored(_name)
