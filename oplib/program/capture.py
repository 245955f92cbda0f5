"""`capture`: run a function once on fakes and return it as a `Program`.

The examples become fakes, each wrapped by the recorder, each of these wrapped by functionalization:
in-place operators and views reach the recorder as pure operators. Their data is never read.

Imports floors 0 to 5, `recorder.py`, `program.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import _state
from .._tree import flatten, unflatten
from ..dispatch.interpreter import pop, push
from ..dispatch.keys import AUTOGRAD
from ..errors import ArgumentError, CaptureError
from ..functionalize.opaque import rebased
from ..functionalize.outcome import (
    InputResult,
    InputView,
    LiteralResult,
    Outcome,
    Record,
    SameResult,
    ValueResult,
    ValueView,
)
from ..functionalize.run import FunctionalRun
from ..graph import Graph, GraphBuilder, Reference, Same, Value, verify
from ..graph.passes import dead_code
from ..tensor.tensor import Tensor
from .program import Program
from .recorder import Recorder
from .signature import Signature

__all__ = ["capture"]


def capture(function: Callable[..., Any], *examples: Any, **kw_examples: Any) -> Program:
    """Run `function` once without data and return it as a program.

    Views and in-place operators become pure operators; what the function writes into its arguments
    is stored by each call of the program, after everything was computed.

    Parameters
    ----------
    function : callable
        Of tensors nested in lists, tuples and dicts, and plain values, which are specialised.
    *examples, **kw_examples
        Arguments like those of later calls; their data is neither read nor changed.

    Returns
    -------
    Program
        Callable like `function`; ``program.graph`` prints the graph.

    Raises
    ------
    DataDependentError
        If the function reads the value of a tensor.
    FakeTensorError
        If an operator has no fake rule.
    CaptureError
        If the function does what no graph can repeat.

    Examples
    --------
    >>> import oplib
    >>> program = oplib.capture(lambda x: x * 2, oplib.ones(3))
    >>> print(program.graph)
    graph f(x: f64[3]):
        mul: f64[3] = std.mul(x, 2)
        return mul
    >>> program(oplib.tensor([1.0, 2.0, 3.0]))
    Tensor([2., 4., 6.])
    """
    if not callable(function):
        raise ArgumentError(f"capture takes a function and examples, got {function!r}")
    leaves, structure = flatten((examples, kw_examples))
    tensors = list({id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}.values())
    stems = _stems(function, examples, kw_examples)
    recorder = Recorder(_graph_name(function))
    frame = push(recorder)
    recorder.frame = frame
    try:
        inputs = _Inputs(recorder, tensors, [stems.get(id(t), "x") for t in tensors])
        run = FunctionalRun(tensors, inputs.arguments, inputs.adopt, inputs.span, frame)
        run.interpreter.after_write = recorder.name_written
        outcome, values = run.execute(function, leaves, structure)
        if run.has_inner_leaves:
            _refuse_inner_leaves(values, inputs.leaves)
        if any(gradient.of_root for gradient in outcome.gradients):
            raise CaptureError(
                "arguments are views of one tensor, and a gradient of that tensor was asked for "
                "inside of the captured function\n  pass that tensor and take its views inside"
            )
        graph = dead_code(_build(recorder.builder, run, outcome, values))
        verify(graph, only=("literals",))
    except Exception as error:
        nodes = recorder.builder.nodes
        last = f", the last one {nodes[-1]}" if nodes else ""
        error.add_note(
            f"while capturing {recorder.builder.name}: {len(nodes)} nodes recorded{last}"
        )
        raise
    finally:
        pop(frame)
    signature = Signature.of(
        leaves, structure, run, inputs.spans, outcome, recorder.asked_grad_mode
    )
    captured = [t for i, t in enumerate(run.inputs) if i >= len(tensors) and i not in run.derived]
    return Program(graph, outcome, signature, captured)


class _Inputs:
    """The placeholders of a capture.

    Attributes
    ----------
    arguments : list of Tensor
        What stands for the arguments.
    leaves : set
        The accumulation nodes of placeholders that required grad from the beginning.
    spans : list of tuple of int
        Inputs whose common memory is a placeholder of its own.
    """

    def __init__(self, recorder: Recorder, tensors: Sequence[Tensor], stems: Sequence[str]) -> None:
        self.recorder = recorder
        self.stems = list(stems)
        self.leaves: set[Any] = set()
        self.spans: list[tuple[int, ...]] = []
        self.arguments = [self._add(s, t) for s, t in zip(stems, tensors, strict=True)]

    def _add(self, stem: str, tensor: Tensor, role: Any = "argument") -> Tensor:
        captured = self.recorder.placeholder(stem, tensor, role)
        if captured.autograd_meta is not None:
            self.leaves.add(captured.autograd_meta.grad_node)
        return captured

    def adopt(self, tensor: Tensor) -> Tensor:
        """Return what stands for a tensor of the enclosing scope."""
        self.stems.append("captured")
        return self._add("captured", tensor, "captured")

    def span(self, tensor: Tensor, members: tuple[int, ...]) -> Tensor:
        """Return what stands for the memory that several inputs lie in."""
        self.spans.append(members)
        stem = "_".join([*(self.stems[i] for i in members), "span"])
        return self._add(stem, tensor, "span")


def _refuse_inner_leaves(values: Sequence[Tensor], leaves: set[Any]) -> None:
    """Raise if a result depends on a tensor that became a leaf inside: no graph can say that."""
    seen: set[Any] = set()
    queue = [value.autograd_meta for value in values if value._keys & AUTOGRAD]
    while queue:
        meta = queue.pop()
        if meta is None or meta.grad_node in seen:
            continue
        node = meta.grad_node
        seen.add(node)
        queue += node.edges
        if not node.edges and node not in leaves:
            raise CaptureError(
                "requires_grad was switched on inside of a captured function, and a result depends "
                "on the tensor it was set on\n  set it before the call, or return gradients only"
            )


def _graph_name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", "f")
    return name if name.isidentifier() and not name.startswith("<") else "f"


def _stems(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[int, str]:
    """Return a readable name for every tensor among the examples: its parameter's."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
        named: dict[str, Any] = dict(bound.arguments)
    except (TypeError, ValueError):
        named = {f"x{i}": value for i, value in enumerate(args)} | kwargs
    stems: dict[int, str] = {}
    for name, value in named.items():
        stem = name if name.isidentifier() else "x"
        for leaf in flatten(value)[0]:
            if isinstance(leaf, Tensor):
                stems.setdefault(id(leaf), stem.strip("_") or "x")
    return stems


