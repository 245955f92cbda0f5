"""Runs a graph node by node, on any tensors: real, fake, captured, or whatever operators accept.

`evaluate` walks the nodes once, calls every operator through ordinary dispatch, and lets go of each
value after its last use. It does not store anything into the inputs: it hands the values that the
tail names to `epilogue`, which is the program's business. `source.py` makes the same run as Python
text; both take the same keywords and give the same results.

Note [Running a functionalized node]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A `Functionalized` node is run by a `Runner`: the one passed as `run_functionalized`, else the one
installed with `set_functionalized_runner`. It is called as ``runner(op, arguments, regions)``:

- ``regions`` has one `Region` per written storage: the tensor that is its old value, and its form,
  which says at which bytes of a buffer of its own each element lies.
- ``arguments`` are the operator's, in schema order, with `RegionView(region, geometry)` for every
  tensor that lives in a region; geometries count bytes from the start of the region's buffer, and
  None means the region's form.

It clones each region once, rebuilds the views on the clones, calls the operator, and returns a flat
sequence: the fresh returns in order (nested ones stay nested), then one new value per region, with
the form's shape and dtype.

Imports `ir.py` and floors 0 to 3. Read next: `source.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from .._dims import SymInt
from .._dims import substitute as substitute_sizes
from .._state import current, enter
from .._tree import tree_map
from ..dispatch.keys import AUTOGRAD
from ..dispatch.operator import Operator
from ..errors import ArgumentError, CaptureError
from ..tensor.geometry import Geometry, extent
from ..tensor.tensor import tensor_from_array
from .ir import Constant, Functionalized, Graph, Node, OperatorNode, defined_values, used_values
from .text import line_of
from .values import Digest, Reference, TensorMeta, Value

__all__ = [
    "Region",
    "RegionView",
    "constant_tensor",
    "evaluate",
    "pack",
    "set_functionalized_runner",
    "without_recording",
]


@dataclass(frozen=True, slots=True)
class Region:
    """The old value of a written storage, and how it lies in a buffer of its own."""

    value: Any
    form: Geometry


@dataclass(frozen=True, slots=True)
class RegionView:
    """An argument that is a view of a region's clone; geometry None is the region's form."""

    region: int
    geometry: Geometry | None = None


class Runner(Protocol):
    """Runs a functionalized node. See Note [Running a functionalized node]."""

    def __call__(
        self, op: Operator[..., Any], arguments: tuple[Any, ...], regions: tuple[Region, ...], /
    ) -> Sequence[Any]: ...


Hook: TypeAlias = Callable[[Node, tuple[Any, ...]], object]
Epilogue: TypeAlias = Callable[..., Any]
MakeConstant: TypeAlias = Callable[[Constant], Any]

_runner: Runner | None = None


def set_functionalized_runner(runner: Runner) -> None:
    """Install what runs functionalized nodes wherever no runner is passed."""
    global _runner
    _runner = runner


def run_functionalized(
    op: Operator[..., Any], arguments: tuple[Any, ...], regions: tuple[Region, ...]
) -> Sequence[Any]:
    """Run a functionalized node with the installed runner."""
    if _runner is None:
        raise CaptureError(
            f"nothing runs the functionalized call of {op.qualname}: pass run_functionalized=, or "
            "install a runner with set_functionalized_runner"
        )
    return _runner(op, arguments, regions)


def pack(*values: Any) -> tuple[Any, ...]:
    """Return the values the tail names, in the order of ``graph.tail_values``."""
    return values


def without_recording() -> enter:
    """Return a context in which no gradient is recorded (nodes flagged ``no_grad`` run in it)."""
    state = current()
    return enter(state.replace(user=state.user & ~AUTOGRAD))


def constant_tensor(node: Constant) -> Any:
    """Return a new Tensor with the data of a constant, in the layout its meta tells."""
    data, meta = node.data, node.value.meta
    if isinstance(data, Digest):
        raise CaptureError(f"the data of {node} is not here; parse the text with constants=")
    assert isinstance(meta, TensorMeta)
    _, nbytes = extent(meta.form)
    array = np.ndarray(
        meta.shape, meta.dtype, np.zeros(nbytes, np.uint8), meta.form.offset, meta.strides
    )
    array[...] = data
    return tensor_from_array(array)


def checked_size(size: int, symbol: str, low: float, high: float) -> int:
    """Return the size a symbol is bound to, if it lies in the interval declared for it."""
    if not low <= size <= high:
        raise ArgumentError(
            f"the size {symbol} is {size} in this run, outside {low} <= {symbol} <= {high}, which "
            "was declared when the graph was captured"
        )
    return size


def evaluate(
    graph: Graph,
    inputs: Iterable[Any],
    *,
    constants: MakeConstant = constant_tensor,
    run_functionalized: Runner = run_functionalized,
    hook: Hook | None = None,
    epilogue: Epilogue = pack,
) -> Any:
    """Run `graph` and return what `epilogue` makes of the values its tail names.

    Parameters
    ----------
    graph : Graph
    inputs : iterable
        One tensor per placeholder, in order.
    constants : callable, optional
        Returns the tensor of a `Constant` node; a new one from its data unless given.
    run_functionalized : callable, optional
        See Note [Running a functionalized node].
    hook : callable, optional
        Called as ``hook(node, values)`` once per node, in order, after it has run: with the values
        it defines (tokens excluded), or for a node of the tail with the values it names.
    epilogue : callable, optional
        Called with the values of ``graph.tail_values``; `pack` returns them as a tuple.

    Raises
    ------
    CaptureError
        If the number of inputs is wrong. An exception of a kernel keeps its type and gains a note
        with the node and the line that recorded it.
    """
    run = _Run(graph, constants, run_functionalized)
    run.bind_inputs(tuple(inputs), hook)
    del inputs
    for node in graph.body:
        try:
            run.step(node)
        except Exception as error:
            error.add_note(note_on(graph, node))
            raise
        if hook is not None:
            hook(node, run.values_of(node))
        run.release(node)
    if hook is not None:
        tail: tuple[Node, ...] = (*graph.writes, *graph.rebinds, graph.output)
        for each in tail:
            hook(each, tuple(run.environment[value] for value in used_values(each)))
    return epilogue(*[run.environment[value] for value in graph.tail_values])


def note_on(graph: Graph, node: Node) -> str:
    """Return the note an exception gains when `node` raises it."""
    where = getattr(node, "where", None)
    place = f", recorded at {where}" if where else ""
    return f"while running graph `{graph.name}`: {line_of(graph, node)}{place}"


def symbol_bounds(value: Value, axis: int) -> tuple[float, float]:
    """Return the closed interval declared for the symbol that is a value's length on `axis`."""
    symbol = value.tensor.shape[axis]
    low, high = symbol.facts.bounds(symbol)
    return low, high


