"""Programs over aliased memory that are easily wrong, in every mode: their exact outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import AliasError, GuardError, SchemaError, Tensor
from oplib.graph import cse, reinplace
from tests.functionalize.helpers import assert_values, counted, define, every_mode, lib, tensor

__all__ = ["lib"]

# ---------------------------------------------------------------------- views written through


@every_mode
@pytest.mark.parametrize("on_input", [False, True], ids=["temporary", "input"])
def test_windows_with_gaps_keep_what_they_do_not_cover(mode: Any, on_input: bool) -> None:
    def f(x: Tensor) -> Tensor:
        y = x if on_input else x.clone()
        y.unfold(0, 2, 3).add_(10)
        return y

    assert_values(mode(f)(counted(8)), [10, 11, 2, 13, 14, 5, 16, 17])


@every_mode
def test_windows_that_overlap_are_refused_by_name(mode: Any) -> None:
    x = counted(8)
    with pytest.raises(AliasError, match="argument `x` overlaps itself"):
        mode(lambda x: x.unfold(0, 3, 1).add_(1))(x)
    assert_values(x, np.arange(8))
    assert x.inplace_version == 0


@every_mode
def test_a_write_through_an_expand_is_stored_once(mode: Any) -> None:
    def f(x: Tensor) -> Tensor:
        wide = x.expand((3, 4))
        wide.fill_(7)
        wide[0].add_(1)
        wide[1].add_(1)
        return x

    assert_values(mode(f)(counted(4)), [9, 9, 9, 9])


@every_mode
@pytest.mark.parametrize("part", [np.s_[2:], np.s_[4:], np.s_[::2]], ids=str)
def test_as_strided_of_a_view_counts_from_the_storage(mode: Any, part: Any) -> None:
    def f(x: Tensor) -> Tensor:
        x[part].as_strided((3,), (2,), 1).add_(10)
        return x

    assert_values(mode(f)(counted(8)), [0, 11, 2, 13, 4, 15, 6, 7])


@every_mode
def test_an_argument_with_a_stride_of_zero_is_read_and_filled(mode: Any) -> None:
    one = np.ones(1)
    wide = oplib.from_numpy(np.lib.stride_tricks.as_strided(one, (4,), (0,), writeable=True))
    assert_values(mode(lambda x: x * 2 + 1)(wide), [3, 3, 3, 3])
    mode(lambda x: x.fill_(5))(wide)
    np.testing.assert_array_equal(one, [5])


@every_mode
def test_a_copy_into_a_view_of_the_same_dtype_reaches_the_argument(mode: Any) -> None:
    def f(x: Tensor, v: Tensor) -> Tensor:
        x.view("float64").copy_(v)
        return x

    x = counted(4)
    assert mode(f)(x, tensor(9, 8, 7, 6)) is x
    assert_values(x, [9, 8, 7, 6])


@every_mode
def test_a_write_in_a_nested_function_is_seen_by_all_handles(mode: Any) -> None:
    def inner(v: Tensor) -> None:
        v.reshape(-1)[1:].mul_(10)

    def f(x: Tensor) -> Any:
        before = x[0]
        inner(x)
        return before, x.T

    row, transposed = mode(f)(counted(2, 2))
    assert_values(row, [0, 10])
    assert_values(transposed, [[0, 20], [10, 30]])


@every_mode
def test_disjoint_views_of_one_base_are_written_in_turn(mode: Any) -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        left, right = y[:2], y[2:]
        left.add_(right)
        right.sub_(left)
        return y

    assert_values(mode(f)(counted(4)), [2, 4, 0, -1])


# ---------------------------------------------------------------------- inputs over one buffer


def over_one_buffer() -> tuple[np.ndarray[Any, Any], Tensor, Tensor]:
    """Return six numbers, and tensors over the first four and the last four."""
    buffer = np.arange(6.0)
    return buffer, oplib.from_numpy(buffer[:4]), oplib.from_numpy(buffer[2:])


@every_mode
def test_a_view_of_an_argument_that_overlaps_a_written_one_is_a_view(mode: Any) -> None:
    buffer, x, z = over_one_buffer()

    def f(x: Tensor, z: Tensor) -> Tensor:
        x.add_(10)
        return z[:3]

    view = mode(f)(x, z)
    assert_values(view, [12, 13, 4])
    buffer[2] = -1
    assert view.numpy()[0] == -1
    assert view.inplace_version == x.inplace_version == z.inplace_version == 1


def test_a_program_for_disjoint_inputs_refuses_overlapping_ones() -> None:
    program = oplib.capture(lambda x, z: (x.add_(1), z * 2)[1], counted(4), counted(4))
    buffer, x, z = over_one_buffer()
    with pytest.raises(GuardError, match="shared memory"):
        program(x, z)
    np.testing.assert_array_equal(buffer, np.arange(6))


def test_a_program_for_overlapping_inputs_refuses_disjoint_ones() -> None:
    _, x, z = over_one_buffer()
    program = oplib.capture(lambda x, z: (x.add_(1), z * 2)[1], x, z)
    x, z = counted(4), counted(4)
    with pytest.raises(GuardError, match="shared memory"):
        program(x, z)
    assert x.inplace_version == 0


def test_a_program_runs_on_inputs_that_overlap_alike_elsewhere() -> None:
    _, x, z = over_one_buffer()
    program = oplib.capture(lambda x, z: (x.add_(10), z * 1)[1], x, z)
    buffer = np.arange(100.0)
    found = program(oplib.from_numpy(buffer[50:54]), oplib.from_numpy(buffer[52:56]))
    assert_values(found, [62, 63, 54, 55])


def test_memory_around_an_input_is_that_of_the_call_not_of_the_example() -> None:
    def f(x: Tensor) -> None:
        x.as_strided((2,), (1,), 0).fill_(9)

    example, called = np.arange(4.0), np.arange(4.0)
    program = oplib.capture(f, oplib.from_numpy(example[::2]))
    program(oplib.from_numpy(called[::2]))
    np.testing.assert_array_equal(example, [0, 1, 2, 3])
    np.testing.assert_array_equal(called, [9, 9, 2, 3])


# ---------------------------------------------------------------------- constants, outer tensors


def test_a_literal_that_a_program_writes_starts_afresh_in_every_call() -> None:
    program = oplib.capture(lambda x: oplib.tensor([1.0, 2.0]).add_(x), tensor(1, 1))
    for _ in range(2):
        assert_values(program(tensor(1, 1)), [2, 3])


def test_a_tensor_of_the_enclosing_scope_is_written_by_every_call() -> None:
    total = tensor(0, 0)
    program = oplib.capture(lambda x: (total.add_(x), total * 2)[1], tensor(1, 1))
    assert total.inplace_version == 0
    assert_values(program(tensor(1, 1)), [2, 2])
    assert_values(program(tensor(2, 2)), [6, 6])
    assert_values(total, [3, 3])
    assert total.inplace_version == 2


# ---------------------------------------------------------------------- operators that write


@every_mode
def test_an_optional_list_of_written_tensors_may_be_left_out(mode: Any, lib: Any) -> None:
    def kernel(y: Any, xs: Any) -> None:
        for x in xs or ():
            x += y

    op = define(lib, "each_(Tensor y, Tensor(a!)[]? xs=None) -> ()", kernel)
    x = counted(3)
    mode(lambda x, y: op(y))(x, tensor(5))
    assert_values(x, [0, 1, 2])
    mode(lambda x, y: op(y, [x[:1], x[1:]]))(x, tensor(5))
    assert_values(x, [5, 6, 7])


@every_mode
def test_a_returned_out_argument_is_that_argument(mode: Any, lib: Any) -> None:
    def kernel(x: Any, *, out: Any) -> Any:
        return np.add(x, 1, out=out)

    op = define(lib, "put(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", kernel)

    def f(x: Tensor) -> Any:
        given = oplib.zeros(3)
        back = op(x, out=given)
        back.mul_(2)
        return back, given

    back, given = mode(f)(counted(3))
    assert back is given
    assert_values(given, [2, 4, 6])


@every_mode
def test_an_operator_may_write_every_argument(mode: Any, lib: Any) -> None:
    def kernel(x: Any, y: Any) -> None:
        x += y
        y *= 0

    op = define(lib, "move_(Tensor(a!) x, Tensor(b!) y) -> ()", kernel)
    x, y = counted(2), tensor(5, 5)
    mode(lambda x, y: op(x, y))(x, y)
    assert_values(x, [5, 6])
    assert_values(y, [0, 0])


def test_a_written_wildcard_is_refused() -> None:
    with (
        pytest.raises(SchemaError, match="writes more than one set"),
        oplib.Library("w", "DEF") as w,
    ):
        w.define("f(Tensor(*!) x) -> ()")


# ---------------------------------------------------------------------- passes


def reinplaced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose graph writes into its own buffers wherever it may."""

    def call(*args: Any) -> Any:
        program = oplib.capture(function, *args)
        return program.with_graph(reinplace(program.graph))(*args)

    return call


