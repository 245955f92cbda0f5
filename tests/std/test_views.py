"""Views and joins: what shares memory, what copies, and the methods by which they are called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oplib
from oplib import AliasError, ArgumentError
from oplib.std import load_all
from tests.std.cases import CASES, as_tensors, identifiers, operator

load_all()

VIEWS = [
    name
    for name in CASES
    if operator(name).schema.is_view and name not in ("imag", "reshape", "flatten", "contiguous")
]


def shares(a: Any, b: Any) -> bool:
    return np.shares_memory(a.numpy(), b.numpy())


@pytest.mark.parametrize(("name", "case"), identifiers(VIEWS))
def test_a_write_through_a_view_reaches_its_base(name, case):
    call = as_tensors(case)
    base = call.args[0]
    result = operator(name)(*call.args, **call.kwargs)
    for view in result if isinstance(result, list) else [result]:
        assert view._storage is base._storage
        if view.size:
            view.fill_(99.0)
            assert (base == 99.0).any().item()


@pytest.mark.parametrize(("name", "case"), identifiers(VIEWS))
def test_a_view_of_a_read_only_tensor_is_read_only(name, case):
    array = case.args[0].copy()
    array.flags.writeable = False
    result = operator(name)(oplib.from_numpy(array), *case.args[1:], **case.kwargs)
    for view in result if isinstance(result, list) else [result]:
        if view.size and view.array.base is not None:
            with pytest.raises(AliasError, match="read-only"):
                view.fill_(1.0)


# ---------------------------------------------------------------------- views only sometimes


@settings(max_examples=60)
@given(
    st.permutations([0, 1, 2]),
    st.sampled_from([(24,), (6, 4), (2, 12), (3, 8), (4, 3, 2), (-1, 2)]),
)
def test_reshape_is_a_view_exactly_where_numpys_is(order, size):
    array = np.arange(24.0).reshape(2, 3, 4).transpose(order)
    x = oplib.from_numpy(array)
    result = x.reshape(size)
    expected = array.reshape(size)
    np.testing.assert_array_equal(result.numpy(), expected)
    assert shares(result, x) == np.shares_memory(expected, array)
    with oplib.FakeTensorMode() as mode:
        base = mode.from_tensor(x)
        fake = base.reshape(size)
        assert (fake._storage is base._storage) == shares(result, x)
        assert fake.strides == result.strides


def test_contiguous_is_the_tensor_itself_where_possible():
    x = oplib.zeros(2, 3)
    assert x.contiguous() is x
    y = x.T.contiguous()
    assert y.is_contiguous()
    assert not shares(x, y)


def test_a_reshape_that_copies_is_differentiable_and_independent():
    x = oplib.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    y = (x * 1).T.reshape(4)
    y.fill_(0.0)
    (x.T.reshape(4) * oplib.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert x.grad.tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_the_imaginary_part_of_a_real_tensor_is_fresh_zeros():
    x = oplib.ones(2, requires_grad=True)
    assert x.imag.tolist() == [0.0, 0.0]
    assert not shares(x.imag, x)
    x.imag.sum().backward()
    assert x.grad.tolist() == [0.0, 0.0]


def test_complex_parts_are_views():
    z = oplib.tensor([1 + 2j, 3 + 4j])
    z.imag.fill_(0.5)
    z.real.mul_(2.0)
    assert z.tolist() == [2 + 0.5j, 6 + 0.5j]


# ---------------------------------------------------------------------- methods


def test_sizes_are_written_as_one_sequence_or_several_ints():
    x = oplib.zeros(2, 3, 4)
    assert x.reshape(4, 6).shape == x.reshape((4, 6)).shape == x.reshape([4, 6]).shape == (4, 6)
    assert x.reshape(-1).shape == (24,)
    assert x.reshape(size=[24]).shape == (24,)
    assert x.transpose(2, 0, 1).shape == x.permute([2, 0, 1]).shape == (4, 2, 3)
    assert x.transpose().shape == x.transpose(None).shape == (4, 3, 2)
    assert oplib.zeros(1).expand(2, 3).shape == (2, 3)
    assert (
        x.new_zeros(2, 2).shape == x.new_ones((2, 2)).shape == x.new_empty([2, 2]).shape == (2, 2)
    )
    assert x.new_full((2,), 7).tolist() == [7.0, 7.0]


def test_transposes_are_properties():
    x = oplib.zeros(2, 3, 4)
    assert x.T.shape == (4, 3, 2)
    assert x.mT.shape == (2, 4, 3)


def test_conj_and_real_of_a_real_tensor_are_the_tensor_itself():
    x = oplib.ones(2)
    assert x.conj() is x
    assert x.real is x
    z = oplib.tensor([1j])
    assert z.conj().tolist() == [-1j]


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("reshape", ([5],)),
        ("reshape", ([-1, -1],)),
        ("transpose", ([0],)),
        ("transpose", ([0, 0],)),
        ("expand", ([3, 3],)),
        ("expand", ([3],)),
        ("unsqueeze", (5,)),
        ("select", (5, 0)),
        ("diagonal", (0, 1, 1)),
        ("unfold", (0, 3, 1)),
        ("unfold", (0, 1, 0)),
        ("split", ([1, 3], 1)),
        ("split", (-1,)),
        ("chunk", (0,)),
        ("narrow", (1, 2, 2)),
        ("flatten", (1, 0)),
        ("unflatten", (1, [2, 2])),
        ("movedim", ([0], [0, 1])),
        ("squeeze", (5,)),
        ("as_strided", ([4], [2])),
        ("as_strided", ([2], [2, 1])),
    ],
)
def test_misfits_are_refused_alike_real_and_fake(method, args):
    x = oplib.zeros(2, 3)
    with pytest.raises((ArgumentError, AliasError)) as real:
        getattr(x, method)(*args)
    if method == "as_strided" and len(args[0]) == len(args[1]):
        return
    with oplib.FakeTensorMode() as mode, pytest.raises((ArgumentError, AliasError)) as fake:
        getattr(mode.from_tensor(x), method)(*args)
    assert str(real.value) == str(fake.value)


def test_as_strided_reaches_what_its_storage_holds():
    base = oplib.arange(12)
    part = base[4:8]
    assert part.as_strided([2], [1], 0).tolist() == [0, 1]
    assert part.as_strided([2], [2]).tolist() == [4, 6]
    with pytest.raises(AliasError, match="reaches bytes"):
        part.as_strided([13], [1], 0)


def test_split_and_chunk_cut_like_their_namesakes():
    x = oplib.arange(7)
    assert [p.tolist() for p in x.split(3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [p.tolist() for p in x.split([2, 5])] == [[0, 1], [2, 3, 4, 5, 6]]
    assert [p.size for p in x.chunk(3)] == [3, 3, 1]
    assert [p.size for p in oplib.zeros(0).chunk(2)] == [0, 0]


def test_every_part_of_a_split_carries_gradient():
    x = oplib.ones(4, requires_grad=True)
    a, _, c = x.split([1, 2, 1])
    (a + 2 * c).sum().backward()
    assert x.grad.tolist() == [1.0, 0.0, 0.0, 2.0]


def test_writing_one_part_of_a_split_is_seen_by_the_base_and_differentiated():
    x = oplib.ones(4, requires_grad=True)
    y = x * 1
    a, b = y.split(2)
    a.mul_(3.0)
    (y * y).sum().backward()
    assert x.grad.tolist() == [18.0, 18.0, 2.0, 2.0]
    assert b.tolist() == [1.0, 1.0]
