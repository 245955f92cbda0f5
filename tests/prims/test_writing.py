"""`copy_` and the rules of every write: cast, broadcast, order, and nothing before all checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import oplib
from oplib import AliasError, ArgumentError
from oplib.prims import check_fits, copy_, storable, store
from oplib.tensor.geometry import Geometry


def test_store_casts_broadcasts_and_returns_its_destination() -> None:
    x = np.zeros((2, 3), "f4")
    assert store(x, np.arange(3), "f") is x
    assert x.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert store(x, 2, "f")[0, 0] == 2
    assert store(x, np.ones((1, 1, 3))[0], "f").sum() == 6


@pytest.mark.parametrize(
    ("destination", "value"),
    [("i8", 1.5), ("i8", np.ones(2)), ("f8", 1j), ("f8", np.ones(2, complex)), ("?", 2)],
)
def test_a_cast_of_another_kind_is_refused_before_the_write(destination: str, value: Any) -> None:
    x = np.zeros(2, destination)
    with pytest.raises(TypeError, match=r"std::f cannot store .* into .*convert it first"):
        store(x, value, "f")
    assert not x.any()


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        store(np.zeros(2, "u1"), 300, "f")


@pytest.mark.parametrize("shape", [(3,), (2, 1, 2), (4, 2)])
def test_a_value_that_does_not_broadcast_is_refused(shape: tuple[int, ...]) -> None:
    x = np.zeros((1, 2))
    with pytest.raises(ArgumentError, match="a write never changes a shape"):
        store(x, np.ones(shape), "f")
    assert not x.any()


def test_fits_is_about_shapes_alone() -> None:
    check_fits((1, 3), (2, 3), "f")
    check_fits((), (2, 3), "f")
    with pytest.raises(ArgumentError, match=r"shape \(2, 3\) into shape \(3,\)"):
        check_fits((2, 3), (3,), "f")


def test_numbers_are_weak_and_arrays_are_not() -> None:
    assert storable(2, np.dtype("f4"), "f").dtype == np.float32
    assert storable(np.ones(1), np.dtype("f4"), "f").dtype == np.float64
    assert storable(True, np.dtype("i8"), "f").dtype == np.int64


def overlapping() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    memory = np.zeros(4)
    return memory, as_strided(memory, (3, 2), (8, 8))


def test_one_element_may_go_into_a_destination_that_overlaps_itself() -> None:
    for value in (1.0, np.ones(1), np.ones((1, 1))):
        memory, x = overlapping()
        store(x, value, "f")
        assert memory.tolist() == [1, 1, 1, 1]


def test_a_value_that_repeats_along_zero_strides_is_stored_once() -> None:
    memory = np.zeros(2)
    x = as_strided(memory, (3, 2), (0, 8))
    store(x, np.array([[1.0, 2.0]]), "f")
    store(x, np.array([1.0, 2.0]), "f")
    assert memory.tolist() == [1, 2]


def test_any_other_value_depends_on_the_order_and_is_refused() -> None:
    memory, x = overlapping()
    with pytest.raises(AliasError, match="overlaps itself"):
        store(x, np.ones((3, 2)), "f")
    with pytest.raises(AliasError, match="overlaps itself"):
        store(x, np.ones(2), "f")
    zero = as_strided(memory, (3, 2), (0, 8))
    with pytest.raises(AliasError):
        store(zero, np.ones((3, 2)), "f")
    mixed = as_strided(memory, (2, 2, 2), (0, 8, 8))
    with pytest.raises(AliasError):
        store(mixed, np.ones((1, 2, 2)), "f")
    assert not memory.any()


def test_nothing_overlaps_in_an_empty_destination() -> None:
    store(as_strided(np.zeros(1), (0, 2), (8, 0)), np.ones((0, 2)), "f")
    assert Geometry.contiguous((0,), np.dtype(float)).numel == 0


def test_copy_bumps_the_version_and_returns_the_tensor() -> None:
    x = oplib.zeros(2, 3)
    assert copy_(x, oplib.ones(3)) is x
    assert (x.inplace_version, x.tolist()) == (1, [[1, 1, 1], [1, 1, 1]])


def test_copy_reads_before_it_writes() -> None:
    x = oplib.arange(4)
    copy_(x[1:], x[:-1])
    assert x.tolist() == [0, 0, 1, 2]
