"""A guard against silent constants: a value whose history is unknown raises when differentiated.

A saved intermediate and what a once-differentiable backward returns are right as values, but a
derivative taken through them would lack a term. Under ``create_graph`` they get a node that raises
as soon as a gradient reaches it.

Imports floors 0 to 3.
"""

from __future__ import annotations

from typing import Any, Final

from ..dispatch.keys import AUTOGRAD
from ..errors import AutogradError
from ..tensor.grad_meta import AutogradMeta, GradNode, NodeKind, new_meta
from ..tensor.tensor import Tensor

__all__ = ["guard"]


def _refuse(node: GradNode, saved: tuple[Any, ...], gradient: Tensor) -> Any:
    raise AutogradError(saved[0])


_GUARD: Final = NodeKind("unknown_history", _refuse)


def guard(tensor: Tensor, edges: tuple[AutogradMeta | None, ...], message: str) -> None:
    """Make differentiating through `tensor` raise `message`.

    Parameters
    ----------
    tensor : Tensor
        A handle nobody else has; it gets the guard as its history.
    edges : tuple of AutogradMeta or None
        What the value was computed from, so that a run towards it meets the guard.
    message : str
    """
    node = GradNode()
    node.kind = _GUARD
    node.edges = edges
    node.saved = (message,)
    node.hooks = None
    node.shapes = tensor.shape
    node.dtypes = tensor.dtype
    tensor.autograd_meta = new_meta(node, 0, tensor.shape, tensor.dtype)
    tensor._keys |= AUTOGRAD
