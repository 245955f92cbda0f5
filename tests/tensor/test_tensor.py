"""`Tensor`: what its array says, values, Python's protocols, gradient state, text."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

import oplib
from oplib import ArgumentError, AutogradError, Tensor
from oplib.dtypes import Device

# ---------------------------------------------------------------------- construction


def test_a_tensor_is_made_by_functions_only() -> None:
    with pytest.raises(ArgumentError, match=r"oplib\.tensor\(data\)"):
        Tensor([1.0])
    with pytest.raises(ArgumentError, match="final"):
        type("Mine", (Tensor,), {})


def test_a_tensor_has_no_other_attributes() -> None:
    x = oplib.ones(2)
    with pytest.raises(AttributeError):
        x.colour = "red"
    with pytest.raises(AttributeError):
        x.shape = (1, 2)


# ---------------------------------------------------------------------- what the array says


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)))
def test_attributes_are_those_of_the_array(array: Any) -> None:
    x = oplib.from_numpy(array.T)
    for name in ("shape", "strides", "dtype", "ndim", "size", "itemsize", "nbytes"):
        assert getattr(x, name) == getattr(array.T, name)
    assert x.is_contiguous() == array.T.flags.c_contiguous
    assert x.device == Device("cpu")


def test_contiguity_ignores_axes_of_length_one() -> None:
    x = oplib.from_numpy(np.zeros((3, 1, 2))[:, ::-1])
    assert x.is_contiguous()
    assert not oplib.ones(2, 3).T.is_contiguous()
    assert oplib.ones(0, 3).T.is_contiguous()


def test_transposes_and_complex_parts_are_attributes() -> None:
    z = oplib.tensor([[1 + 2j], [3 - 1j]])
    assert z.T.shape == (1, 2)
    assert z.real.tolist() == [[1], [3]]
    assert z.imag.tolist() == [[2], [-1]]
    assert oplib.ones(4, 2, 3).mT.shape == (4, 3, 2)


# ---------------------------------------------------------------------- values


def test_numpy_shares_memory() -> None:
    x = oplib.zeros(3)
    x.numpy()[0] = 5
    assert x.tolist() == [5, 0, 0]
    assert x.inplace_version == 0


def test_a_one_element_tensor_is_a_number() -> None:
    x = oplib.tensor([[2.5]])
    assert (x.item(), float(x), int(x), complex(x), bool(x)) == (2.5, 2.5, 2, 2.5 + 0j, True)
    assert type(x.item()) is float
    assert type(oplib.tensor(3).item()) is int
    assert type(oplib.tensor(True).item()) is bool
    assert math.sqrt(oplib.tensor(4.0)) == 2
    assert round(float(oplib.tensor(2.6))) == 3


def test_an_integer_tensor_is_an_index() -> None:
    assert [10, 20, 30][oplib.tensor(1)] == 20
    assert list(range(oplib.tensor(2))) == [0, 1]
    for wrong in (oplib.tensor(1.0), oplib.tensor(True)):
        with pytest.raises(ArgumentError, match="integer tensor can be an index"):
            operator.index(wrong)


@pytest.mark.parametrize("read", [bool, float, int, complex, operator.index, Tensor.item])
@pytest.mark.parametrize("shape", [(2,), (0,), (1, 2)])
def test_several_elements_are_no_number(read: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match=r"shape \("):
        read(oplib.ones(shape, dtype="int64"))


def test_an_ambiguous_truth_names_any_and_all() -> None:
    with pytest.raises(ArgumentError, match=r"any\(\) or all\(\)"):
        bool(oplib.ones(2) == oplib.ones(2))


def test_tolist_nests() -> None:
    assert oplib.arange(4).reshape([2, 2]).tolist() == [[0, 1], [2, 3]]
    assert oplib.tensor(1.5).tolist() == 1.5


def test_length_and_iteration_are_over_the_first_axis() -> None:
    x = oplib.arange(6).reshape([3, 2])
    assert len(x) == 3
    assert [row.tolist() for row in x] == [[0, 1], [2, 3], [4, 5]]
    first, *_ = x
    assert first._storage is x._storage
    assert len(oplib.zeros(0, 3)) == 0
    assert list(oplib.zeros(0, 3)) == []


def test_a_0d_tensor_has_no_length() -> None:
    with pytest.raises(ArgumentError, match="no length"):
        len(oplib.tensor(1))
    with pytest.raises(ArgumentError, match="iterated"):
        iter(oplib.tensor(1))


def test_iteration_records_gradients() -> None:
    x = oplib.tensor([1.0, 2.0], requires_grad=True)
    a, b = x
    (a * b).backward()
    assert x.grad.tolist() == [2, 1]


def test_membership_compares_elements() -> None:
    assert 2 in oplib.arange(3)
    assert 5 not in oplib.arange(3)


# ---------------------------------------------------------------------- operators

BINARY = [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("other", [2, 2.5, True, np.float32(2), np.array([1.0, 2.0, 4.0])])
def test_operators_are_numpys_in_either_order(name: str, other: Any) -> None:
    array = np.array([1.0, 2.0, 3.0])
    x, f = oplib.from_numpy(array), getattr(operator, name)
    for result, expected in ((f(x, other), f(array, other)), (f(other, x), f(other, array))):
        assert isinstance(result, Tensor)
        np.testing.assert_array_equal(result.numpy(), expected)
        assert result.dtype == expected.dtype


def test_an_array_before_a_tensor_records_a_gradient() -> None:
    x = oplib.tensor([1.0, 2.0], requires_grad=True)
    y = np.array([3.0, 4.0]) * x - np.float64(1) / x
    y.sum().backward()
    assert x.grad.tolist() == [3 + 1, 4 + 0.25]
    matrix = np.eye(2)
    assert (matrix @ x).grad_fn is not None


def test_bits_and_signs() -> None:
    x = oplib.tensor([True, False])
    assert (~x).tolist() == [False, True]
    assert (x & np.array([True, True])).tolist() == [True, False]
    assert (x | True).tolist() == (True | x).tolist() == [True, True]
    assert (x ^ x).tolist() == [False, False]
    assert (-oplib.tensor([1.0, -2.0])).tolist() == [-1, 2]
    assert abs(oplib.tensor([1.0, -2.0])).tolist() == [1, 2]


def test_augmented_assignment_is_in_place() -> None:
    x = oplib.tensor([4.0, 6.0])
    same = x
    x += 2
    x *= oplib.tensor([1.0, 2.0])
    x -= np.array([1.0, 1.0])
    x /= 5
    assert x is same
    assert x.tolist() == [1, 3]
    assert x.inplace_version == 4


def test_other_types_are_refused() -> None:
    for other in ("a", None, [1.0, 2.0], object()):
        with pytest.raises(ArgumentError):
            oplib.ones(2) + other


def test_tensors_hash_by_identity() -> None:
    x, y = oplib.ones(2), oplib.ones(2)
    assert len({x, y, x}) == 2
    assert {x: 1}[x] == 1


# ---------------------------------------------------------------------- gradient state


def test_stop_gradient_and_requires_grad_are_one_state() -> None:
    x = oplib.ones(2)
    assert (x.requires_grad, x.stop_gradient) == (False, True)
    x.stop_gradient = False
    assert (x.requires_grad, x.stop_gradient) == (True, False)
    x.requires_grad = False
    assert x.stop_gradient
    assert x.requires_grad_() is x
    assert not x.requires_grad_().stop_gradient
    assert oplib.tensor([1.0], stop_gradient=False).requires_grad


@pytest.mark.parametrize("dtype", ["bool", "int64", "uint8"])
def test_integers_cannot_require_grad(dtype: str) -> None:
    x = oplib.ones(2, dtype=dtype)
    for demand in (
        lambda: x.requires_grad_(),
        lambda: oplib.ones(2, dtype=dtype, requires_grad=True),
    ):
        with pytest.raises(AutogradError, match="only float and complex"):
            demand()
    assert not x.requires_grad
    x.requires_grad = False


def test_a_leaf_has_no_grad_fn() -> None:
    x = oplib.ones(2, requires_grad=True)
    y = x * 2
    assert (x.is_leaf, x.grad_fn) == (True, None)
    assert not y.is_leaf
    assert y.grad_fn.name() == "GradNode_std::mul"
    assert y.detach().is_leaf


def test_grad_is_none_until_backward_and_after_clear() -> None:
    x = oplib.ones(2, requires_grad=True)
    assert x.grad is None
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]
    x.clear_grad(set_to_zero=True)
    assert x.grad.tolist() == [0, 0]
    x.clear_grad()
    assert x.grad is None
    assert oplib.ones(2).grad is None


# ---------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("data", "options", "text"),
    [
        ([1.0, 2.0], {}, "Tensor([1., 2.])"),
        (3, {}, "Tensor(3)"),
        ([[True], [False]], {}, "Tensor([[ True],\n        [False]])"),
        ([1.0], {"dtype": "float32"}, "Tensor([1.], dtype=float32)"),
        ([1.5], {"requires_grad": True}, "Tensor([1.5], requires_grad=True)"),
        (
            [1],
            {"dtype": "f32", "requires_grad": True},
            "Tensor([1.], dtype=float32, requires_grad=True)",
        ),
        ([], {}, "Tensor([], dtype=float64)"),
        ([1j], {}, "Tensor([0.+1.j])"),
    ],
)
def test_repr_shows_values_and_what_they_do_not_tell(data: Any, options: Any, text: str) -> None:
    assert repr(oplib.tensor(data, **options)) == text


def test_a_long_tensor_is_abbreviated() -> None:
    assert "..." in repr(oplib.zeros(10_000))
    assert len(repr(oplib.zeros(10_000))) < 200


def test_format_applies_to_numbers() -> None:
    assert f"{oplib.tensor(3.14159):.2f}" == "3.14"
    assert f"{oplib.tensor(7):04d}" == "0007"
    assert f"{oplib.tensor(2.0)}" == "Tensor(2.)"
    assert f"{oplib.ones(1):>12}" == "Tensor([1.])"


def test_describe_is_short() -> None:
    assert oplib.ones(2, 3, dtype="float32").describe() == "f32[2, 3]"
    assert oplib.ones(2).to("meta").describe() == "f64[2] meta"
    fake = oplib.FakeTensorMode().from_tensor(oplib.ones(2), device="npu:0")
    assert fake.describe() == "f64[2] npu:0 fake"


def test_a_tensor_of_a_transform_shows_its_kind() -> None:
    seen = []
    oplib.functionalize(lambda x: seen.append(repr(x)))(oplib.ones(2))
    assert seen == ["Tensor(FunctionalArray, f64[2])"]


def test_a_notebook_shows_type_and_values() -> None:
    html = oplib.tensor([1.5], requires_grad=True)._repr_html_()
    assert "Tensor f64[1]" in html
    assert "<pre>Tensor([1.5], requires_grad=True)</pre>" in html


def test_shifts_are_numpys_in_either_order_and_in_place() -> None:
    x = oplib.tensor([1, 2, 3])
    assert (x << 2).tolist() == [4, 8, 12]
    assert (x >> 1).tolist() == [0, 1, 1]
    assert (1 << x).tolist() == [2, 4, 8]
    assert (16 >> x).tolist() == [8, 4, 2]
    y = x
    y <<= 1
    y >>= oplib.tensor([0, 1, 2])
    assert y is x
    assert x.tolist() == [2, 2, 1]
