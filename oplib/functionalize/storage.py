"""Regions and functional arrays: memory as values.

A *region* is a run of bytes with one current value, a tensor of the level below; every functional
tensor is a geometry into a region. Reading and writing go by addresses, so views, overlaps and
orders of axes need no case of their own. Values are never mutated.

Note [Histories]
~~~~~~~~~~~~~~~~
All handles of a region show the same data, but not always the same past: ``detach()`` begins a new
one, and inputs that share memory may come from unrelated graphs. A region therefore keeps one value
per history that differs, all with equal data: `Region.value` for the handles it was made with, and
`Region.others` for the rest. A recorded write gives one history a new value; the others take over
its data and keep their own past (`graft`), as handles in eager code do.

Imports floors 0 to 4, `access.py`. Read next: `opaque.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dispatch.interpreter import Frame
from ..dispatch.keys import AUTOGRAD
from ..dispatch.operator import Operator
from ..dtypes import Device
from ..errors import AliasError
from ..prims import detach, graft, overwrite
from ..tensor.geometry import Geometry, extent, same_geometry
from ..tensor.storage import Storage
from ..tensor.tensor import Tensor
from .access import Access, access, laid_out, recorded

__all__ = ["Detached", "FunctionalArray", "Region", "ViewStep", "form_of"]


class Region:
    """A run of bytes and its current value.

    Attributes
    ----------
    value : Tensor
        Of the level below; its elements in logical order are those of `form`.
    form : Geometry
        Where these elements lie, in bytes from the start of the storage.
    storage : Storage
        The storage this region belongs to, shared by its handles.
    version : int
        Number of changes of the value; what was read at an older version is stale.
    others : dict
        History -> value, where it differs from `value`. See Note [Histories].
    joined : Region or None
        The region this one was merged into, because inputs share memory.
    past : object
        Which history `value` has (inputs only).
    history : object
        Which history of `joined` the handles of this region have; None for that of its `value`.
    before_write : callable or None
        What has to happen before the first write (inputs only).
    is_kept : bool
        Whether the value is a copy that no store at the end reaches (inputs only).
    written_through, recorded_through : set of int
        The inputs through whose handles, or views of them, it was written; those where it was
        recorded.
    """

    __slots__ = (
        "before_write",
        "form",
        "history",
        "is_kept",
        "joined",
        "others",
        "past",
        "recorded_through",
        "storage",
        "value",
        "version",
        "written_through",
    )

    def __init__(self, value: Tensor, form: Geometry, storage: Storage) -> None:
        self.value = value
        self.form = form
        self.storage = storage
        self.version = 0
        self.others: dict[Any, Tensor] = {}
        self.joined: Region | None = None
        self.past: Any = None
        self.history: Any = None
        self.before_write: Callable[[], None] | None = None
        self.is_kept = False
        self.written_through: set[int] = set()
        self.recorded_through: set[int] = set()

    def current(self, history: Any) -> Tensor:
        """Return the value with one of the histories."""
        if history is None:
            return self.value
        found = self.others.get(history)
        return _without_history(self.value) if found is None else found

    def replace(self, history: Any, new: Tensor, is_recorded: bool) -> Tensor:
        """Give the region the value it has after a write, and return it.

        A recorded write whose value depends on nothing still has a history, in which the old value
        got lost; a write that is not recorded keeps the old history.
        """
        with recorded():
            new = self._continued(self.current(history), new, is_recorded)
            if self.others or history is not None:
                for other in (None, *self.others):
                    if other != history:
                        self._set(other, self._continued(self.current(other), new, False))
        self._set(history, new)
        self.version += 1
        return new

    def share(self, history: Any, with_other: Any) -> None:
        """Give another history the value that one has: both were written by one call."""
        if history != with_other:
            self._set(with_other, self.current(history))

    def _continued(self, old: Tensor, new: Tensor, is_recorded: bool) -> Tensor:
        has_history = new._keys & AUTOGRAD
        if is_recorded:
            if old._keys & AUTOGRAD and not has_history:
                new = overwrite(new, old)
            return new
        if old._keys & AUTOGRAD:
            return graft(new, old)
        return _without_history(new)

    def _set(self, history: Any, value: Tensor) -> None:
        if history is None:
            self.value = value
        else:
            self.others[history] = value

    def access_to(self, part: Geometry) -> Access:
        """Return how a geometry lies in the value.

        Raises
        ------
        AliasError
            If the geometry reaches beyond the memory of the region.
        """
        found = access(part, self.form)
        if found is None:
            raise AliasError(
                f"a view {part} of dtype {part.dtype} does not lie regularly in the memory it was "
                f"taken of ({self.form}, dtype {self.form.dtype})\n"
                "  take the view of a copy: x.clone()"
            )
        return found


def _without_history(value: Tensor) -> Tensor:
    return detach(value) if value._keys & AUTOGRAD else value


def form_of(tensor: Any) -> Geometry:
    """Return the geometry of a tensor in a buffer that begins at its lowest address."""
    array = tensor.array
    strides = array.strides
    g = Geometry(array.dtype, array.shape, strides)
    if all(stride >= 0 for stride in strides):
        return g
    return Geometry(g.dtype, g.shape, g.strides, -extent(g)[0])


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view operator between a handle and a view of it.

    Attributes
    ----------
    op : Operator
    args : tuple
        Those after the first.
    part : int or None
        Which of several views.
    no_grad : bool
        Whether it was taken while recording was off.
    """

    op: Operator[..., Any]
    args: tuple[Any, ...]
    part: int | None
    no_grad: bool


