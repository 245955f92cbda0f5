"""NumPy, DLPack, copy and pickle protocols of `Tensor`.

``np.exp(t)`` calls the operator of that name where there is one and records gradients; a ufunc
without an operator is refused rather than silently computed outside the graph.

Imports floors 0 to 2, `tensor.py`.
"""

from __future__ import annotations

import copy
import functools
import inspect
from types import NoneType
from typing import Any, Final

import numpy as np

from .. import _state
from .._text import short_repr
from .._tree import leaves, tree_map
from ..dispatch import registry
from ..dispatch.keys import CONSTANT, CPU, META, WEAK
from ..dispatch.lifting import ARRAYS, LIFTERS, tensor_leaves
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

__all__ = ["UFUNCS", "from_dlpack", "from_numpy", "install_protocols", "is_weak"]

_SAME_NAME: Final = (
    *("add", "floor_divide", "remainder", "matmul", "exp", "expm1", "exp2", "log", "log1p", "log2"),
    *("log10", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sqrt", "cbrt", "square", "reciprocal"),
    *("sign", "trunc", "floor", "ceil", "maximum", "minimum", "logical_not", "logical_and"),
    *("logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "isnan", "isfinite"),
    *("isinf", "signbit", "deg2rad", "rad2deg", "hypot", "logaddexp", "fmod", "copysign"),
    *("nextafter", "vecdot"),
)
UFUNCS: Final[dict[str, str]] = {
    **{name: name for name in _SAME_NAME},
    **{f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")},
    **{"subtract": "sub", "multiply": "mul", "divide": "div", "power": "pow", "negative": "neg"},
    **{"absolute": "abs", "conjugate": "conj", "invert": "bitwise_not", "positive": "clone"},
    **{"equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt"},
    **{"greater_equal": "ge", "left_shift": "bitwise_left_shift"},
    **{"right_shift": "bitwise_right_shift", "degrees": "rad2deg", "radians": "deg2rad"},
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


def from_dlpack(source: Any) -> Tensor:
    """Return a tensor that shares memory, and its count of writes, with what speaks DLPack.

    Raises
    ------
    ArgumentError
        For an object without ``__dlpack__``, or one whose data is not on the CPU.

    Examples
    --------
    >>> import oplib
    >>> x = oplib.zeros([2])
    >>> oplib.from_dlpack(x).add_(1)
    Tensor([1., 1.])
    >>> x.inplace_version
    1
    """
    try:
        array = np.from_dlpack(source)
    except (AttributeError, TypeError, BufferError, RuntimeError) as error:
        raise ArgumentError(
            f"from_dlpack cannot share the memory of {short_repr(source)}: {error}"
        ) from error
    return from_numpy(array)


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
    out = kwargs.pop("out", (None,))[0]
    if method != "__call__" or name is None or kwargs or not isinstance(out, Tensor | NoneType):
        what = f"numpy.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
        kwargs.update({} if out is None else {"out": out})
        extra = f" with {', '.join(kwargs)}" if kwargs else ""
        raise ArgumentError(
            f"{what}{extra} has no operator for Tensors; "
            "call it on x.numpy() (no gradient), or define an operator for it"
        )
    return registry.packet("std", name)(*inputs, **({} if out is None else {"out": out}))


_RENAMED: Final = {"axis": "dim", "keepdims": "keepdim", "axes": "dims"}
_STANDARD: Final = {"ddof": "correction", "a_min": "min", "a_max": "max"}
FUNCTIONS: Final[dict[str, tuple[str, int]]] = {
    **{name: (name, 2) for name in ("sum", "mean", "prod", "max", "min", "any", "all")},
    **{name: (name, 2) for name in ("argmax", "argmin", "squeeze", "cumsum", "cumprod", "stack")},
    **{name: (name, 3) for name in ("where", "swapaxes")},
    "concatenate": ("concat", 2),
    **{name: (name, 2) for name in ("outer", "kron")},
    **{name: (name, 1) for name in ("median", "nan_to_num", "angle", "unique", "sinc")},
    "expand_dims": ("unsqueeze", 2),
    "moveaxis": ("movedim", 3),
    "reshape": ("reshape", 2),
    "transpose": ("transpose", 2),
}
"""NumPy function -> operator of namespace std, and how many positional arguments they share.

The others that the array API standard has find the function of that name in its namespace."""


def _array_function(
    self: Tensor, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Send a NumPy function to the operator of the same meaning, or run it on the arrays.

    Raises
    ------
    ArgumentError
        If there is no operator and a result would need a gradient.
    """
    name, most = FUNCTIONS.get(function.__name__, ("", 0))
    if function.__module__ == "numpy" and name and len(args) <= most:
        renamed = {_RENAMED.get(key, key): value for key, value in kwargs.items()}
        return registry.packet("std", name)(*args, **renamed)
    if function is np.einsum and isinstance(args[0], str) and not kwargs:
        return registry.packet("std", "einsum")(args[0], list(args[1:]))
    if call := _standard_call(self, function, args, kwargs):
        return call()
    tensors = tensor_leaves([args, kwargs])
    arrays = tree_map(
        lambda leaf: leaf.numpy() if isinstance(leaf, Tensor) else leaf, [args, kwargs]
    )
    result = function(*arrays[0], **arrays[1])
    inexact = any(np.asarray(leaf).dtype.kind in "fc" for leaf in leaves(result))
    if inexact and any(tensor.requires_grad for tensor in tensors):
        raise ArgumentError(
            f"{function.__module__}.{function.__name__} has no operator for Tensors, so its result "
            "would have no gradient\n  say so, x.detach(), or use an operator of oplib"
        )
    return result


def _standard_call(self: Tensor, function: Any, args: Any, kwargs: Any) -> Any:
    """Return the call of the standard's function of a name, if that takes these arguments.

    What NumPy gives a default is a keyword in the standard.
    """
    place: Any = self.__array_namespace__()
    for part in function.__module__.split(".")[1:]:
        place = getattr(place, part, None)
    found = getattr(place, function.__name__, None)
    if found is None or not function.__module__.startswith("numpy"):
        return None
    try:
        parameters = list(inspect.signature(function).parameters.values())[: len(args)]
        spare = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        optional = [p.name for p in spare if p.default is not p.empty]
        positional = args[: len(args) - len(optional)]
        given = {**dict(zip(optional, args[len(positional) :], strict=True)), **kwargs}
        keywords = {_STANDARD.get(key, key): value for key, value in given.items()}
        inspect.signature(found).bind(*positional, **keywords)
    except (TypeError, ValueError):
        return None
    return functools.partial(found, *positional, **keywords)


def _copy(self: Tensor) -> Tensor:
    """Return another leaf on the same memory."""
    _check_leaf(self, "copied")
    return _rebuild(*_reduce(self)[1])


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


def _to_device(self: Tensor, device: Any, /, *, stream: None = None) -> Tensor:
    """Return the tensor on a device; no backend has streams."""
    return self.to(device)


def _buffer(self: Tensor, flags: int) -> memoryview:
    """Give ``memoryview(tensor)`` the memory (Python 3.12 and later)."""
    return self.numpy().data


def _bytes(self: Tensor) -> bytes:
    return self._data().tobytes()


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


def _repr_html(self: Tensor) -> str:
    """Return `repr` under what it does not say, for notebooks."""
    text = repr(self).replace("&", "&amp;").replace("<", "&lt;")
    return f"<div>Tensor {self.describe()}<pre>{text}</pre></div>"


def install_protocols() -> None:
    """Put the protocols on `Tensor` and fill the tables of what can be given for a Tensor."""
    protocols = {
        "__array__": _array_of,
        "__array_ufunc__": _array_ufunc,
        "__array_function__": _array_function,
        "__buffer__": _buffer,
        "__bytes__": _bytes,
        "__copy__": _copy,
        "__deepcopy__": _deepcopy,
        "__reduce__": _reduce,
        "__dlpack__": _dlpack,
        "__dlpack_device__": _dlpack_device,
        "_repr_html_": _repr_html,
        "to_device": _to_device,
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
