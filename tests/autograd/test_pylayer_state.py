"""PyLayer: what ctx saves, writes in place, aliases, hooks and nesting."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import AliasError, ArgumentError, AutogradError, Tensor
from oplib.autograd import PyLayer, once_differentiable
from tests.autograd.helpers import assert_values, leaf, no_collector, tensor
from tests.autograd.test_pylayer_calls import layer


class Cube(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x


class Exp(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = oplib.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensor()
        return grad * y


class Double(PyLayer):
    """Writes its input: x *= 2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


Reverse = layer(lambda ctx, x: x, lambda ctx, g: g * -10)


# ---------------------------------------------------------------------- saving


def test_both_spellings_return_the_same_saved_objects_and_inputs_keep_identity():
    x, w = leaf(2.0), tensor(3.0)

    def forward(ctx, a, b):
        assert ctx.saved_tensor() == ()
        ctx.save_for_backward(a)
        ctx.save_for_backward(a, b, None)
        assert ctx.saved_tensors[0] is a
        return a * b

    def backward(ctx, g):
        assert len(ctx.saved_tensors) == len(ctx.saved_tensor()) == 3
        for saved in (ctx.saved_tensors, ctx.saved_tensor(), ctx.saved_tensors):
            assert saved[0] is x
            assert saved[1] is w
            assert saved[2] is None
        return g * w, None

    layer(forward, backward).apply(x, w).backward()
    assert_values(x.grad, [3.0])


def test_nothing_saved_is_an_empty_tuple_in_backward():
    def backward(ctx, g):
        assert ctx.saved_tensors == ctx.saved_tensor() == ()
        return g

    layer(lambda ctx, x: x * 2, backward).apply(leaf(1.0)).backward()


@pytest.mark.parametrize("value", [3, np.ones(2), "text", [tensor(1.0), 3]])
def test_saving_something_else_than_tensors_is_an_argument_error(value):
    forward = lambda ctx, x: ctx.save_for_backward(value)  # noqa: E731
    with pytest.raises(ArgumentError, match=r"ctx\.name = value"):
        layer(forward, lambda ctx, g: g).apply(leaf(1.0))


def test_nested_lists_of_tensors_and_none_are_kept_as_they_are():
    def forward(ctx, x):
        ctx.save_for_backward([x, None], {"k": (x,)}, None)
        return x * 2

    def backward(ctx, g):
        (first, none), named, last = ctx.saved_tensors
        assert first is named["k"][0] is x
        assert none is last is None
        return g * first

    x = leaf(3.0)
    layer(forward, backward).apply(x).backward()
    assert_values(x.grad, [3.0])


def test_reading_saved_tensors_after_the_release_raises_and_names_retain_graph():
    kept = []

    def forward(ctx, x):
        kept.append(ctx)
        ctx.save_for_backward(x)
        ctx.attribute = x
        return x * 2

    layer(forward, lambda ctx, g: g).apply(leaf(1.0)).backward()
    with pytest.raises(AutogradError, match="retain_graph"):
        kept[0].saved_tensors  # noqa: B018
    with pytest.raises(AutogradError, match="retain_graph"):
        kept[0].attribute  # noqa: B018


@pytest.mark.parametrize("what", ["input", "output", "base of a view"])
def test_writing_to_a_saved_value_after_apply_is_a_version_error(what):
    base = leaf(1.0, 2.0) * 1
    x = base[0:1] if what == "base of a view" else base

    def forward(ctx, x):
        y = x * 2
        ctx.save_for_backward(y if what == "output" else x)
        return y

    def backward(ctx, g):
        ctx.saved_tensors  # noqa: B018
        return g

    y = layer(forward, backward).apply(x)
    loss = y * 1
    with oplib.no_grad():
        (y if what == "output" else base).mul_(2)
    with pytest.raises(
        AutogradError, match=r"saved tensor 0 .* at version 0 .*\(version 1, last by"
    ):
        loss.backward()


def test_saved_then_written_inside_forward_is_a_version_error():
    def forward(ctx, x):
        y = x * 2
        ctx.save_for_backward(y)
        y.mul_(3)
        return y

    with pytest.raises(AutogradError, match="version"):
        layer(forward, lambda ctx, g: ctx.saved_tensors[0]).apply(leaf(1.0)).backward()


def test_written_then_saved_inside_forward_is_fine():
    def forward(ctx, x):
        y = x * 2
        y.mul_(3)
        ctx.save_for_backward(y)
        return y

    x = leaf(1.0)
    layer(forward, lambda ctx, g: ctx.saved_tensors[0]).apply(x).backward()
    assert_values(x.grad, [6.0])


