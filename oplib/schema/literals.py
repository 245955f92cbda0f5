"""Defaults: what a literal means under a declared type, and how a value is written.

`convert` reads a literal by the *declared* type (``float x=1`` holds ``1.0``) and `format_literal`
writes the value back. Stored containers are tuples, so a schema cannot be changed through them.

Imports `types.py` and the floor below. Read next: `model.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np

from .._text import did_you_mean, join_names
from ..dtypes import (
    DTYPE_NAMES,
    TORCH_DTYPE_WORDS,
    Device,
    as_device,
    as_dtype,
    is_device_name,
)
from ..errors import ArgumentError
from .types import (
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

__all__ = [
    "BARE_WORDS",
    "BadDefaultError",
    "DtypeName",
    "Literal",
    "convert",
    "format_literal",
    "quote",
]

_INT64: Final = range(-(2**63), 2**63)
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
BARE_WORDS: Final = {
    "Layout": ["strided"],
    "MemoryFormat": "contiguous_format preserve_format channels_last channels_last_3d".split(),
}
_DTYPE_CODES: Final = (
    "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool"
).split()


class DtypeName(str):
    """A dtype of the optional package ``ml_dtypes``, known by name while that is missing."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name, as `numpy.dtype` has it."""
        return str(self)


class Literal(NamedTuple):
    """A default as it is written, before the declared type gives it a meaning.

    `kind` is one of ``none bool int float complex str word list tuple``; `value` is the Python
    value (for a list or a tuple: the literals inside); `text` is how it was written, and `start`
    where.
    """

    kind: str
    value: Any
    text: str
    start: int = 0


class BadDefaultError(Exception):
    """A literal is no value of the declared type; turned into a `SchemaError` by the caller."""

    def __init__(self, literal: Literal, message: str, hint: str = "", *, rule: str = "") -> None:
        super().__init__(message)
        self.literal = literal
        self.message = message
        self.hint = hint
        self.rule = rule or "default-type"


# Reading -----------------------------------------------------------------------------------------


def convert(literal: Literal, type_: Type) -> Any:
    """Return the value `literal` has as a default of `type_`.

    Raises
    ------
    BadDefaultError
        If it is no literal of that type.
    """
    match type_:
        case BasicType(name):
            return _READERS[name](literal, type_)
        case OptionalType(element):
            return None if literal.kind == "none" else convert(literal, element)
        case ListType():
            return _read_list(literal, type_)
        case TupleType():
            return _read_tuple(literal, type_)
        case UnionType():
            return _read_union(literal, type_)
        case ClassType(name):
            return _read_member(literal, name)
    raise _mismatch(literal, type_, _NO_LITERAL_HINTS.get(type(type_), ""))


_NO_LITERAL_HINTS: Final = {
    TensorType: "a Tensor has no literal; write Tensor? and None",
    DictType: "a dictionary has no literal; write Dict(K, V)? and None",
}


def _mismatch(literal: Literal, type_: Type, hint: str = "") -> BadDefaultError:
    if literal.kind == "none" and not hint:
        hint = f"write {type_}? to allow None"
    article = "an" if str(type_)[0] in "aeiouA" else "a"
    return BadDefaultError(literal, f"default `{literal.text}` is not {article} {type_}", hint)


def _read_int(literal: Literal, type_: Type) -> int:
    if literal.kind != "int":
        raise _mismatch(literal, type_, _int_hint(literal))
    return _in_range(literal)


def _int_hint(literal: Literal) -> str:
    if literal.kind == "float" and math.isfinite(literal.value) and literal.value % 1 == 0:
        return f"write {int(literal.value)}"
    return "write 1 or 0" if literal.kind == "bool" else ""


def _in_range(literal: Literal) -> int:
    if literal.value not in _INT64:
        message = f"default `{literal.text}` does not fit in 64 bits"
        raise BadDefaultError(literal, message, rule="int-range")
    return int(literal.value)


def _read_float(literal: Literal, type_: Type) -> float:
    if literal.kind not in ("int", "float"):
        raise _mismatch(literal, type_)
    return float(literal.value)


def _read_complex(literal: Literal, type_: Type) -> complex:
    if literal.kind == "float" and not math.isfinite(literal.value):
        raise _mismatch(literal, type_, "complex defaults are finite")
    if literal.kind not in ("int", "float", "complex"):
        raise _mismatch(literal, type_)
    return complex(literal.value)


