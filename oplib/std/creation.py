"""Creation: tensors from shapes and from data.

The operators take a size, ``dtype`` and ``device``; the functions of the same names, which users
call, also take ``requires_grad`` (or Paddle's inverse of it, ``stop_gradient``). Default dtypes are
NumPy's. Results are C-contiguous, those of ``*_like`` keep the layout of their model.

Imports floors 0 to 4, `declare.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from .. import _state
from ..dispatch.keys import CONSTANT, META
from ..dispatch.operator import Operator
from ..dtypes import as_dtype
from ..errors import ArgumentError
from ..prims import cast, clone, detach, lift, new_full
from ..prims import full as full_op
from ..shapes import TensorSpec, like_spec
from ..tensor.tensor import Tensor, tensor_from_result
from .declare import Array, allocate, composite, declare

__all__ = [
    "arange",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "tensor",
    "zeros",
    "zeros_like",
]

_TAIL: Final = "*, ScalarType? dtype=None, Device? device=None) -> Tensor"


# ---------------------------------------------------------------------- operators


def _declare_filled(name: str, make: Callable[..., Array], *tags: str) -> Operator[..., Any]:
    doc = f"`numpy.{name}`; float64 by default."
    op = declare(f"{name}(SymInt[] size, {_TAIL}", doc, *tags)
    op.register_kernel("cpu", lambda size, *, dtype, device: make(tuple(size), dtype or np.float64))
    op.register_fake(
        lambda size, *, dtype, device: TensorSpec(size, dtype or np.float64, device=device)
    )
    return op


_zeros = _declare_filled("zeros", np.zeros)
_ones = _declare_filled("ones", np.ones)
_empty = _declare_filled("empty", np.empty, "nondeterministic")

_arange = declare(
    f"arange(Scalar start, Scalar end, Scalar step=1, {_TAIL}",
    "Numbers from `start` on, `step` apart, before `end`; `numpy.arange`.",
)


@_arange.register_kernel("cpu")
def _arange_kernel(start: Any, end: Any, step: Any, *, dtype: Any, device: Any) -> Array:
    numbers: Array = np.arange(start, end, step, dtype)  # type: ignore[call-overload]
    return numbers


@_arange.register_fake
def _arange_spec(start: Any, end: Any, step: Any, *, dtype: Any, device: Any) -> TensorSpec:
    if step == 0:
        raise ZeroDivisionError("std::arange with step 0")
    length = max(0, math.ceil((end - start) / step))
    kind = np.result_type(type(start), type(end), type(step))
    return TensorSpec((length,), dtype or kind, device=device)


_linspace = declare(
    f"linspace(Scalar start, Scalar end, int steps, {_TAIL}",
    "`steps` numbers from `start` to `end`, both included; `numpy.linspace`.",
)


@_linspace.register_kernel("cpu")
def _linspace_kernel(start: Any, end: Any, steps: int, *, dtype: Any, device: Any) -> Array:
    return np.linspace(start, end, steps, dtype=dtype)


@_linspace.register_fake
def _linspace_spec(start: Any, end: Any, steps: int, *, dtype: Any, device: Any) -> TensorSpec:
    kind = np.result_type(type(start), type(end), np.float64)
    return TensorSpec((steps,), dtype or kind, device=device)


_eye = declare(
    f"eye(SymInt n, SymInt? m=None, int diagonal=0, {_TAIL}",
    "Ones on a diagonal of an n × m matrix, m = n by default; `numpy.eye`.",
)


@_eye.register_kernel("cpu")
def _eye_kernel(n: int, m: int | None, diagonal: int, *, dtype: Any, device: Any) -> Array:
    return np.eye(n, m, diagonal, dtype=dtype or np.float64)


@_eye.register_fake
def _eye_spec(n: int, m: int | None, diagonal: int, *, dtype: Any, device: Any) -> TensorSpec:
    return TensorSpec((n, n if m is None else m), dtype or np.float64, device=device)


_empty_like = declare(
    "empty_like(Tensor x, *, ScalarType? dtype=None) -> Tensor",
    "Uninitialised, with the shape and layout of `x`, and its dtype by default.",
    "flexible_layout",
    "nondeterministic",
)
_empty_like.register_kernel("cpu", lambda x, *, dtype: allocate(like_spec(np.asarray(x), dtype)))
_empty_like.register_fake(lambda x, *, dtype: like_spec(x, dtype))
_empty_like.register_vjp(x=None)

_full_like = declare(
    "full_like(Tensor x, Scalar value, *, ScalarType? dtype=None) -> Tensor",
    "Filled with a number, with the shape and layout of `x`, and its dtype by default.",
    "flexible_layout",
)


@_full_like.register_kernel("cpu")
def _full_like_kernel(x: Any, value: Any, *, dtype: Any) -> Array:
    result = allocate(like_spec(np.asarray(x), dtype))
    result.fill(value)
    return result


_full_like.register_fake(lambda x, value, *, dtype: like_spec(x, dtype))
_full_like.register_vjp(x=None)

_new_empty = declare(
    "new_empty(Tensor x, SymInt[] size, *, ScalarType? dtype=None) -> Tensor",
    "Uninitialised, on the device of `x`, of its dtype by default.",
    "nondeterministic",
)
_new_empty.register_kernel("cpu", lambda x, size, *, dtype: np.empty(size, dtype or x.dtype))
_new_empty.register_fake(lambda x, size, *, dtype: TensorSpec(size, dtype or x.dtype))
_new_empty.register_vjp(x=None)


def _declare_new(name: str, value: int) -> None:
    @composite(
        f"new_{name}(Tensor x, SymInt[] size, *, ScalarType? dtype=None) -> Tensor",
        f"Filled with {name}, on the device of `x`, of its dtype by default.",
    )
    def make(x: Tensor, size: list[Any], *, dtype: Any) -> Tensor:
        return new_full(x, size, value, dtype=dtype)


_declare_new("zeros", 0)
_declare_new("ones", 1)


# ---------------------------------------------------------------------- functions


def _marked(made: Tensor, requires_grad: bool, stop_gradient: bool) -> Tensor:
    """Return a new tensor, as a leaf that records if the caller wants one."""
    return made.requires_grad_() if requires_grad or not stop_gradient else made


def tensor(
    data: Any,
    dtype: Any = None,
    requires_grad: bool = False,
    stop_gradient: bool = True,
) -> Tensor:
    """Return a new tensor with a copy of `data`.

    Parameters
    ----------
    data : number, nested sequence, array or Tensor
    dtype : dtype, optional
        By default what NumPy finds for `data`.
    requires_grad : bool
        Whether operations on it are recorded; ``stop_gradient=False`` says the same.

    Raises
    ------
    ArgumentError
        If `data` holds anything but numbers.

    Examples
    --------
    >>> import oplib
    >>> oplib.tensor([[1.0, 2.0], [3.0, 4.0]]).shape
    (2, 2)
    """
    kind = None if dtype is None else as_dtype(dtype)
    if isinstance(data, Tensor):
        copied = clone(detach(data)) if kind is None else cast(detach(data), kind)
        return _marked(copied, requires_grad, stop_gradient)
    try:
        array = np.array(data, kind)
    except ValueError as error:
        raise ArgumentError(f"oplib.tensor: {error}") from None
    if array.dtype.kind in "OUSMm":
        raise ArgumentError(f"oplib.tensor takes numbers, got an array of dtype {array.dtype}")
    return _marked(_as_constant(array), requires_grad, stop_gradient)


def _as_constant(array: Array) -> Tensor:
    """Return the tensor of a fresh array; inside a transform or a fake rule, of a copy made there.

    So a graph holds the value and each run starts from its own, and a rule gets a fake.
    """
    made = tensor_from_result(array)
    state = _state.current()
    if state.include & META or any(frame.interpreter.wraps for frame in state.stack):
        made._keys |= CONSTANT
        return lift(made)
    for frame in reversed(state.stack):
        made = frame.interpreter.take_in(made)
    return made


def _size(size: tuple[Any, ...]) -> Any:
    """Return a size given as several ints or as one sequence."""
    return size[0] if len(size) == 1 and isinstance(size[0], list | tuple) else size


def zeros(
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    stop_gradient: bool = True,
) -> Tensor:
    """Return a tensor of zeros; ``zeros(2, 3)`` and ``zeros((2, 3))`` are the same."""
    made = _zeros(_size(size), dtype=dtype, device=device)
    return _marked(made, requires_grad, stop_gradient)


def ones(
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    stop_gradient: bool = True,
) -> Tensor:
    """Return a tensor of ones; ``ones(2, 3)`` and ``ones((2, 3))`` are the same."""
    made = _ones(_size(size), dtype=dtype, device=device)
    return _marked(made, requires_grad, stop_gradient)


def empty(
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    stop_gradient: bool = True,
) -> Tensor:
    """Return a tensor whose values are whatever was in memory."""
    made = _empty(_size(size), dtype=dtype, device=device)
    return _marked(made, requires_grad, stop_gradient)


def full(
    size: Any,
    value: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    stop_gradient: bool = True,
) -> Tensor:
    """Return a tensor filled with a number, of that number's dtype by default."""
    made = full_op(_size((size,)), value, dtype=dtype, device=device)
    return _marked(made, requires_grad, stop_gradient)


