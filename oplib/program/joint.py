"""Forward and backward of a program, captured together and cut in two.

The forward graph computes the results and what backward needs of the values in between; the
backward graph takes these and the incoming gradients. Both run as kernels, inside one node of the
autograd graph.

Imports floors 0 to 5, `capture.py`, `kernels.py`. Read next: `compile.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _state
from .._tree import leaves
from ..autograd.general_grad import grad
from ..autograd.pylayer import PyLayer
from ..dispatch.keys import AUTOGRAD, CPU
from ..errors import AutogradError
from ..graph import (
    Constant,
    Graph,
    Node,
    Output,
    Placeholder,
    Reference,
    Same,
    Value,
    defined_values,
    evaluate,
    used_values,
)
from ..tensor.tensor import Tensor, tensor_from_result
from .capture import capture
from .kernels import KernelRun, Strides, is_compilable, optimized

__all__ = ["Halves", "Joint", "differentiable", "partition"]


@dataclass(frozen=True, slots=True)
class Joint:
    """A graph of values and gradients.

    Its placeholders are the inputs, then one incoming gradient per value.

    Attributes
    ----------
    graph : Graph
    values : list of Value
    gradients : list of (Value or None)
        One per input that requires grad.
    which : list of int
        The values that have a gradient.
    """

    graph: Graph
    values: list[Value]
    gradients: list[Any]
    which: list[int]


@dataclass(frozen=True, slots=True)
class Halves:
    """A joint graph cut in two.

    Attributes
    ----------
    forward : Graph
        Of the inputs; its results are those of the program, then values in between that are saved.
    backward : Graph
        Of what is saved, inputs included, then one incoming gradient per differentiable result;
        its results are gradients, None where nothing flows.
    saved : tuple of Value
        What backward needs: inputs, then results, then values in between.
    """

    forward: Graph
    backward: Graph
    saved: tuple[Value, ...]


def partition(joint: Joint, count: int) -> Halves:
    """Cut a joint graph of `count` inputs.

    Forward is what the results and the effects need, backward the rest; so backward saves what it
    cannot compute from what forward had no other use for.
    """
    graph = joint.graph
    needed = set(joint.values)
    forward: set[Node] = set()
    for node in reversed(graph.body):
        effects = not isinstance(node, Constant) and bool(node.op.effects)
        if effects or not needed.isdisjoint(defined_values(node)):
            forward.add(node)
            needed.update(used_values(node))
    before = [node for node in graph.body if node in forward]
    after = [node for node in graph.body if node not in forward]
    used = {value for node in after for value in used_values(node)} | set(joint.gradients)
    constants = {node.value: node for node in graph.constants}
    inputs = graph.placeholders[:count]
    made = (value for node in before for value in defined_values(node))
    known = dict.fromkeys([*(node.value for node in inputs), *joint.values, *made])
    saved = tuple(value for value in known if value in used and value not in constants)
    between = [v for v in saved if v not in joint.values and graph.producers[v] not in inputs]
    shared = [node for value, node in constants.items() if value in used and node in forward]
    given = [Placeholder(value) for value in saved]
    given += [graph.placeholders[count + which] for which in joint.which]
    results, gradients = Output((*joint.values, *between)), Output(tuple(joint.gradients))
    return Halves(
        Graph(graph.name, (*inputs, *before, results)),
        Graph(f"{graph.name}_backward", (*given, *shared, *after, gradients)),
        saved,
    )


def differentiable(
    graph: Graph, inputs: Sequence[Tensor], strides: Sequence[Strides], flags: Sequence[bool]
) -> type[PyLayer] | None:
    """Return a layer that computes the values a graph names, and their gradients, by kernels.

    None if forward and backward cannot be one graph.

    Parameters
    ----------
    graph : Graph
        Of a program that writes nothing; its results are the values, each once.
    inputs : sequence of Tensor
        What it was captured for.
    strides, flags : sequence
        Of each value, in bytes, and whether it has a gradient.
    """
    joint = _joint(graph, inputs, flags)
    if joint is None or not is_compilable(joint.graph):
        return None
    halves = partition(joint, len(inputs))
    if any(node.op.effects for node in halves.backward.calls):
        return None
    runs = KernelRun(halves.forward, strides), KernelRun(halves.backward)
    return _layer(graph, joint, halves, runs)


def _joint(graph: Graph, inputs: Sequence[Tensor], flags: Sequence[bool]) -> Joint | None:
    """Capture the values a graph names together with the gradients of the inputs."""
    which: list[int] = []

    def run(primals: list[Tensor], incoming: list[Tensor]) -> Any:
        values = list(evaluate(graph, primals))
        pairs = enumerate(zip(values, flags, strict=True))
        which[:] = [i for i, (value, flag) in pairs if flag and value.requires_grad]
        wanted = [primal for primal in primals if primal.requires_grad]
        seeds = [incoming[i] for i in which]
        return values, grad([values[i] for i in which], wanted, seeds, allow_unused=True)

    examples = [_example(value) for value in graph.tail_values]
    try:
        program = capture(run, list(inputs), examples)
    except AutogradError:
        return None
    if program.outcome.writes or len(program.graph.placeholders) > len(inputs) + len(examples):
        return None
    if not all(which_flag == (i in which) for i, which_flag in enumerate(flags)):
        return None
    joint = optimized(program.graph)
    found: list[Any] = []
    for leaf in leaves(joint.output.results):
        if isinstance(leaf, Same):
            leaf = found[leaf.index]
        if isinstance(leaf, Reference):
            leaf = leaf.value if leaf.geometry is None else leaf
        found.append(leaf)
    if any(leaf is not None and not isinstance(leaf, Value) for leaf in found):
        return None
    count = len(examples)
    return Joint(joint, found[:count], found[count:], which)


def _example(value: Value) -> Tensor:
    """Return what a gradient of a value looks like: dense, in C order."""
    return tensor_from_result(np.empty(value.tensor.shape, value.tensor.dtype))


def _layer(
    graph: Graph, joint: Joint, halves: Halves, runs: tuple[KernelRun, KernelRun]
) -> type[PyLayer]:
    """Return the layer that runs both halves.

    Under ``create_graph`` backward computes forward once more, recorded operator by operator.
    """
    count = len(joint.values)
    inputs = [node.value for node in halves.forward.placeholders]
    sources = [_source(value, inputs, joint.values) for value in halves.saved]
    plain = [i for i in range(count) if i not in joint.which]

    def forward(ctx: Any, *primals: Tensor) -> Any:
        computed = list(map(tensor_from_result, runs[0]([primal.array for primal in primals])))
        between = iter(computed[count:])
        known = primals, computed
        ctx.save_for_backward(
            *[next(between) if place is None else known[place[0]][place[1]] for place in sources]
        )
        ctx.primals = list(primals)
        if plain:
            ctx.mark_non_differentiable(*[computed[i] for i in plain])
        return computed[0] if count == 1 else tuple(computed[:count])

    def backward(ctx: Any, *incoming: Tensor) -> Any:
        state = _state.current()
        seeds = [incoming[i] for i in joint.which]
        if state.mask & AUTOGRAD:
            found = _once_more(graph, joint, ctx.primals, seeds)
        elif state.include or any(seed._keys != CPU for seed in seeds):
            values = evaluate(halves.backward, [*ctx.saved_tensors, *seeds])
            places = {v: i for i, v in enumerate(halves.backward.tail_values)}
            found = [None if v is None else values[places[v]] for v in joint.gradients]
        else:
            arrays = [tensor.array for tensor in ctx.saved_tensors]
            arrays += [np.ascontiguousarray(s.array).reshape(s.shape) for s in seeds]
            gradients = runs[1](arrays)
            found = [None if g is None else tensor_from_result(g) for g in gradients]
        rest = iter(found)
        return tuple([next(rest) if needed else None for needed in ctx.needs_input_grad])

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = ["ctx", *(f"input_{i}" for i in range(len(inputs)))]
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind) for name in names]
    )
    members = {
        "halves": halves,
        "forward": staticmethod(forward),
        "backward": staticmethod(backward),
    }
    return type(graph.name, (PyLayer,), members)


def _source(
    value: Value, inputs: Sequence[Value], results: Sequence[Value]
) -> tuple[int, int] | None:
    """Return where a saved value is: among the inputs (0) or the results (1), else None."""
    for number, values in enumerate((inputs, results)):
        if value in values:
            return number, values.index(value)
    return None


def _once_more(
    graph: Graph, joint: Joint, primals: Sequence[Tensor], seeds: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return gradients that can be differentiated again."""
    if any(node.op.effects for node in graph.calls):
        raise AutogradError(
            f"the gradient of compiled {graph.name} cannot be differentiated again: it would draw "
            "random numbers, or have its effects, once more\n  call the function uncompiled"
        )
    values = evaluate(graph, primals)
    wanted = [primal for primal in primals if primal.requires_grad]
    outputs = [values[i] for i in joint.which]
    return grad(outputs, wanted, list(seeds), create_graph=True, allow_unused=True)
