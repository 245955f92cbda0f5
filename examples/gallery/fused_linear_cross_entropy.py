"""fused_linear_cross_entropy: the loss of a vocabulary without the logits of a batch.

The mean cross entropy of ``hidden weightᵀ + bias``, computed over chunks of rows: the logits of one
chunk exist at a time. Their gradient is known at once, so forward adds up the gradients of hidden,
weight and bias as well, and backward only scales them; memory stays below the logits of all rows.
(As in Hsu et al., "Liger Kernel", arXiv:2410.10989.)

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np
from cross_entropy import check as check_rows
from cross_entropy import rows

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
ARGUMENTS = (
    "Tensor hidden, Tensor weight, Tensor target, Tensor? bias=None, int ignore_index=-100, "
    "int chunk_rows=1024"
)
loss_of = lib.define(f"fused_linear_cross_entropy({ARGUMENTS}) -> Tensor").op
with_gradients = lib.define(
    f"linear_cross_entropy_grads({ARGUMENTS})"
    " -> (Tensor loss, Tensor ghidden, Tensor gweight, Tensor gbias)"
).op


def check(hidden, weight, target, bias, ignore_index, chunk_rows):
    if chunk_rows < 1:
        raise ValueError(f"fused_linear_cross_entropy: chunk_rows is positive, got {chunk_rows}")
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        shapes = f"{list(hidden.shape)}, {list(weight.shape)}"
        raise ValueError(f"fused_linear_cross_entropy: hidden [N, D], weight [C, D]; got {shapes}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"fused_linear_cross_entropy: bias is {list(weight.shape[:1])}")
    given = [x for x in (hidden, weight, bias) if x is not None]
    if any(x.dtype != hidden.dtype for x in given):
        raise ValueError("fused_linear_cross_entropy: all floats are of one dtype")
    check_rows(hidden, target, 0.0)
    if not weight.shape[0]:
        raise ValueError("fused_linear_cross_entropy: weight has a row per class")


@with_gradients.register_kernel("cpu")
def computed(hidden, weight, target, bias, ignore_index, chunk_rows):
    check(hidden, weight, target, bias, ignore_index, chunk_rows)
    wide = np.promote_types(hidden.dtype, np.float32)
    w = weight.astype(wide, copy=False)
    n = np.count_nonzero(target != ignore_index)
    total, gh = wide.type(0), np.empty(hidden.shape, wide)
    gw, gb = np.zeros(weight.shape, wide), np.zeros(weight.shape[0], wide)
    for start in range(0, len(hidden), chunk_rows):
        part = slice(start, start + chunk_rows)
        h = hidden[part].astype(wide, copy=False)
        logits = h @ w.T if bias is None else h @ w.T + bias
        loss, grad, _ = rows(logits, target[part], ignore_index, 0.0)
        grad /= max(n, 1)
        total += loss.sum()
        gh[part] = grad @ w
        gw += grad.T @ h
        gb += grad.sum(0)
    loss = total / n if n else np.nan
    return tuple(np.asarray(x, hidden.dtype) for x in (loss, gh, gw, gb))


@with_gradients.register_fake
def _(hidden, weight, target, bias, ignore_index, chunk_rows):
    check(hidden, weight, target, bias, ignore_index, chunk_rows)
    shapes = (), hidden.shape, weight.shape, weight.shape[:1]
    return tuple(oplib.empty(shape, dtype=hidden.dtype) for shape in shapes)


def keep(ctx, inputs, output):
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])


@oplib.once_differentiable  # the gradients were computed outside of any history
def scaled(ctx, grad, *_):
    gh, gw, gb = ctx.saved_tensor()
    has_bias = ctx.needs_input_grad[3]
    return {"hidden": grad * gh, "weight": grad * gw, "bias": grad * gb if has_bias else None}


with_gradients.register_autograd(scaled, setup_context=keep)


@oplib.impl(lib, loss_of)  # made of operators, it needs no other rule
def _(hidden, weight, target, bias, ignore_index, chunk_rows):
    return with_gradients(hidden, weight, target, bias, ignore_index, chunk_rows)[0]


def main() -> None:
    rng = np.random.default_rng(0)
    shapes = (64, 8), (100, 8)
    hidden, weight = (oplib.tensor(rng.normal(size=s), requires_grad=True) for s in shapes)
    target = oplib.from_numpy(rng.integers(0, 100, 64))
    for chunk in (64, 10):
        loss = loss_of(hidden, weight, target, chunk_rows=chunk)
        loss.backward()
        size = hidden.grad.abs().sum().item()
        print(f"chunks of {chunk}: loss {loss.item():.6f}, gradient {size:.6f}")
        hidden.clear_grad()


if __name__ == "__main__":
    main()
