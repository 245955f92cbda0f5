"""Python source of a graph: one function, one assignment per node.

    from oplib.dispatch.registry import get_op

    std_mul = get_op("std::mul")


    def f(x):
        mul = std_mul(x, 2.0)
        return epilogue(mul)

`python_source` gives the text, `compile_graph` the function, whose lines tracebacks and debuggers
show. It takes what `evaluate` takes and gives the same results. Three names are left to whoever
executes the text: ``constants`` (a dict of tensors by name), ``run_functionalized`` and
``epilogue``; they are there only if the text needs them.

Imports `evaluate.py`, `text.py` and what they import. Read next: `draw.py`.
"""

from __future__ import annotations

import itertools
import linecache
import re
import weakref
from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from keyword import iskeyword
from math import inf, isfinite
from typing import Any, Final, TypeAlias

import numpy as np

from .._dims import SymInt
from .._text import join_names
from .._tree import leaves
from ..dispatch.operator import Operator
from ..dtypes import Device, short_dtype
from ..schema.types import opaque_name
from ..tensor.geometry import Geometry
from .evaluate import (
    Epilogue,
    MakeConstant,
    Runner,
    constant_tensor,
    note_on,
    pack,
    run_functionalized,
    symbol_bounds,
)
from .ir import BodyNode, Call, Constant, Functionalized, Graph, Node, OperatorNode, defined_values
from .literals import literal_key, literal_text, size_text
from .names import Namer
from .text import shown_arguments, tuple_text
from .values import Reference, Value

__all__ = ["Choose", "compile_graph", "python_source"]

Choose: TypeAlias = Callable[[Call], tuple[Callable[..., Any], Hashable | None] | None]
"""What a call runs instead of its operator, and what it writes into, if anything: a value, or a
buffer known by this key."""

_serial: Final = itertools.count()
_EXPRESSION_WORD: Final = re.compile(r"\b(?:min|max)\b|(?<!/)/(?!/)")


def python_source(graph: Graph) -> str:
    """Return the text of a Python function that runs `graph`."""
    return "\n".join(_Writer(graph).module()) + "\n"


def compile_graph(
    graph: Graph,
    *,
    constants: MakeConstant = constant_tensor,
    run_functionalized: Runner = run_functionalized,
    epilogue: Epilogue = pack,
    choose: Choose | None = None,
) -> Callable[..., Any]:
    """Return a function of one tensor per placeholder that does what `evaluate` does, faster.

    Constants are made once, here. With `choose` a call runs the function that it returns, with all
    arguments of the operator spelled out, and ``out=`` the value or buffer it names: the returned
    function takes one more argument per buffer, in the order of first use. See `evaluate` for the
    other parameters.
    """
    writer = _Writer(graph, choose)
    lines = writer.module()
    filename = f"<oplib graph {graph.name} {next(_serial)}>"
    namespace: dict[str, Any] = {
        **writer.functions,
        "__name__": filename,
        "constants": {writer.names[node.value]: constants(node) for node in writer.constants},
        "run_functionalized": run_functionalized,
        "epilogue": epilogue,
    }
    text = "\n".join(lines) + "\n"
    exec(compile(text, filename, "exec"), namespace)
    function = namespace[writer.function]
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    nodes = writer.nodes

    def run(*inputs: Any) -> Any:
        try:
            return function(*inputs)
        except Exception as error:
            node = _node_that_raised(error, filename, nodes)
            if node is not None:
                error.add_note(note_on(graph, node))
            raise

    run.__name__ = run.__qualname__ = graph.name
    run.__doc__ = f"Run a graph: {join_names(graph.names[v] for v in _inputs(graph))}."
    weakref.finalize(run, linecache.cache.pop, filename, None)
    return run


def _inputs(graph: Graph) -> list[Value]:
    return [node.value for node in graph.placeholders]


