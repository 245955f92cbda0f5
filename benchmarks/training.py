"""A training step of an MLP, a small CNN and a transformer block, on one thread and on two.

One step is forward, backward and the update of the parameters. The kernel column is the same step
written by hand on NumPy arrays (`by_hand.py`); torch has rows of its own. Threads are those of the
BLAS, limited around each call by threadpoolctl where it is installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

import oplib
from oplib import Tensor

from . import by_hand
from .cases import TOTAL, Calls, curve
from .measure import Call

__all__ = ["MODELS", "RATE", "Array", "data_of", "torch_threads"]

Array: TypeAlias = np.ndarray[Any, Any]

RATE: Final = 1e-3
_THREADS: Final = (1, 2)


def _scaled(rng: np.random.Generator, *shape: int) -> Array:
    """Return weights of the size that keeps activations near one."""
    spread = np.prod(shape[1:]) if len(shape) == 4 else shape[0]
    return np.asarray(rng.normal(size=shape) / np.sqrt(spread), "f4")


def data_of(model: str) -> tuple[list[Array], Array, Array]:
    """Return the first parameters of a model, its inputs and its targets."""
    rng = np.random.default_rng(0)
    if model == "block":
        width = 64
        one, zero = np.ones(width, "f4"), np.zeros(width, "f4")
        square = [_scaled(rng, width, width) for _ in range(4)]
        inner = [_scaled(rng, width, 256), np.zeros(256, "f4"), _scaled(rng, 256, width)]
        parameters = [one, zero, *square, one.copy(), zero.copy(), *inner, zero.copy()]
        x, target = (rng.normal(size=(8, 32, width)).astype("f4") for _ in range(2))
        return parameters, x, target
    if model == "mlp":
        parameters = [_scaled(rng, 784, 256), np.zeros(256, "f4"), _scaled(rng, 256, 10)]
        x = rng.normal(size=(64, 784)).astype("f4")
    else:
        parameters = [_scaled(rng, 8, 1, 3, 3), _scaled(rng, 16, 8, 3, 3), _scaled(rng, 784, 10)]
        x = rng.normal(size=(32, 1, 28, 28)).astype("f4")
    return [*parameters, np.zeros(10, "f4")], x, rng.integers(0, 10, len(x))


# -- the models --------------------------------------------------------------------------------


def mlp(parameters: Sequence[Tensor], x: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of two layers with a relu between them."""
    w, b, v, c = parameters
    return oplib.cross_entropy((x @ w + b).relu() @ v + c, labels)


def cnn(parameters: Sequence[Tensor], x: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of two convolutions, each with a relu and a pooling, and a linear layer."""
    first, second, v, c = parameters
    small = oplib.max_pool2d(oplib.conv2d(x, first, padding=1).relu(), 2)
    smaller = oplib.max_pool2d(oplib.conv2d(small, second, padding=1).relu(), 2)
    return oplib.cross_entropy(smaller.flatten(1) @ v + c, labels)


def _heads(x: Tensor) -> Tensor:
    batch, length, width = x.shape
    return x.reshape(batch, length, by_hand.HEADS, width // by_hand.HEADS).swapaxes(1, 2)


def block(parameters: Sequence[Tensor], x: Tensor, target: Tensor) -> Tensor:
    """Return the loss of self-attention and a relu network, each after a layer norm."""
    g1, b1, wq, wk, wv, wo, g2, b2, w, b, v, c = parameters
    a = oplib.layer_norm(x, x.shape[-1:], g1, b1)
    mixed = oplib.attention(_heads(a @ wq), _heads(a @ wk), _heads(a @ wv))
    h = x + mixed.swapaxes(1, 2).reshape(x.shape) @ wo
    m = oplib.layer_norm(h, x.shape[-1:], g2, b2)
    return oplib.mse_loss(h + (m @ w + b).relu() @ v + c, target)


Loss: TypeAlias = Callable[[Sequence[Tensor], Tensor, Tensor], Tensor]
Hand: TypeAlias = Callable[[Sequence[Array], Array, Array], tuple[float, list[Array]]]

MODELS: Final[dict[str, tuple[Loss, Hand]]] = {
    "mlp": (mlp, by_hand.mlp),
    "cnn": (cnn, by_hand.cnn),
    "block": (block, by_hand.block),
}
"""Name -> the loss in oplib, and the step by hand."""


# -- steps -------------------------------------------------------------------------------------


def oplib_step(model: str) -> Callable[[], float]:
    """Return a call that takes one step and returns the loss before it."""
    arrays, data, targets = data_of(model)
    parameters = [oplib.tensor(array, requires_grad=True) for array in arrays]
    x, y, loss_of = oplib.from_numpy(data), oplib.from_numpy(targets), MODELS[model][0]

    def step() -> float:
        loss = loss_of(parameters, x, y)
        loss.backward()
        with oplib.no_grad():
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.sub_(parameter.grad * RATE)
                parameter.clear_grad()
        return float(loss)

    return step


def numpy_step(model: str) -> Callable[[], float]:
    """Return the same step by hand."""
    parameters, x, y = data_of(model)
    by_hand_of = MODELS[model][1]

    def step() -> float:
        loss, gradients = by_hand_of(parameters, x, y)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= np.float32(RATE) * gradient
        return loss

    return step


def _limited(call: Callable[[], float], threads: int) -> Call:
    """Return a call that runs with a number of BLAS threads."""
    if importlib.util.find_spec("threadpoolctl") is None:
        return call
    from threadpoolctl import ThreadpoolController

    controller = ThreadpoolController()

    def run() -> None:
        with controller.limit(limits=threads, user_api="blas"):
            call()

    return run


def torch_threads(call: Callable[[], float], threads: int) -> Call:
    """Return a call that runs with a number of torch's threads."""
    import torch

    def run() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            call()
        finally:
            torch.set_num_threads(before)

    return run


def _enter(model: str, title: str) -> None:
    def setup(threads: int) -> Calls:
        return {
            "oplib": _limited(oplib_step(model), threads),
            "kernel": _limited(numpy_step(model), threads),
        }

    setup.__name__ = f"{model}_step"
    curve(f"training step of {title}, by threads", _THREADS, TOTAL)(setup)


_enter("mlp", "an MLP (64 × 784, 256, 10)")
_enter("cnn", "a CNN (32 images, 8 and 16 channels)")
_enter("block", "a transformer block (8 × 32 × 64)")
