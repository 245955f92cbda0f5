"""Saved tensors: what a node keeps of its call, and how it comes back.

Note [Saved tensors and versions]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A node saves arrays, never Tensor handles: handles are rebound by in-place steps, and would close
cycles. With the array go its Storage and the version at the time of saving; recovering checks that
nobody wrote in between. The history of a saved *input* is the node's own edge; that of a saved
*output* is (node, position). Neither is stored. A recovered input has its history also where
nothing is recorded; the mask of the State keeps it out of every plan there.

Imports floors 0 to 4.
"""

from __future__ import annotations

import weakref
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from .. import _state
from .._tree import leaves
from ..dispatch.keys import AUTOGRAD, SAVED_TENSOR_HOOKS, VIEW
from ..dtypes import is_inexact
from ..errors import AutogradError
from ..prims import clone
from ..tensor.grad_meta import AutogradMeta, GradNode, NodeKind, new_meta
from ..tensor.storage import Storage
from ..tensor.tensor import Tensor, blank_tensor, tensor_from_result

__all__ = [
    "PackedTensor",
    "Record",
    "TensorWrapper",
    "guard",
    "moved_on",
    "overwritten",
    "recover",
    "recover_output",
    "save",
    "save_copy",
    "save_optional",
]

_KEPT: Final = ~(AUTOGRAD | VIEW)


class TensorWrapper(NamedTuple):
    """One saved tensor: its array, storage, version and key set.

    Generated plans write plain tuples of this layout, which costs half as much.
    """

    array: Any
    storage: Storage
    version: int
    keys: int


class PackedTensor:
    """One saved tensor in the form a pack hook gave it.

    A Storage whose array left through ``numpy()`` keeps it alive, so it is held weakly, unless what
    the hook returned lies in the same memory.
    """

    __slots__ = ("dtype", "held", "packed", "shape", "storage", "unpack", "version")

    def __init__(self, tensor: Tensor, unpack: Any) -> None:
        self.packed: Any = None
        self.held: Storage | None = None
        self.unpack = unpack
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self.storage = weakref.ref(tensor._storage)
        self.version = tensor._storage.version


Record: TypeAlias = tuple[Any, Storage, int, int] | PackedTensor
"""What a node keeps of one tensor."""


def save(tensor: Tensor) -> Record:
    """Return the record of a tensor to be saved, by way of the innermost pack hook if any."""
    state = _state.current()
    if state.include & SAVED_TENSOR_HOOKS:
        pack, unpack = state.config["saved_tensors_hooks"]
        return _pack(tensor, pack, unpack)
    storage = tensor._storage
    return TensorWrapper(tensor.array, storage, storage.version, tensor._keys & _KEPT)


def save_optional(tensor: Tensor | None) -> Record | None:
    """Return the record of an optional tensor."""
    return None if tensor is None else save(tensor)


def save_copy(tensor: Tensor) -> Record:
    """Return the record of a copy of a tensor that is about to be overwritten."""
    array = tensor.array
    if type(array) is np.ndarray:  # no operator call, so that a mode sees the user's call only
        return save(tensor_from_result(array.copy(order="K")))
    state = _state.current()
    plain = _handle(array, tensor._keys & _KEPT, tensor._storage)
    with _state.enter(state.replace(handled=state.handled | AUTOGRAD | VIEW)):
        copied = clone(plain)
    return save(copied)


def _handle(array: Any, keys: int, storage: Storage) -> Tensor:
    tensor = blank_tensor()
    tensor.array = array
    tensor._keys = keys
    tensor.autograd_meta = None
    tensor._view = None
    tensor._storage = storage
    return tensor


def _pack(tensor: Tensor, pack: Any, unpack: Any) -> PackedTensor:
    """Let a pack hook keep the value its own way; it gets a handle without history, grad off."""
    plain = _handle(tensor.array, tensor._keys & _KEPT, tensor._storage)
    record = PackedTensor(plain, unpack)
    state = _state.current()
    outer = state.replace(user=state.user & ~AUTOGRAD, include=state.include & ~SAVED_TENSOR_HOOKS)
    with _state.enter(outer):
        record.packed = pack(plain)
    if plain._storage.version != record.version:
        raise AutogradError(
            "a pack hook wrote to the tensor it was given, which is still in use\n"
            "  write to a copy: tensor.clone()"
        )
    if any(_lies_in(leaf, plain) for leaf in leaves(record.packed)):
        record.held = plain._storage
    return record


