from __future__ import annotations

import numpy as np
import pytest

import oplib
from tests.gallery.harness import Case, Fails, gallery, normal, tensor

example = gallery("rotary_embedding")
rotary, rotated = example.rotary, example.rotated
P, Q, K = tensor([0, 3, 1]), normal(3, 8), normal(3, 4, seed=1)
CACHE = example.cache(5, 4)
ONE = normal(3, 8)
ARGUMENTS = "int head_size, Tensor cos_sin_cache, bool is_neox"


def program(positions, qkv):
    qkv = qkv * 1
    rotary(positions, qkv[:, :8], qkv[:, 8:12], 4, CACHE, True)
    return qkv


CASES = [
    Case(
        rotated,
        f"rotated(Tensor positions, Tensor query, Tensor? key, {ARGUMENTS})"
        " -> (Tensor q, Tensor? k)",
        [
            (P, Q, K, 4, CACHE, True),
            (P, Q, None, 8, CACHE, False),
            (P, normal(3, 2, 4), K, 4, CACHE, False),
            (tensor([], "int64"), normal(0, 8), None, 4, CACHE, True),
        ],
        opcheck={"samples": [((P[:2], normal(2, 4), normal(2, 4), 4, CACHE, True), {})]},
        gradients=[
            (lambda q, k: rotated(P, q, k, 4, CACHE, True), (Q, K)),
            (lambda q: rotated(P, q, None, 4, CACHE, False)[0], (normal(3, 2, 4),)),
        ],
        fails=[
            Fails((tensor([0, 5, 1]), Q, K, 4, CACHE, True), IndexError, "outside 0 .. 4"),
            Fails((tensor([0, -1, 1]), Q, K, 4, CACHE, True), IndexError, "outside 0 .. 4"),
            Fails((P, Q, K, 4, CACHE[:, :3], True), ValueError, "3 columns"),
            Fails((P, Q, K, 2, CACHE, True), ValueError, "at most 2"),
            Fails((P, normal(3, 6), K, 4, CACHE, True), ValueError, "no whole heads"),
        ],
        program=(lambda p, q, k: rotated(p, q, k, 4, CACHE, True)[0] + 1, (P, Q, K)),
    ),
    Case(
        rotary,
        f"rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, {ARGUMENTS}) -> ()",
        [(P, Q, K, 4, CACHE, True), (P, normal(3, 2, 4), None, 4, CACHE, False)],
        fails=[
            Fails((P, ONE, ONE, 4, CACHE, True), ValueError, "overlap"),
            Fails((tensor([9, 0, 0]), normal(3, 8), None, 4, CACHE, True), IndexError, "outside"),
        ],
        program=(program, (P, normal(3, 16))),
    ),
]


def test_slices_of_one_buffer_are_rotated_and_its_version_moves_once():
    qkv = normal(3, 16)
    before, version = qkv.clone(), qkv.inplace_version
    rotary(P, qkv[:, :8], qkv[:, 8:12], 4, CACHE, True)
    q, k = rotated(P, before[:, :8], before[:, 8:12], 4, CACHE, True)
    assert np.array_equal(qkv, oplib.ops.std.concat([q, k, before[:, 12:]], 1))
    assert qkv.inplace_version == version + 1


def test_captured_a_write_through_slices_gives_the_same():
    captured = oplib.capture(program, P, normal(3, 16))
    assert "gallery.rotated(" in str(captured.graph)
    assert np.array_equal(captured(P, normal(3, 16)), program(P, normal(3, 16)))


@pytest.mark.parametrize("is_neox", [True, False])
def test_products_of_queries_and_keys_depend_on_distances_only(is_neox):
    vector = normal(1, 4).expand((5, 4))
    q, k = rotated(oplib.arange(5), vector, vector.clone(), 4, CACHE, is_neox)
    products = (q @ k.transpose()).numpy()
    for distance in range(-4, 5):
        np.testing.assert_allclose(np.diff(products.diagonal(distance)), 0, atol=1e-12)
