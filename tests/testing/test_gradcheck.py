"""gradcheck accepts right gradients and rejects wrong ones, and says when it cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oplib
from oplib import Library
from oplib.errors import ArgumentError, AutogradError, OpCheckError
from oplib.testing import gradcheck, gradgradcheck
from oplib.testing.report import GradCheckReport
from tests.testing.analytic import FUNCTIONS, Analytic
from tests.testing.helpers import leaf, operator, scope, tensor, wrap

rng = np.random.default_rng(7)


@pytest.fixture
def lib() -> Iterator[Library]:
    with scope() as library:
        yield library


def failed(function: Callable[..., Any], *inputs: Any, **options: Any) -> GradCheckReport:
    """Return the report of a check that must fail."""
    report = gradcheck(function, inputs, raise_exception=False, **options)
    assert report.status == "failed", str(report)
    return report


def analytic_operator(lib: Library, function: Analytic, error: float = 0.0) -> Any:
    rule = wrap(lambda grad, x: function.gradient(grad, x) * (1 + error))
    vjp = {"x": lambda grad, x: rule(grad, x)}
    return operator(lib, "f(Tensor x) -> Tensor", lambda x: np.asarray(function.value(x)), vjp=vjp)


def analytic_input(function: Analytic) -> Any:
    values = np.linspace(0.25, 0.85, 4).reshape(2, 2)
    return leaf(values + 1j * values.T - 0.4j if function.kind[0] == "C" else values)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f"{f.kind} {f.name}")
def test_known_gradients_pass_and_an_error_of_a_thousandth_fails(
    lib: Library, function: Analytic
) -> None:
    x = analytic_input(function)
    assert gradcheck(analytic_operator(lib, function), (x,))
    with oplib.override("t::f"):
        failed(analytic_operator(lib, function, 1e-3), x)


def test_there_are_a_hundred_known_gradients_of_all_four_kinds() -> None:
    assert len(FUNCTIONS) >= 100
    assert {f.kind for f in FUNCTIONS} == {"R->R", "C->C", "C->R", "R->C"}


@pytest.mark.parametrize("seed", range(10))
def test_random_directions_catch_an_error_of_one_percent_of_the_norm(
    lib: Library, seed: int
) -> None:
    error = rng.standard_normal(10_000)
    error *= 0.01 * 100 / np.linalg.norm(error)
    rule = wrap(lambda grad, x: grad * np.cos(x) + error)
    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: np.asarray(np.sin(x).sum()),
        vjp={"x": lambda grad, x: rule(grad, x)},
    )
    report = failed(op, leaf(rng.standard_normal(10_000)), seed=seed)
    assert not report.full


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_one_wrong_element_of_many_is_caught_in_full_mode(lib: Library, count: int) -> None:
    def wrong(grad: Any, x: Any) -> Any:
        g = grad * 2 * x
        g[count // 3] *= 1.5
        return g

    rule = wrap(wrong)
    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: np.asarray(np.dot(x, x)),
        vjp={"x": lambda grad, x: rule(grad, x)},
    )
    report = failed(op, leaf(rng.uniform(0.5, 1, count)), full=True)
    assert f"x[{count // 3}]" in str(report)


def test_counts_are_four_evaluations_per_direction_and_a_backward_per_gradient() -> None:
    x = leaf(rng.standard_normal(500))
    report = gradcheck(lambda x: oplib.sin(x), (x,))
    assert (report.evaluations, report.backward_runs, report.entries) == (32, 8, 64)
    report = gradcheck(lambda x: oplib.sin(x), (leaf([0.5, 1.5]),))
    assert (report.full, report.evaluations, report.backward_runs) == (True, 8, 2)


def test_every_input_is_also_moved_alone() -> None:
    calls: list[tuple[bool, bool]] = []
    x, y = leaf(rng.standard_normal(300)), leaf(rng.standard_normal(300))

    def function(a: Any, b: Any) -> Any:
        moved = not np.array_equal(a.detach().numpy(), x.detach().numpy())
        calls.append((moved, not np.array_equal(b.detach().numpy(), y.detach().numpy())))
        return a * b

    gradcheck(function, (x, y))
    assert {(True, True), (True, False), (False, True)} <= set(calls)


def test_single_precision_accepts_right_and_rejects_an_error_of_a_tenth(lib: Library) -> None:
    x = leaf(rng.standard_normal((3, 2)), np.float32)
    right = wrap(lambda grad, x: (grad * np.cos(x)).astype(np.float32))
    op = operator(lib, "f(Tensor x) -> Tensor", np.sin, vjp={"x": lambda grad, x: right(grad, x)})
    assert gradcheck(op, (x,), upcast=False)
    wrong = wrap(lambda grad, x: (1.1 * grad * np.cos(x)).astype(np.float32))
    with oplib.override("t::f"):
        op = operator(
            lib, "f(Tensor x) -> Tensor", np.sin, vjp={"x": lambda grad, x: wrong(grad, x)}
        )
        failed(op, x, upcast=False)


def test_a_kernel_for_single_precision_only_is_checked_in_single_precision(lib: Library) -> None:
    rule = wrap(lambda grad, x: (grad * np.cos(x)).astype(np.float32))
    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        np.sin,
        vjp={"x": lambda grad, x: rule(grad, x)},
        entry={"dtypes": "float32"},
    )
    assert gradcheck(op, (leaf([0.5, 1.0], np.float32),))


def test_what_the_function_raises_is_raised() -> None:
    def function(x: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        gradcheck(function, (leaf([1.0]),))


# ---------------------------------------------------------------------- kinks and noise


def test_entries_at_a_kink_are_left_out_and_counted() -> None:
    report = gradcheck(oplib.relu, (leaf([-1.0, 0.0, 0.5, 2.0]),))
    assert report
    assert report.left_out == 1
    assert "1 at kinks left out" in str(report)


def test_a_tie_of_max_is_a_kink() -> None:
    x = leaf([[1.0, 1.0, 0.0], [0.5, 0.2, 0.1], [3.0, -1.0, 2.0], [0.0, 0.4, 4.0]])
    report = gradcheck(lambda x: oplib.max(x, [1]), (x,))
    assert report
    assert report.left_out == 2


def test_all_entries_at_kinks_are_inconclusive() -> None:
    report = gradcheck(oplib.relu, (leaf([0.0, 0.0, 0.0]),))
    assert report.status == "skipped"
    assert not report
    assert "kink" in report.reason


def test_results_at_kinks_are_left_out_of_random_directions() -> None:
    values = rng.standard_normal(400)
    values[17] = 0.0
    report = gradcheck(oplib.relu, (leaf(values),))
    assert report
    assert report.left_out == 1
    assert not gradcheck(oplib.relu, (leaf(np.zeros(400)),))


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_noisy_function_never_passes(lib: Library, seed: int, full: bool) -> None:
    noise = np.random.default_rng(seed)
    rule = wrap(lambda grad, x: grad * 2 * x)
    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: x * x + 1e-6 * noise.standard_normal(x.shape),
        vjp={"x": lambda grad, x: rule(grad, x)},
    )
    report = gradcheck(
        op, (leaf([0.5, 1.0, 2.0]),), full=full, nondet_tol=1e-3, raise_exception=False
    )
    assert report.status in ("skipped", "failed")


def test_a_random_function_fails(lib: Library) -> None:
    noise = np.random.default_rng(0)
    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: x + noise.standard_normal(x.shape),
        vjp={"x": lambda grad: grad},
    )
    assert "differs between two evaluations" in str(failed(op, leaf([1.0])))


def test_a_function_that_is_not_finite_is_inconclusive_with_the_point() -> None:
    with np.errstate(all="ignore"):
        report = gradcheck(oplib.log, (leaf([-1.0, 2.0]),))
    assert report.status == "skipped"
    assert "not finite" in report.reason
    assert "-1." in report.reason


def test_a_jump_at_the_point_is_checked_near_it_and_noted() -> None:
    report = gradcheck(lambda x: oplib.sign(x) + x, (leaf([0.0, 1.0]),))
    assert report
    assert "checked near the given point, which is inconclusive" in str(report)


# ---------------------------------------------------------------------- hints


def matmul_right(grad: Any, x: Any, w: Any) -> tuple[Any, Any]:
    return grad @ w.T, x.T @ grad


W = rng.standard_normal((3, 3))
X = rng.standard_normal((3, 3))
Z = rng.standard_normal((2, 3)) + 1j * rng.standard_normal((2, 3))


def pair(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fused rule of two arguments from one on arrays."""

    def fused(grad: Any, x: Any, y: Any) -> Any:
        g, a, b = (t.detach().numpy() for t in (grad, x, y))
        return tuple(tensor(part) for part in rule(g, a, b))

    return fused


BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, Any], str]] = {
    "factor": (np.multiply, lambda g, x, y: (1.5 * g * y, g * x), (X, W), "factor 3/2"),
    "sign": (np.subtract, lambda g, x, y: (g, g), (X, W), "factor -1: the sign"),
    "jvp": (np.matmul, lambda g, x, y: (g @ y, x.T @ g), (X, W), "JVP"),
    "transposed": (
        np.matmul,
        lambda g, x, y: ((g @ y.T).T, x.T @ g),
        (X, W),
        "the gradient is transposed",
    ),
    "mean": (
        np.multiply,
        lambda g, x, y: (g * y, (g * x).mean(axis=0)),
        (rng.standard_normal((4, 3)), rng.standard_normal(3)),
        "factor 1/4: the mean over 4 elements",
    ),
    "sum": (
        lambda x, y: (x * y).mean(axis=0),
        lambda g, x, y: (g * y, g * x),
        (rng.standard_normal((5, 3)), rng.standard_normal((5, 3))),
        "factor 5: the sum over 5 elements",
    ),
    "conjugate": (np.multiply, lambda g, x, y: (g * y, g * x.conj()), (Z, Z + 1), "conjugate"),
    "conjugate of a real argument": (
        np.multiply,
        lambda g, x, y: (g * y, (g * x).real),
        (Z, Z.real.copy()),
        "conjugate",
    ),
    "zero": (np.multiply, lambda g, x, y: (g * y, 0 * x), (X, W), "returns zero"),
    "order": (np.multiply, lambda g, x, y: (g * x, g * y), (X, W), "wrong order"),
    "broadcast": (
        np.multiply,
        lambda g, x, y: (g * y, (g * x)[0]),
        (rng.standard_normal((4, 3)), rng.standard_normal(3)),
        "the sum over broadcast axes is missing",
    ),
    "broadcast along an axis of length 1": (
        np.multiply,
        lambda g, x, y: (g * y, (g * x)[:, -1:]),
        (rng.standard_normal((4, 3)), rng.standard_normal((4, 1))),
        "the sum over broadcast axes is missing",
    ),
}


