"""Tensors of the enclosing scope, gradients inside a run, requires_grad, and what leaks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oplib
from oplib import AliasError, AutogradError, CaptureError, PyLayer, Tensor
from tests.functionalize.helpers import assert_values, counted, every_mode, functional_modes, tensor


@every_mode
def test_an_outside_tensor_is_read_as_it_is_at_the_call(mode: Any) -> None:
    outside = tensor(1, 1)
    f = mode(lambda x: x + outside)
    assert_values(f(tensor(1, 2)), [2, 3])
    outside.fill_(10)
    assert_values(f(tensor(1, 2)), [11, 12])


@every_mode
def test_an_outside_tensor_that_is_written_is_written(mode: Any) -> None:
    outside = tensor(1, 1)

    def f(x: Tensor) -> Any:
        outside[:1].add_(x[0])
        return outside * 2, outside

    doubled, same = mode(f)(tensor(5, 6))
    assert_values(doubled, [12, 2])
    assert same is outside
    assert_values(outside, [6, 1])
    assert outside.inplace_version == 1


@every_mode
def test_an_outside_tensor_that_overlaps_an_argument_is_one_memory_with_it(mode: Any) -> None:
    buffer = np.arange(4.0)
    outside = oplib.from_numpy(buffer[1:])
    result = mode(lambda x: (x.add_(1), outside * 1)[1])(oplib.from_numpy(buffer[:3]))
    assert_values(result, [2, 3, 3])


@functional_modes
def test_the_data_of_an_outside_tensor_is_not_handed_out_while_a_write_waits(mode: Any) -> None:
    outside = tensor(1, 1)

    def f(x: Tensor) -> Any:
        outside.add_(x)
        return outside.numpy()

    with pytest.raises(AliasError, match="around the operators"):
        mode(f)(tensor(1, 2))
    assert_values(outside, [1, 1])


@functional_modes
def test_an_outside_tensor_is_not_written_with_gradients(mode: Any) -> None:
    outside = tensor(1, 1)
    with pytest.raises(AutogradError, match="enclosing scope"):
        mode(lambda x: outside.mul_(x))(tensor(1, 2).requires_grad_())


def test_the_value_of_a_handle_is_known_in_a_run_and_read_only() -> None:
    def f(x: Tensor) -> float:
        x.add_(1)
        array = x.numpy()
        assert not array.flags.writeable
        return float(array[0])

    assert oplib.functionalize(f)(tensor(1, 2)) == 2.0


@every_mode
def test_a_gradient_taken_inside_ends_in_the_argument(mode: Any) -> None:
    def f(x: Tensor, w: Tensor) -> Any:
        y = x * w
        y[0].mul_(10)
        y.sum().backward()
        return x.grad * 2

    x, w = tensor(1, 2).requires_grad_(), tensor(3, 4).requires_grad_()
    assert_values(mode(f)(x, w), [60, 8])
    assert_values(x.grad, [30, 4])
    assert_values(w.grad, [10, 2])


def test_a_gradient_inside_a_run_adds_to_the_one_that_is_there() -> None:
    x = tensor(1, 2).requires_grad_()
    x.grad = tensor(10, 10)
    oplib.functionalize(lambda x: (x * 3).sum().backward())(x)
    assert_values(x.grad, [13, 13])


@every_mode
def test_a_gradient_cleared_inside_is_cleared(mode: Any) -> None:
    def f(x: Tensor) -> None:
        x.clear_grad()
        (x * 3).sum().backward()

    x = tensor(1, 2).requires_grad_()
    f = mode(f)
    f(x)
    f(x)
    assert_values(x.grad, [3, 3])


@every_mode
def test_a_gradient_inside_goes_on_to_what_an_argument_was_computed_from(mode: Any) -> None:
    leaf = tensor(1, 2).requires_grad_()
    mode(lambda x: (x * 3).sum().backward())(leaf * 2)
    assert_values(leaf.grad, [6, 6])


@every_mode
def test_a_hook_of_an_argument_sees_the_gradient_taken_inside(mode: Any) -> None:
    x = tensor(1, 2).requires_grad_()
    x.register_hook(lambda grad: grad * 100)
    mode(lambda x: (x * 3).sum().backward())(x)
    assert_values(x.grad, [300, 300])


@every_mode
def test_requires_grad_set_inside_stays_set(mode: Any) -> None:
    def f(x: Tensor) -> None:
        x.requires_grad_()
        (x * 3).sum().backward()

    x = tensor(1, 2)
    mode(f)(x)
    assert x.requires_grad
    assert_values(x.grad, [3, 3])


def test_requires_grad_set_inside_makes_results_depend_on_the_argument() -> None:
    def f(x: Tensor) -> Tensor:
        before = x * 5
        x.requires_grad_()
        return x * 3 + before

    x = tensor(1, 2)
    oplib.functionalize(f)(x).sum().backward()
    assert_values(x.grad, [3, 3])


def test_a_temporary_that_became_a_leaf_inside_is_a_leaf_outside() -> None:
    def f(x: Tensor) -> Any:
        z = x.clone().requires_grad_()
        return z, z * 3

    z, y = oplib.functionalize(f)(tensor(1, 2))
    y.sum().backward()
    assert z.is_leaf
    assert_values(z.grad, [3, 3])


def test_a_program_cannot_make_results_depend_on_an_inner_leaf() -> None:
    with pytest.raises(CaptureError, match="requires_grad was switched on inside"):
        oplib.capture(lambda x: x.requires_grad_() * 3, tensor(1, 2))


def test_requires_grad_is_restored_if_the_run_raises() -> None:
    def f(x: Tensor) -> None:
        x.requires_grad_()
        raise KeyError

    x = tensor(1, 2)
    with pytest.raises(KeyError):
        oplib.functionalize(f)(x)
    assert not x.requires_grad


@every_mode
def test_a_view_taken_under_no_grad_carries_no_gradient(mode: Any) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        with oplib.no_grad():
            view = y[:1]
        return view * x[1:] + (y[:1] * 0)

    x = tensor(1, 2).requires_grad_()
    mode(f)(x).backward(tensor(1))
    assert_values(x.grad, [0, 2])


@every_mode
def test_a_value_read_under_no_grad_still_has_its_gradient_later(mode: Any) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        view = y[:1]
        with oplib.no_grad():
            _ = view * 2
        return view * 3

    x = tensor(1, 2).requires_grad_()
    mode(f)(x).backward(tensor(1))
    assert_values(x.grad, [6, 0])


class Double(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


@every_mode
def test_a_layer_inside_has_its_gradient_inside(mode: Any) -> None:
    x = tensor(1, 2).requires_grad_()
    mode(lambda x: Double.apply(x).sum().backward())(x)
    assert_values(x.grad, [2, 2])


@functional_modes
def test_a_layer_inside_has_no_silent_gradient_outside(mode: Any) -> None:
    x = tensor(1, 2).requires_grad_()
    y = mode(Double.apply)(x)
    with pytest.raises(AutogradError):
        y.sum().backward()


@functional_modes
def test_memory_with_two_histories_is_not_given_to_an_opaque_operator(mode: Any) -> None:
    with oplib.Library("two", "DEF") as lib:
        op = lib.define("both_(Tensor(a!) x, Tensor y) -> ()").op
        op.register_kernel("cpu", lambda x, y: x.__iadd__(y) and None)
        op.register_vjp(x=lambda grad_x: grad_x, y=lambda grad_x: grad_x)

        def f(x: Tensor) -> None:
            y = x * 2
            op(y, y.detach())

        with pytest.raises((AliasError, ValueError), match="different histories"):
            mode(f)(tensor(1, 2).requires_grad_())


def test_a_handle_kept_after_the_run_is_refused() -> None:
    kept = []
    oplib.functionalize(lambda x: kept.append(x))(counted(2))
    with pytest.raises(CaptureError, match="finished Functionalize"):
        kept[0].add_(1)
