"""The engine: runs a backward graph from its roots.

A run counts in-degrees breadth first, then executes nodes whose in-degree is zero. Accumulation
nodes go to the front of the queue, so a leaf's gradient is complete as early as possible. Saved
values and gradients are freed node by node. Everything is iterative and belongs to one `Run` object:
nothing is global, runs nest, and threads do not meet except at a leaf.

Gradients a user can see are never changed later: sums are out of place.

Imports floors 0 to 4, `wrapper.py`. Read next: `general_grad.py`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from .. import _state
from ..dispatch.keys import AUTOGRAD, CPU
from ..dtypes import is_inexact
from ..errors import AutogradError
from ..prims import add, cast, new_full, real, sum_to
from ..prims import clone as clone_op
from ..shapes import broadcast_shapes
from ..tensor.grad_meta import AccumulationNode, AutogradMeta, GradNode, NodeHooks
from ..tensor.tensor import Tensor, tensor_from_result

__all__ = ["GradTensorHolder", "Run", "add_gradients", "fit"]

Node: TypeAlias = GradNode | AccumulationNode

_new: Final = object.__new__
_ndarray: Final = np.ndarray
_leaf_lock: Final = threading.Lock()


class GradTensorHolder:
    """The gradients that have arrived at one node, summed per output."""

    __slots__ = ("buffer",)

    def __init__(self, width: int) -> None:
        self.buffer: list[Tensor | None] = [None] * width

    def add(self, position: int, gradient: Tensor) -> None:
        """Sum a gradient into one output's."""
        present = self.buffer[position]
        self.buffer[position] = gradient if present is None else add_gradients(present, gradient)