@pytest.mark.parametrize("name", BINARY)
def test_a_wrong_gradient_gets_its_own_hint(lib: Library, name: str) -> None:
    kernel, rule, (x, y), words = BINARY[name]
    op = operator(lib, "f(Tensor x, Tensor y) -> Tensor", kernel, vjp=pair(rule))
    report = failed(op, leaf(x), leaf(y))
    (failure,) = report.failures
    assert words in failure.hint
    assert "gradient rule at tests/testing/helpers.py:" in str(report)


def test_half_of_a_wirtinger_derivative_is_named(lib: Library) -> None:
    rule = wrap(lambda grad, z: grad * z / np.abs(z) / 2)
    op = operator(lib, "f(Tensor z) -> Tensor", np.abs, vjp={"z": lambda grad, z: rule(grad, z)})
    assert "factor 1/2: the gradient is dL/dRe + i dL/dIm" in str(failed(op, leaf(Z)))


def test_adding_at_repeated_indices_is_named(lib: Library) -> None:
    def wrong(grad: Any, x: Any, index: Any) -> Any:
        g = np.zeros(x.shape)
        g[index] += grad
        return g

    rule = wrap(wrong)
    op = operator(
        lib,
        "f(Tensor x, Tensor index) -> Tensor",
        lambda x, index: x[index],
        vjp={"x": lambda grad, x, index: rule(grad, x, index), "index": None},
    )
    report = failed(op, leaf(rng.standard_normal((4, 2))), tensor([0, 2, 2, 3]))
    assert "np.add.at" in str(report)


