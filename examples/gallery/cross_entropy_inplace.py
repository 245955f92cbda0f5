"""cross_entropy_inplace: the loss returned, its gradient left where the logits were.

Forward already knows the gradient ``G = (p - wanted) / n`` of the mean loss, so it overwrites the
logits with it and backward has only to scale it. The logits are seen as G afterwards, and G has a
derivative too: an incoming v gives ``p (v - sum(p v)) / n``, where p is ``n G + wanted``. The
functional twin returns both; the two forms share everything.

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np
from cross_entropy import OPTIONS, check, cross_entropy, mean, rows, wanted

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
inplace = lib.define(
    f"cross_entropy_inplace(Tensor(a!) logits, Tensor target, {OPTIONS}) -> Tensor"
).op
twin = lib.define(
    f"cross_entropy_grad(Tensor logits, Tensor target, {OPTIONS}) -> (Tensor loss, Tensor grad)"
).op


@twin.register_kernel("cpu")
def both(logits, target, ignore_index, label_smoothing):
    check(logits, target, label_smoothing)
    loss, grad, kept = rows(logits, target, ignore_index, label_smoothing)
    grad /= max(kept.sum(), 1)
    return np.asarray(mean(loss, kept), logits.dtype), grad.astype(logits.dtype, "C")


@inplace.register_kernel("cpu")
def _(logits, target, ignore_index, label_smoothing):
    loss, logits[...] = both(logits, target, ignore_index, label_smoothing)
    return loss


@twin.register_fake
def _(logits, target, ignore_index, label_smoothing):
    check(logits, target, label_smoothing)
    return oplib.empty((), dtype=logits.dtype), oplib.empty(logits.shape, dtype=logits.dtype)


@inplace.register_fake
def _(logits, target, ignore_index, label_smoothing):
    check(logits, target, label_smoothing)
    return oplib.empty((), dtype=logits.dtype)


inplace.register_functional(twin)


def chained(g_loss, v, grad, target, ignore_index, smoothing):
    """Return the gradient of the logits from those of the loss and of what replaced them."""
    kept = (target != ignore_index).cast(grad.dtype)
    n = kept.sum().maximum(1)
    p = grad * n + wanted(target, grad.shape[-1], ignore_index, smoothing).cast(grad.dtype)
    through = p * (v - (p * v).sum(-1, keepdim=True)) * (kept / n)[..., None]
    return g_loss * grad + through


twin.register_vjp(
    logits=lambda grad_loss, grad_grad, grad, target, ignore_index, label_smoothing: chained(
        grad_loss, grad_grad, grad, target, ignore_index, label_smoothing
    )
)
inplace.register_vjp(
    logits=lambda grad_out, grad_logits, new_logits, target, ignore_index, label_smoothing: chained(
        grad_out, grad_logits, new_logits, target, ignore_index, label_smoothing
    )
)


def main() -> None:
    logits = oplib.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]], requires_grad=True)
    target = oplib.tensor([0, 1, -100])
    cross_entropy(logits, target).backward()
    work = logits * 1
    loss = inplace(work, target)
    print("the loss is the same:  ", np.allclose(loss, cross_entropy(logits, target)))
    print("its gradient was left: ", np.allclose(work, logits.grad))
    logits.clear_grad()
    loss.backward()
    print("and backward returns it:", np.allclose(work, logits.grad))


if __name__ == "__main__":
    main()
