from __future__ import annotations

import numpy as np

import oplib
from tests.gallery.harness import Case, Fails, gallery, normal, tensor

example = gallery("sort_topk")
sort, topk, argsort = example.sort, example.topk, example.argsort
X, NAN = normal(3, 4), float("nan")

CASES = [
    Case(
        sort,
        "sort(Tensor x, int dim=-1, bool descending=False, bool stable=True)"
        " -> (Tensor values, Tensor indices)",
        [(X,), (X, 0, True), (normal(0, 3),), (tensor([2, 1, 2, 0]), 0, True)],
        gradients=[(lambda x: sort(x)[0], (X,)), (lambda x: sort(x, 0, True)[0], (X,))],
        fails=[Fails((X, 2), IndexError, "no axis 2"), Fails((X, -3), IndexError, "no axis -3")],
        program=(lambda x: sort(x * 2)[0] + sort(x, 0)[1], (X,)),
    ),
    Case(
        topk,
        "topk(Tensor x, int k, int dim=-1, bool largest=True) -> (Tensor values, Tensor indices)",
        [(X, 2), (X, 1, 0, False), (X, 0), (X, 4)],
        gradients=[(lambda x: topk(x, 2)[0], (X,)), (lambda x: topk(x, 2, 0, False)[0], (X,))],
        fails=[
            Fails((X, 5), ValueError, "k lies in 0 .. 4, got 5"),
            Fails((X, -1), ValueError, "k lies in"),
        ],
        program=(lambda x: topk(x * 2, 2)[0].sum(-1), (X,)),
    ),
    Case(
        argsort,
        "argsort(Tensor x, int dim=-1, bool descending=False) -> Tensor",
        [(X,), (X, 0, True)],
        fails=[Fails((X, 2), IndexError, "no axis 2")],
        program=(lambda x: argsort(x * 2) + 1, (X,)),
    ),
]


def test_nan_is_last_in_ascending_and_first_in_descending_order():
    x = tensor([1.0, NAN, 3.0, NAN, 2.0])
    assert argsort(x).tolist() == [0, 4, 2, 1, 3]
    assert argsort(x, -1, True).tolist() == [1, 3, 2, 4, 0]


def test_descending_equals_keep_their_order():
    x = tensor([1, 2, 1, 2, 1])
    assert sort(x, 0, True)[1].tolist() == [1, 3, 0, 2, 4]


def test_indices_have_no_gradient():
    values, indices = sort(X.clone().requires_grad_())
    assert values.requires_grad
    assert not indices.requires_grad
    assert not argsort(X.clone().requires_grad_()).requires_grad
    assert np.array_equal(oplib.gather(X, 1, indices), values.detach())
