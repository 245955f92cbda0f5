"""Saved tensors: what a node keeps of its call, and how it comes back.

Note [Saved tensors and versions]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A node saves arrays, never Tensor handles: handles are rebound by in-place steps, and would close
cycles. With the array go its Storage and the version at the time of saving; recovering checks that
nobody wrote in between. The history of a saved *input* is the node's own edge; that of a saved
*output* is (node, position). Neither is stored.

Imports floors 0 to 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from .. import _state
from ..dispatch.keys import AUTOGRAD, SAVED_TENSOR_HOOKS, VIEW
from ..errors import AutogradError
from ..tensor.grad_meta import AutogradMeta, GradNode, new_meta
from ..tensor.storage import Storage
from ..tensor.tensor import Tensor

__all__ = [
    "PackedTensor",
    "Record",
    "TensorWrapper",
    "moved_on",
    "recover",
    "recover_output",
    "save",
    "save_all",
    "save_copy",
]

_new: Final = object.__new__
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
    """One saved tensor in the form a pack hook gave it."""

    __slots__ = ("dtype", "packed", "shape", "storage", "unpack", "version")


Record: TypeAlias = tuple[Any, Storage, int, int] | PackedTensor
"""What a node keeps of one tensor."""


def save(tensor: Tensor | None) -> Any:
    """Return the record of a tensor to be saved: a `TensorWrapper`, or a `PackedTensor`."""
    if tensor is None:
        return None
    storage = tensor._storage
    keys = tensor._keys & _KEPT
    hooks = _state.current().config.get("saved_tensors_hooks")
    if hooks is not None:
        return _pack(tensor, keys, hooks)
    return TensorWrapper(tensor.array, storage, storage.version, keys)


def moved_on(record: Any, storage: Storage) -> Any:
    """Return the record of a tensor of `storage` at its current version; others unchanged."""
    if type(record) is PackedTensor:
        if record.storage is storage:
            record.version = storage.version
    elif record is not None and record[1] is storage:
        return TensorWrapper(record[0], storage, storage.version, record[3])
    return record


def save_all(tensors: Sequence[Tensor | None]) -> list[Record | None]:
    """Return the records of several tensors."""
    if _state.current().include & SAVED_TENSOR_HOOKS:
        return [save(tensor) for tensor in tensors]
    return [
        None if t is None else (t.array, t._storage, t._storage.version, t._keys & _KEPT)
        for t in tensors
    ]


def save_copy(tensor: Tensor) -> Any:
    """Return the record of a copy of a tensor that is about to be overwritten."""
    copied = _handle(tensor.array, tensor._keys & _KEPT, tensor._storage)
    state = _state.current()
    with _state.enter(state.replace(handled=state.handled | AUTOGRAD | VIEW)):
        copied = copied.clone()  # type: ignore[attr-defined]
    return save(copied)


def _handle(array: Any, keys: int, storage: Storage) -> Tensor:
    tensor: Tensor = _new(Tensor)
    tensor.array = array
    tensor._keys = keys
    tensor.autograd_meta = None
    tensor._view = None
    tensor._storage = storage
    return tensor


def _pack(tensor: Tensor, keys: int, hooks: tuple[Any, Any]) -> PackedTensor:
    """Let the pack hook of the innermost pair keep the value its own way."""
    pack, unpack = hooks
    record: PackedTensor = _new(PackedTensor)
    record.storage = storage = tensor._storage
    record.version = storage.version
    record.shape, record.dtype = tensor.shape, tensor.dtype
    record.unpack = unpack
    state = _state.current()
    with _state.enter(state.replace(handled=state.handled | AUTOGRAD | VIEW)):
        record.packed = pack(_handle(tensor.array, keys, storage))
    if storage.version != record.version:
        raise AutogradError("a pack hook wrote to the tensor it was given; pack a copy instead")
    return record


def recover(record: Any, node: GradNode, meta: AutogradMeta | None, what: str) -> Tensor | None:
    """Return the saved tensor with the history `meta`, after checking its version.

    Raises
    ------
    AutogradError
        If the tensor was written to after it was saved.
    """
    if record is None:
        return None
    if type(record) is PackedTensor:
        tensor = _unpack(record, node, what)
    else:
        array, storage, version, keys = record
        if storage.version != version:
            raise _written(storage, version, node, what)
        tensor = _new(Tensor)
        tensor.array = array
        tensor._keys = keys
        tensor.autograd_meta = None
        tensor._view = None
        tensor._storage = storage
    if meta is not None and _state.current().mask & AUTOGRAD:
        tensor.autograd_meta = meta
        tensor._keys |= AUTOGRAD
    return tensor  # type: ignore[no-any-return]


def recover_output(
    record: Any, node: GradNode, position: int, what: str
) -> Tensor | None:
    """Return a saved output, with its history: output `position` of `node` itself."""
    tensor = recover(record, node, None, what)
    if tensor is not None and _state.current().mask & AUTOGRAD:
        shape, dtype = node.output_spec(position)
        tensor.autograd_meta = new_meta(node, position, shape, dtype)
        tensor._keys |= AUTOGRAD
    return tensor


def _unpack(record: PackedTensor, node: GradNode, what: str) -> Tensor:
    tensor = record.unpack(record.packed)
    if (
        not isinstance(tensor, Tensor)
        or tensor.shape != record.shape
        or tensor.dtype != record.dtype
    ):
        got = tensor.describe() if isinstance(tensor, Tensor) else type(tensor).__name__
        raise AutogradError(
            f"{node.name()}: the unpack hook must return a Tensor of shape {record.shape} and "
            f"dtype {record.dtype} for {what}, got {got}"
        )
    if tensor._storage is record.storage and tensor._storage.version != record.version:
        raise _written(record.storage, record.version, node, what)
    return _handle(tensor.array, tensor._keys & _KEPT, tensor._storage)


def _written(storage: Storage, version: int, node: GradNode, what: str) -> AutogradError:
    writer = f", last by {storage.writer}" if storage.writer else ""
    return AutogradError(
        f"{node.name()}: {what} was saved for the gradient at version {version} and has been "
        f"written to since (version {storage.version}{writer})\n"
        "  use the out-of-place form, or write to a copy: x.clone()"
    )
