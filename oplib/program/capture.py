"""`capture`: run a function once on fakes and return it as a `Program`.

The examples become fakes, each wrapped by the recorder, each of these wrapped by functionalization:
in-place operators and views reach the recorder as pure operators. Their data is never read.

Imports floors 0 to 5, `recorder.py`, `program.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .. import _state
from .._tree import flatten, unflatten
from ..dispatch.interpreter import pop, push
from ..dispatch.keys import AUTOGRAD
from ..errors import ArgumentError
from ..functionalize.interpreter import FunctionalRun
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
from ..graph import Graph, GraphBuilder, Reference, Same, Value, verify
from ..graph.passes import dead_code
from ..tensor.geometry import Geometry
from ..tensor.tensor import Tensor
from .program import Program, Signature
from .recorder import Recorder

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
    recorder = Recorder(_graph_name(function))
    frame = push(recorder)
    recorder.frame = frame
    try:
        stems = _stems(function, examples, kw_examples)
        inner = [recorder.placeholder(stems.get(id(t), "x"), t) for t in tensors]
        spans: list[tuple[int, ...]] = []

        def span(tensor: Tensor, members: tuple[int, ...]) -> Tensor:
            spans.append(members)
            stem = "_".join([*(stems.get(id(tensors[i]), "x") for i in members), "span"])
            return recorder.placeholder(stem, tensor, "span")

        def adopt(tensor: Tensor) -> Tensor:
            return recorder.placeholder("captured", tensor, "captured")

        run = FunctionalRun(tensors, inner, adopt, span)
        run.interpreter.after_write = recorder.name_written
        outcome, values = run.execute(function, leaves, structure)
        built = _build(recorder.builder, run, outcome, values)
    except Exception as error:
        nodes = recorder.builder.nodes
        last = f", the last one {nodes[-1]}" if nodes else ""
        error.add_note(f"while capturing {recorder.builder.name}: {len(nodes)} nodes recorded{last}")
        raise
    finally:
        pop(frame)
    graph = dead_code(built)
    verify(graph)
    captured = run.inputs[len(tensors) :]
    signature = Signature.of(leaves, structure, tensors, captured, spans)
    return Program(graph, outcome, signature, captured)


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


def _build(
    builder: GraphBuilder, run: FunctionalRun, outcome: Outcome, values: list[Tensor]
) -> Graph:
    """Add the tail: what is stored, and what is returned."""
    places = [inner.array.value for inner in run.inner]
    named = [value.array.value for value in values]
    counts = dict(outcome.versions)
    for write in outcome.writes:
        flags = ("no_grad",) if write.no_grad and _grad_was_on() else ()
        times = counts.get(write.index, 1)
        builder.write(places[write.index], named[write.value], times=times, flags=flags)
    results = [_result(record, run, places, named) for record in outcome.records]
    tree = unflatten(outcome.structure, iter(results))
    gradients = [named[value] for _, value in outcome.gradients]
    top = tree if isinstance(tree, tuple) else (tree,)
    if tree is None:
        top = ()
    builder.output(*top, *gradients)
    return builder.build()


def _grad_was_on() -> bool:
    return bool(_state.current().user & AUTOGRAD)


def _result(
    record: Record, run: FunctionalRun, places: list[Value], named: list[Value]
) -> Any:
    """Return what the graph's output shows for one result."""
    if isinstance(record, InputResult):
        return Reference(places[record.index])
    if isinstance(record, InputView):
        own = record.base
        shifted = _shifted(record.geometry, own)
        return Reference(places[record.index], shifted)
    if isinstance(record, ValueResult):
        return named[record.value]
    if isinstance(record, ValueView):
        return Reference(named[record.value], record.geometry)
    if isinstance(record, SameResult):
        return Same(record.result)
    assert isinstance(record, LiteralResult)
    return record.value


def _shifted(geometry: Geometry, base: Geometry) -> Geometry:
    """Return a geometry counted from the lowest address of its base."""
    lowest = base.offset + sum(
        min(0, (n - 1) * s) for n, s in zip(base.shape, base.strides, strict=True)
    )
    return Geometry(geometry.dtype, geometry.shape, geometry.strides, geometry.offset - lowest)

