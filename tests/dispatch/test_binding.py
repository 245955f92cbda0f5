"""What arguments are accepted, as what they arrive, and which calls are equivalent."""

from __future__ import annotations

import enum
import itertools
from collections import UserList
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oplib
from oplib.errors import ArgumentError

X = oplib.ones(2)
ZERO_D = oplib.from_numpy(np.array(3))


class Color(enum.StrEnum):
    red = "red"


class Index:
    def __index__(self) -> int:
        return 5


@pytest.fixture
def lib() -> Iterator[oplib.Library]:
    with oplib.Library("b", "FRAGMENT") as library:
        yield library


def catcher(lib: oplib.Library, arguments: str) -> tuple[Any, list[Any]]:
    """Return an operator with these arguments beside a tensor, and what its kernel received."""
    seen: list[Any] = []

    def kernel(x: Any, *args: Any, **kwargs: Any) -> Any:
        seen[:] = [*args, *kwargs.values()]
        return -x

    op = lib.define(f"f(Tensor x, {arguments}) -> Tensor").op
    lib.impl(op, kernel, "CPU")
    return op, seen


generator = np.random.default_rng(0)

ACCEPTED = [
    ("int", 3, 3),
    ("int", True, 1),
    ("int", np.int8(3), 3),
    ("int", Index(), 5),
    ("int", ZERO_D, 3),
    ("int", np.array(3), 3),
    ("float", 2, 2.0),
    ("float", True, 1.0),
    ("float", np.float32(0.5), 0.5),
    ("float", ZERO_D, 3.0),
    ("complex", 2, 2 + 0j),
    ("complex", np.complex64(1j), 1j),
    ("bool", True, True),
    ("bool", np.bool(False), False),
    ("bool", oplib.from_numpy(np.array(True)), True),
    ("Scalar", 2, 2),
    ("Scalar", 2.5, 2.5),
    ("Scalar", np.float64(2.5), 2.5),
    ("Scalar", 1j, 1j),
    ("str", "a", "a"),
    ("str", Color.red, "red"),
    ("Device", "cpu", oplib.Device("cpu")),
    ("ScalarType", "float32", np.dtype("float32")),
    ("ScalarType", float, np.dtype("float64")),
    ("ScalarType", np.int8, np.dtype("int8")),
    ("Generator", generator, generator),
    ("int[]", (1, 2), [1, 2]),
    ("int[]", range(2), [0, 1]),
    ("int[]", np.array([1, 2]), [1, 2]),
    ("int[]", UserList([1]), [1]),
    ("float[]", [1, 2.5], [1.0, 2.5]),
    ("bool[]", np.array([True]), [True]),
    ("str[]", ["a"], ["a"]),
    ("int[2]", 3, [3, 3]),
    ("int[2]", [3, 4], [3, 4]),
    ("int[1]?", 0, [0]),
    ("int[1]?", [0, 1], [0, 1]),
    ("int[1]?", None, None),
    ("Device[]", ["cpu", oplib.Device("meta")], [oplib.Device("cpu"), oplib.Device("meta")]),
    ("ScalarType[]", ["f32"], [np.dtype("float32")]),
    ("(int, str)", [1, "a"], (1, "a")),
    ("Dict(str, int)", {"a": True}, {"a": 1}),
    ("Any", {"k": [1]}, {"k": [1]}),
]


@pytest.mark.parametrize(("kind", "given_", "arrives"), ACCEPTED)
def test_a_value_arrives_converted(
    lib: oplib.Library, kind: str, given_: Any, arrives: Any
) -> None:
    op, seen = catcher(lib, f"{kind} y")
    op(X, given_)
    assert seen == [arrives]
    assert type(seen[0]) is type(arrives)
    op(X, y=given_)
    assert seen == [arrives]


