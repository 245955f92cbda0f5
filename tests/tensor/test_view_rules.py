"""View rules against the views NumPy makes, compared by address."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided as np_as_strided
from numpy.lib.stride_tricks import sliding_window_view

from oplib._dims import Facts
from oplib.errors import ArgumentError, DataDependentError
from oplib.tensor import view_rules as rules
from oplib.tensor.geometry import Geometry, same_geometry

F32 = np.dtype(np.float32)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def geometry_of(view: np.ndarray, base: np.ndarray) -> Geometry:
    return Geometry.of_array(view, address(base))


def assert_rule(rule: Callable[[Geometry], Geometry], view: Any, base: np.ndarray) -> None:
    """The rule, applied to the geometry of `base`, gives the geometry of `view`."""
    found, expected = rule(geometry_of(base, base)), geometry_of(view, base)
    assert same_geometry(found, expected), f"rule gives {found}, numpy {expected}"


def assert_indexes_like_numpy(
    rule: Callable[[Geometry], Geometry], index: Callable[[], np.ndarray], x: np.ndarray
) -> None:
    """The rule gives NumPy's view, or an error with its text."""
    try:
        expected = index()
    except IndexError as error:
        text = str(error).replace("array", "tensor")
        with pytest.raises(IndexError, match=f"^{re.escape(text)}$"):
            rule(geometry_of(x, x))
    else:
        assert_rule(rule, expected, x)


@st.composite
def arrays(draw: st.DrawFn, min_dims: int = 0) -> np.ndarray:
    """A view with permuted, strided, reversed and broadcast axes, some of length 0 and 1."""
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=min_dims, max_size=4)))
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 2, -1])) for _ in shape]
    base = np.zeros([shape[axis] * abs(steps[axis]) for axis in order], np.float32)
    view = base.transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)]
    grown = [4 if n == 1 and draw(st.booleans()) else n for n in shape]
    return np.broadcast_to(view, grown)


@st.composite
def dims_of(draw: st.DrawFn, array: np.ndarray) -> int:
    return draw(st.integers(-array.ndim, array.ndim - 1))


# -- dimensions and sizes ---------------------------------------------------------------------


def test_normalize_dim_counts_from_the_front() -> None:
    assert [rules.normalize_dim(dim, 3) for dim in range(-3, 3)] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(("dim", "ndim"), [(3, 3), (-4, 3), (0, 0), (-1, 0)])
def test_a_dim_out_of_range_is_named_with_its_range(dim: int, ndim: int) -> None:
    with pytest.raises(ArgumentError, match=f"dim {dim} "):
        rules.normalize_dim(dim, ndim)


def test_normalize_dims_takes_none_one_or_several() -> None:
    assert rules.normalize_dims(None, 3) == (0, 1, 2)
    assert rules.normalize_dims(-1, 3) == (2,)
    assert rules.normalize_dims((-1, 0), 3) == (2, 0)
    with pytest.raises(ArgumentError, match=r"\[0, -3\] name a dimension twice"):
        rules.normalize_dims([0, -3], 3)


@given(st.lists(st.integers(-1, 4), max_size=4), st.integers(0, 24))
def test_infer_size_agrees_with_numpy(shape: list[int], count: int) -> None:
    try:
        expected = np.zeros(count).reshape(shape).shape
    except ValueError:
        with pytest.raises(ArgumentError):
            rules.infer_size(shape, count)
    else:
        assert rules.infer_size(shape, count) == expected


def test_split_sizes_and_chunk_sizes() -> None:
    assert rules.split_sizes(7, 3) == [3, 3, 1]
    assert rules.split_sizes(0, 3) == rules.split_sizes(0, 0) == [0]
    assert rules.chunk_sizes(7, 3) == [3, 3, 1]
    assert rules.chunk_sizes(4, 3) == [2, 2]
    assert rules.chunk_sizes(0, 2) == [0, 0]
    with pytest.raises(ArgumentError, match="length 7 into parts of size 0"):
        rules.split_sizes(7, 0)
    with pytest.raises(ArgumentError, match="at least 1, got 0"):
        rules.chunk_sizes(7, 0)


# -- the order of axes ------------------------------------------------------------------------


