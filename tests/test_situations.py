"""Situations in which levels, families and plans are easily silently wrong, each on the real thing.

They are small on purpose: a handful of operators, most of them defined here, and one claim each.
"""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import (
    AliasError,
    ArgumentError,
    AutogradError,
    DispatchMode,
    Library,
    Tensor,
    capture,
    functionalize,
    grad,
    no_grad,
)
from oplib.autograd import backward

_names = itertools.count()


def leaf(*values: float) -> Tensor:
    return oplib.tensor(list(values), dtype="float64", requires_grad=True)


def constant(*values: float) -> Tensor:
    return oplib.tensor(list(values), dtype="float64")


def values(tensor: Tensor | None) -> list[float]:
    assert tensor is not None
    return tensor.tolist()  # type: ignore[no-any-return]


@contextmanager
def collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture
def lib() -> Iterator[Library]:
    with Library(f"situations_{next(_names)}", "FRAGMENT") as library:
        yield library


class Log(DispatchMode):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def handle(self, op: Any, args: Any, kwargs: Any) -> Any:
        self.seen.append(op.name)
        return op(*args, **kwargs)


# -- gradients of values ---------------------------------------------------------------------------


def test_a_product_used_twice_sums_its_gradients():
    x = leaf(1, 2)
    (x * constant(3, 4) * x).backward()
    assert values(x.grad) == [6, 16]


def test_a_saved_output_makes_no_cycle():
    with collector_off():
        x = leaf(1, 2)
        y = x.exp()
        node = weakref.ref(y.grad_fn)
        del y
        assert node() is None


def test_a_chain_of_in_place_operators_has_the_gradients_of_the_functional_one():
    x, w = leaf(1, 2), leaf(3, 5)
    y = x * 2.0
    y *= w
    y.backward()
    assert values(x.grad) == [6, 10]
    assert values(w.grad) == [2, 4]


def test_a_saved_tensor_written_before_backward_raises():
    x = leaf(1, 2)
    y = x.exp()
    z = y * y
    y *= constant(2, 2)
    with pytest.raises(AutogradError, match="written to since"):
        z.backward()


def test_first_second_and_third_derivatives_of_a_cube():
    x = leaf(2)
    (first,) = grad(x * x * x, x, create_graph=True)
    (second,) = grad(first, x, create_graph=True)
    (third,) = grad(second, x)
    assert [values(t) for t in (first, second, third)] == [[12], [12], [6]]


def test_double_backward_goes_through_a_saved_output_also_after_its_handle_is_gone():
    x = leaf(2)
    y = x.exp()
    (first,) = grad(y, x, create_graph=True)
    del y
    (second,) = grad(first, x)
    assert np.allclose(values(second), np.exp(2.0))


def test_an_output_is_a_target_though_the_node_saved_only_its_array():
    x = leaf(2)
    y = x.exp()
    (first,) = grad(y, x, create_graph=True)
    (by_output,) = grad(first, y)
    assert values(by_output) == [1]


def test_stopping_a_saved_handle_later_does_not_change_the_recorded_history():
    x = leaf(2)
    y = x * x
    z = y * y
    y.stop_gradient = True
    (first,) = grad(z, x, create_graph=True)
    (second,) = grad(first, x)
    assert (values(first), values(second)) == ([32], [48])


def test_a_gradient_is_summed_and_cast_to_what_its_input_is():
    x, y = leaf(1, 2, 3), oplib.full((2, 3), 2.0, requires_grad=True)
    (x * y).backward()
    assert x.grad.shape == (3,)
    assert values(x.grad) == [4, 4, 4]
    column = oplib.ones((3, 1), requires_grad=True)
    (column * oplib.ones((2, 3, 4))).backward()
    assert column.grad.shape == (3, 1)
    assert column.grad.tolist() == [[8], [8], [8]]
    single = oplib.ones(2, dtype="float32", requires_grad=True)
    (single * constant(1, 2)).backward()
    assert single.grad.dtype == np.float32
    real = leaf(1, 2)
    backward((real * oplib.tensor([1j, 2 + 1j])), constant(1, 1).cast("complex128"))
    assert values(real.grad) == [0, 2]


