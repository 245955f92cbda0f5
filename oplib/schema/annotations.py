"""Annotations to types: what ``list[int] | None`` means in a schema.

The table of classes is open: a floor that knows tensors enters its class through
`register_annotation`. `numpy.ndarray` is the only array known here.

Imports `type_syntax.py` and below. Read next: `infer.py`, which reads whole functions.
"""

from __future__ import annotations

import builtins
import collections.abc
import dataclasses
import numbers
import os
import sys
import types
import typing
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from types import NoneType
from typing import Annotated, Any, Final, ForwardRef, Literal, TypeAlias, get_args, get_origin

import numpy as np

from .._text import function_site
from ..dtypes import Device
from ..errors import RegistrationError, SchemaError
from .type_syntax import parse_type
from .types import (
    BasicType,
    ClassType,
    DictType,
    ListType,
    OptionalType,
    SchemaType,
    TensorType,
    TupleType,
    Type,
    opaque_name,
    register_opaque_type,
    union_of,
)

__all__ = ["Convention", "Reader", "RefusedError", "Scope", "conventions_of", "register_annotation"]

Convention: TypeAlias = Literal["array", "tensor"]

_classes: dict[type, tuple[Type, Convention | None]] = {
    bool: (BasicType("bool"), None),
    int: (BasicType("SymInt"), None),
    float: (BasicType("float"), None),
    complex: (BasicType("complex"), None),
    str: (BasicType("str"), None),
    np.dtype: (BasicType("ScalarType"), None),
    np.ndarray: (TensorType(), "array"),
    Device: (BasicType("Device"), None),
    typing.SupportsIndex: (BasicType("SymInt"), None),
    numbers.Integral: (BasicType("SymInt"), None),
    numbers.Number: (BasicType("Scalar"), None),
    numbers.Complex: (BasicType("Scalar"), None),
    numbers.Real: (BasicType("Scalar"), None),
}
_GENERATOR: Final = (BasicType("Generator"), None)
_SCALAR: Final = BasicType("Scalar")
_NUMBERS: Final = (int, float, bool, complex)
_KEYS: Final = {str: "str", int: "int", float: "float", bool: "bool"}
_SEQUENCES: Final = (list, collections.abc.Sequence)
_MAPPINGS: Final = (dict, collections.abc.Mapping)

_TYPE_VARIABLES: Final = "there are no type variables: define one operator or overload per type"
_UNORDERED: Final = "Set Iterable Iterator Generator Collection MutableSequence".split()
_REPLACEMENTS: Final[dict[Any, str]] = {
    list: "say of what: list[Tensor], list[int]",
    collections.abc.Sequence: "say of what: Sequence[Tensor], Sequence[int]",
    tuple: "say of what: tuple[int, float] or tuple[int, ...]",
    dict: "say of what: dict[str, Tensor]",
    collections.abc.Mapping: "say of what: Mapping[str, Tensor]",
    **dict.fromkeys(
        (set, frozenset, *(getattr(collections.abc, name) for name in _UNORDERED)),
        "use Sequence[T] or list[T]",
    ),
    collections.abc.MutableMapping: "use dict[K, V]",
    bytes: "use str, or a Tensor of uint8",
    collections.abc.Callable: "an operator takes data only: pass a str and choose in the body",
    type: "use numpy.dtype, or type[numpy.generic], for a dtype",
    object: "use Any, or register the class with oplib.register_opaque_type",
    slice: "pass start, stop and step, each int | None",
    typing.Self: "write the name of the class",
}
_FAMILIES: Final[tuple[tuple[type, str], ...]] = (
    (os.PathLike, "use str"),
    (np.bool_, "use bool"),
    (np.integer, "use int"),
    (np.floating, "use float"),
    (np.complexfloating, "use complex"),
    (np.generic, "use int or float"),
    (np.ndarray, "use numpy.ndarray"),
)


def register_annotation(cls: type, type_: Type, convention: Convention | None = None) -> None:
    """Make `cls` an annotation that stands for `type_`.

    Parameters
    ----------
    cls : type
        The class as it appears in signatures.
    type_ : Type
        Its schema type, for example ``TensorType()``.
    convention : {"array", "tensor"}, optional
        What a function annotated with it works on; None for classes that say nothing about that.
    """
    _classes[cls] = type_, convention


