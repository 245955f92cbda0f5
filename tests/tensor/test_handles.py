"""Methods that change where a handle lies: other handles stay, nothing is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oplib
from oplib import AliasError, ArgumentError, AutogradError, Tensor
from oplib.meta import FakeTensorMode
from oplib.tensor.addressing import geometry_of
from oplib.tensor.geometry import Geometry, same_geometry
from tests.functionalize.helpers import assert_values, counted, tensor

MOVES = [
    ("transpose", ()),
    ("transpose", ((1, 0),)),
    ("permute", (1, 0)),
    ("swapaxes", (0, 1)),
    ("movedim", (0, 1)),
    ("unsqueeze", (1,)),
    ("squeeze", ()),
    ("as_strided", ((2, 2), (3, 1), 1)),
]


@pytest.mark.parametrize(("name", "args"), MOVES)
def test_a_move_gives_the_handle_the_place_of_the_view(name: str, args: tuple[Any, ...]) -> None:
    x = counted(4, 2)
    expected, other = getattr(x, name)(*args), x.alias()
    assert getattr(x, f"{name}_")(*args) is x
    assert (x.shape, x.strides) == (expected.shape, expected.strides)
    assert_values(x, expected.numpy())
    assert np.shares_memory(x.numpy(), other.numpy())
    assert other.shape == (4, 2)
    assert x.inplace_version == 0


@pytest.mark.parametrize(("name", "args"), MOVES)
def test_fakes_move_as_tensors_do(name: str, args: tuple[Any, ...]) -> None:
    x = counted(4, 2)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        other = fake.alias()
        getattr(fake, f"{name}_")(*args)
    getattr(x, f"{name}_")(*args)
    assert fake.shape == x.shape
    place = fake.array.geometry
    assert same_geometry(Geometry(place.dtype, place.shape, place.strides), geometry_of(x.array))
    assert other.shape == (4, 2)
    assert fake._storage is other._storage


def test_what_is_written_after_a_move_is_seen_by_all_handles() -> None:
    x = counted(2, 2)
    rows = x.reshape(4)
    x.transpose_()
    x[0].add_(10)
    assert_values(rows, [10, 1, 12, 3])
    rows.mul_(2)
    assert_values(x, [[20, 24], [2, 6]])


def test_resize_is_contiguous_from_the_first_element_on() -> None:
    x = counted(4, 2)
    part = x[1:3]
    assert part.resize_(3) is part
    assert_values(part, [2, 3, 4])
    assert_values(part.resize_((3, 1)), [[2], [3], [4]])
    assert_values(counted(4, 2)[:, 1].resize_(2, 2), [[1, 2], [3, 4]])
    assert_values(counted(3).resize_(), 0)
    assert part.inplace_version == 0


def test_resize_allocates_nothing() -> None:
    x = counted(4, 2)
    for handle, size in ((x, (3, 3)), (x[1], (3,)), (x[::-1], (2,))):
        with pytest.raises(AliasError, match=r"needs \d+ bytes .* and it has \d+\n  make a new"):
            handle.resize_(*size)
    for size in ((-1,), (True,), (1.5,)):
        with pytest.raises(ArgumentError, match="resize_ takes sizes"):
            x.resize_(*size)
    assert x.shape == (4, 2)


def test_set_makes_a_handle_another_one_on_the_source() -> None:
    x, z = counted(4), tensor(7, 8)
    old = x[:2]
    assert x.set_(z) is x
    x.add_(1)
    assert_values(z, [8, 9])
    old.mul_(5)
    assert_values(old, [0, 5])
    assert_values(x, [8, 9])
    assert z.inplace_version == x.inplace_version == 1


def test_set_takes_tensors_of_the_same_dtype_and_device() -> None:
    x = counted(2)
    with pytest.raises(ArgumentError, match=r"a handle f64\[2\] cannot be one on f32\[2\]"):
        x.set_(oplib.zeros(2, dtype="float32"))
    with pytest.raises(ArgumentError, match=r"on f64\[2\] meta"):
        x.set_(oplib.zeros(2).to("meta"))
    with pytest.raises(ArgumentError, match="set_ takes a Tensor"):
        x.set_([1.0, 2.0])


def test_gradients_flow_through_a_move() -> None:
    w = counted(2, 3).requires_grad_()
    x = w * 2
    first = x[0]
    with oplib.no_grad():
        x.transpose_()  # changes no value, so the history goes on
    assert x.requires_grad
    x[1].mul_(tensor(3, 4))
    (x * counted(3, 2)).sum().backward()
    assert_values(w.grad, [[0, 12, 8], [2, 24, 10]])
    assert_values(first, [0, 6, 4])


def test_set_takes_over_the_history_of_the_source() -> None:
    w = tensor(1, 2).requires_grad_()
    x, source = tensor(0, 0), w * 3
    x.set_(source)
    x.mul_(w)
    source.sum().backward()
    assert_values(w.grad, [6, 12])


def test_what_keeps_a_gradient_keeps_its_shape() -> None:
    leaf = counted(2, 3).requires_grad_()
    retained = leaf * 2
    retained.retain_grads()
    for x in (leaf, retained):
        for move in (lambda x: x.transpose_(), lambda x: x.resize_(2), lambda x: x.set_(leaf)):
            with pytest.raises(AutogradError, match=r"\.grad of this one, f64\[2, 3\], keeps"):
                move(x)
            with oplib.no_grad(), pytest.raises(AutogradError):
                move(x)


def test_saved_values_survive_a_move() -> None:
    w = tensor(1, 2).requires_grad_()
    x = w * 1
    y = (x * x).sum()
    x.unsqueeze_(0)
    y.backward()
    assert_values(w.grad, [2, 4])


def test_an_operator_cannot_move_a_tensor_of_its_caller() -> None:
    def moves(x: Tensor) -> Tensor:
        x.transpose_()
        return x + 1

    with oplib.Library("moves", "DEF") as lib:
        explicit = lib.define("explicit(Tensor x) -> Tensor").op
        explicit.register_kernel("CompositeExplicitAutograd", moves)
        ruled = lib.define("ruled(Tensor x) -> Tensor").op
        ruled.register_kernel("cpu", lambda x: x + 1)
        oplib.register_fake("moves::ruled", moves)
        x = counted(4, 2)
        for op, argument in ((explicit, x), (ruled, x.to("meta"))):
            with pytest.raises(AliasError, match="transpose_ was called in the function of an"):
                op(argument)
            assert argument.shape == (4, 2)
