"""`TensorSpec`: a tensor described.

Imports floors 0 to 3. Read next: `functions.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from ..dtypes import Device, as_device, as_dtype, short_dtype
from ..errors import ArgumentError
from ..tensor.geometry import memory_order

__all__ = ["Shape", "TensorSpec", "allocate"]

Shape: TypeAlias = tuple[Any, ...]
"""Lengths of axes: ints, or symbols for sizes that are not known."""

_new: Final = object.__new__


class TensorSpec:
    """Shape, dtype and strides of a tensor, without data.

    Parameters
    ----------
    shape : sequence of int or size symbol
    dtype : numpy.dtype or its name, optional
        By default that of `like`.
    strides : sequence of int, optional
        In bytes; C order by default.
    device : Device or its name, optional
        By default that of the call.
    like : Tensor, optional
        Where dtype and device come from.

    Examples
    --------
    >>> import oplib
    >>> oplib.TensorSpec((2, 3), "float32")
    TensorSpec(f32[2, 3])
    """

    __slots__ = ("device", "dtype", "shape", "strides")

    shape: Shape
    dtype: np.dtype[Any]
    strides: Shape | None
    device: Device | None

    def __init__(
        self,
        shape: Sequence[Any],
        dtype: Any = None,
        strides: Sequence[Any] | None = None,
        device: Device | str | None = None,
        *,
        like: Any = None,
    ) -> None:
        if like is not None:
            dtype = like.dtype if dtype is None else dtype
            device = like.device if device is None else device
        elif dtype is None:
            raise ArgumentError("a TensorSpec needs a dtype, or a tensor it is like")
        self.shape = tuple(shape)
        self.dtype = dtype if isinstance(dtype, np.dtype) else as_dtype(dtype)
        self.strides = None if strides is None else tuple(strides)
        self.device = None if device is None else as_device(device)

    @classmethod
    def of(cls, tensor: Any) -> TensorSpec:
        """Return the spec of a tensor or array."""
        made = _new(cls)
        made.shape = tensor.shape
        made.dtype = tensor.dtype
        made.strides = tensor.strides
        made.device = None
        return made

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return f"TensorSpec({short_dtype(self.dtype)}[{', '.join(map(str, self.shape))}])"


def allocate(spec: TensorSpec) -> np.ndarray[Any, Any]:
    """Return an uninitialised array of the shape, dtype and dense layout that `spec` promises."""
    if spec.strides is None or len(spec.shape) < 2:
        return np.empty(spec.shape, spec.dtype)
    order = memory_order(spec.strides)
    memory = np.empty([spec.shape[axis] for axis in order], spec.dtype)
    return memory.transpose(sorted(range(len(order)), key=order.__getitem__))
