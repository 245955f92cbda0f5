from __future__ import annotations

import math

import numpy as np
import pytest

import oplib
from oplib.errors import AutogradError
from tests.gallery.harness import Case, Fails, gallery, normal

step_ = gallery("adamw_step").adamw_step_
HOW = (0.1, 0.9, 0.99, 1e-8, 0.01)


def lists(seed, shapes=((2, 3), (4,))):
    return [normal(*shape, seed=seed + i) for i, shape in enumerate(shapes)]


def squares(seed):
    return [t.square() for t in lists(seed)]


def call(step=1, maxima=None, params=None, grads=None, **other):
    return (
        *(lists(0) if params is None else params, lists(2) if grads is None else grads),
        *(lists(4), squares(6), maxima, step, *HOW),
    )


def program(params, grads):
    params = [p * 1 for p in params]
    means, variances = [p * 0 for p in params], [p * 0 for p in params]
    step_(params, grads, means, variances, None, 1, *HOW)
    return params, means, variances


CASES = [
    Case(
        step_,
        "adamw_step_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avg, "
        "Tensor(c!)[] exp_avg_sq, Tensor(d!)[]? max_exp_avg_sq, int step, float lr, float beta1, "
        "float beta2, float eps, float weight_decay, bool maximize=False) -> ()",
        [call(), call(3, squares(8)), (*call(2), True), ([], [], [], [], None, 1, *HOW)],
        fails=[
            Fails(call(grads=lists(2)[:1]), ValueError, "2 params, 1 grads"),
            Fails(call(grads=lists(2)[::-1]), ValueError, r"grads\[0\] is float64"),
            Fails(call(maxima=squares(8)[:1]), ValueError, "2 params, 1 max_exp_avg_sq"),
            Fails(call(0), ValueError, "step counts from 1, got 0"),
            Fails(
                call(params=[normal(2, 3).requires_grad_(), normal(4)]), AutogradError, "writes to"
            ),
        ],
        program=(program, (lists(0), lists(2))),
    )
]


@pytest.mark.parametrize("with_maximum", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
def test_three_steps_equal_a_scalar_loop(with_maximum, maximize):
    params, means, variances = lists(0), lists(4), squares(6)
    maxima = squares(8) if with_maximum else None
    flat = [
        [float(v) for t in group for v in t.numpy().flat]
        for group in (params, means, variances, maxima or variances)
    ]
    for step in (1, 2, 3):
        grads = lists(10 * step)
        step_(params, grads, means, variances, maxima, step, *HOW, maximize)
        gradient = [float(v) for t in grads for v in t.numpy().flat]
        for i, g in enumerate(gradient):
            p, m, v, w = (column[i] for column in flat)
            g = -g if maximize else g
            p *= 1 - 0.1 * 0.01
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
            w = max(w, v) if with_maximum else v
            p -= 0.1 * (m / (1 - 0.9**step)) / (math.sqrt(w / (1 - 0.99**step)) + 1e-8)
            for column, value in zip(flat, (p, m, v, w), strict=True):
                column[i] = value
    for group, column in zip((params, means, variances), flat, strict=False):
        np.testing.assert_allclose(np.concatenate([t.numpy().ravel() for t in group]), column)


def test_parameters_that_require_grad_are_written_under_no_grad_only():
    param = normal(4).requires_grad_()
    before = param.detach().numpy().copy()
    with oplib.no_grad():
        step_([param], [normal(4)], [normal(4)], [normal(4).square()], None, 1, *HOW)
    assert param.requires_grad
    assert not np.array_equal(param.detach(), before)
