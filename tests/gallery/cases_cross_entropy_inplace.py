from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib.errors import AutogradError
from oplib.testing import gradcheck
from tests.gallery.harness import Case, Fails, gallery, normal, tensor

example = gallery("cross_entropy_inplace")
inplace, twin = example.inplace, example.twin
X, T = normal(4, 3), tensor([0, 2, -100, 1])
CALLS = [(X, T), (X, T, -100, 0.2), (X, T, 2)]
OPTIONS = "int ignore_index=-100, float label_smoothing=0.0"


def program(x, t):
    work = x * 2
    loss = inplace(work, t)
    return loss + work.sum(-1)


CASES = [
    Case(
        inplace,
        f"cross_entropy_inplace(Tensor(a!) logits, Tensor target, {OPTIONS}) -> Tensor",
        CALLS[:2],
        opcheck={"samples": [(call, {}) for call in CALLS[:2]]},
        fails=[
            Fails((X, tensor([0, 3, 0, 0])), IndexError, "no class"),
            Fails((X.clone().requires_grad_(), T), AutogradError, "leaf that requires grad"),
        ],
        program=(program, (X, T)),
    ),
    Case(
        twin,
        f"cross_entropy_grad(Tensor logits, Tensor target, {OPTIONS})"
        " -> (Tensor loss, Tensor grad)",
        CALLS[:2],
        opcheck={"samples": [(call, {}) for call in CALLS[:2]]},
        gradients=[(lambda x: twin(x, T, -100, 0.1), (X,))],
    ),
]


def test_logits_used_again_are_seen_as_their_gradient():
    def f(x):
        work = x * 1
        loss = inplace(work, T)
        return loss * (work * work).sum() + work[0]

    assert gradcheck(f, (X.clone().requires_grad_(),))


def test_writing_them_once_more_before_backward_is_caught():
    work = X.clone().requires_grad_() * 1
    loss = inplace(work, T)
    work.mul_(2)
    with pytest.raises(AutogradError, match="written to since"):
        loss.backward()


def test_the_version_moves_once():
    work = X.clone()
    loss = inplace(work, T)
    assert work.inplace_version == 1
    assert np.array_equal(work, twin(X, T)[1])
    assert np.array_equal(loss, twin(X, T)[0])
    assert not oplib.zeros(1).requires_grad
