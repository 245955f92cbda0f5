"""nms: of boxes that overlap, the one with the highest score.

Boxes ``[x1, y1, x2, y2]`` are taken in the order of falling scores, equal ones as they come; a box
is kept if its overlap with every kept box, intersection over union, is at most the threshold. How
many are kept is in the data, so a fake result has an unknown length between 0 and N. `batched_nms`
compares boxes of one class only. Nothing flows back through a choice.

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
nms = lib.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor").op
batched_nms = lib.define(
    "batched_nms(Tensor dets, Tensor scores, Tensor idxs, float iou_threshold) -> Tensor"
).op


def check(dets, scores, iou_threshold, idxs=None):
    if dets.ndim != 2 or dets.shape[1] != 4 or dets.dtype.kind != "f":
        raise ValueError(f"nms: dets is float [N, 4], got {dets.dtype}{list(dets.shape)}")
    for name, x in (("scores", scores), ("idxs", idxs)):
        if x is not None and x.shape != dets.shape[:1]:
            raise ValueError(f"nms: {name} has one number per box, got {list(x.shape)}")
    if not 0 <= iou_threshold <= 1:
        raise ValueError(f"nms: iou_threshold lies in 0 .. 1, got {iou_threshold}")


def overlaps(box, others):
    """Return intersection over union of one box with others; 0 where both are empty."""
    size = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    common = size.clip(0).prod(-1)
    areas = (others[:, 2:] - others[:, :2]).prod(-1) + (box[2:] - box[:2]).prod() - common
    return np.divide(common, areas, out=np.zeros_like(common), where=areas > 0)


def kept(dets, scores, iou_threshold, idxs):
    order = np.argsort(-scores, kind="stable")
    chosen = []
    while order.size:
        best, order = order[0], order[1:]
        chosen.append(best)
        hidden = (overlaps(dets[best], dets[order]) > iou_threshold) & (idxs[order] == idxs[best])
        order = order[~hidden]
    return np.array(chosen, np.int64)


@nms.register_kernel("cpu")
def _(dets, scores, iou_threshold):
    check(dets, scores, iou_threshold)
    return kept(dets, scores, iou_threshold, np.zeros(len(dets)))


@batched_nms.register_kernel("cpu")
def _(dets, scores, idxs, iou_threshold):
    check(dets, scores, iou_threshold, idxs)
    return kept(dets, scores, iou_threshold, idxs)


def some_of(dets):
    """Return a fake index of unknown length, at most one element per box."""
    count = oplib.get_ctx().new_dynamic_size(min=0, max=dets.shape[0])
    return dets.new_empty([count], dtype="int64")


@nms.register_fake
def _(dets, scores, iou_threshold):
    check(dets, scores, iou_threshold)
    return some_of(dets)


@batched_nms.register_fake
def _(dets, scores, idxs, iou_threshold):
    check(dets, scores, iou_threshold, idxs)
    return some_of(dets)


def main() -> None:
    corners = [[0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30], [0, 0, 9, 11]]
    dets, scores = oplib.tensor(corners).cast("float64"), oplib.tensor([0.8, 0.9, 0.5, 0.7])
    print("boxes kept:               ", nms(dets, scores, 0.5).tolist())
    classes = oplib.tensor([0, 1, 1, 0])
    print("compared in classes only: ", batched_nms(dets, scores, classes, 0.5).tolist())


if __name__ == "__main__":
    main()
