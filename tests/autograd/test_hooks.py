"""Tensor hooks, node hooks, accumulation hooks, final hooks, retain_grads."""

from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib import ArgumentError, AutogradError, Library, _state
from oplib.autograd import register_final_hook
from tests.autograd.helpers import assert_values, leaf, tensor


def double(grad):
    return grad * 2


# ---------------------------------------------------------------------- tensor hooks


def test_a_hook_on_an_interior_tensor_scales_its_ancestors_once_and_no_sibling():
    a, c = leaf(1.0), leaf(1.0)
    b = a * 3
    b.register_hook(double)
    (b * 5 + c * 7).backward()
    assert_values(a.grad, [30.0])
    assert_values(c.grad, [7.0])


@pytest.mark.parametrize("make", [lambda t: t, lambda t: t * 1], ids=["leaf", "interior"])
def test_with_two_consumers_a_hook_is_called_once_on_the_sum(make):
    x = leaf(1.0)
    y = make(x)
    seen = []
    y.register_hook(lambda g: seen.append(float(g)))
    (y * 2 + y * 3).backward()
    assert seen == [5.0]


def test_hooks_on_a_tensor_and_its_ancestor_scale_what_flows_below_each():
    x = leaf(1.0)
    b = x * 1
    a = b * 1
    a.register_hook(double)
    b.register_hook(lambda g: g * 5)
    a.backward()
    assert_values(x.grad, [10.0])


