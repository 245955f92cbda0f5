"""What methods of Tensor do to its gradient record: hooks, retain_grads, requires_grad, ``.grad``.

Hooks live on the node, by position, and stay with the value they were registered on; `retain_grads`
follows the handle.

Imports floors 0 to 4, `engine.py`, `family.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from .. import _state
from ..dispatch.keys import AUTOGRAD, INTERPRETER, SAVED_TENSOR_HOOKS
from ..errors import ArgumentError, AutogradError
from ..tensor.grad_meta import (
    AccumulationNode,
    AutogradMeta,
    HookHandle,
    add_hook,
    require_callable,
    watch_retained,
)
from ..tensor.tensor import Tensor, leaf_meta_of
from .family import refresh

__all__ = [
    "register_final_hook",
    "register_hook",
    "register_post_accumulate_grad_hook",
    "retain_grads",
    "saved_tensors_hooks",
    "set_grad",
    "set_requires_grad",
]


def _meta_of(tensor: Tensor, what: str) -> AutogradMeta:
    if not tensor.requires_grad or tensor.autograd_meta is None:
        raise AutogradError(f"{what} needs a tensor that requires grad; this one is stopped")
    return tensor.autograd_meta


def register_hook(tensor: Tensor, hook: Callable[..., Any]) -> HookHandle:
    """Attach a hook to the gradient of the tensor's current value."""
    meta = _meta_of(tensor, "register_hook")
    table = meta.grad_node._hooks().tensor.setdefault(meta.position, {})
    return add_hook(table, hook)


def register_post_accumulate_grad_hook(tensor: Tensor, hook: Callable[..., Any]) -> HookHandle:
    """Call ``hook(leaf)`` after the leaf's ``.grad`` was written in a backward run."""
    meta = _meta_of(tensor, "register_post_accumulate_grad_hook")
    node = meta.grad_node
    if not isinstance(node, AccumulationNode):
        raise AutogradError("an accumulation hook needs a leaf; use register_hook on this tensor")
    if node.post_hooks is None:
        node.post_hooks = {}
    return add_hook(node.post_hooks, hook)


def register_final_hook(hook: Callable[[], Any]) -> HookHandle:
    """Call ``hook()`` once, at the end of the backward run this is called in.

    Outside of a run it waits for the next run that is started where the State of now holds. It is
    forgotten if the run fails.
    """
    table: dict[int, Callable[..., Any]] = {}
    handle = add_hook(table, hook)
    state = _state.current()
    run = state.config.get("backward_run")
    if run is not None:
        run.final_hooks += (table,)
    else:
        waiting = (*state.config.get("final_hooks", ()), table)
        _state.set_state(state.with_config(final_hooks=waiting))
    return handle


def retain_grads(tensor: Tensor) -> None:
    """Keep the gradient of a non-leaf in ``.grad``."""
    meta = _meta_of(tensor, "retain_grads")
    if not isinstance(meta.grad_node, AccumulationNode) and meta.retained is None:
        meta.retained = [None]
        watch_retained(meta)


def set_requires_grad(tensor: Tensor, value: bool) -> None:
    """Switch recording on a handle on or off."""
    if not isinstance(value, bool):
        raise ArgumentError(f"requires_grad and stop_gradient take a bool, got {value!r}")
    refresh(tensor)
    _switch_recording(tensor, value)
    if tensor._keys & INTERPRETER:
        tensor.array.frame.interpreter.requires_grad_changed(tensor, value)


def _switch_recording(tensor: Tensor, value: bool) -> None:
    record = tensor._view
    is_root = record is not None and tensor.array is record.family.root_array
    if value and tensor.autograd_meta is None:
        tensor.autograd_meta = leaf_meta_of(tensor)
        if not is_root:
            tensor._view = None  # a view that becomes a leaf is a root of its own
    if is_root and record is not None:
        record.family.root = tensor.autograd_meta if value else None
    tensor._keys = tensor._keys | AUTOGRAD if value else tensor._keys & ~AUTOGRAD


def set_grad(tensor: Tensor, value: Any) -> None:
    """Replace ``.grad``."""
    meta = tensor.autograd_meta
    if value is not None:
        if not isinstance(value, Tensor):
            raise ArgumentError(f".grad is a Tensor or None, got {type(value).__name__}")
        if (value.shape, value.dtype, value.device) != (tensor.shape, tensor.dtype, tensor.device):
            raise AutogradError(
                f".grad of a tensor {tensor.describe()} must be like it, got {value.describe()}"
            )
    if meta is None:
        if value is not None:
            raise AutogradError("only a tensor that requires grad has a .grad")
        return
    if isinstance(meta.grad_node, AccumulationNode):
        meta.grad_node.grad = value
        if tensor._keys & INTERPRETER:
            tensor.array.frame.interpreter.grad_replaced(tensor)
    elif meta.retained is not None:
        meta.retained[0] = value
    elif value is not None:
        raise AutogradError("a non-leaf has a .grad after retain_grads() only")


@contextlib.contextmanager
def saved_tensors_hooks(
    pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]
) -> Iterator[None]:
    """Choose how tensors are kept for backward: ``pack(tensor)`` and ``unpack(packed)``.

    Pairs nest; the innermost acts. A packed value keeps its version check: if what `unpack` returns
    shares the saved storage, and that was written to, recovering raises.
    """
    for hook in (pack, unpack):
        require_callable(hook)
    state = _state.current()
    inner = state.replace(include=state.include | SAVED_TENSOR_HOOKS)
    with _state.enter(inner.with_config(saved_tensors_hooks=(pack, unpack))):
        yield
