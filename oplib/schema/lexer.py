"""From text to tokens.

The whole text is cut in one pass. Lexing stops at the first character that cannot start or continue
a token; the fault becomes the last token, and the parser raises it when it gets there, so the first
mistake in reading order is the one reported.

Imports `rules.py` for `Finding`. Read next: `syntax.py`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from .rules import Finding

__all__ = ["IDENTIFIER", "NUMBER", "STRING", "Token", "number_value", "string_value", "tokenize"]

IDENTIFIER: Final = "identifier"
NUMBER: Final = "number"
STRING: Final = "string"
FAULT: Final = "fault"
END: Final = "end"

_TOKEN: Final = re.compile(
    r"""
      (?P<space>  (?: [ \t\r\f\n]+ | \#[^\n]* )+ )
    | (?P<identifier> [A-Za-z_][A-Za-z0-9_]* )
    | (?P<number> \.?[0-9] (?: [eE][+-][0-9] | [A-Za-z0-9_.] )* )
    | (?P<mark>   -> | :: | \.\.\. | [()\[\],.=!?|*+\-:;<>&{}] )
    | (?P<string> \"{3} (?: [^\\"] | \\. | \\\n | "(?!"") )* \"{3}
                | " (?: [^"\\\n] | \\. )* "
                | ' (?: [^'\\\n] | \\. )* ' )
    """,
    re.VERBOSE,
)
_INTEGER: Final = re.compile(r"0|[1-9][0-9]*")
_FLOAT: Final = re.compile(r"([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]+)?")
_PREFIXED: Final = re.compile(r"0[xX][0-9A-Fa-f]+|0[bB][01]+|0[oO][0-7]+")
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))?", re.DOTALL
)
_SIMPLE_ESCAPES: Final = {
    "\\": "\\",
    "'": "'",
    '"': '"',
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "0": "\0",
}
_LONGEST_INTEGER: Final = 300


class Token(NamedTuple):
    """A piece of text; `kind` is the text itself for punctuation."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """The position after the last character."""
        return self.start + len(self.text)


def tokenize(text: str) -> tuple[list[Token], Finding | None]:
    """Return the tokens of `text`, closed by an ``end`` or by a ``fault`` and what it is."""
    tokens: list[Token] = []
    position = 0
    for match in iter(_TOKEN.scanner(text).match, None):  # type: ignore[attr-defined]
        position = match.end()
        kind = match.lastgroup
        if kind == "space":
            continue
        piece = match.group()
        tokens.append(Token(piece if kind == "mark" else kind, piece, match.start()))
    if position == len(text):
        tokens.append(Token(END, "", position))
        return tokens, None
    tokens.append(Token(FAULT, text[position], position))
    return tokens, _fault(text[position], position)


def _fault(char: str, position: int) -> Finding:
    span = position, position + 1
    if char in "'\"":
        return Finding("bad-string", "string is not closed", span)
    shown = f"`{char}`" if char.isprintable() else f"character U+{ord(char):04X}"
    return Finding("unexpected-character", f"unexpected {shown}", span)


def number_value(token: Token) -> int | float | complex | Finding:
    """Return the value of a number, or what is wrong with it.

    An imaginary number is a complex one. Integers may be long, but not absurdly so.
    """
    text, span = token.text, (token.start, token.end)
    if _INTEGER.fullmatch(text):
        if len(text) > _LONGEST_INTEGER:
            return Finding("bad-number", "the number is too large for a float", span, "write inf")
        return int(text)
    imaginary = text.endswith("j")
    digits = text[:-1] if imaginary else text
    if not (_FLOAT.fullmatch(digits) or (imaginary and _INTEGER.fullmatch(digits))):
        return Finding("bad-number", f"`{text}` is not a number", span, _number_hint(text))
    value = float(digits)
    if value == float("inf"):
        return Finding("bad-number", f"`{text}` is too large for a float", span, "write inf")
    return complex(0.0, value) if imaginary else value


def _number_hint(text: str) -> str:
    if _PREFIXED.fullmatch(text) and len(text) <= _LONGEST_INTEGER:
        return f"numbers are decimal; {text} is {int(text, 0)}"
    if text.isdigit():
        return f"no leading zeros; write {text.lstrip('0') or '0'}"
    plain = text.replace("_", "")
    return f"write {plain}" if _INTEGER.fullmatch(plain) else "numbers are decimal"


def string_value(token: Token) -> str | Finding:
    """Return the value of a string, or what is wrong with it."""
    width = 3 if token.text.startswith('"""') and len(token.text) >= 6 else 1
    body = token.text[width:-width]
    if "\\" not in body:
        return body
    pieces, position = [], 0
    for match in _ESCAPE.finditer(body):
        pieces.append(body[position : match.start()])
        position = match.end()
        char = _escaped(match)
        if char is None:
            start = token.start + width + match.start()
            known = r"\\ \' \" \n \r \t \0 \xHH \uHHHH \UHHHHHHHH"
            message = f"unknown escape `{match.group()}` in a string"
            return Finding("bad-string", message, (start, start + 2), f"use one of {known}")
        pieces.append(char)
    return "".join([*pieces, body[position:]])


def _escaped(match: re.Match[str]) -> str | None:
    code = match[1] or match[2] or match[3]
    if code is None:
        return _SIMPLE_ESCAPES.get(match[4])
    return chr(int(code, 16)) if int(code, 16) <= 0x10FFFF else None
