"""The rows that count bytes: what a recorded operator holds, and what a backward run needs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import oplib
from oplib import PyLayer, Tensor

from .cases import vector
from .operators import Multiply, mul
from .probes import Probe
from .scaling import DEPTH, by_hand

__all__ = ["MEMORY", "bytes_per_node", "peak_of"]

_NODES: Final = 10_000
_ELEMENTS: Final = 1_000_000


class _Pass(PyLayer):
    """A layer that keeps nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def bytes_per_node(op: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Return the bytes that a recorded call leaves in memory, its small result included."""
    x, y = vector(requires_grad=True), vector()
    op(op(x, y), y)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        value = x
        for _ in range(_NODES):
            value = op(value, y)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / _NODES


def peak_of(work: Callable[[], object]) -> int:
    """Return the highest number of bytes that were allocated at once while `work` ran."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peak_of_backward(_: int) -> float:
    """Return the peak of a memory-bound chain, as a multiple of what it takes by hand."""
    array, weight = np.linspace(0.0, 1.0, _ELEMENTS), np.full(_ELEMENTS, 1.01)
    x, w = oplib.tensor(array, requires_grad=True), oplib.from_numpy(weight)

    def run() -> object:
        value = x
        for _ in range(DEPTH // 2):
            value = (value * w).sin()
        return oplib.grad(value, [x])

    run()
    return peak_of(run) / peak_of(lambda: by_hand(array, weight))


MEMORY: Final = (
    Probe(
        "bytes_node", "bytes a recorded operator leaves", "B", None, lambda _: bytes_per_node(mul)
    ),
    Probe(
        "bytes_layer",
        "bytes a recorded PyLayer leaves",
        "B",
        None,
        lambda _: bytes_per_node(Multiply.apply),
    ),
    Probe(
        "bytes_layer_nothing",
        "bytes a recorded PyLayer leaves that saves nothing",
        "B",
        None,
        lambda _: bytes_per_node(_Pass.apply),
    ),
    Probe("peak_backward", "peak memory of backward, over by hand", "×", None, peak_of_backward),
)
