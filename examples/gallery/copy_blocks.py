"""copy_blocks: blocks of many caches copied within each, as when a sequence forks.

``block_mapping`` has a row (source, target) per copy; for every layer, and in the order of the
rows, ``cache[target] = cache[source]``, so a block may be copied on from where it was copied to.
Each element of both lists is written, and each version moves once.

Needs: nothing else.
"""

from __future__ import annotations

import itertools

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
copy_blocks = lib.define(
    "copy_blocks(Tensor(a!)[] key_caches, Tensor(b!)[] value_caches, Tensor block_mapping) -> ()"
).op


def check(key_caches, value_caches, block_mapping):
    if len(key_caches) != len(value_caches):
        raise ValueError(
            f"copy_blocks: {len(key_caches)} key_caches and {len(value_caches)} value_caches; "
            "there is one of each per layer"
        )
    if any(cache.ndim == 0 for cache in (*key_caches, *value_caches)):
        raise ValueError("copy_blocks: a cache has an axis of blocks")
    shape = block_mapping.shape
    if block_mapping.dtype.kind != "i" or len(shape) != 2 or shape[1] != 2:
        raise ValueError(f"copy_blocks: block_mapping has rows (source, target), got {list(shape)}")


@copy_blocks.register_kernel("cpu")
def _(key_caches, value_caches, block_mapping):
    check(key_caches, value_caches, block_mapping)
    caches = [*key_caches, *value_caches]
    for one, other in itertools.combinations(caches, 2):
        if np.shares_memory(one, other):
            raise ValueError("copy_blocks: two of the caches are, or overlap, one array")
    for cache in caches:
        if block_mapping.size and not 0 <= block_mapping.min() <= block_mapping.max() < len(cache):
            raise IndexError(f"copy_blocks: a block lies outside 0 .. {len(cache) - 1}")
    for cache in caches:
        for source, target in block_mapping:
            cache[target] = cache[source]


copy_blocks.register_fake(check)


def main() -> None:
    layers = [oplib.arange(4.0).reshape((4, 1)) for _ in range(2)]
    values = [-layer for layer in layers]
    copy_blocks(layers, values, oplib.tensor([[0, 1], [1, 3]]))
    print("block 0 went to 1, and on to 3:", [layer.flatten().tolist() for layer in layers])
    print("each version moved once:       ", [cache.inplace_version for cache in layers + values])


if __name__ == "__main__":
    main()
