"""Indexing: ``x[...]`` and ``x[...] = value``, exactly as NumPy indexes.

A basic index (ints, slices, ``None``, ``...``) is one view operator, `basic_index`. Everything else
splits in two: its slices and ``None`` make a view, then `index` gathers from that view (or
`index_put_` writes to it) with one tensor of positions, or None for "all", per axis. Results of
`index` are C-contiguous copies.

Imports floors 0 to 4, `declare.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType, NoneType
from typing import Any, Final

import numpy as np

from .._dims import SymInt
from ..errors import ArgumentError
from ..prims import broadcast_to_like, cast_same_kind, copy_, mask, new_full, strided_add
from ..schema import register_opaque_type
from ..shapes import TensorSpec, broadcast_shapes, like_spec, normalize_dim
from ..tensor import view_rules
from ..tensor.geometry import Geometry
from ..tensor.methods import install_method
from ..tensor.tensor import Tensor
from .declare import Array, composite, declare

__all__ = ["basic_index", "index", "index_put", "index_put_"]

register_opaque_type(tuple, name="Index")


# ---------------------------------------------------------------------- basic indexing

basic_index = declare(
    "basic_index(Tensor(a) x, Index index) -> Tensor(a)",
    "``x[index]`` for a tuple of ints, slices, None and at most one ``...``: a view.",
)


@basic_index.register_kernel("cpu")
def _basic_index(x: Array, index: tuple[Any, ...]) -> Array:
    view: Any = x[index]
    return view if type(view) is np.ndarray else x[(*index, ...)]  # 0-d, not a scalar


basic_index.register_view(view_rules.basic_index)


@basic_index.register_vjp
def _basic_index_grad(grad: Tensor, x_spec: TensorSpec, index: tuple[Any, ...]) -> Tensor:
    part = view_rules.basic_index(Geometry.contiguous(x_spec.shape, x_spec.dtype), index)
    item = x_spec.dtype.itemsize
    stride = [step // item for step in part.strides]
    return strided_add(grad, x_spec.shape, part.shape, stride, part.offset // item)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- gathering
#
# `indices` names one tensor of positions, or None, per axis of x; axes without one follow. A bool
# tensor takes as many axes as it has.

index = declare(
    "index(Tensor x, Tensor?[] indices) -> Tensor",
    "Elements at positions: NumPy's advanced indexing with None for a full slice.",
)


def _key(indices: Sequence[Any]) -> tuple[Any, ...]:
    """Return `indices` as NumPy takes them."""
    return tuple([slice(None) if part is None else part for part in indices])


@index.register_kernel("cpu", on_alias="copy")
def _index(x: Array, indices: list[Any]) -> Array:
    result = np.asarray(x[_key(indices)])
    return result if result.flags.c_contiguous else result.copy(order="C")


@index.register_fake
def _index_spec(x: Any, indices: list[Any]) -> TensorSpec:
    shape: list[Any] = []
    lengths: list[tuple[Any, ...]] = []
    places: list[int] = []
    axis = 0
    for slot, part in enumerate(indices):
        if part is None:
            shape.append(x.shape[axis])
            axis += 1
            continue
        if not places or places[-1] != slot - 1:
            places.append(slot)
        if part.dtype == bool:
            lengths.append((get_ctx().new_dynamic_size(),))
            axis += part.ndim
        else:
            lengths.append(part.shape)
            axis += 1
    return TensorSpec(tuple(shape), x.dtype)
