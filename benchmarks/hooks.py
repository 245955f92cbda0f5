"""What hooks of tensors, of saved tensors, and retained gradients add to an operator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import oplib
from oplib import Tensor

from .cases import LENGTH, OVER_PLAIN, Calls, case, vector
from .measure import Call
from .operators import mul

__all__: list[str] = []


def _chain(
    each: Callable[[Tensor], Any] = lambda value: None,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Call:
    x, y = vector(requires_grad=True), vector()

    def run() -> None:
        value = x
        with around():
            for _ in range(LENGTH):
                value = mul(value, y)
                each(value)
        value.backward()
        x.clear_grad()

    return run


@case("a tensor hook that passes on, per operator", None, OVER_PLAIN, per=LENGTH)
def tensor_hook() -> Calls:
    return {
        "oplib": _chain(lambda value: value.register_hook(lambda grad: None)),
        "plain": _chain(),
    }


@case("a tensor hook that replaces the gradient, per operator", None, OVER_PLAIN, per=LENGTH)
def tensor_hook_replaces() -> Calls:
    return {
        "oplib": _chain(lambda value: value.register_hook(lambda grad: grad)),
        "plain": _chain(),
    }


@case("retain_grads, per operator", None, OVER_PLAIN, per=LENGTH)
def retained() -> Calls:
    return {"oplib": _chain(lambda value: value.retain_grads()), "plain": _chain()}


@case("saved_tensors_hooks that keep arrays, per operator", None, OVER_PLAIN, per=LENGTH)
def saved_hooks() -> Calls:
    def around() -> AbstractContextManager[Any]:
        return oplib.autograd.saved_tensors_hooks(lambda t: t.numpy(), oplib.from_numpy)

    return {"oplib": _chain(around=around), "plain": _chain()}
