from __future__ import annotations

import numpy as np

import oplib
from tests.gallery.harness import Case, Fails, gallery, normal

example = gallery("release_param")
op = example.release_param
X = normal(3)
for id in (1, 2):
    example.register(5, id)


def program(x):
    y = x * 1
    view = op(y, 5, 1, 100)
    view.add_(1)
    return y + op(x, 5, 2, 100)


CASES = [
    Case(
        op,
        "release_param(Tensor(a) a, int graph_id, int id, int n_users) -> Tensor(a)",
        [(X, 5, 1, 1000)],
        opcheck={"samples": [((X, 5, 1, 1000), {})]},
        gradients=[(lambda x: op(x, 5, 1, 1000) * x, (X,))],
        fails=[Fails((X, 5, 3, 1), KeyError, "no parameter 3 of graph 5")],
        program=(program, (X,)),
    )
]


def test_the_result_is_a_view_of_the_whole_input():
    x = normal(2, 3)
    view = op(x, 5, 1, 1000)
    assert np.shares_memory(view.numpy(), x.numpy())
    view.zero_()
    assert not np.any(x)
    x.fill_(2.0)
    assert view.tolist() == [[2.0] * 3] * 2


def test_a_graph_tells_once_per_call_and_in_order():
    counts = example.USERS
    captured = oplib.capture(program, X)
    before = dict(counts)
    captured(X)
    assert counts[5, 1] == before[5, 1] + 1
    assert counts[5, 2] == before[5, 2] + 1
    text = str(captured.graph)
    assert text.count("gallery.release_param") == 2
    assert text.index("5, 1, 100") < text.index("5, 2, 100")
