"""Check ``schema``: results are what the schema says, however the arguments are passed."""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from ..._text import short_repr
from ...errors import ReturnError
from ...schema import FunctionSchema, parse
from ...schema.types import (
    BasicType,
    DictType,
    ListType,
    OptionalType,
    TensorType,
    TupleType,
    UnionType,
)
from ...tensor.tensor import Tensor
from ..calls import Call, user_traceback
from ..session import Check, Problem, Trial

__all__ = ["SCHEMA"]


_PYTHON: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (float,),
    "bool": (bool,),
    "complex": (complex,),
    "str": (str,),
    "Scalar": (bool, int, float, complex),
}


def _examine(trial: Trial) -> Iterator[Problem]:
    schema = trial.subject.schema
    assert schema is not None
    yield from _raising(trial)
    text = str(schema)
    for call in trial.calls():
        if parse(text) != schema:
            yield Problem(call, "schema", "does not survive printing and parsing", text)
        outcome = call.fresh().run()
        if outcome.error is not None:
            yield _not_again(call, outcome.error)
            continue
        for index, (value, ret) in enumerate(zip(outcome.results, schema.returns, strict=True)):
            if not fits(ret.type, value):
                where = trial.subject.result_name(index)
                got = f"{type(value).__name__} {short_repr(value)}"
                yield Problem(call, where, "has a wrong type", str(ret.type), got)
        for variant, how in _passed_otherwise(schema, call):
            yield from _differs(trial, call, variant, how)


def _raising(trial: Trial) -> Iterator[Problem]:
    """Yield calls that raise: those the caller gave, and those whose result has a wrong type."""
    session = trial.session
    for refusal in session.broken:
        trial.run += 1
        yield Problem(
            refusal.call, "", "the call raises", got=user_traceback(refusal.error),
            advice="opcheck needs a valid call to begin with", cause=refusal.error,
        )  # fmt: skip
    for fault in session.faults:
        if isinstance(fault.error, ReturnError):
            trial.run += 1
            yield Problem(fault.call, "", str(fault.error), cause=fault.error)


def _not_again(call: Call, error: Exception) -> Problem:
    return Problem(
        call,
        "",
        "the same call worked before and raises now",
        got=user_traceback(error),
        advice="the operator keeps something from one call to the next",
    )


def _passed_otherwise(schema: FunctionSchema, call: Call) -> Iterator[tuple[Call, str]]:
    """Yield the call with all arguments by keyword, by position, and without defaults."""
    named = dict(call.named)
    if not any(keyword.iskeyword(name) for name in named):
        yield replace(call, args=(), kwargs=named), "by keyword"
    positional = []
    for argument in schema.positional:
        if argument.name not in named:
            break
        positional.append(argument.name)
    yield (
        replace(
            call,
            args=tuple(named[name] for name in positional),
            kwargs={name: v for name, v in named.items() if name not in positional},
        ),
        "by position",
    )
    whole = [a for a in schema.arguments if not any(keyword.iskeyword(n) for n in named)]
    full = {a.name: named.get(a.name, a.default) for a in whole}
    if whole and any(a.name not in named for a in whole):
        yield replace(call, args=(), kwargs=full), "with its defaults written out"


def _differs(trial: Trial, call: Call, variant: Call, how: str) -> Iterator[Problem]:
    outcome, expected = variant.fresh().run(), call.fresh().run()
    if expected.error is not None:
        return
    if outcome.error is not None:
        yield Problem(call, "", f"the call raises {how}", got=user_traceback(outcome.error))
        return
    if call.is_random:
        return
    found = trial.session.mismatch("schema", outcome, expected)
    if found is not None:
        name, mismatch = found
        yield Problem(
            call, name, f"differs when arguments are passed {how}", mismatch.expected, mismatch.got
        )


def fits(kind: Any, value: Any) -> bool:
    """Return whether a value is of a schema type, scalars exactly."""
    match kind:
        case TensorType():
            return isinstance(value, Tensor)
        case OptionalType(element):
            return value is None or fits(element, value)
        case ListType(element, size):
            sized = isinstance(value, list | tuple) and size in (None, len(value))
            return sized and all(fits(element, v) for v in value)
        case TupleType(elements):
            return (
                isinstance(value, tuple)
                and len(value) == len(elements)
                and all(map(fits, elements, value))
            )
        case DictType(key, element):
            return isinstance(value, dict) and all(
                fits(key, k) and fits(element, v) for k, v in value.items()
            )
        case UnionType(members):
            return any(fits(member, value) for member in members)
        case BasicType(name) if name in _PYTHON:
            return type(value) in _PYTHON[name]
    return True


SCHEMA: Final = Check(
    "schema", ("given", "size", "option", "values"), _examine, needs_samples=False
)
