"""Kernels as facets: what a kernel registration says, checked before it is committed.

`kernel_facet` validates one kernel at one key: its signature, what it receives, its options, and
gives the `Facet` that the ledger commits. A kernel at ``Meta`` is the fake rule.

Imports floors 0 to 3. Read next: `facet_registration.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from ._text import did_you_mean, function_site, join_names, short_repr
from .dispatch.facets import FAKE, KERNEL, Convention, Facet, KernelEntry
from .dispatch.keys import (
    AUTOGRAD_KEY,
    COMPOSITE_EXPLICIT,
    COMPOSITE_IMPLICIT,
    KeySet,
    canonical_key,
)
from .dispatch.plan import fallthrough
from .dtypes import as_dtype, is_inexact
from .errors import RegistrationError
from .schema import FunctionSchema, check_signature, kernel_convention

__all__ = ["fake_facet", "kernel_facet", "kernel_keys"]

Options: TypeAlias = Mapping[str, Any]

_ABOVE_BACKENDS: Final = (AUTOGRAD_KEY, COMPOSITE_EXPLICIT, COMPOSITE_IMPLICIT)
_OPTIONS: Final = (
    *("provider", "dtypes", "supports", "priority"),
    *("contiguous", "dtype", "on_alias", "with_keyset"),
)


def kernel_keys(keys: str | Iterable[str]) -> list[str]:
    """Return the canonical keys that one or several names of keys, devices or backends mean."""
    names = [keys] if isinstance(keys, str) else list(keys)
    if not names:
        raise RegistrationError("no device is named, so nothing would run; None means any device")
    return list(dict.fromkeys(canonical_key(name) for name in names))


def kernel_facet(
    schema: FunctionSchema, function: Callable[..., Any], key: str, options: Options
) -> Facet:
    """Return the facet of a kernel at a canonical key.

    Raises
    ------
    RegistrationError
        If the function cannot serve the schema, or an option has no effect.
    """
    if key == "Meta":
        if options:
            raise RegistrationError(
                f"{schema.qualname}: a fake rule has no option {next(iter(options))!r}; "
                "it is asked for every call without data"
            )
        return fake_facet(schema, function)
    above = key in _ABOVE_BACKENDS
    fields = _checked_options(schema, key, options)
    _check_function(schema, function, key, bool(fields.get("with_keyset")))
    if above and kernel_convention(function) == "array":
        raise RegistrationError(
            f"{schema.qualname}: a kernel at {key} receives Tensors, but {function_site(function)} "
            "is annotated with arrays; annotate it with oplib.Tensor, or register it for 'cpu'"
        )
    found: Convention = "tensor" if above else kernel_convention(function) or "array"
    if (fields.get("contiguous") or fields.get("dtype")) and (found == "tensor" or key != "CPU"):
        raise RegistrationError(
            f"{schema.qualname}: data is prepared for kernels on NumPy arrays, at 'cpu'; "
            f"this one is at {key} and receives {'Tensors' if found == 'tensor' else 'arrays'}"
        )
    entry = KernelEntry(function, key, found, **fields)
    return Facet(KERNEL, function, entry, key, entry.provider)


def _check_function(schema: FunctionSchema, function: Any, key: str, with_keyset: bool) -> None:
    """Refuse a function that cannot be called as the key calls it."""
    if function is fallthrough:
        return
    if with_keyset and callable(function):
        function = functools.partial(function, KeySet(0))
    check_signature(function, schema, f"kernel for {key}")


def fake_facet(schema: FunctionSchema, function: Any) -> Facet:
    """Return the facet of a fake rule: a function of Tensors without data, or a shape rule.

    Raises
    ------
    RegistrationError
        If the function cannot serve the schema, or is annotated with arrays.
    """
    for_schema = getattr(function, "for_schema", None)
    if for_schema is not None:
        return Facet(FAKE, function, for_schema(schema))
    if function is not fallthrough:
        check_signature(function, schema, "fake rule")
        if kernel_convention(function) == "array":
            raise RegistrationError(
                f"{schema.qualname}: the fake rule at {function_site(function)} receives Tensors "
                "without data, but it is annotated with arrays"
            )
    return Facet(FAKE, function, function)


# ---------------------------------------------------------------------- options


def _checked_options(schema: FunctionSchema, key: str, options: Options) -> dict[str, Any]:
    """Return the fields of a `KernelEntry` that options name, converted."""
    for name in options:
        if name not in _OPTIONS:
            raise RegistrationError(
                f"{schema.qualname}: a kernel has no option {name!r}"
                f"{did_you_mean(name, _OPTIONS)}; known are {', '.join(_OPTIONS)}"
            )
    fields = dict(options)
    checks: dict[str, Callable[[FunctionSchema, Any], Any]] = {
        "provider": _provider,
        "priority": _priority,
        "dtypes": _dtypes,
        "supports": _supports,
        "contiguous": _contiguous,
        "dtype": _computing_dtype,
        "on_alias": _on_alias,
    }
    for name, check in checks.items():
        if name in fields:
            fields[name] = check(schema, fields[name])
    if fields.get("with_keyset") and key not in _ABOVE_BACKENDS:
        raise RegistrationError(
            f"{schema.qualname}: with_keyset is for kernels at {', '.join(_ABOVE_BACKENDS)}; "
            f"at {key} there is nothing left to choose"
        )
    return fields


def _provider(schema: FunctionSchema, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise RegistrationError(f"{schema.qualname}: a provider is a name, got {short_repr(value)}")
    return value


def _priority(schema: FunctionSchema, value: Any) -> int:
    if not isinstance(value, int):
        raise RegistrationError(f"{schema.qualname}: priority is an int, got {short_repr(value)}")
    return value


def _dtypes(schema: FunctionSchema, value: Any) -> Any:
    """Return allowed dtypes as frozensets: one for all tensor arguments, or one per argument."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return _dtype_set(value)
    for name in value:
        _require_tensor(schema, name, "dtypes")
    return {name: _dtype_set(allowed) for name, allowed in value.items()}


def _dtype_set(value: Any) -> frozenset[np.dtype[Any]]:
    single = isinstance(value, str | type | np.dtype)
    return frozenset(as_dtype(dtype) for dtype in ([value] if single else value))


def _supports(schema: FunctionSchema, value: Any) -> Any:
    if value is not None:
        check_signature(value, schema, "predicate `supports`")
    return value


def _contiguous(schema: FunctionSchema, value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return schema.differentiable_arguments if value else ()
    names = (value,) if isinstance(value, str) else tuple(value or ())
    for name in names:
        _require_tensor(schema, name, "contiguous")
    return names


def _require_tensor(schema: FunctionSchema, name: Any, option: str) -> None:
    tensors = schema.differentiable_arguments
    if name not in tensors:
        raise RegistrationError(
            f"{schema.qualname}: {option} names {name!r}, which is no tensor argument"
            f"{did_you_mean(str(name), tensors)}; tensors are {join_names(tensors)}"
        )


def _computing_dtype(schema: FunctionSchema, value: Any) -> np.dtype[Any] | None:
    if value is None:
        return None
    dtype = as_dtype(value)
    if not is_inexact(dtype):
        raise RegistrationError(
            f"{schema.qualname}: dtype is what float and complex arguments are computed in, "
            f"got {dtype}"
        )
    return dtype


def _on_alias(schema: FunctionSchema, value: Any) -> Any:
    if value not in ("error", "copy"):
        raise RegistrationError(
            f"{schema.qualname}: on_alias is 'error' or 'copy', got {short_repr(value)}"
        )
    return value
