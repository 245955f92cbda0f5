"""What the rows of every peer are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..cases import LENGTH, Calls

__all__ = ["Rows", "repeated"]

Rows = dict[str, Calls]
"""For the key of a case, callables by label."""


def repeated(op: Callable[[Any, Any], Any], x: Any, y: Any, length: int = LENGTH) -> Any:
    """Return the result of the chain."""
    for _ in range(length):
        x = op(x, y)
    return x
