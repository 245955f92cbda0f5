"""Bind: from what the caller typed to checked arguments and a plan.

One Python function is generated per operator from its schema. Its signature is the operator's; it
converts scalars, ORs the key sets of the tensors, looks up the plan, and runs it with every
argument in schema order. Everything that converts or complains lives off that path, in `_slow` and
in the converters below it.

Higher floors fill two tables: `LIFTERS` turns a value of some Python type given for a Tensor into a
tensor; `ADOPTERS` moves a constant to where the other tensors of a call are.

Imports floors 0 and 1, `keys.py`, `operator.py`, `source.py`. Read next: `plan.py`.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from .. import _state
from .._text import did_you_mean, join_names, short_repr
from .._tree import leaves
from ..dtypes import Device
from ..errors import ArgumentError, DispatchError
from ..schema import (
    Argument,
    BasicType,
    ClassType,
    FunctionSchema,
    ListType,
    OptionalType,
    TensorType,
    Type,
    opaque_class,
)
from .convert import MISSING, Misfit, converter
from .keys import AUTOGRAD, BACKENDS, CPU, DEVICE_BITS, INTERPRETER, META, VIEW, WEAK
from .operator import Operator, hooks
from .source import generate, local_name, tuple_text

__all__ = [
    "ADOPTERS",
    "LIFTERS",
    "argument_error",
    "bind_arguments",
    "describe_call",
    "signature_of",
    "tensor_leaves",
]

AnyOperator: TypeAlias = Operator[..., Any]

LIFTERS: Final[dict[type, Callable[[Any], Any]]] = {}
"""Python type of a value given for a Tensor -> function that makes a tensor of it."""

ADOPTERS: Final[list[Callable[[Any, Any], Any]]] = []
"""``adopt(constant, like)``: the constant where the tensor `like` lives, or the constant itself."""

UNLIFTABLE: Final[dict[str, str]] = {
    "list": "write oplib.tensor(...) around it",
    "tuple": "write oplib.tensor(...) around it",
    "NoneType": "the argument is not optional",
    "MaskedArray": "masked arrays are not supported; fill it first: x.filled(value)",
    "matrix": "numpy.matrix is not supported; pass numpy.asarray(x)",
}


# ---------------------------------------------------------------------- generated functions


def _bind_call(op: AnyOperator) -> Callable[..., Any]:
    """Generate the function that runs when the operator is called."""
    if any(keyword.iskeyword(a.name) or a.name.startswith("_op_") for a in op.schema.arguments):
        return _bind_by_name(op)
    names = _namespace(op)
    parameters = [
        *(f"{argument.name}={_default_name(argument, names)}" for argument in op.schema.positional),
        "*_op_extra",
        *(f"{a.name}={_default_name(a, names)}" for a in op.schema.keyword_only),
        "**_op_unknown",
    ]
    every = [a.name for a in op.schema.arguments]
    lines = [
        f"def {op.name}({', '.join(parameters)}):",
        "    if _op_extra or _op_unknown:",
        f"        _op_misfit({tuple_text(every)}, _op_extra, _op_unknown)",
        *_body(op, names, convert=True),
    ]
    return generate(op, "bind", op.name, lines, names)  # type: ignore[no-any-return]


def _bind_positional(op: AnyOperator) -> Callable[..., Any]:
    """Generate the entry that takes converted arguments in schema order."""
    names = _namespace(op)
    every = ", ".join(local_name(a.name) for a in op.schema.arguments)
    lines = [f"def positional({every}):", *_body(op, names, convert=False)]
    return generate(op, "positional", "positional", lines, names)  # type: ignore[no-any-return]


def _bind_by_name(op: AnyOperator) -> Callable[..., Any]:
    """Return the call of an operator with an argument that no Python parameter can be named."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return _slow(op, _place(op, args, kwargs))

    return call


