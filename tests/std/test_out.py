"""``out=`` of functional operators, and what comes in by NumPy functions and DLPack."""

import numpy as np
import pytest

import oplib
from oplib import ArgumentError, AutogradError


@pytest.fixture
def x():
    return oplib.tensor([1.0, 2.0, 3.0])


def test_out_takes_the_result_counts_one_write_and_is_returned(x):
    out = oplib.empty([3])
    assert oplib.add(x, 1, out=out) is out
    assert out.tolist() == [2.0, 3.0, 4.0]
    assert out.inplace_version == 1
    assert oplib.ops.std.sum(x, dim=0, keepdim=True, out=oplib.empty([1])).tolist() == [6.0]
    assert np.add(x, x, out=out) is out


def test_out_may_be_an_operand(x):
    assert x.mul(x, out=x).tolist() == [1.0, 4.0, 9.0]
    assert oplib.add(x[:2], x[1:], out=x[1:]).tolist() == [5.0, 13.0]


def test_out_is_recorded_and_its_old_value_gets_zeros(x):
    old, leaf = oplib.ones([3], requires_grad=True), oplib.ones([3], requires_grad=True)
    out = old * 1
    oplib.mul(x, leaf, out=out)
    out.sum().backward()
    assert leaf.grad.tolist() == [1.0, 2.0, 3.0]
    assert old.grad is None or old.grad.tolist() == [0.0] * 3


@pytest.mark.parametrize("transform", [oplib.functionalize, lambda f: f])
def test_out_means_the_same_under_functionalize(x, transform):
    def program(x):
        oplib.exp(x[:2], out=x[1:])
        return x * 1

    expected = np.array([1.0, np.exp(1.0), np.exp(2.0)])
    np.testing.assert_allclose(transform(program)(x).numpy(), expected)
    np.testing.assert_allclose(x.numpy(), expected)


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (oplib.zeros([2]), ArgumentError),
        (oplib.zeros([3], dtype="int64"), TypeError),
        (oplib.zeros([3], requires_grad=True), AutogradError),
        (np.zeros(3), ArgumentError),
    ],
)
def test_an_out_that_cannot_be_written_is_left_alone(x, out, error):
    before = np.array(out)
    with pytest.raises(error):
        oplib.exp(x, out=out)
    assert np.array_equal(np.array(out), before)
    assert isinstance(out, np.ndarray) or out.inplace_version == 0


def test_out_of_several_results_is_a_tuple_with_a_tensor_or_none_for_each(x):
    values, indices = oplib.zeros([3]), oplib.zeros([3], dtype="int64")
    found = oplib.sort(x, descending=True, out=(values, indices))
    assert found[0] is values
    assert found[1] is indices
    assert values.tolist() == [3.0, 2.0, 1.0]
    assert indices.tolist() == [2, 1, 0]
    assert values.inplace_version == indices.inplace_version == 1
    kept, fresh = oplib.topk(x, 2, out=(oplib.zeros([2]), None))
    assert kept.tolist() == [3.0, 2.0]
    assert fresh.tolist() == [2, 1]


