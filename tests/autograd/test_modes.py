"""Grad modes, and switching recording on and off for one tensor."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import oplib
from oplib import (
    ArgumentError,
    AutogradError,
    enable_grad,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from tests.autograd.helpers import assert_values, leaf, tensor

MODES = [
    (no_grad, False),
    (enable_grad, True),
    (lambda: set_grad_enabled(False), False),
    (lambda: set_grad_enabled(True), True),
]


@pytest.mark.parametrize(("mode", "inside"), MODES)
@pytest.mark.parametrize("outside", [True, False])
def test_a_mode_holds_inside_its_block_and_is_restored(mode, inside, outside):
    with set_grad_enabled(outside):
        with mode():
            assert is_grad_enabled() is inside
        assert is_grad_enabled() is outside
    assert is_grad_enabled()


@pytest.mark.parametrize(("mode", "inside"), MODES)
def test_a_mode_is_restored_after_an_exception(mode, inside):
    def fail():
        with mode():
            assert is_grad_enabled() is inside
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert is_grad_enabled()


def test_modes_nest_and_one_object_may_be_entered_again():
    mode = no_grad()
    with mode:
        with enable_grad():
            with mode:
                assert not is_grad_enabled()
            assert is_grad_enabled()
        assert not is_grad_enabled()
    assert is_grad_enabled()


@pytest.mark.parametrize("decorate", [no_grad, no_grad(), lambda f: set_grad_enabled(False)(f)])
def test_a_mode_decorates_with_and_without_parentheses(decorate):
    @decorate
    def function(a, *, b=2):
        """Doc."""
        return is_grad_enabled(), a, b

    assert function(1, b=3) == (False, 1, 3)
    assert is_grad_enabled()
    assert (function.__name__, function.__doc__) == ("function", "Doc.")


def test_a_decorated_function_restores_the_mode_after_an_exception():
    @no_grad
    def function():
        raise KeyError

    with pytest.raises(KeyError):
        function()
    assert is_grad_enabled()


@pytest.mark.parametrize("mode", [no_grad, no_grad()])
def test_a_decorated_generator_has_the_mode_only_while_its_body_runs(mode):
    @mode
    def generate():
        received = []
        for i in range(2):
            assert not is_grad_enabled()
            try:
                received.append((yield i))
            except KeyError:
                received.append("caught")
        assert not is_grad_enabled()
        return received

    generator = generate()
    assert next(generator) == 0
    assert is_grad_enabled()
    assert generator.throw(KeyError()) == 1
    assert is_grad_enabled()
    with pytest.raises(StopIteration) as stop:
        generator.send("sent")
    assert stop.value.value == ["caught", "sent"]
    assert is_grad_enabled()


def test_closing_a_decorated_generator_runs_its_finally_in_the_mode():
    seen = []

    @no_grad
    def generate():
        try:
            yield 1
        finally:
            seen.append(is_grad_enabled())

    generator = generate()
    next(generator)
    generator.close()
    assert seen == [False]


def test_a_decorated_coroutine_has_the_mode_and_leaves_other_tasks_alone():
    @no_grad
    async def inside():
        assert not is_grad_enabled()
        await asyncio.sleep(0)
        assert not is_grad_enabled()
        return 5

    async def beside():
        for _ in range(4):
            assert is_grad_enabled()
            await asyncio.sleep(0)

    async def main():
        return (await asyncio.gather(inside(), beside(), inside()))[0]

    assert asyncio.run(main()) == 5


def test_a_decorated_async_generator_has_the_mode_only_while_its_body_runs():
    @no_grad
    async def generate():
        for i in range(2):
            assert not is_grad_enabled()
            yield i
            assert not is_grad_enabled()

    async def main():
        seen = []
        async for i in generate():
            assert is_grad_enabled()
            seen.append(i)
        return seen

    assert asyncio.run(main()) == [0, 1]


@pytest.mark.parametrize("mode", [oplib.no_grad, oplib.enable_grad, oplib.set_grad_enabled])
def test_a_mode_decorates_functions_only(mode):
    with pytest.raises(ArgumentError, match="a grad mode decorates a function, got 3"):
        mode(True)(3) if mode is oplib.set_grad_enabled else mode(3)


def test_set_grad_enabled_acts_at_once_as_a_statement():
    set_grad_enabled(False)
    assert not is_grad_enabled()
    set_grad_enabled(True)
    assert is_grad_enabled()


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_set_grad_enabled_takes_a_bool(value):
    with pytest.raises(ArgumentError, match="bool"):
        set_grad_enabled(value)
    assert is_grad_enabled()


def test_a_new_thread_starts_with_recording_on_and_leaks_nothing():
    seen = []

    def run():
        seen.append(is_grad_enabled())
        set_grad_enabled(False)

    with no_grad():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert not is_grad_enabled()
    assert seen == [True]
    assert is_grad_enabled()


def test_copy_state_carries_the_mode_to_another_thread():
    seen = []
    with no_grad():
        context = oplib.copy_state()
    thread = threading.Thread(target=context.run, args=(lambda: seen.append(is_grad_enabled()),))
    thread.start()
    thread.join()
    assert seen == [False]


def test_backward_works_under_no_grad_and_create_graph_records_there():
    x = leaf(3.0)
    y = x * x * x
    with no_grad():
        y.backward(retain_graph=True)
        (g,) = oplib.grad(y, x, create_graph=True)
    assert_values(x.grad, [27.0])
    assert_values(oplib.grad(g, x)[0], [18.0])


def test_nothing_is_recorded_under_no_grad():
    x = leaf(1.0)
    with no_grad():
        y = x * 2
    assert y.stop_gradient
    assert y.is_leaf


# ---------------------------------------------------------------------- one tensor


def test_toggling_a_leaf_after_use_changes_no_contribution():
    x, w = leaf(2.0), tensor(3.0)
    y = x * w
    x.stop_gradient = True
    w.stop_gradient = False
    y.backward()
    assert_values(x.grad, [3.0])
    assert w.grad is None


def test_stop_gradient_on_a_non_leaf_blocks_new_recording_and_can_be_undone():
    x = leaf(2.0)
    y = x * 3
    node = y.grad_fn
    y.stop_gradient = True
    assert y.grad_fn is node
    assert not y.is_leaf
    assert (y * 2).stop_gradient
    y.stop_gradient = False
    (y * 2).backward()
    assert_values(x.grad, [6.0])


@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8"])
def test_only_float_and_complex_tensors_can_require_grad(dtype):
    x = tensor(1, dtype=dtype)
    with pytest.raises(AutogradError, match="cast it first"):
        x.requires_grad_()
    with pytest.raises(AutogradError, match="cast it first"):
        x.stop_gradient = False
    x.stop_gradient = True
    assert x.stop_gradient


def test_casting_to_an_integer_stops_the_gradient():
    assert leaf(1.0).cast("int64").stop_gradient
    assert leaf(1.0).cast("complex128").requires_grad


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_requires_grad_takes_a_bool(value):
    with pytest.raises(ArgumentError, match="bool"):
        tensor(1.0).requires_grad = value


def test_leaves_have_no_grad_fn_and_detach_starts_anew():
    x = leaf(1.0)
    y = x * 2
    z = y.detach()
    assert (x.is_leaf, y.is_leaf, z.is_leaf) == (True, False, True)
    assert z.stop_gradient
    assert z._storage is y._storage


def test_grad_can_be_replaced_by_a_tensor_like_it_or_none():
    x = leaf(1.0, 2.0)
    x.grad = tensor(5.0, 6.0)
    (x * 1).sum().backward()
    assert_values(x.grad, [6.0, 7.0])
    x.grad = None
    assert x.grad is None
    for value, error in (
        (tensor(1.0), AutogradError),
        (tensor(1.0, 2.0, dtype="float32"), AutogradError),
        (np.ones(2), ArgumentError),
    ):
        with pytest.raises(error, match="grad"):
            x.grad = value


def test_clear_grad_drops_the_gradient_or_zeroes_its_array():
    x = leaf(1.0)
    (x * 2).backward()
    kept = x.grad
    x.clear_grad(set_to_zero=True)
    assert x.grad is kept
    assert_values(kept, [0.0])
    x.clear_grad()
    assert x.grad is None
