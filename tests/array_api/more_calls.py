"""More calls: products, creation, dtypes, linear algebra, Fourier transforms; the whole list."""

from __future__ import annotations

import math

import numpy as np

from tests.array_api.calls import CALLS, DTYPES, OPERATORS, calls

# -- products


@calls("matmul", "linalg.matmul")
def _(a):
    for left, right in (((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((4, 2, 3), (3, 5))):
        yield (a(*left), a(*right)), {}
    yield (a(2, 0), a(0, 3)), {}


@calls("matrix_transpose", "linalg.matrix_transpose")
def _(a):
    yield (a(2, 3),), {}
    yield (a(4, 0, 3),), {}


@calls("tensordot", "linalg.tensordot")
def _(a):
    yield (a(2, 3, 4), a(3, 4, 2)), {}
    yield (a(2, 3), a(3, 4)), {"axes": 1}
    yield (a(2), a(3)), {"axes": 0}
    yield (a(2, 3, 4), a(4, 2)), {"axes": ((0, 2), (1, 0))}
    yield (a(2, 0), a(0, 3)), {"axes": 1}


@calls("vecdot", "linalg.vecdot")
def _(a):
    yield (a(3), a(3)), {}
    yield (a(2, 3), a(3)), {}
    yield (a(4, 2, 3), a(2, 1)), {"axis": -2}
    yield (a(2, 0), a(2, 0)), {}


# -- creation


@calls("arange")
def _(a):
    for args in ((5,), (1, 6), (1, 7, 2), (5, 0, -2), (3, 1)):
        yield args, {"dtype": a.dtype}
    yield (5,), {}
    yield (0.5, 2), {}


@calls("linspace")
def _(a):
    for endpoint in (True, False):
        yield (0, 2, 5), {"dtype": a.dtype, "endpoint": endpoint}
        yield (1.0, -1.0), {"num": 4, "endpoint": endpoint}
        yield (0, 1, 0), {"endpoint": endpoint}
    yield (2, 3, 1), {}


@calls("eye")
def _(a):
    yield (3,), {"dtype": a.dtype}
    yield (2, 4), {"k": 1}
    yield (4, 2), {"k": -2, "dtype": a.dtype}
    yield (0,), {}


@calls("zeros", "ones", "empty")
def _(a):
    for shape in ((2, 3), 3, (), (0, 2)):
        yield (shape,), {"dtype": a.dtype}
    yield ((2,),), {}


@calls("full")
def _(a):
    for value in (True, 2, 2.5, 1j):
        yield ((2, 3), value), {}
    yield ((0,), 1), {"dtype": a.dtype}
    yield (3, 1), {"dtype": a.dtype}


@calls("zeros_like", "ones_like", "empty_like")
def _(a):
    yield (a(2, 3),), {}
    yield (a(0),), {"dtype": np.dtype("float32")}


@calls("full_like")
def _(a):
    yield (a(2, 3), 1), {}
    yield (a(2), 1), {"dtype": np.dtype("float32")}


@calls("asarray")
def _(a):
    for copy in (None, True):
        yield (a(2, 3),), {"copy": copy}
    yield (a(2, 3),), {"copy": False}
    yield (a(2, 3),), {"dtype": np.dtype("complex128")}
    for data in ([[1, 2], [3, 4]], [1.5, 2], True, 3, [], [1j, 2]):
        yield (data,), {}
    yield ([1, 0],), {"dtype": a.dtype}


@calls("from_dlpack")
def _(a):
    yield (a(2, 3),), {}


@calls("astype")
def _(a):
    for dtype in DTYPES:
        yield (abs(a(2, 3)).real, np.dtype(dtype)), {}
        yield (a(2, 3), np.dtype(dtype)), {}
    yield (a(2, 3), a.dtype), {"copy": False}


# -- dtypes and inspection


@calls("can_cast")
def _(a):
    for dtype in DTYPES:
        yield (a.dtype, np.dtype(dtype)), {}
        yield (a(2), np.dtype(dtype)), {}


@calls("result_type")
def _(a):
    for dtype in DTYPES:
        yield (a.dtype, np.dtype(dtype)), {}
        yield (a(2), np.dtype(dtype)), {}
    yield (a(2), 1), {}
    yield (a.dtype, 1.0), {}
    yield (True, a(2)), {}


@calls("isdtype")
def _(a):
    for kind in (
        *("bool", "signed integer", "unsigned integer", "integral", "real floating"),
        *("complex floating", "numeric", ("bool", "integral"), np.dtype("float32")),
    ):
        yield (a.dtype, kind), {}


@calls("finfo", "iinfo")
def _(a):
    yield (a.dtype,), {}
    yield (a(2),), {}


@calls("__array_namespace_info__")
def _(a):
    yield (), {}


# -- linalg


@calls("linalg.cholesky")
def _(a):
    for upper in (False, True):
        yield (a.well(3),), {"upper": upper}
        yield (a.well(2, 2),), {"upper": upper}
    yield (a(0, 0),), {}


@calls("linalg.cross")
def _(a):
    yield (a(3), a(3)), {}
    yield (a(2, 3), a(3)), {}
    yield (a(3, 2), a(3, 1)), {"axis": -2}
    yield (a(0, 3), a(0, 3)), {}


@calls("linalg.det", "linalg.inv", "linalg.slogdet", "linalg.eigh", "linalg.eigvalsh")
def _(a):
    yield (a.well(3),), {}
    yield (a.well(2, 4),), {}
    yield (a(2, 0, 0),), {}


@calls("linalg.diagonal", "linalg.trace")
def _(a, name):
    for offset in (-1, 0, 2):
        yield (a(3, 4),), {"offset": offset}
        yield (a(2, 3, 4),), {"offset": offset}
    if name == "linalg.trace":
        yield (a(2, 2),), {"dtype": a.dtype}
    yield (a(2, 0, 3),), {}


@calls("linalg.matrix_norm")
def _(a):
    for ord in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        yield (a(2, 3, 4),), {"ord": ord}
        yield (a(3, 2),), {"ord": ord, "keepdims": True}
    yield (a(2, 0),), {}


@calls("linalg.vector_norm")
def _(a):
    for ord in (2, 1, 0, math.inf, -math.inf, 3, 0.5):
        yield (a(2, 3),), {"ord": ord}
        yield (a(2, 3, 4),), {"ord": ord, "axis": (0, 2), "keepdims": True}
        yield (a(2, 3),), {"ord": ord, "axis": 1}
    yield (a(0),), {}
    yield (a(2, 0),), {"axis": 1}


@calls("linalg.matrix_power")
def _(a):
    for n in (0, 1, 2, 5, -1, -3):
        yield (a.well(2), n), {}
        yield (a.well(3, 2), n), {}
    yield (a(0, 0), 2), {}


@calls("linalg.matrix_rank")
def _(a):
    yield (a(3, 4),), {}
    yield (np.ones((2, 3, 3)).astype(a.dtype),), {}
    yield (a(2, 3, 4),), {"rtol": 0.5}
    yield (a(2, 0, 3),), {}


@calls("linalg.outer")
def _(a):
    yield (a(3), a(2)), {}
    yield (a(0), a(2)), {}


@calls("linalg.pinv")
def _(a):
    yield (a(2, 3, 2),), {}
    yield (np.ones((3, 3)).astype(a.dtype),), {}
    yield (a.well(3),), {"rtol": 0.01}
    yield (a(3, 0),), {}


@calls("linalg.qr")
def _(a):
    for mode in ("reduced", "complete"):
        for shape in ((3, 3), (4, 2), (2, 4), (2, 3, 2), (3, 0)):
            yield (a(*shape),), {"mode": mode}


@calls("linalg.solve")
def _(a):
    yield (a.well(3), a(3)), {}
    yield (a.well(3), a(3, 2)), {}
    yield (a.well(3, 2), a(3, 1)), {}
    yield (a.well(2), a(2, 2, 3)), {}
    yield (a(0, 0), a(0, 2)), {}


@calls("linalg.svd", "linalg.svdvals")
def _(a, name):
    for shape in ((3, 3), (4, 2), (2, 4), (2, 3, 2), (3, 0)):
        yield (a(*shape),), {}
        if name == "linalg.svd":
            yield (a(*shape),), {"full_matrices": False}


# -- fft


@calls(*(f"fft.{name}" for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")))
def _(a):
    for norm in ("backward", "ortho", "forward"):
        yield (a(5),), {"norm": norm}
        yield (a(2, 6),), {"axis": 0, "norm": norm, "n": 3}
    yield (a(2, 4),), {"n": 6}


@calls(*(f"fft.{name}" for name in ("fftn", "ifftn", "rfftn", "irfftn")))
def _(a):
    for norm in ("backward", "ortho", "forward"):
        yield (a(2, 3, 4),), {"norm": norm}
        yield (a(2, 3, 4),), {"axes": (0, 1), "norm": norm}
    yield (a(4, 4),), {"s": (3, 6), "axes": (0, 1)}


@calls("fft.fftfreq", "fft.rfftfreq")
def _(a):
    yield (5,), {}
    yield (6,), {"d": 0.5}
    yield (4,), {"dtype": a.dtype}


@calls("fft.fftshift", "fft.ifftshift")
def _(a):
    yield (a(5),), {}
    yield (a(3, 4),), {"axes": 1}
    yield (a(3, 4),), {"axes": (0, 1)}


CONSTANTS = ("e", "inf", "nan", "newaxis", "pi")
STANDARD = (*CALLS, *CONSTANTS, *DTYPES, *(f"array.{name}" for name in OPERATORS))
"""Everything the standard lists: functions, constants, dtypes, and what an array has."""

DEVIATIONS: dict[str, str] = {
    "array.T": "reverses any number of axes, as NumPy's does, where the standard wants an error "
    "for other than two",
    "can_cast": "`True` also from one kind of dtype to another (bool to int8, int32 to float64): "
    "oplib promotes kinds as NumPy does, where the standard leaves them undefined",
}
"""Name -> what differs from array-api-strict within what the standard defines, and why."""