def test_a_gradient_of_a_wrong_shape_raises_with_both_shapes(lib: Library):
    lib.define("bad(Tensor x) -> Tensor")
    lib.impl("bad", lambda x: x * 1.0, "CPU")
    op = oplib.get_op(f"{lib.ns}::bad")
    op.register_vjp(x=lambda grad: oplib.ones(5))
    with pytest.raises(AutogradError, match=r"\[2\](.|\n)*\[5\]"):
        op(leaf(1, 2)).backward()


def test_list_arguments_get_a_gradient_each(lib: Library):
    lib.define("join(Tensor[] xs) -> Tensor")
    lib.impl("join", lambda xs: np.concatenate(xs), "CPU")
    join = oplib.get_op(f"{lib.ns}::join")
    join.register_vjp(xs=lambda grad: [grad[0:1], grad[1:3]])
    a, b = leaf(1), leaf(1, 2)
    (join([a, b]) * constant(5, 6, 7)).backward()
    assert values(a.grad) == [5]
    assert values(b.grad) == [6, 7]


def test_lists_take_arrays_and_scalars_take_integers(lib: Library):
    lib.define("join(Tensor[] xs, float scale) -> Tensor")
    lib.impl("join", lambda xs, scale: np.concatenate(xs) * scale, "CPU")
    join = oplib.get_op(f"{lib.ns}::join")
    assert values(join([constant(1), np.ones(1)], 3)) == [3, 3]


def test_a_missing_rule_raises_in_backward_and_names_the_line_to_write(lib: Library):
    lib.define("plain(Tensor[] xs) -> Tensor")
    lib.impl("plain", lambda xs: np.concatenate(xs), "CPU")
    out = oplib.get_op(f"{lib.ns}::plain")([leaf(1)])
    with pytest.raises(AutogradError, match="register_vjp"):
        out.backward()


def test_a_composite_body_and_an_autograd_kernel_are_differentiated(lib: Library):
    lib.define("square(Tensor x) -> Tensor")
    lib.impl("square", lambda x: x * x)
    x = leaf(3)
    oplib.get_op(f"{lib.ns}::square")(x).backward()
    assert values(x.grad) == [6]


def test_a_kernel_on_tensors_below_autograd_records_its_own_rule_only(lib: Library):
    lib.define("cea(Tensor x) -> Tensor")
    lib.impl("cea", lambda x: x * x, "CompositeExplicitAutograd")
    cea = oplib.get_op(f"{lib.ns}::cea")
    cea.register_vjp(x=lambda grad, x: grad * x * 2.0)
    x = leaf(3)
    z = cea(x)
    assert z.grad_fn.op is cea
    z.backward()
    assert values(x.grad) == [6]


# -- leaves, views and families --------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [lambda x: x.mul_(2.0), lambda x: x[0:1].mul_(2.0)],
    ids=["the leaf", "a view of it"],
)
def test_writing_a_leaf_raises_and_changes_nothing(write: Callable[[Tensor], Any]):
    x = leaf(1, 2)
    with pytest.raises(AutogradError, match="leaf that requires grad"):
        write(x)
    assert values(x) == [1, 2]
    assert x.inplace_version == 0


def test_writing_a_leaf_through_a_view_made_under_no_grad_raises():
    x = leaf(1, 2)
    with no_grad():
        view = x[0:1]
    with pytest.raises(AutogradError):
        view.mul_(2.0)
    assert values(x) == [1, 2]


def test_a_view_knows_that_its_base_began_to_require_grad():
    x = constant(1, 2)
    view = x[0:1]
    x.requires_grad_()
    with pytest.raises(AutogradError):
        view.mul_(2.0)


def test_a_write_through_a_view_rebases_the_base():
    x, w = leaf(1, 2, 3), leaf(10, 20)
    base = x * 1.0
    view = base[0:2]
    view *= w
    assert base.requires_grad
    (base + 0.0).backward()
    assert values(x.grad) == [10, 20, 1]
    assert values(w.grad) == [1, 2]


def test_an_older_sibling_view_sees_a_write_to_a_base_without_gradient():
    base, w = constant(1, 2, 3), leaf(10, 20)
    sibling, view = base[0:1], base[0:2]
    view *= w
    z = sibling * 1.0
    assert z.requires_grad
    z.backward()
    assert values(w.grad) == [1, 0]


