"""Well-formedness: one small function per rule, run in the order of the table at the end.

The parser raises what it cannot read past (``expected-token`` to ``dict-key``, ``nesting``,
``name-required``). All else is a rule over a `Draft`: the parsed model, where its parts stand
in the text, and what the parser noted on the way but could go on after. The first rule that is
broken is reported, whatever comes first in the text.

Imports `model.py`. Read next: `syntax.py`, which makes drafts; `infer.py` makes them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from .._text import caret_excerpt
from ..errors import SchemaError
from .model import Argument, FunctionSchema, Return
from .types import (
    WILDCARD,
    AliasSet,
    OptionalType,
    Type,
    tensors_of,
    unions_of,
)

__all__ = ["RULES", "Draft", "Finding", "Place", "Span", "check", "schema_error"]

Span: TypeAlias = tuple[int, int]


class Finding(NamedTuple):
    """A broken rule: its name, what is wrong, where, and what to write instead."""

    rule: str
    message: str
    span: Span
    hint: str = ""


class Place(NamedTuple):
    """Where the type and the name of an argument or a return stand."""

    type: Span
    name: Span


class Draft(NamedTuple):
    """A schema that has been read but not judged."""

    text: str
    schema: FunctionSchema
    arguments: list[Place]
    returns: list[Place]
    noted: list[Finding]

    def note(self, rule: str) -> Finding | None:
        """Return the first finding of `rule` the parser noted."""
        return next((finding for finding in self.noted if finding.rule == rule), None)


def schema_error(text: str, finding: Finding, qualname: str = "") -> SchemaError:
    """Return the error that shows `finding` inside `text`."""
    message = f"{qualname}: {finding.message}" if qualname else finding.message
    return SchemaError(
        _printable(message),
        rule=finding.rule,
        text=text,
        span=finding.span,
        hint=_printable(finding.hint),
        excerpt=caret_excerpt(text, *finding.span),
    )


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def check(draft: Draft) -> FunctionSchema:
    """Return the schema of `draft` if it breaks no rule.

    Raises
    ------
    SchemaError
        For the first rule that is broken.
    """
    for rule in RULES:
        finding = rule(draft)
        if finding is not None:
            raise schema_error(draft.text, finding, draft.schema.qualname)
    return draft.schema


# Names and defaults ------------------------------------------------------------------------------


def duplicate_argument(draft: Draft) -> Finding | None:
    """Two arguments never share a name."""
    return _duplicate("argument", draft.schema.arguments, draft.arguments)


def duplicate_return(draft: Draft) -> Finding | None:
    """Two returns never share a name."""
    return _duplicate("return", draft.schema.returns, draft.returns)


def _duplicate(
    noun: str, items: Sequence[Argument | Return], places: list[Place]
) -> Finding | None:
    seen = set()
    for item, place in zip(items, places, strict=True):
        if item.name is not None and item.name in seen:
            message = f"{noun} `{item.name}` appears twice"
            return Finding(f"duplicate-{noun}", message, place.name, "rename one of them")
        seen.add(item.name)
    return None


def default_type(draft: Draft) -> Finding | None:
    """A default is a literal of the declared type."""
    return draft.note("default-type")


def default_length(draft: Draft) -> Finding | None:
    """A list default has the declared length."""
    return draft.note("default-length")


def default_order(draft: Draft) -> Finding | None:
    """A positional argument without a default never follows one with a default."""
    earlier = None
    for argument, place in zip(draft.schema.positional, draft.arguments, strict=False):
        if argument.has_default:
            earlier = earlier or argument
        elif earlier is not None:
            default = str(earlier).removeprefix(f"{earlier.type} ")
            message = f"`{argument.name}` has no default but follows `{default}`"
            hint = "give it one or put it after `*`"
            return Finding("default-order", message, place.name, hint)
    return None


def int_range(draft: Draft) -> Finding | None:
    """An integer default fits in 64 bits."""
    return draft.note("int-range")


# Alias annotations -------------------------------------------------------------------------------


def alias_non_tensor(draft: Draft) -> Finding | None:
    """Only a Tensor carries an alias annotation."""
    return draft.note("alias-non-tensor")


def alias_place(draft: Draft) -> Finding | None:
    """An annotation stands right behind its Tensor, or behind a list of Tensors."""
    return draft.note("alias-place")


def alias_set(draft: Draft) -> Finding | None:
    """A set is named, its members differ, and the wildcard stands alone."""
    return draft.note("alias-set")


def alias_write(draft: Draft) -> Finding | None:
    """A written tensor has one set of its own."""
    return draft.note("alias-write")


def alias_shared(draft: Draft) -> Finding | None:
    """A written set belongs to one argument alone."""
    users: dict[str, tuple[str, bool]] = {}
    for argument, place in zip(draft.schema.arguments, draft.arguments, strict=True):
        for label, written in _own_labels(argument.type).items():
            other, other_written = users.setdefault(label, (argument.name, written))
            if other != argument.name and (written or other_written):
                message = f"`{label}` labels both `{other}` and `{argument.name}`"
                hint = "give each its own letter"
                return Finding("alias-shared", message, place.type, hint)
    return None


def _own_labels(type_: Type) -> dict[str, bool]:
    """Return the labels inside `type_`, each with whether it is written."""
    labels: dict[str, bool] = {}
    for alias in _aliases(type_):
        for label in alias.before:
            labels[label] = labels.get(label, False) or alias.written
    labels.pop(WILDCARD, None)
    return labels


def _aliases(type_: Type) -> Iterator[AliasSet]:
    return (tensor.alias for _, _, tensor in tensors_of(type_) if tensor.alias is not None)


# Returns -----------------------------------------------------------------------------------------


def return_set(draft: Draft) -> Finding | None:
    """A set on a return is carried by an argument."""
    carried: frozenset[str] | None = None
    for each, place in zip(draft.schema.returns, draft.returns, strict=True):
        for alias in _aliases(each.type):
            if carried is None:
                carried = _carried(draft.schema)
            for label in sorted(alias.before - carried):
                message = f"no argument is labelled `{label}`"
                hint = f"label the argument it shares memory with, Tensor({label})"
                return Finding("return-set", message, place.type, hint)
    return None


def _carried(schema: FunctionSchema) -> frozenset[str]:
    labels = (alias.labels for argument in schema.arguments for alias in _aliases(argument.type))
    return frozenset({WILDCARD}).union(*labels)


def return_write(draft: Draft) -> Finding | None:
    """A written return is a written argument, and says so by a set that does not change."""
    written: set[str] | None = None
    for each, place in zip(draft.schema.returns, draft.returns, strict=True):
        for alias in _aliases(each.type):
            if written is None:
                written = _written_labels(draft.schema)
            message, hint = _return_write_fault(alias, written, draft.schema)
            if message:
                return Finding("return-write", message, place.type, hint)
    return None


def _written_labels(schema: FunctionSchema) -> set[str]:
    return {
        label
        for argument in schema.arguments
        for label, is_written in _own_labels(argument.type).items()
        if is_written
    }


def _return_write_fault(
    alias: AliasSet, written: set[str], schema: FunctionSchema
) -> tuple[str, str]:
    if not alias.before:
        return "a bare `!` on a return names no argument", "label both (a!)"
    if alias.after:
        return "a return has no set after the call", "write one set"
    unwritten = sorted(alias.before - written)
    if alias.written and unwritten:
        label = unwritten[0]
        names = (each.name for each in schema.arguments if label in _own_labels(each.type))
        return f"`{next(names, label)}` is not written", f"label it ({label}!)"
    return "", ""


def return_type(draft: Draft) -> Finding | None:
    """A written return has its argument's type; ``T?`` may be returned as ``T``."""
    schema = draft.schema
    for index, place in enumerate(draft.returns):
        name = schema.returned_argument(index)
        if name is None:
            continue
        declared, returned = schema.argument(name).type, schema.returns[index].type
        present = declared.element if isinstance(declared, OptionalType) else declared
        if returned not in (declared, present):
            message = f"`{name}` is `{declared}`, the return says `{returned}`"
            return Finding("return-type", message, place.type, f"write {declared}")
    return None


