from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib.graph.passes import cse, run_passes
from tests.gallery.harness import Case, Fails, gallery, normal

example = gallery("dropout")
softmax, dropout = example.softmax, example.dropout
X = normal(3, 4)


def seeded(x, p=0.4, seed=3):
    return dropout(x, p, True, np.random.default_rng(seed))


CASES = [
    Case(
        softmax,
        "softmax(Tensor x, int dim=-1) -> Tensor",
        [(X,), (X, 0), (normal(2, 0),), (normal(0, 3), 0)],
        gradients=[(softmax, (X,)), (lambda x: softmax(x, 0), (X,))],
        fails=[Fails((X, 2), ValueError, "along an axis 2")],
        program=(lambda x: softmax(x * 2).sum(0), (X,)),
        half=True,
    ),
    Case(
        dropout,
        "dropout(Tensor x, float p, bool training=True, Generator? generator=None)"
        " -> (Tensor y, Tensor mask)",
        [(X, 0.4, False), (normal(0, 4), 0.4), (X, 0.0)],
        gradients=[
            (lambda x: seeded(x)[0], (X,)),
            (lambda x: dropout(x, 0.4, False)[0], (X,)),
        ],
        fails=[
            Fails((X, 1.0), ValueError, "p lies in 0 <= p < 1, got 1.0"),
            Fails((X, -0.1), ValueError, "p lies in"),
        ],
        program=(lambda x: dropout(x * 2, 0.4, training=False)[0].sum(0), (X,)),
    ),
]


def test_kept_elements_are_scaled_and_the_share_is_right():
    y, mask = seeded(oplib.ones((100, 100)), 0.3)
    assert abs(mask.numpy().mean() - 0.7) < 0.02
    np.testing.assert_allclose(y.numpy()[mask.numpy()], 1 / 0.7)
    assert np.all(y.numpy()[~mask.numpy()] == 0)


def test_a_generator_in_the_same_state_gives_the_same_mask():
    assert np.array_equal(seeded(X)[1], seeded(X)[1])
    assert not np.array_equal(seeded(X)[1], seeded(X, seed=4)[1])


def test_out_of_training_it_is_a_copy_with_a_mask_of_ones():
    y, mask = dropout(X, 0.4, training=False)
    assert np.array_equal(y, X)
    assert not np.shares_memory(y.numpy(), X.numpy())
    assert mask.numpy().all()


def test_two_calls_in_a_graph_are_not_merged():
    program = oplib.capture(lambda x: dropout(x, 0.5)[0] + dropout(x, 0.5)[0], X)
    merged = run_passes(program.graph, [cse])
    assert str(merged).count("gallery.dropout") == 2


@pytest.mark.parametrize("seed", [0, 1])
def test_recompute_replays_it(seed):
    x = X.clone().requires_grad_()
    generator = np.random.default_rng(seed)
    y = oplib.autograd.recompute(lambda x: dropout(x.sin(), 0.5, True, generator)[0], x)
    y.sum().backward()
    kept = y.numpy() != 0
    np.testing.assert_allclose(x.grad, np.where(kept, 2 * np.cos(X.numpy()), 0))
