"""What calls and backward runs cost, in counts: Python calls, sums, bytes; never in seconds.

A limit is what was counted when it was last lowered. A change that makes one fail made every call
slower: take it out of the hot path, or raise the limit knowingly.
"""

from __future__ import annotations

import sys
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import oplib
from tests.autograd.helpers import assert_values, leaf, no_collector, tensor
from tests.autograd.test_pylayer_calls import layer

Multiply = layer(
    lambda ctx, x, y: (ctx.save_for_backward(x, y), x * y)[1],
    lambda ctx, g: tuple(g * t for t in reversed(ctx.saved_tensors)),
)
Pass = layer(lambda ctx, x: x * 1.0, lambda ctx, g: g)


def calls_of(function: Callable[[], object]) -> Counter[str]:
    """Return how often each Python function of oplib ran, once everything is warm.

    Comprehensions are left out, because newer Pythons run them without a call.
    """
    for _ in range(3):
        function()
    found: Counter[str] = Counter()

    def profile(frame, event, argument):
        name = frame.f_code.co_name
        own = "oplib" in frame.f_code.co_filename and "tests" not in frame.f_code.co_filename
        if event == "call" and own and not name.startswith("<"):
            found[name] += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


def chain(op, x, length):
    value = x
    for _ in range(length):
        value = op(value)
    return value


def calls_per_node(op, run) -> float:
    """Return how many calls one more node costs in a backward run."""
    x = leaf(1.0, 2.0)

    def total(length):
        roots = iter([chain(op, x, length) for _ in range(4)])
        return calls_of(lambda: run(next(roots), x)).total()

    return min((total(30) - total(10)) / 20 for _ in range(3))  # a collection may run in between


# ---------------------------------------------------------------------- calls


def test_a_plain_operator_runs_bind_and_plan():
    x, y = tensor(1.0), tensor(2.0)
    assert calls_of(lambda: x * y).total() <= 2


def test_a_recorded_operator_runs_one_plan_more():
    x, y = leaf(1.0), tensor(2.0)
    assert calls_of(lambda: x * y).total() <= 3


def test_a_layer_that_saves_runs_seven_functions_with_its_operator():
    x, y = leaf(1.0), tensor(2.0)
    calls = calls_of(lambda: Multiply.apply(x, y))
    assert calls.total() <= 7, calls


def test_a_number_beside_a_tensor_keeps_the_short_way_of_a_layer():
    scale = layer(lambda ctx, x, by: x * by, lambda ctx, g: g)
    x, y = leaf(1.0), tensor(2.0)
    with_tensor = calls_of(lambda: scale.apply(x, y)).total()
    other = calls_of(lambda: scale.apply(x, 2))
    assert other["apply_any"] == other["record_outputs"] == 0
    assert other.total() <= with_tensor + 3  # what `x * 2` lifts


def test_a_keyword_takes_the_general_way_of_a_layer():
    scale = layer(lambda ctx, x, by: x * by, lambda ctx, g: g)
    x = leaf(1.0)
    assert calls_of(lambda: scale.apply(x, by=2))["apply_any"] == 1


def test_the_run_of_one_node_has_a_fixed_cost():
    x = leaf(1.0)
    roots = iter([x * 2.0 for _ in range(4)])
    calls = calls_of(lambda: next(roots).backward())
    assert calls.total() <= 20, calls
    assert calls["_count"] == calls["add"] == 0


@pytest.mark.parametrize(
    ("op", "limit"), [(lambda t: t * 2.0, 4), (Pass.apply, 1), (lambda t: t + t, 6)]
)
def test_a_node_more_costs_its_rule_and_no_more(op, limit):
    assert calls_per_node(op, lambda root, x: root.backward()) <= limit


def test_a_node_more_costs_grad_no_more_than_backward_and_its_search():
    op = Pass.apply
    backward = calls_per_node(op, lambda root, x: root.backward())
    assert calls_per_node(op, lambda root, x: oplib.grad(root, x)) <= backward + 3


def test_the_calls_of_a_run_grow_linearly_with_its_nodes():
    x = leaf(1.0)

    def total(length):
        roots = iter([chain(lambda t: (t + t) * 0.5, x, length) for _ in range(4)])
        return calls_of(lambda: next(roots).backward()).total()

    ten, hundred, thousand = (total(n) for n in (10, 100, 1000))
    assert (thousand - hundred) / 900 == (hundred - ten) / 90