def return_twice(draft: Draft) -> Finding | None:
    """A written argument is returned at most once."""
    seen = set()
    for index, place in enumerate(draft.returns):
        name = draft.schema.returned_argument(index)
        if name is not None and name in seen:
            hint = "return it once; the caller has the tensor already"
            return Finding("return-twice", f"`{name}` is returned twice", place.type, hint)
        seen.add(name)
    return None


def return_name(draft: Draft) -> Finding | None:
    """A return named like an argument is that argument."""
    schema = draft.schema
    for index, (each, place) in enumerate(zip(schema.returns, draft.returns, strict=True)):
        if each.name is None or schema.returned_argument(index) == each.name:
            continue
        if any(argument.name == each.name for argument in schema.arguments):
            message = f"return `{each.name}` is not the argument `{each.name}`"
            return Finding("return-name", message, place.name, "label both (a!) or rename")
    return None


# Structure ---------------------------------------------------------------------------------------


def union_tensor(draft: Draft) -> Finding | None:
    """No written Tensor inside a Union, and no Tensor at all inside a returned one."""
    for argument, place in zip(draft.schema.arguments, draft.arguments, strict=True):
        for union in unions_of(argument.type):
            if any(tensor.is_written for _, _, tensor in tensors_of(union)):
                message = f"`{argument.name}` writes a Tensor inside a Union"
                hint = "make it an argument of its own, Tensor(a!)?"
                return Finding("union-tensor", message, place.type, hint)
    for each, place in zip(draft.schema.returns, draft.returns, strict=True):
        for union in unions_of(each.type):
            if any(tensors_of(union)):
                message = f"a return's structure is fixed, `{union}` is not"
                hint = "use a list, an optional, or two operators"
                return Finding("union-tensor", message, place.type, hint)
    return None


def empty_tuple(draft: Draft) -> Finding | None:
    """``()`` is no type."""
    return draft.note("empty-tuple")


Rule: TypeAlias = Callable[[Draft], Finding | None]

RULES: Final[tuple[Rule, ...]] = (
    duplicate_argument,
    duplicate_return,
    default_type,
    default_length,
    default_order,
    int_range,
    alias_non_tensor,
    alias_place,
    alias_set,
    alias_write,
    alias_shared,
    return_set,
    return_write,
    return_type,
    return_twice,
    return_name,
    union_tensor,
    empty_tuple,
)
"""The rules in the order they are checked."""