@given(st.data())
def test_transpose_agrees_with_numpy(data: st.DataObject) -> None:
    x = data.draw(arrays())
    order = data.draw(st.permutations(range(x.ndim)))
    signed = [axis - x.ndim if data.draw(st.booleans()) else axis for axis in order]
    assert_rule(lambda g: rules.transpose(g, signed), x.transpose(order), x)
    assert_rule(rules.transpose, x.T, x)


@given(st.data())
def test_swapped_and_moved_dims_agree_with_numpy(data: st.DataObject) -> None:
    x = data.draw(arrays(min_dims=1))
    a, b = data.draw(dims_of(x)), data.draw(dims_of(x))
    assert_rule(lambda g: rules.transpose(g, rules.swapped_dims(g.ndim, a, b)), x.swapaxes(a, b), x)
    count = data.draw(st.integers(0, x.ndim))
    source = data.draw(st.permutations(range(x.ndim)))[:count]
    target = data.draw(st.permutations(range(x.ndim)))[:count]
    expected = np.moveaxis(x, source, target)
    assert_rule(lambda g: rules.transpose(g, rules.moved_dims(g.ndim, source, target)), expected, x)


def test_transpose_refuses_what_is_no_permutation() -> None:
    g = Geometry.contiguous((2, 3), F32)
    with pytest.raises(ArgumentError, match=r"2 dimensions got dims \[0\]"):
        rules.transpose(g, [0])
    with pytest.raises(ArgumentError, match="twice"):
        rules.transpose(g, [0, 0])
    with pytest.raises(ArgumentError, match="numbers differ"):
        rules.moved_dims(3, (0, 1), 2)


# -- shapes -----------------------------------------------------------------------------------


def shapes_of(count: int, max_dims: int = 4) -> list[tuple[int, ...]]:
    """Every shape of up to `max_dims` axes that holds `count` elements."""
    sizes = [n for n in range(1, count + 1) if count % n == 0]
    return [
        shape
        for ndim in range(max_dims + 1)
        for shape in itertools.product(sizes, repeat=ndim)
        if math.prod(shape) == count
    ]


def assert_reshape(x: np.ndarray, shape: tuple[int, ...]) -> None:
    found = rules.reshape(geometry_of(x, x), shape)
    try:
        expected = np.reshape(x, shape, copy=False)
    except ValueError:
        assert found is None, f"numpy copies {x.shape}:{x.strides} to {shape}, rule gives {found}"
    else:
        assert found is not None, f"numpy views {x.shape}:{x.strides} as {shape}"
        assert same_geometry(found, geometry_of(expected, x))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("step", [1, 2, -1])
def test_reshape_views_exactly_where_numpy_does_for_every_permutation(
    order: tuple[int, ...], step: int
) -> None:
    for sliced in range(3):
        index = [slice(None)] * 3
        index[sliced] = slice(None, None, step)
        base = np.zeros(
            [4 if step == 2 and axis == sliced else 2 + (axis == 1) for axis in range(3)]
        )
        x = base[tuple(index)].transpose(order)
        for shape in shapes_of(x.size):
            assert_reshape(x, shape)


@given(st.data())
def test_reshape_views_exactly_where_numpy_does(data: st.DataObject) -> None:
    x = data.draw(arrays())
    if x.size:
        assert_reshape(x, data.draw(st.sampled_from(shapes_of(x.size, 3) or [()])))
    else:
        assert_reshape(x, tuple(data.draw(st.permutations([0, 2, 3]))))


def test_reshape_to_another_number_of_elements_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"\[2, 3\] into \[4\]: 6 elements are not 4"):
        rules.reshape(Geometry.contiguous((2, 3), F32), (4,))
    with pytest.raises(ArgumentError, match=r"must not be negative, got \[-2, -3\]"):
        rules.reshape(Geometry.contiguous((2, 3), F32), (-2, -3))


@given(st.data())
def test_expand_agrees_with_numpy(data: st.DataObject) -> None:
    x = data.draw(arrays())
    tail = [4 if n == 1 and data.draw(st.booleans()) else n for n in x.shape]
    shape = [*data.draw(st.lists(st.integers(0, 3), max_size=2)), *tail]
    assert_rule(lambda g: rules.expand(g, shape), np.broadcast_to(x, shape), x)


def test_expand_keeps_axes_at_minus_one() -> None:
    g = Geometry.contiguous((3, 1), F32)
    assert rules.expand(g, (2, -1, 4)) == Geometry(F32, (2, 3, 4), (0, 4, 0))


