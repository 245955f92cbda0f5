# ruff: noqa: D102, D400, D401, D403  (the docstring of a method is its production)
"""The grammar of types and alias annotations, one method per production.

Imports `cursor.py` and below. Read next: `literal_syntax.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from . import hints
from .cursor import DEEPEST, Cursor
from .lexer import END, FAULT, IDENTIFIER, NUMBER, Token
from .rules import Span
from .types import (
    BASIC_WORDS,
    RESERVED_WORDS,
    WILDCARD,
    AliasSet,
    BasicType,
    ClassType,
    DictType,
    ListType,
    OptionalType,
    TensorType,
    TupleType,
    Type,
    UnionType,
    map_tensors,
    opaque_class,
    union_of,
)

__all__ = ["TypeParser", "parse_type"]

_WORDS: Final = {word: BasicType(word) for word in BASIC_WORDS}
_TENSOR: Final = TensorType()
_NONE_TYPE: Final = BasicType("NoneType")  # lives only until its union swallows it
_KEY_TYPES: Final = frozenset("str int float bool".split())
_LONGEST_LIST: Final = 1024


def parse_type(text: str) -> Type:
    """Return the type that `text` spells, for example ``"int[2]?"``.

    Raises
    ------
    SchemaError
        If it spells no type.
    """
    return TypeParser(text).lone_type()


class TypeParser(Cursor):
    """Reads types; `height` says how deep the type read last is nested."""

    __slots__ = ("height", "stray_none")

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.height = 0
        self.stray_none: Token | None = None

    def lone_type(self) -> Type:
        type_ = self.type()
        if self.token.kind != END:
            self.unexpected("the end of the type")
        self.refuse_stray_none()
        if self.noted:
            self.raise_finding(self.noted[0])
        return type_

    def type(self, depth: int = 0) -> Type:
        """type = atom { "?" | list } ;"""
        start = self.token.start
        type_ = self.atom(depth)
        closed = False
        while self.token.kind in ("?", "[", "!", "("):
            if self.token.kind == "?":
                type_ = self.optional(type_)
            elif self.token.kind == "[":
                if closed:
                    self.fail("list-size", "a list size closes the type", hints.LIST_SIZE)
                type_ = self.list_(type_)
                closed = type_.size is not None
            else:
                self.misplaced_alias(type_, start)
                continue
            self.grow()
        if self.token.kind in hints.MISTAKES_AFTER_TYPE:
            self.raise_finding(hints.mistake_after_type(self.text, start, self.tokens, self.at))
        return type_

    def grow(self) -> None:
        self.height += 1
        if self.height > DEEPEST:
            self.fail("nesting", f"nested more than {DEEPEST} deep", hints.NESTING)

    def optional(self, type_: Type) -> Type:
        if isinstance(type_, OptionalType):
            self.fail("optional", "one `?` is enough")
        self.advance()
        return OptionalType(type_)

    def list_(self, element: Type) -> ListType:
        """list = "[" [ integer ] "]" [ alias ] ;"""
        self.advance()
        size = None if self.token.kind == "]" else self.list_size()
        self.expect("]", "after the list size" if size else "to close the list")
        if self.token.kind in ("!", "("):
            element = self.moved_alias(element)
        return ListType(element, size)

    def list_size(self) -> int:
        token = self.token
        if token.kind in (END, FAULT):
            self.unexpected("`]` or a list size")
        digits = token.text if token.kind == NUMBER else ""
        if not (digits.isdigit() and digits[0] != "0" and len(digits) < 5):
            self.fail("list-size", f"`{token.text}` is no list size", hints.LIST_SIZE)
        if int(digits) > _LONGEST_LIST:
            self.fail("list-size", f"a sized list has at most {_LONGEST_LIST} elements")
        self.advance()
        return int(digits)

    def atom(self, depth: int) -> Type:
        """atom = "Tensor" [ alias ] | word | classname | tuple | dict | union ;"""
        token = self.token
        self.height = 0
        if token.kind == "(":
            return self.tuple_(depth + 1)
        if token.kind != IDENTIFIER:
            self.unexpected("a type", hints.MISSING_TYPE.get(token.kind, ""))
        word = token.text
        if word == "Tensor":
            self.advance()
            return TensorType(self.alias()) if self.token.kind in ("!", "(") else _TENSOR
        if word in _WORDS:
            self.advance()
            return _WORDS[word]
        if word in ("Dict", "Union") and self.peek().kind == "(":
            return self.dict_(depth + 1) if word == "Dict" else self.union(depth + 1)
        if word == "NoneType":
            return self.none_type()
        if word == "None":
            self.fail("optional", "None is no type", hints.NONE_TYPE)
        if word in RESERVED_WORDS:
            self.fail("bad-name", f"`{word}` is reserved")
        return self.class_name()

    def none_type(self) -> Type:
        token = self.advance()
        self.stray_none = self.stray_none or token
        return _NONE_TYPE

    def refuse_stray_none(self) -> None:
        """Refuse NoneType outside a union, last: an unknown word is the graver mistake."""
        if self.stray_none is not None:
            self.fail("optional", "NoneType is no type", hints.NONE_TYPE, self.stray_none)

    def class_name(self) -> Type:
        """classname = ident { "." ident } ;"""
        first = self.at
        self.advance()
        while self.token.kind == "." and self.peek().kind == IDENTIFIER:
            self.advance()
            self.advance()
        name = "".join(token.text for token in self.tokens[first : self.at])
        if opaque_class(name) is None:
            self.raise_finding(hints.unknown_type(self.text, self.tokens, first, name))
        return ClassType(name)

    def tuple_(self, depth: int) -> Type:
        """tuple = "(" type { "," type } ")" ;"""
        opening = self.advance()
        if self.accept(")"):
            span = self.span_from(opening.start)
            self.note("empty-tuple", "an empty tuple carries nothing", span, "leave it out")
            return TupleType(())
        return TupleType(tuple(self.types_until_close(depth, opening)))

    def types_until_close(
        self, depth: int, opening: Token, read: Callable[[int], Type] | None = None
    ) -> list[Type]:
        if depth > DEEPEST:
            message = f"nested more than {DEEPEST} deep"
            self.fail("nesting", message, hints.NESTING, opening)
        read = read or self.type
        found, height = [read(depth)], self.height
        while self.accept(","):
            found.append(read(depth))
            height = max(height, self.height)
        self.expect(")", "to close the type")
        self.height = height
        self.grow()
        return found

    def dict_(self, depth: int) -> Type:
        """dict = "Dict" "(" type "," type ")" ;"""
        word = self.advance()
        types = self.types_until_close(depth, self.advance())
        if len(types) != 2:
            message = f"Dict takes a key type and a value type, got {len(types)}"
            self.fail("expected-token", message, "write Dict(str, T)", self.tokens[self.at - 1])
        key, value = types
        if not (isinstance(key, BasicType) and key.name in _KEY_TYPES):
            message = f"`{key}` is no key type: dictionary keys are plain values"
            self.fail("dict-key", message, "use str, int, float or bool", word)
        return DictType(key, value)

    def union(self, depth: int) -> Type:
        """union = "Union" "(" type "," type { "," type } ")" ; a member may be NoneType"""
        word = self.advance()
        members = self.types_until_close(depth, self.advance(), self.member)
        kept = [member for member in members if member != _NONE_TYPE]
        if any(isinstance(member, OptionalType) for member in kept):
            hint = "write Union(A, B)?"
            self.fail("optional", "a member of a union is not optional", hint, word)
        if not kept:
            self.fail("optional", "a union of nothing", hints.NONE_TYPE, word)
        union = union_of(kept)
        if len(kept) < len(members):
            self.grow()
            return OptionalType(union)
        if not isinstance(union, UnionType):
            self.fail("optional", "a union of one type", f"write {union}", word)
        return union

    def member(self, depth: int) -> Type:
        """member = "NoneType" | type ;"""
        if self.token.text == "NoneType" and self.peek().kind in (",", ")"):
            self.advance()
            self.height = 0
            return _NONE_TYPE
        return self.type(depth)

    # Alias annotations -------------------------------------------------------------------------

    def alias(self) -> AliasSet:
        """alias = "!" | "(" set [ "!" ] [ "->" set ] ")" ;"""
        start = self.token.start
        if self.accept("!"):
            return AliasSet(frozenset(), True)
        self.advance()
        before = self.alias_set(start)
        written = self.accept("!")
        after: frozenset[str] = frozenset()
        if self.accept("->"):
            after = self.alias_set(start)
        self.expect(")", "after the alias set", hints.after_alias(self.token))
        if written and (WILDCARD in before or len(before) > 1):
            message = f"`{self.text_from(start)}` writes more than one set"
            span = self.span_from(start)
            self.note("alias-write", message, span, "a written tensor has one set of its own")
        return AliasSet(before, written, frozenset() if after == before else after)

    def alias_set(self, start: int) -> frozenset[str]:
        """set = "*" | ident { "|" ident } ;"""
        if self.token.kind in (")", "!"):
            self.note("alias-set", "the alias set is empty", self.span_from(start), "write (a)")
            return frozenset()
        members = [self.alias_member()]
        while self.accept("|"):
            members.append(self.alias_member())
        if WILDCARD in members and len(members) > 1:
            message = f"`{'|'.join(members)}` is just `*`"
            self.note("alias-set", message, self.span_from(start), "write (*)")
        elif len(set(members)) < len(members):
            message = f"`{'|'.join(members)}` repeats a member"
            self.note("alias-set", message, self.span_from(start), "name each set once")
        return frozenset(members)

    def alias_member(self) -> str:
        return self.advance().text if self.token.kind == "*" else self.name("an alias set")

    def moved_alias(self, element: Type) -> Type:
        """Move an annotation behind a list to its elements, a kernel's list being a fresh one."""
        start = self.token.start
        alias = self.alias()
        innermost = _innermost(element)
        if innermost == _TENSOR:
            return map_tensors(element, lambda tensor: TensorType(alias))
        if isinstance(innermost, TensorType):
            hint = "annotate the elements only, Tensor(a!)[]"
            self.note("alias-place", "list and elements are annotated", self.span_from(start), hint)
        else:
            self.wrong_alias(innermost, self.span_from(start))
        return element

    def misplaced_alias(self, type_: Type, start: int) -> None:
        alias_start = self.token.start
        self.alias()
        if isinstance(type_, TensorType):
            message = f"`{self.text_from(start)}` is annotated twice"
            self.note("alias-place", message, self.span_from(alias_start), "write one annotation")
            return
        innermost = _innermost(type_)
        span = self.span_from(alias_start)
        if isinstance(innermost, TensorType):
            alias = self.text_from(alias_start)
            moved = hints.with_alias(type_, alias)
            message = f"`{self.text_from(start)}`: an annotation stands right behind its Tensor"
            self.note("alias-place", message, span, f"write {moved}")
        else:
            self.wrong_alias(innermost, span)

    def wrong_alias(self, type_: Type, span: Span) -> None:
        if isinstance(type_, (TupleType, DictType, UnionType)):
            message = f"`{type_}` as a whole cannot be annotated"
            self.note("alias-place", message, span, "annotate the Tensors inside it")
        else:
            message = f"`{type_}` cannot be written or shared"
            hint = "declare `effects=` or return the new value"
            self.note("alias-non-tensor", message, span, hint)


def _innermost(type_: Type) -> Type:
    """Return what lists and optionals are of."""
    while isinstance(type_, (ListType, OptionalType)):
        type_ = type_.element
    return type_
