"""Matrix products with NumPy's rules: leading axes broadcast, 1-d operands are rows or columns.

Results are C-contiguous.

Imports floors 0 to 4, `declare.py`, `joining.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._dims import same
from ..errors import ArgumentError
from ..prims import clone, copy_
from ..shapes import TensorSpec, broadcast_shapes, normalize_dim, result_type
from ..tensor.tensor import Tensor
from .declare import Array, composite, declare
from .joining import concat

__all__ = ["adjoint", "matmul"]

matmul = declare(
    "matmul(Tensor x, Tensor y) -> Tensor",
    "``[..., n, k] @ [..., k, m] -> [..., n, m]``; a 1-d operand lends an axis and takes it back.",
)


@matmul.register_kernel("cpu")
def _matmul(x: Array, y: Array) -> Any:
    try:
        found = np.matmul(x, y, order="C")
        wanted = np.result_type(x, y)
        return found if found.dtype == wanted else found.astype(wanted)  # bfloat16 has no loop
    except ValueError:
        _matmul_spec(np.asarray(x), np.asarray(y))  # says better what is wrong
        raise


@matmul.register_fake
def _matmul_spec(x: Any, y: Any) -> TensorSpec:
    if x.ndim == 0 or y.ndim == 0:
        raise ArgumentError("std::matmul needs operands with axes; multiply numbers with *")
    inner = y.shape[-2] if y.ndim > 1 else y.shape[0]
    if x.shape[-1] != inner:
        raise ArgumentError(
            f"std::matmul: {list(x.shape)} and {list(y.shape)} disagree: {x.shape[-1]} != {inner}"
        )
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    rows = x.shape[-2:-1] if x.ndim > 1 else ()
    columns = y.shape[-1:] if y.ndim > 1 else ()
    return TensorSpec((*batch, *rows, *columns), result_type(x, y))


def _matmul_x(grad: Tensor, x_spec: TensorSpec, y: Tensor) -> Tensor:
    """Differentiate X Y in X: ``grad Yᴴ``, in matrix form."""
    if y.ndim == 1:  # grad is [..., n]
        return _column(grad) * y.conj()
    if x_spec.ndim == 1:  # grad is [..., m]
        return (matmul(_row(grad), adjoint(y))).squeeze(-2)
    return matmul(grad, adjoint(y))


def _matmul_y(grad: Tensor, x: Tensor, y_spec: TensorSpec) -> Tensor:
    """Differentiate X Y in Y: ``Xᴴ grad``, in matrix form."""
    if x.ndim == 1:  # grad is [..., m]
        return _column(x.conj()) * _row(grad) if y_spec.ndim > 1 else x.conj() * grad
    if y_spec.ndim == 1:  # grad is [..., n]
        return matmul(adjoint(x), _column(grad)).squeeze(-1)
    if y_spec.ndim == 2 and x.ndim > 2 and all(type(length) is int for length in x.shape):
        # one product instead of a sum of many
        x, grad = x.flatten(0, -2), grad.flatten(0, -2)
    return matmul(adjoint(x), grad)


def _row(x: Tensor) -> Tensor:
    return x.unsqueeze(-2)


def _column(x: Tensor) -> Tensor:
    return x.unsqueeze(-1)


def adjoint(x: Tensor) -> Tensor:
    """Return the conjugate transpose of matrices."""
    return x.swapaxes(-1, -2).conj()


matmul.register_vjp(x=_matmul_x, y=_matmul_y)


@composite("dot(Tensor x, Tensor y) -> Tensor", "The sum of products of two 1-d tensors.")
def dot(x: Tensor, y: Tensor) -> Tensor:
    """Multiply as matrices, after checking that both are 1-d."""
    if x.ndim != 1 or y.ndim != 1:
        raise ArgumentError(f"std::dot takes 1-d tensors, got {x.ndim}-d and {y.ndim}-d ones")
    return matmul(x, y)


@composite(
    "matmul_(Tensor(a!) x, Tensor y) -> Tensor(a!)",
    "``x @ y`` stored into x, whose shape and dtype it must have (``x @= y``).",
)
def matmul_(x: Tensor, y: Tensor) -> Tensor:
    """Multiply the old values, then copy; a product of another shape is not broadcast."""
    old = clone(x)  # what the gradient rule saves must not be written to
    product = matmul(old, old if y is x else y)
    if product.shape != x.shape:
        raise ArgumentError(
            f"std::matmul_: x has shape {list(x.shape)}, the product {list(product.shape)}; "
            "write x = x @ y"
        )
    return copy_(x, product)


@composite(
    "vecdot(Tensor x, Tensor y, int dim=-1) -> Tensor",
    "``sum(conj(x) * y)`` along an axis, which both have; the others broadcast.",
)
def vecdot(x: Tensor, y: Tensor, dim: int) -> Tensor:
    """Multiply rows by columns."""
    return matmul(_row(x.conj().movedim(dim, -1)), _column(y.movedim(dim, -1))).squeeze([-2, -1])


@composite(
    "cross(Tensor x, Tensor y, int dim=-1) -> Tensor",
    "`numpy.cross` of 3-vectors along an axis; the other axes broadcast.",
)
def cross(x: Tensor, y: Tensor, dim: int) -> Tensor:
    """Take ``x[i+1] y[i+2] - x[i+2] y[i+1]``, positions modulo 3."""
    first, second = (_turned(v, dim, by) for v, by in ((x, 1), (y, 2)))
    return first * second - _turned(x, dim, 2) * _turned(y, dim, 1)


def _turned(x: Tensor, dim: int, by: int) -> Tensor:
    axis = normalize_dim(dim, x.ndim)
    if not same(x.shape[axis], 3):
        raise ArgumentError(f"std::cross: axis {dim} of {list(x.shape)} is not 3 long")
    return concat([x.narrow(axis, by, 3 - by), x.narrow(axis, 0, by)], axis)


@composite("outer(Tensor x, Tensor y) -> Tensor", "``x[i] * y[j]`` for two 1-d tensors.")
def outer(x: Tensor, y: Tensor) -> Tensor:
    """Multiply a column by a row."""
    if x.ndim != 1 or y.ndim != 1:
        raise ArgumentError(f"std::outer takes 1-d tensors, got {x.ndim}-d and {y.ndim}-d ones")
    return _column(x) * _row(y)
