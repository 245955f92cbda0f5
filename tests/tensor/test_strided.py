"""Strided access of arrays: laws, last-writer order and gradients, against dict models."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplib.errors import AliasError, ArgumentError
from oplib.tensor.geometry import Geometry
from oplib.tensor.strided import array_at, strided_add, strided_get, strided_put, winners


class Access(NamedTuple):
    """What the strided operators take after their arrays."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def addresses(self) -> list[tuple[tuple[int, ...], int]]:
        """Return (index tuple, address) pairs in logical C order."""
        return [
            (index, self.offset + sum(i * s for i, s in zip(index, self.stride, strict=True)))
            for index in np.ndindex(*self.size)
        ]

    def repeats(self) -> bool:
        found = [address for _, address in self.addresses()]
        return len(set(found)) != len(found)


def small_accesses() -> Iterator[Access]:
    """Every access of two axes with lengths up to 3 and strides -3..3 that fits 8 elements."""
    for size in itertools.product(range(4), repeat=2):
        for stride in itertools.product(range(-3, 4), repeat=2):
            reach = [(n - 1) * s for n, s in zip(size, stride, strict=True) if n]
            low, high = sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)
            for offset in {-low, 7 - high}:
                if offset + low >= 0 and offset + high < 8:
                    yield Access(size, stride, offset)


SMALL = list(small_accesses())


@st.composite
def accesses(draw: st.DrawFn) -> Access:
    """An access that fits 24 elements, often with repeated addresses."""
    size = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    stride = tuple(draw(st.integers(-3, 3)) for _ in size)
    reach = [max(0, n - 1) * s for n, s in zip(size, stride, strict=True)]
    low, high = sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)
    return Access(size, stride, draw(st.integers(-low, 23 - high)))


def layouts() -> list[np.ndarray]:
    """24 distinct elements in C, Fortran, permuted, strided and reversed memory order."""
    x = np.arange(24.0).reshape(2, 3, 4)
    strided = np.zeros((2, 3, 8))[..., ::2]
    strided[...] = x
    return [
        x,
        np.asfortranarray(x),
        np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2),
        strided,
        np.ascontiguousarray(x[::-1])[::-1],
        np.broadcast_to(np.arange(4.0), (2, 3, 4)),
    ]


def put_model(base: np.ndarray, value: np.ndarray, access: Access) -> np.ndarray:
    flat = base.flatten().tolist()
    for index, address in access.addresses():
        flat[address] = value[index]
    return np.array(flat, base.dtype).reshape(base.shape)


def test_the_family_of_small_accesses_has_overlaps_and_empty_ones() -> None:
    assert len(SMALL) > 500
    assert any(access.repeats() for access in SMALL)
    assert any(0 in access.size for access in SMALL)


# -- get --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", range(6))
@given(accesses())
def test_get_reads_every_layout_in_logical_order(layout: int, access: Access) -> None:
    base = layouts()[layout]
    result = strided_get(base, *access)
    flat = base.flatten()
    assert result.shape == access.size
    for index, address in access.addresses():
        assert result[index] == flat[address]


@given(accesses())
def test_get_has_exactly_the_given_strides_and_is_a_view_of_a_contiguous_base(
    access: Access,
) -> None:
    base = np.arange(24.0).reshape(4, 6)
    result = strided_get(base, *access)
    if result.size:
        assert result.strides == tuple(8 * step for step in access.stride)
        assert np.shares_memory(result, base)


def test_get_of_one_element_without_axes() -> None:
    assert strided_get(np.zeros(()), (), (), 0).shape == ()
    assert strided_get(np.arange(6.0), (), (), 4) == 4.0


def test_get_of_a_read_only_base_is_read_only() -> None:
    base = np.arange(6.0)
    base.flags.writeable = False
    assert not strided_get(base, (3,), (2,), 0).flags.writeable


# -- put --------------------------------------------------------------------------------------


