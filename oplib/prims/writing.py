"""`copy_`, and the rules every write obeys.

A write casts with same_kind (else TypeError), broadcasts to the shape of its destination, which
never changes (else ArgumentError), and stores in C order. A destination that overlaps itself takes
a value only if the order of the stores cannot matter (else AliasError). Everything that can fail
fails before the first byte is written, and by shapes, strides and dtypes alone, so that tensors
without data decide alike: kernels call the checks on arrays, functional twins on Tensors.

Imports floors 0 to 3, `library.py`, `shapes/`, `arithmetic.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dispatch.keys import WEAK
from ..dtypes import CPU
from ..errors import AliasError, ArgumentError
from ..shapes import broadcast_shapes
from ..tensor.geometry import Geometry, self_overlap
from ..tensor.tensor import Tensor
from .arithmetic import broadcast_to, cast, full, new_full, sum_to
from .declare import Array, TensorOperator, declare

__all__ = [
    "broadcast_to_like",
    "cast_same_kind",
    "check_fits",
    "copy_",
    "filled_like",
    "storable",
    "store",
]

copy_: TensorOperator = declare(
    "copy_(Tensor(a!) x, Tensor value) -> Tensor(a!)",
    "Store `value`, cast and broadcast, into `x`.",
    "std:own_overlap_check",
    "mixed_devices",
)
copy_.register_kernel("cpu", lambda x, value: store(x, value, "copy_"))
copy_.register_vjp(
    x=lambda grad: new_full(grad, grad.shape, 0),
    value=lambda grad, value_spec: sum_to(grad, value_spec.shape),
)


@copy_.register_functional(pre_state=True)
def _copied(x: Tensor, value: Tensor) -> Tensor:
    """Return what `x` holds after ``copy_(x, value)``."""
    check_order(Geometry(x.dtype, x.shape, x.strides), value.shape, "copy_")
    if value._keys & WEAK:
        return filled_like(x, value.array.item(), "copy_")
    return broadcast_to_like(cast_same_kind(value, x, "copy_"), x, "copy_")


# ---------------------------------------------------------------------- checks


def check_kind(kind: np.dtype[Any], destination: np.dtype[Any], name: str) -> None:
    """Raise TypeError unless a write may cast `kind` to the destination's dtype."""
    if not np.can_cast(kind, destination, "same_kind"):
        raise TypeError(
            f"std::{name} cannot store {kind} into {destination}; "
            f"convert it first: value.cast({destination.name!r})"
        )


def check_fits(shape: Any, destination: Any, name: str) -> None:
    """Raise ArgumentError unless a value of `shape` broadcasts to the destination's."""
    try:
        fits = broadcast_shapes(shape, destination) == tuple(destination)
    except ValueError:
        fits = False
    if not fits:
        raise ArgumentError(
            f"std::{name} stores a value of shape {tuple(shape)} into shape {tuple(destination)}, "
            "to which it does not broadcast; a write never changes a shape"
        )


def check_order(destination: Geometry, shape: Any, name: str) -> None:
    """Raise AliasError if the result of storing a value of `shape` depends on the order of stores.

    It does not if the destination does not overlap itself, if the value has one element, or if the
    value repeats along every axis of stride zero and the other axes do not overlap.
    """
    if not self_overlap(destination) or np.prod(shape, dtype=object) == 1:
        return
    lead = destination.ndim - len(shape)
    axes = zip(destination.shape, destination.strides, strict=True)
    zero = [step == 0 and n != 1 for n, step in axes]
    repeats = lead >= 0 and all(n == 1 for n, z in zip(shape, zero[lead:], strict=True) if z)
    if not repeats or self_overlap(_shortened(destination, zero)):
        raise AliasError(
            f"std::{name}: the destination overlaps itself (shape {destination.shape}, strides "
            f"{destination.strides}), so the result would depend on the order of the writes\n"
            "  write to a copy: x.clone()"
        )


def _shortened(geometry: Geometry, axes: list[bool]) -> Geometry:
    """Return a geometry with the given axes shortened to one element."""
    shape = tuple([1 if short else n for n, short in zip(geometry.shape, axes, strict=True)])
    return Geometry(geometry.dtype, shape, geometry.strides, geometry.offset)


# ---------------------------------------------------------------------- on arrays


def store(destination: Array, value: Any, name: str) -> Array:
    """Write an array or number into an array and return it; raise before anything is written."""
    value = storable(value, destination.dtype, name)
    if value.shape not in ((), destination.shape):
        check_fits(value.shape, destination.shape, name)
    if not destination.flags.forc:
        geometry = Geometry(destination.dtype, destination.shape, destination.strides)
        if self_overlap(geometry):
            check_order(geometry, value.shape, name)
            return _store_uniform(destination, value)
    if np.may_share_memory(destination, value):  # copyto gets some overlaps of 1-d arrays wrong
        value = value.copy()
    np.copyto(destination, value, casting="same_kind")
    return destination


def storable(value: Any, dtype: np.dtype[Any], name: str) -> Array:
    """Return an array or number as an array that can be stored into `dtype`."""
    weak = isinstance(value, bool | int | float | complex)
    array = np.asarray(value, np.result_type(value, dtype)) if weak else np.asarray(value)
    check_kind(array.dtype, dtype, name)
    return array


def _store_uniform(destination: Array, value: Array) -> Array:
    """Store each address once: through the first element of every axis that repeats it."""
    one = value.size == 1
    first = tuple([slice(0, 1) if step == 0 else slice(None) for step in destination.strides])
    part = value.reshape((1,) * destination.ndim) if one else value
    np.copyto(destination[first], part, casting="same_kind")
    return destination


# ---------------------------------------------------------------------- on Tensors


def cast_same_kind(value: Tensor, destination: Tensor, name: str) -> Tensor:
    """Return `value` in the destination's dtype; raise as a write would."""
    if value.dtype == destination.dtype:
        return value
    check_kind(value.dtype, destination.dtype, name)
    return cast(value, destination.dtype)


def broadcast_to_like(value: Tensor, destination: Tensor, name: str) -> Tensor:
    """Return `value` broadcast to the destination's shape; raise as a write would."""
    if value.shape == destination.shape:
        return value
    check_fits(value.shape, destination.shape, name)
    return broadcast_to(value, destination.shape)


def filled_like(x: Tensor, number: Any, name: str) -> Tensor:
    """Return a tensor like `x` filled with a number that must fit its dtype; raise as a write."""
    check_kind(np.result_type(number, x.dtype), x.dtype, name)
    device = None if x.device == CPU else x.device
    return full(list(x.shape), number, dtype=x.dtype, device=device)
