"""Shared by the autograd tests: making tensors, comparing them, and counting what is alive."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np

import oplib
from oplib import Tensor


def tensor(*values: Any, dtype: Any = float) -> Tensor:
    """Return a tensor that does not require grad."""
    return oplib.tensor(np.array(values, dtype))


def leaf(*values: Any, dtype: Any = float) -> Tensor:
    """Return a tensor that requires grad."""
    return tensor(*values, dtype=dtype).requires_grad_()


def assert_values(got: Tensor | None, expected: Any) -> None:
    """Assert that a tensor exists and has (nearly) the expected values and their shape."""
    assert got is not None
    expected = np.asarray(expected)
    assert got.shape == expected.shape, (got, expected)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6, atol=1e-9)


def gradients(output: Tensor, *inputs: Tensor) -> list[np.ndarray]:
    """Return the gradients of a sum of squares of `output`, which makes seeds differ."""
    seed = oplib.tensor(np.arange(1.0, output.size + 1).reshape(output.shape))
    found = oplib.grad(output, list(inputs), [seed], retain_graph=True)
    return [gradient.numpy() for gradient in found if gradient is not None]


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Run with the garbage collector off, so that only reference counts free."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