class _Run:
    """The state of one evaluation: the values that are alive, and the sizes of symbols."""

    def __init__(self, graph: Graph, constants: MakeConstant, runner: Runner) -> None:
        self.graph = graph
        self.constants = constants
        self.runner = runner
        self.environment: dict[Value, Any] = {}
        self.sizes: dict[str, int] = {}
        self.sites = graph.symbol_sites

    def bind_inputs(self, inputs: tuple[Any, ...], hook: Hook | None) -> None:
        """Keep the inputs under the placeholders' values."""
        placeholders = self.graph.placeholders
        if len(inputs) != len(placeholders):
            raise CaptureError(
                f"graph `{self.graph.name}` takes {len(placeholders)} inputs, got {len(inputs)}"
            )
        for node, tensor in zip(placeholders, inputs, strict=True):
            self.define(node.value, tensor)
            if hook is not None:
                hook(node, (tensor,))
            self.release(node)

    def step(self, node: Constant | OperatorNode) -> None:
        """Run one node and keep its results."""
        if isinstance(node, Constant):
            self.define(node.value, self.constants(node))
        elif "no_grad" in node.flags:
            with without_recording():
                self.call(node)
        else:
            self.call(node)

    def call(self, node: OperatorNode) -> None:
        """Run the operator of a node with lists of its own."""
        if isinstance(node, Functionalized):
            bases = {base: index for index, base in enumerate(node.bases)}
            regions = tuple(Region(self.environment[b], self.sized(b.tensor.form)) for b in bases)
            arguments = tree_map(lambda leaf: self.argument(leaf, bases), node.arguments)
            self.define((*node.results, *node.regions), self.runner(node.op, arguments, regions))
            return
        result = node.op.call_positional(tree_map(self.argument, node.arguments))
        self.define(node.results[0] if len(node.results) == 1 else node.results, result)

    def argument(self, leaf: Any, bases: dict[Value, int] | None = None) -> Any:
        """Return what a leaf of the arguments stands for."""
        if type(leaf) is Value:
            return self.environment[leaf]
        if type(leaf) is SymInt:
            return substitute_sizes(leaf, self.sizes)
        if type(leaf) is Reference and bases is not None:
            view = leaf.geometry
            return RegionView(bases[leaf.value], None if view is None else self.sized(view))
        return leaf

    def sized(self, geometry: Geometry) -> Geometry:
        """Return a geometry with numbers for symbols."""
        if not self.sizes:
            return geometry
        shape, strides, (offset,) = (
            tuple(substitute_sizes(size, self.sizes) for size in sizes)
            for sizes in (geometry.shape, geometry.strides, (geometry.offset,))
        )
        return Geometry(geometry.dtype, shape, strides, offset)

    def define(self, structure: Any, result: Any) -> None:
        """Keep a result under the value, or the values, that name it."""
        if type(structure) is Value:
            self.environment[structure] = result
            for name, axis in self.sites.get(structure, ()):
                low, high = symbol_bounds(structure, axis)
                self.sizes[name] = checked_size(result.shape[axis], name, low, high)
        elif structure:
            parts = result.values() if isinstance(result, dict) else result
            for one, part in zip(structure, parts, strict=True):
                self.define(one, part)

    def values_of(self, node: Constant | OperatorNode) -> tuple[Any, ...]:
        """Return the results of a node that has just run, tokens excluded."""
        defined = defined_values(node)
        return tuple(self.environment[value] for value in defined if not value.is_token)

    def release(self, node: Node) -> None:
        """Forget what nothing needs once `node` has run."""
        for value in self.graph.dead_after.get(node, ()):
            del self.environment[value]
