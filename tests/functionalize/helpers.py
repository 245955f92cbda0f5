"""Shared by the tests of functional runs: a function in every mode, and what is seen of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import Tensor

Function = Callable[..., Any]


def tensor(*values: float, dtype: Any = float) -> Tensor:
    """Return a tensor with values of its own."""
    return oplib.tensor(np.array(values, dtype))


def counted(*shape: int) -> Tensor:
    """Return 0, 1, 2, ... in a shape."""
    return oplib.tensor(np.arange(float(np.prod(shape, dtype=int))).reshape(shape))


def assert_values(found: Any, expected: Any) -> None:
    """Assert values and shape of a tensor or an array."""
    array = found.numpy() if isinstance(found, Tensor) else found
    expected = np.asarray(expected)
    assert array.shape == expected.shape
    np.testing.assert_array_equal(array, expected)


def functionalized(function: Function) -> Function:
    """Return a function that runs functionalized."""
    return oplib.functionalize(function)


def captured(function: Function) -> Function:
    """Return a function that is captured at each call, on tensors like its arguments."""

    def call(*args: Any) -> Any:
        return oplib.capture(function, *args)(*args)

    return call


every_mode = pytest.mark.parametrize(
    "mode", [lambda f: f, functionalized, captured], ids=["eager", "functionalize", "capture"]
)
functional_modes = pytest.mark.parametrize(
    "mode", [functionalized, captured], ids=["functionalize", "capture"]
)


@pytest.fixture
def lib() -> Any:
    """A library whose operators live for one test."""
    with oplib.Library("contract", "DEF") as library:
        yield library


def define(lib: Any, schema: str, kernel: Any, **facets: Any) -> Any:
    """Define an operator with a kernel, and return it."""
    op = lib.define(schema, **facets).op
    op.register_kernel("cpu", kernel)
    return op