class RefusedError(Exception):
    """An annotation has no schema type; the caller adds function and parameter."""

    def __init__(self, message: str, hint: str, rule: str = "annotation") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.rule = rule


# Names -------------------------------------------------------------------------------------------


def _meaning(cls: type) -> tuple[Type, Convention | None] | None:
    """Return what a class stands for; NumPy loads its random package only when that is named."""
    if cls.__module__.startswith("numpy.random") and cls is np.random.Generator:
        return _GENERATOR
    return _classes.get(cls)


class Scope:
    """Where the names of postponed annotations are looked up.

    In order: the function's globals, the variables its body closes over, the locals of the frame
    that executes the decorator, and builtins.
    """

    __slots__ = ("names", "site")

    def __init__(self, function: Any, frame_locals: Mapping[str, Any]) -> None:
        self.site = function_site(function)
        self.names: Mapping[str, Any] = ChainMap(
            getattr(function, "__globals__", {}),
            _closure(function),
            dict(frame_locals),
            {each.__name__: each for each in getattr(function, "__type_params__", ())},
            vars(builtins),
        )

    @classmethod
    def of_class(cls, owner: type) -> Scope:
        """Return the scope of the annotations in the body of a class."""
        scope = cls(None, vars(sys.modules[owner.__module__]))
        scope.site = f"the class {owner.__qualname__}"
        return scope

    def evaluate(self, text: str) -> Any:
        """Return the object a postponed annotation stands for."""
        try:
            return eval(text, {"__builtins__": {}}, self.names)
        except NameError as error:
            message = f"`{error.name}` in {{where}} is not defined where {self.site} was defined"
            hint = "import or define it at module level, outside `if TYPE_CHECKING`"
            raise RefusedError(message, hint, "annotation-name") from None
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            message = f"`{text}` in {{where}} cannot be evaluated ({reason})"
            raise RefusedError(message, "correct the annotation", "annotation-name") from None


