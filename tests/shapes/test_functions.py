"""Functions for rules and kernels: specs, shapes, dtypes, layouts, checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oplib
from oplib import ArgumentError, DataDependentError, FakeTensorMode, TensorSpec, shapes
from oplib._dims import Facts

DTYPES = ["?", "u1", "i4", "i8", "f4", "f8", "c8", "c16"]

lengths = st.integers(0, 3)
sizes = st.lists(lengths, max_size=3).map(tuple)


# ---------------------------------------------------------------------- TensorSpec


def test_a_spec_prints_as_types_do() -> None:
    spec = TensorSpec([2, 3], "f32")
    assert repr(spec) == "TensorSpec(f32[2, 3])"
    assert (spec.shape, spec.ndim, spec.size) == ((2, 3), 2, 6)


def test_a_spec_takes_dtype_and_device_from_a_tensor() -> None:
    x = FakeTensorMode().from_tensor(oplib.ones(2, dtype="f32"), device="npu:0")
    spec = TensorSpec((4,), like=x)
    assert (spec.dtype, str(spec.device)) == (np.float32, "npu:0")
    assert TensorSpec((4,), "i64", like=x).dtype == np.int64


def test_a_spec_of_a_tensor_has_its_strides() -> None:
    x = oplib.ones(2, 3).T
    spec = TensorSpec.of(x)
    assert (spec.shape, spec.strides, spec.dtype, spec.device) == (
        x.shape,
        x.strides,
        x.dtype,
        None,
    )


def test_a_spec_needs_a_dtype() -> None:
    with pytest.raises(ArgumentError, match="needs a dtype"):
        TensorSpec((2,))
    with pytest.raises(ArgumentError, match="not a dtype name"):
        TensorSpec((2,), "float33")
    with pytest.raises(ArgumentError, match="not a device"):
        TensorSpec((2,), "f32", device="nowhere")


@given(st.permutations(range(3)), sizes.filter(lambda s: len(s) == 3))
def test_an_allocation_has_the_layout_that_was_promised(order: Any, size: Any) -> None:
    model = np.zeros([size[axis] for axis in order]).transpose(np.argsort(order))
    made = shapes.allocate(shapes.like_spec(model, np.float32))
    assert (made.shape, made.dtype) == (model.shape, np.float32)
    if model.size:
        kept = [axis for axis, n in enumerate(model.shape) if n > 1]
        assert [made.strides[a] * 2 for a in kept] == [model.strides[a] for a in kept]


# ---------------------------------------------------------------------- dtypes


@pytest.mark.parametrize("a", DTYPES)
@pytest.mark.parametrize("b", DTYPES)
def test_result_type_is_numpys(a: str, b: str) -> None:
    x, y = oplib.from_numpy(np.ones(1, a)), np.ones(1, b)
    assert shapes.result_type(x, y) == np.result_type(a, b)
    assert shapes.result_type(TensorSpec((1,), np.dtype(a)), np.dtype(b)) == np.result_type(a, b)


def test_result_type_keeps_python_numbers_weak() -> None:
    assert shapes.result_type(oplib.ones(1, dtype="f32"), 2.5) == np.float32
    assert shapes.result_type(oplib.ones(1, dtype="u8"), 2) == np.uint8
    assert shapes.result_type(oplib.ones(1, dtype="i64"), 2.5) == np.float64
    assert shapes.result_type(2, 2.5) == np.float64


def test_result_type_of_foreign_byte_order_is_native() -> None:
    assert shapes.result_type(np.ones(1, ">f4"), np.ones(1, ">f4")).isnative


# ---------------------------------------------------------------------- shapes


@given(st.lists(sizes, min_size=1, max_size=3))
def test_broadcast_shapes_are_numpys(many: list[tuple[int, ...]]) -> None:
    try:
        expected = np.broadcast_shapes(*many)
    except ValueError:
        with pytest.raises(ValueError, match="cannot be broadcast"):
            shapes.broadcast_shapes(*many)
    else:
        assert shapes.broadcast_shapes(*many) == expected


def test_a_symbol_broadcasts_with_one_and_itself() -> None:
    n = Facts().fresh()
    assert shapes.broadcast_shapes((n, 1), (1, 3), (n, 3)) == (n, 3)
    with pytest.raises(DataDependentError, match="u0 == 2"):
        shapes.broadcast_shapes((n,), (2,))


def test_same_shape_returns_it_or_lists_all() -> None:
    a, b = oplib.ones(2, 3), np.ones((2, 4))
    assert shapes.same_shape(a, np.ones((2, 3)), TensorSpec((2, 3), "f32")) == (2, 3)
    with pytest.raises(ArgumentError, match=r"got \[2, 3\], \[2, 4\]"):
        shapes.same_shape(a, b)


@given(sizes, st.booleans(), st.data())
def test_reduced_specs_are_those_of_numpys_sums(size: Any, keepdim: bool, data: Any) -> None:
    order = data.draw(st.permutations(range(len(size))))
    array = np.zeros([size[axis] for axis in order]).transpose(np.argsort(order, kind="stable"))
    dims = data.draw(
        st.none()
        | st.sets(st.integers(0, max(0, len(size) - 1))).filter(lambda found: not found or size)
    )
    axis = None if dims is None else tuple(dims)
    expected = np.asarray(array.sum(axis=axis, keepdims=keepdim))
    made = shapes.reduced_spec(array, None if dims is None else list(dims), keepdim)
    assert made.shape == expected.shape
    if expected.size:
        kept = [i for i, n in enumerate(expected.shape) if n > 1]
        assert [made.strides[i] for i in kept] == [expected.strides[i] for i in kept]


def test_sizes_are_ints_and_symbols() -> None:
    n = Facts().fresh()
    assert shapes.as_size(3) == (3,)
    assert shapes.as_size([np.int32(2), n]) == (2, n)
    for wrong in (-1, [2, -1], [1.0], [True], "a", [None]):
        with pytest.raises(ArgumentError, match="a length is an int >= 0"):
            shapes.as_size(wrong)


@pytest.mark.parametrize(
    ("a", "b"),
    [((2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,)), ((5, 1, 2, 3), (4, 3, 2))],
)
def test_matmul_spec_is_numpys(a: Any, b: Any) -> None:
    x, y = np.ones(a, "f4"), np.ones(b)
    spec = shapes.matmul_spec(x, y)
    assert (spec.shape, spec.dtype) == (np.shape(x @ y), np.float64)


def test_matmul_spec_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"\[2, 3\] and \[2, 3\]: 3 != 2"):
        shapes.matmul_spec(np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(ArgumentError, match="operands with axes"):
        shapes.matmul_spec(np.ones(()), np.ones((2, 3)))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_joined_specs_are_numpys(dim: int) -> None:
    x = np.ones((2, 2))
    assert shapes.concat_spec([x, x], dim).shape == np.concatenate([x, x], dim).shape
    assert shapes.stacked_spec([x, x, x], dim).shape == np.stack([x, x, x], dim).shape


def test_joined_specs_refuse_what_does_not_fit() -> None:
    with pytest.raises(ArgumentError, match=r"other axes differ in length: \[2, 2\], \[2, 3\]"):
        shapes.concat_spec([np.ones((2, 2)), np.ones((2, 3))], 0)
    with pytest.raises(ArgumentError, match="other axes differ"):
        shapes.concat_spec([np.ones((2, 2)), np.ones(2)], 0)
    with pytest.raises(ArgumentError, match="one shape"):
        shapes.stacked_spec([np.ones(2), np.ones(3)], 0)
    for join in (shapes.concat_spec, shapes.stacked_spec):
        with pytest.raises(ArgumentError, match="at least one"):
            join([], 0)
        with pytest.raises(ArgumentError, match="dim 4"):
            join([np.ones(2)], 4)


def test_gather_spec_has_the_shape_of_the_index() -> None:
    x, index = np.ones((2, 3)), np.zeros((2, 5), int)
    assert shapes.gather_spec(x, index, 1).shape == (2, 5)
    for wrong, text in (
        (np.zeros((3, 5), int), "exceed"),
        (np.zeros(5, int), "2 axes"),
        (np.zeros((2, 5)), "integers"),
    ):
        with pytest.raises(ArgumentError, match=text):
            shapes.gather_spec(x, wrong, 1)


@given(
    st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2)
)
def test_windows_are_counted_one_by_one(n: int, k: int, s: int, p: int, d: int) -> None:
    starts = range(0, n + 2 * p - d * (k - 1), s)
    if not starts:
        with pytest.raises(ArgumentError, match="does not fit"):
            shapes.windowed_shape([n], k, s, p, d)
    else:
        assert shapes.windowed_shape([n], k, s, p, d) == (len(starts),)


def test_window_parameters_are_checked() -> None:
    assert shapes.windowed_shape([8, 9], [2, 3], 2, (0, 1)) == (4, 5)
    with pytest.raises(ArgumentError, match="one number per axis"):
        shapes.windowed_shape([8, 9], [2, 3, 4])
    for wrong in ({"size": 0}, {"size": 2, "stride": 0}, {"size": 2, "padding": -1}):
        with pytest.raises(ArgumentError, match="stride"):
            shapes.windowed_shape([8], **wrong)


# ---------------------------------------------------------------------- checks


def test_check_raises_with_its_message() -> None:
    shapes.check(True)
    with pytest.raises(ArgumentError, match="three are needed"):
        shapes.check(1 == 2, "three are needed")


def test_check_remembers_what_it_was_told_about_symbols() -> None:
    n = Facts().fresh()
    shapes.check(n % 2 == 0)
    assert str(n // 2 * 2) == str(n) or (n // 2 * 2 == n)
    shapes.check(n <= 4)
    assert n < 5


def test_kernel_and_rule_share_one_text(tmp_path: Any) -> None:
    with oplib.Library("shapetest", "FRAGMENT") as lib:
        op = lib.define("f(Tensor x, Tensor y) -> Tensor").op
        op.register_kernel("cpu", lambda x, y: np.zeros(shapes.matmul_spec(x, y).shape))
        op.register_fake(shapes.matmul_spec)
        errors = []
        x, mode = oplib.ones(2, 3), FakeTensorMode()
        for tensor in (x, mode.from_tensor(x)):
            with pytest.raises(ValueError, match="3 != 2") as caught:
                op(tensor, tensor)
            errors.append(str(caught.value))
        assert errors[0] == errors[1]