REFUSED = [
    ("int", 3.0, "write 3"),
    ("int", "3", "must be int, got str '3'"),
    ("int", oplib.from_numpy(np.array([3.5])), "0-d"),
    ("int", oplib.from_numpy(np.array(3.5)), "must be int"),
    ("int", None, "must be int, got None"),
    ("float", 1j, "must be float"),
    ("float", "1", "must be float"),
    ("complex", "1", "must be complex"),
    ("bool", 1, "write True"),
    ("bool", None, "must be bool"),
    ("bool", "yes", "must be bool"),
    ("Scalar", X, r"x.item\(\)"),
    ("str", b"a", "decode"),
    ("Device", "nowhere", "device"),
    ("ScalarType", "float33", "dtype"),
    ("Generator", 3, "default_rng"),
    ("int[]", "12", "must be"),
    ("int[]", {1, 2}, "list"),
    ("int[]", iter([1]), "list"),
    ("int[]", X, r"list\(x\)"),
    ("int[]", 3, r"write \[3\]"),
    ("str[]", "ab", r"write \['ab'\]"),
    ("int[2]", [3], "give 2 values"),
    ("int[2]", [], "give 2 values"),
    ("(int, str)", (1,), "tuple of 2"),
    ("Dict(str, int)", [1], "mapping"),
    ("Tensor", None, "not optional"),
    ("Tensor", "a", "must be a Tensor"),
    ("Tensor", [1.0], "oplib.tensor"),
    ("Tensor", np.ma.masked_array([1.0]), "masked"),
    ("Tensor", np.array([object()]), "no numbers"),
    ("Tensor[]", X, r"list\(x\)"),
    ("Tensor[]", [X, None], r"`y\[1\]` must be a Tensor, got None"),
    ("int[]", [1, 2.5], r"`y\[1\]` must be int, got float 2.5"),
    ("bool[]", (True, 1), r"`y\[1\]` must be bool, got int 1"),
    ("int[][]", [[1], [2, "a"]], r"`y\[1\]\[1\]` must be int, got str 'a'"),
    ("int[]", [1, oplib.ones(2)], r"`y\[1\]` must be int, got a Tensor f64\[2\]"),
    ("(int, Tensor)", (1, "a"), r"`y\[1\]` must be a Tensor, got str 'a'"),
    ("Dict(str, Tensor)", {"a": X, "b": None}, r"`y\['b'\]` must be a Tensor, got None"),
    ("Dict(str, int)", {1: 1}, "must be a mapping with str keys"),
    ("Tensor?[]", [None, np.array([object()])], r"`y\[1\]` has dtype object"),
]


@pytest.mark.parametrize(("kind", "given_", "message"), REFUSED)
def test_a_value_that_does_not_fit_is_refused_by_name(
    lib: oplib.Library, kind: str, given_: Any, message: str
) -> None:
    op, seen = catcher(lib, f"{kind} y")
    with pytest.raises(ArgumentError, match=message) as caught:
        op(X, given_)
    assert str(caught.value).startswith("b::f: argument `y")
    assert f"signature  {op.schema}" in str(caught.value)
    assert seen == []


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_matrix_is_refused(lib: oplib.Library) -> None:
    op, _ = catcher(lib, "Tensor y")
    with pytest.raises(ArgumentError, match=r"numpy\.matrix is not supported"):
        op(X, np.matrix([[1.0]]))


def test_a_number_that_requires_grad_is_not_taken_silently(lib: oplib.Library) -> None:
    op, seen = catcher(lib, "float y")
    y = oplib.tensor(2.0, requires_grad=True)
    with pytest.raises(ArgumentError, match=r"requires grad.*x\.item\(\)"):
        op(X, y)
    with oplib.no_grad():
        op(X, y)
    assert seen == [2.0]


def test_a_union_takes_the_nearest_member(lib: oplib.Library) -> None:
    op, seen = catcher(lib, "Union(int, str) y")
    op(X, True)
    assert seen == [1]
    op(X, "a")
    assert seen == ["a"]


def test_lists_are_fresh_and_elements_keep_identity(lib: oplib.Library) -> None:
    given_ = [X, X]
    seen: list[Any] = []

    def kernel(xs: list[oplib.Tensor]) -> oplib.Tensor:
        seen[:] = xs
        xs.append(X)
        return xs[0] + 1

    op = lib.define("f(Tensor[] xs) -> Tensor").op
    op.register_kernel(None, kernel)
    op(given_)
    assert len(given_) == 2
    assert all(a is b for a, b in zip(seen, given_, strict=True))


@given(st.permutations(["x", "y", "alpha", "beta"]), st.integers(0, 2))
def test_keyword_calls_equal_positional_calls(order: list[str], positional: int) -> None:
    with oplib.Library("b", "FRAGMENT") as lib:
        op = lib.define("f(Tensor x, float y=2.0, *, int alpha=3, bool beta=False) -> Tensor").op
        lib.impl(op, lambda x, y, *, alpha, beta: x * y * alpha + beta, "CPU")
        everything = {"x": X, "y": 5, "alpha": 7, "beta": True}
        args = [everything[name] for name in ("x", "y")[:positional]]
        kwargs = {n: everything[n] for n in order if n not in ("x", "y")[:positional]}
        assert op(*args, **kwargs).tolist() == [36, 36]


