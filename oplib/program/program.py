"""`Program`: a captured graph with its signature and guards.

A program never runs on arguments it was not made for: every call checks structure, types, literals,
dtypes, shapes, strides, devices, `stop_gradient` and, where memory is written, how the arguments
share it. A failed guard raises before anything runs.

Imports floors 0 to 5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _state
from .._text import short_repr
from .._tree import TreeDef, flatten, leaf_paths
from ..dispatch.keys import AUTOGRAD
from ..dtypes import short_dtype
from ..errors import GuardError
from ..functionalize.interpreter import memory_groups
from ..functionalize.opaque import At, run_functionalized
from ..functionalize.outcome import Outcome, ValueResult, ValueView, settle, span_tensor
from ..graph import (
    Graph,
    Reference,
    Region,
    RegionView,
    Value,
    compile_graph,
    python_source,
    set_functionalized_runner,
)
from .._tree import leaves as tree_leaves
from .._tree import tree_map
from ..prims import clone
from ..tensor.tensor import Tensor

__all__ = ["Program", "Signature", "TensorGuard", "install"]


@dataclass(frozen=True, slots=True)
class TensorGuard:
    """What a tensor argument must be like."""

    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: Any
    stop_gradient: bool

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        flag = "" if self.stop_gradient else ", requires grad"
        return f"{short_dtype(self.dtype)}[{shape}] strides {self.strides} on {self.device}{flag}"

    @classmethod
    def of(cls, tensor: Tensor) -> TensorGuard:
        """Return the guard that `tensor` passes."""
        strides = tuple(
            0 if n == 1 or 0 in tensor.shape else s
            for n, s in zip(tensor.shape, tensor.strides, strict=True)
        )
        return cls(tensor.dtype, tensor.shape, strides, tensor.device, tensor.stop_gradient)

    def mismatch(self, other: TensorGuard) -> str:
        """Return the first field in which `other` differs: ``"dtype: expected ..., found ..."``."""
        for field in ("dtype", "device", "shape", "strides", "stop_gradient"):
            expected, found = getattr(self, field), getattr(other, field)
            if expected != found:
                return f"{field}: expected {expected}, found {found}"
        return ""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a program was captured for.

    Attributes
    ----------
    structure : TreeDef
        Of the arguments.
    leaves : tuple
        Per leaf a `TensorGuard` or a literal.
    inputs : tuple of int
        Per tensor leaf, which distinct input it is; -1 for literals.
    captured : tuple of TensorGuard
        Tensors of the enclosing scope.
    spans : tuple of tuple of int
        Inputs whose common memory is an input of its own.
    groups : tuple
        Which inputs share memory, and how.
    """

    structure: TreeDef
    leaves: tuple[Any, ...]
    inputs: tuple[int, ...]
    captured: tuple[TensorGuard, ...]
    spans: tuple[tuple[int, ...], ...]
    groups: tuple[Any, ...]

    @classmethod
    def of(
        cls,
        leaves: Sequence[Any],
        structure: TreeDef,
        tensors: Sequence[Tensor],
        captured: Sequence[Tensor],
        spans: Sequence[tuple[int, ...]],
    ) -> Signature:
        """Return the signature of a capture with these arguments."""
        position = {id(tensor): i for i, tensor in enumerate(tensors)}
        return cls(
            structure,
            tuple(TensorGuard.of(x) if isinstance(x, Tensor) else x for x in leaves),
            tuple(position[id(x)] if isinstance(x, Tensor) else -1 for x in leaves),
            tuple(map(TensorGuard.of, captured)),
            tuple(spans),
            memory_groups([*tensors, *captured]),
        )


