"""Writes under autograd: versions, leaves, old values, and views of what was written."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oplib
from oplib import AliasError, AutogradError, Library
from oplib.tensor.methods import IN_PLACE
from tests.autograd.helpers import assert_values, leaf, tensor
from tests.autograd.test_pylayer_state import Double

WRITES = {
    "mul_": lambda x: x.mul_(2),
    "setitem": lambda x: x.__setitem__(0, 5.0),
    "copy_": lambda x: x.copy_(tensor(7.0, 8.0)),
    "set_value": lambda x: x.set_value(tensor(7.0, 8.0)),
    "fill_": lambda x: x.fill_(3.0),
    "sin_": lambda x: x.sin_(),
    "layer": lambda x: Double.apply(x),
    "view": lambda x: x[0:1].mul_(2),
}


# ---------------------------------------------------------------------- versions


@pytest.mark.parametrize("name", WRITES)
def test_every_write_counts_one_for_all_handles_of_a_buffer(name):
    array = np.array([1.0, 2.0])
    x = oplib.from_numpy(array)
    handles = [x, x.detach(), x[0:1], oplib.from_numpy(array[1:])]
    for count in (1, 2, 3):
        with oplib.no_grad():
            WRITES[name](x)
        assert [handle.inplace_version for handle in handles] == [count] * 4


@pytest.mark.parametrize("name", sorted(set(WRITES) - {"set_value"}))
def test_a_write_to_a_leaf_that_requires_grad_raises_and_writes_nothing(name):
    x = leaf(1.0, 2.0)
    for target in (x, x[0:2]):
        with pytest.raises(AutogradError, match="leaf that requires grad"):
            WRITES[name](target)
    assert_values(x, [1.0, 2.0])
    assert x.inplace_version == 0
    with oplib.no_grad():
        WRITES[name](x)
    assert x.inplace_version == 1
    assert x.is_leaf


def test_metadata_operations_do_not_bump():
    x = tensor(1.0, 2.0, 3.0, 4.0)
    x.reshape(2, 2).transpose(0, 1)
    x[1:].detach()
    assert x.inplace_version == 0


def test_a_write_returns_the_operand_and_aliases_see_the_value():
    x = leaf(1.0, 2.0)
    y = z = x * 1
    view = y[0:1]
    y += 10
    assert y is z
    assert_values(view, [11.0])
    (y * y).sum().backward()
    assert_values(x.grad, [22.0, 24.0])


# ---------------------------------------------------------------------- values and gradients


@pytest.mark.parametrize("name", IN_PLACE)
def test_value_and_gradient_in_place_are_those_of_the_out_of_place_operator(name):
    schema = oplib.get_op(f"std::{name}").schema
    operands = len(schema.differentiable_arguments)
    start = np.array([1.4, 1.7]) if name == "acosh" else np.array([0.4, 0.7])
    other = np.array([1.5, 2.5])
    extra = {"clamp": (0.5, 0.6)}.get(name, ())

    def run(method):
        x, w = leaf(*start), leaf(*other)
        args = (w,) if operands == 2 else extra
        y = getattr(x * 1, method)(*args)
        (y * tensor(1.0, 10.0)).sum().backward()
        return [y.numpy(), x.grad.numpy(), None if w.grad is None else w.grad.numpy()]

    for got, expected in zip(run(name + "_"), run(name), strict=True):
        if expected is None:
            assert got is None
        else:
            np.testing.assert_allclose(got, expected)


def test_an_operand_that_is_the_destination_counts_as_its_old_value():
    x = leaf(3.0)
    y = x * 1
    y.mul_(y)
    (y * 10).backward()
    assert_values(y, [9.0])
    assert_values(x.grad, [60.0])


def test_a_rule_that_saves_its_input_survives_a_second_write_and_one_that_saves_its_output_not():
    x = leaf(0.5)
    y = (x * 1).sin_().sin_()
    y.backward()
    assert_values(x.grad, np.cos(np.sin([0.5])) * np.cos([0.5]))
    y = (leaf(0.5) * 1).exp_().exp_()
    with pytest.raises(AutogradError, match=r"the result was saved .* version"):
        y.backward()


@pytest.mark.parametrize(
    ("destination", "value", "error"),
    [
        (tensor(1.0), tensor(1.0, 2.0), Exception),
        (tensor(1, dtype="int64"), tensor(1.5), TypeError),
        (tensor(1.0), tensor(1j, dtype=complex), TypeError),
        (oplib.from_numpy(np.broadcast_to(np.ones(1), (3,))), tensor(1.0), AliasError),
    ],
)
def test_what_cannot_be_stored_raises_and_nothing_is_written(destination, value, error):
    before = destination.numpy().copy()
    with pytest.raises(error):
        destination.add_(value)
    np.testing.assert_array_equal(destination.numpy(), before)


REFUSED_WRITES = {
    "growing": (lambda x: x.add_(oplib.ones(2, 3)), Exception),
    "growing copy": (lambda x: x.copy_(oplib.ones(2, 3)), Exception),
    "growing item": (lambda x: x.__setitem__(0, oplib.ones(3)), Exception),
    "growing index": (lambda x: x.__setitem__([0], oplib.ones(2)), Exception),
    "index out of range": (lambda x: x.__setitem__([7], 1.0), IndexError),
    "item out of range": (lambda x: x.__setitem__(7, 1.0), IndexError),
    "mask of another shape": (lambda x: x.__setitem__(oplib.tensor([True]), 1.0), IndexError),
    "complex": (lambda x: x.mul_(1j), TypeError),
    "float into int": (lambda x: x.cast("int64").__setitem__(0, 1.7), TypeError),
}


@pytest.mark.parametrize("name", REFUSED_WRITES)
@pytest.mark.parametrize("recorded", [False, True])
def test_a_write_that_is_refused_counts_as_none(name, recorded):
    write, error = REFUSED_WRITES[name]
    x = leaf(1.0, 2.0) * 1 if recorded else tensor(1.0, 2.0)
    loss = (x * leaf(3.0, 4.0)).sum()
    with pytest.raises(error):
        write(x)
    assert x.inplace_version == 0
    assert_values(x, [1.0, 2.0])
    loss.backward()


def test_a_wider_operand_does_not_change_the_dtype():
    x, w = leaf(1.0, dtype="float32"), leaf(2.0)
    y = x * 1
    y += w
    assert y.dtype == np.float32
    y.backward()
    assert (x.grad.dtype, w.grad.dtype) == (np.float32, np.float64)


def test_a_stopped_leaf_written_with_a_tracked_operand_becomes_a_non_leaf():
    buffer, w = tensor(1.0), leaf(2.0)
    buffer += w
    assert not buffer.is_leaf
    (buffer * 3).backward()
    assert_values(w.grad, [3.0])


def test_a_write_under_no_grad_keeps_the_history_and_is_caught_where_values_were_saved():
    x = leaf(2.0)
    y = x * 3
    node = y.grad_fn
    loss = y * y
    with oplib.no_grad():
        y.mul_(100)
    assert y.grad_fn is node
    assert y.inplace_version == 1
    with pytest.raises(AutogradError, match="version"):
        loss.backward()
    y.backward()
    assert_values(x.grad, [3.0])


def test_written_elements_of_lists_and_optionals_bump_and_none_does_not_disturb():
    with Library("inplace_lists", "DEF") as lib:
        op = lib.define("scale_(Tensor(a!)?[] xs, Tensor(b!)? y=None) -> ()").op

        def kernel(xs, y):
            for x in [*xs, y]:
                if x is not None:
                    x *= 2

        op.register_kernel("cpu", kernel)
        a, b, c = tensor(1.0), tensor(1.0), tensor(1.0)
        op([a, None, b])
        op([None], c)
        assert [t.inplace_version for t in (a, b, c)] == [1, 1, 1]
        assert [float(t) for t in (a, b, c)] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("name", ["fill_", "zero_"])
def test_constant_fills_give_the_old_value_zeros(name):
    x = leaf(1.0)
    y = x * 1
    getattr(y, name)(*([5.0] if name == "fill_" else []))
    (y * 3).backward()
    assert_values(x.grad, [0.0])


def test_copy_reduces_and_casts_the_gradient_of_its_source():
    x, source = leaf(1.0, 2.0), leaf(5.0, dtype="float32")
    y = x * 1
    y.copy_(source)
    (y * tensor(1.0, 10.0)).sum().backward()
    assert_values(x.grad, [0.0, 0.0])
    assert_values(source.grad, [11.0])
    assert source.grad.dtype == np.float32


# ---------------------------------------------------------------------- views


def test_a_write_through_a_view_changes_the_history_of_its_base():
    x = leaf(1.0, 1.0, 1.0, 1.0)
    y = x * 1
    y[0:2].mul_(10)
    y.sum().backward()
    assert_values(x.grad, [10.0, 10.0, 1.0, 1.0])


def test_a_write_to_a_base_changes_the_history_of_its_views():
    x = leaf(1.0, 1.0)
    y = x * 1
    view = y[0:1]
    before = view.grad_fn
    y.mul_(10)
    assert view.grad_fn is not before
    view.backward()
    assert_values(x.grad, [10.0, 0.0])


def test_a_leaf_with_views_may_be_written_after_it_was_stopped():
    x = leaf(1.0, 2.0)
    x[0:1].sum()
    x.stop_gradient = True
    x.mul_(2)
    assert_values(x, [2.0, 4.0])
    x.stop_gradient = False
    with pytest.raises(AutogradError, match="leaf that requires grad"):
        x.mul_(2)


def test_a_view_of_a_stopped_base_may_become_a_leaf():
    base = tensor(1.0, 2.0)
    view = base[0:1]
    view.stop_gradient = False
    (view * 3).backward()
    assert_values(view.grad, [3.0])
    assert base.stop_gradient


def test_hooks_on_a_view_stay_with_the_value_before_the_write():
    x = leaf(1.0, 1.0)
    y = x * 1
    view = y[0:1]
    seen = []
    view.register_hook(lambda g: seen.append(float(g)))
    other = view * 3
    y.mul_(10)
    (view.sum() + other).backward()
    assert seen == [3.0]


def test_the_base_handle_may_die_before_a_view_is_written_and_used():
    x = leaf(1.0, 1.0)
    y = x * 1
    view, sibling = y[0:1], y[0:2]
    del y
    view.mul_(5)
    sibling.sum().backward()
    assert_values(x.grad, [5.0, 1.0])


def test_a_stopped_base_and_its_views_follow_when_a_view_is_written_with_a_tracked_operand():
    base, w = tensor(1.0, 2.0, 3.0), leaf(5.0)
    view, sibling, outside = base[0:2], base[1:3], base[2:3]
    view.mul_(w)
    assert base.requires_grad
    assert sibling.requires_grad
    assert outside.requires_grad
    (base.sum() + sibling.sum() * 10).backward()
    assert_values(w.grad, [1.0 + 2.0 + 20.0])


def test_writes_through_split_and_unbind_are_followed():
    x = leaf(1.0, 2.0, 3.0, 4.0)
    y = x * 1
    first, second = y.split(2)
    first.mul_(10)
    y.unbind(0)[3].mul_(100)
    (y * tensor(1.0, 2.0, 3.0, 4.0)).sum().backward(retain_graph=True)
    assert_values(x.grad, [10.0, 20.0, 3.0, 400.0])
    x.clear_grad()
    second.sum().backward()
    assert_values(x.grad, [0.0, 0.0, 1.0, 100.0])


def test_addresses_reached_twice_sum():
    x = leaf(1.0, 2.0, 3.0)
    windows = (x * 1).unfold(0, 2, 1)
    (windows * tensor([1.0, 10.0], [100.0, 1000.0])).sum().backward()
    assert_values(x.grad, [1.0, 110.0, 1000.0])


def test_real_parts_of_a_complex_base_may_be_written():
    x = leaf(1 + 2j, 3 + 4j, dtype=complex)
    z = x * 1
    z.real.mul_(10)
    parts = z.view_as_real()
    parts[1:2].mul_(100)
    out = z.view_as_real()
    (out * oplib.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
    assert_values(z, [10 + 2j, 3000 + 400j])
    assert_values(x.grad, [10 + 2j, 3000 + 400j])


def test_a_whole_overwrite_of_a_view_sends_zeros_there_and_nothing_else():
    x, w = leaf(1.0, 2.0, 3.0), leaf(5.0, 6.0)
    y = x * 1
    y[0:2].copy_(w)
    (y * tensor(1.0, 10.0, 100.0)).sum().backward()
    assert_values(x.grad, [0.0, 0.0, 100.0])
    assert_values(w.grad, [1.0, 10.0])


def test_what_the_base_gets_counts_every_use_of_a_written_view():
    x = leaf(1.0, 2.0)
    base = x * 1
    view = base[:1]
    view.mul_(3.0)
    base.retain_grads()
    assert view.grad_fn.name() == "GradNode_view"
    ((base * 10).sum() + view.sum() * 100).backward()
    assert_values(base.grad, [110.0, 10.0])
    assert_values(x.grad, [330.0, 10.0])


def test_assigning_a_detached_handle_of_the_same_elements_cuts_their_gradient():
    for cut in (lambda y: y.detach()[0], lambda y: oplib.no_grad(lambda: y[0])()):
        x = leaf(1.0, 2.0)
        y = x * 2
        y[0] = cut(y)
        y.sum().backward()
        assert_values(x.grad, [0.0, 2.0])


def test_a_write_through_a_view_made_under_no_grad_raises():
    y = leaf(1.0, 2.0) * 1
    with oplib.no_grad():
        view = y[0:1]
    with pytest.raises(AutogradError, match="under no_grad"):
        view.mul_(2)
    with oplib.no_grad():
        view.mul_(2)
    assert y.inplace_version == 1


def test_double_backward_through_a_write_to_a_view_is_right():
    x = leaf(2.0, 3.0)
    y = x * 1
    y[0:1].mul_(x[1:2])
    loss = (y * y).sum()
    (g,) = oplib.grad(loss, x, create_graph=True)
    assert_values(g, [2 * 2 * 9.0, 2 * 4 * 3.0 + 2 * 3.0])
    (h,) = oplib.grad(g.sum(), x)
    assert_values(h, [18.0 + 24.0, 24.0 + 8.0 + 2.0])


# ---------------------------------------------------------------------- random programs

VIEWS = {
    "head": lambda t: t[0:2],
    "tail": lambda t: t[-2:],
    "reversed": lambda t: t[::-1],
    "every other": lambda t: t[::2],
    "transposed": lambda t: t.transpose(0, 1) if t.ndim == 2 else t,
    "column": lambda t: t[:, 0] if t.ndim == 2 else t,
    "diagonal": lambda t: t.diagonal() if t.ndim == 2 else t,
    "row": lambda t: t[0] if t.ndim == 2 else t,
    "flat": lambda t: t.flatten() if t.is_contiguous() else t,
    "windows": lambda t: t.unfold(0, 2, 1) if t.ndim == 1 and t.shape[0] > 1 else t,
}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["view", "write", "write tracked", "read"]),
        st.integers(0, 5),
        st.sampled_from(sorted(VIEWS)),
    ),
    min_size=2,
    max_size=8,
)


def _run(steps: Any, x: Any, w: Any) -> Any:
    """Run a program of views, writes and reads on handles of one buffer; return its loss."""
    handles = [x * 1]
    loss = (w * 0).sum()
    for number, (what, which, name) in enumerate(steps):
        target = handles[which % len(handles)]
        if what == "view":
            handles.append(VIEWS[name](target))
        elif what == "read":
            copy = target.clone()  # saves nothing that is written to later
            loss = loss + (copy * copy).sum() * (number + 1)
        else:
            factor = w[number % 3] if what == "write tracked" else 1.5
            try:
                target.mul_(factor)
            except AliasError:  # a destination that overlaps itself
                continue
    return loss + sum((handle * handle).sum() * (i + 2) for i, handle in enumerate(handles))


@given(STEPS)
def test_gradients_of_random_programs_of_views_and_writes_are_finite_differences(steps):
    start = np.arange(1.0, 10.0).reshape(3, 3) / 5
    factors = np.array([0.5, 1.25, -0.75])
    x, w = oplib.tensor(start).requires_grad_(), oplib.tensor(factors).requires_grad_()
    gx, gw = oplib.grad(_run(steps, x, w), [x, w])

    def value(a, b):
        return float(_run(steps, oplib.tensor(a), oplib.tensor(b)))

    h = 1e-6
    for got, base, at in ((gx, start, 0), (gw, factors, 1)):
        for index in itertools.product(*map(range, base.shape)):
            moved = [[start.copy(), factors.copy()] for _ in range(2)]
            moved[0][at][index] += h
            moved[1][at][index] -= h
            slope = (value(*moved[0]) - value(*moved[1])) / (2 * h)
            assert abs(float(got[index]) - slope) <= 1e-4 * max(1.0, abs(slope))
