"""The rows of `oplib.compile`, each twice: compiled, and the same function eagerly.

The kernel column is the same arithmetic written by hand on NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

import oplib
from oplib import Tensor

from .cases import TOTAL, Calls, case, curve

__all__ = ["OPERATORS", "chain", "mlp"]

OPERATORS: Final = 20
"""Elementwise operators in the chain."""

_SIZES: Final = [1_000, 100_000, 10_000_000]
_ROWS: Final = {"compiled": oplib.compile, "eager": lambda function: function}


def chain(x: Any) -> Any:
    """Return a chain of elementwise operators, of a Tensor or of an array."""
    for _ in range(OPERATORS // 4):
        x = abs(x * 1.01 + 0.5) - 0.1
    return x


def _chain_case(wrap: Callable[..., Any]) -> Callable[[int], Calls]:
    def setup(size: int) -> Calls:
        array = np.linspace(0.0, 1.0, size)
        function, x = wrap(chain), oplib.from_numpy(array)
        return {"oplib": lambda: function(x), "kernel": lambda: chain(array)}

    return setup


def _loss(x: Tensor, y: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    hidden = (x @ w + b).tanh()
    return (hidden @ v - y).square().mean()


def mlp(
    x: np.ndarray[Any, Any],
    y: np.ndarray[Any, Any],
    w: np.ndarray[Any, Any],
    b: np.ndarray[Any, Any],
    v: np.ndarray[Any, Any],
) -> list[np.ndarray[Any, Any]]:
    """Return the gradients of a network with one hidden layer, by hand."""
    hidden = np.tanh(x @ w + b)
    error = hidden @ v - y
    grad = error * (2.0 / error.size)
    inner = (grad @ v.T) * (1 - hidden * hidden)
    return [x.T @ inner, inner.sum(0), hidden.T @ grad]


def _mlp_case(wrap: Callable[..., Any]) -> Callable[[], Calls]:
    def setup() -> Calls:
        numbers = np.random.default_rng(0)
        x, y = numbers.normal(size=(64, 32)), numbers.normal(size=(64, 1))
        arrays = numbers.normal(size=(32, 64)), np.zeros(64), numbers.normal(size=(64, 1))
        weights = [oplib.tensor(array, requires_grad=True) for array in arrays]
        data = oplib.from_numpy(x), oplib.from_numpy(y)
        loss = wrap(_loss)
        return {
            "oplib": lambda: oplib.grad(loss(*data, *weights), weights),
            "kernel": lambda: mlp(x, y, *arrays),
        }

    return setup


for _name, _wrap in _ROWS.items():
    _points = _chain_case(_wrap)
    _points.__name__ = f"{_name}_chain"
    curve(f"{_name}: chain of 20, per operator, by elements", _SIZES, per=lambda _: OPERATORS)(
        _points
    )
    _setup = _mlp_case(_wrap)
    _setup.__name__ = f"{_name}_mlp"
    case(f"{_name}: gradients of a network with one hidden layer", None, TOTAL)(_setup)
