"""swiglu_mlp: a gated feed-forward block as one operator, in two variants of memory.

``a = x w_gate``, ``b = x w_up``, ``y = (silu(a) b) w_down``. With ``gh = g w_downᵀ`` the gradients
are ``ga = gh b silu'(a)``, ``gb = gh silu(a)``, ``gx = ga w_gateᵀ + gb w_upᵀ``, and each weight
gets its input transposed times its gradient. One rule computes a and b again from what it saved,
the inputs; the other variant returns a and b as well, so that they can be saved.
(Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202.)

Needs: nothing else.
"""

from __future__ import annotations

import math

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
WEIGHTS = "Tensor x, Tensor w_gate, Tensor w_up, Tensor w_down"
swiglu_mlp = lib.define(f"swiglu_mlp({WEIGHTS}) -> Tensor").op
keeping = lib.define(f"swiglu_mlp_saving({WEIGHTS}) -> (Tensor y, Tensor a, Tensor b)").op


def check(x, w_gate, w_up, w_down):
    shapes = [list(t.shape) for t in (x, w_gate, w_up, w_down)]
    if x.ndim < 1 or any(w.ndim != 2 for w in (w_gate, w_up, w_down)):
        raise ValueError(f"swiglu_mlp: x has rows, weights are matrices; got {shapes}")
    if shapes[0][-1:] + shapes[3][:1] != shapes[1] or shapes[1] != shapes[2]:
        raise ValueError(f"swiglu_mlp: the inner sizes of {shapes} do not fit")
    if x.dtype.kind != "f" or len({t.dtype for t in (x, w_gate, w_up, w_down)}) > 1:
        raise ValueError("swiglu_mlp: x and the weights hold floats of one dtype")


def computed(x, w_gate, w_up, w_down):
    check(x, w_gate, w_up, w_down)
    wide = np.promote_types(x.dtype, np.float32)
    x, w_gate, w_up, w_down = (t.astype(wide, copy=False) for t in (x, w_gate, w_up, w_down))
    a, b = x @ w_gate, x @ w_up
    with np.errstate(over="ignore"):
        return (a / (1 + np.exp(-a)) * b) @ w_down, a, b


@swiglu_mlp.register_kernel("cpu")
def _(x, w_gate, w_up, w_down):
    return computed(x, w_gate, w_up, w_down)[0].astype(x.dtype, "C")


@keeping.register_kernel("cpu")
def _(x, w_gate, w_up, w_down):
    return tuple(t.astype(x.dtype, "C") for t in computed(x, w_gate, w_up, w_down))


@swiglu_mlp.register_fake
def _(x, w_gate, w_up, w_down):
    check(x, w_gate, w_up, w_down)
    return oplib.empty((*x.shape[:-1], w_down.shape[1]), dtype=x.dtype)


@keeping.register_fake
def _(x, w_gate, w_up, w_down):
    check(x, w_gate, w_up, w_down)
    sizes = w_down.shape[1], w_gate.shape[1], w_up.shape[1]
    return tuple(oplib.empty((*x.shape[:-1], n), dtype=x.dtype) for n in sizes)


def gradients(grad, more_a, more_b, x, w_gate, w_up, w_down, a, b):
    """Return the gradients of all four, rows flattened for the products of the weights."""

    def flat(t):
        return t.reshape((math.prod(t.shape[:-1]), t.shape[-1]))

    s = a.sigmoid()
    gh = grad @ w_down.transpose()
    ga = gh * b * s * (1 + a * (1 - s)) + more_a
    gb = gh * a * s + more_b
    return (
        ga @ w_gate.transpose() + gb @ w_up.transpose(),
        flat(x).transpose() @ flat(ga),
        flat(x).transpose() @ flat(gb),
        flat(a * s * b).transpose() @ flat(grad),
    )


@swiglu_mlp.register_vjp
def _(grad, x, w_gate, w_up, w_down):
    return gradients(grad, 0, 0, x, w_gate, w_up, w_down, x @ w_gate, x @ w_up)


@keeping.register_vjp
def _(grad_y, grad_a, grad_b, x, w_gate, w_up, w_down, a, b):
    return gradients(grad_y, grad_a, grad_b, x, w_gate, w_up, w_down, a, b)


def main() -> None:
    rng = np.random.default_rng(0)
    shapes = [(2, 3), (3, 4), (3, 4), (4, 3)]
    inputs = [oplib.tensor(rng.normal(size=shape), requires_grad=True) for shape in shapes]
    again = oplib.grad(swiglu_mlp(*inputs).sum(), inputs)
    saved = oplib.grad(keeping(*inputs)[0].sum(), inputs)
    same = [np.allclose(one, other) for one, other in zip(again, saved, strict=True)]
    print("computed again or saved, the gradients are the same:", same)


if __name__ == "__main__":
    main()
