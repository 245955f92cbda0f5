from __future__ import annotations

import numpy as np

from tests.gallery.harness import Case, Fails, gallery, normal

example = gallery("layer_norm")
layer_norm, group_norm = example.layer_norm, example.group_norm
X, W, B = normal(3, 4), normal(4), normal(4, seed=1)
IMAGE = normal(2, 4, 3)

CASES = [
    Case(
        layer_norm,
        "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps=1e-5) -> Tensor",
        [(X, W, B), (X, None, None), (normal(0, 4), W, None), (normal(3, 0), None, None, 0.1)],
        gradients=[(layer_norm, (X, W, B)), (lambda x: layer_norm(x, None, None), (X,))],
        fails=[
            Fails((X, normal(3), None), ValueError, "weight is float64.4."),
            Fails((X, W, normal(3)), ValueError, "bias is float64.4."),
        ],
        program=(lambda x, w: layer_norm(x * 2, w, None).sum(-1), (X, W)),
        half=True,
    ),
    Case(
        group_norm,
        "group_norm(Tensor x, int groups, Tensor? weight=None, Tensor? bias=None, "
        "float eps=1e-5) -> Tensor",
        [(IMAGE, 2), (IMAGE, 4, W, B), (normal(0, 4), 2, W), (normal(2, 4), 1, None, B)],
        gradients=[
            (lambda x, w, b: group_norm(x, 2, w, b, 0.1), (IMAGE, W, B)),
            (lambda x: group_norm(x, 2), (normal(2, 4, 2, 2),)),
        ],
        fails=[
            Fails((IMAGE, 3), ValueError, "3 groups do not divide"),
            Fails((IMAGE, 0), ValueError, "0 groups do not divide"),
            Fails((IMAGE, 2, normal(3)), ValueError, "weight is float64.4."),
        ],
        program=(lambda x: group_norm(x * 2, 2).sum(-1), (IMAGE,)),
        half=True,
    ),
]


def test_rows_and_groups_have_mean_zero_and_variance_one():
    for result in (layer_norm(X, None, None, 0.0), group_norm(IMAGE, 2, None, None, 0.0)):
        rows = result.numpy().reshape(result.shape[0] * (2 if result.ndim == 3 else 1), -1)
        np.testing.assert_allclose(rows.mean(-1), 0, atol=1e-12)
        np.testing.assert_allclose(rows.var(-1), 1)
