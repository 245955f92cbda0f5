"""Calls of the functions of the array API standard: elementwise, reductions, order, shapes.

`calls` registers a generator per function; `Arrays` makes what it needs, of one dtype. The rest is
in `more_calls.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)
SHAPES = ((), (3,), (2, 3), (0,), (2, 0, 3))

# ---------------------------------------------------------------------- the standard's list

UNARY = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_invert", "ceil", "conj"),
    *("cos", "cosh", "exp", "expm1", "floor", "imag", "isfinite", "isinf", "isnan", "log", "log10"),
    *("log1p", "log2", "logical_not", "negative", "positive", "real", "reciprocal", "round"),
    *("sign", "signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc"),
)
BINARY = (
    *("add", "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift"),
    *("bitwise_xor", "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal"),
    *("hypot", "less", "less_equal", "logaddexp", "logical_and", "logical_or", "logical_xor"),
    *("maximum", "minimum", "multiply", "nextafter", "not_equal", "pow", "remainder", "subtract"),
)
OPERATORS = (
    *("__add__", "__and__", "__eq__", "__floordiv__", "__ge__", "__gt__", "__le__", "__lshift__"),
    *("__lt__", "__matmul__", "__mod__", "__mul__", "__ne__", "__or__", "__pow__", "__rshift__"),
    *("__sub__", "__truediv__", "__xor__", "__abs__", "__invert__", "__neg__", "__pos__"),
    *("__radd__", "__rand__", "__rfloordiv__", "__rlshift__", "__rmatmul__", "__rmod__"),
    *("__rmul__", "__ror__", "__rpow__", "__rrshift__", "__rsub__", "__rtruediv__", "__rxor__"),
    *("__iadd__", "__iand__", "__ifloordiv__", "__ilshift__", "__imatmul__", "__imod__"),
    *("__imul__", "__ior__", "__ipow__", "__irshift__", "__isub__", "__itruediv__", "__ixor__"),
    *("__bool__", "__complex__", "__float__", "__index__", "__int__", "__getitem__"),
    *("__setitem__", "__array_namespace__", "__dlpack__", "__dlpack_device__", "to_device"),
    *("dtype", "device", "mT", "ndim", "shape", "size", "T"),
)

Calls = Callable[..., Iterator[tuple[tuple[Any, ...], dict[str, Any]]]]
CALLS: dict[str, Calls] = {}


def calls(*names: str) -> Callable[[Calls], Calls]:
    """Register a generator of calls for functions of the standard."""

    def register(function: Calls) -> Calls:
        for name in names:
            CALLS[name] = function
        return function

    return register


class Arrays:
    """Makes the arrays of one dtype, always the same ones."""

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self.rng = np.random.default_rng(3)

    def __call__(self, *shape: int, special: bool = False) -> np.ndarray[Any, Any]:
        kind = self.dtype.kind
        if kind == "b":
            return self.rng.integers(0, 2, shape).astype(bool)
        if kind in "iu":
            return self.rng.integers(0 if kind == "u" else -3, 6, shape).astype(self.dtype)
        x = self.rng.integers(-6, 7, shape) / 2 + self.rng.integers(0, 2, shape) / 8
        if special and x.size > 2:
            x.flat[:3] = (math.nan, math.inf, -0.0)
        if kind == "c":
            x = x + 1j * self.rng.integers(-6, 7, shape) / 2
        return x.astype(self.dtype)

    def well(self, n: int, *batch: int) -> np.ndarray[Any, Any]:
        """Return positive definite matrices."""
        x = self(*batch, n, n)
        return (x @ x.swapaxes(-1, -2).conj() + 9 * np.eye(n)).astype(self.dtype)


@calls(*UNARY)
def _(a):
    for shape in SHAPES:
        yield (a(*shape, special=a.dtype.kind == "f"),), {}


@calls(*BINARY)
def _(a):
    for left, right in (((), ()), ((3,), (3,)), ((2, 1), (3,)), ((0,), (1,)), ((2, 0, 3), (3,))):
        yield (a(*left), a(*right)), {}
    x = a(4)
    yield (x, 2), {}
    yield (1, x), {}
    yield (x, True), {}
    yield (x, 2.0), {}


@calls("sum", "prod", "mean", "max", "min", "any", "all", "std", "var", "count_nonzero")
def _(a, name):
    for shape, axis in (((), None), ((3,), 0), ((2, 3), None), ((2, 3, 4), (0, -1)), ((2, 0), 0)):
        for keepdims in (False, True):
            yield (a(*shape),), {"axis": axis, "keepdims": keepdims}
    if name in ("sum", "prod"):
        yield (a(2, 3),), {"dtype": a.dtype}
        yield (a(2, 0),), {"axis": 1}
    if name in ("std", "var"):
        yield (a(4, 2),), {"axis": 0, "correction": 1}
        yield (a(4, 2),), {"axis": 0, "correction": 0.5}


@calls("argmax", "argmin")
def _(a):
    for shape, axis in (((), None), ((3,), 0), ((2, 3), None), ((2, 3, 4), -1), ((0, 2), 1)):
        for keepdims in (False, True):
            yield (a(*shape),), {"axis": axis, "keepdims": keepdims}


@calls("cumulative_sum", "cumulative_prod")
def _(a):
    yield (a(4),), {}
    for shape, axis in (((3,), 0), ((2, 3), -1), ((2, 3, 4), 1), ((2, 0), 1), ((0, 2), 1)):
        for include in (False, True):
            yield (a(*shape),), {"axis": axis, "include_initial": include}
    yield (a(3),), {"dtype": a.dtype}


@calls("diff")
def _(a):
    yield (a(4),), {}
    yield (a(2, 4),), {"axis": 0, "n": 1}
    yield (a(2, 4),), {"n": 2, "prepend": a(2, 1), "append": a(2, 2)}
    yield (a(2, 4),), {"n": 0}


@calls("sort", "argsort")
def _(a):
    for shape in ((5,), (2, 4), (0,), (3, 0)):
        yield (a(*shape),), {}
        yield (a(*shape),), {"axis": 0, "descending": True}
    yield (a(6),), {"stable": False}


@calls("searchsorted")
def _(a):
    x = np.sort(a(6))
    for side in ("left", "right"):
        yield (x, a(2, 3)), {"side": side}
    unsorted = a(5)
    yield (unsorted, a(2)), {"sorter": np.argsort(unsorted, kind="stable")}
    yield (a(0), a(2)), {}


@calls("unique_all", "unique_counts", "unique_inverse", "unique_values")
def _(a):
    for shape in ((), (7,), (3, 4), (0,), (2, 0)):
        yield (a(*shape, special=a.dtype.kind == "f"),), {}


@calls("nonzero")
def _(a):
    for shape in ((4,), (3, 4), (0,), (2, 0)):
        yield (a(*shape),), {}


@calls("where")
def _(a):
    yield (a(3, 1) > 0, a(3, 1), a(4)), {}
    yield (np.array(True), a(0), a(0)), {}
    yield (np.array([True, False]), a(2), 1), {}


@calls("clip")
def _(a):
    yield (a(5), 0, 2), {}
    yield (a(5), 1), {}
    yield (a(5),), {"max": 1}
    yield (a(2, 5), a(5), a(2, 1)), {}
    yield (a(5),), {}
    yield (a(0), 0, 1), {}


@calls("isin")
def _(a):
    yield (a(3, 4), a(2)), {}
    yield (a(5), a(0)), {}


# -- shapes


@calls("broadcast_arrays")
def _(a):
    yield (a(2, 1), a(3), a()), {}
    yield (a(0, 1), a(3)), {}


@calls("broadcast_to")
def _(a):
    yield (a(3), (2, 3)), {}
    yield (a(), (0, 2)), {}
    yield (a(2, 1), (4, 2, 3)), {}


@calls("concat")
def _(a):
    yield ([a(2, 3), a(1, 3), a(0, 3)],), {}
    yield ([a(2, 3), a(2, 1)],), {"axis": -1}
    yield ([a(2, 3), a(4)],), {"axis": None}


@calls("stack")
def _(a):
    yield ([a(2, 3), a(2, 3)],), {}
    yield ([a(2, 3), a(2, 3)],), {"axis": -1}
    yield ([a(0), a(0)],), {"axis": 1}


@calls("expand_dims")
def _(a):
    for axis in (0, 1, -1):
        yield (a(2, 3),), {"axis": axis}
    yield (a(),), {"axis": 0}


@calls("squeeze")
def _(a):
    yield (a(1, 3, 1), 0), {}
    yield (a(1, 3, 1), (0, -1)), {}
    yield (a(2, 1, 0), 1), {}


@calls("flip")
def _(a):
    yield (a(2, 3),), {}
    yield (a(2, 3),), {"axis": 1}
    yield (a(2, 3, 4),), {"axis": (0, -1)}
    yield (a(),), {}


@calls("moveaxis")
def _(a):
    yield (a(2, 3, 4), 0, -1), {}
    yield (a(2, 3, 4), (0, 1), (-1, 0)), {}


@calls("permute_dims")
def _(a):
    yield (a(2, 3, 4), (2, 0, 1)), {}
    yield (a(), ()), {}


@calls("repeat")
def _(a):
    yield (a(2, 3), 2), {}
    yield (a(2, 3), 3), {"axis": 1}
    yield (a(2, 3), np.array([1, 0, 2])), {"axis": -1}
    yield (a(3), np.array([0, 0, 0])), {}


@calls("reshape")
def _(a):
    yield (a(2, 3), (3, 2)), {}
    yield (a(2, 3), (-1,)), {"copy": True}
    yield (a(0, 3), (3, 0)), {"copy": False}
    yield (a(), (1, 1)), {}


@calls("roll")
def _(a):
    yield (a(2, 3), 1), {}
    yield (a(2, 3), -2), {"axis": 1}
    yield (a(2, 3, 4), (1, 2)), {"axis": (0, 2)}
    yield (a(2, 3), 1), {"axis": (0, 1)}
    yield (a(0), 1), {}


@calls("tile")
def _(a):
    yield (a(2, 3), (2,)), {}
    yield (a(2), (2, 1, 3)), {}
    yield (a(2, 3), (0, 1)), {}


@calls("unstack")
def _(a):
    yield (a(3, 2),), {}
    yield (a(3, 2),), {"axis": -1}
    yield (a(0, 2),), {}


@calls("take")
def _(a):
    yield (a(5), np.array([0, 3, 3])), {}
    yield (a(2, 4), np.array([1, 0])), {"axis": -1}
    yield (a(2, 4), np.array([], dtype=np.int64)), {"axis": 0}


@calls("take_along_axis")
def _(a):
    yield (a(2, 4), np.array([[1], [3]])), {}
    yield (a(3, 4), np.array([[1, 0, 2, 2]])), {"axis": 0}


@calls("tril", "triu")
def _(a):
    for k in (-1, 0, 2):
        yield (a(3, 4),), {"k": k}
    yield (a(2, 0, 3),), {}


@calls("meshgrid")
def _(a):
    for indexing in ("xy", "ij"):
        yield (a(2), a(3)), {"indexing": indexing}
        yield (a(2), a(0), a(3)), {"indexing": indexing}
    yield (a(2),), {}
