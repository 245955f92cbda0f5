"""Signatures to schemas: what an annotated function says about the operator it could be.

Imports `annotations.py` and below. Read next: `signature.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter
from types import NoneType
from typing import Any, Final, NamedTuple, NoReturn, get_args, get_origin

import numpy as np

from .._text import caller_frame, did_you_mean, function_site, join_names, short_repr
from ..errors import RegistrationError, SchemaError
from .annotations import Convention, Reader, RefusedError, Scope, conventions_of
from .callables import name_of, ufunc_schema, underlying, unsuitable_kind
from .defaults import adopt
from .literals import BadDefaultError
from .model import NO_DEFAULT, Argument, FunctionSchema, Return
from .syntax import parse
from .types import (
    AliasSet,
    BasicType,
    ListType,
    OptionalType,
    TensorType,
    TupleType,
    Type,
    is_identifier,
    map_tensors,
    tensors_of,
    unions_of,
)

__all__ = ["Inference", "infer", "infer_schema", "kernel_convention"]

_VARIADIC: Final = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
_UNKNOWN: Final = "unknown"
_PLAIN: Final = TensorType()


class Inference(NamedTuple):
    """What `infer` finds.

    Attributes
    ----------
    text : str
        The canonical schema, nameless unless a name was given.
    convention : {"array", "tensor"} or None
        What the function works on, by its annotations.
    choices : mapping of str to tuple
        The values `Literal` annotations allow, by argument. They bind values of their own types
        only: ``Literal["auto"] | int`` takes any int.
    """

    text: str
    convention: Convention | None
    choices: Mapping[str, tuple[Any, ...]]


def infer_schema(
    fn: Callable[..., Any],
    *,
    mutates_args: str | Iterable[str],
    op_name: str | None = None,
    tags: Iterable[str] = (),
) -> str:
    """Return the schema that the annotations of `fn` spell.

    Parameters
    ----------
    fn : callable
        A function, method, callable object, partial or wrapper whose parameters and return are
        annotated.
    mutates_args : iterable of str, or "unknown"
        The parameters whose tensors are written; ``"unknown"`` means all that have tensors.
    op_name : str, optional
        ``ns::name``; without it the text starts with ``(``.
    tags : iterable of str
        With ``"inplace"`` or ``"out"`` the written arguments are what is returned.

    Raises
    ------
    SchemaError
        Naming the function, the parameter and what to type instead.

    Examples
    --------
    >>> import numpy
    >>> def scale_(x: numpy.ndarray, by: float = 2) -> None: ...
    >>> infer_schema(scale_, mutates_args=["x"])
    '(Tensor(a0!) x, float by=2.0) -> ()'
    """
    return infer(fn, mutates_args=mutates_args, op_name=op_name, tags=tags).text


def infer(
    fn: Callable[..., Any],
    *,
    mutates_args: str | Iterable[str],
    op_name: str | None = None,
    tags: Iterable[str] = (),
) -> Inference:
    """Return the schema that the annotations of `fn` spell, and what else they say.

    The parameters are those of `infer_schema`.
    """
    mutated = _mutated_names(mutates_args)
    return _Inferrer(fn).run(mutated, op_name or "", {tags} if isinstance(tags, str) else set(tags))


def kernel_convention(fn: Callable[..., Any]) -> Convention | None:
    """Return whether the annotations of `fn` speak of arrays or of Tensors, or None.

    Annotations that do not resolve say nothing.

    Raises
    ------
    RegistrationError
        If they speak of both.
    """
    function = underlying(fn)
    if function is None:
        return None
    try:
        annotations = function.__annotations__
    except NameError:  # evaluated on access, since Python 3.14
        return None
    if not annotations:
        return None
    scope = Scope(function, caller_frame().f_locals)
    found = set[Convention]().union(
        *(conventions_of(annotation, scope) for annotation in annotations.values())
    )
    if len(found) > 1:
        raise RegistrationError(
            f"{function_site(fn)}: `{name_of(fn)}` is annotated with arrays and with Tensors; "
            "annotate all of them with numpy.ndarray or all with oplib.Tensor"
        )
    return next(iter(found), None)


# What is written ---------------------------------------------------------------------------------


def _mutated_names(mutates_args: Any) -> list[str] | None:
    """Return the names given as ``mutates_args``, or None for ``"unknown"``."""
    if mutates_args == _UNKNOWN and isinstance(mutates_args, str):
        return None
    if isinstance(mutates_args, str):
        raise SchemaError(
            f"mutates_args={mutates_args!r} is a string, not a list of names",
            rule="mutates-args",
            hint=f"did you mean `mutates_args=({mutates_args!r},)`?"
            if mutates_args
            else "write `mutates_args=()`",
        )
    if not isinstance(mutates_args, Iterable):
        raise TypeError(
            f"mutates_args takes an iterable of parameter names or {_UNKNOWN!r}, "
            f"got {short_repr(mutates_args)}; write `mutates_args=()` if nothing is written"
        )
    names = list(dict.fromkeys(mutates_args))
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"mutates_args takes parameter names, got {short_repr(name)}")
    return names


class _Inferrer:
    """One run over one function."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.site = function_site(fn) if callable(fn) else ""
        self.signature = self.read_signature()
        self.reader = Reader(Scope(underlying(fn), caller_frame().f_locals))
        self.choices: dict[str, tuple[Any, ...]] = {}

    def run(self, mutated: list[str] | None, op_name: str, tags: set[str]) -> Inference:
        arguments = [self.argument(each) for each in self.signature.parameters.values()]
        returns = self.returns()
        if len(self.reader.conventions) > 1:
            hint = "annotate all of them with numpy.ndarray or all with oplib.Tensor"
            self.refuse("arrays and Tensors are mixed in one signature", hint, "annotation")
        arguments = self.labelled(arguments, mutated)
        returns = self.returned(arguments, returns, tags)
        schema = FunctionSchema("", "", "", tuple(arguments), tuple(returns))
        try:
            text = str(parse(f"{op_name}{schema}", nameless=not op_name))
        except SchemaError as error:
            self.refuse(error.message, error.hint, error.rule)
        return Inference(text, next(iter(self.reader.conventions), None), self.choices)

    def refuse(self, message: str, hint: str, rule: str) -> NoReturn:
        where = f"{self.site}: `{name_of(self.fn)}`"
        raise SchemaError(f"{where}: {message}", rule=rule, hint=hint) from None

    # Callables ---------------------------------------------------------------------------------

    def read_signature(self) -> inspect.Signature:
        fn = self.fn
        if not callable(fn) or isinstance(fn, type):
            kind = "a class" if isinstance(fn, type) else short_repr(fn)
            message = f"a schema is inferred from a function, not {kind}"
            self.refuse(message, "pass a function", "callable")
        if isinstance(fn, np.ufunc):
            hint = f'pass schema="{ufunc_schema(fn)}"'
            self.refuse("a ufunc has no annotations", hint, "annotation")
        function = underlying(fn)
        if function is None:
            hint = 'pass schema="(Tensor x, ...) -> Tensor" with its arguments'
            self.refuse("a built-in function has no annotations", hint, "annotation")
        kind = unsuitable_kind(function)
        if kind:
            hint = "an operator returns its results: use a plain function"
            self.refuse(f"it is {kind}", hint, "callable")
        try:
            return inspect.signature(fn)
        except NameError as error:  # annotations evaluated on access, since Python 3.14
            hint = "import or define it at module level, outside `if TYPE_CHECKING`"
            message = f"`{error.name}` in an annotation is not defined where the function was"
            self.refuse(message, hint, "annotation-name")

    # Parameters --------------------------------------------------------------------------------

    def argument(self, parameter: Parameter) -> Argument:
        name = parameter.name
        if parameter.kind in _VARIADIC:
            message = f"`{_VARIADIC[parameter.kind]}{name}`: an operator's arguments are fixed"
            self.refuse(message, "use one list parameter, for example list[Tensor]", "varargs")
        if not is_identifier(name):
            self.refuse(f"parameter `{name}` is not an ASCII identifier", "rename it", "bad-name")
        if parameter.annotation is Parameter.empty:
            hint = f"annotate `{name}`, for example `{name}: Tensor`"
            self.refuse(f"parameter `{name}` has no annotation", hint, "annotation")
        self.reader.choices = []
        type_ = self.type_of(parameter.annotation, f"the annotation of `{name}`")
        if parameter.default is None and not _takes_none(type_):
            type_ = OptionalType(type_)
        if self.reader.choices:
            self.choices[name] = _without_repetition(self.reader.choices)
        default = NO_DEFAULT
        if parameter.default is not Parameter.empty:
            default = self.default(name, parameter.default, type_)
        return Argument(name, type_, default, parameter.kind is Parameter.KEYWORD_ONLY)

    def type_of(self, annotation: Any, where: str) -> Type:
        try:
            return self.reader.type_of(annotation)
        except RefusedError as error:
            self.refuse_annotation(error, where)

    def refuse_annotation(self, error: RefusedError, where: str) -> NoReturn:
        if "{where}" in error.message:
            message = error.message.replace("{where}", where)
        else:
            message = f"{where}: {error.message}"
        self.refuse(message, error.hint, error.rule)

    def default(self, name: str, value: Any, type_: Type) -> Any:
        try:
            adopted = adopt(value, type_)
        except BadDefaultError as error:
            self.refuse(f"parameter `{name}`: {error.message}", error.hint, error.rule)
        allowed = self.choices.get(name, ())
        rivals = [each for each in allowed if type(each) is type(adopted)]
        if rivals and adopted not in rivals:
            known = join_names(map(repr, allowed), "or")
            near = did_you_mean(adopted, map(str, allowed)) if isinstance(adopted, str) else ""
            self.refuse(f"default of `{name}` must be {known}, got {adopted!r}{near}", "", "choice")
        return adopted

    # Returns -----------------------------------------------------------------------------------

    def returns(self) -> list[Return]:
        annotation = self.signature.return_annotation
        if annotation is Parameter.empty:
            hint = "annotate the return: `-> Tensor`, or `-> None` for no result"
            self.refuse("the return has no annotation", hint, "annotation")
        try:
            found = list(self.several(self.reader.see_through(annotation)))
        except RefusedError as error:
            self.refuse_annotation(error, "the return annotation")
        for each in found:
            if _has_tensor_union(each.type):
                message = f"the return annotation: a return's structure is fixed, `{each}` is not"
                hint = "return a list, an optional, or define two operators"
                self.refuse(message, hint, "union-tensor")
        return found

    def several(self, annotation: Any) -> Iterable[Return]:
        """Return the returns that an annotation spells."""
        if annotation is None or annotation is NoneType:
            return []
        if isinstance(annotation, type) and issubclass(annotation, tuple):
            fields = getattr(annotation, "_fields", None)
            if fields is not None:
                return self.named(annotation, fields)
        if isinstance(annotation, tuple):  # -> (Tensor, Tensor)
            parts = annotation
        elif get_origin(annotation) is tuple and hasattr(annotation, "__args__"):
            parts = get_args(annotation)
        else:
            return [Return(self.reader.type_of(annotation))]
        if len(parts) == 2 and parts[1] is Ellipsis:
            return [Return(ListType(self.reader.type_of(parts[0])))]
        types = [self.reader.type_of(part) for part in parts]
        if len(types) == 1:
            return [Return(TupleType((types[0],)))]
        return [Return(type_) for type_ in types]

    def named(self, cls: type, fields: tuple[str, ...]) -> list[Return]:
        """Return one named return per field of a NamedTuple class."""
        annotations = inspect.get_annotations(cls)
        missing = [field for field in fields if field not in annotations]
        if missing:
            message = f"`{cls.__qualname__}` does not say the type of {join_names(missing)}"
            raise RefusedError(message, "make it a typing.NamedTuple")
        inner = Reader(Scope.of_class(cls))
        found = [Return(inner.type_of(annotations[field]), field) for field in fields]
        self.reader.conventions |= inner.conventions
        return found

    # Labels ------------------------------------------------------------------------------------

    def labelled(self, arguments: list[Argument], mutated: list[str] | None) -> list[Argument]:
        """Return the arguments with the label ``a{i}`` on what is written."""
        names = [argument.name for argument in arguments]
        unknown = [name for name in mutated or () if name not in names]
        if unknown:
            hints = "".join(did_you_mean(name, names) for name in unknown)
            known = f"the parameters are {join_names(names)}" if names else "it has no parameters"
            message = f"mutates_args names {join_names(unknown)}, no parameter{hints}"
            self.refuse(message, known, "mutates-args")
        return [
            self.written(index, argument, mutated is None)
            if argument.name in (names if mutated is None else mutated)
            else argument
            for index, argument in enumerate(arguments)
        ]

    def written(self, index: int, argument: Argument, is_unknown: bool) -> Argument:
        name, type_ = argument.name, argument.type
        if not any(tensors_of(type_)):
            if is_unknown:
                return argument
            message = f"mutates_args names `{name}`, but `{type_}` cannot be written"
            hint = "declare `effects=` or return the new value"
            self.refuse(message, hint, "alias-non-tensor")
        if _has_tensor_union(type_):
            message = f"mutates_args names `{name}`, but a Tensor inside a Union cannot be written"
            self.refuse(message, "make it a parameter of its own, Tensor | None", "union-tensor")
        label = TensorType(AliasSet(frozenset({f"a{index}"}), True))
        changed = map_tensors(type_, lambda tensor: label)
        return Argument(name, changed, argument.default, argument.kwarg_only)

    def returned(
        self, arguments: list[Argument], returns: list[Return], tags: set[str]
    ) -> list[Return]:
        """Return the returns with the labels of the convention a tag declares."""
        if {"inplace", "out"} <= tags:
            hint = "an operator follows one convention"
            self.refuse("the tags `inplace` and `out` exclude each other", hint, "tags")
        if "inplace" in tags:
            return self.inplace_returns(arguments, returns)
        return self.out_returns(arguments, returns) if "out" in tags else returns

    def inplace_returns(self, arguments: list[Argument], returns: list[Return]) -> list[Return]:
        first = arguments[0] if arguments and not arguments[0].kwarg_only else None
        if first is None:
            self.refuse_tag("inplace", "there is no positional argument to write")
        if not isinstance(first.type, TensorType):
            self.refuse_tag("inplace", f"its first argument `{first.name}` is `{first.type}`")
        written = [argument.name for argument in arguments if argument.is_written]
        if written != [first.name]:
            found = join_names(written) or "nothing"
            message = f"mutates_args names {found} instead of `{first.name}` alone"
            self.refuse_tag("inplace", message)
        if [each.type for each in returns] != [_PLAIN]:
            self.refuse_tag("inplace", f"it returns {_shown(returns)}, not the Tensor it writes")
        return [Return(first.type, returns[0].name)]

    def out_returns(self, arguments: list[Argument], returns: list[Return]) -> list[Return]:
        written = [argument for argument in arguments if argument.is_written]
        if not written:
            self.refuse_tag("out", "mutates_args names nothing")
        for argument in written:
            if not argument.kwarg_only:
                message = f"the written argument `{argument.name}` is not keyword-only"
                self.refuse_tag("out", message)
            if not isinstance(argument.type, TensorType):
                plain = map_tensors(argument.type, lambda tensor: _PLAIN)
                self.refuse_tag("out", f"the written argument `{argument.name}` is `{plain}`")
        if [each.type for each in returns] != [_PLAIN] * len(written):
            names = join_names(argument.name for argument in written)
            self.refuse_tag("out", f"it writes {names} but returns {_shown(returns)}")
        pairs = zip(written, returns, strict=True)
        return [Return(argument.type, each.name) for argument, each in pairs]

    def refuse_tag(self, tag: str, message: str) -> NoReturn:
        hints = {
            "inplace": "write the first argument, a Tensor, alone, and return a Tensor",
            "out": "write keyword-only Tensors alone, and return as many Tensors",
        }
        self.refuse(f"tagged `{tag}`, but {message}", hints[tag], "tags")


def _without_repetition(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values that differ in type or value, in order: 1 and True differ."""
    return tuple({(type(value), value): value for value in values}.values())


def _takes_none(type_: Type) -> bool:
    return isinstance(type_, OptionalType) or type_ == BasicType("Any")


def _shown(returns: list[Return]) -> str:
    return f"`({', '.join(map(str, returns))})`"


def _has_tensor_union(type_: Type) -> bool:
    return any(any(tensors_of(union)) for union in unions_of(type_))
