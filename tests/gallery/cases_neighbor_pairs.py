from __future__ import annotations

import numpy as np
import pytest

import oplib
from tests.gallery.harness import Case, Fails, gallery, normal, tensor

op = gallery("neighbor_pairs").neighbor_pairs
X, BATCH = normal(6, 3), tensor([0, 0, 0, 1, 1, 1])
CALLS = [
    (X, BATCH, 2.0, 8, True),
    (X, oplib.zeros(6, dtype="int64"), 1.5, 3, False),
    (normal(0, 3), BATCH[:0], 1.0, 2, True),
]


def energy(x):
    pairs, deltas, distances, _ = op(x, BATCH, 3.0, 8, True)
    used = pairs[0] >= 0
    ends = oplib.where(used[:, None], deltas, 0.0)
    return oplib.where(used, distances, 1.0).log().sum() + (ends * ends * ends).sum()


def program(x):
    pairs, deltas, distances, count = op(x * 1, BATCH, 2.0, 8, True)
    return oplib.where(pairs[0] >= 0, distances, 0.0).sum() * count, deltas


CASES = [
    Case(
        op,
        "neighbor_pairs(Tensor positions, Tensor batch, float cutoff, int max_num_pairs, "
        "bool check_errors)"
        " -> (Tensor pairs, Tensor deltas, Tensor distances, Tensor num_pairs)",
        CALLS,
        opcheck={
            "samples": [(call, {}) for call in CALLS],
            "skip": ("gradient", "second_gradient"),
        },
        gradients=[(energy, (X,))],
        fails=[
            Fails((X, BATCH, 9.0, 2, True), OverflowError, "6 pairs, room for 2"),
            Fails((X, BATCH, 0.0, 2, True), ValueError, "cutoff is positive, got 0.0"),
            Fails((normal(6, 2), BATCH, 1.0, 2, True), ValueError, "float .N, 3."),
            Fails((X, BATCH[:5], 1.0, 2, True), ValueError, "an integer per point"),
        ],
        program=(program, (X,)),
    )
]


def test_pairs_are_those_of_a_slow_loop_and_the_rest_is_marked():
    pairs, deltas, distances, count = (t.numpy() for t in op(X, BATCH, 2.0, 8, True))
    x, batch = X.numpy(), BATCH.numpy()
    expected = [
        (i, j)
        for i in range(6)
        for j in range(i)
        if batch[i] == batch[j] and np.linalg.norm(x[i] - x[j]) < 2.0
    ]
    assert pairs.T[: len(expected)].tolist() == [list(pair) for pair in expected]
    assert count == len(expected)
    assert np.all(pairs[:, count:] == -1)
    assert np.isnan(deltas[count:]).all()
    assert np.isnan(distances[count:]).all()


def test_a_count_beyond_the_room_is_told_or_raised():
    _, _, distances, count = op(X, BATCH, 9.0, 2, False)
    assert count.item() == 6
    assert np.isfinite(distances.numpy()).all()


@pytest.mark.parametrize("order", [1, 2])
def test_gradients_of_padding_and_of_equal_points_leak_no_nan(order):
    x = tensor([[0.0, 0, 0], [0, 0, 0], [1.0, 0, 0]]).requires_grad_()
    _, _, distances, _ = op(x, oplib.zeros(3, dtype="int64"), 2.0, 5, True)
    [g] = oplib.grad((distances * distances).sum(), x, create_graph=True)
    assert np.isfinite(g.detach().numpy()).all()
    if order == 2:
        g.square().sum().backward()
        assert np.isfinite(x.grad.numpy()).all()
