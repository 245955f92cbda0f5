"""`__array_namespace__` is the array API standard 2024.12, compared with ``array-api-strict``.

Every function of the standard is called on generated inputs: each dtype, shapes with and without
elements, keyword arguments. Where strict refuses a call the standard says nothing about it, and
neither does this test. `DEVIATIONS` holds what differs, with the reason; the page of the operators
shows the same table.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import array_api
from oplib.testing import gradcheck

pytestmark = pytest.mark.peer("array_api_strict")

DOCS = Path(__file__).parents[1] / "docs" / "builtins.md"

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


# -- products


@calls("matmul", "linalg.matmul")
def _(a):
    for left, right in (((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((4, 2, 3), (3, 5))):
        yield (a(*left), a(*right)), {}
    yield (a(2, 0), a(0, 3)), {}


@calls("matrix_transpose", "linalg.matrix_transpose")
def _(a):
    yield (a(2, 3),), {}
    yield (a(4, 0, 3),), {}


@calls("tensordot", "linalg.tensordot")
def _(a):
    yield (a(2, 3, 4), a(3, 4, 2)), {}
    yield (a(2, 3), a(3, 4)), {"axes": 1}
    yield (a(2), a(3)), {"axes": 0}
    yield (a(2, 3, 4), a(4, 2)), {"axes": ((0, 2), (1, 0))}
    yield (a(2, 0), a(0, 3)), {"axes": 1}


@calls("vecdot", "linalg.vecdot")
def _(a):
    yield (a(3), a(3)), {}
    yield (a(2, 3), a(3)), {}
    yield (a(4, 2, 3), a(2, 1)), {"axis": -2}
    yield (a(2, 0), a(2, 0)), {}


# -- creation


@calls("arange")
def _(a):
    for args in ((5,), (1, 6), (1, 7, 2), (5, 0, -2), (3, 1)):
        yield args, {"dtype": a.dtype}
    yield (5,), {}
    yield (0.5, 2), {}


@calls("linspace")
def _(a):
    for endpoint in (True, False):
        yield (0, 2, 5), {"dtype": a.dtype, "endpoint": endpoint}
        yield (1.0, -1.0), {"num": 4, "endpoint": endpoint}
        yield (0, 1, 0), {"endpoint": endpoint}
    yield (2, 3, 1), {}


@calls("eye")
def _(a):
    yield (3,), {"dtype": a.dtype}
    yield (2, 4), {"k": 1}
    yield (4, 2), {"k": -2, "dtype": a.dtype}
    yield (0,), {}


@calls("zeros", "ones", "empty")
def _(a):
    for shape in ((2, 3), 3, (), (0, 2)):
        yield (shape,), {"dtype": a.dtype}
    yield ((2,),), {}


@calls("full")
def _(a):
    for value in (True, 2, 2.5, 1j):
        yield ((2, 3), value), {}
    yield ((0,), 1), {"dtype": a.dtype}
    yield (3, 1), {"dtype": a.dtype}


@calls("zeros_like", "ones_like", "empty_like")
def _(a):
    yield (a(2, 3),), {}
    yield (a(0),), {"dtype": np.dtype("float32")}


@calls("full_like")
def _(a):
    yield (a(2, 3), 1), {}
    yield (a(2), 1), {"dtype": np.dtype("float32")}


@calls("asarray")
def _(a):
    for copy in (None, True):
        yield (a(2, 3),), {"copy": copy}
    yield (a(2, 3),), {"copy": False}
    yield (a(2, 3),), {"dtype": np.dtype("complex128")}
    for data in ([[1, 2], [3, 4]], [1.5, 2], True, 3, [], [1j, 2]):
        yield (data,), {}
    yield ([1, 0],), {"dtype": a.dtype}


@calls("from_dlpack")
def _(a):
    yield (a(2, 3),), {}


@calls("astype")
def _(a):
    for dtype in DTYPES:
        yield (abs(a(2, 3)).real, np.dtype(dtype)), {}
        yield (a(2, 3), np.dtype(dtype)), {}
    yield (a(2, 3), a.dtype), {"copy": False}


# -- dtypes and inspection


@calls("can_cast")
def _(a):
    for dtype in DTYPES:
        yield (a.dtype, np.dtype(dtype)), {}
        yield (a(2), np.dtype(dtype)), {}


@calls("result_type")
def _(a):
    for dtype in DTYPES:
        yield (a.dtype, np.dtype(dtype)), {}
        yield (a(2), np.dtype(dtype)), {}
    yield (a(2), 1), {}
    yield (a.dtype, 1.0), {}
    yield (True, a(2)), {}


@calls("isdtype")
def _(a):
    for kind in (
        *("bool", "signed integer", "unsigned integer", "integral", "real floating"),
        *("complex floating", "numeric", ("bool", "integral"), np.dtype("float32")),
    ):
        yield (a.dtype, kind), {}


@calls("finfo", "iinfo")
def _(a):
    yield (a.dtype,), {}
    yield (a(2),), {}


@calls("__array_namespace_info__")
def _(a):
    yield (), {}


# -- linalg


@calls("linalg.cholesky")
def _(a):
    for upper in (False, True):
        yield (a.well(3),), {"upper": upper}
        yield (a.well(2, 2),), {"upper": upper}
    yield (a(0, 0),), {}


@calls("linalg.cross")
def _(a):
    yield (a(3), a(3)), {}
    yield (a(2, 3), a(3)), {}
    yield (a(3, 2), a(3, 1)), {"axis": -2}
    yield (a(0, 3), a(0, 3)), {}


@calls("linalg.det", "linalg.inv", "linalg.slogdet", "linalg.eigh", "linalg.eigvalsh")
def _(a):
    yield (a.well(3),), {}
    yield (a.well(2, 4),), {}
    yield (a(2, 0, 0),), {}


@calls("linalg.diagonal", "linalg.trace")
def _(a, name):
    for offset in (-1, 0, 2):
        yield (a(3, 4),), {"offset": offset}
        yield (a(2, 3, 4),), {"offset": offset}
    if name == "linalg.trace":
        yield (a(2, 2),), {"dtype": a.dtype}
    yield (a(2, 0, 3),), {}


@calls("linalg.matrix_norm")
def _(a):
    for ord in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        yield (a(2, 3, 4),), {"ord": ord}
        yield (a(3, 2),), {"ord": ord, "keepdims": True}
    yield (a(2, 0),), {}


@calls("linalg.vector_norm")
def _(a):
    for ord in (2, 1, 0, math.inf, -math.inf, 3, 0.5):
        yield (a(2, 3),), {"ord": ord}
        yield (a(2, 3, 4),), {"ord": ord, "axis": (0, 2), "keepdims": True}
        yield (a(2, 3),), {"ord": ord, "axis": 1}
    yield (a(0),), {}
    yield (a(2, 0),), {"axis": 1}


@calls("linalg.matrix_power")
def _(a):
    for n in (0, 1, 2, 5, -1, -3):
        yield (a.well(2), n), {}
        yield (a.well(3, 2), n), {}
    yield (a(0, 0), 2), {}


@calls("linalg.matrix_rank")
def _(a):
    yield (a(3, 4),), {}
    yield (np.ones((2, 3, 3)).astype(a.dtype),), {}
    yield (a(2, 3, 4),), {"rtol": 0.5}
    yield (a(2, 0, 3),), {}


@calls("linalg.outer")
def _(a):
    yield (a(3), a(2)), {}
    yield (a(0), a(2)), {}


@calls("linalg.pinv")
def _(a):
    yield (a(2, 3, 2),), {}
    yield (np.ones((3, 3)).astype(a.dtype),), {}
    yield (a.well(3),), {"rtol": 0.01}
    yield (a(3, 0),), {}


@calls("linalg.qr")
def _(a):
    for mode in ("reduced", "complete"):
        for shape in ((3, 3), (4, 2), (2, 4), (2, 3, 2), (3, 0)):
            yield (a(*shape),), {"mode": mode}


@calls("linalg.solve")
def _(a):
    yield (a.well(3), a(3)), {}
    yield (a.well(3), a(3, 2)), {}
    yield (a.well(3, 2), a(3, 1)), {}
    yield (a.well(2), a(2, 2, 3)), {}
    yield (a(0, 0), a(0, 2)), {}


@calls("linalg.svd", "linalg.svdvals")
def _(a, name):
    for shape in ((3, 3), (4, 2), (2, 4), (2, 3, 2), (3, 0)):
        yield (a(*shape),), {}
        if name == "linalg.svd":
            yield (a(*shape),), {"full_matrices": False}


# -- fft


@calls(*(f"fft.{name}" for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")))
def _(a):
    for norm in ("backward", "ortho", "forward"):
        yield (a(5),), {"norm": norm}
        yield (a(2, 6),), {"axis": 0, "norm": norm, "n": 3}
    yield (a(2, 4),), {"n": 6}


@calls(*(f"fft.{name}" for name in ("fftn", "ifftn", "rfftn", "irfftn")))
def _(a):
    for norm in ("backward", "ortho", "forward"):
        yield (a(2, 3, 4),), {"norm": norm}
        yield (a(2, 3, 4),), {"axes": (0, 1), "norm": norm}
    yield (a(4, 4),), {"s": (3, 6), "axes": (0, 1)}


@calls("fft.fftfreq", "fft.rfftfreq")
def _(a):
    yield (5,), {}
    yield (6,), {"d": 0.5}
    yield (4,), {"dtype": a.dtype}


@calls("fft.fftshift", "fft.ifftshift")
def _(a):
    yield (a(5),), {}
    yield (a(3, 4),), {"axes": 1}
    yield (a(3, 4),), {"axes": (0, 1)}


CONSTANTS = ("e", "inf", "nan", "newaxis", "pi")
STANDARD = (*CALLS, *CONSTANTS, *DTYPES, *(f"array.{name}" for name in OPERATORS))
"""Everything the standard lists: functions, constants, dtypes, and what an array has."""

DEVIATIONS: dict[str, str] = {
    "can_cast": "`True` also from one kind of dtype to another (bool to int8, int32 to float64): "
    "oplib promotes kinds as NumPy does, where the standard leaves them undefined",
}
"""Name -> what differs from array-api-strict within what the standard defines, and why."""


# ---------------------------------------------------------------------- comparison


def found(root: Any, name: str) -> Any:
    for part in name.split("."):
        root = getattr(root, part)
    return root


def given(value: Any, convert: Callable[[Any], Any], dtypes: Any) -> Any:
    """Return arguments with arrays, dtypes and containers of one library."""
    if isinstance(value, np.ndarray):
        return convert(value)
    if isinstance(value, np.dtype):
        return getattr(dtypes, value.name)
    if isinstance(value, list | tuple):
        return type(value)(given(part, convert, dtypes) for part in value)
    return value


def plain(value: Any) -> Any:
    """Return a result of either library as something that compares."""
    if isinstance(value, oplib.Tensor):
        return value.numpy()
    if type(value).__name__ == "Array":
        return np.asarray(value._array)
    if type(value).__name__ in ("DType", "_DType"):
        return value._np_dtype
    if hasattr(value, "bits"):
        names = ("bits", "eps", "max", "min", "smallest_normal", "dtype")
        return [plain(getattr(value, name, None)) for name in names]
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def outcome(namespace: Any, convert: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Return a result, or the exception."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            function = found(namespace, name)
            made = given(args, convert, namespace)
            options = {key: given(part, convert, namespace) for key, part in kwargs.items()}
            return plain(function(*made, **options))
    except Exception as error:
        return error


def difference(name: str, actual: Any, expected: Any) -> str:
    """Return how a result differs from the expected one; empty if it does not."""
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return f"{actual!r} for {expected!r}"
        pairs = zip(actual, expected, strict=True)
        return next(filter(None, (difference(name, *pair) for pair in pairs)), "")
    if not isinstance(expected, np.ndarray):
        return "" if type(actual) is type(expected) and actual == expected else f"{actual!r}"
    if not isinstance(actual, np.ndarray):
        return f"{actual!r} for {expected!r}"
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return f"{actual.dtype}{actual.shape} for {expected.dtype}{expected.shape}"
    if name in ("empty", "empty_like"):
        return ""
    precise = expected.dtype.kind in "fc"
    eps = float(np.finfo(expected.dtype).eps) if precise else 0.0
    scale = float(np.nanmax(np.abs(expected[np.isfinite(expected)]), initial=1.0)) if precise else 1
    same = np.allclose(actual, expected, rtol=64 * eps, atol=64 * eps * scale, equal_nan=True)
    return "" if same else f"{actual} for {expected}"


def compared(name: str, dtype: str) -> list[str]:
    """Return how oplib differs from strict in the calls of a function on one dtype."""
    import array_api_strict as strict

    generate = CALLS[name]
    arrays = Arrays(dtype)
    extra = (name,) if generate.__code__.co_argcount == 2 else ()
    differences = []
    count = 0
    for args, kwargs in generate(arrays, *extra):
        expected = outcome(strict, strict.asarray, name, args, kwargs)
        if isinstance(expected, Exception):
            continue  # outside of the standard
        count += 1
        actual = outcome(array_api, oplib.from_numpy, name, args, kwargs)
        if isinstance(actual, Exception):
            text = f"{type(actual).__name__}: {actual}"
        else:
            text = difference(name, actual, expected)
        if text:
            differences.append(f"{name}({args}, {kwargs}): {text}")
    COMPARED[name] = COMPARED.get(name, 0) + count
    return differences


COMPARED: dict[str, int] = {}
"""Function -> how many calls the standard allows were compared."""


@pytest.mark.parametrize("name", [name for name in CALLS if name != "__array_namespace_info__"])
def test_a_function_agrees_with_the_standard(name):
    COMPARED[name] = 0
    differences = [text for dtype in DTYPES for text in compared(name, dtype)]
    assert COMPARED[name], "strict accepted no call"
    if name in DEVIATIONS:
        assert differences, f"{name} agrees: remove it from DEVIATIONS"
    else:
        assert not differences, "\n".join(differences[:5])


def test_a_function_that_is_wrong_is_reported(monkeypatch):
    monkeypatch.setattr(array_api, "floor", lambda x: x + 0.0)
    assert compared("floor", "float64")
    monkeypatch.setattr(array_api, "unique_counts", lambda x: array_api.unique_inverse(x))
    assert compared("unique_counts", "int8")
    monkeypatch.setattr(array_api, "sum", lambda x, **options: x.mean(0))
    assert compared("sum", "float32")


@pytest.mark.parametrize("name", BINARY)
def test_two_dtypes_promote_as_the_standard_says(name):
    import array_api_strict as strict

    differences = []
    for left in DTYPES:
        for right in DTYPES:
            args = (Arrays(left)(3), abs(Arrays(right)(3)).astype(right))
            expected = outcome(strict, strict.asarray, name, args, {})
            if not isinstance(expected, Exception):
                actual = outcome(array_api, oplib.from_numpy, name, args, {})
                text = difference(name, actual, expected)
                differences += [f"{left}, {right}: {text}"] if text else []
    assert not differences, differences


# ---------------------------------------------------------------------- arrays

REFLECTED_OR_IN_PLACE = [
    name
    for name in OPERATORS
    if name.startswith("__") and name[2:-2] not in ("bool", "complex", "float", "index", "int")
]


@pytest.mark.parametrize(
    "name", [n for n in REFLECTED_OR_IN_PLACE if not n.startswith(("__array", "__dl"))]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_operator_of_arrays_agrees_with_the_standard(name, dtype):
    import array_api_strict as strict

    a = Arrays(dtype)
    unary = name in ("__abs__", "__invert__", "__neg__", "__pos__")
    square = name in ("__matmul__", "__rmatmul__", "__imatmul__")
    x, y = a(3, 3), a(3, 3) if square else a(3)
    index: tuple[Any, ...] = (1, slice(None, None, -1))
    operands: list[tuple[Any, ...]] = [(x,)] if unary else [(x, y)]
    if not unary and not square:
        operands.append((x, 2))
    if name == "__getitem__":
        operands = [(x, index), (x, ...), (x, x == x[0, 0]), (x, (None, 0))]
    if name == "__setitem__":
        operands = [(x, index, y), (x, x == x[0, 0], 1), (x, ..., x)]

    def run(convert: Any) -> Any:
        results = []
        for args in operands:
            made = [convert(v.copy()) if isinstance(v, np.ndarray) else v for v in args]
            try:
                with np.errstate(all="ignore"):
                    result = getattr(type(made[0]), name)(*made)
                results.append(plain(made[0] if result is None else result))
            except Exception as error:
                results.append(error)
        return results

    for actual, expected in zip(run(oplib.from_numpy), run(strict.asarray), strict=True):
        if not isinstance(expected, Exception) and expected is not NotImplemented:
            assert not difference(name, actual, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attributes_and_conversions_agree_with_the_standard(dtype):
    import array_api_strict as strict

    data = Arrays(dtype)(2, 3)
    x, s = oplib.from_numpy(data), strict.asarray(data)
    assert (x.shape, x.ndim, x.size) == (s.shape, s.ndim, s.size)
    assert x.dtype == getattr(array_api, dtype)
    assert not difference("T", plain(x.T), plain(s.T))
    assert not difference("mT", plain(x.mT), plain(s.mT))
    assert x.to_device(x.device) is x
    for convert in (bool, int, float, complex):
        one, same = x[0, 0], s[0, 0]
        try:
            expected = convert(same)
        except TypeError:
            continue
        assert convert(one) == expected
    if data.dtype.kind in "iu":
        assert range(9)[oplib.from_numpy(abs(data[0, :1]))[0]] == abs(int(data[0, 0]))


@pytest.mark.parametrize("version", [None, "2021.12", "2022.12", "2023.12", "2024.12"])
def test_a_tensor_names_the_namespace(version):
    assert oplib.ones(2).__array_namespace__(api_version=version) is array_api


def test_an_unknown_version_is_refused():
    with pytest.raises(ValueError, match=r"2024\.12.*not '1999\.01'"):
        oplib.ones(2).__array_namespace__(api_version="1999.01")


def test_constants_and_dtypes_are_the_standards():
    for name in CONSTANTS:
        value = getattr(array_api, name)
        assert value is None if name == "newaxis" else isinstance(value, float)
    assert (array_api.e, array_api.pi, array_api.inf) == (math.e, math.pi, math.inf)
    for name in DTYPES:
        assert getattr(array_api, name) == np.dtype(name)


def test_inspection_says_what_is_there():
    import array_api_strict as strict

    ours, theirs = (n.__array_namespace_info__() for n in (array_api, strict))
    assert ours.capabilities() == theirs.capabilities()
    assert ours.default_device() in ours.devices()
    for kind in (None, "bool", "integral", "numeric", ("bool", "real floating")):
        expected = {name: d._np_dtype for name, d in theirs.dtypes(kind=kind).items()}
        assert ours.dtypes(kind=kind) == expected
    defaults = theirs.default_dtypes()
    assert ours.default_dtypes() == {name: d._np_dtype for name, d in defaults.items()}


def test_isin_inverts():
    x = oplib.tensor([1, 2, 3])
    assert array_api.isin(x, oplib.tensor([2]), invert=True).tolist() == [True, False, True]


# ---------------------------------------------------------------------- gradients

GRADIENTS: dict[str, Callable[..., Any]] = {
    "clip": lambda x, y: array_api.clip(x, y, 1.0),
    "meshgrid": lambda x, y: array_api.meshgrid(x[0], y[0])[1],
    "cumulative_prod": lambda x, y: array_api.cumulative_prod(x, axis=1, include_initial=True),
    "diff": lambda x, y: array_api.diff(x, n=2, append=y),
    "repeat": lambda x, y: array_api.repeat(x, oplib.tensor([2, 0, 1]), axis=0),
    "take": lambda x, y: array_api.take(x * y, oplib.tensor([0, 0, 2]), axis=1),
    "sort": lambda x, y: array_api.sort(x * y, descending=True),
    "unique_values": lambda x, y: array_api.unique_values(x * y),
    "astype": lambda x, y: array_api.astype(x * y, array_api.complex128),
    "std": lambda x, y: array_api.std(x, axis=0, correction=0.5),
    "linalg.cross": lambda x, y: array_api.linalg.cross(x, y),
    "linalg.vecdot": lambda x, y: array_api.linalg.vecdot(x, y, axis=-2),
    "linalg.matrix_norm": lambda x, y: array_api.linalg.matrix_norm(x, ord="nuc"),
    "linalg.pinv": lambda x, y: array_api.linalg.pinv(x),
    "linalg.qr": lambda x, y: array_api.linalg.qr(x, mode="complete").R,
    "linalg.svdvals": lambda x, y: array_api.linalg.svdvals(x),
    "linalg.svd": lambda x, y: array_api.linalg.svd(x[:2]).S,
    "linalg.matrix_power": lambda x, y: array_api.linalg.matrix_power(x, -2),
    "linalg.trace": lambda x, y: array_api.linalg.trace(x * y, offset=1),
    "fft.hfft": lambda x, y: array_api.fft.hfft(x * y),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_flow_through_what_is_made_here(name):
    rng = np.random.default_rng(1)
    tensors = [oplib.tensor(rng.normal(size=(3, 3)) + np.eye(3)) for _ in range(2)]
    used = [x.requires_grad_() for x in tensors]
    assert gradcheck(GRADIENTS[name], used)


# ---------------------------------------------------------------------- coverage


def present(name: str) -> bool:
    if name.startswith("array."):
        return hasattr(oplib.Tensor, name.removeprefix("array."))
    try:
        found(array_api, name)
    except AttributeError:
        return False
    return True


def test_everything_the_standard_lists_is_there_and_no_public_name_is_untested():
    import array_api_strict as strict

    assert [name for name in STANDARD if not present(name)] == []
    listed = {name for name in strict.__all__ if not name.startswith("_")}
    own = {"broadcast_shapes", "Device", "ArrayAPIStrictFlags"}  # newer, and strict's own
    own |= {name for name in listed if name.endswith("array_api_strict_flags")}
    assert listed - own - {"fft", "linalg"} <= set(STANDARD)
    extensions = [f"{part}.{n}" for part in ("fft", "linalg") for n in vars(found(array_api, part))]
    assert {n for n in extensions if "__" not in n} == {n for n in CALLS if "." in n}
    assert {n for n in array_api.__all__ if n not in ("fft", "linalg")} <= set(STANDARD)


def test_the_page_shows_the_coverage_and_every_deviation():
    text = DOCS.read_text("utf-8")
    agreeing = len(STANDARD) - len(DEVIATIONS)
    assert f"{len(STANDARD)} names" in text
    assert f"{agreeing} agree" in text
    for name, reason in DEVIATIONS.items():
        assert f"| `{name}` | {reason} |" in text
