"""Indexing: ``x[...]`` and ``x[...] = value``, exactly as NumPy indexes.

A basic index (ints, slices, ``None``, ``...``) is one view operator, `basic_index`. Everything else
splits in two: its slices and ``None`` make a view, then `index` gathers from that view (or
`index_put_` writes to it) with one tensor of positions, or None for "all", per axis. Results of
`index` are C-contiguous copies.

Imports floors 0 to 4, `declare.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import EllipsisType, NoneType
from typing import Any, Final

import numpy as np

from .._dims import SymInt, same
from .._text import short_repr
from ..errors import ArgumentError
from ..meta import get_ctx
from ..prims import check_fits, copy_, mask, new_full, storable
from ..schema import register_opaque_type
from ..shapes import TensorSpec, broadcast_shapes, like_spec, normalize_dim, result_type
from ..tensor import view_rules
from ..tensor.addressing import geometry_of
from ..tensor.geometry import same_geometry
from ..tensor.methods import install_method
from ..tensor.protocols import is_weak
from ..tensor.tensor import Tensor
from .creation import arange
from .declare import Array, allocate, composite, declare
from .views import dense, scatter

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
    return scatter(grad, x_spec, view_rules.basic_index(dense(x_spec), index))


# ---------------------------------------------------------------------- gathering
#
# `indices` holds a tensor of positions, or None for all of them, per axis of x; more axes follow.
# A bool tensor selects along as many axes as it has.

index = declare(
    "index(Tensor x, Tensor?[] indices) -> Tensor",
    "Elements at positions: NumPy's advanced indexing, with None for a full slice.",
)


def _key(indices: Sequence[Any]) -> tuple[Any, ...]:
    """Return `indices` as NumPy takes them; several axes are walked through in C order."""
    return tuple([slice(None) if part is None else np.asarray(part, order="C") for part in indices])


@index.register_kernel("cpu", on_alias="copy")
def _index(x: Array, indices: list[Any]) -> Array:
    return np.asarray(x[_key(indices)], order="C")


@index.register_fake
def _index_spec(x: Any, indices: list[Any]) -> TensorSpec:
    return TensorSpec(_indexed_shape(x.shape, indices), x.dtype)


def _indexed_shape(shape: tuple[Any, ...], indices: list[Any]) -> tuple[Any, ...]:
    """Return the shape at positions: theirs stands where they stand, or in front if apart."""
    before: list[Any] = []
    after: list[Any] = []
    found: list[Any] = []
    last, apart, axis = -1, False, 0
    for slot, part in enumerate(indices):
        if part is None:
            (after if found else before).append(shape[axis])
            axis += 1
            continue
        if part.dtype.kind not in "biu":
            raise IndexError(f"std::index takes int or bool tensors, got dtype {part.dtype}")
        apart = apart or bool(found and last != slot - 1)
        last = slot
        found.append(part)
        axis += _axes_taken(part)
    if axis > len(shape):
        raise IndexError(f"too many indices: {axis} for {len(shape)} axes")
    after += shape[axis:]
    where = _common_shape(found)
    return (*where, *before, *after) if apart else (*before, *where, *after)


def _common_shape(found: list[Any]) -> tuple[Any, ...]:
    """Return what positions broadcast to; a mask selects an unknown number that must fit."""
    shape = broadcast_shapes((), *[part.shape for part in found if part.dtype != bool])
    masked = any(part.dtype == bool for part in found)
    if not masked or (shape and not same(shape[-1], 1)):
        return shape
    return (*shape[:-1], get_ctx().new_dynamic_size())


def _index_grad(grad: Tensor, x_spec: TensorSpec, indices: list[Any]) -> Tensor:
    return index_sum(grad, indices, x_spec.shape)


index.register_vjp(x=_index_grad, indices=None)

index_sum = declare(
    "index_sum(Tensor value, Tensor?[] indices, SymInt[] shape) -> Tensor",
    "Zeros of `shape` with `value` added at positions; values at equal positions sum.",
)


@index_sum.register_kernel("cpu")
def _index_sum(value: Any, indices: list[Any], shape: list[int]) -> Array:
    value = np.asarray(value)
    result, key = np.zeros(shape, value.dtype), _key(indices)
    check_fits(value.shape, _selection_shape(result, key), "index_sum")
    np.add.at(result, key, value)
    return result


@index_sum.register_fake
def _index_sum_spec(value: Any, indices: list[Any], shape: tuple[Any, ...]) -> TensorSpec:
    if not any(part is not None and part.dtype == bool for part in indices):
        check_fits(value.shape, _indexed_shape(tuple(shape), indices), "index_sum")
    return TensorSpec(shape, value.dtype)


index_sum.register_vjp(value=lambda grad, indices: index(grad, indices), indices=None)


# ---------------------------------------------------------------------- scattering

index_put = declare(
    "index_put(Tensor x, Tensor?[] indices, Tensor value) -> Tensor",
    "A copy of `x` with `value`, broadcast, at positions; of equal positions the last one wins.",
)


def _put(x: Array, indices: list[Any], value: Any) -> None:
    """Write at positions as NumPy does, but cast with same_kind and keep all axes of the value."""
    value = storable(value, x.dtype, "index_put_")
    if value.ndim and np.may_share_memory(x, value):
        value = value.copy()
    key = _key([None if i is None else _apart(np.asarray(i), x) for i in indices])
    if value.ndim:
        check_fits(value.shape, _selection_shape(x, key), "index_put_")
    x[key] = value


def _apart(part: Array, x: Array) -> Array:
    return part.copy() if np.may_share_memory(part, x) else part


def _selection_shape(x: Array, key: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the shape of ``x[key]`` without reading x."""
    return np.broadcast_to(np.empty((), bool), x.shape)[key].shape