def test_put_equals_the_model_for_every_small_access() -> None:
    base = np.arange(8.0)
    for access in SMALL:
        value = 100.0 + np.arange(np.prod(access.size)).reshape(access.size)
        result = strided_put(base, value, *access)
        assert np.array_equal(result, put_model(base, value, access)), access
    assert np.array_equal(base, np.arange(8.0))


def test_the_laws_of_get_and_put_hold_for_every_small_access() -> None:
    base = np.arange(8.0)
    for access in SMALL:
        u = 100.0 + np.arange(np.prod(access.size)).reshape(access.size)
        v = u + 100.0
        put = strided_put(base, v, *access)
        kept = np.array_equal(strided_get(put, *access), v)
        assert kept == (not access.repeats()), access
        assert np.array_equal(strided_put(base, strided_get(base, *access), *access), base)
        assert np.array_equal(strided_put(strided_put(base, u, *access), v, *access), put)
        if len({address for _, address in access.addresses()}) == 8:
            assert np.array_equal(strided_put(base * -1, v, *access), put)


def test_puts_through_disjoint_accesses_commute() -> None:
    base = np.arange(8.0)
    for a, b in itertools.product(SMALL[::19], SMALL[::23]):
        if {x for _, x in a.addresses()} & {x for _, x in b.addresses()}:
            continue
        u, v = np.full(a.size, -1.0), np.full(b.size, -2.0)
        first = strided_put(strided_put(base, u, *a), v, *b)
        assert np.array_equal(first, strided_put(strided_put(base, v, *b), u, *a))


@pytest.mark.parametrize("layout", range(6))
@given(accesses())
def test_put_keeps_shape_dtype_and_layout_of_its_base(layout: int, access: Access) -> None:
    base = layouts()[layout]
    before = base.copy()
    value = 100.0 + np.arange(np.prod(access.size)).reshape(access.size)
    result = strided_put(base, value, *access)
    assert np.array_equal(result, put_model(base, value, access))
    assert result.strides == base.copy(order="K").strides
    assert not np.shares_memory(result, base)
    assert np.array_equal(base, before)


def test_a_repeated_address_keeps_the_value_with_the_greatest_index() -> None:
    value = np.arange(6.0).reshape(3, 2)
    assert strided_put(np.zeros(4), value, (3, 2), (1, 1), 0).tolist() == [0, 2, 4, 5]
    reverse = strided_put(np.zeros(4), value, (3, 2), (-1, 1), 2)
    assert reverse.tolist() == [4, 5, 3, 1]


def test_put_broadcasts_its_value() -> None:
    result = strided_put(np.zeros(6), np.array([1.0, 2.0]), (3, 2), (2, 1), 0)
    assert result.tolist() == [1, 2, 1, 2, 1, 2]
    assert strided_put(np.zeros(3), np.array(7.0), (3,), (0,), 1).tolist() == [0, 7, 0]


def test_put_of_nothing_returns_the_base_unchanged() -> None:
    base = np.arange(3.0)
    result = strided_put(base, np.zeros((0, 2)), (0, 2), (5, 5), 99)
    assert np.array_equal(result, base)
    assert result is not base


@pytest.mark.parametrize("dtype", ["?", "i8", "c8", "f2", "M8[s]"])
def test_get_and_put_move_every_dtype(dtype: str) -> None:
    base = np.zeros(6, dtype)
    value = np.ones(3, dtype)
    result = strided_put(base, value, (3,), (2,), 1)
    assert result.dtype == base.dtype
    assert np.array_equal(strided_get(result, (3,), (2,), 1), value)
    assert np.array_equal(strided_get(result, (3,), (2,), 0), base[:3])


def test_bits_survive_get_and_put() -> None:
    payload = np.array([0x7FF8_0000_0000_BEEF, 0x8000_0000_0000_0000], np.uint64).view(np.float64)
    result = strided_put(np.zeros(4), payload, (2,), (2,), 1)
    assert strided_get(result, (2,), (2,), 1).tobytes() == payload.tobytes()


