from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import Library, RegistrationError, Tensor, derivative
from oplib.autograd import gradients
from oplib.testing import gradcheck, gradgradcheck


@pytest.fixture
def lib() -> Iterator[Library]:
    with oplib.scoped_library("derivative_tests") as library:
        yield library


def leaf(*values: float) -> Tensor:
    return oplib.tensor(list(values), requires_grad=True)


def test_a_derivative_gives_gradients_of_both_orders_real_and_complex(lib: Library) -> None:
    cube = elementwise(lib, "cube", lambda x: x**3, lambda x: 3 * x * x)
    for x in (leaf(0.5, -1.5), oplib.tensor([0.5 + 1j, -1.5 - 0.5j], requires_grad=True)):
        assert gradcheck(cube, (x,))
        assert gradgradcheck(cube, (x,))


def elementwise(lib: Library, name: str, kernel: Any, slope: Any) -> Any:
    op = lib.define(f"{name}(Tensor x) -> Tensor").op
    op.register_kernel("cpu", kernel)
    op.register_fake(oplib.empty_like)
    op.register_vjp(x=derivative(slope))
    return op


def test_a_derivative_asks_for_words_of_a_rule_and_for_no_gradient(lib: Library) -> None:
    with pytest.raises(RegistrationError, match="asks for 'z', which names nothing"):
        elementwise(lib, "f", np.exp, lambda z: z)


class Written:
    """NumPy as `gradients` sees it; counts the products that are stored in place."""

    def __init__(self) -> None:
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def multiply(self, *args: Any, out: Any) -> Any:
        self.count += 1
        return np.multiply(*args, out=out)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    counter = Written()
    monkeypatch.setattr(gradients, "np", counter)
    return counter


def test_a_product_is_stored_in_a_gradient_that_only_its_run_sees(written: Written) -> None:
    x = leaf(1.0, 2.0)
    (x * 2.0).sin().exp().sum().backward()
    assert written.count == 3
    inner = np.sin(2 * x.numpy())
    np.testing.assert_allclose(x.grad, np.exp(inner) * np.cos(2 * x.numpy()) * 2)


def test_both_factors_get_the_gradient_that_arrived(written: Written) -> None:
    x, y = leaf(1.0, 2.0), leaf(3.0, 5.0)
    (x * y).exp().sum().backward()
    outer = np.exp([3.0, 10.0])
    np.testing.assert_allclose(x.grad, outer * y.numpy())
    np.testing.assert_allclose(y.grad, outer * x.numpy())
    assert written.count == 2  # exp, and the second factor of the product


@pytest.mark.parametrize("hold", ["tensor", "array", "retained", "posthook"])
def test_a_gradient_that_somebody_holds_is_not_overwritten(hold: str) -> None:
    x = leaf(1.0, 2.0)
    middle = x * x
    held: list[Any] = []

    def keep(grad: Tensor) -> None:
        held.append(grad if hold == "tensor" else grad.numpy())

    if hold == "retained":
        middle.retain_grads()
    elif hold == "posthook":
        middle.grad_fn.register_hook(lambda outgoing, incoming: held.append(incoming[0]))
    else:
        middle.register_hook(keep)
    middle.sin().sum().backward()
    if hold == "retained":
        held.append(middle.grad)
    np.testing.assert_allclose(np.asarray(held[0]), np.cos([1.0, 4.0]))
    np.testing.assert_allclose(x.grad, np.cos([1.0, 4.0]) * 2 * x.numpy())


def test_a_seed_of_the_user_and_a_result_of_grad_are_not_overwritten() -> None:
    x, seed = leaf(1.0, 2.0), oplib.tensor([1.0, 10.0])
    middle = x.sin()
    first, second = oplib.grad(middle.exp(), [middle, x], seed)
    assert seed.tolist() == [1.0, 10.0]
    assert first is not None
    assert second is not None
    np.testing.assert_allclose(first, seed.numpy() * np.exp(np.sin([1.0, 2.0])))
    np.testing.assert_allclose(second, first.numpy() * np.cos([1.0, 2.0]))


def test_a_gradient_that_flows_two_ways_is_not_overwritten_by_one() -> None:
    x = leaf(1.0, 2.0)
    y = x * 3.0
    (y.sin() + y.exp()).sum().backward()
    np.testing.assert_allclose(x.grad, 3 * (np.cos([3.0, 6.0]) + np.exp([3.0, 6.0])))


def test_with_create_graph_nothing_is_overwritten(written: Written) -> None:
    x = leaf(1.0, 2.0)
    [first] = oplib.grad(x.sin().exp().sum(), [x], create_graph=True)
    assert first is not None
    assert written.count == 0
    [second] = oplib.grad(first.sum(), [x])
    s, c, e = np.sin([1.0, 2.0]), np.cos([1.0, 2.0]), np.exp(np.sin([1.0, 2.0]))
    np.testing.assert_allclose(second, e * (c * c - s))
