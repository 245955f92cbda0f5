"""Geometry against NumPy and against models that list every byte."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oplib
from oplib._dims import Facts
from oplib.errors import AliasError, DataDependentError
from oplib.tensor import geometry as geometry_module
from oplib.tensor.geometry import (
    Geometry,
    check_inside,
    contiguous_strides,
    covers,
    dense_strides,
    element_offsets,
    extent,
    flat_positions,
    is_contiguous,
    is_dense,
    keep_layout,
    memory_order,
    overlap,
    same_geometry,
    self_overlap,
)

F32 = np.dtype(np.float32)
U8 = np.dtype(np.uint8)
DTYPES = [np.dtype(name) for name in ("u1", "f2", "f4", "f8", "c16")]


def bytes_of(g: Geometry) -> Counter[int]:
    """The model: how often each byte is covered."""
    return Counter(
        g.offset + sum(i * s for i, s in zip(index, g.strides, strict=True)) + byte
        for index in np.ndindex(*g.shape)
        for byte in range(g.dtype.itemsize)
    )


def small_geometries(ndim: int, dtype: np.dtype[Any], unit: int) -> Iterator[Geometry]:
    """Every geometry with lengths up to 3 and strides -3..3 units whose extent begins at 0."""
    for shape in itertools.product(range(4), repeat=ndim):
        for steps in itertools.product(range(-3, 4), repeat=ndim):
            strides = tuple(unit * step for step in steps)
            low, _ = extent(Geometry(dtype, shape, strides))
            yield Geometry(dtype, shape, strides, -low)


@st.composite
def geometries(draw: st.DrawFn, dtypes: Any = DTYPES, max_dims: int = 4) -> Geometry:
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=max_dims)))
    strides = tuple(draw(st.integers(-20, 20)) for _ in shape)
    return Geometry(draw(st.sampled_from(dtypes)), shape, strides, draw(st.integers(0, 60)))


@st.composite
def array_views(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """A strided, reversed, permuted and broadcast view of a fresh array."""
    if shape is None:
        shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    steps = [draw(st.sampled_from([1, 1, 2, -1, -2])) for _ in shape]
    kept = [n if draw(st.integers(0, 4)) else min(n, 1) for n in shape]
    order = draw(st.permutations(range(len(shape))))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    base = np.ones([kept[axis] * abs(steps[axis]) for axis in order], dtype)
    view = base.transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)]
    grown = [n if draw(st.booleans()) else m for n, m in zip(shape, kept, strict=True)]
    view = np.broadcast_to(view, grown)
    return view[0, ...] if grown[:1] == [1] and draw(st.booleans()) else view


# -- the noun ---------------------------------------------------------------------------------


def test_a_geometry_prints_elements() -> None:
    assert str(Geometry(F32, (3,), (8,), 4)) == "[3]:[2]+1"
    assert str(Geometry(F32, (4, 2), (-4, 16), 12)) == "[4, 2]:[-1, 4]+3"
    assert str(Geometry(F32, (), (), 0)) == "[]:[]+0"


def test_a_geometry_that_is_not_aligned_to_elements_prints_bytes() -> None:
    assert str(Geometry(F32, (3,), (6,), 4)) == "[3]:[6]+4 bytes"
    assert str(Geometry(F32, (3,), (4,), 2)) == "[3]:[4]+2 bytes"


def test_a_geometry_is_frozen_and_hashable() -> None:
    g = Geometry.contiguous((2, 3), F32)
    with pytest.raises(AttributeError):
        g.offset = 1  # type: ignore[misc]
    assert {g: 1}[Geometry(F32, (2, 3), (12, 4), 0)] == 1
    assert (g.ndim, g.numel, g.nbytes) == (2, 6, 24)


def test_of_array_measures_the_offset_from_the_base_address() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    address = base.__array_interface__["data"][0]
    g = Geometry.of_array(base[1::2, ::-1], address)
    assert g == Geometry(F32, (2, 6), (48, -4), 24 + 20)


@given(st.lists(st.integers(1, 4), max_size=5).map(tuple), st.sampled_from(DTYPES))
def test_contiguous_strides_are_those_of_numpy(shape: tuple[int, ...], dtype: Any) -> None:
    assert contiguous_strides(shape, dtype.itemsize) == np.empty(shape, dtype).strides


def test_an_empty_axis_counts_as_one_in_contiguous_strides() -> None:
    assert contiguous_strides((2, 0, 3), 4) == (12, 12, 4)


@given(array_views())
def test_is_contiguous_agrees_with_numpy(view: np.ndarray) -> None:
    assert is_contiguous(Geometry(view.dtype, view.shape, view.strides)) == view.flags.c_contiguous


def test_dense_strides_follow_the_order() -> None:
    assert dense_strides((2, 3, 5), (1, 2, 0), 4) == (4, 40, 8)
    assert dense_strides((2, 3), (0, 1), 8) == (24, 8)


def test_memory_order_is_by_falling_distance_and_keeps_ties() -> None:
    assert memory_order((4, -40, 8)) == (1, 2, 0)
    assert memory_order((0, 8, 8, 0)) == (1, 2, 0, 3)


def test_same_geometry_ignores_what_cannot_be_observed() -> None:
    g = Geometry(F32, (1, 3), (12, 4), 8)
    assert same_geometry(g, Geometry(F32, (1, 3), (99, 4), 8))
    assert same_geometry(Geometry(F32, (0, 3), (1, 2), 3), Geometry(F32, (0, 3), (4, 5), 6))


@pytest.mark.parametrize(
    "other",
    [
        Geometry(np.dtype(np.int32), (1, 3), (12, 4), 8),
        Geometry(F32, (3,), (4,), 8),
        Geometry(F32, (1, 2), (12, 4), 8),
        Geometry(F32, (1, 3), (12, 8), 8),
        Geometry(F32, (1, 3), (12, 4), 4),
    ],
)
def test_same_geometry_sees_every_other_difference(other: Geometry) -> None:
    assert not same_geometry(Geometry(F32, (1, 3), (12, 4), 8), other)


# -- which bytes ------------------------------------------------------------------------------


@given(geometries())
def test_extent_is_the_hull_of_the_bytes(g: Geometry) -> None:
    covered = bytes_of(g)
    low, high = extent(g)
    assert (low, high) == ((min(covered), max(covered) + 1) if covered else (g.offset, g.offset))


@pytest.mark.parametrize(("dtype", "unit"), [(U8, 1), (F32, 4), (F32, 3), (F32, 2)])
def test_every_small_geometry_against_the_set_of_its_bytes(dtype: Any, unit: int) -> None:
    for g in small_geometries(2, dtype, unit):
        covered = bytes_of(g)
        assert self_overlap(g) == (max(covered.values(), default=1) > 1), g
        low, high = extent(g)
        assert (low, high) == ((min(covered), max(covered) + 1) if covered else (low, low)), g
        dense = set(covered) == set(range(low, high)) and max(covered.values(), default=1) == 1
        assert is_dense(g) == dense, g


@given(geometries())
def test_self_overlap_is_exact_in_more_dimensions(g: Geometry) -> None:
    assert self_overlap(g) == (max(bytes_of(g).values(), default=1) > 1)


def test_every_pair_of_small_geometries_overlaps_as_their_bytes_do() -> None:
    all_small = [g for g in small_geometries(1, U8, 1) if g.numel]
    all_small += [g for g in small_geometries(2, U8, 1) if g.numel > 2 and 0 not in g.strides]
    all_small = all_small[::7]
    for g, h in itertools.product(all_small, repeat=2):
        for shift in range(0, 6):
            moved = Geometry(h.dtype, h.shape, h.strides, h.offset + shift)
            shared = bool(bytes_of(g).keys() & bytes_of(moved).keys())
            assert overlap(g, moved) == shared, (g, moved)


@given(geometries(), geometries())
def test_overlap_is_exact_for_elements_of_any_size(g: Geometry, h: Geometry) -> None:
    assert overlap(g, h) == bool(bytes_of(g).keys() & bytes_of(h).keys())


@given(array_views(), array_views())
def test_overlap_agrees_with_numpy(a: np.ndarray, b: np.ndarray) -> None:
    buffer = np.zeros(2**16, np.uint8)
    views = []
    for view in (a, b):
        low, _ = extent(Geometry(view.dtype, view.shape, view.strides))
        g = Geometry(view.dtype, view.shape, view.strides, 8 - low)
        views.append((g, np.ndarray(g.shape, g.dtype, buffer, g.offset, g.strides)))
    (g, x), (h, y) = views
    assert overlap(g, h) == np.shares_memory(x, y)


def test_interleaved_and_adjacent_views_do_not_overlap_however_large() -> None:
    n = 10**12
    assert not overlap(Geometry(F32, (n,), (8,), 0), Geometry(F32, (n,), (8,), 4))
    assert not overlap(Geometry(F32, (n, 1), (8, 4), 0), Geometry(F32, (n, 1), (8, 4), 4))
    assert not overlap(Geometry(F32, (n,), (4,), 0), Geometry(F32, (n,), (4,), 4 * n))
    assert overlap(Geometry(F32, (n,), (8,), 0), Geometry(F32, (n,), (12,), 4))


def test_a_search_that_takes_too_long_counts_as_overlapping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    g = Geometry(U8, (900, 900), (8000, 8008))
    assert not self_overlap(g)
    monkeypatch.setattr(geometry_module, "_WORK_LIMIT", 0)
    assert self_overlap(g)


@given(geometries(max_dims=3), geometries(max_dims=3))
def test_covers_is_inclusion_of_bytes(g: Geometry, h: Geometry) -> None:
    assert covers(g, h) == (bytes_of(h).keys() <= bytes_of(g).keys())


def test_a_dense_geometry_covers_its_parts_whatever_its_size() -> None:
    n = 10**9
    whole = Geometry(F32, (n, n), (4, 4 * n))
    assert covers(whole, Geometry(F32, (5,), (-400,), 4000))
    assert not covers(whole, Geometry(F32, (5,), (-400,), 400))


def test_an_undecided_cover_counts_as_no() -> None:
    n = 10**9
    holes = Geometry(F32, (n,), (8,), 0)
    assert not covers(holes, Geometry(F32, (n // 2,), (16,), 0))
    assert covers(holes, holes)


def test_a_view_outside_of_its_storage_is_refused_with_both_intervals() -> None:
    check_inside(Geometry(F32, (3,), (8,), 4), 24)
    check_inside(Geometry(F32, (0,), (8,), 400), 24)
    with pytest.raises(AliasError, match=r"\[3\]:\[2\]\+2 reaches bytes 8..28 .* bytes 0..24"):
        check_inside(Geometry(F32, (3,), (8,), 8), 24)
    with pytest.raises(AliasError, match=r"reaches bytes -4..8"):
        check_inside(Geometry(F32, (3,), (-4,), 4), 24)


@given(array_views())
def test_element_offsets_are_the_addresses_in_logical_order(view: np.ndarray) -> None:
    start = view.__array_interface__["data"][0]
    offsets = element_offsets(Geometry.of_array(view, start))
    assert offsets.shape == view.shape
    assert offsets.dtype == np.int64
    for index in np.ndindex(*view.shape):
        element = view[(*index, ...)].__array_interface__["data"][0]
        assert offsets[index] == element - start


def test_flat_positions_count_from_the_offset() -> None:
    assert flat_positions((2, 3), (3, -1), 5).tolist() == [[5, 4, 3], [8, 7, 6]]
    assert flat_positions((), (), 5).tolist() == 5


# -- layout of results ------------------------------------------------------------------------


@st.composite
def operand_sets(draw: st.DrawFn) -> list[np.ndarray]:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    return [draw(array_views(shape)) for _ in range(2)]


def observed(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    return [] if 0 in shape else [s for n, s in zip(shape, strides, strict=True) if n > 1]


@given(operand_sets())
def test_keep_layout_is_that_of_numpy_add(operands: list[np.ndarray]) -> None:
    result = np.add(*operands)
    found = keep_layout(result.shape, [(x.shape, x.strides) for x in operands], result.itemsize)
    assert observed(result.shape, found) == observed(result.shape, result.strides)


@given(operand_sets())
def test_keep_layout_of_one_operand_is_that_of_numpy_negative(operands: list[np.ndarray]) -> None:
    x = operands[0]
    found = keep_layout(x.shape, [(x.shape, x.strides)], x.itemsize)
    assert observed(x.shape, found) == observed(x.shape, np.negative(x).strides)


def test_keep_layout_of_equal_strides_is_c_order_as_in_numpy() -> None:
    tied = np.lib.stride_tricks.as_strided(np.zeros(16), (2, 3, 4), (8, 24, 24))
    found = keep_layout(tied.shape, [(tied.shape, tied.strides)], 8)
    assert found == np.negative(tied).strides


def test_keep_layout_keeps_fortran_order_and_falls_back_to_c_where_operands_disagree() -> None:
    c, f = ((4, 5), (20, 4)), ((4, 5), (4, 16))
    assert keep_layout((4, 5), [c, c], 4) == (20, 4)
    assert keep_layout((4, 5), [f, f], 8) == (8, 32)
    assert keep_layout((4, 5), [c, f], 4) == (20, 4)
    assert keep_layout((4, 5), [f, ((5,), (4,))], 4) == (4, 16)
    assert keep_layout((4, 5), [], 4) == (20, 4)


# -- symbolic sizes ---------------------------------------------------------------------------


def test_a_fresh_symbolic_layout_is_dense_and_a_transposed_one_too() -> None:
    facts = Facts()
    n, m = facts.fresh(), facts.fresh()
    g = Geometry.contiguous((n, m, 3), F32)
    assert str(g.strides) == "(12*u1, 12, 4)"
    assert is_contiguous(g)
    turned = Geometry(F32, (3, m, n), (4, 12, 12 * m))
    for h in (g, turned):
        assert is_dense(h)
        assert not self_overlap(h)
        assert covers(g, h)
        assert str(extent(h)) == "(0, 12*u0*u1)"
    assert str(g) == "[u0, u1, 3]:[3*u1, 3, 1]+0"


def test_what_symbols_leave_open_counts_as_overlapping_and_not_covering() -> None:
    facts = Facts()
    n, m = facts.fresh(min=1), facts.fresh(min=1)
    g = Geometry(F32, (n, m), (4 * n, 4))
    assert self_overlap(g)
    assert not is_dense(g)
    assert overlap(Geometry(F32, (n,), (4,)), Geometry(F32, (m,), (4,), 40))
    assert not covers(Geometry(F32, (n,), (4,)), Geometry(F32, (m,), (4,)))
    assert not same_geometry(Geometry(F32, (n,), (4,)), Geometry(F32, (m,), (4,)))


def test_facts_decide_what_bytes_are_shared() -> None:
    facts = Facts()
    n = facts.fresh(max=10)
    assert not overlap(Geometry(F32, (n,), (4,)), Geometry(F32, (5,), (4,), 40))
    assert same_geometry(Geometry(F32, (n + 1,), (4,)), Geometry(F32, (1 + n,), (4,)))


def test_keep_layout_counts_unknown_lengths_as_more_than_one() -> None:
    facts = Facts()
    n, m = facts.fresh(), facts.fresh()
    x, bias = ((n, m), (8 * m, 8)), ((m,), (8,))
    assert str(keep_layout((n, m), [x, bias], 4)) == "(4*u1, 4)"
    turned = ((m, n), (8, 8 * m))
    assert str(keep_layout((m, n), [turned, turned], 4)) == "(4, 4*u1)"
    with pytest.raises(DataDependentError):
        keep_layout((n, m), [((n, m), (8 * n, 8 * m))], 4)


def test_the_modules_of_the_package_are_found_beside_the_function_of_its_name() -> None:
    import oplib.tensor.geometry as by_import

    assert by_import.Geometry is Geometry
    assert oplib.tensor([1.0]).shape == (1,)
