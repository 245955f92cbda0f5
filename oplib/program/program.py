"""`Program`: a captured graph with its signature and what a run leaves behind.

Imports floors 0 to 5, `signature.py`, `export.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from .. import _state
from .._tree import flatten, tree_map
from .._tree import leaves as tree_leaves
from ..dispatch.keys import AUTOCAST, AUTOGRAD
from ..errors import GuardError
from ..functionalize.access import laid_out
from ..functionalize.opaque import At, run_functionalized
from ..functionalize.outcome import Outcome, ValueResult, ValueView
from ..functionalize.settle import settle
from ..functionalize.storage import form_of
from ..graph import (
    Graph,
    Output,
    Placeholder,
    Reference,
    Region,
    RegionView,
    Value,
    compile_graph,
    constant_tensor,
    python_source,
    set_functionalized_runner,
)
from ..graph.passes import dead_code
from ..prims import clone
from ..tensor.geometry import self_overlap
from ..tensor.tensor import Tensor
from .export import ExportForm, export_form
from .signature import Signature

__all__ = ["Program", "install"]


class Program:
    """A function captured as a graph; call it like the function.

    Attributes
    ----------
    graph : Graph
    outcome : Outcome
        What a run stores and returns.
    signature : Signature
        What it was captured for.
    captured : tuple of Tensor
        Tensors of the enclosing scope, read anew at each call.
    """

    def __init__(
        self, graph: Graph, outcome: Outcome, signature: Signature, captured: Sequence[Tensor]
    ) -> None:
        self.graph = graph
        self.outcome = outcome
        self.signature = signature
        self.captured = tuple(captured)
        self._constants: list[Tensor] = []
        self._run: Callable[..., Any] | None = None
        self._takes = _values_of_outcome(graph, outcome)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Raises
        ------
        GuardError
            If the arguments are not like those it was captured for; nothing has run then.
        """
        failed = list(islice(self.signature.failures(args, kwargs, self.captured), 3))
        if failed:
            raise GuardError(
                f"program {self.graph.name} was captured for other arguments\n  "
                + "\n  ".join(failed)
                + "\n  capture it again for these: oplib.capture(f, ...)"
            )
        return self.run(flatten((args, kwargs))[0])

    def run(self, leaves: Sequence[Any]) -> Any:
        """Run on the leaves of arguments that pass the guards, without checking them."""
        inputs = self.signature.inputs_of(leaves, self.captured)
        state = _state.current()  # the casts of autocast are in the graph
        with _state.enter(state.replace(include=state.include & ~AUTOCAST)):
            values = self._values(inputs)
        return settle(self.outcome, inputs, values, [t._storage for t in self._constants])

    def check(self, *args: Any, **kwargs: Any) -> list[str]:
        """Return the guards these arguments fail, one line each, without running anything."""
        return list(self.signature.failures(args, kwargs, self.captured))

    def with_graph(self, graph: Graph) -> Program:
        """Return the same program with another graph: what a pass made of this one's."""
        return Program(graph, self.outcome, self.signature, self.captured)

    def lift(self) -> Program:
        """Return the same program with captured tensors as its last positional arguments.

        >>> import oplib
        >>> total = oplib.zeros(2)
        >>> program = oplib.capture(lambda x: total.add_(x), oplib.ones(2)).lift()
        >>> program(oplib.ones(2), oplib.ones(2))
        Tensor([2., 2.])
        """
        nodes = [
            replace(n, role="argument")
            if isinstance(n, Placeholder) and n.role == "captured"
            else n
            for n in self.graph.nodes
        ]
        graph = Graph(self.graph.name, tuple(nodes))
        return Program(graph, self.outcome, self.signature.lifted(), ())

    def as_function(self) -> ExportForm:
        """Return the program as a pure function of its inputs. See `ExportForm`."""
        return export_form(self.graph, self.outcome, self._takes, self.signature)

    def value_graph(self) -> Graph:
        """Return the graph of the values the outcome names, in its order, and nothing else."""
        nodes = (*self.graph.placeholders, *self.graph.body, Output(tuple(self._takes)))
        return dead_code(Graph(self.graph.name, nodes))

    @property
    def guards(self) -> str:
        """The guards, one per line."""
        return "\n".join(self.signature.lines())

    def source(self) -> str:
        """Return the program as the text of one Python function."""
        return python_source(self.graph)

    def to_html(self) -> str:
        """Return a web page with the graph as a drawing and as text; it loads nothing else."""
        return self.graph.html()

    def _repr_html_(self) -> str:
        return self.graph._repr_html_()

    def __str__(self) -> str:
        return str(self.graph)

    def __repr__(self) -> str:
        return f"<Program {self.graph.name}: {len(self.graph.calls)} calls>"

    # ------------------------------------------------------------------ running

    def _values(self, inputs: list[Tensor]) -> list[Tensor]:
        """Compute the values the outcome names."""
        if self._run is None:
            self._run = compile_graph(self.graph, constants=self._constant)
        given = self._kept(inputs, self.signature.with_spans(inputs))
        computed = self._run(*given)
        environment = dict(zip(self.graph.tail_values, computed, strict=True))
        return [environment[value] for value in self._takes]

    def _constant(self, node: Any) -> Tensor:
        tensor: Tensor = constant_tensor(node)
        self._constants.append(tensor)
        return tensor

    def _kept(self, inputs: list[Tensor], given: list[Tensor]) -> list[Tensor]:
        """Return what the graph receives: copies of what is written, if a gradient may need it.

        The stores at the end would invalidate what the graph saved.
        """
        recording = _state.current().mask & AUTOGRAD
        if not recording or not any(tensor.requires_grad for tensor in inputs):
            return given
        written = {id(inputs[write.index]._storage) for write in self.outcome.writes}
        return [_copy_of(x) if id(x._storage) in written else x for x in given]


def _copy_of(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides, where these do not overlap."""
    form = form_of(tensor)
    copy: Tensor = clone(tensor)
    return copy if self_overlap(form) else laid_out(copy, form, True)


def _values_of_outcome(graph: Graph, outcome: Outcome) -> list[Value]:
    """Return the graph value behind every value the outcome names by index."""
    found: dict[int, Value] = {}
    for write, node in zip(outcome.writes, graph.writes, strict=True):
        found[write.value] = node.value
    results = list(tree_leaves(graph.output.results))
    rebound = [node.reference for node in graph.rebinds]
    shown = [*zip(outcome.records, results, strict=False)]  # a result None is no output
    shown += zip((each.place for each in outcome.rebindings), rebound, strict=True)
    for record, leaf in shown:
        if isinstance(record, ValueResult | ValueView):
            found[record.value] = leaf.value if isinstance(leaf, Reference) else leaf
    first = len(results) - len(outcome.extras)
    found.update(zip(outcome.extras, results[first:], strict=True))
    return [found[index] for index in range(len(found))]


def _run_node(op: Any, arguments: tuple[Any, ...], regions: tuple[Region, ...]) -> Sequence[Any]:
    """Run a functionalized node of a graph."""

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, RegionView):
            return leaf
        return At(leaf.region, leaf.geometry or regions[leaf.region].form)

    fresh, new = run_functionalized(
        op.qualname,
        tuple([tree_map(place, value) for value in arguments]),
        [region.value for region in regions],
        tuple([region.form for region in regions]),
    )
    return [*fresh, *new]


def install() -> None:
    """Let graphs run functionalized nodes."""
    set_functionalized_runner(_run_node)
