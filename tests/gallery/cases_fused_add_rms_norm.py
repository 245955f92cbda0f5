from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib.errors import AutogradError
from tests.gallery.harness import Case, Fails, gallery, normal

example = gallery("fused_add_rms_norm")
fused, twin = example.fused, example.twin
X, R, W = normal(3, 4), normal(3, 4, seed=1), normal(4)
ONE = normal(3, 4)


def program(x, residual, weight):
    buffer = oplib.ops.std.stack([x, residual])
    fused(buffer[0], buffer[1], weight, 1e-6)
    return buffer * 2


def norm_of_sum(x, residual, weight):
    y, s = twin(x, residual, weight, 1e-3)
    return y * s


CASES = [
    Case(
        twin,
        "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor y, Tensor s)",
        [
            (X, R, W, 1e-6),
            (normal(0, 4), normal(0, 4), W, 1e-6),
            (normal(2, 0),) * 2 + (normal(0), 0.1),
        ],
        gradients=[(lambda *a: twin(*a, 1e-3), (X, R, W)), (norm_of_sum, (X, R, W))],
        fails=[
            Fails((X, normal(2, 4), W, 1e-6), ValueError, "they must be alike"),
            Fails((X, R, normal(3), 1e-6), ValueError, "weight is float64"),
        ],
        program=(norm_of_sum, (X, R, W)),
        half=True,
    ),
    Case(
        fused,
        "fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps) -> ()",
        [(X, R, W, 1e-6), (normal(0, 4), normal(0, 4), W, 1e-6)],
        fails=[
            Fails((ONE, ONE, W, 1e-6), ValueError, "overlap"),
            Fails((X, R.cast("float32"), W, 1e-6), ValueError, "they must be alike"),
            Fails(
                (normal(3, 4).requires_grad_(), R, W, 1e-6), AutogradError, "writes to x, residual"
            ),
            Fails(
                (X, normal(3, 4).requires_grad_(), W, 1e-6), AutogradError, "writes to x, residual"
            ),
        ],
        program=(program, (X, R, W)),
        half=True,
    ),
]


def test_the_sum_is_stored_before_its_norm_and_each_version_moves_once():
    x, residual = X.clone(), R.clone()
    before = x.inplace_version, residual.inplace_version
    fused(x, residual, W, 1e-6)
    y, s = twin(X, R, W, 1e-6)
    assert np.array_equal(x, y)
    assert np.array_equal(residual, s)
    assert (x.inplace_version, residual.inplace_version) == (before[0] + 1, before[1] + 1)


def test_captured_the_form_that_writes_is_its_twin():
    program_of_views = oplib.capture(program, X, R, W)
    text = str(program_of_views.graph)
    assert "gallery.add_rms_norm(" in text
    assert "fused_add" not in text
    assert np.array_equal(program_of_views(X, R, W), program(X, R, W))


@pytest.mark.parametrize("argument", [0, 1])
def test_a_written_argument_with_history_needs_a_rule(argument):
    args = [X.clone(), R.clone()]
    args[argument] = normal(3, 4).requires_grad_() * 1
    with pytest.raises(AutogradError, match="no gradient rule"):
        fused(*args, W, 1e-6)
