"""quant_absmax, bitlinear: integers with one scale per row, and a layer of weights -1, 0, 1.

``scale = max(max|x|, 1e-5) / (2^(bits-1) - 1)`` along an axis, ``q = round(x / scale)`` clipped to
the range, ties to even. bitlinear multiplies quantized rows by ternary weights,
``wt = clip(round(w / m), -1, 1) m`` with ``m = mean|w|``. Rounding has no useful derivative, so
gradients go straight through it, as if it were not there: ``gx = g wt``, ``gw = gᵀ xq``.
(Wang et al., "BitNet", arXiv:2310.11453; Bengio et al., arXiv:1308.3432.)

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
quant_absmax = lib.define(
    "quant_absmax(Tensor x, int bits=8, int dim=-1) -> (Tensor q, Tensor scale)"
).op
bitlinear = lib.define("bitlinear(Tensor x, Tensor weight) -> Tensor").op


def check(x, bits, dim):
    if not 2 <= bits <= 8:
        raise ValueError(f"quant_absmax: bits lies in 2 .. 8, got {bits}")
    if x.dtype.kind != "f" or not -x.ndim <= dim < x.ndim or not x.shape[dim]:
        raise ValueError(f"quant_absmax: x holds floats along an axis {dim}, got {list(x.shape)}")


def quantized(x, bits, dim):
    top = 2 ** (bits - 1) - 1
    wide = x.astype(np.promote_types(x.dtype, np.float32), copy=False)
    scale = np.abs(wide).max(dim, keepdims=True).clip(1e-5) / top
    return np.clip(np.rint(wide / scale), -top - 1, top), scale


@quant_absmax.register_kernel("cpu")
def _(x, bits, dim):
    check(x, bits, dim)
    q, scale = quantized(x, bits, dim)
    return q.astype(np.int8, "C"), scale.astype(x.dtype, "C")


@quant_absmax.register_fake
def _(x, bits, dim):
    check(x, bits, dim)
    shape = [1 if axis == dim % x.ndim else n for axis, n in enumerate(x.shape)]
    return oplib.empty(x.shape, dtype="int8"), oplib.empty(shape, dtype=x.dtype)


@quant_absmax.register_vjp
def _(grad_scale, x, bits, dim):
    size = x.abs()
    top = 2 ** (bits - 1) - 1
    places = oplib.arange(x.shape[dim]).reshape([-1] + [1] * (x.ndim - 1 - dim % x.ndim))
    chosen = (places == size.argmax(dim, keepdim=True)).logical_and(size > 1e-5)
    return grad_scale * x.sign() * chosen / top


def check_linear(x, weight):
    if x.ndim == 0 or weight.ndim != 2 or x.shape[-1] != weight.shape[1] or not x.shape[-1]:
        raise ValueError(
            f"bitlinear: x [.., in] and weight [out, in], got {list(x.shape)}, {list(weight.shape)}"
        )
    if x.dtype.kind != "f" or x.dtype != weight.dtype:
        raise ValueError(f"bitlinear: x and weight hold floats of one dtype, got {weight.dtype}")


def ternary(weight):
    wide = weight.astype(np.promote_types(weight.dtype, np.float32), copy=False)
    m = max(np.abs(wide).mean(), 1e-5) if weight.size else 1.0
    return np.clip(np.rint(wide / m), -1, 1) * m


@bitlinear.register_kernel("cpu")
def _(x, weight):
    check_linear(x, weight)
    q, scale = quantized(x, 8, -1)
    return (q * scale @ ternary(weight).T).astype(x.dtype)


@bitlinear.register_fake
def _(x, weight):
    check_linear(x, weight)
    return oplib.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype)


def keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


@oplib.once_differentiable  # a straight-through gradient is no function to differentiate again
def straight_through(ctx, grad):
    x, weight = ctx.saved_tensor()
    m = weight.abs().mean().maximum(1e-5)
    q, scale = quant_absmax(x)
    rows = (q * scale).reshape((-1, x.shape[-1]))
    gx = grad @ ((weight / m).round().clamp(-1, 1) * m)
    return gx, grad.reshape((-1, weight.shape[0])).transpose() @ rows


bitlinear.register_autograd(straight_through, setup_context=keep)


def main() -> None:
    x = oplib.tensor([[0.5, -1.0, 0.25]])
    q, scale = quant_absmax(x, bits=4)
    print("in four bits:", q.tolist(), "times", scale.item().__round__(4))
    weight = oplib.tensor([[0.9, -0.1, -1.2]], requires_grad=True)
    y = bitlinear(x, weight)
    y.sum().backward()
    print("with weights 1, 0, -1 of one size:", y.item().__round__(4))
    print("the gradient passes the rounding:", weight.grad.numpy().round(3))


if __name__ == "__main__":
    main()
