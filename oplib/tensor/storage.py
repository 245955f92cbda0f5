"""Storage: the identity and version of one owning buffer.

All handles over one buffer share one `Storage`, however they came to be: views, ``detach()``,
arrays that left through ``numpy()`` and came back, overlapping slices of one NumPy array. What a
kernel allocates gets a new Storage; arrays from outside are looked up by their owner, and where
that is no array and no Python buffer (a DLPack capsule, say) by their addresses.

Writes made through NumPy behind oplib's back are not counted. Zero-size arrays alias nothing.

Imports floors 0 to 2. Read next: `grad_meta.py`.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

import numpy as np
from numpy.lib.array_utils import byte_bounds

__all__ = ["Storage", "new_storage", "owner_of", "publish", "storage_of_array"]


class Storage:
    """One owning buffer: its version, and its owners once an array over it was seen outside.

    Attributes
    ----------
    version : int
        Number of declared writes so far.
    owner : object or None
        What owns the bytes, kept alive while the table lists it; a tuple of several.
    writer : str
        Name of the operator that wrote last, for messages.
    """

    __slots__ = ("__weakref__", "owner", "version", "writer")

    version: int
    owner: Any
    writer: str


_new: Final = object.__new__
_by_owner: Final[dict[int, weakref.ref[Storage]]] = {}
_opaque: Final[dict[int, tuple[int, int]]] = {}
"""Byte extents of the arrays behind those owners in the table that own bytes we cannot ask for."""


def new_storage() -> Storage:
    """Return the Storage of a buffer nobody else has seen."""
    storage = _new(Storage)
    storage.version = 0
    storage.owner = None
    storage.writer = ""
    return storage


def owner_of(array: np.ndarray[Any, Any]) -> Any:
    """Return the object that owns the bytes of `array`.

    Follows ``base`` through arrays and through the helper objects ``as_strided`` leaves behind, and
    ``memoryview.obj`` to the exporter of a buffer.
    """
    owner: Any = array
    while True:
        base = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
        known = isinstance(owner, np.ndarray | memoryview) or isinstance(base, np.ndarray)
        if base is None or not known:
            return owner
        owner = base


def storage_of_array(array: np.ndarray[Any, Any]) -> Storage:
    """Return the Storage of an array that comes from outside, entering it in the table."""
    if not array.size:
        return new_storage()
    owner = array if array.base is None else owner_of(array)
    found = _by_owner.get(id(owner))
    storage = None if found is None else found()
    if storage is None:
        opaque = not isinstance(owner, np.ndarray)
        if opaque or _opaque:
            storage = _at_addresses_of(array, anywhere=opaque)
        storage = new_storage() if storage is None else storage
        _enter(owner, storage)
        if opaque:
            _opaque[id(owner)] = byte_bounds(array)
    return storage


def publish(array: np.ndarray[Any, Any], storage: Storage) -> None:
    """Enter the Storage of an array that leaves, so that it is found when the array comes back."""
    if storage.owner is None:
        _enter(owner_of(array), storage)


def _enter(owner: Any, storage: Storage) -> None:
    key = id(owner)
    storage.owner = owner if storage.owner is None else (storage.owner, owner)

    def forget(reference: weakref.ref[Storage]) -> None:
        if _by_owner.get(key) is reference:
            del _by_owner[key]
            _opaque.pop(key, None)

    _by_owner[key] = weakref.ref(storage, forget)


def _at_addresses_of(array: np.ndarray[Any, Any], anywhere: bool) -> Storage | None:
    """Return the Storage in the table that holds bytes of `array`; `anywhere`: of any owner."""
    low, high = byte_bounds(array)
    for key, reference in list(_by_owner.items()):
        storage = reference()
        if storage is None:
            continue
        extent = _opaque.get(key)
        if extent is None and anywhere:
            extent = _bytes_of(_owner_with(key, storage.owner))
        if extent is not None and extent[0] < high and low < extent[1]:
            return storage
    return None


def _owner_with(key: int, owner: Any) -> Any:
    """Return the owner of this id among those of a Storage."""
    while isinstance(owner, tuple) and id(owner) != key:
        owner, last = owner
        if id(last) == key:
            return last
    return owner


def _bytes_of(owner: Any) -> tuple[int, int] | None:
    """Return the byte extent of an owner that is an array."""
    return byte_bounds(owner) if isinstance(owner, np.ndarray) else None
