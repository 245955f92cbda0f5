"""From real tensors to fakes: everything that can be observed without data.

A conversion keeps geometry, dtype, shared storage with its version, the family of views, leaf or
not, ``.grad``, and whether the array is read-only. The memo is keyed by identity and keeps nothing
real alive.

Imports floors 0 to 4. Read next: `mode.py`.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np

from .. import _state
from ..dispatch.keys import AUTOGRAD, META, VIEW, WEAK
from ..dtypes import Device
from ..prims import clone
from ..tensor.geometry import extent
from ..tensor.grad_meta import (
    AccumulationNode,
    AutogradMeta,
    Family,
    ViewRecord,
    new_leaf_meta,
    new_view_record,
)
from ..tensor.meta_array import MetaArray, meta_array
from ..tensor.storage import Storage, is_read_only, new_storage, owner_of
from ..tensor.tensor import Tensor, tensor_from_result

__all__ = ["Converter"]


class Memory(NamedTuple):
    """What a real storage is converted to, the address its offsets count from, and its size."""

    device: Device
    storage: Storage
    first_byte: int
    nbytes: int | None


class Memo:
    """What objects were converted to, by identity and device; forgotten when an object dies."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], dict[Device, Any]]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, key: Any) -> dict[Device, Any]:
        """Return the conversions of `key` so far, to be added to."""
        entries, number = self._entries, id(key)
        entry = entries.get(number)
        if entry is None or entry[0]() is not key:

            def forget(reference: weakref.ref[Any]) -> None:
                found = entries.get(number)
                if found is not None and found[0] is reference:
                    del entries[number]

            entry = entries[number] = weakref.ref(key, forget), {}
        return entry[1]


class Converter:
    """The conversions of one mode."""

    __slots__ = ("fakes", "families", "mode", "storages")

    def __init__(self, mode: Any) -> None:
        self.mode = mode
        self.fakes = Memo()
        self.storages = Memo()
        self.families = Memo()

    def fake_of(self, tensor: Tensor, device: Device) -> Tensor:
        """Return the fake of a tensor on a device, the same one every time."""
        fakes = self.fakes.of(tensor)
        if device not in fakes:
            fakes[device] = self._convert(tensor, device)
        fake: Tensor = fakes[device]
        return fake

    def _convert(self, tensor: Tensor, device: Device) -> Tensor:
        requires_grad = tensor.requires_grad  # brings a view up to date
        memory = self._memory(tensor, device)
        if tensor._view is not None:
            fake = self._member(tensor, tensor._view, memory)
        else:
            fake = tensor_from_result(self._array(tensor.array, tensor._storage, memory))
            if requires_grad:
                fake.autograd_meta = self._record(tensor.autograd_meta, fake.array)
        if requires_grad:
            fake._keys |= AUTOGRAD
            meta = fake.autograd_meta
            if meta is not None and isinstance(meta.grad_node, AccumulationNode):
                meta.grad_node.leaf = weakref.ref(fake)
        fake._keys |= tensor._keys & WEAK
        return fake

    # ------------------------------------------------------------------ memory

    def _memory(self, tensor: Tensor, device: Device) -> Memory:
        """Return where the storage of a tensor is converted to."""
        memories = self.storages.of(tensor._storage)
        if device not in memories:
            storage = new_storage()
            storage.version = tensor._storage.version
            memories[device] = Memory(device, storage, *_extent(tensor.array))
        memory: Memory = memories[device]
        return memory

    def _array(self, array: Any, real: Storage, memory: Memory) -> MetaArray:
        offset = _address(array) - memory.first_byte
        made = MetaArray(
            array.shape,
            array.strides,
            array.dtype,
            memory.device,
            memory.storage,
            offset,
            self.mode,
        )
        made.nbytes = memory.nbytes
        made.readonly = isinstance(array, np.ndarray) and is_read_only(array, real)
        return made

    # ------------------------------------------------------------------ gradients

    def _record(self, meta: AutogradMeta | None, array: MetaArray) -> AutogradMeta:
        """Return the gradient record of a fake; the history of a non-leaf stays behind."""
        node = None if meta is None else meta.grad_node
        if not isinstance(node, AccumulationNode):
            return self._history(array)
        made = new_leaf_meta(array.shape, array.dtype, tensor_from_result(array))
        if node.grad is not None and isinstance(made.grad_node, AccumulationNode):
            made.grad_node.grad = self.mode.from_tensor(node.grad, device=array.device)
        return made

    def _history(self, array: MetaArray) -> AutogradMeta:
        """Return the record of a value that was computed from something that requires grad."""
        with _state.enter(_state.DEFAULT_STATE):
            fresh = meta_array(array.shape, array.dtype, array.device, mode=self.mode)
            made = clone(tensor_from_result(fresh).requires_grad_()).autograd_meta
        assert made is not None
        return made

    # ------------------------------------------------------------------ families of views

    def _member(self, tensor: Tensor, record: ViewRecord, memory: Memory) -> Tensor:
        """Return the fake of a tensor that belongs to a family of views."""
        family = self._family(record.family, tensor._storage, memory)
        is_root = tensor.array is record.family.root_array
        array = family.root_array if is_root else self._array(tensor.array, tensor._storage, memory)
        fake = tensor_from_result(array)
        fake._view = new_view_record(family, record.no_grad, record.opaque)
        fake._keys |= VIEW
        if tensor._keys & AUTOGRAD:
            if is_root:
                fake.autograd_meta = family.root
            elif record.opaque:
                fake.autograd_meta = self._history(array)
            else:
                fake._view.epoch = -1  # stale: it will be derived from the root
        return fake

    def _family(self, real: Family, storage: Storage, memory: Memory) -> Family:
        families = self.families.of(real)
        if memory.device not in families:
            root = self._array(real.root_array, storage, memory)
            families[memory.device] = Family(None, root, META)
        family: Family = families[memory.device]
        if family.root is None and real.root is not None:
            family.root = self._record(real.root, family.root_array)
        return family


def _address(array: Any) -> int:
    """Return the address of the first element, or its offset in a storage without addresses."""
    if isinstance(array, np.ndarray):
        return int(array.__array_interface__["data"][0])
    return int(array.offset)


def _extent(array: Any) -> tuple[int, int | None]:
    """Return the address that offsets count from, and the size of the memory.

    Of memory that no array owns neither is known; its offsets are addresses.
    """
    if not isinstance(array, np.ndarray):
        return 0, extent(array.geometry)[1] if array.nbytes is None else array.nbytes
    owner = owner_of(array)
    if isinstance(owner, np.ndarray):
        return _address(owner), owner.nbytes
    return 0, None
