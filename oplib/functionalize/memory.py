"""The memory that inputs lie in: which of them share it, and how.

What counts is the address of the bytes, never ``base`` alone. Tensors that overlap form a group; a
group matters once one of its members is written.

Imports floors 0 to 4, `access.py`, `storage.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..prims import byte_view
from ..tensor.geometry import Geometry, check_inside, covers, extent, overlap, self_overlap
from ..tensor.storage import owner_of
from ..tensor.tensor import Tensor, alias_of, tensor_from_array
from .storage import FunctionalArray, form_of

__all__ = [
    "check_inside_owner",
    "covers_all",
    "geometries_in_group",
    "groups_of",
    "memory_groups",
    "own_geometry",
    "share_memory",
    "span_of",
]


def _place(tensor: Tensor) -> tuple[Any, Geometry]:
    """Return which memory a tensor lies in, and its geometry there."""
    array = tensor.array
    if isinstance(array, np.ndarray):
        return "memory", Geometry.of_array(array, 0)
    if type(array) is FunctionalArray:
        return id(array.storage), array.geometry
    geometry = getattr(array, "geometry", None)
    if geometry is not None:
        return id(tensor._storage), geometry
    return id(tensor._storage), form_of(tensor)


def _start(tensor: Tensor) -> int:
    """Return where the storage of a tensor begins, in the memory it lies in."""
    array = tensor.array
    if not isinstance(array, np.ndarray):
        return 0
    owner = owner_of(array)
    if isinstance(owner, np.ndarray):
        return extent(Geometry.of_array(owner, 0))[0]
    return extent(Geometry.of_array(array, 0))[0]


def own_geometry(tensor: Tensor) -> Geometry:
    """Return the geometry of a tensor in its storage."""
    return _moved(_place(tensor)[1], _start(tensor))


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors overlap."""
    (memory, g), (other, h) = _place(a), _place(b)
    return memory == other and overlap(g, h)


def geometries_in_group(members: Sequence[Tensor]) -> list[Geometry]:
    """Return the geometries of tensors in one memory, from the start of the first one's storage."""
    start = _start(members[0])
    return [_moved(geometry, start) for _, geometry in map(_place, members)]


def _moved(g: Geometry, start: int) -> Geometry:
    return Geometry(g.dtype, g.shape, g.strides, g.offset - start)


def covers_all(g: Geometry, others: Iterable[Geometry]) -> bool:
    """Return whether a geometry has every byte of the others, each once."""
    return not self_overlap(g) and all(covers(g, other) for other in others)


def groups_of(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return connected components of overlapping tensors, in order of their first member."""
    places = [_place(tensor) for tensor in tensors]
    label = list(range(len(tensors)))
    for i, (memory, geometry) in enumerate(places):
        for j in range(i):
            if label[i] != label[j] and places[j][0] == memory and overlap(places[j][1], geometry):
                old, new = max(label[i], label[j]), min(label[i], label[j])
                label = [new if which == old else which for which in label]
    members: dict[int, list[int]] = {}
    for index, which in enumerate(label):
        members.setdefault(which, []).append(index)
    return list(members.values())


def memory_groups(tensors: Sequence[Tensor], written: Iterable[int]) -> tuple[Any, ...]:
    """Return which tensors share written memory, and how: (index, geometry) pairs per group.

    Geometries count from the lowest address of the group, so the same pattern elsewhere is equal.
    """
    written = set(written)
    found = []
    for group in groups_of(tensors):
        if len(group) > 1 and not written.isdisjoint(group):
            geometries = [_place(tensors[index])[1] for index in group]
            low = min(extent(g)[0] for g in geometries)
            shown = [str(_moved(g, low)) for g in geometries]
            found.append(tuple(zip(group, shown, strict=True)))
    return tuple(found)


def check_inside_owner(tensor: Tensor, base: Geometry, geometry: Geometry) -> None:
    """Raise unless a geometry, relative to a tensor with geometry `base`, lies in its storage."""
    array = tensor.array
    if isinstance(array, np.ndarray):
        owner = owner_of(array)
        size = owner.nbytes if isinstance(owner, np.ndarray) else array.nbytes
        check_inside(_moved(geometry, base.offset - own_geometry(tensor).offset), size)


# ---------------------------------------------------------------------- all memory of a group


def span_of(members: Sequence[Tensor]) -> Tensor:
    """Return all memory from the first byte of some tensors to the last, as a flat tensor.

    It has their dtype, or single bytes if they differ in it or do not lie at whole elements.
    """
    geometries = [_place(tensor)[1] for tensor in members]
    bounds = [extent(g) for g in geometries]
    low, high = min(b[0] for b in bounds), max(b[1] for b in bounds)
    dtype = geometries[0].dtype
    item = dtype.itemsize
    whole = all(
        g.dtype == dtype and not any(count % item for count in (g.offset - low, *g.strides))
        for g in geometries
    )
    if not whole:
        dtype, item = np.dtype(np.uint8), 1
    first = members[[b[0] for b in bounds].index(low)]
    offset = low - _place(first)[1].offset
    plain = alias_of(first, first.array)
    flat: Tensor = byte_view(plain, dtype, [(high - low) // item], [item], offset)
    if isinstance(first.array, np.ndarray):
        return tensor_from_array(flat.array)
    return flat
