"""Handles that change their place in a functional run: the caller's handles follow at its end."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import AliasError, GuardError, Tensor
from oplib.program import load, save
from tests.functionalize.helpers import assert_values, counted, every_mode, functional_modes, tensor


@every_mode
def test_an_input_that_moves_and_is_written_moves_for_the_caller(mode: Any) -> None:
    x = counted(4, 2)
    buffer = x.numpy()

    def f(x: Tensor) -> Tensor:
        x.transpose_()
        x[0].add_(1)
        return x

    assert mode(f)(x) is x
    assert_values(x, [[1, 3, 5, 7], [1, 3, 5, 7]])
    assert_values(buffer, [[1, 1], [3, 3], [5, 5], [7, 7]])
    assert x.strides == (8, 16)
    assert x.inplace_version == 1


@every_mode
def test_a_move_alone_writes_nothing(mode: Any) -> None:
    x = counted(4, 2)
    x.numpy().flags.writeable = False
    mode(lambda x: (x.swapaxes_(0, 1), x.unsqueeze_(0), None)[2])(x)
    assert x.shape == (1, 2, 4)
    assert x.inplace_version == 0


@every_mode
def test_an_older_view_of_a_tensor_that_moved_stays(mode: Any) -> None:
    def f(x: Tensor) -> Any:
        y = x.clone()
        flat = y.reshape(8)
        y.transpose_()
        flat.add_(1)
        y[1].mul_(2)
        return y, flat

    y, flat = mode(f)(counted(4, 2))
    assert_values(flat, [1, 4, 3, 8, 5, 12, 7, 16])
    assert_values(y, [[1, 3, 5, 7], [4, 8, 12, 16]])
    assert np.shares_memory(y.numpy(), flat.numpy())


@every_mode
def test_a_view_resized_at_an_offset_is_contiguous_there(mode: Any) -> None:
    def f(x: Tensor) -> Any:
        part = x[1:3].resize_(3)
        part.mul_(10)
        return part

    x = counted(4, 2)
    part = mode(f)(x)
    assert_values(part, [20, 30, 40])
    assert_values(x, [[0, 1], [20, 30], [40, 5], [6, 7]])
    assert np.shares_memory(part.numpy(), x.numpy())


@every_mode
def test_set_leaves_older_views_on_the_old_memory(mode: Any) -> None:
    def f(x: Tensor) -> Any:
        y, z = x.clone(), x + 1
        old = y[0]
        y.set_(z)
        y.add_(1)
        old.mul_(3)
        return y, z, old

    y, z, old = mode(f)(counted(2, 2))
    assert_values(z, [[2, 3], [4, 5]])
    assert_values(y, z.numpy())
    assert_values(old, [0, 3])
    assert y is not z
    assert np.shares_memory(y.numpy(), z.numpy())


@every_mode
def test_an_input_set_to_another_lies_there_for_the_caller(mode: Any) -> None:
    x, z = tensor(1, 2), tensor(3, 4)
    old = x.numpy()

    def f(x: Tensor, z: Tensor) -> None:
        x.set_(z)
        x.add_(1)

    mode(f)(x, z)
    assert_values(x, [4, 5])
    assert_values(old, [1, 2])
    assert np.shares_memory(x.numpy(), z.numpy())
    assert (x.inplace_version, z.inplace_version) == (1, 1)


@every_mode
def test_two_inputs_that_exchange_their_places(mode: Any) -> None:
    x, z = tensor(1, 2), tensor(3, 4)

    def f(x: Tensor, z: Tensor) -> None:
        kept = x.alias()
        x.set_(z)
        z.set_(kept)
        z.mul_(5)

    mode(f)(x, z)
    assert_values(x, [3, 4])
    assert_values(z, [5, 10])


@every_mode
def test_a_gradient_flows_through_an_input_that_moved(mode: Any) -> None:
    w = counted(2, 3).requires_grad_()
    x = w * 2

    def f(x: Tensor) -> Tensor:
        x.transpose_()
        x[1].mul_(tensor(3, 4))
        return x.sum()

    total = mode(f)(x)
    (total + (x * counted(3, 2)).sum()).backward()
    assert_values(w.grad, [[2, 18, 10], [4, 32, 12]])


@functional_modes
def test_a_run_that_raises_moves_no_handle(mode: Any) -> None:
    def f(x: Tensor) -> None:
        x.transpose_()
        raise KeyError

    x = counted(4, 2)
    with pytest.raises(KeyError):
        mode(f)(x)
    assert x.shape == (4, 2)


@functional_modes
def test_requires_grad_is_set_before_an_input_moves(mode: Any) -> None:
    def f(x: Tensor) -> None:
        x.transpose_().requires_grad_()

    with pytest.raises(AliasError, match="set it before"):
        mode(f)(counted(4, 2))


def test_moves_that_cancel_leave_no_rebind() -> None:
    program = oplib.capture(lambda x: x.transpose_().transpose_() + 1, counted(4, 2))
    assert program.graph.rebinds == ()


def test_a_program_is_guarded_against_what_it_did_itself() -> None:
    program = oplib.capture(lambda x: x.transpose_(), counted(4, 2))
    x = counted(4, 2)
    program(x)
    with pytest.raises(GuardError, match=r"shape: expected \(4, 2\), found \(2, 4\)"):
        program(x)


def test_compiled_functions_and_files_move_handles() -> None:
    def f(x: Tensor) -> Tensor:
        x.transpose_()
        return x + 1

    file = io.BytesIO()
    save(oplib.capture(f, counted(4, 2)), file)
    for run in (load(file), oplib.compile(f)):
        x = counted(4, 2)
        assert_values(run(x), counted(4, 2).numpy().T + 1)
        assert x.shape == (2, 4)


def test_the_export_form_returns_an_input_where_it_lies_at_the_end() -> None:
    form = oplib.capture(lambda x: x.mul_(2).transpose_(), counted(2, 1)).as_function()
    (new,), result = form(tensor([1], [2]))
    assert_values(new, [[2], [4]])
    assert_values(result, [[2, 4]])
