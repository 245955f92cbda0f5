"""The rows in Paddle's dynamic graph: PyLayer and its own operators."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ..cases import SIZE
from .rows import Rows, repeated

__all__ = ["paddle_rows"]


def paddle_rows() -> Rows:
    """Return the rows in Paddle's dynamic graph: PyLayer and its own operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it wants a compiler cache installed
        import paddle

    def tensor(stop_gradient: bool = True) -> Any:
        return paddle.to_tensor(np.ones(SIZE), place="cpu", stop_gradient=stop_gradient)

    class Product(paddle.autograd.PyLayer):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            x, y = ctx.saved_tensor()
            return grad * y, (None if y.stop_gradient else grad * x)

    x, y, z, g = tensor(), tensor(), tensor() * 0, tensor(stop_gradient=False)

    def apply_backward() -> None:
        Product.apply(g, y).backward()
        g.clear_gradient(set_to_zero=False)

    def chain() -> None:
        repeated(paddle.multiply, g, y).backward()
        g.clear_gradient(set_to_zero=False)

    return {
        "call": {"native": lambda: paddle.multiply(x, y)},
        "number": {"native": lambda: x * 2.0},
        "recording": {"native": lambda: paddle.multiply(g, y)},
        "chain_built_in": {"native": chain},
        "pylayer": {"PyLayer": lambda: Product.apply(g, y)},
        "pylayer_backward": {"PyLayer": apply_backward},
        "in_place_built_in": {"native": lambda: x.add_(z)},
        "view": {"native": lambda: x[1:]},
        "view_recorded": {"native": lambda: g[1:]},
    }
