from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib.testing import assert_close
from tests.gallery.harness import Case, Fails, gallery, normal

attention = gallery("attention").attention
bwd = gallery("attention_bwd").attention_bwd
Q, K, V = normal(2, 3, 4), normal(2, 5, 4, seed=1), normal(2, 5, 2, seed=2)
OUT, LSE = attention(Q, K, V)
G = normal(2, 3, 2, seed=3)
GIVEN = G, Q, K, V, OUT, LSE
ONE = normal(2, 5, 4)
CALLS = [GIVEN, (*GIVEN, normal(2, 3, 4), None, normal(2, 5, 2))]


def program(dout, q, k, v):
    out, lse = attention(q, k, v)
    dq, dk = q * 0, k * 0
    delta = bwd(dout, q, k, v, out, lse, dq, dk)
    return dq, dk, delta


CASES = [
    Case(
        bwd,
        "attention_bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
        "Tensor(a!)? dq=None, Tensor(b!)? dk=None, Tensor(c!)? dv=None, float? scale=None, "
        "bool causal=False) -> Tensor softmax_d",
        CALLS,
        opcheck={"samples": [(call, {}) for call in CALLS]},
        fails=[
            Fails((*GIVEN, None, ONE, ONE[..., :2]), ValueError, "overlaps"),
            Fails((G, Q, ONE, V, OUT, LSE, None, ONE), ValueError, "overlaps"),
            Fails((*GIVEN, normal(2, 3, 3)), ValueError, "dq is float64"),
            Fails((G, Q, K, V, OUT, LSE[:1]), ValueError, "what attention returned"),
        ],
        program=(program, (G, Q, K, V)),
    )
]


@pytest.mark.parametrize("causal", [False, True])
def test_it_gives_what_the_gradient_rule_gives(causal):
    inputs = [x.clone().requires_grad_() for x in (Q, K, V)]
    out, lse = attention(*inputs, 0.3, causal)
    expected = oplib.grad(out, inputs, G)
    into = [oplib.zeros(x.shape) for x in inputs]
    delta = bwd(G, Q, K, V, out.detach(), lse.detach(), *into, 0.3, causal)
    for got, want in zip(into, expected, strict=True):
        assert_close(got, want)
        assert got.inplace_version == 1
    assert np.allclose(delta, (G * out.detach()).sum(-1))
