"""Data preparation: what a kernel entry asks to have done to its arrays before it sees them.

Imports floors 0 to 4. Read next: `results.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ..dispatch.facets import KernelEntry
from ..dispatch.operator import Operator
from ..dtypes import is_inexact

__all__ = ["prepared"]

Array: TypeAlias = np.ndarray[Any, Any]
Copies: TypeAlias = list[tuple[Array, Array]]


def prepared(op: Operator[..., Any], entry: KernelEntry) -> Callable[..., Any]:
    """Return the kernel of an entry, wrapped by the preparation it asks for.

    A written argument that had to be copied is copied back, once, after the kernel succeeded.
    """
    if not entry.prepares_data:
        return entry.function
    names = [argument.name for argument in op.schema.positional]
    written = set(op.schema.mutated_arguments)
    kernel = entry.function

    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=True)) | kwargs
        copies: Copies = []
        ready = {
            name: _prepare(entry, name, value, copies if name in written else [])
            for name, value in given.items()
        }
        result = kernel(*[ready[n] for n in names], **{n: ready[n] for n in kwargs})
        for original, copy in copies:
            np.copyto(original, copy, casting="same_kind")
        return _restore_dtype(entry, given, result)

    return call


def _prepare(entry: KernelEntry, name: str, value: Any, copies: Copies) -> Any:
    """Return what the kernel gets for one argument; note which arrays are copies."""
    if isinstance(value, list):
        return [_prepare(entry, name, element, copies) for element in value]
    if not isinstance(value, np.ndarray):
        return value
    ready = value
    if entry.dtype is not None and is_inexact(value.dtype) and value.dtype != entry.dtype:
        ready = ready.astype(entry.dtype)
    if name in entry.contiguous and not ready.flags.c_contiguous:
        ready = ready.copy(order="C")
    if ready is not value:
        copies.append((value, ready))
    return ready


def _restore_dtype(entry: KernelEntry, given: dict[str, Any], result: Any) -> Any:
    """Cast inexact results of the computing dtype back to that of the original arguments."""
    if entry.dtype is None:
        return result
    arrays = [v for v in given.values() if isinstance(v, np.ndarray) and is_inexact(v.dtype)]
    if not arrays:
        return result
    target = np.result_type(*arrays)

    def restore(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(restore, value))
        if isinstance(value, np.ndarray | np.generic) and value.dtype == entry.dtype:
            return np.asarray(value).astype(target, copy=False)
        return value

    return restore(result)
