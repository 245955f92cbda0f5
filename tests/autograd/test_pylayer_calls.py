"""PyLayer: arguments, outputs, and what backward may return."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import ArgumentError, AutogradError, DispatchError, Tensor
from oplib.autograd import PyLayer
from tests.autograd.helpers import assert_values, leaf, tensor

Pair = namedtuple("Pair", "first second")


def layer(forward: Any, backward: Any, **members: Any) -> type[PyLayer]:
    """Return a PyLayer made of two functions."""
    namespace = {"forward": staticmethod(forward), "backward": staticmethod(backward), **members}
    return type("Layer", (PyLayer,), namespace)


def weighted(returned: Any) -> type[PyLayer]:
    """Return a layer ``x * w * scale`` whose backward returns ``returned(gx, gw)``."""

    def forward(ctx: Any, x: Tensor, w: Tensor, scale: float = 1.0) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.scale = scale
        return x * w * scale

    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return returned(grad * w * ctx.scale, grad * x * ctx.scale)

    return layer(forward, backward)


Weighted = weighted(lambda gx, gw: (gx, gw))


# ---------------------------------------------------------------------- arguments


def test_functions_and_non_tensor_outputs_pass_through_and_have_no_gradient():
    received = []

    def forward(ctx, x, function, y):
        ctx.save_for_backward(x, y)
        return function(x) * y, 1, y * y, None

    def backward(ctx, *grads):
        received.append(len(grads))
        x, y = ctx.saved_tensors
        first, second = grads
        return first * y * 2 * x, first * x * x + second * 2 * y

    x, y = leaf(2.0), leaf(3.0)
    a, one, b, none = layer(forward, backward).apply(x, lambda t: t * t, y)
    assert (one, none) == (1, None)
    (a + 5 * b).backward()
    assert received == [2]
    x2, y2 = leaf(2.0), leaf(3.0)
    (x2 * x2 * y2 + 5 * (y2 * y2)).backward()
    assert_values(x.grad, x2.grad.numpy())
    assert_values(y.grad, y2.grad.numpy())


def test_gradients_of_one_tensor_passed_twice_are_summed():
    x = leaf(3.0)
    Weighted.apply(x, x).backward()
    assert_values(x.grad, [6.0])


def test_none_for_the_first_of_two_equal_arguments_contributes_the_second_only():
    x = leaf(3.0)
    weighted(lambda gx, gw: (None, gw)).apply(x, x).backward()
    assert_values(x.grad, [3.0])


@pytest.mark.parametrize("value", [None, tensor(5.0), "anything"])
def test_whatever_is_returned_for_a_stopped_input_is_dropped(value):
    x, w = leaf(2.0), tensor(3.0)
    weighted(lambda gx, gw: (gx, value)).apply(x, w).backward()
    assert_values(x.grad, [3.0])
    assert w.grad is None


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x, w: f(x, w),
        lambda f, x, w: f(w=w, x=x),
        lambda f, x, w: f(x, w=w),
        lambda f, x, w: f(x, w, 1.0),
        lambda f, x, w: f(scale=1.0, w=w, x=x),
    ],
)
def test_gradients_are_in_signature_order_however_the_call_is_spelled(call):
    x, w = leaf(2.0), leaf(5.0)
    call(Weighted.apply, x, w).backward()
    assert_values(x.grad, [5.0])
    assert_values(w.grad, [2.0])


@pytest.mark.parametrize(
    "returned",
    [
        lambda gx, gw: (gx, gw),
        lambda gx, gw: (gx, gw, None),
        lambda gx, gw: {"w": gw, "x": gx},
        lambda gx, gw: {"w": gw, "x": gx, "scale": None},
    ],
)
@pytest.mark.parametrize("scale", [(), (2.0,)])
def test_gradients_per_tensor_per_argument_and_by_name_are_equal(returned, scale):
    x, w = leaf(2.0), leaf(5.0)
    weighted(returned).apply(x, w, *scale).backward()
    factor = scale[0] if scale else 1.0
    assert_values(x.grad, [5.0 * factor])
    assert_values(w.grad, [2.0 * factor])


@pytest.mark.parametrize(
    ("returned", "count"),
    [(lambda gx, gw: (gx,), 1), (lambda gx, gw: (gx, gw, None, None), 4), (lambda gx, gw: (), 0)],
)
def test_another_number_of_gradients_raises_naming_both_counts(returned, count):
    x, w = leaf(2.0), leaf(5.0)
    with pytest.raises(AutogradError) as caught:
        weighted(returned).apply(x, w, 2.0).backward()
    message = str(caught.value)
    assert f"{count} gradient" in message
    assert "the tensor arguments are x, w (2)" in message
    assert "all arguments are x, w, scale (3)" in message


def test_a_gradient_for_a_non_tensor_argument_raises():
    with pytest.raises(AutogradError, match="`scale`, which holds no tensor"):
        weighted(lambda gx, gw: (gx, gw, gx)).apply(leaf(2.0), leaf(5.0), 2.0).backward()


def test_a_dict_with_an_unknown_name_raises_with_a_suggestion():
    returned = weighted(lambda gx, gw: {"x": gx, "w": gw, "scal": None})
    with pytest.raises(AutogradError, match=r"'scal', no argument \(did you mean 'scale'\?\)"):
        returned.apply(leaf(2.0), leaf(5.0)).backward()


def test_a_dict_must_have_every_name_that_needs_a_gradient():
    with pytest.raises(AutogradError, match="no gradient returned for `w`"):
        weighted(lambda gx, gw: {"x": gx}).apply(leaf(2.0), leaf(5.0)).backward()


def test_a_dict_may_leave_out_a_stopped_argument_and_say_none():
    x, w = leaf(2.0), tensor(5.0)
    weighted(lambda gx, gw: {"x": gx}).apply(x, w).backward()
    assert_values(x.grad, [5.0])
    x, w = leaf(2.0), leaf(5.0)
    weighted(lambda gx, gw: {"x": gx, "w": None}).apply(x, w).backward()
    assert w.grad is None


def test_an_empty_tuple_for_an_input_that_needs_a_gradient_raises():
    with pytest.raises(AutogradError, match="0 gradients returned"):
        layer(lambda ctx, x: x * 2, lambda ctx, g: ()).apply(leaf(1.0)).backward()


def test_a_bare_none_for_the_only_input_leaves_grad_none():
    x = leaf(1.0)
    layer(lambda ctx, x: x * 2, lambda ctx, g: None).apply(x).backward()
    assert x.grad is None


def test_a_list_for_two_tensor_arguments_raises_and_suggests_a_tuple():
    with pytest.raises(AutogradError, match="return a tuple"):
        weighted(lambda gx, gw: [gx, gw]).apply(leaf(2.0), leaf(5.0)).backward()


@pytest.mark.parametrize("value", ["text", np.ones(1), (1,), [1.0], 1.5])
def test_a_gradient_that_is_no_tensor_raises_naming_argument_and_type(value):
    with pytest.raises(AutogradError, match="argument `w` must be a Tensor") as caught:
        weighted(lambda gx, gw: (gx, value)).apply(leaf(2.0), leaf(5.0)).backward()
    assert type(value).__name__ in str(caught.value)


def test_a_float_is_a_gradient_for_a_0d_input():
    x = oplib.tensor(2.0).requires_grad_()
    layer(lambda ctx, x: x * 2, lambda ctx, g: 2.5).apply(x).backward()
    assert_values(x.grad, 2.5)


def test_a_gradient_broadcast_from_the_input_is_summed_to_it():
    x, w = leaf(2.0), tensor(1.0, 2.0, 3.0)
    weighted(lambda gx, gw: (gx, None)).apply(x, w).backward()
    assert_values(x.grad, [6.0])


def test_a_gradient_of_another_shape_raises_with_expected_and_got():
    with pytest.raises(AutogradError) as caught:
        layer(lambda ctx, x: x * 2, lambda ctx, g: tensor(1.0, 2.0)).apply(leaf(1, 2, 3)).backward()
    assert "argument `x`" in str(caught.value)
    assert "expected  [3]" in str(caught.value)
    assert "got       [2]" in str(caught.value)


def test_a_gradient_is_cast_to_the_dtype_of_its_input():
    x = leaf(1.0, dtype="float32")
    layer(lambda ctx, x: x * 2, lambda ctx, g: tensor(7.0)).apply(x).backward()
    assert x.grad.dtype == np.float32
    x = leaf(1.0)
    layer(lambda ctx, x: x * 2, lambda ctx, g: tensor(3 + 4j, dtype=complex)).apply(x).backward()
    assert_values(x.grad, [3.0])
    assert x.grad.dtype == np.float64


# ---------------------------------------------------------------------- containers


def test_a_list_input_takes_a_list_a_tuple_or_none():
    def forward(ctx, xs):
        return xs[0] + xs[1] * 2

    for value in ([tensor(10.0), tensor(20.0)], (tensor(10.0), tensor(20.0))):
        a, b = leaf(1.0), leaf(2.0)
        layer(forward, lambda ctx, g, value=value: (value,)).apply([a, b]).backward()
        assert_values(a.grad, [10.0])
        assert_values(b.grad, [20.0])
    a, b = leaf(1.0), leaf(2.0)
    layer(forward, lambda ctx, g: None).apply([a, b]).backward()
    assert a.grad is None


def test_a_stopped_first_member_of_a_list_does_not_stop_the_others():
    a, b = tensor(1.0), leaf(2.0)
    layer(lambda ctx, xs: xs[0] * xs[1], lambda ctx, g: [None, g * 3]).apply([a, b]).backward()
    assert_values(b.grad, [3.0])


def test_a_list_of_the_wrong_length_raises_with_both_structures():
    forward, backward = lambda ctx, xs: xs[0] + xs[1], lambda ctx, g: [g, g, g]
    with pytest.raises(AutogradError, match=r"`xs` must be a list of 2, got a list of 3"):
        layer(forward, backward).apply([leaf(1.0), leaf(2.0)]).backward()


def test_a_dict_of_lists_three_levels_deep_is_tracked_and_mirrored():
    def forward(ctx, tree):
        ctx.needs = ctx.needs_input_grad
        return tree["a"][0] * tree["b"]["c"][1]

    def backward(ctx, g):
        assert ctx.needs == ({"a": [True], "b": {"c": [False, True]}},)
        return {"a": [g * 7], "b": {"c": [None, g * 5]}}

    a, c = leaf(2.0), leaf(3.0)
    # a dict is read as gradients by argument name, so the only argument's value goes in a tuple
    wrapped = layer(forward, lambda ctx, g: (backward(ctx, g),))
    wrapped.apply({"a": [a], "b": {"c": ["text", c]}}).backward()
    assert_values(a.grad, [7.0])
    assert_values(c.grad, [5.0])


@pytest.mark.parametrize("value", [lambda g: [g, None, None], lambda g: [g]])
def test_non_tensors_of_a_list_are_none_or_left_out_in_its_gradient(value):
    x = leaf(1.0)
    layer(lambda ctx, xs: xs[0] * xs[1], lambda ctx, g: (value(g),)).apply([x, 3, None]).backward()
    assert_values(x.grad, [1.0])


def test_tensors_in_an_ordered_dict_are_tracked():
    x = leaf(1.0)
    backward = lambda ctx, g: ({"x": g * 4},)  # noqa: E731
    layer(lambda ctx, d: d["x"] * 2, backward).apply(OrderedDict(x=x)).backward()
    assert_values(x.grad, [4.0])


def test_var_positional_arguments_count_one_each_and_keywords_by_name():
    def forward(ctx, first, *rest, **named):
        return first + rest[0] + rest[1] + named["last"]

    names = ["first", "rest[0]", "rest[1]", "last"]
    given = [leaf(1.0) for _ in names]
    backward = lambda ctx, g: {name: g * (i + 1) for i, name in enumerate(names)}  # noqa: E731
    layer(forward, backward).apply(*given[:3], last=given[3]).backward()
    for i, x in enumerate(given):
        assert_values(x.grad, [i + 1.0])


def test_a_call_that_does_not_fit_forward_is_an_argument_error_with_the_signature():
    with pytest.raises(ArgumentError, match=r"forward\(x: .*scale"):
        Weighted.apply(leaf(1.0))


@pytest.mark.parametrize("value", [None, 5, {}, np.ones(2), "text", [None, 3]])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_forward_without_any_tensor_output_raises(value, enabled):
    with (
        oplib.set_grad_enabled(enabled),
        pytest.raises(AutogradError, match="must return a Tensor"),
    ):
        layer(lambda ctx, x: value, lambda ctx, g: g).apply(leaf(1.0))


# ---------------------------------------------------------------------- outputs


def test_container_types_of_outputs_are_kept():
    marker = object()

    def forward(ctx, x):
        return [None, x * 2], (x * 3,), Pair(x * 4, marker), {"k": x * 5}

    a, b, c, d = layer(forward, lambda ctx, *g: None).apply(leaf(1.0))
    assert type(a) is list
    assert a[0] is None
    assert type(b) is tuple
    assert type(c) is Pair
    assert c.second is marker
    assert type(d) is dict
    assert all(t.requires_grad for t in (a[1], b[0], c.first, d["k"]))


def test_a_list_return_is_one_gradient_argument_and_a_namedtuple_is_several():
    seen = []

    def backward(ctx, *grads):
        seen.append(grads)
        return grads[0][0] if isinstance(grads[0], list) else grads[0]

    x = leaf(1.0)
    outputs = layer(lambda ctx, x: [x * 1, x * 2, x * 3], backward).apply(x)
    outputs[1].backward()
    (grads,) = seen.pop()
    assert [g.numpy().tolist() for g in grads] == [[0.0], [1.0], [0.0]]
    outputs = layer(lambda ctx, x: Pair(x * 1, x * 2), backward).apply(x)
    outputs.second.backward()
    assert [g.numpy().tolist() for g in seen.pop()] == [[0.0], [1.0]]


def test_a_one_tuple_stays_a_one_tuple():
    result = layer(lambda ctx, x: (x * 2,), lambda ctx, g: g * 2).apply(leaf(1.0))
    assert type(result) is tuple
    result[0].backward()


def test_a_dict_return_is_one_gradient_and_nested_outputs_are_mirrored():
    seen = []

    def forward(ctx, x):
        return {"a": x * 2, "b": [x * 3, "text", (x * 4, None)]}

    def backward(ctx, grads):
        seen.append(grads)
        return grads["a"] * 2 + grads["b"][0] * 3 + grads["b"][2][0] * 4

    x = leaf(1.0)
    result = layer(forward, backward).apply(x)
    (result["a"] + result["b"][2][0] * 10).backward()
    (grads,) = seen
    assert grads["b"][1] is None
    assert grads["b"][2][1] is None
    assert_values(grads["b"][0], [0.0])
    assert_values(x.grad, [42.0])


def test_a_backward_that_names_every_output_gets_none_for_non_tensors():
    def backward(ctx, first, second, third):
        assert second is None
        return first * 2 + third * 3

    x = leaf(1.0)
    a, _, b = layer(lambda ctx, x: (x * 2, "text", x * 3), backward).apply(x)
    (a + b).backward()
    assert_values(x.grad, [5.0])


def test_a_missing_forward_is_a_dispatch_error_from_apply():
    with pytest.raises(DispatchError, match="forward"):
        type("Empty", (PyLayer,), {}).apply(leaf(1.0))


def test_a_missing_backward_is_a_dispatch_error_when_a_gradient_arrives():
    only_forward = type("Half", (PyLayer,), {"forward": staticmethod(lambda ctx, x: x * 2)})
    y = only_forward.apply(leaf(1.0))
    with pytest.raises(DispatchError, match="backward") as caught:
        y.backward()
    assert any("GradNodePyLayer_Half" in note for note in caught.value.__notes__)


def test_nothing_is_recorded_for_stopped_inputs_or_under_no_grad():
    made = []

    def forward(ctx, x):
        made.append(x * 2)
        return made[-1]

    def backward(ctx):
        raise AssertionError("never called")

    y = layer(forward, backward).apply(tensor(1.0))
    assert y is made[-1]
    assert y.stop_gradient
    with oplib.no_grad():
        y = layer(forward, backward).apply(leaf(1.0))
    assert y is made[-1]
    assert y.grad_fn is None


def test_integer_and_bool_outputs_never_require_grad():
    def forward(ctx, x):
        return x * 2, x > 0, x.cast("int64")

    def backward(ctx, g, h, k):
        assert h.dtype == bool
        assert k.dtype == np.int64
        return g * 2

    x = leaf(1.0)
    y, flag, number = layer(forward, backward).apply(x)
    assert (y.requires_grad, flag.requires_grad, number.requires_grad) == (True, False, False)
    y.backward()
    assert_values(x.grad, [2.0])


def test_every_float_output_requires_grad_whatever_forward_says():
    def forward(ctx, x):
        out = x * 2
        out.stop_gradient = True
        return out, oplib.ones(3)

    y, constant = layer(forward, lambda ctx, g, h: g).apply(leaf(1.0))
    assert y.requires_grad
    assert constant.requires_grad


def test_a_backward_whose_outputs_are_all_non_differentiable_is_never_called():
    def forward(ctx, x):
        y = x * 2
        ctx.mark_non_differentiable(y)
        return y

    y = layer(forward, lambda ctx: 1 / 0).apply(leaf(1.0))
    assert y.grad_fn is None
    assert y.stop_gradient


@pytest.mark.parametrize("through_grad", [True, False])
def test_a_non_differentiable_output_arrives_as_zeros(through_grad):
    def forward(ctx, x):
        y, z = x * 2, x * 3
        ctx.mark_non_differentiable(z)
        return y, z

    def backward(ctx, g, h):
        assert_values(h, [0.0])
        return g * 2

    x = leaf(1.0)
    y, z = layer(forward, backward).apply(x)
    assert (z.grad_fn, z.stop_gradient) == (None, True)
    loss = y + z
    gradient = oplib.grad(loss, x)[0] if through_grad else (loss.backward(), x.grad)[1]
    assert_values(gradient, [2.0])


def test_marking_something_that_is_no_output_raises():
    def forward(ctx, x):
        ctx.mark_non_differentiable(x * 1)
        return x * 2

    with pytest.raises(AutogradError, match="no output"):
        layer(forward, lambda ctx, g: g).apply(leaf(1.0))


def test_unused_outputs_arrive_as_zeros_of_their_shape_and_dtype():
    def forward(ctx, x):
        return x * 2, oplib.zeros([2, 3], dtype="float32")

    def backward(ctx, g, h):
        assert (h.shape, h.dtype) == ((2, 3), np.float32)
        assert_values(h, np.zeros((2, 3)))
        return g

    layer(forward, backward).apply(leaf(1.0))[0].backward()


def test_unused_outputs_arrive_as_none_where_asked_for():
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        assert ctx.materialize_grads is False
        return x * 2, x * 3, [x * 4, x * 5]

    def backward(ctx, g, h, k):
        assert h is None
        assert k == [None, None]
        return g

    layer(forward, backward).apply(leaf(1.0))[0].backward()


def test_the_zeros_of_a_huge_output_take_no_memory():
    huge = np.broadcast_to(np.zeros(1), (10**8,))

    def backward(ctx, g, h):
        assert h.shape == (10**8,)
        assert h.array.strides == (0,)
        return g

    forward = lambda ctx, x: (x * 2, oplib.from_numpy(huge))  # noqa: E731
    layer(forward, backward).apply(leaf(1.0))[0].backward()


@pytest.mark.parametrize("value", [1, None, "yes"])
@pytest.mark.parametrize("setter", ["set_materialize_grads", "set_grad_in_dtype_consistent"])
def test_flags_of_ctx_are_strictly_bool(setter, value):
    forward = lambda ctx, x: getattr(ctx, setter)(value)  # noqa: E731
    with pytest.raises(ArgumentError, match=f"{setter} takes a bool"):
        layer(forward, lambda ctx, g: g).apply(leaf(1.0))


@pytest.mark.parametrize(("consistent", "dtype"), [(True, "float32"), (False, "float64")])
def test_the_dtype_of_an_arriving_gradient_is_the_outputs_unless_told_otherwise(consistent, dtype):
    def forward(ctx, x):
        ctx.set_grad_in_dtype_consistent(consistent)
        return x * 2

    def backward(ctx, g):
        assert g.dtype == dtype
        return g

    doubled = layer(forward, backward).apply(leaf(1.0, dtype="float32"))
    layer(lambda ctx, x: x * 2, lambda ctx, g: tensor(1.0)).apply(doubled).backward()


@pytest.mark.parametrize("second_path", [True, False])
def test_none_returned_into_a_producer_is_no_contribution(second_path):
    x = leaf(3.0)
    y = x * 2
    z = layer(lambda ctx, y: y * 5, lambda ctx, g: None).apply(y)
    loss = z + y * 7 if second_path else z
    loss.backward()
    if second_path:
        assert_values(x.grad, [14.0])
    else:
        assert x.grad is None


# ---------------------------------------------------------------------- classes


def test_class_methods_serve_and_subclasses_inherit_either():
    class Base(PyLayer):
        factor = 2.0

        @classmethod
        def forward(cls, ctx, x):
            return x * cls.factor

        @classmethod
        def backward(cls, ctx, g):
            return g * cls.factor

    class Backward(Base):
        @classmethod
        def backward(cls, ctx, g):
            return g * 100

    class Factor(Base):
        factor = 3.0

    for cls, expected in ((Base, 2.0), (Backward, 100.0), (Factor, 3.0), (Base, 2.0)):
        x = leaf(1.0)
        cls.apply(x).backward()
        assert_values(x.grad, [expected])


def test_a_forward_that_is_replaced_on_the_class_is_used():
    Layer = layer(lambda ctx, x: x * 2, lambda ctx, g: g)  # noqa: N806
    assert_values(Layer.apply(leaf(1.0)), [2.0])
    Layer.forward = staticmethod(lambda ctx, x, y=3: x * y)
    assert_values(Layer.apply(leaf(1.0)), [3.0])


def test_with_setup_context_forward_takes_no_ctx():
    class Cube(PyLayer):
        @staticmethod
        def forward(x, scale=2.0):
            return x * x * x * scale

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, ctx.scale = inputs
            assert not oplib.autograd.is_grad_enabled()
            assert ctx.needs_input_grad == (True, False)
            ctx.needs_then = ctx.needs_input_grad
            ctx.save_for_backward(x)

        @staticmethod
        def backward(ctx, g):
            assert ctx.needs_input_grad == ctx.needs_then
            (x,) = ctx.saved_tensors
            return g * 3 * x * x * ctx.scale, None

    x = leaf(2.0)
    Cube.apply(x).backward()
    assert_values(x.grad, [24.0])


def test_calling_forward_directly_records_nothing_by_itself():
    class Ctx:
        def save_for_backward(self, *tensors):
            pass

        scale = 1.0

    y = Weighted.forward(Ctx(), tensor(2.0), tensor(3.0))
    assert y.grad_fn is None


def test_a_layer_cannot_be_instantiated():
    with pytest.raises(ArgumentError, match="apply"):
        Weighted()


def test_needs_input_grad_has_an_entry_for_every_argument():
    seen = []

    def forward(ctx, x, xs, flag=True, y=None):
        seen.append(ctx.needs_input_grad)
        return x * xs[1]

    def backward(ctx, g):
        seen.append(ctx.needs_input_grad)
        return g, None

    layer(forward, backward).apply(leaf(1.0), [tensor(1.0), tensor(2.0), None]).backward()
    assert seen == [(True, [False, False, False], False, False)] * 2


def test_the_node_is_named_after_the_class_and_shows_slots_and_ranks():
    def forward(ctx, x, ys):
        return x * 2, [ys[0] * 3, ys[1] * 4]

    Named = type("Named", (layer(forward, lambda ctx, *g: None),), {})  # noqa: N806
    x, a, b = leaf(1.0), leaf(1.0, 2.0), tensor(1.0)
    first, (second, third) = Named.apply(x, [a, b])
    node = first.grad_fn
    assert node is second.grad_fn is third.grad_fn
    assert node.name() == "GradNodePyLayer_Named"
    places = [(t.autograd_meta.slot, t.autograd_meta.rank) for t in (first, second, third)]
    assert places == [(0, 0), (1, 0), (1, 1)]
    assert [[m.shape for m in slot] for slot in node.bwd_in_meta] == [[(1,)], [(2,), (1,)]]
    assert [[m.stop_gradient for m in s] for s in node.bwd_out_meta] == [[False], [False, True]]
    assert node.bwd_out_meta[1][0].shape == (2,)


# ---------------------------------------------------------------------- exceptions


def test_an_exception_in_forward_keeps_its_type_and_the_grad_mode_is_back():
    with pytest.raises(KeyError):
        layer(lambda ctx, x: {}["missing"], lambda ctx, g: g).apply(leaf(1.0))
    assert oplib.autograd.is_grad_enabled()


def test_an_exception_in_nested_backwards_keeps_its_type_and_gets_a_note_per_layer():
    inner = type("Inner", (layer(lambda ctx, x: x * 2, lambda ctx, g: {}["missing"]),), {})

    def backward(ctx, g):
        with oplib.enable_grad():
            x = leaf(1.0)
            inner.apply(x).backward()
        return g

    outer = type("Outer", (layer(lambda ctx, x: x * 2, backward),), {})
    with pytest.raises(KeyError) as caught:
        outer.apply(leaf(1.0)).backward()
    notes = "\n".join(caught.value.__notes__)
    assert "GradNodePyLayer_Inner" in notes
    assert "GradNodePyLayer_Outer" in notes
    assert oplib.autograd.is_grad_enabled()