# ---------------------------------------------------------------------- the tail


def _build(
    builder: GraphBuilder, run: FunctionalRun, outcome: Outcome, values: list[Tensor]
) -> Graph:
    """Add the tail: what is stored, and what is returned."""
    places = [inner.array.value for inner in run.inner]
    named = [value.array.value for value in values]
    counts = dict(outcome.versions)
    for write in outcome.writes:
        flags = ("no_grad",) if write.no_grad and _state.current().user & AUTOGRAD else ()
        times = counts.get(write.index, 1)
        builder.write(places[write.index], named[write.value], times=times, flags=flags)
    for each in outcome.rebindings:
        reference = _result(each.place, places, named)
        whole = isinstance(reference, Reference)
        builder.rebind(places[each.index], reference if whole else Reference(reference))
    results = [_result(record, places, named) for record in outcome.records]
    tree = unflatten(outcome.structure, iter(results))
    top = () if tree is None else tree if isinstance(tree, tuple) else (tree,)
    builder.output(*top, *(named[index] for index in outcome.extras))
    return builder.build()


def _result(record: Record, places: list[Value], named: list[Value]) -> Any:
    """Return a result as the output of a graph names it."""
    if isinstance(record, InputResult):
        return Reference(places[record.index])
    if isinstance(record, InputView):
        return Reference(places[record.index], rebased(record.geometry, record.base))
    if isinstance(record, ValueResult):
        return named[record.value]
    if isinstance(record, ValueView):
        return Reference(named[record.value], rebased(record.geometry, record.form))
    if isinstance(record, SameResult):
        return Same(record.result)
    assert isinstance(record, LiteralResult)
    return record.value
