"""Fake rules stated by argument names.

`register_fake` and ``fake=`` take what these return, check the names against the schema, and
`explain` shows it as it was written.

Imports floors 0 to 3, `functions.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .._text import did_you_mean
from ..errors import RegistrationError
from ..schema import FunctionSchema
from ..tensor.geometry import keep_layout
from .functions import (
    as_size,
    broadcast_spec,
    check,
    concat_spec,
    gather_spec,
    like_spec,
    matmul_spec,
    reduced_spec,
    stacked_spec,
    windowed_shape,
)
from .spec import TensorSpec

__all__ = [
    "ShapeRule",
    "broadcast",
    "concat",
    "gather",
    "like",
    "matmul",
    "outputs",
    "reduced",
    "spec",
    "stacked",
    "windows",
]

Given: TypeAlias = dict[str, Any]
"""The arguments of a call by name."""


class ShapeRule:
    """A fake rule stated by argument names; a registration turns it into a function.

    Parameters
    ----------
    text : str
        How it is written.
    build : callable
        ``build(arguments by name)`` returns a `TensorSpec`, or a tuple of them.
    names : sequence of str
        The argument names it uses.
    """

    def __init__(self, text: str, build: Callable[[Given], Any], names: Sequence[str]) -> None:
        self.text = text
        self.build = build
        self.names = tuple(names)

    def for_schema(self, schema: FunctionSchema) -> Callable[..., Any]:
        """Return the fake rule for an operator with this schema.

        Raises
        ------
        RegistrationError
            If the rule names an argument the schema does not have.
        """
        every = [argument.name for argument in schema.arguments]
        for name in self.names:
            if name not in every:
                hint = did_you_mean(name, every) or f"; it has {', '.join(every)}"
                raise RegistrationError(
                    f"{schema.qualname}: {self.text} names no argument {name!r}{hint}"
                )
        names = [argument.name for argument in schema.positional]
        build = self.build

        def rule(*args: Any, **kwargs: Any) -> Any:
            return build({**dict(zip(names, args, strict=True)), **kwargs})

        return rule

    def __repr__(self) -> str:
        return self.text


def _text(name: str, *args: Any, **options: Any) -> str:
    """Return how a builder was called; options left at None are not shown."""
    shown = [repr(arg) for arg in args]
    shown += [f"{key}={value!r}" for key, value in options.items() if value is not None]
    return f"{name}({', '.join(shown)})"


def _value(given: Given, name: Any) -> Any:
    """Return the argument called `name`; what is no name stands for itself."""
    return given[name] if isinstance(name, str) else name


def _names(*values: Any) -> list[str]:
    return [value for value in values if isinstance(value, str)]


def _dtype(dtype: Any, x: Any) -> Any:
    """Return a dtype given as itself, or as a function of the operand's dtype."""
    return dtype(x.dtype) if callable(dtype) and not isinstance(dtype, type) else dtype


# ---------------------------------------------------------------------- elementwise, reductions


def like(name: str, dtype: Any = None) -> ShapeRule:
    """Return the rule "like argument `name`": its shape and layout, and its dtype by default.

    `dtype` is a dtype, or a function from the operand's dtype to the result's.
    """

    def build(given: Given) -> TensorSpec:
        return like_spec(given[name], _dtype(dtype, given[name]))

    return ShapeRule(_text("like", name, dtype=dtype), build, [name])


def broadcast(*names: str, dtype: Any = None) -> ShapeRule:
    """Return the rule of elementwise operators: shapes broadcast, dtypes promote (NEP 50)."""

    def build(given: Given) -> TensorSpec:
        return broadcast_spec(*[given[name] for name in names], dtype=dtype)

    return ShapeRule(_text("broadcast", *names, dtype=dtype), build, names)


def reduced(
    name: str, dim: Any = "dim", keepdim: str | bool = "keepdim", dtype: Any = None
) -> ShapeRule:
    """Return the rule of reductions over argument `name` along the argument `dim`.

    `dim` and `keepdim` may also be values. `dtype` is a dtype, or a function from the operand's
    dtype to the result's.
    """

    def build(given: Given) -> TensorSpec:
        x = given[name]
        return reduced_spec(x, _value(given, dim), _value(given, keepdim), _dtype(dtype, x))

    text = _text("reduced", name, dim, keepdim, dtype=dtype)
    return ShapeRule(text, build, [name, *_names(dim, keepdim)])


