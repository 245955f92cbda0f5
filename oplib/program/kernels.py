"""A graph as straight-line calls of kernels on NumPy arrays, with planned buffers.

For runs that record no gradient. Ufuncs are called as they are and write temporaries into one arena
per run; any other operator runs the plan that eager code would find, chosen once. The arena of a
finished run is used again by a later one, never by two at a time.

Imports floors 0 to 5. Read next: `joint.py`.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np

from .._tree import leaves, tree_map
from ..dispatch.keys import CPU
from ..dispatch.operator import Operator
from ..dispatch.plan import resolve
from ..dispatch.registry import get_op
from ..dtypes import CPU as CPU_DEVICE
from ..graph import (
    Call,
    Constant,
    Graph,
    Placeholder,
    Region,
    TensorMeta,
    Value,
    compile_graph,
    constant_folding,
    constant_tensor,
    cse,
    dead_code,
    peepholes,
    plan_memory,
    reinplace,
    run_passes,
    without_history,
)
from ..graph.evaluate import run_functionalized
from ..graph.literals import symbols_in
from ..graph.passes.reinplace import Buffers
from ..graph.values import same_layout
from ..schema import TensorType
from ..tensor.geometry import Geometry, contiguous_strides, extent
from ..tensor.methods import IN_PLACE, NOT_ON_ITSELF
from ..tensor.strided import strided_get
from ..tensor.tensor import Tensor, tensor_from_result

__all__ = ["KernelRun", "is_compilable", "optimized"]

Array: TypeAlias = np.ndarray[Any, Any]
Strides: TypeAlias = tuple[int, ...]

_copying_get: Final = get_op("std::strided_get").entries("CPU")[0].payload.function

PASSES: Final = (dead_code, constant_folding, without_history, peepholes, cse, dead_code)
"""What a graph goes through before it is compiled, for runs that record no gradient."""


def optimized(graph: Graph) -> Graph:
    """Return a graph that computes the same values with fewer calls, and no gradients."""
    return run_passes(graph, PASSES)


def is_compilable(graph: Graph) -> bool:
    """Return whether everything in a graph is an array on the CPU, of known size."""
    metas = [value.meta for value in graph.producers if not value.is_token]
    return all(
        isinstance(meta, TensorMeta) and meta.device == CPU_DEVICE and not symbols_in(meta.shape)
        for meta in metas
    )


class KernelRun:
    """Computes the values that are the results of a graph, from one array per placeholder.

    Parameters
    ----------
    graph : Graph
        Functional, without writes; its results are values and None, not nested.
    strides : sequence of tuple, optional
        Of the first results, in bytes; as they are computed unless given.

    Attributes
    ----------
    graph : Graph
        In dialect *buffers*.
    kernels : list
        (operator, plans) for every operator in it; while an operator still has these plans, no
        registration has changed what it runs.
    """

    def __init__(self, graph: Graph, strides: Sequence[Strides] = ()) -> None:
        self.graph = graph = run_passes(graph, (reinplace, dead_code))
        self.results = _results(graph, strides)
        ops = dict.fromkeys(node.op for node in graph.calls)
        self.kernels = [(op, op._plans) for op in ops]
        ufuncs = {node: ufunc for node in graph.calls if (ufunc := _ufunc_of(node)) is not None}
        views = {node for node in graph.calls if _may_be_view(graph, node)}
        plan = plan_memory(graph, _temporaries(graph, set(ufuncs)))
        self._places: dict[Hashable, tuple[int, TensorMeta]] = {}
        self._size = plan.size
        self._constants: dict[Value, Tensor] = {}

        def choose(node: Call) -> tuple[Callable[..., Any], Hashable | None]:
            ufunc = ufuncs.get(node)
            if ufunc is None:
                if node.op.schema.is_inplace and (ufunc := _in_place_of(node)) is not None:
                    return ufunc, node.arguments[0]
                if node in views:
                    return _read_in_place, None
                kernel = _kernel_of(node) if node.op.schema.is_functional else None
                if kernel is not None and _is_single(node):
                    return _checked(kernel), None
                return _planned(node.op, _has_only_tensors(node)), None
            value = node.results[0]
            if value not in plan.places:
                return (_as_array(ufunc) if not value.tensor.shape else ufunc), None
            meta = value.tensor
            key = plan.places[value][0], meta.dtype, meta.shape, meta.strides
            self._places[key] = plan.places[value][0], meta
            return ufunc, key

        self._function = compile_graph(
            graph, constants=self._constant, run_functionalized=_on_arrays, choose=choose
        )
        self._idle: list[list[Array]] = []

    def __call__(self, arrays: Sequence[Array]) -> list[Any]:
        """Return one array, or None, per result; each in memory of its own."""
        if self._places:
            try:
                buffers = self._idle.pop()
            except IndexError:
                buffers = self._buffers()
            try:
                values = self._function(*arrays, *buffers)
            finally:
                self._idle.append(buffers)
        else:
            values = self._function(*arrays)
        return [
            None if i is None else values[i] if take is None else take(values[i])
            for i, take in self.results
        ]

    @property
    def constants(self) -> list[Tensor]:
        """The constants of the graph; every run uses the same ones."""
        return list(self._constants.values())

    def is_current(self) -> bool:
        """Return whether no operator has changed since the kernels were chosen."""
        return all(op._plans is plans for op, plans in self.kernels)

    def _constant(self, node: Constant) -> Array:
        tensor = self._constants[node.value] = constant_tensor(node)
        return tensor.array  # type: ignore[no-any-return]

    def _buffers(self) -> list[Array]:
        arena = np.empty(self._size, np.uint8)
        return [
            np.ndarray(meta.shape, meta.dtype, arena, first + meta.form.offset, meta.strides)
            for first, meta in self._places.values()
        ]


def _results(graph: Graph, strides: Sequence[Strides]) -> list[tuple[int | None, Any]]:
    """Return, per result, which value it is and what gives it memory of its own, if anything.

    An input, a constant, a value that is a result already, or one that may share its memory with
    another value is copied.
    """
    buffers = Buffers(graph)
    positions = {value: i for i, value in enumerate(graph.tail_values)}
    shared = Counter(buffer for value in positions for buffer in buffers.of(value))
    taken: set[Value] = set()
    found: list[tuple[int | None, Any]] = []
    for leaf, steps in itertools.zip_longest(graph.output.results, strides):
        if leaf is None:
            found.append((None, None))
            continue
        own = all(buffer in buffers.owned and shared[buffer] == 1 for buffer in buffers.of(leaf))
        is_own = own and leaf not in taken
        taken.add(leaf)
        steps = leaf.tensor.strides if steps is None else steps
        take = None if is_own and not strides else functools.partial(_placed, steps, is_own)
        found.append((positions[leaf], take))
    return found


def _placed(strides: Strides, is_own: bool, array: Array) -> Array:
    """Return an array with given strides in memory of its own."""
    if is_own and (array.strides == strides or same_layout(array.shape, array.strides, strides)):
        return array
    if same_layout(array.shape, strides, contiguous_strides(array.shape, array.itemsize)):
        return np.array(array, order="C")
    low, high = extent(Geometry(array.dtype, array.shape, strides))
    memory = np.empty(high - low, np.uint8)
    copy: Array = np.ndarray(array.shape, array.dtype, memory, -low, strides)
    copy[...] = array
    return copy


def _temporaries(graph: Graph, ufuncs: set[Any]) -> set[Value]:
    """Return the values that only built-in operators see, made by a ufunc: none keeps them."""
    found = set()
    for node in ufuncs:
        value = node.results[0]
        users = graph.users.get(value, ())
        calls = [user.op for user in users if isinstance(user, Call)]
        built_in = all(op.namespace == "std" and not op.schema.is_view for op in calls)
        if built_in and len(calls) == len(users):
            found.add(value)
    return found


# What a call runs ---------------------------------------------------------------------------------


def _kernel_of(node: Any) -> Callable[..., Any] | None:
    """Return the only kernel of a built-in operator, if it takes arrays as they are."""
    if not isinstance(node, Call) or node.op.namespace != "std":
        return None
    found = resolve(node.op, CPU)
    if found.kind != "kernel" or len(found.registrations) != 1:
        return None
    entry = found.registrations[0].payload
    special = entry.is_conditional or entry.prepares_data or entry.convention != "array"
    return None if special else entry.function


def _ufunc_of(node: Any) -> np.ufunc | None:
    """Return the ufunc that computes a call of one fresh result, if that is all it does."""
    kernel = _kernel_of(node)
    if not isinstance(kernel, np.ufunc) or kernel.nout != 1 or node.op.schema.is_mutable:
        return None
    return kernel if any(isinstance(x, Value) for x in node.arguments) else None


def _in_place_of(node: Call) -> np.ufunc | None:
    """Return the ufunc that a built-in operator which writes its first operand is derived from."""
    name = node.op.name.removesuffix("_")
    if _kernel_of(node) is None or name not in IN_PLACE or name in NOT_ON_ITSELF:
        return None
    kernel = _kernel_of(replace(node, op=get_op(f"std::{name}")))
    return kernel if isinstance(kernel, np.ufunc) and kernel.nout == 1 else None


@functools.cache
def _as_array(ufunc: np.ufunc) -> Callable[..., Array]:
    """Return a ufunc whose 0-d results are arrays."""
    return lambda *operands: np.asarray(ufunc(*operands))


def _is_single(node: Call) -> bool:
    """Return whether a call gives one tensor."""
    return len(node.results) == 1 and isinstance(node.results[0], Value)


@functools.cache
def _checked(kernel: Callable[..., Any]) -> Callable[..., Array]:
    """Return a kernel whose result is an array that shares no memory with its operands."""

    def call(*args: Any, **by_keyword: Any) -> Array:
        result = kernel(*args, **by_keyword)
        if type(result) is not np.ndarray:
            return np.array(result)
        if result.base is None and not any(x is result or type(x) is list for x in args):
            return result
        operands = [leaf for leaf in leaves(args) if isinstance(leaf, np.ndarray)]
        is_shared = any(np.may_share_memory(result, operand) for operand in operands)
        return result.copy(order="K") if is_shared else result

    return call


def _may_be_view(graph: Graph, node: Any) -> bool:
    """Return whether a read of an input may be a view: of nothing that changes, for nobody else."""
    if not isinstance(node, Call) or node.op.qualname != "std::strided_get":
        return False
    result = node.results[0]
    users = graph.users.get(result, ())
    meta = result.tensor
    is_dense = meta.strides == tuple([step * meta.dtype.itemsize for step in node.arguments[2]])
    is_input = isinstance(graph.producers[node.arguments[0]], Placeholder)
    return (
        is_dense
        and is_input
        and all(
            isinstance(u, Call) and u.op.namespace == "std" and u.op.schema.is_functional
            for u in users
        )
    )


def _read_in_place(base: Array, size: Any, stride: Any, offset: int) -> Array:
    """Return the elements at addresses: a view where addresses are those of memory."""
    place = tuple(size), tuple(stride), offset
    if base.flags.c_contiguous:
        return strided_get(base, *place)
    copied: Array = _copying_get(base, *place)
    return copied


def _has_only_tensors(node: Call) -> bool:
    """Return whether every tensor argument is a tensor, no number and no list."""
    parameters = node.op.schema.arguments
    tensors = [
        isinstance(value, Value)
        for parameter, value in zip(parameters, node.arguments, strict=True)
        if "Tensor" in str(parameter.type)
    ]
    plain = all(p.type == TensorType(None) for p in parameters if "Tensor" in str(p.type))
    return bool(tensors) and plain and all(tensors)


@functools.lru_cache(maxsize=4096)
def _planned(op: Operator[..., Any], only_tensors: bool) -> Callable[..., Any]:
    """Return an operator as a function of arrays: its plan, with everything eager code checks."""

    def call(*args: Any, **by_keyword: Any) -> Any:
        given = [_lifted(value) for value in (*args, *by_keyword.values())]
        result = op.find_plan(CPU)(*given) if only_tensors else op.call_positional(given)
        return result.array if type(result) is Tensor else tree_map(_lowered, result)

    return call


def _lifted(value: Any) -> Any:
    kind = type(value)
    if kind is np.ndarray:
        return tensor_from_result(value)
    return tree_map(_lifted, value) if kind is list or kind is tuple or kind is dict else value


def _lowered(leaf: Any) -> Any:
    return leaf.array if type(leaf) is Tensor else leaf


def _on_arrays(op: Any, arguments: tuple[Any, ...], regions: tuple[Region, ...]) -> list[Any]:
    """Run a functionalized node on arrays."""
    lifted = tuple([Region(_lifted(region.value), region.form) for region in regions])
    results = run_functionalized(op, tuple(map(_lifted, arguments)), lifted)
    return [tree_map(_lowered, result) for result in results]
