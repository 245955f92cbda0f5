"""The tokens of the text of graphs, and `Line`, a position in those of one line.

Imports floor 0. Read next: `operands.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NoReturn, cast

from .._text import caret_excerpt
from ..errors import CaptureError

__all__ = ["ANY", "Line", "Token"]

_TOKEN: Final = re.compile(
    r"""
    (?P<space>[ \t]+)
  | (?P<digest>\#sha256:[0-9a-f]{64})
  | (?P<comment>\#.*)
  | (?P<effect>token\[[^\]]*\])
  | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
  | (?P<imaginary>(?:inf|nan(?:\(0x[0-9a-f]+\))?|[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)j\b)
  | (?P<float>(?:inf|nan)\b(?:\(0x[0-9a-f]+\))?|[0-9]+\.[0-9]+(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+)
  | (?P<bytes>[0-9]+b\b)
  | (?P<int>[0-9]+)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<sign>//|\.\.\.|[()\[\]{}:,=.&@!+\-*/%])
    """,
    re.VERBOSE,
)
ANY: Final = None
"""Matches every token in `Line.is_next`."""


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a line: what kind it is, how it is written, where it begins."""

    kind: str
    text: str
    start: int


class Line:
    """The tokens of one line and a position in them."""

    def __init__(self, text: str, number: int) -> None:
        self.text = text
        self.number = number
        self.tokens: list[Token] = []
        self.at = 0
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                self.fail("a character that begins nothing", position, position + 1)
            kind = cast("str", match.lastgroup)
            if kind not in ("space", "comment"):
                self.tokens.append(Token(kind, match[0], position))
            position = match.end()
        self.tokens.append(Token("end", "", len(text.rstrip())))

    @property
    def next(self) -> Token:
        """The token that comes next; at the end one of kind ``end``."""
        return self.tokens[self.at]

    @property
    def ended(self) -> int:
        """Where the last token that was read ends."""
        token = self.tokens[self.at - 1]
        return token.start + len(token.text)

    def peek(self, steps: int) -> Token:
        """Return a token further on."""
        return self.tokens[min(self.at + steps, len(self.tokens) - 1)]

    def is_next(self, *texts: str | None) -> bool:
        """Whether the next tokens have these texts."""
        return all(text in (ANY, self.peek(steps).text) for steps, text in enumerate(texts))

    def take(self, text: str) -> bool:
        """Step over the next token if it has this text."""
        if self.next.text != text or self.next.kind == "end":
            return False
        self.at += 1
        return True

    def expect(self, text: str) -> None:
        """Step over a token that must have this text."""
        if not self.take(text):
            self.fail(f"expected `{text}`")

    def end(self) -> None:
        """Fail unless the line has been read to its end."""
        if self.next.kind != "end":
            self.fail("expected the end of the line")

    def kind(self, kind: str, what: str) -> str:
        """Step over a token of this kind and return its text."""
        token = self.next
        if token.kind != kind:
            self.fail(f"expected {what}")
        self.at += 1
        return token.text

    def fail(self, message: str, start: int | None = None, end: int | None = None) -> NoReturn:
        """Raise with the line and a caret under the next token, or under ``start:end``."""
        if start is None:
            token = self.next
            start, end = token.start, token.start + len(token.text)
            message += f", found `{token.text}`" if token.text else ", found the end of the line"
        if self.tokens:
            start = max(start, self.tokens[0].start)  # what is wrong with a whole line
        raise CaptureError(
            f"line {self.number} of a graph's text: {message}\n"
            + caret_excerpt(self.text, start, end or start + 1)
        )
