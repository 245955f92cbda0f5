"""NumPy functions on Tensors: the operator of the same meaning, with gradients, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import ArgumentError, Tensor, from_numpy

X = np.array([[1.5, -0.5, 2.0], [0.25, 3.0, -1.0], [2.5, 1.0, 4.0]])
V = np.array([0.5, -1.0, 2.0])

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, v: np.sum(x, 0),
    "sum keepdims": lambda x, v: np.sum(x, axis=(0, 1), keepdims=True),
    "mean": lambda x, v: np.mean(x, axis=1),
    "std": lambda x, v: np.std(x, 0),
    "std ddof": lambda x, v: np.std(x, axis=1, ddof=1, keepdims=True),
    "var": lambda x, v: np.var(x, 1, correction=1),
    "prod": lambda x, v: np.prod(x, 0),
    "max": lambda x, v: np.max(x, axis=1),
    "min": lambda x, v: np.min(x),
    "cumsum": lambda x, v: np.cumsum(x, 1),
    "cumulative_prod": lambda x, v: np.cumulative_prod(x, axis=1, include_initial=True),
    "diff": lambda x, v: np.diff(x, 2, 0),
    "median": lambda x, v: np.median(x, axis=1),
    "sort": lambda x, v: np.sort(x, 0),
    "clip": lambda x, v: np.clip(x, 0, v),
    "clip keywords": lambda x, v: np.clip(x, a_min=-0.25, a_max=2.25),
    "round": lambda x, v: np.round(x, 1),
    "where": lambda x, v: np.where(x > 1, x, v),
    "take": lambda x, v: np.take(x, np.array([2, 0]), 1),
    "take_along_axis": lambda x, v: np.take_along_axis(x, np.array([[1], [0], [2]]), axis=1),
    "concatenate": lambda x, v: np.concatenate([x, x], axis=1),
    "stack": lambda x, v: np.stack([x, x * 2], -1),
    "tile": lambda x, v: np.tile(x, (2, 1)),
    "repeat": lambda x, v: np.repeat(x, 2, 1),
    "roll": lambda x, v: np.roll(x, 1, 0),
    "flip": lambda x, v: np.flip(x, 1),
    "reshape": lambda x, v: np.reshape(x, (9,)),
    "transpose": lambda x, v: np.transpose(x, (1, 0)),
    "moveaxis": lambda x, v: np.moveaxis(x, 0, -1),
    "swapaxes": lambda x, v: np.swapaxes(x, 0, 1),
    "expand_dims": lambda x, v: np.expand_dims(x, 1),
    "squeeze": lambda x, v: np.squeeze(x[:1], 0),
    "broadcast_to": lambda x, v: np.broadcast_to(v, (2, 3)),
    "meshgrid": lambda x, v: np.meshgrid(v, v * 2, indexing="ij")[0],
    "tril": lambda x, v: np.tril(x, -1),
    "triu": lambda x, v: np.triu(x, k=1),
    "matmul": lambda x, v: np.matmul(x, v),
    "vecdot": lambda x, v: np.vecdot(x, v),
    "outer": lambda x, v: np.outer(v, v),
    "kron": lambda x, v: np.kron(x, v),
    "tensordot": lambda x, v: np.tensordot(x, v, 1),
    "einsum": lambda x, v: np.einsum("ij,j->i", x, v),
    "nan_to_num": lambda x, v: np.nan_to_num(x),
    "angle": lambda x, v: np.angle(x),
    "linalg.inv": lambda x, v: np.linalg.inv(x),
    "linalg.det": lambda x, v: np.linalg.det(x),
    "linalg.slogdet": lambda x, v: np.linalg.slogdet(x)[1],
    "linalg.solve": lambda x, v: np.linalg.solve(x, v),
    "linalg.pinv": lambda x, v: np.linalg.pinv(x),
    "linalg.svd": lambda x, v: np.linalg.svd(x, False)[1],
    "linalg.qr": lambda x, v: np.linalg.qr(x)[1],
    "linalg.cholesky": lambda x, v: np.linalg.cholesky(x @ x.T),
    "linalg.matrix_power": lambda x, v: np.linalg.matrix_power(x, 3),
    "linalg.matrix_norm": lambda x, v: np.linalg.matrix_norm(x, ord="nuc"),
    "linalg.vector_norm": lambda x, v: np.linalg.vector_norm(x, axis=1, ord=3),
    "linalg.trace": lambda x, v: np.linalg.trace(x, offset=1),
    "linalg.cross": lambda x, v: np.linalg.cross(x, v),
    "fft.rfft": lambda x, v: np.fft.rfft(x, 4, 0),
    "fft.fftshift": lambda x, v: np.fft.fftshift(x, axes=1),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_numpy_function_is_the_operator_and_records(name):
    call = CALLS[name]
    expected = np.asarray(call(X, V))
    leaves = [from_numpy(a.copy()).requires_grad_() for a in (X, V)]
    result = call(*leaves)
    assert isinstance(result, Tensor)
    assert result.requires_grad
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result.detach().numpy(), expected, rtol=1e-12, atol=1e-12)
    result.abs().sum().backward()
    assert any(leaf.grad is not None for leaf in leaves)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("argsort", lambda x: np.argsort(x, axis=0)),
        ("argmax", lambda x: np.argmax(x, 1)),
        ("nonzero", lambda x: np.nonzero(x > 1)[0]),
        ("count_nonzero", lambda x: np.count_nonzero(x, 0)),
        ("searchsorted", lambda x: np.searchsorted(V, x[0], side="right")),
        ("isin", lambda x: np.isin(x, V)),
        ("matrix_rank", lambda x: np.linalg.matrix_rank(x)),
        ("unique", lambda x: np.unique(x)),
    ],
)
def test_a_numpy_function_of_positions_gives_a_tensor(name, call):
    result = call(from_numpy(X))
    assert isinstance(result, Tensor)
    np.testing.assert_array_equal(result.numpy(), call(X))


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("numpy.ptp", lambda x: np.ptp(x)),
        ("numpy.cov", lambda x: np.cov(x)),
        ("numpy.linalg.norm", lambda x: np.linalg.norm(x)),
        ("numpy.trace", lambda x: np.trace(x)),
        ("numpy.std", lambda x: np.std(x, mean=1.0)),
    ],
)
def test_what_has_no_operator_is_refused_where_a_gradient_would_be_lost(what, call):
    x = from_numpy(X.copy()).requires_grad_()
    with pytest.raises(ArgumentError, match=f"{what} has no operator for Tensors"):
        call(x)
    np.testing.assert_allclose(call(x.detach()), call(X))


def test_an_argument_the_operator_does_not_know_is_refused():
    with pytest.raises(ArgumentError, match="no argument 'order'"):
        np.reshape(from_numpy(X), 9, order="F")


def test_an_absolute_tolerance_is_not_taken_for_a_relative_one():
    x = from_numpy(np.diag([8.0, 1.0]))
    with pytest.raises(ArgumentError, match="no argument 'tol'"):
        np.linalg.matrix_rank(x, 2.0)  # NumPy's second argument is absolute
    assert np.linalg.matrix_rank(x, rtol=0.1).item() == 2


def test_functions_of_a_program_are_seen_by_transforms():
    def program(x: Any) -> Any:
        return np.sum(np.sort(np.exp(x), axis=0), axis=1)

    x = oplib.tensor(X)
    captured = oplib.capture(program, x)
    np.testing.assert_allclose(captured(x).numpy(), program(X))
    assert oplib.grad(program(x.requires_grad_()).sum(), [x])[0].shape == (3, 3)
