"""How cost grows: with the length of a graph, the size of tensors, the length of lists, threads.

The kernel column is the same arithmetic on arrays, written by hand the way that is fastest.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np

import oplib
from oplib import Tensor

from .cases import OVER_KERNEL, SIZE, TOTAL, Calls, curve, vector
from .measure import Call
from .operators import mul, mul_list

__all__ = ["DEPTH", "by_hand"]

DEPTH: Final = 8
"""Operators of the memory-bound chain."""


@curve(
    "forward + backward of a chain, per operator, by length",
    [10**n for n in range(2, 7)],
    TOTAL,
    per=lambda length: length,
)
def graph_length(length: int) -> Calls:
    x, y = vector(requires_grad=True), vector()

    def run() -> None:
        value = x
        for _ in range(length):
            value = mul(value, y)
        value.backward()
        x.clear_grad()

    return {"oplib": run}


def by_hand(x: Any, weight: Any) -> Any:
    """Return the gradient of ``sum(sin(...(x * w)))`` as one writes it on arrays.

    Every factor is computed once, forward, and the gradient is multiplied in place.
    """
    values = []
    value = x
    for _ in range(DEPTH // 2):
        value = value * weight
        values.append(value)
        value = np.sin(value)
    grad = np.ones_like(value)
    for saved in reversed(values):
        grad *= np.cos(saved)
        grad *= weight
    return grad


@curve(
    "forward + backward of a memory-bound chain, per operator, by elements",
    [10**n for n in range(8)],
    OVER_KERNEL,
    per=lambda _: DEPTH,
)
def tensor_size(elements: int) -> Calls:
    array, weight = np.linspace(0.0, 1.0, elements), np.full(elements, 1.01)
    x, w = oplib.tensor(array, requires_grad=True), oplib.from_numpy(weight)

    def run() -> Tensor:
        value = x
        for _ in range(DEPTH // 2):
            value = (value * w).sin()
        [grad] = oplib.grad(value, [x])
        assert grad is not None
        return grad

    return {"oplib": run, "kernel": lambda: by_hand(array, weight)}


@curve("a call with a list, per element", [1, 10, 100, 1000], TOTAL, per=lambda length: length)
def list_length(length: int) -> Calls:
    tensors = [vector() for _ in range(max(length, 2))]
    return {"oplib": lambda: mul_list(tensors)}


# -- threads -----------------------------------------------------------------------------------


def in_threads(work: Call, count: int) -> Call:
    """Return a call that runs `work` in a number of threads at once."""

    def run() -> None:
        threads = [threading.Thread(target=work) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


@curve("large kernels in threads, per kernel", [1, 2, 4], TOTAL, per=lambda count: 4 * count)
def threads_large(count: int) -> Calls:
    array = np.linspace(0.0, 1.0, 1_000_000)
    x = oplib.from_numpy(array)

    def work() -> None:
        for _ in range(4):
            x.sin()

    def bare() -> None:
        for _ in range(4):
            np.sin(array)

    return {"oplib": in_threads(work, count), "kernel": in_threads(bare, count)}


@curve("small calls in threads, per call", [1, 2, 4], TOTAL, per=lambda count: 2000 * count)
def threads_small(count: int) -> Calls:
    x, y, a, b = vector(), vector(), np.ones(SIZE), np.ones(SIZE)

    def work() -> None:
        for _ in range(2000):
            mul(x, y)

    def bare() -> None:
        for _ in range(2000):
            np.multiply(a, b)

    return {"oplib": in_threads(work, count), "kernel": in_threads(bare, count)}
