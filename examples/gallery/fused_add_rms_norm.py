"""fused_add_rms_norm: a residual connection and the norm that follows it, in one pass over memory.

``s = x + residual`` is stored in residual, then ``s (mean(s²) + eps)^(-1/2) w`` in x. The form that
writes and its functional twin share one function; captured, the first becomes the second. With
``h = s r`` and ``u = g_y w`` the gradient of both x and residual is ``r (u - h mean(u h)) + g_s``.

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
fused = lib.define(
    "fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps) -> ()"
).op
twin = lib.define(
    "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor y, Tensor s)"
).op


def check(x, residual, weight):
    if x.dtype.kind != "f" or x.ndim == 0:
        raise ValueError(f"add_rms_norm: x has floats in rows, got {x.dtype}{list(x.shape)}")
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ValueError(
            f"add_rms_norm: x is {x.dtype}{list(x.shape)} and residual "
            f"{residual.dtype}{list(residual.shape)}; they must be alike"
        )
    if weight.shape != x.shape[-1:] or weight.dtype != x.dtype:
        raise ValueError(f"add_rms_norm: weight is {x.dtype}{list(x.shape[-1:])}")


def computed(x, residual, weight, eps):
    """Return both results, computed in single precision at least."""
    check(x, residual, weight)
    s = x.astype(np.promote_types(x.dtype, np.float32)) + residual
    r = ((s * s).sum(-1, keepdims=True) / max(x.shape[-1], 1) + eps) ** -0.5
    return (s * r * weight).astype(x.dtype, "C"), s.astype(x.dtype, "C")


twin.register_kernel("cpu", computed)


@fused.register_kernel("cpu")
def _(x, residual, weight, eps):
    if np.shares_memory(x, residual):
        raise ValueError("fused_add_rms_norm: x and residual overlap, and both are written")
    x[...], residual[...] = computed(x, residual, weight, eps)


@twin.register_fake
def _(x, residual, weight, eps):
    check(x, residual, weight)
    return oplib.empty(x.shape, dtype=x.dtype), oplib.empty(x.shape, dtype=x.dtype)


@fused.register_fake
def _(x, residual, weight, eps):
    check(x, residual, weight)


fused.register_functional(twin)


@twin.register_vjp
def _(grad_y, grad_s, s, weight, eps):
    r = ((s * s).mean(-1, keepdim=True) + eps).rsqrt()
    h, u = s * r, grad_y * weight
    both = r * (u - h * (u * h).mean(-1, keepdim=True)) + grad_s
    return both, both, (grad_y * h).sum(list(range(s.ndim - 1)))


def block(x, residual, weight):
    """Run one residual step in the memory of a buffer that holds both."""
    buffer = oplib.ops.std.stack([x, residual])
    fused(buffer[0], buffer[1], weight, 1e-6)
    return buffer


def main() -> None:
    x, residual, weight = oplib.ones((1, 2)), oplib.tensor([[2.0, 3.0]]), oplib.ones(2)
    fused(x, residual, weight, 1e-6)
    print("residual holds the sum: ", residual.tolist())
    print("x holds its norm:       ", x.numpy().round(4).tolist())
    program = oplib.capture(block, x, residual, weight)
    print("captured, nothing is written:", program.graph, sep="\n")


if __name__ == "__main__":
    main()
