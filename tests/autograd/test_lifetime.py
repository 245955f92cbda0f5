"""Memory, threads, and deep graphs."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

import oplib
from oplib import AutogradError
from tests.autograd.helpers import assert_values, leaf, no_collector, tensor
from tests.autograd.test_pylayer_calls import layer
from tests.autograd.test_pylayer_state import Cube, Exp

DEPTH = 100_000

# ---------------------------------------------------------------------- memory


def chain(x, alive):
    """Return a small network and remember its inner tensors weakly."""
    for _ in range(3):
        x = oplib.exp(x * 0.1)
        alive.append(weakref.ref(x))
        x = Cube.apply(x)
        alive.append(weakref.ref(x))
        x = Exp.apply(x * 0.01)
        alive.append(weakref.ref(x._storage))
        x = x.reshape(1, 1)[0]
        alive.append(weakref.ref(x))
        y = x * 1
        y[0:1].mul_(2)
        alive.append(weakref.ref(y))
        x = y
    return x


@pytest.mark.parametrize("run", ["none", "backward", "retain", "grad", "second order", "fail"])
def test_everything_is_freed_with_the_last_handle_without_the_collector(run):
    alive = []
    with no_collector():
        x = leaf(0.5)
        y = chain(x, alive)
        handle = y.register_hook(lambda g: g)
        if run == "backward":
            y.backward()
        elif run == "retain":
            y.backward(retain_graph=True)
            y.backward()
        elif run == "grad":
            oplib.grad(y, x)
        elif run == "second order":
            (g,) = oplib.grad(y, x, create_graph=True)
            oplib.grad(g, x)
            del g
        elif run == "fail":
            failing = layer(lambda ctx, t: t * 1, lambda ctx, g: 1 / 0).apply(y)
            with contextlib.suppress(ZeroDivisionError):
                failing.backward()
            del failing
        handle.remove()
        del y
        assert [reference for reference in alive if reference() is not None] == []


def test_saved_values_are_freed_node_by_node_during_a_run():
    counts, alive = [], []
    with no_collector():
        x = leaf(0.5)
        y = x
        for _ in range(5):
            y = oplib.tanh(y)
            alive.append(weakref.ref(y._storage))
            y.register_hook(lambda g: counts.append(sum(r() is not None for r in alive)))
        y = y * 1
        y.backward()
    assert counts == [5, 4, 3, 2, 1]


def test_gradients_are_freed_node_by_node_during_a_run():
    alive, peak = [], []

    def hook(g):
        peak.append(sum(reference() is not None for reference in alive))
        alive.append(weakref.ref(g._storage))

    with no_collector():
        y = leaf(0.5)
        for _ in range(20):
            y = oplib.sin(y)
            y.register_hook(hook)
        y.backward()
    assert max(peak) <= 2


def test_sums_of_gradients_are_freed_node_by_node_during_a_run():
    alive, peak = [], []

    def hook(g):
        peak.append(sum(reference() is not None for reference in alive))
        alive.append(weakref.ref(g._storage))

    with no_collector():
        y = leaf(0.5)
        for _ in range(20):
            y = y + oplib.sin(y)
            y.register_hook(hook)
        y.backward()
    assert len(peak) == 20
    assert max(peak) <= 2


def test_the_peak_of_a_deep_chain_is_what_the_formulas_need():
    count, size = 20, 100_000
    x = leaf(*np.linspace(0, 1, size))
    one = x.array.nbytes
    gc.collect()
    tracemalloc.start()
    try:
        y = x
        for _ in range(count):
            y = oplib.tanh(y)  # saves its result
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        y.backward(oplib.ones(size))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count * one <= held < (count + 0.5) * one
    # the seed of the caller and the run's copy, and the values of one rule: grad * (1 - y * y)
    assert peak <= held + 5.5 * one


def test_a_training_loop_with_a_gradient_penalty_keeps_nothing():
    with no_collector():
        w = leaf(0.3, 0.7)
        alive = []
        for step in range(100):
            x = tensor(1.0 + step, 2.0) * 0.01
            y = oplib.tanh(w * x).sum()
            (g,) = oplib.grad(y, w, create_graph=True)
            loss = y + (g * g).sum()
            alive.append(weakref.ref(loss))
            loss.backward()
            with oplib.no_grad():
                w.sub_(w.grad * 0.1)
            w.clear_grad()
            del g, y, loss
            assert sum(reference() is not None for reference in alive) == 0


# ---------------------------------------------------------------------- depth


@pytest.fixture
def low_limit():
    """The default recursion limit, from where the test stands."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


