"""Tags and effects of an operator: what passes and checks may assume about it.

Imports floors 0 and 1.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from .._text import did_you_mean, short_repr
from ..errors import RegistrationError
from ..schema import BasicType, FunctionSchema, OptionalType

__all__ = ["ORDERED", "RANDOM", "Tag", "TagsLike", "normalize_effects", "normalize_tags"]

ORDERED: Final = "ordered"
RANDOM: Final = "random"


class Tag(enum.StrEnum):
    """What is known about an operator beyond its schema."""

    pointwise = "pointwise"
    reduction = "reduction"
    core = "core"
    inplace = "inplace"
    out = "out"
    view = "view"
    nondeterministic = "nondeterministic"
    nondeterministic_seeded = "nondeterministic_seeded"
    data_dependent_output = "data_dependent_output"
    dynamic_output_shape = "dynamic_output_shape"
    mixed_devices = "mixed_devices"
    needs_exact_strides = "needs_exact_strides"
    needs_contiguous_strides = "needs_contiguous_strides"
    flexible_layout = "flexible_layout"
    pt2_compliant_tag = "pt2_compliant_tag"


TagsLike: TypeAlias = str | Iterable[str] | None

_LAYOUT: Final = ("needs_exact_strides", "needs_contiguous_strides", "flexible_layout")


def normalize_tags(tags: TagsLike, schema: FunctionSchema) -> tuple[str, ...]:
    """Return tags as a sorted tuple, with those that the schema implies.

    Raises
    ------
    RegistrationError
        For an unknown word without a ``:``, or a tag that contradicts the schema.
    """
    words = [tags] if isinstance(tags, str) else list(tags or ())
    given = set()
    for word in words:
        if not isinstance(word, str):
            raise RegistrationError(f"a tag is an oplib.Tag or its name, got {short_repr(word)}")
        text = str(word)
        if ":" not in text and text not in Tag.__members__:
            known = did_you_mean(text, Tag.__members__)
            raise RegistrationError(
                f"{schema.qualname}: unknown tag {text!r}{known}; "
                "a project's own tag contains a colon, as in 'mylib:fast'"
            )
        given.add(text)
    implied = {
        "inplace": schema.is_inplace,
        "out": schema.is_out,
        "view": schema.is_view,
    }
    for tag, holds in implied.items():
        if tag in given and not holds:
            raise RegistrationError(
                f"{schema.qualname}: tag {tag!r} contradicts the schema {schema}"
            )
        if holds:
            given.add(tag)
    strictest = next((tag for tag in _LAYOUT if tag in given), None)
    return tuple(sorted(t for t in given if t not in _LAYOUT or t == strictest))


def normalize_effects(effects: Any, schema: FunctionSchema) -> frozenset[str]:
    """Return the effects of an operator; None derives them from the schema."""
    if effects is None:
        found = {ORDERED} if schema.is_effect else set()
        if any(_is_generator(argument.type) for argument in schema.arguments):
            found.add(RANDOM)
        return frozenset(found)
    words = [effects] if isinstance(effects, str) else list(effects)
    for word in words:
        if not isinstance(word, str) or not word:
            raise RegistrationError(
                f"{schema.qualname}: an effect is a name, got {short_repr(word)}"
            )
    return frozenset(words)


def _is_generator(kind: Any) -> bool:
    kind = kind.element if isinstance(kind, OptionalType) else kind
    return isinstance(kind, BasicType) and kind.name == "Generator"
