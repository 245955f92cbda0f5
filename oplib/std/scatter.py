"""Writing at positions without writing: scatter and its kin, repetition, padding.

Imports floors 0 to 4, `declare.py`, `indexing.py`, `joining.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._dims import same
from ..errors import ArgumentError
from ..prims import new_full
from ..shapes import normalize_dim
from ..tensor.tensor import Tensor
from .creation import arange
from .declare import composite, fresh
from .indexing import index, index_put, index_sum, positions_along
from .joining import concat

__all__ = ["pad"]


@composite(
    "scatter(Tensor x, int dim, Tensor index, Tensor src) -> Tensor",
    "`x` with ``src`` at positions along an axis, in step elsewhere (`numpy.put_along_axis`).",
)
def scatter(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Put at positions; of equal ones the last wins."""
    places = positions_along(x, index, dim, "scatter")
    return index_put(x, places, _matching(src, index, "scatter"))


@composite(
    "scatter_add(Tensor x, int dim, Tensor index, Tensor src) -> Tensor",
    "`x` with ``src`` added at positions along an axis, in step elsewhere; equal ones add up.",
)
def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Add sums at positions."""
    places = positions_along(x, index, dim, "scatter_add")
    return x + index_sum(_matching(src, index, "scatter_add"), places, x.shape)


def _matching(src: Tensor, index: Tensor, name: str) -> Tensor:
    """Return the part of `src` that the positions are for."""
    if src.ndim != index.ndim:
        raise ArgumentError(
            f"std::{name}: index {list(index.shape)} and src {list(src.shape)} differ in axes"
        )
    for axis, length in enumerate(index.shape):
        if src.shape[axis] != length:
            src = src.narrow(axis, 0, length)
    return src


@composite(
    "index_add(Tensor x, int dim, Tensor index, Tensor src) -> Tensor",
    "`x` with slices of `src` added at positions along an axis; equal positions add up.",
)
def index_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Add sums of slices."""
    axis = normalize_dim(dim, x.ndim)
    size = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    if not (len(size) == src.ndim and all(map(same, size, src.shape))):
        raise ArgumentError(
            f"std::index_add adds a slice per position, {list(size)}, got {list(src.shape)}"
        )
    return x + index_sum(src, _slices(x, dim, index), x.shape)


