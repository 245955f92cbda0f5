"""Arguments in memory: exact copies that share as the originals do, and what a call did to them.

A copy keeps dtype, strides, offset, read-only flags, and which arguments lie in one buffer; nothing
of the caller's is ever written. A `Snapshot` remembers every bit of the owning buffers, so that a
write outside a view, of equal values, or below any tolerance is seen.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._tree import leaves, tree_map
from ..tensor.geometry import Geometry, element_offsets
from ..tensor.storage import owner_of
from ..tensor.tensor import Tensor, tensor_from_array
from .compare import Array, Mismatch

__all__ = ["Snapshot", "address_of", "copy_tree", "overlap", "written_bytes"]


def address_of(array: Array) -> int:
    """Return the address of an array's first element."""
    return int(array.__array_interface__["data"][0])


def _bounds(array: Array) -> tuple[int, int]:
    """Return the half-open interval of addresses of an array's elements."""
    low, high = np.lib.array_utils.byte_bounds(array)
    return int(low), int(high)


def _buffer_bounds(arrays: Iterable[Array]) -> tuple[int, int]:
    """Return the addresses of the buffer that arrays of one owner lie in."""
    found = []
    for array in arrays:
        owner = owner_of(array)
        found.append(_bounds(owner if isinstance(owner, np.ndarray) else array))
    return min(low for low, _ in found), max(high for _, high in found)


def _by_owner(arrays: Sequence[Array]) -> Iterator[list[Array]]:
    """Yield the arrays that have elements, grouped by the object that owns their bytes."""
    groups: dict[int, list[Array]] = {}
    for array in arrays:
        if array.size:
            groups.setdefault(id(owner_of(array)), []).append(array)
    yield from groups.values()


def overlap(a: Array, b: Array) -> bool:
    """Return whether two arrays share an address that belongs to an element of each."""
    if not a.size or not b.size or not np.may_share_memory(a, b):
        return False
    return bool(np.shares_memory(a, b))


def same_owner(a: Array, b: Array) -> bool:
    """Return whether two arrays lie in the buffer of one owner."""
    return owner_of(a) is owner_of(b)


# ---------------------------------------------------------------------- copies


def copy_tree(tree: Any, protect: Callable[[Any], bool] = lambda leaf: False) -> Any:
    """Return nested arguments with copies of their tensors, arrays and random generators."""
    found = [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor | np.ndarray)]
    distinct = list({id(leaf): leaf for leaf in found}.values())
    arrays = [leaf.array if isinstance(leaf, Tensor) else leaf for leaf in distinct]
    copies: dict[int, Any] = {}
    for leaf, array, made in zip(distinct, arrays, _copied(arrays), strict=True):
        if not array.flags.writeable or protect(leaf):
            made.flags.writeable = False
        copies[id(leaf)] = tensor_from_array(made) if isinstance(leaf, Tensor) else made

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, np.random.Generator):
            return copies.setdefault(id(leaf), copy.deepcopy(leaf))
        return copies.get(id(leaf), leaf)

    return tree_map(copied, tree)


def _copied(arrays: Sequence[Array]) -> list[Array]:
    """Return copies of distinct arrays; those of one owner lie in one new buffer."""
    made: dict[int, Array] = {}
    for group in _by_owner(arrays):
        first = group[0]
        if len(group) == 1 and (first.base is None or first.dtype.hasobject):
            twin = first.copy(order="K")
            if twin.strides == first.strides or first.dtype.hasobject:
                made[id(first)] = twin
                continue
        low, high = _buffer_bounds(group)
        buffer = np.empty(high - low, np.uint8)
        ctypes.memmove(address_of(buffer), low, high - low)
        for array in group:
            offset = address_of(array) - low
            made[id(array)] = np.ndarray(array.shape, array.dtype, buffer, offset, array.strides)
    return [made[id(a)] if id(a) in made else np.empty(a.shape, a.dtype) for a in arrays]


# ---------------------------------------------------------------------- what changed


@dataclass(slots=True)
class _Buffer:
    low: int
    content: bytes