def _closure(function: Any) -> dict[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    found = {}
    for name, cell in zip(function.__code__.co_freevars if cells else (), cells, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _seen_through(annotation: Any, scope: Scope) -> Any:
    """Return what a string, a `NewType`, a type alias or a plain `Annotated` stands for."""
    while True:
        if isinstance(annotation, str):
            annotation = scope.evaluate(annotation)
        elif isinstance(annotation, ForwardRef):
            annotation = scope.evaluate(annotation.__forward_arg__)
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif type(get_origin(annotation)).__name__ == "TypeAliasType":
            annotation = get_origin(annotation).__value__[get_args(annotation)]
        elif get_origin(annotation) is Annotated and _schema_type(annotation) is None:
            annotation = get_args(annotation)[0]
        else:
            return annotation


def _schema_type(annotation: Any) -> SchemaType | None:
    marks = (mark for mark in annotation.__metadata__ if isinstance(mark, SchemaType))
    return next(marks, None)


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (typing.Union, types.UnionType)


def show(annotation: Any) -> str:
    """Return an annotation as it would be written."""
    if annotation is Ellipsis:
        return "..."
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation.__qualname__
    return repr(annotation).replace("typing.", "").replace("collections.abc.", "")


# Types -------------------------------------------------------------------------------------------


class Reader:
    """Reads the annotations of one function.

    `conventions` collects what the function works on, and `choices` the values of the `Literal`
    annotations met since it was last emptied.
    """

    __slots__ = ("choices", "conventions", "scope")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.conventions: set[Convention] = set()
        self.choices: list[Any] = []

    def see_through(self, annotation: Any) -> Any:
        """Return what a string, an alias or a wrapper stands for."""
        return _seen_through(annotation, self.scope)

    def type_of(self, annotation: Any) -> Type:
        """Return the type `annotation` stands for.

        Raises
        ------
        RefusedError
            If there is none.
        """
        annotation = self.see_through(annotation)
        if annotation is Any:
            return BasicType("Any")
        if annotation is None or annotation is NoneType:
            raise RefusedError("`None` alone carries nothing", "write T | None, or leave it out")
        if _is_union(annotation):
            return self.dtype_like(annotation) or self.union([annotation])
        origin = get_origin(annotation)
        if origin is Literal:
            return self.union([annotation])
        if origin is Annotated:
            return self.given(annotation)
        if origin is None:
            return self.plain(annotation)
        return self.generic(annotation, origin, get_args(annotation))

    def given(self, annotation: Any) -> Type:
        """Return the type a `SchemaType` mark spells; the rest still says array or Tensor."""
        mark = _schema_type(annotation)
        assert mark is not None
        self.conventions |= conventions_of(get_args(annotation)[0], self.scope)
        try:
            return parse_type(mark.text)
        except SchemaError as error:
            raise RefusedError(f"{mark!r}: {error.message}", error.hint, error.rule) from None

    def plain(self, annotation: Any) -> Type:
        """Return the type of a class without parameters."""
        name = _registered_name(annotation)
        if name is not None:
            return ClassType(name)
        known = _meaning(annotation) if isinstance(annotation, type) else None
        if known is not None:
            type_, convention = known
            if convention is not None:
                self.conventions.add(convention)
            return type_
        if isinstance(annotation, type) and issubclass(annotation, Enum):
            return self.enum(annotation)
        raise _refusal(annotation)

    def enum(self, cls: type[Enum]) -> Type:
        """Register an enum class on the spot."""
        try:
            return ClassType(register_opaque_type(cls).name)
        except RegistrationError as error:
            raise RefusedError(f"`{cls.__qualname__}`: {error}", "move or rename it") from None

    def generic(self, annotation: Any, origin: Any, args: tuple[Any, ...]) -> Type:
        """Return the type of a subscripted class."""
        if not hasattr(annotation, "__args__"):  # typing.List, typing.Tuple, … as they are
            return self.plain(origin)
        if origin in _SEQUENCES:
            return ListType(self.type_of(args[0]))
        if origin is tuple:
            return self.tuple_(args)
        if origin in _MAPPINGS:
            return DictType(self.key(args[0]), self.type_of(args[1]))
        if origin is type:
            return self.dtype_class(annotation, args[0])
        if origin in _classes or _registered_name(origin) is not None:
            return self.plain(origin)
        raise _refusal(annotation, origin)

    def tuple_(self, args: tuple[Any, ...]) -> Type:
        """Return the type of ``tuple[A, B]`` or ``tuple[T, ...]``."""
        if len(args) == 2 and args[1] is Ellipsis:
            return ListType(self.type_of(args[0]))
        if not args:
            raise RefusedError("`tuple[()]` carries nothing", "leave it out", "empty-tuple")
        return TupleType(tuple(map(self.type_of, args)))

    def key(self, annotation: Any) -> Type:
        """Return the key type of a dictionary."""
        annotation = self.see_through(annotation)
        if get_origin(annotation) is Literal:
            annotation = type(get_args(annotation)[0])
        if annotation not in _KEYS:
            message = f"`{show(annotation)}` is no key type: dictionary keys are plain values"
            raise RefusedError(message, "use str, int, float or bool", "dict-key")
        return BasicType(_KEYS[annotation])

    def dtype_class(self, annotation: Any, cls: Any) -> Type:
        """Return the type of ``type[numpy.generic]``."""
        cls = self.see_through(cls)
        if isinstance(cls, type) and issubclass(cls, np.generic):
            return BasicType("ScalarType")
        raise RefusedError(f"`{show(annotation)}` has no schema type", _REPLACEMENTS[type])

    def dtype_like(self, annotation: Any) -> Type | None:
        """Return the type of ``DTypeLike``, with or without None; refuse ``ArrayLike``."""
        numpy_typing = sys.modules.get("numpy._typing")
        if numpy_typing is None:
            return None
        members = set(get_args(annotation)) - {NoneType}
        if members == set(get_args(numpy_typing.ArrayLike)) - {NoneType}:
            raise RefusedError("`ArrayLike` has no schema type", "use NDArray or Tensor")
        declared = set(get_args(numpy_typing.DTypeLike))
        if members != declared - {NoneType}:
            return None
        is_optional = NoneType in get_args(annotation) and NoneType not in declared
        dtype = BasicType("ScalarType")
        return OptionalType(dtype) if is_optional else dtype

    def union(self, annotations: Iterable[Any]) -> Type:
        """Return the type of a union of annotations, `Literal` values among them."""
        members: list[Any] = []
        chosen: list[Any] = []
        for member in self.flattened(annotations):
            if get_origin(member) is Literal:
                chosen += get_args(member)
            else:
                members.append(member)
        self.choices += [
            value for value in chosen if value is not None and type(value) not in members
        ]
        members += [type(value) for value in chosen]
        kept = [member for member in members if member is not NoneType and member is not None]
        if not kept:
            raise RefusedError("`None` alone carries nothing", "leave it out")
        type_, is_optional = self.joined(kept)
        return OptionalType(type_) if is_optional or len(kept) < len(members) else type_

    def joined(self, members: list[Any]) -> tuple[Type, bool]:
        """Return the union of `members`, and whether one of them was optional."""
        numeric = {member for member in _NUMBERS if any(each is member for each in members)}
        found: list[Type] = [_SCALAR] if len(numeric) > 1 else []
        is_optional = False
        for member in members:
            if len(numeric) > 1 and any(member is number for number in numeric):
                continue
            type_ = self.type_of(member)
            if isinstance(type_, OptionalType):
                is_optional, type_ = True, type_.element
            found.append(type_)
        return union_of(found), is_optional

    def flattened(self, annotations: Iterable[Any]) -> Iterator[Any]:
        """Iterate over the members of nested unions."""
        for annotation in annotations:
            seen = self.see_through(annotation)
            if _is_union(seen):
                yield from self.flattened(get_args(seen))
            else:
                yield seen


def _registered_name(cls: Any) -> str | None:
    """Return the name of a registered class; a bare container says too little either way."""
    if not isinstance(cls, type) or cls in (tuple, list, dict):
        return None
    return opaque_name(cls)


def _refusal(annotation: Any, origin: Any = None) -> RefusedError:
    """Return the refusal of an annotation without a schema type, with its replacement."""
    cls = annotation if origin is None else origin
    message = f"`{show(annotation)}` has no schema type"
    if isinstance(cls, collections.abc.Hashable) and cls in _REPLACEMENTS:
        return RefusedError(message, _REPLACEMENTS[cls])
    if isinstance(cls, (typing.TypeVar, typing.ParamSpec)):
        return RefusedError(message, _TYPE_VARIABLES)
    if not isinstance(cls, type):
        return RefusedError(message, "use a type of the table in the documentation of infer_schema")
    for family, hint in _FAMILIES:
        if issubclass(cls, family):
            return RefusedError(message, hint)
    if dataclasses.is_dataclass(cls) or hasattr(cls, "_fields"):
        return RefusedError(message, "pass the fields as arguments of their own")
    if "<locals>" in cls.__qualname__:
        hint = "move it to module level, or register it: register_opaque_type(cls, name=...)"
        return RefusedError(f"{message}: it is defined inside a function", hint)
    register = f"register it: oplib.register_opaque_type({cls.__qualname__})"
    tensor = "use oplib.Tensor or numpy.ndarray, or " if cls.__name__ == "Tensor" else ""
    return RefusedError(message, tensor + register)


# Conventions -------------------------------------------------------------------------------------


def conventions_of(annotation: Any, scope: Scope) -> set[Convention]:
    """Return what the classes inside `annotation` say a function works on.

    Names that do not resolve say nothing.
    """
    try:
        seen = _seen_through(annotation, scope)
    except RefusedError:
        return set()
    origin = get_origin(seen)
    cls = seen if origin is None else origin
    known = _meaning(cls) if isinstance(cls, type) else None
    found: set[Convention] = set() if known is None or known[1] is None else {known[1]}
    if origin is None or origin is Literal or found:
        return found
    args = get_args(seen)[:1] if origin is Annotated else get_args(seen)
    return found.union(*(conventions_of(arg, scope) for arg in args))
