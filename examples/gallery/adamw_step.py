"""adamw_step_: one optimizer step over lists of parameters, in place.

Per parameter, with ``g`` negated to maximize: ``p -= lr decay p``, ``m = β₁ m + (1-β₁) g``,
``v = β₂ v + (1-β₂) g²``, w is v or its running maximum, and
``p -= lr m / (1-β₁ᵗ) / (sqrt(w / (1-β₂ᵗ)) + eps)``.
(Loshchilov and Hutter, "Decoupled Weight Decay Regularization", arXiv:1711.05101; the maximum:
Reddi et al., "On the Convergence of Adam and Beyond", ICLR 2018.)

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
adamw_step_ = lib.define(
    "adamw_step_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avg, "
    "Tensor(c!)[] exp_avg_sq, Tensor(d!)[]? max_exp_avg_sq, int step, float lr, float beta1, "
    "float beta2, float eps, float weight_decay, bool maximize=False) -> ()"
).op


def check(params, grads, exp_avg, exp_avg_sq, max_exp_avg_sq, step):
    if step < 1:
        raise ValueError(f"adamw_step_: step counts from 1, got {step}")
    lists = {"grads": grads, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    if max_exp_avg_sq is not None:
        lists["max_exp_avg_sq"] = max_exp_avg_sq
    for name, tensors in lists.items():
        if len(tensors) != len(params):
            raise ValueError(f"adamw_step_: {len(params)} params, {len(tensors)} {name}")
        for i, (tensor, param) in enumerate(zip(tensors, params, strict=True)):
            if tensor.shape != param.shape or (param.dtype.kind, tensor.dtype.kind) != ("f", "f"):
                raise ValueError(
                    f"adamw_step_: {name}[{i}] is {tensor.dtype}{list(tensor.shape)}, "
                    f"params[{i}] {param.dtype}{list(param.shape)}; floats of one shape"
                )


@adamw_step_.register_kernel("cpu")
def _(
    params, grads, exp_avg, exp_avg_sq, max_exp_avg_sq,
    step, lr, beta1, beta2, eps, weight_decay, maximize,
):  # fmt: skip
    check(params, grads, exp_avg, exp_avg_sq, max_exp_avg_sq, step)
    maxima = exp_avg_sq if max_exp_avg_sq is None else max_exp_avg_sq
    for p, g, m, v, w in zip(params, grads, exp_avg, exp_avg_sq, maxima, strict=True):
        g = -g if maximize else g
        p *= 1 - lr * weight_decay
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * g * g
        if max_exp_avg_sq is not None:
            np.maximum(v, w, out=w)
        p -= lr / (1 - beta1**step) * m / (np.sqrt(w / (1 - beta2**step)) + eps)


@adamw_step_.register_fake
def _(
    params, grads, exp_avg, exp_avg_sq, max_exp_avg_sq,
    step, lr, beta1, beta2, eps, weight_decay, maximize,
):  # fmt: skip
    check(params, grads, exp_avg, exp_avg_sq, max_exp_avg_sq, step)


def main() -> None:
    target = oplib.tensor([1.0, -2.0])
    param = oplib.zeros(2, requires_grad=True)
    state = [oplib.zeros(2)], [oplib.zeros(2)]
    for step in range(1, 201):
        loss = (param - target).square().sum()
        loss.backward()
        with oplib.no_grad():  # a parameter is a leaf: it is written outside of histories
            adamw_step_([param], [param.grad], *state, None, step, 0.05, 0.9, 0.99, 1e-8, 0.0)
        param.clear_grad()
    print("the parameter arrived:", param.detach().numpy().round(2), "loss", round(loss.item(), 6))


if __name__ == "__main__":
    main()
