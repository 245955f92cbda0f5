"""Literals: which Python values a graph may hold, their text, and keys that compare them by bits.

``1``, ``1.0`` and ``True`` are three literals, ``0.0`` and ``-0.0`` are two, and a NaN equals a NaN
of the same bits. Text is exact: parsing it gives the bits back.

Imports floors 0 to 2. Read next: `ir.py`.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Hashable, Iterable
from enum import Enum
from math import isinf, isnan
from typing import Any, Final

import numpy as np

from .._dims import SymInt
from ..dispatch.operator import Operator
from ..dtypes import DTYPE_NAMES, Device, short_dtype
from ..schema.types import opaque_name

__all__ = [
    "DTYPE_WORDS",
    "array_digest",
    "array_text",
    "float_from_bits",
    "is_literal",
    "literal_key",
    "literal_text",
    "matches_default",
    "size_text",
    "symbols_in",
]

DTYPE_WORDS: Final = frozenset(
    {short_dtype(np.dtype(name)) if hasattr(np, name) else name for name in DTYPE_NAMES}
    - {"bfloat16"}
    | {"bf16"}
)
"""The words that stand for dtypes in text."""

SMALL_CONSTANT: Final = 8
"""Constants of at most so many elements are printed by value."""

_SYMBOL_NAME: Final = re.compile(r"\bu[0-9]+\b")
_PLAIN: Final = (type(None), bool, int, float, complex, str, Device, SymInt, type(...))
_QUIET_NAN: Final = 0x7FF8000000000000


def is_literal(value: Any) -> bool:
    """Return whether `value` is a literal, or a list, tuple, slice or dict of literals."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is slice:
        return all(map(is_literal, (value.start, value.stop, value.step)))
    if kind is list or kind is tuple:
        return all(map(is_literal, value))
    if kind is dict:
        return all(map(is_literal, value)) and all(map(is_literal, value.values()))
    if isinstance(value, np.dtype):
        return short_dtype(value) in DTYPE_WORDS and value.isnative
    if isinstance(value, Enum):
        return opaque_name(kind) is not None
    return isinstance(value, Operator)


def literal_key(value: Any) -> Hashable:
    """Return a hashable key: equal for equal type and bits, and only then."""
    kind = type(value)
    if kind is float:
        return kind, struct.pack(">d", value)
    if kind is complex:
        return kind, struct.pack(">dd", value.real, value.imag)
    if kind is list or kind is tuple:
        return kind, tuple(map(literal_key, value))
    if kind is dict:
        return kind, tuple((literal_key(key), literal_key(item)) for key, item in value.items())
    if kind is slice:
        return kind, tuple(map(literal_key, (value.start, value.stop, value.step)))
    return kind, (str(value) if kind is SymInt else value)


def matches_default(value: Any, default: Any) -> bool:
    """Return whether an argument is the schema's default; defaults keep lists as tuples."""
    if type(value) is list or type(value) is tuple:
        return (
            isinstance(default, list | tuple)
            and len(value) == len(default)
            and all(map(matches_default, value, default))
        )
    return type(value) is type(default) and literal_key(value) == literal_key(default)


# Text ---------------------------------------------------------------------------------------------


def literal_text(value: Any) -> str:
    """Return the text of one literal that is no container.

    What is no literal shows its type, ``<object>``: such a graph can be read, though not parsed,
    and is refused by verification.
    """
    kind = type(value)
    if kind is float:
        return _float_text(value)
    if kind is complex:
        imaginary = _float_text(value.imag)
        sign = "" if imaginary.startswith("-") else "+"
        return f"{_float_text(value.real)}{sign}{imaginary}j"
    if kind is type(...):
        return "..."
    if kind is Device:
        return f"@{value}"
    if kind is SymInt:
        return size_text(value)
    if kind in _PLAIN:
        return repr(value)
    if kind is slice:
        parts = ("" if part is None else literal_text(part) for part in (value.start, value.stop))
        step = "" if value.step is None else f":{literal_text(value.step)}"
        return ":".join(parts) + step
    if isinstance(value, np.dtype):
        return short_dtype(value)
    if isinstance(value, Enum) and (name := opaque_name(kind)):
        return f"{name}.{value.name}"
    if isinstance(value, Operator):
        return value.qualname.replace("::", ".")
    return f"<{kind.__qualname__}>"


def size_text(size: Any) -> str:
    """Return a size, an int or a symbolic expression, without spaces."""
    return str(size).replace(" ", "")


def symbols_in(sizes: Iterable[Any]) -> set[str]:
    """Return the names of the symbols that the symbolic ones among `sizes` are made of."""
    return {
        name for size in sizes if type(size) is SymInt for name in _SYMBOL_NAME.findall(str(size))
    }


def _float_text(value: float) -> str:
    if isnan(value):
        bits = struct.unpack(">Q", struct.pack(">d", value))[0]
        return "nan" if bits == _QUIET_NAN else f"nan({bits:#x})"
    if isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def float_from_bits(bits: int) -> float:
    """Return the float64 with these bits (NaNs with a payload have no other spelling)."""
    value: float = struct.unpack(">d", struct.pack(">Q", bits))[0]
    return value


# Arrays -------------------------------------------------------------------------------------------


def array_digest(array: np.ndarray[Any, Any]) -> str:
    """Return ``#sha256:...`` of the elements in C order."""
    return "#sha256:" + hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def array_text(array: np.ndarray[Any, Any]) -> str:
    """Return the elements as a nested list if they are few and finite, else the digest."""
    if array.size > SMALL_CONSTANT or array.dtype.kind not in "biufc":
        return array_digest(array)
    if array.size and not np.isfinite(array).all():
        return array_digest(array)
    return _elements_text(array)


def _elements_text(array: np.ndarray[Any, Any]) -> str:
    if array.ndim:
        return f"[{', '.join(_elements_text(array[i, ...]) for i in range(len(array)))}]"
    element = array[()]
    if array.dtype.kind == "c":
        imaginary = _shortest(element.imag)
        sign = "" if imaginary.startswith("-") else "+"
        return f"{_shortest(element.real)}{sign}{imaginary}j"
    return _shortest(element) if array.dtype.kind == "f" else repr(array.item())


def _shortest(element: Any) -> str:
    """Return the fewest digits that give `element` back by way of a float64."""
    short = str(element)
    return short if type(element)(float(short)) == element else repr(float(element))
