"""Valid calls of every built-in operator, and what tests do with one: layouts, fakes, gradients.

Arrays stand for tensors. Float arrays are smooth points of the operator, so that every case can be
checked for its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import oplib
from oplib.tensor.methods import IN_PLACE, STORED

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    """Return numbers of both signs, none of them near zero, an integer, or another."""
    count = int(np.prod(shape))
    grid = (np.arange(count) + 0.3) / max(count, 1) * 3.4 - 1.7
    return RNG.permutation(grid + RNG.uniform(0.0, 0.09, count)).reshape(shape)


def positive(*shape: int) -> np.ndarray[Any, Any]:
    """Return numbers between 0.2 and 0.8."""
    return RNG.uniform(0.2, 0.8, shape)


@dataclass(frozen=True)
class Call:
    """Arguments of one valid call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def mapped(self, function: Callable[[Any], Any]) -> Call:
        """Return the call with `function` applied to every array."""

        def visit(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(visit(part) for part in value)
            return function(value) if isinstance(value, np.ndarray) else value

        return Call(visit(self.args), {key: visit(value) for key, value in self.kwargs.items()})


def call(*args: Any, **kwargs: Any) -> Call:
    return Call(args, kwargs)


def at(*positions: Any) -> np.ndarray[Any, Any]:
    return np.array(positions)


A = normal(3, 4)
B = normal(3, 4)
CUBE = normal(2, 3, 4)
MASK = A > 0
SQUARE = normal(3, 3) + np.diag([2.0, 3.5, 5.0])
SQUARES = np.stack([SQUARE, SQUARE.T + np.diag([1.0, 2.0, 4.0])])

UNARY = (
    *(
        "exp2",
        "deg2rad",
        "rad2deg",
        "cbrt",
        "neg",
        "abs",
        "square",
        "reciprocal",
        "exp",
        "expm1",
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
    ),
    *("tanh", "asinh", "atan", "sigmoid", "relu", "sign", "floor", "ceil", "trunc"),
)
UNARY_POSITIVE = (*("sqrt", "rsqrt", "log", "log2", "log10", "log1p", "asin", "acos", "atanh"),)
BINARY = ("add", "sub", "mul", "maximum", "minimum", "remainder", "floor_divide")
PREDICATES = (*("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"),)

CASES: dict[str, list[Call]] = {
    **{name: [call(normal(2, 3))] for name in UNARY},
    **{name: [call(positive(2, 3))] for name in UNARY_POSITIVE},
    "acosh": [call(positive(2, 3) + 1)],
    "round": [call(A), call(A, 1)],
    **{name: [call(A, B), call(A, normal(4)), call(normal(3, 1), normal(4))] for name in BINARY},
    "div": [call(A, positive(3, 4)), call(A, 2.0), call(1.0, positive(2, 1))],
    "pow": [call(positive(2, 3), normal(3)), call(A, 3), call(A, 2.0), call(2.0, A)],
    **{name: [call(A)] for name in ("isnan", "isfinite", "isinf", "signbit", "logical_not")},
    **{name: [call(A, B), call(A, normal(4))] for name in PREDICATES},
    **{
        f"bitwise_{name}": [call(at(1, 2, 3), at(3, 1, 1))]
        for name in ("and", "or", "xor", "left_shift", "right_shift")
    },
    "bitwise_not": [call(at(1, 2, 3))],
    "where": [call(MASK, A, B), call(MASK, A, 0.0), call(MASK[0], normal(3, 1), normal(4))],
    "clamp": [call(A, -0.5, 0.5), call(A, min=0.0), call(A, max=0.5)],
    "masked_fill": [call(A, MASK, 2.0), call(A, MASK[0], normal())],
    # reductions
    **{
        name: [call(A), call(A, 0), call(CUBE, [0, 2]), call(CUBE, 1, True), call(A, None, True)]
        for name in ("sum", "mean", "prod", "max", "min", "any", "all", "logsumexp")
    },
    **{name: [call(A), call(A, 0), call(CUBE, 1, True)] for name in ("argmax", "argmin")},
    **{
        name: [call(A), call(A, 0, 0), call(CUBE, [0, 2], 1), call(CUBE, 1, 0, True)]
        for name in ("var", "std")
    },
    "norm": [
        *(call(A), call(A, 2.0, 1), call(A, 1.0, 0), call(A, 3.0, [0, 1], True), call(A, 0.0)),
        *(call(A, float("inf"), 1), call(A, float("-inf"))),
    ],
    "cumsum": [call(CUBE, 1), call(A, -1)],
    "softmax": [call(A), call(CUBE, 1)],
    "log_softmax": [call(A), call(CUBE, 1)],
    # matrices
    "matmul": [
        *(call(A, normal(4, 2)), call(normal(3), A), call(A, normal(4)), call(A[0], B[0])),
        *(call(CUBE, normal(4, 2)), call(CUBE, normal(2, 4, 2)), call(A, normal(2, 4, 2))),
        *(call(normal(3), CUBE), call(CUBE, normal(4))),
    ],
    "dot": [call(A[0], B[0])],
    "matmul_": [call(A, normal(4, 4)), call(CUBE, normal(2, 4, 4))],
    "vecdot": [call(A, B), call(CUBE, normal(3, 1), -2)],
    "cross": [call(normal(2, 3), normal(3)), call(A, B, 0)],
    "matrix_norm": [
        *(call(CUBE, ord) for ord in ("fro", "nuc", "1", "-1", "2", "-2", "inf", "-inf")),
        call(A, "1", True),
    ],
    "matrix_power": [call(SQUARE, n) for n in (1, 2, 5, -3)],
    "matrix_rank": [call(A), call(CUBE, 0.1)],
    "isin": [call(A, at(0.1, 2.0)), call(at([2, 1], [0, 3]), at(1, 2), invert=True)],
    "unique_all": [call(A), call(CUBE)],
    "outer": [call(A[0], B[:, 0])],
    "contract": [call("ij,jk->ki", [A, normal(4, 2)]), call("ij,i,k->j", [A, A[:, 0], B[0]])],
    "einsum": [
        *(call("ij,jk", [A, normal(4, 2)]), call("ii->i", [SQUARE]), call("iij->j", [SQUARES.T])),
        *(call("...ij,...j->...i", [CUBE, B[0]]), call("bij,bjk->b", [CUBE, CUBE.swapaxes(1, 2)])),
        *(call("i,j,k->kij", [A[0], A[1], A[2]]), call("...->...", [A]), call("ij->", [A])),
        call("...i,...i", [CUBE, normal(1, 3, 4)]),
        *(call("ij,jk->ki", [A[:, :1], normal(4, 2)]), call("ij,jk->i", [A, normal(1, 2)])),
    ],
    "tensordot": [call(CUBE, CUBE, [0, 2], [0, 2]), call(A, B, [], []), call(A, B, [-1], [1])],
    "kron": [call(A, normal(2)), call(SQUARE, A)],
    "sort": [call(A), call(CUBE, 1, True)],
    "argsort": [call(A), call(CUBE, 0, True), call(at(2, 1, 2, 1))],
    "topk": [call(A, 2), call(CUBE, 1, 1, False)],
    "median": [call(A), call(CUBE, 1), call(A, 1, True)],
    "quantile": [call(A, 0.3), call(CUBE, 0.9, 2), call(A, 1.0, 0, True)],
    "searchsorted": [call(at(1.0, 2.0, 4.0), A), call(at(1, 2, 2, 4), at(2, 5), right=True)],
    "unique": [call(at(3, 1, 3, 2))],
    "nonzero": [call(MASK)],
    "count_nonzero": [call(at(0, 2, 0)), call(MASK, 1, True)],
    "isclose": [call(A, A + 1e-9), call(A, B)],
    **{name: [call(CUBE, 1), call(A, -1), call(A[:1], 0)] for name in ("cumprod", "cummax")},
    **{name: [call(CUBE, 1), call(A, -1)] for name in ("cummin", "cumargmax", "cumargmin")},
    "diff": [call(A), call(CUBE, 2, 1)],
    "fft_c2c": [call(CUBE, 1), call(A, -1, "ortho")],
    "ifft_c2c": [call(CUBE, 1), call(A, 0, "forward")],
    "rfft_r2c": [call(CUBE, 1), call(A, -1, "ortho")],
    "irfft_c2r": [call(A, 6, -1), call(A, 7, -1), call(A, 5, 0, "forward")],
    "fft": [call(A), call(CUBE, 5, 1), call(A, 2, 0, "ortho")],
    "ifft": [call(A), call(CUBE, 2, 1)],
    "rfft": [call(A), call(CUBE, 5, 1, "forward"), call(A, 2)],
    "irfft": [call(A), call(CUBE, 5, 1), call(A, 4, 0, "ortho")],
    **{name: [call(CUBE), call(CUBE, [3, 5]), call(A, dim=[0])] for name in ("fftn", "ifftn")},
    **{name: [call(CUBE), call(A, [3, 5])] for name in ("rfftn", "irfftn")},
    **{name: [call(CUBE), call(A, [1])] for name in ("fftshift", "ifftshift")},
    "roll": [call(A, 2), call(CUBE, [1, -1], [0, 2]), call(A, 0, 1)],
    "scatter": [call(A, 1, at([0, 3], [2, 1], [1, 0]), B), call(A, 0, at([2, 0, 1, 1]), B)],
    "scatter_add": [call(A, 1, at([0, 0], [2, 2], [1, 0]), B), call(A, 0, at([2, 0]), B)],
    "index_add": [call(A, 1, at(0, 0), normal(3, 2)), call(CUBE, 0, at(1), normal(1, 3, 4))],
    "index_copy": [call(A, 1, at(0, 2), normal(3, 2)), call(A, 0, at(1, 0), normal(2, 4))],
    "take": [call(A, at([0, 11], [5, -1]))],
    "masked_select": [call(A, MASK), call(A, MASK[0])],
    "one_hot": [call(at([0, 2], [1, 1]), 3)],
    "tile": [call(A, [2, 1]), call(A[0], [3]), call(A, [2, 1, 2]), call(A, [1, 1])],
    "repeat_interleave": [call(A, 2), call(CUBE, 3, 1), call(A, 1, 0)],
    "pad": [
        *(call(A, [1, 2]), call(A, [0, 1, 2, 0], "constant", 1.5), call(A, [-1, 2])),
        *(call(A, [2, 3, 1, 1], "reflect"), call(A, [2, 0], "replicate"), call(A, [0, 0])),
        call(CUBE, [1, 3], "circular"),
    ],
    **{name: [call(A, B), call(A, normal(4))] for name in ("atan2", "hypot", "logaddexp")},
    **{name: [call(A, B)] for name in ("fmod", "copysign", "nextafter")},
    **{name: [call(A)] for name in ("erf", "erfc", "ndtr", "i0", "i1", "sinc", "nan_to_num")},
    **{name: [call(positive(3, 4))] for name in ("erfinv", "gammaln", "digamma", "logit")},
    "polygamma": [call(1, positive(3, 4)), call(2, positive(2))],
    "xlogy": [call(A, positive(3, 4))],
    **{
        name: [call(A)] for name in ("elu", "gelu", "leaky_relu", "log_sigmoid", "silu", "softplus")
    },
    "lerp": [call(A, B, 0.3), call(A, B, positive(4))],
    **{name: [call(A, B), call(A, B, "none")] for name in ("mse_loss", "l1_loss", "huber_loss")},
    **{
        name: [call(positive(3, 4), positive(3, 4)), call(positive(2), positive(2), "sum")]
        for name in ("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")
    },
    "nll_loss": [
        *(call(A, at(0, 3, 1)), call(A, at(0, -100, 1), positive(4)), call(A[0], np.array(2))),
        call(CUBE, at([0, 2, 1, 1], [1, 1, 0, 2]), reduction="none"),
    ],
    "cross_entropy": [
        *(call(A, at(0, 3, 1)), call(A, at(0, -100, 1), positive(4), label_smoothing=0.1)),
        *(call(A, positive(3, 4)), call(CUBE, at([0, 2, 1, 1], [1, 1, 0, 2]), reduction="sum")),
        call(A, positive(3, 4), positive(4), label_smoothing=0.2),
    ],
    "linear": [call(A, normal(2, 4)), call(CUBE, normal(5, 4), normal(5))],
    "embedding": [call(A, at([0, 2], [2, 2]))],
    "cosine_similarity": [call(A, B), call(CUBE, CUBE[::-1].copy(), 1)],
    "attention": [
        *(call(CUBE, normal(2, 5, 4), normal(2, 5, 3)), call(CUBE, CUBE, CUBE, causal=True)),
        call(A, B, B, normal(3, 3) > -1, scale=0.7),
    ],
    "layer_norm": [call(A, [4]), call(CUBE, [3, 4], normal(3, 4), normal(3, 4))],
    "rms_norm": [call(A), call(CUBE, normal(4))],
    "group_norm": [call(normal(2, 4, 3), 2), call(normal(2, 6), 2, normal(6), normal(6))],
    "batch_norm": [call(CUBE, normal(3), positive(3)), call(A, A[0], A[0] ** 2, A[1], A[2])],
    "conv1d": [
        call(normal(2, 3, 5), normal(4, 3, 2)),
        call(normal(1, 4, 6), normal(2, 2, 2), normal(2), 2, 1, 2, 2),
    ],
    "conv2d": [
        call(normal(1, 2, 4, 3), normal(2, 2, 2, 2)),
        call(normal(2, 2, 4, 4), normal(2, 1, 2, 1), normal(2), [2, 1], [1, 0], [1, 2], 2),
    ],
    "conv3d": [call(normal(1, 1, 2, 3, 2), normal(2, 1, 1, 2, 2))],
    "max_pool1d": [call(normal(1, 2, 5), 2), call(normal(2, 5), 3, 1, 1)],
    "avg_pool1d": [call(normal(1, 2, 5), 2), call(normal(2, 5), 3, 1, 1)],
    "max_pool2d": [call(normal(1, 2, 4, 4), 2), call(normal(1, 1, 3, 4), [2, 3], 1, [1, 0])],
    "avg_pool2d": [call(normal(1, 2, 4, 4), 2), call(normal(1, 1, 3, 4), [2, 3], 1, [1, 0])],
    **{name: [call([2, 3]), call([4], dtype="float32")] for name in ("rand", "randn")},
    "randint": [call(0, 5, [2, 3])],
    "randperm": [call(5)],
    "bernoulli": [call(positive(3, 4))],
    "dropout": [call(A, 0.0), call(A, 0.5, False)],
    "tril": [call(A), call(CUBE, -1), call(A, 1)],
    "triu": [call(A), call(CUBE, -1), call(A, 1)],
    **{name: [call(SQUARE), call(SQUARES)] for name in ("inv", "det", "slogdet", "trace")},
    "solve": [
        *(call(SQUARE, normal(3)), call(SQUARE, normal(3, 2)), call(SQUARES, normal(3, 1))),
        *(call(SQUARES, normal(3)), call(SQUARE, normal(2, 3, 2))),
    ],
    "solve_triangular": [
        call(SQUARE, normal(3, 2), upper=True),
        call(SQUARES, normal(3), upper=False),
    ],
    "pinv": [call(A), call(CUBE), call(A.T.copy())],
    "lstsq": [call(A.T.copy(), normal(4, 2))],
    "cholesky": [call(SQUARE), call(SQUARES)],
    "qr": [call(SQUARE), call(CUBE.swapaxes(1, 2).copy()), call(SQUARE, "complete")],
    "eigh": [call(SQUARE), call(SQUARES)],
    "svd": [call(SQUARE), call(A), call(A.T.copy())],
    # views
    "transpose": [call(CUBE), call(CUBE, [1, 2, 0]), call(CUBE, [-1, 0, 1])],
    "swapaxes": [call(CUBE, 0, -1)],
    "movedim": [call(CUBE, 0, -1), call(CUBE, [0, 1], [2, 0])],
    "reshape": [call(CUBE, [6, 4]), call(CUBE, [-1]), call(CUBE, [2, 2, 6])],
    "contiguous": [call(CUBE)],
    "view": [call(A, "float64")],
    "flatten": [call(CUBE), call(CUBE, 1), call(normal())],
    "unflatten": [call(CUBE, 2, [2, -1])],
    "squeeze": [call(normal(1, 3, 1)), call(normal(1, 3, 1), 0), call(normal(2, 3), 0)],
    "unsqueeze": [call(A, 0), call(A, [0, -1])],
    "expand": [call(normal(3, 1), [2, 3, 4]), call(A, [-1, 4])],
    "select": [call(CUBE, 1, -1)],
    "slice": [call(CUBE, 1, 0, 2), call(CUBE, -1, None, None, -2), call(A, 0, 5, 9)],
    "narrow": [call(CUBE, 2, 1, 2)],
    "flip": [call(CUBE), call(CUBE, [0, 2])],
    "diagonal": [call(A), call(CUBE, -1, 2, 0), call(A, 9)],
    "unfold": [call(A, 1, 2, 1), call(CUBE, 0, 1, 2)],
    "as_strided": [call(A, [2, 2], [4, 1], 1), call(A, [3, 2], [1, 1])],
    "split": [call(A, 2, 1), call(CUBE, [1, 3], 2)],
    "chunk": [call(A, 3, 1)],
    "unbind": [call(CUBE, 1)],
    "basic_index": [
        *(call(CUBE, (0,)), call(CUBE, (slice(None, None, -1), None, ..., 1))),
        *(call(CUBE, (1, 2, 3)), call(CUBE, ())),
    ],
    # joining
    "concat": [call([A, B], 1), call([CUBE, CUBE], -1), call([A], 0)],
    "stack": [call([A, B]), call([A, B], -1)],
    # indexing
    "index": [
        *(call(CUBE, [at(0, 1, 1)]), call(CUBE, [None, at([0, 2], [1, 1])])),
        *(call(CUBE, [at(0, 1), None, at(1, 3)]), call(CUBE, [None, at(0, 1), at(1, 3)])),
    ],
    "index_put": [
        *(call(A, [at(0, 2)], normal(2, 4)), call(A, [at(0, 0)], normal(2, 4))),
        *(call(A, [None, at(1, 1, 0)], normal(3)), call(A, [at(0, 2)], 1.5)),
    ],
    "index_sum": [call(normal(3, 4), [at(0, 2, 0)], [3, 4]), call(normal(3), [at(1, 1, 0)], [2])],
    "index_winners": [call([at(0, 1, 0)], [3]), call([None, at(0, 1, 0)], [2, 3])],
    "index_select": [call(CUBE, at(0, 2, 0), 1)],
    "gather": [call(A, 1, at([0, 0], [3, 1]))],
    "take_along_dim": [call(A, at([0], [3], [1]), 1), call(A, at([0, 1, 2, 0]), 0)],
    # complex numbers
    "complex": [call(A, B), call(normal(3, 1), normal(4)), call(A, 1.0)],
    "polar": [call(positive(3, 4), A)],
    "angle": [call(A)],
    "imag": [call(A)],
    # creation
    **{name: [call([2, 3]), call([], dtype="float32")] for name in ("zeros", "ones", "empty")},
    "arange": [
        call(0, 5),
        call(1.0, 2.0, 0.25),
        call(5, 0, -2),
        call(3, 1),
        call(0, 3, dtype="float32"),
    ],
    "linspace": [call(0, 1, 5), call(0.0, 1j, 3), call(1, 2, 0)],
    "eye": [call(3), call(2, 3, dtype="int32")],
    "empty_like": [call(CUBE), call(A, dtype="float32")],
    "full_like": [call(CUBE, 2), call(A, 1, dtype="int16")],
    **{
        f"new_{name}": [call(A, [2, 2]), call(A, [3], dtype="int32")]
        for name in ("empty", "zeros", "ones")
    },
    # writing
    "fill_": [call(A, 2.0)],
    "zero_": [call(A)],
    "masked_fill_": [call(A, MASK, 2.0), call(A, MASK, normal())],
    "set_value": [call(A, B)],
    "index_put_": [
        call(A, [at(0, 2, 0)], normal(3, 4)),
        call(A, [None, at(1, 1, 0)], normal(3, 1)),
        call(A, [at(2, 0)], B[:2]),
    ],
}


def _keeps_shape(given: Call) -> bool:
    """Return whether a call's other operands broadcast to the first one's shape."""
    x, *others = given.args
    shapes = [np.shape(other) for other in others if other is not None]
    return isinstance(x, np.ndarray) and np.broadcast_shapes(x.shape, *shapes) == x.shape


CASES |= {
    f"{name}_": [given for given in CASES.get(name, [call(A)]) if _keeps_shape(given)]
    for name in (*IN_PLACE, *STORED)
}

UNINITIALISED = (
    *("empty", "empty_like", "new_empty", "rand", "randn", "randint", "randperm", "bernoulli"),
)
"""Operators whose values cannot be known."""

DYNAMIC = ("unique", "unique_all", "nonzero", "masked_select")
"""Operators whose results have sizes that depend on data."""

WRITING = (
    *(f"{name}_" for name in (*IN_PLACE, *STORED)),
    *("fill_", "zero_", "masked_fill_", "index_put_", "matmul_"),
)


def identifiers(names: Any) -> list[Any]:
    """Return (name, call) pairs as parameters with readable names."""
    return [
        pytest.param(name, given, id=f"{name}-{i}")
        for name in names
        for i, given in enumerate(CASES[name])
    ]


def operator(name: str) -> Any:
    """Return the built-in operator `name`."""
    return oplib.get_op(f"std::{name}")


def as_tensors(given: Call, requires_grad: bool = False) -> Call:
    """Return a call on fresh tensors in the place of arrays; float ones may require grad."""

    def tensor(array: np.ndarray[Any, Any]) -> oplib.Tensor:
        made = oplib.from_numpy(array.copy(order="K"))
        return made.requires_grad_(requires_grad and array.dtype.kind in "fc")

    return given.mapped(tensor)


# ---------------------------------------------------------------------- layouts


def reversed_axes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an equal array whose axes run backwards in memory."""
    every = (*(slice(None, None, -1),) * array.ndim, ...)
    return array[every].copy()[every]


def strided(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an equal array with gaps in memory, its axes rotated."""
    order = (*range(1, array.ndim), 0) if array.ndim else ()
    wide = np.repeat(array.transpose(order), 2, -1) if array.ndim else array.copy()
    view = wide[..., ::2] if array.ndim else wide
    return view.transpose(np.argsort(order)) if array.ndim else view


LAYOUTS: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "C": lambda array: array.copy(),
    "F": lambda array: np.asarray(array, order="F").copy(order="F"),
    "reversed": reversed_axes,
    "strided": strided,
}
