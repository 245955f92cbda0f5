"""Conversion of call arguments: one small function per schema type.

`converter(type, lift)` composes them once per argument. A converter returns the value a kernel
receives, or raises `Misfit`; `lifting.py` turns that into an `ArgumentError` with operator and
argument. Containers are fresh per call, tensors inside keep identity.

Imports floors 0 and 1, `keys.py`, `operator.py`, `ranks.py`. Read next: `describe.py`.
"""

from __future__ import annotations

import enum
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, Final, TypeAlias

import numpy as np

from .. import _state
from .._dims import SymInt
from ..dtypes import as_device, as_dtype
from ..errors import ArgumentError
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
    tensors_of,
)
from ..schema.literals import BARE_WORDS
from .keys import AUTOGRAD
from .operator import hooks
from .ranks import rank

__all__ = ["MISSING", "Converter", "Misfit", "converter", "exact_type"]

Converter: TypeAlias = Callable[[Any], Any]


class _Missing:
    """The value of an argument that was not given and has no default."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<missing>"


MISSING: Final = _Missing()


class Misfit(Exception):
    """A value does not fit a schema type: what the message is made of.

    `expected` defaults to the type; `problem` stands in place of "must be ..., got ..."; `path` and
    `value` say which part of a container it is.
    """

    def __init__(self, expected: str = "", hint: str = "", problem: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        self.hint = hint
        self.problem = problem
        self.path = ""
        self.value: Any = None

    def inside(self, key: Any, kind: Type, value: Any) -> Misfit:
        """Return this misfit as that of a container whose element `key` is `value`."""
        if not self.path:
            self.expected, self.value = self.expected or str(kind), value
        self.path = f"[{key!r}]{self.path}"
        return self


def converter(kind: Type, lift: Converter) -> Converter:
    """Return the conversion for one schema type; `lift` makes tensors of tensor-like values."""
    if isinstance(kind, TensorType):
        return lift
    if isinstance(kind, BasicType):
        return _BASIC[kind.name]
    if isinstance(kind, OptionalType):
        return _optional(converter(kind.element, lift))
    if isinstance(kind, ListType):
        return _list(kind, converter(kind.element, lift))
    if isinstance(kind, TupleType):
        return _tuple(kind, [converter(element, lift) for element in kind.elements])
    if isinstance(kind, DictType):
        return _dict(kind, converter(kind.value, lift))
    if isinstance(kind, UnionType):
        return _union(kind, [converter(member, lift) for member in kind.members])
    return _instance(kind)


# ---------------------------------------------------------------------- plain values


def _number(value: Any) -> Any:
    """Return the Python number in a NumPy scalar or a 0-d tensor or array; others unchanged."""
    if isinstance(value, np.generic):
        return value.item()
    tensor = isinstance(value, hooks.tensor)
    if tensor or isinstance(value, np.ndarray):
        if value.ndim != 0:
            raise Misfit(hint="a tensor here must be 0-d; index it or reduce it")
        if tensor and value.requires_grad and _state.current().mask & AUTOGRAD:
            raise Misfit(hint="it requires grad, and its gradient would be lost; pass x.item()")
        return value.item()
    return value


def _int(value: Any) -> int:
    value = _number(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, SymInt):
        raise Misfit("a known int", "a size symbol has no value here; declare the argument SymInt")
    if hasattr(value, "__index__"):
        return int(value.__index__())
    hint = f"write {int(value)}" if isinstance(value, float) and value.is_integer() else ""
    raise Misfit("int", hint)


def _symint(value: Any) -> Any:
    return value if isinstance(value, SymInt) else _int(value)


def _numeric(kind: type, abstract: type) -> Converter:
    def convert(value: Any) -> Any:
        value = _number(value)
        if isinstance(value, abstract):
            return kind(value)
        raise Misfit(kind.__name__)

    return convert


def _bool(value: Any) -> bool:
    value = _number(value)
    if isinstance(value, bool):
        return value
    hint = f"write {bool(value)}" if isinstance(value, int) and value in (0, 1) else ""
    raise Misfit("bool", hint)


def _scalar(value: Any) -> Any:
    if isinstance(value, hooks.tensor):
        raise Misfit("a number", "pass x.item()")
    value = _number(value)
    if isinstance(value, bool | int | float | complex):
        return value
    raise Misfit("a number")


def _str(value: Any) -> str:
    if isinstance(value, str):
        return value.value if isinstance(value, enum.Enum) else str(value)
    raise Misfit("str", "decode it first" if isinstance(value, bytes) else "")


def _named(read: Converter, what: str) -> Converter:
    def convert(value: Any) -> Any:
        try:
            return read(value)
        except ArgumentError as error:
            raise Misfit(what, str(error)) from None

    return convert


def _word(name: str) -> Converter:
    words = BARE_WORDS[name]

    def convert(value: Any) -> str:
        if isinstance(value, str) and value in words:
            return str(value)
        raise Misfit(f"one of {', '.join(words)}")

    return convert


def _generator(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value
    hint = "write numpy.random.default_rng(seed)" if isinstance(value, int) else ""
    raise Misfit("a numpy.random.Generator", hint)


_BASIC: Final[dict[str, Converter]] = {
    "int": _int,
    "SymInt": _symint,
    "float": _numeric(float, numbers.Real),
    "complex": _numeric(complex, numbers.Complex),
    "bool": _bool,
    "SymBool": _bool,
    "Scalar": _scalar,
    "str": _str,
    "Device": _named(as_device, "a device"),
    "ScalarType": _named(as_dtype, "a dtype"),
    "Layout": _word("Layout"),
    "MemoryFormat": _word("MemoryFormat"),
    "Generator": _generator,
    "Any": lambda value: value,
}


def _instance(kind: ClassType) -> Converter:
    cls: Any = opaque_class(kind.name)

    def convert(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        if issubclass(cls, enum.Enum):
            members = ", ".join(f"{cls.__name__}.{member.name}" for member in cls)
            raise Misfit(f"one of {members}")
        raise Misfit(f"an instance of {kind.name}")

    return convert


# ---------------------------------------------------------------------- containers


def _optional(convert: Converter) -> Converter:
    return lambda value: None if value is None else convert(value)


def _list(kind: ListType, convert: Converter) -> Converter:
    size = kind.size
    exact = exact_type(kind.element)

    def convert_list(value: Any) -> list[Any]:
        if type(value) is not list and type(value) is not tuple:
            value = _as_sequence(value, kind, convert)
        if size is not None and size > 1 and len(value) != size:
            raise Misfit(str(kind), f"give {size} values, or one to repeat; got {len(value)}")
        try:
            if exact is None:
                return [convert(element) for element in value]
            return [e if type(e) is exact else convert(e) for e in value]
        except Misfit:
            return _each((i, kind.element, convert, element) for i, element in enumerate(value))

    return convert_list


def _each(items: Iterable[tuple[Any, Type, Converter, Any]]) -> list[Any]:
    """Convert (key, type, conversion, value) of every element; a misfit says which it is."""
    found = []
    for key, kind, convert, value in items:
        try:
            found.append(convert(value))
        except Misfit as misfit:
            raise misfit.inside(key, kind, value) from None
    return found


def exact_type(kind: Type) -> type | None:
    """Return the Python type whose values need no conversion, if there is one."""
    if isinstance(kind, ClassType):
        return opaque_class(kind.name)
    return _EXACT.get(kind.name) if isinstance(kind, BasicType) else None


_EXACT: Final[dict[str, type]] = {
    "int": int,
    "SymInt": int,
    "float": float,
    "bool": bool,
    "SymBool": bool,
    "str": str,
    "complex": complex,
}


def _as_sequence(value: Any, kind: ListType, convert: Converter) -> Any:
    """Return the elements of a value given for a list that is no list or tuple."""
    tensor = isinstance(value, hooks.tensor)
    if (
        isinstance(value, np.ndarray)
        and value.ndim == 1
        and not isinstance(kind.element, TensorType)
    ):
        return value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return list(value)
    if kind.size is not None and (not tensor or value.ndim == 0 or _holds_tensors(kind)):
        return [convert(value)] * kind.size
    if tensor:
        raise Misfit(str(kind), "write list(x), or [x] for a list of one")
    if isinstance(value, Set | Iterator):
        raise Misfit(str(kind), "write list(...) around it: its order or length is not fixed")
    fits = isinstance(value, int | float | str) and str(kind.element) != "Tensor"
    raise Misfit(str(kind), f"write [{value!r}] for a list of one" if fits else "")


def _holds_tensors(kind: ListType) -> bool:
    return any(True for _ in tensors_of(kind))


def _tuple(kind: TupleType, converters: list[Converter]) -> Converter:
    def convert(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple | list) or len(value) != len(converters):
            raise Misfit(str(kind), f"give a tuple of {len(converters)}")
        positions = range(len(converters))
        return tuple(_each(zip(positions, kind.elements, converters, value, strict=True)))

    return convert


def _dict(kind: DictType, convert_value: Converter) -> Converter:
    convert_key = _BASIC[str(kind.key)]

    def convert(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise Misfit(f"a mapping, {kind}")
        try:
            keys = [convert_key(key) for key in value]
        except Misfit:
            raise Misfit(f"a mapping with {kind.key} keys") from None
        items = ((key, kind.value, convert_value, element) for key, element in value.items())
        return dict(zip(keys, _each(items), strict=True))

    return convert


def _union(kind: UnionType, converters: list[Converter]) -> Converter:
    """Return a conversion to the member that the value is nearest to."""

    def convert(value: Any) -> Any:
        taken: list[tuple[int, Any]] = []
        for member, conversion in zip(kind.members, converters, strict=True):
            with suppress(Misfit, ArgumentError):
                converted = conversion(value)
                taken.append((rank(member, value), converted))
        if not taken:
            raise Misfit(str(kind))
        best = min(distance for distance, _ in taken)
        nearest = [converted for distance, converted in taken if distance == best]
        if len(nearest) > 1:
            raise Misfit(str(kind), "two members take it equally well; convert it first")
        return nearest[0]

    return convert