@index_put.register_kernel("cpu")
def _index_put(x: Any, indices: list[Any], value: Any) -> Array:
    result = allocate(like_spec(x))
    result[...] = x
    _put(result, indices, value)
    return result


@index_put.register_fake
def _index_put_spec(x: Any, indices: list[Any], value: Any) -> TensorSpec:
    stored = result_type(value, x) if is_weak(value) else value.dtype
    storable(np.empty(0, stored), x.dtype, "index_put_")
    masks = any(part is not None and part.dtype == bool for part in indices)
    if value.ndim and not masks:
        check_fits(value.shape, _indexed_shape(x.shape, indices), "index_put_")
    return like_spec(x)


def _put_x_grad(grad: Tensor, indices: list[Any]) -> Tensor:
    """Return the gradient of the old values: zero where they were overwritten."""
    return index_put(grad, indices, new_full(grad, [], 0))


def _put_value_grad(grad: Tensor, x_spec: TensorSpec, indices: list[Any]) -> Tensor:
    """Return the gradient of the values: that of the one that was written last, per position."""
    return mask(index(grad, indices), index_winners(indices, x_spec.shape))


index_put.register_vjp(x=_put_x_grad, indices=None, value=_put_value_grad)

index_put_ = declare(
    "index_put_(Tensor(a!) x, Tensor?[] indices, Tensor value) -> Tensor(a!)",
    "Write `value`, broadcast, at positions; of equal positions the last one wins.",
)
index_put_.register_kernel("cpu", _put)
index_put_.register_functional(index_put, pre_state=True)
index_put_.register_vjp(x=_put_x_grad, indices=None, value=_put_value_grad)

index_winners = declare(
    "index_winners(Tensor?[] indices, SymInt[] shape) -> Tensor",
    "Which positions are not named again by a later one: the elements whose write remains.",
)


@index_winners.register_kernel("cpu")
def _index_winners(indices: list[Any], shape: list[int]) -> Array:
    key = _key(indices)
    number = np.zeros(shape, np.intp)
    order = np.arange(number[key].size).reshape(number[key].shape)
    number[key] = order
    return np.asarray(number[key] == order)


index_winners.register_fake(
    lambda indices, shape: TensorSpec(_indexed_shape(tuple(shape), indices), bool)
)
index_winners.register_vjp(indices=None)


# ---------------------------------------------------------------------- along one axis


