"""The NumPy backend: arrays of class `numpy.ndarray`, device ``cpu``, key CPU.

Imports floors 0 to 4, `arrays.py`. Read next: `registration.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dispatch.keys import CPU
from ..dtypes import CPU as CPU_DEVICE
from ..prims.arithmetic import FROM_NUMPY
from ..tensor.tensor import ARRAY_TYPES, ArrayType
from .arrays import BACKENDS_BY_BIT, Backend

__all__ = ["install"]


def install() -> None:
    """Make NumPy arrays the arrays of the CPU key."""
    BACKENDS_BY_BIT[CPU] = Backend(
        name="cpu",
        key="CPU",
        bit=CPU,
        array_types=(np.ndarray,),
        to_numpy=_same,
        from_numpy=_same,
        device=lambda array: CPU_DEVICE,
    )
    ARRAY_TYPES[np.ndarray] = ArrayType(
        key=lambda array: CPU, device=lambda array: CPU_DEVICE, to_numpy=_same
    )
    FROM_NUMPY["cpu"] = np.array


def _same(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array
