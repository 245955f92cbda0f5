"""Comparison of values: tolerances by dtype, the worst element, and `assert_close`.

A value `a` is close to the expected `e` if ``|a - e| <= atol * s + rtol * |e|``, where `s` is the
largest finite ``|e|`` of the array: the absolute tolerance follows the scale of the data. Integers,
bools and strings are exact. NaN equals NaN, equal infinities and signed zeros are equal, complex
numbers are compared part by part.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from .._text import short_repr
from ..dtypes import short_dtype
from ..tensor.tensor import Tensor

__all__ = [
    "Array",
    "Mismatch",
    "Tolerance",
    "assert_close",
    "compare_arrays",
    "differences",
    "same_bytes",
    "tolerance_of",
]


Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a value may be off: relative to itself, and to the largest of its array."""

    rtol: float
    atol: float


_EXACT: Final = Tolerance(0.0, 0.0)
_BY_DTYPE: Final = {
    "float64": Tolerance(1e-9, 1e-11),
    "complex128": Tolerance(1e-9, 1e-11),
    "float32": Tolerance(1e-5, 1e-6),
    "complex64": Tolerance(1e-5, 1e-6),
    "float16": Tolerance(2e-3, 1e-3),
    "bfloat16": Tolerance(2e-2, 1e-2),
}


def tolerance_of(
    dtype: np.dtype[Any], rtol: float | None = None, atol: float | None = None
) -> Tolerance:
    """Return the tolerance for a dtype, with one or both of its numbers replaced; 0 means 0."""
    default = _BY_DTYPE.get(dtype.name, _EXACT)
    if dtype.kind == "V" and dtype.name.startswith("float8"):
        two_units = 2 * float(importlib.import_module("ml_dtypes").finfo(dtype).eps)
        default = Tolerance(two_units, two_units)
    elif dtype.kind in "fc" and dtype.name not in _BY_DTYPE:
        default = _BY_DTYPE["float64"]
    return Tolerance(default.rtol if rtol is None else rtol, default.atol if atol is None else atol)


# ---------------------------------------------------------------------- one array


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first thing in which two values differ; its ``str`` is a readable summary."""

    where: str
    what: str
    expected: str
    got: str
    index: tuple[int, ...] | None = None
    detail: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        at = "" if self.index is None else f" at {list(self.index)}"
        text = f"{place}{self.what} differ{at}" if self.what == "values" else f"{place}{self.what}"
        text += f"\n  expected  {self.expected}\n  got       {self.got}"
        return f"{text}\n  {self.detail}" if self.detail else text


def compare_arrays(
    actual: Array,
    expected: Array,
    where: str = "",
    *,
    rtol: float | None = None,
    atol: float | None = None,
    check_dtype: bool = True,
) -> Mismatch | None:
    """Return how `actual` differs from `expected`, or None if it is close."""
    if actual.shape != expected.shape:
        return Mismatch(where, "shape", str(expected.shape), str(actual.shape))
    if check_dtype and actual.dtype != expected.dtype:
        return Mismatch(where, "dtype", str(expected.dtype), str(actual.dtype))
    if expected.size == 0:
        return None
    if not _is_numeric(expected.dtype) or not _is_numeric(actual.dtype):
        return _exact_mismatch(actual, expected, where)
    dtype = expected.dtype
    tolerance = tolerance_of(dtype, rtol, atol)
    if tolerance == _EXACT and dtype.kind in "iub" and actual.dtype.kind in "iub":
        return _exact_mismatch(actual, expected, where)
    return _close_mismatch(actual, expected, where, tolerance)


def _is_numeric(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.names is None and dtype.num > 100)


def _exact_mismatch(actual: Array, expected: Array, where: str) -> Mismatch | None:
    wrong = np.asarray(actual != expected)
    if not wrong.any():
        return None
    index = _first(wrong)
    count = int(wrong.sum())
    detail = f"{count} of {wrong.size} elements differ; {short_dtype(expected.dtype)} is exact"
    return Mismatch(
        where, "values", short_repr(expected[index]), short_repr(actual[index]), index, detail
    )


def _close_mismatch(
    actual: Array, expected: Array, where: str, tolerance: Tolerance
) -> Mismatch | None:
    got, want = _real_parts(actual), _real_parts(expected)
    if got.shape != want.shape:  # one is complex, dtypes are not compared
        got, want = _real_parts(actual.astype(complex)), _real_parts(expected.astype(complex))
    finite = np.isfinite(want)
    scale = max(float(np.abs(want[finite]).max(initial=0.0)), np.finfo(np.float64).tiny)
    with np.errstate(all="ignore"):
        error = np.abs(got - want)
        allowed = tolerance.atol * scale + tolerance.rtol * np.abs(want)
        close = np.where(finite, error <= allowed, got == want)
    wrong = ~(close | (np.isnan(got) & np.isnan(want)))
    if not wrong.any():
        return None
    with np.errstate(all="ignore"):
        excess = np.where(wrong, np.nan_to_num(error - allowed, nan=np.inf), -np.inf)
    worst = tuple(map(int, np.unravel_index(int(excess.argmax()), excess.shape)))
    index = worst[: expected.ndim]
    wrong = wrong.reshape((*expected.shape, -1)).any(axis=-1)
    detail = (
        f"off by {error[worst]:.3g}{_in_units(error[worst], want[worst], expected.dtype)}, "
        f"allowed {allowed[worst]:.3g}; {int(wrong.sum())} of {wrong.size} elements differ"
    )
    return Mismatch(where, "values", f"{expected[index]}", f"{actual[index]}", index, detail)


def _real_parts(array: Array) -> Array:
    """Return the array in float64, complex numbers as a last axis of length 2."""
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], axis=-1).astype(np.float64)
    return array.astype(np.float64)


def _in_units(error: float, value: float, dtype: np.dtype[Any]) -> str:
    """Return the error in units in the last place, where that means something."""
    if dtype.kind not in "fc" or not np.isfinite(error) or not np.isfinite(value) or not value:
        return ""
    part = np.zeros((), dtype).real.dtype.type(abs(value))
    unit = max(float(np.spacing(part)), float(np.finfo(part.dtype).tiny))
    return f" ({float(error) / unit:.3g} units in the last place)"


def _first(mask: Array) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(int(mask.argmax()), mask.shape)))


def same_bytes(a: Array, b: Array) -> bool:
    """Return whether two arrays agree in shape, dtype and every bit."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.hasobject:
        return bool((a == b).all())
    return a.tobytes() == b.tobytes()


