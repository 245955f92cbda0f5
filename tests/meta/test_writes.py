"""Dtypes, views and writes on fakes: the same results and the same errors as on real tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oplib
from oplib import AliasError, ArgumentError, FakeTensorMode, Library, Tensor
from oplib.tensor.geometry import overlap

from .helpers import like, strided

DTYPES = "bool u8 i8 u16 i32 i64 f16 f32 f64 c64 c128".split()
NUMBERS = (True, 3, 300, -1, 1.5, 2j)


@pytest.fixture
def lib() -> Iterator[Library]:
    with Library("writetest", "FRAGMENT") as library:
        yield library


def outcome(f: Callable[..., Any], *args: Any) -> tuple[type, Any]:
    """Return what a call gives: (type, dtype and shape), or the class of its error."""
    try:
        result = f(*args)
    except Exception as error:
        return type(error), None
    return type(result), (result.dtype, result.shape)


def both(f: Callable[..., Any], *arrays: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Return the outcomes on real tensors and on their fakes."""
    mode = FakeTensorMode()
    real = [oplib.from_numpy(array) for array in arrays]
    fake = [mode.from_tensor(tensor) for tensor in real]
    return outcome(f, *real), outcome(f, *fake)


# ---------------------------------------------------------------------- dtypes


@pytest.mark.parametrize("a", DTYPES)
def test_promotion_on_fakes_is_that_of_real_tensors(a: str) -> None:
    mode = FakeTensorMode()
    x = oplib.ones(2, dtype=a)
    for b in DTYPES:
        for y in (oplib.ones(2, dtype=b), oplib.ones((), dtype=b)):
            assert (x + y).dtype == (mode.from_tensor(x) + mode.from_tensor(y)).dtype
        scalar = oplib.ones((), dtype=b).numpy()[()]
        assert (x + scalar).dtype == (mode.from_tensor(x) + scalar).dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_beside_fakes_give_the_outcome_of_real_tensors(dtype: str, number: Any) -> None:
    array = np.ones(2, oplib.ones(1, dtype=dtype).dtype)
    real, fake = both(lambda x: x + number, array)
    assert real == fake


def test_comparisons_of_fakes_are_bool() -> None:
    x = FakeTensorMode().from_tensor(oplib.ones(2, dtype="u8"))
    assert (x < x).dtype == (x == 300).dtype == np.bool_


IN_PLACE: dict[str, tuple[Callable[..., Any], list[np.ndarray[Any, Any]]]] = {
    "float into int": (lambda x: x.add_(1.5), [np.ones(2, int)]),
    "float tensor into int": (lambda x, y: x.add_(y), [np.ones(2, int), np.ones(2)]),
    "complex into real": (lambda x, y: x.copy_(y), [np.ones(2), np.ones(2, complex)]),
    "complex number into real": (lambda x: x.fill_(2j), [np.ones(2)]),
    "an int that does not fit": (lambda x: x.add_(300), [np.ones(2, "u1")]),
    "growth": (lambda x, y: x.mul_(y), [np.ones(2), np.ones((3, 2))]),
    "growth by copy": (lambda x, y: x.copy_(y), [np.ones(2), np.ones((3, 2))]),
    "wrong length": (lambda x, y: x.copy_(y), [np.ones(2), np.ones(3)]),
    "wrong length added": (lambda x, y: x.add_(y), [np.ones(2), np.ones(3)]),
    "overlap": (lambda x: x.expand([3, 2]).add_(1), [np.ones(2)]),
    "overlap of a copy": (lambda x, y: x.expand([3, 2]).copy_(y), [np.ones(2), np.ones((3, 2))]),
    "uniform": (lambda x: x.expand([3, 2]).copy_(2.0), [np.ones(2)]),
    "uniform along zero strides": (
        lambda x, y: x.expand([3, 2]).copy_(y),
        [np.ones(2), np.ones((1, 2))],
    ),
    "windows": (lambda x, y: x.unfold(0, 2, 1).copy_(y), [np.ones(4), np.ones((3, 2))]),
    "one into windows": (lambda x, y: x.unfold(0, 2, 1).copy_(y), [np.ones(4), np.ones(1)]),
    "narrower floats": (lambda x, y: x.add_(y), [np.ones(2, "f4"), np.ones(2)]),
    "item": (lambda x, y: x[0].copy_(y), [np.ones((2, 3)), np.ones(3)]),
}


@pytest.mark.parametrize("case", IN_PLACE)
def test_writes_to_fakes_have_the_outcome_of_writes_to_real_tensors(case: str) -> None:
    function, arrays = IN_PLACE[case]
    real, fake = both(function, *arrays)
    assert real == fake


SETITEM: dict[str, tuple[Any, Any]] = {
    "row": (0, 1.0),
    "slice": ((slice(None), slice(1, 3)), np.ones(2)),
    "wrong shape": (0, np.ones(5)),
    "growth": (0, np.ones((2, 3))),
    "positions": (np.array([0, 1]), np.ones((2, 3))),
    "positions, wrong shape": (np.array([0, 1]), np.ones((4, 3))),
    "complex": (0, np.ones(3, complex)),
    "ellipsis": ((..., None), 2.0),
    "beyond": ((5,), 2.0),
}