def test_out_of_several_results_is_recorded(x):
    leaf = oplib.ones([3], requires_grad=True)
    values = oplib.zeros([3])
    oplib.sort(leaf * x, descending=True, out=(values, None))
    (values * oplib.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert leaf.grad.tolist() == [100.0, 20.0, 3.0]


READ_ONLY = np.zeros(3, "int64")
READ_ONLY.flags.writeable = False
FIRST = oplib.zeros([3])


@pytest.mark.parametrize(
    ("outs", "words"),
    [
        ((FIRST, oplib.zeros([2], dtype="int64")), "indices has shape"),
        ((FIRST, oplib.zeros([3], dtype="bool")), "indices has dtype bool, the result int64"),
        ((FIRST, 3), "indices is no tensor"),
        ((FIRST, oplib.from_numpy(READ_ONLY)), "indices is read-only"),
        ((oplib.zeros([3], requires_grad=True), None), "values is a leaf that requires grad"),
        (FIRST, "takes a tuple of 2, a tensor or None for each of values, indices"),
        ((FIRST,), "takes a tuple of 2"),
    ],
)
def test_if_one_of_several_results_cannot_be_stored_none_is(x, outs, words):
    with pytest.raises(ArgumentError, match=words):
        oplib.sort(x, out=outs)
    assert FIRST.inplace_version == 0


def test_results_are_not_stored_in_one_piece_of_memory():
    x, buffer = oplib.tensor([2, 1]), oplib.zeros([3], dtype="int64")
    with pytest.raises(ArgumentError, match="indices shares memory"):
        oplib.sort(x, out=(buffer[:2], buffer[1:]))


def test_out_with_other_mistakes_names_those(x):
    with pytest.raises(ArgumentError, match="no argument 'nope'"):
        oplib.exp(x, nope=1, out=x)
    with pytest.raises(ArgumentError, match="takes 1 positional argument but 2"):
        oplib.exp(x, 1, out=x)
    with pytest.raises(ArgumentError, match="no argument 'out'"):
        x.exp_(out=x)


def test_a_number_is_no_base_of_a_view(x):
    for name, args in [("reshape", ([1],)), ("unsqueeze", (0,)), ("real", ()), ("detach", ())]:
        with pytest.raises(ArgumentError, match="argument `x` is viewed, so it must be a Tensor"):
            getattr(oplib.ops.std, name)(1.0, *args)


def test_numpy_functions_are_the_operators_of_their_meaning():
    x = oplib.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    array = x.detach().numpy()
    for name, kwargs in [
        ("sum", {"axis": 0}),
        ("mean", {"axis": 1, "keepdims": True}),
        ("max", {}),
    ]:
        found = getattr(np, name)(x, **kwargs)
        assert found.requires_grad
        np.testing.assert_array_equal(found.numpy(), getattr(np, name)(array, **kwargs))
    assert np.concatenate([x, x], axis=1).requires_grad
    assert np.reshape(x, (4,)).requires_grad


def test_a_numpy_function_without_operator_does_not_drop_gradients():
    x = oplib.ones([3], requires_grad=True)
    with pytest.raises(ArgumentError, match=r"numpy.linalg.norm has no operator"):
        np.linalg.norm(x)
    assert np.linalg.norm(x.detach()) == np.sqrt(3.0)
    assert np.allclose(x, x)


def test_dlpack_shares_memory_and_the_count_of_writes(x):
    y = oplib.from_dlpack(x)
    y.add_(1)
    assert x.tolist() == [2.0, 3.0, 4.0]
    assert x.inplace_version == y.inplace_version == 1
    back = oplib.from_dlpack(np.from_dlpack(x))
    assert back.zero_().inplace_version == x.inplace_version == 2
    with pytest.raises(ArgumentError, match="cannot share the memory"):
        oplib.from_dlpack(3)


def test_a_write_to_memory_shared_by_dlpack_is_not_silent(x):
    x.requires_grad = True
    h = x * 2
    y = oplib.from_dlpack(h)
    with pytest.raises(oplib.AliasError, match="shares memory"):
        y.add_(1)
    assert h.tolist() == [2.0, 4.0, 6.0]


def test_an_item_takes_one_number_in_any_shape():
    x = oplib.zeros([3])
    x[0] = oplib.tensor([[5.0]])
    x[1] = np.array([6.0])
    assert x.tolist() == [5.0, 6.0, 0.0]
    with pytest.raises(ArgumentError, match="does not broadcast"):
        x[0] = oplib.tensor([1.0, 2.0])


def test_view_shows_bytes_as_another_dtype():
    x = oplib.tensor([1.0, 2.0])
    bits = x.view("int64")
    bits.zero_()
    assert x.tolist() == [0.0, 0.0]
    assert x.inplace_version == 1
    with pytest.raises(ArgumentError, match="cannot view"):
        oplib.tensor([1.0, 2.0, 3.0]).view("complex128")


def test_gradients_pass_a_view_between_complex_numbers_and_their_parts_only():
    x = oplib.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    y = x * 1
    y.view("complex128").mul_(1j)  # (a, b) becomes (-b, a)
    y.sum().backward()
    assert x.grad.tolist() == [1.0, -1.0, 1.0, -1.0]
    for dtype in ("int64", "float32"):
        with pytest.raises(AutogradError, match="gradients cannot be followed"):
            (x * 1).view(dtype)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float32"])
def test_the_conjugate_of_a_real_tensor_is_a_copy_of_the_dtype_numpy_gives_and_the_fake_says(dtype):
    x = oplib.tensor([1, 0]).cast(dtype)
    y = oplib.conj(x)
    assert y.dtype == np.conjugate(x.numpy()).dtype
    assert not np.shares_memory(x.numpy(), y.numpy())
    with oplib.FakeTensorMode() as mode:
        assert oplib.conj(mode.from_tensor(x)).dtype == y.dtype
