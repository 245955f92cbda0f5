"""Making tensors: from data, from shapes, like others."""

from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib import ArgumentError


def test_tensor_copies_its_data():
    array = np.ones(2)
    x = oplib.tensor(array)
    array[0] = 5
    assert x.tolist() == [1.0, 1.0]
    y = oplib.tensor(x)
    y.fill_(3.0)
    assert x.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("data", "dtype"),
    [(1, "int64"), (1.5, "float64"), ([True], "bool"), ([1, 2j], "complex128"), ([], "float64")],
)
def test_tensor_has_the_dtype_numpy_finds(data, dtype):
    assert oplib.tensor(data).dtype == np.dtype(dtype)


def test_tensor_takes_a_dtype_and_nested_tensors():
    assert oplib.tensor([1, 2], dtype="float32").dtype == np.float32
    assert oplib.tensor(oplib.ones(2), dtype="int32").dtype == np.int32
    assert oplib.tensor([oplib.tensor(1.0), oplib.tensor(2.0)]).tolist() == [1.0, 2.0]


def test_tensor_of_a_tensor_has_no_history():
    x = oplib.ones(2, requires_grad=True)
    assert oplib.tensor(x * 2).is_leaf
    assert not oplib.tensor(x).requires_grad


@pytest.mark.parametrize("data", ["text", ["a"], [object()], [[1], [2, 3]], None])
def test_tensor_refuses_what_holds_no_numbers(data):
    with pytest.raises(ArgumentError):
        oplib.tensor(data)


@pytest.mark.parametrize(
    "make",
    [
        lambda **k: oplib.tensor([1.0], **k),
        lambda **k: oplib.zeros(2, **k),
        lambda **k: oplib.ones(2, **k),
        lambda **k: oplib.empty(2, **k),
        lambda **k: oplib.full((2,), 1.0, **k),
        lambda **k: oplib.zeros_like(oplib.ones(2), **k),
        lambda **k: oplib.ones_like(oplib.ones(2), **k),
        lambda **k: oplib.full_like(oplib.ones(2), 2, **k),
        lambda **k: oplib.empty_like(oplib.ones(2), **k),
        lambda **k: oplib.arange(0.0, 3.0, **k),
        lambda **k: oplib.linspace(0, 1, 3, **k),
        lambda **k: oplib.eye(2, **k),
    ],
)
def test_every_creation_function_makes_leaves_on_demand(make):
    assert not make().requires_grad
    assert make(requires_grad=True).requires_grad
    assert make(stop_gradient=False).requires_grad
    assert make(requires_grad=True).is_leaf


def test_an_integer_tensor_cannot_require_grad():
    with pytest.raises(oplib.AutogradError):
        oplib.tensor([1], requires_grad=True)


def test_sizes_are_ints_or_one_sequence():
    assert (
        oplib.zeros(2, 3).shape == oplib.zeros((2, 3)).shape == oplib.zeros([2, 3]).shape == (2, 3)
    )
    assert oplib.ones().shape == oplib.ones(()).shape == ()
    assert oplib.full(3, 1.0).shape == oplib.full((3,), 1.0).shape == (3,)


def test_values_are_numpys():
    assert oplib.arange(5).tolist() == [0, 1, 2, 3, 4]
    assert oplib.arange(1, 2, 0.25).tolist() == np.arange(1, 2, 0.25).tolist()
    assert oplib.linspace(0, 1, 5).tolist() == np.linspace(0, 1, 5).tolist()
    assert oplib.eye(2, 3).tolist() == np.eye(2, 3).tolist()
    assert oplib.full((2,), 7).dtype == np.int64


@pytest.mark.parametrize(
    "args", [(0, 10, 3), (0.0, 1.0, 0.1), (5, 0, -2), (0, 0), (3, 1), (0, 1, 0.3)]
)
def test_a_fake_arange_has_the_length_of_the_real_one(args):
    real = oplib.arange(*args)
    with oplib.FakeTensorMode():
        fake = oplib.arange(*args)
    assert (fake.shape, fake.dtype) == (real.shape, real.dtype)


def test_arange_refuses_a_zero_step_real_and_fake():
    with pytest.raises(ZeroDivisionError):
        oplib.arange(0, 1, 0)
    with oplib.FakeTensorMode(), pytest.raises(ZeroDivisionError):
        oplib.arange(0, 1, 0)


def test_likes_keep_the_layout_of_their_model():
    x = oplib.zeros(2, 3, 4).transpose(2, 0, 1)
    for made in (
        oplib.zeros_like(x),
        oplib.ones_like(x),
        oplib.empty_like(x),
        oplib.full_like(x, 2),
    ):
        assert made.strides == x.strides


def test_factories_in_a_fake_mode_make_fakes():
    with oplib.FakeTensorMode():
        for made in (oplib.zeros(2), oplib.ones(2, device="cpu"), oplib.arange(3), oplib.eye(2)):
            assert "fake" in made.describe()


def test_factories_in_a_captured_program_are_recorded():
    program = oplib.capture(lambda x: x + oplib.ones(2) + oplib.arange(2), oplib.zeros(2))
    assert program(oplib.zeros(2)).tolist() == [1.0, 2.0]
