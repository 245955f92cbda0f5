"""The paths of a call, one callable each: what is counted, and what is profiled.

Read next: `profile.py`; ``tests/test_counts.py`` guards the counts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import oplib
from oplib import Tensor

from .operators import Multiply, add_, mul

__all__ = ["paths"]


def tensor(requires_grad: bool = False) -> Tensor:
    """Return a small vector of ones."""
    return oplib.tensor(np.ones(4), requires_grad=requires_grad)


def paths() -> dict[str, Callable[[], object]]:
    """Return a call per path, on tensors that no other call uses."""
    x, y, g, b = tensor(), tensor(), tensor(requires_grad=True), tensor()
    array = np.ones(4)
    zeros = oplib.tensor(np.zeros(4))
    with oplib.FakeTensorMode():
        fake = oplib.empty((4,))
    node = mul(g, y)
    layer = Multiply.apply(g, y)

    def backward(value: Tensor) -> None:
        value.backward(retain_graph=True)
        g.clear_grad()

    return {
        "call": lambda: mul(x, y),
        "call built-in": lambda: x * y,
        "number": lambda: x * 2.0,
        "ndarray": lambda: x * array,
        "recording": lambda: mul(g, y),
        "layer": lambda: Multiply.apply(g, y),
        "backward of a call": lambda: backward(node),
        "backward of a layer": lambda: backward(layer),
        "in place": lambda: add_(b, zeros),
        "in place built-in": lambda: b.add_(zeros),
        "view": lambda: x[1:],
        "view recorded": lambda: g[1:],
        "fake": lambda: mul(fake, fake),
    }