@pytest.mark.parametrize("removed", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_three_doubling_hooks_give_eight_and_removed_ones_give_nothing(removed):
    x = leaf(1.0)
    y = x * 1
    handles = [y.register_hook(double) for _ in range(3)]
    for i in removed:
        assert handles[i].remove() is True
        assert handles[i].remove() is False
    y.backward()
    assert_values(x.grad, [2.0 ** (3 - len(removed))])


def test_hooks_run_in_order_of_registration_and_each_sees_the_result_before():
    x = leaf(1.0)
    seen = []
    for factor in (2, 3, 5):
        x.register_hook(lambda g, factor=factor: (seen.append(float(g)), g * factor)[1])
    (x * 1).backward()
    assert seen == [1.0, 2.0, 6.0]
    assert_values(x.grad, [30.0])


@pytest.mark.parametrize("value", [[1.0], 2.0, tensor(1.0, 2.0), np.ones(1)])
def test_a_hook_that_returns_something_else_than_a_fitting_tensor_raises(value):
    x = leaf(1.0)
    x.register_hook(lambda g: value)
    with pytest.raises(AutogradError, match="a hook must return None or a Tensor of shape"):
        (x * 1).backward()


def test_what_a_hook_returns_is_cast_to_the_dtype_of_the_tensor():
    x = leaf(1.0, dtype="float32")
    x.register_hook(lambda g: tensor(7.0))
    (x * 1).backward()
    assert x.grad.dtype == np.float32
    assert_values(x.grad, [7.0])


def test_removal_during_a_run_counts_if_the_node_has_not_started():
    x = leaf(1.0)
    handle = x.register_hook(double)
    y = x * 1
    y.register_hook(lambda g: (handle.remove(), None)[1])
    y.backward()
    assert_values(x.grad, [1.0])


def test_addition_during_a_run_counts_if_the_node_has_not_started():
    x = leaf(1.0)
    y = x * 1
    y.register_hook(lambda g: (x.register_hook(double), None)[1])
    y.backward()
    assert_values(x.grad, [2.0])


def test_a_hook_on_a_leaf_changes_that_leaf_only():
    x, w = leaf(2.0), leaf(3.0)
    x.register_hook(double)
    (x * w).backward()
    assert_values(x.grad, [6.0])
    assert_values(w.grad, [2.0])


@pytest.mark.parametrize("make", [lambda t: t, lambda t: t * 1], ids=["leaf", "interior"])
def test_grad_gives_gradients_after_hooks(make):
    x = make(leaf(1.0))
    x.register_hook(double)
    assert_values(oplib.grad(x * 3, x)[0], [6.0])


@pytest.mark.parametrize("create_graph", [True, False])
def test_the_grad_mode_in_a_hook_is_create_graph(create_graph):
    x = leaf(2.0)
    seen = []
    y = x * x
    y.register_hook(lambda g: seen.append(oplib.is_grad_enabled()))
    with oplib.set_grad_enabled(not create_graph):
        y.backward(create_graph=create_graph)
    assert seen == [create_graph]


def test_operations_of_a_hook_are_differentiated_under_create_graph():
    x = leaf(2.0)
    y = x * x * x
    x.register_hook(lambda g: g * g)
    (g,) = oplib.grad(y, x, create_graph=True)
    assert_values(g, [144.0])
    x2 = leaf(2.0)
    (g2,) = oplib.grad(x2 * x2 * x2, x2, create_graph=True)
    (h2,) = oplib.grad(g2 * g2, x2)
    assert_values(oplib.grad(g, x)[0], h2.numpy() ** 2)  # the leaf's hook runs here too


def test_register_hook_needs_a_tensor_that_requires_grad_and_a_callable():
    with pytest.raises(AutogradError, match="requires grad"):
        tensor(1.0).register_hook(double)
    with pytest.raises(ArgumentError, match="callable"):
        leaf(1.0).register_hook(3)


def test_a_hook_stays_with_the_value_it_was_registered_on():
    x = leaf(3.0)
    y = x * 1
    seen = {}
    y.register_hook(lambda g: seen.update(old=float(g)))
    y.mul_(5)
    y.register_hook(lambda g: seen.update(new=float(g)))
    (y * 2).backward()
    assert seen == {"old": 10.0, "new": 2.0}


def test_hooks_fire_after_their_handle_is_gone_except_accumulation_hooks():
    fired = []
    x, root = leaf(1.0), None
    y = x * 1
    x.register_hook(lambda g: fired.append("leaf"))
    x.register_post_accumulate_grad_hook(lambda leaf: fired.append("accumulated"))
    y.register_hook(lambda g: fired.append("interior"))
    root = y * 2
    del x, y
    root.backward()
    assert fired == ["interior", "leaf"]


def test_a_hook_on_an_unused_output_is_not_called():
    x = leaf(1.0, 2.0)
    a, b = x.unbind(0)
    a.register_hook(lambda g: 1 / 0)
    b.backward()
    assert_values(x.grad, [0.0, 1.0])


def test_a_hook_exception_keeps_its_type_and_the_engine_works_afterwards():
    x = leaf(1.0)
    y = x * 2
    handle = y.register_hook(lambda g: {}["hook"])
    with pytest.raises(KeyError) as caught:
        y.backward(retain_graph=True)
    assert any("GradNode_std::mul" in note for note in caught.value.__notes__)
    handle.remove()
    y.backward()
    assert_values(x.grad, [2.0])


def test_writing_to_what_a_hook_returned_changes_no_grad():
    x, kept = leaf(1.0, 2.0), []

    def hook(g):
        kept.append(g * 3)
        return kept[0]

    x.register_hook(hook)
    (x * 1).sum().backward()
    kept[0].mul_(100)
    assert_values(x.grad, [3.0, 3.0])


def test_a_gradient_kept_by_a_hook_never_changes():
    x, kept = leaf(1.0), []
    y = x * 1
    y.register_hook(kept.append)
    z = y + y
    for _ in range(3):
        z.backward(retain_graph=True)
        assert [float(g) for g in kept] == [2.0] * len(kept)
    x.grad.mul_(50)
    assert [float(g) for g in kept] == [2.0] * 3


def test_a_hook_that_writes_to_its_gradient_raises():
    x = leaf(1.0)
    y = x * 1
    y.register_hook(lambda g: g.mul_(2))
    with pytest.raises(AutogradError, match="wrote to the gradient"):
        (y + y * 2).backward()


def test_a_gradient_written_to_while_it_waits_makes_the_run_raise():
    a, b = leaf(1.0), leaf(1.0)
    p, q = a * 1, b * 1
    kept = []
    p.register_hook(lambda g: kept.append(g))
    a.register_hook(lambda g: (kept[0].mul_(100), None)[1])
    with pytest.raises(AutogradError, match="written to in place"):
        (p + q).backward()  # both arguments of + get the same gradient; q's still waits


# ---------------------------------------------------------------------- node hooks


def test_hooks_of_a_node_replace_what_comes_in_and_what_goes_out():
    x, w = leaf(2.0), leaf(3.0)
    y = x * w
    node = y.grad_fn
    pre = node.register_prehook(lambda grads_in: (grads_in[0] * 10,))
    post = node.register_hook(lambda grads_out, grads_in: (grads_out[0], grads_in[0]))
    y.backward(retain_graph=True)
    assert_values(x.grad, [30.0])
    assert_values(w.grad, [10.0])
    assert pre.remove()
    assert post.remove()
    x.clear_grad()
    y.backward()
    assert_values(x.grad, [3.0])


@pytest.mark.parametrize("register", ["register_prehook", "register_hook"])
@pytest.mark.parametrize("value", [(), (1, 2, 3, 4), 5])
def test_a_node_hook_that_returns_another_number_raises(register, value):
    y = leaf(2.0) * leaf(3.0)
    getattr(y.grad_fn, register)(lambda *grads: value)
    with pytest.raises(AutogradError, match="must return None or a tuple of"):
        y.backward()


@pytest.mark.parametrize("register", ["register_prehook", "register_hook"])
def test_a_node_hook_must_be_callable(register):
    y = leaf(2.0) * 1
    with pytest.raises(ArgumentError, match="must be callable, got 3"):
        getattr(y.grad_fn, register)(3)
    y.backward()


# ---------------------------------------------------------------------- accumulation hooks


def test_an_accumulation_hook_runs_after_grad_was_written_in_every_backward_only():
    x = leaf(1.0)
    seen = []
    handle = x.register_post_accumulate_grad_hook(lambda leaf: seen.append(float(leaf.grad)))
    for _ in range(2):
        (x * 3).backward()
    oplib.grad(x * 3, x)
    assert seen == [3.0, 6.0]
    assert handle.remove() is True
    (x * 3).backward()
    assert len(seen) == 2


def test_an_accumulation_hook_needs_a_leaf_that_requires_grad():
    with pytest.raises(AutogradError, match="leaf"):
        (leaf(1.0) * 1).register_post_accumulate_grad_hook(print)
    with pytest.raises(AutogradError, match="stopped"):
        tensor(1.0).register_post_accumulate_grad_hook(print)


# ---------------------------------------------------------------------- final hooks


def test_a_final_hook_registered_inside_a_hook_runs_at_the_end_of_that_run():
    x, order = leaf(1.0), []
    y = x * 1

    def hook(g):
        register_final_hook(lambda: order.append(float(x.grad)))

    y.register_hook(hook)
    y.backward(retain_graph=True)
    assert order == [1.0]
    y.backward()
    assert order == [1.0, 2.0]


def test_a_final_hook_of_a_nested_run_runs_at_the_end_of_the_inner_run():
    x, order = leaf(1.0), []
    y = x * 1

    def hook(g):
        w = leaf(2.0)
        with oplib.enable_grad():
            inner = w * 1

        def inner_hook(g):
            register_final_hook(lambda: order.append("inner"))

        inner.register_hook(inner_hook)
        inner.backward()
        order.append("hook")

    y.register_hook(hook)
    y.backward()
    assert order == ["inner", "hook"]


def test_a_final_hook_registered_outside_waits_for_the_next_run_and_is_forgotten():
    x, calls = leaf(1.0), []
    with _state.enter(_state.current()):
        register_final_hook(lambda: calls.append(float(x.grad)))
        assert calls == []
        (x * 2).backward()
        assert calls == [2.0]
        (x * 2).backward()
        assert calls == [2.0]


def test_a_final_hook_that_waits_runs_after_its_run_and_not_after_one_inside():
    x, order = leaf(1.0), []
    y = x * 1
    inner = leaf(2.0) * 1
    y.register_hook(lambda g: inner.backward(retain_graph=True))
    with _state.enter(_state.current()):
        register_final_hook(lambda: order.append(x.grad is not None))
        y.backward()
    assert order == [True]


def test_a_final_hook_may_be_removed_before_it_runs():
    x, calls = leaf(1.0), []
    with _state.enter(_state.current()):
        handle = register_final_hook(lambda: calls.append(1))
        assert (handle.remove(), handle.remove()) == (True, False)
        handle = register_final_hook(lambda: calls.append(2))
        (x * 2).backward()
    assert calls == [2]
    assert not handle.remove()
    with pytest.raises(ArgumentError, match="must be callable"):
        register_final_hook(None)


def test_a_final_hook_is_dropped_if_the_run_fails():
    x, calls = leaf(1.0), []
    y = x * 1

    def hook(g):
        register_final_hook(lambda: calls.append(1))
        raise KeyError("hook")

    handle = y.register_hook(hook)
    with pytest.raises(KeyError):
        y.backward(retain_graph=True)
    handle.remove()
    y.backward()
    assert calls == []


# ---------------------------------------------------------------------- retain_grads


def test_retain_grads_is_nothing_on_a_leaf_and_an_error_on_a_stopped_tensor():
    x = leaf(1.0)
    x.retain_grads()
    (x * 2).backward()
    assert_values(x.grad, [2.0])
    with pytest.raises(AutogradError, match="stopped"):
        tensor(1.0).retain_grads()


@pytest.mark.parametrize("retain_first", [True, False])
def test_retain_grads_stores_the_value_after_hooks_and_accumulates_over_runs(retain_first):
    x = leaf(1.0)
    y = x * 1
    if retain_first:
        y.retain_grads()
    y.register_hook(double)
    if not retain_first:
        y.retain_grads()
    z = y * 3
    z.backward(retain_graph=True)
    assert_values(y.grad, [6.0])
    z.backward()
    assert_values(y.grad, [12.0])


def test_retain_grads_follows_the_handle_through_a_write():
    x = leaf(3.0)
    y = x * 1
    y.retain_grads()
    y.mul_(5)
    (y * 2).backward()
    assert_values(y.grad, [2.0])


def test_retain_grads_of_a_view_follows_it_through_a_write_to_its_base():
    x = leaf(1.0, 2.0)
    base = x * 1
    view = base[0:1]
    view.retain_grads()
    base.mul_(5)
    (view * 7).backward()
    assert_values(view.grad, [7.0])


def test_retained_gradients_are_copies():
    x = leaf(1.0)
    y = x * 1
    y.retain_grads()
    kept = []
    y.register_hook(kept.append)
    (y * 2).backward()
    y.grad.mul_(100)
    assert_values(kept[0], [2.0])
    assert_values(x.grad, [2.0])


def test_clear_grad_of_a_retaining_tensor_starts_anew():
    x = leaf(1.0)
    y = x * 1
    y.retain_grads()
    z = y * 2
    z.backward(retain_graph=True)
    y.clear_grad()
    assert y.grad is None
    z.backward()
    assert_values(y.grad, [2.0])


def test_hooks_of_a_multi_output_operator_go_by_output():
    with Library("hooks_two", "DEF") as lib:
        op = lib.define("f(Tensor x) -> (Tensor, Tensor)").op
        op.register_kernel("cpu", lambda x: (x * 2, x * 3))
        op.register_vjp(x=lambda grad_out0, grad_out1: grad_out0 * 2 + grad_out1 * 3)
        x = leaf(1.0)
        a, b = op(x)
        a.register_hook(lambda g: g * 10)
        b.register_hook(lambda g: g * 100)
        b.retain_grads()
        (a + b).backward()
        assert_values(x.grad, [320.0])
        assert_values(b.grad, [100.0])
