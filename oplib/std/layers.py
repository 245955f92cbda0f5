"""What layers compute: linear maps, normalization, attention, convolution, pooling.

Made of other operators, so gradients of any order, fakes and graphs come from those. Images are
``[batch, channels, ...]``; sizes of windows are one number or one per axis.

Imports floors 0 to 4, `declare.py`, `scatter.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import ArgumentError
from ..tensor.tensor import Tensor
from .creation import arange
from .declare import composite, floating
from .elementwise import where
from .linalg import matmul
from .nn import softmax
from .scatter import pad, windows

__all__ = ["linear"]


@composite(
    "linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
    "``x weightᵀ + bias`` for a weight ``[out, in]``.",
)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply by the transpose."""
    product = matmul(x, weight.swapaxes(-1, -2) if weight.ndim > 1 else weight)
    return product if bias is None else product + bias


@composite(
    "embedding(Tensor weight, Tensor index) -> Tensor",
    "Rows of `weight` ``[n, d]`` at integer positions: ``[..., d]``.",
)
def embedding(weight: Tensor, index: Tensor) -> Tensor:
    """Index the first axis."""
    if index.dtype.kind not in "iu":
        raise ArgumentError(f"std::embedding takes integer positions, got {index.describe()}")
    return weight[index]


@composite(
    "cosine_similarity(Tensor x, Tensor y, int dim=-1, float eps=1e-8) -> Tensor",
    "The cosine of the angle along an axis; lengths below eps count as eps.",
)
def cosine_similarity(x: Tensor, y: Tensor, dim: int, eps: float) -> Tensor:
    """Divide the product by both lengths."""
    x, y = floating(x), floating(y)
    lengths = [(t * t).sum(dim).clamp(min=eps * eps).sqrt() for t in (x, y)]
    return (x * y).sum(dim) / (lengths[0] * lengths[1])


@composite(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? mask=None, *, bool causal=False, "
    "float? scale=None) -> Tensor",
    "``softmax(q kᵀ scale) v`` (Vaswani et al., arXiv:1706.03762), scale ``1 / sqrt(d)``; a bool "
    "mask keeps what is true, another one is added; causal keeps keys up to the query's position.",
)
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool, scale: float | None
) -> Tensor:
    """Weight values by the softmax of scores."""
    q, k, v = floating(q), floating(k), floating(v)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = matmul(q, k.swapaxes(-1, -2)) * factor
    if mask is not None:
        scores = where(mask, scores, -math.inf) if mask.dtype == bool else scores + mask
    if causal:
        rows = arange(0, q.shape[-2], device=q.device).unsqueeze(-1)
        scores = where(arange(0, k.shape[-2], device=q.device) <= rows, scores, -math.inf)
    return matmul(softmax(scores, -1), v)


# ---------------------------------------------------------------------- normalization


def _scaled(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dims: list[int]
) -> Tensor:
    """Return x with mean 0 and variance 1 over axes, then scaled and shifted."""
    centred = x - x.mean(dims, True)
    normal = centred / ((centred * centred).mean(dims, True) + eps).sqrt()
    normal = normal if weight is None else normal * weight
    return normal if bias is None else normal + bias


@composite(
    "layer_norm(Tensor x, int[] shape, Tensor? weight=None, Tensor? bias=None, "
    "float eps=1e-5) -> Tensor",
    "Mean 0 and variance 1 over the last axes, which have `shape` (Ba et al., arXiv:1607.06450).",
)
def layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalize over the last axes."""
    if not shape or x.shape[-len(shape) :] != tuple(shape):
        raise ArgumentError(f"std::layer_norm over {shape} does not fit {x.describe()}")
    return _scaled(x, weight, bias, eps, list(range(-len(shape), 0)))


@composite(
    "rms_norm(Tensor x, Tensor? weight=None, float eps=1e-6) -> Tensor",
    "``x / sqrt(mean(x²) + eps)`` along the last axis (Zhang and Sennrich, arXiv:1910.07467).",
)
def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Divide by the root of the mean square."""
    x = floating(x)
    normal = x / ((x * x).mean(-1, True) + eps).sqrt()
    return normal if weight is None else normal * weight


