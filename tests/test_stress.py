"""Situations in which levels, gradients, views and writes meet, each as one statement."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import AutogradError, CaptureError, DispatchMode, Tensor, prims

Function = Callable[..., Any]


def tensor(*values: float) -> Tensor:
    """Return a float64 tensor."""
    return oplib.tensor(np.array(values, float))


def leaf(*values: float) -> Tensor:
    """Return a float64 tensor that requires grad."""
    return tensor(*values).requires_grad_()


def assert_values(found: Any, *values: float) -> None:
    """Assert the values of a tensor."""
    assert isinstance(found, Tensor)
    np.testing.assert_allclose(found.numpy(), np.array(values).reshape(found.shape))


class Log(DispatchMode):
    """Writes down the names of the operators it sees."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def handle(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.names.append(op.name)
        return op(*args, **kwargs)


@pytest.fixture
def lib() -> Any:
    """A library of operators that live for one test."""
    with oplib.Library("stress", "DEF") as library:
        yield library


# ---------------------------------------------------------------------- gradients


def test_a_gradient_flows_through_two_uses_of_one_tensor() -> None:
    x, y = leaf(1, 2), tensor(3, 4)
    (x * y * x).backward(tensor(1, 1))
    assert_values(x.grad, 6, 16)


def test_a_node_that_saves_its_output_is_freed_without_the_collector() -> None:
    x = leaf(1, 2)
    gc.disable()
    try:
        z = x.exp()
        node = weakref.ref(z.grad_fn)
        del z
        assert node() is None
    finally:
        gc.enable()


def test_an_in_place_product_has_the_gradients_of_both_factors() -> None:
    x, w = leaf(1, 2), leaf(3, 5)
    y = x * 2.0
    y *= w
    y.backward(tensor(1, 1))
    assert_values(x.grad, 6, 10)
    assert_values(w.grad, 2, 4)


def test_a_saved_value_that_was_overwritten_raises_in_backward() -> None:
    y = leaf(1, 2).exp()
    z = y * y
    y *= 2
    with pytest.raises(AutogradError, match="has been written to since"):
        z.backward(tensor(1, 1))


@pytest.mark.parametrize("target", [lambda x: x, lambda x: x[:1]], ids=["leaf", "view"])
def test_writing_to_a_leaf_raises_before_anything_is_written(target: Function) -> None:
    x = leaf(1, 2)
    with pytest.raises(AutogradError, match="leaf that requires grad"):
        target(x).mul_(2.0)
    assert_values(x, 1, 2)


def test_writing_through_a_view_of_a_leaf_made_under_no_grad_raises() -> None:
    x = leaf(1, 2)
    with oplib.no_grad():
        view = x[:1]
    with pytest.raises(AutogradError):
        view.mul_(2.0)
    assert_values(x, 1, 2)


def test_a_view_of_a_view_made_under_no_grad_cannot_be_written_either() -> None:
    x = leaf(1, 2) * 1
    with oplib.no_grad():
        view = x[:1]
    with pytest.raises(AutogradError, match="made under no_grad"):
        view[0:1].mul_(2.0)


def test_requires_grad_set_after_a_view_was_taken_protects_the_view() -> None:
    x = tensor(1, 2)
    view = x[:1]
    x.requires_grad_()
    with pytest.raises(AutogradError):
        view.mul_(2.0)


def test_a_write_through_a_view_gives_its_base_a_new_history() -> None:
    x, w = leaf(1, 2, 3), leaf(10, 20)
    base = x * 1.0
    base[:2].mul_(w)
    (base + tensor(0, 0, 0)).backward(tensor(1, 1, 1))
    assert_values(x.grad, 10, 20, 1)
    assert_values(w.grad, 1, 2)


def test_an_older_sibling_sees_a_write_to_a_base_without_gradient() -> None:
    base, w = tensor(1, 2, 3), leaf(10, 20)
    older, written = base[:1], base[:2]
    written.mul_(w)
    z = older * tensor(1)
    assert z.requires_grad
    z.backward(tensor(1))
    assert_values(w.grad, 1, 0)