def zeros_like(
    x: Tensor, dtype: Any = None, requires_grad: bool = False, stop_gradient: bool = True
) -> Tensor:
    """Return zeros in the shape, layout and (by default) dtype of `x`."""
    return _marked(_full_like(x, 0, dtype=dtype), requires_grad, stop_gradient)


def ones_like(
    x: Tensor, dtype: Any = None, requires_grad: bool = False, stop_gradient: bool = True
) -> Tensor:
    """Return ones in the shape, layout and (by default) dtype of `x`."""
    return _marked(_full_like(x, 1, dtype=dtype), requires_grad, stop_gradient)


def full_like(
    x: Tensor,
    value: Any,
    dtype: Any = None,
    requires_grad: bool = False,
    stop_gradient: bool = True,
) -> Tensor:
    """Return a number in the shape, layout and (by default) dtype of `x`."""
    return _marked(_full_like(x, value, dtype=dtype), requires_grad, stop_gradient)


def empty_like(
    x: Tensor, dtype: Any = None, requires_grad: bool = False, stop_gradient: bool = True
) -> Tensor:
    """Return an uninitialised tensor in the shape, layout and (by default) dtype of `x`."""
    return _marked(_empty_like(x, dtype=dtype), requires_grad, stop_gradient)


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    stop_gradient: bool = True,
) -> Tensor:
    """Return numbers `step` apart, from `start` (0 if only one bound is given) to before `end`."""
    if end is None:
        start, end = 0, start
    made = _arange(start, end, step, dtype=dtype, device=device)
    return _marked(made, requires_grad, stop_gradient)


def linspace(
    start: Any,
    end: Any,
    steps: int,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    stop_gradient: bool = True,
) -> Tensor:
    """Return `steps` numbers evenly spaced from `start` to `end`, both included."""
    made = _linspace(start, end, steps, dtype=dtype, device=device)
    return _marked(made, requires_grad, stop_gradient)


def eye(
    n: int,
    m: int | None = None,
    diagonal: int = 0,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    stop_gradient: bool = True,
) -> Tensor:
    """Return an n × m matrix (m = n by default) with ones on a diagonal."""
    made = _eye(n, m, diagonal, dtype=dtype, device=device)
    return _marked(made, requires_grad, stop_gradient)