def test_expand_refuses_other_shapes() -> None:
    g = Geometry.contiguous((3, 2), F32)
    with pytest.raises(ArgumentError, match="axis 1 has length 2, neither 1 nor 4"):
        rules.expand(g, (3, 4))
    with pytest.raises(ArgumentError, match="fewer dimensions"):
        rules.expand(g, (3,))
    with pytest.raises(ArgumentError, match="negative"):
        rules.expand(g, (-1, 3, 2))


@given(st.data())
def test_squeeze_and_unsqueeze_agree_with_numpy(data: st.DataObject) -> None:
    x = data.draw(arrays(min_dims=1))
    assert_rule(rules.squeeze, np.squeeze(x), x)
    dim = data.draw(dims_of(x))
    expected = np.squeeze(x, dim) if x.shape[dim] == 1 else x
    assert_rule(lambda g: rules.squeeze(g, dim), expected, x)
    at = data.draw(st.integers(-x.ndim - 1, x.ndim))
    assert_rule(lambda g: rules.unsqueeze(g, at), np.expand_dims(x, at), x)
    assert_rule(lambda g: rules.unsqueeze(g, (0, -1)), np.expand_dims(x, (0, -1)), x)


# -- parts ------------------------------------------------------------------------------------


@st.composite
def slices(draw: st.DrawFn) -> slice:
    bound = st.none() | st.integers(-6, 6)
    return slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, 3, -1, -2, -3])))


@given(st.data())
def test_slice_dim_agrees_with_numpy(data: st.DataObject) -> None:
    x = data.draw(arrays(min_dims=1))
    dim, part = data.draw(dims_of(x)), data.draw(slices())
    index = [slice(None)] * x.ndim
    index[dim] = part
    rule = lambda g: rules.slice_dim(g, dim, part.start, part.stop, part.step)  # noqa: E731
    assert_rule(rule, x[tuple(index)], x)


@given(st.data())
def test_select_and_unbind_agree_with_numpy(data: st.DataObject) -> None:
    x = data.draw(arrays(min_dims=1))
    dim = data.draw(dims_of(x))
    index = data.draw(st.integers(-5, 5))
    lead: tuple[Any, ...] = (slice(None),) * (dim % x.ndim)
    assert_indexes_like_numpy(
        lambda g: rules.select(g, dim, index), lambda: x[(*lead, index, ...)], x
    )
    parts = rules.unbind(geometry_of(x, x), dim)
    assert len(parts) == x.shape[dim]
    for k, part in enumerate(parts):
        assert same_geometry(part, geometry_of(x[(*lead, k, ...)], x))


@given(st.data())
def test_basic_index_agrees_with_numpy(data: st.DataObject) -> None:
    x = data.draw(arrays())
    part = st.integers(-4, 4) | slices() | st.none() | st.just(...) | st.just(np.int64(0))
    index: Any = tuple(data.draw(st.lists(part, max_size=5)))
    full = index if ... in index else (*index, ...)
    assert_indexes_like_numpy(lambda g: rules.basic_index(g, index), lambda: x[full], x)


@pytest.mark.parametrize("bad", [True, np.bool_(True), 1.0, [0], "x"])
def test_basic_index_refuses_what_is_not_basic(bad: Any) -> None:
    with pytest.raises(ArgumentError, match="a basic index has ints, slices, None and"):
        rules.basic_index(Geometry.contiguous((2, 3), F32), (0, bad))


def test_the_step_of_a_slice_cannot_be_zero() -> None:
    with pytest.raises(ArgumentError, match="step of a slice cannot be zero"):
        rules.slice_dim(Geometry.contiguous((2, 3), F32), 0, None, None, 0)


@given(st.data())
def test_diagonal_agrees_with_numpy(data: st.DataObject) -> None:
    x = data.draw(arrays(min_dims=2))
    dim1, dim2 = data.draw(st.permutations(range(-x.ndim, 0)))[:2]
    offset = data.draw(st.integers(-5, 5))
    assert_rule(lambda g: rules.diagonal(g, offset, dim1, dim2), x.diagonal(offset, dim1, dim2), x)


