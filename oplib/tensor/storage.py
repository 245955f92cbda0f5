"""Storage: the identity and version of one owning buffer.

All handles over one buffer share one `Storage`, however they came to be: views, ``detach()``,
arrays that left through ``numpy()`` and came back, overlapping slices of one NumPy array. What a
kernel allocates gets a new Storage; arrays from outside are looked up by their owner, and where
that is no array and no Python buffer (a DLPack capsule, say) by their addresses.

Writes made through NumPy behind oplib's back are not counted. Zero-size arrays alias nothing.

Imports floors 0 to 2. Read next: `grad_meta.py`.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Final

import numpy as np
from numpy.lib.array_utils import byte_bounds

__all__ = ["Storage", "is_read_only", "new_storage", "owner_of", "publish", "storage_of_array"]


def _late(slot: str, default: Any) -> Any:
    """Return a property over a slot that may not be set."""

    def read(storage: Storage) -> Any:
        return getattr(storage, slot, default)

    def write(storage: Storage, value: Any) -> None:
        setattr(storage, slot, value)

    return property(read, write)


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
    strangers : list of weak references
        Tensors and families over this buffer that are no views of each other, once there are any;
        see Note [Strangers].
    """

    # Only `version` is set from birth: one Storage is made per operator call, and each slot costs.
    # A `__getattr__` for the others would make every read of `version` five times slower.
    __slots__ = ("__weakref__", "_owner", "_strangers", "_writer", "version")

    version: int
    _owner: Any
    _strangers: Any
    _writer: str

    owner = _late("_owner", None)
    strangers = _late("_strangers", ())
    writer = _late("_writer", "")


# Note [The table of owners]
# ~~~~~~~~~~~~~~~~~~~~~~~~~~
# A listed Storage keeps its owners alive, so an entry is either right or dead: the id of a living
# owner is not used again. Dead entries are swept when the table has doubled, because a callback per
# entry would cost more than everything else that happens to an ndarray beside a Tensor.
_ndarray: Final = np.ndarray
_by_owner: Final[dict[int, weakref.ref[Storage]]] = {}
_opaque: Final[dict[int, tuple[int, int]]] = {}
"""Byte extents of the arrays behind those owners in the table that own bytes we cannot ask for."""
_lock: Final = threading.RLock()
_limit = 1000


def new_storage() -> Storage:
    """Return the Storage of a buffer nobody else has seen."""
    storage = Storage()
    storage.version = 0
    return storage


def owner_of(array: Any) -> Any:
    """Return the object that owns the bytes of `array`.

    Follows ``base`` through arrays and through the helper objects ``as_strided`` leaves behind, and
    ``memoryview.obj`` to the exporter of a buffer.
    """
    owner: Any = array
    while True:
        base = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
        known = isinstance(owner, np.ndarray | memoryview | type(array))
        if base is None or not (known or isinstance(base, np.ndarray)):
            return owner
        owner = base


def storage_of_array(array: Any) -> Storage:
    """Return the Storage of an array that comes from outside, entering it in the table.

    See Note [The table of owners].
    """
    if type(array) is _ndarray:  # attributes cost less than asking for what may not be there
        empty, base = not array.size, array.base
    else:
        empty, base = 0 in array.shape, getattr(array, "base", None)
    if empty:
        return new_storage()
    owner = array if base is None else owner_of(array)
    found = _by_owner.get(id(owner))
    if found is not None:
        storage = found()
        if storage is not None:
            return storage
    if base is not None or _opaque:
        return _enter_view(array, owner)
    storage = Storage()
    storage.version = 0
    storage._owner = owner  # half the price of the property
    return _enter(owner, storage, True)


def _enter_view(array: Any, owner: Any) -> Storage:
    """List the Storage of an array whose bytes may be known under another owner; return it."""
    numpy = isinstance(array, np.ndarray)
    opaque = numpy and not isinstance(owner, np.ndarray)
    with _lock:
        found = _at_addresses_of(array, anywhere=opaque) if numpy and (opaque or _opaque) else None
        storage = _enter(owner, new_storage() if found is None else found)
        if opaque:
            _opaque[id(owner)] = byte_bounds(array)
    return storage


def publish(array: np.ndarray[Any, Any], storage: Storage) -> None:
    """Enter the Storage of an array that leaves, so that it is found when the array comes back."""
    if storage.owner is None:
        is_read_only(array, storage)
        _enter(owner_of(array), storage)


def is_read_only(array: np.ndarray[Any, Any], storage: Storage) -> bool:
    """Return whether an array of a Storage cannot be written.

    A result that its kernel set read-only, and nobody outside has seen, is made writable here, when
    it matters: asking every result for its flags would cost 0.05 µs a call.
    """
    if array.flags.writeable:
        return False
    owner = owner_of(array)
    unseen = getattr(storage, "_owner", None) is None and type(owner) is np.ndarray and owner.size
    if unseen and not owner.flags.writeable:  # else only this view is: it overlaps itself, say
        owner.flags.writeable = array.flags.writeable = True
    return not array.flags.writeable


def _enter(owner: Any, storage: Storage, has_owner: bool = False) -> Storage:
    """List a Storage under an owner, unless another thread was faster; return what is listed."""
    key = id(owner)
    _lock.acquire()  # a ``with`` takes twice as long: 0.12 µs
    try:
        found = _by_owner.get(key)
        listed = None if found is None else found()
        if listed is not None:
            return listed
        known = owner if has_owner else getattr(storage, "_owner", None)
        if known is not owner:
            storage._owner = owner if known is None else (known, owner)
        if _opaque:
            _opaque.pop(key, None)
        _by_owner[key] = weakref.ref(storage)
        if len(_by_owner) > _limit:
            _sweep()
    finally:
        _lock.release()
    return storage


def _sweep() -> None:
    """Drop dead entries."""
    global _limit
    for key in [key for key, reference in _by_owner.items() if reference() is None]:
        del _by_owner[key]
        _opaque.pop(key, None)
    _limit = max(1000, 2 * len(_by_owner))


def _at_addresses_of(array: np.ndarray[Any, Any], anywhere: bool) -> Storage | None:
    """Return the Storage in the table that holds bytes of `array`; `anywhere`: of any owner."""
    low, high = byte_bounds(array)
    _sweep()
    for key, reference in _by_owner.items():
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
