"""Which operator each method of `Tensor` calls, as a table.

A method *is* the operator's bind function: the first call of a method replaces itself by it, so a
method call costs what the operator call costs.

Imports floors 0 to 2, `tensor.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..dispatch import ledger, registry
from .tensor import Tensor

__all__ = [
    "IN_PLACE",
    "LATE",
    "METHODS",
    "NAMED",
    "NOT_ON_ITSELF",
    "REFLECTED",
    "SIZED",
    "STORED",
    "install_method",
    "install_methods",
]

METHODS: Final[dict[str, str]] = {
    # arithmetic
    "__add__": "add",
    "__sub__": "sub",
    "__mul__": "mul",
    "__truediv__": "div",
    "__floordiv__": "floor_divide",
    "__mod__": "remainder",
    "__pow__": "pow",
    "__matmul__": "matmul",
    "__neg__": "neg",
    "__pos__": "clone",
    "__abs__": "abs",
    # bits (of bools: logic)
    "__invert__": "bitwise_not",
    "__and__": "bitwise_and",
    "__or__": "bitwise_or",
    "__xor__": "bitwise_xor",
    "__lshift__": "bitwise_left_shift",
    "__rshift__": "bitwise_right_shift",
    # comparison
    "__eq__": "eq",
    "__ne__": "ne",
    "__lt__": "lt",
    "__le__": "le",
    "__gt__": "gt",
    "__ge__": "ge",
    # in place
    "__iadd__": "add_",
    "__isub__": "sub_",
    "__imul__": "mul_",
    "__itruediv__": "div_",
    "__ifloordiv__": "floor_divide_",
    "__imod__": "remainder_",
    "__ipow__": "pow_",
    "__imatmul__": "matmul_",
    "__iand__": "bitwise_and_",
    "__ior__": "bitwise_or_",
    "__ixor__": "bitwise_xor_",
    "__ilshift__": "bitwise_left_shift_",
    "__irshift__": "bitwise_right_shift_",
    # another word
    "astype": "cast",
    # a property
    "T": "transpose",
}
"""Special methods by operator; the other methods carry their operator's own name."""

_UNARY: Final = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "cos", "cosh"),
    *("deg2rad", "exp", "exp2", "expm1", "floor", "log", "log10", "log1p", "log2", "neg"),
    *("rad2deg", "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt"),
    *("square", "tan", "tanh", "trunc"),
)
_BINARY: Final = (
    *("add", "sub", "mul", "div", "pow", "maximum", "minimum", "floor_divide", "remainder"),
)

IN_PLACE: Final = (*_UNARY, *_BINARY, "clamp")
"""Elementwise operators with a form that writes, named ``name_`` and derived from ``name``."""

