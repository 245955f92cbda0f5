"""What to write instead: the hints of the parser, most of them for words of other languages.

Imports `lexer.py` and below. Read next: `cursor.py`.
"""

from __future__ import annotations

import difflib
import re
from typing import Final

from .lexer import IDENTIFIER, Token
from .model import Argument
from .rules import Finding
from .types import BASIC_WORDS, ListType, OptionalType, Type, opaque_names

__all__ = [
    "MISTAKES_AFTER_TYPE",
    "after_alias",
    "after_argument",
    "after_name",
    "after_return",
    "arrow",
    "mistake_after_type",
    "unknown_type",
    "with_alias",
]

VARARGS: Final = "use a list type, for example Tensor[] xs"
NONE_TYPE: Final = "write T? for a value that may be None, () for no return"
DEFAULT_OVERLOAD: Final = (
    "the unnamed overload is written without a dot and reached as .default; "
    "names starting with __ are taken"
)
LIST_SIZE: Final = "a list size is a positive integer and closes the type, as in int[2]"
NESTING: Final = "pass the parts as separate arguments"
STRAY_COMMA: Final = "commas stand between items only"
MISSING_TYPE: Final = {"*": "one `*` stands alone, before the keyword-only arguments"}
MISSING_DEFAULT: Final = {
    "+": "a number has no leading +",
    "{": "a dictionary has no literal; write Dict(K, V)? and None",
}
NAME_PARTS: Final = {
    ("::", True): ("more than one `::` in the name", "write ns::name.overload"),
    ("::", False): ("a namespace has no dots", "write ns::name.overload"),
    (".", True): ("more than one `.` in the name", "write ns::name.overload"),
    (".", False): ("more than one `.` in the name", "write ns::name.overload"),
}

_REPLACEMENTS: Final = {
    **dict.fromkeys(("double", "float64", "float32", "SymFloat"), "float"),
    **dict.fromkeys(("int64_t", "int32_t", "size_t", "long", "int64", "int32"), "int or SymInt"),
    **dict.fromkeys(("string", "char"), "str"),
    **dict.fromkeys(("number", "Number"), "Scalar"),
    **dict.fromkeys(("tensor", "ndarray", "NDArray", "Array"), "Tensor"),
    **dict.fromkeys(("PyObject", "object"), "Any, or register the class"),
    "dtype": "ScalarType",
    "boolean": "bool",
    "void": "-> () for no return",
}
_KNOWN: Final = ("Tensor", *BASIC_WORDS, "Dict", "Union")
_BY_LOWER_CASE: Final = {word.lower(): word for word in _KNOWN}
_VARIABLE: Final = re.compile(r"[A-Za-z][0-9]?")
_BRACKETED: Final = {
    "Optional": "{}?",
    "List": "{}[]",
    "list": "{}[]",
    "Sequence": "{}[]",
    "Tuple": "({})",
    "tuple": "({})",
    "Dict": "Dict({})",
    "dict": "Dict({})",
    "Union": "Union({})",
}
_BARE: Final = {"Optional": "T", "List": "T", "list": "T", "Sequence": "T"}
MISTAKES_AFTER_TYPE: Final = frozenset("|&*<")


def unknown_type(text: str, tokens: list[Token], first: int, name: str) -> Finding:
    """Return the finding for the unknown type `name` whose first token is ``tokens[first]``."""
    start = tokens[first].start
    span = start, start + len(name)
    after = tokens[min(first + 2 * name.count(".") + 1, len(tokens) - 1)]
    message = f"unknown type `{name}`"
    if after.kind == ":" and name.isidentifier():
        return Finding("unknown-type", message, span, f"the type comes first: Tensor {name}")
    return Finding("unknown-type", message, span, _unknown_hint(text, tokens, first, name, after))


