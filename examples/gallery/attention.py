"""attention: softmax(q kᵀ) v with its log-sum-exp, over all keys, those before, or a window.

``s = scale q kᵀ``, masked places -inf; ``lse = log sum exp(s)``; ``out = exp(s - lse) v``. With
``p = exp(s - lse)`` and ``delta = sum(g_out out) - g_lse`` the gradients are
``ds = p (g_out vᵀ - delta) scale``, ``gq = ds k``, ``gk = dsᵀ q``, ``gv = pᵀ g_out``: the
probabilities come back from lse, nothing of their size is kept. A causal mask is aligned to the
lower right; a row that sees nothing gives 0 and -inf.
(Dao et al., "FlashAttention", arXiv:2205.14135.)

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

MASK = "bool causal=False, int window_left=-1, int window_right=-1"
lib = oplib.Library("gallery", "FRAGMENT")
attention = lib.define(
    f"attention(Tensor q, Tensor k, Tensor v, float? scale=None, {MASK})"
    " -> (Tensor out, Tensor lse)"
).op


def check(q, k, v, left=-1, right=-1):
    if min(x.ndim for x in (q, k, v)) < 2 or q.shape[:-2] != k.shape[:-2] != v.shape[:-2]:
        raise ValueError("attention: q, k and v are [.., length, size] with the same heads")
    if q.shape[:-2] != v.shape[:-2] or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            "attention: q and k agree in size, k and v in length; got "
            f"{list(q.shape)}, {list(k.shape)}, {list(v.shape)}"
        )
    if min(left, right) < -1:
        raise ValueError("attention: a window is -1, for no limit, or not negative")
    if q.dtype.kind != "f" or not q.dtype == k.dtype == v.dtype:
        raise ValueError("attention: q, k and v hold floats of one dtype")


def seen(rows, columns, causal, left, right):
    """Return which keys each query may attend to."""
    ahead = np.arange(columns) - np.arange(rows)[:, None] - (columns - rows)
    mask = ahead <= (0 if causal else columns + rows)
    mask &= ahead >= -left if left >= 0 else True
    return mask & (ahead <= right) if right >= 0 else mask


def scores(q, k, scale, causal, left, right):
    """Return masked scores in single precision at least, of arrays."""
    wide = np.promote_types(q.dtype, np.float32)
    s = (q.astype(wide) @ np.swapaxes(k, -1, -2).astype(wide)) * scale
    return np.where(seen(q.shape[-2], k.shape[-2], causal, left, right), s, -np.inf)


def scale_of(q, scale):
    return max(q.shape[-1], 1) ** -0.5 if scale is None else scale


@attention.register_kernel("cpu")
def _(q, k, v, scale, causal, left, right):
    check(q, k, v, left, right)
    s = scores(q, k, scale_of(q, scale), causal, left, right)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = e.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + np.where(np.isfinite(top), top, 0)
    out = (e / np.where(total == 0, 1, total)) @ v
    return out.astype(q.dtype, "C"), np.ascontiguousarray(lse[..., 0])


@attention.register_fake
def _(q, k, v, scale, causal, left, right):
    check(q, k, v, left, right)
    out = oplib.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype)
    return out, oplib.empty(q.shape[:-1], dtype=np.promote_types(q.dtype, np.float32))


@attention.register_vjp
def _(grad_out, grad_lse, q, k, v, out, lse, scale, causal, window_left, window_right):
    scale = scale_of(q, scale)
    mask = seen(q.shape[-2], k.shape[-2], causal, window_left, window_right)
    hidden = oplib.from_numpy(~mask)
    base = oplib.masked_fill(lse, lse == -np.inf, 0.0)[..., None]
    p = oplib.masked_fill(((q @ k.swapaxes(-1, -2)) * scale - base).exp(), hidden, 0.0)
    delta = (grad_out * out).sum(-1)
    delta = delta if grad_lse is None else delta - grad_lse
    ds = p * (grad_out @ v.swapaxes(-1, -2) - delta[..., None]) * scale
    return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ grad_out


def main() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (oplib.from_numpy(rng.normal(size=(4, 3))) for _ in range(3))
    out, lse = attention(q, k, v, causal=True)
    p = np.exp(scores(q.numpy(), k.numpy(), scale_of(q, None), True, -1, -1) - lse.numpy()[:, None])
    print("each row attends to itself and what came before:", p.round(2), sep="\n")
    print("the first row is its own value:", np.allclose(out[0], v[0]))


if __name__ == "__main__":
    main()
