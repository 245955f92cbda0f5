"""`detect_anomaly`: a NaN raises where it arises, with the forward line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import AutogradError, PyLayer, Tensor, custom_op
from oplib.autograd import detect_anomaly
from tests.autograd.helpers import leaf, tensor


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


class Broken(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor, how: str) -> Tensor:
        ctx.how = how
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if ctx.how == "raise":
            raise KeyError("gone")
        return grad * np.nan, None


def line_of(text: str) -> str:
    """Return ``"test_anomaly.py:12: source"`` of the line of this file that ends with `text`."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()  # type: ignore[arg-type]
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(text)]
    return f"test_anomaly.py:{number}: {lines[number - 1].strip()}"


def message_of(run: Callable[[], Any], **options: bool) -> str:
    with pytest.raises(AutogradError) as caught, detect_anomaly(**options):
        run()
    return str(caught.value)


def test_a_nan_names_the_operator_the_argument_and_the_forward_line() -> None:
    def run() -> None:
        x = leaf(0.0, 1.0)
        y = x.sqrt()  # an operator
        (y * 0).sum().backward()

    message = message_of(run)
    assert "GradNode_std::sqrt: the gradient of argument `x` holds NaN" in message
    assert line_of("  # an operator") in message


def test_a_nan_of_a_layer_names_its_line() -> None:
    def run() -> None:
        y = Broken.apply(leaf(1.0), "nan")  # a layer
        y.backward()

    message = message_of(run)
    assert "GradNodePyLayer_Broken: the gradient of argument `x` holds NaN" in message
    assert line_of("  # a layer") in message


def test_a_nan_in_a_write_and_in_one_of_several_outputs_names_its_line() -> None:
    def write() -> None:
        y = leaf(0.0) * 1
        y.sqrt_()  # a write
        (y * 0).sum().backward()

    assert line_of("  # a write") in message_of(write)

    @custom_op("anomaly::halves", mutates_args=())
    def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x / 2, x / 2

    halves.register_vjp(x=lambda grads: grads[0] + grads[1] * np.inf)

    def several() -> None:
        first, _ = halves(leaf(1.0))  # several outputs
        first.backward()

    assert line_of("  # several outputs") in message_of(several)


def test_any_other_exception_of_a_backward_gets_the_line_as_a_note() -> None:
    with detect_anomaly():
        y = Broken.apply(leaf(1.0), "raise")  # raises
    with pytest.raises(KeyError) as caught:
        y.backward()
    assert any(line_of("  # raises") in note for note in caught.value.__notes__)


def test_a_node_made_outside_is_checked_too_and_says_why_it_has_no_line() -> None:
    y = (leaf(0.0).sqrt() * 0).sum()
    assert "outside of detect_anomaly" in message_of(y.backward)


def test_a_nan_that_came_with_the_seed_is_not_blamed_on_the_node() -> None:
    y = leaf(1.0) * 2
    message = message_of(lambda: y.backward(tensor(np.nan)))
    assert "it came with the gradient that arrived here" in message


def test_grad_and_higher_orders_are_checked() -> None:
    def second() -> None:
        x = leaf(0.0)
        (first,) = oplib.grad(x.pow(1.5).sum(), x, create_graph=True)
        assert first is not None
        (first * 0).sum().backward()

    assert "holds NaN" in message_of(second)


def test_infinities_are_found_on_request() -> None:
    x = leaf(0.0)
    with detect_anomaly():
        assert oplib.grad((1 / x).sum(), x)[0] is not None
    assert "holds an infinity" in message_of(lambda: (1 / x).sum().backward(), inf=True)


def test_right_gradients_pass_and_equal_those_outside() -> None:
    def gradient() -> np.ndarray:
        x = leaf(1.0, 2.0)
        y = x * x
        y[0] = y[1] * 2
        return oplib.grad(y.exp().sum(), x)[0].numpy()  # type: ignore[union-attr]

    with detect_anomaly():
        inside = gradient()
    assert (inside == gradient()).all()


def test_a_nan_where_no_gradient_goes_is_no_anomaly() -> None:
    x, frozen = leaf(1.0), tensor(2.0)

    class Ignored(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            return x * y

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return grad * 2, grad * np.nan

    with detect_anomaly():
        Ignored.apply(x, frozen).backward()


def test_outside_no_node_remembers_anything() -> None:
    x = leaf(1.0)
    with detect_anomaly():
        inside = x * 2
    outside = x * 2
    assert outside.grad_fn.hooks is None
    assert inside.grad_fn.hooks is not None
    assert inside.grad_fn.hooks.site


def test_fake_gradients_have_no_values_to_check() -> None:
    with oplib.FakeTensorMode(), detect_anomaly():
        x = oplib.zeros(2, requires_grad=True)
        assert oplib.grad(x.sqrt().sum(), x)[0] is not None


def test_it_decorates_functions() -> None:
    @detect_anomaly()
    def run() -> None:
        (leaf(0.0).sqrt() * 0).sum().backward()

    with pytest.raises(AutogradError, match="holds NaN"):
        run()
    (leaf(0.0).sqrt() * 0).sum().backward()


def test_the_option_is_a_bool() -> None:
    with pytest.raises(oplib.ArgumentError, match="inf is a bool"), detect_anomaly(inf=1):  # type: ignore[arg-type]
        pass