_index_op: Final = index


@composite(
    "index_select(Tensor x, Tensor index, int dim=0) -> Tensor",
    "The slices of an axis at positions (1-d, repeats and negative ones allowed).",
)
def index_select(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """Index one axis, all of the others."""
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise ArgumentError(f"std::index_select takes a 1-d integer index, got {index.describe()}")
    return _index_op(x, [*[None] * normalize_dim(dim, x.ndim), index])


def positions_along(x: Tensor, at: Tensor, dim: int, name: str) -> list[Tensor]:
    """Return the index ``[i, ..., at[i, ..., k], ...]``: `at` along `dim`, in step elsewhere."""
    axis = normalize_dim(dim, x.ndim)
    if at.ndim != x.ndim or at.dtype.kind not in "iu":
        raise ArgumentError(
            f"std::{name} takes integer positions with {x.ndim} axes, got {at.describe()}"
        )
    indices: list[Tensor] = []
    for i, length in enumerate(at.shape):
        if i == axis:
            indices.append(at)
        else:
            ones = [1] * i, [1] * (x.ndim - i - 1)
            indices.append(arange(0, length, device=x.device).reshape([*ones[0], length, *ones[1]]))
    return indices


@composite(
    "gather(Tensor x, int dim, Tensor index) -> Tensor",
    "Elements at positions along an axis; the result has the shape of `index`.",
)
def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Pick along `dim`; other axes of `index` may be shorter than those of x."""
    return _index_op(x, positions_along(x, index, dim, "gather"))


@composite(
    "take_along_dim(Tensor x, Tensor indices, int dim=-1) -> Tensor",
    "Elements at positions along an axis; the other axes broadcast (`numpy.take_along_axis`).",
)
def take_along_dim(x: Tensor, indices: Tensor, dim: int) -> Tensor:
    """Pick along `dim`, after broadcasting the other axes against each other."""
    axis = normalize_dim(dim, x.ndim)
    if indices.ndim != x.ndim:
        raise ArgumentError(f"std::take_along_dim takes {x.ndim} axes, got {indices.ndim}")
    others = [(*t.shape[:axis], 1, *t.shape[axis + 1 :]) for t in (x, indices)]
    if not all(map(same, *others)):
        common = broadcast_shapes(*others)
        x, indices = (
            t.expand([*common[:axis], t.shape[axis], *common[axis + 1 :]]) for t in (x, indices)
        )
    return _index_op(x, positions_along(x, indices, axis, "take_along_dim"))


# ---------------------------------------------------------------------- x[...]

_BASIC: Final = frozenset({int, slice, NoneType, EllipsisType})


def getitem(self: Tensor, key: Any) -> Tensor:
    """Return ``self[key]``: a view for a basic index, else a copy."""
    if type(key) is int or type(key) is slice:
        return _view(self, (key,))
    if type(key) is tuple and _BASIC.issuperset(map(type, key)):
        return _view(self, key)
    if type(key) is Tensor:
        return index(self, [key])
    view, indices = _split(self, key)
    return view if indices is None else index(view, indices)


def setitem(self: Tensor, key: Any, value: Any) -> None:
    """Write ``self[key] = value``."""
    if type(key) is int or type(key) is slice:
        view, indices = _view(self, (key,)), None
    else:
        view, indices = _split(self, key)
    if isinstance(value, list | tuple):
        value = np.asarray(value)
    if indices is not None:
        index_put_(view, indices, _without_leading_ones(value, 0))
    elif not (isinstance(value, Tensor) and _is_same_view(view, value)):
        copy_(view, _without_leading_ones(value, view.ndim))


def _without_leading_ones(value: Any, ndim: int) -> Any:
    """Return a value without leading axes of one element, above `ndim`; NumPy ignores them."""
    if not isinstance(value, Tensor | np.ndarray) or value.ndim <= ndim:
        return value
    ones = 0
    while ones < value.ndim - ndim and value.shape[ones] == 1:
        ones += 1
    return value.reshape(value.shape[ones:]) if ones else value


_view: Final = basic_index.bind()


def _is_same_view(a: Tensor, b: Tensor) -> bool:
    """Return whether two handles are one view: what ``x[0] += 1`` assigns back.

    A detached handle is not: assigning it cuts the gradient.
    """
    if a._storage is not b._storage or type(a.array) is not type(b.array):
        return False
    if a.requires_grad != b.requires_grad or _family(a) is not _family(b):
        return False
    if type(a.array) is not np.ndarray and not hasattr(a.array, "geometry"):
        return False
    return same_geometry(geometry_of(a.array, b.array), geometry_of(b.array))


def _family(x: Tensor) -> Any:
    return None if x._view is None else x._view.family


def _split(x: Tensor, key: Any) -> tuple[Tensor, list[Any] | None]:
    """Return the view that the basic part of an index makes, and positions in it (or None).

    Ints beside index tensors are index tensors themselves, as in NumPy.
    """
    parts = [_part(part) for part in (key if type(key) is tuple else (key,))]
    if not any(_is_positions(part) for part in parts):
        return _view(x, tuple(parts)), None
    if sum(part is Ellipsis for part in parts) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    fill = x.ndim - sum(map(_axes_taken, parts))
    if fill < 0:
        raise IndexError(f"too many indices: {x.ndim - fill} for {x.ndim} axes")
    basic: list[Any] = []
    indices: list[Any] = []
    for part in parts:
        if part is Ellipsis:
            basic += [slice(None)] * fill
            indices += [None] * fill
        elif part is None or isinstance(part, slice):
            basic.append(part)
            indices.append(None)
        else:
            basic += [slice(None)] * _axes_taken(part)
            indices.append(part if _is_positions(part) else np.asarray(part))
    view = x if all(part == slice(None) for part in basic) else _view(x, tuple(basic))
    return _in_front(view, indices) if _ellipsis_parts(parts, fill) else (view, indices)


def _part(part: Any) -> Any:
    """Return one part of an index as int, slice, None, ``...``, or positions."""
    kind = type(part)
    if kind is slice:
        return slice(_bound(part.start), _bound(part.stop), _bound(part.step))
    if kind in _BASIC or kind is Tensor or isinstance(part, SymInt):
        return part
    if isinstance(part, list | tuple | bool | np.bool):
        part = np.asarray(part)
        part = part if part.size else part.astype(np.intp)
    if isinstance(part, np.ndarray) and (part.ndim or part.dtype == bool):
        return part
    try:
        return operator.index(part)
    except TypeError:
        raise IndexError(
            "an index has ints, slices, None, ..., and tensors or lists of ints or bools; "
            f"got {short_repr(part)}"
        ) from None


def _bound(bound: Any) -> Any:
    return bound if bound is None or isinstance(bound, SymInt) else operator.index(bound)


def _is_positions(part: Any) -> bool:
    return isinstance(part, Tensor | np.ndarray)


def _axes_taken(part: Any) -> int:
    """Return how many axes of the indexed tensor a part stands for."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if _is_positions(part) and part.dtype == bool else 1


def _ellipsis_parts(parts: list[Any], fill: int) -> bool:
    """Return whether a ``...`` for no axis stands between positions: it still sets them apart."""
    if fill or Ellipsis not in [part for part in parts if not _is_positions(part)]:
        return False
    place = next(i for i, part in enumerate(parts) if part is Ellipsis)
    advanced = [i for i, p in enumerate(parts) if p is not None and not isinstance(p, slice)]
    return advanced[0] < place < advanced[-1]


def _in_front(view: Tensor, indices: list[Any]) -> tuple[Tensor, list[Any]]:
    """Return `view` with the axes that have positions in front, and only their positions."""
    chosen: list[int] = []
    rest: list[int] = []
    axis = 0
    for part in indices:
        taken = 1 if part is None else _axes_taken(part)
        (rest if part is None else chosen).extend(range(axis, axis + taken))
        axis += taken
    rest += range(axis, view.ndim)
    return view.transpose([*chosen, *rest]), [part for part in indices if part is not None]


install_method("__getitem__", getitem)
install_method("__setitem__", setitem)