TWO_RESULTS: dict[str, tuple[Callable[..., Any], str]] = {
    "second result": (lambda g, h, x: g * np.cos(x), "contribution of result 1"),
    "only the first that is given": (
        lambda g, h, x: g * np.cos(x) if g.any() else h * 2 * x,
        "with gradients for all results, the contribution of result 1",
    ),
}


@pytest.mark.parametrize("name", TWO_RESULTS)
def test_a_missing_contribution_of_a_result_is_named(lib: Library, name: str) -> None:
    wrong, words = TWO_RESULTS[name]
    rule = wrap(wrong)
    op = operator(
        lib,
        "f(Tensor x) -> (Tensor, Tensor)",
        lambda x: (np.sin(x), x * x),
        vjp={"x": lambda grads, x: rule(grads[0], grads[1], x)},
    )
    assert words in str(failed(op, leaf([0.5, 1.5])))


def test_an_argument_used_twice_with_one_path_forgotten_fails() -> None:
    failed(lambda x: x * x.detach(), leaf([0.5, 1.5]))


def test_an_absent_gradient_must_act_as_zero(lib: Library) -> None:
    def wrong(grad_out0: Any = None, grad_out1: Any = None, x: Any = None) -> Any:
        if grad_out0 is None:
            return grad_out1 * 2 * x
        if grad_out1 is None:
            return grad_out0 * 2 * x
        return grad_out0 * oplib.cos(x) + grad_out1 * 2 * x

    op = operator(
        lib,
        "f(Tensor x) -> (Tensor, Tensor)",
        lambda x: (np.sin(x), x * x),
        vjp={"x": wrong},
    )
    assert "absent gradients do not act as zeros" in str(failed(op, leaf([0.5, 1.5])))


def test_writing_the_incoming_gradient_is_told(lib: Library) -> None:
    def wrong(grad: Any) -> Any:
        grad.detach().numpy()[...] *= 2
        return grad

    op = operator(lib, "f(Tensor x) -> Tensor", lambda x: 2 * x, vjp={"x": wrong})
    assert "writes the incoming gradient" in str(failed(op, leaf([0.5, 1.5])))


def test_writing_a_saved_input_is_told(lib: Library) -> None:
    def wrong(grad: Any, x: Any) -> Any:
        array = x.detach().numpy()
        array += 1.0
        return grad * 2.0

    op = operator(lib, "f(Tensor x) -> Tensor", lambda x: 2 * x, vjp={"x": wrong})
    assert "x was written" in str(failed(op, leaf([0.5, 1.5])))


def test_a_detached_result_has_a_gradient_of_zero() -> None:
    report = failed(lambda x: (x * x).detach(), leaf([0.5, 1.5]))
    assert "returns zero; or a value was detached" in str(report)


def test_the_message_names_input_result_values_and_place(lib: Library) -> None:
    kernel, rule, (x, y), _ = BINARY["factor"]
    op = operator(lib, "f(Tensor x, Tensor y) -> Tensor", kernel, vjp=pair(rule))
    with pytest.raises(OpCheckError) as caught:
        gradcheck(op, (leaf(x), leaf(y)))
    text = str(caught.value)
    for words in (
        "t::f",
        "gradient of x[",
        "`out`[",
        "analytic",
        "numeric",
        "±",
        "entries disagree",
    ):
        assert words in text
    assert caught.value.report.failures  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) < 100


# ---------------------------------------------------------------------- inputs


def test_no_input_that_requires_grad_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="requires grad"):
        gradcheck(lambda x: x * x, (tensor([1.0]),))


