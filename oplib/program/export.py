"""The export form of a program: a pure function without a tail.

Other frameworks know values only. Here nothing is stored and nothing aliases: what is written into
an input becomes a result, and a view of something becomes its elements.

Imports floors 0 to 5, `recorder.py`, `signature.py`. Read next: `program.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._tree import TreeDef, unflatten
from ..dispatch.interpreter import pop, push
from ..errors import CaptureError
from ..functionalize.access import access
from ..functionalize.outcome import (
    InputResult,
    InputView,
    LiteralResult,
    Outcome,
    SameResult,
    ValueResult,
    ValueView,
)
from ..graph import Graph, Output, Value, evaluate
from ..tensor.geometry import Geometry, same_geometry
from ..tensor.tensor import Tensor
from .recorder import Recorder
from .signature import Signature

__all__ = ["ExportForm", "export_form"]


@dataclass(frozen=True, slots=True)
class ExportForm:
    """A program as a pure function: ``(inputs) -> (written values..., results...)``.

    Attributes
    ----------
    graph : Graph
        Functional, without writes, and without references in its output. Its placeholders are the
        inputs: tensor arguments, each once, then captured tensors.
    written : tuple of str
        What the first results are: the new values of these arguments, by path.
    structure : TreeDef
        Of the results that follow; those that are no tensors are literals of the output.
    """

    graph: Graph
    written: tuple[str, ...]
    structure: TreeDef

    def __call__(self, *inputs: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        """Return the written values, and the results as the program nests them."""
        environment = dict(zip(self.graph.tail_values, evaluate(self.graph, inputs), strict=True))
        found = [environment.get(leaf, leaf) for leaf in self.graph.output.results]
        count = len(self.written)
        return tuple(found[:count]), unflatten(self.structure, iter(found[count:]))


def export_form(
    graph: Graph, outcome: Outcome, values: list[Value], signature: Signature
) -> ExportForm:
    """Return the export form of a program; `values` are those its outcome names by index.

    Raises
    ------
    CaptureError
        If inputs share written memory, for as values they are independent, or if the program sets
        what no value has.
    """
    if signature.spans or signature.groups or any(signature.hidden):
        raise CaptureError(
            f"program {graph.name} depends on memory that several of its inputs lie in; a pure "
            "function has no such inputs\n  capture it for one tensor and take the views inside"
        )
    if outcome.gradients or outcome.flags:
        raise CaptureError(
            f"program {graph.name} sets .grad or requires_grad of its inputs; a pure function "
            "returns gradients\n  return oplib.grad(...) from the captured function"
        )
    reads = _Reads(graph)
    current = [node.value for node in graph.placeholders]
    for write in outcome.writes:
        current[write.index] = values[write.value]
    moved = {each.index: each.place for each in outcome.rebindings}
    results: list[Any] = []
    for record in outcome.records:
        if isinstance(record, InputResult):
            record = moved.get(record.index, record)
        match record:
            case InputResult(index):
                results.append(current[index])
            case InputView():
                results.append(reads.view(current[record.index], record.base, record.geometry))
            case ValueResult():
                results.append(values[record.value])
            case ValueView():
                results.append(reads.view(values[record.value], record.form, record.geometry))
            case SameResult(earlier):
                results.append(results[earlier])
            case LiteralResult(literal):
                results.append(literal)
    written = tuple([signature.name_of(write.index) for write in outcome.writes])
    output = Output((*(values[write.value] for write in outcome.writes), *results))
    nodes = (*graph.placeholders, *graph.body, *reads.nodes, output)
    return ExportForm(Graph(graph.name, nodes), written, outcome.structure)


class _Reads:
    """Nodes that read parts of the values of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.recorder = Recorder(graph.name)

    @property
    def nodes(self) -> list[Any]:
        """What was recorded."""
        return self.recorder.builder.nodes

    def view(self, value: Value, form: Geometry, geometry: Geometry) -> Value:
        """Return the elements at `geometry` of a value that lies at `form`."""
        if same_geometry(form, geometry):
            return value
        place = access(geometry, form)
        assert place is not None
        recorder = self.recorder
        recorder.frame = push(recorder)
        try:
            read = place.get(recorder.known(value))
        finally:
            pop(recorder.frame)
        return read.array.value  # type: ignore[no-any-return]
