"""The operators the framework itself calls, with all their facets.

They live in namespace ``std`` like every built-in; what sets them apart is that the engine,
functionalization and graphs rely on them. Written with the public API only.

    declare      how they are declared; tags that several share
    arithmetic   sums and choices of elements, dtypes, layouts, copies
    views        handles on the same memory
    addresses    reading and writing through geometries
    writing      `copy_`, and the rules of every write

Imports floors 0 to 3, `library.py`, `shapes/`.
"""

from .addresses import (
    from_memory_order,
    in_memory_order,
    strided_add,
    strided_get,
    strided_put,
)
from .arithmetic import (
    add,
    bitcast,
    broadcast_to,
    cast,
    clone,
    conj,
    full,
    graft,
    layer_boundary,
    lift,
    mask,
    new_full,
    overwrite,
    sum_to,
    with_layout,
)
from .declare import PRIMS
from .views import (
    alias,
    byte_view,
    contiguous_last,
    detach,
    expand,
    permute,
    real,
    strided_view,
    view_as_complex,
    view_as_real,
)
from .writing import (
    broadcast_to_like,
    cast_same_kind,
    check_fits,
    copy_,
    filled_like,
    storable,
    store,
)

__all__ = [
    "PRIMS",
    "add",
    "alias",
    "bitcast",
    "broadcast_to",
    "broadcast_to_like",
    "byte_view",
    "cast",
    "cast_same_kind",
    "check_fits",
    "clone",
    "conj",
    "contiguous_last",
    "copy_",
    "detach",
    "expand",
    "filled_like",
    "from_memory_order",
    "full",
    "graft",
    "in_memory_order",
    "layer_boundary",
    "lift",
    "mask",
    "new_full",
    "overwrite",
    "permute",
    "real",
    "storable",
    "store",
    "strided_add",
    "strided_get",
    "strided_put",
    "strided_view",
    "sum_to",
    "view_as_complex",
    "view_as_real",
    "with_layout",
]
