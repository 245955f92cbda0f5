"""How a built-in operator is declared, and the fake rule that most of them share.

`declare` is `Library.define` for namespace ``std`` with a docstring; everything else about an
operator is registered on what it returns, with the methods any author has. `ufunc_spec` asks a
NumPy ufunc itself which dtype it would give, so the shape rule of an elementwise operator cannot
drift from its kernel.

Imports floors 0 to 4. Read next: `elementwise.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from ..dispatch.operator import Operator
from ..library import Library
from ..prims import cast, clone
from ..shapes import TensorSpec, broadcast_spec
from ..tensor.protocols import is_weak
from ..tensor.tensor import Tensor

__all__ = [
    "STD",
    "Array",
    "Rule",
    "allocate",
    "composite",
    "declare",
    "declare_binary",
    "floating",
    "fresh",
    "inexact",
    "inexact_dtype",
    "real_dtype",
    "ufunc_spec",
]

Array: TypeAlias = np.ndarray[Any, Any]
Rule: TypeAlias = Callable[..., Tensor]
"""One gradient: named incoming gradients, arguments and results in, the argument's gradient out."""

STD: Final = Library("std", "FRAGMENT")


def declare(schema: str, doc: str, *tags: str) -> Operator[..., Any]:
    """Define ``std::<schema>`` and return the operator."""
    operator: Operator[..., Any] = STD.define(schema, tags=tags).op
    operator.__doc__ = doc
    return operator


def composite(
    schema: str, doc: str, *tags: str
) -> Callable[[Callable[..., Any]], Operator[..., Any]]:
    """Return a decorator: define an operator whose body, made of operators, is every rule."""

    def decorate(body: Callable[..., Any]) -> Operator[..., Any]:
        operator = declare(schema, doc, *tags)
        STD.impl(operator, body, "CompositeImplicitAutograd")
        return operator

    return decorate


def fresh(result: Tensor, argument: Tensor) -> Tensor:
    """Return what a composite without alias annotations may return: no view of its argument."""
    return clone(result) if result._storage is argument._storage else result


# ---------------------------------------------------------------------- dtypes


def ufunc_spec(ufunc: np.ufunc, *operands: Any) -> TensorSpec:
    """Return the spec of ``ufunc(*operands)``: broadcast, in the layout and dtype NumPy chooses."""
    kinds = tuple([type(x.array.item()) if is_weak(x) else x.dtype for x in operands])
    return broadcast_spec(*operands, dtype=_ufunc_dtype(ufunc, kinds))


def declare_binary(name: str, ufunc: np.ufunc, x_rule: Rule, y_rule: Rule) -> Operator[..., Any]:
    """Declare an operator that a ufunc of two operands computes."""
    op = declare(
        f"{name}(Tensor x, Tensor y) -> Tensor",
        f"`numpy.{ufunc.__name__}` of elements that broadcast against each other.",
        "pointwise",
        "flexible_layout",
    )
    op.register_kernel("cpu", ufunc)
    op.register_fake(lambda x, y: ufunc_spec(ufunc, x, y))
    op.register_vjp(x=x_rule, y=y_rule)
    return op


@functools.cache
def _ufunc_dtype(ufunc: np.ufunc, kinds: tuple[Any, ...]) -> np.dtype[Any]:
    """Return the result dtype for operand dtypes; Python number types stand for weak numbers."""
    known = [np.dtype(bool) if kind is bool else kind for kind in kinds]
    return ufunc.resolve_dtypes((*known, *[None] * ufunc.nout))[-1]


def inexact_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype a function of `dtype` is computed in: itself, or float64 for integers."""
    return np.dtype(np.float64) if dtype.kind in "biu" else dtype


def floating(x: Tensor) -> Tensor:
    """Return a tensor in its `inexact_dtype`: products of small integers would wrap."""
    kind = inexact_dtype(x.dtype)
    return x if kind == x.dtype else cast(x, kind)


def real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of |x|, for x computed in its inexact dtype."""
    kind = inexact_dtype(dtype)
    return np.dtype(f"f{kind.itemsize // 2}") if kind.kind == "c" else kind


def inexact(x: Any) -> Array:
    """Return an array or number as an array of its `inexact_dtype`."""
    array = np.asarray(x)
    return array.astype(inexact_dtype(array.dtype), copy=False)


# ---------------------------------------------------------------------- memory


def allocate(spec: TensorSpec) -> Array:
    """Return an uninitialised array of the shape, dtype and layout that a fake rule promised."""
    strides = spec.strides
    if strides is None or len(spec.shape) < 2:
        return np.empty(spec.shape, spec.dtype)
    outermost_first = sorted(range(spec.ndim), key=lambda axis: -strides[axis])
    memory = np.empty([spec.shape[axis] for axis in outermost_first], spec.dtype)
    return memory.transpose(np.argsort(outermost_first))
