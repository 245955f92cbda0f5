"""Operands in text: words, numbers, sizes, references, containers, types.

One method per production of the grammar in `text.py`; the docstring is the production. `Operands`
reads from its current `line` and looks words up among the `values` defined above it.

Imports `tokens.py` and `values.py`. Read next: `parse.py`, which reads lines.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, TypeVar

import numpy as np

from .._dims import Facts, SymInt, sym_max, sym_min
from .._text import did_you_mean
from ..dispatch.operator import Operator
from ..dtypes import CPU, Device, as_dtype
from ..errors import OplibError
from ..schema import opaque_class
from ..tensor.geometry import Geometry, contiguous_strides
from .literals import DTYPE_WORDS, float_from_bits
from .names import is_symbol
from .tokens import Line
from .values import Meta, PyMeta, Reference, Same, TensorMeta, TokenMeta, Value

__all__ = ["Item", "Operands"]

T = TypeVar("T")
AnyOperator: TypeAlias = Operator[..., Any]

_SINGLETONS: Final = {"None": None, "True": True, "False": False}


@dataclass(frozen=True, slots=True)
class Item:
    """A result that is named but not yet made into a value."""

    name: str
    meta: Meta
    start: int


class Operands:
    """Reads what stands in a line; one method per production.

    Attributes
    ----------
    line : Line
        Where it reads.
    values : dict
        The values defined so far, by name.
    expects : {"size", "dtype", ""}
        What a word like ``u8`` is, a symbol or a dtype, where it could be both.
    """

    def __init__(self, line: Line, resolve: Callable[[str], AnyOperator]) -> None:
        self.line = line
        self.resolve = resolve
        self.values: dict[str, Value] = {}
        self.expects: Literal["size", "dtype", ""] = ""
        self.facts = Facts()
        self.symbols: list[Any] = []  # by number
        self.known: set[str] = set()  # names of the symbols that have occurred

    # Results and types ----------------------------------------------------------------------------

    def item(self) -> Any:
        """``(name | "_") ":" type | "[" [items] "]" | "(" [items] ")" | "None"``."""
        line = self.line
        if line.take("None"):
            return None
        if line.take("["):
            return self.until("]", self.item)
        if line.take("("):
            return tuple(self.until(")", self.item))
        start = line.next.start
        name = line.kind("name", "the name of a result")
        line.expect(":")
        return Item(name, self.type(), start)

    def type(self) -> Meta:
        """``dtype "[" sizes "]" ["{" sizes "}"] ["@" device] | "token[...]" | python type``."""
        line = self.line
        if line.next.kind == "effect":
            return TokenMeta(line.kind("effect", "a token")[6:-1])
        name = line.kind("name", "a type")
        if name not in DTYPE_WORDS or not line.take("["):
            while line.take("."):
                name += "." + line.kind("name", "the rest of a type")
            return PyMeta(name)
        dtype = as_dtype(name)
        shape = tuple(self.until("]", self.size))
        strides = contiguous_strides(shape, dtype.itemsize)
        if line.take("{"):
            strides = tuple(self.until("}", lambda: self.count(dtype.itemsize)))
            if len(strides) != len(shape):
                line.fail(f"{len(shape)} sizes and {len(strides)} strides", 0, line.ended)
        return TensorMeta(dtype, shape, strides, self.device() if line.take("@") else CPU)

    def device(self) -> Device:
        """``name [":" int]``."""
        kind = self.line.kind("name", "a device")
        if self.line.next.text == ":" and self.line.peek(1).kind == "int":
            self.line.at += 1
            return Device(kind, int(self.line.kind("int", "an index")))
        return Device(kind)

    # Names ----------------------------------------------------------------------------------------

    def dotted(self, what: str) -> tuple[str, int]:
        """``name {"." name}``."""
        start = self.line.next.start
        name = self.line.kind("name", what)
        while self.line.take("."):
            name += "." + self.line.kind("name", what)
        return name, start

    def callee(self) -> AnyOperator:
        """``ns "." op ["." overload]``."""
        return self.operator(*self.dotted("an operator"))

    def operator(self, name: str, start: int) -> AnyOperator:
        """Look up the operator written ``ns.op`` or ``ns.op.overload``."""
        try:
            return self.resolve(name.replace(".", "::", 1))
        except OplibError as error:
            self.line.fail(f"no operator `{name}`: {error}", start, start + len(name))

    # Arguments ------------------------------------------------------------------------------------

    def argument(self) -> Any:
        """``name | literal | size | reference | list | tuple | dict | slice``."""
        line = self.line
        start = None if line.is_next(":") else self.expression()
        if not line.take(":"):
            return start
        empty = line.next.text in (",", ")", "]", "}", ":")
        stop = None if empty else self.expression()
        return slice(start, stop, self.expression() if line.take(":") else None)

    def expression(self) -> Any:
        """``term {("+" | "-") term}``: a size, or what a term alone is."""
        value = self.term()
        while self.line.next.text in ("+", "-") and self.line.next.kind == "sign":
            self.needs_size(value)
            sign = self.line.kind("sign", "a sign")
            right = self.needs_size(self.term())
            value = value + right if sign == "+" else value - right
        return value

    def term(self) -> Any:
        """``factor {("*" | "//" | "/" | "%") factor}``."""
        value = self.factor()
        while self.line.next.kind == "sign" and self.line.next.text in _PRODUCTS:
            self.needs_size(value)
            operation = _PRODUCTS[self.line.kind("sign", "a sign")]
            value = operation(value, self.needs_size(self.factor()))
        return value

    def factor(self) -> Any:
        """``["-"] number | atom``."""
        line = self.line
        negative = line.take("-")
        if line.next.kind in ("float", "imaginary"):
            return self.inexact(negative)
        value = int(line.kind("int", "a number")) if line.next.kind == "int" else self.atom()
        return -self.needs_size(value) if negative else value

    def inexact(self, negative: bool) -> float | complex:
        """``float [("+" | "-") imaginary]``, put together without arithmetic."""
        line = self.line
        sign = -1.0 if negative else 1.0
        if line.next.kind == "imaginary":
            line.fail("expected the real part first, as in 0.0+1.0j")
        value = _float(line.kind("float", "a number"))
        value = -value if sign < 0 else value
        if line.next.text in ("+", "-") and line.peek(1).kind == "imaginary":
            minus = line.kind("sign", "a sign") == "-"
            imaginary = _float(line.kind("imaginary", "a number")[:-1])
            return complex(value, -imaginary if minus else imaginary)
        return value

    def atom(self) -> Any:
        """``name | word | string | reference | "@" device | list | tuple | dict | "..."``."""
        line = self.line
        if line.next.kind == "name":
            return self.word()
        if line.next.kind == "string":
            return ast.literal_eval(line.kind("string", "a string"))
        if line.is_next("&"):
            return self.reference()
        if line.take("@"):
            return self.device()
        if line.take("..."):
            return ...
        if line.take("["):
            return self.until("]", self.argument)
        if line.take("{"):
            return dict(self.until("}", self.pair))
        line.expect("(")
        start = line.at
        items = self.until(")", self.argument)
        alone = len(items) == 1 and line.tokens[line.at - 2].text != ","
        return self.needs_size(items[0], start) if alone else tuple(items)

    def pair(self) -> tuple[Any, Any]:
        """``literal ":" arg``."""
        key = self.expression()
        self.line.expect(":")
        return key, self.argument()

    def word(self) -> Any:
        """Read a name: a value, a symbol, a dtype, a constant of Python, an operator or member."""
        line = self.line
        text, start = self.dotted("a name")
        if text in self.values:
            return self.values[text]
        if text in _SINGLETONS:
            return _SINGLETONS[text]
        if text in ("same", "min", "max") and line.take("("):
            inside = self.until(")", self.expression)
            if text != "same":
                return (sym_min if text == "min" else sym_max)(*inside)
            return Same(inside[0])
        may_be_dtype = self.expects == "dtype" or (not self.expects and text not in self.known)
        if text in DTYPE_WORDS and may_be_dtype:
            return as_dtype(text)
        if is_symbol(text):
            return self.symbol(text)
        owner, _, member = text.rpartition(".")
        cls = opaque_class(owner)
        if cls is not None and issubclass(cls, Enum) and member in cls.__members__:
            return cls[member]
        if owner:
            return self.operator(text, start)
        hint = did_you_mean(text, self.values)
        line.fail(f"`{text}` is not defined above this line{hint}", start, start + len(text))

    def use(self) -> Value:
        """``name`` of a value defined above."""
        start = self.line.next.start
        value = self.word()
        if not isinstance(value, Value):
            self.line.fail("expected the name of a value", start, self.line.ended)
        return value

    # Sizes and geometries -------------------------------------------------------------------------

    def size(self) -> Any:
        """Read an int or an expression of symbols."""
        outer, self.expects = self.expects, "size"
        size = self.needs_size(self.expression())
        self.expects = outer
        return size

    def needs_size(self, value: Any, at: int | None = None) -> Any:
        """Return `value` if it is a size, else fail at the token that was read for it."""
        if type(value) is int or isinstance(value, SymInt):
            return value
        token = self.line.tokens[self.line.at - 1 if at is None else at]
        self.line.fail("expected a size", token.start, token.start + len(token.text))

    def symbol(self, name: str) -> Any:
        """Return the symbol ``u<n>``; all below it exist too."""
        index = int(name[1:])
        while len(self.symbols) <= index:
            self.symbols.append(self.facts.fresh())
        self.known.add(name)
        return self.symbols[index]

    def count(self, itemsize: int) -> Any:
        """Read a size in elements, or ``6b``, and return bytes."""
        line = self.line
        negative = line.is_next("-") and line.peek(1).kind == "bytes"
        line.at += negative
        if line.next.kind == "bytes":
            count = int(line.kind("bytes", "a count of bytes")[:-1])
            return -count if negative else count
        return self.size() * itemsize

    def reference(self) -> Reference:
        """``"&" name [[":" dtype] geometry]``."""
        line = self.line
        line.expect("&")
        value = self.use()
        if line.take(":") or line.is_next("["):
            return Reference(value, self.geometry(value))
        return Reference(value)

    def geometry(self, of: Value) -> Geometry:
        """``[dtype] "[" sizes "]" ":" "[" counts "]" "+" count``."""
        line = self.line
        dtype = of.tensor.dtype if of.is_tensor else np.dtype("uint8")
        if line.next.kind == "name" and line.next.text in DTYPE_WORDS:
            dtype = as_dtype(line.kind("name", "a dtype"))
        line.expect("[")
        shape = tuple(self.until("]", self.size))
        line.expect(":")
        line.expect("[")
        strides = tuple(self.until("]", lambda: self.count(dtype.itemsize)))
        if len(shape) != len(strides):
            line.fail(f"{len(shape)} sizes and {len(strides)} strides", 0, line.ended)
        line.expect("+")
        return Geometry(dtype, shape, strides, self.count(dtype.itemsize))

    # Lists ----------------------------------------------------------------------------------------

    def until(self, close: str, production: Callable[[], T]) -> list[T]:
        """``[production {"," production} [","]] close``; no `close` is the end of the line."""
        line = self.line
        found: list[T] = []
        while not (line.take(close) if close else line.next.kind == "end"):
            found.append(production())
            if not (line.is_next(close) if close else line.next.kind == "end"):
                line.expect(",")
        return found


def _exact_quotient(left: Any, right: Any) -> Any:
    """``left / right`` of sizes that are known to come out even."""
    if isinstance(left, SymInt):
        left.facts.assume(left % right == 0)
    return left // right


_PRODUCTS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "*": operator.mul,
    "//": operator.floordiv,
    "/": _exact_quotient,
    "%": operator.mod,
}


def _float(text: str) -> float:
    return float_from_bits(int(text[4:-1], 16)) if text.startswith("nan(") else float(text)