# ---------------------------------------------------------------------- nested values


def differences(
    actual: Any,
    expected: Any,
    where: str = "",
    *,
    rtol: float | None = None,
    atol: float | None = None,
    check_dtype: bool = True,
) -> Iterator[Mismatch]:
    """Yield every `Mismatch` between two nested values of tensors, arrays and plain objects."""
    options: dict[str, Any] = {"rtol": rtol, "atol": atol, "check_dtype": check_dtype}
    actual, expected = _as_array(actual), _as_array(expected)
    if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray):
        found = compare_arrays(actual, expected, where, **options)
        if found is not None:
            yield found
    elif isinstance(expected, Mapping) and isinstance(actual, Mapping):
        if list(actual) != list(expected):
            yield Mismatch(where, "structure", f"keys {list(expected)}", f"keys {list(actual)}")
            return
        for key in expected:
            yield from differences(actual[key], expected[key], f"{where}[{key!r}]", **options)
    elif _is_sequence(expected) and _is_sequence(actual):
        if len(actual) != len(expected):
            yield Mismatch(where, "structure", f"{len(expected)} elements", f"{len(actual)}")
            return
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            yield from differences(a, e, f"{where}[{i}]", **options)
    else:
        yield from _scalar_differences(actual, expected, where, options)


def _scalar_differences(
    actual: Any, expected: Any, where: str, options: Mapping[str, Any]
) -> Iterator[Mismatch]:
    if type(actual) is not type(expected):
        got, want = type(actual).__name__, type(expected).__name__
        yield Mismatch(where, "type", want, f"{got}: {short_repr(actual)}")
    elif isinstance(expected, int | float | complex):
        found = compare_arrays(np.asarray(actual), np.asarray(expected), where, **options)
        if found is not None:
            yield found
    elif actual != expected:
        yield Mismatch(where, "value", short_repr(expected), short_repr(actual))


def _as_array(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.array
    return np.asarray(value) if isinstance(value, np.generic) else value


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def assert_close(
    actual: Any,
    expected: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    check_dtype: bool = True,
) -> None:
    """Raise AssertionError unless `actual` is close to `expected`.

    Parameters
    ----------
    actual, expected : Tensor, array, number, or nested containers of them
    rtol, atol : float, optional
        Replace the tolerance of each array's dtype, singly or together; 0 means exact.
    check_dtype : bool
        Whether dtypes must be equal.

    Raises
    ------
    AssertionError
        With the worst element, its index, and how many differ.

    Examples
    --------
    >>> import numpy as np
    >>> from oplib.testing import assert_close
    >>> assert_close(np.array([1.0, 2.0]), np.array([1.0, 2.0 + 1e-12]))
    """
    found = list(differences(actual, expected, rtol=rtol, atol=atol, check_dtype=check_dtype))
    if found:
        raise AssertionError("\n".join(map(str, found)))
