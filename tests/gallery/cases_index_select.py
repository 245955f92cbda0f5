from __future__ import annotations

import numpy as np

import oplib
from tests.gallery.harness import Case, Fails, gallery, normal, tensor

example = gallery("index_select")
op, add_rows = example.index_select, example.add_rows
X, INDEX = normal(4, 3), tensor([2, 0, 2, -1])
CALLS = [(X, INDEX), (X, tensor([2, -3]), 1), (X, tensor([], "int64")), (normal(0, 2), INDEX[:0])]


def program(x):
    return op(x * 2, INDEX) + op(x, tensor([0, 1, 2, 3]))


CASES = [
    Case(
        op,
        "index_select(Tensor x, Tensor index, int dim=0) -> Tensor",
        CALLS,
        opcheck={"samples": [(call, {}) for call in CALLS]},
        gradients=[
            (lambda x: op(x, INDEX), (X,)),
            (lambda x: op(x, tensor([1, 1, 1]), -1), (normal(2, 3),)),
        ],
        fails=[
            Fails((X, tensor([4])), IndexError, "outside -4 .. 3"),
            Fails((X, tensor([-5])), IndexError, "outside -4 .. 3"),
            Fails((X, tensor([[0]])), TypeError, "integers along one axis"),
            Fails((X, tensor([0.0])), TypeError, "integers along one axis"),
            Fails((X, INDEX, 2), IndexError, "no axis 2"),
        ],
        program=(program, (X,)),
    ),
    Case(
        add_rows,
        "add_rows(Tensor rows, Tensor index, SymInt length, int dim) -> Tensor",
        [(X, INDEX, 5, 0)],
        opcheck={"samples": [((X, INDEX, 5, 0), {}), ((X, tensor([0, 0, 1]), 2, 1), {})]},
        gradients=[(lambda rows: add_rows(rows, INDEX, 4, 0), (X,))],
    ),
]


def test_a_range_of_rows_is_a_copy():
    rows = op(X, oplib.arange(4))
    assert np.array_equal(rows, X)
    assert not np.shares_memory(rows.numpy(), X.numpy())


def test_a_row_taken_twice_gets_both_gradients():
    x = oplib.zeros(3, requires_grad=True)
    (op(x, tensor([1, 1, 2])) * tensor([1.0, 10.0, 100.0])).sum().backward()
    assert x.grad.tolist() == [0.0, 11.0, 100.0]
