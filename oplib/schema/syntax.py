"""The parser: recursive descent, one method per production, the production as its docstring.

It raises at the first token it cannot read past and notes what it can go on after. Nothing is
repaired: what has no meaning is refused, with the spelling to use instead where there is one. The
grammar of types is in `type_syntax.py`, that of defaults in `literal_syntax.py`.

Imports everything above. Read next: `annotations.py`.
"""

from __future__ import annotations

from typing import NoReturn

from . import hints
from .lexer import END, IDENTIFIER, NUMBER, Token
from .literal_syntax import LiteralParser
from .literals import BadDefaultError, convert
from .model import NO_DEFAULT, Argument, FunctionSchema, Return
from .rules import Draft, Place, check
from .type_syntax import TypeParser
from .types import BASIC_WORDS, RESERVED_WORDS, Type, opaque_class

__all__ = ["parse"]


def parse(text: str, *, nameless: bool = False) -> FunctionSchema:
    """Return the schema that `text` spells.

    Parameters
    ----------
    text : str
        ``ns::name.overload(Tensor x, *, float eps=1e-5) -> Tensor``; namespace and overload may be
        missing.
    nameless : bool
        Take ``(...) -> ...`` instead, for places where the name is given beside it.

    Raises
    ------
    SchemaError
        With ``rule``, ``text``, ``span`` and ``hint``, and a caret under the first mistake.
    TypeError
        If `text` is not a string.

    Examples
    --------
    >>> str(parse("ns::f( Tensor x,float eps = 1 )->(Tensor)"))
    'ns::f(Tensor x, float eps=1.0) -> Tensor'
    """
    return check(_Parser(text).schema(nameless))


