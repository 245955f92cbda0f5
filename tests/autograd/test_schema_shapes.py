"""One gradient rule in three styles, over every shape of schema, against numeric differences.

A row of the table is an operator, its rule per argument, fused and in ctx style, and calls of it.
First and second derivatives of every call are checked.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import Library, OpCheckError, Tensor
from oplib.testing import gradcheck, gradgradcheck

_numbers = itertools.count()
STOPPED = oplib.tensor([0.7, 1.1, 0.9])
STYLES = ("per argument", "fused", "ctx")

Rule = Callable[..., Any]


@dataclass
class Shape:
    """An operator, its rules, and ways to call it with tensors; `calls` return what is checked.

    A call gets the operator and tensors that require grad, as many as it has parameters besides.
    """

    title: str
    schema: str
    kernel: Callable[..., Any]
    per_argument: dict[str, Rule | None] | None
    fused: Rule | None = None
    setup: Rule | None = None
    backward: Rule | None = None
    calls: list[Callable[..., Any]] = field(default_factory=list)
    dtype: Any = float

    def define(self, lib: Library, style: str) -> Any:
        """Define the operator with its rule in one style."""
        op = lib.define(self.schema).op
        op.register_kernel("cpu", self.kernel)
        if style == "per argument" and self.per_argument is not None:
            op.register_vjp(**self.per_argument)
        elif style == "fused":
            op.register_vjp(self.fused)
        elif style == "ctx":
            op.register_autograd(self.backward, setup_context=self.setup)
        return op


def save(*names: str) -> Rule:
    """Return a ``setup_context`` that saves positional arguments by their index, ``"0"``."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*(inputs[int(name)] for name in names))
        ctx.rest = [value for value in inputs if isinstance(value, float)]

    return setup_context


# -- the kernels


def list_kernel(xs: Any, s: float) -> Any:
    return s * np.prod(xs, axis=0)


def holes_kernel(xs: Any, w: Any) -> Any:
    return sum(np.sin(x) * (i + 1) for i, x in enumerate(xs) if x is not None) * w


def best_kernel(x: Any) -> Any:
    return np.sin(x) * 2, np.argmax(x, keepdims=True)


def each_into(xs: Any, w: Any) -> None:
    for x in xs:
        x *= w


def total_into(x: Any, buffer: Any) -> Any:
    if buffer is not None:
        buffer += x * x
    return x * 3


# -- rules too long for a lambda


def list_gradients(grad: Tensor, xs: list[Tensor], s: float) -> list[Tensor]:
    found = []
    for i in range(len(xs)):
        product = grad * s
        for j, x in enumerate(xs):
            product = product * x if i != j else product
        found.append(product)
    return found


def holes_gradients(grad: Tensor, xs: list[Tensor | None], w: Tensor) -> list[Tensor | None]:
    return [None if x is None else grad * w * x.cos() * (i + 1) for i, x in enumerate(xs)]


def holes_weight(grad: Tensor, xs: list[Tensor | None]) -> Tensor:
    terms = [x.sin() * (i + 1) for i, x in enumerate(xs) if x is not None]
    return grad * sum(terms[1:], start=terms[0])


def dot(a: list[Tensor], b: list[Tensor]) -> Tensor:
    first, *rest = [x * y for x, y in zip(a, b, strict=True)]
    return sum(rest, start=first)


def keyword_setup(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: dict[str, Any]) -> None:
    ctx.save_for_backward(inputs[0], keyword_only_inputs["w"], keyword_only_inputs["b"])
    ctx.s = keyword_only_inputs["s"]


def keyword_backward(ctx: Any, grad: Tensor) -> Any:
    x, w, b = ctx.saved_tensors
    return grad * w * ctx.s, grad * x * ctx.s, None if b is None else grad, None


