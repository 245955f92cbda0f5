"""Comparison: tolerances follow dtype and scale; NaN, infinities and zeros behave as stated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplib.testing import assert_close
from oplib.testing.compare import compare_arrays, differences, same_bytes, tolerance_of
from tests.testing.helpers import tensor


def test_equal_arrays_are_close() -> None:
    assert_close(np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3))


def test_nan_equals_nan_and_infinities_equal_themselves() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert_close(values, values.copy())


def test_infinities_of_different_sign_differ() -> None:
    assert compare_arrays(np.array([np.inf]), np.array([-np.inf])) is not None


def test_nan_differs_from_a_number() -> None:
    assert compare_arrays(np.array([np.nan]), np.array([1.0])) is not None
    assert compare_arrays(np.array([1.0]), np.array([np.nan])) is not None


def test_signed_zeros_are_close_but_not_the_same_bytes() -> None:
    zero, negative = np.array([0.0]), np.array([-0.0])
    assert_close(zero, negative)
    assert not same_bytes(zero, negative)


def test_complex_numbers_are_compared_by_both_parts() -> None:
    expected = np.array([complex(np.nan, 1.0)])
    assert_close(np.array([complex(np.nan, 1.0)]), expected)
    assert compare_arrays(np.array([complex(np.nan, 2.0)]), expected) is not None


def test_absolute_tolerance_follows_the_largest_element() -> None:
    expected = np.array([1e6, 0.0])
    assert_close(np.array([1e6, 1e-6]), expected)
    assert compare_arrays(np.array([1.0, 1e-6]), np.array([1.0, 0.0])) is not None


@pytest.mark.parametrize(
    ("dtype", "error"),
    [("float64", 1e-8), ("float32", 1e-4), ("float16", 1e-2), ("complex64", 1e-4)],
)
def test_an_error_above_the_tolerance_of_the_dtype_is_seen(dtype: str, error: float) -> None:
    expected = np.ones(3, dtype)
    assert compare_arrays((expected * (1 + error)).astype(dtype), expected) is not None
    assert compare_arrays((expected * (1 + error / 100)).astype(dtype), expected) is None


def test_zero_tolerances_are_honoured_and_one_can_be_given_alone() -> None:
    a, b = np.array([1.0 + 1e-15]), np.array([1.0])
    assert compare_arrays(a, b) is None
    assert compare_arrays(a, b, rtol=0, atol=0) is not None
    assert tolerance_of(np.dtype("float64"), rtol=0.5).atol == 1e-11
    assert tolerance_of(np.dtype("float64"), atol=0.0).rtol == 1e-9


def test_integers_and_strings_are_exact() -> None:
    found = compare_arrays(np.array([1, 2, 4]), np.array([1, 2, 3]))
    assert found is not None
    assert found.index == (2,)
    assert compare_arrays(np.array(["a"]), np.array(["b"])) is not None


def test_shape_and_dtype_are_compared_first() -> None:
    assert compare_arrays(np.zeros(2), np.zeros(3)).what == "shape"  # type: ignore[union-attr]
    assert compare_arrays(np.zeros(2, "f4"), np.zeros(2)).what == "dtype"  # type: ignore[union-attr]
    assert compare_arrays(np.zeros(2, "f4"), np.zeros(2), check_dtype=False) is None


def test_the_summary_names_the_worst_element_and_counts() -> None:
    expected = np.arange(1.0, 7.0).reshape(2, 3)
    actual = expected.copy()
    actual[0, 1] += 1e-6
    actual[1, 2] += 0.5
    with pytest.raises(AssertionError) as caught:
        assert_close(actual, expected)
    text = str(caught.value)
    assert "[1, 2]" in text
    assert "2 of 6 elements differ" in text
    assert "units in the last place" in text


def test_bfloat16_and_float8_have_tolerances_of_their_own() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    one = np.array([1.0, 2.0], ml_dtypes.bfloat16)
    assert_close(one, one.copy())
    assert compare_arrays(np.array([1.0, 4.0], ml_dtypes.bfloat16), one) is not None
    eight = np.array([1.0, 1.25], ml_dtypes.float8_e4m3fn)
    assert compare_arrays(eight[::-1].copy(), eight) is None
    assert compare_arrays(np.array([1.0, 4.0], ml_dtypes.float8_e4m3fn), eight) is not None


def test_nested_values_are_compared_leaf_by_leaf() -> None:
    expected = {"a": [tensor([1.0]), 2], "b": ("x", None)}
    assert_close({"a": [tensor([1.0]), 2], "b": ("x", None)}, expected)
    found = list(differences({"a": [tensor([3.0]), 2], "b": ("y", None)}, expected, "result"))
    assert [each.where for each in found] == ["result['a'][0]", "result['b'][0]"]


def test_structure_and_type_differences_are_told() -> None:
    assert next(differences([1], [1, 2])).what == "structure"
    assert next(differences({"a": 1}, {"b": 1})).what == "structure"
    assert next(differences(None, 1.0)).what == "type"
    assert next(differences(1, 1.0)).what == "type"


@given(st.lists(st.floats(), max_size=5))
def test_every_array_is_close_to_itself(values: list[float]) -> None:
    assert_close(np.array(values, float), np.array(values, float), rtol=0, atol=0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5), st.data())
def test_a_change_of_one_percent_of_the_largest_is_always_seen(
    values: list[float], data: st.DataObject
) -> None:
    expected = np.array(values) + 1.0
    actual = expected.copy()
    index = data.draw(st.integers(0, len(values) - 1))
    actual[index] += 0.01 * np.abs(expected).max() + 1e-9
    assert compare_arrays(actual, expected) is not None
