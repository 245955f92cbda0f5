"""Rules stated by argument names: each with a good call, its errors, symbols, and its text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import ArgumentError, FakeTensorMode, Library, RegistrationError, Tensor
from oplib.dispatch.keys import META
from oplib.meta import (
    broadcast,
    concat,
    gather,
    like,
    matmul,
    outputs,
    reduced,
    spec,
    stacked,
    windows,
)


@pytest.fixture
def lib() -> Iterator[Library]:
    with Library("buildtest", "FRAGMENT") as library:
        yield library


@pytest.fixture
def mode() -> FakeTensorMode:
    return FakeTensorMode(dynamic=True)


def fake(mode: FakeTensorMode, *shape: int, dtype: str = "f64") -> Tensor:
    return mode.from_tensor(oplib.ones(shape, dtype=dtype))


def symbolic(mode: FakeTensorMode, *shape: Any) -> Tensor:
    """Return a fake with a fresh symbol for every None in `shape`."""
    sizes = [mode.facts.fresh() if n is None else n for n in shape]
    with mode:
        made: Tensor = oplib.ops.std.empty(sizes)
    assert made._keys & META
    return made


def defined(lib: Library, schema: str, rule: Any) -> Any:
    op = lib.define(schema).op
    op.register_fake(rule)
    return op


def test_like(lib: Library, mode: FakeTensorMode) -> None:
    same = defined(lib, "a(Tensor x) -> Tensor", like("x"))
    cast = defined(lib, "b(Tensor x) -> Tensor", like("x", dtype=bool))
    half = defined(lib, "c(Tensor x) -> Tensor", like("x", dtype=lambda d: np.dtype("f4")))
    x = fake(mode, 2, 3).T
    assert (same(x).shape, same(x).strides) == ((3, 2), (8, 24))
    assert (cast(x).dtype, half(x).dtype) == (np.bool_, np.float32)
    assert str(same(symbolic(mode, None, 2)).shape) == "(u0, 2)"


def test_broadcast(lib: Library, mode: FakeTensorMode) -> None:
    op = defined(lib, "f(Tensor x, Tensor y) -> Tensor", broadcast("x", "y"))
    assert op(fake(mode, 2, 1), fake(mode, 3, dtype="f32")).shape == (2, 3)
    assert op(fake(mode, 2, dtype="f32"), 3).dtype == np.float32
    assert str(op(symbolic(mode, None, 2), fake(mode, 1, 2)).shape) == "(u0, 2)"
    with pytest.raises(ValueError, match="broadcast"):
        op(fake(mode, 2), fake(mode, 3))
    with pytest.raises(OverflowError):
        op(fake(mode, 2, dtype="u8"), 300)


def test_reduced(lib: Library, mode: FakeTensorMode) -> None:
    op = defined(lib, "f(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor", reduced("x"))
    x = fake(mode, 2, 3, 4)
    assert [op(x).shape, op(x, [1]).shape, op(x, [-1], True).shape] == [(), (2, 4), (2, 3, 1)]
    fixed = defined(lib, "g(Tensor x) -> Tensor", reduced("x", [0], False, dtype="i64"))
    assert (fixed(x).shape, fixed(x).dtype) == ((3, 4), np.int64)
    assert str(op(symbolic(mode, None, 3), [1]).shape) == "(u0,)"
    with pytest.raises(ArgumentError, match="dim 3 is out of range"):
        op(x, [3])


def test_matmul(lib: Library, mode: FakeTensorMode) -> None:
    op = defined(lib, "f(Tensor a, Tensor b) -> Tensor", matmul("a", "b"))
    assert op(fake(mode, 5, 2, 3), fake(mode, 3, 4)).shape == (5, 2, 4)
    assert str(op(symbolic(mode, None, 3), fake(mode, 3, 4)).shape) == "(u0, 4)"
    with pytest.raises(ValueError, match="3 != 2"):
        op(fake(mode, 2, 3), fake(mode, 2, 3))


def test_concat_and_stacked(lib: Library, mode: FakeTensorMode) -> None:
    joined = defined(lib, "f(Tensor[] xs, int dim=0) -> Tensor", concat("xs", "dim"))
    piled = defined(lib, "g(Tensor[] xs) -> Tensor", stacked("xs"))
    x = fake(mode, 2, 3)
    assert joined([x, x], 1).shape == (2, 6)
    assert piled([x, x, x]).shape == (3, 2, 3)
    n = symbolic(mode, None, 3)
    assert str(joined([n, x, n]).shape) == "(2*u0 + 2, 3)"
    with pytest.raises(ArgumentError, match="other axes differ"):
        joined([x, fake(mode, 2, 4)])


def test_gather(lib: Library, mode: FakeTensorMode) -> None:
    op = defined(lib, "f(Tensor x, int dim, Tensor index) -> Tensor", gather("x", "index", "dim"))
    assert op(fake(mode, 2, 3), 1, fake(mode, 2, 7, dtype="i64")).shape == (2, 7)
    with pytest.raises(ArgumentError, match="exceed"):
        op(fake(mode, 2, 3), 1, fake(mode, 3, 7, dtype="i64"))


def test_windows(lib: Library, mode: FakeTensorMode) -> None:
    pool = defined(
        lib,
        "f(Tensor x, int[2] size, int[2]? stride=None, int[2] padding=0) -> Tensor",
        windows("x", "size", "stride", "padding"),
    )
    conv = defined(
        lib,
        "g(Tensor x, Tensor weight, int[2] stride=1) -> Tensor",
        windows("x", "weight", "stride"),
    )
    x = fake(mode, 2, 3, 8, 8)
    assert pool(x, [2, 2]).shape == (2, 3, 4, 4)
    assert pool(x, [3, 3], [1, 1], [1, 1]).shape == (2, 3, 8, 8)
    assert conv(x, fake(mode, 5, 3, 3, 3), [2, 2]).shape == (2, 5, 3, 3)
    assert str(pool(symbolic(mode, None, 3, 8, 8), [2, 2]).shape) == "(u0, 3, 4, 4)"
    with pytest.raises(ArgumentError, match="does not fit"):
        pool(x, [9, 9])
    with pytest.raises(ArgumentError, match="1 window axes for 2"):
        conv(x, fake(mode, 5, 3, 3))


def test_spec(lib: Library, mode: FakeTensorMode) -> None:
    op = defined(lib, "f(Tensor x, int n) -> Tensor", spec(lambda x, n: (*x.shape, n)))
    typed = defined(
        lib,
        "g(Tensor x, ScalarType dtype) -> Tensor",
        spec(lambda x: x.shape, dtype=lambda dtype: dtype, layout="keep"),
    )
    x = fake(mode, 2, 3)
    assert (op(x, 4).shape, op(x, 4).dtype) == ((2, 3, 4), np.float64)
    assert (typed(x.T, "i64").strides, typed(x, "i64").dtype) == ((8, 24), np.int64)
    assert str(op(symbolic(mode, None), 4).shape) == "(u0, 4)"
    with pytest.raises(ArgumentError, match="a length is an int"):
        op(x, -1)
    with pytest.raises(RegistrationError, match="layout is 'C' or 'keep'"):
        spec(lambda x: x.shape, layout="F")


def test_outputs(lib: Library, mode: FakeTensorMode) -> None:
    op = defined(
        lib,
        "f(Tensor x, int dim) -> (Tensor, Tensor)",
        outputs(like("x"), reduced("x", "dim", False, dtype="i64")),
    )
    values, positions = op(fake(mode, 2, 3), 1)
    assert (values.shape, positions.shape, positions.dtype) == ((2, 3), (2,), np.int64)


@pytest.mark.parametrize(
    "rule",
    [
        like("z"),
        broadcast("x", "z"),
        reduced("x", "dimm", False),
        matmul("z", "x"),
        concat("z"),
        gather("x", "z", 0),
        windows("x", "z"),
        spec(lambda z: (1,)),
        outputs(like("x"), like("z")),
    ],
)
def test_a_name_that_is_no_argument_is_refused_at_registration(lib: Library, rule: Any) -> None:
    op = lib.define("f(Tensor x, int dim=0) -> Tensor").op
    with pytest.raises(RegistrationError) as caught:
        op.register_fake(rule)
    assert "buildtest::f" in str(caught.value)
    assert "names no argument" in str(caught.value)
    assert op.fake_rule is None


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (like("x"), "like('x')"),
        (broadcast("x", "y"), "broadcast('x', 'y')"),
        (reduced("x"), "reduced('x', 'dim', 'keepdim')"),
        (matmul("a", "b"), "matmul('a', 'b')"),
        (concat("xs", "dim"), "concat('xs', 'dim')"),
        (stacked("xs", 1), "stacked('xs', 1)"),
        (gather("x", "i", 0), "gather('x', 'i', 0)"),
        (windows("x", 3), "windows('x', 3, stride=1, padding=0, dilation=1)"),
        (spec(lambda x, n: (n,)), "spec(shape of x, n)"),
        (outputs(like("x"), like("y")), "outputs(like('x'), like('y'))"),
    ],
)
def test_a_rule_shows_how_it_was_written(rule: Any, text: str) -> None:
    assert repr(rule) == text


def test_a_custom_op_takes_a_rule(mode: FakeTensorMode) -> None:
    @oplib.custom_op("buildtest::twice", mutates_args=(), fake=like("x"))
    def twice(x: np.ndarray) -> np.ndarray:
        return x * 2

    assert twice(fake(mode, 2)).shape == (2,)
