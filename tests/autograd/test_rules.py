"""Gradient rules of operators: named, fused, ctx style, none; every shape of schema."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import AutogradError, Library, RegistrationError
from tests.autograd.helpers import assert_values, leaf, no_collector, tensor

_numbers = itertools.count()


@pytest.fixture
def lib() -> Iterator[Library]:
    """A library whose namespace is gone after the test."""
    with Library(f"rules{next(_numbers)}", "DEF") as library:
        yield library


def define(lib: Library, schema: str, kernel: Any) -> Any:
    """Define an operator with a CPU kernel and return it."""
    op = lib.define(schema).op
    op.register_kernel("cpu", kernel)
    return op


def product(lib: Library, rule: Any = None, **rules: Any) -> Any:
    """Return ``mul(x, y, scale=1.0)`` with a gradient rule."""
    op = define(
        lib, "mul(Tensor x, Tensor y, float scale=1.0) -> Tensor", lambda x, y, scale: x * y * scale
    )
    if rule is not None:
        op.register_vjp(rule)
    if rules:
        op.register_vjp(**rules)
    return op


# ---------------------------------------------------------------------- named rules


def test_a_rule_of_an_argument_that_needs_nothing_does_not_run_and_saves_nothing(lib):
    def never(grad, x):
        raise AssertionError("not needed")

    op = product(lib, x=lambda grad, y, scale: grad * y * scale, y=never)
    with no_collector():
        x, y = leaf(2.0), tensor(3.0)
        held = x * 1
        freed = weakref.ref(held._storage)
        out = op(held, y)
        del held
        assert freed() is None
        out.backward()
    assert_values(x.grad, [3.0])


@pytest.mark.parametrize(
    "returned",
    [
        lambda gx, gy: (gx, gy),
        lambda gx, gy: (gx, gy, None),
        lambda gx, gy: {"y": gy, "x": gx},
    ],
)
def test_a_fused_rule_may_return_per_tensor_per_argument_or_by_name(lib, returned):
    op = product(lib, lambda grad, x, y, scale: returned(grad * y * scale, grad * x * scale))
    x, y = leaf(2.0), leaf(3.0)
    op(x, y, 10.0).backward()
    assert_values(x.grad, [30.0])
    assert_values(y.grad, [20.0])


def test_a_fused_rule_with_a_wrong_count_is_reported_like_a_layers(lib):
    op = product(lib, lambda grad: (grad,))
    with pytest.raises(AutogradError, match=r"the tensor arguments are x, y \(2\)"):
        op(leaf(2.0), leaf(3.0)).backward()


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (lambda grad, z: grad, "asks for 'z'"),
        (lambda *grads: grads, "takes"),
        (lambda grad, **others: grad, "takes"),
    ],
)
def test_a_rule_that_asks_for_what_is_not_there_is_refused_and_nothing_is_registered(
    lib, rule, problem
):
    op = product(lib)
    with pytest.raises(RegistrationError, match=problem):
        op.register_vjp(x=rule)
    assert op.gradient_rule is None


def test_grad_is_ambiguous_on_an_operator_with_two_returns(lib):
    op = define(lib, "two(Tensor x) -> (Tensor, Tensor)", lambda x: (x + 1, x + 2))
    with pytest.raises(RegistrationError, match="grad_out0"):
        op.register_vjp(x=lambda grad: grad)


def test_returns_and_their_gradients_go_by_their_names(lib):
    op = define(lib, "f(Tensor x) -> (Tensor first, Tensor second)", lambda x: (x * 2, x * x))
    seen = {}

    def rule(grad_first, grads, second, x):
        seen.update(second=second, x=x, count=len(grads))
        return grad_first * 2 + grads[1] * 2 * x

    op.register_vjp(x=rule)
    x = leaf(3.0)
    first, second = op(x)
    (first + second * 10).backward()
    assert_values(x.grad, [62.0])
    assert_values(seen["second"], [9.0])
    assert seen["count"] == 2


def test_unnamed_returns_are_out0_and_out1(lib):
    op = define(lib, "f(Tensor x) -> (Tensor, Tensor)", lambda x: (np.exp(x), x * x))
    op.register_vjp(x=lambda grad_out0, out0, grad_out1, x: grad_out0 * out0 + grad_out1 * 2 * x)
    x = leaf(2.0)
    first, second = op(x)
    (first + second).backward()
    assert_values(x.grad, np.exp([2.0]) + 4)


def test_a_return_whose_gradient_no_rule_names_is_stopped(lib):
    op = define(lib, "f(Tensor x) -> (Tensor, Tensor)", lambda x: (x * 2, x * 3))
    op.register_vjp(x=lambda grad_out0: grad_out0 * 2)
    first, second = op(leaf(1.0))
    assert first.requires_grad
    assert second.stop_gradient


def test_a_bare_grad_is_refused_where_an_argument_has_that_name(lib):
    op = define(lib, "f(Tensor grad) -> Tensor", lambda grad: grad * 2)
    with pytest.raises(RegistrationError, match="`grad_out`"):
        op.register_vjp(grad=lambda grad: grad)
    op.register_vjp(grad=lambda grad_out, grad_spec: grad_out * 2 if grad_spec.shape else None)
    x = leaf(1.0)
    op(x).backward()
    assert_values(x.grad, [2.0])


def test_a_spec_saves_no_data_and_is_not_version_checked(lib):
    op = define(lib, "f(Tensor x) -> Tensor", lambda x: x * 2)
    op.register_vjp(x=lambda grad, x_spec: grad * 2 * x_spec.shape[0])
    x = leaf(1.0)
    with no_collector():
        held = x * 1
        freed = weakref.ref(held._storage)
        out = op(held)
        with oplib.no_grad():
            held.mul_(5)
        del held
        assert freed() is None
        out.backward()
    assert_values(x.grad, [2.0])


def test_none_declares_an_argument_non_differentiable(lib):
    op = product(lib, x=lambda grad, y: grad * y, y=None)
    x, y = leaf(2.0), leaf(3.0)
    op(x, y).backward()
    assert_values(x.grad, [3.0])
    assert y.grad is None


def test_an_argument_without_an_entry_raises_when_it_needs_a_gradient(lib):
    op = product(lib, x=lambda grad, y: grad * y)
    op(leaf(2.0), tensor(3.0)).backward()
    with pytest.raises(AutogradError, match=r"no gradient rule for argument `y`[\s\S]*y=lambda"):
        op(leaf(2.0), leaf(3.0)).backward()


def test_a_rule_for_an_argument_without_tensors_is_refused(lib):
    op = define(lib, "f(Tensor x, int n) -> Tensor", lambda x, n: x * n)
    with pytest.raises(RegistrationError, match="holds no tensors"):
        op.register_vjp(n=lambda grad: grad)


def test_the_last_of_two_registrations_wins_and_its_removal_exposes_the_first(lib):
    op = define(lib, "f(Tensor x) -> Tensor", lambda x: x * 2)
    op.register_vjp(x=lambda grad: grad * 2)
    x = leaf(1.0)
    with oplib.override():
        op.register_vjp(x=lambda grad: grad * 100)
        assert_values(oplib.grad(op(x), x)[0], [100.0])
    assert_values(oplib.grad(op(x), x)[0], [2.0])


def test_a_node_keeps_the_rule_it_was_built_with(lib):
    op = define(lib, "f(Tensor x) -> Tensor", lambda x: x * 2)
    op.register_vjp(x=lambda grad: grad * 2)
    x = leaf(1.0)
    y = op(x)
    with oplib.override():
        op.register_vjp(x=lambda grad: grad * 100)
        y.backward()
        z = op(x)
    assert_values(x.grad, [2.0])
    assert_values(oplib.grad(z, x)[0], [100.0])


def test_a_rule_that_calls_an_operator_without_a_rule_is_right_once_and_raises_at_the_second(lib):
    inner = define(lib, "inner(Tensor x) -> Tensor", np.cos)
    op = define(lib, "outer(Tensor x) -> Tensor", np.sin)
    op.register_vjp(x=lambda grad, x: grad * inner(x))
    x = leaf(0.5)
    (g,) = oplib.grad(op(x), x, create_graph=True)
    assert_values(g, np.cos([0.5]))
    with pytest.raises(AutogradError, match="::inner has no gradient rule"):
        oplib.grad(g, x)


def test_one_rule_serves_fake_tensors_too(lib):
    op = product(lib, x=lambda grad, y: grad * y, y=lambda grad, x: grad * x)
    op.register_fake(lambda x, y, scale: oplib.TensorSpec(x.shape, x.dtype))
    with oplib.FakeTensorMode() as mode:
        x, y = (mode.from_tensor(tensor(1.0, 2.0)).requires_grad_() for _ in range(2))
        op(x, y).backward()
        assert x.grad.shape == (2,)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (lambda: tensor(1.0, 2.0), "wrong shape"),
        (lambda: "text", "must be a Tensor, got str"),
        (lambda: np.ones(1), "must be a Tensor, got ndarray"),
    ],
)
def test_a_wrong_gradient_is_reported_with_operator_and_argument(lib, value, problem):
    op = product(lib, x=lambda grad: value(), y=None)
    with pytest.raises(AutogradError, match=f"::mul: the gradient of argument `x`.*{problem}"):
        op(leaf(1.0, 2.0, 3.0), leaf(3.0)).backward()


# ---------------------------------------------------------------------- shapes of schemas


def test_an_omitted_optional_tensor_has_no_gradient_and_its_rule_is_not_called(lib):
    op = define(
        lib,
        "f(Tensor x, Tensor? bias=None) -> Tensor",
        lambda x, bias: x * 2 if bias is None else x * 2 + bias,
    )
    calls = []
    op.register_vjp(
        x=lambda grad, bias: grad * (2 if bias is None else 20),
        bias=lambda grad: (calls.append(1), grad)[1],
    )
    x = leaf(1.0)
    op(x).backward()
    assert not calls
    assert_values(x.grad, [2.0])
    x, bias = leaf(1.0), leaf(1.0)
    op(x, bias).backward()
    assert_values(x.grad, [20.0])
    assert_values(bias.grad, [1.0])


def test_an_operator_whose_only_tracked_argument_is_optional_is_recorded(lib):
    op = define(lib, "f(Tensor x, Tensor? bias=None) -> Tensor", lambda x, bias: x * 2 + bias)
    op.register_vjp(x=None, bias=lambda grad: grad)
    bias = leaf(1.0)
    op(tensor(1.0), bias).backward()
    assert_values(bias.grad, [1.0])


def total(lib: Library, element: str = "Tensor[]") -> Any:
    """Return ``total(xs, weights)``: the weighted sum of a list of tensors."""

    def kernel(xs, weights):
        given = [x for x in xs if x is not None]
        return sum(x * (weights[i] if weights else 1) for i, x in enumerate(given))

    return define(lib, f"total({element} xs, int[] weights=[]) -> Tensor", kernel)


def test_the_rule_of_a_list_argument_returns_a_list(lib):
    op = total(lib)
    op.register_vjp(
        xs=lambda grad, xs, weights: [grad * w for _, w in zip(xs, weights, strict=True)]
    )
    a, b, c = leaf(1.0), tensor(2.0), leaf(3.0)
    op([a, b, c], [2, 3, 4]).backward()
    assert_values(a.grad, [2.0])
    assert_values(c.grad, [4.0])


def test_members_of_a_list_that_need_nothing_may_be_none_in_its_gradient(lib):
    op = total(lib)
    op.register_vjp(
        xs=lambda grad, needs_input_grad: [grad if n else None for n in needs_input_grad[0]]
    )
    a, b = tensor(1.0), leaf(2.0)
    op([a, b]).backward()
    assert_values(b.grad, [1.0])


def test_a_list_gradient_of_another_length_raises(lib):
    op = total(lib)
    op.register_vjp(xs=lambda grad: [grad])
    with pytest.raises(AutogradError, match="`xs` must be a list of 2, got a list of 1"):
        op([leaf(1.0), leaf(2.0)]).backward()


def test_a_list_with_none_stays_differentiable(lib):
    op = total(lib, "Tensor?[]")
    op.register_vjp(xs=lambda grad, xs: [None if x is None else grad * 2 * x for x in xs])
    a, b = leaf(1.0), leaf(3.0)
    op([a, None, b]).backward()
    assert_values(a.grad, [2.0])
    assert_values(b.grad, [6.0])


def test_an_empty_int_list_beside_a_tensor_list_takes_none_in_the_full_count(lib):
    op = total(lib)
    op.register_vjp(lambda grad: ([grad, grad * 2], None))
    a, b = leaf(1.0), leaf(2.0)
    op([a, b]).backward()
    assert_values(b.grad, [2.0])


def test_nested_containers_of_a_schema_are_tracked_and_mirrored(lib):
    def kernel(tree, pair):
        return tree["a"][0] * 2 + tree["b"][1] * 3 + pair[0] * 4

    op = define(lib, "f(Dict(str, Tensor[]) tree, (Tensor, int) pair) -> Tensor", kernel)
    op.register_vjp(
        tree=lambda grad: {"a": [grad * 2], "b": [None, grad * 3]},
        pair=lambda grad: (grad * 4, None),
    )
    a, b, c = leaf(1.0), leaf(1.0), leaf(1.0)
    op({"a": [a], "b": [tensor(1.0), b]}, (c, 5)).backward()
    assert [float(t.grad) for t in (a, b, c)] == [2.0, 3.0, 4.0]


def test_keyword_only_tensors_get_gradients_however_they_are_passed(lib):
    op = define(
        lib, "f(Tensor x, *, Tensor w, float s=2.0) -> Tensor", lambda x, *, w, s: x * w * s
    )
    op.register_vjp(x=lambda grad, w, s: grad * w * s, w=lambda grad, x, s: grad * x * s)
    for call in (lambda x, w: op(x, w=w), lambda x, w: op(w=w, x=x, s=2.0)):
        x, w = leaf(2.0), leaf(3.0)
        call(x, w).backward()
        assert_values(x.grad, [6.0])
        assert_values(w.grad, [4.0])


def test_a_list_return_gives_the_rule_one_list_with_zeros(lib):
    op = define(lib, "f(Tensor x) -> (Tensor[], int, Tensor?)", lambda x: ([x * 2, x * 3], 7, None))
    seen = []

    def backward(ctx, grads, number, nothing):
        seen.append((grads, number, nothing))
        return grads[0] * 2 + grads[1] * 3

    op.register_autograd(backward)
    x = leaf(1.0)
    (a, b), number, nothing = op(x)
    assert (number, nothing) == (7, None)
    assert a.grad_fn is b.grad_fn
    assert [(t.autograd_meta.slot, t.autograd_meta.rank) for t in (a, b)] == [(0, 0), (0, 1)]
    b.backward()
    assert_values(x.grad, [3.0])
    ((grads, number, nothing),) = seen
    assert_values(grads[0], [0.0])
    assert number is nothing is None


def test_integer_outputs_are_stopped_and_outputs_of_one_call_share_a_node(lib):
    op = define(
        lib,
        "f(Tensor x) -> (Tensor, Tensor, Tensor)",
        lambda x: (x * 2, x.astype(np.int64), x * 3),
    )
    op.register_vjp(lambda grads: grads[0] * 2 + grads[2] * 3)
    x = leaf(1.0)
    a, n, b = op(x)
    assert n.stop_gradient
    assert a.grad_fn is b.grad_fn
    assert (a.autograd_meta.slot, b.autograd_meta.slot) == (0, 2)
    (a + b).backward()
    assert_values(x.grad, [5.0])


def test_a_composite_operator_has_no_node_of_its_own(lib):
    op = lib.define("twice(Tensor x) -> Tensor").op
    lib.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
    assert op(leaf(1.0)).grad_fn.name() == "GradNode_std::mul"


# ---------------------------------------------------------------------- ctx rules


def scaled(lib: Library, backward: Any, setup_context: Any = None) -> Any:
    """Return ``scaled(x, w, s=2.0, *, flag=True)`` with a ctx rule."""
    op = define(
        lib,
        "scaled(Tensor x, Tensor w, float s=2.0, *, bool flag=True) -> Tensor",
        lambda x, w, s, *, flag: x * w * s,
    )
    op.register_autograd(backward, setup_context=setup_context)
    return op


def _backward(ctx, grad):
    x, w = ctx.saved_tensors
    return grad * w * ctx.s, grad * x * ctx.s


def _by_name(ctx, inputs, output):
    x, w, ctx.s = inputs
    ctx.save_for_backward(x, w)


def _in_another_order(output, ctx, inputs):
    _by_name(ctx, inputs, output)


def _by_position(c, i, o):
    _by_name(c, i, o)


@pytest.mark.parametrize("setup_context", [_by_name, _in_another_order, _by_position])
def test_setup_context_is_called_by_name_or_by_position(lib, setup_context):
    op = scaled(lib, _backward, setup_context)
    x, w = leaf(3.0), leaf(5.0)
    op(x, w).backward()
    assert_values(x.grad, [10.0])
    assert_values(w.grad, [6.0])


def test_setup_context_runs_once_per_recorded_call_with_grad_off(lib):
    calls = []

    def setup_context(ctx, inputs, output):
        assert not oplib.is_grad_enabled()
        assert ctx.needs_input_grad == (True, False, False, False)
        calls.append(len(inputs))
        _by_name(ctx, inputs, output)
        return "ignored"

    op = scaled(lib, _backward, setup_context)
    op(tensor(1.0), tensor(2.0))
    with oplib.no_grad():
        op(leaf(1.0), tensor(2.0))
    assert calls == []
    op(leaf(1.0), tensor(2.0)).backward()
    assert calls == [3]


def test_keyword_only_inputs_go_to_the_parameter_of_that_name(lib):
    seen = []

    def setup_context(ctx, inputs, keyword_only_inputs, output):
        seen.append(keyword_only_inputs)
        _by_name(ctx, inputs, output)

    scaled(lib, _backward, setup_context)(leaf(1.0), tensor(1.0), flag=False)
    assert seen == [{"flag": False}]


def test_functions_that_cannot_take_what_they_will_be_given_are_refused(lib):
    op = define(lib, "f(Tensor x) -> (Tensor, Tensor)", lambda x: (x + 1, x + 2))
    with pytest.raises(RegistrationError, match="setup_context"):
        op.register_autograd(lambda ctx, a, b: a, setup_context=lambda ctx, inputs: None)
    with pytest.raises(RegistrationError, match="ctx and 2 gradients"):
        op.register_autograd(lambda ctx, a: a)
    assert op.gradient_rule is None


def test_an_exception_in_setup_context_propagates_and_leaves_no_node(lib):
    def setup_context(ctx, inputs, output):
        raise KeyError("setup")

    op = scaled(lib, _backward, setup_context)
    x = leaf(1.0)
    with pytest.raises(KeyError):
        op(x, tensor(1.0))
    assert x.is_leaf


def test_without_setup_context_a_backward_that_uses_gradients_only_works(lib):
    op = total(lib)
    op.register_autograd(lambda ctx, grad: [grad, grad])
    a, b = leaf(1.0), leaf(2.0)
    op([a, b]).backward()
    assert_values(a.grad, [1.0])


@pytest.mark.parametrize("name", ["node", "saved", "_node", "_saved", "op", "grad", "title"])
def test_any_attribute_name_is_free_on_ctx(lib, name):
    def setup_context(ctx, inputs, output):
        setattr(ctx, name, inputs[0])
        setattr(ctx, name + "s", [inputs[0], output])

    def backward(ctx, grad):
        listed = getattr(ctx, name + "s")
        assert_values(listed[1], [12.0])
        return grad * getattr(ctx, name) * listed[0], None

    op = scaled(lib, backward, setup_context)
    x = leaf(3.0)
    op(x, tensor(2.0)).backward()
    assert_values(x.grad, [9.0])


@pytest.mark.parametrize("mark", ["mark_dirty", "mark_not_inplace"])
def test_marks_of_writes_are_refused_in_an_operators_ctx(lib, mark):
    op = scaled(lib, _backward, lambda ctx, inputs, output: getattr(ctx, mark)(output))
    with pytest.raises(AutogradError, match="schema"):
        op(leaf(1.0), tensor(1.0))


def test_marks_and_flags_of_ctx_work_for_operators(lib):
    op = define(lib, "f(Tensor x) -> (Tensor, Tensor)", lambda x: (x * 2, x * 3))

    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    def backward(ctx, g, h):
        assert h is None
        return g * 2

    op.register_autograd(backward, setup_context=setup_context)
    x = leaf(1.0)
    y, z = op(x)
    assert z.stop_gradient
    y.backward()
    assert_values(x.grad, [2.0])


def test_a_saved_intermediate_of_an_operator_raises_at_the_second_derivative(lib):
    op = define(lib, "f(Tensor x) -> Tensor", np.square)

    def setup_context(ctx, inputs, output):
        ctx.doubled = inputs[0] * 2

    op.register_autograd(lambda ctx, grad: grad * ctx.doubled, setup_context=setup_context)
    x = leaf(3.0)
    (g,) = oplib.grad(op(x), x, create_graph=True)
    assert_values(g, [6.0])
    with pytest.raises(AutogradError, match=r"ctx\.doubled is neither an input nor an output"):
        oplib.grad(g, x)


# ---------------------------------------------------------------------- no rule


def test_without_a_rule_forward_works_and_backward_names_the_fix(lib):
    op = define(lib, "f(Tensor x) -> Tensor", np.square)
    with oplib.no_grad():
        op(leaf(1.0))
    y = op(leaf(1.0))
    with pytest.raises(AutogradError, match=r"register one: oplib\.register_vjp"):
        y.backward()


@pytest.mark.parametrize("style", ["vjp", "fused", "ctx"])
def test_a_rule_registered_before_backward_is_used_and_saved_values_are_checked(lib, style):
    op = define(lib, "f(Tensor x) -> Tensor", np.square)
    x = leaf(3.0)
    z = x * 1
    y = op(z)
    stale = op(z)
    if style == "ctx":

        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        op.register_autograd(
            lambda ctx, g: g * 2 * ctx.saved_tensors[0], setup_context=setup_context
        )
    elif style == "vjp":
        op.register_vjp(x=lambda grad, x: grad * 2 * x)
    else:
        op.register_vjp(lambda grad, x: grad * 2 * x)
    y.backward(retain_graph=True)
    assert_values(x.grad, [6.0])
    with oplib.no_grad():
        z.mul_(2)
    with pytest.raises(AutogradError, match="version"):
        stale.backward()


# ---------------------------------------------------------------------- writing operators


def writing(lib: Library, schema: str, kernel: Any) -> Any:
    return define(lib, schema, kernel)


def _mul_into(x, y):
    np.multiply(x, y, out=x)


def test_a_writing_operator_without_a_rule_raises_before_the_kernel_runs(lib):
    op = writing(lib, "mul_(Tensor(a!) x, Tensor y) -> Tensor(a!)", _mul_into)

    def each(xs, y):
        for x in xs:
            _mul_into(x, y)

    lists = writing(lib, "each_(Tensor(a!)[] xs, Tensor? y=None) -> ()", each)
    z, w, stopped = leaf(2.0) * 1, leaf(3.0), tensor(5.0)
    for call in (
        lambda: op(z, stopped),
        lambda: op(stopped, w),
        lambda: lists([stopped, z], stopped),
        lambda: lists([stopped], w),
    ):
        with pytest.raises(AutogradError, match="no gradient rule"):
            call()
    assert (float(z), float(stopped), z.inplace_version, stopped.inplace_version) == (2, 5, 0, 0)
    with oplib.no_grad():
        op(z, w)
        lists([stopped], w)
    assert (float(z), float(stopped), z.inplace_version, stopped.inplace_version) == (6, 15, 1, 1)


def test_a_writing_rule_sees_the_old_value_and_the_new_one(lib):
    op = writing(lib, "mul_(Tensor(a!) x, Tensor y) -> Tensor(a!)", _mul_into)
    seen = []

    def for_y(grad, x, new_x):
        seen.append((float(x), float(new_x)))
        return grad * x

    op.register_vjp(x=lambda grad_out, y: grad_out * y, y=for_y)
    x, y = leaf(2.0), leaf(3.0)
    z = x * 1
    assert op(z, y) is z
    (z * 10).backward()
    assert seen == [(2.0, 6.0)]
    assert_values(x.grad, [30.0])
    assert_values(y.grad, [20.0])


def test_a_writing_operator_that_returns_nothing_uses_the_written_arguments_gradient(lib):
    op = writing(lib, "mul_(Tensor(a!) x, Tensor y) -> ()", _mul_into)
    op.register_vjp(x=lambda grad_x, y: grad_x * y, y=lambda grad_x, x: grad_x * x)
    x, y = leaf(2.0), leaf(3.0)
    z = x * 1
    assert op(z, y) is None
    (z * 10).backward()
    assert_values(x.grad, [30.0])
    assert_values(y.grad, [20.0])


def test_two_written_arguments_may_be_views_of_one_buffer(lib):
    def swap(a, b):
        a[...], b[...] = b.copy(), a.copy()

    op = writing(lib, "swap_(Tensor(a!) a, Tensor(b!) b) -> ()", swap)
    op.register_vjp(a=lambda grad_b: grad_b, b=lambda grad_a: grad_a)
    x = leaf(1.0, 2.0, 3.0)
    base = x * 1
    op(base[0:1], base[2:3])
    assert base.inplace_version == 1
    assert_values(base, [3.0, 2.0, 1.0])
    (base * tensor(1.0, 10.0, 100.0)).sum().backward()
    assert_values(x.grad, [100.0, 10.0, 1.0])


def test_a_ctx_rule_of_a_writing_operator_gets_returns_then_written_arguments(lib):
    def kernel(a, b):
        a *= 2
        b *= 3
        return a + b

    op = writing(lib, "f(Tensor(a!) a, Tensor(b!) b) -> Tensor", kernel)
    op.register_autograd(lambda ctx, g, ga, gb: ((g + ga) * 2, (g + gb) * 3))
    x, y = leaf(1.0), leaf(1.0)
    a, b = x * 1, y * 1
    out = op(a, b)
    (out + a * 10 + b * 100).backward()
    assert_values(x.grad, [22.0])
    assert_values(y.grad, [303.0])


def test_an_out_argument_is_returned_and_its_old_value_gets_zeros(lib):
    op = writing(
        lib,
        "mul.out(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)",
        lambda x, y, *, out: np.multiply(x, y, out=out),
    )
    op.register_vjp(
        x=lambda grad_out, y: grad_out * y,
        y=lambda grad_out, x: grad_out * x,
        out=lambda grad_out: grad_out * 0,
    )
    x, old = leaf(2.0), leaf(7.0)
    target = old * 1
    assert op(x, tensor(3.0), out=target) is target
    target.backward()
    assert_values(x.grad, [3.0])
    assert_values(old.grad, [0.0])


def test_a_kernel_that_fails_midway_bumps_the_version(lib):
    def kernel(x):
        x[0] = 100
        raise KeyError("midway")

    op = writing(lib, "f_(Tensor(a!) x) -> Tensor(a!)", kernel)
    op.register_vjp(x=lambda grad: grad)
    x = leaf(1.0, 2.0)
    z = x * 1
    loss = (z * z).sum()
    with pytest.raises(KeyError) as caught:
        op(z)
    assert any("f_" in note for note in caught.value.__notes__)
    assert z.inplace_version == 1
    with pytest.raises(AutogradError, match="version"):
        loss.backward()


def test_a_written_argument_declared_non_differentiable_forgets_its_history(lib):
    op = writing(lib, "erase_(Tensor(a!) x) -> Tensor(a!)", lambda x: x.fill(7))
    op.register_vjp(x=None)
    x = leaf(1.0)
    with pytest.raises(AutogradError, match="leaf that requires grad"):
        op(x)
    z = x * 1
    op(z)
    (z * 2 + x).backward()
    assert_values(x.grad, [1.0])


# ---------------------------------------------------------------------- view operators


def test_the_gradient_of_a_view_without_a_rule_follows_the_addresses(lib):
    op = define(lib, "every_other(Tensor(a) x) -> Tensor(a)", lambda x: x[::2])
    same = define(lib, "same(Tensor(a) x) -> Tensor(a)", lambda x: x[...])
    x = leaf(1.0, 2.0, 3.0)
    (same(op(x)) * tensor(10.0, 100.0)).sum().backward()
    assert_values(x.grad, [10.0, 0.0, 100.0])


def test_an_exception_in_a_kernel_or_a_rule_keeps_its_type_and_names_the_operator(lib):
    op = define(lib, "f(Tensor x) -> Tensor", lambda x: {}["kernel"])
    with pytest.raises(KeyError) as caught:
        op(tensor(1.0))
    assert any("::f" in note for note in caught.value.__notes__)
    op = product(lib, x=lambda grad: {}["rule"], y=None)
    with pytest.raises(KeyError) as caught:
        op(leaf(1.0), tensor(1.0)).backward()
    assert any("GradNode_" in note and "::mul" in note for note in caught.value.__notes__)
