"""cross_entropy: log-softmax, the choice of a class, and the mean, in one operator.

With ``p = softmax(logits)`` over C classes and smoothing e, a row loses
``-(1-e) log p[target] - e mean(log p)``; ignored rows lose nothing, and "mean" divides by the
others (0/0 is nan). The gradient is ``(p - (1-e) onehot - e/C) g / n``, zero in ignored rows.

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
OPTIONS = "int ignore_index=-100, float label_smoothing=0.0"
cross_entropy = lib.define(
    f'cross_entropy(Tensor logits, Tensor target, {OPTIONS}, str reduction="mean") -> Tensor'
).op


def check(logits, target, label_smoothing, reduction="mean"):
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"cross_entropy: reduction is 'mean', 'sum' or 'none', got {reduction!r}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing lies in 0 .. 1, got {label_smoothing}")
    if logits.dtype.kind != "f" or logits.ndim == 0 or not logits.shape[-1]:
        raise ValueError("cross_entropy: logits hold floats, a row of classes per target")
    if target.shape != logits.shape[:-1] or target.dtype.kind not in "iu":
        raise ValueError(f"cross_entropy: target holds integers, {list(logits.shape[:-1])}")


def wanted(target, classes, ignore_index, smoothing):
    """Return ``(1-e) onehot + e/C``, of a Tensor."""
    onehot = oplib.one_hot(oplib.where(target != ignore_index, target, 0), classes)
    return (1 - smoothing) * onehot.cast("float64") + smoothing / classes


def rows(logits, target, ignore_index, smoothing):
    """Return the loss of every row, its gradient, and which rows count."""
    classes, kept = logits.shape[-1], target != ignore_index
    if np.any(kept & ((target < 0) | (target >= classes))):
        raise IndexError(f"cross_entropy: a target is no class of 0 .. {classes - 1}")
    wide = logits.astype(np.promote_types(logits.dtype, np.float32))
    shifted = wide - wide.max(-1, keepdims=True)
    logp = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    onehot = np.where(kept, target, 0)[..., None] == np.arange(classes)
    share = (1 - smoothing) * onehot + smoothing / classes
    loss = np.where(kept, -(share * logp).sum(-1), 0)
    return loss, np.where(kept[..., None], np.exp(logp) - share, 0), kept


def mean(loss, kept):
    with np.errstate(invalid="ignore"):
        return np.asarray(loss.sum() / kept.sum())


@cross_entropy.register_kernel("cpu")
def _(logits, target, ignore_index, label_smoothing, reduction):
    check(logits, target, label_smoothing, reduction)
    loss, _, kept = rows(logits, target, ignore_index, label_smoothing)
    total = {"mean": lambda: mean(loss, kept), "sum": loss.sum, "none": lambda: loss}
    return np.asarray(total[reduction](), logits.dtype)


@cross_entropy.register_fake
def _(logits, target, ignore_index, label_smoothing, reduction):
    check(logits, target, label_smoothing, reduction)
    return oplib.empty(target.shape if reduction == "none" else (), dtype=logits.dtype)


def gradient(grad, logits, target, ignore_index, label_smoothing, reduction):
    share = wanted(target, logits.shape[-1], ignore_index, label_smoothing).cast(logits.dtype)
    kept = (target != ignore_index).cast(logits.dtype)
    if reduction == "mean":
        grad = grad / kept.sum().maximum(1)
    return (logits.softmax(-1) - share) * (kept * grad)[..., None]


cross_entropy.register_vjp(logits=gradient)


def main() -> None:
    logits = oplib.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]], requires_grad=True)
    target = oplib.tensor([0, 1, -100])
    cross_entropy(logits, target).backward()
    print("the third row is ignored:", cross_entropy(logits, target, reduction="none").tolist())
    print("gradient of the mean of two rows:", logits.grad.numpy().round(4), sep="\n")


if __name__ == "__main__":
    main()