def _read_bool(literal: Literal, type_: Type) -> bool:
    if literal.kind != "bool":
        word = str(literal.value).capitalize()
        near = {"0": "False", "1": "True", "True": "True", "False": "False"}.get(word)
        raise _mismatch(literal, type_, f"write {near}" if near else "")
    return bool(literal.value)


def _read_scalar(literal: Literal, type_: Type) -> Any:
    if literal.kind == "int":
        return _in_range(literal)
    if literal.kind not in ("float", "complex", "bool"):
        raise _mismatch(literal, type_)
    return literal.value


def _read_any(literal: Literal, type_: Type) -> Any:
    if literal.kind in ("none", "str"):
        return literal.value
    return _read_scalar(literal, type_)


def _read_str(literal: Literal, type_: Type) -> str:
    if literal.kind != "str":
        raise _mismatch(literal, type_, "quote it" if literal.kind == "word" else "")
    return str(literal.value)


def _read_device(literal: Literal, type_: Type) -> Device:
    if literal.kind == "word":
        raise _mismatch(literal, type_, f'quote it: "{literal.text}"')
    if literal.kind != "str":
        raise _mismatch(literal, type_)
    if not is_device_name(literal.value):
        try:
            as_device(literal.value)
        except ArgumentError as error:
            raise _mismatch(literal, type_, str(error)) from None
    return as_device(literal.value)


def _read_dtype(literal: Literal, type_: Type) -> np.dtype[Any] | DtypeName:
    if literal.kind != "word":
        raise _mismatch(literal, type_, _dtype_hint(literal))
    name = TORCH_DTYPE_WORDS.get(literal.value, literal.value)
    if name not in DTYPE_NAMES:
        last = name.rpartition(".")[2]
        hint = f"write {last}" if last in DTYPE_NAMES else did_you_mean(name, DTYPE_NAMES).strip()
        raise _mismatch(literal, type_, hint)
    try:
        return as_dtype(name)
    except ArgumentError:  # ml_dtypes is not installed; calls that need the dtype say so
        return DtypeName(name)


def _dtype_hint(literal: Literal) -> str:
    if literal.kind == "str":
        return f"write {literal.value} without quotes" if literal.value in DTYPE_NAMES else ""
    if literal.kind == "int" and literal.value in range(len(_DTYPE_CODES)):
        return f"numeric codes are not portable; write {_DTYPE_CODES[literal.value]}"
    return "numeric codes are not portable; write the name" if literal.kind == "int" else ""


def _read_bare_word(literal: Literal, type_: Type) -> str:
    words = BARE_WORDS[str(type_)]
    if literal.kind != "word" or literal.value not in words:
        without = " without quotes" if literal.kind == "str" else ""
        raise _mismatch(literal, type_, f"write {join_names(words, 'or')}{without}")
    return str(literal.value)


def _read_generator(literal: Literal, type_: Type) -> None:
    raise _mismatch(literal, type_, "a generator has no literal; write Generator? and None")


_READERS: Final[dict[str, Callable[[Literal, Type], Any]]] = {
    "int": _read_int,
    "SymInt": _read_int,
    "float": _read_float,
    "complex": _read_complex,
    "bool": _read_bool,
    "SymBool": _read_bool,
    "Scalar": _read_scalar,
    "str": _read_str,
    "Device": _read_device,
    "ScalarType": _read_dtype,
    "Layout": _read_bare_word,
    "MemoryFormat": _read_bare_word,
    "Generator": _read_generator,
    "Any": _read_any,
}


def _read_list(literal: Literal, type_: ListType) -> tuple[Any, ...]:
    element, size = type_.element, type_.size
    if literal.kind != "list":
        if size is None:
            raise _mismatch(literal, type_, _list_hint(literal))
        return (convert(literal, element),) * size
    try:
        values = tuple(convert(item, element) for item in literal.value)
    except BadDefaultError:
        if size is None or not isinstance(element, ListType):
            raise
        return (convert(literal, element),) * size  # one inner list, to repeat
    if not _fits(values, size):
        message = f"{type_} takes {size} values or one to repeat, got {len(values)}"
        raise BadDefaultError(literal, message, rule="default-length")
    return values


def _fits(values: tuple[Any, ...], size: int | None) -> bool:
    """Return whether a list default has a legal length; a declared ``[]`` always has."""
    return size is None or size == 1 or len(values) in (0, size)


