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
from ..errors import DataDependentError
from .geometry import Geometry, check_inside, contiguous_strides, extent
from .storage import Storage, new_storage

__all__ = ["MetaArray", "meta_array"]


class MetaArray:
    """Shape, strides (bytes), dtype, device and offset over a storage; no contents.

    Attributes
    ----------
    mode : FakeTensorMode or None
        What a fake belongs to; None for meta tensors.
    nbytes : int or None
        Size of the storage; None if the array reaches to its end.
    readonly : bool
        Whether writing is refused, as it is for the array this one stands for.
    """

    __slots__ = (
        *("device", "dtype", "mode", "nbytes", "offset"),
        *("readonly", "shape", "storage", "strides"),
    )

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
        self.nbytes: int | None = None
        self.readonly = False

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
        """Return a view of the same storage.

        Raises
        ------
        AliasError
            If it is known to reach outside of the storage.
        """
        view = MetaArray(
            geometry.shape,
            geometry.strides,
            geometry.dtype,
            self.device,
            self.storage,
            geometry.offset,
            self.mode,
        )
        view.readonly = self.readonly
        try:
            view.nbytes = extent(self.geometry)[1] if self.nbytes is None else self.nbytes
            check_inside(geometry, view.nbytes)
        except DataDependentError:
            pass  # the kernel will know
        return view

    def __repr__(self) -> str:
        return f"MetaArray({self.geometry}, {self.dtype}, {self.device})"


def meta_array(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    device: Device = META_DEVICE,
    strides: tuple[int, ...] | None = None,
    mode: Any = None,
) -> MetaArray:
    """Return a MetaArray on a storage of its own, in C order unless `strides` are given."""
    if strides is None:
        strides = contiguous_strides(shape, dtype.itemsize)
    offset = -extent(Geometry(dtype, shape, strides))[0]
    return MetaArray(shape, strides, dtype, device, new_storage(), offset, mode)
