"""The records of the backward graph, as data: metas, nodes, families. The engine runs them.

A tensor that takes part in autograd has an `AutogradMeta`. A recorded call makes one `GradNode`,
whose edges *are* the metas of its arguments: a meta knows the node that produced the tensor and
which output it was. Nothing here refers from a node to its own outputs, so there are no cycles.

Imports floors 0 to 2, `grad_hooks.py`. Read next: `tensor.py`; the engine is `autograd/engine.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from .._record import record
from ..dispatch.keys import BACKENDS, INTERPRETER, META
from .grad_hooks import HookHandle, NodeHooks, add_hook, require_callable

__all__ = [
    "AccumulationNode",
    "AutogradMeta",
    "Edge",
    "Family",
    "GradNode",
    "GradSlotMeta",
    "HookHandle",
    "NodeHooks",
    "NodeKind",
    "ViewRecord",
    "WideGradNode",
    "add_hook",
    "move_retained",
    "new_leaf_meta",
    "new_meta",
    "new_view_record",
    "require_callable",
    "watch_retained",
]

# Note [Metas and edges]
# ~~~~~~~~~~~~~~~~~~~~~~
# An edge of the backward graph is the AutogradMeta of the tensor it leads to. What keeps it sound:
#   - a meta belongs to one handle; an alias of a tensor gets a meta of its own;
#   - a recorded write gives the handle a new meta and never edits the old one, which other nodes
#     may hold as an edge;
#   - a write under no_grad only bumps the version;
#   - identity in the engine is (node, position), never the meta object;
#   - hooks live on the node by position and stay with the value they were registered on.


class AutogradMeta:
    """A tensor's gradient record: which output of which node it is.

    Attributes
    ----------
    grad_node : GradNode or AccumulationNode
    position : int
        Which output of the node, lists flattened.
    shape, dtype
        Of the tensor; incoming gradients must have them.
    retained : list or None
        ``[gradient or None]`` of a non-leaf after ``retain_grads()``.
    """

    __slots__ = ("__weakref__", "dtype", "grad_node", "position", "retained", "shape")

    grad_node: GradNode | AccumulationNode
    position: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    retained: list[Any] | None

    @property
    def slot(self) -> int:
        """Which top-level output of the node."""
        return self.grad_node.slot_and_rank(self.position)[0]

    @property
    def rank(self) -> int:
        """Which element of that output, when it is a list."""
        return self.grad_node.slot_and_rank(self.position)[1]


class NodeKind:
    """What all nodes made by one plan share.

    Attributes
    ----------
    op : object
        What was called: an Operator, a PyLayer class, or a name.
    backward : callable
        ``backward(node, saved, gradient)``, with a list of gradients for a `WideGradNode`; returns
        one gradient or None per edge. It gets what was in ``node.saved``, which another thread may
        clear meanwhile.
    edge_name : callable or None
        ``edge_name(node, saved, index)``: what users call an edge, where the schema cannot say it.
    """

    __slots__ = ("backward", "edge_name", "op")

    def __init__(
        self,
        op: Any,
        backward: Callable[..., Any],
        edge_name: Callable[..., str] | None = None,
    ) -> None:
        self.op = op
        self.backward = backward
        self.edge_name = edge_name


class GradNode:
    """One recorded call with one output: how its gradient becomes gradients of its inputs.

    Attributes
    ----------
    kind : NodeKind
    edges : tuple of (AutogradMeta or None)
        One per tensor argument, lists flattened; None where nothing flows.
    saved : tuple or None
        What the rule needs; None once released.
    shapes, dtypes
        Of the output (of the outputs, as tuples, in a `WideGradNode`).
    hooks : NodeHooks or None
    """

    __slots__ = ("__weakref__", "dtypes", "edges", "hooks", "kind", "saved", "shapes")

    kind: NodeKind
    edges: tuple[AutogradMeta | None, ...]
    saved: tuple[Any, ...] | None
    shapes: Any
    dtypes: Any
    hooks: NodeHooks | None

    @property
    def width(self) -> int:
        """Number of outputs, lists flattened."""
        return 1

    @property
    def layout(self) -> tuple[int | None, ...] | None:
        """Structure of the outputs: per slot None or the length of its list; None if all plain."""
        return None

    @property
    def inputs(self) -> tuple[int | None, ...] | None:
        """The same for the edges."""
        return None

    @property
    def op(self) -> Any:
        """What was called."""
        return self.kind.op

    def name(self) -> str:
        """Return ``GradNode_<ns>::<op>`` or ``GradNodePyLayer_<Class>``."""
        op = self.kind.op
        if isinstance(op, str):
            return f"GradNode_{op}"
        if isinstance(op, type):
            return f"GradNodePyLayer_{op.__name__}"
        return f"GradNode_{op.qualname}"

    @property
    def released(self) -> bool:
        """Whether the saved values are gone."""
        return self.saved is None

    def output_spec(self, position: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of one output."""
        return self.shapes, self.dtypes

    def slot_and_rank(self, position: int) -> tuple[int, int]:
        """Return (slot, rank) of a flat output position."""
        return _slot_and_rank(self.layout, position)

    @property
    def bwd_in_meta(self) -> tuple[tuple[GradSlotMeta, ...], ...]:
        """Descriptions of the gradients that come in: per output slot, per rank."""
        flat = [GradSlotMeta(*self.output_spec(i), False, None) for i in range(self.width)]
        return _by_slot(self.layout, flat)

    @property
    def bwd_out_meta(self) -> tuple[tuple[GradSlotMeta, ...], ...]:
        """Descriptions of the gradients that go out: per tensor argument, per rank."""
        return _by_slot(self.inputs, [_slot_meta(edge) for edge in self.edges])

    @property
    def next_functions(self) -> tuple[tuple[GradNode | AccumulationNode | None, int], ...]:
        """``(node or None, slot)`` of every edge."""
        return tuple((None, 0) if e is None else (e.grad_node, e.slot) for e in self.edges)

    def register_prehook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call ``hook(grads_in)`` before this node's function; a tuple returned replaces them."""
        return add_hook(self._hooks().pre, hook)

    def register_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call ``hook(grads_out, grads_in)`` after this node's function."""
        return add_hook(self._hooks().post, hook)

    def _hooks(self) -> NodeHooks:
        if self.hooks is None:
            self.hooks = NodeHooks()
        return self.hooks

    def __repr__(self) -> str:
        return f"<{self.name()}>"