def _lies_in(value: Any, tensor: Tensor) -> bool:
    """Return whether a value is a tensor or an array in the memory of `tensor`."""
    if isinstance(value, Tensor):
        return value._storage is tensor._storage
    arrays = isinstance(value, np.ndarray) and isinstance(tensor.array, np.ndarray)
    return arrays and np.may_share_memory(value, tensor.array)


def moved_on(record: Any, storage: Storage) -> Any:
    """Return the record of a tensor of `storage` at its current version; others unchanged."""
    if isinstance(record, PackedTensor):
        if record.storage() is storage:
            record.version = storage.version
    elif record is not None and record[1] is storage:
        return (*record[:2], storage.version, *record[3:])
    return record


# ---------------------------------------------------------------------- recovering


def recover(record: Record, node: GradNode, meta: AutogradMeta | None, what: str) -> Tensor:
    """Return the saved tensor with the history `meta`, after checking its version.

    Generated backward functions do the same in place for tensors that were not packed.

    Raises
    ------
    AutogradError
        If the tensor was written to after it was saved.
    """
    if isinstance(record, PackedTensor):
        tensor = _unpack(record, node, what)
    else:
        array, storage, version, keys = record
        if storage.version != version:
            raise overwritten(storage, version, node, what)
        tensor = _handle(array, keys & _KEPT, storage)
    if meta is not None:
        tensor.autograd_meta = meta
        tensor._keys |= AUTOGRAD
    return tensor


def recover_output(record: Record, node: GradNode, position: int, what: str) -> Tensor:
    """Return a saved output, with its history: output `position` of `node` itself."""
    tensor = recover(record, node, None, what)
    if _state.current().mask & AUTOGRAD and is_inexact(tensor.dtype):
        shape, dtype = node.output_spec(position)
        tensor.autograd_meta = new_meta(node, position, shape, dtype)
        tensor._keys |= AUTOGRAD
    return tensor


def _unpack(record: PackedTensor, node: GradNode, what: str) -> Tensor:
    state = _state.current()
    with _state.enter(state.replace(user=state.user & ~AUTOGRAD)):
        tensor = record.unpack(record.packed)
    if (
        not isinstance(tensor, Tensor)
        or tensor.shape != record.shape
        or tensor.dtype != record.dtype
    ):
        got = tensor.describe() if isinstance(tensor, Tensor) else type(tensor).__name__
        raise AutogradError(
            f"{node.name()}: the unpack hook must return a Tensor of shape {list(record.shape)} "
            f"and dtype {record.dtype} for {what}, got {got}"
        )
    if tensor._storage is record.storage() and tensor._storage.version != record.version:
        raise overwritten(tensor._storage, record.version, node, what)
    return _handle(tensor.array, tensor._keys & _KEPT, tensor._storage)


def overwritten(storage: Storage, version: int, node: GradNode, what: str) -> AutogradError:
    """Return the error for a saved tensor that was written to."""
    writer = f", last by {storage.writer}" if storage.writer else ""
    return AutogradError(
        f"{node.name()}: {what} was saved for the gradient at version {version} and has been "
        f"written to since (version {storage.version}{writer})\n"
        "  use the out-of-place form, or write to a copy: x.clone()"
    )


def _refuse(node: GradNode, saved: tuple[Any, ...], gradient: Tensor) -> Any:
    raise AutogradError(saved[0])


_GUARD: Final = NodeKind("unknown_history", _refuse)


def guard(tensor: Tensor, edges: tuple[AutogradMeta | None, ...], message: str) -> None:
    """Make differentiating through `tensor`, a value whose history is unknown, raise `message`.

    A saved intermediate and what a once-differentiable backward returns are right as values, but a
    derivative taken through them would lack a term; so under ``create_graph`` they get this node.

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
