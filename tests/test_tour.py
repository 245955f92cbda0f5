"""Everything on one page: the tour of oplib, as a user would type it."""

from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib import Library, PyLayer, Tensor, custom_op, impl
from oplib.testing import assert_close, gradcheck, gradgradcheck, opcheck

# -- 1. define, impl, call: an operator that writes, on two backends -----------------------------

lib = Library("tour", "FRAGMENT")
lib.define("add_(Tensor(a!) x, Tensor y, *, float alpha=1.0) -> Tensor(a!)")


@impl(lib, "add_", "CPU")
def add_cpu(x, y, *, alpha):
    x += alpha * y  # NumPy arrays


meta_lib = Library("tour", "IMPL", "Meta")


@impl(meta_lib, "add_")
def add_meta(x, y, *, alpha):
    return x  # Tensors without data


def test_a_kernel_writes_the_callers_tensor_and_the_call_returns_it() -> None:
    x = oplib.zeros(2, 2)
    assert oplib.ops.tour.add_(x, oplib.ones(2, 2), alpha=0.5) is x
    assert x.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert x.inplace_version == 1


def test_the_same_operator_runs_without_data() -> None:
    x = oplib.zeros(2, 2, device="meta")
    assert oplib.ops.tour.add_(x, oplib.ones(2, 2, device="meta")) is x
    assert x.inplace_version == 1


# -- 2. the decorator: an operator from a function, its shape rule, its gradient rule ------------


@custom_op("tour::softplus", mutates_args=())
def softplus(x: np.ndarray, beta: float = 1.0) -> np.ndarray:
    """Return a smooth relu."""
    return np.logaddexp(0, beta * x) / beta


@softplus.register_fake
def _(x, beta=1.0):
    return oplib.empty_like(x, dtype=oplib.result_type(x, beta))


softplus.register_vjp(x=lambda grad, x, beta: grad * oplib.sigmoid(beta * x))


def test_the_schema_is_read_off_the_annotations() -> None:
    assert str(softplus.schema) == "tour::softplus(Tensor x, float beta=1.0) -> Tensor"
    assert softplus.__doc__ == "Return a smooth relu."


def test_called_on_arrays_it_still_is_the_function() -> None:
    assert isinstance(softplus(np.zeros(2)), np.ndarray)


def test_kernel_shape_rule_and_gradient_rule_agree() -> None:
    report = opcheck(softplus, (oplib.tensor([-1.0, 0.5, 2.0]), 2.0))
    assert {report[name].status for name in ("mutation", "fake", "gradient")} == {"passed"}


def test_its_gradients_agree_with_numeric_differences_to_second_order() -> None:
    x = oplib.tensor([-1.0, 0.5, 2.0], requires_grad=True)
    assert gradcheck(softplus, (x, 2.0))
    assert gradgradcheck(softplus, (x, 2.0))


def test_on_fakes_only_its_shape_rule_runs() -> None:
    with oplib.FakeTensorMode():
        assert softplus(oplib.zeros(1_000_000, 1_000_000)).shape == (1_000_000, 1_000_000)


def test_a_wrong_argument_is_named_with_the_signature() -> None:
    with pytest.raises(oplib.ArgumentError, match="`beta` must be float, got str '2'") as caught:
        softplus(oplib.ones(2), beta="2")
    assert str(softplus.schema) in str(caught.value)


# -- 3. PyLayer, in Paddle's words ---------------------------------------------------------------


class SquaredReLU(PyLayer):
    @staticmethod
    def forward(ctx, x):
        y = oplib.relu(x)
        ctx.save_for_backward(y)
        return y * y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensor()
        return dy * 2 * y


def test_a_layer_on_top_of_an_operator_is_differentiated_through_both() -> None:
    x = oplib.tensor([[1.0, -2.0], [3.0, 4.0]], stop_gradient=False)
    SquaredReLU.apply(softplus(x, beta=2.0)).sum().backward()
    value = np.logaddexp(0, 2 * x.numpy()) / 2
    assert_close(x.grad, 2 * value / (1 + np.exp(-2 * x.numpy())))


# -- 4. capture: in-place through a view becomes a pure graph --------------------------------------


def f(a: Tensor, b: Tensor) -> Tensor:
    c = a * 2
    c[0].add_(b)  # a built-in, through a view
    oplib.ops.tour.add_(c.T, a)  # ours, through another
    a[1, 0] = 7.0  # and an argument is written
    return c.sum()


def arguments() -> tuple[Tensor, Tensor]:
    return oplib.tensor([[1.0, 2.0], [3.0, 4.0]]), oplib.tensor([10.0, 20.0])


GRAPH = """\
graph f(a: f64[2,2], b: f64[2]):
    mul: f64[2,2] = std.mul(a, 2)
    strided_get: f64[2] = std.strided_get(mul, [2], [1], 0)
    add: f64[2] = std.add(strided_get, b)
    mul_1: f64[2,2] = std.strided_put(mul, add, [2], [1], 0)
    mul_2: f64[2,2] = functionalized(tour.add_, &mul_1[2, 2]:[1, 2]+0, a)
    full: f64[] = std.full([], 7.0, dtype=f64)
    a_1: f64[2,2] = std.strided_put(a, full, [], [], 2)
    sum: f64[] = std.sum(mul_2)
    write a = a_1
    return sum"""


def test_the_captured_graph_has_no_operator_that_writes() -> None:
    assert str(oplib.capture(f, *arguments())) == GRAPH


def test_the_program_returns_and_leaves_behind_what_the_function_does() -> None:
    program = oplib.capture(f, *arguments())
    eager, replayed = arguments(), arguments()
    assert_close(program(*replayed), f(*eager))
    assert_close(replayed, eager)
    assert replayed[0][1, 0].item() == 7.0


def test_capture_reads_no_data_and_writes_none() -> None:
    a, b = arguments()
    oplib.capture(f, a, b)
    assert_close([a, b], list(arguments()))
    assert a.inplace_version == 0


def test_a_program_refuses_arguments_it_was_not_captured_for() -> None:
    program = oplib.capture(f, *arguments())
    with pytest.raises(oplib.GuardError, match=r"args\[1\]: shape: expected \(2,\), found \(3,\)"):
        program(oplib.ones(2, 2), oplib.ones(3))


def test_the_text_of_a_graph_parses_back() -> None:
    graph = oplib.capture(f, *arguments()).graph
    assert oplib.graph.parse(str(graph)) == graph


def test_gradients_flow_through_writes_to_views() -> None:
    x = oplib.ones(2, 3, requires_grad=True)
    h = x * 1
    h[0].mul_(5.0)
    h.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[5.0, 5.0, 5.0], [1.0, 1.0, 1.0]]


# -- 5. what happens in a call -------------------------------------------------------------------


def test_explain_shows_the_five_steps_with_the_place_of_every_rule() -> None:
    text = oplib.explain(softplus, oplib.ones(2, requires_grad=True))
    steps = [line.split()[1] for line in text.splitlines() if line[0] in "①②③④⑤"]
    assert steps == ["bind", "autocast", "autograd", "backend", "kernel"]
    assert "key set {Autograd, CPU}" in text
    assert text.count("test_tour.py:") >= 3


def test_a_mode_sees_every_call() -> None:
    seen = []

    class Names(oplib.DispatchMode):
        def handle(self, op, args, kwargs):
            seen.append(op.qualname)
            return op(*args, **kwargs)

    with Names():
        f(*arguments())
    assert seen[0] == "std::mul"
    assert {"std::add_", "tour::add_", "std::sum"} <= set(seen)