def test_views_outlive_the_handle_of_their_base() -> None:
    x, w = leaf(1, 2, 3), leaf(10, 20)
    base = x * 1.0
    upper, written = base[1:], base[:2]
    del base
    written.mul_(w)
    (upper * tensor(1, 1)).backward(tensor(1, 1))
    assert_values(x.grad, 0, 20, 1)


def test_a_composite_operator_is_differentiated_through_its_body(lib: Any) -> None:
    op = lib.define("square(Tensor x) -> Tensor").op
    lib.impl(op, lambda x: x * x, "CompositeImplicitAutograd")
    x = leaf(3)
    op(x).backward(tensor(1))
    assert_values(x.grad, 6)


def test_lists_take_arrays_beside_tensors_and_numbers_stay_numbers() -> None:
    assert_values(oplib.concat([tensor(1), np.ones(1)]), 1, 1)
    assert_values(tensor(2) * 3, 6)


def test_third_derivatives_are_those_of_mathematics() -> None:
    x = leaf(2)
    (g,) = oplib.grad(x * x * x, [x], create_graph=True)
    (h,) = oplib.grad(g, [x], create_graph=True)
    (k,) = oplib.grad(h, [x])
    assert (g.item(), h.item(), k.item()) == (12, 12, 6)


def test_a_second_derivative_goes_through_a_saved_output() -> None:
    x = leaf(2)
    y = x.exp()
    (g,) = oplib.grad(y, [x], create_graph=True)
    (by_output,) = oplib.grad(g, [y], retain_graph=True)
    assert_values(by_output, 1)
    del y
    (h,) = oplib.grad(g, [x])
    np.testing.assert_allclose(h.numpy(), np.exp([2.0]))


def test_stop_gradient_on_a_saved_handle_changes_nothing_that_was_recorded() -> None:
    x = leaf(2)
    y = x * x
    z = y * y
    y.stop_gradient = True
    (g,) = oplib.grad(z, [x], create_graph=True)
    (h,) = oplib.grad(g, [x])
    assert (g.item(), h.item()) == (32, 48)


def test_a_gradient_is_summed_to_the_shape_of_its_input() -> None:
    x, y = leaf(1, 2, 3), oplib.full((2, 3), 2.0).requires_grad_()
    (x * y).backward(oplib.ones(2, 3))
    assert_values(x.grad, 4, 4, 4)
    assert y.grad is not None
    assert y.grad.shape == (2, 3)
    column = oplib.ones(3, 1).requires_grad_()
    (column * oplib.ones(2, 3, 4)).backward(oplib.ones(2, 3, 4))
    assert_values(column.grad, 8, 8, 8)


def test_a_gradient_has_the_dtype_of_its_input() -> None:
    x = oplib.ones(2, dtype="float32").requires_grad_()
    (x * tensor(1, 2)).backward(tensor(1, 1))
    assert x.grad is not None
    assert x.grad.dtype == np.float32
    y = leaf(1, 2)
    (y * oplib.tensor(np.array([1j, 2 + 1j]))).backward(oplib.tensor(np.ones(2, complex)))
    assert y.grad is not None
    assert y.grad.dtype == np.float64
    assert_values(y.grad, 0, 2)


def test_a_gradient_of_the_wrong_shape_raises(lib: Any) -> None:
    bad = lib.define("bad(Tensor x) -> Tensor").op
    bad.register_kernel("cpu", lambda x: x * 1)
    bad.register_vjp(x=lambda grad: tensor(1, 2, 3, 4, 5))
    with pytest.raises(AutogradError, match="wrong shape"):
        bad(leaf(1, 2)).backward(tensor(1, 1))