STORED: Final = (
    *("conj", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_xor"),
    *("bitwise_right_shift", "logical_and", "logical_not", "logical_or", "logical_xor", "atan2"),
    *("copysign", "fmod", "hypot", "logaddexp", "nextafter", "xlogy", "digamma", "erf", "erfc"),
    *("erfinv", "gammaln", "i0", "i1", "logit", "nan_to_num", "ndtr", "sinc", "elu", "gelu"),
    *("leaky_relu", "lerp", "log_sigmoid", "silu", "softplus"),
)
"""Further elementwise operators with such a form: the result is computed, then copied into x."""

NOT_ON_ITSELF: Final = ("neg", "pow")
"""Those whose ufunc is not run on its own operand: an int power can fail half-way, and NumPy 2.4's
negative goes wrong there for some strides."""

NAMED: Final[tuple[str, ...]] = (
    *IN_PLACE,
    *(f"{name}_" for name in (*IN_PLACE, *STORED)),
    *("copy_", "fill_", "zero_", "set_value", "masked_fill_", "index_put_"),
    *("masked_fill", "cast", "isnan", "isfinite", "isinf", "eq", "ne", "lt", "le", "gt", "ge"),
    *("logical_not", "logical_and", "logical_or", "logical_xor"),
    *("sum", "mean", "max", "min", "prod", "argmax", "argmin", "any", "all", "logsumexp"),
    *("var", "std", "norm", "cumsum", "softmax", "log_softmax", "matmul", "dot", "outer"),
    *("matmul_", "tril", "triu"),
    *("squeeze", "unsqueeze", "flatten", "unflatten", "diagonal", "unfold", "as_strided", "flip"),
    *("swapaxes", "movedim", "split", "chunk", "unbind", "narrow", "select"),
    *("index_select", "gather", "take_along_dim", "take", "masked_select", "scatter"),
    *("scatter_add", "index_add", "index_copy", "roll", "repeat_interleave", "trace", "det", "inv"),
    *("sort", "argsort", "topk", "median", "quantile", "nonzero", "count_nonzero", "unique"),
    *("cumprod", "cummax", "cummin", "diff", "isclose", "isin", "signbit", "vecdot", "cross"),
    *(name for name in STORED if name != "conj"),
    *("view", "view_as_real", "view_as_complex", "angle", "detach", "clone", "alias"),
)
"""Methods named like their operator."""

SIZED: Final[tuple[str, ...]] = (
    *("reshape", "expand", "permute", "transpose", "new_empty", "new_zeros", "new_ones"),
)
"""Methods that take a size, or an order of axes, as one sequence or as several ints."""

LATE: Final[dict[str, str]] = {"__getitem__": "basic_index", "__setitem__": "basic_index"}
"""Methods that more than one operator serves: `install_method` replaces them when the module that
defines the named one is loaded."""

REFLECTED: Final[dict[str, str]] = {
    "__radd__": "add",
    "__rsub__": "sub",
    "__rmul__": "mul",
    "__rtruediv__": "div",
    "__rfloordiv__": "floor_divide",
    "__rmod__": "remainder",
    "__rpow__": "pow",
    "__rmatmul__": "matmul",
    "__rand__": "bitwise_and",
    "__ror__": "bitwise_or",
    "__rxor__": "bitwise_xor",
    "__rlshift__": "bitwise_left_shift",
    "__rrshift__": "bitwise_right_shift",
}
"""Reflected special methods: the operator gets its arguments swapped."""


def install_method(name: str, function: Callable[..., Any]) -> None:
    """Make a function of several operators a method, in place of its `LATE` entry."""
    setattr(Tensor, name, function)


def install_methods() -> None:
    """Put every method that calls an operator on `Tensor`."""
    ledger.DEFINITION_LISTENERS.append(reset_methods)
    for method, name in METHODS.items():
        _install(method, name)
    for name in NAMED:
        _install(name, name)
    for method, name in REFLECTED.items():
        _install_reflected(method, name)
    for name in SIZED:
        setattr(Tensor, name, _sized(name))
    for method, name in LATE.items():
        _install_late(method, name)
    for function in (_conj, _contiguous, _new_full):
        setattr(Tensor, function.__name__.removeprefix("_"), function)
    for name, getter in {"mT": _mT, "real": _real, "imag": _imag}.items():
        setattr(Tensor, name, property(getter))


def _install(method: str, name: str) -> None:
    """Install a method that replaces itself by the operator's bind when it is first called."""
    kind: Callable[..., Any] = property if method == "T" else _itself

    def first_call(*args: Any, **kwargs: Any) -> Any:
        function = registry.packet("std", name).single.bind()
        setattr(Tensor, method, kind(function))
        return function(*args, **kwargs)

    first_call.__name__ = method
    setattr(Tensor, method, kind(first_call))


def _itself(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _install_reflected(method: str, name: str) -> None:
    def first_call(self: Tensor, other: Any) -> Any:
        function = registry.packet("std", name).single.bind()

        def reflected(self: Tensor, other: Any) -> Any:
            return function(other, self)

        setattr(Tensor, method, reflected)
        return function(other, self)

    first_call.__name__ = method
    setattr(Tensor, method, first_call)


def _install_late(method: str, name: str) -> None:
    def first_call(*args: Any) -> Any:
        registry.packet("std", name)
        return getattr(Tensor, method)(*args)

    first_call.__name__ = method
    setattr(Tensor, method, first_call)


def _sized(name: str) -> Callable[..., Any]:
    """Return a method whose size may be written ``2, 3`` or ``(2, 3)``."""

    def first_call(self: Tensor, *size: Any, **keywords: Any) -> Any:
        function = registry.packet("std", name).single.bind()

        def method(self: Tensor, *size: Any, **keywords: Any) -> Any:
            if len(size) == 1 and type(size[0]) is not int:
                return function(self, size[0], **keywords)
            return function(self, size, **keywords) if size else function(self, **keywords)

        method.__name__ = name
        setattr(Tensor, name, method)
        return method(self, *size, **keywords)

    return first_call


def reset_methods(qualname: str) -> None:
    """Let methods of an operator that was defined anew find it again."""
    namespace, _, name = qualname.partition("::")
    if namespace != "std":
        return
    for method, target in METHODS.items():
        if target == name:
            _install(method, name)
    for method, target in REFLECTED.items():
        if target == name:
            _install_reflected(method, name)
    if name in NAMED:
        _install(name, name)
    if name in SIZED:
        setattr(Tensor, name, _sized(name))


# ---------------------------------------------------------------------- methods with a shortcut


def _conj(self: Tensor) -> Tensor:
    """Return the complex conjugate; a real tensor is its own."""
    if self.array.dtype.kind != "c":
        return self
    return registry.packet("std", "conj")(self)  # type: ignore[no-any-return]


def _contiguous(self: Tensor) -> Tensor:
    """Return the tensor itself if it is C-contiguous, else a copy that is."""
    return self if self.is_contiguous() else registry.packet("std", "contiguous")(self)


def _new_full(self: Tensor, size: Any, value: Any, *, dtype: Any = None) -> Tensor:
    """Return a tensor filled with a number, on the device and by default in the dtype of this."""
    return registry.packet("std", "new_full")(self, size, value, dtype=dtype)  # type: ignore[no-any-return]


def _real(self: Tensor) -> Tensor:
    """Return the real part, a view; of a real tensor the tensor itself."""
    if self.array.dtype.kind != "c":
        return self
    return registry.packet("std", "real")(self)  # type: ignore[no-any-return]


def _imag(self: Tensor) -> Tensor:
    """Return the imaginary part, a view; of a real tensor fresh zeros."""
    return registry.packet("std", "imag")(self)  # type: ignore[no-any-return]


def _mT(self: Tensor) -> Tensor:  # noqa: N802
    """Return the tensor with its last two axes swapped, a view."""
    return registry.packet("std", "swapaxes")(self, -1, -2)  # type: ignore[no-any-return]
