"""Dtypes by name, devices, and what a name is corrected to."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import ArgumentError, AutogradError, dtypes
from oplib.dtypes import Device, as_device, as_dtype, is_device_name, is_inexact, short_dtype

NUMPY_NAMES = sorted(name for name in dtypes.DTYPE_NAMES if hasattr(np, name))


@pytest.mark.parametrize("name", NUMPY_NAMES)
def test_a_dtype_is_found_by_its_names_and_by_itself(name: str) -> None:
    dtype = np.dtype(name)
    for value in (name, short_dtype(dtype), dtype, dtype.type):
        assert as_dtype(value) == dtype
    assert dtypes.dtype_name(dtype) == name


def test_python_types_have_numpys_meaning() -> None:
    for kind in (bool, int, float, complex):
        assert as_dtype(kind) == np.dtype(kind)


def test_short_names_are_the_words_of_graphs() -> None:
    words = {"float32": "f32", "int8": "i8", "uint64": "u64", "bool": "bool", "complex64": "c64"}
    assert {name: short_dtype(np.dtype(name)) for name in words} == words


@pytest.mark.parametrize("wrong", ["float33", "", "f4", 1, None, [], object, "Float32x"])
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError):
        as_dtype(wrong)


def test_a_near_miss_is_corrected() -> None:
    with pytest.raises(ArgumentError, match="did you mean 'float32'"):
        as_dtype("flaot32")


def test_extended_dtypes_are_names_that_may_need_a_package() -> None:
    pytest.importorskip("ml_dtypes")
    dtype = as_dtype("bfloat16")
    assert as_dtype("bf16") == dtype
    assert short_dtype(dtype) == "bf16"
    assert is_inexact(dtype)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(ArgumentError, match="needs ml_dtypes"):
        as_dtype("bfloat16")


def test_floats_and_complex_numbers_are_inexact() -> None:
    inexact = {name for name in NUMPY_NAMES if is_inexact(np.dtype(name))}
    assert inexact == {"float16", "float32", "float64", "complex64", "complex128"}


# ---------------------------------------------------------------------- devices


@pytest.mark.parametrize("text", ["cpu", "meta", "npu:0", "cuda:12"])
def test_a_device_prints_as_it_is_written(text: str) -> None:
    device = as_device(text)
    assert str(device) == text
    assert repr(device) == f"Device('{text}')"
    assert as_device(device) is device
    assert is_device_name(text)


def test_devices_are_values() -> None:
    device = as_device("npu:1")
    assert device == Device("npu", 1) == copy.deepcopy(device)
    assert pickle.loads(pickle.dumps(device)) == device
    assert len({device, Device("npu", 1), Device("npu")}) == 2
    with pytest.raises(AttributeError):
        device.index = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    "wrong", ["", "npu:", "npu:01", "npu:-1", "npu:0:1", "CPU", "gpuu", 0, None]
)
def test_what_is_no_device_is_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError):
        as_device(wrong)
    assert not (isinstance(wrong, str) and is_device_name(wrong))


def test_an_unknown_device_lists_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match=r"did you mean 'cuda'.*known: cpu, cuda"):
        as_device("cudda")


def test_a_backend_can_add_a_device_type() -> None:
    before = set(dtypes._device_types)
    try:
        dtypes.register_device_type("quantum")
        assert as_device("quantum:3") == Device("quantum", 3)
    finally:
        dtypes._device_types.clear()
        dtypes._device_types.update(before)


def test_integer_dtypes_are_named_in_errors_of_gradients() -> None:
    with pytest.raises(AutogradError, match=r"i64\[2\]"):
        oplib.ones(2, dtype="int64").requires_grad_()