def test_a_list_argument_gets_a_list_of_gradients(lib: Any) -> None:
    cat = lib.define("cat(Tensor[] xs) -> Tensor").op
    cat.register_kernel("cpu", np.concatenate)
    cat.register_vjp(xs=lambda grad: [grad[0:1], grad[1:3]])
    a, b = leaf(1), leaf(1, 2)
    (cat([a, b]) * tensor(5, 6, 7)).backward(tensor(1, 1, 1))
    assert_values(a.grad, 5)
    assert_values(b.grad, 6, 7)


def test_a_missing_gradient_rule_raises_in_the_backward_that_needs_it(lib: Any) -> None:
    op = lib.define("opaque(Tensor x) -> Tensor").op
    op.register_kernel("cpu", lambda x: x * 1)
    z = op(leaf(1))
    with pytest.raises(AutogradError, match="has no gradient rule"):
        z.backward(tensor(1))


# ---------------------------------------------------------------------- capture


def test_a_program_holds_views_and_writes_as_values() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        z = x * y
        z[:1].mul_(tensor(10))
        return z + y

    program = oplib.capture(f, tensor(1, 2), tensor(3, 4))
    assert_values(program(tensor(5, 6), tensor(7, 8)), 357, 56)


def test_a_program_writes_its_argument_once() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x *= y
        return x + y

    program = oplib.capture(f, tensor(1, 2), tensor(3, 4))
    x = tensor(5, 6)
    assert_values(program(x, tensor(7, 8)), 42, 56)
    assert_values(x, 35, 48)
    assert x.inplace_version == 1


def test_a_tensor_made_inside_is_made_anew_by_each_call() -> None:
    def f(x: Tensor) -> Tensor:
        z = oplib.zeros(2)
        z.copy_(x)
        return z + x

    program = oplib.capture(f, tensor(1, 2))
    assert_values(program(tensor(5, 6)), 10, 12)
    assert_values(program(tensor(1, 1)), 2, 2)


def test_an_array_met_inside_is_a_constant_by_value() -> None:
    array = np.array([10.0, 20.0])
    program = oplib.capture(lambda x: x * array, tensor(1, 2))
    array[:] = 0
    assert_values(program(tensor(5, 6)), 50, 120)


def test_a_gradient_taken_inside_becomes_part_of_the_program() -> None:
    def f(x: Tensor, w: Tensor) -> Any:
        x.requires_grad_()
        y = x * w
        y *= w
        y.backward(oplib.ones(2))
        return x.grad

    program = oplib.capture(f, tensor(1, 2), tensor(3, 4))
    assert_values(program(tensor(5, 6), tensor(7, 8)), 49, 64)


def test_a_captured_tensor_of_an_outer_capture_becomes_a_node_there() -> None:
    def f(x: Tensor) -> Any:
        return oplib.capture(lambda y: y * x, tensor(3, 4))(x * 2.0)

    program = oplib.capture(f, tensor(1, 2))
    assert_values(program(tensor(5, 6)), 50, 72)
    assert "constant" not in str(program)


# ---------------------------------------------------------------------- functionalize


def test_functionalizing_twice_is_functionalizing_once() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        z = x * y
        z[:1].mul_(y[:1])
        return z

    twice = oplib.functionalize(oplib.functionalize(f))
    assert_values(twice(tensor(1, 2), tensor(3, 4)), 9, 8)


def test_a_capture_inside_a_functional_run_keeps_the_level_of_what_it_closes_over() -> None:
    def f(x: Tensor) -> Any:
        return oplib.capture(lambda y: y * x, tensor(3, 4))(tensor(5, 6))

    assert_values(oplib.functionalize(f)(tensor(1, 2)), 5, 12)


def test_a_mode_inside_a_functional_run_does_not_hide_the_gradient() -> None:
    x = leaf(1, 2)

    def f(x: Tensor, y: Tensor) -> Tensor:
        with Log():
            return x * y

    out = oplib.functionalize(f)(x, tensor(3, 4))
    out.backward(tensor(1, 1))
    assert_values(x.grad, 3, 4)


