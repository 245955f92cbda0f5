"""Kernel entries: choosing among them, and preparing what they receive.

With one unconditional entry that needs no preparation the kernel itself is called; everything here
is composed around it only where an entry asks for it.

Imports floors 0 to 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._text import function_site
from ..dispatch.facets import KernelEntry, Registration
from ..dispatch.operator import Operator
from ..dtypes import is_inexact, short_dtype
from ..errors import DispatchError

__all__ = ["kernel_function"]


def kernel_function(
    op: Operator[..., Any], registrations: Sequence[Registration]
) -> Callable[..., Any]:
    """Return the function a plan calls: a kernel, or a choice among several."""
    entries: list[KernelEntry] = [r.payload for r in registrations]
    prepared = [_prepared(op, entry) for entry in entries]
    if not entries[0].is_conditional:
        return prepared[0]
    names = [argument.name for argument in op.schema.positional]

    def choose(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=True)) | kwargs
        for entry, function in zip(entries, prepared, strict=True):
            if not _refusal(op, entry, given, args, kwargs):
                return function(*args, **kwargs)
        reasons = [
            f"  {registration.source}: {_refusal(op, registration.payload, given, args, kwargs)}"
            for registration in registrations
        ]
        raise DispatchError(
            f"{op.qualname}: every kernel for {entries[0].key} refuses this call\n"
            + "\n".join(reasons)
            + "\n  register one for these arguments, or cast them"
        )

    return choose


def _refusal(
    op: Operator[..., Any],
    entry: KernelEntry,
    given: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> str:
    """Return why an entry refuses a call, or an empty string."""
    if entry.dtypes is not None:
        for name, array in _arrays(op, given):
            allowed = (
                entry.dtypes if isinstance(entry.dtypes, frozenset) else entry.dtypes.get(name)
            )
            if allowed is not None and array.dtype not in allowed:
                listed = ", ".join(sorted(short_dtype(d) for d in allowed))
                return f"`{name}` is {short_dtype(array.dtype)}, it takes {listed}"
    if entry.supports is not None:
        try:
            accepted = entry.supports(*args, **kwargs)
        except BaseException as error:
            error.add_note(
                f"in the predicate {function_site(entry.supports)} of a kernel of {op.qualname}"
            )
            raise
        if not accepted:
            return f"its predicate {function_site(entry.supports)} says no"
    return ""


def _arrays(op: Operator[..., Any], given: dict[str, Any]) -> list[tuple[str, Any]]:
    found = []
    for name in op.schema.differentiable_arguments:
        value = given[name]
        arrays = value if isinstance(value, list) else [value]
        found += [(name, array) for array in arrays if hasattr(array, "dtype")]
    return found


def _prepared(op: Operator[..., Any], entry: KernelEntry) -> Callable[..., Any]:
    """Return the kernel, wrapped by the data preparation its entry asks for."""
    if not entry.prepares_data:
        return entry.function
    names = [argument.name for argument in op.schema.positional]
    written = set(op.schema.mutated_arguments)
    kernel = entry.function

    def prepared(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=True)) | kwargs
        ready, copied_back = _prepare(entry, given, written)
        result = kernel(*[ready[n] for n in names], **{n: ready[n] for n in kwargs})
        for original, copy in copied_back:
            original[...] = copy
        return _restore_dtype(entry, given, result)

    return prepared


def _prepare(
    entry: KernelEntry, given: dict[str, Any], written: set[str]
) -> tuple[dict[str, Any], list[tuple[Any, Any]]]:
    ready, copied_back = dict(given), []
    for name, value in given.items():
        changed = _prepare_value(entry, name, value)
        if changed is not value:
            ready[name] = changed
            if name in written:
                copied_back.append((value, changed))
    return ready, copied_back


def _prepare_value(entry: KernelEntry, name: str, value: Any) -> Any:
    if isinstance(value, list):
        changed = [_prepare_value(entry, name, element) for element in value]
        same = all(new is old for new, old in zip(changed, value, strict=True))
        return value if same else changed
    if not isinstance(value, np.ndarray):
        return value
    if entry.dtype is not None and is_inexact(value.dtype) and value.dtype != entry.dtype:
        value = value.astype(entry.dtype)
    if name in entry.contiguous and not value.flags.c_contiguous:
        value = value.copy(order="C")
    return value


def _restore_dtype(entry: KernelEntry, given: dict[str, Any], result: Any) -> Any:
    """Cast inexact results of the computing dtype back to that of the original arguments."""
    if entry.dtype is None:
        return result
    arrays = [v for v in given.values() if isinstance(v, np.ndarray) and is_inexact(v.dtype)]
    if not arrays:
        return result
    target = np.result_type(*arrays)
    if isinstance(result, tuple | list):
        return type(result)(_restore_dtype(entry, given, element) for element in result)
    if isinstance(result, np.ndarray | np.generic) and result.dtype == entry.dtype:
        return np.asarray(result).astype(target)
    return result
