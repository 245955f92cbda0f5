"""Inputs that share memory, and the regions they lie in.

Each input begins with a region of its own. Inputs that overlap form a group, and the first write to
one of them joins their regions: into the region of the member that covers all, or into one over all
memory from the first byte to the last. A tensor that is met later and overlaps what was written
makes that region grow.

Imports floors 0 to 4, `access.py`, `storage.py`, `memory.py`. Read next: `run.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..dispatch.keys import AUTOGRAD
from ..errors import AliasError
from ..prims import clone, detach, graft
from ..tensor.geometry import Geometry, extent, self_overlap
from ..tensor.storage import Storage
from ..tensor.tensor import Tensor
from .access import access, recorded
from .memory import covers_all, geometries_in_group, groups_of, own_geometry, share_memory
from .storage import Region

__all__ = ["InputMemory"]


class InputMemory:
    """The memory of all inputs of a run.

    Attributes
    ----------
    inputs : list of Tensor
        The list of the run, which grows.
    span : callable
        ``span(indices)``: all memory of some inputs, as a flat tensor of the level below.
    differentiates : bool
        Whether the level below records.
    """

    def __init__(self, inputs: list[Tensor], span: Callable[[tuple[int, ...]], Tensor]) -> None:
        self.inputs = inputs
        self.span = span
        self.differentiates = False
        self._groups: list[_Group] = []

    def place_all(self, values: Sequence[Tensor], storages: Sequence[Storage]) -> list[Region]:
        """Return a region for every input, given what stands for it below and its storage."""
        regions: dict[int, Region] = {}
        for indices in groups_of(self.inputs):
            group = _Group(self)
            if len(indices) == 1:
                geometries = [own_geometry(self.inputs[indices[0]])]
            else:
                geometries = geometries_in_group([self.inputs[index] for index in indices])
            for index, geometry in zip(indices, geometries, strict=True):
                regions[index] = group.add(index, values[index], geometry, storages[index])
        return [regions[index] for index in range(len(self.inputs))]

    def place(self, index: int, value: Tensor, storage: Storage) -> Region:
        """Return a region for an input that is met later.

        Raises
        ------
        AliasError
            If it joins the memory of arguments that have different owners.
        """
        tensor = self.inputs[index]
        shared = {i for i in range(index) if share_memory(self.inputs[i], tensor)}
        groups = [group for group in self._groups if not shared.isdisjoint(group.indices)]
        if not groups:
            return _Group(self).add(index, value, own_geometry(tensor), storage)
        group = self._merged(groups)
        first = self.inputs[group.members[0][0]]
        geometry = geometries_in_group([first, tensor])[1]
        region = group.add(index, value, geometry, storage)
        if any(top.joined is None and top is not region and top.version for top in group.tops):
            group.unite()
        return region

    def _merged(self, groups: list[_Group]) -> _Group:
        """Return one group of the members of several."""
        first, *others = groups
        owners = {id(region.storage) for group in groups for _, region in group.members}
        if others and len(owners) > 1:
            raise AliasError(
                "a tensor of the enclosing scope shares memory with several arguments that have "
                "different owners\n  pass it to the function as an argument too"
            )
        for other in others:
            first.take(other)
            self._groups.remove(other)
        return first

    def keep_old_values(self, written: _Group) -> None:
        """Copy what a gradient may need: the write-back at the end overwrites a storage.

        Versions belong to storages, so this concerns every input that lies in one that is written.
        Eager code saves a copy here too.
        """
        storages = {id(region.storage) for _, region in written.members}
        for group in self._groups:
            for top in group.tops:
                if id(top.storage) in storages and not top.is_kept:
                    _keep_old_value(top)

    def register(self, group: _Group) -> None:
        """Take note of a group."""
        self._groups.append(group)


class _Group:
    """Inputs that share memory.

    Attributes
    ----------
    members : list of (input index, Region)
        The region that each of them began with.
    """

    def __init__(self, memory: InputMemory) -> None:
        self.memory = memory
        self.members: list[tuple[int, Region]] = []
        memory.register(self)

    @property
    def indices(self) -> set[int]:
        """The inputs that belong to the group."""
        return {index for index, _ in self.members}

    @property
    def tops(self) -> list[Region]:
        """The regions the members lie in now, each once."""
        return list({id(top): top for top in (_top(region) for _, region in self.members)}.values())

    def add(self, index: int, value: Tensor, geometry: Geometry, storage: Storage) -> Region:
        """Add an input with a region of its own."""
        region = Region(value, geometry, storage)
        record = self.memory.inputs[index]._view
        region.past = index if record is None else record.family
        region.before_write = self.prepare
        self.members.append((index, region))
        return region

    def take(self, other: _Group) -> None:
        """Take over the members of another group."""
        self.members += other.members
        for top in self.tops:
            if top.before_write is not None:
                top.before_write = self.prepare

    # ------------------------------------------------------------------ before a write

    def prepare(self) -> None:
        """Make the members one region, whose value a write may replace."""
        tops = self.tops
        if len(tops) > 1 or self_overlap(tops[0].form):
            self._join(tops)
        (top,) = self.tops
        top.before_write = None
        if self.memory.differentiates:
            self.memory.keep_old_values(self)

    def _join(self, tops: list[Region]) -> None:
        """Join regions that nobody wrote, into the one that covers all if there is one."""
        forms = [top.form for top in tops]
        cover = next((top for top in tops if _has_all(top.form, forms)), None)
        if cover is None:
            self.unite()
            return
        joined = Region(cover.value, cover.form, cover.storage)
        joined.past, joined.is_kept = cover.past, cover.is_kept
        for top in tops:
            _merge(top, joined)

    def unite(self) -> None:
        """Join all regions, written or not, into one over all their memory."""
        tops = self.tops
        value, form = self._span(tuple(index for index, _ in self.members), tops)
        united = Region(value, form, tops[0].storage)
        united.past = self
        with recorded():
            for top in tops:
                if top.version:
                    united.value = _access(top, united).put(united.value, _plain(top.value))
        united.is_kept = any(top.is_kept for top in tops)
        united.version = 1 + max(top.version for top in tops)
        for top in tops:
            _merge(top, united)

    def _span(self, indices: tuple[int, ...], regions: list[Region]) -> tuple[Tensor, Geometry]:
        """Return all memory from the first byte of some members to the last, and its form."""
        flat = self.memory.span(indices)
        low = min(extent(region.form)[0] for region in regions)
        return flat, Geometry(flat.dtype, flat.shape, flat.strides, low)


def _keep_old_value(region: Region) -> None:
    with recorded():
        region.value = clone(region.value)
        region.others = {key: clone(value) for key, value in region.others.items()}
    region.is_kept = True
    region.version += 1


def _top(region: Region) -> Region:
    while region.joined is not None:
        region = region.joined
    return region


def _has_all(form: Geometry, parts: Sequence[Geometry]) -> bool:
    """Return whether a value of `form` serves for reading and writing all the parts."""
    return covers_all(form, parts) and all(access(part, form) is not None for part in parts)


def _merge(region: Region, joined: Region) -> None:
    """Make the handles of a region handles of another one, with the histories they have."""
    region.history = None if region.past == joined.past else region.past
    for history in (None, *region.others):
        value = region.current(history)
        key = region.history if history is None else history
        if key is not None and value._keys & AUTOGRAD:
            place = _access(region, joined)
            with recorded():
                value = graft(place.get(joined.value), value) if joined.version else value
                joined.others[key] = place.put(joined.current(key), value)
    joined.written_through |= region.written_through
    joined.recorded_through |= region.recorded_through
    region.joined = joined


def _access(region: Region, joined: Region) -> Any:
    found = access(region.form, joined.form)
    if found is None:
        raise AliasError(
            "inputs that share memory are written, and one of them does not lie in it regularly\n"
            "  pass one tensor and take its views inside the function"
        )
    return found


def _plain(value: Tensor) -> Tensor:
    return detach(value) if value._keys & AUTOGRAD else value
