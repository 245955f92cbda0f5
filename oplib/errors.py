"""Every exception class of oplib.

All of them derive from `OplibError` and from the built-in exception a caller would expect, so
``except TypeError`` around a call with a wrong argument works. A message answers four questions:
what was asked, what was found, where it comes from, what to do. The texts are built next to the
checks that raise them; this module only names the classes.

Imports nothing. Read next: `_text.py`, which holds the pieces messages are made of.
"""

from __future__ import annotations

__all__ = [
    "AliasError",
    "ArgumentError",
    "AutogradError",
    "CaptureError",
    "DataDependentError",
    "DispatchError",
    "FakeTensorError",
    "GuardError",
    "OpCheckError",
    "OperatorNotFoundError",
    "OperatorRemovedError",
    "OplibError",
    "RegistrationError",
    "RegistrationWarning",
    "ReturnError",
    "SchemaError",
]


class OplibError(Exception):
    """Base class of every error oplib raises on its own account."""


class SchemaError(OplibError, ValueError):
    """A schema string, or a signature a schema is inferred from, breaks a rule.

    Parameters
    ----------
    message : str
        What is wrong, one line, naming operator and argument where they are known.
    rule : str
        Name of the broken rule, for example ``"duplicate-argument"``.
    text : str
        The text that was parsed (empty for inference).
    span : tuple of int
        Half-open interval of the offending characters in `text`.
    hint : str
        What to write instead, or an empty string.
    excerpt : str
        Lines that show the place with a caret, or an empty string.
    """

    def __init__(
        self,
        message: str,
        *,
        rule: str = "",
        text: str = "",
        span: tuple[int, int] = (0, 0),
        hint: str = "",
        excerpt: str = "",
    ) -> None:
        lines = [message, *([excerpt] if excerpt else []), *([f"hint: {hint}"] if hint else [])]
        super().__init__("\n".join(lines))
        self.message = message
        self.rule = rule
        self.text = text
        self.span = span
        self.hint = hint


class RegistrationError(OplibError, RuntimeError):
    """A registration contradicts the schema, another registration, or itself."""


class RegistrationWarning(UserWarning):
    """A registration was kept but cannot take effect as it stands."""


class ArgumentError(OplibError, TypeError):
    """A call does not fit the operator's schema, or an API was given a value of a wrong type."""


class ReturnError(OplibError, TypeError):
    """A kernel or rule returned something else than the schema says."""


class DispatchError(OplibError, NotImplementedError):
    """No implementation serves this call."""


class OperatorNotFoundError(OplibError, AttributeError):
    """No operator of this name is defined."""


class OperatorRemovedError(OplibError, RuntimeError):
    """The operator behind this handle was removed."""


class AliasError(OplibError, RuntimeError):
    """Memory is shared, or written, in a way the schema does not declare."""


class AutogradError(OplibError, RuntimeError):
    """A gradient cannot be computed, or would be wrong."""


class FakeTensorError(OplibError, RuntimeError):
    """A shape rule is missing or wrong, or real and fake tensors were mixed."""


class DataDependentError(FakeTensorError):
    """The value of a tensor without data was asked for; that of `array`, where it is known."""

    array: object = None


class CaptureError(OplibError, RuntimeError):
    """A program cannot be captured as a graph, or a graph is malformed."""


class GuardError(OplibError, RuntimeError):
    """A captured program was called with arguments it was not captured for."""


class OpCheckError(OplibError, AssertionError):
    """The facets of an operator disagree; carries the report as ``.report``."""

    def __init__(self, message: str, report: object = None) -> None:
        super().__init__(message)
        self.report = report
