from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import oplib
from oplib.errors import AutogradError
from tests.gallery.harness import Case, Fails, gallery, normal, tensor

example = gallery("fused_linear_cross_entropy")
op, grads = example.loss_of, example.with_gradients
cross_entropy = gallery("cross_entropy").cross_entropy
H, W, B, T = normal(5, 3), normal(4, 3), normal(4), tensor([0, 3, -100, 1, 2])
CALLS = [(H, W, T), (H, W, T, B, -100, 2), (normal(0, 3), W, T[:0], None, -100, 1)]

CASES = [
    Case(
        op,
        f"fused_linear_cross_entropy({example.ARGUMENTS}) -> Tensor",
        CALLS,
        opcheck={"samples": [(call, {}) for call in CALLS[:2]]},
        gradients=[
            (lambda h, w, b: op(h, w, T, b, -100, 2), (H, W, B)),
            (lambda h, w: op(h, w, T), (H, W)),
        ],
        second=False,
        fails=[
            Fails((H, W, T, B, -100, 0), ValueError, "chunk_rows is positive, got 0"),
            Fails((H, normal(4, 2), T), ValueError, "hidden .N, D."),
            Fails((H, W, T, normal(3)), ValueError, "bias is"),
            Fails((H, W, tensor([0, 4, 0, 0, 0])), IndexError, "no class of 0 .. 3"),
        ],
        program=(lambda h, w: op(h * 2, w, T), (H, W)),
    )
]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 1024])
def test_every_chunk_size_gives_the_composition(chunk):
    given = [x.clone().requires_grad_() for x in (H, W, B)]
    expected = cross_entropy(given[0] @ given[1].transpose() + given[2], T)
    wanted = oplib.grad(expected, given)
    loss = op(given[0], given[1], T, given[2], -100, chunk)
    np.testing.assert_allclose(loss.detach(), expected.detach(), rtol=1e-12)
    for got, want in zip(oplib.grad(loss, given), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


def test_memory_stays_below_the_logits():
    rows, size, classes = 2000, 8, 500
    hidden = oplib.tensor(np.zeros((rows, size)), requires_grad=True)
    weight, target = oplib.zeros((classes, size)), oplib.zeros(rows, dtype="int64")
    op(hidden, weight, target, chunk_rows=50)
    tracemalloc.start()
    try:
        op(hidden, weight, target, chunk_rows=50).backward()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < rows * classes * 8 / 2


def test_a_second_derivative_is_refused_by_name():
    hidden = H.clone().requires_grad_()
    [g] = oplib.grad(op(hidden, W, T), hidden, create_graph=True)
    with pytest.raises(AutogradError, match="once_differentiable"):
        g.sum().backward()
