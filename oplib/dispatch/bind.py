"""Bind: from what the caller typed to checked arguments and a plan.

One Python function is generated per operator from its schema. Its signature is the operator's; it
converts scalars, ORs the key sets of the tensors, looks up the plan, and runs it with every
argument in schema order. Everything that converts or complains lives off that path, in
`lifting.py`.

The generated test is ``type(x) is Tensor``: catching an AttributeError for numbers and arrays costs
0.6 µs, this costs 0.02 and cannot be fooled by a foreign ``_keys``.

Imports floors 0 and 1, `lifting.py` and above, `source.py`. Read next: `interpreter.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from .. import _state
from .._text import short_repr
from ..dtypes import Device
from ..errors import ArgumentError
from ..schema import Argument, BasicType, FunctionSchema, ListType, OptionalType, TensorType
from .convert import MISSING, exact_type
from .describe import raise_surplus
from .keys import BACKENDS, DEVICE_BITS, INTERPRETER, META, device_bit
from .lifting import (
    argument_converter,
    call_on_arrays,
    converters,
    lifting,
    tensor_kind,
    tensor_leaves,
)
from .operator import Operator, hooks
from .source import generate, local_name

__all__ = ["bind_arguments", "device_argument", "place_arguments"]

AnyOperator: TypeAlias = Operator[..., Any]
Lines: TypeAlias = list[str]


# ---------------------------------------------------------------------- generated functions


def _bind_call(op: AnyOperator) -> Callable[..., Any]:
    """Generate the function that runs when the operator is called.

    Arguments that may come by position are positional-only parameters; what is given by keyword
    lands in a dict and is taken from there. So it can be told that one is given twice, and its name
    may be a Python keyword.
    """
    body = _Body(op, convert=True)
    positional = [(a.name, local_name(a.name)) for a in op.schema.positional]
    keyword_only = [(a.name, local_name(a.name)) for a in op.schema.keyword_only]
    parameters = [f"{local}=_op_missing" for _, local in positional]
    parameters += ["/", "*_op_extra"] if positional else ["*_op_extra"]
    parameters += [f"{local}=_op_missing" for name, local in keyword_only if name == local]
    mangled = [(name, local) for name, local in keyword_only if name != local]
    lines = [
        f"def {op.name}({', '.join(parameters)}, **_op_given):",
        *(f"    {local} = _op_given.pop({name!r}, _op_missing)" for name, local in mangled),
        "    if _op_given or _op_extra:",
        *(
            f"        if {local} is _op_missing: {local} = _op_given.pop({name!r}, _op_missing)"
            for name, local in positional
        ),
        "        if _op_given or _op_extra:",
        *_out_lines(op, [local for _, local in positional], keyword_only),
        "            _op_surplus(_op_extra, _op_given)",
        *body.lines(),
    ]
    body.names["_op_stored"] = _storing(op)
    body.names["_op_missing"] = MISSING
    body.names["_op_surplus"] = lambda extra, given: raise_surplus(op, extra, given)
    return generate(op, "bind", op.name, lines, body.names)  # type: ignore[no-any-return]


def _out_lines(
    op: AnyOperator, positional: Sequence[str], keyword_only: Sequence[tuple[str, str]]
) -> Lines:
    """Return the line that takes ``out=``, which every functional operator on tensors has."""
    tensors = [isinstance(each.type, TensorType) for each in op.schema.returns]
    if not (tensors and all(tensors) and op.schema.is_functional) or "out" in op.schema.names:
        return []
    keywords = "".join(f"{name!r}: {local}, " for name, local in keyword_only)
    places = f"[{', '.join([*positional, '*_op_extra'])}], {{{keywords}**_op_given}}"
    return [f"            if 'out' in _op_given: return _op_stored({places})"]


def _storing(op: AnyOperator) -> Callable[..., Any]:
    """Return the call that stores the result, computed before anything is written, into ``out``."""

    def stored(args: list[Any], kwargs: dict[str, Any]) -> Any:
        out = kwargs.pop("out")
        result = op(*args, **{k: value for k, value in kwargs.items() if value is not MISSING})
        if out is None:
            return result
        copy_ = hooks.lookup("std::copy_")
        if len(op.schema.returns) == 1:
            return copy_(out, result)
        _check_outs(op, out, result)
        pairs = zip(out, result, strict=True)
        return tuple([made if into is None else copy_(into, made) for into, made in pairs])

    return stored


def _check_outs(op: AnyOperator, outs: Any, results: tuple[Any, ...]) -> None:
    """Raise unless every result can be stored, so that either all of them are or none is."""
    names = [each.name or f"result {i}" for i, each in enumerate(op.schema.returns)]
    if not isinstance(outs, list | tuple) or len(outs) != len(results):
        raise ArgumentError(
            f"{op.qualname}: out= takes a tuple of {len(results)}, a tensor or None for each of "
            f"{', '.join(names)}; got {short_repr(outs)}"
        )
    seen: list[Any] = []
    for name, into, made in zip(names, outs, results, strict=True):
        if into is None:
            continue
        problem = ""
        if type(into) is not type(made):
            problem = "is no tensor"
        elif into.shape != made.shape:
            problem = f"has shape {list(into.shape)}, the result {list(made.shape)}"
        elif not np.can_cast(made.dtype, into.dtype, "same_kind"):
            problem = f"has dtype {into.dtype}, the result {made.dtype}"
        elif into.requires_grad and into.is_leaf:
            problem = "is a leaf that requires grad"
        elif not getattr(getattr(into.array, "flags", None), "writeable", True):
            problem = "is read-only"
        elif any(into._storage is other for other in seen):
            problem = "shares memory with the tensor of another result"
        if problem:
            raise ArgumentError(
                f"{op.qualname}: nothing was stored, the tensor for {name} {problem}"
            )
        seen.append(into._storage)


def _bind_positional(op: AnyOperator) -> Callable[..., Any]:
    """Generate the entry that takes converted arguments in schema order."""
    body = _Body(op, convert=False)
    every = ", ".join(local_name(argument.name) for argument in op.schema.arguments)
    lines = [f"def positional({every}):", *body.lines()]
    return generate(op, "positional", "positional", lines, body.names)  # type: ignore[no-any-return]


class _Body:
    """The lines from argument checks to running the plan, and the names they use."""

    def __init__(self, op: AnyOperator, convert: bool) -> None:
        self.op = op
        self.convert = convert
        self.arguments = [(a, local_name(a.name)) for a in op.schema.arguments]
        default = _state.DEFAULT_STATE
        self.names: dict[str, Any] = {
            "_op_current": _state.current,
            "_op_default": None if default.include else default,  # which changes no key set
            "_op_find": op.find_plan,
            "_op_AttributeError": AttributeError,
            "_op_KeyError": KeyError,
            "_op_type": type,
            "_op_list": list,
            "_op_tuple": tuple,
            "_op_Tensor": hooks.tensor,
            "_op_leaves": tensor_leaves,
            "_op_device_bit": partial(_device_bit, op),
        }
        op.hold_plans(self.names)

    def lines(self) -> Lines:
        """Return the lines."""
        every = ", ".join(local for _, local in self.arguments)
        return [
            *(self._defaults() if self.convert else []),
            *self._keys(),
            *(self._conversions() if self.convert else []),
            "    _op_state = _op_current()",
            "    if _op_state is not _op_default:",
            "        _op_keys = (_op_keys | _op_state.include) & _op_state.mask",
            *self._device(),
            "    try:",
            "        _op_plan = _op_plans[_op_keys]",
            "    except _op_KeyError:",
            "        _op_plan = _op_find(_op_keys)",
            f"    return _op_plan({every})",
        ]

    def _defaults(self) -> Lines:
        """Return the lines that fill in the defaults of arguments that may hold tensors."""
        lines = []
        for argument, local in self.arguments:
            if tensor_kind(argument.type) and argument.has_default:
                self.names[f"_op_default_{argument.name}"] = argument.default
                lines.append(
                    f"    if {local} is _op_missing: {local} = _op_default_{argument.name}"
                )
        return lines

    # ------------------------------------------------------------------ key sets

    def _keys(self) -> Lines:
        """Return the lines that check tensors and OR their key sets, or else convert them all."""
        holders = [(a, local) for a, local in self.arguments if tensor_kind(a.type)]
        if not holders:
            return ["    _op_keys = 0"]
        kinds = {tensor_kind(argument.type) for argument, _ in holders}
        if "deep" in kinds:
            return self._lift_lines(holders, "    ")
        if kinds == {"tensor"}:
            return self._plain_keys(holders)
        tests, terms, lines = [], [], []
        for argument, local in holders:
            kind = tensor_kind(argument.type)
            test = f"_op_type({local}) is _op_Tensor"
            if kind == "tensor":
                tests.append(test)
                terms.append(f"{local}._keys")
            elif kind == "optional":
                tests.append(f"({local} is None or {test})")
                lines.append(f"        if {local} is not None: _op_keys |= {local}._keys")
            else:
                tests.append(f"(_op_type({local}) is _op_list or _op_type({local}) is _op_tuple)")
                lines += self._list_lines(argument, local)
        lines = [
            f"    if {' and '.join(tests)}:",
            f"        _op_keys = {' | '.join(terms) or '0'}",
            *lines,
        ]
        if "list" not in kinds:
            return [*lines, "    else:", *self._lift_lines(holders, "        ")]
        lines.insert(0, "    _op_fits = True")
        lines += ["    else:", "        _op_fits = False"]
        return [*lines, "    if not _op_fits:", *self._lift_lines(holders, "        ")]

    def _plain_keys(self, holders: Sequence[tuple[Argument, str]]) -> Lines:
        """Return the lines for plain tensors: the first one is found out by asking for its keys.

        Only tensors have any, and asking costs half of comparing types; a number or an array in the
        other places is met too often for the price of an exception.
        """
        locals_ = [local for _, local in holders]
        terms = " | ".join(f"{local}._keys" for local in locals_)
        tests = " and ".join(f"_op_type({local}) is _op_Tensor" for local in locals_[1:])
        lines = [
            "    try:",
            f"        _op_keys = {terms}" + (f" if {tests} else None" if tests else ""),
            "    except _op_AttributeError:",
            "        _op_keys = None",
            "    if _op_keys is None:",
        ]
        return [*lines, *self._lift_lines(holders, "        ")]

    def _list_lines(self, argument: Argument, local: str) -> Lines:
        """Return the lines that copy a list of tensors and collect its keys."""
        assert isinstance(argument.type, ListType)
        optional = isinstance(argument.type.element, OptionalType)
        mistake = "elif _op_t is not None" if optional else "else"
        return [
            f"        {local} = [*{local}]",
            f"        for _op_t in {local}:",
            "            if _op_type(_op_t) is _op_Tensor: _op_keys |= _op_t._keys",
            f"            {mistake}: _op_fits = False",
        ]

    def _lift_lines(self, holders: Sequence[tuple[Argument, str]], indent: str) -> Lines:
        """Return the lines that convert all arguments that hold tensors, off the fast path."""
        arrays_out = self.convert and self.op.arrays_in_arrays_out
        self.names["_op_lift"] = lifting(self.op, arrays_out)
        held = ", ".join(local for _, local in holders)
        lines = [f"{indent}{held}, _op_keys = _op_lift({held})"]
        if arrays_out:
            self.names["_op_arrays"] = call_on_arrays(self.op)
            every = ", ".join(local for _, local in self.arguments)
            lines.append(f"{indent}if _op_keys is None: return _op_arrays({every})")
        return lines

    # ------------------------------------------------------------------ other arguments

    def _conversions(self) -> Lines:
        """Return the lines that check the arguments that hold no tensor."""
        lines: Lines = []
        for argument, local in self.arguments:
            if not tensor_kind(argument.type):
                lines += self._conversion(argument, local)
        return lines

    def _conversion(self, argument: Argument, local: str) -> Lines:
        """Return the lines that convert one argument; a missing one gets its default."""
        convert = f"_op_to_{argument.name}"
        self.names[convert] = argument_converter(self.op, argument)
        inner = argument.type.element if isinstance(argument.type, OptionalType) else argument.type
        exact = None if argument.name in self.op.choices else exact_type(inner)
        conversion = f"{local} = {convert}({local})"
        if exact is None and inner is not argument.type and argument.default is None:
            return [
                f"    if {local} is _op_missing: {local} = None",
                f"    elif {local} is not None: {conversion}",
            ]
        if exact is None:
            return [f"    {conversion}"]
        name = f"_op_exact_{argument.name}"
        self.names[name] = exact
        given = "" if inner is argument.type else f"{local} is not None and "
        test = f"{given}_op_type({local}) is not {name}"
        if not argument.has_default:
            return [f"    if {test}: {conversion}"]
        default = f"_op_default_{argument.name}"
        self.names[default] = argument.default
        return [
            f"    if {local} is _op_missing: {local} = {default}",
            f"    elif {test}: {conversion}",
        ]

    def _device(self) -> Lines:
        """Return the lines by which ``device`` chooses the backend of a call without tensors."""
        if device_argument(self.op.schema) is None:
            return []
        return [
            f"    if not _op_keys & {BACKENDS | META} and device is not None:",
            "        _op_keys |= _op_device_bit(device, _op_keys)",
        ]


def _device_bit(op: AnyOperator, device: Device, keys: int) -> int:
    """Return the key of a device; only an interpreter may take one that no backend has claimed."""
    if keys & INTERPRETER:
        return DEVICE_BITS.get(device.type, 0)
    try:
        return device_bit(device.type)
    except ArgumentError as error:
        raise ArgumentError(f"{op.qualname}: {error}") from None


def device_argument(schema: FunctionSchema) -> int | None:
    """Return the position of the argument ``device`` that chooses a backend, if there is one."""
    for position, argument in enumerate(schema.arguments):
        kind = argument.type
        kind = kind.element if isinstance(kind, OptionalType) else kind
        if argument.name == "device" and isinstance(kind, BasicType) and kind.name == "Device":
            return position
    return None


# ---------------------------------------------------------------------- binding without calling


def bind_arguments(op: AnyOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return converted arguments in schema order without running anything.

    Raises
    ------
    ArgumentError
        As the call itself would.
    """
    values = place_arguments(op, args, kwargs)
    return [convert(value) for convert, value in zip(converters(op), values, strict=True)]


def place_arguments(op: AnyOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Put positional and keyword arguments into schema order, defaults filled in."""
    schema = op.schema
    names = {argument.name for argument in schema.arguments}
    values = dict(zip([argument.name for argument in schema.positional], args, strict=False))
    extra = args[len(schema.positional) :]
    surplus = [name for name in kwargs if name in values or name not in names]
    if extra or surplus:
        raise_surplus(op, extra, surplus)
    values.update(kwargs)
    return [values.get(a.name, a.default if a.has_default else MISSING) for a in schema.arguments]


hooks.bind_call = _bind_call
hooks.bind_positional = _bind_positional
