"""softmax, dropout: shares that sum to one, and elements left out at random.

softmax has the gradient ``y (g - sum(g y))``. dropout keeps an element with probability 1-p and
scales it by 1/(1-p); its mask is a result, so the gradient ``g mask / (1-p)`` is right to any
order. It declares that it is random: no pass merges two calls, a generator in the same state gives
the same mask, and `recompute` replays it. (Srivastava et al., JMLR 15, 2014.)

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
softmax = lib.define("softmax(Tensor x, int dim=-1) -> Tensor").op
dropout = lib.define(
    "dropout(Tensor x, float p, bool training=True, Generator? generator=None)"
    " -> (Tensor y, Tensor mask)",
    effects=("random",),
).op


def check_softmax(x, dim):
    if x.dtype.kind != "f" or not -x.ndim <= dim < x.ndim:
        raise ValueError(f"softmax: x holds floats along an axis {dim}, got {list(x.shape)}")


def check_dropout(x, p):
    if not 0 <= p < 1:
        raise ValueError(f"dropout: p lies in 0 <= p < 1, got {p}")
    if x.dtype.kind != "f":
        raise ValueError(f"dropout: x holds floats, got {x.dtype}")


@softmax.register_kernel("cpu")
def _(x, dim):
    check_softmax(x, dim)
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    e = np.exp(wide - wide.max(dim, keepdims=True, initial=-np.inf))
    return (e / e.sum(dim, keepdims=True)).astype(x.dtype, "C")


@softmax.register_fake
def _(x, dim):
    check_softmax(x, dim)
    return oplib.empty(x.shape, dtype=x.dtype)


softmax.register_vjp(x=lambda grad, out, dim: out * (grad - (grad * out).sum(dim, keepdim=True)))


@dropout.register_kernel("cpu")
def _(x, p, training, generator):
    check_dropout(x, p)
    if not training:
        return x.copy(), np.ones(x.shape, bool)
    draw = np.random.random if generator is None else generator.random
    mask = np.asarray(draw(x.shape)) >= p
    return (x * mask / np.asarray(1 - p, x.dtype)).astype(x.dtype, "C"), mask


@dropout.register_fake
def _(x, p, training, generator):
    check_dropout(x, p)
    return oplib.empty(x.shape, dtype=x.dtype), oplib.empty(x.shape, dtype="bool")


dropout.register_vjp(
    x=lambda grad_y, mask, p, training: grad_y * mask / (1 - p) if training else grad_y
)


def main() -> None:
    shares = softmax(oplib.tensor([0.0, 1.0, 2.0]))
    print("shares:", shares.numpy().round(3), "sum", shares.sum().item())
    x = oplib.ones(8, requires_grad=True)
    y, _ = dropout(x, 0.5, generator=np.random.default_rng(0))
    y.sum().backward()
    print("kept and doubled:   ", y.tolist())
    print("and so the gradient:", x.grad.tolist())


if __name__ == "__main__":
    main()