def test_no_grad_inside_a_functional_run_holds_below_it() -> None:
    def f(x: Tensor) -> Tensor:
        with oplib.no_grad():
            return x * x

    assert not oplib.functionalize(f)(leaf(1, 2)).requires_grad


# ---------------------------------------------------------------------- dispatch


def test_an_array_beside_a_meta_tensor_is_a_constant_without_data() -> None:
    assert (oplib.ones(2, device="meta") * np.ones((3, 2))).shape == (3, 2)


def test_a_real_tensor_beside_a_fake_one_raises() -> None:
    with pytest.raises(oplib.FakeTensorError):
        _ = tensor(1) * oplib.ones(1, device="meta")


def test_a_kernel_that_calls_operators_is_seen_once_by_a_mode(lib: Any) -> None:
    op = lib.define("twice(Tensor x) -> Tensor").op
    op.register_kernel("cpu", lambda x: (oplib.from_numpy(x) * 2).numpy())
    with Log() as log:
        assert_values(op(tensor(2, 3)), 4, 6)
    assert log.names == ["twice"]


def test_stacked_modes_each_see_an_in_place_call_once_and_keep_its_gradient() -> None:
    x, w = leaf(1, 2), leaf(3, 5)
    y = x * 1.0
    with Log() as outer, Log() as inner:
        y.mul_(w)
    y.backward(tensor(1, 1))
    assert_values(x.grad, 3, 5)
    assert outer.names == inner.names == ["mul_"]


def test_a_kernel_on_tensors_runs_below_autograd_and_its_own_rule_records(lib: Any) -> None:
    op = lib.define("tensors(Tensor x) -> Tensor").op
    lib.impl(op, lambda x: x * x, "CompositeExplicitAutograd")
    op.register_vjp(x=lambda grad, x: grad * x * 2.0)
    z = op(leaf(3))
    assert z.grad_fn is not None
    assert z.grad_fn.op is op


def test_a_registration_during_a_build_is_not_lost(lib: Any) -> None:
    op = lib.define("race(Tensor x) -> Tensor").op
    op.register_kernel("cpu", lambda x: x + 1)
    building, registered = threading.Event(), threading.Event()
    find = op.find_plan

    def slow_find(keys: int) -> Any:
        plan = find(keys)
        building.set()
        registered.wait(5)
        return plan

    op.find_plan = slow_find
    thread = threading.Thread(target=lambda: op(tensor(1)))
    thread.start()
    building.wait(5)
    op.find_plan = find
    op.register_kernel("cpu", lambda x: x + 100, override=True)
    registered.set()
    thread.join()
    assert_values(op(tensor(1)), 101)


def test_a_dict_in_place_of_a_tensor_is_explained() -> None:
    with pytest.raises(oplib.ArgumentError, match="must be a Tensor, got dict"):
        oplib.ops.std.mul({"a": 1}, tensor(1))


def test_zero_dimensional_results_are_arrays() -> None:
    a = oplib.tensor(2.0)
    assert type((a * a).numpy()) is np.ndarray


@pytest.mark.parametrize("backward", [True, False], ids=["backward", "release only"])
def test_a_long_chain_is_built_run_and_released_without_recursion(backward: bool) -> None:
    x = v = leaf(1)
    y = tensor(1)
    for _ in range(20_000):
        v = v * y
    if backward:
        v.backward(tensor(1))
        assert_values(x.grad, 1)
    del v


# ---------------------------------------------------------------------- nesting


def program_of(x: Tensor, w: Tensor) -> Tensor:
    """Write through views of a temporary and of an argument, and return a view."""
    y = x * (w + 0.0)
    y[0].add_(1.0)
    with oplib.no_grad():
        y[1:].mul_(2.0)
    w[:1].copy_(y[1:])
    return (y + w)[::-1]


