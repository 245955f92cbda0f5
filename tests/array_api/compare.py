"""One call on two implementations of the array API, and how their results differ."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import oplib


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
