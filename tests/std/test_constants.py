"""Tensors made from data inside transforms: values of that level, fresh at every run."""

from __future__ import annotations

import numpy as np

import oplib
from oplib import FakeTensorMode, Tensor
from oplib.dispatch.keys import META


def accumulate(x: Tensor) -> Tensor:
    total = oplib.tensor([1.0, 2.0])
    total.add_(x)
    return total


def test_a_graph_holds_a_literal_and_each_run_starts_from_its_own() -> None:
    program = oplib.capture(accumulate, oplib.ones(2))
    assert "constant([1.0, 2.0])" in str(program.graph)
    assert "std.lift" in str(program.graph)
    for _ in range(3):
        assert program(oplib.ones(2)).tolist() == [2, 3]


def test_functionalize_starts_from_a_literal_too() -> None:
    run = oplib.functionalize(accumulate)
    assert [run(oplib.ones(2)).tolist() for _ in range(2)] == [[2, 3], [2, 3]]


def test_a_graph_does_not_see_later_changes_of_the_data() -> None:
    data = np.array([1.0, 2.0])
    program = oplib.capture(lambda x: x + oplib.tensor(data), oplib.ones(2))
    data[:] = 100
    assert program(oplib.zeros(2)).tolist() == [1, 2]


def test_a_literal_that_requires_grad_is_a_leaf_of_the_run() -> None:
    def f(x: Tensor) -> Tensor:
        w = oplib.tensor([3.0, 4.0], requires_grad=True)
        (w * x).sum().backward()
        assert w.grad is not None
        return w.grad

    assert f(oplib.ones(2)).tolist() == [1, 1]
    assert oplib.functionalize(f)(oplib.ones(2)).tolist() == [1, 1]
    assert oplib.capture(f, oplib.ones(2))(oplib.ones(2) * 2).tolist() == [2, 2]


def test_creation_inside_a_fake_mode_and_a_fake_rule_gives_fakes() -> None:
    mode = FakeTensorMode()
    with mode:
        assert oplib.tensor([1, 2]).array.mode is mode
        assert oplib.from_numpy(np.ones(3)).array.mode is mode
    with oplib.Library("consttest", "FRAGMENT") as lib:
        op = lib.define("f(Tensor x) -> Tensor").op
        op.register_fake(lambda x: oplib.tensor([1.0]) + x)
        assert op(mode.from_tensor(oplib.ones(2))).shape == (2,)


def test_a_dispatch_mode_does_not_see_how_a_literal_is_made() -> None:
    class Count(oplib.DispatchMode):
        calls = 0

        def handle(self, op, args, kwargs):
            self.calls += 1
            return op(*args, **kwargs)

    with Count() as count:
        x = oplib.tensor([1.0])
    assert count.calls == 0
    assert not x._keys & META


def test_a_shared_array_stays_shared_in_a_capture() -> None:
    array = np.array([1.0, 2.0])
    program = oplib.capture(lambda x: x + oplib.from_numpy(array), oplib.ones(2))
    array[:] = 5
    assert program(oplib.ones(2)).tolist() == [6, 6]
