"""Operators and assertions for tests of tensors without data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import oplib
from oplib import Library, Tensor


def like(real: Tensor, fake: Tensor) -> bool:
    """Return whether a fake has the metadata of a real tensor; raise where it differs."""
    assert fake.shape == real.shape
    assert fake.dtype == real.dtype
    assert fake.device == real.device
    if real.size:
        for axis, length in enumerate(real.shape):
            assert length == 1 or fake.strides[axis] == real.strides[axis], (axis, fake, real)
    return True


def define(lib: Library, schema: str, rule: Callable[..., Any] | None = None) -> Any:
    """Define an operator with a fake rule and without kernels."""
    op = lib.define(schema).op
    if rule is not None:
        op.register_fake(rule)
    return op


def message(error: BaseException) -> str:
    """Return an error's text with its notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def strided(rng: np.random.Generator, ndim: int) -> np.ndarray[Any, Any]:
    """Return a random view: permuted, reversed, with steps, broadcast."""
    shape = rng.integers(1, 4, ndim)
    array = np.zeros(tuple(shape * 2)).transpose(rng.permutation(ndim))
    index = []
    for _ in range(ndim):
        kind = rng.integers(4)
        index.append([slice(None), slice(None, None, 2), slice(None, None, -1), slice(0, 1)][kind])
    view: np.ndarray[Any, Any] = array[(*index, ...)]
    return view


__all__ = ["define", "like", "message", "oplib", "strided"]