def captured(function: Function) -> Function:
    """Return a function that captures and runs the program at each call."""
    return lambda *args: oplib.capture(function, *map(_like, args))(*args)


def _like(x: Tensor) -> Tensor:
    example = x.detach().clone() if not x.requires_grad else x
    return example


def logged(function: Function) -> Function:
    """Return a function that runs inside a mode."""

    def call(*args: Any) -> Any:
        with Log():
            return function(*args)

    return call


def outside_grad(function: Function) -> Function:
    """Return a function that runs under no_grad."""

    def call(*args: Any) -> Any:
        with oplib.no_grad():
            return function(*args)

    return call


WRAPPERS: dict[str, Function] = {
    "functionalize": oplib.functionalize,
    "capture": captured,
    "mode": logged,
}


def observed(function: Function) -> list[Any]:
    """Return results, the written argument and the gradient of a function like `program_of`."""
    x, w = leaf(2, 3), tensor(5, 7)
    result = function(x, w)
    seen = [result.tolist(), result.strides, w.tolist(), w.inplace_version, result.requires_grad]
    if result.requires_grad:
        result.backward(tensor(1, 10))
        assert x.grad is not None
        seen.append(x.grad.tolist())
    return seen


@pytest.mark.parametrize("outer", WRAPPERS)
@pytest.mark.parametrize("inner", WRAPPERS)
def test_levels_nest_in_any_order(outer: str, inner: str) -> None:
    nested = WRAPPERS[outer](WRAPPERS[inner](program_of))
    assert observed(nested) == observed(program_of)


@pytest.mark.parametrize("outer", WRAPPERS)
@pytest.mark.parametrize("inner", WRAPPERS)
def test_no_grad_holds_in_and_around_every_level(outer: str, inner: str) -> None:
    silent = outside_grad(program_of)
    assert observed(WRAPPERS[outer](WRAPPERS[inner](silent))) == observed(silent)
    assert observed(outside_grad(WRAPPERS[outer](WRAPPERS[inner](program_of)))) == observed(silent)
    assert observed(WRAPPERS[outer](outside_grad(WRAPPERS[inner](program_of)))) == observed(silent)


def test_three_levels_nest() -> None:
    nested = oplib.functionalize(captured(oplib.functionalize(captured(program_of))))
    assert observed(nested) == observed(program_of)


def test_a_mode_around_a_capture_does_not_see_what_is_recorded() -> None:
    with Log() as log:
        program = oplib.capture(lambda x: x * 2, tensor(1, 2))
    assert log.names == []
    with Log() as log:
        program(tensor(1, 2))
    assert log.names == ["mul"]


def test_a_mode_inside_a_capture_sees_calls_once() -> None:
    log = Log()

    def f(x: Tensor) -> Tensor:
        with log:
            return x.add_(1.0) * 2

    oplib.capture(f, tensor(1, 2))
    assert log.names == ["add_", "mul"]


def test_a_tensor_of_a_finished_run_is_refused() -> None:
    kept: list[Tensor] = []
    oplib.functionalize(lambda x: kept.append(x * 2))(tensor(1))
    with pytest.raises(CaptureError, match="finished Functionalize"):
        _ = kept[0] * 2


def test_a_gradient_cannot_reach_a_leaf_outside_of_a_run() -> None:
    w = leaf(1, 2)

    def f(x: Tensor) -> None:
        (x * w).sum().backward()

    for run in (oplib.functionalize(f), captured(f)):
        with pytest.raises(AutogradError, match="as an argument"):
            run(leaf(3, 4))
    assert w.grad is None


def test_a_gradient_of_a_deeper_run_cannot_reach_a_leaf_of_an_outer_one() -> None:
    def outer(x: Tensor) -> None:
        oplib.functionalize(lambda y: (y * x).sum().backward())(prims.clone(x.detach()))

    with pytest.raises(AutogradError, match="as an argument"):
        oplib.functionalize(outer)(leaf(3, 4))
