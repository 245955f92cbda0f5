"""Saved tensors: version checks, and the hooks that pack and unpack them."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import oplib
from oplib import ArgumentError, AutogradError, Library, Tensor
from oplib.autograd import saved_tensors_hooks
from tests.autograd.helpers import assert_values, leaf, no_collector, tensor
from tests.autograd.test_pylayer_state import Cube, Exp


def numpy_hooks():
    """Return hooks that keep NumPy copies, and the lists of what they saw."""
    packed, unpacked = [], []

    def pack(t):
        packed.append(t)
        return t.numpy().copy()

    def unpack(array):
        unpacked.append(array)
        return oplib.tensor(array)

    return saved_tensors_hooks(pack, unpack), packed, unpacked


# ---------------------------------------------------------------------- versions


def test_a_saved_value_written_later_is_an_error_that_says_everything():
    x, w = leaf(2.0), leaf(3.0)
    z = w * 1
    y = x * z
    z.add_(1)
    with pytest.raises(AutogradError) as caught:
        y.backward()
    message = str(caught.value)
    for part in (
        "GradNode_std::mul",
        "argument `y`",
        "version 0",
        "version 1",
        "std::add_",
        "clone",
    ):
        assert part in message


def test_writing_first_and_using_then_is_fine():
    x = leaf(2.0)
    z = x * 1
    z.mul_(3)
    (z * z).backward()
    assert_values(x.grad, [36.0])


@pytest.mark.parametrize(
    "use", [lambda z: z + 1, lambda z: z.sum(), lambda z: z[0:1], lambda z: z.reshape(1, 2)]
)
def test_a_write_after_a_use_that_saved_nothing_of_it_is_fine(use):
    x = leaf(2.0, 3.0)
    z = x * 1
    loss = use(z)
    with oplib.no_grad():
        z.mul_(3)
    loss.sum().backward()
    assert x.grad is not None


def test_a_write_through_a_view_or_a_detached_handle_is_seen_by_the_saved_base():
    x = leaf(2.0, 3.0)
    for write in (lambda z: z[0:1].mul_(2), lambda z: z.detach().mul_(2)):
        z = x * 1
        loss = (z * z).sum()
        with oplib.no_grad():
            write(z)
        with pytest.raises(AutogradError, match="version"):
            loss.backward()


def test_saved_values_are_gone_after_the_release():
    x = leaf(2.0)
    y = oplib.exp(x)
    z = y * 3
    z.backward()
    with pytest.raises(AutogradError, match="retain_graph"):
        z.backward()


# ---------------------------------------------------------------------- hooks


def test_numpy_pack_and_unpack_give_equal_gradients_for_every_kind_of_rule():
    with Library("saved_hooks", "DEF") as lib:
        op = lib.define("square(Tensor x) -> Tensor").op
        op.register_kernel("cpu", np.square)

        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.output = output

        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 2 * x + 0 * ctx.output

        op.register_autograd(backward, setup_context=setup_context)

        def f(x):
            y = oplib.exp(x) * x
            y = oplib.stack([y, op(y)]).sum(0)
            return Exp.apply(Cube.apply(y) * 0.01).sum()

        x = leaf(0.3, 0.4)
        f(x).backward()
        plain = x.grad.numpy().copy()
        x.clear_grad()
        hooks, packed, unpacked = numpy_hooks()
        with hooks:
            y = f(x)
        y.backward()
        assert_values(x.grad, plain)
        assert packed
        assert len(packed) == len(unpacked)


def test_pack_is_called_once_per_saved_tensor():
    x, w = leaf(2.0), tensor(3.0)
    for call, count in (
        (lambda: x * w, 1),
        (lambda: x * x, 2),
        (lambda: oplib.exp(x), 1),
        (lambda: x + w, 0),
        (lambda: x.sum(), 0),
        (lambda: w * w, 0),
        (lambda: Cube.apply(x), 1),
        (lambda: Cube.apply(w), 0),
    ):
        hooks, packed, _ = numpy_hooks()
        with hooks:
            call()
        assert len(packed) == count
    hooks, packed, _ = numpy_hooks()
    with hooks, oplib.no_grad():
        x * x
        Cube.apply(x)
    assert not packed


def test_pack_gets_a_handle_without_history_with_grad_off():
    def pack(t):
        assert t.stop_gradient
        assert t.grad_fn is None
        assert not oplib.is_grad_enabled()
        return t

    def unpack(t):
        assert not oplib.is_grad_enabled()
        return t

    x = leaf(2.0)
    with saved_tensors_hooks(pack, unpack):
        y = oplib.exp(x * x)
    (g,) = oplib.grad(y, x, create_graph=True)
    assert_values(g, [4 * np.exp(4.0)])


def test_unpack_is_called_once_per_use_per_run():
    x = leaf(3.0)
    hooks, _, unpacked = numpy_hooks()
    with hooks:
        y = x * x
    y.backward(retain_graph=True)
    assert len(unpacked) == 2
    y.backward()
    assert len(unpacked) == 4
    assert_values(x.grad, [12.0])


def test_the_innermost_pair_acts_and_the_outer_again_afterwards():
    x = leaf(2.0)
    seen = []
    outer = saved_tensors_hooks(lambda t: seen.append("outer") or t, lambda t: t)
    inner = saved_tensors_hooks(lambda t: seen.append("inner") or t, lambda t: t)
    with outer:
        oplib.exp(x)
        with inner:
            oplib.exp(x)
        oplib.exp(x)
    oplib.exp(x)
    assert seen == ["outer", "inner", "outer"]


def test_pairs_are_restored_after_an_exception():
    hooks, packed, _ = numpy_hooks()
    with pytest.raises(KeyError), hooks:
        raise KeyError
    oplib.exp(leaf(1.0))
    assert not packed


@pytest.mark.parametrize(
    "value", [3, np.ones(1), tensor(1.0, 2.0), tensor(1.0, dtype="float32"), None]
)
def test_unpack_must_return_a_tensor_of_the_saved_shape_and_dtype(value):
    with saved_tensors_hooks(lambda t: t, lambda t: value):
        y = oplib.exp(leaf(1.0))
    with pytest.raises(AutogradError, match="the unpack hook must return a Tensor"):
        y.backward()


def test_hooks_must_be_callable():
    with pytest.raises(ArgumentError, match="callable"), saved_tensors_hooks(3, print):
        pass


def test_exceptions_of_pack_and_unpack_keep_their_type():
    def fail(value):
        raise KeyError("hook")

    with pytest.raises(KeyError), saved_tensors_hooks(fail, lambda t: t):
        oplib.exp(leaf(1.0))
    with saved_tensors_hooks(lambda t: t, fail):
        y = oplib.exp(leaf(1.0))
    with pytest.raises(KeyError):
        y.backward()


def test_double_backward_through_unpacked_inputs_and_outputs_is_right():
    x = leaf(0.7)
    hooks, _, _ = numpy_hooks()
    with hooks:
        y = oplib.exp(x) * x * x
        (g,) = oplib.grad(y, x, create_graph=True)
    (h,) = oplib.grad(g, x)
    assert_values(h, np.exp([0.7]) * (0.49 + 4 * 0.7 + 2))


def test_identity_pack_and_a_later_write_is_a_version_error():
    x = leaf(2.0)
    z = x * 1
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        y = z * z
    with oplib.no_grad():
        z.mul_(2)
    with pytest.raises(AutogradError, match="version"):
        y.backward()


def test_a_copying_pack_makes_later_writes_harmless():
    x = leaf(2.0)
    z = x * 1
    hooks, _, _ = numpy_hooks()
    with hooks:
        y = z * z
    with oplib.no_grad():
        z.mul_(2)
    y.backward()
    assert_values(x.grad, [4.0])


def test_none_and_nested_lists_pass_through_hooks():
    class Layer(oplib.PyLayer):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(None, [x, None])
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            first, (x, second) = ctx.saved_tensors
            assert first is second is None
            return grad * x

    x = leaf(5.0)
    hooks, packed, unpacked = numpy_hooks()
    with hooks:
        Layer.apply(x).backward()
    assert (len(packed), len(unpacked)) == (1, 1)
    assert_values(x.grad, [5.0])


def test_packed_objects_are_freed_when_the_node_is_released():
    class Box:
        def __init__(self, t):
            self.t = t

    boxes = []

    def pack(t):
        box = Box(t)
        boxes.append(weakref.ref(box))
        return box

    with no_collector():
        x = leaf(2.0)
        with saved_tensors_hooks(pack, lambda box: box.t):
            y = x * x
            z = Cube.apply(y)
        assert all(box() is not None for box in boxes)
        z.backward()
        assert all(box() is None for box in boxes)


def test_writing_to_the_tensor_inside_pack_raises():
    with (
        pytest.raises(AutogradError, match="pack hook wrote"),
        saved_tensors_hooks(lambda t: t.mul_(2), lambda t: t),
    ):
        oplib.exp(leaf(1.0))


def test_a_saved_output_whose_handle_died_recovers_without_error():
    with no_collector():
        x = leaf(0.5)
        y = oplib.exp(x)
        z = y * 2
        del y
        gc.collect()
        (g,) = oplib.grad(z, x, create_graph=True)
        assert_values(g, 2 * np.exp([0.5]))
        assert_values(oplib.grad(g, x)[0], 2 * np.exp([0.5]))


def test_a_value_that_was_packed_elsewhere_is_not_kept_in_memory():
    x = leaf(1.0, 2.0)
    alive = []

    def pack(tensor):
        alive.append(weakref.ref(tensor.array))
        return tensor.numpy().tobytes()

    with no_collector(), saved_tensors_hooks(pack, lambda b: oplib.tensor(np.frombuffer(b))):
        y = (x + x).exp().sum()
        assert [array() for array in alive] == [None]
        y.backward()
    assert_values(x.grad, 2 * np.exp([2.0, 4.0]))


@pytest.mark.parametrize("pack", [Tensor.numpy, lambda t: {"a": [t.numpy()]}, lambda t: (t, 1)])
def test_a_packed_value_in_the_same_memory_is_version_checked_after_its_tensor_is_gone(pack):
    def unpack(packed):
        value = packed["a"][0] if isinstance(packed, dict) else packed
        return value[0] if isinstance(value, tuple) else oplib.from_numpy(value)

    x = leaf(1.0, 2.0)
    with saved_tensors_hooks(pack, unpack):
        y = (h := x * 2).square().sum()
    h.add_(1.0)
    del h
    with pytest.raises(AutogradError, match=r"version 0 .* \(version 1, last by std::add_\)"):
        y.backward()
