"""`auto_cast` under recomputation, layers, transforms and compilation, in both low precisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import Tensor
from oplib.amp import GradScaler, auto_cast
from oplib.autograd import recompute

LOW = (pytest.param("float16"), pytest.param("bfloat16", marks=pytest.mark.peer("ml_dtypes")))
TARGET = np.array([0, 2])


def parameters() -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(3)
    made = [oplib.tensor(rng.normal(size=size), dtype="float32") for size in ((2, 3), (3, 3))]
    return made[0].requires_grad_(), made[1].requires_grad_()


def model(x: Tensor, w: Tensor) -> Tensor:
    return oplib.cross_entropy((x @ w).tanh() @ w, oplib.from_numpy(TARGET))


class Squared(oplib.PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def layered(x: Tensor, w: Tensor) -> Tensor:
    return oplib.cross_entropy(Squared.apply(x @ w), oplib.from_numpy(TARGET))


FORMS: dict[str, Callable[[Any], Any]] = {
    "recompute": lambda f: lambda *args: recompute(f, *args),
    "functionalize": oplib.functionalize,
    "compile": oplib.compile,
    "capture": lambda f: lambda *args: oplib.capture(f, *parameters())(*args),
}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("form", FORMS)
def test_a_transformed_step_has_the_values_and_gradients_of_the_plain_one(form, level, dtype):
    def step(x: Tensor, w: Tensor) -> Tensor:
        with auto_cast(level=level, dtype=dtype):
            return model(x, w)

    x, w = parameters()
    plain = step(x, w)
    transformed = FORMS[form](step)(x, w)
    assert transformed.dtype == plain.dtype
    np.testing.assert_array_equal(transformed.numpy(), plain.numpy())
    expected, found = oplib.grad(plain, [x, w]), oplib.grad(transformed, [x, w])
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype == np.float32
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", LOW)
def test_recomputation_casts_as_the_forward_did_though_backward_runs_outside(dtype):
    seen = []

    def inner(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        seen.append(str(y.dtype))
        return y.sum()

    x, w = parameters()
    with auto_cast(dtype=dtype):
        loss = recompute(inner, x, w)
    loss.backward()
    assert seen == [dtype, dtype]
    assert x.grad is not None
    assert x.grad.dtype == np.float32


@pytest.mark.parametrize("dtype", LOW)
def test_a_layer_inside_gets_and_gives_the_low_precision(dtype):
    x, w = parameters()
    with auto_cast(dtype=dtype):
        loss = layered(x, w)
    loss.backward()
    assert [p.grad.dtype for p in (x, w)] == [np.float32, np.float32]
    exact = oplib.grad(layered(*(p := parameters())), list(p))
    for found, wanted in zip((x.grad, w.grad), exact, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=0.1, atol=0.05)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", ["inv", "svd", "cholesky", "det"])
def test_what_has_no_kernel_for_the_low_precision_gets_float32(name, dtype):
    x = oplib.tensor([[4.0, 1.0], [1.0, 3.0]], dtype="float32", requires_grad=True)
    with auto_cast(dtype=dtype):
        low = x @ oplib.eye(2, dtype="float32")
        assert low.dtype == dtype
        result = oplib.get_op(f"std::{name}")(low)
    first = result[1] if isinstance(result, tuple) else result
    assert first.dtype == np.float32
    first.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == np.float32


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_a_scaled_training_loop_skips_what_overflows_and_then_learns():
    x, w = parameters()
    scaler = GradScaler(init_loss_scaling=2.0**24, decr_every_n_nan_or_inf=1)
    losses, skipped = [], 0
    for _ in range(40):
        with auto_cast():
            loss = model(x, w)
        losses.append(loss.item())
        scaler.scale(loss).backward()
        if scaler.unscale_([x, w]):
            for parameter in (x, w):
                parameter.set_value(parameter - 0.2 * parameter.grad)
        else:
            skipped += 1
        scaler.update()
        for parameter in (x, w):
            parameter.clear_grad()
    assert 0 < skipped < 20
    assert losses[-1] < losses[0] / 2
