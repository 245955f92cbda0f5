"""What the framework knows about the array library behind each backend key.

Imports floors 0 to 4. Read next: `entries.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from .._record import record
from ..dtypes import Device
from ..tensor.geometry import Geometry

__all__ = ["BACKENDS_BY_BIT", "Backend"]

Array: TypeAlias = Any
View: TypeAlias = Callable[[Array, Geometry], Array]


@record(eq=False)
class Backend:
    """One array library: its device name, key, array classes, and ways to NumPy and back.

    `view` makes a view from a geometry relative to the first element, `assign` copies NumPy values
    into an array; the host fallback needs them.
    """

    name: str
    key: str
    bit: int
    array_types: tuple[type, ...]
    to_numpy: Callable[[Array], np.ndarray[Any, Any]]
    from_numpy: Callable[[np.ndarray[Any, Any]], Array]
    device: Callable[[Array], Device]
    fallback: Literal["error", "host"] = "error"
    view: View | None = None
    assign: Callable[[Array, np.ndarray[Any, Any]], None] | None = None


BACKENDS_BY_BIT: Final[dict[int, Backend]] = {}
"""Backend bit -> what was registered for it."""