def _namespace(op: AnyOperator) -> dict[str, Any]:
    names: dict[str, Any] = {
        "_op_current": _state.current,
        "_op_find": op.find_plan,
        "_op_misfit": lambda values, extra, unknown: _misfit(op, values, extra, unknown),
        "_op_slow": _beside_tensors(op),
    }
    op.hold_plans(names)
    return names


def _default_name(argument: Argument, names: dict[str, Any]) -> str:
    """Put a default (or the mark of a missing argument) into `names`; return what to write."""
    name = f"_op_default_{argument.name}"
    names[name] = argument.default if argument.has_default else MISSING
    return name


def _body(op: AnyOperator, names: dict[str, Any], convert: bool) -> list[str]:
    """Return the lines from argument checks to running the plan."""
    locals_ = {a.name: local_name(a.name) for a in op.schema.arguments}
    every = ", ".join(locals_.values())
    terms, lists = [], []
    deep = []
    for argument in op.schema.arguments:
        kind = _tensor_kind(argument.type)
        local = locals_[argument.name]
        if kind == "tensor":
            terms.append(f"{local}._keys")
        elif kind == "optional":
            lists.append(f"        if {local} is not None: _op_keys |= {local}._keys")
        elif kind == "list":
            lists += _list_lines(local, convert)
        elif kind == "deep":
            deep.append(f"        for _op_t in _op_leaves({local}): _op_keys |= _op_t._keys")
    names["_op_leaves"] = tensor_leaves
    lines = []
    if terms or lists or deep:
        lines += ["    try:", f"        _op_keys = {' | '.join(terms) or '0'}", *lists]
        lines += ["    except AttributeError:", f"        return _op_slow({every})"]
    else:
        lines.append("    _op_keys = 0")
    if convert:
        for argument in op.schema.arguments:
            if _tensor_kind(argument.type) not in ("tensor", "optional", "list"):
                lines += _conversion_lines(op, argument, names)
    lines += [line.removeprefix("    ") for line in deep]
    lines += [
        "    _op_state = _op_current()",
        "    _op_keys = (_op_keys | _op_state.include) & _op_state.mask",
        *_device_lines(op, names, locals_),
        "    _op_plan = _op_plans.get(_op_keys)",
        "    if _op_plan is None:",
        "        _op_plan = _op_find(_op_keys)",
        f"    return _op_plan({every})",
    ]
    return lines


def _list_lines(local: str, convert: bool) -> list[str]:
    """Return the lines that copy a list of tensors and collect its keys."""
    copy = [
        f"        if type({local}) is not list and type({local}) is not tuple: raise AttributeError"
    ]
    copy.append(f"        {local} = [*{local}]")
    loop = [
        f"        for _op_t in {local}:",
        "            if _op_t is not None: _op_keys |= _op_t._keys",
    ]
    return [*copy, *loop] if convert else loop


def _conversion_lines(op: AnyOperator, argument: Argument, names: dict[str, Any]) -> list[str]:
    """Return the lines that check one argument that holds no tensor."""
    convert = f"_op_to_{argument.name}"
    names[convert] = _argument_converter(op, argument)
    inner = argument.type.element if isinstance(argument.type, OptionalType) else argument.type
    exact = _EXACT.get(inner.name) if isinstance(inner, BasicType) else None
    if isinstance(inner, ClassType):
        exact = f"_op_class_{argument.name}"
        names[exact] = opaque_class(inner.name)
    if exact is None:
        return [f"    {argument.name} = {convert}({argument.name})"]
    some = f"{argument.name} is not None and " if inner is not argument.type else ""
    return [
        f"    if {some}type({argument.name}) is not {exact}:",
        f"        {argument.name} = {convert}({argument.name})",
    ]


_EXACT: Final = {
    "int": "int",
    "SymInt": "int",
    "float": "float",
    "bool": "bool",
    "SymBool": "bool",
    "str": "str",
    "complex": "complex",
}


