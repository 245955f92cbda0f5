"""Calls derived from a given one: other sizes, options, layouts, dtypes and values.

Every derivation is a small generator of calls; `derived` runs through all of them. A derived call
may be invalid for the operator: whoever runs it decides.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np

from ..dtypes import is_inexact, short_dtype
from ..schema.types import BasicType, ListType, OptionalType, TensorType
from ..tensor.tensor import Tensor, tensor_from_array
from .calls import Call
from .compare import Array

__all__ = ["LAYOUTS", "ONLY_FOR_READING", "derived", "invented", "laid_out", "redrawn", "resized"]


def _fortran(array: Array) -> Array:
    return np.asfortranarray(array.copy(order="C"))


def _swapped(array: Array) -> Array:
    """Return the elements with the last two axes exchanged in memory."""
    if array.ndim < 2:
        return array.copy(order="C")
    return array.swapaxes(-1, -2).copy(order="C").swapaxes(-1, -2)


def _rolled(array: Array) -> Array:
    """Return the elements with the first axis innermost in memory."""
    return np.moveaxis(np.moveaxis(array, 0, -1).copy(order="C"), -1, 0) if array.ndim else array


def _strided(array: Array) -> Array:
    """Return the elements as every other one of a larger array, along every axis."""
    if not array.ndim:
        return array.copy()
    buffer = np.zeros([2 * n for n in array.shape], array.dtype)
    view = buffer[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def _reversed(array: Array) -> Array:
    flip = tuple(slice(None, None, -1) for _ in array.shape)
    return array[flip].copy(order="C")[flip] if array.ndim else array.copy()


def _offset(array: Array) -> Array:
    """Return the elements inside a larger array: a write next to them is seen."""
    buffer = np.zeros([n + 2 for n in array.shape] or [3], array.dtype)
    inner = tuple(slice(1, n + 1) for n in array.shape) or (slice(1, 2),)
    view = buffer[inner].reshape(array.shape) if not array.ndim else buffer[inner]
    view[...] = array
    return view


def _expanded(array: Array) -> Array:
    """Return the first slice along the first axis, repeated with stride 0."""
    if not array.ndim or array.shape[0] < 2:
        return array.copy()
    return np.broadcast_to(array[:1].copy(), array.shape)


def _read_only(array: Array) -> Array:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


LAYOUTS: Final[dict[str, Callable[[Array], Array]]] = {
    "offset into a larger buffer": _offset,
    "Fortran order": _fortran,
    "last axes transposed": _swapped,
    "first axis innermost": _rolled,
    "every other element": _strided,
    "reversed": _reversed,
    "expanded": _expanded,
    "read-only": _read_only,
}
"""From a description to a function that returns the elements of an array laid out that way."""

ONLY_FOR_READING: Final = ("expanded", "read-only")
"""The layouts an argument that is written cannot have."""


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
    """Return values of `like`'s dtype and range: apart from zero and each other, or indices."""
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

    return call.mapped(other, label or "other values", kind)


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


def _other_values(call: Call, rng: np.random.Generator) -> Iterator[Call]:
    yield redrawn(call, rng)
    fills = {"zeros": 0.0, "ties": 1.0, "large values": 1e4, "NaN": np.nan, "infinity": np.inf}
    for label, value in fills.items():

        def filled(leaf: Any, value: float = value) -> Any:
            if not isinstance(leaf, Tensor) or not is_inexact(leaf.dtype):
                return leaf
            return _with_values(leaf, np.full(leaf.shape, value).astype(leaf.dtype))

        yield call.mapped(filled, label, "values")
    if call.inexact:
        yield call.mapped(
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
                yield resized(call, rng, f"sizes {n} -> {new}", {n: new})
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


def _longer(which: int, more: int) -> Sizes:
    return lambda name, axis, length: length + more if axis == which and length != 1 else length


def _one_axis(who: str, which: int, new: int) -> Sizes:
    return lambda name, axis, length: new if (name, axis) == (who, which) else length


def resized(call: Call, rng: np.random.Generator, label: str, lengths: Mapping[int, int]) -> Call:
    """Return a call in which every axis of an old length has the new one."""
    return _resized(call, rng, label, lambda name, axis, length: lengths.get(length, length))


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

    return call.mapped(other, label, "size")


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

        yield call.mapped(laid_out, label, "layout")
    tensors = call.tensors
    if len(tensors) > 1 and not call.written():
        first = tensors[0][1]
        yield call.mapped(
            lambda leaf: first if isinstance(leaf, Tensor) and _alike(leaf, first) else leaf,
            "the same tensor for equal arguments",
            "layout",
        )
        yield _shared_buffer(call)


def laid_out(call: Call, layouts: Sequence[str | None], label: str) -> Call:
    """Return a call whose tensors, in order, have the named layouts."""
    following = iter(layouts)

    def change(leaf: Any) -> Any:
        layout = next(following) if isinstance(leaf, Tensor) else None
        if layout is None or not isinstance(leaf.array, np.ndarray):
            return leaf
        return tensor_from_array(LAYOUTS[layout](leaf.array))

    return call.mapped(change, label)


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
    return call.mapped(lambda leaf: made.get(id(leaf), leaf), label, "layout")


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
                array = np.nan_to_num(array)
                array = np.abs(np.round(array * 3)) if dtype.kind == "u" else np.round(array * 3)
            return tensor_from_array(np.asarray(array).astype(dtype))

        if call.inexact:
            yield call.mapped(cast, f"dtype {short_dtype(dtype)}", "dtype")


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
    inner = kind.element if isinstance(kind, ListType) else kind
    if isinstance(inner, TensorType):
        for _, tensor in call.tensors[:2]:
            other = tensor_from_array(tensor.array.copy())
            yield other if inner is kind else [other]
    elif isinstance(inner, BasicType) and inner.name in EXAMPLES.keys() - {"str"}:
        value = copy.deepcopy(EXAMPLES[inner.name])
        yield value if inner is kind else [0 if inner.name in ("int", "SymInt") else value]


def invented(kind: Any, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Return a value for an argument that nobody gave."""
    match kind:
        case TensorType():
            return tensor_from_array(rng.standard_normal(shape))
        case ListType(element, size):
            return [invented(element, shape, rng) for _ in range(2 if size is None else size)]
        case BasicType(name):
            return copy.deepcopy(EXAMPLES.get(name))
    return None


EXAMPLES: Final[dict[str, Any]] = {
    "int": 1,
    "SymInt": 1,
    "float": 0.5,
    "bool": True,
    "Scalar": 2.0,
    "complex": 1j,
    "str": "x",
    "ScalarType": np.dtype("float64"),
    "Generator": np.random.default_rng(0),
}
"""A value of every basic type."""


def _with(call: Call, name: str, value: Any) -> Call:
    """Return the call with one argument replaced."""
    label = f"{name} = {'a tensor' if isinstance(value, Tensor) else repr(value)}"
    positional = [each for each, _ in call.named[: len(call.args)]]
    if name in positional:
        args = list(call.args)
        args[positional.index(name)] = value
        return replace(call, args=tuple(args), label=label, kind="option")
    return replace(call, kwargs={**call.kwargs, name: value}, label=label, kind="option")
