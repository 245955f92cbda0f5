"""Arguments that hold tensors: conversion of what is given for them, and constants beside tensors.

Numbers become weak 0-d tensors, arrays become constants that share memory; a constant is put where
the tensors of its call live. Higher floors fill the two tables.

Imports floors 0 and 1, `describe.py` and above. Read next: `bind.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from .. import _state
from .._text import did_you_mean
from .._tree import leaves, tree_map
from ..errors import ArgumentError
from ..schema import (
    Argument,
    BasicType,
    DictType,
    ListType,
    OptionalType,
    TensorType,
    TupleType,
    Type,
    UnionType,
)
from .convert import MISSING, Misfit, converter
from .describe import argument_error, describe_value, missing_argument
from .keys import BACKENDS, CHECKED, CONSTANT, CPU, META, PREFER
from .operator import Operator, hooks

__all__ = [
    "ADOPTERS",
    "ARRAYS",
    "LIFTERS",
    "argument_converter",
    "call_on_arrays",
    "converters",
    "is_array",
    "lift",
    "lifting",
    "may_hold_tensors",
    "tensor_kind",
    "tensor_leaves",
]

AnyOperator: TypeAlias = Operator[..., Any]


LIFTERS: Final[dict[type, Callable[[Any], Any]]] = {}
"""Python type of a value given for a Tensor -> function that makes a tensor of it."""

ARRAYS: Final[set[type]] = set()
"""Those types that are arrays: called with arrays and no Tensor, an operator returns arrays."""

ADOPTERS: Final[list[Callable[[Any, Any], Any]]] = []
"""``adopt(constant, like)``: the constant where the tensor `like` lives, or the constant itself."""

_HINTS: Final = {
    "list": "write oplib.tensor(...) around it",
    "tuple": "write oplib.tensor(...) around it",
    "NoneType": "it is not optional; declare it `Tensor?` to allow None",
    "MaskedArray": "masked arrays are not supported; fill it first: x.filled(value)",
    "matrix": "numpy.matrix is not supported; pass numpy.asarray(x)",
    "str": "pass a Tensor, a numpy.ndarray or a number",
    "bytes": "pass a Tensor, a numpy.ndarray or a number",
}
_ELSEWHERE: Final = (
    "pass a Tensor, a numpy.ndarray or a number; an array of another library needs "
    "numpy.asarray(x), or oplib.register_backend(...)"
)
_ELSEWHERE_BITS: Final = (BACKENDS | META) & ~CPU


# ---------------------------------------------------------------------- what holds tensors


def tensor_kind(kind: Type) -> str | None:
    """Classify how an argument holds tensors: tensor, optional, list, deep, or None."""
    if isinstance(kind, TensorType):
        return "tensor"
    if isinstance(kind, OptionalType) and isinstance(kind.element, TensorType):
        return "optional"
    if isinstance(kind, ListType) and kind.size is None:
        element = kind.element
        element = element.element if isinstance(element, OptionalType) else element
        if isinstance(element, TensorType):
            return "list"
    return "deep" if may_hold_tensors(kind) else None


def may_hold_tensors(kind: Type) -> bool:
    """Return whether a value of this type can contain a Tensor."""
    if isinstance(kind, BasicType):
        return kind.name == "Any"
    if isinstance(kind, OptionalType | ListType):
        return may_hold_tensors(kind.element)
    if isinstance(kind, TupleType):
        return any(map(may_hold_tensors, kind.elements))
    if isinstance(kind, UnionType):
        return any(map(may_hold_tensors, kind.members))
    if isinstance(kind, DictType):
        return may_hold_tensors(kind.value)
    return isinstance(kind, TensorType)


def tensor_leaves(value: Any) -> list[Any]:
    """Return the tensors nested anywhere in `value`."""
    tensor = hooks.tensor
    return [leaf for leaf in leaves(value) if type(leaf) is tensor]


def is_array(value: Any) -> bool:
    """Return whether a value is an array (not a Tensor) that can be given for a Tensor."""
    return type(value) in ARRAYS or _is_plain_subclass(value)


def _is_plain_subclass(value: Any) -> bool:
    """Return whether a value is of a subclass of ndarray that means the same: memory maps do."""
    return isinstance(value, np.ndarray) and not isinstance(value, np.matrix | np.ma.MaskedArray)


# ---------------------------------------------------------------------- one value


def lift(value: Any) -> Any:
    """Return a tensor for a value given as a Tensor; a `Misfit` if none can be made of it."""
    if type(value) is hooks.tensor:
        return value
    make = LIFTERS.get(type(value))
    if make is None and _is_plain_subclass(value):
        make, value = LIFTERS[np.ndarray], np.asarray(value)
    if make is None:
        raise Misfit("a Tensor", _HINTS.get(type(value).__name__, _ELSEWHERE))
    try:
        return make(value)
    except ArgumentError as error:
        raise Misfit(problem=str(error)) from None


def argument_converter(op: AnyOperator, argument: Argument) -> Callable[[Any], Any]:
    """Return the checked conversion of one argument."""
    convert = converter(argument.type, lift)
    choices = op.choices.get(argument.name)

    def checked(value: Any) -> Any:
        if value is MISSING:
            if not argument.has_default:
                raise missing_argument(op, argument.name)
            value = argument.default
        try:
            result = convert(value)
        except Misfit as misfit:
            expected = misfit.expected or str(argument.type)
            found = describe_value(misfit.value if misfit.path else value)
            text = misfit.problem or f"must be {expected}, got {found}"
            raise argument_error(op, argument.name + misfit.path, text, misfit.hint) from None
        if choices is not None:
            _check_choices(op, argument, result, choices)
        return result

    return checked


def converters(op: AnyOperator) -> list[Callable[[Any], Any]]:
    """Return the checked conversions of all arguments, made once per operator."""
    found = op.converters
    if found is None:
        found = op.converters = [argument_converter(op, a) for a in op.schema.arguments]
    return found


def _check_choices(op: AnyOperator, argument: Argument, value: Any, choices: Sequence[Any]) -> None:
    """Refuse a value, or an element of a list, outside of what a `Literal` annotation allows."""
    kind = argument.type
    kind = kind.element if isinstance(kind, OptionalType) else kind
    for chosen in leaves(value) if isinstance(kind, ListType) else [value]:
        allowed = [choice for choice in choices if type(choice) is type(chosen)]
        if allowed and chosen not in allowed:
            words = [choice for choice in allowed if isinstance(choice, str)]
            hint = did_you_mean(chosen, words) if isinstance(chosen, str) else ""
            text = f"must be one of {', '.join(map(repr, choices))}; got {chosen!r}{hint}"
            raise argument_error(op, argument.name, text)


# ---------------------------------------------------------------------- all of a call


def lifting(op: AnyOperator, arrays_out: bool) -> Callable[..., Sequence[Any]]:
    """Return the function that converts the arguments of a call that hold tensors.

    It takes them in schema order and returns them with the key set of the call at the end; with
    `arrays_out`, None stands there if the call is given arrays and no Tensor.
    """
    arguments = [a for a in op.schema.arguments if tensor_kind(a.type)]
    lifts = [_lift_for(op, argument) for argument in arguments]
    written = any(argument.name in op.schema.mutated_arguments for argument in arguments)
    tensor, lifter_of = hooks.tensor, LIFTERS.get

    def lift_numbers(*values: Any) -> Sequence[Any]:
        """Lift plain tensors beside numbers and arrays: most of what comes here."""
        result = []
        keys, given = 0, False
        try:
            for value in values:
                if type(value) is tensor:
                    given = True
                else:
                    value = lifter_of(type(value))(value)  # type: ignore[misc]
                keys |= value._keys
                result.append(value)
        except (TypeError, ArgumentError):
            return lift_all(*values)  # says which argument it is
        if keys & _ELSEWHERE_BITS:
            return lift_all(*values)
        only_arrays = arrays_out and not given and keys & CONSTANT and _any_array(values)
        result.append(None if only_arrays else keys)
        return result

    def lift_all(*values: Any) -> Sequence[Any]:
        result = []
        keys = 0
        for value, lift_one in zip(values, lifts, strict=True):
            made, own = lift_one(value)
            keys |= own
            result.append(made)
        if keys & CONSTANT and arrays_out and not _given(values) and _any_array(values):
            return (*result, None)
        if written:
            _refuse_constant_destinations(op, arguments, values)
        if keys & _ELSEWHERE_BITS:
            result, keys = _adopted(values, result)
        return (*result, keys)

    plain = all(isinstance(argument.type, TensorType) for argument in arguments)
    return lift_numbers if plain and not written else lift_all


def _lift_for(op: AnyOperator, argument: Argument) -> Callable[[Any], tuple[Any, int]]:
    """Return the conversion of one argument that holds tensors, with the key set of its tensors."""
    convert = argument_converter(op, argument)
    if isinstance(argument.type, TensorType):

        def lift_tensor(value: Any) -> tuple[Any, int]:
            made = convert(value)
            return made, made._keys

        return lift_tensor

    def lift_container(value: Any) -> tuple[Any, int]:
        keys = CONSTANT if any(map(is_array, leaves(value))) else 0
        made = convert(value)
        for leaf in tensor_leaves(made):
            keys |= leaf._keys
        return made, keys

    return lift_container


def _given(values: Sequence[Any]) -> bool:
    """Return whether the caller gave a Tensor."""
    tensor = hooks.tensor
    for value in values:
        if type(value) is tensor:
            return True
    return bool(tensor_leaves(list(values)))


def _any_array(values: Sequence[Any]) -> bool:
    return any(map(is_array, leaves(list(values))))


def _adopted(given: Sequence[Any], converted: list[Any]) -> tuple[list[Any], int]:
    """Put constants where the tensors of the call live; return the arguments and their key set."""
    like = next(t for t in tensor_leaves(converted) if t._keys & _ELSEWHERE_BITS)
    own = {id(t) for t in tensor_leaves(given)}

    def adopt(leaf: Any) -> Any:
        if type(leaf) is hooks.tensor and id(leaf) not in own:
            for adopter in ADOPTERS:
                leaf = adopter(leaf, like)
        return leaf

    result = [tree_map(adopt, value) for value in converted]
    keys = 0
    for tensor in tensor_leaves(result):
        keys |= tensor._keys
    return result, keys


def _refuse_constant_destinations(
    op: AnyOperator, arguments: Sequence[Argument], values: Sequence[Any]
) -> None:
    """Refuse an array or number for a written argument: the caller would not see the write."""
    for argument, value in zip(arguments, values, strict=True):
        for leaf in leaves(value) if argument.name in op.schema.mutated_arguments else ():
            if leaf is not None and type(leaf) is not hooks.tensor:
                raise argument_error(
                    op,
                    argument.name,
                    f"is written, so it must be a Tensor; got {describe_value(leaf)}",
                    "write oplib.from_numpy(array) to share its memory",
                )


def call_on_arrays(op: AnyOperator) -> Callable[..., Any]:
    """Return the call given arrays and no Tensor: outside all interpreters, arrays out.

    It takes all arguments in schema order, those that hold tensors converted already.
    """
    plain = [
        None if tensor_kind(argument.type) else convert
        for argument, convert in zip(op.schema.arguments, converters(op), strict=True)
    ]

    def call(*values: Any) -> Any:
        pairs = zip(plain, values, strict=True)
        converted = [value if convert is None else convert(value) for convert, value in pairs]
        state = _state.current()
        outside = _state.State(include=state.include & (CHECKED | PREFER), config=state.config)
        with _state.enter(outside):
            result = op.call_positional(converted)
        return tree_map(_array_of, result)

    return call


def _array_of(leaf: Any) -> Any:
    return leaf.array if type(leaf) is hooks.tensor else leaf
