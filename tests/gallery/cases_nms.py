from __future__ import annotations

import itertools

import numpy as np
import pytest

import oplib
from tests.gallery.harness import Case, Fails, gallery, tensor

example = gallery("nms")
nms, batched_nms = example.nms, example.batched_nms
RNG = np.random.default_rng(0)
CORNER = RNG.uniform(0, 10, (12, 2))
DETS = oplib.from_numpy(np.concatenate([CORNER, CORNER + RNG.uniform(1, 6, (12, 2))], 1))
SCORES = oplib.from_numpy(RNG.integers(0, 6, 12) / 6)
CLASSES = oplib.from_numpy(RNG.integers(0, 2, 12))
NONE = oplib.zeros((0, 4)), oplib.zeros(0)
CALLS = [(DETS, SCORES, 0.3), (DETS, SCORES, 0.0), (DETS, SCORES, 1.0), (*NONE, 0.5)]
BATCHED = [(DETS, SCORES, CLASSES, 0.3), (*NONE, oplib.zeros(0), 0.5)]


def count(dets, scores):
    return oplib.ops.std.index_select(scores, nms(dets * 1, scores, 0.3)).sum()


CASES = [
    Case(
        nms,
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        CALLS,
        opcheck={"samples": [(call, {}) for call in CALLS]},
        fails=[
            Fails((DETS[:, :3], SCORES, 0.5), ValueError, "dets is float"),
            Fails((DETS, SCORES[:5], 0.5), ValueError, "scores has one number per box"),
            Fails((DETS, SCORES, 1.5), ValueError, "lies in 0 .. 1, got 1.5"),
            Fails((DETS, SCORES, -0.1), ValueError, "lies in 0 .. 1"),
        ],
        program=(count, (DETS, SCORES)),
    ),
    Case(
        batched_nms,
        "batched_nms(Tensor dets, Tensor scores, Tensor idxs, float iou_threshold) -> Tensor",
        BATCHED,
        opcheck={"samples": [(call, {}) for call in BATCHED]},
        fails=[Fails((DETS, SCORES, CLASSES[:3], 0.5), ValueError, "idxs has one number per box")],
        program=(lambda d, s, c: batched_nms(d * 2, s, c, 0.3) + 1, (DETS, SCORES, CLASSES)),
    ),
]


def slowly(dets, scores, threshold):
    """Return what is kept, box by box."""

    def overlap(a, b):
        width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
        height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
        common = width * height
        return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)

    kept = []
    for i in sorted(range(len(dets)), key=lambda i: -scores[i]):
        if all(overlap(dets[i], dets[j]) <= threshold for j in kept):
            kept.append(i)
    return kept


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_kept_boxes_are_those_of_a_slow_loop_in_order_of_falling_scores(threshold):
    dets, scores = DETS.tolist(), SCORES.tolist()
    assert nms(DETS, SCORES, threshold).tolist() == slowly(dets, scores, threshold)


def test_boxes_of_other_classes_are_not_compared():
    found = batched_nms(DETS, SCORES, CLASSES, 0.3).tolist()
    scores = SCORES.numpy()
    for one in (0, 1):
        members = np.flatnonzero(CLASSES.numpy() == one)
        kept = nms(DETS[members], SCORES[members], 0.3).numpy()
        assert [i for i in found if i in members] == members[kept].tolist()
    assert all(scores[a] >= scores[b] for a, b in itertools.pairwise(found))


def test_a_choice_has_no_gradient_and_an_unknown_length():
    assert not nms(DETS.clone().requires_grad_(), SCORES, 0.3).requires_grad
    with oplib.FakeTensorMode(dynamic=True):
        shape = nms(oplib.empty((7, 4)), oplib.empty(7), 0.5).shape
    assert str(shape) == "(u0,)"


def test_a_box_without_area_hides_nothing():
    dets = tensor([[0.0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 2, 2]])
    assert nms(dets, tensor([3.0, 2.0, 1.0]), 0.0).tolist() == [0, 1, 2]
