"""Which overload a call means."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oplib
from oplib.errors import ArgumentError

X = oplib.ones(2)


@pytest.fixture
def lib() -> Iterator[oplib.Library]:
    with oplib.Library("o", "FRAGMENT") as library:
        yield library


def define(lib: oplib.Library, overloads: dict[str, str]) -> Any:
    """Define overloads of ``f`` whose kernels say which they are; return the packet."""
    for name, arguments in overloads.items():
        op = lib.define(f"f.{name}({arguments}) -> str").op
        op.register_kernel("cpu", lambda *args, name=name, **kwargs: name)
    return oplib.ops.o.f


NUMBERS = {"int": "int x", "float": "float x", "complex": "complex x"}


@pytest.mark.parametrize("order", list(itertools.permutations(NUMBERS)))
def test_numbers_choose_the_nearest_type_in_any_order_of_definition(order: tuple[str, ...]) -> None:
    with oplib.Library("o", "FRAGMENT") as lib:
        f = define(lib, {name: NUMBERS[name] for name in order})
        for value, expected in [(1, "int"), (True, "int"), (1.0, "float"), (1j, "complex")]:
            assert f(value) == expected
            assert f(x=value) == expected
        assert f(np.int8(1)) == "int"
        assert f(np.float32(1)) == "float"


def test_a_tensor_binds_to_a_tensor_and_a_number_to_a_scalar(lib: oplib.Library) -> None:
    f = define(lib, {"Scalar": "Tensor x, Scalar y", "Tensor": "Tensor x, Tensor y"})
    assert f(X, X) == "Tensor"
    assert f(X, np.ones(2)) == "Tensor"
    assert f(X, oplib.tensor(1.0)) == "Tensor"
    assert f(X, 2) == f(X, 2.5) == "Scalar"


def test_arity_keywords_and_fewer_defaults_decide(lib: oplib.Library) -> None:
    f = define(
        lib,
        {
            "one": "Tensor x",
            "more": "Tensor x, int y=1",
            "two": "Tensor x, Tensor y",
            "keyword": "Tensor x, *, int alpha=1",
        },
    )
    assert f(X) == "one"
    assert f(X, 1) == "more"
    assert f(X, X) == "two"
    assert f(X, alpha=2) == "keyword"


def test_structural_steps_lose_against_the_declared_type(lib: oplib.Library) -> None:
    f = define(lib, {"list": "int[2] x", "int": "int x", "any": "Any x"})
    assert f(3) == "int"
    assert f([3, 4]) == "list"
    assert f("text") == "any"


def test_equal_candidates_are_ambiguous_and_can_be_named(lib: oplib.Library) -> None:
    f = define(lib, {"a": "Tensor x, int y, float z", "b": "Tensor x, float y, int z"})
    with pytest.raises(ArgumentError, match=r"(?s)ambiguous.*f\.a.*test_overloads.*f\.b.*name one"):
        f(X, 1, 1)
    assert f.a(X, 1, 1) == "a"
    assert f(X, 1, 1.5) == "a"


def test_when_none_fits_every_reason_is_shown(lib: oplib.Library) -> None:
    f = define(lib, {"a": "Tensor x", "b": "Tensor x, int y"})
    with pytest.raises(ArgumentError) as caught:
        f(X, "no")
    assert "takes 1 positional argument but 2 were given" in str(caught.value)
    assert "`y` must be int, got str 'no'" in str(caught.value)


def test_a_choice_is_forgotten_when_overloads_change(lib: oplib.Library) -> None:
    f = define(lib, {"float": "float x", "complex": "complex x"})
    assert f(1) == f(1) == "float"
    made = lib.define("f.int(int x) -> str")
    made.op.register_kernel("cpu", lambda x: "int")
    assert f(1) == "int"
    made.remove()
    assert f(1) == "float"


def test_replacing_one_overload_keeps_the_others(lib: oplib.Library) -> None:
    f = define(lib, {"float": "float x", "complex": "complex x"})
    made = lib.define("f.complex(complex x) -> str", override=True)
    made.op.register_kernel("cpu", lambda x: "new")
    assert (f(1.0), f(1j)) == ("float", "new")
    made.remove()
    assert (f(1.0), f(1j)) == ("float", "complex")
