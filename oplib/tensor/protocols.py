"""NumPy, DLPack, copy and pickle protocols of `Tensor`.

``np.exp(t)`` calls the operator of that name where there is one and records gradients; a ufunc
without an operator is refused rather than silently computed outside the graph.

Imports floors 0 to 2, `tensor.py`.
"""

from __future__ import annotations

import copy
from typing import Any, Final

import numpy as np

from .. import _state
from .._text import short_repr
from ..dispatch import registry
from ..dispatch.keys import CONSTANT, CPU, META, WEAK
from ..dispatch.lifting import ARRAYS, LIFTERS
from ..errors import ArgumentError, AutogradError
from .storage import storage_of_array
from .tensor import (
    Tensor,
    blank_tensor,
    introduce,
    settle_apart,
    tensor_from_array,
    tensor_from_result,
    weak_scalar,
)

__all__ = ["UFUNCS", "from_numpy", "install_protocols", "is_weak"]

UFUNCS: Final[dict[str, str]] = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "floor_divide": "floor_divide",
    "remainder": "remainder",
    "power": "pow",
    "matmul": "matmul",
    "negative": "neg",
    "absolute": "abs",
    "exp": "exp",
    "expm1": "expm1",
    "log": "log",
    "log1p": "log1p",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "tanh": "tanh",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "sinh": "sinh",
    "cosh": "cosh",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "log2": "log2",
    "log10": "log10",
    "sqrt": "sqrt",
    "square": "square",
    "reciprocal": "reciprocal",
    "sign": "sign",
    "trunc": "trunc",
    "floor": "floor",
    "ceil": "ceil",
    "maximum": "maximum",
    "minimum": "minimum",
    "conjugate": "conj",
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "logical_not": "logical_not",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_xor": "logical_xor",
    "invert": "bitwise_not",
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
    "isnan": "isnan",
    "isfinite": "isfinite",
    "isinf": "isinf",
}
"""NumPy ufunc -> operator of namespace std."""


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """Return a tensor that shares memory with an array.

    Writes through either are seen by both; those made through NumPy are not counted as writes.
    Inside of a `FakeTensorMode` the result is a fake.

    Raises
    ------
    ArgumentError
        For anything but a numpy.ndarray of numbers.

    Examples
    --------
    >>> import numpy, oplib
    >>> array = numpy.zeros(2)
    >>> oplib.from_numpy(array).add_(1)
    Tensor([1., 1.])
    >>> array
    array([1., 1.])
    """
    if isinstance(array, np.memmap):
        array = array.view(np.ndarray)
    if type(array) is not np.ndarray:
        raise ArgumentError(
            f"from_numpy shares the memory of a numpy.ndarray, got {short_repr(array)}; "
            "oplib.tensor(...) copies any data"
        )
    _check_numbers(array)
    tensor = tensor_from_array(array)
    if any(known() is not None for known in tensor._storage.strangers):
        _join_earlier(tensor)
    introduce(tensor)
    for frame in reversed(_state.current().stack):
        tensor = frame.interpreter.take_in(tensor)
    return tensor


def _join_earlier(tensor: Tensor) -> None:
    """Make a second handle on a buffer, and the first ones, families that know of each other."""
    for known in tensor._storage.strangers:
        other = known()
        if isinstance(other, Tensor):
            settle_apart(other)
    settle_apart(tensor)


def _array_of(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    """Give NumPy the array (``numpy.asarray(tensor)``)."""
    array = self.numpy()
    if dtype is not None and array.dtype != dtype:
        if copy is False:
            raise ValueError(f"cannot convert {array.dtype} to {dtype} without a copy")
        return array.astype(dtype)
    return array.copy() if copy else array


def _array_ufunc(self: Tensor, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Send a NumPy ufunc on Tensors to the operator of the same meaning."""
    name = UFUNCS.get(ufunc.__name__)
    if method != "__call__" or name is None or kwargs:
        what = f"numpy.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
        extra = f" with {', '.join(kwargs)}" if kwargs else ""
        raise ArgumentError(
            f"{what}{extra} has no operator for Tensors; "
            "call it on x.numpy() (no gradient), or define an operator for it"
        )
    return registry.packet("std", name)(*inputs)


def _deepcopy(self: Tensor, memo: dict[int, Any]) -> Tensor:
    """Return an independent copy of a leaf, with the same `requires_grad` and ``.grad``.

    Copies of tensors without data share storage among each other as the originals do.
    """
    _check_leaf(self, "copied")
    if self._keys & META:
        result = tensor_from_result(copy.deepcopy(self.array, memo))
    else:
        result = tensor_from_result(self.numpy().copy(order="K"))
    memo[id(self)] = result
    if self.requires_grad:
        result.requires_grad = True
        result.grad = copy.deepcopy(self.grad, memo)
    return result


def _reduce(self: Tensor) -> tuple[Any, ...]:
    _check_leaf(self, "pickled")
    return _rebuild, (self.array if self._keys & META else self.numpy(), self.requires_grad)


def _check_leaf(tensor: Tensor, what: str) -> None:
    if tensor.requires_grad and not tensor.is_leaf:
        raise AutogradError(
            f"a tensor computed from others that require grad cannot be {what}: its history would "
            "be lost\n  say so: x.detach()"
        )


def _rebuild(array: Any, requires_grad: bool) -> Tensor:
    return tensor_from_array(array).requires_grad_(requires_grad)


def _dlpack(self: Tensor, **kwargs: Any) -> Any:
    return self.numpy().__dlpack__(**kwargs)


def _dlpack_device(self: Tensor) -> tuple[int, int]:
    return self.numpy().__dlpack_device__()


_EXTENDED: Final = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})


def _check_numbers(array: np.ndarray[Any, Any]) -> None:
    if array.dtype.kind in "OUSVMm" and array.dtype.name not in _EXTENDED:
        raise ArgumentError(f"has dtype {array.dtype}, which holds no numbers")


def _lift_array(array: np.ndarray[Any, Any]) -> Tensor:
    """Return the constant that an array beside a Tensor stands for; it shares memory."""
    if array.dtype.kind not in "fcbiu":
        _check_numbers(array)
    tensor = blank_tensor()
    tensor.array = array
    tensor._keys = CPU | CONSTANT
    tensor.autograd_meta = tensor._view = None
    tensor._storage = storage_of_array(array)
    return tensor


def _lift_numpy_scalar(value: np.generic) -> Tensor:
    tensor = tensor_from_result(np.asarray(value))
    tensor._keys |= CONSTANT
    return tensor


def install_protocols() -> None:
    """Put the protocols on `Tensor` and fill the tables of what can be given for a Tensor."""
    protocols = {
        "__array__": _array_of,
        "__array_ufunc__": _array_ufunc,
        "__deepcopy__": _deepcopy,
        "__reduce__": _reduce,
        "__dlpack__": _dlpack,
        "__dlpack_device__": _dlpack_device,
    }
    for name, function in protocols.items():
        setattr(Tensor, name, function)
    for python_type in (bool, int, float, complex):
        LIFTERS[python_type] = weak_scalar
    for scalar in {np.dtype(code).type for code in "?bhilqBHILQefdFD"}:
        LIFTERS[scalar] = _lift_numpy_scalar
    LIFTERS[np.ndarray] = _lift_array
    ARRAYS.add(np.ndarray)


def is_weak(tensor: Tensor) -> bool:
    """Return whether a tensor stands for a Python number."""
    return bool(tensor._keys & WEAK)
