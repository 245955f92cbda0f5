"""attention_bwd: the backward of attention as an operator, into memory of the caller where given.

From what `attention` returned, ``p = exp(s - lse)``, ``delta = sum(dout out)`` and
``ds = p (dout vᵀ - delta) scale``: ``dq = ds k``, ``dk = dsᵀ q``, ``dv = pᵀ dout``. A given dq, dk
or dv is written, None is left out; delta is returned.

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np
from attention import attention, check, scale_of, scores

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
attention_bwd = lib.define(
    "attention_bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    "Tensor(a!)? dq=None, Tensor(b!)? dk=None, Tensor(c!)? dv=None, float? scale=None, "
    "bool causal=False) -> Tensor softmax_d"
).op


def check_all(dout, q, k, v, out, lse, dq, dk, dv):
    check(q, k, v)
    wanted = {"dout": (dout, out), "dq": (dq, q), "dk": (dk, k), "dv": (dv, v)}
    for name, (given, like) in wanted.items():
        if given is not None and (given.shape, given.dtype) != (like.shape, like.dtype):
            raise ValueError(f"attention_bwd: {name} is {like.dtype}{list(like.shape)}")
    if lse.shape != q.shape[:-1] or out.shape != (*q.shape[:-1], v.shape[-1]):
        raise ValueError("attention_bwd: out and lse are what attention returned for q, k and v")


@attention_bwd.register_kernel("cpu")
def _(dout, q, k, v, out, lse, dq, dk, dv, scale, causal):
    check_all(dout, q, k, v, out, lse, dq, dk, dv)
    given = [x for x in (dq, dk, dv) if x is not None]
    for i, one in enumerate(given):
        if any(np.shares_memory(one, x) for x in (*given[i + 1 :], dout, q, k, v, out, lse)):
            raise ValueError("attention_bwd: dq, dk or dv overlaps another of them or an input")
    scale = scale_of(q, scale)
    base = np.where(np.isfinite(lse), lse, 0)[..., None]
    p = np.exp(scores(q, k, scale, causal, -1, -1) - base)
    delta = (dout * out).sum(-1, dtype=lse.dtype)
    ds = p * (dout @ np.swapaxes(v, -1, -2) - delta[..., None]) * scale
    turned = np.swapaxes(ds, -1, -2)
    for into, value in ((dq, ds @ k), (dk, turned @ q), (dv, np.swapaxes(p, -1, -2) @ dout)):
        if into is not None:
            into[...] = value
    return delta


@attention_bwd.register_fake
def _(dout, q, k, v, out, lse, dq, dk, dv, scale, causal):
    check_all(dout, q, k, v, out, lse, dq, dk, dv)
    return oplib.empty(lse.shape, dtype=lse.dtype)


def main() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (oplib.tensor(rng.normal(size=(4, 3)), requires_grad=True) for _ in range(3))
    out, lse = attention(q, k, v, causal=True)
    out.sum().backward()
    plain = [x.detach() for x in (q, k, v, out, lse)]
    dq = oplib.empty((4, 3))
    delta = attention_bwd(oplib.ones((4, 3)), *plain, dq=dq, causal=True)
    print("dq is what backward gives:", np.allclose(dq, q.grad))
    print("sums of dout * out:       ", delta.numpy().round(3))


if __name__ == "__main__":
    main()
