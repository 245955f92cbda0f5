"""Which implementation serves a call, whatever the order of registration."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oplib
from oplib.errors import ArgumentError, AutogradError, DispatchError

X = oplib.ones(2)


@pytest.fixture
def lib() -> Iterator[oplib.Library]:
    with oplib.Library("x", "FRAGMENT") as library:
        yield library


# What can be registered: each multiplies by its own factor.
PARTS: dict[str, Any] = {
    "kernel": lambda lib, op: lib.impl(op, lambda x: x * 2, "CPU"),
    "explicit": lambda lib, op: op.register_kernel(None, lambda x: x * 3),
    "implicit": lambda lib, op: lib.impl(op, lambda x: x * 5),
    "autograd": lambda lib, op: lib.impl(op, lambda x: op.below("Autograd")(x) * 7, "Autograd"),
    "rule": lambda lib, op: op.register_vjp(x=lambda grad: grad * 11),
    "fake": lambda lib, op: op.register_fake(lambda x: oplib.TensorSpec((9,), "f64")),
}

# registered          value without a gradient, value with one, gradient (None: raises), fake shape
MATRIX = [
    (("kernel",), 2, 2, None, None),
    (("kernel", "rule"), 2, 2, 11, None),
    (("explicit",), 3, 3, None, (2,)),
    (("explicit", "rule"), 3, 3, 11, (2,)),
    (("implicit",), 5, 5, 5, (2,)),
    (("kernel", "implicit"), 2, 2, None, (2,)),
    (("explicit", "implicit"), 3, 3, None, (2,)),
    (("kernel", "explicit"), 2, 2, None, (2,)),
    (("kernel", "explicit", "rule"), 2, 2, 11, (2,)),
    (("kernel", "explicit", "implicit"), 2, 2, None, (2,)),
    (("kernel", "autograd"), 2, 14, "any", None),
    (("explicit", "autograd"), 3, 21, "any", (2,)),
    (("kernel", "fake"), 2, 2, None, (9,)),
    (("kernel", "explicit", "fake", "rule"), 2, 2, 11, (9,)),
    (("explicit", "fake"), 3, 3, None, (9,)),
]
ORDERED = [(order, *rest) for parts, *rest in MATRIX for order in itertools.permutations(parts)]


@pytest.mark.parametrize(("parts", "plain", "recorded", "gradient", "shape"), ORDERED)
def test_the_precedence_is_the_table(
    lib: oplib.Library, parts: tuple[str, ...], plain: int, recorded: int, gradient: Any, shape: Any
) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    for part in parts:
        PARTS[part](lib, op)
    assert op(X).tolist() == [plain] * 2
    x = oplib.ones(2, requires_grad=True)
    y = op(x)
    assert y.tolist() == [recorded] * 2
    with oplib.no_grad():
        assert op(x).tolist() == [plain] * 2
    if gradient is None:
        with pytest.raises(AutogradError, match=r"x::f.*rule|x::f.*gradient"):
            y.backward()
    elif gradient != "any":
        y.backward()
        assert x.grad.tolist() == [gradient] * 2
    fake = oplib.FakeTensorMode().from_tensor(X)
    if shape is None:
        with pytest.raises(oplib.FakeTensorError):
            op(fake)
    else:
        assert op(fake).shape == shape


def test_an_implicit_body_is_differentiated_through(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    lib.impl(op, lambda x: x * x)
    x = oplib.tensor([3.0], requires_grad=True)
    op(x).backward()
    assert x.grad.tolist() == [6]


def test_fallthrough_makes_a_key_transparent(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    lib.impl(op, np.negative, "CPU")
    lib.impl(op, oplib.fallthrough, "Autograd")
    assert not op(oplib.ones(2, requires_grad=True)).requires_grad
    other = lib.define("g(Tensor x) -> Tensor").op
    lib.impl(other, oplib.fallthrough, "CPU")
    with pytest.raises(DispatchError, match="has no kernel"):
        other(X)
    other.register_kernel(None, lambda x: x * 3)
    assert other(X).tolist() == [3, 3]


def test_a_kernel_that_asks_gets_the_key_set_and_redispatches(lib: oplib.Library) -> None:
    seen: list[Any] = []
    op = lib.define("f(Tensor x, *, float by=2.0) -> Tensor").op
    lib.impl(op, lambda x, *, by: x * by, "CPU")

    def kernel(keys: Any, x: Any, *, by: Any) -> Any:
        seen.append(repr(keys))
        return op.redispatch(keys.below("Autograd"), x, by=by) * 10

    lib.impl(op, kernel, "Autograd", with_keyset=True)
    assert op(oplib.ones(1, requires_grad=True)).tolist() == [20]
    assert seen == ["{Autograd, CPU}"]
    assert op(oplib.ones(1)).tolist() == [2]


def test_a_kernel_that_calls_itself_forever_is_pythons_recursion_error(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    op.register_kernel(None, lambda x: op(x))
    with pytest.raises(RecursionError):
        op(X)


def test_a_mode_sees_each_call_once_with_the_resolved_overload(lib: oplib.Library) -> None:
    for name, kind in [("int", "int"), ("float", "float")]:
        made = lib.define(f"f.{name}(Tensor x, {kind} y) -> Tensor").op
        made.register_kernel("cpu", lambda x, y: x * y)
    seen: list[str] = []

    class See(oplib.DispatchMode):
        def handle(self, op: Any, args: Any, kwargs: Any) -> Any:
            seen.append(str(op))
            return op(*args, **kwargs)

    with See():
        oplib.ops.x.f(oplib.ones(2, requires_grad=True), 2)
        oplib.ops.x.f(X, 2.0)
    assert [name for name in seen if name.startswith("x::")] == ["x::f.int", "x::f.float"]


def test_preferences_hold_inside_a_mode(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    op.register_kernel("cpu", np.negative)
    op.register_kernel("cpu", np.positive, provider="other", priority=-1)
    with oplib.DispatchMode():
        with op.prefer("other"):
            assert op(X).tolist() == [1, 1]
        assert op(X).tolist() == [-1, -1]


def test_a_composite_operator_is_differentiated_under_a_preference_too(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    lib.impl(op, lambda x: x * x)
    x = oplib.tensor([3.0], requires_grad=True)
    with op.prefer("anything"):
        op(x).backward()
    assert x.grad.tolist() == [6]


# -- explain -------------------------------------------------------------------------------


def test_explain_runs_nothing_of_the_users(lib: oplib.Library) -> None:
    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("explain ran user code")

    op = lib.define("f(Tensor x) -> Tensor").op
    op.register_kernel("cpu", lambda x: never(x), supports=lambda x: never(x))
    op.register_fake(lambda x: never(x))
    op.register_vjp(x=lambda grad: never(grad))
    for x in (X, oplib.ones(2, requires_grad=True), oplib.FakeTensorMode().from_tensor(X)):
        assert "④ backend" in op.explain(x)


def test_explain_shows_stacks_rejections_and_what_is_missing(lib: oplib.Library) -> None:
    old = lib.define("f(Tensor x) -> Tensor").op
    op = lib.define("f(Tensor x) -> Tensor", override=True).op
    assert old is not op
    assert "overrides the definition at" in op.explain(X)
    assert "has no kernel for CPU" in op.explain(X)
    assert "fails: x::f() is missing argument `x`" in op.explain()
    op.register_kernel("cpu", np.negative, dtypes="float32", provider="fast", priority=2)
    op.register_kernel("cpu", np.negative)
    op.register_kernel("cpu", np.positive, override=True)
    text = op.explain(X)
    assert "provider 'fast', priority 2, refuses: `x` is f64, it takes f32" in text
    assert ", over " in text


def test_source_is_python_and_shows_in_tracebacks(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    op.register_kernel("cpu", lambda x: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        op(X)
    compile(op.source(), "source", "exec")
    files = [str(entry.path) for entry in caught.traceback]
    assert any(file.startswith("<oplib x::f plan") for file in files)
    assert "in the CPU kernel of x::f" in caught.value.__notes__[0]


def test_a_packet_of_several_overloads_is_explained_by_the_call(lib: oplib.Library) -> None:
    lib.define("f.int(int x) -> int")
    lib.define("f.str(str x) -> int")
    assert oplib.explain(oplib.ops.x.f, 1).startswith("x::f.int(int x) -> int")
    with pytest.raises(ArgumentError, match="several overloads"):
        oplib.explain("x::f", 1)