class Program:
    """A function captured as a graph; call it like the function.

    Attributes
    ----------
    graph : Graph
    signature : Signature
    outcome : Outcome
        What a run stores and returns.
    """

    def __init__(
        self, graph: Graph, outcome: Outcome, signature: Signature, captured: Sequence[Tensor]
    ) -> None:
        self.graph = graph
        self.outcome = outcome
        self.signature = signature
        self.captured = tuple(captured)
        self._run: Callable[..., Any] | None = None
        self._takes = _values_of_outcome(graph, outcome)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Raises
        ------
        GuardError
            If the arguments are not like those it was captured for; nothing has run then.
        """
        failed = self._failures(args, kwargs)
        if failed:
            raise GuardError(
                f"program {self.graph.name} was captured for other arguments\n  "
                + "\n  ".join(failed[:3])
                + "\n  capture it again for these: oplib.capture(f, ...)"
            )
        inputs = self._inputs(args, kwargs)
        values = self._values(inputs)
        return settle(self.outcome, inputs, values)

    def check(self, *args: Any, **kwargs: Any) -> list[str]:
        """Return the guards these arguments fail, one line each, without running anything."""
        return self._failures(args, kwargs)

    @property
    def guards(self) -> str:
        """The guards, one per line."""
        paths = _argument_paths(self.signature.structure)
        lines = [f"{path}: {guard}" for path, guard in zip(paths, self.signature.leaves, strict=True)]
        lines += [f"captured[{i}]: {guard}" for i, guard in enumerate(self.signature.captured)]
        if self.outcome.writes:
            lines.append(f"memory: {self.signature.groups}")
        return "\n".join(lines)

    def source(self) -> str:
        """Return the program as the text of one Python function."""
        return python_source(self.graph)

    def __str__(self) -> str:
        return str(self.graph)

    def __repr__(self) -> str:
        return f"<Program {self.graph.name}: {len(self.graph.calls)} calls>"

    # ------------------------------------------------------------------ running

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        leaves, _ = flatten((args, kwargs))
        count = max(self.signature.inputs, default=-1) + 1
        inputs: list[Any] = [None] * count
        for index, leaf in zip(self.signature.inputs, leaves, strict=True):
            if index >= 0 and inputs[index] is None:
                inputs[index] = leaf
        return [*inputs, *self.captured]

    def _values(self, inputs: list[Tensor]) -> list[Tensor]:
        """Compute the values the outcome names."""
        if self._run is None:
            self._run = compile_graph(self.graph)
        given = inputs
        if self.outcome.writes and _records(inputs):
            written = {id(inputs[write.index]._storage) for write in self.outcome.writes}
            given = [clone(t) if id(t._storage) in written else t for t in inputs]
        spans = [span_tensor([inputs[i] for i in members])[0] for members in self.signature.spans]
        spans = [clone(span) for span in spans] if spans and self.outcome.writes else spans
        computed = self._run(*given, *spans)
        environment = dict(zip(self.graph.tail_values, computed, strict=True))
        return [environment[value] for value in self._takes]

    # ------------------------------------------------------------------ guards

    def _failures(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        leaves, structure = flatten((args, kwargs))
        if structure != self.signature.structure:
            return [f"arguments: expected the structure {self.signature.structure}, found {structure}"]
        failed = []
        for path, guard, leaf in zip(
            _argument_paths(structure), self.signature.leaves, leaves, strict=True
        ):
            problem = _leaf_problem(guard, leaf)
            if problem:
                failed.append(f"{path}: {problem}")
        for index, (guard, tensor) in enumerate(
            zip(self.signature.captured, self.captured, strict=True)
        ):
            problem = guard.mismatch(TensorGuard.of(tensor))
            if problem:
                failed.append(f"captured tensor {index}: {problem}")
        return failed or self._memory_failures(args, kwargs, leaves)

    def _memory_failures(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]
    ) -> list[str]:
        """Return the ways in which the arguments share memory differently than at capture."""
        inputs = self._inputs(args, kwargs)
        for index, leaf in zip(self.signature.inputs, leaves, strict=True):
            if index >= 0 and leaf is not inputs[index]:
                return [f"argument {index}: expected the same tensor in several places"]
        if not self.outcome.writes:
            return []
        groups = memory_groups(inputs)
        if groups == self.signature.groups:
            return []
        return [f"shared memory: expected {self.signature.groups}, found {groups}"]


def _argument_paths(structure: TreeDef) -> list[str]:
    """Return a readable path per leaf of ``(args, kwargs)``."""
    args, kwargs = structure.children
    return [*leaf_paths(args, "args"), *leaf_paths(kwargs, "kwargs")]


def _records(inputs: Sequence[Tensor]) -> bool:
    recording = _state.current().mask & AUTOGRAD
    return bool(recording) and any(tensor.requires_grad for tensor in inputs)


def _leaf_problem(guard: Any, leaf: Any) -> str:
    if isinstance(guard, TensorGuard):
        if not isinstance(leaf, Tensor):
            return f"expected a Tensor, found {short_repr(leaf)}"
        return guard.mismatch(TensorGuard.of(leaf))
    if isinstance(leaf, Tensor):
        return f"expected {guard!r}, found a Tensor"
    return "" if _same_literal(guard, leaf) else f"expected {guard!r}, found {leaf!r}"


def _same_literal(a: Any, b: Any) -> bool:
    """Return whether two literals have one type and one bit pattern."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return _same_literal(a.real, b.real) and _same_literal(a.imag, b.imag)
    return bool(a == b)


def _values_of_outcome(graph: Graph, outcome: Outcome) -> list[Value]:
    """Return the graph value behind every value the outcome names by index."""
    found: dict[int, Value] = {}
    for write, node in zip(outcome.writes, graph.writes, strict=True):
        found[write.value] = node.value
    results = list(tree_leaves(graph.output.results))
    for record, leaf in zip(outcome.records, results, strict=False):
        if isinstance(record, ValueResult | ValueView):
            found[record.value] = leaf.value if isinstance(leaf, Reference) else leaf
    first = len(results) - len(outcome.gradients)
    for (_, value), leaf in zip(outcome.gradients, results[first:], strict=True):
        found[value] = leaf
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