def _device_lines(op: AnyOperator, names: dict[str, Any], locals_: dict[str, str]) -> list[str]:
    """Return the lines by which a ``device`` argument chooses the backend of a tensorless call."""
    if not _has_device(op.schema):
        return []
    names["_op_device_bit"] = _device_bit
    return [
        f"    if {locals_['device']} is not None and not _op_keys & {BACKENDS | META}:",
        f"        _op_keys |= _op_device_bit({locals_['device']}, _op_keys)",
    ]


def _device_bit(device: Device, keys: int) -> int:
    """Return the key of a device; only an interpreter may take one that no backend has claimed."""
    bit = DEVICE_BITS.get(device.type, 0)
    if not bit and not keys & INTERPRETER:
        raise DispatchError(
            f"no backend has claimed the device '{device}'\n  devices  {', '.join(DEVICE_BITS)}"
        )
    return bit


def _has_device(schema: FunctionSchema) -> bool:
    for argument in schema.arguments:
        kind = argument.type
        kind = kind.element if isinstance(kind, OptionalType) else kind
        if argument.name == "device" and isinstance(kind, BasicType) and kind.name == "Device":
            return True
    return False


def _tensor_kind(kind: Type) -> str | None:
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
    if isinstance(kind, TensorType):
        return True
    if isinstance(kind, BasicType):
        return kind.name == "Any"
    children = getattr(kind, "elements", None) or getattr(kind, "members", None) or ()
    single = getattr(kind, "element", None) or getattr(kind, "value", None)
    return any(may_hold_tensors(child) for child in (*children, *([single] if single else ())))


def tensor_leaves(value: Any) -> list[Any]:
    """Return the tensors (things with ``_keys``) nested anywhere in `value`."""
    return [leaf for leaf in leaves(value) if hasattr(leaf, "_keys")]


# ---------------------------------------------------------------------- the slow path


def _slow(op: AnyOperator, values: list[Any]) -> Any:
    """Convert every argument, or explain why one does not fit, then run the call."""
    had_tensor = bool(tensor_leaves(values))
    converted = [convert(value) for convert, value in zip(_converters(op), values, strict=True)]
    tensors = tensor_leaves(converted)
    given = {id(tensor) for tensor in tensor_leaves(values)}
    if not had_tensor and op.arrays_in_arrays_out and any(_is_array(v) for v in leaves(values)):
        return _arrays_in_arrays_out(op, converted)
    like = next((t for t in tensors if t._keys & (BACKENDS | META) & ~1), None)
    if like is not None:
        converted = [_adopt(value, like, given) for value in converted]
    _refuse_constant_destinations(op, values, had_tensor)
    return op.call_positional(converted)


def _beside_tensors(op: AnyOperator) -> Callable[..., Any]:
    """Return what runs when an argument given for a Tensor is none.

    Numbers and arrays beside CPU tensors, where nothing has to be explained or moved, are lifted
    here (they are most of what runs); every other case goes to `_slow`.
    """
    schema = op.schema
    kinds = [_tensor_kind(argument.type) for argument in schema.arguments]
    written = {i for i, a in enumerate(schema.arguments) if a.name in schema.mutated_arguments}
    if any(kind in ("list", "deep") for kind in kinds):
        return lambda *args: _slow(op, list(args))
    tensors = [i for i, kind in enumerate(kinds) if kind is not None]
    required = {i for i, kind in enumerate(kinds) if kind == "tensor"}
    others = [i for i, kind in enumerate(kinds) if kind is None]
    find, local = LIFTERS.get, CPU | WEAK | AUTOGRAD | VIEW

    def lift_beside(*args: Any) -> Any:
        values = list(args)
        keys = 0
        try:
            for i in tensors:
                value = values[i]
                lifter = find(type(value))
                if lifter is not None and i not in written:
                    values[i] = lifter(value)
                elif value is not None or i in required:
                    keys |= value._keys
            if not keys or keys & ~local:
                return _slow(op, list(args))
            if others:
                converters = _converters(op)
                for i in others:
                    values[i] = converters[i](values[i])
        except (AttributeError, ArgumentError):
            return _slow(op, list(args))
        return op.call_positional(values)

    return lift_beside