def add_gradients(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of two gradients of one tensor, as a new tensor."""
    if a._keys == CPU == b._keys:
        return tensor_from_result(np.asarray(a.array + b.array))
    return add(a, b)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- validation


def fit(gradient: Any, meta: Any, node: Node, where: str) -> Tensor:
    """Return a gradient fit for the tensor it belongs to: type, shape, dtype, device.

    A gradient whose shape is a broadcast of the tensor's is summed to it; its dtype is cast, the
    real part taken for a real tensor.

    Parameters
    ----------
    gradient : Tensor, or a number for a 0-d tensor
    meta : object with ``shape`` and ``dtype``
    node : GradNode
        Whose rule returned it, for the message.
    where : str
        Which argument or output it belongs to, for the message.

    Raises
    ------
    AutogradError
        If it cannot be made fit.
    """
    shape, dtype = meta.shape, meta.dtype
    if type(gradient) is not Tensor:
        if shape or not isinstance(gradient, int | float | complex | np.generic):
            raise AutogradError(
                f"{node.name()}: the gradient of {where} must be a Tensor, "
                f"got {type(gradient).__name__}"
            )
        gradient = tensor_from_result(np.asarray(gradient, dtype))
    if gradient.array.shape != shape:
        gradient = _summed(gradient, shape, node, where)
    if gradient.array.dtype != dtype:
        if not is_inexact(gradient.dtype) and gradient.dtype.kind not in "iub":
            raise AutogradError(f"{node.name()}: the gradient of {where} has dtype {gradient.dtype}")
        if gradient.dtype.kind == "c" and dtype.kind != "c":
            gradient = real(gradient)
        if gradient.array.dtype != dtype:
            gradient = cast(gradient, dtype)
    return gradient  # type: ignore[no-any-return]


def _summed(gradient: Tensor, shape: tuple[int, ...], node: Node, where: str) -> Tensor:
    try:
        summable = broadcast_shapes(shape, gradient.shape) == gradient.shape
    except ValueError:
        summable = False
    if not summable:
        raise AutogradError(
            f"{node.name()}: the gradient of {where} has the wrong shape\n"
            f"  expected  {list(shape)}\n  got       {list(gradient.shape)}\n"
            "  (a shape that the expected one broadcasts to would be summed)"
        )
    return sum_to(gradient, shape)  # type: ignore[no-any-return]


def where_of(node: GradNode, index: int) -> str:
    """Return what users call the `index`-th edge of a node: ``"argument `x`"``."""
    op = node.kind.op
    names: Sequence[str] = getattr(getattr(op, "schema", None), "differentiable_arguments", ())
    layout = node.inputs
    if layout is None:
        return f"argument `{names[index]}`" if index < len(names) else f"input {index}"
    for slot, length in enumerate(layout):
        count = 1 if length is None else length
        if index < count:
            name = f"argument `{names[slot]}`" if slot < len(names) else f"input {slot}"
            return name if length is None else f"{name}, element {index}"
        index -= count
    return f"input {index}"


# ---------------------------------------------------------------------- one run


class Run:
    """One backward run.

    Parameters
    ----------
    retain_graph, create_graph : bool
    targets : mapping, optional
        (node, position) -> index, for `oplib.grad`; without it gradients accumulate into leaves.
    needed : set, optional
        The nodes that lead to a target; others are not run.
    cut : set, optional
        (node, position) of edges that carry nothing.
    """

    def __init__(
        self,
        retain_graph: bool,
        create_graph: bool,
        targets: dict[tuple[Node, int], int] | None = None,
        needed: set[Node] | None = None,
        cut: frozenset[tuple[Node, int]] = frozenset(),
    ) -> None:
        self.retain_graph = retain_graph
        self.create_graph = create_graph
        self.targets = targets
        self.needed = needed
        self.cut = cut
        self.captured: dict[int, Tensor] = {}
        self.final_hooks: list[Callable[[], None]] = []

    def execute(self, roots: Sequence[tuple[AutogradMeta, Tensor]]) -> None:
        """Run from `roots`: pairs of a tensor's record and its seed."""
        holders: dict[Node, Any] = {}
        for meta, seed in roots:
            _deliver(holders, meta.grad_node, meta.position, seed)
        in_degree = self._in_degrees([meta.grad_node for meta, _ in roots])
        ready = deque(node for node in holders if in_degree[node] == 0)
        state = _state.current()
        user = state.user | AUTOGRAD if self.create_graph else state.user & ~AUTOGRAD
        config = {"final_hooks": self.final_hooks}
        with _state.enter(state.replace(user=user).with_config(**config)):
            try:
                self._loop(ready, in_degree, holders)
            except BaseException:
                self.final_hooks.clear()
                raise
        for hook in self.final_hooks:
            hook()

    def _in_degrees(self, roots: list[Node]) -> dict[Node, int]:
        needed, cut = self.needed, self.cut
        in_degree: dict[Node, int] = dict.fromkeys(roots, 0)
        queue: deque[Node] = deque(in_degree)
        while queue:
            for edge in queue.popleft().edges:
                if edge is None:
                    continue
                node = edge.grad_node
                if needed is not None and (node not in needed or (node, edge.position) in cut):
                    continue
                if node in in_degree:
                    in_degree[node] += 1
                else:
                    in_degree[node] = 1
                    queue.append(node)
        return in_degree

    def _loop(
        self, ready: deque[Node], in_degree: dict[Node, int], holders: dict[Node, Any]
    ) -> None:
        plain = self.targets is None
        while ready:
            node = ready.popleft()
            held = holders.pop(node, None)
            if node.hooks is not None or not plain:
                held = self._observe(node, held)
            if type(node) is AccumulationNode:
                if plain and held is not None:
                    _accumulate(node, held, self.create_graph)
                continue
            outgoing = self._call(node, held)
            edges = node.edges
            if not self.retain_graph:
                node.saved = None
            if outgoing is None:
                self._skip(edges, in_degree, ready)
                continue
            index = 0
            for edge, gradient in zip(edges, outgoing, strict=True):
                index += 1
                if edge is None:
                    continue
                target = edge.grad_node
                remaining = in_degree.get(target)
                if remaining is None or (self.cut and (target, edge.position) in self.cut):
                    continue
                if gradient is not None:
                    if type(gradient) is not Tensor or (
                        gradient.array.shape != edge.shape or gradient.array.dtype != edge.dtype
                    ):
                        gradient = fit(gradient, edge, node, where_of(node, index - 1))
                    if type(target) is GradNode or type(target) is AccumulationNode:
                        present = holders.get(target)
                        holders[target] = (
                            gradient if present is None else add_gradients(present, gradient)
                        )
                    else:
                        _deliver(holders, target, edge.position, gradient)
                in_degree[target] = remaining = remaining - 1
                if remaining == 0:
                    if type(target) is AccumulationNode:
                        ready.appendleft(target)
                    else:
                        ready.append(target)

    def _skip(
        self,
        edges: tuple[AutogradMeta | None, ...],
        in_degree: dict[Node, int],
        ready: deque[Node],
    ) -> None:
        """Count down the edges of a node that carried nothing."""
        for edge in edges:
            if edge is None or edge.grad_node not in in_degree:
                continue
            if self.cut and (edge.grad_node, edge.position) in self.cut:
                continue
            in_degree[edge.grad_node] -= 1
            if in_degree[edge.grad_node] == 0:
                front = type(edge.grad_node) is AccumulationNode
                (ready.appendleft if front else ready.append)(edge.grad_node)

    def _call(self, node: GradNode, held: Any) -> Sequence[Any] | None:
        """Run one node's rule; None if nothing arrived at it."""
        saved = node.saved
        if saved is None:
            raise AutogradError(
                f"{node.name()}: second backward through the graph; its saved values were freed\n"
                "  pass retain_graph=True to the first backward, or sum the losses"
            )
        if held is None:
            return None
        incoming = held if type(node) is GradNode else held.buffer
        if type(node) is not GradNode and all(gradient is None for gradient in incoming):
            return None
        hooks = node.hooks
        if hooks is not None and hooks.pre:
            incoming = _run_prehooks(node, hooks, incoming)
        try:
            outgoing = node.kind.backward(node, saved, incoming)
        except BaseException as error:
            _add_note(node, error)
            raise
        if hooks is not None and hooks.post:
            outgoing = _run_posthooks(node, hooks, outgoing, incoming)
        return outgoing  # type: ignore[no-any-return]

    def _observe(self, node: Node, held: Any) -> Any:
        """Run tensor hooks, keep retained gradients, and capture targets of `oplib.grad`."""
        if held is None:
            return None
        single = type(node) is GradNode or type(node) is AccumulationNode
        gradients = [held] if single else held.buffer
        for position, gradient in enumerate(gradients):
            if gradient is None:
                continue
            if node.hooks is not None:
                gradient = _run_tensor_hooks(node, position, gradient)
                _store_retained(node, position, gradient, self.create_graph)
                gradients[position] = gradient
            if self.targets is not None:
                index = self.targets.get((node, position))
                if index is not None:
                    self.captured[index] = gradient
        return gradients[0] if single else held


def _deliver(holders: dict[Node, Any], node: Node, position: int, gradient: Tensor) -> None:
    """Add a gradient to what a node has received."""
    present = holders.get(node)
    if type(node) is GradNode or type(node) is AccumulationNode:
        holders[node] = gradient if present is None else add_gradients(present, gradient)
        return
    if present is None:
        present = holders[node] = GradTensorHolder(node.width)
    present.add(position, gradient)


def _add_note(node: GradNode, error: BaseException) -> None:
    site = node.hooks.site if node.hooks is not None else ""
    error.add_note(f"in the backward of {node.name()}" + (f", recorded at {site}" if site else ""))


# ---------------------------------------------------------------------- leaves


def _accumulate(node: AccumulationNode, gradient: Tensor, create_graph: bool) -> None:
    """Add a gradient to a leaf's, as a new array nobody else holds."""
    with _leaf_lock:
        present = node.grad
        if present is not None:
            node.grad = add_gradients(present, gradient)
        elif create_graph and gradient._keys & AUTOGRAD:
            node.grad = gradient
        else:
            node.grad = owned_copy(gradient)
    if node.post_hooks:
        leaf = node.leaf() if node.leaf is not None else None
        if leaf is not None:
            for hook in list(node.post_hooks.values()):
                hook(leaf)


def owned_copy(gradient: Tensor) -> Tensor:
    """Return a writable, dense copy of a gradient, without history."""
    array = gradient.array
    if type(array) is _ndarray:
        return tensor_from_result(array.copy())
    state = _state.current()
    with _state.enter(state.replace(user=state.user & ~AUTOGRAD)):
        return clone_op(gradient)  # type: ignore[no-any-return]


def zeros_for(node: GradNode, position: int, like: Tensor) -> Tensor:
    """Return the zero gradient of an output that received none; `like` says where it lives."""
    shape, dtype = node.output_spec(position)
    if like._keys == CPU:
        zeros = np.broadcast_to(np.zeros((), dtype), shape)
        return tensor_from_result(zeros)
    return new_full(like, list(shape), 0, dtype=dtype)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- hooks


def _run_tensor_hooks(node: Node, position: int, gradient: Tensor) -> Tensor:
    assert node.hooks is not None
    for hook in list(node.hooks.tensor.get(position, {}).values()):
        result = hook(gradient)
        if result is not None:
            gradient = _hook_result(node, position, result)
    return gradient


def _hook_result(node: Node, position: int, result: Any) -> Tensor:
    shape, dtype = node.output_spec(position)
    if not isinstance(result, Tensor) or result.shape != shape:
        got = result.describe() if isinstance(result, Tensor) else type(result).__name__
        raise AutogradError(
            f"{node.name()}: a hook must return None or a Tensor of shape {list(shape)}, got {got}"
        )
    if result.dtype == dtype:
        return result
    return fit(result, _Spec(shape, dtype), node, "the hooked tensor")


class _Spec:
    __slots__ = ("dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype


def _store_retained(node: Node, position: int, gradient: Tensor, create_graph: bool) -> None:
    assert node.hooks is not None
    for reference in node.hooks.retain.get(position, ()):
        meta = reference()
        if meta is not None and meta.retained is not None:
            present = meta.retained[0]
            if present is not None:
                meta.retained[0] = add_gradients(present, gradient)
            else:
                meta.retained[0] = gradient if create_graph else owned_copy(gradient)


def _run_prehooks(node: GradNode, hooks: NodeHooks, incoming: Any) -> Any:
    single = type(node) is GradNode
    gradients = (incoming,) if single else tuple(incoming)
    for hook in list(hooks.pre.values()):
        result = hook(gradients)
        if result is not None:
            gradients = _replaced(node, "prehook", result, len(gradients))
    return gradients[0] if single else list(gradients)


def _run_posthooks(node: GradNode, hooks: NodeHooks, outgoing: Any, incoming: Any) -> Any:
    gradients_in = (incoming,) if type(node) is GradNode else tuple(incoming)
    gradients = tuple(outgoing)
    for hook in list(hooks.post.values()):
        result = hook(gradients, gradients_in)
        if result is not None:
            gradients = _replaced(node, "hook", result, len(gradients))
    return gradients


def _replaced(node: GradNode, what: str, result: Any, count: int) -> tuple[Any, ...]:
    if not isinstance(result, tuple | list) or len(result) != count:
        raise AutogradError(
            f"{node.name()}: a node {what} must return None or a tuple of {count} gradients"
        )
    return tuple(result)