def test_the_third_derivative_of_a_cube_layer_is_6():
    x = leaf(2.0)
    value = Cube.apply(x)
    for expected in (12.0, 12.0, 6.0):
        (value,) = oplib.grad(value, x, create_graph=True)
        assert_values(value, [expected])


def test_a_layer_that_saves_its_output_is_right_to_third_order():
    x = leaf(0.5)
    value = Exp.apply(x)
    for _ in range(3):
        (value,) = oplib.grad(value, x, create_graph=True)
        assert_values(value, np.exp([0.5]))


# ---------------------------------------------------------------------- values with no history


def saving(keep: Any, read: Any) -> type[PyLayer]:
    """Return ``sin(x)**2`` with an intermediate value kept and read back as given."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        s = oplib.sin(x)
        ctx.save_for_backward(x)
        keep(ctx, s, x)
        return s * s

    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x, *_) = ctx.saved_tensors
        return g * 2 * read(ctx) * oplib.cos(x)

    return layer(forward, backward)


SAVED = saving(lambda ctx, s, x: ctx.save_for_backward(x, s), lambda ctx: ctx.saved_tensors[1])
ATTRIBUTE = saving(lambda ctx, s, x: setattr(ctx, "sine", s), lambda ctx: ctx.sine)


@pytest.mark.parametrize(
    ("cls", "name"),
    [(SAVED, "saved tensor 1"), (ATTRIBUTE, "ctx.sine")],
    ids=["saved", "attribute"],
)
def test_an_intermediate_is_right_to_first_order_and_raises_at_the_second(cls, name):
    x = leaf(0.7)
    (g,) = oplib.grad(cls.apply(x), x, create_graph=True)
    assert_values(g, np.sin([1.4]))
    with pytest.raises(AutogradError, match=name) as caught:
        oplib.grad(g, x)
    assert "mark_constant" in str(caught.value)


def test_mark_constant_lifts_the_guard_of_an_intermediate():
    def keep(ctx, s, x):
        ctx.mark_constant(s)
        ctx.save_for_backward(x, s)

    x = leaf(0.7)
    cls = saving(keep, lambda ctx: ctx.saved_tensors[1])
    (g,) = oplib.grad(cls.apply(x), x, create_graph=True)
    (h,) = oplib.grad(g, x)
    assert_values(h, -2 * np.sin([0.7]) ** 2)


def test_saved_masks_of_bool_and_int_are_exempt_from_the_guard():
    def forward(ctx, x):
        ctx.save_for_backward(x, x > 0)
        ctx.count = x.cast("int64")
        return x * x

    def backward(ctx, g):
        x, positive = ctx.saved_tensors
        return g * 2 * x * positive.cast("float64") + 0 * g * ctx.count

    x = leaf(3.0)
    (g,) = oplib.grad(layer(forward, backward).apply(x), x, create_graph=True)
    assert_values(oplib.grad(g, x)[0], [2.0])


class Once(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        assert not oplib.autograd.is_grad_enabled()
        (x,) = ctx.saved_tensors
        return grad * 2 * x


def test_once_differentiable_is_right_once_and_raises_with_the_class_at_the_second():
    x = leaf(3.0)
    assert_values(oplib.grad(Once.apply(x), x)[0], [6.0])
    (g,) = oplib.grad(Once.apply(x), x, create_graph=True)
    assert_values(g, [6.0])
    with pytest.raises(AutogradError, match=r"GradNodePyLayer_Once.*once_differentiable"):
        g.backward()


def test_once_differentiable_also_cuts_the_way_through_the_incoming_gradient():
    x, w = leaf(3.0), leaf(5.0)
    (g,) = oplib.grad(Once.apply(x) * w, x, create_graph=True)
    with pytest.raises(AutogradError, match="once_differentiable"):
        oplib.grad(g, w)


def test_two_backwards_with_retain_graph_double_the_gradient():
    x = leaf(2.0)
    y = Cube.apply(x)
    y.backward(retain_graph=True)
    y.backward()
    assert_values(x.grad, [24.0])
    with pytest.raises(AutogradError, match="retain_graph"):
        y.backward()
    assert_values(x.grad, [24.0])


# ---------------------------------------------------------------------- aliases


@pytest.mark.parametrize("make", [lambda x: x, lambda x: x * 1], ids=["leaf", "non-leaf"])
def test_an_input_returned_unchanged_is_a_new_handle_with_the_layers_gradient(make):
    x = leaf(1.0, 2.0)
    z = make(x)
    before = z.grad_fn
    y = Reverse.apply(z)
    assert y is not z
    assert y._storage is z._storage
    assert z.grad_fn is before
    (y.sum() + z.sum() * 3).backward()
    assert_values(x.grad, [-7.0, -7.0])


def test_a_view_of_an_input_aliases_it_and_a_recorded_write_to_it_raises():
    x = leaf(1.0, 2.0, 3.0, 4.0) * 1
    y = layer(lambda ctx, x: x.reshape(2, 2), lambda ctx, g: g.reshape(4)).apply(x)
    assert y._storage is x._storage
    with pytest.raises(AutogradError, match="PyLayer Layer"):
        y.mul_(2)
    with pytest.raises(AutogradError, match="PyLayer Layer"):
        y[0].mul_(2)
    assert_values(y, [[1, 2], [3, 4]])


def test_an_alias_whose_base_is_written_later_cannot_be_used_any_more():
    z = leaf(1.0) * 1
    y = Reverse.apply(z)
    z.mul_(2)
    for use in (lambda: y * 3, lambda: Cube.apply(y), lambda: y[0:1]):
        with pytest.raises(AliasError, match="PyLayer Layer"):
            use()
    assert y.requires_grad
    with oplib.no_grad():
        assert_values(y * 3, [6.0])


def test_an_alias_of_a_stopped_input_cannot_be_written_to_either():
    w, x = tensor(5.0), leaf(1.0)
    y, _ = layer(lambda ctx, w, x: (w, x * 1), lambda ctx, g, h: (None, h)).apply(w, x)
    with pytest.raises(AutogradError, match="PyLayer Layer"):
        y.mul_(2)


@pytest.mark.parametrize("pack", [lambda x: x, lambda x: (x, x * 2), lambda x: [x]])
def test_mark_not_inplace_gives_an_alias_and_backward_is_called(pack):
    def forward(ctx, x):
        ctx.mark_not_inplace(x)
        return pack(x)

    def backward(ctx, g, *rest):
        return (g[0] if isinstance(g, list) else g) * 7

    x = leaf(1.0)
    result = layer(forward, backward).apply(x)
    y = result if isinstance(result, Tensor) else result[0]
    assert y is not x
    y.backward()
    assert_values(x.grad, [7.0])


def test_a_cached_tensor_that_is_returned_keeps_flag_and_history():
    cached = tensor(5.0)
    with_history = leaf(1.0) * 2
    node = with_history.grad_fn
    forward = lambda ctx, x: (cached, with_history)  # noqa: E731
    a, b = layer(forward, lambda ctx, g, h: g * 2 + h * 3).apply(leaf(1.0))
    assert a is not cached
    assert a._storage is cached._storage
    assert (cached.stop_gradient, cached.grad_fn) == (True, None)
    assert with_history.grad_fn is node
    assert a.grad_fn is b.grad_fn


def test_one_new_tensor_returned_twice_is_two_handles():
    def forward(ctx, x):
        y = x * 2
        return y, y

    x = leaf(1.0)
    a, b = layer(forward, lambda ctx, g, h: g * 2 + h * 20).apply(x)
    assert a is not b
    (a * 1 + b * 3).backward()
    assert_values(x.grad, [62.0])


# ---------------------------------------------------------------------- in place


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("raw", [True, False])
def test_a_written_input_that_is_returned_is_the_same_object_with_one_bump(marked, raw):
    if raw and not marked:
        pytest.skip("a write through a raw array is visible to mark_dirty only")

    def forward(ctx, x):
        if marked:
            ctx.mark_dirty(x)
        if raw:
            x.numpy()[...] *= 2
        else:
            x.mul_(2)
        ctx.save_for_backward(x)
        return x

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        assert_values(x, [6.0])
        return g * 2

    x = leaf(3.0)
    z = x * 1
    y = layer(forward, backward).apply(z)
    assert y is z
    assert z.inplace_version == 1
    assert z.grad_fn.name() == "GradNodePyLayer_Layer"
    (y * 5).backward()
    assert_values(x.grad, [10.0])


def test_what_was_saved_before_a_raw_write_is_a_version_error():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.mark_dirty(x)
        x.numpy()[...] *= 2
        return x

    y = layer(forward, lambda ctx, g: g * ctx.saved_tensors[0]).apply(leaf(3.0) * 1)
    with pytest.raises(AutogradError, match="version"):
        y.backward()


def test_a_layer_in_place_on_a_value_saved_earlier_is_a_version_error_with_both_versions():
    z = leaf(3.0) * 1
    w = z * z
    Double.apply(z)
    with pytest.raises(AutogradError, match=r"version 0 .*\(version 1, last by"):
        w.backward()


@pytest.mark.parametrize("view", [False, True])
def test_mark_dirty_on_a_leaf_raises_at_the_mark(view):
    x = leaf(1.0, 2.0)
    reached = []

    def forward(ctx, x):
        ctx.mark_dirty(x)
        reached.append(1)
        return x

    with pytest.raises(AutogradError, match="leaf that requires grad"):
        layer(forward, lambda ctx, g: g).apply(x[0:1] if view else x)
    assert not reached
    assert_values(x, [1.0, 2.0])
    assert x.inplace_version == 0


def test_mark_dirty_on_a_leaf_is_fine_where_nothing_is_recorded():
    x = leaf(1.0)
    with oplib.no_grad():
        assert Double.apply(x) is x
    assert x.inplace_version == 1
    assert x.is_leaf


def test_an_unmarked_write_to_a_leaf_is_found_after_forward():
    with pytest.raises(AutogradError, match="leaf that requires grad"):
        layer(lambda ctx, x: x.mul_(2), lambda ctx, g: g).apply(leaf(1.0))


def test_mark_dirty_on_something_that_is_no_input_raises():
    def forward(ctx, x):
        ctx.mark_dirty(x * 1)
        return x * 2

    with pytest.raises(AutogradError, match="no input"):
        layer(forward, lambda ctx, g: g).apply(leaf(1.0) * 1)


def test_a_written_input_that_requires_grad_must_be_returned():
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x * 1

    with pytest.raises(AutogradError, match="was not returned"):
        layer(forward, lambda ctx, g: g).apply(leaf(1.0) * 1)


def test_a_written_input_cannot_be_marked_not_inplace():
    def forward(ctx, x):
        ctx.mark_not_inplace(x)
        return x.mul_(2)

    with pytest.raises(AutogradError, match="marked otherwise"):
        layer(forward, lambda ctx, g: g).apply(leaf(1.0) * 1)


def test_a_stopped_buffer_may_be_written():
    buffer, x = tensor(0.0), leaf(3.0)

    def forward(ctx, x, buffer):
        buffer.copy_(x)
        return x * 2

    layer(forward, lambda ctx, g: (g * 2, None)).apply(x, buffer).backward()
    assert_values(buffer, [3.0])
    assert_values(x.grad, [2.0])
    assert buffer.stop_gradient


def test_a_stopped_leaf_written_with_a_tracked_operand_becomes_a_non_leaf():
    buffer, x = tensor(5.0), leaf(3.0)
    layer_ = layer(lambda ctx, b, x: b.mul_(x), lambda ctx, g: (None, g * 5))
    y = layer_.apply(buffer, x)
    assert y is buffer
    assert not buffer.is_leaf
    (buffer * 2).backward()
    assert_values(x.grad, [10.0])


def test_a_layer_in_place_on_a_view_gives_base_and_siblings_right_gradients():
    x = leaf(1.0, 2.0, 3.0)
    base = x * 1
    view, sibling = base[0:2], base[1:3]
    assert Double.apply(view) is view
    (base * tensor(1.0, 10.0, 100.0)).sum().backward(retain_graph=True)
    assert_values(x.grad, [2.0, 20.0, 100.0])
    x.clear_grad()
    sibling.sum().backward(retain_graph=True)
    assert_values(x.grad, [0.0, 2.0, 1.0])
    x.clear_grad()
    view.sum().backward()
    assert_values(x.grad, [2.0, 2.0, 0.0])


def test_retain_grads_follows_a_handle_through_a_layer_in_place():
    z = leaf(3.0) * 1
    z.retain_grads()
    Double.apply(z)
    (z * 5).backward()
    assert_values(z.grad, [5.0])


# ---------------------------------------------------------------------- gradients and hooks


@pytest.mark.parametrize("make", [lambda t: t, lambda t: t * 1], ids=["leaf", "non-leaf"])
def test_returning_one_gradient_for_two_arguments_keeps_them_apart(make):
    add = layer(lambda ctx, a, b: a + b, lambda ctx, g: (g, g))
    a, b = leaf(1.0), leaf(2.0)
    p, q = make(a), make(b)
    (add.apply(p, q) + p * 5).backward()
    assert_values(a.grad, [6.0])
    assert_values(b.grad, [1.0])


@pytest.mark.parametrize("through_grad", [True, False])
@pytest.mark.parametrize(
    "pack", [lambda y: y, lambda y: (y, y * 1), lambda y: [y, y * 1]], ids=["one", "tuple", "list"]
)
def test_a_hook_on_an_output_replaces_what_backward_receives(pack, through_grad):
    def backward(ctx, *grads):
        g = grads[0][0] if isinstance(grads[0], list) else grads[0]
        return g * 2

    x = leaf(1.0)
    result = layer(lambda ctx, x: pack(x * 2), backward).apply(x)
    y = result if isinstance(result, Tensor) else result[0]
    y.register_hook(lambda g: g * 10)
    if through_grad:
        assert_values(oplib.grad(y, x)[0], [20.0])
    else:
        y.backward()
        assert_values(x.grad, [20.0])


def test_backward_inside_backward_works():
    def backward(ctx, g):
        with oplib.enable_grad():
            w = leaf(3.0)
            (w * w).backward()
        return g * w.grad

    x = leaf(1.0)
    layer(lambda ctx, x: x * 6, backward).apply(x).backward()
    assert_values(x.grad, [6.0])


def test_grad_inside_backward_works_under_an_outer_grad():
    def backward(ctx, g):
        with oplib.enable_grad():
            w = leaf(3.0)
            (inner,) = oplib.grad(w * w, w)
        return g * inner

    x = leaf(1.0)
    y = layer(lambda ctx, x: x * 6, backward).apply(x * x)
    assert_values(oplib.grad(y, x)[0], [12.0])


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize("keep", ["attribute", "list", "saved"])
@pytest.mark.parametrize("run", [True, False])
def test_an_output_kept_on_ctx_makes_no_cycle_and_comes_back_with_history(keep, run):
    alive = []

    def forward(ctx, x):
        alive.append(weakref.ref(ctx))
        y = oplib.exp(x)
        if keep == "attribute":
            ctx.y = y
        elif keep == "list":
            ctx.ys = [y, "text"]
        else:
            ctx.save_for_backward(y)
        return y

    def backward(ctx, g):
        if keep == "attribute":
            y = ctx.y
        elif keep == "list":
            y, text = ctx.ys
            assert text == "text"
        else:
            (y,) = ctx.saved_tensors
        if oplib.autograd.is_grad_enabled():
            assert y.grad_fn.name() == "GradNodePyLayer_Layer"
        return g * y

    with no_collector():
        x = leaf(0.5)
        y = layer(forward, backward).apply(x)
        if run:
            (g,) = oplib.grad(y, x, create_graph=True)
            assert_values(oplib.grad(g, x)[0], np.exp([0.5]))
            del g
        del y
        assert alive[0]() is None


def test_a_layer_in_place_makes_no_cycle():
    with no_collector():
        z = leaf(1.0) * 1
        freed = weakref.ref(z)
        Double.apply(z)
        del z
        assert freed() is None


def test_everything_is_freed_when_forward_raises():
    alive = []

    def forward(ctx, x):
        y = x * 2
        alive.append(weakref.ref(y))
        ctx.save_for_backward(y)
        ctx.y = y
        raise KeyError("x")

    with no_collector():
        with contextlib.suppress(KeyError):
            layer(forward, lambda ctx, g: g).apply(leaf(1.0))
        assert alive[0]() is None


def test_saved_values_are_freed_as_soon_as_the_node_has_run():
    alive = []

    def forward(ctx, x):
        y = x * 2
        ctx.save_for_backward(y)
        alive.append(weakref.ref(y._storage))
        return x * 3

    with no_collector():
        x = leaf(1.0)
        y = layer(forward, lambda ctx, g: g).apply(x)
        assert alive[0]() is not None
        y.backward()
        assert alive[0]() is None


# ---------------------------------------------------------------------- other worlds


def test_a_layer_works_on_fake_tensors():
    with oplib.FakeTensorMode() as mode:
        x = mode.from_tensor(tensor(1.0, 2.0)).requires_grad_()
        y = Cube.apply(x)
        y.backward()
        assert y.shape == x.grad.shape == (2,)


def test_a_layer_is_functionalized_through_its_operators():
    def step(x):
        Cube.apply(x * 2).sum().backward()

    x = leaf(1.0, 2.0)
    step(x)
    plain = x.grad.numpy().copy()
    x.clear_grad()
    oplib.functionalize(step)(x)
    assert_values(x.grad, plain)


def test_a_layer_in_place_is_refused_inside_a_functionalized_function():
    with pytest.raises(AutogradError, match="PyLayer Double writes to an input"):
        oplib.functionalize(lambda x: Double.apply(x * 1))(leaf(1.0))


def test_a_layer_is_captured_as_the_operators_of_forward_and_backward():
    def step(x):
        return oplib.grad(Cube.apply(x).sum(), x)[0]

    x = leaf(1.0, 2.0)
    program = oplib.capture(step, x)
    assert_values(program(leaf(3.0, 4.0)), [27.0, 48.0])