def _adopt(value: Any, like: Any, given: set[int]) -> Any:
    if hasattr(value, "_keys"):
        if id(value) in given:
            return value
        for adopt in ADOPTERS:
            value = adopt(value, like)
        return value
    if isinstance(value, list):
        return [_adopt(element, like, given) for element in value]
    return value


def _is_array(value: Any) -> bool:
    lifter = LIFTERS.get(type(value))
    return lifter is not None and getattr(lifter, "of_array", False)


def _refuse_constant_destinations(op: AnyOperator, values: list[Any], had_tensor: bool) -> None:
    if not had_tensor:
        return
    for argument, value in zip(op.schema.arguments, values, strict=True):
        if argument.name in op.schema.mutated_arguments:
            for leaf in leaves(value):
                if leaf is not None and not hasattr(leaf, "_keys"):
                    raise argument_error(
                        op,
                        argument.name,
                        f"is written, so it must be a Tensor; got {type(leaf).__name__}",
                        "write oplib.from_numpy(array) to share its memory",
                    )


def lift(op: AnyOperator, argument: str, value: Any) -> Any:
    """Return a tensor for a value given as a Tensor argument.

    Raises
    ------
    ArgumentError
        If the type of `value` is not one a tensor can be made of.
    """
    if hasattr(value, "_keys"):
        return value
    lifter = LIFTERS.get(type(value))
    if lifter is not None:
        try:
            return lifter(value)
        except ArgumentError as error:
            raise argument_error(op, argument, str(error)) from None
    if value is MISSING:
        raise _missing(op, argument)
    hint = UNLIFTABLE.get(type(value).__name__, "pass a Tensor, a numpy.ndarray or a number")
    raise argument_error(op, argument, f"must be a Tensor, got {_describe(value)}", hint)


def _converters(op: AnyOperator) -> list[Callable[[Any], Any]]:
    """Return the conversions of all arguments, made once per operator."""
    found = op.converters
    if found is None:
        found = op.converters = [_argument_converter(op, a) for a in op.schema.arguments]
    return found


def _argument_converter(op: AnyOperator, argument: Argument) -> Callable[[Any], Any]:
    """Return the checked conversion of one argument."""
    convert = converter(argument.type, lambda value: lift(op, argument.name, value))
    choices = op.choices.get(argument.name)

    def checked(value: Any) -> Any:
        if value is MISSING:
            raise _missing(op, argument.name)
        try:
            result = convert(value)
        except Misfit as misfit:
            expected = misfit.expected or str(argument.type)
            text = f"must be {expected}, got {_describe(value)}"
            raise argument_error(op, argument.name, text, misfit.hint) from None
        if choices is not None and result not in choices:
            hint = did_you_mean(result, choices) if isinstance(result, str) else ""
            listed = ", ".join(map(repr, choices))
            raise argument_error(
                op, argument.name, f"must be one of {listed}; got {result!r}{hint}"
            )
        return result

    return checked


def _describe(value: Any) -> str:
    name = "None" if value is None else f"{type(value).__name__} {short_repr(value)}"
    return name


def argument_error(op: AnyOperator, argument: str, problem: str, hint: str = "") -> ArgumentError:
    """Return the error for one argument of a call: operator, argument, problem, signature, hint."""
    lines = [f"{op.qualname}: argument `{argument}` {problem}", f"  signature  {op.schema}"]
    if hint:
        lines.append(f"  hint       {hint}")
    return ArgumentError("\n".join(lines))


# ---------------------------------------------------------------------- calls that do not fit


