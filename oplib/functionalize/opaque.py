"""Mutating operators made pure: the `functionalized` operator.

Every written region is cloned once; every argument that lives in one of them, written or only read,
is rebuilt as a view of that clone; the operator runs on these; its fresh results and the clones are
the results. That one rule is exact under any aliasing among the arguments.

Imports floors 0 to 4, `access.py`. Read next: `interpreter.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from .._tree import tree_map
from ..dispatch.keys import AUTOGRAD, INTERPRETER
from ..dispatch.lifting import tensor_leaves
from ..dispatch.operator import Operator
from ..dispatch.registry import get_op
from ..dtypes import is_inexact
from ..errors import CaptureError
from ..prims import PRIMS, clone, with_layout
from ..tensor.geometry import Geometry, extent
from ..tensor.grad_meta import AutogradMeta, GradNode, NodeKind, new_meta
from ..tensor.tensor import Tensor, engine
from .access import view_at

__all__ = ["At", "functionalized", "rebased", "records", "run_functionalized"]


@dataclass(frozen=True, slots=True)
class At:
    """An argument that is a view of the clone of a region."""

    region: int
    geometry: Geometry


def run_functionalized(
    op: str, arguments: tuple[Any, ...], bases: list[Tensor], forms: tuple[Geometry, ...]
) -> tuple[Any, list[Tensor]]:
    """Run a mutating operator on clones of its regions.

    Parameters
    ----------
    op : str
        Qualified name.
    arguments : tuple
        In schema order, `At` in place of every tensor that lives in a region.
    bases : list of Tensor
        The value of each region.
    forms : tuple of Geometry
        Where its elements lie.

    Returns
    -------
    fresh : tuple
        The results that are neither written arguments nor views of them.
    regions : list of Tensor
        The value of each region afterwards.
    """
    operator = get_op(op)
    clones = [_clone(base, form) for base, form in zip(bases, forms, strict=True)]

    def rebuild(leaf: Any) -> Any:
        if type(leaf) is not At:
            return leaf
        return view_at(clones[leaf.region], forms[leaf.region], leaf.geometry)

    rebuilt = [tree_map(rebuild, value) for value in arguments]
    result = operator.call_positional(rebuilt)
    for copied in clones:
        engine.refresh(copied)  # it may have been written through a view
    returns = operator.schema.returns
    values = (result,) if len(returns) == 1 else tuple(result or ())
    return tuple([values[i] for i in operator.schema.fresh_returns(rebuilt)]), clones


def rebased(geometry: Geometry, form: Geometry) -> Geometry:
    """Return a geometry counted from the lowest byte of `form`."""
    low, _ = extent(form)
    return Geometry(geometry.dtype, geometry.shape, geometry.strides, geometry.offset - low)


def _clone(base: Tensor, form: Geometry) -> Tensor:
    """Return a copy of a region's value that lies in memory as its form says."""
    if base.strides == form.strides:
        copy: Tensor = clone(base)
        if copy.strides == form.strides:
            return copy
    item = form.dtype.itemsize
    return with_layout(base, [step // item for step in form.strides])


functionalized: Final[Any] = PRIMS.define(
    "functionalized(str op, Any arguments, Tensor[] bases, Any forms) -> (Any, Tensor[])"
).op
functionalized.register_kernel(None, run_functionalized)


@functionalized.register_kernel("Autograd")  # type: ignore[untyped-decorator]
def _differentiated(
    op: str, arguments: tuple[Any, ...], bases: list[Tensor], forms: tuple[Geometry, ...]
) -> tuple[Any, list[Tensor]]:
    """Let the clones, the views and the operator's own rule record.

    A graph under construction holds the call as one node, which records when it runs; here its
    results only need to be known as differentiable.
    """
    tensors = [*bases, *tensor_leaves(arguments)]
    if not any(_is_recorded_as_node(tensor) for tensor in tensors):
        return run_functionalized(op, arguments, bases, forms)
    below = functionalized.below("Autograd")
    fresh, regions = below(op, arguments, bases, forms)
    if records(get_op(op)):
        edges = tuple([t.autograd_meta if t._keys & AUTOGRAD else None for t in tensors])
        for result in tensor_leaves([fresh, regions]):
            if is_inexact(result.dtype):
                _attach(result, edges)
    return fresh, regions


def _is_recorded_as_node(tensor: Tensor) -> bool:
    return bool(tensor._keys & INTERPRETER) and tensor.array.frame.interpreter.builds_graph


def records(op: Operator[..., Any]) -> bool:
    """Return whether calls of an operator give their results a history."""
    rule = op.gradient_rule
    return rule is None or rule.style != "per_argument" or any(rule.functions.values())


def _attach(result: Tensor, edges: tuple[AutogradMeta | None, ...]) -> None:
    node = GradNode()
    node.kind = _NODE
    node.edges = edges
    node.saved = ()
    node.hooks = None
    node.shapes, node.dtypes = result.shape, result.dtype
    result.autograd_meta = new_meta(node, 0, result.shape, result.dtype)
    result._keys |= AUTOGRAD


def _refuse(node: GradNode, saved: tuple[Any, ...], gradient: Any) -> Any:
    raise CaptureError("a graph under construction has no gradients; call the program first")


_NODE: Final = NodeKind("functionalized", _refuse)