class Snapshot:
    """Everything about the arguments of a call that a call could change."""

    def __init__(self, named: Sequence[tuple[str, Any]], containers: Sequence[Any] = ()) -> None:
        self.named = [(n, leaf.array if isinstance(leaf, Tensor) else leaf) for n, leaf in named]
        self.arrays = [(n, a) for n, a in self.named if isinstance(a, np.ndarray)]
        self.forms = [_form(a) for _, a in self.arrays]
        self.states = [
            (n, g, copy.deepcopy(g.bit_generator.state))
            for n, g in self.named
            if isinstance(g, np.random.Generator)
        ]
        self.containers = [(c, _shallow(c)) for c in containers]
        self.buffers: list[tuple[list[tuple[str, Array]], _Buffer]] = []
        self.objects = [(n, a, a.copy()) for n, a in self.arrays if a.dtype.hasobject]
        plain = [a for _, a in self.arrays if not a.dtype.hasobject]
        for group in _by_owner(list({id(a): a for a in plain}.values())):
            low, high = _buffer_bounds(group)
            members = [(n, a) for n, a in self.arrays if any(a is other for other in group)]
            content = ctypes.string_at(low, high - low)
            self.buffers.append((members, _Buffer(low, content)))

    def changes(self, written: Sequence[Array] = ()) -> Iterator[Mismatch]:
        """Yield what is different now, apart from the elements of `written`."""
        for (name, array), form in zip(self.arrays, self.forms, strict=True):
            for (what, was), (_, now) in zip(form, _form(array), strict=True):
                if was != now:
                    yield Mismatch(name, what, str(was), str(now))
        for members, buffer in self.buffers:
            yield from _changed_bytes(members, buffer, written)
        for name, array, before in self.objects:
            if not bool((array == before).all()):
                yield Mismatch(name, "elements", "unchanged", "changed")
        for container, elements in self.containers:
            if _shallow(container) != elements:
                kind = type(container).__name__
                yield Mismatch(f"a {kind} of the caller", "elements", "unchanged", "changed")

    def generators_used(self) -> list[str]:
        """Return the names of the generators that were drawn from."""
        return [n for n, g, state in self.states if not _same_state(g.bit_generator.state, state)]

    def changed(self, array: Array) -> bool:
        """Return whether any element of an array is different now."""
        for members, buffer in self.buffers:
            if any(array is a for _, a in members):
                now = np.frombuffer(ctypes.string_at(buffer.low, len(buffer.content)), np.uint8)
                different = now != np.frombuffer(buffer.content, np.uint8)
                return bool(different[written_bytes(array, buffer.low)].any())
        return False


def _form(array: Array) -> list[tuple[str, Any]]:
    return [
        ("shape", array.shape),
        ("dtype", array.dtype),
        ("strides", array.strides),
        ("writeable flag", array.flags.writeable),
    ]


def _shallow(container: Any) -> list[Any]:
    items = container.items() if isinstance(container, dict) else enumerate(container)
    return [(key, id(value)) for key, value in items]


def _same_state(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same_state(a[k], b[k]) for k in a)
    return bool(np.array_equal(a, b))


def written_bytes(array: Array, low: int) -> Array:
    """Return the positions, counted from address `low`, of the bytes of an array's elements."""
    geometry = Geometry(array.dtype, array.shape, array.strides, address_of(array) - low)
    starts = element_offsets(geometry).reshape(-1)
    return (starts[:, None] + np.arange(array.itemsize)).reshape(-1)


def _changed_bytes(
    members: list[tuple[str, Array]], buffer: _Buffer, written: Sequence[Array]
) -> Iterator[Mismatch]:
    """Yield the first change of a buffer outside the elements of `written`."""
    now = ctypes.string_at(buffer.low, len(buffer.content))
    if now == buffer.content:
        return
    different = np.frombuffer(now, np.uint8) != np.frombuffer(buffer.content, np.uint8)
    high = buffer.low + len(buffer.content)
    for array in written:
        if array.size and buffer.low <= address_of(array) < high:
            different[written_bytes(array, buffer.low)] = False
    if not different.any():
        return
    for name, array in members:
        elements = different[written_bytes(array, buffer.low)].reshape(-1, array.itemsize)
        wrong = elements.any(axis=1)
        if wrong.any():
            flat = int(wrong.argmax())
            index = tuple(map(int, np.unravel_index(flat, array.shape)))
            before = np.ndarray(
                array.shape,
                array.dtype,
                buffer.content,
                address_of(array) - buffer.low,
                array.strides,
            )
            what = f"element {list(index)}" if index else "the value"
            yield Mismatch(name, what, repr(before[index]), repr(array[index]))
            return
    names = " and ".join(f"`{name}`" for name, _ in members)
    position = int(different.argmax())
    yield Mismatch(
        members[0][0],
        f"byte {position} of its buffer, outside {names}",
        str(buffer.content[position]),
        str(now[position]),
    )