def test_equal_reads_before_and_after_a_write_are_not_merged() -> None:
    def f(x: Tensor) -> Any:
        before = x[0] * 2
        x.add_(1)
        return before, x[0] * 2

    program = oplib.capture(f, counted(2, 2))
    before, after = program.with_graph(cse(program.graph))(counted(2, 2))
    assert_values(before, [0, 2])
    assert_values(after, [2, 4])


def test_reinplacing_spares_a_buffer_that_is_read_later_and_the_arguments(lib: Any) -> None:
    def kernel(y: Any, x: Any) -> None:
        for i in range(1, len(y)):
            y[i] += x[i - 1]

    op = define(lib, "scan_(Tensor(a!) y, Tensor x) -> ()", kernel)

    def f(x: Tensor) -> Any:
        y = x * 1
        old = y * 1
        op(y, y)  # reads what it writes: a running sum
        op(x, old)
        return y, old

    for mode in (lambda g: g, reinplaced):
        x = counted(4)
        y, old = mode(f)(x)
        assert_values(y, [0, 1, 3, 6])
        assert_values(old, [0, 1, 2, 3])
        assert_values(x, [0, 1, 3, 5])


def test_reinplacing_writes_into_a_view_of_a_temporary_alone() -> None:
    def f(x: Tensor) -> Any:
        y = x.clone()
        y[1:].add_(y[:-1])
        return y, x * 1

    x = counted(4)
    y, same = reinplaced(f)(x)
    assert_values(y, [0, 1, 3, 5])
    assert_values(same, [0, 1, 2, 3])
    assert_values(x, [0, 1, 2, 3])
