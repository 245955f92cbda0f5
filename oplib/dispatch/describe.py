"""What messages say about a call: the call as written, its signature, the argument that misfits.

Nothing here runs in a call that succeeds.

Imports floors 0 and 1, `convert.py`. Read next: `lifting.py`.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, TypeAlias

from .._text import did_you_mean, join_names, short_repr
from ..errors import ArgumentError
from ..schema import FunctionSchema
from .operator import Operator, hooks

__all__ = [
    "argument_error",
    "describe_call",
    "describe_value",
    "missing_argument",
    "raise_surplus",
    "signature_of",
]

AnyOperator: TypeAlias = Operator[..., Any]


def describe_call(op: AnyOperator, values: Sequence[Any]) -> str:
    """Return ``"name(x: f32[4, 8], eps=1e-06)"``: tensors by type, other values by repr."""
    parts = []
    for argument, value in zip(op.schema.arguments, values, strict=True):
        if isinstance(value, hooks.tensor):
            parts.append(f"{argument.name}: {value.describe()}")
        else:
            parts.append(f"{argument.name}={_value_text(value)}")
    return f"{op.name}({', '.join(parts)})"


def _value_text(value: Any) -> str:
    """Return a value with tensors in it described rather than printed."""
    if isinstance(value, hooks.tensor):
        return str(value.describe())
    if type(value) is list:
        return f"[{', '.join(map(_value_text, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_value_text, value))}{',' if len(value) == 1 else ''})"
    if type(value) is dict:
        return f"{{{', '.join(f'{k!r}: {_value_text(v)}' for k, v in value.items())}}}"
    return short_repr(value)


def describe_value(value: Any) -> str:
    """Return the type and a short form of a value: ``"str 'mean'"``."""
    if value is None:
        return "None"
    if isinstance(value, hooks.tensor):
        return f"a Tensor {value.describe()}"
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{name} {short_repr(value)}"


def argument_error(op: AnyOperator, argument: str, problem: str, hint: str = "") -> ArgumentError:
    """Return the error for one argument of a call: operator, argument, problem, signature, hint."""
    lines = [f"{op.qualname}: argument `{argument}` {problem}", f"  signature  {op.schema}"]
    if hint:
        lines.append(f"  hint       {hint}")
    return ArgumentError("\n".join(lines))


def missing_argument(op: AnyOperator, argument: str) -> ArgumentError:
    """Return the error for an argument that has no default and was not given."""
    return _call_error(op, f"is missing argument `{argument}`")


def raise_surplus(op: AnyOperator, extra: Sequence[Any], unknown: Iterable[str]) -> NoReturn:
    """Raise for surplus positional arguments, or for keywords that name nothing or come twice."""
    names = [argument.name for argument in op.schema.arguments]
    for name in unknown:
        if name in names:
            raise _call_error(op, f"got argument `{name}` twice, by position and by keyword")
        hint = did_you_mean(name, names)
        raise _call_error(op, f"has no argument {name!r}{hint}")
    takes = len(op.schema.positional)
    count = f"{takes} positional argument{'' if takes == 1 else 's'}"
    problem = f"takes {count} but {takes + len(extra)} were given"
    if op.schema.keyword_only:
        keywords = join_names(argument.name for argument in op.schema.keyword_only)
        problem += f"; pass {keywords} by keyword"
    raise _call_error(op, problem)


def _call_error(op: AnyOperator, problem: str) -> ArgumentError:
    return ArgumentError(f"{op.qualname}() {problem}\n  signature  {op.schema}")


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
        annotation = str(argument.type)
        parameters.append(
            inspect.Parameter(argument.name, kind, default=default, annotation=annotation)
        )
    try:
        return inspect.Signature(parameters)
    except ValueError:  # an argument without default after one with: legal here, not in Python
        bare = [each.replace(default=inspect.Parameter.empty) for each in parameters]
        return inspect.Signature(bare)


hooks.signature = signature_of
