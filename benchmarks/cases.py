"""The rows that are timed: what is called, what it is compared with, and what it may cost.

A case is a function that returns callables by name. ``oplib`` is what the row is about and
``kernel`` the same work on bare arrays; other names are there to be subtracted. The weights say
which combination of the times of one round the budget limits.

Read next: `suites.py`, which names the other suites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import oplib
from oplib import Tensor

from .measure import Call
from .operators import (
    Multiply,
    add_,
    add_into,
    mul,
    mul_list,
    mul_scalar,
    multiply,
    multiply_list,
    multiply_scalar,
    rule,
)

__all__ = [
    "CASES",
    "LENGTH",
    "OVER_KERNEL",
    "OVER_PLAIN",
    "SIZE",
    "TOTAL",
    "WRITES",
    "Calls",
    "Case",
    "case",
    "curve",
    "vector",
]

Calls = dict[str, Call]

SIZE: Final = 4
"""Elements of a vector: small, so that the arithmetic costs nothing."""
LENGTH: Final = 100
"""Operators in a chain."""
WRITES: Final = 10
"""In-place operators in a row on one tensor."""

OVER_KERNEL: Final = {"oplib": 1.0, "kernel": -1.0}
TOTAL: Final = {"oplib": 1.0}
OVER_PLAIN: Final = {"oplib": 1.0, "plain": -1.0}


@dataclass(frozen=True)
class Case:
    """One row; all its times are divided by `per`, the operators in one call.

    A row with `at` is the point of a curve there: its key and title end in that number.
    """

    key: str
    title: str
    budget: float | None
    setup: Callable[[], Calls]
    weights: Mapping[str, float]
    per: int = 1
    at: float | None = None

    @property
    def suite(self) -> str:
        """The module the row is written in."""
        return self.setup.__module__.rpartition(".")[2]


CASES: Final[list[Case]] = []


def case(
    title: str, budget: float | None, weights: Mapping[str, float] = OVER_KERNEL, per: int = 1
) -> Callable[[Callable[[], Calls]], Callable[[], Calls]]:
    """Enter the decorated function in `CASES`, under its name."""

    def enter(setup: Callable[[], Calls]) -> Callable[[], Calls]:
        CASES.append(Case(setup.__name__, title, budget, setup, weights, per))
        return setup

    return enter


def curve(
    title: str,
    points: Iterable[int],
    weights: Mapping[str, float] = TOTAL,
    per: Callable[[int], int] = lambda at: 1,
) -> Callable[[Callable[[int], Calls]], Callable[[int], Calls]]:
    """Enter a row per point; the decorated function makes the callables for one."""

    def enter(setup: Callable[[int], Calls]) -> Callable[[int], Calls]:
        for at in points:

            def calls(at: int = at) -> Calls:
                return setup(at)

            calls.__module__ = setup.__module__
            key, label = f"{setup.__name__}_{at}", f"{title}: {at:,}"
            CASES.append(Case(key, label, None, calls, weights, per(at), at))
        return setup

    return enter


def vector(requires_grad: bool = False) -> Tensor:
    """Return a vector that stays one under all the products of a chain."""
    return oplib.tensor(np.ones(SIZE), requires_grad=requires_grad)


def zeros() -> Tensor:
    """Return what can be added in place for ever."""
    return oplib.tensor(np.zeros(SIZE))


# -- calls without a gradient ------------------------------------------------------------------


@case("no gradient: two tensors, over the kernel", 0.45)
def call() -> Calls:
    x, y, a, b = vector(), vector(), np.ones(SIZE), np.ones(SIZE)
    return {"oplib": lambda: mul(x, y), "kernel": lambda: multiply(a, b)}


@case("no gradient: a scalar more", 0.1, {"oplib": 1, "kernel": -1, "plain": -1, "plain kernel": 1})
def call_scalar() -> Calls:
    x, y, a, b = vector(), vector(), np.ones(SIZE), np.ones(SIZE)
    return {
        "oplib": lambda: mul_scalar(x, y, 0.5),
        "kernel": lambda: multiply_scalar(a, b, 0.5),
        "plain": lambda: mul(x, y),
        "plain kernel": lambda: multiply(a, b),
    }


@case("no gradient: a list more", 0.3, {"oplib": 1, "kernel": -1, "plain": -1, "plain kernel": 1})
def call_list() -> Calls:
    x, y, a, b = vector(), vector(), np.ones(SIZE), np.ones(SIZE)
    return {
        "oplib": lambda: mul_list([x, y]),
        "kernel": lambda: multiply_list([a, b]),
        "plain": lambda: mul(x, y),
        "plain kernel": lambda: multiply(a, b),
    }


@case("tensor * number, over the kernel", 1.3)
def number() -> Calls:
    x, a = vector(), np.ones(SIZE)
    return {"oplib": lambda: x * 2.0, "kernel": lambda: a * 2.0}


@case("tensor * ndarray, over the kernel", 1.3)
def ndarray() -> Calls:
    x, a, b = vector(), np.ones(SIZE), np.ones(SIZE)
    return {"oplib": lambda: x * b, "kernel": lambda: a * b}


@case("one DispatchMode that passes calls on, over none", 2.5, OVER_PLAIN, per=LENGTH)
def mode() -> Calls:
    x, y = vector(), vector()

    class PassOn(oplib.DispatchMode):
        def handle(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return op(*args, **kwargs)

    def calls() -> None:
        for _ in range(LENGTH):
            mul(x, y)

    def calls_in_mode() -> None:
        with PassOn():
            calls()

    return {"oplib": calls_in_mode, "plain": calls}


# -- calls with a gradient ---------------------------------------------------------------------


@case("recording: two tensors, over the kernel", 0.95)
def recording() -> Calls:
    x, y, a, b = vector(requires_grad=True), vector(), np.ones(SIZE), np.ones(SIZE)
    return {"oplib": lambda: mul(x, y), "kernel": lambda: multiply(a, b)}


def chain(op: Callable[[Any, Any], Any], both: bool) -> Call:
    """Return a run forward and backward through a chain of `op`."""
    x, y = vector(requires_grad=True), vector(requires_grad=both)

    def run() -> None:
        value = x
        for _ in range(LENGTH):
            value = op(value, y)
        value.backward()
        x.clear_grad()
        y.clear_grad()

    return run


def kernel_chain() -> None:
    """Run the forward part of the chain on bare arrays."""
    value, b = np.ones(SIZE), np.ones(SIZE)
    for _ in range(LENGTH):
        value = multiply(value, b)


@case("chain of 100, forward + backward: custom, one gradient", 3.2, TOTAL, per=LENGTH)
def chain_one() -> Calls:
    return {"oplib": chain(mul, both=False), "kernel": kernel_chain}


@case("chain of 100, forward + backward: custom, both gradients", 5.2, TOTAL, per=LENGTH)
def chain_both() -> Calls:
    return {"oplib": chain(mul, both=True), "kernel": kernel_chain}


@case("chain of 100, forward + backward: built-in, one gradient", 3.2, TOTAL, per=LENGTH)
def chain_built_in() -> Calls:
    return {"oplib": chain(lambda x, y: x * y, both=False), "kernel": kernel_chain}


@case("PyLayer.apply with a gradient", 3.0, TOTAL)
def pylayer() -> Calls:
    x, y, a, b = vector(requires_grad=True), vector(), np.ones(SIZE), np.ones(SIZE)
    return {"oplib": lambda: Multiply.apply(x, y), "kernel": lambda: multiply(a, b)}


@case("PyLayer, forward + backward", 7.0, TOTAL)
def pylayer_backward() -> Calls:
    x, y, a, b = vector(requires_grad=True), vector(), np.ones(SIZE), np.ones(SIZE)

    def run() -> None:
        Multiply.apply(x, y).backward()
        x.clear_grad()

    return {"oplib": run, "kernel": lambda: multiply(a, b)}


# -- writes and views --------------------------------------------------------------------------


@case("in-place: custom, over the kernel", 0.4)
def in_place() -> Calls:
    x, y, a, b = vector(), zeros(), np.ones(SIZE), np.zeros(SIZE)
    return {"oplib": lambda: add_(x, y), "kernel": lambda: add_into(a, b)}


@case("in-place: built-in, over the kernel", 0.9)
def in_place_built_in() -> Calls:
    x, y, a, b = vector(), zeros(), np.ones(SIZE), np.zeros(SIZE)
    return {"oplib": lambda: x.add_(y), "kernel": lambda: add_into(a, b)}


def writes_into_result(write: Callable[[Any, Any], Any], count: int) -> Call:
    """Return `count` recorded writes into a fresh result."""
    x, y, z = vector(requires_grad=True), vector(), zeros()

    def run() -> None:
        value = mul(x, y)
        for _ in range(count):
            write(value, z)

    return run


def kernel_writes() -> Call:
    """Return the writes on bare arrays."""
    a, b = np.ones(SIZE), np.zeros(SIZE)

    def run() -> None:
        for _ in range(WRITES):
            add_into(a, b)

    return run


RECORDED_WRITES: Final = {"oplib": 1.0, "plain": -1.0, "kernel": -1.0}


@case("in-place, recorded: custom, over the kernel", 1.2, RECORDED_WRITES, per=WRITES)
def in_place_recorded() -> Calls:
    return {
        "oplib": writes_into_result(add_, WRITES),
        "plain": writes_into_result(add_, 0),
        "kernel": kernel_writes(),
    }


@case("view, x[1:]", 1.0, TOTAL)
def view() -> Calls:
    x, a = vector(), np.ones(SIZE)
    return {"oplib": lambda: x[1:], "kernel": lambda: a[1:]}


@case("view, x.T", 1.0, TOTAL)
def view_transposed() -> Calls:
    x, a = oplib.ones((2, 2)), np.ones((2, 2))
    return {"oplib": lambda: x.T, "kernel": lambda: a.T}


@case("view, recorded, x[1:]", 1.5, TOTAL)
def view_recorded() -> Calls:
    x, a = vector(requires_grad=True), np.ones(SIZE)
    return {"oplib": lambda: x[1:], "kernel": lambda: a[1:]}


@case("call with a view, over one without", 0.5, OVER_PLAIN)
def view_argument() -> Calls:
    x, y, v = vector(), vector(), oplib.tensor(np.ones(2 * SIZE))[:SIZE]
    return {"oplib": lambda: mul(v, y), "plain": lambda: mul(x, y)}


@case("call with a recorded view, over a recorded call", 0.5, OVER_PLAIN)
def view_argument_recorded() -> Calls:
    x, y = vector(requires_grad=True), vector()
    v = oplib.tensor(np.ones(2 * SIZE), requires_grad=True)[:SIZE]
    return {"oplib": lambda: mul(v, y), "plain": lambda: mul(x, y)}


def writes_through_view(count: int, backward: bool) -> Call:
    """Return `count` recorded writes through a view of a fresh result, perhaps with backward."""
    x, y, z = vector(requires_grad=True), vector(), oplib.tensor(np.zeros(SIZE - 1))

    def run() -> None:
        value = mul(x, y)
        part = value[1:]
        for _ in range(count):
            part.add_(z)
        if backward:
            value.backward()
            x.clear_grad()

    return run


@case("write through a recorded view", 3.0, OVER_PLAIN, per=WRITES)
def view_write() -> Calls:
    return {
        "oplib": writes_through_view(WRITES, backward=False),
        "plain": writes_through_view(0, backward=False),
    }


@case(
    "write through a recorded view: its backward",
    40.0,
    {"oplib": 1, "plain": -1, "forward": -1, "plain forward": 1},
    per=WRITES,
)
def view_write_backward() -> Calls:
    return {
        "oplib": writes_through_view(WRITES, backward=True),
        "plain": writes_through_view(0, backward=True),
        "forward": writes_through_view(WRITES, backward=False),
        "plain forward": writes_through_view(0, backward=False),
    }


# -- fake tensors and graphs -------------------------------------------------------------------


@case("fake call, over the rule", 2.5, {"oplib": 1, "rule": -1})
def fake() -> Calls:
    with oplib.FakeTensorMode():
        x, y = oplib.empty((SIZE,)), oplib.empty((SIZE,))
    return {"oplib": lambda: mul(x, y), "rule": lambda: rule(x, y)}


def pure(x: Tensor, y: Tensor) -> Tensor:
    """Return a chain of functional operators."""
    for _ in range(LENGTH):
        x = mul(x, y)
    return x


def mutating(x: Tensor, y: Tensor) -> Tensor:
    """Return a chain that also writes and writes through views: five operators a turn."""
    for _ in range(LENGTH // 5):
        x = mul(x, y)
        x.add_(y)
        x[1:].add_(y[1:])
    return x


@case("capture with functionalization, per operator: pure", 20.0, TOTAL, per=LENGTH)
def capture() -> Calls:
    x, y = vector(), vector()
    return {"oplib": lambda: oplib.capture(pure, x, y)}


@case("capture with functionalization, per operator: writes and views", 20.0, TOTAL, per=LENGTH)
def capture_mutating() -> Calls:
    x, y = vector(), vector()
    return {"oplib": lambda: oplib.capture(mutating, x, y)}
