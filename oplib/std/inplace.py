"""Operators that write, derived from the functional ones.

``name_(x, ...)`` stores what ``name(x, ...)`` computes from the values before the call: cast with
same_kind (else TypeError), broadcast to the shape of x (else ArgumentError), x itself returned. So
its functional twin is ``name`` followed by that cast and broadcast, and its gradient rule is the
one of ``name`` with ``new_x`` for ``out``.

Imports floors 0 to 4, `declare.py`, `elementwise.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..autograd.modes import no_grad
from ..dispatch.operator import Operator
from ..dispatch.registry import get_op
from ..errors import ArgumentError
from ..prims import (
    broadcast_to_like,
    cast_same_kind,
    check_fits,
    copy_,
    filled_like,
    new_full,
    storable,
    store,
)
from ..tensor.methods import IN_PLACE, NOT_ON_ITSELF
from ..tensor.tensor import Tensor
from .declare import Array, Rule, composite, declare
from .elementwise import where

__all__: list[str] = []


# ---------------------------------------------------------------------- derivation


def _in_place_rule(rule: Rule) -> Rule:
    """Return a functional operator's rule for its in-place form, where ``out`` is ``new_x``."""
    names = list(inspect.signature(rule).parameters)
    if "out" not in names:
        return rule

    def in_place(**given: Any) -> Tensor:
        given["out"] = given.pop("new_x")
        return rule(**given)

    parameters = [
        inspect.Parameter("new_x" if name == "out" else name, inspect.Parameter.KEYWORD_ONLY)
        for name in names
    ]
    in_place.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return in_place


def _in_place_kernel(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that writes: a ufunc into x directly, anything else by way of a new array."""
    if not isinstance(kernel, np.ufunc) or name in NOT_ON_ITSELF:

        def stored(x: Array, *others: Any) -> Array:
            return store(x, kernel(x, *others), f"{name}_")

        return stored

    def written(x: Array, *others: Any) -> Any:
        try:
            return kernel(x, *others, out=x, casting="same_kind")
        except (TypeError, ValueError):
            _explain(f"{name}_", kernel, x, *others)
            raise

    return written


def _explain(name: str, ufunc: np.ufunc, x: Array, *others: Any) -> None:
    """Raise oplib's own error for a write that NumPy refused, if the cause is shape or dtype."""
    for other in others:
        check_fits(np.shape(other), x.shape, name)
    empty = [np.empty(0, v.dtype) if isinstance(v, np.ndarray) else v for v in (x, *others)]
    storable(ufunc(*empty), x.dtype, name)


def _declare_in_place(name: str) -> None:
    """Declare ``name_`` with every facet derived from the operator `name`."""
    op = get_op(f"std::{name}")
    kernel = op.kernels["CPU"][0].function
    arguments = ["Tensor(a!) x", *map(str, op.schema.arguments[1:])]
    in_place = declare(
        f"{name}_({', '.join(arguments)}) -> Tensor(a!)",
        f"`{name}` stored into x, in the dtype and shape of x.",
    )
    in_place.register_kernel("cpu", _in_place_kernel(name, kernel))
    in_place.register_functional(_twin(op, f"{name}_"), pre_state=True)
    rule = op.gradient_rule
    assert rule is not None
    functions = {key: _in_place_rule(f) for key, f in rule.functions.items() if f is not None}
    if rule.style == "fused":
        in_place.register_vjp(functions[""])
    else:
        in_place.register_vjp(**functions)


def _twin(op: Operator[..., Any], name: str) -> Callable[..., Tensor]:
    def twin(x: Tensor, *others: Any) -> Tensor:
        for other in others:
            if isinstance(other, Tensor):
                check_fits(other.shape, x.shape, name)
        return broadcast_to_like(cast_same_kind(op(x, *others), x, name), x, name)

    return twin


for _name in IN_PLACE:
    _declare_in_place(_name)


# ---------------------------------------------------------------------- values from outside

fill_ = declare(
    "fill_(Tensor(a!) x, Scalar value) -> Tensor(a!)",
    "Write one number everywhere; x may overlap itself.",
    "std:own_overlap_check",
)
fill_.register_kernel("cpu", lambda x, value: store(x, value, "fill_"))
fill_.register_functional(lambda x, value: filled_like(x, value, "fill_"), pre_state=True)
fill_.register_vjp(x=lambda grad: new_full(grad, grad.shape, 0))


@composite("zero_(Tensor(a!) x) -> Tensor(a!)", "Write zeros.")
def zero_(x: Tensor) -> Tensor:
    """Fill with zero."""
    return fill_(x, 0)


@composite(
    "masked_fill_(Tensor(a!) x, Tensor mask, Tensor value) -> Tensor(a!)",
    "Write `value` where `mask` is true.",
)
def masked_fill_(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """Copy the choice between `value` and x into x."""
    return copy_(x, where(mask, value, x))


@composite(
    "set_value(Tensor(a!) x, Tensor value) -> Tensor(a!)",
    "Replace the values of x, a leaf included, by those of a tensor of its shape; not recorded.",
)
def set_value(x: Tensor, value: Tensor) -> Tensor:
    """Copy under no_grad, after comparing shapes."""
    if value.shape != x.shape:
        raise ArgumentError(
            f"std::set_value: x has shape {list(x.shape)}, the value {list(value.shape)}"
        )
    with no_grad():
        return copy_(x, value)