def test_nested_inputs_and_results_are_checked() -> None:
    inputs = {"a": [leaf([1.0, 2.0])], "b": (leaf([3.0, 4.0]), 2.0)}

    def function(tree: Any, scale: float = 1.0) -> Any:
        return {"sum": tree["a"][0] + tree["b"][0], "rest": [tree["b"][0] * scale, 3, None]}

    assert gradcheck(function, (inputs,), {"scale": 2.5})

    def wrong(tree: Any, scale: float = 1.0) -> Any:
        return [tree["a"][0] * tree["b"][0].detach()]

    report = failed(wrong, inputs)
    assert "inputs[0]['b'][0]" in str(report)


def test_a_tensor_given_twice_is_one_input() -> None:
    x = leaf([1.0, 2.0])
    report = gradcheck(lambda a, b: a * b, (x, x))
    assert report
    assert report.entries == 4


def test_integer_results_are_ignored() -> None:
    assert gradcheck(lambda x: (x * 2.0, oplib.argmax(x)), (leaf([1.0, 3.0, 2.0]),))


def test_only_integer_results_are_skipped() -> None:
    report = gradcheck(lambda x: oplib.argmax(x), (leaf([1.0, 3.0, 2.0]),))
    assert report.status == "skipped"
    assert report.reason == "no float or complex result"


def test_inputs_of_the_caller_keep_values_versions_and_gradients() -> None:
    x = leaf([1.0, 2.0])
    version = x.inplace_version
    gradcheck(lambda x: x * x, (x,))
    assert x.grad is None
    assert x.inplace_version == version
    assert x.tolist() == [1.0, 2.0]


def test_a_generator_starts_from_the_same_state_in_every_run() -> None:
    generator = np.random.default_rng(3)
    before = generator.bit_generator.state

    def dropout(x: Any, generator: Any) -> Any:
        return x * tensor(generator.standard_normal(x.shape))

    assert gradcheck(dropout, (leaf([1.0, 2.0, 3.0]), generator))
    assert generator.bit_generator.state == before


def test_the_layout_of_an_input_is_kept() -> None:
    layouts = set()

    def function(x: Any) -> Any:
        layouts.add(x.strides)
        return x * 2.0

    x = oplib.from_numpy(np.arange(6.0).reshape(2, 3).T[::-1]).requires_grad_()
    gradcheck(function, (x,))
    assert layouts == {x.strides}


def test_results_without_gradient_are_noted() -> None:
    report = gradcheck(lambda x: (x * 2.0, x.detach() * 3.0), (leaf([1.0]),))
    assert report
    assert report.notes == ("result 1 does not require grad and was not checked",)


def test_the_same_seed_gives_the_same_text(lib: Library) -> None:
    kernel, rule, _, _ = BINARY["factor"]
    op = operator(lib, "f(Tensor x, Tensor y) -> Tensor", kernel, vjp=pair(rule))
    inputs = leaf(rng.standard_normal(150)), leaf(rng.standard_normal(150))
    assert str(failed(op, *inputs, seed=4)) == str(failed(op, *inputs, seed=4))


@pytest.mark.parametrize("shape", [(), (0,), (1, 1)])
def test_shapes_without_extent_are_handled(shape: tuple[int, ...]) -> None:
    report = gradcheck(lambda x: x * x, (leaf(np.ones(shape)),))
    assert report.status == ("skipped" if 0 in shape else "passed")


# ---------------------------------------------------------------------- second order


def test_composed_rules_pass_in_second_and_third_order() -> None:
    x, y = leaf(X), leaf(W)
    assert gradgradcheck(lambda x, y: x * y * x, (x, y))
    assert gradgradcheck(lambda x: oplib.sin(x), (leaf(Z),))
    assert gradcheck(lambda x: x * x * x * x, (leaf([0.5, 1.5]),), order=3)


def test_order_must_be_a_positive_integer() -> None:
    with pytest.raises(ArgumentError, match="order"):
        gradcheck(lambda x: x, (leaf([1.0]),), order=0)


