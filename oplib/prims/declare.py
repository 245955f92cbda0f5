"""How a primitive operator is declared.

Imports floors 0 to 3, `library.py`. Read next: `arithmetic.py`.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from ..dispatch.operator import Operator
from ..facet_registration import install_operator_methods
from ..library import Library
from ..tensor.tensor import Tensor

__all__ = ["POINTWISE", "PRIMS", "Array", "TensorOperator", "declare"]

Array: TypeAlias = np.ndarray[Any, Any]
TensorOperator: TypeAlias = Operator[..., Tensor]

install_operator_methods()
PRIMS: Final = Library("std", "FRAGMENT")

POINTWISE: Final = ("pointwise", "flexible_layout")
"""Tags of an operator on elements whose result may have any layout."""


def declare(schema: str, doc: str, *tags: str) -> TensorOperator:
    """Define ``std::<schema>`` and return the operator."""
    operator: TensorOperator = PRIMS.define(schema, tags=tags).op
    operator.__doc__ = doc
    return operator
