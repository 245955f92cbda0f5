"""``x[index]`` and ``x[index] = value`` are NumPy's, for every index, in value and in gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oplib
from oplib import AliasError, ArgumentError, AutogradError
from oplib.testing import gradcheck, gradgradcheck


def numbered(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(float(np.prod(shape))).reshape(shape)


# ---------------------------------------------------------------------- any index

slices = st.builds(
    slice,
    st.none() | st.integers(-4, 4),
    st.none() | st.integers(-4, 4),
    st.sampled_from([None, 1, 2, -1, -2]),
)


@st.composite
def indices(draw: Any, shape: tuple[int, ...]) -> Any:
    """Return an index that NumPy accepts: basic parts, index arrays that broadcast, masks."""
    parts: list[Any] = []
    axis = 0
    common = draw(st.sampled_from([(2,), (1,), (2, 2), ()]))
    ellipsis = draw(st.integers(0, len(shape)) | st.none())
    used = draw(st.integers(0, len(shape)))
    while axis < used:
        if ellipsis == axis:
            parts.append(Ellipsis)
        length = shape[axis]
        kind = draw(st.sampled_from(["int", "slice", "array", "list", "mask", "none", "slice"]))
        if kind == "none":
            parts.append(None)
            continue
        if kind == "int" and length:
            parts.append(draw(st.integers(-length, length - 1)))
        elif kind in ("array", "list") and length:
            size = draw(st.sampled_from([common, common[:1]]))
            array = np.array(
                draw(st.lists(st.integers(-length, length - 1), min_size=4, max_size=4))
            )
            array = array[: int(np.prod(size))].reshape(size)
            parts.append(array.tolist() if kind == "list" and size else array)
        elif kind == "mask" and common in ((2,), (1,)) and length >= 2:
            mask = np.zeros(length, bool)
            mask[draw(st.permutations(range(length)))[:2]] = True
            parts.append(mask)
        else:
            parts.append(draw(slices))
        axis += 1
    if ellipsis is not None and Ellipsis not in [p for p in parts if not isinstance(p, np.ndarray)]:
        parts.append(Ellipsis)
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)


@st.composite
def shapes_and_indices(draw: Any) -> tuple[tuple[int, ...], Any]:
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=0, max_size=3)))
    return shape, draw(indices(shape))


def as_given(index: Any, tensors: bool) -> Any:
    """Return an index with Tensors in the place of its arrays."""
    if isinstance(index, tuple):
        return tuple(as_given(part, tensors) for part in index)
    return oplib.from_numpy(index) if tensors and isinstance(index, np.ndarray) else index


@settings(max_examples=250)
@given(shapes_and_indices(), st.booleans())
def test_getitem_is_numpys(case, tensors):
    shape, index = case
    array = numbered(*shape)
    try:
        expected = array[index]
    except (IndexError, ValueError):
        with pytest.raises((IndexError, ValueError)):
            oplib.from_numpy(array)[as_given(index, tensors)]
        return
    result = oplib.from_numpy(array)[as_given(index, tensors)]
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result.numpy(), expected)


@settings(max_examples=150)
@given(shapes_and_indices(), st.booleans(), st.booleans())
def test_setitem_is_numpys(case, tensors, scalar):
    shape, index = case
    array = numbered(*shape)
    x = oplib.from_numpy(array.copy())
    try:
        selected = array[index].shape
    except (IndexError, ValueError):
        return
    value: Any = -1.0 if scalar else -1 - numbered(*selected)
    array[index] = value
    x[as_given(index, tensors)] = value
    np.testing.assert_array_equal(x.numpy(), array)


@settings(max_examples=60)
@given(shapes_and_indices())
def test_the_fake_of_getitem_has_its_shape(case):
    shape, index = case
    array = numbered(*shape)
    try:
        expected = oplib.from_numpy(array)[index]
    except (IndexError, ValueError):
        return
    parts = index if isinstance(index, tuple) else (index,)
    masks = any(isinstance(part, np.ndarray) and part.dtype == bool for part in parts)
    with oplib.FakeTensorMode(allow_real=True, dynamic=True) as mode:
        result = mode.from_tensor(oplib.from_numpy(array))[index]
    if not masks:
        assert result.shape == expected.shape
        longer = [axis for axis, n in enumerate(expected.shape) if n > 1 and expected.size]
        assert all(result.strides[axis] == expected.strides[axis] for axis in longer)
    assert result.ndim == expected.ndim


def test_the_fake_of_a_mask_beside_index_arrays_has_their_length():
    mask = oplib.tensor([True, False, True])
    with oplib.FakeTensorMode(dynamic=True) as mode:
        x, m = mode.from_tensor(oplib.zeros(3, 4)), mode.from_tensor(mask)
        two = mode.from_tensor(oplib.tensor([0, 1]))
        assert x[m, two].shape == (2,)
        assert str(x[m, 0].shape) == "(u0,)"
        assert x[m].shape[1:] == (4,)
    with (
        oplib.FakeTensorMode() as mode,
        pytest.raises(oplib.DataDependentError, match="depends on data"),
    ):
        mode.from_tensor(oplib.zeros(3))[mode.from_tensor(mask)]


def test_a_zero_length_ellipsis_between_index_arrays_keeps_them_apart():
    array = numbered(3, 4, 5)
    index = (slice(None), [0, 1], ..., [1, 2])
    np.testing.assert_array_equal(oplib.from_numpy(array)[index].numpy(), array[index])
    x = oplib.from_numpy(array.copy())
    x[index] = numbered(2, 3)
    array[index] = numbered(2, 3)
    np.testing.assert_array_equal(x.numpy(), array)


@pytest.mark.parametrize(
    "index",
    [
        *(True, False, np.True_, np.array(True), (True, 0), (slice(None), True, [0, 1])),
        *([], np.array([], int), ([0, 1], []), np.int8(1), np.array(1), (np.array(0), slice(1))),
        *([True, False, True], np.array([[True, False, True, True]] * 3), (..., [0], None)),
        *((None, [0, 2], None), ([0], None, [1]), (0, slice(None), [0, 1]), (slice(None), 0, [1])),
    ],
    ids=repr,
)
def test_unusual_indices_are_numpys(index):
    array = numbered(3, 4, 2)
    try:
        expected = array[index]
    except IndexError as error:
        with pytest.raises(type(error)):
            oplib.from_numpy(array)[index]
        return
    np.testing.assert_array_equal(oplib.from_numpy(array)[index].numpy(), expected)


@pytest.mark.parametrize(
    "index", ["a", 1.5, (0, 1.5), [0.5], (..., ...), (0, 0, 0, 0), 7, slice("a"), [9]], ids=repr
)
def test_wrong_indices_raise(index):
    x = oplib.zeros(3, 4, 2)
    with pytest.raises((IndexError, TypeError)):
        x[index]
    with pytest.raises((IndexError, TypeError)):
        x[index] = 0.0
    assert x.inplace_version in (0, 1)


# ---------------------------------------------------------------------- views and copies


def test_a_basic_index_is_a_view_and_an_advanced_one_a_copy():
    x = oplib.zeros(3, 4)
    for index in (0, slice(1), (..., 0), None, (1, 2)):
        x[index].fill_(1.0)
    assert x.sum().item() > 0
    before = x.tolist()
    x[[0, 1]].fill_(7.0)
    x[x > 0].fill_(7.0)
    assert x.tolist() == before


def test_an_advanced_index_gives_c_order():
    x = oplib.from_numpy(numbered(3, 4, 5).transpose(2, 0, 1))
    assert x[:, [0, 1]].is_contiguous()
    assert x[:, :, [[0, 1], [2, 3]]].is_contiguous()


# ---------------------------------------------------------------------- writing


def test_an_augmented_item_writes_once():
    x = oplib.zeros(3, 4)
    x[0] += 5
    assert x.inplace_version == 1
    x[:, 1] *= 2
    assert x.inplace_version == 2
    x[0] = x[0]
    assert x.inplace_version == 2
    assert x[0].tolist() == [5.0, 10.0, 5.0, 5.0]


def test_an_item_is_read_before_it_is_written():
    x = oplib.from_numpy(numbered(5))
    x[1:] = x[:-1]
    assert x.tolist() == [0, 0, 1, 2, 3]
    x[[0, 1, 2]] = x[[2, 1, 0]]
    assert x.tolist() == [1, 0, 0, 2, 3]


def test_an_index_that_is_the_destination_is_read_before_it_is_written():
    x = oplib.tensor([2, 1, 0])
    x[x] = oplib.tensor([7, 8, 9])
    assert x.tolist() == [9, 8, 7]


def test_assignment_casts_with_same_kind():
    x = oplib.zeros(3, dtype="int64")
    for index in (0, [0]):
        with pytest.raises(TypeError):
            x[index] = 1.7
    y = oplib.zeros(3, dtype="float32")
    y[0] = oplib.tensor(1.0, dtype="float64")
    y[[1]] = oplib.tensor(2.0, dtype="float64")
    assert y.dtype == np.float32
    assert y.tolist() == [1.0, 2.0, 0.0]
    with pytest.raises(TypeError):
        y[[1]] = 1j


@pytest.mark.parametrize("index", [slice(None, 2), [0, 1]])
def test_a_value_that_does_not_broadcast_is_refused_and_nothing_is_written(index):
    x = oplib.zeros(3, 4)
    for value in (oplib.ones(3), oplib.ones(2, 2, 4), [1.0, 2.0]):
        with pytest.raises(ArgumentError, match="does not broadcast"):
            x[index] = value
    assert x.sum().item() == 0


def test_an_item_of_a_read_only_tensor_cannot_be_written():
    array = numbered(3)
    array.flags.writeable = False
    x = oplib.from_numpy(array)
    for index in (0, [0]):
        with pytest.raises(AliasError, match="read-only"):
            x[index] = 1.0


def test_of_equal_positions_the_last_one_in_c_order_is_written():
    x = oplib.zeros(2)
    x[oplib.from_numpy(np.asfortranarray([[0, 0], [0, 0]]))] = oplib.tensor(
        [[1.0, 2.0], [3.0, 4.0]]
    )
    assert x.tolist() == [4.0, 0.0]


# ---------------------------------------------------------------------- gradients


@settings(max_examples=40)
@given(shapes_and_indices())
def test_getitem_has_the_gradient_of_numpys(case):
    shape, index = case
    array = numbered(*shape)
    try:
        array[index]
    except (IndexError, ValueError):
        return
    x = oplib.tensor(array, requires_grad=True)
    out = x[index]
    seed = 1 + numbered(*out.shape)
    (gradient,) = oplib.grad(out, [x], [oplib.tensor(seed)])
    expected = np.zeros(shape)
    np.add.at(expected, index, seed)
    np.testing.assert_array_equal(gradient.numpy(), expected)


@settings(max_examples=40)
@given(shapes_and_indices())
def test_setitem_sends_the_gradient_to_what_is_left_and_to_the_last_values_written(case):
    shape, index = case
    try:
        selected = numbered(*shape)[index].shape
    except (IndexError, ValueError):
        return
    x = oplib.tensor(numbered(*shape), requires_grad=True)
    value = oplib.tensor(numbered(*selected), requires_grad=True)
    y = x * 1
    y[index] = value
    seed = 1 + numbered(*shape)
    gx, gv = oplib.grad(y, [x, value], [oplib.tensor(seed)], allow_unused=True)
    owner = np.full(shape, -1.0)
    owner[index] = numbered(*selected)
    np.testing.assert_array_equal(gx.numpy(), np.where(owner < 0, seed, 0))
    expected = np.zeros(int(np.prod(selected)))
    for position in np.ndindex(*shape):
        if owner[position] >= 0:
            expected[int(owner[position])] = seed[position]
    if gv is not None:
        np.testing.assert_array_equal(gv.numpy().reshape(-1), expected)


@pytest.mark.parametrize(
    "index", [0, (slice(None), 1), [0, 2, 0], (slice(None), [1, 1]), (0, [1, 3])]
)
def test_assignment_is_differentiable_twice(index):
    def assign(x: oplib.Tensor, value: oplib.Tensor) -> oplib.Tensor:
        y = x * x
        y[index] = value * value
        return y

    x = oplib.tensor(numbered(3, 4) + 0.5, requires_grad=True)
    shape = x[index].shape
    value = oplib.tensor(numbered(*shape) + 1, requires_grad=True)
    assert gradcheck(assign, [x, value])
    assert gradgradcheck(assign, [x, value])


def test_a_value_that_was_broadcast_gets_its_gradient_summed():
    value = oplib.tensor([1.0], requires_grad=True)
    x = oplib.zeros(3, 2)
    x[[0, 2]] = value
    x[1, 1:] = value
    x.sum().backward()
    assert value.grad.tolist() == [5.0]


def test_assignment_to_a_leaf_that_requires_grad_raises():
    x = oplib.zeros(3, requires_grad=True)
    for index in (0, [0]):
        with pytest.raises(AutogradError, match="leaf"):
            x[index] = 1.0


def test_an_index_may_be_a_mask_computed_from_the_tensor():
    x = oplib.tensor([1.0, -2.0, 3.0], requires_grad=True)
    (x[x > 0] * oplib.tensor([10.0, 20.0])).sum().backward()
    assert x.grad.tolist() == [10.0, 0.0, 20.0]


# ---------------------------------------------------------------------- along one axis


@settings(max_examples=40)
@given(st.data())
def test_take_along_dim_and_gather_are_numpys_take_along_axis(data):
    array = numbered(3, 4)
    dim = data.draw(st.sampled_from([0, 1, -1]))
    length = array.shape[dim]
    positions = data.draw(st.lists(st.integers(-length, length - 1), min_size=1, max_size=3))
    index = np.array([positions] * 4).T if dim == 0 else np.array([positions] * 3)
    expected = np.take_along_axis(array, index, dim)
    x, at = oplib.from_numpy(array), oplib.from_numpy(index)
    np.testing.assert_array_equal(x.take_along_dim(at, dim).numpy(), expected)
    np.testing.assert_array_equal(x.gather(dim, at).numpy(), expected)


def test_gather_takes_an_index_shorter_on_other_axes():
    x = oplib.from_numpy(numbered(3, 4))
    assert x.gather(1, oplib.tensor([[3, 0]])).tolist() == [[3.0, 0.0]]


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("index_select", (oplib.tensor([[0]]),)),
        ("index_select", (oplib.tensor([0.0]),)),
        ("gather", (0, oplib.tensor([0]))),
        ("take_along_dim", (oplib.tensor([0]),)),
        ("take_along_dim", (oplib.tensor([[0.0]]),)),
    ],
)
def test_positions_of_another_kind_are_refused(method, args):
    with pytest.raises(ArgumentError):
        getattr(oplib.zeros(3, 4), method)(*args)


def test_index_select_repeats_and_accumulates():
    x = oplib.tensor(numbered(3, 2), requires_grad=True)
    x.index_select(oplib.tensor([0, -1, 0])).sum().backward()
    assert x.grad.tolist() == [[2, 2], [0, 0], [1, 1]]
    with pytest.raises(IndexError):
        x.index_select(oplib.tensor([3]))
