from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib.errors import AutogradError
from tests.gallery.harness import Case, Fails, gallery, normal, tensor, wide

example = gallery("linear_solvers")
cholesky, solve, lstsq = example.cholesky, example.solve, example.lstsq


def positive(x):
    return x @ x.swapaxes(-1, -2).conj() + 3 * oplib.eye(x.shape[-1], dtype=x.dtype)


def of_hermitian(a):
    return cholesky((a + a.swapaxes(-1, -2).conj()) / 2)


SPD, LOWER = positive(normal(3, 3)), normal(3, 3).tril() + 3 * oplib.eye(3)
COMPLEX = wide(3, 3).tril() + oplib.eye(3, dtype="complex128") * 3
B, TALL = normal(3, 2), normal(4, 2)

CASES = [
    Case(
        cholesky,
        "cholesky(Tensor a) -> Tensor",
        [(SPD,), (positive(normal(2, 3, 3)),), (positive(wide(2, 2)),)],
        opcheck={"samples": [((SPD,), {}), ((positive(normal(2, 3, 3)),), {})]},
        gradients=[(cholesky, (SPD,)), (of_hermitian, (positive(wide(2, 2)),))],
        fails=[
            Fails((normal(3, 2),), ValueError, "square matrices"),
            Fails((-SPD,), np.linalg.LinAlgError, "not positive definite"),
        ],
        program=(lambda x: cholesky(x @ x.transpose() + oplib.eye(3)), (normal(3, 3),)),
    ),
    Case(
        solve,
        "triangular_solve(Tensor a, Tensor b, *, bool upper=False) -> Tensor",
        [(LOWER, B), (COMPLEX, wide(3, 1))],
        opcheck={"samples": [((LOWER, B), {}), ((LOWER.transpose(), B), {"upper": True})]},
        gradients=[
            (solve, (LOWER, B)),
            (lambda a, b: solve(a, b, upper=True), (LOWER.transpose(), B)),
            (solve, (COMPLEX, wide(3, 1))),
        ],
        fails=[
            Fails((LOWER, normal(2, 2)), ValueError, "rows and the dtype of a"),
            Fails((oplib.zeros((3, 3)), B), np.linalg.LinAlgError, "Singular"),
        ],
        program=(lambda a, b: solve(a, b * 2).sum(-1), (LOWER, B)),
    ),
    Case(
        lstsq,
        "lstsq(Tensor a, Tensor b)"
        " -> (Tensor solution, Tensor residuals, Tensor rank, Tensor singular_values)",
        [(TALL, normal(4, 3)), (normal(2, 2), normal(2, 1)), (wide(3, 2), wide(3, 1))],
        opcheck={"samples": [((TALL, normal(4, 3)), {}), ((normal(2, 2), normal(2, 1)), {})]},
        gradients=[
            (lambda a, b: lstsq(a, b)[0], (TALL, normal(4, 2, seed=1))),
            (lambda a, b: lstsq(a, b)[0], (wide(3, 2), wide(3, 1))),
        ],
        fails=[
            Fails((normal(2, 3), normal(2, 1)), ValueError, "no more columns than rows"),
            Fails((TALL, normal(3, 1)), ValueError, "rows and the dtype of a"),
        ],
        program=(lambda a, b: lstsq(a * 2, b)[0].sum(-1), (TALL, normal(4, 3))),
    ),
]


def test_an_error_of_linear_algebra_names_the_operator_in_a_note():
    with pytest.raises(np.linalg.LinAlgError) as caught:
        cholesky(-SPD)
    assert any("gallery::cholesky" in note for note in caught.value.__notes__)


def test_the_other_results_of_lstsq_are_numpys_and_have_no_gradient():
    a, b = TALL.clone().requires_grad_(), normal(4, 3)
    results, expected = lstsq(a, b), np.linalg.lstsq(TALL.numpy(), b.numpy(), rcond=None)
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours.detach(), theirs)
    assert [r.requires_grad for r in results] == [True, False, False, False]


def test_a_matrix_of_deficient_rank_has_no_gradient():
    a = tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]).requires_grad_()
    solution = lstsq(a, normal(3, 1))[0]
    with pytest.raises(AutogradError, match="deficient rank"):
        solution.sum().backward()
