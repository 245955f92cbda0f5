"""Order: sorting, the k largest, medians, positions in a sorted sequence, distinct elements.

NaN counts as the largest number, as in NumPy; equal elements keep their order.

Imports floors 0 to 4, `declare.py`, `elementwise.py`, `indexing.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..meta import get_ctx
from ..shapes import TensorSpec, normalize_dim, numel, result_type
from ..tensor.tensor import Tensor
from .declare import Array, composite, declare, inexact_dtype
from .elementwise import where
from .indexing import index_sum

__all__ = ["argsort"]

argsort = declare(
    "argsort(Tensor x, int dim=-1, bool descending=False) -> Tensor",
    "`numpy.argsort`: the positions that sort along an axis, stably; int64.",
)


@argsort.register_kernel("cpu")
def _argsort(x: Any, dim: int, descending: bool) -> Array:
    x = np.asarray(x)
    axis = normalize_dim(dim, x.ndim)
    if not descending:
        return np.asarray(np.argsort(x, axis, kind="stable"), order="C")
    backwards = np.argsort(np.flip(x, axis), axis, kind="stable")
    return np.asarray(x.shape[axis] - 1 - np.flip(backwards, axis), order="C")


@argsort.register_fake
def _argsort_spec(x: Any, dim: int, descending: bool) -> TensorSpec:
    normalize_dim(dim, x.ndim)
    return TensorSpec(x.shape, np.int64)


argsort.register_vjp(x=None)


@composite(
    "sort(Tensor x, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)",
    "Sorted along an axis, and the positions the values had.",
)
def sort(x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    """Sort positions, then gather."""
    indices = argsort(x, dim, descending)
    return x.take_along_dim(indices, dim), indices


@composite(
    "topk(Tensor x, int k, int dim=-1, bool largest=True) -> (Tensor values, Tensor indices)",
    "The k largest (or smallest) along an axis, best first, and their positions.",
)
def topk(x: Tensor, k: int, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Sort positions, keep k, gather."""
    indices = argsort(x, dim, largest).narrow(dim, 0, k)
    return x.take_along_dim(indices, dim), indices


