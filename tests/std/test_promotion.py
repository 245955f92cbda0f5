"""Dtypes promote as `numpy.result_type` says (NEP 50): a table of all pairs and Python numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oplib
from oplib.shapes import result_type
from tests.std.cases import operator

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
NUMBERS = (True, 1, 1.0, 1j)

PROMOTING: dict[str, Callable[[Any, Any], Any]] = {
    **{name: operator(name) for name in ("add", "mul", "maximum", "minimum")},
    "sub": operator("sub"),
    "where": lambda x, y: oplib.where(oplib.tensor([True, False]), x, y),
    "x + y": lambda x, y: x + y,
    "x * y": lambda x, y: x * y,
}
"""What gives the dtype that both operands promote to."""

JOINING: dict[str, Callable[[Any, Any], Any]] = {
    "concat": lambda x, y: oplib.concat([x, y]),
    "stack": lambda x, y: oplib.stack([x, y]),
    "matmul": lambda x, y: x @ y,
    "outer": lambda x, y: oplib.outer(x, y),
    "einsum": lambda x, y: oplib.einsum("i,i->i", [x, y]),
}
"""What does, for tensors only."""


def kind(value: Any) -> Any:
    return np.dtype(value) if isinstance(value, str) else value


def made(value: Any) -> Any:
    """Return two elements of a dtype, or the number."""
    return oplib.ones(2, dtype=value) if isinstance(value, str) else value


def disagreements(functions: dict[str, Any], left: Any, right: Any) -> list[str]:
    """Return which functions of two operands give another dtype than NumPy's, real or fake."""
    wanted = np.result_type(kind(left), kind(right))
    found = []
    for name, function in functions.items():
        if name == "sub" and wanted == "bool":
            continue  # NumPy has no difference of bools
        real = function(made(left), made(right)).dtype
        with oplib.FakeTensorMode():
            fake = function(made(left), made(right)).dtype
        found += [f"{name}: {real}, fake {fake}"] if {real, fake} != {wanted} else []
    return found


@pytest.mark.parametrize("left", DTYPES)
def test_two_dtypes_promote_as_numpy_says(left):
    for right in DTYPES:
        assert disagreements(PROMOTING | JOINING, left, right) == [], right
        assert result_type(kind(left), kind(right)) == np.result_type(kind(left), kind(right))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_a_python_number_is_weak_on_either_side(dtype, number):
    assert disagreements(PROMOTING, dtype, number) == []
    assert disagreements(PROMOTING, number, dtype) == []
    assert result_type(kind(dtype), number) == np.result_type(kind(dtype), number)


@pytest.mark.parametrize("left", DTYPES)
def test_a_quotient_is_inexact_as_numpys_is(left):
    for right in (*DTYPES, *NUMBERS):
        plain = np.ones(2, right) if isinstance(right, str) else right
        wanted = (np.ones(2, left) / plain).dtype
        assert (made(left) / made(right)).dtype == wanted, right
        with oplib.FakeTensorMode():
            assert (made(left) / made(right)).dtype == wanted, right


@pytest.mark.parametrize("dtype", [name for name in DTYPES if "int" in name])
def test_a_number_that_the_dtype_cannot_hold_overflows_as_in_numpy(dtype):
    number = np.iinfo(dtype).min - 1 if dtype != "int64" else 2**63
    for make in (lambda: np.ones(2, dtype), lambda: made(dtype)):
        with pytest.raises(OverflowError):
            make() + number
    with oplib.FakeTensorMode(), pytest.raises(OverflowError):
        made(dtype) + number


def test_a_zero_dimensional_tensor_is_not_weak():
    assert (oplib.ones(2, dtype="float32") + oplib.tensor(1.0)).dtype == np.float64


@pytest.mark.peer("ml_dtypes")
@pytest.mark.parametrize("other", [*DTYPES, *NUMBERS], ids=repr)
def test_bfloat16_promotes_as_ml_dtypes_says(other):
    import ml_dtypes

    array = np.ones(2, ml_dtypes.bfloat16)
    try:
        wanted: Any = (array + (np.ones(2, other) if isinstance(other, str) else other)).dtype
    except TypeError:
        wanted = TypeError
    try:
        found: Any = (made("bfloat16") + made(other)).dtype
    except TypeError:
        found = TypeError
    assert found == wanted


def test_a_wrong_promotion_is_reported():
    wrong = {"add": lambda x, y: oplib.cast(x + y, "float64")}
    assert disagreements(wrong, "int8", "int8")
    assert disagreements(wrong, "float32", 1.0)
