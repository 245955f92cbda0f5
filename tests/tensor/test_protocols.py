"""NumPy, DLPack, copy and pickle: what enters, what leaves, and what is recorded."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import ArgumentError, AutogradError, Tensor, from_numpy
from oplib.tensor.protocols import UFUNCS

# ---------------------------------------------------------------------- arrays that enter


def test_from_numpy_shares_memory_both_ways() -> None:
    array = np.zeros(3)
    x = from_numpy(array)
    x.add_(1)
    array[0] = 5
    assert x.tolist() == [5, 1, 1]


@pytest.mark.parametrize("value", [[1.0], 1.0, np.float64(1), "a", None, np.ma.masked_array([1.0])])
def test_from_numpy_takes_arrays_only(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"oplib\.tensor\(\.\.\.\) copies"):
        from_numpy(value)


@pytest.mark.parametrize("dtype", ["O", "U3", "S3", "M8[s]", "m8[s]", [("a", "f4")]])
def test_arrays_that_hold_no_numbers_are_refused(dtype: Any) -> None:
    array = np.zeros(2, dtype)
    with pytest.raises(ArgumentError, match="holds no numbers"):
        from_numpy(array)
    with pytest.raises(ArgumentError, match="holds no numbers"):
        oplib.ones(2) + array


def test_a_file_in_memory_is_an_array(tmp_path: Path) -> None:
    file = np.memmap(tmp_path / "a", "f8", "w+", shape=(3,))
    x = from_numpy(file)
    x.add_(1)
    assert file.tolist() == [1, 1, 1]
    assert from_numpy(file)._storage is x._storage


def test_a_numpy_scalar_is_not_weak() -> None:
    x = oplib.ones(2, dtype="float32")
    assert (x * 2.0).dtype == np.float32
    assert (x * np.float64(2)).dtype == np.float64


# ---------------------------------------------------------------------- arrays that leave


def test_asarray_shares_memory_and_asarray_with_a_dtype_copies() -> None:
    x = oplib.ones(2)
    assert np.shares_memory(np.asarray(x), x.numpy())
    assert np.asarray(x, "f4").dtype == np.float32
    assert not np.shares_memory(np.array(x), x.numpy())
    assert np.shares_memory(np.array(x, copy=False), x.numpy())
    with pytest.raises(ValueError, match="without a copy"):
        np.array(x, "f4", copy=False)


def test_numpy_functions_that_know_arrays_only_take_the_array() -> None:
    x = oplib.tensor([3.0, 1.0])
    np.testing.assert_allclose(x, [3, 1])
    assert np.allclose(x, x.numpy())
    assert np.sort(np.asarray(x)).tolist() == [1, 3]


def test_dlpack_shares_memory_with_other_libraries() -> None:
    x = oplib.ones(2, 3)
    array = np.from_dlpack(x)
    assert np.shares_memory(array, x.numpy())
    assert x.__dlpack_device__() == (1, 0)


@pytest.mark.peer("torch")
def test_dlpack_shares_memory_with_torch() -> None:
    import torch

    x = oplib.zeros(3)
    theirs = torch.from_dlpack(x)
    x.add_(1)
    assert theirs.tolist() == [1, 1, 1]
    back = from_numpy(theirs.numpy())
    assert back._storage is x._storage
    back.add_(1)
    assert x.inplace_version == 2


@pytest.mark.peer("torch")
def test_memory_of_torch_comes_in_by_dlpack() -> None:
    import torch

    theirs = torch.arange(6.0).reshape(2, 3).T
    x = oplib.from_dlpack(theirs)
    assert (x.shape, x.strides, x.dtype) == ((3, 2), (4, 12), np.float32)
    x.mul_(2)
    assert theirs[2, 1].item() == 10.0


@pytest.mark.peer("jax")
def test_memory_of_jax_comes_in_by_dlpack_and_cannot_be_written() -> None:
    import jax.numpy as jnp

    x = oplib.from_dlpack(jnp.arange(3.0))
    assert x.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(oplib.AliasError, match="read-only"):
        x.add_(1)


# ---------------------------------------------------------------------- ufuncs


def test_a_ufunc_calls_the_operator_and_records() -> None:
    x = oplib.tensor([0.5, 1.0], requires_grad=True)
    y = np.exp(x)
    assert isinstance(y, Tensor)
    y.sum().backward()
    np.testing.assert_allclose(x.grad, np.exp([0.5, 1.0]))


def test_a_ufunc_takes_tensors_arrays_and_numbers_in_any_order() -> None:
    x = oplib.tensor([1.0, 2.0], requires_grad=True)
    z = np.add(np.multiply(x, 3), np.maximum(np.array([1.5, 1.5]), x))
    z.sum().backward()
    assert z.tolist() == [4.5, 8]
    assert x.grad.tolist() == [3, 4]


@pytest.mark.parametrize("name", sorted(UFUNCS))
def test_every_ufunc_in_the_table_is_its_operator(name: str) -> None:
    ufunc = getattr(np, name)
    bits = name.startswith("bitwise") or name.endswith("shift")
    kind = "?" if name.startswith("logical") or name == "invert" else "i4" if bits else "f8"
    array = (np.array([0.3, 0.7, 0.9]) * (3 if kind == "i4" else 1)).astype(kind)
    if name == "arccosh":
        array = array + 1
    if name == "matmul":
        array = array[:, None] * array
    arrays = [array, array[::-1]][: ufunc.nin]
    result, expected = ufunc(*map(from_numpy, arrays)), ufunc(*arrays)
    np.testing.assert_array_equal(result.numpy(), expected)
    assert result.dtype == expected.dtype


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x: np.fmax(x, x), "numpy.fmax"),
        (lambda x: np.add.reduce(x), "numpy.add.reduce"),
        (lambda x: np.add.outer(x, x), "numpy.add.outer"),
        (lambda x: np.add(x, 1, out=np.zeros(2)), "numpy.add with out"),
        (lambda x: np.add(x, 1, where=np.array([True, False])), "numpy.add with where"),
        (lambda x: np.exp(x, dtype="f4"), "numpy.exp with dtype"),
    ],
)
def test_a_ufunc_without_an_operator_is_refused_not_computed_aside(call: Any, what: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        call(oplib.ones(2))
    assert str(caught.value).startswith(f"{what} has no operator for Tensors")
    assert "x.numpy()" in str(caught.value)


def test_an_array_does_not_take_in_a_tensor_silently() -> None:
    array = np.zeros(2)
    with pytest.raises(ArgumentError, match=r"numpy\.add with out"):
        array += oplib.ones(2, requires_grad=True)
    assert array.tolist() == [0, 0]


# ---------------------------------------------------------------------- copies


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_is_independent_and_keeps_dtype_values_and_state(clone: Any) -> None:
    for x in (
        oplib.tensor([1.0, 2.0], requires_grad=True),
        oplib.arange(3),
        oplib.ones((), dtype="f32"),
        oplib.zeros(0, 2),
        oplib.tensor([1j]),
    ):
        y = clone(x)
        assert (y.dtype, y.shape, y.requires_grad) == (x.dtype, x.shape, x.requires_grad)
        np.testing.assert_array_equal(y.numpy(), x.numpy())
        assert y._storage is not x._storage
        assert y.is_leaf


def test_a_deep_copy_copies_the_gradient() -> None:
    x = oplib.ones(2, requires_grad=True)
    (x * 3).sum().backward()
    y = copy.deepcopy(x)
    assert y.grad.tolist() == [3, 3]
    assert y.grad is not x.grad
    (y * 1).sum().backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([3, 3], [4, 4])


def test_a_tensor_met_twice_is_copied_once() -> None:
    x = oplib.ones(2)
    a, b = copy.deepcopy([x, x])
    assert a is b
    a, b = pickle.loads(pickle.dumps([x, x]))
    assert a is b


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_history_is_not_lost_silently(clone: Any) -> None:
    x = oplib.ones(2, requires_grad=True) * 2
    with pytest.raises(AutogradError, match=r"x\.detach\(\)"):
        clone(x)
    assert clone(x.detach()).tolist() == [2, 2]


def test_a_copy_keeps_its_layout() -> None:
    x = oplib.ones(2, 3).T
    assert copy.deepcopy(x).strides == x.strides


def test_a_shallow_copy_shares_memory() -> None:
    x = oplib.ones(2)
    y = copy.copy(x)
    assert y is not x
    assert y._storage is x._storage


def test_a_shallow_copy_of_a_computed_tensor_is_refused() -> None:
    with pytest.raises(AutogradError, match=r"cannot be copied.*\n.*x\.detach\(\)"):
        copy.copy(oplib.ones(2, requires_grad=True) * 2)


def test_a_fake_is_copied_as_a_fake() -> None:
    fake = oplib.ones(2).to("meta")
    assert copy.copy(fake).describe() == copy.deepcopy(fake).describe() == fake.describe()


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize("dtype", ["int8", "int64", "float32", "bool", "complex64"])
def test_bytes_are_those_of_the_elements_in_c_order(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    assert bytes(oplib.from_numpy(array).T) == array.T.tobytes()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes have __buffer__ since Python 3.12")
def test_a_memoryview_shares_memory() -> None:
    x = oplib.zeros(2)
    memoryview(x)[0] = 1.0  # type: ignore[arg-type]
    assert x.tolist() == [1.0, 0.0]


def test_the_buffer_is_the_memory_of_the_tensor() -> None:
    x = oplib.zeros(2)
    buffer = x.__buffer__(0)
    buffer[0] = 1.0
    assert (buffer.format, buffer.shape, x.tolist()) == ("d", (2,), [1.0, 0.0])
    with pytest.raises(oplib.DataDependentError):
        x.to("meta").__buffer__(0)


@pytest.mark.parametrize("copy", [None, True, False])
def test_asarray_copies_when_told_and_only_then(copy: bool | None) -> None:
    x = oplib.zeros(2)
    array = np.array(x, copy=copy)
    assert np.shares_memory(array, x.numpy()) == (not copy)


def test_a_conversion_without_a_copy_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot convert float64 to float32 without a copy"):
        np.array(oplib.zeros(2), dtype="float32", copy=False)