def _node_that_raised(error: BaseException, filename: str, nodes: dict[int, Node]) -> Node | None:
    """Return the node whose line is in the traceback of `error`."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == filename:
            return nodes.get(traceback.tb_lineno)
        traceback = traceback.tb_next
    return None


class _Writer:
    """Writes the module of one graph; `nodes` says which line came from which node."""

    def __init__(self, graph: Graph, choose: Choose | None = None) -> None:
        self.graph = graph
        self.choose = choose
        self.functions: dict[str, Any] = {}
        self.buffers: dict[Hashable, str] = {}
        self.names = dict(graph.names)
        used = set(graph.users)
        self.constants = [node for node in graph.constants if node.value in used]
        self.namer = Namer({*self.names.values(), graph.name})
        self.function = graph.name
        self.header: dict[str, None] = {}
        self.globals: dict[Any, str] = {}
        self.nodes: dict[int, Node] = {}

    def module(self) -> list[str]:
        """Return the lines of the module."""
        lines = list(self.body())
        inputs = [self.names[value] for value in _inputs(self.graph)]
        parameters = ", ".join([*inputs, *self.buffers.values()])
        body = [(f"def {self.function}({parameters}):", None), *lines]
        imports = sorted(line for line in self.header if line.startswith("from"))
        assignments = [line for line in self.header if not line.startswith("from")]
        head = [*imports, "", *assignments, "", ""] if imports else [*assignments, "", ""]
        for number, (_, node) in enumerate(body, start=len(head) + 1):
            if node is not None:
                self.nodes[number] = node
        return [*head, *(line for line, _ in body)]

    def body(self) -> Iterator[tuple[str, Node | None]]:
        """Iterate over the lines of the function, with the node each comes from."""
        indent = "    "
        for placeholder in self.graph.placeholders:
            yield from self.sizes(placeholder)
            yield from self.release(placeholder)
        for node in self.graph.body:
            if isinstance(node, Constant) and node.value not in self.names:
                continue
            left, right = self.left(node), self.right(node)
            line = f"{left} = {right}" if left else right
            if "no_grad" in getattr(node, "flags", ()):
                block = self.imported("oplib.graph.evaluate", "without_recording")
                yield f"{indent}with {block}():", None
                yield f"{indent}    {line}", node
            else:
                yield f"{indent}{line}", node
            yield from self.sizes(node)
            yield from self.release(node, left)
        values = ", ".join(self.names[value] for value in self.graph.tail_values)
        yield f"{indent}return epilogue({values})", None

    # Lines ----------------------------------------------------------------------------------------

    def left(self, node: BodyNode) -> str:
        """Return what the results of a node are assigned to; nothing if nothing uses them."""
        if isinstance(node, Constant):
            return self.names[node.value]
        structure: Any = node.results
        if isinstance(node, Functionalized):
            structure = (*node.results, *node.regions)
        elif len(structure) == 1:
            structure = structure[0]
            if isinstance(structure, Value):
                return self.names.get(structure, "")
            if structure is None:
                return ""
        if _returns_dict(node):
            structure = tuple(leaves(structure))
        if not any(value in self.names for value in defined_values(node) if not value.is_token):
            return ""
        parts = [self.target(each) for each in structure]
        return ", ".join(parts) if len(parts) > 1 else f"[{parts[0]}]"

    def right(self, node: BodyNode) -> str:
        """Return the expression for the results of a node."""
        if isinstance(node, Constant):
            return f'constants["{self.names[node.value]}"]'
        if isinstance(node, Functionalized):
            return self.functionalized(node)
        call = self.call(node)
        return f"{self.imported('oplib._tree', 'leaves')}({call})" if _returns_dict(node) else call

    def target(self, structure: Any) -> str:
        """Return what a result is assigned to; ``_`` for one that nothing uses."""
        if isinstance(structure, list | tuple):
            return f"[{', '.join(map(self.target, structure))}]"
        return "_" if structure is None else self.names.get(structure, "_")

    def call(self, node: OperatorNode) -> str:
        """Return the call of an operator, with the arguments its text shows."""
        chosen = self.choose(node) if self.choose and isinstance(node, Call) else None
        parts = []
        for keyword, value in shown_arguments(node, defaults=chosen is not None):
            text = self.argument(value)
            if iskeyword(keyword):
                parts.append(f'**{{"{keyword}": {text}}}')
            else:
                parts.append(f"{keyword}={text}" if keyword else text)
        if chosen is None:
            return f"{self.operator(node.op)}({', '.join(parts)})"
        function, buffer = chosen
        name = self.globals.get(function)
        if name is None:
            name = self.globals[function] = self.namer.name(_stem(node.op))
            self.functions[name] = function
        if isinstance(buffer, Value):
            parts.append(f"out={self.names[buffer]}")
        elif buffer is not None:
            if buffer not in self.buffers:
                self.buffers[buffer] = self.namer.name("buffer")
            parts.append(f"out={self.buffers[buffer]}")
        return f"{name}({', '.join(parts)})"

    def functionalized(self, node: Functionalized) -> str:
        """Return the call of the runner. See Note [Running a functionalized node]."""
        region = self.imported("oplib.graph.evaluate", "Region")
        regions = [
            f"{region}({self.names[base]}, {self.geometry(base.tensor.form)})"
            for base in node.bases
        ]
        index = {base: position for position, base in enumerate(node.bases)}
        arguments = [self.argument(value, index) for value in node.arguments]
        inside = (self.operator(node.op), tuple_text(arguments), tuple_text(regions))
        return f"run_functionalized({', '.join(inside)})"

    def sizes(self, node: Node) -> Iterator[tuple[str, Node | None]]:
        """Iterate over the lines that give symbols their numbers."""
        for value in defined_values(node):
            for symbol, axis in self.graph.symbol_sites.get(value, ()):
                size = f"{self.names[value]}.shape[{axis}]"
                low, high = symbol_bounds(value, axis)
                if low > 0 or high < inf:
                    check = self.imported("oplib.graph.evaluate", "checked_size")
                    bounds = f"{self.literal(low)}, {self.literal(high)}"
                    size = f'{check}({size}, "{symbol}", {bounds})'
                yield f"    {symbol} = {size}", node

    def release(self, node: Node, left: str = "") -> Iterator[tuple[str, Node | None]]:
        """Iterate over the line that lets go of what nothing needs after `node`."""
        dead = [self.names[v] for v in self.graph.dead_after.get(node, ()) if v in self.names]
        if "_" in re.findall(r"\w+", left):
            dead.append("_")
        if dead:
            yield f"    del {', '.join(dead)}", None

    # Expressions ----------------------------------------------------------------------------------

    def argument(self, value: Any, regions: dict[Value, int] | None = None) -> str:
        """Return the expression for one argument, containers included."""
        if isinstance(value, Value):
            return self.names[value]
        if isinstance(value, Reference) and regions is not None:
            view = self.imported("oplib.graph.evaluate", "RegionView")
            geometry = "" if value.geometry is None else f", {self.geometry(value.geometry)}"
            return f"{view}({regions[value.value]}{geometry})"
        if isinstance(value, list):
            return f"[{', '.join(self.argument(item, regions) for item in value)}]"
        if isinstance(value, tuple):
            return tuple_text([self.argument(item, regions) for item in value])
        if isinstance(value, dict):
            pairs = (
                f"{self.literal(key)}: {self.argument(item, regions)}"
                for key, item in value.items()
            )
            return f"{{{', '.join(pairs)}}}"
        return self.literal(value)

    def literal(self, value: Any) -> str:
        """Return a literal; what has no exact display of its own becomes a name of the module."""
        if isinstance(value, slice):
            parts = ", ".join(map(self.literal, (value.start, value.stop, value.step)))
            return f"{self.imported('builtins', 'slice')}({parts})"
        if isinstance(value, SymInt):
            return self.size(value)
        if isinstance(value, Operator):
            return self.operator(value)
        if isinstance(value, np.dtype):
            call = f'{self.imported("oplib.dtypes", "as_dtype")}("{short_dtype(value)}")'
            return self.hoisted(value, value.name, call)
        if isinstance(value, Device):
            call = f"{self.imported('oplib.dtypes', 'Device')}({value.type!r}, {value.index!r})"
            return self.hoisted(value, value.type, call)
        if isinstance(value, Enum):
            find = self.imported("oplib.schema", "opaque_class")
            call = f'{find}("{opaque_name(type(value))}")["{value.name}"]'
            return self.hoisted(value, value.name, call)
        if isinstance(value, complex):
            call = f"complex({self.float(value.real)}, {self.float(value.imag)})"
            return self.hoisted(value, "number", call)
        if isinstance(value, float) and not isfinite(value):
            return self.hoisted(value, "number", self.float(value))
        return literal_text(value)

    def float(self, value: float) -> str:
        """Return an expression for a float, to the bit."""
        text = literal_text(value)
        if text.startswith("nan("):
            return f"{self.imported('oplib.graph.literals', 'float_from_bits')}{text[3:]}"
        return text if isfinite(value) else f'float("{text}")'

    def geometry(self, geometry: Geometry) -> str:
        """Return an expression for a geometry."""
        sizes = tuple_text([self.size(size) for size in geometry.shape])
        strides = tuple_text([self.size(stride) for stride in geometry.strides])
        make = self.imported("oplib.tensor.geometry", "Geometry")
        dtype, offset = self.literal(geometry.dtype), self.size(geometry.offset)
        return f"{make}({dtype}, {sizes}, {strides}, {offset})"

    def size(self, size: Any) -> str:
        """Return a size: a number, or an expression of symbols in Python."""

        def spelled(match: re.Match[str]) -> str:
            return "//" if match[0] == "/" else self.imported("builtins", match[0])

        return _EXPRESSION_WORD.sub(spelled, size_text(size))

    # Names of the module --------------------------------------------------------------------------

    def operator(self, op: Operator[..., Any]) -> str:
        """Return the name an operator has in the module."""
        get_op = self.imported("oplib.dispatch.registry", "get_op")
        return self.hoisted(op, _stem(op), f'{get_op}("{op.qualname}")')

    def imported(self, module: str, name: str) -> str:
        """Import a name, under another one where a value has it, and return that."""
        key = module, name
        if key not in self.globals:
            alias = self.globals[key] = self.namer.name(name)
            rename = "" if alias == name else f" as {alias}"
            self.header[f"from {module} import {name}{rename}"] = None
        return self.globals[key]

    def hoisted(self, value: Any, stem: str, expression: str) -> str:
        """Compute something once, at the top of the module, and return its name."""
        key = literal_key(value)
        if key not in self.globals:
            name = self.globals[key] = self.namer.name(stem)
            self.header[f"{name} = {expression}"] = None
        return self.globals[key]


def _stem(op: Operator[..., Any]) -> str:
    return op.qualname.replace("::", "_").replace(".", "_")


def _returns_dict(node: OperatorNode) -> bool:
    return isinstance(node, Call) and any("Dict(" in str(r.type) for r in node.op.schema.returns)
