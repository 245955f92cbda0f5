"""What a definition says, checked: the operator's name, its tags and effects.

Imports floors 0 to 3. Read next: `facet_registration.py`.
"""

from __future__ import annotations

from typing import Any

from .dispatch import ledger
from .dispatch.tags import TagsLike, normalize_effects, normalize_tags
from .errors import RegistrationError
from .schema import FunctionSchema

__all__ = ["described", "is_identifier", "split_name"]


def is_identifier(text: object) -> bool:
    """Return whether `text` can be a namespace, a name or an overload name."""
    return isinstance(text, str) and text.isidentifier() and text.isascii()


def split_name(qualname: str, who: str) -> tuple[str, str, str]:
    """Return namespace, name and overload name of a qualified name.

    Raises
    ------
    RegistrationError
        If it has another form; the message shows the form.
    """
    form = f"{who} takes a name of the form 'ns::name' or 'ns::name.overload', got {qualname!r}"
    if not isinstance(qualname, str) or qualname.count("::") != 1:
        raise RegistrationError(form)
    namespace, rest = qualname.split("::")
    name, dot, overload_name = rest.partition(".")
    parts = [namespace, name, *([overload_name] if dot else [])]
    if not all(map(is_identifier, parts)):
        raise RegistrationError(form)
    if overload_name == "default":
        raise RegistrationError(f"{form}; the unnamed overload is written without a dot")
    return namespace, name, overload_name


def described(
    schema: FunctionSchema, tags: TagsLike, effects: Any, **details: Any
) -> ledger.Definition:
    """Return the validated definition of an operator."""
    return ledger.Definition(
        schema, normalize_tags(tags, schema), normalize_effects(effects, schema), **details
    )
