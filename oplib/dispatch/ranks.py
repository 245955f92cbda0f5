"""How well a value fits a schema type: what overloads and unions are chosen by.

Ranks only compare values that fit; whether one fits is decided by conversion. 0 is the declared
type itself; then lossless steps (bool to int, int to float, number to Scalar, array to Tensor, a
value to an optional), each one more; then a structural step (one value for ``T[N]``, a list for a
tuple, a NumPy array for a list, a 0-d tensor for a number); ``Any`` comes last.

Imports floors 0 and 1, `operator.py`. Read next: `convert.py`.
"""

from __future__ import annotations

import enum
import numbers
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

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
)
from .operator import hooks

__all__ = ["ANY", "EXACT", "STRUCTURAL", "rank"]

EXACT: Final = 0
STEP: Final = 1
STRUCTURAL: Final = 5
ANY: Final = 6

_TOWER: Final = ("bool", "int", "float", "complex")
_PYTHON: Final = (bool, int, float, complex)


def rank(kind: Type, value: Any) -> int:
    """Return how far `value`, which fits, is from the type `kind`."""
    if isinstance(kind, OptionalType):
        return EXACT if value is None else max(STEP, rank(kind.element, value))
    if isinstance(kind, TensorType):
        return _tensor(value)
    if isinstance(kind, BasicType):
        return _BASIC.get(kind.name, _plain)(value)
    if isinstance(kind, ListType):
        return _list(kind, value)
    if isinstance(kind, TupleType):
        inner = [rank(k, v) for k, v in zip(kind.elements, value, strict=True)]
        return max(inner, default=EXACT) if isinstance(value, tuple) else STRUCTURAL
    if isinstance(kind, DictType):
        inner = [max(rank(kind.key, k), rank(kind.value, v)) for k, v in value.items()]
        return max(inner, default=EXACT if type(value) is dict else STEP)
    if isinstance(kind, UnionType):
        return STEP
    assert isinstance(kind, ClassType)
    return EXACT


def _tensor(value: Any) -> int:
    if isinstance(value, hooks.tensor):
        return EXACT
    return STRUCTURAL if isinstance(value, numbers.Number) else STEP


def _list(kind: ListType, value: Any) -> int:
    if not isinstance(value, list | tuple):
        return STRUCTURAL
    return max([rank(kind.element, element) for element in value], default=EXACT)


def _step_of(value: Any) -> int | None:
    """Return the place of a number in the tower, or None for what is no plain number."""
    if isinstance(value, bool | np.bool):
        return 0
    for place, abstract in ((1, numbers.Integral), (2, numbers.Real), (3, numbers.Complex)):
        if isinstance(value, abstract):
            return place
    return None


def _number(name: str) -> Callable[[Any], int]:
    target = _TOWER.index(name)
    exact = _PYTHON[target]

    def number(value: Any) -> int:
        place = _step_of(value)
        if place is None:
            return STRUCTURAL
        if type(value) is exact:
            return EXACT
        steps = max(0, target - place)
        return steps if type(value) in _PYTHON else steps + STEP

    return number


def _scalar(value: Any) -> int:
    return STRUCTURAL if isinstance(value, np.ndarray) else STEP


def _str(value: Any) -> int:
    return STEP if isinstance(value, enum.Enum) else EXACT


def _spelled(*own: type) -> Callable[[Any], int]:
    """Return the rank of a type whose values may be given by a name."""
    return lambda value: EXACT if isinstance(value, own) else STEP


def _plain(value: Any) -> int:
    return EXACT


_BASIC: Final[Mapping[str, Callable[[Any], int]]] = {
    "bool": _number("bool"),
    "SymBool": _number("bool"),
    "int": _number("int"),
    "SymInt": _number("int"),
    "float": _number("float"),
    "complex": _number("complex"),
    "Scalar": _scalar,
    "str": _str,
    "Device": _spelled(Device),
    "ScalarType": _spelled(np.dtype),
    "Layout": _spelled(),
    "MemoryFormat": _spelled(),
    "Any": lambda value: ANY,
}