# -- misuse -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "access",
    [((3,), (2,), 4), ((2,), (-1,), 0), ((2, 2), (4, 4), 0), ((1,), (0,), 8), ((), (), -1)],
)
def test_an_address_outside_of_the_base_raises_before_anything_is_read(access: Any) -> None:
    base = np.arange(8.0)
    calls: list[Callable[[], Any]] = [
        lambda: strided_get(base, *access),
        lambda: strided_put(base, np.zeros(()), *access),
        lambda: strided_add(np.zeros(()), (8,), *access),
    ]
    for call in calls:
        with pytest.raises(IndexError, match="of a base with 8 elements"):
            call()


def test_sizes_that_do_not_fit_are_named() -> None:
    base = np.arange(8.0)
    with pytest.raises(ArgumentError, match=r"size \(2,\) and stride \(1, 2\)"):
        strided_get(base, (2,), (1, 2), 0)
    with pytest.raises(ArgumentError, match="must not be negative"):
        strided_get(base, (-2,), (1,), 0)
    with pytest.raises(ArgumentError, match=r"shape \(3,\) cannot be broadcast to size \(2,\)"):
        strided_put(base, np.zeros(3), (2,), (1,), 0)
    with pytest.raises(ArgumentError, match="float64 elements, got float32"):
        strided_put(base, np.zeros(2, np.float32), (2,), (1,), 0)


def test_array_at_builds_views_inside_of_its_owner_only() -> None:
    owner = np.arange(6, dtype=np.float32)
    view = array_at(owner, Geometry(owner.dtype, (3,), (-8,), 20))
    assert view.tolist() == [5, 3, 1]
    assert view.base is owner
    with pytest.raises(AliasError, match="reaches bytes"):
        array_at(owner, Geometry(owner.dtype, (3,), (-8,), 12))
    with pytest.raises(AliasError, match="reaches bytes"):
        array_at(owner, Geometry(owner.dtype, (4,), (8,), 0))


# -- gradients --------------------------------------------------------------------------------


def numeric_jacobian(function: Any, x: np.ndarray) -> np.ndarray:
    """Return d function / d x for a function that is linear in x."""
    zero = function(np.zeros_like(x))
    columns = []
    for k in range(x.size):
        unit = np.zeros(x.size)
        unit[k] = 1.0
        columns.append((function(unit.reshape(x.shape)) - zero).ravel())
    return np.array(columns).reshape(x.size, zero.size).T


def small_with_overlaps() -> list[Access]:
    return [access for access in SMALL if access.repeats()][::9] + SMALL[::17]


def test_add_is_the_gradient_of_get() -> None:
    for access in small_with_overlaps():
        jacobian = numeric_jacobian(lambda b, a=access: strided_get(b, *a), np.zeros(8))
        grad = 1.0 + np.arange(np.prod(access.size)).reshape(access.size)
        assert np.array_equal(strided_add(grad, (8,), *access), jacobian.T @ grad.ravel()), access


def test_winners_and_get_are_the_gradient_of_the_value_of_put() -> None:
    base = np.arange(8.0)
    for access in small_with_overlaps():
        value = np.zeros(access.size)
        jacobian = numeric_jacobian(lambda v, a=access: strided_put(base, v, *a), value)
        grad = 1.0 + np.arange(8.0)
        gathered = np.where(winners(access.size, access.stride), strided_get(grad, *access), 0.0)
        assert np.array_equal(gathered.ravel(), jacobian.T @ grad), access


def test_the_gradient_of_the_base_of_put_is_zero_where_it_was_written() -> None:
    for access in small_with_overlaps():
        value = np.ones(access.size)
        jacobian = numeric_jacobian(lambda b, a=access, v=value: strided_put(b, v, *a), np.zeros(8))
        grad = 1.0 + np.arange(8.0)
        cleared = strided_put(grad, np.zeros(access.size), *access)
        assert np.array_equal(cleared, jacobian.T @ grad), access


