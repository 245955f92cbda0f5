"""The types of the schema language: frozen nouns that print the way they are written.

``Tensor(a!)?[]`` is ``ListType(OptionalType(TensorType(AliasSet({"a"}, True))))``, and its ``str``
is the canonical text. The table of opaque classes lives here too: a class name is a type only while
it is registered.

Imports the floor below. Read next: `model.py`, which puts types into arguments and returns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

from .._record import record
from ..errors import RegistrationError

__all__ = [
    "BASIC_WORDS",
    "RESERVED_WORDS",
    "WILDCARD",
    "AliasSet",
    "BasicType",
    "ClassType",
    "DictType",
    "ListType",
    "OpaqueRegistration",
    "OptionalType",
    "SchemaType",
    "TensorType",
    "TupleType",
    "Type",
    "UnionType",
    "is_identifier",
    "map_tensors",
    "opaque_class",
    "opaque_name",
    "opaque_names",
    "register_opaque_type",
    "tensors_of",
    "union_of",
    "unions_of",
]

BASIC_WORDS: Final = (
    "int",
    "SymInt",
    "float",
    "bool",
    "SymBool",
    "str",
    "Scalar",
    "complex",
    "Device",
    "ScalarType",
    "Layout",
    "MemoryFormat",
    "Generator",
    "Any",
)
"""The one-word types, in the order the documentation lists them."""

RESERVED_WORDS: Final = frozenset(
    "in is not if else elif for while return def class import raise assert with as global pass "
    "break continue del and or None True False".split()
)
"""Words that never name an operator, an overload, an argument, a return or an alias set."""

WILDCARD: Final = "*"

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_identifier(text: str) -> bool:
    """Return whether `text` can name something in a schema."""
    return _IDENTIFIER.fullmatch(text) is not None and text not in RESERVED_WORDS


class _Noun:
    """What all nouns share: `repr` shows the canonical text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


@record(repr=False)
class AliasSet(_Noun):
    """An alias annotation: ``(a)``, ``(a!)``, ``!``, ``(a|b)``, ``(a -> b)``, ``(*)``.

    Attributes
    ----------
    before : frozenset of str
        The sets the tensor belongs to; ``{"*"}`` for the wildcard, empty for a bare ``!``.
    written : bool
        Whether the call writes the tensor.
    after : frozenset of str
        The sets it belongs to after the call; empty when these are the sets of `before`.
    """

    before: frozenset[str]
    written: bool = False
    after: frozenset[str] = frozenset()

    def __str__(self) -> str:
        if not self.before:
            return "!"
        arrow = f" -> {_set_text(self.after)}" if self.after else ""
        return f"({_set_text(self.before)}{'!' if self.written else ''}{arrow})"

    @property
    def labels(self) -> frozenset[str]:
        """Every set the tensor belongs to before or after the call."""
        return self.before | self.after if self.after else self.before

    @property
    def is_wildcard(self) -> bool:
        """Whether the tensor may share memory with anything."""
        return WILDCARD in self.labels


def _set_text(members: frozenset[str]) -> str:
    return "|".join(sorted(members))


@record(repr=False)
class TensorType(_Noun):
    """``Tensor``, with or without an alias annotation."""

    alias: AliasSet | None = None

    def __str__(self) -> str:
        return "Tensor" if self.alias is None else f"Tensor{self.alias}"

    @property
    def is_written(self) -> bool:
        """Whether the call writes this tensor."""
        return self.alias is not None and self.alias.written


@record(repr=False)
class BasicType(_Noun):
    """A type of one word, one of `BASIC_WORDS`."""

    name: str

    def __str__(self) -> str:
        return self.name


@record(repr=False)
class ClassType(_Noun):
    """A registered opaque class or enum, by its registered name."""

    name: str

    def __str__(self) -> str:
        return self.name


@record(repr=False)
class ListType(_Noun):
    """``T[]``, or ``T[N]`` with a size."""

    element: Type
    size: int | None = None

    def __str__(self) -> str:
        return f"{self.element}[{'' if self.size is None else self.size}]"


@record(repr=False)
class OptionalType(_Noun):
    """``T?``."""

    element: Type

    def __str__(self) -> str:
        return f"{self.element}?"


@record(repr=False)
class TupleType(_Noun):
    """``(A, B)``: a tuple of fixed length."""

    elements: tuple[Type, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.elements))})"


@record(repr=False)
class DictType(_Noun):
    """``Dict(K, V)``."""

    key: Type
    value: Type

    def __str__(self) -> str:
        return f"Dict({self.key}, {self.value})"


@record(repr=False)
class UnionType(_Noun):
    """``Union(A, B)``; build it with `union_of`, which puts the members in canonical order."""

    members: tuple[Type, ...]

    def __str__(self) -> str:
        return f"Union({', '.join(map(str, self.members))})"


Type: TypeAlias = (
    TensorType | BasicType | ClassType | ListType | OptionalType | TupleType | DictType | UnionType
)


def union_of(members: Iterable[Type]) -> Type:
    """Return the union of `members`, flattened, without repetition and sorted by their text.

    A single remaining member stands alone.
    """
    flat: dict[str, Type] = {}
    for member in members:
        parts = member.members if isinstance(member, UnionType) else (member,)
        flat.update((str(part), part) for part in parts)
    ordered = tuple(flat[text] for text in sorted(flat))
    return ordered[0] if len(ordered) == 1 else UnionType(ordered)


Path: TypeAlias = tuple[str | int, ...]