@composite(
    "median(Tensor x, int? dim=None, bool keepdim=False) -> Tensor",
    "The middle element, or the mean of the two in the middle (`numpy.median`).",
)
def median(x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    """Sort, then average what is in the middle."""
    return _quantile(x, 0.5, dim, keepdim, "median")


@composite(
    "quantile(Tensor x, float q, int? dim=None, bool keepdim=False) -> Tensor",
    "The value below which a fraction q lies, linear in between (`numpy.quantile`).",
)
def quantile(x: Tensor, q: float, dim: int | None, keepdim: bool) -> Tensor:
    """Sort, then interpolate between neighbours."""
    if not 0 <= q <= 1:
        raise ArgumentError(f"std::quantile: q is between 0 and 1, got {q}")
    return _quantile(x, q, dim, keepdim, "quantile")


def _quantile(x: Tensor, q: float, dim: int | None, keepdim: bool, name: str) -> Tensor:
    flat = x.reshape([-1]) if dim is None else x
    axis = 0 if dim is None else normalize_dim(dim, x.ndim)
    count = int(flat.shape[axis])
    if not count:
        raise ArgumentError(f"std::{name} over no elements has no value")
    place = q * (count - 1)
    low = int(place)
    values, _ = sort(flat, axis, False)
    around = values.narrow(axis, low, min(2, count - low))
    if x.dtype.kind in "biu":  # a sum of two may not fit
        around = around.cast(inexact_dtype(x.dtype))
    share = place - low
    left = around.narrow(axis, 0, 1)
    right = around.narrow(axis, int(around.shape[axis]) - 1, 1)
    if name == "median":
        found = (left + right) / 2 if share else left
    else:  # from the nearer one, as NumPy does
        step = right - left
        found = left + step * share if share < 0.5 else right - step * (1 - share)
    if x.dtype.kind == "f":  # NaN comes last, and where there is one, nothing else counts
        last = values.narrow(axis, count - 1, 1)
        found = where(last.isnan(), last, found)
    if dim is None:
        return found.reshape([1] * x.ndim if keepdim else [])
    return found if keepdim else found.squeeze(axis)


searchsorted = declare(
    "searchsorted(Tensor sorted, Tensor values, *, bool right=False) -> Tensor",
    "`numpy.searchsorted`: where to insert `values` into a sorted 1-d tensor, before equal "
    "elements or after; int64.",
)


@searchsorted.register_kernel("cpu")
def _searchsorted(sorted: Array, values: Any, *, right: bool) -> Array:
    _one_axis(sorted)
    found = np.searchsorted(sorted, np.asarray(values), "right" if right else "left")
    return np.asarray(found, np.int64)


@searchsorted.register_fake
def _searchsorted_spec(sorted: Any, values: Any, *, right: bool) -> TensorSpec:
    _one_axis(sorted)
    return TensorSpec(values.shape, np.int64)


searchsorted.register_vjp(sorted=None, values=None)


def _one_axis(x: Any) -> None:
    if x.ndim != 1:
        raise ArgumentError(f"std::searchsorted takes a 1-d sorted tensor, got {list(x.shape)}")


isin = declare(
    "isin(Tensor x, Tensor values, *, bool invert=False) -> Tensor",
    "`numpy.isin`: whether each element is among `values`, or with `invert` is not.",
)
isin.register_kernel(
    "cpu", lambda x, values, *, invert: np.asarray(np.isin(x, values, invert=invert), order="C")
)
isin.register_fake(lambda x, values, *, invert: TensorSpec(x.shape, np.bool_))
isin.register_vjp(x=None, values=None)

unique = declare(
    "unique(Tensor x) -> Tensor", "The distinct elements, ascending; 1-d (`numpy.unique`)."
)
unique.register_kernel("cpu", lambda x: np.unique(x))
unique.register_fake(lambda x: TensorSpec((get_ctx().new_dynamic_size(),), x.dtype))
unique.register_vjp(x=None)

unique_all = declare(
    "unique_all(Tensor x)"
    " -> (Tensor values, Tensor indices, Tensor inverse_indices, Tensor counts)",
    "The distinct elements, ascending; where each occurs first in x, flattened; which of them "
    "each element of x is; how often each occurs. Every NaN is distinct, as in the array API.",
)


@unique_all.register_kernel("cpu")
def _unique_all(x: Any) -> tuple[Array, ...]:
    x = np.asarray(x)
    values, indices, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    return values, indices, np.asarray(inverse.reshape(x.shape), order="C"), counts


@unique_all.register_fake
def _unique_all_spec(x: Any) -> tuple[TensorSpec, ...]:
    count = (get_ctx().new_dynamic_size(),)
    index = TensorSpec(count, np.int64)
    return TensorSpec(count, x.dtype), index, TensorSpec(x.shape, np.int64), index


@unique_all.register_vjp
def _unique_all_grad(x_spec: TensorSpec, indices: Tensor, grad_values: Tensor) -> Tensor:
    """Give each value's gradient to the element that `indices` names."""
    return index_sum(grad_values, [indices], [numel(x_spec.shape)]).reshape(x_spec.shape)


nonzero = declare(
    "nonzero(Tensor x) -> Tensor",
    "The positions of non-zero elements, one per row: ``[n, x.ndim]``; int64.",
)
nonzero.register_kernel("cpu", lambda x: np.argwhere(np.asarray(x)))
nonzero.register_fake(lambda x: TensorSpec((get_ctx().new_dynamic_size(), x.ndim), np.int64))
nonzero.register_vjp(x=None)


@composite(
    "count_nonzero(Tensor x, int[1]? dim=None, bool keepdim=False) -> Tensor",
    "`numpy.count_nonzero`: how many elements over axes `dim` are not zero; int64.",
)
def count_nonzero(x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """Sum what is true."""
    return (x != 0).sum(dim, keepdim)


@composite(
    "isclose(Tensor x, Tensor y, float rtol=1e-5, float atol=1e-8, bool equal_nan=False) -> Tensor",
    "``|x - y| <= atol + rtol |y|``, or equal (`numpy.isclose`).",
)
def isclose(x: Tensor, y: Tensor, rtol: float, atol: float, equal_nan: bool) -> Tensor:
    """Compare as NumPy does; infinities are close to themselves only."""
    kind = result_type(x, y, 1.0)
    near = (x.cast(kind) - y.cast(kind)).abs() <= atol + rtol * y.abs()
    close = (near & y.isfinite()) | (x == y)
    return close | (x.isnan() & y.isnan()) if equal_nan else close
