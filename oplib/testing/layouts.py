"""The ways in which equal elements can lie in memory.

Imports floors 0 to 7, `compare.py`. Read next: `calls.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from .compare import Array

__all__ = ["LAYOUTS", "ONLY_FOR_READING"]


def _fortran(array: Array) -> Array:
    return np.asfortranarray(array.copy(order="C"))


def _swapped(array: Array) -> Array:
    """Return the elements with the last two axes exchanged in memory."""
    if array.ndim < 2:
        return array.copy(order="C")
    return array.swapaxes(-1, -2).copy(order="C").swapaxes(-1, -2)


def _rolled(array: Array) -> Array:
    """Return the elements with the first axis innermost in memory."""
    return np.moveaxis(np.moveaxis(array, 0, -1).copy(order="C"), -1, 0) if array.ndim else array


def _strided(array: Array) -> Array:
    """Return the elements as every other one of a larger array, along every axis."""
    if not array.ndim:
        return array.copy()
    buffer = np.zeros([2 * n for n in array.shape], array.dtype)
    view = buffer[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def _reversed(array: Array) -> Array:
    flip = tuple(slice(None, None, -1) for _ in array.shape)
    return array[flip].copy(order="C")[flip] if array.ndim else array.copy()


def _offset(array: Array) -> Array:
    """Return the elements inside a larger array: a write next to them is seen."""
    buffer = np.zeros([n + 2 for n in array.shape] or [3], array.dtype)
    inner = tuple(slice(1, n + 1) for n in array.shape) or (slice(1, 2),)
    view = buffer[inner].reshape(array.shape) if not array.ndim else buffer[inner]
    view[...] = array
    return view


def _expanded(array: Array) -> Array:
    """Return the first slice along the first axis, repeated with stride 0."""
    if not array.ndim or array.shape[0] < 2:
        return array.copy()
    return np.broadcast_to(array[:1].copy(), array.shape)


def _read_only(array: Array) -> Array:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


LAYOUTS: Final[dict[str, Callable[[Array], Array]]] = {
    "offset into a larger buffer": _offset,
    "Fortran order": _fortran,
    "last axes transposed": _swapped,
    "first axis innermost": _rolled,
    "every other element": _strided,
    "reversed": _reversed,
    "expanded": _expanded,
    "read-only": _read_only,
}
"""From a description to a function that returns the elements of an array laid out that way."""

ONLY_FOR_READING: Final = ("expanded", "read-only")
"""The layouts an argument that is written cannot have."""
