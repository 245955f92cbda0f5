"""The primitive operators: against NumPy, against their fake rules, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oplib
from oplib import ArgumentError, FakeTensorMode, Tensor, prims
from oplib.tensor.geometry import Geometry, extent
from oplib.testing import gradcheck, gradgradcheck

Array = np.ndarray[Any, Any]
seeds = st.integers(0, 2**32 - 1)


def random_view(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = float) -> Array:
    """Return random values in a random layout: permuted, reversed, with steps or broadcast."""
    order = rng.permutation(len(shape))
    steps = rng.choice([-2, -1, 1, 2], len(shape))
    grown = [shape[axis] * abs(int(steps[axis])) for axis in order]
    memory = rng.standard_normal(grown) * 3
    if np.dtype(dtype).kind == "c":
        memory = memory + 1j * rng.standard_normal(grown)
    memory = memory.astype(dtype).transpose(np.argsort(order))
    view: Array = memory[(*[slice(None, None, int(step)) for step in steps], ...)]
    if shape and rng.integers(4) == 0:
        view = np.broadcast_to(view[:1], shape)
    assert view.shape == shape
    return view


def random_shape(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(0 if rng.integers(8) == 0 else 1, 4, rng.integers(4)))


def check(op: Any, expected: Array, *args: Any, **kwargs: Any) -> None:
    """Assert that a call gives `expected`, and that its fake rule says so, strides included."""
    result = op(*args, **kwargs)
    np.testing.assert_array_equal(result.numpy(), expected)
    assert result.dtype == expected.dtype
    mode = FakeTensorMode()
    fake = op(*[mode.from_tensor(a) if isinstance(a, Tensor) else a for a in args], **kwargs)
    assert (fake.shape, fake.dtype, fake.device) == (result.shape, result.dtype, result.device)
    if result.size:
        for axis, length in enumerate(result.shape):
            assert length == 1 or fake.strides[axis] == result.strides[axis], (fake, result)


# ---------------------------------------------------------------------- values and layouts


@settings(max_examples=150)
@given(seeds)
def test_elementwise_primitives_equal_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = random_shape(rng)
    dtype = rng.choice(["f4", "f8", "c16", "i4"])
    a, b = random_view(rng, shape, dtype), random_view(rng, shape, "f4")
    keep = np.asarray(random_view(rng, shape) > 0)
    x, y = oplib.from_numpy(a), oplib.from_numpy(b)
    check(prims.add, np.asarray(a + b), x, y)
    check(prims.conj, np.asarray(np.conjugate(a)), x)
    check(prims.clone, a, x)
    check(prims.lift, a, x)
    check(prims.graft, a, x, y)
    check(prims.overwrite, a, x, y)
    check(prims.mask, np.where(keep, a, a.dtype.type(0)), x, oplib.from_numpy(keep))
    check(prims.cast, np.real(a).astype("f4"), x, "f32")
    check(prims.cast, a.astype("c8"), x, "c64")
    check(prims.cast, a.astype(bool), x, "bool")
    check(prims.new_full, np.full((2,), 3, a.dtype), x, [2], 3)


@settings(max_examples=150)
@given(seeds)
def test_broadcasting_primitives_equal_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = random_shape(rng)
    lead = tuple(rng.integers(1, 3, rng.integers(3)))
    small = tuple(1 if rng.integers(2) else n for n in shape)
    full = random_view(rng, (*lead, *shape))
    axes = (*range(len(lead)), *(len(lead) + i for i, n in enumerate(shape) if small[i] != n))
    check(
        prims.sum_to,
        np.asarray(full.sum(axis=axes, keepdims=True).reshape(small)),
        oplib.from_numpy(full),
        small,
    )
    part = random_view(rng, small)
    check(prims.broadcast_to, np.broadcast_to(part, full.shape), oplib.from_numpy(part), full.shape)


@settings(max_examples=150)
@given(seeds)
def test_strided_primitives_equal_their_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = random_shape(rng)
    base = random_view(rng, shape)
    size, stride, offset = access(rng, base.size)
    flat, positions = base.reshape(-1), address(size, stride, offset)
    x = oplib.from_numpy(base)
    check(prims.strided_get, flat[positions], x, size, stride, offset)
    value = random_view(rng, size)
    put = flat.copy()
    put[positions.ravel()] = value.ravel()
    check(prims.strided_put, put.reshape(shape), x, oplib.from_numpy(value), size, stride, offset)
    summed = np.zeros(base.size)
    np.add.at(summed, positions, value)
    check(
        prims.strided_add,
        summed.reshape(shape),
        oplib.from_numpy(value),
        shape,
        size,
        stride,
        offset,
    )


def access(rng: np.random.Generator, count: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return a random access to `count` elements: size, stride, offset."""
    size = tuple(int(n) for n in rng.integers(1, 4, rng.integers(3)))
    stride = tuple(int(n) for n in rng.integers(-2, 3, len(size)))
    reach = [(n - 1) * step for n, step in zip(size, stride, strict=True)]
    low, high = sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)
    if high - low >= count:
        return (0,), (1,), 0
    return size, stride, int(rng.integers(-low, count - high))