@pytest.mark.parametrize("case", SETITEM)
def test_item_assignment_to_fakes_has_the_outcome_of_real_tensors(case: str) -> None:
    index, value = SETITEM[case]

    def assign(x: Tensor) -> Tensor:
        x[index] = value
        return x

    real, fake = both(assign, np.zeros((2, 3)))
    assert real == fake


def test_augmented_item_assignment_works() -> None:
    x = FakeTensorMode().from_tensor(oplib.zeros(2, 3))
    x[0] += 1
    x[:, 1] *= x[:, 0]
    assert x.inplace_version >= 2


def test_an_index_that_is_a_mask_needs_dynamic_sizes_only_to_be_read() -> None:
    mode = FakeTensorMode()
    x = mode.from_tensor(oplib.ones(3))
    with pytest.raises(oplib.DataDependentError):
        x[x > 0]
    dynamic = FakeTensorMode(dynamic=True)
    y = dynamic.from_tensor(oplib.ones(3))
    assert str(y[y > 0].shape) == "(u0,)"
    y[y > 0] = 1.0
    assert y.inplace_version == 1


# ---------------------------------------------------------------------- versions


def test_a_write_bumps_the_version_of_every_handle() -> None:
    x = FakeTensorMode().from_tensor(oplib.ones(2, 3))
    view, detached = x[0], x.detach()
    view.add_(1)
    assert x.inplace_version == view.inplace_version == detached.inplace_version == 1


def test_a_refused_write_bumps_nothing_on_a_fake() -> None:
    x = FakeTensorMode().from_tensor(oplib.ones(2, dtype="i64"))
    with pytest.raises(TypeError):
        x.add_(1.5)
    assert x.inplace_version == 0


def test_a_write_never_changes_a_geometry() -> None:
    x = FakeTensorMode().from_tensor(oplib.ones(2, 3).T)
    before = x.array.geometry
    x.copy_(oplib.ops.std.full_like(x, 2))
    assert x.array.geometry == before


def test_a_twin_of_another_shape_is_refused(lib: Library) -> None:
    op = lib.define("f_(Tensor(a!) x, Tensor y) -> Tensor(a!)").op
    op.register_functional(oplib.ops.std.add)
    mode = FakeTensorMode()
    x, y = mode.from_tensor(oplib.ones(2)), mode.from_tensor(oplib.ones(3, 2))
    assert op(x, x) is x
    with pytest.raises(oplib.FakeTensorError) as caught:
        op(x, y)
    for part in ("writetest::f_", "gives f64[3, 2] fake for a destination f64[2] fake", "twin"):
        assert part in str(caught.value)
    assert x.inplace_version == 1


def test_an_opaque_write_to_a_destination_that_overlaps_itself_is_refused(lib: Library) -> None:
    op = lib.define("f_(Tensor(a!) x, Tensor(b!)[] ys) -> Tensor(a!)").op
    op.register_kernel("cpu", lambda x, ys: None)
    errors = []
    mode = FakeTensorMode()
    for x in (oplib.ones(2), mode.from_tensor(oplib.ones(2))):
        for args in ((x.expand([3, 2]), []), (x, [x.expand([3, 2])])):
            with pytest.raises(AliasError, match="overlaps itself") as caught:
                op(*args)
            errors.append(str(caught.value))
    assert errors[:2] == errors[2:]


# ---------------------------------------------------------------------- views

VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "transpose": lambda x: x.T,
    "permute": lambda x: x.permute([1, 2, 0]),
    "expand": lambda x: x.unsqueeze(1).expand([-1, 4, -1, -1]),
    "squeeze": lambda x: x[:1].squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "getitem": lambda x: x[1, ::-1, None, ..., :2],
    "select": lambda x: x.select(1, -1),
    "narrow": lambda x: x.narrow(2, 1, 2),
    "diagonal": lambda x: x.diagonal(1, 0, 2),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "flatten": lambda x: x.flatten(1),
    "reshape": lambda x: x.reshape([3, -1]),
    "swapaxes": lambda x: x.swapaxes(0, 2),
    "movedim": lambda x: x.movedim([0], [2]),
    "as_strided": lambda x: x.as_strided([2, 2], [1, 3], 2),
    "view_as_complex": lambda x: x[..., :2].view_as_complex(),
    "real": lambda x: x.real,
    "detach": lambda x: x.detach(),
    "alias": lambda x: x.alias(),
    "split": lambda x: x.split(2, 2),
    "chunk": lambda x: x.chunk(2, 1),
    "unbind": lambda x: x.unbind(0),
    "contiguous": lambda x: x.contiguous(),
    "empty parts": lambda x: x[:, :0].split(1, 0),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_a_fake_has_the_geometry_of_the_real_view(name: str) -> None:
    base = np.zeros((2, 3, 4))
    for x in (oplib.from_numpy(base), oplib.from_numpy(base).detach().permute([0, 1, 2])):
        fake = FakeTensorMode().from_tensor(x)
        reals, fakes = VIEWS[name](x), VIEWS[name](fake)
        several = isinstance(reals, list | tuple)
        for real, made in zip(
            reals if several else [reals], fakes if several else [fakes], strict=True
        ):
            assert like(real, made)
            assert (real._storage is x._storage) == (made._storage is fake._storage)
            if real.size and real._storage is x._storage:
                start = real.numpy().__array_interface__["data"][0]
                origin = base.__array_interface__["data"][0]
                assert made.array.offset == start - origin


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_reshape_is_a_view_where_the_real_one_is(seed: int, ndim: int) -> None:
    rng = np.random.default_rng(seed)
    array = strided(rng, ndim)
    x = oplib.from_numpy(array)
    fake = FakeTensorMode().from_tensor(x)
    for size in ([-1], [array.size, 1], list(array.shape)[::-1]):
        real, made = x.reshape(size), fake.reshape(size)
        assert like(real, made)
        assert (real._storage is x._storage) == (made._storage is fake._storage)


