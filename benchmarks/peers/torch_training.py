"""The training steps of `training.py` in torch, on one thread and on two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import by_hand
from ..training import MODELS, RATE, data_of, torch_threads
from .rows import Rows

__all__ = ["torch_step", "torch_training"]


def _mlp(f: Any, parameters: Sequence[Any], x: Any, labels: Any) -> Any:
    w, b, v, c = parameters
    return f.cross_entropy((x @ w + b).relu() @ v + c, labels)


def _cnn(f: Any, parameters: Sequence[Any], x: Any, labels: Any) -> Any:
    first, second, v, c = parameters
    small = f.max_pool2d(f.conv2d(x, first, padding=1).relu(), 2)
    smaller = f.max_pool2d(f.conv2d(small, second, padding=1).relu(), 2)
    return f.cross_entropy(smaller.flatten(1) @ v + c, labels)


def _heads(x: Any) -> Any:
    batch, length, width = x.shape
    return x.reshape(batch, length, by_hand.HEADS, width // by_hand.HEADS).swapaxes(1, 2)


def _block(f: Any, parameters: Sequence[Any], x: Any, target: Any) -> Any:
    g1, b1, wq, wk, wv, wo, g2, b2, w, b, v, c = parameters
    a = f.layer_norm(x, x.shape[-1:], g1, b1)
    q, k, u = (_heads(a @ weight) for weight in (wq, wk, wv))
    mixed = f.scaled_dot_product_attention(q, k, u)
    h = x + mixed.swapaxes(1, 2).reshape(x.shape) @ wo
    m = f.layer_norm(h, x.shape[-1:], g2, b2)
    return f.mse_loss(h + (m @ w + b).relu() @ v + c, target)


def torch_step(model: str) -> Callable[[], float]:
    """Return a call that takes one step and returns the loss before it."""
    import torch

    arrays, data, targets = data_of(model)
    parameters = [torch.tensor(array, requires_grad=True) for array in arrays]
    x, y = torch.tensor(data), torch.tensor(targets)
    loss_of = {"mlp": _mlp, "cnn": _cnn, "block": _block}[model]

    def step() -> float:
        loss = loss_of(torch.nn.functional, parameters, x, y)
        loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(parameter.grad * RATE)
                parameter.grad = None
        return float(loss.detach())

    return step


def torch_training() -> Rows:
    """Return a row per model and number of threads."""
    return {
        f"{model}_step_{threads}": {"native": torch_threads(torch_step(model), threads)}
        for model in MODELS
        for threads in (1, 2)
    }
