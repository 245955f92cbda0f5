"""A call as a differentiable function: which arguments, in double precision, where it is defined.

Imports floors 0 to 7, `compare.py`, `problem.py`, `calls.py`. Read next: `checks/gradient.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any, Final

import numpy as np

from .._tree import leaves, tree_map
from ..dispatch.keys import AUTOGRAD_KEY, COMPOSITE_IMPLICIT
from ..dispatch.operator import Operator
from ..dtypes import is_inexact
from ..prims import clone
from ..tensor.tensor import Tensor, tensor_from_array
from .calls import Call
from .compare import Array
from .problem import upcast_dtype

__all__ = [
    "differentiable_names",
    "doubled",
    "functional_form",
    "has_rule",
    "in_domain",
    "ones_like",
    "subsets",
    "with_gradients",
]


def has_rule(op: Operator[..., Any]) -> bool:
    """Return whether gradients flow: by a rule, a decomposition, or the geometry of a view."""
    return bool(
        op.gradient_rule is not None
        or op.entries(COMPOSITE_IMPLICIT)
        or op.entries(AUTOGRAD_KEY)
        or op.schema.is_view
    )


def differentiable_names(call: Call) -> list[str]:
    """Return the inexact arguments of a call, without those declared non-differentiable."""
    op = call.subject.op
    rule = op.gradient_rule if op is not None else None
    none = set()
    if rule is not None and rule.style == "per_argument":
        none = {name for name, function in rule.functions.items() if function is None}
    names = [name for name, _ in call.inexact if name.partition("[")[0] not in none]
    return list(dict.fromkeys(names))


def ones_like(like: Tensor) -> Tensor:
    """Return an incoming gradient of ones."""
    return tensor_from_array(np.ones(like.shape, like.dtype))


def with_gradients(call: Call, names: set[str]) -> Call:
    """Set `requires_grad` on the named tensors of a call on copies."""
    for name, tensor in call.inexact:
        if name in names and not tensor.requires_grad:
            tensor.requires_grad_()
    return call


def doubled(call: Call) -> Call:
    """Return the call in double precision, or as it is if the operator refuses that."""
    made: dict[int, Tensor] = {}

    def double(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not is_inexact(leaf.dtype):
            return leaf
        dtype = upcast_dtype(leaf.dtype)
        if dtype == leaf.dtype:
            return leaf
        return made.setdefault(id(leaf), tensor_from_array(leaf.array.astype(dtype, order="K")))

    args, kwargs = tree_map(double, (call.args, dict(call.kwargs)))
    doubled = Call(call.subject, args, kwargs, call.label, call.kind)
    return doubled if not made or doubled.fresh().run().error is None else call


DOMAINS: Final[tuple[Callable[[Array], Array], ...]] = (
    np.abs,
    lambda x: np.asarray(x / (1 + np.abs(x))),
    lambda x: np.asarray(1 + np.abs(x)),
)
"""Ways to move values to where functions such as log, arcsin and arccosh are defined."""


def in_domain(call: Call) -> Call:
    """Return the call, or one with its real values moved to where the results are finite."""
    if _finite(call):
        return call
    for change in DOMAINS:

        def moved(leaf: Any, change: Any = change) -> Any:
            if not isinstance(leaf, Tensor) or leaf.dtype.kind != "f":
                return leaf
            return tensor_from_array(change(leaf.array))

        args, kwargs = tree_map(moved, (call.args, dict(call.kwargs)))
        other = Call(call.subject, args, kwargs, f"{call.label}, other values", call.kind)
        if _finite(other):
            return other
    return call


def _finite(call: Call) -> bool:
    outcome = call.fresh().run()
    return outcome.error is None and all(np.isfinite(a).all() for _, a in outcome.arrays)


def subsets(names: list[str]) -> Iterator[set[str]]:
    """Yield the subsets of arguments that need a gradient: all up to 4, else the telling ones."""
    if len(names) <= 4:
        for count in range(len(names), 0, -1):
            yield from map(set, combinations(names, count))
        return
    yield set(names)
    yield from ({name} for name in names)
    yield from (set(names) - {name} for name in names)


def functional_form(call: Call) -> Callable[..., Any]:
    """Return the subject as a function of its arguments: old values in, new values out."""
    subject, schema = call.subject, call.subject.schema
    if schema is None or not schema.is_mutable:
        return subject.function

    @functools.wraps(subject.function)
    def functional(*args: Any, **kwargs: Any) -> Any:
        called = Call(subject, args, kwargs)
        copies = {id(t): clone(t) for _, t in called.written()}
        args, kwargs = tree_map(lambda leaf: copies.get(id(leaf), leaf), (args, kwargs))
        result = subject.function(*args, **kwargs)
        fresh = [t for t in leaves(result) if not any(t is c for c in copies.values())]
        return [*copies.values(), *fresh]

    count = len(schema.mutated_arguments)
    names = [f"the new value of `{name}`" for name in schema.mutated_arguments]
    functional.result_name = lambda i: names[i] if i < count else f"result {i - count}"  # type: ignore[attr-defined]
    return functional
