"""Losses, made of other operators. ``reduction`` is mean, sum or none.

Imports floors 0 to 4, `declare.py`, `nn.py`.
"""

from __future__ import annotations

from ..errors import ArgumentError
from ..shapes import result_type
from ..tensor.tensor import Tensor
from .activations import log_sigmoid
from .declare import composite, inexact_dtype
from .elementwise import where
from .nn import log_softmax
from .special import xlogy

__all__ = ["cross_entropy"]

_REDUCED = 'str reduction="mean"'


def _reduce(losses: Tensor, reduction: str, weights: Tensor | None = None) -> Tensor:
    """Return the mean (weighted, if weights are given), the sum, or the losses themselves."""
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    if reduction == "mean":
        return losses.mean() if weights is None else losses.sum() / weights.sum()
    raise ArgumentError(f"a reduction is 'mean', 'sum' or 'none', got {reduction!r}")


def _pair(name: str, x: Tensor, target: Tensor) -> list[Tensor]:
    """Return both, integers as the floating dtype they promote to, where nothing wraps.

    Shapes that would broadcast are refused: in a loss that is nearly always a mistake.
    """
    if x.shape != target.shape:
        raise ArgumentError(
            f"std::{name}: prediction {list(x.shape)} and target {list(target.shape)} differ"
        )
    kind = inexact_dtype(result_type(x, target))
    return [part.cast(kind) if part.dtype.kind in "biu" else part for part in (x, target)]


def _difference(name: str, x: Tensor, target: Tensor) -> Tensor:
    x, target = _pair(name, x, target)
    return x - target


@composite(f"mse_loss(Tensor x, Tensor target, {_REDUCED}) -> Tensor", "``(x - target)²``.")
def mse_loss(x: Tensor, target: Tensor, reduction: str) -> Tensor:
    """Square differences."""
    return _reduce(_difference("mse_loss", x, target).square(), reduction)


@composite(f"l1_loss(Tensor x, Tensor target, {_REDUCED}) -> Tensor", "``|x - target|``.")
def l1_loss(x: Tensor, target: Tensor, reduction: str) -> Tensor:
    """Take absolute differences."""
    return _reduce(_difference("l1_loss", x, target).abs(), reduction)


@composite(
    f"huber_loss(Tensor x, Tensor target, {_REDUCED}, float delta=1.0) -> Tensor",
    "``d²/2`` for differences up to delta, ``delta (d - delta/2)`` beyond (Huber, 1964).",
)
def huber_loss(x: Tensor, target: Tensor, reduction: str, delta: float) -> Tensor:
    """Choose by size."""
    if not delta > 0:
        raise ArgumentError(f"std::huber_loss: delta is positive, got {delta}")
    size = _difference("huber_loss", x, target).abs()
    return _reduce(where(size <= delta, size * size * 0.5, (size - 0.5 * delta) * delta), reduction)


@composite(
    f"nll_loss(Tensor x, Tensor target, Tensor? weight=None, int ignore_index=-100, {_REDUCED})"
    " -> Tensor",
    "``-weight[t] x[n, t]`` of log probabilities ``x[n, classes, ...]`` and classes ``t[n, ...]``; "
    "the mean is over the weights of targets that are not ignored.",
)
def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str
) -> Tensor:
    """Gather along the class axis, which is the second one (or the only one)."""
    axis = 1 if x.ndim > 1 else 0
    if target.dtype.kind not in "iu" or target.shape != (*x.shape[:axis], *x.shape[axis + 1 :]):
        raise ArgumentError(
            f"std::nll_loss: for log probabilities {x.describe()} the classes are integers "
            f"{[*x.shape[:axis], *x.shape[axis + 1 :]]}, got {target.describe()}"
        )
    kept = target != ignore_index
    classes = where(kept, target, 0)
    classes = where(classes < 0, x.shape[axis], classes)  # out of bounds, not from the end
    picked = x.take_along_dim(classes.unsqueeze(axis), axis).squeeze(axis)
    weights = kept.cast(x.dtype) if weight is None else where(kept, weight[classes], 0)
    return _reduce(-picked * weights, reduction, weights)


@composite(
    "cross_entropy(Tensor x, Tensor target, Tensor? weight=None, int ignore_index=-100, "
    f"{_REDUCED}, float label_smoothing=0.0) -> Tensor",
    "`nll_loss` of `log_softmax`, or ``-sum(target log_softmax(x))`` for class probabilities; "
    "classes on the second axis.",
)
def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Tensor:
    """Mix the class with the uniform distribution (Szegedy et al., arXiv:1512.00567)."""
    axis = 1 if x.ndim > 1 else 0
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError(
            f"std::cross_entropy: label_smoothing is a share, 0 to 1, got {label_smoothing}"
        )
    logs = log_softmax(x, axis)
    scale = None if weight is None else weight.reshape([-1] + [1] * (x.ndim - axis - 1))
    if target.dtype.kind in "iu":
        loss = nll_loss(logs, target, weight, ignore_index, reduction)
        if not label_smoothing:
            return loss
        kept = target != ignore_index
        spread = -(logs if scale is None else logs * scale).mean(axis)
        chosen = where(kept, target, 0)
        weights = kept.cast(x.dtype) if weight is None else where(kept, weight[chosen], 0)
        smooth = _reduce(where(kept, spread, 0), reduction, weights)
        return loss * (1 - label_smoothing) + smooth * label_smoothing
    x, target = _pair("cross_entropy", x, target)
    smoothed = target * (1 - label_smoothing) + label_smoothing / x.shape[axis]
    terms = -(smoothed * logs if scale is None else smoothed * logs * scale).sum(axis)
    return _reduce(terms, reduction)


@composite(
    f"binary_cross_entropy(Tensor x, Tensor target, {_REDUCED}) -> Tensor",
    "``-t log x - (1 - t) log(1 - x)`` of probabilities.",
)
def binary_cross_entropy(x: Tensor, target: Tensor, reduction: str) -> Tensor:
    """Add both outcomes; an impossible one that does not happen costs nothing."""
    x, target = _pair("binary_cross_entropy", x, target)
    return _reduce(-xlogy(target, x) - xlogy(1 - target, 1 - x), reduction)


@composite(
    f"binary_cross_entropy_with_logits(Tensor x, Tensor target, {_REDUCED}) -> Tensor",
    "`binary_cross_entropy` of ``sigmoid(x)``, without overflow.",
)
def binary_cross_entropy_with_logits(x: Tensor, target: Tensor, reduction: str) -> Tensor:
    """Add both outcomes by their logarithms."""
    x, target = _pair("binary_cross_entropy_with_logits", x, target)
    return _reduce((1 - target) * x - log_sigmoid(x), reduction)


@composite(
    f"kl_div(Tensor x, Tensor target, {_REDUCED}) -> Tensor",
    "``t (log t - x)`` of log probabilities x and probabilities t.",
)
def kl_div(x: Tensor, target: Tensor, reduction: str) -> Tensor:
    """Subtract logarithms."""
    x, target = _pair("kl_div", x, target)
    return _reduce(xlogy(target, target) - target * x, reduction)
