"""Where the views of a functional run lie.

Imports floors 0 to 4, `access.py`, `storage.py`.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from .. import _state
from .._tree import tree_map
from ..dispatch.keys import WEAK
from ..dispatch.operator import Operator
from ..errors import FakeTensorError
from ..tensor.geometry import Geometry, covers
from ..tensor.meta_array import MetaArray
from ..tensor.storage import new_storage
from ..tensor.tensor import Tensor, tensor_from_result
from .access import access
from .storage import form_of

__all__ = ["ABSOLUTE", "inferred_views", "lies_in"]

ABSOLUTE: Final = "std:absolute_addresses"
"""Tag of view operators that count from the start of the storage, not of the tensor."""


@functools.lru_cache(maxsize=4096)
def lies_in(geometry: Geometry, form: Geometry) -> bool:
    """Return whether a view addresses, in a regular pattern, the memory it is taken of."""
    return covers(form, geometry) and access(geometry, form) is not None


def inferred_views(
    op: Operator[..., Any], base: Tensor, args: tuple[Any, ...], index: int | None = None
) -> Any:
    """Return the geometry of a view that has no view rule, by the operator's fake rule.

    Parameters
    ----------
    index : int, optional
        Which result of the operator is meant, if it has others too.
    """
    storage = new_storage()
    g: Geometry = base.array.geometry
    array = MetaArray(g.shape, g.strides, g.dtype, base.device, storage, g.offset)
    meta = tensor_from_result(array)

    def without_data(leaf: Any) -> Any:
        if leaf is base or not isinstance(leaf, Tensor) or leaf._keys & WEAK:
            return meta if leaf is base else leaf
        g = form_of(leaf)
        return tensor_from_result(
            MetaArray(g.shape, g.strides, g.dtype, base.device, new_storage(), g.offset)
        )

    with _state.enter(_state.DEFAULT_STATE):
        try:
            result = op.call_positional([tree_map(without_data, value) for value in args])
        except FakeTensorError as error:
            error.add_note(
                f"{op.qualname} makes a view; give it a geometry: "
                f"oplib.register_view({op.qualname!r}, rule)"
            )
            raise
    if index is not None and len(op.schema.returns) > 1:
        result = result[index]
    parts = result if isinstance(result, list | tuple) else [result]
    if any(part._storage is not storage for part in parts):
        return None
    found = [part.array.geometry for part in parts]
    return found if isinstance(result, list | tuple) else found[0]
