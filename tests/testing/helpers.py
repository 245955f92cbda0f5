"""What the tests of the checkers share: operators made from NumPy functions, and tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import oplib
from oplib import Library
from oplib.dispatch.operator import Operator
from oplib.tensor.tensor import Tensor, tensor_from_array

__all__ = ["leaf", "operator", "scope", "tensor", "wrap"]

Array = np.ndarray[Any, Any]


def tensor(data: Any, dtype: Any = None) -> Tensor:
    """Return a tensor of its own data."""
    return tensor_from_array(np.array(data, dtype))


def leaf(data: Any, dtype: Any = None) -> Tensor:
    """Return a tensor that requires grad."""
    return tensor(data, dtype).requires_grad_()


@contextmanager
def scope() -> Iterator[Library]:
    """Yield a library of namespace ``t`` whose operators are gone afterwards."""
    with Library("t", "FRAGMENT") as lib:
        yield lib


def operator(
    lib: Library, schema: str, kernel: Callable[..., Any], **facets: Any
) -> Operator[..., Any]:
    """Define an operator: ``vjp``, ``fake`` and ``tags`` are its further facets."""
    op: Any = lib.define(
        schema, tags=facets.pop("tags", ()), effects=facets.pop("effects", None)
    ).op
    lib.impl(op, kernel, "CPU", **facets.pop("entry", {}))
    if "fake" in facets:
        oplib.register_fake(op, facets.pop("fake"), lib=lib)
    if "vjp" in facets:
        rule = facets.pop("vjp")
        if isinstance(rule, dict):
            oplib.register_vjp(op, lib=lib, **rule)
        else:
            oplib.register_vjp(op, rule, lib=lib)
    if "backward" in facets:
        oplib.register_autograd(
            op, facets.pop("backward"), setup_context=facets.pop("setup", None), lib=lib
        )
    assert not facets, facets
    return op  # type: ignore[no-any-return]


def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of arrays as one of tensors, outside autograd: NumPy code in a rule."""

    def detached(*tensors: Any) -> Any:
        result = function(*[t.detach().numpy() if isinstance(t, Tensor) else t for t in tensors])
        return tensor_from_array(np.asarray(result))

    return detached