# ---------------------------------------------------------------------- products, joins, windows


def matmul(a: str, b: str) -> ShapeRule:
    """Return the rule of a matrix product of two arguments."""
    return ShapeRule(_text("matmul", a, b), lambda given: matmul_spec(given[a], given[b]), [a, b])


def concat(parts: str, dim: str | int = 0) -> ShapeRule:
    """Return the rule of joining a list argument along an axis its tensors have."""
    return ShapeRule(
        _text("concat", parts, dim),
        lambda given: concat_spec(given[parts], _value(given, dim)),
        [parts, *_names(dim)],
    )


def stacked(parts: str, dim: str | int = 0) -> ShapeRule:
    """Return the rule of joining a list argument along a new axis."""
    return ShapeRule(
        _text("stacked", parts, dim),
        lambda given: stacked_spec(given[parts], _value(given, dim)),
        [parts, *_names(dim)],
    )


def gather(x: str, index: str, dim: str | int) -> ShapeRule:
    """Return the rule of picking elements of `x` along an axis, in the shape of `index`."""
    return ShapeRule(
        _text("gather", x, index, dim),
        lambda given: gather_spec(given[x], given[index], _value(given, dim)),
        [x, index, *_names(dim)],
    )


def windows(x: str, size: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> ShapeRule:
    """Return the rule of convolution and pooling over ``[batch, channels, *spatial]``.

    `size` is a window size, as a value or the name of an argument; if that argument is a tensor
    ``[out_channels, in_channels, *window]`` the rule is that of a convolution with it. The other
    parameters are values or argument names too; a stride of None means the size.
    """

    def build(given: Given) -> TensorSpec:
        batch, channels, *spatial = given[x].shape
        window, step = _value(given, size), _value(given, stride)
        if hasattr(window, "dtype"):
            axes = len(window.shape) - 2
            check(axes == len(spatial), f"a weight with {axes} window axes for {len(spatial)}")
            channels, _, *window = window.shape
        others = [_value(given, padding), _value(given, dilation)]
        shape = windowed_shape(spatial, window, window if step is None else step, *others)
        return TensorSpec((batch, channels, *shape), given[x].dtype)

    text = _text("windows", x, size, stride=stride, padding=padding, dilation=dilation)
    return ShapeRule(text, build, [x, *_names(size, stride, padding, dilation)])


# ---------------------------------------------------------------------- anything else


def spec(shape: Callable[..., Any], dtype: Any = None, layout: str = "C") -> ShapeRule:
    """Return the rule that computes a shape.

    Parameters
    ----------
    shape : callable
        Its parameters are the names of the arguments it needs:
        ``lambda x, n: (*x.shape, n)``.
    dtype : dtype or callable, optional
        A callable likewise; by default the dtype of the first argument `shape` names.
    layout : {"C", "keep"}
        C order, or the order of axes that the tensors among these arguments agree on.
    """
    names = list(inspect.signature(shape).parameters)
    typed = callable(dtype) and not isinstance(dtype, type)
    dtype_names = list(inspect.signature(dtype).parameters) if typed else []
    if layout not in ("C", "keep"):
        raise RegistrationError(f"layout is 'C' or 'keep', got {layout!r}")

    def build(given: Given) -> TensorSpec:
        values = [given[name] for name in names]
        kind = dtype(*[given[name] for name in dtype_names]) if typed else dtype
        made = TensorSpec(as_size(shape(*values)), values[0].dtype if kind is None else kind)
        if layout == "keep":
            operands = [(v.shape, v.strides) for v in values if hasattr(v, "strides")]
            made.strides = keep_layout(made.shape, operands, made.dtype.itemsize)
        return made

    text = f"spec(shape of {', '.join(names)})"
    return ShapeRule(text, build, list(dict.fromkeys([*names, *dtype_names])))


def outputs(*rules: ShapeRule) -> ShapeRule:
    """Return the rule of an operator with several results, one rule per result."""
    names = dict.fromkeys(name for rule in rules for name in rule.names)
    return ShapeRule(
        f"outputs({', '.join(map(repr, rules))})",
        lambda given: tuple([rule.build(given) for rule in rules]),
        list(names),
    )