SHAPES = [
    Shape(
        "plain",
        "f(Tensor x, Tensor y, float s=2.0) -> Tensor",
        lambda x, y, s: s * x * np.sin(y),
        {
            "x": lambda grad, y, s: grad * y.sin() * s,
            "y": lambda grad, x, y, s: grad * x * y.cos() * s,
        },
        lambda grad, x, y, s: (grad * y.sin() * s, grad * x * y.cos() * s),
        save("0", "1"),
        lambda ctx, g: (
            g * ctx.saved_tensors[1].sin() * ctx.rest[0],
            g * ctx.saved_tensors[0] * ctx.saved_tensors[1].cos() * ctx.rest[0],
            None,
        ),
        [lambda op, x, y: op(x, y), lambda op, x: op(x, x, s=3.0), lambda op, y: op(y=y, x=y * 2)],
    ),
    Shape(
        "saved result",
        "f(Tensor x) -> Tensor",
        np.exp,
        {"x": lambda grad, out: grad * out},
        lambda grad, out: grad * out,
        lambda ctx, inputs, output: ctx.save_for_backward(output),
        lambda ctx, g: g * ctx.saved_tensors[0],
        [lambda op, x: op(x)],
    ),
    Shape(
        "optional tensor",
        "f(Tensor x, Tensor? b=None) -> Tensor",
        lambda x, b: x * x if b is None else x * b,
        {
            "x": lambda grad, x, b: grad * (x * 2 if b is None else b),
            "b": lambda grad, x: grad * x,
        },
        lambda grad, x, b: (grad * x * 2, None) if b is None else (grad * b, grad * x),
        save("0", "1"),
        lambda ctx, g: (
            (g * ctx.saved_tensors[0] * 2, None)
            if ctx.saved_tensors[1] is None
            else (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0])
        ),
        [lambda op, x: op(x), lambda op, x, b: op(x, b), lambda op, b: op(STOPPED, b=b)],
    ),
    Shape(
        "tensor list",
        "f(Tensor[] xs, float s=1.5) -> Tensor",
        list_kernel,
        {"xs": list_gradients},
        lambda grad, xs, s: (list_gradients(grad, xs, s), None),
        lambda ctx, inputs, output: (
            ctx.save_for_backward(*inputs[0]),
            setattr(ctx, "s", inputs[1]),
        ),
        lambda ctx, g: (list_gradients(g, ctx.saved_tensors, ctx.s), None),
        [
            lambda op, x, y, z: op([x, y, z]),
            lambda op, x: op([x, x], 2.0),
            lambda op, x: op([STOPPED, x]),
        ],
    ),
    Shape(
        "list with None",
        "f(Tensor?[] xs, Tensor w) -> Tensor",
        holes_kernel,
        {"xs": holes_gradients, "w": holes_weight},
        lambda grad, xs, w: (holes_gradients(grad, xs, w), holes_weight(grad, xs)),
        lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], inputs[1]),
        lambda ctx, g: (
            holes_gradients(g, *ctx.saved_tensors),
            holes_weight(g, ctx.saved_tensors[0]),
        ),
        [
            lambda op, x, y, w: op([None, x, None, y], w),
            lambda op, x: op([x, None], STOPPED),
            lambda op, w: op([None, STOPPED], w),
        ],
    ),
    Shape(
        "keyword-only tensors",
        "f(Tensor x, *, Tensor w, Tensor? b=None, float s=2.0) -> Tensor",
        lambda x, *, w, b, s: x * w * s + (0 if b is None else b),
        {
            "x": lambda grad, w, s: grad * w * s,
            "w": lambda grad, x, s: grad * x * s,
            "b": lambda grad: grad,
        },
        lambda grad, x, w, b, s: {
            "x": grad * w * s,
            "w": grad * x * s,
            "b": None if b is None else grad,
        },
        keyword_setup,
        keyword_backward,
        [
            lambda op, x, w: op(x, w=w),
            lambda op, x, w, b: op(b=b, w=w, x=x),
            lambda op, w: op(STOPPED, w=w, s=3.0),
        ],
    ),
    Shape(
        "several outputs",
        "f(Tensor x) -> (Tensor sine, Tensor cosine)",
        lambda x: (np.sin(x), np.cos(x)),
        {"x": lambda grad_sine, grad_cosine, sine, cosine: grad_sine * cosine - grad_cosine * sine},
        lambda grads, sine, cosine: grads[0] * cosine - grads[1] * sine,
        lambda ctx, inputs, output: ctx.save_for_backward(*output),
        lambda ctx, g, h: g * ctx.saved_tensors[1] - h * ctx.saved_tensors[0],
        [lambda op, x: op(x), lambda op, x: op(x)[1], lambda op, x: op(x)[0] * op(x)[1]],
    ),
    Shape(
        "an integer output",
        "f(Tensor x) -> (Tensor, Tensor)",
        best_kernel,
        {"x": lambda grad_out0, x: grad_out0 * x.cos() * 2},
        lambda grad_out0, x: grad_out0 * x.cos() * 2,
        save("0"),
        lambda ctx, g, _: g * ctx.saved_tensors[0].cos() * 2,
        [lambda op, x: op(x)[0], lambda op, x: op(x)],
    ),
    Shape(
        "outputs that may be None",
        "f(Tensor x, bool both=False) -> (Tensor, Tensor?, int)",
        lambda x, both: (x * x, x * 3 if both else None, 7),
        None,
        None,
        save("0"),
        lambda ctx, g, h, _: (g * ctx.saved_tensors[0] * 2 + (0 if h is None else h * 3), None),
        [lambda op, x: op(x)[0], lambda op, x: op(x, True)[:2], lambda op, x: op(x, True)[1]],
    ),
    Shape(
        "list output",
        "f(Tensor[] xs, Tensor w) -> (Tensor[], Tensor)",
        lambda xs, w: ([x * w for x in xs], w * w),
        {
            "xs": lambda grad_out0, xs, w: [grad * w for grad in grad_out0],
            "w": lambda grads, xs, w: dot(grads[0], xs) + grads[1] * w * 2,
        },
        lambda grads, xs, w: (
            [grad * w for grad in grads[0]],
            dot(grads[0], xs) + grads[1] * w * 2,
        ),
        lambda ctx, inputs, output: ctx.save_for_backward(list(inputs[0]), inputs[1]),
        lambda ctx, gs, g: (
            [grad * ctx.saved_tensors[1] for grad in gs],
            dot(gs, ctx.saved_tensors[0]) + g * ctx.saved_tensors[1] * 2,
        ),
        [
            lambda op, x, y, w: op([x, y], w),
            lambda op, x, w: op([x, STOPPED], w)[0][1],
            lambda op, w: op([STOPPED], w)[1],
        ],
    ),
    Shape(
        "nested containers",
        "f(Dict(str, Tensor[]) tree, (Tensor, int) pair) -> Tensor",
        lambda tree, pair: tree["a"][0] * tree["b"][1] * pair[0],
        {
            "tree": lambda grad, tree, pair: {
                "a": [grad * tree["b"][1] * pair[0]],
                "b": [None, grad * tree["a"][0] * pair[0]],
            },
            "pair": lambda grad, tree: (grad * tree["a"][0] * tree["b"][1], None),
        },
        lambda grad, tree, pair: (
            {
                "a": [grad * tree["b"][1] * pair[0]],
                "b": [None, grad * tree["a"][0] * pair[0]],
            },
            (grad * tree["a"][0] * tree["b"][1],),
        ),
        lambda ctx, inputs, output: ctx.save_for_backward(
            inputs[0]["a"][0], inputs[0]["b"][1], inputs[1][0]
        ),
        lambda ctx, g: (
            {
                "a": [g * ctx.saved_tensors[1] * ctx.saved_tensors[2]],
                "b": [None, g * ctx.saved_tensors[0] * ctx.saved_tensors[2]],
            },
            (g * ctx.saved_tensors[0] * ctx.saved_tensors[1], None),
        ),
        [
            lambda op, x, y, z: op({"a": [x], "b": [STOPPED, y]}, (z, 5)),
            lambda op, y: op({"a": [STOPPED], "b": [STOPPED, y]}, (STOPPED, 5)),
        ],
    ),
    Shape(
        "complex",
        "f(Tensor x, Tensor y) -> Tensor",
        lambda x, y: x * np.conj(y),
        {"x": lambda grad, y: grad * y, "y": lambda grad, x: grad.conj() * x},
        lambda grad, x, y: (grad * y, grad.conj() * x),
        save("0", "1"),
        lambda ctx, g: (g * ctx.saved_tensors[1], g.conj() * ctx.saved_tensors[0]),
        [lambda op, x, y: op(x, y), lambda op, x: op(x, x), lambda op, x: op(x, x.real.clone())],
        complex,
    ),
    Shape(
        "in place",
        "f(Tensor(a!) x, Tensor y) -> Tensor(a!)",
        lambda x, y: np.multiply(x, y, out=x),
        {"x": lambda grad, y: grad * y, "y": lambda grad, x: grad * x},
        lambda grad, x, y: (grad * y, grad * x),
        None,
        None,
        [
            lambda op, x, y: op(x * 1, y),
            lambda op, x: op(x * 1, x),
            lambda op, y: op(STOPPED.clone(), y),
            lambda op, x, y: written_view(op, x, y),
        ],
    ),
    Shape(
        "in place, returning nothing",
        "f(Tensor(a!) x, Tensor y) -> ()",
        lambda x, y: each_into([x], y),
        {"x": lambda grad_x, y: grad_x * y, "y": lambda grad_x, x: grad_x * x},
        lambda grad_x, x, y: (grad_x * y, grad_x * x),
        None,
        None,
        [lambda op, x, y: written(op, x * 1, y), lambda op, x: written(op, x * 1, x)],
    ),
    Shape(
        "in place on a list",
        "f(Tensor(a!)[] xs, Tensor w) -> ()",
        each_into,
        {
            "xs": lambda grad_xs, w: [grad * w for grad in grad_xs],
            "w": lambda grad_xs, xs: dot(grad_xs, xs),
        },
        lambda grad_xs, xs, w: (
            [grad * w for grad in grad_xs],
            dot(grad_xs, xs),
        ),
        None,
        None,
        [lambda op, x, y, w: written(op, [x * 1, y * 1], w), lambda op, w: written(op, [w * 2], w)],
    ),
    Shape(
        "in place on an optional",
        "f(Tensor x, Tensor(a!)? buffer=None) -> Tensor",
        total_into,
        {
            "x": lambda grad_out, grad_buffer, x: (
                grad_out * 3 + (0 if grad_buffer is None else grad_buffer * x * 2)
            ),
            "buffer": lambda grad_buffer: grad_buffer,
        },
        lambda grad_out, grad_buffer, x: (
            grad_out * 3 + (0 if grad_buffer is None else grad_buffer * x * 2),
            grad_buffer,
        ),
        save("0"),
        lambda ctx, g, h: (g * 3 + (0 if h is None else h * ctx.saved_tensors[0] * 2), h),
        [
            lambda op, x: op(x),
            lambda op, x, b: with_buffer(op, x, b * 1),
            lambda op, x: with_buffer(op, x, STOPPED.clone()),
        ],
    ),
    Shape(
        "out=",
        "f.out(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)",
        lambda x, y, *, out: np.multiply(x, y, out=out),
        {
            "x": lambda grad_out, y: grad_out * y,
            "y": lambda grad_out, x: grad_out * x,
            "out": lambda grad_out: grad_out * 0,
        },
        lambda grad_out, x, y: (grad_out * y, grad_out * x, grad_out * 0),
        save("0", "1"),
        lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0], None),
        [
            lambda op, x, y: op(x, y, out=oplib.zeros_like(x)),
            lambda op, x, y, z: op(x, y, out=z * 1) * z,
        ],
    ),
    Shape(
        "view",
        "f(Tensor(a) x, int start=1) -> Tensor(a)",
        lambda x, start: x[start:],
        None,
        None,
        None,
        None,
        [
            lambda op, x: op(x) * 2,
            lambda op, x: op(op(x * 1), 0),
            lambda op, x: scaled_through(op, x * 1),
        ],
    ),
    Shape(
        "list of views",
        "f(Tensor(a) x) -> Tensor(a)[]",
        lambda x: [x[:1], x[1:]],
        None,
        None,
        None,
        None,
        [lambda op, x: op(x)[1] * 2, lambda op, x: [part * part for part in op(x * 1)]],
    ),
]


