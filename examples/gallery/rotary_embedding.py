"""rotary_embedding: positions as rotations of pairs of features.

Row p of the cache holds rot/2 cosines, then rot/2 sines. A pair (a, b) of a head turns into
``(a cos - b sin, b cos + a sin)``. In the style of GPT-NeoX a pair is one element of either half
of the first rot elements; in that of GPT-J it is two neighbours. What lies beyond rot stays. A
rotation is undone by its transpose, so the gradient is the same map with the sines negated.
(Su et al., "RoFormer", arXiv:2104.09864.)

Needs: nothing else.
"""

from __future__ import annotations

import math

import numpy as np

import oplib

ARGUMENTS = "int head_size, Tensor cos_sin_cache, bool is_neox"
lib = oplib.Library("gallery", "FRAGMENT")
rotary = lib.define(
    f"rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, {ARGUMENTS}) -> ()"
).op
rotated = lib.define(
    f"rotated(Tensor positions, Tensor query, Tensor? key, {ARGUMENTS}) -> (Tensor q, Tensor? k)"
).op


def check(positions, query, key, head_size, cache):
    """Refuse what shapes and dtypes tell."""
    rot = cache.shape[-1]
    if cache.ndim != 2 or rot % 2 or rot > head_size:
        raise ValueError(f"rotary_embedding: {rot} columns of cache; even, at most {head_size}")
    if positions.ndim != 1 or positions.dtype.kind not in "iu":
        raise ValueError("rotary_embedding: positions are integers, one per token")
    for name, x in (("query", query), ("key", key)):
        if x is None:
            continue
        if x.dtype.kind != "f" or x.ndim not in (2, 3) or x.shape[0] != positions.shape[0]:
            raise ValueError(f"rotary_embedding: {name} holds floats, a row or heads per token")
        if x.shape[-1] % head_size or (x.ndim == 3 and x.shape[-1] != head_size):
            raise ValueError(f"rotary_embedding: {name} has no whole heads of {head_size} elements")


def turned(positions, x, head_size, cache, is_neox):
    """Return x with every head rotated, computed in single precision at least."""
    heads = x.reshape(len(x), math.prod(x.shape[1:]) // head_size, head_size)
    heads = heads.astype(np.promote_types(x.dtype, np.float32))
    rot = cache.shape[-1]
    cos, sin = np.split(cache[positions][:, None], 2, axis=-1)
    halves, neighbours = (
        (slice(rot // 2), slice(rot // 2, rot)),
        (slice(0, rot, 2), slice(1, rot, 2)),
    )
    one, two = halves if is_neox else neighbours
    a, b = heads[..., one].copy(), heads[..., two].copy()
    heads[..., one], heads[..., two] = a * cos - b * sin, b * cos + a * sin
    return heads.reshape(x.shape).astype(x.dtype)


@rotated.register_kernel("cpu")
def both(positions, query, key, head_size, cos_sin_cache, is_neox):
    check(positions, query, key, head_size, cos_sin_cache)
    if positions.size and not (positions.min() >= 0 and positions.max() < len(cos_sin_cache)):
        raise IndexError(f"rotary_embedding: a position lies outside 0 .. {len(cos_sin_cache) - 1}")
    rest = head_size, cos_sin_cache, is_neox
    return turned(positions, query, *rest), None if key is None else turned(positions, key, *rest)


@rotary.register_kernel("cpu")
def _(positions, query, key, head_size, cos_sin_cache, is_neox):
    if key is not None and np.shares_memory(query, key):
        raise ValueError("rotary_embedding: query and key overlap, and both are written")
    q, k = both(positions, query, key, head_size, cos_sin_cache, is_neox)
    query[...] = q
    if key is not None:
        key[...] = k


@rotated.register_fake
def _(positions, query, key, head_size, cos_sin_cache, is_neox):
    check(positions, query, key, head_size, cos_sin_cache)
    return tuple(None if x is None else oplib.empty(x.shape, dtype=x.dtype) for x in (query, key))


rotary.register_fake(lambda *arguments: check(*arguments[:5]))
rotary.register_functional(rotated)


@rotated.register_vjp
def _(grad_q, grad_k, positions, head_size, cos_sin_cache, is_neox, needs_input_grad):
    if needs_input_grad[4]:
        raise oplib.AutogradError("gallery::rotated: the cache is a table, it has no gradient")
    cos, sin = cos_sin_cache.chunk(2, -1)
    back = oplib.ops.std.concat([cos, -sin], -1)
    gq, gk = rotated(positions, grad_q, grad_k, head_size, back, is_neox)
    return {"query": gq, "key": gk, "cos_sin_cache": None}


def cache(length, rot, base=10000.0):
    """Return cosines and sines of ``position / base^(2 i / rot)``."""
    angles = np.arange(length)[:, None] / base ** (np.arange(0, rot, 2) / rot)
    return oplib.from_numpy(np.concatenate([np.cos(angles), np.sin(angles)], -1))


def main() -> None:
    qkv = oplib.ones((3, 3, 4))  # queries, keys and values of three tokens in one buffer
    rotary(oplib.arange(3), qkv[:, 0], qkv[:, 1], 4, cache(8, 4), True)
    print("queries and keys turn with their position:", qkv[:, 0].numpy().round(3), sep="\n")
    products = [(qkv[i + 1, 0] * qkv[i, 1]).sum().item() for i in range(2)]
    print("their products depend on distances only:", np.round(products, 6))
    print("values stay; one call wrote the buffer:", qkv[:, 2].tolist(), qkv.inplace_version)


if __name__ == "__main__":
    main()
