"""Checked mode: each mistake it is there for, found; and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oplib
from oplib.errors import OplibError, ReturnError


@pytest.fixture
def lib() -> Iterator[oplib.Library]:
    with oplib.Library("c", "FRAGMENT") as library:
        yield library


def define(lib: oplib.Library, schema: str, kernel: Any, fake: Any = None) -> Any:
    op = lib.define(schema).op
    lib.impl(op, kernel, "CPU")
    if fake is not None:
        op.register_fake(fake)
    return op


def spec(shape: tuple[int, ...], dtype: str = "f64", strides: Any = None) -> Any:
    return lambda *args: oplib.TensorSpec(shape, dtype, strides)


def write_undeclared(x: Any) -> Any:
    x += 1
    return x * 2


def widen(x: Any) -> None:
    x.shape = (2, 2)


WRONG = {
    "write": ("f(Tensor x) -> Tensor", write_undeclared, None, "read-only"),
    "shape": ("f(Tensor x) -> Tensor", lambda x: x + 1, spec((9,)), r"shape \(4,\).*says \(9,\)"),
    "dtype": ("f(Tensor x) -> Tensor", lambda x: x + 1, spec((4,), "f32"), "float64.*float32"),
    "strides": (
        "f(Tensor x) -> Tensor",
        lambda x: np.asfortranarray(np.ones((2, 2))),
        spec((2, 2)),
        r"strides \(8, 16\).*says \(16, 8\)",
    ),
    "count": (
        "f(Tensor x) -> Tensor[]",
        lambda x: [x + 1],
        lambda x: [oplib.TensorSpec((4,), "f64")] * 2,
        "1 tensors.*says 2",
    ),
    "written": ("f_(Tensor(a!) x) -> Tensor(a!)", lambda x: x + 1, None, "another array for `x`"),
    "geometry": (
        "f_(Tensor(a!) x) -> Tensor(a!)",
        widen,
        None,
        "changed the shape or dtype of `x`",
    ),
    "view": ("f(Tensor(a) x) -> Tensor(a)", lambda x: x.copy(), None, "is a copy"),
    "bounds": (
        "f(Tensor x) -> Tensor",
        lambda x: x[x > 5],
        lambda x: oplib.TensorSpec((oplib.get_ctx().new_dynamic_size(min=2, max=4),), "f64"),
        r"shape \(0,\)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_found_and_flags_stay(lib: oplib.Library, name: str) -> None:
    schema, kernel, fake, message = WRONG[name]
    op = define(lib, schema, kernel, fake)
    array = np.zeros(4)
    with oplib.checked(), pytest.raises((OplibError, ValueError), match=message):
        op(oplib.from_numpy(array))
    assert array.flags.writeable
    assert name in ("written", "geometry") or array.tolist() == [0, 0, 0, 0]


RIGHT = {
    "fresh": ("f(Tensor x) -> Tensor", lambda x: x + 1, spec((4,))),
    "no rule": ("f(Tensor x) -> Tensor", lambda x: x + 1, None),
    "written": ("f_(Tensor(a!) x) -> Tensor(a!)", lambda x: np.add(x, 1, x), None),
    "list": ("f(Tensor(a!)[] xs, Tensor y) -> ()", lambda xs, y: xs[0].fill(1), None),
    "bounds": (
        "f(Tensor x) -> Tensor",
        lambda x: x[x > 5],
        lambda x: oplib.TensorSpec((oplib.get_ctx().new_dynamic_size(max=4),), "f64"),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_operator_runs_as_it_does_without(lib: oplib.Library, name: str) -> None:
    schema, kernel, fake = RIGHT[name]
    op = define(lib, schema, kernel, fake)
    results = []
    for context in (oplib.checked(), oplib.scoped_library()):
        x, y = oplib.zeros(4), oplib.zeros(4)
        with context:
            made = op([x], y) if name == "list" else op(x)
        results.append((repr(made), x.tolist(), x.inplace_version))
    assert results[0] == results[1]


def test_a_declared_view_stays_writable(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor(a) x) -> Tensor(a)", lambda x: x[:2])
    x = oplib.zeros(4)
    with oplib.checked():
        op(x).add_(1)
    assert x.tolist() == [1, 1, 0, 0]


def test_it_holds_inside_modes_and_in_its_thread_only(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x) -> Tensor", write_undeclared)
    failed: list[BaseException] = []

    def call() -> None:
        op(oplib.zeros(1))

    with oplib.checked(), oplib.DispatchMode():
        with pytest.raises(ValueError, match="read-only"):
            call()
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert failed == []
    call()


def test_gradients_are_what_they_are_without() -> None:
    x = oplib.tensor([1.0, 2.0], requires_grad=True)
    with oplib.checked():
        (x.exp() * x[:1]).sum().backward()
    checked = x.grad.tolist()
    x.clear_grad()
    (x.exp() * x[:1]).sum().backward()
    assert checked == x.grad.tolist()


def test_the_environment_switches_it_on() -> None:
    code = """
