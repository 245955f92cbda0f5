from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib.errors import AutogradError
from tests.gallery.harness import Case, Fails, gallery, normal, tensor

op = gallery("reshape_and_cache").reshape_and_cache
ONE = oplib.tensor(1.0)
K, V = normal(4, 2, 3), normal(4, 2, 3, seed=1)
SLOTS = tensor([5, -1, 0, 7])


def caches(dtype="float64"):
    return oplib.zeros((3, 4, 2, 3), dtype=dtype), oplib.zeros((3, 4, 2, 3), dtype=dtype)


def program(key, value):
    both = oplib.zeros((2, 3, 4, 2, 3))
    op(key * 2, value, both[0], both[1], SLOTS, "auto", ONE, ONE)
    return both


def call(slots=SLOTS, kind="auto", key=K, dtype="float64"):
    return key, V, *caches(dtype), slots, kind, ONE, ONE


CASES = [
    Case(
        op,
        "reshape_and_cache(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, "
        "Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()",
        [call(), call(tensor([1, 2])), call(tensor([], "int64")), call(kind="int8", dtype="int8")],
        fails=[
            Fails(call(tensor([12, 0])), IndexError, "no slot 12"),
            Fails(call(key=K[:3]), ValueError, "key has fewer rows"),
            Fails(call(kind="fp8"), ValueError, "kv_cache_dtype is in"),
            Fails(call(dtype="float32"), ValueError, "the cache of key is float64"),
            Fails((K.clone().requires_grad_(), *call()[1:]), AutogradError, "no gradient rule"),
        ],
        program=(program, (K, V)),
    )
]


def test_the_last_of_equal_slots_wins():
    key_cache, value_cache = caches()
    op(K, V, key_cache, value_cache, tensor([3, 3, -1, 3]), "auto", ONE, ONE)
    assert np.array_equal(key_cache[0, 3], K[3])
    assert np.array_equal(value_cache[0, 3], V[3])
    assert np.count_nonzero(key_cache) == 6


def test_an_integer_cache_holds_rounded_and_clipped_multiples_of_the_scale():
    key_cache, value_cache = caches("int8")
    scale = oplib.tensor(0.01)
    op(K, V, key_cache, value_cache, SLOTS, "int8", scale, ONE)
    np.testing.assert_array_equal(key_cache[1, 1], np.clip(np.rint(K[0].numpy() / 0.01), -128, 127))
    np.testing.assert_array_equal(value_cache[1, 3], np.rint(V[3]))


@pytest.mark.parametrize("which", [2, 3])
def test_a_slot_that_only_one_cache_has_leaves_both_alone(which):
    args = list(call(tensor([11])))
    args[which] = args[which][:2].clone()
    with pytest.raises(IndexError):
        op(*args)
    assert not np.any(args[2])
    assert not np.any(args[3])