def _unknown_hint(text: str, tokens: list[Token], first: int, name: str, after: Token) -> str:
    if name in _BRACKETED:
        inside = _bracketed(text, after) if after.kind in ("[", "(") else ""
        inside = inside or _BARE.get(name, "A, B")
        return f"write {_BRACKETED[name].format(inside)}"
    if name == "const":
        return "write Tensor"
    if name == "std" and after.kind == "::":
        return "write str" if tokens[first + 2].text == "string" else "write T[]"
    if name in _REPLACEMENTS:
        return f"use {_REPLACEMENTS[name]}"
    if name.lower() in _BY_LOWER_CASE:
        return f"use {_BY_LOWER_CASE[name.lower()]}"
    if _VARIABLE.fullmatch(name):
        return "there are no type variables: define one overload per type"
    register = f'a class is a type after oplib.register_opaque_type(cls, "{name}")'
    near = difflib.get_close_matches(name, [*_KNOWN, *opaque_names()], n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}? {register}" if near else register


def _bracketed(text: str, opening: Token) -> str:
    """Return what stands between `opening` and its partner, or an empty string."""
    depth = 0
    for position in range(opening.start, len(text)):
        depth += (text[position] in "[(") - (text[position] in "])")
        if depth == 0:
            return text[opening.end : position].strip()
    return ""


def mistake_after_type(text: str, start: int, tokens: list[Token], at: int) -> Finding:
    """Return the finding for ``A | B``, ``Tensor&``, ``Tensor*`` or ``vector<T>``."""
    token = tokens[at]
    type_text = text[start : token.start].strip()
    if token.kind == "|":
        members = [type_text]
        while tokens[at].kind == "|" and tokens[at + 1].kind == IDENTIFIER:
            members.append(tokens[at + 1].text)
            at += 2
        if "None" in members:
            kept = [member for member in members if member != "None"]
            hint = f"write {kept[0]}?" if len(kept) == 1 else f"write Union({', '.join(kept)})?"
        else:
            hint = f"write Union({', '.join(members)})"
        end = tokens[at - 1].end
        return Finding("unknown-type", f"`{text[start:end]}` is no type", (start, end), hint)
    message = f"`{type_text}{token.text}` is no type"
    return Finding("unknown-type", message, (start, token.end), f"write {type_text}")


def with_alias(type_: Type, alias: str) -> str:
    """Return the text of a list or optional of Tensors with `alias` where it belongs."""
    match type_:
        case ListType(element, size):
            return f"{with_alias(element, alias)}[{'' if size is None else size}]"
        case OptionalType(element):
            return f"{with_alias(element, alias)}?"
    return f"Tensor{alias}"


def after_name(token: Token) -> str:
    """Return the hint for what stands between an operator's name and its arguments."""
    if token.kind == ":":
        return "write ns::name"
    if token.kind in ("-", IDENTIFIER):
        return "a name is made of letters, digits and _"
    if token.kind == "[":
        return "there are no type variables: define one overload per type"
    return ""


def after_argument(argument: Argument, token: Token, following: Token) -> str:
    """Return the hint for what stands between an argument and its comma."""
    if token.kind == ":":
        return f"the type comes first: {argument.type} {argument.name}"
    if token.kind == IDENTIFIER and following.kind == IDENTIFIER:
        return "arguments are separated by commas"
    if token.kind == IDENTIFIER and str(argument.type) == "Tensor":
        return "an argument is one type and one name"
    return ""


def after_return(token: Token) -> str:
    """Return the hint for what stands behind a return."""
    if token.kind == "=":
        return "a return has no default"
    if token.kind == ",":
        return "several returns stand in parentheses: -> (A, B)"
    return ""


def after_alias(token: Token) -> str:
    """Return the hint for what stands behind an alias set instead of `)`."""
    if token.kind in (",", IDENTIFIER):
        return "join sets with |, as in Tensor(a|b)"
    if token.kind == "!":
        return "one ! before any ->"
    return ""


def arrow(token: Token, following: Token) -> str:
    """Return the hint for a misspelt ``->``."""
    if (token.kind, following.kind) in ((("-", ">")), ("=", ">")) or token.kind == ":":
        return "write -> and the return types"
    return ""