def test_names_that_python_cannot_spell_are_passed_by_keyword(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor self, int lambda=1, *, int from=2, int type=3) -> Tensor").op
    lib.impl(op, lambda x, a, **k: x * a * k["from"] * k["type"], "CPU")
    assert op(X).tolist() == [6, 6]
    assert op(self=X, **{"lambda": 2, "from": 5}, type=1).tolist() == [10, 10]
    with pytest.raises(ArgumentError, match="twice"):
        op(X, self=X)


KINDS = {
    "Tensor[] y": lambda t: [t],
    "Tensor? y": lambda t: t,
    "Tensor?[] y": lambda t: [None, t],
    "*, Tensor y": lambda t: t,
    "*, Tensor[] y": lambda t: (t,),
    "(Tensor, int) y": lambda t: (t, 1),
    "Dict(str, Tensor) y": lambda t: {"k": t},
    "Tensor[][] y": lambda t: [[t], []],
    "Any y": lambda t: {"k": [(t,)]},
}


@pytest.mark.parametrize("argument", KINDS)
def test_tensors_are_found_wherever_they_are(lib: oplib.Library, argument: str) -> None:
    op = lib.define(f"f({argument}) -> Tensor").op
    op.register_kernel("cpu", lambda *args, **kwargs: np.zeros(1))
    op.register_fake(lambda *args, **kwargs: oplib.TensorSpec((1,), "f64"))
    give = KINDS[argument]
    keyword = argument.startswith("*")
    call = (lambda t: op(y=give(t))) if keyword else (lambda t: op(give(t)))
    assert call(X).tolist() == [0]
    fake = oplib.FakeTensorMode().from_tensor(X)
    assert "fake" in repr(call(fake))
    result = call(oplib.ones(1, requires_grad=True))
    assert result.requires_grad


@pytest.mark.parametrize("argument", [a for a in KINDS if "Any" not in a and "Dict" not in a])
def test_arrays_in_arrays_out_and_one_tensor_makes_tensors(
    lib: oplib.Library, argument: str
) -> None:
    op = lib.define(f"f(Tensor x, {argument}) -> Tensor").op
    op.register_kernel("cpu", lambda x, *args, **kwargs: -x)
    array, give = np.ones(2), KINDS[argument]
    keyword = argument.startswith("*")
    for x, y in itertools.product([array, X], repeat=2):
        result = op(x, y=give(y)) if keyword else op(x, give(y))
        expected = np.ndarray if x is array is y else oplib.Tensor
        assert type(result) is expected


def test_numbers_only_make_a_tensor(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x, Tensor y) -> Tensor").op
    op.register_kernel("cpu", np.add)
    assert type(op(1, 2.5)) is oplib.Tensor
    assert op(1, 2.5).tolist() == 3.5


def test_a_number_beside_a_tensor_stays_weak(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x, Tensor y) -> Tensor").op
    op.register_kernel("cpu", np.multiply)
    half = oplib.ones(2, dtype="float16")
    assert op(half, 2.5).dtype == op(2, half).dtype == np.float16
    assert op(half, np.float64(2.5)).dtype == np.float64


def test_writes_to_an_array_given_alone_are_seen(lib: oplib.Library) -> None:
    op = lib.define("f_(Tensor(a!) x, Tensor y) -> Tensor(a!)").op
    op.register_kernel("cpu", lambda x, y: np.add(x, y, x))
    array = np.ones(2)
    assert op(array, array) is array
    assert array.tolist() == [2, 2]


@pytest.mark.parametrize("place", ["positional", "keyword", "default", "omitted"])
def test_a_device_argument_chooses_the_backend_of_a_call_without_tensors(
    lib: oplib.Library, place: str
) -> None:
    default = "='meta'" if place == "default" else "=None"
    op = lib.define(f"f(Tensor[] xs, Device? device{default}) -> Tensor").op
    op.register_kernel("cpu", lambda xs, device: np.zeros(1))
    op.register_fake(lambda xs, device: oplib.TensorSpec((1,), "f64"))
    args = ([], "meta") if place == "positional" else ([],)
    kwargs = {"device": "meta"} if place == "keyword" else {}
    expected = "cpu" if place == "omitted" else "meta"
    assert op(*args, **kwargs).device.type == expected


def test_a_device_nobody_serves_is_refused(lib: oplib.Library) -> None:
    op = lib.define("f(*, Device device) -> Tensor").op
    op.register_kernel("cpu", lambda *, device: np.zeros(1))
    with pytest.raises(
        ArgumentError, match=r"no backend serves device 'cuda'.*\n.*register_backend"
    ):
        op(device="cuda")
