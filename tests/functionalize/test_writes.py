"""Writes of functional runs: views, overlaps, orders, casts, versions, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oplib
from oplib import AliasError, ArgumentError, AutogradError, Tensor
from tests.functionalize.helpers import (
    assert_values,
    counted,
    every_mode,
    functional_modes,
    tensor,
)


@every_mode
def test_reads_are_done_before_the_store(mode: Any) -> None:
    def f(x: Tensor) -> None:
        x[1:].add_(x[:-1])
        x.add_(x[0])

    x = tensor(1, 2, 3, 4)
    mode(f)(x)
    assert_values(x, [2, 4, 6, 8])


@every_mode
def test_step_i_of_a_loop_reads_what_step_i_minus_one_left(mode: Any) -> None:
    def f(x: Tensor) -> None:
        for i in range(3):
            x[i + 1].add_(x[i])

    x = tensor(1, 1, 1, 1)
    mode(f)(x)
    assert_values(x, [1, 2, 3, 4])


@every_mode
def test_rows_and_columns_that_cross_are_one_memory(mode: Any) -> None:
    def f(x: Tensor) -> None:
        x[1].add_(1)
        x[:, 0].mul_(2)

    x = counted(3, 2)
    mode(f)(x)
    assert_values(x, [[0, 1], [6, 4], [8, 5]])


@every_mode
def test_two_arguments_are_exchanged(mode: Any) -> None:
    def f(x: Tensor, y: Tensor) -> None:
        kept = x.clone()
        x.copy_(y)
        y.copy_(kept)

    x, y = tensor(1, 2), tensor(3, 4)
    mode(f)(x, y)
    assert_values(x, [3, 4])
    assert_values(y, [1, 2])


@every_mode
def test_a_copied_argument_keeps_the_value_it_was_copied_with(mode: Any) -> None:
    def f(x: Tensor, y: Tensor) -> None:
        y.copy_(x)
        x.add_(1)

    x, y = tensor(1, 2), tensor(3, 4)
    mode(f)(x, y)
    assert_values(x, [2, 3])
    assert_values(y, [1, 2])


@every_mode
def test_only_what_is_addressed_is_stored(mode: Any) -> None:
    buffer = np.arange(12.0)
    x = oplib.from_numpy(buffer[1:9:2])
    mode(lambda x: x[1:3].fill_(-1))(x)
    assert_values(buffer, [0, 1, 2, -1, 4, -1, 6, 7, 8, 9, 10, 11])


@every_mode
@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::-1],
        lambda a: a.T,
        lambda a: a[::2, ::-1],
        lambda a: a[1:, 1],
        lambda a: a.diagonal(),
    ],
    ids=["reversed", "transposed", "spaced", "column", "diagonal"],
)
def test_a_strided_argument_is_written_in_place(mode: Any, view: Any) -> None:
    buffer, expected = np.arange(12.0).reshape(4, 3), np.arange(12.0).reshape(4, 3)
    target = view(buffer)
    target.flags.writeable = True
    mode(lambda x: x.mul_(10))(oplib.from_numpy(target))
    wanted = view(expected)
    wanted.flags.writeable = True
    wanted *= 10
    assert_values(buffer, expected)


@every_mode
def test_overlapping_arguments_see_each_others_writes(mode: Any) -> None:
    buffer = np.arange(4.0)
    result = mode(lambda x, z: (x.add_(1), z * 2)[1])(
        oplib.from_numpy(buffer[:3]), oplib.from_numpy(buffer[1:])
    )
    assert_values(result, [4, 6, 6])
    assert_values(buffer, [1, 2, 3, 3])


@every_mode
def test_disjoint_arguments_of_one_buffer_do_not_interfere_but_share_a_version(mode: Any) -> None:
    buffer = np.arange(6.0)
    x, z = oplib.from_numpy(buffer[::2]), oplib.from_numpy(buffer[1::2])
    mode(lambda x, z: (x.add_(1), z.mul_(2)))(x, z)
    assert_values(buffer, [1, 2, 3, 6, 5, 10])
    assert x.inplace_version == z.inplace_version == 2


@every_mode
def test_arguments_of_different_dtypes_over_one_buffer_share_its_bytes(mode: Any) -> None:
    buffer = np.array([1.0, 2.0])
    floats, bits = oplib.from_numpy(buffer), oplib.from_numpy(buffer.view(np.int64))
    result = mode(lambda x, n: (x.mul_(2), n + 0)[1])(floats, bits)
    assert_values(result, np.array([2.0, 4.0]).view(np.int64))
    mode(lambda x, n: n[:1].fill_(0))(floats, bits)
    assert_values(buffer, [0, 4])


@every_mode
def test_parts_of_complex_numbers_are_views(mode: Any) -> None:
    def f(x: Tensor) -> None:
        x.real.add_(1)
        x.imag.mul_(2)

    x = tensor(1 + 2j, 3 + 4j, dtype=complex)
    mode(f)(x)
    assert_values(x, [2 + 4j, 4 + 8j])


@every_mode
def test_as_strided_reaches_other_memory_of_the_owner(mode: Any) -> None:
    buffer = np.arange(8.0)
    x = oplib.from_numpy(buffer[2:4])
    mode(lambda x: x.as_strided([2], [3], 1).fill_(-1))(x)
    assert_values(buffer, [0, -1, 2, 3, -1, 5, 6, 7])


@every_mode
def test_as_strided_beyond_the_owner_is_refused(mode: Any) -> None:
    with pytest.raises(AliasError):
        mode(lambda x: x.as_strided([9], [1], 0))(tensor(1, 2))


@every_mode
def test_a_uniform_value_fills_a_destination_that_overlaps_itself(mode: Any) -> None:
    x = counted(2, 1)
    mode(lambda x: x.expand(2, 3).fill_(7))(x)
    assert_values(x, [[7], [7]])
    y = counted(4)
    mode(lambda y: y.unfold(0, 2, 1).zero_())(y)
    assert_values(y, [0, 0, 0, 0])


@every_mode
def test_other_writes_to_such_a_destination_are_refused(mode: Any) -> None:
    x = counted(2, 1)
    with pytest.raises(AliasError, match="overlaps itself"):
        mode(lambda x: x.expand(2, 3).add_(1))(x)
    assert_values(x, [[0], [1]])


@every_mode
def test_an_expanded_argument_is_filled_once_per_address(mode: Any) -> None:
    buffer = np.arange(2.0)
    x = oplib.from_numpy(np.lib.stride_tricks.as_strided(buffer, (3, 2), (0, 8)))
    mode(lambda x: x.fill_(5))(x)
    assert_values(buffer, [5, 5])


@every_mode
def test_a_write_casts_within_its_kind_only(mode: Any) -> None:
    x = counted(2)
    mode(lambda x: x.copy_(oplib.ones(2, dtype="int64")))(x)
    assert_values(x, [1, 1])
    with pytest.raises(TypeError):
        mode(lambda n: n.copy_(oplib.ones(2)))(oplib.zeros(2, dtype="int64"))


@every_mode
def test_a_write_never_changes_a_shape(mode: Any) -> None:
    with pytest.raises(ArgumentError, match="never changes a shape"):
        mode(lambda x: x.add_(oplib.ones(3, 2)))(counted(2))


@every_mode
def test_every_writing_call_counts_once(mode: Any) -> None:
    x = counted(4)
    mode(lambda x: (x.add_(1), x[0].mul_(2), x[0:0].add_(1)))(x)
    assert x.inplace_version == 3


@functional_modes
def test_a_run_that_raises_changes_nothing(mode: Any) -> None:
    def f(x: Tensor, y: Tensor) -> None:
        x.add_(1)
        y[0].fill_(9)
        raise KeyError("late")

    x, y = counted(2), counted(2)
    with pytest.raises(KeyError, match="late"):
        mode(f)(x, y)
    assert_values(x, [0, 1])
    assert_values(y, [0, 1])
    assert x.inplace_version == y.inplace_version == 0


@every_mode
def test_a_read_only_argument_is_not_written(mode: Any) -> None:
    array = np.arange(2.0)
    array.flags.writeable = False
    x = oplib.from_numpy(array)
    with pytest.raises(AliasError, match="read-only"):
        mode(lambda x, y: (y.add_(1), x.add_(1)))(x, counted(2))


@every_mode
def test_a_leaf_is_not_written(mode: Any) -> None:
    x = counted(2).requires_grad_()
    with pytest.raises(AutogradError, match="leaf that requires grad"):
        mode(lambda x: x[:1].add_(1))(x)
    assert_values(x.detach(), [0, 1])


@every_mode
def test_a_view_of_a_leaf_is_not_written(mode: Any) -> None:
    x = counted(3).requires_grad_()
    with pytest.raises(AutogradError, match="leaf that requires grad"):
        mode(lambda v: v.add_(1))(x[1:])


@every_mode
def test_a_leaf_written_under_no_grad_keeps_its_history(mode: Any) -> None:
    def f(x: Tensor) -> Tensor:
        with oplib.no_grad():
            x.add_(1)
        return x * x

    x = tensor(1, 2).requires_grad_()
    mode(f)(x).backward(tensor(1, 1))
    assert_values(x.grad, [4, 6])


@every_mode
def test_a_gradient_flows_through_a_written_argument(mode: Any) -> None:
    def f(x: Tensor, w: Tensor) -> None:
        x[:1].mul_(w)

    leaf, w = tensor(1, 2).requires_grad_(), tensor(5).requires_grad_()
    x = leaf * 3
    mode(f)(x, w)
    x.backward(tensor(1, 1))
    assert_values(leaf.grad, [15, 3])
    assert_values(w.grad, [3])


@every_mode
def test_a_number_written_over_a_value_cuts_its_gradient(mode: Any) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.fill_(3)
        return y * x

    x = tensor(1, 2).requires_grad_()
    result = mode(f)(x)
    assert result.requires_grad
    result.backward(tensor(1, 1))
    assert_values(x.grad, [3, 3])


@every_mode
def test_views_of_one_tensor_as_arguments_stay_a_family(mode: Any) -> None:
    def f(x: Tensor, z: Tensor, w: Tensor) -> Tensor:
        x.mul_(w)
        return z * 1

    leaf, w = tensor(1, 2, 3).requires_grad_(), tensor(10, 20).requires_grad_()
    base = leaf * 1
    mode(f)(base[:2], base[1:], w).backward(tensor(1, 1))
    assert_values(leaf.grad, [0, 20, 1])
    assert_values(w.grad, [0, 2])
