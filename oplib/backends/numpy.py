"""The NumPy backend: arrays of class `numpy.ndarray`, device ``cpu``, key CPU.

Imports floors 0 to 4, `stage.py`.
"""

from __future__ import annotations

import numpy as np

from ..dispatch.keys import CPU
from ..dtypes import CPU as CPU_DEVICE
from ..tensor.tensor import ARRAY_TYPES, ArrayType
from .stage import ARRAY_CLASSES

__all__ = ["install"]


def install() -> None:
    """Make NumPy arrays the arrays of the CPU key."""
    ARRAY_CLASSES[CPU] = np.ndarray
    ARRAY_TYPES[np.ndarray] = ArrayType(
        key=lambda array: CPU, device=lambda array: CPU_DEVICE, to_numpy=lambda array: array
    )
