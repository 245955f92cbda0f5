"""Derivatives of derivatives: operands left out, third orders, products with a Hessian."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import Tensor
from oplib.testing import gradgradcheck
from tests.autograd.helpers import assert_values, leaf

RNG = np.random.default_rng(11)


def tensors(*shapes: tuple[int, ...], tracked: tuple[bool, ...]) -> list[Tensor]:
    flags = zip(shapes, tracked, strict=True)
    return [oplib.tensor(RNG.normal(size=s)).requires_grad_(flag) for s, flag in flags]


@pytest.mark.parametrize("tracked", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, y: x @ y, ((2, 3), (3, 2))),
        (lambda x, y: x @ y, ((2, 2, 3), (3,))),
        (lambda x, y: x * y, ((2, 3), (3,))),
        (lambda x, y: x / (y * y + 1), ((2, 1), (1, 3))),
        (lambda x, y: (x * x + 1) ** y, ((3,), ())),
        (lambda x, y: oplib.where(x > 0, x * y, y * y), ((2, 2), (2, 2))),
        (lambda x, y: oplib.concat([x * y, y], 0), ((2, 3), (2, 3))),
    ],
    ids=["matmul", "batched", "broadcast", "outer", "pow", "where", "concat"],
)
def test_second_derivatives_are_right_with_either_operand_stopped(
    function: Callable[..., Any], shapes: Any, tracked: tuple[bool, ...]
) -> None:
    assert gradgradcheck(function, tensors(*shapes, tracked=tracked))


@pytest.mark.parametrize(
    ("function", "third"),
    [
        (oplib.sin, lambda x: -np.cos(x)),
        (oplib.exp, np.exp),
        (oplib.log, lambda x: 2 / x**3),
        (oplib.sqrt, lambda x: 3 / 8 * x**-2.5),
        (lambda x: x**4, lambda x: 24 * x),
        (oplib.tanh, lambda x: -2 * (1 - np.tanh(x) ** 2) * (1 - 3 * np.tanh(x) ** 2)),
    ],
    ids=["sin", "exp", "log", "sqrt", "pow", "tanh"],
)
def test_third_derivatives_have_their_textbook_values(
    function: Callable[[Tensor], Tensor], third: Callable[[Any], Any]
) -> None:
    x = leaf(0.5, 1.5)
    y: Any = function(x)
    for _ in range(3):
        (y,) = oplib.grad(y.sum(), x, create_graph=True)
    assert_values(y, third(np.array([0.5, 1.5])))


def test_the_tenth_derivative_of_exp_is_exp() -> None:
    x = leaf(0.5)
    y: Any = x.exp()
    for _ in range(10):
        (y,) = oplib.grad(y, x, create_graph=True)
    assert_values(y, [math.exp(0.5)])


def loss(parameters: list[Tensor], x: Tensor) -> Tensor:
    """Return the loss of a network with two layers."""
    w, b, v = parameters
    return (((x @ w + b).tanh() @ v) ** 2).mean()


def gradient(parameters: list[Tensor], x: Tensor, create_graph: bool = False) -> list[Any]:
    return oplib.grad(loss(parameters, x), parameters, create_graph=create_graph)


def test_a_product_with_the_hessian_is_the_difference_of_gradients() -> None:
    parameters = tensors((3, 4), (4,), (4, 2), tracked=(True, True, True))
    x, *directions = tensors((5, 3), (3, 4), (4,), (4, 2), tracked=(False,) * 4)
    first = gradient(parameters, x, create_graph=True)
    inner = sum(((g * v).sum() for g, v in zip(first, directions, strict=True)), start=0.0)
    found = oplib.grad(inner, parameters)  # type: ignore[arg-type]
    step = 1e-5

    def moved(sign: float) -> list[Any]:
        return gradient(
            [
                (p + v * (sign * step)).detach().requires_grad_()
                for p, v in zip(parameters, directions, strict=True)
            ],
            x,
        )

    for got, ahead, behind in zip(found, moved(1), moved(-1), strict=True):
        assert got is not None
        expected = (ahead - behind).numpy() / (2 * step)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6, atol=1e-8)
