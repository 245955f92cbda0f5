# ruff: noqa: D102, D400, D401, D403  (the docstring of a method is its production)
"""The grammar of defaults, one method per production.

Imports `cursor.py` and `literals.py`. Read next: `syntax.py`.
"""

from __future__ import annotations

from typing import Final

from . import hints
from .cursor import DEEPEST, Cursor
from .lexer import IDENTIFIER, NUMBER, STRING, number_value, string_value
from .literals import Literal
from .rules import Finding

__all__ = ["LiteralParser"]

_CONSTANTS: Final = {
    "None": ("none", None),
    "True": ("bool", True),
    "False": ("bool", False),
    "inf": ("float", float("inf")),
    "nan": ("float", float("nan")),
}


class LiteralParser(Cursor):
    """Reads literals, which have no meaning before a declared type gives them one."""

    __slots__ = ()

    def literal(self, depth: int) -> Literal:
        """literal = "None" | "True" | "False" | number | string | ident | list | tuple ;"""
        token = self.token
        if token.kind in (NUMBER, "-"):
            return self.number()
        if token.kind == STRING:
            return self.string()
        if token.kind == IDENTIFIER:
            return self.word()
        if token.kind in ("[", "("):
            if depth >= DEEPEST:
                self.fail("nesting", f"nested more than {DEEPEST} deep", hints.NESTING)
            return self.list_literal(depth) if token.kind == "[" else self.tuple_literal(depth)
        return self.unexpected("a default", hints.MISSING_DEFAULT.get(token.kind, ""))

    def word(self) -> Literal:
        token = self.token
        if token.text in _CONSTANTS:
            self.advance()
            kind, value = _CONSTANTS[token.text]
            return Literal(kind, value, token.text, token.start)
        self.name("a default")
        while self.token.kind == "." and self.peek().kind == IDENTIFIER:
            self.advance()
            self.advance()
        text = self.text_from(token.start)
        return Literal("word", text, text, token.start)

    def string(self) -> Literal:
        token = self.advance()
        value = string_value(token)
        if isinstance(value, Finding):
            self.raise_finding(value)
        if self.token.kind == STRING:
            self.fail("bad-string", "two strings stand side by side", "write one string")
        return Literal("str", value, token.text, token.start)

    def number(self) -> Literal:
        """number = [ "-" ] ( integer | float | imaginary | complex ) ;"""
        start = self.token.start
        negative = self.accept("-")
        value = self.signed(negative)
        if self.token.kind in ("+", "-") and not isinstance(value, complex):
            value = self.complex_(value, negative)
        text = self.text_from(start)
        return Literal(type(value).__name__, value, text, start)

    def signed(self, negative: bool) -> int | float | complex:
        if self.token.text == "nan":
            self.fail("bad-number", "nan has no sign", "write nan")
        if self.token.text == "inf":
            self.advance()
            return float("-inf")
        if self.token.kind != NUMBER:
            self.unexpected("a number after `-`")
        value = number_value(self.token)
        if isinstance(value, Finding):
            self.raise_finding(value)
        self.advance()
        if isinstance(value, complex):
            return complex(0.0, -value.imag) if negative else value
        return -value if negative else value

    def complex_(self, real: int | float, negative: bool) -> complex:
        """complex = real ( "+" | "-" ) imaginary ;"""
        sign = self.advance()
        imaginary = number_value(self.token) if self.token.kind == NUMBER else None
        if isinstance(imaginary, Finding):
            self.raise_finding(imaginary)
        if not isinstance(imaginary, complex):
            self.unexpected(f"an imaginary number such as `2j` after `{sign.text}`")
        self.advance()
        if negative and real == 0:
            real = -0.0  # `-0` is an integer without a sign, but a real part has one
        return complex(real, imaginary.imag if sign.kind == "+" else -imaginary.imag)

    def list_literal(self, depth: int) -> Literal:
        """list = "[" [ literal { "," literal } ] "]" ;"""
        start = self.advance().start
        items: list[Literal] = []
        if not self.accept("]"):
            items.append(self.literal(depth + 1))
            while self.accept(","):
                items.append(self.literal(depth + 1))
            self.expect("]", "to close the list")
        return Literal("list", tuple(items), self.text_from(start), start)

    def tuple_literal(self, depth: int) -> Literal:
        """tuple = "(" literal "," [ literal { "," literal } ] ")" ;"""
        start = self.advance().start
        items = [self.literal(depth + 1)]
        self.expect(",", "in a tuple", "a tuple of one is written (a,)")
        if self.token.kind != ")":
            items.append(self.literal(depth + 1))
            while self.accept(","):
                items.append(self.literal(depth + 1))
        self.expect(")", "to close the tuple")
        return Literal("tuple", tuple(items), self.text_from(start), start)