def bind_arguments(op: AnyOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return converted arguments in schema order without running anything.

    Raises
    ------
    ArgumentError
        As the call itself would.
    """
    values = _place(op, args, kwargs)
    return [convert(value) for convert, value in zip(_converters(op), values, strict=True)]


def _place(op: AnyOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Put positional and keyword arguments into schema order, defaults filled in."""
    schema = op.schema
    extra = args[len(schema.positional) :]
    values = {a.name: v for a, v in zip(schema.positional, args, strict=False)}
    unknown = {}
    for name, value in kwargs.items():
        if name in values or name not in {a.name for a in schema.arguments}:
            unknown[name] = value
        else:
            values[name] = value
    ordered = []
    for argument in schema.arguments:
        default = argument.default if argument.has_default else MISSING
        ordered.append(values.get(argument.name, default))
    if extra or unknown:
        _misfit(op, tuple(ordered), extra, unknown)
    return ordered


def _misfit(
    op: AnyOperator, values: tuple[Any, ...], extra: tuple[Any, ...], unknown: dict[str, Any]
) -> None:
    """Raise for surplus positional arguments or keywords that name nothing."""
    schema = op.schema
    names = [a.name for a in schema.arguments]
    for name in unknown:
        if name in names:
            problem = f"got argument `{name}` twice"
        else:
            problem = f"has no argument {name!r}{did_you_mean(name, names)}"
        raise _call_error(op, problem)
    positional = len(schema.positional)
    count = f"{positional} positional argument{'' if positional == 1 else 's'}"
    given = positional + len(extra)
    problem = f"takes {count} but {given} were given"
    if schema.keyword_only:
        keywords = join_names(a.name for a in schema.keyword_only)
        problem += f"; pass {keywords} by keyword"
    raise _call_error(op, problem)


def _missing(op: AnyOperator, argument: str) -> ArgumentError:
    return _call_error(op, f"is missing argument `{argument}`")


def _call_error(op: AnyOperator, problem: str) -> ArgumentError:
    return ArgumentError(f"{op.qualname}() {problem}\n  signature  {op.schema}")


def describe_call(op: Operator[..., Any], values: list[Any]) -> str:
    """Return ``"name(x: f32[4, 8], eps=1e-06)"``: tensors by type, other values by repr."""
    parts = []
    for argument, value in zip(op.schema.arguments, values, strict=True):
        if hasattr(value, "_keys"):
            parts.append(f"{argument.name}: {value.describe()}")
        elif isinstance(value, list) and any(hasattr(v, "_keys") for v in value):
            inner = ", ".join(v.describe() if hasattr(v, "_keys") else repr(v) for v in value)
            parts.append(f"{argument.name}: [{inner}]")
        else:
            parts.append(f"{argument.name}={value!r}")
    return f"{op.name}({', '.join(parts)})"


def signature_of(schema: FunctionSchema) -> inspect.Signature:
    """Return the Python signature of a schema: names, defaults, keyword-only parameters."""
    parameters = []
    for argument in schema.arguments:
        kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
        if argument.kwarg_only:
            kind = inspect.Parameter.KEYWORD_ONLY
        if keyword.iskeyword(argument.name):
            continue
        default = argument.default if argument.has_default else inspect.Parameter.empty
        parameters.append(inspect.Parameter(argument.name, kind, default=default))
    return inspect.Signature(parameters)


def _arrays_in_arrays_out(op: AnyOperator, converted: list[Any]) -> Any:
    """Run a call given arrays only: outside all interpreters, arrays in and arrays out."""
    with _state.enter(_state.DEFAULT_STATE):
        result = op.call_positional(converted)
    return _unwrap(result)


def _unwrap(value: Any) -> Any:
    if hasattr(value, "_keys"):
        return value.array
    if isinstance(value, list | tuple):
        return type(value)(_unwrap(element) for element in value)
    return value


hooks.bind_call = _bind_call
hooks.bind_positional = _bind_positional