class _Parser(TypeParser, LiteralParser):
    """One run over one text."""

    __slots__ = ()

    # Schema ------------------------------------------------------------------------------------

    def schema(self, nameless: bool) -> Draft:
        """schema = [ opname ] "(" [ arguments ] ")" "->" returns ;"""
        names = self.no_name() if nameless else self.opname()
        self.qualname = FunctionSchema(*names, (), ()).qualname
        arguments, argument_places = self.arguments()
        if self.token.kind != "->":
            self.unexpected("`->` after the arguments", hints.arrow(self.token, self.peek()))
        self.advance()
        returns, return_places = self.returns()
        if self.token.kind != END:
            self.after_returns(returns)
        self.refuse_stray_none()
        schema = FunctionSchema(*names, tuple(arguments), tuple(returns))
        return Draft(self.text, schema, argument_places, return_places, self.noted)

    def no_name(self) -> tuple[str, str, str]:
        if self.token.kind == IDENTIFIER:
            message = "this form takes only `(...) -> ...`, the name is given beside it"
            self.fail("name-required", message, "leave the name out")
        return "", "", ""

    def opname(self) -> tuple[str, str, str]:
        """opname = [ ident "::" ] ident [ "." ident ] ;"""
        if self.token.kind == "(":
            hint = "write ns::name(...) -> ..."
            self.fail("name-required", "the schema has no operator name", hint)
        if self.token.kind == "::":
            self.fail("bad-name", "the namespace is missing before `::`", "write ns::name")
        namespace, name = "", self.name("an operator name")
        if self.accept("::"):
            namespace, name = name, self.name("an operator name after `::`", missing="bad-name")
        overload = ""
        if self.token.kind == ".":
            self.advance()
            overload = self.overload()
        if self.token.kind in ("::", "."):
            self.fail("bad-name", *hints.NAME_PARTS[self.token.kind, bool(namespace)])
        if self.token.kind == NUMBER and self.token.text.startswith("."):
            self.fail("bad-name", "an overload name starts with a letter or `_`")
        if self.token.kind != "(":
            self.unexpected("`(` after the operator name", hints.after_name(self.token))
        return namespace, name, overload

    def overload(self) -> str:
        token = self.token
        overload = self.name("an overload name after `.`", missing="bad-name")
        if overload == "default" or overload.startswith("__"):
            message = f"`{overload}` is no overload name"
            self.fail("bad-overload", message, hints.DEFAULT_OVERLOAD, token)
        return overload

    # Arguments ---------------------------------------------------------------------------------

    def arguments(self) -> tuple[list[Argument], list[Place]]:
        """arguments = argument { "," argument } [ "," "*" "," argument { "," argument } ]
        | "*" "," argument { "," argument } ;
        """
        self.expect("(", "before the arguments")
        found: list[Argument] = []
        places: list[Place] = []
        keyword_only = False
        if self.accept(")"):
            return found, places
        while True:
            if self.token.kind == "*":
                keyword_only = self.star(keyword_only)
            argument, place = self.argument(keyword_only)
            found.append(argument)
            places.append(place)
            if self.accept(")"):
                return found, places
            if self.token.kind != ",":
                hint = hints.after_argument(argument, self.token, self.peek())
                self.unexpected(f"`)` or `,` after argument `{argument.name}`", hint)
            self.advance()

    def star(self, again: bool) -> bool:
        """The `*` before keyword-only arguments, and its `,`."""
        star = self.advance()
        self.refuse_varargs(star)
        if again:
            self.fail("star", "a second `*`", "one `*` stands before the keyword-only ones", star)
        if self.token.kind == ")" or (self.token.kind == "," and self.peek().kind == ")"):
            self.fail("star", "nothing follows `*`", "name an argument after it or drop it", star)
        self.expect(",", "after `*`")
        if self.token.kind == "*":
            return self.star(True)
        return True

    def refuse_varargs(self, star: Token) -> None:
        """Refuse ``*args`` and ``**kwargs``; a word that more follows only lacks its comma."""
        stars, word = "*", self.token
        if word.kind == "*":
            stars, word = "**", self.peek()
        elif self.peek().kind not in (",", ")", "=", END):
            return
        if word.kind == IDENTIFIER:
            message = f"`{stars}{word.text}`: an operator's arguments are fixed"
            self.fail("varargs", message, hints.VARARGS, star)

    def argument(self, keyword_only: bool) -> tuple[Argument, Place]:
        """argument = type ident [ "=" literal ] ;"""
        start = self.token.start
        if self.token.kind == IDENTIFIER and self.peek().kind in (",", ")", "="):
            self.lone_word()
        if self.token.kind in (")", ","):
            self.unexpected("an argument", hints.STRAY_COMMA)
        type_ = self.type()
        type_span = self.span_from(start)
        name_token = self.token
        name = self.name(f"the argument's name after `{self.text[slice(*type_span)]}`")
        default: object = NO_DEFAULT
        if self.accept("="):
            default = self.default(name, type_)
        place = Place(type_span, (name_token.start, name_token.end))
        return Argument(name, type_, default, keyword_only), place

    def lone_word(self) -> NoReturn:
        word = self.token.text
        known = word in BASIC_WORDS or word == "Tensor" or opaque_class(word) is not None
        if known or word in RESERVED_WORDS:
            self.advance()
            self.unexpected(f"the argument's name after `{word}`")
        message = f"expected a type and a name, found only `{word}`"
        self.fail("expected-token", message, f"write Tensor {word}")

    def default(self, name: str, type_: Type) -> object:
        literal = self.literal(0)
        try:
            return convert(literal, type_)
        except BadDefaultError as error:
            part = error.literal
            span = part.start, part.start + len(part.text)
            self.note(error.rule, f"argument `{name}`: {error.message}", span, error.hint)
            return None  # stands in for a default until the rules have refused it

    # Returns -----------------------------------------------------------------------------------

    def returns(self) -> tuple[list[Return], list[Place]]:
        """returns = "(" ")" | "None" | "NoneType" | return | "(" return { "," return } ")" ;"""
        if self.token.text in ("None", "NoneType") and self.peek().kind == END:
            self.advance()
            return [], []
        if not self.accept("("):
            only, place = self.return_()
            return [only], [place]
        found: list[Return] = []
        places: list[Place] = []
        if self.accept(")"):
            return found, places
        while True:
            each, place = self.return_()
            found.append(each)
            places.append(place)
            if self.accept(")"):
                return found, places
            if self.token.kind != ",":
                self.unexpected("`)` or `,` after a return", hints.after_return(self.token))
            self.advance()

    def return_(self) -> tuple[Return, Place]:
        """return = type [ ident ] ;"""
        start = self.token.start
        if self.token.kind in (")", ","):
            self.unexpected("a return type", hints.STRAY_COMMA)
        type_ = self.type()
        type_span = self.span_from(start)
        if self.token.kind != IDENTIFIER:
            return Return(type_), Place(type_span, type_span)
        token = self.token
        name = self.name("a return name")
        return Return(type_, name), Place(type_span, (token.start, token.end))

    def after_returns(self, returns: list[Return]) -> NoReturn:
        """Refuse what stands behind the returns, most often a suffix of a parenthesised list."""
        hint = hints.after_return(self.token)
        if self.token.kind in ("[", "?", IDENTIFIER) and self.tokens[self.at - 1].kind == ")":
            inside = ", ".join(map(str, returns))
            space = " " if self.token.kind == IDENTIFIER else ""
            hint = f"one return of this type is (({inside}){space}{self.text[self.token.start :]})"
        self.unexpected("the end of the schema", hint)
