from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib.errors import AutogradError
from tests.gallery.harness import Case, Fails, gallery, normal, tensor

example = gallery("quant_absmax")
quant, bitlinear = example.quant_absmax, example.bitlinear
X, W = normal(3, 4), normal(5, 4)


def program(x, weight):
    q, scale = quant(x * 2, 4, 0)
    return q * scale + bitlinear(x, weight)[:, :1]


CASES = [
    Case(
        quant,
        "quant_absmax(Tensor x, int bits=8, int dim=-1) -> (Tensor q, Tensor scale)",
        [(X,), (X, 2, 0), (normal(0, 4), 5), (normal(2, 3, 4), 8, 1)],
        gradients=[
            (lambda x: quant(x)[1], (X,)),
            (lambda x: quant(x, 4, 1)[1], (normal(2, 3, 2),)),
        ],
        fails=[
            Fails((X, 1), ValueError, "bits lies in 2 .. 8, got 1"),
            Fails((X, 9), ValueError, "bits lies in 2 .. 8"),
            Fails((X, 8, 2), ValueError, "along an axis 2"),
        ],
        program=(program, (X, W)),
        half=True,
    ),
    Case(
        bitlinear,
        "bitlinear(Tensor x, Tensor weight) -> Tensor",
        [(X, W), (normal(2, 3, 4), W), (normal(0, 4), W), (X, normal(0, 4))],
        # Its gradient is on purpose not the derivative, which is zero nearly everywhere.
        opcheck={"skip": ("gradient", "second_gradient")},
        fails=[
            Fails((X, normal(5, 3)), ValueError, "bitlinear: x .*weight"),
            Fails((X, W.cast("float32")), ValueError, "floats of one dtype"),
        ],
        program=(lambda x, w: bitlinear(x * 2, w).sum(0), (X, W)),
        half=True,
    ),
]


@pytest.mark.parametrize("bits", range(2, 9))
def test_what_is_quantized_is_off_by_half_a_step_at_most(bits):
    q, scale = quant(X, bits)
    assert q.dtype == np.int8
    top = 2 ** (bits - 1) - 1
    assert np.abs(q.numpy()).max(-1).tolist() == [top] * 3
    assert np.all(np.abs((q * scale - X).numpy()) <= scale.numpy() / 2 + 1e-12)


def test_ties_go_to_even():
    q, _ = quant(tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5]))
    assert q.tolist() == [127, 0, 2, 2, 0, -2]


def test_a_row_of_zeros_has_the_least_scale():
    q, scale = quant(oplib.zeros((1, 3)))
    assert q.tolist() == [[0, 0, 0]]
    assert scale.item() == pytest.approx(1e-5 / 127)


def test_the_gradient_goes_straight_through_the_rounding():
    x, weight, grad = X.clone().requires_grad_(), W.clone().requires_grad_(), normal(3, 5)
    y = bitlinear(x, weight)
    y.backward(grad)
    m = np.abs(W.numpy()).mean()
    wt = np.clip(np.rint(W.numpy() / m), -1, 1) * m
    q, scale = quant(X)
    xq = (q * scale).numpy()
    np.testing.assert_allclose(y.detach(), xq @ wt.T)
    np.testing.assert_allclose(x.grad, grad.numpy() @ wt)
    np.testing.assert_allclose(weight.grad, grad.numpy().T @ xq)


def test_a_second_derivative_is_refused():
    x, weight = X.clone().requires_grad_(), W.clone().requires_grad_()
    [gx] = oplib.grad(bitlinear(x, weight).sum(), [x], create_graph=True)
    with pytest.raises(AutogradError, match="once_differentiable"):
        gx.sum().backward()