def address(size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Array:
    steps = np.array(stride, int).reshape(-1, *[1] * len(size))
    return np.asarray((np.indices(size) * steps).sum(0) + offset, int).reshape(size)


@settings(max_examples=80)
@given(seeds)
def test_with_layout_has_exactly_the_strides(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = random_shape(rng)
    array = random_view(rng, shape)
    order = rng.permutation(len(shape))
    stride, step = [0] * len(shape), 1
    for axis in order:
        stride[axis] = step * int(rng.choice([-1, 1]))
        step *= max(shape[axis], 1) * int(rng.integers(1, 3))
    made = prims.with_layout(oplib.from_numpy(array), stride)
    np.testing.assert_array_equal(made.numpy(), array)
    fake = prims.with_layout(FakeTensorMode().from_tensor(oplib.from_numpy(array)), stride)
    if array.size:
        assert made.strides == fake.strides == tuple(8 * s for s in stride)
        assert fake.array.offset == -extent(Geometry(made.dtype, shape, made.strides))[0]


def test_with_layout_refuses_strides_that_overlap() -> None:
    for x in (oplib.ones(2, 2), FakeTensorMode().from_tensor(oplib.ones(2, 2))):
        with pytest.raises(ArgumentError, match="overlap"):
            prims.with_layout(x, [1, 1])


def test_bitcast_reads_bytes() -> None:
    array = np.arange(6, dtype="f4").reshape(2, 3).T
    check(prims.bitcast, array.copy().view("u1"), oplib.from_numpy(array), "u8")
    check(prims.bitcast, array.T.copy().T.copy().view("i4"), oplib.from_numpy(array), "i32")
    twice = np.arange(4, dtype="f4").reshape(1, 4)
    check(prims.bitcast, twice.view("f8"), oplib.from_numpy(twice), "f64")


def test_full_has_the_dtype_of_its_number() -> None:
    for value, dtype in ((1, "i8"), (1.5, "f8"), (True, "?"), (1j, "c16")):
        check(prims.full, np.full((2, 3), value, dtype), [2, 3], value)
    check(prims.full, np.full((2,), 1, "f4"), [2], 1, dtype="f32")


def test_sum_to_refuses_a_shape_that_was_not_broadcast() -> None:
    for x in (oplib.ones(2, 3), FakeTensorMode().from_tensor(oplib.ones(2, 3))):
        with pytest.raises(ArgumentError, match="is no broadcast of"):
            prims.sum_to(x, [4, 2, 3])
        with pytest.raises((ArgumentError, ValueError)):
            prims.sum_to(x, [2, 2])


# ---------------------------------------------------------------------- views

VIEWS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "alias": (lambda x: prims.alias(x), lambda a: a),
    "detach": (lambda x: prims.detach(x), lambda a: a),
    "permute": (lambda x: prims.permute(x, [-1, 0]), lambda a: a.transpose(1, 0)),
    "real": (lambda x: prims.real(x), lambda a: a.real),
    "view_as_real": (lambda x: prims.view_as_real(x), lambda a: np.stack([a.real, a.imag], -1)),
    "strided_view": (
        lambda x: prims.strided_view(x[1:], [2, 2], [2, -1], -1),
        lambda a: a.reshape(-1)[[[2, 1], [4, 3]]],
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shares_memory_and_has_the_elements(name: str) -> None:
    array = np.arange(6).reshape(2, 3) * (1 + 2j)
    if name == "strided_view":
        array = np.arange(6).reshape(2, 3).astype(complex)
    function, expected = VIEWS[name]
    x = oplib.from_numpy(array)
    view = function(x)
    np.testing.assert_array_equal(view.numpy(), expected(array))
    assert view._storage is x._storage
    fake = FakeTensorMode().from_tensor(x)
    made = function(fake)
    assert (made.shape, made.strides, made.dtype) == (view.shape, view.strides, view.dtype)
    assert made._storage is fake._storage
    start = view.numpy().__array_interface__["data"][0]
    assert made.array.offset == start - array.__array_interface__["data"][0]


def test_view_as_complex_undoes_view_as_real() -> None:
    z = oplib.from_numpy(np.arange(4).reshape(2, 2).T * (1 + 1j))
    back = prims.view_as_complex(prims.view_as_real(z))
    assert (back.strides, back.dtype) == (z.strides, z.dtype)
    np.testing.assert_array_equal(back.numpy(), z.numpy())
    with pytest.raises(ArgumentError):
        prims.view_as_complex(oplib.ones(3))


def test_a_view_of_nothing_is_empty() -> None:
    x = oplib.zeros(0, 2)
    assert prims.strided_view(x, [0, 4], [1, 1], 0).shape == (0, 4)
    assert prims.view_as_complex(x).shape == (0,)


def test_the_real_part_of_a_real_tensor_is_all_of_it() -> None:
    x = oplib.ones(2)
    assert prims.real(x)._storage is x._storage
    prims.real(x).add_(1)
    assert x.tolist() == [2, 2]


def test_contiguous_last_copies_only_if_it_must() -> None:
    x = oplib.ones(2, 3)
    assert prims.contiguous_last(x) is x
    assert prims.contiguous_last(x.T).strides == (16, 8)


# ---------------------------------------------------------------------- gradients


def leaf(*shape: int, complex_: bool = False) -> Tensor:
    rng = np.random.default_rng(len(shape) + sum(shape))
    data = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if complex_ else 0)
    return oplib.tensor(data, requires_grad=True)


ACCESS = ([2, 2], [2, 1], 1)
OVERLAPPING = ([3, 2], [1, 1], 0)
GRADIENTS: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
    "add": (prims.add, [leaf(2, 3), leaf(3)]),
    "add complex": (prims.add, [leaf(2, complex_=True), leaf(2)]),
    "conj": (prims.conj, [leaf(3, complex_=True)]),
    "mask": (lambda x: prims.mask(x, oplib.tensor([[True], [False]])), [leaf(3)]),
    "sum_to": (lambda x: prims.sum_to(x, [3, 1]), [leaf(2, 3, 2)]),
    "broadcast_to": (lambda x: prims.broadcast_to(x, [2, 3, 2]), [leaf(3, 1)]),
    "cast": (lambda x: prims.cast(x, "c128"), [leaf(3)]),
    "cast to real": (lambda x: prims.cast(x, "f64"), [leaf(3, complex_=True)]),
    "clone": (prims.clone, [leaf(2, 2)]),
    "lift": (prims.lift, [leaf(2, 2)]),
    "with_layout": (lambda x: prims.with_layout(x, [1, 2]), [leaf(2, 2)]),
    "alias": (prims.alias, [leaf(3)]),
    "permute": (lambda x: prims.permute(x, [2, 0, 1]), [leaf(2, 3, 4)]),
    "real": (prims.real, [leaf(3, complex_=True)]),
    "view_as_real": (prims.view_as_real, [leaf(3, complex_=True)]),
    "view_as_complex": (prims.view_as_complex, [leaf(3, 2)]),
    "strided_view": (lambda x: prims.strided_view(x, [2, 2], [1, 1], 1), [leaf(2, 3)]),
    "strided_get": (lambda x: prims.strided_get(x, *ACCESS), [leaf(2, 3)]),
    "strided_get, overlapping": (lambda x: prims.strided_get(x, *OVERLAPPING), [leaf(4)]),
    "strided_put": (lambda x, v: prims.strided_put(x, v, *ACCESS), [leaf(2, 3), leaf(2)]),
    "strided_put, overlapping": (
        lambda x, v: prims.strided_put(x, v, *OVERLAPPING),
        [leaf(4), leaf(3, 2)],
    ),
    "strided_add": (lambda v: prims.strided_add(v, [2, 3], *OVERLAPPING), [leaf(3, 1)]),
    "copy_": (lambda x, v: prims.copy_(x * 1, v), [leaf(2, 3), leaf(3)]),
    "overwrite": (lambda v, x: prims.overwrite(v, x), [leaf(2, 3), leaf(2, 3)]),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_numeric_differences(name: str) -> None:
    function, inputs = GRADIENTS[name]
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


def test_a_graft_takes_the_history_of_its_second_argument() -> None:
    value, history = leaf(2), leaf(2)
    prims.graft(value, history * 3).sum().backward()
    assert value.grad is None
    assert history.grad.tolist() == [3, 3]


def test_no_gradient_flows_through_what_is_a_constant() -> None:
    x = leaf(2)
    assert prims.detach(x).stop_gradient
    assert prims.bitcast(x, "i64").stop_gradient
    assert prims.new_full(x, [2], 1).stop_gradient


def test_every_primitive_has_every_facet() -> None:
    missing = []
    for name in prims.__all__:
        op = getattr(prims, name)
        if not isinstance(op, oplib.Operator):
            continue
        derived = op.schema.is_inplace and op.twin is not None
        if not (op.kernels and (op.fake_rule or op.view_rule or derived) and op.__doc__):
            missing.append(name)
        if name not in ("full", "strided_view") and op.gradient_rule is None:
            missing.append(f"{name} (gradient)")
    assert not missing


def test_the_check_notices_a_wrong_rule() -> None:
    with oplib.Library("primstest", "FRAGMENT") as lib:
        op = lib.define("f(Tensor x) -> Tensor").op
        op.register_kernel("cpu", lambda x: x.copy(order="C"))
        op.register_fake(oplib.meta.like("x"))
        array = np.arange(6.0).reshape(2, 3)
        check(op, array, oplib.from_numpy(array))
        with pytest.raises(AssertionError):
            check(op, array.T, oplib.from_numpy(array.T))
        with pytest.raises(AssertionError):
            check(op, array + 1, oplib.from_numpy(array))
