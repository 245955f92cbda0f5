from __future__ import annotations

import oplib
from tests.gallery.harness import Case, Fails, gallery, normal

example = gallery("rms_norm")
rms_norm, into = example.rms_norm, example.rms_norm_out
X, W = normal(3, 4), normal(4)
SHARED = normal(3, 4)


def program(x, weight):
    return (rms_norm(x * 2, weight) + x).sum(-1)


def stored(out, x, weight):
    into(out, x * 2, weight, 1e-6)
    return out + 1


CASES = [
    Case(
        rms_norm,
        "rms_norm(Tensor x, Tensor weight, float eps=1e-6) -> Tensor",
        [(X, W), (normal(0, 4), W), (normal(3, 0), normal(0)), (normal(2, 3, 4), W, 0.5)],
        gradients=[(rms_norm, (X, W)), (rms_norm, (normal(2, 2, 3), normal(3), 0.1))],
        fails=[
            Fails((X, normal(3)), ValueError, "weight is float64.4., one number per element"),
            Fails((X, W.cast("float32")), ValueError, "got float32"),
        ],
        program=(program, (X, W)),
        half=True,
    ),
    Case(
        into,
        "rms_norm.out(Tensor! out, Tensor x, Tensor weight, float eps) -> ()",
        [(oplib.zeros((3, 4)), X, W, 1e-6)],
        fails=[
            Fails((oplib.zeros((2, 4)), X, W, 1e-6), ValueError, "shape and dtype of x"),
            Fails((oplib.zeros((3, 4), dtype="float32"), X, W, 1e-6), ValueError, "dtype of x"),
            Fails((SHARED, SHARED, W, 1e-6), ValueError, "out overlaps x or weight"),
        ],
        program=(stored, (oplib.zeros((3, 4)), X, W)),
        half=True,
    ),
]