class WideGradNode(GradNode):
    """A recorded call with several outputs, or with lists among its inputs or outputs."""

    __slots__ = ("input_layout", "output_layout")

    input_layout: tuple[int | None, ...] | None
    output_layout: tuple[int | None, ...] | None

    @property
    def width(self) -> int:
        """Number of outputs, lists flattened."""
        return len(self.shapes)

    @property
    def layout(self) -> tuple[int | None, ...] | None:
        """Structure of the outputs."""
        return self.output_layout

    @property
    def inputs(self) -> tuple[int | None, ...] | None:
        """Structure of the edges."""
        return self.input_layout

    def output_spec(self, position: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of one output."""
        return self.shapes[position], self.dtypes[position]


class AccumulationNode:
    """The node of a leaf: it owns ``.grad`` and works after the leaf's handle is gone.

    `keys` says where the leaf lives: its backend, whether it is fake or wrapped by an interpreter;
    `level` is that interpreter's, 0 without one.
    """

    __slots__ = (
        "__weakref__",
        "dtypes",
        "grad",
        "hooks",
        "keys",
        "leaf",
        "level",
        "post_hooks",
        "shapes",
    )

    edges: Final = ()
    width: Final = 1
    layout: Final = None
    saved: Final = ()

    grad: Any
    hooks: NodeHooks | None
    keys: int
    level: int
    post_hooks: dict[int, Callable[..., Any]] | None
    leaf: weakref.ref[Any] | None
    shapes: tuple[int, ...]
    dtypes: np.dtype[Any]

    def name(self) -> str:
        """Return ``AccumulationNode``."""
        return "AccumulationNode"

    def slot_and_rank(self, position: int) -> tuple[int, int]:
        """Return (0, 0)."""
        return 0, 0

    def output_spec(self, position: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of the leaf."""
        return self.shapes, self.dtypes

    @property
    def next_functions(self) -> tuple[()]:
        """A leaf leads nowhere."""
        return ()

    def _hooks(self) -> NodeHooks:
        if self.hooks is None:
            self.hooks = NodeHooks()
        return self.hooks

    def __repr__(self) -> str:
        return "<AccumulationNode>"


@record
class Edge:
    """Where an outgoing gradient goes."""

    grad_node: GradNode | AccumulationNode
    in_slot: int
    in_rank: int


@record
class GradSlotMeta:
    """What introspection shows of one forward tensor: its description, and its edge if any."""

    shape: tuple[int, ...] | None
    dtype: np.dtype[Any] | None
    stop_gradient: bool
    edge: Edge | None


def _slot_meta(meta: AutogradMeta | None) -> GradSlotMeta:
    if meta is None:
        return GradSlotMeta(None, None, True, None)
    edge = Edge(meta.grad_node, meta.slot, meta.rank)
    return GradSlotMeta(meta.shape, meta.dtype, False, edge)


def _slot_and_rank(layout: tuple[int | None, ...] | None, position: int) -> tuple[int, int]:
    if layout is None:
        return position, 0
    for slot, length in enumerate(layout):
        count = 1 if length is None else length
        if position < count:
            return slot, position
        position -= count
    raise IndexError(position)


def _by_slot(layout: tuple[int | None, ...] | None, flat: list[Any]) -> tuple[Any, ...]:
    if layout is None:
        return tuple((item,) for item in flat)
    grouped, start = [], 0
    for length in layout:
        count = 1 if length is None else length
        grouped.append(tuple(flat[start : start + count]))
        start += count
    return tuple(grouped)


# ---------------------------------------------------------------------- families of views


class Family:
    """The handles joined by differentiable views of one root.

    Attributes
    ----------
    root : AutogradMeta or None
        The current gradient record of the root value; the base handle itself may be gone.
    root_array : array
        The root's array, whose geometry the views are addressed in.
    epoch : int
        Number of recorded writes; a handle that has seen fewer is stale.
    detached : bool
        Whether its user said ``detach()``: that its values have a history is no surprise then.
    overwritten : str
        The operator whose recorded write, through a handle that is no view of this root, changed
        its memory; empty if there was none.
    """

    __slots__ = (
        "__weakref__",
        "detached",
        "epoch",
        "overwritten",
        "root",
        "root_array",
        "root_keys",
    )

    def __init__(self, root: AutogradMeta | None, root_array: Any, root_keys: int) -> None:
        self.root = root
        self.root_array = root_array
        self.root_keys = root_keys
        self.epoch = 0
        self.detached = False
        self.overwritten = ""


class ViewRecord:
    """What one handle knows about its family.

    `epoch` is the family's epoch this handle's meta belongs to; `no_grad` says that the view was
    made while recording was off; `opaque` names the operator when a write through this handle has
    no gradient (its own rule, or a change of dtype); `split` is how the handle lies in its root,
    once that was asked for.
    """

    __slots__ = ("epoch", "family", "no_grad", "opaque", "split")

    family: Family
    epoch: int
    no_grad: bool
    opaque: str
    split: Any


# ---------------------------------------------------------------------- making records


def new_meta(node: GradNode, position: int, shape: tuple[int, ...], dtype: Any) -> AutogradMeta:
    """Return the meta of one output of a node."""
    meta = AutogradMeta()
    meta.grad_node = node
    meta.position = position
    meta.shape = shape
    meta.dtype = dtype
    meta.retained = None
    return meta


def new_leaf_meta(shape: tuple[int, ...], dtype: Any, leaf: Any) -> AutogradMeta:
    """Return the meta of a leaf with a fresh AccumulationNode."""
    node = AccumulationNode()
    node.grad = None
    node.hooks = None
    node.post_hooks = None
    node.keys = leaf._keys & (BACKENDS | META | INTERPRETER)
    node.level = leaf.array.frame.level if leaf._keys & INTERPRETER else 0
    node.leaf = weakref.ref(leaf)
    node.shapes = shape
    node.dtypes = dtype
    meta = AutogradMeta()
    meta.grad_node = node
    meta.position = 0
    meta.shape = shape
    meta.dtype = dtype
    meta.retained = None
    return meta


def new_view_record(family: Family, no_grad: bool = False, opaque: str = "") -> ViewRecord:
    """Return the record of a handle that joins a family as it is now."""
    record = ViewRecord()
    record.family = family
    record.epoch = family.epoch
    record.no_grad = no_grad
    record.opaque = opaque
    record.split = None
    return record


def move_retained(new: AutogradMeta, old: AutogradMeta) -> None:
    """Let a handle whose value has a new record retain the gradient of that."""
    new.retained, old.retained = old.retained, None
    watch_retained(new)


def watch_retained(meta: AutogradMeta) -> None:
    """Have the node of a record that retains its gradient store it there."""
    table = meta.grad_node._hooks().retain
    table.setdefault(meta.position, []).append(weakref.ref(meta))
