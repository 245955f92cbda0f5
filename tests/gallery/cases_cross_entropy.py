from __future__ import annotations

import numpy as np

from tests.gallery.harness import Case, Fails, gallery, normal, tensor

op = gallery("cross_entropy").cross_entropy
X, T = normal(4, 3), tensor([0, 2, -100, 1])
CALLS = [
    *((X, T), (X, T, -100, 0.1, "sum"), (normal(2, 2, 3), tensor([[0, 1], [2, 0]]))),
    *((normal(0, 3), T[:0], -100, 0.0, "sum"), (X, T, -100, 1.0, "none")),
]

CASES = [
    Case(
        op,
        "cross_entropy(Tensor logits, Tensor target, int ignore_index=-100, "
        "float label_smoothing=0.0, str reduction='mean') -> Tensor",
        CALLS,
        opcheck={"samples": [(call, {}) for call in CALLS]},
        gradients=[
            (lambda x, r=r, e=e: op(x, T, -100, e, r), (X,))
            for r, e in (("mean", 0.0), ("sum", 0.2), ("none", 0.1))
        ],
        fails=[
            Fails((X, tensor([0, 3, 0, 0])), IndexError, "no class of 0 .. 2"),
            Fails((X, tensor([0, -1, 0, 0])), IndexError, "no class of 0 .. 2"),
            Fails((X, T, -100, 0.0, "max"), ValueError, "reduction is"),
            Fails((X, T, -100, 1.5), ValueError, "lies in 0 .. 1, got 1.5"),
            Fails((X, T[:3]), ValueError, "target holds integers"),
        ],
        program=(lambda x, t: op(x * 2, t) + op(x, t, -100, 0.1, "none"), (X, T)),
        half=True,
    )
]


def test_with_every_row_ignored_the_mean_is_nan_and_the_gradient_zero():
    x = X.clone().requires_grad_()
    loss = op(x, tensor([-100] * 4))
    assert np.isnan(loss.item())
    loss.backward()
    assert x.grad.tolist() == [[0.0] * 3] * 4


def test_large_logits_do_not_overflow():
    assert op(tensor([[1e4, 0.0]]), tensor([1])).item() == 1e4


def test_it_is_the_composition_of_its_parts():
    logp = X.log_softmax(-1).numpy()
    kept = [0, 1, 3]
    expected = -np.mean([logp[i, T.numpy()[i]] for i in kept])
    assert np.isclose(op(X, T).item(), expected)