def test_the_family_outlives_the_base_handle():
    x, w = leaf(1, 2, 3), leaf(10, 20)
    base = x * 1.0
    sibling, view = base[1:3], base[0:2]
    del base
    view *= w
    (sibling * 1.0).backward()
    assert values(x.grad) == [0, 20, 1]


# -- graphs ----------------------------------------------------------------------------------------


def test_a_capture_makes_views_and_writes_pure():
    def f(x: Tensor, y: Tensor) -> Tensor:
        z = x * y
        z[0:1].mul_(10.0)
        return z + y

    program = capture(f, constant(1, 2), constant(3, 4))
    assert not any(node.op.schema.is_mutable for node in program.graph.calls)
    assert values(program(constant(5, 6), constant(7, 8))) == [357, 56]


def test_a_capture_writes_mutated_inputs_back():
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(y)
        return x + y

    program = capture(f, constant(1, 2), constant(3, 4))
    x = constant(5, 6)
    assert values(program(x, constant(7, 8))) == [42, 56]
    assert values(x) == [35, 48]
    assert x.inplace_version == 1


def test_a_factory_inside_a_capture_starts_fresh_in_every_run():
    def f(x: Tensor) -> Tensor:
        z = oplib.zeros(2)
        z += x
        return z

    program = capture(f, constant(1, 2))
    assert values(program(constant(5, 6))) == [5, 6]
    assert values(program(constant(5, 6))) == [5, 6]


def test_an_array_inside_a_capture_is_a_constant_by_value():
    array = np.array([10.0, 20.0])
    program = capture(lambda x: x * array, constant(1, 2))
    array[:] = 0
    assert values(program(constant(5, 6))) == [50, 120]


def test_a_capture_contains_the_backward_run_inside_it():
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x * w
        y *= w
        (result,) = grad(y, x)
        return result

    x, w = leaf(1, 2), constant(3, 4)
    program = capture(f, x, w)
    assert values(program(leaf(5, 6), constant(7, 8))) == [49, 64]


def test_functionalize_twice_gives_the_same_as_once_and_as_never():
    def f(x: Tensor, y: Tensor) -> Tensor:
        z = x * y
        z[0:1].mul_(y[0:1])
        return z

    x, y = constant(1, 2), constant(3, 4)
    assert values(f(x, y)) == values(functionalize(f)(x, y)) == [9, 8]
    assert values(functionalize(functionalize(f))(x, y)) == [9, 8]


def test_a_capture_inside_functionalize_keeps_a_constant_on_its_level():
    def f(x: Tensor) -> Tensor:
        return capture(lambda y: y * x, constant(3, 4))(constant(5, 6))

    assert values(functionalize(f)(constant(1, 2))) == [5, 12]


def test_a_capture_inside_a_capture_is_not_a_constant_of_the_outer_one():
    def f(x: Tensor) -> Tensor:
        return capture(lambda y: y * x, constant(3, 4))(x * 2.0)

    program = capture(f, constant(1, 2))
    assert not program.graph.constants
    assert values(program(constant(5, 6))) == [50, 72]


def test_functionalize_inside_a_capture_and_back():
    def inner(y: Tensor) -> Tensor:
        y = y * 1.0
        y[0].add_(1.0)
        return y

    program = capture(lambda x: functionalize(inner)(x), constant(1, 2))
    assert values(program(constant(5, 6))) == [6, 6]
    assert values(functionalize(lambda x: capture(inner, x)(x))(constant(5, 6))) == [6, 6]


def test_an_array_beside_a_tensor_without_data_becomes_one():
    with oplib.FakeTensorMode() as mode:
        fake = mode.from_tensor(constant(1, 2))
        assert (fake * np.ones((3, 2))).shape == (3, 2)


# -- modes, levels and autograd --------------------------------------------------------------------


def test_two_modes_see_an_in_place_call_once_each_and_gradients_flow():
    x, w = leaf(1, 2), leaf(3, 5)
    y = x * 1.0
    with Log() as outer, Log() as inner:
        y.mul_(w)
    y.backward()
    assert values(x.grad) == [3, 5]
    assert outer.seen == inner.seen == ["mul_"]