def deep(x, depth):
    y = x
    for _ in range(depth):
        y = y + 1.0
    return y


@pytest.mark.usefixtures("low_limit")
def test_a_deep_chain_is_built_run_and_released_without_recursion():
    x = leaf(1.0)
    y = deep(x, DEPTH)
    y.backward()
    assert_values(x.grad, [1.0])
    del y
    y = deep(x, DEPTH)
    del y


@pytest.mark.usefixtures("low_limit")
def test_a_deep_chain_is_differentiated_by_grad_and_twice():
    x = leaf(1.0)
    y = x * x
    for _ in range(DEPTH // 10):
        y = y + 1.0
    (g,) = oplib.grad(y, x, create_graph=True)
    (h,) = oplib.grad(g, x)
    assert_values(h, [2.0])


@pytest.mark.usefixtures("low_limit")
def test_a_deep_chain_of_layers_is_run_and_released_without_recursion():
    shift = layer(lambda ctx, t: t + 1.0, lambda ctx, g: g)
    x = leaf(1.0)
    y = x
    for _ in range(DEPTH // 4):
        y = shift.apply(y)
    y.backward(retain_graph=True)
    assert_values(x.grad, [1.0])
    del y


@pytest.mark.usefixtures("low_limit")
def test_a_deep_chain_of_writes_and_views_is_run_and_released_without_recursion():
    x = leaf(1.0, 1.0)
    y = x * 1
    for i in range(DEPTH // 50):
        y[i % 2 : i % 2 + 1].mul_(1.0)
    y.sum().backward(retain_graph=True)
    assert_values(x.grad, [1.0, 1.0])
    del y


# ---------------------------------------------------------------------- threads


def in_threads(count, function):
    """Run ``function(index)`` in several threads and re-raise what one raised."""
    errors = []

    def run(index):
        try:
            function(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.fixture
def switching():
    """Have threads switch as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
def test_concurrent_runs_lose_no_update_of_shared_leaves():
    x, w = leaf(1.0), leaf(2.0)
    shared = w * 3
    shared.retain_grads()
    base = x * 1

    def work(index):
        for _ in range(100):
            (x * 1.0).backward()
            (w * x).backward()
            (shared * 2 + base).backward(retain_graph=True)
            assert_values(oplib.grad(x * w, x)[0], [2.0])

    assert in_threads(8, work) == []
    assert_values(x.grad, [800.0 * (1 + 2 + 1)])
    assert_values(w.grad, [800.0 * (1 + 6)])
    assert_values(shared.grad, [1600.0])


def test_one_graph_may_be_run_by_several_threads_with_retain_graph():
    x = leaf(0.5)
    y = oplib.exp(x) * x

    def work(index):
        for _ in range(50):
            (g,) = oplib.grad(y, x, retain_graph=True)
            assert_values(g, np.exp([0.5]) * 1.5)
            y.backward(retain_graph=True)

    assert in_threads(4, work) == []
    assert_values(x.grad, 200 * np.exp([0.5]) * 1.5)


def test_without_retain_graph_a_run_that_meets_a_released_node_raises_cleanly():
    for _ in range(30):
        x = leaf(0.5)
        y = oplib.exp(x)
        for _ in range(20):
            y = oplib.sin(y) * y
        errors = in_threads(4, lambda index, y=y: y.backward())
        assert all(isinstance(error, AutogradError) for error in errors)
        assert len(errors) <= 3


def test_modes_and_hooks_of_one_thread_do_not_reach_another():
    seen = []

    def work(index):
        with oplib.autograd.saved_tensors_hooks(lambda t: (seen.append(index), t)[1], lambda t: t):
            for _ in range(50):
                oplib.exp(leaf(1.0))

    assert in_threads(2, work) == []
    assert sorted(seen) == [0] * 50 + [1] * 50
