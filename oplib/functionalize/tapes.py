"""The two tapes of a functional run, and what makes them agree.

Note [Two tapes]
~~~~~~~~~~~~~~~~
Autograd is above the functional level, and again below it. The tape above sees the program as it
was written: leaves, views, versions, errors; it serves gradients taken inside the run. The tape
below records the functional calls; it serves gradients taken of the results. What makes them agree
is that a value is handed down with a history exactly when its handle has one: the history is taken
away where the handle has none (a view made under no_grad, ``stop_gradient``), and where the level
below never saw it, a node takes its place that raises when a gradient arrives.

Imports floors 0 to 4, `opaque.py`. Read next: `level.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .. import _state
from ..dispatch.keys import AUTOGRAD
from ..dispatch.lifting import tensor_leaves
from ..dispatch.operator import Operator
from ..errors import AutogradError
from ..prims import detach
from ..tensor.grad_meta import GradNode, NodeKind, new_meta
from ..tensor.tensor import Tensor, alias_of
from .opaque import records

__all__ = ["as_its_handle", "is_recorded"]


def is_recorded(op: Operator[..., Any], args: Sequence[Any]) -> bool:
    """Return whether the tape above gives what a call writes a new history."""
    if not _state.current().mask & AUTOGRAD:
        return False
    if not any(tensor._keys & AUTOGRAD for tensor in tensor_leaves(args)):
        return False
    return records(op)


def as_its_handle(value: Tensor, handle: Tensor) -> Tensor:
    """Return a value with a history if its handle has one, and without if not."""
    if not (handle._keys ^ value._keys) & AUTOGRAD:
        return value
    return detach(value) if value._keys & AUTOGRAD else _with_unknown_history(value, handle)


def _with_unknown_history(value: Tensor, handle: Tensor) -> Tensor:
    """Return a value whose handle has a history that the level below has not seen."""
    node = GradNode()
    node.kind = _UNSEEN
    node.edges = ()
    source = handle.grad_fn.name() if handle.grad_fn is not None else "a leaf made inside"
    node.saved = (
        f"a result of a functional run depends on {source}, which was recorded inside the run "
        "only\n  make it an operator with a gradient rule (register_autograd), or take the "
        "gradient inside the run",
    )
    node.hooks = None
    node.shapes, node.dtypes = value.shape, value.dtype
    alias = alias_of(value, value.array)
    alias.autograd_meta = new_meta(node, 0, value.shape, value.dtype)
    alias._keys |= AUTOGRAD
    return alias


def _refuse(node: GradNode, saved: tuple[Any, ...], gradient: Any) -> Any:
    raise AutogradError(saved[0])


_UNSEEN: Final = NodeKind("history_above_functionalize", _refuse)
