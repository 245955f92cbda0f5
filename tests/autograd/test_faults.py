"""The table of faults in docs/gradients.md: a test per row, under the words of its first column."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import AliasError, ArgumentError, AutogradError, Library, PyLayer, Tensor
from oplib.autograd import backward, once_differentiable, recompute, saved_tensors_hooks
from tests.autograd.helpers import assert_values, leaf, tensor

PAGE = Path(__file__).parents[2] / "docs" / "gradients.md"
ROWS: dict[str, Callable[[], None]] = {}


def row(fault: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a test of one row of the table."""

    def register(test: Callable[[], None]) -> Callable[[], None]:
        assert fault not in ROWS
        ROWS[fault] = test
        return test

    return register


def rows_of_the_page() -> list[str]:
    section = PAGE.read_text("utf-8").split("## Faults")[1].split("\n## ")[0]
    found = re.findall(r"^\| (.+?) \|", section, re.MULTILINE)
    return [text for text in found if text != "elsewhere"]


def test_every_row_of_the_table_has_its_test_and_the_other_way_round() -> None:
    assert sorted(rows_of_the_page()) == sorted(ROWS)


def scratch() -> Library:
    return Library("faults", "DEF")


class Twice(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


# ---------------------------------------------------------------------- runs


@row("a root that needs no gradient is skipped")
def _() -> None:
    x = leaf(1.0)
    with pytest.raises(AutogradError, match=r"root 1 .* does not require grad"):
        backward([x * 2, tensor(1.0)])
    assert x.grad is None


@row("gradients are summed into the first arrival, so one that a hook kept changes")
def _() -> None:
    x = leaf(1.0)
    y = x * 1
    kept: list[Tensor] = []
    first = y * 2
    first.register_hook(kept.append)
    (first + y * 3).backward()
    assert_values(kept[0], [1.0])
    assert_values(x.grad, [5.0])


@row("a second backward runs if the node saved nothing")
def _() -> None:
    y = leaf(1.0) + leaf(1.0)
    y.backward()
    with pytest.raises(AutogradError, match="second backward"):
        y.backward()


@row("two outputs of one node as inputs of `grad` raise")
def _() -> None:
    parts = (leaf(1.0, 2.0) * 1).unbind()
    a, b = oplib.grad(parts[0] * 3 + parts[1] * 5, list(parts))
    assert_values(a, 3.0)
    assert_values(b, 5.0)


@row("`grad` inside of `grad` crashes")
def _() -> None:
    x = leaf(2.0)
    y = x * x
    inner: list[Any] = []
    z = y * 3
    z.register_hook(lambda grad: inner.extend(oplib.grad(y, x, retain_graph=True)))
    assert_values(oplib.grad(z, x)[0], [12.0])
    assert_values(inner[0], [4.0])


@row("hooks of leaves are skipped under `grad`")
def _() -> None:
    x = leaf(1.0)
    x.register_hook(lambda grad: grad * 10)
    assert_values(oplib.grad(x * 2, x)[0], [20.0])


@row("`grad` gives an input's gradient before its hooks if a node below it runs")
def _() -> None:
    x = leaf(1.0)
    y = x * 3
    y.register_hook(lambda grad: grad * 10)
    at_y, at_x = oplib.grad(y * 2, [y, x])
    assert_values(at_y, [20.0])
    assert_values(at_x, [60.0])


@row("a hook on the output of a custom layer is called and its result ignored")
def _() -> None:
    x = leaf(1.0)
    y = Twice.apply(x)
    y.register_hook(lambda grad: grad * 10)
    y.backward()
    assert_values(x.grad, [20.0])


@row("hooks run with recording always on")
def _() -> None:
    seen = []
    for create_graph in (False, True):
        x = leaf(1.0)
        x.register_hook(lambda grad: seen.append(oplib.is_grad_enabled()))
        (x * x).backward(create_graph=create_graph)
    assert seen == [False, True]


@row("`retain_grads` overwrites, and sees the hooks registered before it only")
def _() -> None:
    y = leaf(1.0) * 1
    y.retain_grads()
    y.register_hook(lambda grad: grad * 10)
    for _ in range(2):
        (y * 2).backward(retain_graph=True)
    assert_values(y.grad, [40.0])


@row("an exception of a hook or a backward arrives as another type")
def _() -> None:
    y = leaf(1.0) * 1
    y.register_hook(lambda grad: {}["missing"])
    with pytest.raises(KeyError) as caught:
        y.backward()
    assert any("GradNode_std::mul" in note for note in caught.value.__notes__)


@row("clearing gradients writes zeros into arrays that others hold")
def _() -> None:
    x = leaf(1.0)
    (x * 2).backward()
    kept = x.grad
    x.clear_grad()
    assert x.grad is None
    assert_values(kept, [2.0])


@row("releasing a deep graph overflows the stack")
def _() -> None:
    x = leaf(1.0)
    for _ in range(100_000):
        x = x + 1
    del x


# ---------------------------------------------------------------------- tensors and writes


@row("integer tensors may require grad")
def _() -> None:
    with pytest.raises(AutogradError, match=r"only float and complex .* i64"):
        oplib.tensor([1]).requires_grad_()


@row("`x += y` makes a new tensor")
def _() -> None:
    x = before = tensor(1.0)
    x += tensor(2.0)
    assert x is before
    assert_values(before, [3.0])


@row("a write may change the dtype")
def _() -> None:
    x = tensor(1.0, dtype=np.float32)
    x += tensor(2.0)
    assert x.dtype == np.float32
    with pytest.raises(TypeError):
        x += tensor(1j, dtype=complex)


@row("a write to a view of a tracked tensor gives wrong gradients in silence")
def _() -> None:
    x = leaf(1.0, 2.0)
    y = x * 1
    view = y[:1]
    view.mul_(5.0)
    (y * y).sum().backward()
    assert_values(x.grad, [50.0, 4.0])


@row("writes to the results of `split` and `unbind` are wrong, or refused")
def _() -> None:
    x = leaf(1.0, 2.0)
    y = x * 1
    y.unbind()[1].mul_(5.0)
    y.split(1)[0].mul_(3.0)
    y.sum().backward()
    assert_values(x.grad, [3.0, 5.0])


@row("a write whose operand overlaps the destination reads what it has written")
def _() -> None:
    x = tensor(1.0, 2.0, 3.0)
    x[1:].add_(x[:-1])
    assert_values(x, [1.0, 3.0, 5.0])
    y = leaf(3.0) * 1
    y.mul_(y)
    assert_values(y, [9.0])


@row("`copy_` and `set_value` are not counted as writes")
def _() -> None:
    for write in (lambda h: h.copy_(tensor(5.0)), lambda h: h.set_value(np.array([5.0]))):
        h = leaf(2.0) * 1
        loss = h * h
        with oplib.no_grad():
            write(h)
        with pytest.raises(AutogradError, match="version 0"):
            loss.backward()


@row("a write through `detach()` goes unnoticed")
def _() -> None:
    h = leaf(2.0) * 1
    loss = h * h
    with pytest.raises(AliasError, match="is detached from a tensor that requires grad"):
        h.detach().mul_(3)
    with oplib.no_grad():
        h.detach().mul_(3)
    with pytest.raises(AutogradError):
        loss.backward()


@row("a custom operator that writes has a wrong gradient in silence")
def _() -> None:
    with scratch() as lib:
        op = lib.define("scale_(Tensor(a!) x) -> Tensor(a!)").op
        op.register_kernel("cpu", lambda x: np.multiply(x, 3, out=x))
        y = leaf(1.0) * 1
        with pytest.raises(AutogradError, match="no gradient rule"):
            op(y)
        assert_values(y, [1.0])


# ---------------------------------------------------------------------- rules and layers


@row("an operator without a rule stops the gradient in silence")
def _() -> None:
    with scratch() as lib:
        op = lib.define("cube(Tensor x) -> Tensor").op
        op.register_kernel("cpu", lambda x: x**3)
        with pytest.raises(AutogradError, match=r'register_vjp\("faults::cube"'):
            op(leaf(1.0)).backward()


@row("a gradient of a wrong shape is accepted")
def _() -> None:
    class Wrong(Twice):
        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return tensor(1.0, 2.0, 3.0)

    with pytest.raises(AutogradError, match=r"expected  \[2\]\n  got       \[3\]"):
        Wrong.apply(leaf(1.0, 2.0)).sum().backward()
    x = leaf(1.0)
    Wrong.apply(x).backward()
    assert_values(x.grad, [6.0])


@row("a complex gradient of a real argument is accepted, or refused")
def _() -> None:
    class Complex(Twice):
        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * tensor(2 + 3j, dtype=complex)

    x = leaf(1.0)
    Complex.apply(x).backward()
    assert_values(x.grad, [2.0])


@row("gradients of keyword arguments go by the order of the call")
def _() -> None:
    class Weighted(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            return x * 2 + y * 3

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return grad * 2, grad * 3

    x, y = leaf(1.0), leaf(1.0)
    Weighted.apply(y=y, x=x).backward()
    assert_values(x.grad, [2.0])
    assert_values(y.grad, [3.0])


class Sums(PyLayer):
    @staticmethod
    def forward(ctx: Any, xs: Any) -> Any:
        return [xs["a"][0] + xs["a"][1], xs["a"][1] * 3]

    @staticmethod
    def backward(ctx: Any, grads: list[Tensor]) -> Any:
        return ({"a": [grads[0], grads[0] + grads[1] * 3]},)


@row("tensors in containers are not tracked, or the first of a list decides for all")
def _() -> None:
    stopped, x = tensor(1.0), leaf(1.0)
    first, second = Sums.apply({"a": [stopped, x]})
    (first + second).backward()
    assert_values(x.grad, [4.0])


@row("a layer that returns a list of two tensors crashes in backward")
def _() -> None:
    x, y = leaf(1.0), leaf(1.0)
    _, second = Sums.apply({"a": [x, y]})
    second.backward()
    assert_values(y.grad, [3.0])
    assert_values(x.grad, [0.0])


@row("`mark_not_inplace` loses the layer's backward")
def _() -> None:
    class Reverse(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_not_inplace(x)
            return x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return -grad

    x = leaf(1.0)
    y = Reverse.apply(x)
    assert y is not x
    y.backward()
    assert_values(x.grad, [-1.0])


@row("what a custom layer saved may be written to before its backward")
def _() -> None:
    class Square(PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * ctx.saved_tensors[0] * 2

    h = leaf(2.0) * 1
    y = Square.apply(h)
    h.add_(1.0)
    with pytest.raises(AutogradError, match=r"saved tensor 0 was saved .* at version 0"):
        y.backward()


@row("saved-tensor hooks do not nest, and switch the version check off")
def _() -> None:
    order: list[str] = []

    def hooks(name: str) -> Any:
        return saved_tensors_hooks(lambda t: (order.append(name), t)[1], lambda t: t)

    h = leaf(2.0) * 1
    with hooks("outer"):
        with hooks("inner"):
            y = h.square()
        leaf(1.0).square()
    assert order == ["inner", "outer"]
    h.add_(1.0)
    with pytest.raises(AutogradError, match="version 0"):
        y.backward()


class Cubed(PyLayer):
    """x³, whose backward uses a value computed in forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        square = x * x
        ctx.save_for_backward(square)
        return square * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0] * 3


@row("a value computed in forward and saved is a constant of the second derivative")
def _() -> None:
    x = leaf(2.0)
    (g,) = oplib.grad(Cubed.apply(x), x, create_graph=True)
    assert_values(g, [12.0])
    with pytest.raises(AutogradError, match="Cubed: saved tensor 0 is neither an input nor"):
        oplib.grad(g, x)


@row("a second derivative through a `once_differentiable` backward lacks a term")
def _() -> None:
    class Once(Cubed):
        backward = staticmethod(once_differentiable(Cubed.backward))

    x = leaf(2.0)
    (g,) = oplib.grad(Once.apply(x), x, create_graph=True)
    with pytest.raises(AutogradError, match="Once: its backward is once_differentiable"):
        oplib.grad(g * x, x)


@row("second derivatives of complex functions lack a conjugate")
def _() -> None:
    z = 2 + 3j
    cases: list[tuple[Callable[[Tensor], Tensor], complex, complex]] = [
        (lambda t: t * t * t, np.conj(6 * z), -1j * np.conj(6 * z)),
        (lambda t: t.sin(), np.conj(-np.sin(z)), -1j * np.conj(-np.sin(z))),
        (lambda t: t.abs() * t.abs(), 2, 2j),
    ]
    for function, of_real, of_imaginary in cases:
        for part, expected in (("real", of_real), ("imag", of_imaginary)):
            x = leaf(z, dtype=complex)
            out = function(x)
            (g,) = oplib.grad(out.real if out.dtype.kind == "c" else out, x, create_graph=True)
            assert_values(oplib.grad(getattr(g, part), x)[0], [expected])


@row("a recomputed function may give other values the second time")
def _() -> None:
    rng = np.random.default_rng(0)
    y = recompute(lambda x: (x * rng.random()).exp(), leaf(1.0))
    with pytest.raises(AutogradError, match="returns another value"):
        y.backward()


@row("an ndarray or a number is taken for a seed")
def _() -> None:
    for seed in (np.ones(1), 1.0):
        with pytest.raises(ArgumentError):
            (leaf(1.0) * 2).backward(seed)


@pytest.mark.parametrize("fault", ROWS)
def test_oplib_does_what_the_row_says(fault: str) -> None:
    ROWS[fault]()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="raise"):
        yield
