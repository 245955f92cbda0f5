"""rms_norm: rows scaled to a root mean square of one.

With ``r = (mean(x²) + eps)^(-1/2)`` over the last axis, ``y = x r w``. For the gradient write
``h = x r`` and ``u = g w``: turning x along itself changes nothing but the length, so that part of
u is taken out, ``gx = r (u - h mean(u h))``; the weight collects ``g h`` over all rows. The rule
computes r again from x, so second derivatives are right.
(Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467.)

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
rms_norm = lib.define("rms_norm(Tensor x, Tensor weight, float eps=1e-6) -> Tensor").op
rms_norm_out = lib.define("rms_norm.out(Tensor! out, Tensor x, Tensor weight, float eps) -> ()").op


def check(x, weight):
    """Refuse what neither the kernels nor the shape rules are for."""
    if x.dtype.kind != "f" or x.ndim == 0:
        raise ValueError(f"rms_norm: x has floats in rows, got {x.dtype}{list(x.shape)}")
    if weight.shape != x.shape[-1:] or weight.dtype != x.dtype:
        raise ValueError(
            f"rms_norm: weight is {x.dtype}{list(x.shape[-1:])}, one number per element of a row; "
            f"got {weight.dtype}{list(weight.shape)}"
        )


def check_out(out, x, weight):
    check(x, weight)
    if out.shape != x.shape or out.dtype != x.dtype:
        raise ValueError("rms_norm.out: out has the shape and dtype of x")


def normalized(x, weight, eps):
    """Return the rows in double or single precision, never in half."""
    wide = x.astype(np.promote_types(x.dtype, np.float32), copy=False)
    length = max(x.shape[-1], 1)  # rows without elements have no mean, and need none
    r = ((wide * wide).sum(-1, keepdims=True) / length + eps) ** -0.5
    return wide * r * weight


@rms_norm.register_kernel("cpu")
def _(x, weight, eps):
    check(x, weight)
    return normalized(x, weight, eps).astype(x.dtype, order="C", copy=False)


@rms_norm.register_fake
def _(x, weight, eps):
    check(x, weight)
    return oplib.empty(x.shape, dtype=x.dtype)


@rms_norm_out.register_kernel("cpu")
def _(out, x, weight, eps):
    check_out(out, x, weight)
    if np.shares_memory(out, x) or np.shares_memory(out, weight):
        raise ValueError(
            "rms_norm.out: out overlaps x or weight, which are read while it is written"
        )
    out[...] = normalized(x, weight, eps)


@rms_norm_out.register_fake
def _(out, x, weight, eps):
    check_out(out, x, weight)


@rms_norm.register_vjp
def _(grad, x, weight, eps):
    r = ((x * x).mean(-1, keepdim=True) + eps).rsqrt()
    h, u = x * r, grad * weight
    along = (u * h).mean(-1, keepdim=True)
    return r * (u - h * along), (grad * h).sum(list(range(x.ndim - 1)))


def main() -> None:
    x = oplib.tensor([[3.0, 4.0], [0.5, 0.0]], requires_grad=True)
    weight = oplib.ones(2, requires_grad=True)
    y = rms_norm(x, weight)
    (y * oplib.tensor([1.0, 0.0])).sum().backward()
    print("rows of root mean square one:", (y * y).mean(-1).tolist())
    print("no gradient along a row:     ", (x.grad * x).sum(-1).detach().numpy().round(6))
    out = oplib.empty((2, 2))
    rms_norm_out(out, x.detach(), weight.detach(), 1e-6)
    print("into memory of yours:        ", bool((out == y).all()))


if __name__ == "__main__":
    main()
