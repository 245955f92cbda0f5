"""Python values as defaults: what a parameter's default is in a schema.

Imports `literals.py` and below. Read next: `infer.py`.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

import numpy as np

from .._text import short_repr
from ..dtypes import DTYPE_NAMES, Device, as_dtype
from ..errors import ArgumentError
from .literals import BadDefaultError, Literal, convert
from .types import BasicType, ClassType, ListType, OptionalType, TupleType, Type, UnionType

__all__ = ["adopt"]


def adopt(value: Any, type_: Type) -> Any:
    """Return a Python default as the value the schema stores.

    NumPy scalars become Python numbers, dtypes in any spelling `numpy.dtype`, lists tuples.

    Raises
    ------
    BadDefaultError
        If it is no value of `type_`.
    """
    match type_:
        case OptionalType(element):
            return None if value is None else adopt(value, element)
        case ListType(element, size):
            if isinstance(value, (list, tuple)):
                return tuple(adopt(item, element) for item in value)
            if size is not None:
                return (adopt(value, element),) * size
        case TupleType(elements):
            if isinstance(value, tuple) and len(value) == len(elements):
                return tuple(map(adopt, value, elements))
        case UnionType(members):
            return _adopt_member(value, members, type_)
    return convert(_as_literal(value, type_), type_)


def _adopt_member(value: Any, members: tuple[Type, ...], type_: Type) -> Any:
    readings = []
    for member in members:
        try:
            readings.append(adopt(value, member))
        except BadDefaultError:
            continue
    if not readings:
        raise _no_default(value, type_)
    plain = value.item() if isinstance(value, np.generic) else value
    return next((each for each in readings if type(each) is type(plain)), readings[0])


def _as_literal(value: Any, type_: Type) -> Literal:
    """Return the literal that spells `value` under a declared type without parts."""
    if isinstance(value, np.generic):
        value = value.item()
    text = short_repr(value)
    if isinstance(type_, ClassType):
        name = getattr(value, "name", "") if isinstance(value, Enum) else text
        return Literal("none" if value is None else "word", name, str(name))
    if isinstance(value, Enum):
        plain = next((kind for kind in (int, str) if isinstance(value, kind)), None)
        value = value if plain is None else plain(value.value)
    match type_:
        case BasicType("ScalarType") if value is not None:
            return _dtype_literal(value, type_)
        case BasicType("Device") if isinstance(value, Device):
            return Literal("str", str(value), text)
        case BasicType("Layout" | "MemoryFormat") if isinstance(value, str):
            return Literal("word", value, value)
    if value is None:
        return Literal("none", None, text)
    if type(value) in (bool, int, str):
        return Literal(type(value).__name__, value, text)
    if isinstance(value, float):
        return Literal("float", float(value), text)
    if type(value) is complex and math.isfinite(value.real) and math.isfinite(value.imag):
        return Literal("complex", value, text)
    raise _no_default(value, type_)


def _dtype_literal(value: Any, type_: Type) -> Literal:
    try:
        dtype = as_dtype(value)
    except ArgumentError:
        if isinstance(value, str) and value in DTYPE_NAMES:  # of ml_dtypes, which is missing
            return Literal("word", value, value)
        raise _no_default(value, type_) from None
    if dtype.name not in DTYPE_NAMES or not dtype.isnative:
        raise _no_default(value, type_)
    return Literal("word", dtype.name, dtype.name)


def _no_default(value: Any, type_: Type) -> BadDefaultError:
    text = short_repr(value)
    message = f"default {text} of type {type(value).__name__} is not a value of {type_}"
    hint = "a default is None, a number, bool, str, dtype or Device, or a list of these"
    if not isinstance(value, (int, float, complex, str)):
        hint = "use None, and choose the value in the body"
    return BadDefaultError(Literal("", value, text), message, hint)
