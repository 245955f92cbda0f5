"""What one operator call costs in counts: Python functions entered, and blocks its result keeps.

Times differ from machine to machine, counts do not. A change that makes a call dearer shows here as
another number; put the new one in the table if the price is meant.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import oplib

Call = Callable[[], Any]

COUNTS = {
    "two tensors": (3, 3),
    "a float more": (3, 3),
    "a list": (4, 3),
    "a number": (6, 3),
    "an array": (7, 3),
    "recorded": (4, 9),
    "written": (3, 0),
    "a view": (4, 3),
    "in a mode": (11, 3),
}
"""Kind of call -> Python functions entered (the kernel is one of them), blocks the result keeps."""

REPEATS = 200


class PassOn(oplib.DispatchMode):
    def handle(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return op(*args, **kwargs)


def multiply(x: Any, y: Any) -> Any:
    return np.multiply(x, y)


def add_into(x: Any, y: Any) -> None:
    np.add(x, y, out=x)


def calls(lib: oplib.Library) -> dict[str, Call]:
    """Return a call of each kind."""

    def define(schema: str, kernel: Any) -> Any:
        op = lib.define(schema).op
        lib.impl(op, kernel, "CPU")
        return op

    mul = define("mul(Tensor x, Tensor y) -> Tensor", multiply)
    scaled = define("scaled(Tensor x, float by) -> Tensor", multiply)
    listed = define("listed(Tensor[] xs) -> Tensor", lambda xs: np.multiply(xs[0], xs[1]))
    add_ = define("add_(Tensor(a!) x, Tensor y) -> Tensor(a!)", add_into)
    mul.register_vjp(x=lambda grad, y: grad * y, y=lambda grad, x: grad * x)
    x, y, array = oplib.ones(4), oplib.ones(4), np.ones(4)
    leaf = oplib.ones(4).requires_grad_()

    return {
        "two tensors": lambda: mul(x, y),
        "a float more": lambda: scaled(x, 0.5),
        "a list": lambda: listed([x, y]),
        "a number": lambda: mul(x, 2.0),
        "an array": lambda: mul(x, array),
        "recorded": lambda: mul(leaf, y),
        "written": lambda: add_(x, y),
        "a view": lambda: x.T,
        "in a mode": lambda: mul(x, y),
    }


def functions_entered(call: Call) -> int:
    """Return how many Python functions one call enters, besides `call` itself."""
    entered = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal entered
        entered += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(before)
    return entered - 1


def blocks_kept(call: Call) -> int:
    """Return how many blocks of memory a call allocates that live as long as its result."""
    results: list[Any] = [None] * REPEATS
    gc.collect()
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        for i in range(REPEATS):
            results[i] = call()
        after = sys.getallocatedblocks()
    finally:
        gc.enable()
    return round((after - before) / REPEATS)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions count otherwise")
@pytest.mark.parametrize("kind", COUNTS)
def test_a_call_enters_and_keeps_as_much_as_the_table_says(kind: str) -> None:
    with oplib.Library("counts", "FRAGMENT") as lib:
        call = calls(lib)[kind]
        with PassOn() if kind == "in a mode" else nullcontext():
            for _ in range(3):  # the first calls generate code and fill caches
                call()
            assert (functions_entered(call), blocks_kept(call)) == COUNTS[kind]


def test_a_function_more_and_a_block_more_are_noticed() -> None:
    def call() -> object:
        return [object()]

    def longer() -> object:
        return [object(), call()]

    assert functions_entered(longer) == functions_entered(call) + 1
    assert blocks_kept(longer) > blocks_kept(call)
