"""On fakes, a function of the array API gives the shape, dtype and strides it gives on values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import DataDependentError, array_api
from tests.array_api.calls import CALLS, Arrays
from tests.array_api.compare import found, given
from tests.array_api.more_calls import STANDARD

VALUES = ("__array_namespace_info__", "from_dlpack")
"""Functions about values or libraries, not shapes."""
DYNAMIC = ("unique_all", "unique_counts", "unique_inverse", "unique_values", "nonzero", "repeat")
"""Functions whose results have sizes that depend on data, in some calls at least."""

Convert = Callable[[Any], Any]


def called(name: str, args: Any, kwargs: Any, convert: Convert) -> Any:
    function = found(array_api, name)
    options = {key: given(value, convert, array_api) for key, value in kwargs.items()}
    return function(*given(args, convert, array_api), **options)


def described(value: Any) -> Any:
    if isinstance(value, oplib.Tensor):
        layout = zip(value.shape, value.strides, strict=True)
        strides = [] if 0 in value.shape else [stride for n, stride in layout if n > 1]
        return value.shape, value.dtype, strides
    return [described(part) for part in value] if isinstance(value, list | tuple) else repr(value)


@pytest.mark.parametrize("name", [n for n in CALLS if n not in VALUES and n in STANDARD])
@pytest.mark.parametrize("dtype", ["float32", "int16", "complex128"])
def test_a_fake_call_predicts_the_real_one(name, dtype):
    generate = CALLS[name]
    for args, kwargs in generate(Arrays(dtype), *(name,) * (generate.__code__.co_argcount - 1)):
        try:
            with np.errstate(all="ignore"):
                real = called(name, args, kwargs, oplib.from_numpy)
        except (TypeError, ValueError, IndexError, NotImplementedError, np.linalg.LinAlgError):
            continue  # not for this dtype
        with oplib.FakeTensorMode() as mode:
            faked = lambda array: mode.from_tensor(oplib.from_numpy(array))  # noqa: E731
            try:
                fake = called(name, args, kwargs, faked)
            except DataDependentError:
                assert name in DYNAMIC
                continue
        assert described(fake) == described(real), (args, kwargs)