import numpy as np, oplib
op = oplib.custom_op("c::f", lambda x: np.add(x, 1, x) * 2, schema="(Tensor x) -> Tensor")
try:
    op(oplib.zeros(1))
except ValueError as error:
    print("found", error)
"""
    environment = {**os.environ, "OPLIB_CHECKED": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("found")


def test_an_error_names_operator_kernel_and_rule(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x) -> Tensor", lambda x: x + 1, spec((9,)))
    with oplib.checked(), pytest.raises(ReturnError) as caught:
        op(oplib.zeros(4))
    assert str(caught.value).startswith("c::f: the CPU kernel at ")
    assert "the fake rule at " in str(caught.value)
    assert "test_checked.py" in str(caught.value)


class Scaled(oplib.PyLayer):
    """x * factor, where the factor may be captured."""

    factor: Any = None

    @classmethod
    def forward(cls, ctx: Any, x: Any) -> Any:
        return x * cls.factor

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        grad.numpy()[...] = 7.0
        return grad


@pytest.mark.parametrize("tracked", [False, True])
def test_a_layer_that_uses_a_parameter_it_was_not_given_is_found(tracked: bool) -> None:
    x = oplib.ones(2).requires_grad_(tracked)
    Scaled.factor = oplib.ones(2, requires_grad=True)
    Scaled.apply(x)
    with (
        oplib.checked(),
        pytest.raises(oplib.AutogradError, match=r"PyLayer Scaled: .* std::mul .* would be lost"),
    ):
        Scaled.apply(x)
    with oplib.checked(), oplib.no_grad():
        Scaled.apply(x)
    Scaled.factor = Scaled.factor.detach()
    with oplib.checked():
        assert Scaled.apply(x).tolist() == [1.0, 1.0]


def test_a_layer_may_detach_a_parameter_and_use_its_arguments() -> None:
    w = oplib.tensor([3.0], requires_grad=True)

    class Uses(oplib.PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Any, rest: list[Any]) -> Any:
            return x * w.detach() + rest[0]

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * w.detach(), [grad]

    with oplib.checked():
        y = oplib.ones(1, requires_grad=True)
        Uses.apply(y, [w]).backward()
    assert (y.grad.tolist(), w.grad.tolist()) == ([3.0], [1.0])


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_gradient_that_arrives_cannot_be_written_through_numpy(create_graph: bool) -> None:
    x = oplib.ones(2, requires_grad=True)
    Scaled.factor = 2.0
    y = x * 1
    with oplib.checked():
        out = (Scaled.apply(y) + y).sum()
        with pytest.raises(ValueError, match="read-only"):
            out.backward(retain_graph=True, create_graph=create_graph)
        handle = y.register_hook(lambda grad: grad.numpy().fill(3.0))
        with pytest.raises(ValueError, match="read-only"):
            oplib.grad((y * 2).sum(), x, create_graph=create_graph)
        handle.remove()
        (g,) = oplib.grad((y * y * y).sum(), x, create_graph=True)
        assert oplib.grad(g.sum(), x)[0].tolist() == [6.0, 6.0]
        assert x.grad is None