def test_diagonal_needs_two_different_dims() -> None:
    with pytest.raises(ArgumentError, match="two different dims, got 1 twice"):
        rules.diagonal(Geometry.contiguous((2, 3), F32), 0, 1, -1)


@given(st.data())
def test_unfold_agrees_with_sliding_windows(data: st.DataObject) -> None:
    x = data.draw(arrays(min_dims=1))
    dim = data.draw(dims_of(x))
    size, step = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    if size > x.shape[dim]:
        with pytest.raises(ArgumentError, match=f"size {size}, step {step}"):
            rules.unfold(geometry_of(x, x), dim, size, step)
        return
    lead = (slice(None),) * (dim % x.ndim)
    windows = sliding_window_view(x, size, dim)[(*lead, slice(None, None, step))]
    assert_rule(lambda g: rules.unfold(g, dim, size, step), windows, x)


def test_as_strided_counts_elements_from_the_first_byte_of_the_storage() -> None:
    base = np.zeros((4, 2), np.float32)
    row = rules.select(geometry_of(base, base), 0, 2)
    expected = geometry_of(np_as_strided(base.ravel()[1:], (3,), (8,)), base)
    assert rules.as_strided(row, (3,), (2,), 1) == expected
    assert rules.as_strided(row, (2,), (1,)).offset == row.offset
    with pytest.raises(ArgumentError, match="one stride per size"):
        rules.as_strided(row, (3,), ())
    with pytest.raises(ArgumentError, match="negative"):
        rules.as_strided(row, (-1,), (1,))


@given(st.data())
def test_split_agrees_with_numpy(data: st.DataObject) -> None:
    x = data.draw(arrays(min_dims=1))
    dim = data.draw(dims_of(x))
    sizes = rules.split_sizes(x.shape[dim], data.draw(st.integers(1, 3)))
    parts = rules.split(geometry_of(x, x), sizes, dim)
    expected = np.split(x, np.cumsum(sizes)[:-1], dim)
    assert len(parts) == len(expected)
    for part, view in zip(parts, expected, strict=True):
        assert same_geometry(part, geometry_of(view, x))


def test_parts_must_add_up() -> None:
    with pytest.raises(ArgumentError, match=r"parts \[1, 2\] do not add up to length 4 of axis 0"):
        rules.split(Geometry.contiguous((4,), F32), [1, 2])


# -- other dtypes -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["c8", "c16"])
def test_complex_views_agree_with_numpy(name: str) -> None:
    dtype = np.dtype(name)
    x = np.zeros((3, 4), dtype)[::-1, ::2]
    assert_rule(rules.real, x.real, x)
    assert_rule(rules.imag, x.imag, x)
    pairs = rules.view_as_real(geometry_of(x, x))
    assert same_geometry(rules.select(pairs, -1, 0), geometry_of(x.real, x))
    assert same_geometry(rules.select(pairs, -1, 1), geometry_of(x.imag, x))
    assert rules.view_as_complex(pairs) == geometry_of(x, x)


def test_a_real_geometry_is_its_real_part_and_has_no_imaginary_view() -> None:
    g = Geometry.contiguous((3,), F32)
    assert rules.real(g) is g
    for rule in (rules.imag, rules.view_as_real):
        with pytest.raises(ArgumentError, match="needs a complex dtype, got float32"):
            rule(g)


@pytest.mark.parametrize(
    "g",
    [
        Geometry(np.dtype(np.int32), (3, 2), (8, 4)),
        Geometry(F32, (3,), (4,)),
        Geometry(F32, (2,), (8,)),
        Geometry(F32, (), ()),
        Geometry(np.dtype(np.float16), (2,), (2,)),
    ],
)
def test_view_as_complex_needs_adjacent_pairs_of_floats(g: Geometry) -> None:
    with pytest.raises(ArgumentError, match="view_as_complex needs"):
        rules.view_as_complex(g)


SIZED = [np.dtype(name) for name in ("i1", "u2", "f2", "i4", "f4", "f8", "c8", "c16")]


