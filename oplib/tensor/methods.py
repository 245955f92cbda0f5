"""Which operator each method of `Tensor` calls, as a table.

A method *is* the operator's bind function: the first call of a method replaces itself by it, so a
method call costs what the operator call costs. The same table gives the functions of `oplib`.

Imports floors 0 to 2, `tensor.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..dispatch import registry
from .tensor import Tensor

__all__ = ["FUNCTIONS", "METHODS", "REFLECTED", "install_methods", "operator_function"]

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
    "__abs__": "abs",
    "__invert__": "logical_not",
    "__and__": "logical_and",
    "__or__": "logical_or",
    "__xor__": "logical_xor",
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
    "__ipow__": "pow_",
}
"""Special methods by operator; the other methods carry their operator's own name."""

NAMED: Final[tuple[str, ...]] = (
    *("add", "sub", "mul", "div", "pow", "matmul", "neg", "abs", "exp", "expm1", "log", "log1p"),
    *("sin", "cos", "tan", "tanh", "sigmoid", "relu", "sqrt", "rsqrt", "square", "reciprocal"),
    *("sign", "floor", "ceil", "round", "erf", "isnan", "isfinite", "isinf"),
    *("maximum", "minimum", "where", "clamp", "cast", "floor_divide", "remainder"),
    *("sum", "mean", "max", "min", "prod", "cumsum", "softmax", "log_softmax", "argmax", "argmin"),
    *("any", "all", "logsumexp", "var", "std", "norm"),
    *("transpose", "permute", "squeeze", "unsqueeze", "expand", "flatten"),
    *("reshape", "diagonal", "unfold", "as_strided", "view_as_real", "view_as_complex"),
    *("swapaxes", "movedim", "split", "chunk", "unbind", "narrow", "select", "unflatten"),
    *("conj", "real", "imag", "angle", "detach", "clone", "contiguous", "alias"),
    *("add_", "sub_", "mul_", "div_", "pow_", "exp_", "log_", "neg_", "sqrt_", "relu_", "tanh_"),
    *("sigmoid_", "sin_", "cos_", "abs_", "square_", "reciprocal_", "clamp_"),
    *("copy_", "fill_", "zero_", "set_value"),
    *("new_empty", "new_zeros", "new_ones", "new_full", "index_select", "gather", "take_along_dim"),
    *("masked_fill", "tril", "triu", "sort", "topk", "index_put_", "masked_fill_"),
    *("eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or"),
)
"""Methods named like their operator."""

REFLECTED: Final[dict[str, str]] = {
    "__radd__": "add",
    "__rsub__": "sub",
    "__rmul__": "mul",
    "__rtruediv__": "div",
    "__rfloordiv__": "floor_divide",
    "__rmod__": "remainder",
    "__rpow__": "pow",
    "__rmatmul__": "matmul",
    "__rand__": "logical_and",
    "__ror__": "logical_or",
    "__rxor__": "logical_xor",
}
"""Reflected special methods: the operator gets its arguments swapped."""

FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {}
"""Function name -> trampoline, for `oplib.<name>`; made on demand by `operator_function`."""


def operator_function(name: str) -> Callable[..., Any]:
    """Return a function that calls ``std::name`` and finds the operator at its first call."""
    found = FUNCTIONS.get(name)
    if found is None:
        found = FUNCTIONS[name] = _trampoline(name)
    return found


def _trampoline(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return registry.packet("std", name)(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    return call


def install_methods() -> None:
    """Put every method that is defined as an operator on `Tensor`."""
    for method, name in METHODS.items():
        _install(method, name)
    for name in NAMED:
        _install(name, name)
    for method, name in REFLECTED.items():
        _install_reflected(method, name)


def _install(method: str, name: str) -> None:
    """Install a method that replaces itself by the operator's bind when it is first called."""

    def first_call(*args: Any, **kwargs: Any) -> Any:
        function = registry.packet("std", name).single.bind()
        setattr(Tensor, method, function)
        return function(*args, **kwargs)

    first_call.__name__ = method
    setattr(Tensor, method, first_call)


def _install_reflected(method: str, name: str) -> None:
    def first_call(self: Tensor, other: Any) -> Any:
        function = registry.packet("std", name).single.bind()

        def reflected(self: Tensor, other: Any) -> Any:
            return function(other, self)

        setattr(Tensor, method, reflected)
        return function(other, self)

    first_call.__name__ = method
    setattr(Tensor, method, first_call)


def reset_methods(qualname: str) -> None:
    """Let methods of an operator that was defined anew find it again (the registry calls this)."""
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
