"""What callers get for what kernels return."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oplib
from oplib.errors import AliasError, ReturnError

X = oplib.from_numpy(np.arange(4.0))


@pytest.fixture
def lib() -> Iterator[oplib.Library]:
    with oplib.Library("s", "FRAGMENT") as library:
        yield library


def define(lib: oplib.Library, schema: str, kernel: Any) -> Any:
    op = lib.define(schema).op
    lib.impl(op, kernel, "CPU")
    return op


@pytest.mark.parametrize("value", [True, 2, 2.5, 1j, np.float32(2.5), np.int8(3)])
def test_scalars_become_0d_tensors(lib: oplib.Library, value: Any) -> None:
    op = define(lib, "f(Tensor x) -> Tensor", lambda x: value)
    result = op(X)
    assert (result.shape, result.dtype) == ((), np.asarray(value).dtype)


@pytest.mark.parametrize(
    ("schema", "value", "arrives"),
    [
        ("int", np.int8(3), 3),
        ("float", np.float32(0.5), 0.5),
        ("float", 2, 2.0),
        ("bool", np.bool(True), True),
        ("str", "a", "a"),
        ("int[]", (1, 2), [1, 2]),
        ("(int, str)", (1, "a"), (1, "a")),
        ("Tensor?", None, None),
    ],
)
def test_plain_values_are_unwrapped(
    lib: oplib.Library, schema: str, value: Any, arrives: Any
) -> None:
    op = define(lib, f"f(Tensor x) -> {schema}", lambda x: value)
    result = op(X)
    assert result == arrives
    assert type(result) is type(arrives)


def test_containers_of_tensors_come_back_as_the_schema_says(lib: oplib.Library) -> None:
    op = define(
        lib,
        "f(Tensor x) -> (Tensor[], Dict(str, Tensor), Tensor?[])",
        lambda x: ((x + 1,), {"k": x + 2}, [None, x + 3]),
    )
    listed, mapped, optional = op(X)
    assert type(listed) is list
    assert listed[0].tolist()[0] == 1
    assert mapped["k"].tolist()[0] == 2
    assert optional[0] is None
    with pytest.raises(ReturnError, match="return the value itself"):
        define(lib, "g(Tensor x) -> Tensor", lambda x: (x + 1,))(X)


@pytest.mark.parametrize("kernel", [lambda x: None, lambda x: x, lambda x: 3, lambda x: x + 1])
def test_an_in_place_kernel_may_return_anything(lib: oplib.Library, kernel: Any) -> None:
    op = define(lib, "f_(Tensor(a!) x) -> Tensor(a!)", kernel)
    x = oplib.zeros(2)
    assert op(x) is x
    assert x.inplace_version == 1


@pytest.mark.parametrize("both", [False, True])
def test_a_written_return_may_be_left_out(lib: oplib.Library, both: bool) -> None:
    op = define(
        lib,
        "f(Tensor(a!) x) -> (Tensor(a!), Tensor)",
        lambda x: (x, x + 1) if both else x + 1,
    )
    x = oplib.zeros(2)
    first, second = op(x)
    assert first is x
    assert second.tolist() == [1, 1]


def test_a_written_optional_is_returned_or_made(lib: oplib.Library) -> None:
    def kernel(x: Any, *, out: Any) -> Any:
        if out is None:
            return x * 2
        np.multiply(x, 2, out=out)
        return None

    op = define(lib, "f(Tensor x, *, Tensor(a!)? out=None) -> Tensor(a!)", kernel)
    out = oplib.zeros(4)
    assert op(X, out=out) is out
    assert op(X).tolist() == out.tolist() == [0, 2, 4, 6]


def test_versions_are_bumped_once_in_lists_and_optionals_and_on_failure(
    lib: oplib.Library,
) -> None:
    fail = False

    def kernel(xs: Any, y: Any, z: Any) -> None:
        if fail:
            raise ZeroDivisionError("mine")

    op = define(lib, "f(Tensor(a!)[] xs, Tensor(b!)? y, Tensor z) -> ()", kernel)
    a, b, c, z = (oplib.zeros(1) for _ in range(4))
    op([a, b, a], None, z)
    op([], c, z)
    assert [t.inplace_version for t in (a, b, c, z)] == [1, 1, 1, 0]
    fail = True
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        op([a], None, z)
    assert a.inplace_version == 2
    assert any("CPU kernel of s::f" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    "kernel",
    [
        lambda x: np.broadcast_to(x[:1].copy(), x.shape),
        lambda x: np.lib.stride_tricks.sliding_window_view(x.copy(), 2),
        lambda x: np.frombuffer(x.tobytes()),
    ],
)
def test_a_result_comes_back_writable_and_without_overlap(lib: oplib.Library, kernel: Any) -> None:
    result = define(lib, "f(Tensor x) -> Tensor", kernel)(X)
    result.add_(1)
    np.testing.assert_array_equal(result.numpy(), kernel(X.numpy()) + 1)


def test_a_read_only_result_comes_back_writable(lib: oplib.Library) -> None:
    def kernel(x: Any) -> Any:
        result = x + 1
        result.flags.writeable = False
        return result

    op = define(lib, "f(Tensor x) -> Tensor", kernel)
    assert op(X).numpy().flags.writeable
    np.testing.assert_array_equal(op(X).add_(1).numpy(), X.numpy() + 2)
    result = op(X)
    result[1:].add_(1)
    assert result.tolist() == [X.tolist()[0] + 1, *(value + 2 for value in X.tolist()[1:])]


def test_a_read_only_result_is_written_by_a_program_and_as_a_fake(lib: oplib.Library) -> None:
    def kernel(x: Any) -> Any:
        result = x + 1
        result.flags.writeable = False
        return result

    op = define(lib, "f(Tensor x) -> Tensor", kernel)
    made = op(X)
    oplib.functionalize(lambda x: x.add_(1))(made)
    np.testing.assert_array_equal(made.numpy(), X.numpy() + 2)
    oplib.FakeTensorMode().from_tensor(op(X)).add_(1)


def test_a_read_only_array_of_the_caller_stays_read_only(lib: oplib.Library) -> None:
    array = np.arange(4.0)
    array.flags.writeable = False
    for tensor in (oplib.from_numpy(array), oplib.from_numpy(array[:2])):
        with pytest.raises(oplib.AliasError, match="read-only"):
            tensor.add_(1)
    assert not array.flags.writeable


@pytest.mark.parametrize("kernel", [lambda x: x[::2], lambda x: x, lambda x: x.reshape(2, 2)])
def test_a_declared_view_is_a_view_of_its_argument(lib: oplib.Library, kernel: Any) -> None:
    op = define(lib, "f(Tensor(a) x) -> Tensor(a)", kernel)
    x = oplib.zeros(4)
    view = op(x)
    assert view is not x
    view.add_(3)
    assert x.tolist()[0] == 3
    assert x.inplace_version == 1


def test_a_copy_where_a_view_is_declared_is_refused_unless_it_only_may_be(
    lib: oplib.Library,
) -> None:
    with pytest.raises(AliasError, match="declared a view of `x`, but is a copy"):
        define(lib, "f(Tensor(a) x) -> Tensor(a)", lambda x: x.copy())(X)


def test_arguments_may_share_memory_and_empty_results_share_none(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x, Tensor y) -> (Tensor, Tensor)", lambda x, y: (x[:0], y[:0]))
    assert [t.shape for t in op(X, X)] == [(0,), (0,)]
    pair = define(
        lib, "g(Tensor(a) x, Tensor(b) y) -> (Tensor(a), Tensor(b))", lambda x, y: (x[:1], y[:1])
    )
    first, second = pair(oplib.zeros(2), oplib.zeros(2))
    assert first._storage is not second._storage


def test_a_result_that_a_kernel_keeps_has_one_storage(lib: oplib.Library) -> None:
    @functools.cache
    def constant() -> Any:
        return np.zeros(2)

    op = define(lib, "f(Tensor x) -> Tensor", lambda x: constant())
    assert op(X)._storage is op(X)._storage


def test_a_tensor_kernel_leaves_no_graph_on_its_result(lib: oplib.Library) -> None:
    weight = oplib.ones(4, requires_grad=True)
    op = lib.define("f(Tensor x) -> Tensor").op
    op.register_kernel(None, lambda x: x * weight)
    assert not op(X).requires_grad
    same = lib.define("g(Tensor x) -> Tensor").op
    same.register_kernel(None, lambda x: weight)
    result = same(oplib.ones(4, requires_grad=True))
    assert result is not weight
    assert weight.is_leaf
    itself = lib.define("h(Tensor x) -> Tensor").op
    itself.register_kernel(None, lambda x: x)
    with pytest.raises(AliasError, match="`x` itself"):
        itself(X)


def test_no_check_keeps_an_argument_or_result_alive(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x) -> (Tensor, Tensor)", lambda x: (x + 1, x + 2))
    x = oplib.ones(2)
    results = op(x)
    references = [weakref.ref(t) for t in (x, *results)]
    del x, results
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
