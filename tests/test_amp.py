"""Automatic mixed precision: which dtype a call runs in, what gradients come back in."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

import oplib
from oplib import Tensor
from oplib.amp import BLACK, WHITE, GradScaler, auto_cast

f16, f32, f64 = np.dtype("float16"), np.dtype("float32"), np.dtype("float64")


BLACK_OF_ONE = (
    *("exp", "expm1", "log", "log2", "log10", "log1p", "square", "reciprocal", "rsqrt", "softmax"),
    *("log_softmax", "logsumexp", "mean", "sum", "prod", "var", "norm", "rms_norm"),
)


def ones(*shape: int, dtype: Any = f32, grad: bool = False) -> Tensor:
    return oplib.ones(shape, dtype=dtype, requires_grad=grad)


# ---------------------------------------------------------------------- levels and lists


@pytest.mark.parametrize(("level", "expected"), [("O0", f32), ("O1", f16), ("O2", f16)])
def test_white_operators_run_in_the_low_precision(level: Any, expected: Any) -> None:
    with auto_cast(level=level):
        assert (ones(2, 2) @ ones(2, 2)).dtype == expected


@pytest.mark.parametrize("name", BLACK_OF_ONE)
@pytest.mark.parametrize(("level", "expected"), [("O0", f16), ("O1", f32), ("O2", f16)])
def test_black_operators_run_in_float32_at_o1_only(name: str, level: Any, expected: Any) -> None:
    operator = getattr(oplib, name)
    with auto_cast(level=level):
        assert operator(ones(2, dtype=f16)).dtype == expected


def test_losses_are_black_by_their_name() -> None:
    with oplib.scoped_library("std") as lib:
        lib.define("odd_loss(Tensor x) -> Tensor", tags=("pointwise",))
        lib.impl("odd_loss", lambda x: x + 0, "CPU")
        lib.impl("odd_loss", lambda x: oplib.empty_like(x), "Meta")
        with auto_cast():
            assert oplib.get_op("std::odd_loss")(ones(2, dtype=f16)).dtype == f32


def test_neutral_operators_follow_the_widest_input_at_o1() -> None:
    with auto_cast():
        assert (ones(2) + ones(2, dtype=f16)).dtype == f32
        assert (ones(2, dtype=f16) + ones(2, dtype=f16)).dtype == f16
        assert oplib.concat([ones(2), ones(2, dtype=f16)]).dtype == f32


def test_neutral_operators_run_in_the_low_precision_at_o2() -> None:
    with auto_cast(level="O2"):
        assert (ones(2) + ones(2)).dtype == f16
        assert oplib.tanh(ones(2)).dtype == f16


def test_without_promotion_neutral_operators_are_left_alone() -> None:
    with auto_cast(level="O2", use_promote=False):
        assert (ones(2) + ones(2)).dtype == f32
        assert (ones(2, 2) @ ones(2, 2)).dtype == f16


@pytest.mark.parametrize("dtype", ["float64", "int32", "complex64", "bool"])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_other_dtypes_are_never_cast(dtype: str, level: Any) -> None:
    x = ones(2, 2, dtype=dtype)
    plain = x @ x
    with auto_cast(level=level):
        assert (x @ x).dtype == plain.dtype


def test_numbers_beside_tensors_stay_weak() -> None:
    with auto_cast(level="O2"):
        assert (ones(2) * 2.5).dtype == f16


def test_casts_views_copies_and_writes_keep_their_dtype() -> None:
    x = ones(2, 2)
    with auto_cast(level="O2"):
        assert oplib.cast(x, f64).dtype == f64
        assert x.clone().dtype == x[0].dtype == x.T.dtype == oplib.zeros_like(x).dtype == f32
        x.add_(ones(2, 2, dtype=f16))
        x[0] = ones(2, dtype=f16)
    assert x.dtype == f32


def test_custom_lists_override_the_built_in_ones() -> None:
    x = ones(2, 2)
    with auto_cast(custom_white_list=["exp"], custom_black_list=["std::matmul"]):
        assert oplib.exp(x).dtype == f16
        assert (x.half() if hasattr(x, "half") else oplib.cast(x, f16) @ x).dtype == f32


def test_custom_lists_name_custom_operators() -> None:
    with oplib.scoped_library("amp_lists") as lib:
        lib.define("double(Tensor x) -> Tensor")
        lib.impl("double", lambda x: x * 2, "CPU")
        double = oplib.get_op("amp_lists::double")
        with auto_cast():
            assert double(ones(2)).dtype == f32
        with auto_cast(custom_white_list={"amp_lists::double"}):
            assert double(ones(2)).dtype == f16


def test_bfloat16_casts_too() -> None:
    pytest.importorskip("ml_dtypes")
    with auto_cast(dtype="bfloat16"):
        assert (ones(2, 2) @ ones(2, 2)).dtype.name == "bfloat16"


def test_an_operator_without_a_kernel_for_the_low_precision_runs_in_float32() -> None:
    with oplib.scoped_library("amp_kernels") as lib:
        lib.define("solve(Tensor x) -> Tensor")
        solve = oplib.get_op("amp_kernels::solve")
        solve.register_kernel("cpu", lambda x: x + 0, dtypes=["float32", "float64"])
        with auto_cast(custom_white_list=["amp_kernels::solve"]):
            assert solve(ones(2, dtype=f16)).dtype == f32


# ---------------------------------------------------------------------- state


def test_the_state_is_restored_after_exceptions() -> None:
    with pytest.raises(ZeroDivisionError), auto_cast():
        _ = 1 / 0
    assert (ones(2, 2) @ ones(2, 2)).dtype == f32


def test_an_inner_auto_cast_can_switch_an_outer_one_off() -> None:
    x = ones(2, 2)
    with auto_cast():
        with auto_cast(False):
            assert (x @ x).dtype == f32
        assert (x @ x).dtype == f16


def test_auto_cast_decorates_functions() -> None:
    @auto_cast()
    def product(x: Tensor) -> Tensor:
        return x @ x

    assert product(ones(2, 2)).dtype == f16
    assert product(ones(2, 2)).dtype == f16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "O3"}, "level is 'O0', 'O1' or 'O2', got 'O3'"),
        ({"dtype": "float32"}, "dtype is float16 or bfloat16, got f32"),
        ({"custom_white_list": "exp"}, r"write \['exp'\]"),
        (
            {"custom_white_list": ["exp"], "custom_black_list": ["exp"]},
            "on the white and the black list: exp",
        ),
    ],
)
def test_wrong_options_are_refused(options: Any, message: str) -> None:
    with pytest.raises(oplib.ArgumentError, match=message), auto_cast(**options):
        pass


def test_explain_shows_what_autocast_does() -> None:
    x = ones(2, 2)
    with auto_cast():
        assert "② autocast   casts cpu tensors to f16" in oplib.explain("std::matmul", x, x)
        assert "② autocast   leaves this operator alone" in oplib.explain("std::clone", x)


# ---------------------------------------------------------------------- gradients


def test_gradients_come_back_in_the_dtype_of_the_parameters() -> None:
    x, w = ones(3, 2), ones(2, 4, grad=True)
    with auto_cast():
        loss = oplib.exp(x @ w).mean()
    assert loss.dtype == f32
    loss.backward()
    assert w.grad is not None
    assert w.grad.dtype == f32
    np.testing.assert_allclose(w.grad.numpy(), np.full((2, 4), np.exp(2) / 4), rtol=1e-3)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_backward_inside_casts_nothing(level: Any) -> None:
    w = ones(2, 2, grad=True)
    outside, inside = [], []
    for found, entered in ((outside, False), (inside, True)):
        with auto_cast(level=level):
            loss = (oplib.tanh(w @ w) * w).sum()
            if entered:
                found += oplib.grad(loss, [w])
        if not entered:
            found += oplib.grad(loss, [w])
    assert outside[0].dtype == inside[0].dtype == f32
    np.testing.assert_array_equal(outside[0].numpy(), inside[0].numpy())


class Product(oplib.PyLayer):
    seen: ClassVar[list[Any]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        product = grad @ w.T
        Product.seen.append(product.dtype)
        return product, x.T @ grad


def test_a_layer_runs_backward_under_the_policy_of_its_forward() -> None:
    x, w = ones(2, 2, grad=True), ones(2, 2, grad=True)
    Product.seen.clear()
    with auto_cast():
        y = Product.apply(x, w)
    assert y.dtype == f16
    y.sum().backward()
    assert Product.seen == [f16]
    assert x.grad is not None
    assert x.grad.dtype == f32


def test_a_layer_recorded_without_autocast_has_none_in_backward() -> None:
    x, w = ones(2, 2, grad=True), ones(2, 2, grad=True)
    Product.seen.clear()
    loss = Product.apply(x, w).sum()
    with auto_cast():
        loss.backward()
    assert Product.seen == [f32]


def test_each_dtype_of_a_mixed_sum_gets_its_own_gradient() -> None:
    x, y = ones(2, grad=True), ones(2, dtype=f64, grad=True)
    (x * y * 2.0).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert (x.grad.dtype, y.grad.dtype) == (f32, f64)


# ---------------------------------------------------------------------- register_autocast


@pytest.fixture
def rule() -> Any:
    """Return an operator that tells the dtypes it was given, and casts to float16."""
    with oplib.scoped_library("amp_rules") as lib:
        lib.define(
            "seen(Tensor x, Tensor[] xs, Tensor? y=None, *, Tensor? z=None, Tensor? n=None) "
            "-> Tensor"
        )
        kinds: list[Any] = []

        @oplib.impl(lib, "seen", "CPU")
        def seen(x: Any, xs: Any, y: Any, *, z: Any, n: Any) -> Any:
            kinds.append([a.dtype.name for a in (x, *xs, y, z, n)])
            return x + 0

        operator = oplib.get_op("amp_rules::seen")
        operator.register_autocast("cpu", "float16")
        yield operator, kinds


def test_a_rule_casts_lists_optionals_and_keywords(rule: Any) -> None:
    operator, kinds = rule
    with auto_cast():
        operator(ones(2), [ones(2), ones(2, dtype=f64)], ones(2), z=ones(2), n=ones(2, dtype=int))
    assert kinds == [["float16", "float16", "float64", "float16", "float16", "int64"]]


def test_a_rule_needs_auto_cast(rule: Any) -> None:
    operator, kinds = rule
    operator(ones(1), [], ones(1), z=ones(1), n=ones(1))
    assert kinds == [["float32"] * 4]


def test_the_last_rule_wins_and_removal_uncovers_the_first(rule: Any) -> None:
    operator, kinds = rule
    again = operator.register_autocast("cpu", "float64", override=True)
    for _ in range(2):
        with auto_cast():
            operator(ones(1), [], ones(1), z=ones(1), n=ones(1))
        again.remove()
    assert kinds == [["float64"] * 4, ["float16"] * 4]


def test_gradients_pass_through_the_casts_of_a_rule(rule: Any) -> None:
    operator, _ = rule
    operator.register_vjp(x=lambda grad: grad * 3)
    x = ones(2, grad=True)
    with auto_cast():
        y = operator(x, [], x.detach(), z=x.detach(), n=x.detach())
    assert y.dtype == f16
    y.sum().backward()
    assert x.grad is not None
    assert (x.grad.dtype, x.grad.tolist()) == (f32, [3.0, 3.0])


def test_inside_a_call_with_a_rule_autocast_is_off() -> None:
    with oplib.scoped_library("amp_inner") as lib:
        lib.define("square_(Tensor x) -> Tensor")
        lib.impl("square_", lambda x: oplib.matmul(x, x), "CompositeImplicitAutograd")
        operator = oplib.get_op("amp_inner::square_")
        x = ones(2, 2)
        with auto_cast():
            assert operator(x).dtype == f16
            operator.register_autocast("cpu", "float32")
            assert operator(oplib.cast(x, f16)).dtype == f32


def test_a_rule_that_could_cast_nothing_is_refused() -> None:
    with oplib.scoped_library("amp_refused") as lib:
        lib.define("bump_(Tensor(a!) x) -> Tensor(a!)")
        operator = oplib.get_op("amp_refused::bump_")
        with pytest.raises(oplib.RegistrationError, match="no argument that autocast could cast"):
            operator.register_autocast("cpu", "float16")
        lib.define("plain(Tensor x) -> Tensor")
        with pytest.raises(oplib.RegistrationError, match="casts to a float dtype, got i64"):
            oplib.register_autocast("amp_refused::plain", "cpu", "int64")


# ---------------------------------------------------------------------- below and above


def test_casts_are_recorded_in_captured_graphs() -> None:
    def f(x: Tensor) -> Tensor:
        with auto_cast():
            return x @ x

    x = ones(2, 2)
    program = oplib.capture(f, x)
    assert "std.matmul(cast, cast_1)" in str(program.graph)
    assert program(x).dtype == f16


def test_fakes_get_the_dtypes_of_real_calls() -> None:
    with oplib.FakeTensorMode() as mode, auto_cast():
        x = mode.from_tensor(ones(2, 2))
        assert (x @ x).dtype == f16


# ---------------------------------------------------------------------- GradScaler


def scaled_step(scaler: GradScaler, factor: float) -> tuple[bool, Tensor]:
    w = ones(2, grad=True)
    scaler.scale((w * factor).sum()).backward()
    finite = scaler.unscale_([w])
    scaler.update()
    assert w.grad is not None
    return finite, w.grad


def test_unscaled_gradients_are_those_of_the_loss() -> None:
    finite, gradient = scaled_step(GradScaler(), 3.0)
    assert finite
    assert gradient.tolist() == [3.0, 3.0]


def test_gradients_that_are_not_finite_halve_the_scale() -> None:
    scaler = GradScaler(init_loss_scaling=8.0)
    finite, _ = scaled_step(scaler, float("inf"))
    assert not finite
    assert scaler.loss_scaling == 4.0


def test_a_streak_of_finite_steps_doubles_the_scale() -> None:
    scaler = GradScaler(init_loss_scaling=8.0, incr_every_n_steps=2)
    for expected in (8.0, 16.0, 16.0, 32.0):
        scaled_step(scaler, 1.0)
        assert scaler.loss_scaling == expected


def test_a_restored_scaler_continues_its_streak() -> None:
    scaler = GradScaler(init_loss_scaling=8.0, incr_every_n_steps=2)
    scaled_step(scaler, 1.0)
    other = GradScaler(incr_every_n_steps=2)
    other.load_state_dict(scaler.state_dict())
    scaled_step(other, 1.0)
    assert other.loss_scaling == 16.0


def test_unscaling_twice_in_a_step_is_refused() -> None:
    scaler = GradScaler()
    w = ones(2, grad=True)
    scaler.scale(w.sum()).backward()
    scaler.unscale_([w])
    with pytest.raises(oplib.AutogradError, match="twice in one step"):
        scaler.unscale_([w])
    assert w.grad is not None
    assert w.grad.tolist() == [1.0, 1.0]


def test_a_disabled_scaler_does_nothing() -> None:
    scaler = GradScaler(enable=False)
    finite, gradient = scaled_step(scaler, float("inf"))
    assert finite
    assert np.isinf(gradient.numpy()).all()


@pytest.mark.parametrize("options", [{"incr_ratio": 1.0}, {"init_loss_scaling": 0}])
def test_a_scaler_with_impossible_ratios_is_refused(options: Any) -> None:
    with pytest.raises(oplib.ArgumentError, match="incr_ratio > 1"):
        GradScaler(**options)


def test_no_operator_is_on_both_lists() -> None:
    assert not WHITE & BLACK