class Saved(oplib.PyLayer):
    """tanh that saves what it computed from its input."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.slope = 1.0 - np.tanh(x.numpy()) ** 2
        return oplib.tanh(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * tensor(ctx.slope)


class Detached(oplib.PyLayer):
    """A square whose backward leaves the graph."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return tensor(2 * grad.detach().numpy() * x.detach().numpy())


def test_a_saved_intermediate_is_right_in_first_and_wrong_in_second_order() -> None:
    assert gradcheck(Saved.apply, (leaf([0.5, 1.5]),))
    report = gradgradcheck(Saved.apply, (leaf([0.5, 1.5]),), raise_exception=False)
    assert report.status == "failed"
    assert "saved intermediate" in str(report) or "detached" in str(report)


def test_a_backward_on_detached_data_fails_in_second_order() -> None:
    assert gradcheck(Detached.apply, (leaf([0.5, 1.5]),))
    report = gradgradcheck(Detached.apply, (leaf([0.5, 1.5]),), raise_exception=False)
    assert "detached" in str(report)


class Once(oplib.PyLayer):
    """A square that can be differentiated once."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @oplib.once_differentiable
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 2.0 * x


def test_once_differentiable_is_skipped_in_second_order_and_raises_when_asked() -> None:
    assert gradcheck(Once.apply, (leaf([0.5, 1.5]),))
    report = gradgradcheck(Once.apply, (leaf([0.5, 1.5]),))
    assert (report.status, report.reason) == ("skipped", "backward is once_differentiable")
    x = leaf([0.5, 1.5])
    (g,) = oplib.grad(Once.apply(x), [x], [tensor([1.0, 1.0])], create_graph=True)
    assert g is not None
    with pytest.raises(AutogradError, match="once_differentiable"):
        oplib.grad(g, [x], [tensor([1.0, 1.0])])


def test_a_pylayer_of_nested_containers_keywords_and_several_results_is_checked() -> None:
    class Layer(oplib.PyLayer):
        @staticmethod
        def forward(ctx: Any, tree: Any, *, scale: float = 1.0) -> Any:
            ctx.save_for_backward(tree["a"], tree["b"][0])
            ctx.scale = scale
            return tree["a"] * tree["b"][0], tree["a"] * scale

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            a, b = ctx.saved_tensors
            return ({"a": g * b + h * ctx.scale, "b": [g * a]},)

    tree = {"a": leaf([1.0, 2.0]), "b": [leaf([3.0, 4.0])]}
    assert gradcheck(lambda tree: Layer.apply(tree, scale=3.0), (tree,))


# ---------------------------------------------------------------------- properties


@settings(max_examples=25)
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([1e-3, 1.0, 1e4]),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_linear_maps_pass_and_a_wrong_element_of_the_matrix_fails(
    rows: int, columns: int, size: float, is_complex: bool, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    matrix = size * (draw.standard_normal((rows, columns)) + 1j * is_complex)
    matrix = matrix if is_complex else matrix.real
    x = draw.standard_normal(columns) + (1j * draw.standard_normal(columns) if is_complex else 0)
    planted = matrix.copy()
    planted[draw.integers(rows), draw.integers(columns)] += 0.01 * np.abs(matrix).max()
    with scope() as lib:
        for used, right in ((matrix, True), (planted, False)):
            rule = wrap(lambda grad, used=used: used.conj().T @ grad)
            with oplib.override("t::f", keep=True):
                op = operator(
                    lib,
                    "f(Tensor x) -> Tensor",
                    lambda x: matrix @ x,
                    vjp={"x": lambda grad, rule=rule: rule(grad)},
                )
            assert bool(gradcheck(op, (leaf(x),), raise_exception=False)) is right


def test_an_operator_made_of_a_function_is_named_as_the_operator(lib: Library) -> None:
    @oplib.custom_op("t::named", mutates_args=(), lib=lib)
    def named(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return value * 2

    oplib.register_vjp(named, lib=lib, value=lambda grad: grad * 3)
    report = failed(named, leaf([1.0, 2.0]))
    assert report.name == "t::named"
    assert report.failures[0].input.startswith("value[")
    assert "test_gradcheck.py" in report.site
