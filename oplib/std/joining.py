"""Joining tensors along an axis they have, or along a new one.

Imports floors 0 to 4, `declare.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..shapes import TensorSpec, normalize_dim, result_type
from ..tensor.geometry import keep_layout
from ..tensor.tensor import Tensor
from .declare import Array, allocate, declare

__all__ = ["concat", "stack"]


def _agree(a: tuple[Any, ...], b: tuple[Any, ...], axis: int) -> bool:
    """Return whether two shapes are equal except on one axis."""
    return a[:axis] == b[:axis] and a[axis + 1 :] == b[axis + 1 :]


def _joined(parts: Sequence[Any], dim: int) -> TensorSpec:
    """Return the spec of parts joined along an axis: C order, or the order all parts agree on."""
    if not parts:
        raise ArgumentError("std::concat needs at least one tensor")
    first = parts[0]
    axis = normalize_dim(dim, first.ndim)  # a 0-d tensor has no axis to join along
    length = 0
    for part in parts:
        if part.ndim != first.ndim or not _agree(part.shape, first.shape, axis):
            shapes = ", ".join(str(list(p.shape)) for p in parts)
            raise ArgumentError(f"std::concat along {dim}: other axes differ in length: {shapes}")
        length = length + part.shape[axis]
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    dtype = result_type(*parts)
    layouts = [(part.shape, part.strides) for part in parts]
    return TensorSpec(shape, dtype, keep_layout(shape, layouts, dtype.itemsize))


def _stacked(parts: Sequence[Any], dim: int) -> TensorSpec:
    """Return the spec of parts stacked along a new axis, in C order."""
    if not parts:
        raise ArgumentError("std::stack needs at least one tensor")
    shape = parts[0].shape
    if any(part.shape != shape for part in parts[1:]):
        shapes = ", ".join(str(list(part.shape)) for part in parts)
        raise ArgumentError(f"std::stack needs tensors of one shape, got {shapes}")
    axis = normalize_dim(dim, len(shape) + 1)
    return TensorSpec((*shape[:axis], len(parts), *shape[axis:]), result_type(*parts))


concat = declare(
    "concat(Tensor[] xs, int dim=0) -> Tensor",
    "`numpy.concatenate`: tensors joined along an axis; dtypes promote, all other axes agree.",
)


@concat.register_kernel("cpu")
def _concat(xs: list[Array], dim: int) -> Array:
    xs = [np.asarray(x) for x in xs]
    spec = _joined(xs, dim)
    if all(x.flags.c_contiguous for x in xs):
        return np.concatenate(xs, dim)
    return np.concatenate(xs, dim, out=allocate(spec))


concat.register_fake(_joined)


@concat.register_vjp
def _concat_grad(grad: Tensor, xs_spec: list[TensorSpec], dim: int) -> list[Tensor]:
    return grad.split([spec.shape[dim] for spec in xs_spec], dim)


stack = declare(
    "stack(Tensor[] xs, int dim=0) -> Tensor",
    "`numpy.stack`: tensors of one shape along a new axis, which stands at `dim` of the result.",
)


@stack.register_kernel("cpu")
def _stack(xs: list[Array], dim: int) -> Array:
    spec = _stacked([np.asarray(x) for x in xs], dim)
    return np.stack(xs, dim, out=np.empty(spec.shape, spec.dtype))


stack.register_fake(_stacked)


@stack.register_vjp
def _stack_grad(grad: Tensor, dim: int) -> list[Tensor]:
    return grad.unbind(dim)