@pytest.mark.parametrize(("old", "new"), list(itertools.product(SIZED, repeat=2)))
def test_view_dtype_follows_numpy_for_every_pair_of_sizes(old: Any, new: Any) -> None:
    base = np.zeros((4, 16), old)
    parts = [base, base.T, base[:, :3], base[:, 3:5], base[:, ::2], base[:, ::-1], base[::2]]
    for x in [*parts, base[1:, 8:], base[:, :1], base[:0], base[:, :0], base[0, 0, ...]]:
        try:
            expected = x.view(new)
        except ValueError:
            with pytest.raises(ArgumentError, match=f"{old} .* as {new}"):
                rules.view_dtype(geometry_of(x, x), new)
        else:
            assert_rule(lambda g: rules.view_dtype(g, new), expected, x)


def test_views_to_or_from_bool_are_refused() -> None:
    boolean = np.dtype(np.bool_)
    for old, new in ((boolean, np.dtype(np.uint8)), (F32, boolean)):
        with pytest.raises(ArgumentError, match="use astype"):
            rules.view_dtype(Geometry.contiguous((4,), old), new)
    g = Geometry.contiguous((4,), boolean)
    assert rules.view_dtype(g, boolean) is g


# -- symbolic sizes ---------------------------------------------------------------------------


def symbolic() -> tuple[Facts, Any, Geometry]:
    facts = Facts()
    n = facts.fresh(min=0)
    return facts, n, Geometry.contiguous((n, 6), F32)


def test_rules_carry_symbols_along() -> None:
    _, n, g = symbolic()
    assert rules.transpose(g) == Geometry(F32, (6, n), (4, 24))
    assert rules.unsqueeze(g, 0).shape == (1, n, 6)
    assert rules.select(g, 1, 2) == Geometry(F32, (n,), (24,), 8)
    assert rules.slice_dim(g, 1, 1, 4, 2).shape == (n, 2)
    assert rules.squeeze(g).shape == (n, 6)
    assert rules.expand(rules.unsqueeze(g, 0), (3, -1, -1)).shape == (3, n, 6)
    assert rules.expand(Geometry.contiguous((1,), F32), (n,)).strides == (0,)
    assert [part.shape for part in rules.split(g, [2, 4], 1)] == [(n, 2), (n, 4)]
    assert rules.view_dtype(g, np.dtype(np.float64)).shape == (n, 3)


def test_reshape_with_symbols_asks_for_divisibility() -> None:
    facts, n, g = symbolic()
    assert str(rules.infer_size((-1,), g.numel)) == "(6*u0,)"
    flat = rules.reshape(g, (6 * n,))
    assert flat is not None
    assert flat.strides == (4,)
    assert rules.infer_size((-1, 2, 3), g.numel) == (n, 2, 3)
    with pytest.raises(DataDependentError, match=r"\(u0%4\) == 0"):
        rules.infer_size((-1, 4), n)
    facts.assume(n % 4 == 0)
    sizes = rules.infer_size((-1, 4), n)
    assert str(sizes) == "((u0//4), 4)"
    assert rules.reshape(Geometry.contiguous((n,), F32), sizes) is not None


def test_slices_of_a_symbolic_axis_are_clipped_symbolically() -> None:
    facts, n, g = symbolic()
    assert rules.slice_dim(g, 0).shape[0].same(n)  # type: ignore[attr-defined]
    assert rules.slice_dim(g, 0, None, None, -1) == Geometry(F32, (n, 6), (-24, 4), 24 * n - 24)
    assert str(rules.slice_dim(g, 0, 0, 3).shape[0]) == "min(3, u0)"
    assert str(rules.slice_dim(g, 0, None, None, 2).shape[0]) == "-((-u0)//2)"
    facts.assume(n >= 4)
    assert rules.slice_dim(g, 0, 0, 3).shape == (3, 6)
    assert str(rules.slice_dim(g, 0, 1, -1).shape[0]) == "u0 - 2"
    assert rules.select(g, 0, -1).offset.same(24 * n - 24)  # type: ignore[attr-defined]


def test_an_index_that_may_be_out_of_bounds_asks() -> None:
    _, _, g = symbolic()
    with pytest.raises(DataDependentError):
        rules.select(g, 0, 2)
    with pytest.raises(DataDependentError):
        rules.unbind(g, 0)


def test_two_symbols_broadcast_by_a_fact_only() -> None:
    facts, n, g = symbolic()
    m = facts.fresh()
    with pytest.raises(DataDependentError, match="u1 == u0"):
        rules.expand(g, (m, 6))
    facts.assume(n == m)
    assert rules.expand(g, (m, 6)).strides == g.strides
