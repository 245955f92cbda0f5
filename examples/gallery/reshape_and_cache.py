"""reshape_and_cache: keys and values of new tokens stored where a paged cache has room.

A cache ``[blocks, block_size, heads, size]`` is a pool of slots; slot i is place ``i % block_size``
of block ``i // block_size``. Token t goes to ``slot_mapping[t]``; a negative slot is padding. With
an ``int8`` cache, values are divided by their scale, rounded and clipped.

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
reshape_and_cache = lib.define(
    "reshape_and_cache(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, "
    "Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()"
).op
KINDS = ("auto", "int8")


def check(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale):
    if kv_cache_dtype not in KINDS:
        raise ValueError(f"reshape_and_cache: kv_cache_dtype is in {KINDS}, got {kv_cache_dtype!r}")
    if slot_mapping.ndim != 1 or slot_mapping.dtype.kind != "i":
        raise ValueError("reshape_and_cache: slot_mapping holds one signed integer per token")
    for name, new, cache in (("key", key, key_cache), ("value", value, value_cache)):
        if cache.ndim != 4 or new.ndim != 3 or new.shape[1:] != cache.shape[2:]:
            raise ValueError(
                f"reshape_and_cache: {name} is [tokens, heads, size], its cache "
                f"[blocks, block_size, heads, size]; got {list(new.shape)} and {list(cache.shape)}"
            )
        if new.shape[0] < slot_mapping.shape[0]:
            raise ValueError(f"reshape_and_cache: {name} has fewer rows than there are slots")
        wanted = np.dtype(np.int8) if kv_cache_dtype == "int8" else new.dtype
        if cache.dtype != wanted:
            raise ValueError(
                f"reshape_and_cache: the cache of {name} is {wanted}, not {cache.dtype}"
            )
    if k_scale.shape != () or v_scale.shape != ():
        raise ValueError("reshape_and_cache: a scale is one number")


@reshape_and_cache.register_kernel("cpu")
def _(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale):
    rest = slot_mapping, kv_cache_dtype, k_scale, v_scale
    check(key, value, key_cache, value_cache, *rest)
    for cache in (key_cache, value_cache):
        if slot_mapping.size and slot_mapping.max() >= cache.shape[0] * cache.shape[1]:
            raise IndexError(f"reshape_and_cache: there is no slot {slot_mapping.max()}")
    tokens = np.flatnonzero(slot_mapping >= 0)
    slots = slot_mapping[tokens]
    slots, last = np.unique(slots[::-1], return_index=True)  # of equal slots the last one is kept
    tokens = tokens[::-1][last]
    for new, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
        rows = new[tokens]
        if kv_cache_dtype == "int8":
            rows = np.clip(np.rint(rows / scale), -128, 127)
        cache[slots // cache.shape[1], slots % cache.shape[1]] = rows


reshape_and_cache.register_fake(check)


def main() -> None:
    key = oplib.arange(1.0, 4.0).reshape((3, 1, 1))
    caches = oplib.zeros((2, 2, 1, 1)), oplib.zeros((2, 2, 1, 1), dtype="float64")
    slots = oplib.tensor([3, -1, 0])
    one = oplib.tensor(1.0)
    reshape_and_cache(key, -key, *caches, slots, "auto", one, one)
    print("tokens 1 and 3 are in slots 3 and 0:", caches[0].flatten().tolist())
    small = oplib.zeros((2, 2, 1, 1), dtype="int8"), oplib.zeros((2, 2, 1, 1), dtype="int8")
    reshape_and_cache(key, -key, *small, slots, "int8", oplib.tensor(0.1), oplib.tensor(0.01))
    print("as small integers:                  ", small[0].flatten().tolist())


if __name__ == "__main__":
    main()
