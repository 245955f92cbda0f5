"""The operators that are timed: trivial kernels, so that what is left is the call.

Each is written the way an author would write it, and each kernel is a plain function that the rows
also time on bare arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import oplib
from oplib import Library, PyLayer, Tensor, custom_op

__all__ = [
    "Multiply",
    "add_",
    "add_into",
    "mul",
    "mul_list",
    "mul_scalar",
    "multiply",
    "multiply_list",
    "multiply_scalar",
    "rule",
]

Array = NDArray[Any]


def multiply(x: Array, y: Array) -> Array:
    """Return the product: the bare kernel."""
    return np.multiply(x, y)


def multiply_scalar(x: Array, y: Array, alpha: float) -> Array:
    """Return the product; the scalar is ignored, so that only passing it costs."""
    return np.multiply(x, y)


def multiply_list(xs: Sequence[Array]) -> Array:
    """Return the product of the first two."""
    return np.multiply(xs[0], xs[1])


def add_into(x: Array, y: Array) -> None:
    """Add in place: the bare kernel of a write."""
    np.add(x, y, out=x)


def rule(x: Tensor, y: Tensor) -> Tensor:
    """Return the shape of the product: the fake rule of `mul`."""
    return oplib.empty_like(x)


mul = custom_op("bench::mul", mutates_args=())(multiply)
mul.register_fake(rule)
mul.register_vjp(x=lambda grad, y: grad * y, y=lambda grad, x: grad * x)

mul_scalar = custom_op("bench::mul_scalar", mutates_args=())(multiply_scalar)
mul_list = custom_op("bench::mul_list", mutates_args=())(multiply_list)

_library = Library("bench", "FRAGMENT")
_library.define("add_(Tensor(a!) x, Tensor y) -> Tensor(a!)")
_library.impl("add_", add_into, "CPU")

add_ = oplib.ops.bench.add_.default
add_.register_vjp(x=lambda grad: grad, y=lambda grad: grad)


class Multiply(PyLayer):
    """The product as a layer with its own gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        """Return the product and keep the factors."""
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of the factors that need one."""
        x, y = ctx.saved_tensor()
        needs_x, needs_y = ctx.needs_input_grad
        return grad * y if needs_x else None, grad * x if needs_y else None