def written(op: Any, x: Any, y: Tensor) -> Any:
    assert op(x, y) is None
    return x


def written_view(op: Any, x: Tensor, y: Tensor) -> Any:
    base = x * 1
    row = base[1:]
    assert op(row, y[1:]) is row
    return base * base


def with_buffer(op: Any, x: Tensor, buffer: Tensor) -> Any:
    return op(x, buffer), buffer * 2


def scaled_through(op: Any, base: Tensor) -> Tensor:
    op(base).mul_(3.0)
    return base * base


def has(shape: Shape, style: str) -> bool:
    """Return whether a shape has a rule in a style; views need none, checked once."""
    if style == "per argument":
        return shape.per_argument is not None or shape.backward is None
    return (shape.fused if style == "fused" else shape.backward) is not None


TABLE = [
    pytest.param(shape, style, call, id=f"{shape.title}-{style}-{number}")
    for shape in SHAPES
    for style in STYLES
    if has(shape, style)
    for number, call in enumerate(shape.calls)
]


@pytest.fixture
def lib() -> Iterator[Library]:
    with Library(f"shapes{next(_numbers)}", "DEF") as library:
        yield library


def inputs_of(call: Callable[..., Any], dtype: Any) -> list[Tensor]:
    """Return one tensor per parameter of a call besides the operator."""
    rng = np.random.default_rng(5)
    count = call.__code__.co_argcount - 1
    values = [rng.uniform(0.5, 1.5, 3) for _ in range(count)]
    if dtype is complex:
        values = [v + 1j * rng.uniform(0.5, 1.5, 3) for v in values]  # type: ignore[misc]
    return [oplib.tensor(v).requires_grad_() for v in values]


@pytest.mark.parametrize(("shape", "style", "call"), TABLE)
def test_first_and_second_derivatives_are_numeric_differences(lib, shape, style, call):
    op = shape.define(lib, style)
    inputs = inputs_of(call, shape.dtype)
    assert gradcheck(lambda *tensors: call(op, *tensors), inputs)
    assert gradgradcheck(lambda *tensors: call(op, *tensors), inputs)


@pytest.mark.parametrize("style", STYLES)
def test_a_wrong_rule_is_found_in_every_style(lib, style):
    plain = SHAPES[0]
    wrong = Shape(
        plain.title,
        plain.schema,
        plain.kernel,
        {**(plain.per_argument or {}), "x": lambda grad, y: grad * y.sin()},
        lambda grad, x, y, s: (grad * y.sin() * s, grad * x * y.cos()),
        plain.setup,
        lambda ctx, g: (g, g, None),
    )
    op = wrong.define(lib, style)
    with pytest.raises(OpCheckError):
        gradcheck(op, inputs_of(plain.calls[0], float))
