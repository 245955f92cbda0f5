"""Where the parser stands in the text, and how it complains.

Imports `lexer.py`, `hints.py` and `rules.py`. Read next: `type_syntax.py`.
"""

from __future__ import annotations

from typing import Final, NoReturn

from . import hints
from .lexer import END, FAULT, IDENTIFIER, Token, tokenize
from .rules import Finding, Span, schema_error
from .types import RESERVED_WORDS

__all__ = ["DEEPEST", "Cursor"]

DEEPEST: Final = 32
"""How deep types and literals nest."""


class Cursor:
    """A walk over the tokens of one text.

    `noted` collects broken rules the walk could go on after; `qualname` is the operator's name once
    it has been read.
    """

    __slots__ = ("at", "fault", "noted", "qualname", "text", "token", "tokens")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a schema is a str, got {type(text).__name__}")
        self.text = text
        self.tokens, self.fault = tokenize(text)
        self.at = 0
        self.token = self.tokens[0]
        self.noted: list[Finding] = []
        self.qualname = ""

    def advance(self) -> Token:
        """Return the current token and go on to the next."""
        token = self.token
        self.at += 1
        self.token = self.tokens[self.at]
        return token

    def peek(self) -> Token:
        """Return the token after the current one."""
        return self.tokens[min(self.at + 1, len(self.tokens) - 1)]

    def accept(self, kind: str) -> bool:
        """Go on past a token of `kind` if there is one, and say so."""
        if self.token.kind == kind:
            self.advance()
            return True
        return False

    def expect(self, kind: str, after: str, hint: str = "") -> Token:
        """Go on past a token of `kind`, which must be there."""
        if self.token.kind != kind:
            self.unexpected(f"`{kind}` {after}", hint)
        return self.advance()

    def fail(self, rule: str, message: str, hint: str = "", token: Token | None = None) -> NoReturn:
        """Raise at `token`, by default the current one."""
        token = self.token if token is None else token
        self.raise_finding(Finding(rule, message, (token.start, token.end), hint))

    def raise_finding(self, finding: Finding) -> NoReturn:
        """Raise `finding` as an error that shows the text."""
        raise schema_error(self.text, finding, self.qualname)

    def unexpected(self, wanted: str, hint: str = "") -> NoReturn:
        """Raise because the current token is not what was `wanted`."""
        if self.token.kind == FAULT and self.fault is not None:
            self.raise_finding(self.fault)
        if self.token.kind == "...":
            self.fail("varargs", "an operator's arguments and returns are fixed", hints.VARARGS)
        found = "the end" if self.token.kind == END else f"`{self.token.text}`"
        self.fail("expected-token", f"expected {wanted}, found {found}", hint)

    def note(self, rule: str, message: str, span: Span, hint: str = "") -> None:
        """Keep a broken rule for later."""
        self.noted.append(Finding(rule, message, span, hint))

    def span_from(self, start: int) -> Span:
        """Return the span from `start` to the end of the last token read."""
        return start, self.tokens[self.at - 1].end

    def text_from(self, start: int) -> str:
        """Return the text of that span."""
        return self.text[slice(*self.span_from(start))]

    def name(self, what: str, hint: str = "", missing: str = "") -> str:
        """Read an identifier that is no reserved word."""
        token = self.token
        if token.kind != IDENTIFIER:
            if missing and token.kind != FAULT:
                self.fail(missing, f"expected {what}", hint)
            self.unexpected(what, hint)
        if token.text in RESERVED_WORDS:
            self.fail("bad-name", f"`{token.text}` is reserved", f"write {token.text}_")
        self.advance()
        return token.text