@composite(
    "group_norm(Tensor x, int groups, Tensor? weight=None, Tensor? bias=None, "
    "float eps=1e-5) -> Tensor",
    "Mean 0 and variance 1 over groups of channels ``[n, c, ...]`` (Wu and He, arXiv:1803.08494).",
)
def group_norm(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalize with the groups on an axis of their own."""
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ArgumentError(f"std::group_norm: {groups} groups do not divide {x.describe()}")
    split = x.reshape([x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]])
    normal = _scaled(split, None, None, eps, list(range(2, split.ndim))).reshape(x.shape)
    normal = normal if weight is None else normal * _per_channel(weight, x)
    return normal if bias is None else normal + _per_channel(bias, x)


@composite(
    "batch_norm(Tensor x, Tensor mean, Tensor var, Tensor? weight=None, Tensor? bias=None, "
    "float eps=1e-5) -> Tensor",
    "``(x - mean) / sqrt(var + eps)`` per channel (Ioffe and Szegedy, arXiv:1502.03167).",
)
def batch_norm(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalize with given moments: those of the batch in training, running ones else."""
    normal = (x - _per_channel(mean, x)) / (_per_channel(var, x) + eps).sqrt()
    normal = normal if weight is None else normal * _per_channel(weight, x)
    return normal if bias is None else normal + _per_channel(bias, x)


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape([-1] + [1] * (x.ndim - 2))


# ---------------------------------------------------------------------- windows


def _per_axis(name: str, value: Sequence[int], axes: int, option: str) -> list[int]:
    values = list(value) * axes if len(value) == 1 else list(value)
    if len(values) != axes or min(values) < (0 if option == "padding" else 1):
        raise ArgumentError(f"std::{name}: {option} is one number or {axes}, got {list(value)}")
    return values


def _padded(x: Tensor, padding: Sequence[int], value: float) -> Tensor:
    pairs = [n for count in reversed(padding) for n in (count, count)]
    return pad(x, pairs, "constant", value) if any(pairs) else x


def _declare_convolution(axes: int) -> None:
    name = f"conv{axes}d"

    @composite(
        f"{name}(Tensor x, Tensor weight, Tensor? bias=None, int[1] stride=1, int[1] padding=0, "
        "int[1] dilation=1, int groups=1) -> Tensor",
        f"Cross-correlation of ``[n, c, ...]`` with ``[out, c / groups, ...]`` over {axes} "
        + ("axis." if axes == 1 else "axes."),
    )
    def convolution(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
    ) -> Tensor:
        _check_images(name, x, weight, axes, groups)
        step = _per_axis(name, stride, axes, "stride")
        gap = _per_axis(name, dilation, axes, "dilation")
        x = _padded(x, _per_axis(name, padding, axes, "padding"), 0)
        kernel = list(weight.shape[2:])
        for length, size, apart in zip(x.shape[2:], kernel, gap, strict=True):
            if length < apart * (size - 1) + 1:
                raise ArgumentError(
                    f"std::{name}: windows of {kernel} do not fit into {list(x.shape[2:])}"
                )
        seen = windows(x, kernel, step, gap)  # [n, c, *positions, *kernel]
        places, batch, out = list(seen.shape[2 : 2 + axes]), x.shape[0], weight.shape[0]
        seen = seen.reshape([batch, groups, -1, *places, *kernel])
        order = [0, 1, *range(3, 3 + axes), 2, *range(3 + axes, 3 + 2 * axes)]
        columns = seen.permute(order).reshape([batch, groups, math.prod(places), -1])
        filters = weight.reshape([groups, out // groups, -1])
        found = matmul(filters, columns.swapaxes(-1, -2)).reshape([batch, out, *places])
        return found if bias is None else found + _per_channel(bias, found)


def _check_images(name: str, x: Tensor, weight: Tensor, axes: int, groups: int) -> None:
    rank = axes + 2
    if x.ndim != rank or weight.ndim != rank or groups < 1:
        raise ArgumentError(
            f"std::{name} takes x [n, c, ...] and weight [out, c / groups, ...] of {rank} axes, "
            f"got {x.describe()} and {weight.describe()}"
        )
    if weight.shape[1] * groups != x.shape[1] or weight.shape[0] % groups:
        raise ArgumentError(
            f"std::{name}: {x.shape[1]} channels in {groups} groups do not fit weight "
            f"{weight.describe()}"
        )


def _declare_pooling(kind: str, axes: int) -> None:
    name = f"{kind}_pool{axes}d"
    what = "maximum" if kind == "max" else "mean, padding included,"

    @composite(
        f"{name}(Tensor x, int[1] kernel_size, int[1]? stride=None, int[1] padding=0) -> Tensor",
        f"The {what} of windows over the last {axes}; by default they do not overlap."
        + (" The first of equal elements gets the gradient." if kind == "max" else ""),
    )
    def pooling(
        x: Tensor, kernel_size: list[int], stride: list[int] | None, padding: list[int]
    ) -> Tensor:
        if x.ndim <= axes:
            raise ArgumentError(f"std::{name} takes at least {axes + 1} axes, got {x.describe()}")
        size = _per_axis(name, kernel_size, axes, "kernel_size")
        step = size if stride is None else _per_axis(name, stride, axes, "stride")
        around = _per_axis(name, padding, axes, "padding")
        if any(2 * count > length for count, length in zip(around, size, strict=True)):
            raise ArgumentError(f"std::{name}: padding is at most half of {size}, got {around}")
        padded = _padded(x, around, -math.inf if kind == "max" else 0)
        if any(n < length for n, length in zip(padded.shape[-axes:], size, strict=True)):
            raise ArgumentError(f"std::{name}: windows of {size} do not fit into {x.describe()}")
        seen = windows(padded, size, step, [1] * axes).flatten(-axes)
        if kind == "avg":
            return seen.mean(-1)
        return seen.take_along_dim(seen.argmax(-1, True), -1).squeeze(-1)


for _axes in (1, 2, 3):
    _declare_convolution(_axes)
for _axes in (1, 2):
    _declare_pooling("max", _axes)
    _declare_pooling("avg", _axes)