@settings(max_examples=80)
@given(st.integers(0, 2**32 - 1))
def test_overlap_of_fakes_is_overlap_of_memory(seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = np.zeros((4, 6))
    views = []
    for _ in range(2):
        a, b = sorted(rng.integers(0, 5, 2))
        c, d = sorted(rng.integers(0, 7, 2))
        views.append(base[a:b, c : d : int(rng.integers(1, 4))])
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(oplib.from_numpy(view)) for view in views]
    assert overlap(*[fake.array.geometry for fake in fakes]) == np.shares_memory(*views)


def test_parts_of_an_empty_tensor_are_fresh_handles() -> None:
    x = FakeTensorMode().from_tensor(oplib.zeros(0, 3))
    parts = x.split(1, 1)
    assert len(parts) == 3
    assert all(part is not x for part in parts)
    (whole,) = x.split(3, 1)
    assert whole is not x


def test_a_view_outside_of_the_storage_is_refused() -> None:
    x = oplib.ones(4)
    fake = FakeTensorMode().from_tensor(x)
    for tensor in (x, fake, fake[1:], oplib.ones(4).to("meta"), fake * 2):
        with pytest.raises(AliasError):
            tensor.as_strided([3], [2], 0)
    assert fake[2:].as_strided([2, 2], [1, 1], 0).shape == (2, 2)


def test_contiguous_of_a_contiguous_fake_shares_its_storage() -> None:
    x = FakeTensorMode().from_tensor(oplib.ones(2, 3))
    assert x.contiguous()._storage is x._storage
    assert x.T.contiguous()._storage is not x._storage


def test_a_chain_of_views_keeps_the_root_in_autograd() -> None:
    x = FakeTensorMode().from_tensor(oplib.ones(2, 3, requires_grad=True))
    y = x * 1
    y.T[1][0].mul_(3)
    y.sum().backward()
    assert x.grad.shape == (2, 3)


# ---------------------------------------------------------------------- layout


@settings(max_examples=200)
@given(st.integers(0, 2**32 - 1), st.integers(0, 4))
def test_elementwise_results_are_laid_out_as_numpy_does(seed: int, ndim: int) -> None:
    rng = np.random.default_rng(seed)
    first = strided(rng, ndim)
    other = np.zeros(first.shape[::-1]).T
    repeated = np.broadcast_to(np.zeros(first.shape[-1:]), first.shape)
    mode = FakeTensorMode()
    for a, b in itertools.product([first, other, repeated], repeat=2):
        x, y = oplib.from_numpy(a), oplib.from_numpy(b)
        expected = oplib.from_numpy(np.asarray(np.add(a, b)))
        assert like(expected, mode.from_tensor(x) + mode.from_tensor(y))


def test_conflicting_orders_give_c_order() -> None:
    mode = FakeTensorMode()
    c = mode.from_tensor(oplib.ones(3, 3))
    f = mode.from_tensor(oplib.ones(3, 3).T)
    assert (c + f).strides == (f + c).strides == (24, 8)
    assert (f + f).strides == (8, 24)


def test_a_fresh_result_has_no_stride_of_zero() -> None:
    x = FakeTensorMode().from_tensor(oplib.ones(3)).expand([2, 3])
    for result in (x + x, x.clone(), x.cast("f32")):
        assert 0 not in result.strides


def test_argument_errors_of_rules_are_those_of_kernels() -> None:
    for f in (
        lambda x: x.sum(5),
        lambda x: x @ x,
        lambda x: x.reshape([5]),
        lambda x: x.transpose([0, 0]),
        lambda x: oplib.concat([x, x[:, :1]]),
        lambda x: x + x[:, :2],
        lambda x: x.permute([3, 1]),
        lambda x: x[5],
    ):
        real, fake = both(f, np.ones((2, 3)))
        assert real == fake
        assert real[1] is None


def test_wrong_arguments_are_refused_before_any_rule() -> None:
    x = FakeTensorMode().from_tensor(oplib.ones(2))
    with pytest.raises(ArgumentError, match="must be a Tensor"):
        x + "text"
    with pytest.raises(ArgumentError, match="has no argument"):
        x.sum(axis_=0)
