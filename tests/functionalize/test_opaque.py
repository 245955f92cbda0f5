"""Mutating operators without a functional twin: rebuilt arguments, lists, optionals, effects."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import AliasError, Tensor
from tests.functionalize.helpers import (
    assert_values,
    counted,
    define,
    every_mode,
    functional_modes,
    lib,
    tensor,
)

__all__ = ["lib"]


def inc_of(lib: Any) -> Any:
    """Return an operator that adds one to its argument."""

    def kernel(x: Any) -> None:
        x += 1

    return define(lib, "inc_(Tensor(a!) x) -> Tensor(a!)", kernel)


def axpy_of(lib: Any) -> Any:
    """Return an operator that reads what it has just written, where its arguments overlap."""

    def kernel(y: Any, x: Any) -> None:
        for i in np.ndindex(y.shape):
            y[i] += 2 * x[i]

    return define(lib, "axpy_(Tensor(a!) y, Tensor x) -> ()", kernel)


@every_mode
def test_a_second_call_starts_from_what_the_first_one_left(mode: Any, lib: Any) -> None:
    inc = inc_of(lib)
    x = counted(2, 2)
    mode(lambda x: (inc(x[1]), inc(x.T[0])))(x)
    assert_values(x, [[1, 1], [4, 4]])


@every_mode
def test_the_written_argument_itself_is_returned(mode: Any, lib: Any) -> None:
    inc = inc_of(lib)

    def f(x: Tensor) -> Any:
        y = x * 1
        assert inc(y) is y
        inc(inc(y)[0]).mul_(10)
        return y

    assert_values(mode(f)(counted(2, 2)), [[30, 40], [4, 5]])


@every_mode
def test_a_read_argument_inside_the_written_memory_sees_the_writes(mode: Any, lib: Any) -> None:
    axpy = axpy_of(lib)
    x = tensor(1, 1, 1, 1)
    mode(lambda x: axpy(x[1:], x[:-1]))(x)
    assert_values(x, [1, 3, 7, 15])


@every_mode
def test_an_operator_on_itself_is_exact(mode: Any, lib: Any) -> None:
    axpy = axpy_of(lib)
    y = mode(lambda x: (y := x + 0, axpy(y, y))[0])(tensor(1, 2))
    assert_values(y, [3, 6])


PARTS: dict[str, Any] = {
    "whole": lambda y: y,
    "row": lambda y: y[0],
    "other row": lambda y: y[1],
    "transposed": lambda y: y.T,
}


@pytest.mark.parametrize("names", [*itertools.product(PARTS, repeat=3)], ids="-".join)
def test_every_choice_of_aliases_among_three_arguments_is_exact(names: Any, lib: Any) -> None:
    def kernel(x: Any, y: Any, z: Any) -> Any:
        x += z.flat[0]
        y *= 2
        x[...] += y.flat[-1]
        return z.sum(keepdims=True)

    two = define(lib, "two_(Tensor(a!) x, Tensor(b!) y, Tensor z) -> Tensor", kernel)
    two.register_fake(lambda x, y, z: oplib.TensorSpec((1,) * z.ndim, z.dtype))

    def f(x: Tensor) -> Any:
        y = x * 1
        parts = [PARTS[name](y) for name in names]
        return two(*parts), y

    expected, memory = f(counted(2, 2))
    for run in (oplib.functionalize(f), oplib.capture(f, counted(2, 2))):
        found, after = run(counted(2, 2))
        assert_values(found, expected.numpy())
        assert_values(after, memory.numpy())


@every_mode
def test_lists_with_none_and_duplicates_are_written_in_place(mode: Any, lib: Any) -> None:
    def kernel(xs: Any, s: Any) -> None:
        for x in xs:
            if x is not None:
                x += s

    op = define(lib, "lst_(Tensor(a!)?[] xs, Tensor s) -> ()", kernel)
    x, z = counted(2, 2), tensor(5, 5)
    mode(lambda x, z: op([x[0], None, z, x, x[0]], tensor(10)))(x, z)
    assert_values(x, [[30, 31], [12, 13]])
    assert_values(z, [15, 15])
    assert (x.inplace_version, z.inplace_version) == (1, 1)


@every_mode
def test_an_empty_list_writes_nothing(mode: Any, lib: Any) -> None:
    op = define(lib, "lst_(Tensor(a!)[] xs, Tensor s) -> ()", lambda xs, s: None)
    x = tensor(1)
    mode(lambda x: op([], x))(x)
    assert x.inplace_version == 0


@every_mode
@pytest.mark.parametrize("given", [True, False])
def test_an_optional_written_argument_may_be_left_out(mode: Any, given: bool, lib: Any) -> None:
    def kernel(y: Any, x: Any) -> None:
        if x is not None:
            x += y

    op = define(lib, "opt_(Tensor y, Tensor(a!)? x=None) -> ()", kernel)
    x = tensor(1)
    mode(lambda x, y: op(y, x) if given else op(y))(x, tensor(5))
    assert_values(x, [6] if given else [1])


@every_mode
def test_an_argument_may_be_called_self(mode: Any, lib: Any) -> None:
    def kernel(self: Any, other: Any) -> None:
        self += other

    op = define(lib, "plus_(Tensor(a!) self, Tensor other) -> ()", kernel)
    x = tensor(1)
    assert mode(lambda x: op(x, other=x))(x) is None
    assert_values(x, [2])


@every_mode
def test_fresh_and_written_returns_stand_side_by_side(mode: Any, lib: Any) -> None:
    def kernel(x: Any, y: Any) -> Any:
        x += 1
        return x.sum(), x, y * 2

    op = define(lib, "mixed_(Tensor(a!) x, Tensor y) -> (Tensor, Tensor(a!), Tensor)", kernel)
    op.register_fake(
        lambda x, y: (oplib.TensorSpec((), x.dtype), oplib.TensorSpec(y.shape, y.dtype))
    )
    x = tensor(1, 2)
    total, same, doubled = mode(lambda x: op(x, x))(x)
    assert same is x
    assert_values(total, 5)
    assert_values(doubled, [4, 6])


@every_mode
def test_a_returned_view_of_the_written_buffer_is_one(mode: Any, lib: Any) -> None:
    def kernel(buffer: Any) -> Any:
        buffer += 1
        return buffer[1:]

    op = define(lib, "tail_(Tensor(a!) buffer) -> Tensor(a)", kernel)
    op.register_fake(lambda buffer: buffer[1:])
    x = tensor(1, 2, 3)
    tail = mode(op)(x)
    tail.mul_(10)
    assert_values(x, [2, 30, 40])


@every_mode
def test_an_out_argument_reads_old_values_and_is_returned(mode: Any, lib: Any) -> None:
    def kernel(x: Any, *, out: Any) -> None:
        out[...] = x * 2

    op = define(lib, "twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", kernel)
    x = tensor(1, 2, 3)
    result = mode(lambda x: op(x[1:], out=x[:2]))(x)
    assert_values(x, [4, 6, 3])
    assert np.shares_memory(result.numpy(), x.numpy())


@every_mode
def test_a_twin_serves_where_nothing_overlaps_and_the_kernel_where_something_does(
    mode: Any, lib: Any
) -> None:
    def kernel(x: Any, y: Any) -> None:
        for i in np.ndindex(x.shape):
            x[i] *= y[i]

    op = define(lib, "scale_(Tensor(a!) x, Tensor y) -> Tensor(a!)", kernel)
    op.register_functional(lambda x, y: x * y)
    x = tensor(2, 2, 2)
    mode(lambda x: op(x[1:], x[:-1]))(x)
    assert_values(x, [2, 4, 8])
    y = tensor(2, 3)
    mode(lambda x, y: op(y, x[:2]))(x, y)
    assert_values(y, [4, 12])


@every_mode
def test_an_operator_with_a_gradient_rule_is_differentiated_through_views(
    mode: Any, lib: Any
) -> None:
    def kernel(x: Any, y: Any) -> None:
        x += y

    op = define(lib, "plus_(Tensor(a!) x, Tensor y) -> Tensor(a!)", kernel)
    op.register_vjp(x=lambda grad: grad, y=lambda grad: grad)

    def f(x: Tensor, w: Tensor) -> Tensor:
        z = x * 2
        op(z[:1], w)
        return z * z

    x, w = tensor(1, 2).requires_grad_(), tensor(3).requires_grad_()
    mode(f)(x, w).backward(tensor(1, 1))
    assert_values(x.grad, [20, 16])
    assert_values(w.grad, [10])


@functional_modes
def test_effects_happen_in_their_order(mode: Any, lib: Any) -> None:
    log: list[float] = []
    op = define(lib, "log(Tensor x) -> ()", lambda x: log.append(float(x.sum())))
    op.register_fake(lambda x: None)

    def f(x: Tensor) -> None:
        op(x)
        x.add_(1)
        op(x * 3)

    run = mode(f)
    log.clear()
    run(tensor(1))
    assert log == [1.0, 6.0]


def test_an_effect_stays_in_a_graph_although_nothing_uses_it(lib: Any) -> None:
    op = define(lib, "log(Tensor x) -> ()", lambda x: None)
    program = oplib.capture(lambda x: op(x), tensor(1))
    assert "contract.log(x)" in str(program)


def test_a_mutating_call_whose_values_nobody_needs_leaves_the_graph(lib: Any) -> None:
    inc = inc_of(lib)
    program = oplib.capture(lambda x: (inc(x + 1), x * 2)[1], tensor(1))
    assert "inc_" not in str(program)


@every_mode
def test_a_destination_that_overlaps_itself_is_refused(mode: Any, lib: Any) -> None:
    inc = inc_of(lib)
    with pytest.raises(AliasError, match="overlaps itself"):
        mode(lambda x: inc(x.expand(3, 2)))(tensor(1, 2))


@every_mode
def test_an_array_is_no_destination(mode: Any, lib: Any) -> None:
    axpy = axpy_of(lib)
    with pytest.raises(oplib.ArgumentError, match="must be a Tensor"):
        mode(lambda x: axpy(np.ones(2), x))(tensor(1, 2))


@every_mode
def test_a_kernel_sees_the_strides_its_argument_has(mode: Any, lib: Any) -> None:
    seen: list[Any] = []

    def kernel(x: Any, y: Any) -> None:
        seen.append((x.strides, y.strides))

    op = define(lib, "look_(Tensor(a!) x, Tensor y) -> ()", kernel)
    mode(lambda x, y: op(x.T, y[::-1]))(counted(3, 2), counted(4, 2))
    assert seen[-1] == ((8, 16), (-16, 8))


def test_the_effects_of_a_view_operator_happen_once_and_in_order_in_every_mode() -> None:
    told: list[int] = []
    with oplib.scoped_library("view_effects") as lib:
        op = lib.define("tell(Tensor(a) x, int id) -> Tensor(a)", effects=("memory",)).op
        op.register_kernel("cpu", lambda x, id: (told.append(id), x.view())[1])
        op.register_fake(lambda x, id: x)

        def f(x: Any) -> Any:
            y = x * 1
            view = op(y, 1)
            op(view, 2)
            view.add_(1)
            return y, op(x, 3)

        x = oplib.ones(3)
        program = oplib.capture(f, x)
        assert told == []
        for run in (f, oplib.functionalize(f), program):
            y, view = run(x)
            assert y.tolist() == [2.0, 2.0, 2.0]
            assert view._storage is x._storage
            assert told == [1, 2, 3]
            told.clear()


def test_a_result_of_several_unknown_lengths_is_captured() -> None:
    with oplib.scoped_library("unknown_lengths") as lib:
        op = lib.define("frame(Tensor x) -> Tensor").op
        op.register_kernel("cpu", lambda x: np.ones((2, 3)))

        @op.register_fake
        def _(x: Any) -> Any:
            context = oplib.get_ctx()
            return oplib.empty((context.new_dynamic_size(), context.new_dynamic_size()))

        assert oplib.capture(lambda x: op(x).sum() * 2, oplib.ones(1))(oplib.ones(1)).item() == 12.0


def test_a_twin_that_returns_other_values_is_told_what_is_expected() -> None:
    with oplib.scoped_library("swapped_twin") as lib:
        op = lib.define("total_(Tensor(a!) x) -> Tensor").op
        op.register_kernel("cpu", lambda x: np.asarray((x.sum(), x.fill(0))[0]))
        op.register_fake(lambda x: oplib.empty(()))
        op.register_functional(lambda x: (x * 0, x.sum()))
        with pytest.raises(oplib.ReturnError, match="1 fresh results and then the new"):
            oplib.functionalize(lambda x: op(x * 1))(oplib.ones(3))