def test_a_mode_inside_functionalize_leaves_gradients_alone():
    x = leaf(1, 2)
    log = Log()

    def f(x: Tensor, y: Tensor) -> Tensor:
        with log:
            return x * y

    out = functionalize(f)(x, constant(3, 4))
    out.backward()
    assert values(x.grad) == [3, 4]
    assert log.seen == ["mul"]


def test_a_mode_around_functionalize_and_capture_sees_pure_calls():
    def f(x: Tensor) -> Tensor:
        y = x * 2.0
        y[0].add_(1.0)
        return y

    with Log() as log:
        assert values(functionalize(f)(constant(1, 2))) == [3, 4]
    assert not any(name.endswith("_") for name in log.seen)
    with Log():
        program = capture(f, constant(1, 2))
    assert values(program(constant(5, 6))) == [11, 12]


@pytest.mark.parametrize("wrap", [lambda f: f, functionalize], ids=["eager", "functionalize"])
def test_no_grad_inside_a_level_holds_there(wrap: Callable[[Any], Any]):
    def f(x: Tensor) -> Tensor:
        with no_grad():
            return x * x

    assert not wrap(f)(leaf(1, 2)).requires_grad
    assert not capture(f, leaf(1, 2))(leaf(1, 2)).requires_grad


def test_a_stopped_mode_restores_the_state_after_an_exception():
    with pytest.raises(ZeroDivisionError), no_grad(), Log():
        raise ZeroDivisionError
    assert oplib.is_grad_enabled()
    assert (leaf(1) * 2.0).requires_grad


# -- calls -----------------------------------------------------------------------------------------


def test_a_registration_during_a_slow_plan_build_is_not_lost(lib: Library):
    lib.define("race(Tensor x) -> Tensor")
    lib.impl("race", lambda x: x + 1, "CPU")
    op = oplib.get_op(f"{lib.ns}::race")
    building, finish = threading.Event(), threading.Event()
    real = op.find_plan

    def slow(keys: int) -> Any:
        plans = op._plans
        plan = real(keys)
        building.set()
        finish.wait(5)
        plans[keys] = plan
        return plan

    op.find_plan = slow  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: op(constant(1)))
    thread.start()
    building.wait(5)
    del op.find_plan
    with oplib.override(f"{lib.ns}::race", keep=True):
        oplib.register_kernel(op, "cpu", lambda x: x + 100)
    finish.set()
    thread.join()
    assert values(op(constant(1))) == [101]


def test_a_dict_for_a_tensor_is_an_argument_error():
    with pytest.raises(ArgumentError, match="must be a Tensor, got dict"):
        oplib.mul({"a": 1}, constant(1))


def test_a_zero_dimensional_result_is_an_array():
    a = oplib.tensor(2.0)
    assert type((a * a).numpy()) is np.ndarray


def test_a_kernel_that_returns_its_input_is_refused(lib: Library):
    lib.define("same(Tensor x) -> Tensor")
    lib.impl("same", lambda x: x, "CPU")
    with pytest.raises(AliasError, match="itself"):
        oplib.get_op(f"{lib.ns}::same")(constant(1))


def test_a_kernel_may_call_its_own_operator_and_a_mode_sees_one_call(lib: Library):
    lib.define("halve(Tensor x) -> Tensor")

    def kernel(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if x.size > 1:
            parts = [op(x[: x.size // 2]), op(x[x.size // 2 :])]
            return np.concatenate(parts)
        return x / 2

    lib.impl("halve", kernel, "CPU")
    op = oplib.get_op(f"{lib.ns}::halve")
    with Log() as log:
        assert values(op(constant(2, 4, 6))) == [1, 2, 3]
    assert log.seen == ["halve"]


# -- size ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_backward", [True, False], ids=["backward", "release only"])
def test_a_chain_of_100_000_operators_needs_no_recursion(run_backward: bool):
    x, y = leaf(1), constant(1)
    value = x
    for _ in range(100_000):
        value = value * y
    if run_backward:
        value.backward()
        assert values(x.grad) == [1]
    del value
