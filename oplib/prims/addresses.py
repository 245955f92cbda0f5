"""Reading and writing through geometries, as functions of values.

`base` is read as the flat sequence of its elements in logical C order. Index tuple i is at
``offset + Σ i[k] * stride[k]``, counted in elements; steps may be zero or negative, and addresses
may repeat. The arithmetic is in `tensor/strided.py`.

Imports floors 0 to 3, `library.py`, `shapes/`, `arithmetic.py`, `views.py`. Read next:
`writing.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..shapes import TensorSpec, allocate, like_spec
from ..tensor import strided
from ..tensor.addressing import MemoryOrder
from ..tensor.geometry import Geometry, keep_layout, self_overlap
from ..tensor.tensor import Tensor
from .arithmetic import copied, mask, new_full, sum_to
from .declare import Array, TensorOperator, declare
from .views import permute

__all__ = ["from_memory_order", "in_memory_order", "strided_add", "strided_get", "strided_put"]


# ---------------------------------------------------------------------- get

strided_get: TensorOperator = declare(
    "strided_get(Tensor base, SymInt[] size, SymInt[] stride, SymInt offset) -> Tensor",
    "The elements at addresses: a copy that keeps the order of the addresses.",
)


@strided_get.register_kernel("cpu")
def _strided_get(base: Array, size: Any, stride: Any, offset: int) -> Array:
    view = strided.strided_get(base, tuple(size), tuple(stride), offset)
    result = allocate(_strided_get_spec(base, size, stride, offset))
    result[...] = view
    return result


@strided_get.register_fake
def _strided_get_spec(base: Any, size: Any, stride: Any, offset: Any) -> TensorSpec:
    size, item = tuple(size), base.dtype.itemsize
    strides = tuple([step * item for step in stride])
    if self_overlap(Geometry(base.dtype, size, strides)):
        return TensorSpec(size, base.dtype)
    return TensorSpec(size, base.dtype, keep_layout(size, [(size, strides)], item))


strided_get.register_vjp(
    base=lambda grad, base_spec, size, stride, offset: strided_add(
        grad, base_spec.shape, size, stride, offset
    )
)


# ---------------------------------------------------------------------- put

strided_put: TensorOperator = declare(
    "strided_put(Tensor base, Tensor value, SymInt[] size, SymInt[] stride, SymInt offset)"
    " -> Tensor",
    "A copy of `base` with `value`, broadcast, at addresses; of equal ones the last wins.",
)


@strided_put.register_kernel("cpu")
def _strided_put(base: Array, value: Any, size: Any, stride: Any, offset: int) -> Array:
    if 0 in base.strides:  # repeated elements have no order of their own in memory
        base = copied(base)
    value = np.asarray(value, base.dtype)
    return strided.strided_put(base, value, tuple(size), tuple(stride), offset)


strided_put.register_fake(lambda base, value, size, stride, offset: like_spec(base))


def _put_base_grad(grad: Tensor, size: Any, stride: Any, offset: Any) -> Tensor:
    """Return the gradient of what was there: zero where it was overwritten."""
    return strided_put(grad, new_full(grad, [], 0), size, stride, offset)


def _put_value_grad(grad: Tensor, value_spec: Any, size: Any, stride: Any, offset: Any) -> Tensor:
    """Return the gradient of the value: zero for elements that a later one overwrote."""
    gathered = strided_get(grad, size, stride, offset)
    kept = strided.winners(tuple(size), tuple(stride))
    return sum_to(gathered if kept.all() else mask(gathered, kept), value_spec.shape)


strided_put.register_vjp(base=_put_base_grad, value=_put_value_grad)


# ---------------------------------------------------------------------- add

strided_add: TensorOperator = declare(
    "strided_add(Tensor value, SymInt[] shape, SymInt[] size, SymInt[] stride, SymInt offset)"
    " -> Tensor",
    "Zeros of `shape` with `value`, broadcast, added at addresses; equal ones sum.",
)
strided_add.register_kernel(
    "cpu",
    lambda value, shape, size, stride, offset: strided.strided_add(
        value, tuple(shape), tuple(size), tuple(stride), offset
    ),
)
strided_add.register_fake(lambda value, shape, size, stride, offset: TensorSpec(shape, value.dtype))
strided_add.register_vjp(
    value=lambda grad, value_spec, size, stride, offset: sum_to(
        strided_get(grad, size, stride, offset), value_spec.shape
    )
)


# ---------------------------------------------------------------------- the order of memory


def in_memory_order(root: Tensor, order: MemoryOrder | None) -> Tensor:
    """Return a tensor whose logical C order is the order in which the root lies in memory."""
    if order is None:
        return root
    if any(order.flipped):
        return strided_get(root, *order.into())
    return permute(root, list(order.order))


def from_memory_order(flat: Tensor, order: MemoryOrder | None) -> Tensor:
    """Undo `in_memory_order`."""
    if order is None:
        return flat
    if any(order.flipped):
        return strided_get(flat, *order.back())
    return permute(flat, order.inverse)
