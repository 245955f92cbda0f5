"""Training steps written by hand on NumPy arrays: forward, and backward as one derives it.

Each function takes parameters, data and targets and returns the loss and a gradient per parameter.
They are what the rows of `training.py` are divided by; a test holds their gradients against
oplib's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

__all__ = ["HEADS", "block", "cnn", "mlp"]

Array: TypeAlias = np.ndarray[Any, Any]
Step: TypeAlias = tuple[float, list[Array]]

HEADS: Final = 4
_EPS: Final = np.float32(1e-5)


def _cross_entropy(logits: Array, labels: Array) -> tuple[float, Array]:
    """Return the mean negative log likelihood and its gradient."""
    shifted = logits - logits.max(1, keepdims=True)
    share = np.exp(shifted)
    share /= share.sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(share[rows, labels]).mean()
    share[rows, labels] -= 1
    share /= np.float32(len(labels))
    return float(loss), share


def mlp(parameters: Sequence[Array], x: Array, labels: Array) -> Step:
    """Two layers with a relu between them."""
    w, b, v, c = parameters
    hidden = np.maximum(x @ w + b, 0)
    loss, grad = _cross_entropy(hidden @ v + c, labels)
    inner = grad @ v.T
    inner *= hidden > 0
    return loss, [x.T @ inner, inner.sum(0), hidden.T @ grad, grad.sum(0)]


# -- convolutions ------------------------------------------------------------------------------


def _columns(x: Array) -> Array:
    """Return the 3 × 3 windows of images padded by one, a row per place."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, x.shape[1] * 9)


def _convolved(columns: Array, weight: Array, shape: tuple[int, ...]) -> Array:
    images, _, height, width = shape
    out = columns @ weight.reshape(len(weight), -1).T
    return out.reshape(images, height, width, -1).transpose(0, 3, 1, 2)


def _convolution_backward(
    grad: Array, columns: Array, weight: Array, shape: tuple[int, ...] | None
) -> tuple[Array, Array | None]:
    """Return the gradients of the weight and, for a `shape`, of the images."""
    rows = grad.transpose(0, 2, 3, 1).reshape(-1, len(weight))
    to_weight = (rows.T @ columns).reshape(weight.shape)
    if shape is None:
        return to_weight, None
    images, channels, height, width = shape
    back = (rows @ weight.reshape(len(weight), -1)).reshape(images, height, width, channels, 3, 3)
    padded = np.zeros((images, channels, height + 2, width + 2), grad.dtype)
    for i in range(3):
        for j in range(3):
            padded[:, :, i : i + height, j : j + width] += back[..., i, j].transpose(0, 3, 1, 2)
    return to_weight, padded[:, :, 1:-1, 1:-1]


def _pooled(x: Array) -> tuple[Array, Array]:
    """Return maxima of 2 × 2 windows of a relu, and where they are (zeros do not count)."""
    images, channels, height, width = x.shape
    windows = np.maximum(x, 0).reshape(images, channels, height // 2, 2, width // 2, 2)
    best = windows.max((3, 5), keepdims=True)
    return best[:, :, :, 0, :, 0], (windows == best) & (windows > 0)


def _pooled_backward(grad: Array, places: Array) -> Array:
    images, channels, height, _, width, _ = places.shape
    return (grad[:, :, :, None, :, None] * places).reshape(images, channels, 2 * height, 2 * width)


def cnn(parameters: Sequence[Array], x: Array, labels: Array) -> Step:
    """Two convolutions, each with a relu and a pooling, and a linear layer."""
    first, second, v, c = parameters
    columns = _columns(x)
    small, places = _pooled(_convolved(columns, first, x.shape))
    columns_2 = _columns(small)
    smaller, places_2 = _pooled(_convolved(columns_2, second, small.shape))
    flat = smaller.reshape(len(x), -1)
    loss, grad = _cross_entropy(flat @ v + c, labels)
    back = _pooled_backward((grad @ v.T).reshape(smaller.shape), places_2)
    to_second, to_small = _convolution_backward(back, columns_2, second, small.shape)
    assert to_small is not None
    to_first, _ = _convolution_backward(_pooled_backward(to_small, places), columns, first, None)
    return loss, [to_first, to_second, flat.T @ grad, grad.sum(0)]


# -- a transformer block -----------------------------------------------------------------------


def _normalized(x: Array) -> tuple[Array, Array]:
    centred = x - x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + _EPS)
    return centred * scale, scale


def _normalized_backward(grad: Array, weight: Array, normal: Array, scale: Array) -> Array:
    inner = grad * weight
    mean = inner.mean(-1, keepdims=True)
    return np.asarray(scale * (inner - mean - normal * (inner * normal).mean(-1, keepdims=True)))


def _heads(x: Array) -> Array:
    batch, length, width = x.shape
    return x.reshape(batch, length, HEADS, width // HEADS).transpose(0, 2, 1, 3)


def _joined(x: Array) -> Array:
    batch, heads, length, width = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * width)


def _outer(x: Array, grad: Array) -> Array:
    """Return the gradient of a weight that every position of x is multiplied by."""
    return x.reshape(-1, x.shape[-1]).T @ grad.reshape(-1, grad.shape[-1])


def block(parameters: Sequence[Array], x: Array, target: Array) -> Step:
    """Self-attention and a relu network, each after a layer norm and beside a shortcut."""
    g1, b1, wq, wk, wv, wo, g2, b2, w, b, v, c = parameters
    normal, _ = _normalized(x)
    a = normal * g1 + b1
    q, k, u = (_heads(a @ weight) for weight in (wq, wk, wv))
    factor = np.float32(q.shape[-1] ** -0.5)
    scores = q @ k.swapaxes(-1, -2) * factor
    share = np.exp(scores - scores.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    mixed = _joined(share @ u)
    h = x + mixed @ wo
    normal_2, scale_2 = _normalized(h)
    m = normal_2 * g2 + b2
    hidden = np.maximum(m @ w + b, 0)
    error = h + hidden @ v + c - target
    loss = float((error * error).mean())

    dy = error * np.float32(2 / error.size)
    dhidden = dy @ v.T
    dhidden *= hidden > 0
    dm = dhidden @ w.T
    dh = dy + _normalized_backward(dm, g2, normal_2, scale_2)
    dmixed = _heads(dh @ wo.T)
    dshare = dmixed @ u.swapaxes(-1, -2)
    dscores = share * (dshare - (dshare * share).sum(-1, keepdims=True)) * factor
    dq, dk = _joined(dscores @ k), _joined(dscores.swapaxes(-1, -2) @ q)
    du = _joined(share.swapaxes(-1, -2) @ dmixed)
    da = dq @ wq.T + dk @ wk.T + du @ wv.T
    axes = (0, 1)
    gradients = [
        *((da * normal).sum(axes), da.sum(axes)),
        *(_outer(a, dq), _outer(a, dk), _outer(a, du), _outer(mixed, dh)),
        *((dm * normal_2).sum(axes), dm.sum(axes)),
        *(_outer(m, dhidden), dhidden.sum(axes), _outer(hidden, dy), dy.sum(axes)),
    ]
    return loss, gradients
