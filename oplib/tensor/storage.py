"""Storage: the identity and version of one owning buffer.

All handles over one buffer share one `Storage`, however they came to be: views, ``detach()``, arrays
that left through ``numpy()`` and came back, overlapping slices of one NumPy array. What a kernel
allocates gets a new Storage; arrays from outside are looked up by their owner.

Writes made through NumPy behind oplib's back are not counted.

Imports floors 0 to 2. Read next: `grad_meta.py`.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

import numpy as np

__all__ = ["Storage", "new_storage", "owner_of", "publish", "storage_of_array"]


class Storage:
    """One owning buffer: its version, and its owner once an array over it was seen outside.

    Attributes
    ----------
    version : int
        Number of declared writes so far.
    owner : object or None
        The object that owns the bytes, kept alive while the table lists it.
    writer : str
        Name of the operator that wrote last, for messages.
    """

    __slots__ = ("__weakref__", "owner", "version", "writer")

    version: int
    owner: Any
    writer: str


_new: Final = object.__new__
_by_owner: Final[dict[int, weakref.ref[Storage]]] = {}
_ndarray: Final = np.ndarray


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
        if isinstance(owner, memoryview):
            base = owner.obj
        else:
            base = getattr(owner, "base", None)
        if base is None:
            return owner
        owner = base


def storage_of_array(array: np.ndarray[Any, Any]) -> Storage:
    """Return the Storage of an array that comes from outside, entering it in the table."""
    owner = array if array.base is None else owner_of(array)
    found = _by_owner.get(id(owner))
    if found is not None:
        storage = found()
        if storage is not None:
            return storage
    storage = new_storage()
    _enter(owner, storage)
    return storage


def publish(array: np.ndarray[Any, Any], storage: Storage) -> None:
    """Enter the Storage of an array that leaves, so that it is found when the array comes back."""
    if storage.owner is None:
        _enter(owner_of(array), storage)


def _enter(owner: Any, storage: Storage) -> None:
    key = id(owner)
    storage.owner = owner

    def forget(reference: weakref.ref[Storage]) -> None:
        if _by_owner.get(key) is reference:
            del _by_owner[key]

    _by_owner[key] = weakref.ref(storage, forget)
