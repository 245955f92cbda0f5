"""Does a value of a graph fit a schema type? Exactly, without conversion.

Imports `ir.py` and floors 0 and 1. Read next: `verify.py`, which asks.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .._dims import SymInt
from .._text import short_repr
from ..dtypes import Device
from ..schema import (
    BasicType,
    ClassType,
    DictType,
    ListType,
    OptionalType,
    TensorType,
    TupleType,
    Type,
    UnionType,
    opaque_class,
)
from .values import PyMeta, Reference, Value

__all__ = ["describe", "fits_argument", "fits_result"]

_NUMBERS: Final = (bool, int, float, complex)
_BASIC: Final[dict[str, tuple[type, ...]]] = {
    "int": (int, SymInt),
    "SymInt": (int, SymInt),
    "float": (float,),
    "bool": (bool,),
    "SymBool": (bool,),
    "str": (str,),
    "Scalar": (*_NUMBERS, SymInt),
    "complex": (complex,),
    "Device": (Device,),
    "Layout": (str,),
    "MemoryFormat": (str,),
    "Generator": (),
}


def fits_argument(value: Any, type_: Type, references: bool) -> bool:
    """Return whether `value` is an argument of `type_`; `references` are allowed for tensors."""
    match type_:
        case TensorType():
            if isinstance(value, Reference):
                return references and value.value.is_tensor
            return type(value) in _NUMBERS or (isinstance(value, Value) and value.is_tensor)
        case OptionalType(element):
            return value is None or fits_argument(value, element, references)
        case UnionType(members):
            return any(fits_argument(value, member, references) for member in members)
        case ListType(element, size):
            return (
                isinstance(value, list)
                and (size in (None, 1) or len(value) in (0, size))
                and all(fits_argument(item, element, references) for item in value)
            )
        case TupleType(elements):
            return (
                isinstance(value, tuple)
                and len(value) == len(elements)
                and all(
                    fits_argument(item, element, references)
                    for item, element in zip(value, elements, strict=True)
                )
            )
        case DictType(key, item_type):
            return isinstance(value, dict) and all(
                fits_argument(name, key, False) and fits_argument(item, item_type, references)
                for name, item in value.items()
            )
        case _:
            return _fits_plain(value, type_)


def _fits_plain(value: Any, type_: BasicType | ClassType) -> bool:
    if type_.name == "Any":
        return not (isinstance(value, Value) and value.is_token)
    if isinstance(value, Value):
        return isinstance(value.meta, PyMeta)
    if isinstance(type_, ClassType):
        cls = opaque_class(type_.name)
        return cls is not None and isinstance(value, cls)
    if type_.name == "ScalarType":
        return isinstance(value, np.dtype)
    return type(value) in _BASIC[type_.name]


def fits_result(result: Any, type_: Type) -> bool:
    """Return whether the results of a node are what a return of `type_` gives."""
    match type_:
        case TensorType():
            return isinstance(result, Value) and result.is_tensor
        case OptionalType(element):
            return result is None or fits_result(result, element)
        case UnionType(members):
            return any(fits_result(result, member) for member in members)
        case ListType(element):
            return isinstance(result, list) and all(fits_result(item, element) for item in result)
        case TupleType(elements):
            return (
                isinstance(result, tuple)
                and len(result) == len(elements)
                and all(map(fits_result, result, elements))
            )
        case DictType(_, element):
            return isinstance(result, tuple) and all(fits_result(item, element) for item in result)
        case _:
            return isinstance(result, Value) and not result.is_token


def describe(value: Any) -> str:
    """Return what an argument or a result is, for a message."""
    if isinstance(value, Value):
        return f"`{value.stem}: {value.meta}`"
    if isinstance(value, Reference):
        return f"a reference to {describe(value.value)}"
    return f"{short_repr(value)} of type {type(value).__name__}"
