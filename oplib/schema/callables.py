"""What stands behind a callable: the Python function, its name, its kind.

Imports nothing of oplib.
"""

from __future__ import annotations

import functools
import inspect
from types import FunctionType, MethodType
from typing import Any

import numpy as np

__all__ = ["name_of", "ufunc_schema", "underlying", "unsuitable_kind"]


def underlying(fn: Any) -> FunctionType | None:
    """Return the Python function behind partials, methods, wrappers and callable objects."""
    while not isinstance(fn, FunctionType) or hasattr(fn, "__wrapped__"):
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, (MethodType, staticmethod)):
            fn = fn.__func__
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif not isinstance(fn, type) and isinstance(_call(fn), FunctionType):
            fn = _call(fn)
        else:
            return None
    return fn


def _call(fn: Any) -> Any:
    return inspect.getattr_static(type(fn), "__call__", None)


def name_of(fn: Any) -> str:
    """Return the name of the function behind `fn`."""
    return str(getattr(underlying(fn) or fn, "__name__", type(fn).__name__))


def unsuitable_kind(function: Any) -> str:
    """Return ``"a coroutine function"`` and the like, or an empty string."""
    if inspect.iscoroutinefunction(function):
        return "a coroutine function"
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        return "a generator function"
    return ""


def ufunc_schema(ufunc: np.ufunc) -> str:
    """Return the schema that fits a ufunc."""
    names = ["x"] if ufunc.nin == 1 else [f"x{i + 1}" for i in range(ufunc.nin)]
    returns = "Tensor" if ufunc.nout == 1 else f"({', '.join(['Tensor'] * ufunc.nout)})"
    return f"({', '.join(f'Tensor {name}' for name in names)}) -> {returns}"
