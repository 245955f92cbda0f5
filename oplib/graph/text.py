"""Prints graphs. One node per line, complete: `parse.py` reads the text back as an equal graph.

    graph step(x: f32[4,2], w: f32[2]):
        select: f32[2] = std.select(x, 0, 0)
        add: f32[2] = std.add(select, w)
        x_1: f32[4,2] = std.select_scatter(x, add, 0, 0)
        write x = x_1 only [2]:[1]+0
        return &x

The grammar, with Python's spelling of strings and numbers:

    graph     = "graph" name "(" [param {"," param}] ")" ":" {line} {tail} "return" [results]
    param     = ["captured" | "span"] name ":" type
    line      = [items "="] callee "(" [args] ")" [flags]
              | item "=" "constant" "(" (nested list | digest) ")"
    items     = item {"," item}
    item      = (name | "_") ":" type | "[" [items] "]" | "(" [items] ")" | "None"
    callee    = ns "." op ["." overload]   (in "functionalized(" callee "," args ")" too)
    args      = arg {"," arg} {"," parameter "=" arg} ["," "after=" (name | "[" names "]")]
    arg       = name | literal | size | reference | "[" args "]" | "(" args ")" | "{" pairs "}"
    reference = "&" name [[":" dtype] geometry]
    geometry  = "[" sizes "]:[" sizes "]+" size
    tail      = "write" name "=" name ["only" [dtype] geometry {...}] ["times" int] [flags]
              | "rebind" name "=" reference
    result    = arg | "same(" int ")"
    flags     = "!" word {word}
    type      = dtype "[" sizes "]" ["{" sizes "}"] ["@" device] | "token[" effect "]" | python type

Sizes are ints or expressions of symbols. In strides and geometries they count elements; what is no
whole number of elements is given in bytes: ``6b``. A geometry names its dtype where that is not
the dtype of the value it refers to. A call whose results are all None has no left-hand side.

Imports `ir.py` and `literals.py`. Read next: `parse.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from ..dtypes import short_dtype
from ..tensor.geometry import Geometry
from .ir import (
    Call,
    Constant,
    Functionalized,
    Graph,
    Node,
    OperatorNode,
    Output,
    Placeholder,
    Rebind,
    Write,
    hooks,
)
from .literals import array_text, literal_text, matches_default, size_text
from .values import Digest, Reference, Same, Value, count_text

__all__ = ["graph_text", "line_of", "shown_arguments", "tuple_text"]

Names: TypeAlias = Callable[[Value], str]
INDENT: Final = "    "


class Printer:
    """Prints the nodes of one graph.

    Parameters
    ----------
    used_name : callable
        The name of a value where it is used.
    defined_name : callable
        Its name where it is defined; ``_`` if nothing uses it.
    defaults, types
        As for `Graph.text`.
    """

    def __init__(
        self, used_name: Names, defined_name: Names, *, defaults: bool = False, types: bool = True
    ) -> None:
        self._used = used_name
        self._defined = defined_name
        self._defaults = defaults
        self._types = types

    # Lines ----------------------------------------------------------------------------------------

    def line(self, node: Node) -> str:
        """Return the text of one node, without indentation."""
        match node:
            case Placeholder(value, role):
                return ("" if role == "argument" else f"{role} ") + self.item(value)
            case Constant(value, data):
                text = data.text if isinstance(data, Digest) else array_text(data)
                return f"{self.item(value)} = constant({text})"
            case Call(op):
                callee = literal_text(op)
                return f"{self.left(node)}{callee}({self.arguments(node)}){_flags(node.flags)}"
            case Functionalized(op):
                inside = ", ".join(filter(None, (literal_text(op), self.arguments(node))))
                return f"{self.left(node)}functionalized({inside}){_flags(node.flags)}"
            case Write(target, value, only, times, flags):
                parts = f"write {self._used(target)} = {self._used(value)}"
                if only:
                    parts += " only " + ", ".join(geometry_text(each, target) for each in only)
                return parts + (f" times {times}" if times != 1 else "") + _flags(flags)
            case Rebind(target, reference):
                return f"rebind {self._used(target)} = {self.argument(reference)}"
            case Output(results):
                return f"return {', '.join(map(self.argument, results))}".rstrip()

    def left(self, node: OperatorNode) -> str:
        """Return what stands left of the call, with the equals sign."""
        regions = node.regions if isinstance(node, Functionalized) else ()
        items = (*node.results, *regions, *node.tokens)
        if all(item is None for item in items):
            return ""
        return f"{', '.join(map(self.item, items))} = "

    def item(self, item: Any) -> str:
        """Return one result: ``add: f32[2]``, ``[a: f32[], b: f32[]]``, ``None``."""
        if item is None:
            return "None"
        if isinstance(item, list):
            return f"[{', '.join(map(self.item, item))}]"
        if isinstance(item, tuple):
            return tuple_text(map(self.item, item))
        name = self._defined(item)
        return f"{name}: {item.meta}" if self._types else name

    # Arguments ------------------------------------------------------------------------------------

    def arguments(self, node: OperatorNode) -> str:
        """Return the arguments of a call, separated by commas, tokens last."""
        parts = [
            f"{keyword}={self.argument(value)}" if keyword else self.argument(value)
            for keyword, value in shown_arguments(node, defaults=self._defaults)
        ]
        if node.after:
            tokens = [self._used(token) for token in node.after]
            parts.append(
                f"after={tokens[0]}" if len(tokens) == 1 else f"after=[{', '.join(tokens)}]"
            )
        return ", ".join(parts)

    def argument(self, value: Any) -> str:
        """Return one argument or result, containers included."""
        if isinstance(value, Value):
            return self._used(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self.argument, value))}]"
        if isinstance(value, tuple):
            return tuple_text(map(self.argument, value))
        if isinstance(value, dict):
            pairs = (f"{literal_text(key)}: {self.argument(item)}" for key, item in value.items())
            return f"{{{', '.join(pairs)}}}"
        if isinstance(value, Reference):
            return self.reference(value)
        if isinstance(value, Same):
            return f"same({value.index})"
        return literal_text(value)

    def reference(self, reference: Reference) -> str:
        """Return ``&x``, ``&x[2]:[1]+0`` or ``&x:i32[2]:[1]+0``."""
        name = f"&{self._used(reference.value)}"
        if reference.geometry is None:
            return name
        text = geometry_text(reference.geometry, reference.value)
        return name + (text if text.startswith("[") else f":{text}")


def geometry_text(geometry: Geometry, of: Value) -> str:
    """Return ``[2]:[1]+0``, behind the dtype if that is not the dtype of `of`."""
    itemsize = geometry.dtype.itemsize
    sizes = ", ".join(map(size_text, geometry.shape))
    strides = ", ".join(count_text(stride, itemsize) for stride in geometry.strides)
    same = of.is_tensor and of.tensor.dtype == geometry.dtype
    dtype = "" if same else short_dtype(geometry.dtype)
    return f"{dtype}[{sizes}]:[{strides}]+{count_text(geometry.offset, itemsize)}"


def tuple_text(parts: Iterable[str]) -> str:
    """Return ``()``, ``(a,)`` or ``(a, b)``."""
    listed = list(parts)
    return f"({', '.join(listed)}{',' if len(listed) == 1 else ''})"


def shown_arguments(node: OperatorNode, *, defaults: bool = False) -> list[tuple[str, Any]]:
    """Return the arguments that text shows, as (keyword or "", value).

    Positional arguments come first, without the trailing ones that equal their default; then
    keyword-only arguments that do not.
    """
    parameters = node.op.schema.arguments
    split = len(node.op.schema.positional)
    given = list(zip(parameters, node.arguments, strict=False))
    positional, keyword_only = given[:split], given[split:]
    if not defaults:
        while positional and matches_default(positional[-1][1], positional[-1][0].default):
            positional.pop()
        keyword_only = [
            (p, value) for p, value in keyword_only if not matches_default(value, p.default)
        ]
    surplus = [
        ("", value) for value in node.arguments[len(parameters) :]
    ]  # in a malformed node only
    return [
        *(("", value) for _, value in positional),
        *surplus,
        *((parameter.name, value) for parameter, value in keyword_only),
    ]


def _flags(flags: tuple[str, ...]) -> str:
    return f" ! {' '.join(flags)}" if flags else ""


# Graphs -------------------------------------------------------------------------------------------


def printer_of(graph: Graph, *, defaults: bool = False, types: bool = True) -> Printer:
    """Return the printer for the names of `graph`; undefined values show their stem."""
    names = graph.names
    return Printer(
        lambda value: names.get(value, f"?{value.stem}"),
        lambda value: names.get(value, "_"),
        defaults=defaults,
        types=types,
    )


def graph_text(
    graph: Graph, *, lines: bool = False, defaults: bool = False, types: bool = True
) -> str:
    """Return the text of a graph; see `Graph.text`."""
    printer = printer_of(graph, defaults=defaults, types=types)
    parameters = ", ".join(map(printer.line, graph.placeholders))
    text = [f"graph {graph.name}({parameters}):"]
    for node in graph.nodes:
        if isinstance(node, Placeholder):
            continue
        where = getattr(node, "where", None) if lines else None
        text.append(f"{INDENT}{printer.line(node)}{f'  # {where}' if where else ''}")
    return "\n".join(text)


def line_of(graph: Graph, node: Node) -> str:
    """Return the line of `node` with the names it has in `graph`."""
    return printer_of(graph).line(node)


def _stem(value: Value) -> str:
    return value.stem


hooks.line = Printer(_stem, _stem).line
hooks.text = graph_text
