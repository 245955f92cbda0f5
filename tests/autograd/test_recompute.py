"""`recompute`: the gradients of the plain call, from a second run of the function."""

from __future__ import annotations

import random
import re
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import oplib
from oplib import AutogradError, PyLayer, Tensor, amp
from oplib.autograd import backward, recompute, saved_tensors_hooks
from tests.autograd.helpers import assert_values, leaf, no_collector, tensor
from tests.autograd.test_against_torch import (
    BINARY,
    UNARY,
    VIEWS,
    WRITES,
    Outcome,
    loss_of,
    oplib_side,
    programs,
)


class Counted:
    """A function that counts its runs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.runs = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.runs += 1
        return self.function(*args, **kwargs)


def assert_as_plain(
    function: Callable[..., Any], arguments: tuple[Any, ...], inputs: list[Tensor], runs: int = 2
) -> None:
    """Assert that a recomputed call has the value and the gradients of the plain one."""
    counted = Counted(function)
    np.random.seed(0)
    plain = function(*arguments)
    expected = oplib.grad(plain, inputs)
    drawn = np.random.random()
    np.random.seed(0)
    result = recompute(counted, *arguments)
    assert counted.runs == 1
    found = oplib.grad(result, inputs)
    assert counted.runs == runs
    assert np.random.random() == drawn
    assert_values(result, plain.numpy())
    for got, gradient in zip(found, expected, strict=True):
        assert gradient is not None
        assert_values(got, gradient.numpy())


class SquareLayer(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.result = result = x * x
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        assert_values(ctx.result, (x * x).numpy())
        return grad * 2 * x


def test_a_chain_of_operators_gets_the_plain_gradients() -> None:
    x = leaf(0.5, 1.5)
    assert_as_plain(lambda x: ((x * x).exp() * x.sin()).sum(), (x,), [x])


def test_captured_parameters_get_gradients() -> None:
    x, w = leaf(0.5, 1.5), leaf(2.0, 3.0)
    assert_as_plain(lambda x: (x * w).exp().sum(), (x,), [x, w])
    frozen = tensor(0.5, 1.5)
    assert_as_plain(lambda x: (x * w).exp().sum(), (frozen,), [w])


def test_an_interior_input_passes_its_gradient_on() -> None:
    x = leaf(0.5, 1.5)
    y = x.sin()
    expected = oplib.grad((y * y).exp().sum(), x, retain_graph=True)
    found = oplib.grad(recompute(lambda y: (y * y).exp().sum(), y), x)
    assert_values(found[0], expected[0].numpy())  # type: ignore[union-attr]


def test_global_random_state_is_that_of_the_first_run_and_put_back() -> None:
    x = leaf(0.5, 1.5, 2.5, 3.5)

    def dropout(x: Tensor) -> Tensor:
        mask = oplib.tensor((np.random.random(4) > 0.5) * 2.0)
        return ((x * x).exp() * mask * random.random()).sum()

    random.seed(0)
    state = random.getstate()
    first = recompute(dropout, x)
    after = random.getstate()
    found = oplib.grad(first, x)
    assert random.getstate() == after != state
    mask = np.where(found[0].numpy() != 0, 2.0, 0.0)  # type: ignore[union-attr]
    random.seed(0)
    values = (x * x).exp().numpy() * mask * random.random()
    assert_values(first, values.sum())
    assert_values(found[0], values * 2 * x.numpy())


@pytest.mark.parametrize(
    "make",
    [np.random.default_rng, np.random.RandomState, random.Random],
    ids=["Generator", "RandomState", "Random"],
)
def test_a_generator_among_the_arguments_is_restored_and_put_back(make: Any) -> None:
    x = leaf(0.5, 1.5)

    def noisy(x: Tensor, options: dict[str, Any]) -> Tensor:
        return (x * x * options["rng"].random()).exp().sum()

    generator, twin = make(3), make(3)
    y = recompute(noisy, x, {"rng": generator})
    expected = oplib.grad(noisy(x, {"rng": twin}), x)
    found = oplib.grad(y, x)
    assert_values(found[0], expected[0].numpy())  # type: ignore[union-attr]
    assert generator.random() == twin.random()


@pytest.mark.parametrize("bits", [np.random.MT19937, np.random.PCG64])
def test_dropout_drops_the_same_elements_again(bits: Any) -> None:
    x, w = leaf(*np.linspace(0.5, 1.5, 20)), leaf(*np.linspace(1, 2, 20))
    before: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
    np.random.set_bit_generator(bits(3))  # type: ignore[attr-defined]
    try:
        for options in ({}, {"rng": np.random.default_rng(1)}):

            def block(x: Tensor, **options: Any) -> Tensor:
                return oplib.dropout((x * w).exp(), 0.5, **options)

            y = recompute(block, x, **options)
            found = oplib.grad(y.sum(), w)[0]
            assert found is not None
            assert 0 < np.count_nonzero(y.numpy()) < 20
            assert_values(found, y.numpy() * x.detach().numpy())
    finally:
        np.random.set_bit_generator(before)  # type: ignore[attr-defined]


def test_dict_arguments_keywords_none_outputs_and_other_outputs_pass_through() -> None:
    x, k = leaf(0.5, 1.5), leaf(2.0)

    def block(x: Tensor, options: dict[str, Any], *, scale: Tensor) -> dict[str, Any]:
        return {"h": [(x * options["k"][0]).exp() * scale], "none": None, "n": 3}

    result = recompute(block, x, {"k": [k]}, scale=k)
    assert result["none"] is None
    assert result["n"] == 3
    found = oplib.grad(result["h"][0].sum(), [x, k])
    expected = oplib.grad(block(x, {"k": [k]}, scale=k)["h"][0].sum(), [x, k])
    for got, gradient in zip(found, expected, strict=True):
        assert_values(got, gradient.numpy())  # type: ignore[union-attr]


def test_regions_nest() -> None:
    x, w = leaf(0.5, 1.5), leaf(2.0, 3.0)

    def inner(x: Tensor) -> Tensor:
        return (x * w).sin().exp()

    def outer(x: Tensor) -> Tensor:
        return recompute(inner, recompute(inner, x)).cos().sum()

    assert_as_plain(outer, (x,), [x, w])


def test_an_outer_region_keeps_no_inputs_of_inner_ones() -> None:
    x = leaf(0.5, 1.5)
    alive: list[weakref.ref[Any]] = []

    def inner(h: Tensor) -> Tensor:
        alive.append(weakref.ref(h.array))
        return h.exp()

    with no_collector():
        y = recompute(lambda x: recompute(inner, x * 2), x)
        assert [array() for array in alive] == [None]
        y.sum().backward()
        assert [array() for array in alive] == [None] * len(alive)
    assert_values(x.grad, 2 * np.exp(2 * x.detach().numpy()))


def test_a_layer_and_what_its_ctx_keeps_are_recomputed() -> None:
    x = leaf(0.5, 1.5)
    assert_as_plain(lambda x: SquareLayer.apply(x.exp()).sum(), (x,), [x])
    assert_values(oplib.grad(recompute(SquareLayer.apply, x).sum(), x)[0], 2 * x.numpy())


def test_higher_derivatives_are_those_of_the_plain_call() -> None:
    x, w = leaf(0.5, 1.5), leaf(2.0, 3.0)

    def function(x: Tensor) -> Tensor:
        return ((x * w).sin() * x).sum()

    def third(y: Tensor) -> list[Any]:
        for _ in range(2):
            (first,) = oplib.grad(y, x, create_graph=True)
            assert first is not None
            y = (first * first).sum()
        return oplib.grad(y, [x, w])

    for got, expected in zip(third(recompute(function, x)), third(function(x)), strict=True):
        assert_values(got, expected.numpy())


def test_each_run_over_a_retained_graph_computes_again_once() -> None:
    x = leaf(0.5, 1.5)
    function = Counted(lambda x: ((x * x).exp() * x).sum())
    y = recompute(function, x)
    y.backward(retain_graph=True)
    y.backward()
    assert function.runs == 3
    with pytest.raises(AutogradError, match="second backward"):
        y.backward()


def test_a_run_that_needs_no_saved_value_computes_nothing_again() -> None:
    x = leaf(0.5, 1.5)
    function = Counted(lambda x: (x + x).sum())
    recompute(function, x).backward()
    assert function.runs == 1
    assert_values(x.grad, [2, 2])


def test_the_mode_and_the_casts_of_the_first_run_hold_in_the_second() -> None:
    x = leaf(0.5, 1.5, dtype=np.float32)
    seen: list[Any] = []

    def function(x: Tensor) -> Tensor:
        y = x.reshape([1, 2]) @ x.reshape([2, 1])
        seen.append((y.dtype, oplib.is_grad_enabled()))
        return (y * y).sum()

    with amp.auto_cast():
        y = recompute(function, x)
    with oplib.no_grad():
        backward(y)
    assert seen == [(np.dtype(np.float16), True)] * 2
    assert x.grad is not None
    assert x.grad.dtype == np.float32


def test_without_recording_the_function_is_just_called() -> None:
    function = Counted(lambda x: x.exp())
    with oplib.no_grad():
        assert not recompute(function, leaf(1.0)).requires_grad
    assert not recompute(function, tensor(1.0)).requires_grad
    assert function.runs == 2


def test_intermediate_values_are_not_kept_and_freed_during_backward() -> None:
    x = leaf(*np.linspace(0, 1, 50))
    made: list[weakref.ref[Any]] = []
    most = 0

    def function(x: Tensor) -> Tensor:
        for _ in range(10):
            x = x.sin()
            made.append(weakref.ref(x.array))
        return x.sum()

    def count(_: Tensor) -> None:
        nonlocal most
        most = max(most, sum(array() is not None for array in made))

    with no_collector():
        y = recompute(function, x)
        assert sum(array() is not None for array in made) == 0
        x.register_hook(count)
        y.backward()
        assert most <= 1
        assert sum(array() is not None for array in made) == 0


def test_a_dropped_graph_frees_the_inputs_without_the_collector() -> None:
    with no_collector():
        x = tensor(1.0, 2.0) * 1
        array = weakref.ref(x.array)
        w = leaf(1.0, 2.0)
        y = recompute(lambda x: (x * w).exp().sum(), x)
        del x
        assert array() is not None
        del y
        assert array() is None


def test_an_input_written_before_backward_raises() -> None:
    x = leaf(0.5, 1.5)
    h = x * 1
    y = recompute(lambda h: (h * h).exp().sum(), h)
    h.add_(1.0)
    with pytest.raises(AutogradError, match=r"recompute\(.*an argument was saved .* version 0"):
        y.backward()


def test_a_captured_tensor_written_before_backward_raises() -> None:
    x, w = leaf(0.5, 1.5), tensor(1.0, 2.0)
    y = recompute(lambda x: (x * (w * 2)).exp().sum(), x)
    w.add_(1.0)
    with pytest.raises(AutogradError, match="returns another value as output 0"):
        y.backward()


def test_a_function_that_writes_to_an_argument_is_refused() -> None:
    buffer, w = tensor(0.5, 1.5), leaf(1.0, 2.0)
    with pytest.raises(AutogradError, match=r"wrote to one of its arguments, last by std::add_"):
        recompute(lambda buffer: buffer.add_(1.0) * w, buffer)


def test_a_value_overwritten_inside_the_function_is_a_version_error() -> None:
    x = leaf(0.5, 1.5)
    y = recompute(lambda x: (x * x).exp().mul_(2.0).sum(), x)
    with pytest.raises(AutogradError, match=r"intermediate value .* last by std::mul_"):
        y.backward()


def runs_differently(number: int) -> Callable[[Tensor], Any]:
    """Return a function that computes something else at every run, in one of several ways."""
    runs = [0]

    def function(x: Tensor) -> Any:
        runs[0] += 1
        n = runs[0]
        ways: list[Callable[[], Any]] = [
            lambda: (x * oplib.ones(n, 2)).exp().sum(),
            lambda: x.exp() if n > 1 else x.exp().exp(),
            lambda: [x.exp()] * n,
            lambda: x.exp() * n,
            lambda: x.exp().cast(np.float32 if n > 1 else np.float64),
        ]
        return ways[number]()

    return function


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (0, r"saves f64\[2, 2\] as value 0"),
        (1, "saves 1 tensors, not 2"),
        (2, "returns 2 tensors, not 1"),
        (3, "returns another value as output 0"),
        (4, "returns another value as output 0"),
    ],
)
def test_a_second_run_that_differs_raises(number: int, message: str) -> None:
    result = recompute(runs_differently(number), leaf(0.5, 1.5))
    with pytest.raises(AutogradError, match=message):
        backward(result if isinstance(result, list) else [result])


def test_an_exception_of_the_second_run_keeps_its_type_and_restores_random_state() -> None:
    x = leaf(0.5, 1.5)
    runs = [0]

    def fails(x: Tensor) -> Tensor:
        runs[0] += 1
        np.random.random()
        if runs[0] > 1:
            raise KeyError("gone")
        return x.exp().sum()

    y = recompute(fails, x)
    state = np.random.get_state()[2]
    with pytest.raises(KeyError):
        y.backward()
    assert np.random.get_state()[2] == state
    assert oplib.is_grad_enabled()


def test_a_function_may_differentiate_inside() -> None:
    x = leaf(0.5, 1.5)

    def function(x: Tensor) -> Tensor:
        (force,) = oplib.grad((x * x * x).sum(), x, create_graph=True)
        assert force is not None
        return (force * force).sum()

    y = recompute(function, x)
    assert_values(oplib.grad(y, x)[0], 36 * x.numpy() ** 3)


def test_inputs_go_through_the_hooks_outside_and_intermediates_do_not() -> None:
    packed: list[Any] = []

    def pack(tensor: Tensor) -> Any:
        packed.append(tensor.shape)
        return tensor.numpy().copy()

    x = leaf(0.5, 1.5)
    with saved_tensors_hooks(pack, oplib.tensor):
        y = recompute(lambda x: (x.reshape([2, 1]).exp() * 2).sin().sum(), x)
    assert packed == [(2,)]
    y.backward()
    e = np.exp(x.detach().numpy())
    assert_values(x.grad, np.cos(2 * e) * 2 * e)


def test_threads_may_run_one_region_at_once() -> None:
    x = leaf(*np.linspace(0, 1, 20))
    y = recompute(lambda x: ((x * x).exp() * x.sin()).sum(), x)
    (expected,) = oplib.grad(y, x, retain_graph=True)
    assert expected is not None
    found: list[Any] = []

    def run() -> None:
        found.extend(oplib.grad(y, x, retain_graph=True) for _ in range(20))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for (got,) in found:
        assert_values(got, expected.numpy())


def test_a_captured_program_computes_again_in_its_backward() -> None:
    def function(x: Tensor) -> Any:
        return oplib.grad(recompute(lambda x: (x * x).exp().sum(), x), x)

    x = leaf(0.5, 1.5)
    program = oplib.capture(function, x)
    assert str(program.graph).count("std.exp") == 2
    assert_values(program(x)[0], function(x)[0].numpy())


@pytest.mark.parametrize("wrong", [None, 3, leaf(1.0)])
def test_only_a_function_is_recomputed(wrong: Any) -> None:
    with pytest.raises(oplib.ArgumentError, match="recompute takes a function"):
        recompute(wrong, leaf(1.0))


def run_program(steps: list[Any], *inputs: Tensor) -> Tensor:
    """Return the loss of a random program on copies of its inputs; refused steps are left out."""
    outcome = Outcome(oplib_side(), [])
    outcome.pool = [x * 1.1 for x in inputs]
    for step in steps:
        outcome.perform(step)
    return loss_of(outcome.pool) + (outcome.pool[0] * 0.1).sum()


@settings(max_examples=60, deadline=None)
@given(programs([*UNARY, *BINARY, *VIEWS, *WRITES]))
def test_random_programs_have_their_gradients_of_both_orders(program: Any) -> None:
    leaves, steps = program
    inputs = Outcome(oplib_side(), leaves).leaves
    tracked = [x for x in inputs if x.requires_grad]

    def derivatives(loss: Tensor) -> list[Any]:
        first = oplib.grad(loss, tracked, create_graph=True, allow_unused=True)
        penalty = sum(((g * g).sum() for g in first if g is not None), start=loss)
        return [*first, *oplib.grad(penalty, tracked, allow_unused=True)]

    try:
        expected = derivatives(run_program(steps, *inputs))
    except AutogradError as error:
        with pytest.raises(AutogradError, match=re.escape(str(error).split(":")[0]) + "|version"):
            derivatives(recompute(run_program, steps, *inputs))
        return
    for got, gradient in zip(
        derivatives(recompute(run_program, steps, *inputs)), expected, strict=True
    ):
        assert (got is None) == (gradient is None)
        if got is not None:
            np.testing.assert_array_equal(got.numpy(), gradient.numpy())