@composite(
    "index_copy(Tensor x, int dim, Tensor index, Tensor src) -> Tensor",
    "`x` with slices of `src` at positions along an axis; of equal ones the last wins.",
)
def index_copy(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Put slices."""
    return index_put(x, _slices(x, dim, index), src)


def _slices(x: Tensor, dim: int, index: Tensor) -> list[Tensor | None]:
    return [None] * normalize_dim(dim, x.ndim) + [index]


@composite(
    "take(Tensor x, Tensor index) -> Tensor",
    "Elements at positions in the flattened tensor (`numpy.take`).",
)
def take(x: Tensor, index: Tensor) -> Tensor:
    """Flatten and index."""
    return x.reshape([-1])[index]


@composite(
    "masked_select(Tensor x, Tensor mask) -> Tensor",
    "The elements where `mask`, broadcast, is true; 1-d.",
)
def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """Index with the mask."""
    shape = list((x * mask).shape) if x.shape != mask.shape else list(x.shape)
    return x.expand(shape)[mask.expand(shape)]


@composite("one_hot(Tensor index, int classes) -> Tensor", "``index[..., None] == k``; int64.")
def one_hot(index: Tensor, classes: int) -> Tensor:
    """Compare with every class."""
    return (index.unsqueeze(-1) == arange(0, classes, device=index.device)).cast("int64")


# ---------------------------------------------------------------------- repetition


def _counts(name: str, repeats: list[int]) -> None:
    """Refuse negative counts, of which `expand` takes -1 for the length there is."""
    if any(count < 0 for count in repeats):
        raise ArgumentError(f"std::{name}: repeats are not negative, got {repeats}")


@composite(
    "tile(Tensor x, int[] repeats) -> Tensor",
    "`x` repeated as a whole along its last axes (`numpy.tile`).",
)
def tile(x: Tensor, repeats: list[int]) -> Tensor:
    """Expand new axes, then merge them with the old ones."""
    _counts("tile", repeats)
    rank = max(x.ndim, len(repeats))
    counts = [1] * (rank - len(repeats)) + list(repeats)
    shape = [1] * (rank - x.ndim) + list(x.shape)
    spread = x.reshape([n for length in shape for n in (1, length)])
    sizes = [n for pair in zip(counts, shape, strict=True) for n in pair]
    merged = spread.expand(sizes).reshape([n * k for n, k in zip(counts, shape, strict=True)])
    return fresh(merged, x)


@composite(
    "repeat_interleave(Tensor x, int repeats, int? dim=None) -> Tensor",
    "Every element repeated in place along an axis (`numpy.repeat`).",
)
def repeat_interleave(x: Tensor, repeats: int, dim: int | None) -> Tensor:
    """Expand an axis behind, then merge the two."""
    _counts("repeat_interleave", [repeats])
    if dim is None:
        return repeat_interleave(x.reshape([-1]), repeats, 0)
    axis = normalize_dim(dim, x.ndim)
    wide = [*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :]]
    merged = x.unsqueeze(axis + 1).expand(wide)
    shape = [*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :]]
    merged = merged.reshape(shape)
    return fresh(merged, x)


# ---------------------------------------------------------------------- padding


@composite(
    'pad(Tensor x, int[] pad, str mode="constant", Scalar value=0) -> Tensor',
    "Elements added before and behind: ``pad`` counts them in pairs, from the last axis on. "
    "Modes are constant, reflect, replicate and circular; a negative count removes elements.",
)
def pad(x: Tensor, pad: list[int], mode: str, value: Any) -> Tensor:
    """Join constants, or index with positions mirrored, clamped or wrapped."""
    if len(pad) % 2 or len(pad) > 2 * x.ndim:
        raise ArgumentError(f"std::pad: pairs for at most {x.ndim} axes are needed, got {pad}")
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise ArgumentError(
            f"std::pad: mode is constant, reflect, replicate or circular, got {mode!r}"
        )
    padded = x
    for i, (before, behind) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        axis = x.ndim - 1 - i
        if before < 0 or behind < 0:
            length = padded.shape[axis] + min(before, 0) + min(behind, 0)
            padded = padded.narrow(axis, -min(before, 0), length)
        if before > 0 or behind > 0:
            grown = _constants if mode == "constant" else _positions
            padded = grown(padded, axis, max(before, 0), max(behind, 0), mode, value)
    return fresh(padded, x)


def _constants(x: Tensor, axis: int, before: int, behind: int, mode: str, value: Any) -> Tensor:
    ends = [
        new_full(x, [*x.shape[:axis], count, *x.shape[axis + 1 :]], value)
        for count in (before, behind)
    ]
    return concat([ends[0], x, ends[1]], axis)


def _positions(x: Tensor, axis: int, before: int, behind: int, mode: str, value: Any) -> Tensor:
    length = x.shape[axis]
    most = {"reflect": length - 1, "circular": length}.get(mode)
    if length == 0 or (most is not None and max(before, behind) > most):
        raise ArgumentError(
            f"std::pad: {mode} of {max(before, behind)} needs a longer axis {axis}, it has {length}"
        )
    places: Any = arange(-before, length + behind, device=x.device)
    if mode == "replicate":
        places = places.clamp(0, length - 1)
    elif mode == "circular":
        places = places % length
    else:
        places = places.abs()
        places = (length - 1) - ((length - 1) - places).abs()
    return index(x, [None] * axis + [places])


def windows(
    x: Tensor, size: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """Return a view of all windows over the last axes: their positions, then their elements."""
    first = x.ndim - len(size)
    for i, (length, step, gap) in enumerate(zip(size, stride, dilation, strict=True)):
        x = x.unfold(first + i, gap * (length - 1) + 1, step)
        if gap > 1:
            x = x[..., ::gap]
    return x