def _list_hint(literal: Literal) -> str:
    if literal.kind == "tuple":
        return f"use [{', '.join(item.text for item in literal.value)}]"
    return "" if literal.kind == "none" else f"use [{literal.text}]"


def _read_tuple(literal: Literal, type_: TupleType) -> tuple[Any, ...]:
    if literal.kind != "tuple" or len(literal.value) != len(type_.elements):
        count = len(type_.elements)
        hint = f"a tuple of {count} is written {'(a,)' if count == 1 else '(a, b)'}"
        raise _mismatch(literal, type_, "" if literal.kind == "none" else hint)
    pairs = zip(literal.value, type_.elements, strict=True)
    return tuple(convert(item, element) for item, element in pairs)


def _read_union(literal: Literal, type_: UnionType) -> Any:
    """Return the value under the first member that takes the literal, best one left unchanged."""
    readings = []
    for member in type_.members:
        try:
            readings.append(convert(literal, member))
        except BadDefaultError:
            continue
    for value in readings:
        if _is_unchanged(literal, value):
            return value
    if not readings:
        raise _mismatch(literal, type_)
    return readings[0]


def _is_unchanged(literal: Literal, value: Any) -> bool:
    if literal.kind in ("int", "float", "complex", "bool"):
        return type(value) is type(literal.value)
    if literal.kind in ("list", "tuple"):
        return len(literal.value) == len(value) and all(map(_is_unchanged, literal.value, value))
    return not isinstance(value, tuple)


def _read_member(literal: Literal, name: str) -> Any:
    cls = opaque_class(name)
    if cls is None or not issubclass(cls, Enum):
        hint = f"only an Enum class has literals; write {name}? and None"
        raise _mismatch(literal, ClassType(name), hint)
    if literal.text not in cls.__members__:
        known = join_names(cls.__members__, "or")
        raise _mismatch(literal, ClassType(name), "" if literal.kind == "none" else f"use {known}")
    return cls.__members__[literal.text]


# Writing -----------------------------------------------------------------------------------------


def format_literal(value: Any, type_: Type) -> str:
    """Return the canonical text of a default of `type_`."""
    match type_:
        case OptionalType(element) if value is not None:
            return format_literal(value, element)
        case ListType(element):
            return f"[{', '.join(format_literal(item, element) for item in value)}]"
        case TupleType(elements):
            items = [format_literal(*pair) for pair in zip(value, elements, strict=True)]
            return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
        case UnionType(members):
            member = next((each for each in members if _holds(each, value)), BasicType("Any"))
            return format_literal(value, member)
        case BasicType("Layout" | "MemoryFormat"):
            return str(value)
    return _format_atom(value)


def _format_atom(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, complex):
        return repr(value).strip("()")
    if isinstance(value, (np.dtype, DtypeName)):
        return value.name
    if isinstance(value, (str, Device)):
        return quote(str(value))
    return repr(value)


def quote(text: str) -> str:
    """Return `text` as a string literal in double quotes."""
    return f'"{"".join(map(_escape, text))}"'


def _escape(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _holds(type_: Type, value: Any) -> bool:
    """Return whether `value` is stored as a default of `type_`: the union member to print as."""
    match type_:
        case BasicType(name):
            return _holds_word(name, value)
        case OptionalType(element):
            return value is None or _holds(element, value)
        case ListType(element, size):
            return (
                isinstance(value, tuple)
                and _fits(value, size)
                and all(_holds(element, item) for item in value)
            )
        case TupleType(elements):
            return (
                isinstance(value, tuple)
                and len(value) == len(elements)
                and all(map(_holds, elements, value))
            )
        case ClassType(name):
            cls = opaque_class(name)
            return cls is not None and isinstance(value, cls)
    return False


def _holds_word(name: str, value: Any) -> bool:
    kind = type(value)
    match name:
        case "int" | "SymInt":
            return kind is int
        case "bool" | "SymBool":
            return kind is bool
        case "float" | "complex" | "str":
            return kind.__name__ == name
        case "Scalar":
            return kind in (int, float, bool, complex)
        case "ScalarType":
            return isinstance(value, (np.dtype, DtypeName))
        case "Device":
            return kind is Device
        case "Layout" | "MemoryFormat":
            return value in BARE_WORDS[name]
        case "Any":
            return value is None or kind in (int, float, bool, complex, str)
    return False
