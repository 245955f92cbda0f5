"""Values of built-in operators beside NumPy's and SciPy's for the same calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import oplib
from oplib.errors import AutogradError
from oplib.std import load_all
from oplib.testing import gradcheck
from tests.std.cases import Call, as_tensors, identifiers, operator

load_all()


def applied(name: str, given: Call) -> list[np.ndarray[Any, Any]]:
    call = as_tensors(given)
    result = operator(name)(*call.args, **call.kwargs)
    return [part.numpy() for part in (result if isinstance(result, tuple | list) else [result])]


def pairs(axes: int, pad: list[int]) -> list[tuple[int, int]]:
    """Return torch's flat padding as NumPy's pairs, one per axis."""
    given = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    return [(0, 0)] * (axes - len(given)) + given


def padded(x: Any, pad: list[int], mode: str = "constant", value: Any = 0) -> Any:
    cut = tuple(
        slice(-min(a, 0), x.shape[i] + min(b, 0)) for i, (a, b) in enumerate(pairs(x.ndim, pad))
    )
    grown = [(max(a, 0), max(b, 0)) for a, b in pairs(x.ndim, pad)]
    words = {"replicate": "edge", "circular": "wrap"}
    options = {"constant_values": value} if mode == "constant" else {}
    return np.pad(x[cut], grown, words.get(mode, mode), **options)


def hermitian(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: function((x + x.swapaxes(-1, -2)) / 2)


def sorted_pair(x: Any, dim: int = -1, descending: bool = False) -> Any:
    order = np.argsort(-x if descending else x, axis=dim, kind="stable")
    return np.take_along_axis(x, order, dim), order


def top(x: Any, k: int, dim: int = -1, largest: bool = True) -> Any:
    return [np.take(part, range(k), dim) for part in sorted_pair(x, dim, largest)]


def added(x: Any, dim: int, index: Any, src: Any) -> Any:
    result = x.copy()
    places = list(np.indices(index.shape))
    places[dim] = index
    np.add.at(result, tuple(places), src[tuple(slice(n) for n in index.shape)])
    return result


def put(x: Any, dim: int, index: Any, src: Any) -> Any:
    result = x.copy()
    np.put_along_axis(result, index, src[tuple(slice(n) for n in index.shape)], dim)
    return result


def transformed(name: str) -> Callable[..., Any]:
    def transform(x: Any, s: Any = None, dim: Any = None) -> Any:
        axes = range(x.ndim)[-len(s) :] if s and dim is None else dim
        return getattr(np.fft, name)(x, s, axes)

    return transform


REFERENCES: dict[str, Callable[..., Any]] = {
    **{name: getattr(np.linalg, name) for name in ("inv", "det", "slogdet", "solve", "pinv")},
    "cholesky": hermitian(np.linalg.cholesky),
    "eigh": hermitian(np.linalg.eigh),
    "svd": lambda x: np.linalg.svd(x, full_matrices=False),
    "qr": np.linalg.qr,
    "lstsq": lambda a, b: np.linalg.lstsq(a, b)[0],
    "trace": lambda x: np.trace(x, axis1=-2, axis2=-1),
    "solve_triangular": lambda a, b, upper: np.linalg.solve((np.triu if upper else np.tril)(a), b),
    **{name: getattr(np, name) for name in ("tril", "triu", "kron")},
    "einsum": lambda equation, operands: np.einsum(equation, *operands),
    "contract": lambda equation, operands: np.einsum(equation, *operands),
    "tensordot": lambda x, y, a, b: np.tensordot(x, y, (a, b)),
    "sort": sorted_pair,
    "argsort": lambda x, *rest: sorted_pair(x, *rest)[1],
    "topk": top,
    "median": lambda x, dim=None, keepdim=False: np.median(x, dim, keepdims=keepdim),
    "quantile": lambda x, q, dim=None, keepdim=False: np.quantile(x, q, dim, keepdims=keepdim),
    "searchsorted": lambda s, v, right=False: np.searchsorted(s, v, "right" if right else "left"),
    "unique": np.unique,
    "nonzero": np.argwhere,
    "isclose": np.isclose,
    "cumprod": np.cumprod,
    "cummax": lambda x, dim: [np.maximum.accumulate(x, dim)],
    "cummin": lambda x, dim: [np.minimum.accumulate(x, dim)],
    "diff": np.diff,
    **{name: getattr(np.fft, name) for name in ("fft", "ifft", "rfft", "irfft")},
    **{name: transformed(name) for name in ("fftn", "rfftn", "irfftn")},
    **{name: getattr(np.fft, name) for name in ("fftshift", "ifftshift")},
    "roll": np.roll,
    "tile": np.tile,
    "repeat_interleave": np.repeat,
    "pad": padded,
    "scatter": put,
    "scatter_add": added,
    "take": lambda x, index: x.ravel()[index],
    "masked_select": lambda x, mask: x[np.broadcast_to(mask, x.shape)],
    **{
        name: getattr(np, name)
        for name in ("logaddexp", "hypot", "fmod", "copysign", "nextafter", "sinc")
    },
    "atan2": np.arctan2,
    **{
        name: getattr(scipy.special, name)
        for name in ("erf", "erfc", "erfinv", "gammaln", "digamma", "ndtr", "i0", "i1", "logit")
    },
    "polygamma": scipy.special.polygamma,
    "xlogy": scipy.special.xlogy,
    "nan_to_num": np.nan_to_num,
    **{name: getattr(np, name) for name in ("exp2", "cbrt", "deg2rad", "rad2deg")},
}


@pytest.mark.parametrize(("name", "given"), identifiers(REFERENCES))
def test_values_are_those_of_the_reference(name, given):
    expected = REFERENCES[name](*given.args, **given.kwargs)
    parts = expected if isinstance(expected, tuple | list) else [expected]
    for got, want in zip(applied(name, given), parts, strict=False):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


def test_numbers_that_are_no_numbers_are_replaced():
    x = np.array([np.nan, np.inf, -np.inf, 1.0])
    np.testing.assert_array_equal(oplib.nan_to_num(oplib.from_numpy(x)).numpy(), np.nan_to_num(x))
    got = oplib.nan_to_num(oplib.from_numpy(x), 1.0, 2.0, 3.0)
    assert got.tolist() == [1.0, 2.0, 3.0, 1.0]


@pytest.mark.parametrize("zeros", [[1], [0, 2], [0, 1, 2, 3]])
def test_running_products_have_exact_gradients_at_zeros(zeros):
    x = np.array([2.0, 3.0, 5.0, 7.0])
    x[zeros] = 0
    leaf = oplib.tensor(x).requires_grad_()
    oplib.cumprod(leaf, 0).sum().backward()
    others = [np.delete(x[: k + 1], i).prod() for i in range(4) for k in range(i, 4)]
    sums = [sum(others[i * 4 - i * (i - 1) // 2 :][: 4 - i]) for i in range(4)]
    np.testing.assert_allclose(leaf.grad.numpy(), sums)


# ---------------------------------------------------------------------- random numbers


def test_equal_generators_give_equal_numbers():
    a, b = (oplib.randn([3], rng=np.random.default_rng(5)) for _ in range(2))
    assert a.tolist() == b.tolist() == np.random.default_rng(5).standard_normal(3).tolist()


def test_the_global_seed_fixes_numbers_drawn_without_a_generator():
    drawn = []
    for _ in range(2):
        np.random.seed(3)
        drawn.append(oplib.rand([4]).tolist())
    assert drawn[0] == drawn[1]


def test_dropout_keeps_the_mean_and_scales_its_gradient():
    x = oplib.ones(10_000, requires_grad=True)
    y = oplib.dropout(x, 0.25, rng=np.random.default_rng(0))
    assert set(y.tolist()) == {0.0, 1 / 0.75}
    assert abs(y.mean().item() - 1) < 0.05
    y.sum().backward()
    assert x.grad.tolist() == y.tolist()


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("einsum", ("ij,jk", [np.ones((2, 3))]), "names 2 operands, 1 are given"),
        ("einsum", ("ij->k", [np.ones((2, 3))]), "the output names each label once"),
        ("einsum", ("ij,jk", [np.ones((2, 3)), np.ones((2, 3))]), "`j` is 3 and 2 long"),
        ("einsum", ("ijk", [np.ones((2, 3))]), "does not name the axes"),
        ("inv", (np.ones((2, 3)),), "takes square matrices"),
        ("solve", (np.eye(2), np.ones(3)), "2 equations, 3 right-hand sides"),
        ("mse_loss", (np.ones((2, 1)), np.ones(2)), "prediction .* and target .* differ"),
        ("nll_loss", (np.ones((2, 3)), np.ones((2, 3), int)), "the classes are integers"),
        ("conv2d", (np.ones((1, 2, 3, 3)), np.ones((2, 3, 2, 2))), "do not fit weight"),
        ("conv1d", (np.ones((1, 1, 2)), np.ones((1, 1, 3))), "do not fit into"),
        ("max_pool2d", (np.ones((1, 1, 2, 2)), 3), "do not fit into"),
        ("max_pool1d", (np.ones((1, 1, 4)), 2, 2, 2), "padding is at most half"),
        ("group_norm", (np.ones((1, 3)), 2), "do not divide"),
        ("layer_norm", (np.ones((1, 3)), [2]), "does not fit"),
        ("pad", (np.ones(3), [3, 0], "reflect"), "needs a longer axis"),
        ("pad", (np.ones(3), [1]), "pairs for at most 1 axes"),
        ("quantile", (np.ones(3), 1.5), "q is between 0 and 1"),
        ("median", (np.ones(0),), "over no elements has no value"),
        ("rfft", (np.ones(3) * 1j,), "takes real input"),
        ("dropout", (np.ones(3), 1.5), "p is a probability"),
        ("tile", (np.ones(3), [-1]), "repeats are not negative"),
        ("repeat_interleave", (np.ones(3), -1), "repeats are not negative"),
        ("diff", (np.ones(3), -1), "n counts differences"),
        ("index_add", (np.ones((2, 3)), 1, np.array([0, 1]), np.ones((2, 1))), r"\[2, 2\], got"),
        ("huber_loss", (np.ones(3), np.ones(3), "mean", -1.0), "delta is positive"),
        ("cross_entropy", (np.ones((1, 2)), np.array([0]), None, -1, "sum", 2.0), "is a share"),
        ("fftn", (np.ones((2, 3)), [2], [0, 1]), "1 lengths over 2 axes"),
        ("irfftn", (np.ones((2, 3)), [2, 2, 2]), "3 lengths over 2 axes"),
        ("gelu", (np.ones(3), "fast"), "approximate is 'none' or 'tanh'"),
    ],
)
def test_mistakes_are_named(name, args, message):
    call = as_tensors(Call(args))
    with pytest.raises(oplib.ArgumentError, match=message):
        operator(name)(*call.args)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_class_that_is_none_is_refused(wrong):
    x, target = oplib.ones(2, 3), oplib.tensor([0, wrong])
    for loss in (oplib.nll_loss, oplib.cross_entropy):
        with pytest.raises(IndexError, match="out of bounds"):
            loss(x, target)


def test_a_qr_of_wide_matrices_has_no_gradient():
    q, _ = oplib.qr(oplib.from_numpy(np.ones((2, 3))).requires_grad_())
    with pytest.raises(oplib.AutogradError, match="fewer rows than columns"):
        q.sum().backward()


def test_phases_of_complex_singular_vectors_have_no_gradient():
    u, s, _ = oplib.svd(oplib.from_numpy(np.eye(2) + 1j).requires_grad_())
    s.sum().backward(retain_graph=True)
    with pytest.raises(oplib.AutogradError, match="up to a phase"):
        u.real.sum().backward()


def test_an_inverse_that_cuts_off_singular_values_has_no_gradient():
    x = oplib.tensor([[3.0, 0.0], [0.0, 1.0]], requires_grad=True)
    assert gradcheck(lambda x: oplib.pinv(x, 0.1), (x,))
    with pytest.raises(AutogradError, match="cuts off singular values"):
        oplib.pinv(x, 0.5).sum().backward()
