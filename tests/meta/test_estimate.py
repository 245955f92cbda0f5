"""`oplib.meta.estimate`: bytes and calls of a program, against what a real run allocates."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import DataDependentError, Library, Tensor
from oplib.meta import OperatorCost, estimate

N = 200
MATRIX = N * N * 8


def chain(x: Tensor) -> Tensor:
    return ((x * 2).sin() @ x).sum(1)


def all_alive(x: Tensor) -> list[Tensor]:
    return [x * float(n) for n in range(4)]


def views_keep_their_base(x: Tensor) -> Tensor:
    row = (x * 2)[0]
    return (x * 3)[0] + row


def step(x: Tensor) -> Tensor:
    w = x.detach().requires_grad_()
    (w * x).tanh().sum().backward()
    return w.grad


def measured_peak(function: Callable[[Tensor], Any], x: Tensor) -> int:
    """Return the bytes that a real run has allocated at most at one time."""
    function(x)  # plans and lazily imported modules are not the program's
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        function(x)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("function", [chain, all_alive, views_keep_their_base])
def test_the_peak_is_what_a_real_run_allocates(function: Any) -> None:
    x = oplib.ones(N, N)
    found = estimate(function, x)
    assert found.peak_bytes == pytest.approx(measured_peak(function, x), rel=0.05)
    assert found.argument_bytes == MATRIX


def test_what_is_kept_for_backward_counts() -> None:
    x = oplib.ones(N, N)
    with_history = estimate(step, x).peak_bytes
    without = estimate(lambda x: (x * x).tanh().sum(), x).peak_bytes
    assert with_history > without
    assert with_history >= measured_peak(step, x) * 0.75


def test_calls_and_bytes_are_counted_by_operator() -> None:
    found = estimate(lambda x: ((x * 2) * 3).sum(), oplib.zeros(10, 10))
    assert found.operators == {"std::mul": OperatorCost(2, 1600), "std::sum": OperatorCost(1, 8)}
    assert list(found.operators) == ["std::mul", "std::sum"]


def test_views_and_writes_allocate_nothing() -> None:
    x = oplib.zeros(10, 10)
    found = estimate(lambda x: x.add_(1)[0].reshape(2, 5), x)
    assert found.peak_bytes == 0
    assert found.operators["std::add_"] == OperatorCost(1, 0)


def test_nothing_is_computed_and_no_argument_changes() -> None:
    x = oplib.zeros(3)
    with Library("estimated", "DEF") as lib:
        op = lib.define("never(Tensor x) -> Tensor").op
        op.register_kernel("cpu", lambda x: pytest.fail("a kernel ran"))
        op.register_fake(lambda x: oplib.empty_like(x))
        assert estimate(lambda x: op(x.add_(1)), x).operators["estimated::never"].calls == 1
    assert x.inplace_version == 0
    np.testing.assert_array_equal(x.numpy(), [0, 0, 0])


def test_arguments_may_be_meta_tensors_in_containers_and_share_memory() -> None:
    x = oplib.zeros(4, 4, device="meta")
    found = estimate(lambda given, *, scale: given["a"] * scale, {"a": x, "b": x[0]}, scale=2.0)
    assert found.argument_bytes == 128
    assert found.peak_bytes == 128


def test_tensors_the_function_closes_over_are_converted() -> None:
    weight = oplib.ones(4, 4)
    assert estimate(lambda x: x @ weight, oplib.zeros(4, 4)).peak_bytes == 128


def test_a_function_that_reads_a_value_is_refused() -> None:
    with pytest.raises(DataDependentError, match=r"bool\(\) needs the value"):
        estimate(lambda x: bool(x.sum()), oplib.zeros(2))


def test_an_estimate_prints_as_a_table() -> None:
    lines = str(estimate(lambda x: (x * 2).sum(), oplib.zeros(1000))).splitlines()
    assert lines[0] == "peak 8,008 bytes beside 8,000 of arguments"
    assert [line.split() for line in lines[1:]] == [
        ["operator", "calls", "bytes"],
        ["std::mul", "1", "8,000"],
        ["std::sum", "1", "8"],
    ]