def test_a_call_more_is_counted():
    def forward(ctx, x):
        return oplib.is_grad_enabled() or x * 1.0

    more = layer(forward, lambda ctx, g: g)
    x = leaf(1.0)
    assert calls_of(lambda: more.apply(x)).total() == calls_of(lambda: Pass.apply(x)).total() + 1


# ---------------------------------------------------------------------- sums and copies


@pytest.mark.parametrize("uses", [10, 10_000])
def test_the_uses_of_a_tensor_are_summed_once_each_in_one_buffer(uses):
    x = leaf(1.0)
    total = x
    for _ in range(uses):
        total = total + x
    root = total

    def run():
        root.backward(retain_graph=True)
        x.clear_grad()

    calls = calls_of(run)
    assert (calls["add_gradients"], calls["add_into"]) == (1, uses - 1)


def given(make):
    """Return a leaf whose gradient `make` computes from the incoming one, after a run."""
    x = leaf(1.0, 2.0)
    layer(lambda ctx, t: t * 1.0, lambda ctx, g: make(g)).apply(x).backward()
    return x


def test_a_leaf_takes_a_gradient_that_nobody_else_holds():
    storages = []

    def make(g):
        made = g * 2.0
        storages.append(weakref.ref(made._storage))
        return made

    x = given(make)
    assert x.grad._storage is storages[0]()
    assert_values(x.grad, [2.0, 2.0])


KEPT: list[object] = []


@pytest.mark.parametrize(
    "keep",
    [
        lambda g: g,
        lambda g: g.array,
        lambda g: g.array[:1],
        lambda g: memoryview(g.array),
        lambda g: g.detach(),
        lambda g: g[:1],
        lambda g: g.numpy(),
    ],
    ids=["handle", "array", "view of the array", "buffer", "detached", "view", "numpy"],
)
def test_a_leaf_copies_a_gradient_that_somebody_else_holds(keep):
    def make(g):
        made = g * 2.0
        KEPT.append(keep(made))
        KEPT.append(made.array.__array_interface__["data"][0])
        return made

    x = given(make)
    _, address = KEPT
    KEPT.clear()
    assert x.grad.array.__array_interface__["data"][0] != address
    assert_values(x.grad, [2.0, 2.0])


@pytest.mark.parametrize(
    "make",
    [lambda g: oplib.zeros([2, 2])[0], lambda g: oplib.from_numpy(np.ones(3)[:2])],
    ids=["view", "array from outside"],
)
def test_a_leaf_copies_a_gradient_that_is_part_of_a_buffer(make):
    x = given(make)
    assert x.grad.array.base is None
    x.grad.add_(1.0)


def test_two_leaves_that_receive_one_gradient_hold_two():
    x, y = leaf(1.0), leaf(2.0)
    layer(lambda ctx, a, b: a + b, lambda ctx, g: (g, g)).apply(x, y).backward()
    x.grad.add_(5.0)
    assert_values(x.grad, [6.0])
    assert_values(y.grad, [1.0])


# ---------------------------------------------------------------------- bytes


def bytes_per_node(op) -> float:
    x = leaf(1.0)
    chain(op, x, 10)
    with no_collector():
        tracemalloc.start()
        try:
            short = chain(op, x, 100)
            low = tracemalloc.get_traced_memory()[0]
            long = chain(op, x, 1100)
            high = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        del short, long
    return (high - low) / 1100


@pytest.mark.parametrize(
    ("op", "limit"), [(lambda t: t * 1.0, 700), (lambda t: t - t, 400), (Pass.apply, 750)]
)
def test_a_node_takes_some_hundred_bytes(op, limit):
    assert limit / 2 < bytes_per_node(op) <= limit


@pytest.mark.slow
def test_a_million_operators_are_built_run_and_released_without_recursion():
    x = leaf(1.0)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(200)
    try:
        root = chain(lambda t: t + 1.0, x, 1_000_000)
        root.backward()
        del root
        unused = chain(lambda t: t + 1.0, x, 1_000_000)
        del unused
    finally:
        sys.setrecursionlimit(before)
    assert_values(x.grad, [1.0])


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_run_leaves_nothing_behind(create_graph):
    x = leaf(1.0)

    def run():
        root = Multiply.apply(x * 2.0, x)
        oplib.grad(root, x, retain_graph=True, create_graph=create_graph)
        root.backward()
        x.clear_grad()

    with no_collector():
        tracemalloc.start()
        try:
            for _ in range(2500):  # fills the free lists of the interpreter
                run()
            low = tracemalloc.get_traced_memory()[0]
            for _ in range(100):
                run()
            grown = tracemalloc.get_traced_memory()[0] - low
        finally:
            tracemalloc.stop()
    assert grown < 1000
