"""What happens to a gradient when it is complete at a node: hooks, `retain_grads`.

The hooks of a tensor see its summed gradient in order of registration, each the result of the one
before; then it is stored where ``retain_grads()`` asked for it. The hooks of a node see what its
function receives and returns.

Imports floors 0 to 3, `gradients.py`.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from .._text import short_repr
from ..errors import AutogradError
from ..tensor.grad_meta import GradNode, NodeHooks
from ..tensor.tensor import Tensor
from .gradients import Node, Spec, add_gradients, fit, owned_copy

__all__ = ["observe", "run_posthooks", "run_prehooks"]

_lock: Final = threading.Lock()


def observe(node: Node, hooks: NodeHooks, position: int, gradient: Tensor) -> Tensor:
    """Run the hooks on one output's gradient and store it where it is retained; return it."""
    for hook in list(hooks.tensor.get(position, {}).values()):
        version = gradient._storage.version
        result = hook(gradient)
        if gradient._storage.version != version:
            raise AutogradError(
                f"{node.name()}: a hook wrote to the gradient it was given, which others may hold\n"
                "  return a new tensor instead: lambda grad: grad * 2"
            )
        if result is not None:
            gradient = _hook_result(node, position, result)
    for reference in hooks.retain.get(position, ()):
        meta = reference()
        if meta is not None and meta.retained is not None:
            _retain(meta.retained, gradient)
    return gradient


def _retain(kept: list[Any], gradient: Tensor) -> None:
    """Add a gradient to a retained one, as the engine does for leaves."""
    while True:
        (present,) = kept
        total = owned_copy(gradient) if present is None else add_gradients(present, gradient)
        with _lock:
            if kept[0] is present:
                kept[0] = total
                return


def _hook_result(node: Node, position: int, result: Any) -> Tensor:
    spec = Spec(*node.output_spec(position))
    if not isinstance(result, Tensor) or result.shape != spec.shape:
        got = result.describe() if isinstance(result, Tensor) else short_repr(result)
        raise AutogradError(
            f"{node.name()}: a hook must return None or a Tensor of shape {list(spec.shape)}, "
            f"got {got}"
        )
    return fit(result, spec, node, "the hooked tensor")


def run_prehooks(node: GradNode, hooks: NodeHooks, incoming: list[Any]) -> list[Any]:
    """Return what the node's function receives, after the hooks before it."""
    gradients = tuple(incoming)
    for hook in list(hooks.pre.values()):
        result = hook(gradients)
        if result is not None:
            gradients = _replaced(node, "prehook", result, len(gradients))
    return [
        gradient if gradient is None else _hook_result(node, position, gradient)
        for position, gradient in enumerate(gradients)
    ]


def run_posthooks(
    node: GradNode, hooks: NodeHooks, outgoing: Any, incoming: list[Any]
) -> tuple[Any, ...]:
    """Return what leaves the node, after the hooks behind its function."""
    gradients = tuple(outgoing)
    for hook in list(hooks.post.values()):
        result = hook(gradients, tuple(incoming))
        if result is not None:
            gradients = _replaced(node, "hook", result, len(gradients))
    return gradients


def _replaced(node: GradNode, what: str, result: Any, count: int) -> tuple[Any, ...]:
    if not isinstance(result, tuple | list) or len(result) != count:
        raise AutogradError(
            f"{node.name()}: a node {what} must return None or a tuple of {count} gradients, "
            f"got {short_repr(result)}"
        )
    return tuple(result)