def tensors_of(
    type_: Type, path: Path = (), optional: bool = False
) -> Iterator[tuple[Path, bool, TensorType]]:
    """Iterate over the Tensor positions inside `type_` as (path, may be absent, Tensor type).

    A step of a path is ``"[]"`` for the elements of a list, ``"{}"`` for the values of a dict, and
    the index inside a tuple. A position may be absent behind a ``?`` and inside a union.
    """
    match type_:
        case TensorType():
            yield path, optional, type_
        case ListType(element):
            yield from tensors_of(element, (*path, "[]"), optional)
        case OptionalType(element):
            yield from tensors_of(element, path, True)
        case DictType(_, value):
            yield from tensors_of(value, (*path, "{}"), optional)
        case TupleType(elements):
            for index, element in enumerate(elements):
                yield from tensors_of(element, (*path, index), optional)
        case UnionType(members):
            for member in members:
                yield from tensors_of(member, path, True)


def unions_of(type_: Type) -> Iterator[UnionType]:
    """Iterate over the unions inside `type_`; none of them contains another."""
    match type_:
        case UnionType():
            yield type_
        case ListType(element) | OptionalType(element):
            yield from unions_of(element)
        case DictType(_, value):
            yield from unions_of(value)
        case TupleType(elements):
            for element in elements:
                yield from unions_of(element)


def map_tensors(type_: Type, change: Callable[[TensorType], TensorType]) -> Type:
    """Return `type_` with `change` applied to every Tensor inside it.

    >>> from oplib.schema import ListType, TensorType
    >>> written = TensorType(AliasSet(frozenset({"a"}), True))
    >>> str(map_tensors(ListType(written), lambda tensor: TensorType()))
    'Tensor[]'
    """
    match type_:
        case TensorType():
            return change(type_)
        case ListType(element, size):
            return ListType(map_tensors(element, change), size)
        case OptionalType(element):
            return OptionalType(map_tensors(element, change))
        case DictType(key, value):
            return DictType(key, map_tensors(value, change))
        case TupleType(elements):
            return TupleType(tuple(map_tensors(element, change) for element in elements))
        case UnionType(members):
            return union_of(map_tensors(member, change) for member in members)
    return type_


class SchemaType:
    """Says the schema type of an annotated parameter outright.

    >>> from typing import Annotated
    >>> from oplib.schema import SchemaType, infer_schema
    >>> def flip(dims: Annotated[list[int], SchemaType("int[2]")]) -> None: ...
    >>> infer_schema(flip, mutates_args=())
    '(int[2] dims) -> ()'
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"SchemaType({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SchemaType) and other.text == self.text

    def __hash__(self) -> int:
        return hash((SchemaType, self.text))


# Opaque classes ---------------------------------------------------------------------------------

_BUILT_IN: Final = frozenset(BASIC_WORDS) | {"Tensor", "Dict", "Union", "NoneType"}
_classes: dict[str, type] = {}


class OpaqueRegistration:
    """The handle `register_opaque_type` returns; `remove` takes the class out of the table."""

    __slots__ = ("cls", "name")

    def __init__(self, name: str, cls: type) -> None:
        self.name = name
        self.cls = cls

    def __repr__(self) -> str:
        return f"<OpaqueRegistration {self.name}: {self.cls.__qualname__}>"

    def remove(self) -> None:
        """Make the name unknown again, unless it has been given to another class since."""
        if _classes.get(self.name) is self.cls:
            del _classes[self.name]


def register_opaque_type(cls: type, name: str | None = None) -> OpaqueRegistration:
    """Make `cls` a type of the schema language, whose values pass through operators as they are.

    Parameters
    ----------
    cls : type
        Any class. Members of an `Enum` can be written as defaults.
    name : str, optional
        How schemas spell it; ``module.QualName`` unless given. Dots are part of the name.

    Returns
    -------
    OpaqueRegistration
        Its `remove` undoes the registration.

    Raises
    ------
    RegistrationError
        If the name is a built-in type, is no dotted name, or belongs to another class. A class
        that was defined again (a reload, a notebook cell) takes the place of its older self.
    """
    if not isinstance(cls, type):
        raise RegistrationError(f"register_opaque_type takes a class, got {cls!r}")
    given = name
    name = f"{cls.__module__}.{cls.__qualname__}" if given is None else given
    if name in _BUILT_IN:
        raise RegistrationError(
            f"cannot register {_place(cls)} as `{name}`: that is a built-in type of the schema "
            "language; give another name="
        )
    if "<locals>" in name and given is None:
        raise RegistrationError(
            f"`{name}` is defined inside a function and has no name a schema could write; "
            "move it to module level or give name="
        )
    if not all(map(is_identifier, name.split("."))):
        raise RegistrationError(
            f"cannot register {_place(cls)} as `{name}`: a class name is made of ASCII "
            "identifiers joined by dots"
        )
    known = _classes.get(name)
    if known is not None and known is not cls and _place(known) != _place(cls):
        raise RegistrationError(
            f"cannot register {_place(cls)} as `{name}`: the name belongs to {_place(known)}; "
            "give another name="
        )
    _classes.pop(name, None)  # the name given last is the one inference uses
    _classes[name] = cls
    return OpaqueRegistration(name, cls)


def opaque_class(name: str) -> type | None:
    """Return the class registered under `name`, or None."""
    return _classes.get(name)


def opaque_name(cls: type) -> str | None:
    """Return the name `cls` was last registered under, or None."""
    return next((name for name in reversed(_classes) if _classes[name] is cls), None)


def opaque_names() -> tuple[str, ...]:
    """Return all registered names."""
    return tuple(_classes)


def _place(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