@given(accesses())
def test_winners_are_the_last_writers(access: Access) -> None:
    last = {address: index for index, address in access.addresses()}
    mask = winners(access.size, access.stride)
    assert mask.shape == access.size
    for index, address in access.addresses():
        assert mask[index] == (last[address] == index)


@given(accesses())
def test_add_sums_at_repeated_addresses_in_any_shape(access: Access) -> None:
    value = 1.0 + np.arange(np.prod(access.size)).reshape(access.size)
    expected = np.zeros(24)
    for index, address in access.addresses():
        expected[address] += value[index]
    assert np.array_equal(strided_add(value, (4, 6), *access), expected.reshape(4, 6))


def test_first_writer_order_would_be_seen() -> None:
    """The mutant of `strided_put` that keeps the first value differs on the small family."""
    base = np.arange(8.0)
    seen = 0
    for access in SMALL:
        value = 100.0 + np.arange(np.prod(access.size)).reshape(access.size)
        flat = base.tolist()
        for index, address in reversed(access.addresses()):
            flat[address] = value[index]
        seen += not np.array_equal(strided_put(base, value, *access), flat)
    assert seen == sum(access.repeats() for access in SMALL)


# -- elements of other dtypes -----------------------------------------------------------------


@pytest.mark.parametrize("first", ["u1", "i2", "f4", "f8", "c16"])
@pytest.mark.parametrize("second", ["u1", "f2", "i4", "i8", "c16"])
def test_two_dtypes_over_one_buffer_are_exact_through_bytes(first: str, second: str) -> None:
    """Writing through one view and reading through the other equals access by bytes."""
    a, b = np.dtype(first), np.dtype(second)
    buffer = np.arange(16, dtype=np.uint8)
    x = buffer.view(a)[::-1]
    expected = buffer.copy()
    expected.view(a)[::-1][...] = np.arange(x.size).astype(a)
    value = np.arange(x.size).astype(a).view(np.uint8)
    size, stride = (x.size, a.itemsize), (-a.itemsize, 1)
    put = strided_put(buffer, value.reshape(size), size, stride, 16 - a.itemsize)
    assert put.tobytes() == expected.tobytes()
    read = strided_get(put, (16 // b.itemsize, b.itemsize), (b.itemsize, 1), 0)
    assert read.copy().view(b).tobytes() == expected.view(b).tobytes()


@pytest.mark.parametrize(
    ("size", "stride"),
    [
        ((40, 3), (1, 1)),  # windows of a sequence
        ((3, 50), (2, 1)),
        ((2, 30, 30, 3, 3), (1200, 32, 1, 32, 1)),  # windows of two images
        ((2, 30, 30, 3, 3), (-1200, -32, 1, 32, -1)),
        ((200, 3), (0, 1)),  # an expanded axis
        ((5, 200), (1, 0)),
        ((130, 1, 4), (3, 7, 1)),
        ((6, 5, 4), (0, 0, 1)),  # nothing to gain
    ],
)
def test_sums_at_repeated_addresses_are_exact_however_they_are_added(size, stride):
    low = sum(min(0, (n - 1) * s) for n, s in zip(size, stride, strict=True))
    high = sum(max(0, (n - 1) * s) for n, s in zip(size, stride, strict=True))
    value = np.random.default_rng(0).integers(-9, 9, size)
    places = np.zeros(size, np.int64) - low
    for axis, step in enumerate(stride):
        places += (np.arange(size[axis]) * step).reshape([-1, *[1] * (len(size) - axis - 1)])
    expected = np.zeros(high - low + 1, np.int64)
    np.add.at(expected, places, value)
    assert np.array_equal(strided_add(value, expected.shape, size, stride, -low), expected)
