"""A Tensor is an array of the array API standard: operators, attributes, namespace, inspection."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import array_api
from tests.array_api.calls import DTYPES, OPERATORS, Arrays
from tests.array_api.compare import difference, plain
from tests.array_api.more_calls import CONSTANTS

pytestmark = pytest.mark.peer("array_api_strict")

REFLECTED_OR_IN_PLACE = [
    name
    for name in OPERATORS
    if name.startswith("__") and name[2:-2] not in ("bool", "complex", "float", "index", "int")
]


@pytest.mark.parametrize(
    "name", [n for n in REFLECTED_OR_IN_PLACE if not n.startswith(("__array", "__dl"))]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_operator_of_arrays_agrees_with_the_standard(name, dtype):
    import array_api_strict as strict

    a = Arrays(dtype)
    unary = name in ("__abs__", "__invert__", "__neg__", "__pos__")
    square = name in ("__matmul__", "__rmatmul__", "__imatmul__")
    x, y = a(3, 3), a(3, 3) if square else a(3)
    index: tuple[Any, ...] = (1, slice(None, None, -1))
    operands: list[tuple[Any, ...]] = [(x,)] if unary else [(x, y)]
    if not unary and not square:
        operands.append((x, 2))
    if name == "__getitem__":
        operands = [(x, index), (x, ...), (x, x == x[0, 0]), (x, (None, 0))]
    if name == "__setitem__":
        operands = [(x, index, y), (x, x == x[0, 0], 1), (x, ..., x)]

    def run(convert: Any) -> Any:
        results = []
        for args in operands:
            made = [convert(v.copy()) if isinstance(v, np.ndarray) else v for v in args]
            try:
                with np.errstate(all="ignore"):
                    result = getattr(type(made[0]), name)(*made)
                results.append(plain(made[0] if result is None else result))
            except Exception as error:
                results.append(error)
        return results

    for actual, expected in zip(run(oplib.from_numpy), run(strict.asarray), strict=True):
        if not isinstance(expected, Exception) and expected is not NotImplemented:
            assert not difference(name, actual, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attributes_and_conversions_agree_with_the_standard(dtype):
    import array_api_strict as strict

    data = Arrays(dtype)(2, 3)
    x, s = oplib.from_numpy(data), strict.asarray(data)
    assert (x.shape, x.ndim, x.size) == (s.shape, s.ndim, s.size)
    assert x.dtype == getattr(array_api, dtype)
    assert not difference("T", plain(x.T), plain(s.T))
    assert not difference("mT", plain(x.mT), plain(s.mT))
    assert x.to_device(x.device) is x
    for convert in (bool, int, float, complex):
        one, same = x[0, 0], s[0, 0]
        try:
            expected = convert(same)
        except TypeError:
            continue
        assert convert(one) == expected
    if data.dtype.kind in "iu":
        assert range(9)[oplib.from_numpy(abs(data[0, :1]))[0]] == abs(int(data[0, 0]))


@pytest.mark.parametrize("version", [None, "2021.12", "2022.12", "2023.12", "2024.12"])
def test_a_tensor_names_the_namespace(version):
    assert oplib.ones(2).__array_namespace__(api_version=version) is array_api


def test_an_unknown_version_is_refused():
    with pytest.raises(ValueError, match=r"2024\.12.*not '1999\.01'"):
        oplib.ones(2).__array_namespace__(api_version="1999.01")


def test_constants_and_dtypes_are_the_standards():
    for name in CONSTANTS:
        value = getattr(array_api, name)
        assert value is None if name == "newaxis" else isinstance(value, float)
    assert (array_api.e, array_api.pi, array_api.inf) == (math.e, math.pi, math.inf)
    for name in DTYPES:
        assert getattr(array_api, name) == np.dtype(name)


def test_inspection_says_what_is_there():
    import array_api_strict as strict

    ours, theirs = (n.__array_namespace_info__() for n in (array_api, strict))
    assert ours.capabilities() == theirs.capabilities()
    assert ours.default_device() in ours.devices()
    for kind in (None, "bool", "integral", "numeric", ("bool", "real floating")):
        expected = {name: d._np_dtype for name, d in theirs.dtypes(kind=kind).items()}
        assert ours.dtypes(kind=kind) == expected
    defaults = theirs.default_dtypes()
    assert ours.default_dtypes() == {name: d._np_dtype for name, d in defaults.items()}


def test_isin_inverts():
    x = oplib.tensor([1, 2, 3])
    assert array_api.isin(x, oplib.tensor([2]), invert=True).tolist() == [True, False, True]


def test_the_transpose_of_three_axes_reverses_them():
    assert oplib.ones(2, 3, 4).T.shape == (4, 3, 2)  # a deviation


REFUSED: dict[str, Any] = {
    "expand_dims": lambda xp, a: xp.expand_dims(a(2, 3), axis=5),
    "squeeze": lambda xp, a: xp.squeeze(a(2, 3), 0),
    "reshape": lambda xp, a: xp.reshape(a(2, 3), (4,)),
    "concat": lambda xp, a: xp.concat([a(2, 3), a(2, 4)]),
    "stack": lambda xp, a: xp.stack([a(2), a(3)]),
    "add": lambda xp, a: xp.add(a(2), a(3)),
    "matmul": lambda xp, a: a(2, 3) @ a(2, 3),
    "take": lambda xp, a: xp.take(a(2, 3), xp.asarray([0])),
    "cumulative_sum": lambda xp, a: xp.cumulative_sum(a(2, 3)),
    "linalg.cross": lambda xp, a: xp.linalg.cross(a(2), a(2)),
    "linalg.cholesky": lambda xp, a: xp.linalg.cholesky(a(2, 3)),
    "linalg.solve": lambda xp, a: xp.linalg.solve(a(2, 3), a(2)),
    "linalg.outer": lambda xp, a: xp.linalg.outer(a(2, 2), a(2)),
    "linalg.qr": lambda xp, a: xp.linalg.qr(a(2, 2), mode="other"),
    "linalg.matrix_norm": lambda xp, a: xp.linalg.matrix_norm(a(2, 2), ord="other"),
    "nonzero": lambda xp, a: xp.nonzero(a()),
    "permute_dims": lambda xp, a: xp.permute_dims(a(2, 3), (0, 0)),
    "sum": lambda xp, a: xp.sum(a(2, 3), axis=3),
    "sum twice": lambda xp, a: xp.sum(a(2, 3), axis=(0, 0)),
    "max": lambda xp, a: xp.max(a(0)),
    "broadcast_to": lambda xp, a: xp.broadcast_to(a(3), (2, 4)),
    "item": lambda xp, a: a(3)[5],
    "items": lambda xp, a: a(3)[0, 0],
    "truth": lambda xp, a: bool(a(3)),
    "tensordot": lambda xp, a: xp.tensordot(a(2, 3), a(4, 5), axes=1),
    "vecdot": lambda xp, a: xp.vecdot(a(1), a(3)),
    "take_along_axis": lambda xp, a: xp.take_along_axis(a(2, 3), xp.asarray([0])),
    "repeat": lambda xp, a: xp.repeat(a(3), xp.asarray([1, 2])),
    "repeat less": lambda xp, a: xp.repeat(a(3), -1),
    "tile": lambda xp, a: xp.tile(a(2), (-1,)),
    "asarray": lambda xp, a: xp.asarray([1, 2], copy=False),
    "finfo": lambda xp, a: xp.finfo(xp.int8),
    "iinfo": lambda xp, a: xp.iinfo(xp.float32),
    "isdtype": lambda xp, a: xp.isdtype(xp.int8, "other"),
    "meshgrid": lambda xp, a: xp.meshgrid(a(2), a(3), indexing="other"),
    "searchsorted": lambda xp, a: xp.searchsorted(a(2), a(2), side="other"),
    "unstack": lambda xp, a: xp.unstack(a(2), axis=2),
    "fft.fft": lambda xp, a: xp.fft.fft(xp.astype(a(2), xp.complex128), norm="other"),
    "bitwise_and": lambda xp, a: a(2) & a(2),
    "floor": lambda xp, a: xp.floor(xp.asarray([1j])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_standard_refuses_is_refused(name):
    import array_api_strict as strict

    def ones(*shape: int) -> oplib.Tensor:
        return oplib.full(shape, 1.0)

    with pytest.raises((TypeError, ValueError, IndexError, RuntimeError)):
        REFUSED[name](array_api, ones)
    with pytest.raises((TypeError, ValueError, IndexError, RuntimeError)):
        REFUSED[name](strict, lambda *shape: strict.ones(shape))
