"""Reads the text of a graph: ``parse(str(graph)) == graph`` and ``str(parse(text)) == text``.

One method per production of the grammar in `text.py`; the docstring is the production. Operators
are looked up in the registry; a constant printed as a digest gets its bytes from `constants`, or
stays a `Digest`. Stems are found by undoing the numbering, so the names in a text are kept.

Imports `operands.py`, `builder.py`. Read next: `compare.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import numpy as np

from ..dispatch.operator import Operator
from ..dispatch.registry import get_op
from ..errors import CaptureError
from ..schema import Argument, ListType, OptionalType, Type, UnionType
from .ir import (
    Call,
    Constant,
    Functionalized,
    Graph,
    Node,
    Output,
    Placeholder,
    Rebind,
    Role,
    Write,
)
from .literals import array_digest
from .names import Namer
from .operands import Item, Operands
from .tokens import ANY, Line
from .values import Digest, TensorMeta, Value

__all__ = ["parse"]

AnyOperator: TypeAlias = Operator[..., Any]
Constants: TypeAlias = Mapping[str, np.ndarray[Any, Any]]


def parse(
    text: str,
    *,
    constants: Constants | None = None,
    resolve: Callable[[str], AnyOperator] = get_op,
) -> Graph:
    r"""Return the graph that `text` describes.

    Parameters
    ----------
    text : str
        What ``str(graph)`` prints; comments and empty lines are skipped.
    constants : mapping, optional
        Arrays by digest (``#sha256:...``), for the constants whose elements the text leaves out.
    resolve : callable, optional
        Returns the operator of a qualified name, ``ns::name.overload``.

    Raises
    ------
    CaptureError
        If the text breaks the grammar, uses an undefined name or an operator that does not exist;
        the message shows the line with a caret.

    Examples
    --------
    >>> graph = parse("graph f(x: f32[2]):\n    return &x, x, 1.0")
    >>> print(graph)
    graph f(x: f32[2]):
        return &x, x, 1.0
    """
    return _GraphParser(text, constants or {}, resolve).graph()


# Graphs -------------------------------------------------------------------------------------------


class _GraphParser:
    """Reads line after line; one method per production of the grammar in `text.py`."""

    def __init__(
        self, text: str, constants: Constants, resolve: Callable[[str], AnyOperator]
    ) -> None:
        lines = [Line(line, number) for number, line in enumerate(text.splitlines(), start=1)]
        self.lines = [line for line in lines if line.next.kind != "end"]
        if not self.lines:
            raise CaptureError("the text of a graph is empty; it begins with `graph name(...):`")
        self.constants = constants
        self.read = Operands(self.lines[0], resolve)
        self.namer = Namer(filter(None, map(_namespace, self.lines)))

    @property
    def line(self) -> Line:
        """The line that is being read."""
        return self.read.line

    def graph(self) -> Graph:
        """``"graph" name "(" [param {"," param}] ")" ":" {line} {tail} "return" [results]``."""
        line = self.line
        line.expect("graph")
        name = line.kind("name", "the graph's name")
        line.expect("(")
        nodes: list[Node] = [*self.read.until(")", self.parameter)]
        line.expect(":")
        line.end()
        for line in self.lines[1:]:
            if nodes and isinstance(nodes[-1], Output):
                line.fail("nothing follows `return`")
            self.read.line = line
            nodes.append(self.node())
            line.end()
        if not nodes or not isinstance(nodes[-1], Output):
            line.fail("the last line of a graph is `return ...`", 0, len(line.text))
        return Graph(name, tuple(nodes))

    def parameter(self) -> Placeholder:
        """Read ``["captured" | "span"] name ":" type``."""
        role: Role = "argument"
        if self.line.next.text in ("captured", "span") and not self.line.is_next(ANY, ":"):
            role = cast("Role", self.line.kind("name", "a role"))
        return Placeholder(self.define(self.read.item(), ""), role)

    def node(self) -> Node:
        """Read one line below the header: a ``line`` or a ``tail``."""
        line = self.line
        if line.take("return"):
            return Output(tuple(self.read.until("", self.read.argument)))
        if line.next.kind == "name" and line.peek(1).kind == "name":
            if line.take("write"):
                return self.write()
            if line.take("rebind"):
                target = self.read.use()
                line.expect("=")
                return Rebind(target, self.read.reference())
            line.fail("expected `write`, `rebind`, or a result and its type")
        items = None
        if not (line.is_next(ANY, ".") or line.is_next("functionalized", "(")):
            items = self.read.until("=", self.read.item)
        if line.is_next("constant", "("):
            return self.constant(items)
        if line.take("functionalized"):
            return self.functionalized(items or [])
        op = self.read.callee()
        line.expect("(")
        arguments, after = self.arguments(op)
        results, tokens = self.results(items, op)
        results = results if items is not None else (None,) * len(op.schema.returns)
        return Call(op, arguments, results, after, tokens, self.flags())

    def write(self) -> Write:
        """``"write" name "=" name ["only" geometry {"," geometry}] ["times" int] [flags]``."""
        line = self.line
        target = self.read.use()
        line.expect("=")
        value = self.read.use()
        only = []
        more = line.take("only")
        while more:
            only.append(self.read.geometry(target))
            more = line.take(",")
        times = int(line.kind("int", "a number")) if line.take("times") else 1
        return Write(target, value, tuple(only), times, self.flags())

    def constant(self, items: list[Any] | None) -> Constant:
        """``item "=" "constant" "(" (nested list | digest) ")"``."""
        line = self.line
        line.at += 2
        start = line.next.start
        item = items[0] if items and len(items) == 1 else None
        if not isinstance(item, Item) or not isinstance(item.meta, TensorMeta):
            line.fail("a constant is one tensor", 0, start)
        data: np.ndarray[Any, Any] | Digest
        if line.next.kind == "digest":
            digest = line.kind("digest", "a digest")
            data = self.constants.get(digest, Digest(digest))
            if not isinstance(data, Digest) and array_digest(data) != digest:
                line.fail("the array given for this digest has other contents", start, line.ended)
        else:
            elements = self.read.argument()
            try:
                data = np.array(elements, item.meta.dtype).reshape(item.meta.shape)
            except (TypeError, ValueError, OverflowError):
                line.fail(f"these are no elements of {item.meta}", start, line.ended)
        line.expect(")")
        return Constant(self.define(item, "constant"), data)

    def functionalized(self, items: list[Any]) -> Functionalized:
        """``[items "="] "functionalized" "(" callee {"," arg} ")" [flags]``."""
        line = self.line
        line.expect("(")
        op = self.read.callee()
        if not line.is_next(")"):
            line.expect(",")
        arguments, after = self.arguments(op)
        bases = Functionalized(op, arguments, (), ()).bases
        results, tokens = self.results(items, op)
        fresh = len(op.schema.fresh_returns(arguments))
        if len(results) != fresh + len(bases):
            line.fail(
                f"{op.qualname} has {fresh} fresh results and {len(bases)} regions here; "
                f"{len(results)} are defined",
                0,
                line.ended,
            )
        regions = results[fresh:]
        return Functionalized(op, arguments, results[:fresh], regions, after, tokens, self.flags())

    def flags(self) -> tuple[str, ...]:
        """``"!" word {word}``."""
        words: list[str] = []
        if self.line.take("!"):
            words.append(self.line.kind("name", "a flag"))
            while self.line.next.kind == "name":
                words.append(self.line.kind("name", "a flag"))
        return tuple(words)

    # Results and types ----------------------------------------------------------------------------

    def results(
        self, items: list[Any] | None, op: AnyOperator
    ) -> tuple[tuple[Any, ...], tuple[Value, ...]]:
        """Define the items of a left-hand side: first results and regions, then tokens."""
        defined = self.define(items or [], op.name.rstrip("_") or op.name)
        count = len(defined)
        while count and isinstance(defined[count - 1], Value) and defined[count - 1].is_token:
            count -= 1
        return tuple(defined[:count]), tuple(defined[count:])

    def define(self, item: Any, stem: str) -> Any:
        """Make the values of an item; those without a name get `stem`."""
        if isinstance(item, list):
            return [self.define(each, stem) for each in item]
        if isinstance(item, tuple):
            return tuple([self.define(each, stem) for each in item])
        if item is None:
            return None
        if item.name == "_":
            return Value(stem, item.meta)
        if self.namer.preview(item.name) != item.name:
            why = "is defined twice" if item.name in self.read.values else "is a reserved word"
            self.line.fail(f"`{item.name}` {why}", item.start, item.start + len(item.name))
        value = self.read.values[item.name] = Value(self.namer.take(item.name), item.meta)
        return value

    # Arguments ------------------------------------------------------------------------------------

    def arguments(self, op: AnyOperator) -> tuple[tuple[Any, ...], tuple[Value, ...]]:
        """``arg {"," arg} {"," parameter "=" arg} ["," "after=" ...]`` and the parenthesis."""
        line = self.line
        parameters = op.schema.arguments
        given: dict[str, Any] = {}
        after: tuple[Value, ...] = ()
        positional = iter(op.schema.positional)
        while not line.take(")"):
            start = line.next.start
            if line.next.kind == "name" and line.peek(1).text == "=":
                name = line.kind("name", "a parameter")
                line.at += 1
                parameter = next((each for each in parameters if each.name == name), None)
            else:
                parameter = next(positional, None)
                name = parameter.name if parameter else ""
            is_dtype = parameter is not None and "ScalarType" in str(parameter.type)
            self.read.expects = "dtype" if is_dtype else ""
            value = self.read.argument()
            if name == "after" and (tokens := _tokens_in(value)):
                after = tokens
            elif parameter is None or name in given:
                line.fail(f"{op.schema} takes no such argument", start, line.ended)
            else:
                given[name] = value
            if not line.is_next(")"):
                line.expect(",")
        missing = [p.name for p in parameters if p.name not in given and not p.has_default]
        if missing:
            line.fail(f"{op.schema} needs `{missing[0]}`", 0, line.ended)
        return tuple([given[p.name] if p.name in given else _default(p) for p in parameters]), after


def _tokens_in(value: Any) -> tuple[Value, ...]:
    """Return the tokens that `value`, the argument of ``after=``, consists of."""
    found = value if isinstance(value, list) else [value]
    return tuple(v for v in found if isinstance(v, Value) and v.is_token)


def _default(parameter: Argument) -> Any:
    """Return the default in the form calls have it: lists where the type says list."""
    return _thawed(parameter.default, parameter.type)


def _thawed(value: Any, type_: Type) -> Any:
    if isinstance(type_, OptionalType):
        return None if value is None else _thawed(value, type_.element)
    if isinstance(type_, UnionType) and isinstance(value, tuple):
        lists = [member for member in type_.members if isinstance(member, ListType)]
        return _thawed(value, lists[0]) if lists else value
    if isinstance(type_, ListType) and isinstance(value, tuple):
        return [_thawed(element, type_.element) for element in value]
    return value


def _namespace(line: Line) -> str:
    """Return the namespace of the operator that a line calls, or an empty string."""
    texts = [token.text for token in line.tokens]
    start = texts.index("=") + 1 if "=" in texts and texts[1] != "." else 0
    start += 2 * (texts[start : start + 2] == ["functionalized", "("])
    return texts[start] if texts[start + 1 : start + 2] == ["."] else ""
