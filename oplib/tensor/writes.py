"""What may be written to: the checks that come before any write, with and without data.

Imports floors 0 to 2, `geometry.py`, `tensor.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dispatch.keys import INTERPRETER
from ..dispatch.operator import Operator
from ..errors import AliasError
from .geometry import Geometry, self_overlap
from .storage import is_read_only
from .tensor import Tensor

__all__ = ["check_destination"]


def check_destination(op: Operator[..., Any], name: str, tensor: Tensor) -> None:
    """Raise `AliasError` if a written argument is read-only or overlaps itself.

    Operators with the tag ``std:own_overlap_check`` decide about the second themselves.
    """
    array = tensor.array
    if tensor._keys & INTERPRETER:
        return  # checked where the interpreter writes
    if isinstance(array, np.ndarray):
        readonly = is_read_only(array, tensor._storage)
    else:
        readonly = getattr(array, "readonly", False)
    geometry = Geometry(array.dtype, array.shape, array.strides)
    if readonly:
        raise AliasError(
            f"{op.qualname}: argument `{name}` is written, but its array is read-only\n"
            "  pass a writable copy: x.clone()"
        )
    if "std:own_overlap_check" not in op.tags and self_overlap(geometry):
        raise AliasError(
            f"{op.qualname}: argument `{name}` overlaps itself "
            f"(shape {array.shape}, strides {array.strides}), so the result would depend on "
            "the order of the writes\n  pass a copy: x.clone()"
        )
