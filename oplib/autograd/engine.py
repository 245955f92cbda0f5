"""The engine: runs a backward graph from its roots.

A node runs when all its contributions have arrived. As long as plain nodes form a single chain
there is nothing to wait for; from the first other node on, in-degrees are counted breadth first.
Accumulation nodes go to the front of the queue, so a leaf's gradient is complete as early as
possible. Saved values and gradients are freed node by node. Everything is iterative and belongs to
one `run`: nothing is global, runs nest, and threads do not meet except at a leaf.

Imports floors 0 to 4, `gradients.py`, `observe.py`, `anomaly.py`. Read next: `general_grad.py`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from sys import getrefcount
from typing import Any, Final

from .. import _state
from ..dispatch.keys import ANOMALY, AUTOCAST, AUTOGRAD, CHECKED
from ..errors import AutogradError
from ..tensor.grad_meta import AccumulationNode, AutogradMeta, GradNode, WideGradNode
from ..tensor.tensor import Tensor
from .anomaly import checked_for_anomaly, watch
from .gradients import (
    PASSED_ON,
    PLACE,
    Node,
    add_gradients,
    add_into,
    check_device,
    edge_name,
    fit,
    is_only_owner,
    owned_copy,
    read_only,
)
from .observe import observe, run_posthooks, run_prehooks

__all__ = ["GradTensorHolder", "Run", "Targets", "in_topological_order", "run"]

_leaf_lock: Final = threading.Lock()


class GradTensorHolder:
    """What one node has received in a run, and how many contributions it still waits for.

    Attributes
    ----------
    node : GradNode or AccumulationNode
    waiting : int
    buffer : Tensor, None or list
        The sum so far; a list with one element per output for a node with several.
    own : Tensor or None
        A sum in the buffer that was made here.
    """

    __slots__ = ("buffer", "node", "own", "waiting")

    node: Node
    waiting: int
    buffer: Any
    own: Tensor | None

    def add(self, position: int, gradient: Tensor) -> None:
        """Sum a gradient into that of one output.

        A sum made here is known to nobody else, so what comes later may be added into it.
        """
        buffer = self.buffer
        present = buffer[position] if type(buffer) is list else buffer
        if present is None:
            total = gradient
        elif self.own is not None and present is self.own and add_into(self.own, gradient):
            return
        else:
            total = self.own = add_gradients(present, gradient)
        if type(buffer) is list:
            buffer[position] = total
        else:
            self.buffer = total


def _holder(node: Node, waiting: int) -> GradTensorHolder:
    """Return an empty holder; twice as fast as a constructor."""
    holder = GradTensorHolder()
    holder.node = node
    holder.waiting = waiting
    holder.own = None
    holder.buffer = [None] * node.width if type(node) is WideGradNode else None
    return holder


class Targets:
    """What a run of `oplib.grad` is after.

    Attributes
    ----------
    index : dict
        (node, position) -> index of the captured gradient.
    nodes : set
        The nodes of `index`.
    needed : set
        Nodes between the roots and a target, both included.
    executed : set
        Those whose function runs, because a needed node lies below them.
    cut : frozenset
        (node, position) of edges that carry nothing.
    captured : dict
        Index -> gradient.
    """

    def __init__(
        self, index: dict[tuple[Node, int], int], cut: frozenset[tuple[Node, int]]
    ) -> None:
        self.index = index
        self.nodes = {node for node, _ in index}
        self.cut = cut
        self.needed: set[Node] = set()
        self.executed: set[Node] = set()
        self.captured: dict[int, Tensor] = {}

    def is_cut(self, edge: AutogradMeta) -> bool:
        """Return whether an edge carries nothing in this run."""
        return bool(self.cut) and (edge.grad_node, edge.position) in self.cut

    def is_passed(self, node: Node) -> bool:
        """Return whether a node with one output is only on the way to a target."""
        return node in self.executed and node not in self.nodes


class Run:
    """One backward run, as code inside of it finds it."""

    __slots__ = ("__weakref__", "final_hooks")

    final_hooks: tuple[dict[int, Callable[[], Any]], ...]


def run(
    roots: list[tuple[AutogradMeta, Tensor]],
    retain_graph: bool,
    create_graph: bool,
    targets: Targets | None = None,
) -> None:
    """Run from `roots`, pairs of a tensor's record and its seed, which are taken off the list.

    Without `targets` (those of `oplib.grad`) gradients accumulate into leaves.
    """
    outer = _state.current()
    this = Run()
    this.final_hooks = ()
    config: dict[str, Any] = {"backward_run": this}
    if outer.config:
        config = {**outer.config, **config}
        if "final_hooks" in config:
            this.final_hooks = tuple(config.pop("final_hooks"))
            outer = outer.with_config(final_hooks=None)
    # Grad mode is as asked for, autocast is off, and code inside finds the run.
    user = outer.user | AUTOGRAD if create_graph else outer.user & ~AUTOGRAD
    include = outer.include & ~AUTOCAST
    _state.set_state(outer.replaced(include, user, config))
    try:
        if len(roots) == 1 and not include & (ANOMALY | CHECKED):
            roots = _chain(*roots.pop(), retain_graph, targets)
        if roots:
            _loop(roots, retain_graph, targets)
    finally:
        _state.set_state(outer)
    for table in this.final_hooks:
        for key in list(table):
            table.pop(key)()


def _loop(
    roots: list[tuple[AutogradMeta, Tensor]], retain_graph: bool, targets: Targets | None
) -> None:
    """Run every node. This is the hot path: the common node is handled without a call."""
    holders: dict[Node, GradTensorHolder] = {}
    ready = _counted_roots(roots, holders, targets)
    roots.clear()  # so that holders alone hold the seeds
    node: Any = None
    try:
        while ready:
            holder = ready.popleft()
            node = holder.node
            hooks = node.hooks
            if hooks is not None or (targets is not None and node in targets.nodes):
                holder.buffer = _observed(node, holder.buffer, targets)
            if type(node) is AccumulationNode:
                held, holder.buffer, holder.own = holder.buffer, None, None
                if targets is None and held is not None:
                    _accumulate(node, held)
                held = None
                continue
            if targets is not None and node not in targets.executed:
                continue
            held, holder.buffer, holder.own = holder.buffer, None, None
            saved = node.saved
            if saved is None:
                raise _released(node)
            if hooks is None and type(held) is Tensor:
                if held._storage.version:
                    raise _overwritten(node)
                outgoing = node.kind.backward(node, saved, held)
            else:
                outgoing = _call(node, saved, held)
            if not retain_graph:
                node.saved = None
            for edge, gradient in zip(node.edges, outgoing):  # noqa: B905 (strict costs 10 %)
                if edge is None:
                    continue
                below = edge.grad_node
                if targets is not None and (below not in targets.needed or targets.is_cut(edge)):
                    continue
                target = holders[below]
                if gradient is not None:
                    if type(gradient) is not Tensor:
                        gradient = _fitted(node, saved, edge, gradient, outgoing)
                    array = gradient.array
                    if array.shape != edge.shape or array.dtype is not edge.dtype:
                        gradient = _fitted(node, saved, edge, gradient, outgoing)
                    if gradient._storage.version:
                        gradient = owned_copy(gradient)
                    if target.buffer is None:
                        target.buffer = gradient
                    else:
                        target.add(edge.position, gradient)
                target.waiting = waiting = target.waiting - 1
                if not waiting:
                    if type(below) is AccumulationNode:
                        ready.appendleft(target)
                    else:
                        ready.append(target)
            # Freed before the next node runs; and who holds a gradient alone need not copy it.
            saved = outgoing = held = gradient = array = None
    except BaseException as error:
        _add_note(node, error)
        raise


def _chain(
    root: AutogradMeta, gradient: Tensor | None, retain_graph: bool, targets: Targets | None
) -> list[tuple[AutogradMeta, Tensor]]:
    """Run plain nodes that lead to one node each; return where to go on, and with what."""
    edge: Any = root
    node: Any = root.grad_node
    try:
        while gradient is not None:
            if node.hooks is not None or (targets is not None and not targets.is_passed(node)):
                return [(edge, gradient)]
            edges = node.edges
            if type(node) is not GradNode:
                if type(node) is not AccumulationNode:
                    return [(edge, gradient)]
                _accumulate(node, gradient)
                break
            if len(edges) - edges.count(None) != 1:
                return [(edge, gradient)]
            saved = node.saved
            if saved is None:
                raise _released(node)
            if gradient._storage.version:
                raise _overwritten(node)
            outgoing = node.kind.backward(node, saved, gradient)
            if not retain_graph:
                node.saved = None
            place = 0
            while edges[place] is None:
                place += 1
            edge, gradient = edges[place], outgoing[place]
            if gradient is not None:
                if type(gradient) is not Tensor:
                    gradient = _fitted(node, saved, edge, gradient, outgoing)
                array = gradient.array
                if array.shape != edge.shape or array.dtype is not edge.dtype:
                    gradient = _fitted(node, saved, edge, gradient, outgoing)
                if gradient._storage.version:
                    gradient = owned_copy(gradient)
            node = edge.grad_node
            saved = outgoing = array = None
    except BaseException as error:
        _add_note(node, error)
        raise
    return []


def _observed(node: Node, held: Any, targets: Targets | None) -> Any:
    """Run tensor hooks, keep retained gradients, and capture targets of `oplib.grad`."""
    gradients = held if type(held) is list else [held]
    checked = _state.current().include & CHECKED
    for position, gradient in enumerate(gradients):
        if gradient is None:
            continue
        if checked:
            gradients[position] = gradient = read_only(gradient)
        if node.hooks is not None:
            _check_unwritten(node, gradient)
            gradient = observe(node, node.hooks, position, gradient)
            if gradient._storage.version:
                gradient = owned_copy(gradient)
            gradients[position] = gradient
        if targets is not None:
            index = targets.index.get((node, position))
            if index is not None:
                _check_unwritten(node, gradient)
                targets.captured[index] = owned_copy(gradient)
    return held if type(held) is list else gradients[0]


def _counted_roots(
    roots: Sequence[tuple[AutogradMeta, Tensor]],
    holders: dict[Node, GradTensorHolder],
    targets: Targets | None,
) -> deque[GradTensorHolder]:
    """Give every reachable node a holder; return those of the roots that can start."""
    for meta, seed in roots:
        holder = holders.get(meta.grad_node)
        if holder is None:
            holder = holders[meta.grad_node] = _holder(meta.grad_node, 0)
        holder.add(meta.position, seed)
    starts = list(holders.values())
    _count(holders, targets)
    if _state.current().include & (ANOMALY | CHECKED):
        watch(holders)
    return deque([holder for holder in starts if not holder.waiting])


def _count(holders: dict[Node, GradTensorHolder], targets: Targets | None) -> None:
    """Give every reachable node a holder that knows how many contributions will arrive."""
    queue = list(holders)
    for node in queue:  # grows while it is iterated over
        for edge in node.edges:
            if edge is None:
                continue
            below = edge.grad_node
            if targets is not None and (below not in targets.needed or targets.is_cut(edge)):
                continue
            holder = holders.get(below)
            if holder is None:
                holders[below] = _holder(below, 1)
                queue.append(below)
            else:
                holder.waiting += 1


def _call(node: GradNode, saved: tuple[Any, ...], held: Any) -> Iterable[Any]:
    """Run the function of a node with hooks or several outputs, or to which nothing came."""
    incoming = held if type(held) is list else [held]
    if all(gradient is None for gradient in incoming):
        return (None,) * len(node.edges)
    for gradient in incoming:
        if gradient is not None:
            _check_unwritten(node, gradient)
    hooks = node.hooks
    if hooks is not None and hooks.pre:
        incoming = run_prehooks(node, hooks, incoming)
    passed = incoming if type(held) is list else incoming[0]
    outgoing: Iterable[Any] = node.kind.backward(node, saved, passed)
    if hooks is not None:
        if hooks.post:
            outgoing = run_posthooks(node, hooks, outgoing, incoming)
        if _state.current().include & ANOMALY:
            outgoing = checked_for_anomaly(node, saved, incoming, outgoing)
    return outgoing


def in_topological_order(roots: Iterable[Node], cut: frozenset[tuple[Node, int]]) -> list[Node]:
    """Return all nodes reachable from `roots`, each before the nodes its edges lead to."""
    waiting: dict[Node, int] = dict.fromkeys(roots, 0)
    queue = list(waiting)
    for node in queue:  # grows while it is iterated over
        for edge in node.edges:
            if edge is None or (edge.grad_node, edge.position) in cut:
                continue
            if edge.grad_node in waiting:
                waiting[edge.grad_node] += 1
            else:
                waiting[edge.grad_node] = 1
                queue.append(edge.grad_node)
    order = [node for node in queue if not waiting[node]]
    for node in order:
        for edge in node.edges:
            if edge is None or (edge.grad_node, edge.position) in cut:
                continue
            waiting[edge.grad_node] -= 1
            if not waiting[edge.grad_node]:
                order.append(edge.grad_node)
    return order


# ---------------------------------------------------------------------- leaves


def _accumulate(node: AccumulationNode, gradient: Tensor) -> None:
    """Add a gradient that one variable of the caller holds to a leaf's, as one nobody else holds.

    The sum is made outside of the lock, because an operator of some backend may compute it; it is
    stored if no other thread stored one meanwhile.
    """
    if gradient._storage.version:
        raise _overwritten(node)
    if gradient._keys & PLACE != node.keys or node.level:
        check_device(gradient, node)
    while True:
        present = node.grad
        if present is not None:
            total = add_gradients(present, gradient)
        elif getrefcount(gradient) == PASSED_ON and is_only_owner(gradient):
            total = gradient
        else:
            total = owned_copy(gradient)
        with _leaf_lock:
            if node.grad is present:
                node.grad = total
                break
    if node.post_hooks:
        leaf = node.leaf() if node.leaf is not None else None
        if leaf is not None:
            for hook in list(node.post_hooks.values()):
                hook(leaf)


# ---------------------------------------------------------------------- complaints


def _check_unwritten(node: Node, gradient: Tensor) -> None:
    """Raise if a gradient was written to while it waited (see Note [Who may see a gradient])."""
    if gradient._storage.version:
        raise _overwritten(node)


def _overwritten(node: Node) -> AutogradError:
    return AutogradError(
        f"{node.name()}: the gradient that arrived here was written to in place by a hook or a "
        "backward function that also saw it\n"
        "  compute a new tensor there: grad * 2 instead of grad.mul_(2)"
    )


def _released(node: GradNode) -> AutogradError:
    return AutogradError(
        f"{node.name()}: second backward through the graph; its saved values were freed\n"
        "  pass retain_graph=True to the first backward, or sum the losses"
    )


def _fitted(
    node: GradNode, saved: tuple[Any, ...], edge: AutogradMeta, gradient: Any, outgoing: Any
) -> Tensor:
    """Return an outgoing gradient fit for its edge, or raise naming the argument."""
    pairs = enumerate(zip(node.edges, outgoing, strict=True))
    index = next((i for i, (e, g) in pairs if e is edge and g is gradient), 0)
    return fit(gradient, edge, node, edge_name(node, saved, index))


def _add_note(node: Node, error: BaseException) -> None:
    site = node.hooks.site if node.hooks is not None else ""
    error.add_note(f"in the backward of {node.name()}" + (f", recorded at {site}" if site else ""))
