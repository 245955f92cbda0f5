"""`MetaArray`: the array of a tensor without data.

One representation serves meta tensors (device ``"meta"``) and fake tensors (any other device, which
they claim in every question a program can ask). It has a geometry over a `Storage`, so views of
fakes share storage identity and alias questions have exact answers without data.

Imports floors 0 to 2, `storage.py`, `geometry.py`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..dispatch.keys import META
from ..dtypes import META as META_DEVICE
from ..dtypes import Device
from .geometry import Geometry, contiguous_strides
from .storage import Storage, new_storage

__all__ = ["MetaArray", "meta_array"]


class MetaArray:
    """Shape, strides (bytes), dtype, device and offset over a storage; no contents.

    `mode` is the `FakeTensorMode` it belongs to, None for meta tensors.
    """

    __slots__ = ("device", "dtype", "mode", "offset", "shape", "storage", "strides")

    keys: Final = META

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
        device: Device,
        storage: Storage,
        offset: int = 0,
        mode: Any = None,
    ) -> None:
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.device = device
        self.storage = storage
        self.offset = offset
        self.mode = mode

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for length in self.shape:
            count = count * length
        return count

    @property
    def geometry(self) -> Geometry:
        """How this array addresses its storage."""
        return Geometry(self.dtype, self.shape, self.strides, self.offset)

    def with_geometry(self, geometry: Geometry) -> MetaArray:
        """Return a view of the same storage."""
        return MetaArray(
            geometry.shape,
            geometry.strides,
            geometry.dtype,
            self.device,
            self.storage,
            geometry.offset,
            self.mode,
        )

    def __repr__(self) -> str:
        return f"MetaArray({self.geometry}, {self.dtype}, {self.device})"


def meta_array(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    device: Device = META_DEVICE,
    strides: tuple[int, ...] | None = None,
    mode: Any = None,
) -> MetaArray:
    """Return a MetaArray on a storage of its own, C-contiguous unless `strides` (bytes) say else."""
    if strides is None:
        strides = contiguous_strides(shape, dtype.itemsize)
    return MetaArray(shape, strides, dtype, device, new_storage(), 0, mode)
