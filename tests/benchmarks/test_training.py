"""The training steps that are timed compute the same thing."""

from __future__ import annotations

import numpy as np
import pytest

import oplib
from benchmarks.training import MODELS, data_of, numpy_step, oplib_step


@pytest.mark.parametrize("model", MODELS)
def test_gradients_by_hand_are_oplibs(model: str) -> None:
    arrays, x, y = data_of(model)
    arrays = [array.astype("f8") for array in arrays]
    loss_of, hand = MODELS[model]
    parameters = [oplib.tensor(array, requires_grad=True) for array in arrays]
    data = x.astype("f8")
    loss = loss_of(parameters, oplib.from_numpy(data), oplib.from_numpy(y))
    expected, gradients = hand(arrays, data, y)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    for ours, theirs in zip(oplib.grad(loss, parameters), gradients, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("model", MODELS)
def test_steps_learn_alike(model: str) -> None:
    ours, theirs = oplib_step(model), numpy_step(model)
    losses = [(ours(), theirs()) for _ in range(3)]
    for a, b in losses:
        assert a == pytest.approx(b, rel=1e-4)
    assert losses[-1][0] < losses[0][0]


@pytest.mark.peer("torch")
@pytest.mark.parametrize("model", MODELS)
def test_torch_takes_the_same_steps(model: str) -> None:
    from benchmarks.peers.torch_training import torch_step

    ours, theirs = oplib_step(model), torch_step(model)
    for _ in range(3):
        assert ours() == pytest.approx(theirs(), rel=1e-4)
