from __future__ import annotations

import numpy as np
import pytest

import oplib
from tests.gallery.harness import Case, Fails, gallery, normal, tensor

op = gallery("copy_blocks").copy_blocks
PAIRS = tensor([[0, 1], [1, 3]])
ONE = normal(4, 2)


def layers(seed, count=2):
    return [normal(4, 2, seed=seed + i) for i in range(count)]


def program(both):
    both = both * 1
    op([both[0], both[1]], [both[2], both[3]], PAIRS)
    return both


CASES = [
    Case(
        op,
        "copy_blocks(Tensor(a!)[] key_caches, Tensor(b!)[] value_caches, Tensor block_mapping)"
        " -> ()",
        [
            (layers(0), layers(2), PAIRS),
            ([], [], PAIRS),
            (layers(0), layers(2), oplib.zeros((0, 2), dtype="int64")),
        ],
        fails=[
            Fails((layers(0), layers(2, 1), PAIRS), ValueError, "2 key_caches and 1 value_caches"),
            Fails(([ONE], [ONE], PAIRS), ValueError, "one array"),
            Fails((layers(0), layers(2), tensor([[0, 4]])), IndexError, "outside 0 .. 3"),
            Fails((layers(0), layers(2), tensor([[0, -1]])), IndexError, "outside 0 .. 3"),
            Fails((layers(0), layers(2), tensor([[0, 1, 2]])), ValueError, "rows"),
            Fails((layers(0), layers(2), tensor([[0.0, 1.0]])), ValueError, "rows"),
        ],
        program=(program, (normal(4, 4, 2),)),
    )
]


def test_copies_are_made_in_order_and_every_version_moves_once():
    keys, values = layers(0), layers(2)
    before = [cache.clone() for cache in (*keys, *values)]
    versions = [cache.inplace_version for cache in (*keys, *values)]
    op(keys, values, PAIRS)
    for cache, old, version in zip((*keys, *values), before, versions, strict=True):
        assert np.array_equal(cache, old.numpy()[[0, 0, 2, 0]])
        assert cache.inplace_version == version + 1


def test_an_error_in_a_later_layer_leaves_the_first_alone():
    keys, values = [normal(4, 2), normal(2, 2)], layers(2)
    with pytest.raises(IndexError):
        op(keys, values, PAIRS)
    assert np.array_equal(keys[0], normal(4, 2))