@dataclass(frozen=True, slots=True, eq=False)
class Detached:
    """A history that began with ``detach()``: where that handle lies, and after how many steps."""

    geometry: Geometry
    steps: int


class FunctionalArray:
    """The array of a functional tensor: a geometry into a region.

    Attributes
    ----------
    frame : Frame
        The level it belongs to.
    geometry : Geometry
        In bytes from the start of the storage.
    origin : int or None
        The input whose handle this is, or is a view of.
    history : object
        Which value of the region it shows. See Note [Histories].
    detached : bool
        Whether it descends from a handle made by ``detach``.
    start, steps : int or None, tuple of ViewStep or None
        How it came to be: the input it began with (its `origin`, unless it lies around that one),
        and the view operators from there on; steps are None if some other operator returned it.
    """

    __slots__ = (
        "_cached",
        "_cached_version",
        "_region",
        "detached",
        "frame",
        "geometry",
        "history",
        "origin",
        "start",
        "steps",
    )

    def __init__(
        self,
        frame: Frame,
        region: Region,
        geometry: Geometry,
        origin: int | None = None,
        history: Any = None,
        detached: bool = False,
    ) -> None:
        self.frame = frame
        self._region = region
        self.geometry = geometry
        self.origin = origin
        self.history = history
        self.detached = detached
        self.start = origin
        self.steps: tuple[ViewStep, ...] | None = ()
        self._cached: Tensor | None = None
        self._cached_version = -1

    @property
    def region(self) -> Region:
        """The region, after those it was merged into."""
        region = self._region
        while region.joined is not None:
            if self.history is None:
                self.history = region.history
            region = self._region = region.joined
            self._cached_version = -1
        return region

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every axis."""
        return self.geometry.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in bytes."""
        return self.geometry.strides

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.geometry.dtype

    @property
    def device(self) -> Device:
        """Device of the value."""
        return self._region.value.device

    @property
    def storage(self) -> Storage:
        """The storage shared by all handles on this memory."""
        return self._region.storage

    def view(
        self,
        geometry: Geometry,
        step: ViewStep | None,
        detached: bool = False,
        around: FunctionalArray | None = None,
    ) -> FunctionalArray:
        """Return another geometry into the same region, or into that of a handle `around` it.

        A detached view has a history of its own.
        """
        owner = self if around is None else around
        region = owner.region
        view = FunctionalArray(
            self.frame,
            region,
            geometry,
            owner.origin,
            owner.history,
            self.detached or detached,
        )
        view.start = self.start
        view.steps = None if step is None or self.steps is None else (*self.steps, step)
        if detached:
            steps = 0 if view.steps is None else len(view.steps)
            view.history = Detached(geometry, steps)
        return view

    @property
    def is_whole(self) -> bool:
        """Whether this handle addresses exactly the elements of the region's value."""
        form = self.region.form
        return self.geometry is form or same_geometry(self.geometry, form)

    def read(self, exact: bool = False) -> Tensor:
        """Return the current value, a tensor of the level below, laid out as the handle says.

        With `exact` its strides are the handle's; else their order is.
        """
        region = self.region
        if self._cached_version == region.version:
            value = self._cached
            assert value is not None
        else:
            with recorded():
                if self.is_whole:
                    value = region.current(self.history)
                else:
                    value = region.access_to(self.geometry).get(region.current(self.history))
            self.remember(value)
        if value.array.strides != self.geometry.strides:
            with recorded():
                value = self._cached = laid_out(value, self.geometry, exact)
        return value

    def write(self, value: Tensor) -> Tensor:
        """Return the region's value after `value` was stored through this handle.

        `value` has the handle's dtype and shape. Nothing is changed yet.
        """
        region = self.region
        if self.is_whole:
            return value
        with recorded():
            return region.access_to(self.geometry).put(region.current(self.history), value)

    def remember(self, value: Tensor) -> None:
        """Keep the current value, so that reading it again costs nothing."""
        self._cached = value
        self._cached_version = self._region.version

    def __repr__(self) -> str:
        return f"FunctionalArray({self.geometry}, level {self.frame.level})"
