from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib.testing import assert_close
from tests.gallery.harness import Case, Fails, gallery, normal

attention = gallery("attention").attention
Q, K, V = normal(2, 3, 4), normal(2, 5, 4, seed=1), normal(2, 5, 2, seed=2)
SMALL = normal(2, 3), normal(3, 3, seed=1), normal(3, 2, seed=2)


def masked(*how):
    return lambda q, k, v: attention(q, k, v, *how)


CASES = [
    Case(
        attention,
        "attention(Tensor q, Tensor k, Tensor v, float? scale=None, bool causal=False, "
        "int window_left=-1, int window_right=-1) -> (Tensor out, Tensor lse)",
        [
            *(
                (Q, K, V),
                (Q, K, V, 0.3, True),
                (Q, K, V, None, False, 1, 0),
                (K, Q, normal(2, 3, 2)),
            ),
            *((normal(2, 0, 4), K, V), (Q, normal(2, 0, 4), normal(2, 0, 2))),
        ],
        opcheck={"samples": [((*SMALL, None, True), {})]},
        gradients=[
            (masked(), SMALL),
            (masked(0.7, True), SMALL),
            (masked(None, False, 1), (normal(3, 2), normal(3, 2), normal(3, 2))),
            (
                lambda *qkv: attention(*qkv, None, True)[0],
                (normal(4, 2), normal(3, 2), normal(3, 2)),
            ),
            (lambda q, k, v: attention(q, k, v)[0], SMALL),
        ],
        fails=[
            Fails((Q, normal(2, 5, 3), V), ValueError, "agree in size"),
            Fails((Q, K, normal(2, 4, 2)), ValueError, "agree in size"),
            Fails((Q, normal(3, 5, 4), normal(3, 5, 2)), ValueError, "same heads|agree in size"),
            Fails((Q, K, V, None, False, -2), ValueError, "a window is -1"),
        ],
        program=(lambda q, k, v: attention(q * 2, k, v, causal=True)[0].sum(-1), (Q, K, V)),
        half=True,
    )
]


def test_a_mask_is_aligned_to_the_lower_right_and_an_empty_row_is_zero():
    out, lse = attention(K, Q, normal(2, 3, 2), None, True)  # five queries, three keys
    assert np.all(out[:, :2].numpy() == 0)
    assert np.all(lse[:, :2].numpy() == -np.inf)
    assert np.all(np.isfinite(lse[:, 2:].numpy()))
    assert_close(out[:, 2], normal(2, 3, 2)[:, 0])


def test_a_row_without_keys_gets_no_gradient_and_no_nan():
    q, k, v = (x.clone().requires_grad_() for x in (normal(5, 4), normal(3, 4), normal(3, 2)))
    attention(q, k, v, None, True)[0].sum().backward()
    assert np.all(q.grad[:2].numpy() == 0)
    assert all(np.isfinite(x.grad.numpy()).all() for x in (q, k, v))


@pytest.mark.parametrize(("left", "right"), [(0, 0), (1, 0), (-1, 1), (2, -1)])
def test_a_window_hides_what_is_further(left, right):
    q, k, v = normal(5, 4), normal(5, 4, seed=1), oplib.eye(5)
    p = attention(q, k, v, None, False, left, right)[0].numpy()
    for i in range(5):
        for j in range(5):
            inside = (left < 0 or i - j <= left) and (right < 0 or j - i <= right)
            assert (p[i, j] > 0) == inside
