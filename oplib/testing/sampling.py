"""Calls derived from a given one: other sizes, options, layouts, dtypes and values.

Every derivation is a small generator of calls; `derived` runs through all of them. A derived call
may be invalid for the operator: whoever runs it decides.

Imports floors 0 to 7, `compare.py`, `layouts.py`, `calls.py`. Read next: `session.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np

from .._tree import tree_map
from ..dtypes import is_inexact, short_dtype
from ..schema.types import BasicType, ListType, OptionalType
from ..tensor.tensor import Tensor, tensor_from_array
from .calls import Call
from .compare import Array
from .layouts import LAYOUTS, ONLY_FOR_READING

__all__ = ["derived", "redrawn"]

Sizes: TypeAlias = Callable[[str, int, int], int]
"""From the name of a tensor, an axis counted from the last (-1) and its length to a new length."""

DTYPES: Final = ("float32", "complex128", "float16", "complex64", "int64", "int32", "uint8", "bool")


def derived(call: Call, rng: np.random.Generator) -> Iterator[Call]:
    """Yield calls derived from a valid one."""
    yield from _other_options(call)
    yield from _other_sizes(call, rng)
    yield from _other_layouts(call)
    yield from _other_dtypes(call)
    yield from _other_values(call, rng)


# ---------------------------------------------------------------------- values


def draw(like: Array, shape: tuple[int, ...], rng: np.random.Generator, bound: int) -> Array:
    """Return values of `like`'s dtype and range: apart from zero and each other, or indices.

    Parameters
    ----------
    like : numpy.ndarray
        Given values; where none is negative, none is drawn.
    shape : tuple of int
    rng : numpy.random.Generator
    bound : int
        Integers are below it, so that they are valid as indices.
    """
    dtype, count = like.dtype, int(np.prod(shape, dtype=int))
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    if dtype.kind in "iu":
        low = min(int(like.min()) if like.size else 0, 0)
        return np.asarray(rng.integers(max(low, -bound), max(bound, 1), shape)).astype(dtype)
    if not is_inexact(dtype):
        return np.resize(like, shape) if like.size else np.zeros(shape, dtype)
    values = _apart(count, rng).reshape(shape)
    if dtype.kind == "c":
        return np.asarray(values + 1j * _apart(count, rng).reshape(shape)).astype(dtype)
    least, most = (float(like.min()), float(like.max())) if like.size else (-1.0, 1.0)
    if least >= 0 or most <= 0:
        values = np.abs(values) * (1 if least >= 0 else -1)
    if least >= 0 and most <= 1:  # a probability, or the like
        values = (np.argsort(np.argsort(values.reshape(-1))).reshape(shape) + 0.5) / max(count, 1)
    return np.asarray(values).astype(dtype)


def _apart(count: int, rng: np.random.Generator) -> Array:
    """Return numbers at least 0.1 from zero and 0.02 from each other, in random order."""
    magnitudes = 0.1 + 0.02 * np.arange(count) * max(1.0, 40 / max(count, 1))
    magnitudes += 0.004 * rng.uniform(size=count)
    return np.asarray(rng.permutation(magnitudes * rng.choice([-1.0, 1.0], count)))


def redrawn(call: Call, rng: np.random.Generator, label: str = "", kind: str = "values") -> Call:
    """Return a call with other values of the same shapes, dtypes and layouts."""
    made: dict[int, Tensor] = {}
    bound = _index_bound(call)

    def other(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = _with_values(leaf, draw(leaf.array, leaf.shape, rng, bound))
        return made[id(leaf)]

    return _mapped(call, other, label or "other values", kind)


def _with_values(like: Tensor, values: Array) -> Tensor:
    """Return a tensor of the geometry of `like`, in a buffer of its own, holding `values`."""
    array = like.array
    if 0 in array.strides and array.size > 1:
        index = tuple(slice(0, 1) if s == 0 else slice(None) for s in array.strides)
        return tensor_from_array(np.broadcast_to(values[index].copy(), values.shape))
    low, high = np.lib.array_utils.byte_bounds(array)
    if not array.size:
        return tensor_from_array(values)
    offset = array.__array_interface__["data"][0] - low
    buffer = np.zeros(high - low, np.uint8)
    made: Array = np.ndarray(array.shape, array.dtype, buffer, int(offset), array.strides)
    made[...] = values
    return tensor_from_array(made if not array.flags.c_contiguous else values)


def _index_bound(call: Call) -> int:
    """Return the smallest length among tensors that are no index themselves."""
    lengths = [n for _, t in call.tensors if is_inexact(t.dtype) for n in t.shape if n]
    return min(lengths, default=4)


def _mapped(call: Call, change: Callable[[Any], Any], label: str, kind: str) -> Call:
    return replace(
        call,
        args=tuple(tree_map(change, value) for value in call.args),
        kwargs={name: tree_map(change, value) for name, value in call.kwargs.items()},
        label=label,
        kind=kind,
    )


def _other_values(call: Call, rng: np.random.Generator) -> Iterator[Call]:
    yield redrawn(call, rng)
    fills = {"zeros": 0.0, "ties": 1.0, "large values": 1e4, "NaN": np.nan, "infinity": np.inf}
    for label, value in fills.items():

        def filled(leaf: Any, value: float = value) -> Any:
            if not isinstance(leaf, Tensor) or not is_inexact(leaf.dtype):
                return leaf
            return _with_values(leaf, np.full(leaf.shape, value).astype(leaf.dtype))

        yield _mapped(call, filled, label, "values")
    if call.inexact:
        yield _mapped(
            call,
            lambda t: _with_values(t, np.asarray(-np.abs(t.array))) if _is_float(t) else t,
            "negative values",
            "values",
        )


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype.kind == "f"


# ---------------------------------------------------------------------- sizes


def _other_sizes(call: Call, rng: np.random.Generator) -> Iterator[Call]:
    """Change equal lengths together, one axis of all tensors, one axis of one tensor."""
    for n in sorted({n for _, t in call.tensors for n in t.shape}, reverse=True):
        for new in dict.fromkeys((n + 1, 1, 2, 0, 3, 7)):
            if new != n:
                yield _resized(call, rng, f"sizes {n} -> {new}", _class(n, new))
    for axis in range(-1, -max((t.ndim for _, t in call.tensors), default=0) - 1, -1):
        for more in (1, 4):
            yield _resized(call, rng, f"axis {axis} longer by {more}", _longer(axis, more))
    for name, tensor in call.tensors[:4]:
        for axis in range(-1, -min(tensor.ndim, 3) - 1, -1):
            for new in (1, tensor.shape[axis] + 1):
                if new != tensor.shape[axis]:
                    label = f"axis {axis} of {name} -> {new}"
                    yield _resized(call, rng, label, _one_axis(name, axis, new))
    yield _with_leading_axis(call, rng)


def _class(old: int, new: int) -> Sizes:
    return lambda name, axis, length: new if length == old else length


def _longer(which: int, more: int) -> Sizes:
    return lambda name, axis, length: length + more if axis == which and length != 1 else length


def _one_axis(who: str, which: int, new: int) -> Sizes:
    return lambda name, axis, length: new if (name, axis) == (who, which) else length


def _resized(call: Call, rng: np.random.Generator, label: str, length: Sizes) -> Call:
    names = {id(t): name for name, t in reversed(call.tensors)}
    shapes = {
        id(t): tuple(length(names[id(t)], i - t.ndim, n) for i, n in enumerate(t.shape))
        for _, t in call.tensors
    }
    return _reshaped(call, rng, label, shapes)


def _with_leading_axis(call: Call, rng: np.random.Generator) -> Call:
    shapes = {id(t): (2, *t.shape) for _, t in call.tensors}
    return _reshaped(call, rng, "a leading axis of 2", shapes)


def _reshaped(
    call: Call, rng: np.random.Generator, label: str, shapes: Mapping[int, tuple[int, ...]]
) -> Call:
    """Return the call with new shapes; tensors that keep theirs keep their values too."""
    made: dict[int, Tensor] = {}
    lengths = [n for _, t in call.inexact for n in shapes[id(t)]]
    bound = min([n for n in lengths if n], default=4)

    def other(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or shapes[id(leaf)] == leaf.shape:
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = tensor_from_array(draw(leaf.array, shapes[id(leaf)], rng, bound))
        return made[id(leaf)]

    return _mapped(call, other, label, "size")


# ---------------------------------------------------------------------- layouts


def _other_layouts(call: Call) -> Iterator[Call]:
    """Lay out every tensor alike, then each alone, in all the ways views can."""
    written = {id(t) for _, t in call.written()}
    for label, change in LAYOUTS.items():

        def laid_out(leaf: Any, change: Any = change, label: str = label) -> Any:
            if not isinstance(leaf, Tensor) or not isinstance(leaf.array, np.ndarray):
                return leaf
            if id(leaf) in written and label in ONLY_FOR_READING:
                return leaf
            return tensor_from_array(change(leaf.array))

        yield _mapped(call, laid_out, label, "layout")
    tensors = call.tensors
    if len(tensors) > 1 and not call.written():
        first = tensors[0][1]
        yield _mapped(
            call,
            lambda leaf: first if isinstance(leaf, Tensor) and _alike(leaf, first) else leaf,
            "the same tensor for equal arguments",
            "layout",
        )
        yield _shared_buffer(call)


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _shared_buffer(call: Call) -> Call:
    """Return the call with its tensors as views of one buffer, one after the other."""
    distinct = {id(t): t.array for _, t in call.tensors if isinstance(t.array, np.ndarray)}
    item = max((a.itemsize for a in distinct.values()), default=1)
    ends = np.cumsum([0, *(-(-a.nbytes // item) * item for a in distinct.values())])
    buffer = np.zeros(int(ends[-1]), np.uint8)
    made: dict[int, Tensor] = {}
    for (key, array), start in zip(distinct.items(), ends[:-1], strict=True):
        if array.size:
            view: Array = np.ndarray(array.shape, array.dtype, buffer, int(start))
            view[...] = array
            made[key] = tensor_from_array(view)
    label = "arguments in one buffer"
    return _mapped(call, lambda leaf: made.get(id(leaf), leaf), label, "layout")


# ---------------------------------------------------------------------- dtypes


def _other_dtypes(call: Call) -> Iterator[Call]:
    """Convert the inexact tensors; then, for operators on integers, all tensors."""
    for name in DTYPES:
        dtype = np.dtype(name)

        def cast(leaf: Any, dtype: Any = dtype) -> Any:
            if not isinstance(leaf, Tensor) or not is_inexact(leaf.dtype) or leaf.dtype == dtype:
                return leaf
            array = leaf.array.real if dtype.kind != "c" else leaf.array
            if dtype.kind in "iu":
                array = np.abs(np.round(array * 3)) if dtype.kind == "u" else np.round(array * 3)
            return tensor_from_array(np.asarray(array).astype(dtype))

        if call.inexact:
            yield _mapped(call, cast, f"dtype {short_dtype(dtype)}", "dtype")


# ---------------------------------------------------------------------- options


def _other_options(call: Call) -> Iterator[Call]:
    """Give what was left out, leave out what was given, and try other scalar values."""
    schema = call.subject.schema
    if schema is None:
        return
    given = dict(call.named)
    for argument in schema.arguments:
        value = given.get(argument.name, argument.default)
        for other in _alternatives(call, argument.type, value):
            yield _with(call, argument.name, other)
        choices = call.subject.op.choices.get(argument.name, ()) if call.subject.op else ()
        for other in choices:
            if other != value:
                yield _with(call, argument.name, other)


def _alternatives(call: Call, kind: Any, value: Any) -> Iterator[Any]:
    if isinstance(kind, OptionalType):
        if value is not None:
            yield None
            kind = kind.element
        else:
            yield from _something(call, kind.element)
            return
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, enum.Enum):
        yield from (member for member in type(value) if member is not value)
    elif isinstance(value, int):
        yield value + 1
        yield value - 1
    elif isinstance(kind, ListType) and isinstance(value, list | tuple) and kind.size is None:
        yield []
        if value:
            yield [value[0]]
            yield [value[i % len(value)] for i in range(3)]


def _something(call: Call, kind: Any) -> Iterator[Any]:
    """Yield values for an argument that was left out."""
    tensors = call.tensors
    if _holds_tensor(kind):
        for _, tensor in tensors[:2]:
            copy = tensor_from_array(tensor.array.copy())
            yield [copy] if isinstance(kind, ListType) else copy
    elif isinstance(kind, BasicType):
        examples = {"int": 1, "SymInt": 1, "float": 0.5, "bool": True, "Scalar": 2, "complex": 1j}
        if kind.name in examples:
            yield examples[kind.name]
        if kind.name == "Generator":
            yield np.random.default_rng(0)
    elif str(kind) in ("int[]", "SymInt[]"):
        yield [0]


def _holds_tensor(kind: Any) -> bool:
    kind = kind.element if isinstance(kind, OptionalType | ListType) else kind
    return str(kind).startswith("Tensor")


def _with(call: Call, name: str, value: Any) -> Call:
    """Return the call with one argument replaced."""
    label = f"{name} = {'a tensor' if isinstance(value, Tensor) else repr(value)}"
    positional = [each for each, _ in call.named[: len(call.args)]]
    if name in positional:
        args = list(call.args)
        args[positional.index(name)] = value
        return replace(call, args=tuple(args), label=label, kind="option")
    return replace(call, kwargs={**call.kwargs, name: value}, label=label, kind="option")
