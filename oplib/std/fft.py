"""Discrete Fourier transforms along one axis or several (`numpy.fft`).

A transform is linear, so its gradient is the transform's adjoint: the inverse one, with the
normalization that belongs to the other direction.

Imports floors 0 to 4, `declare.py`, `joining.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ..dispatch.operator import Operator
from ..errors import ArgumentError
from ..prims import real
from ..shapes import TensorSpec, normalize_dim
from ..tensor.tensor import Tensor
from .declare import Array, composite, declare, fresh, real_dtype
from .joining import concat

__all__ = ["roll"]

_OPPOSITE: Final = {"backward": "forward", "forward": "backward", "ortho": "ortho"}
_NORM: Final = 'str norm="backward"'


def _complex(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype a transform of `dtype` has: float16 and float32 give complex64."""
    return np.result_type(dtype if dtype.kind == "c" else real_dtype(dtype), np.complex64)


def _check(name: str, x: Any, dim: int, norm: str) -> int:
    axis = normalize_dim(dim, x.ndim)
    if norm not in _OPPOSITE:
        raise ArgumentError(f"std::{name}: norm is backward, forward or ortho, got {norm!r}")
    if isinstance(x.shape[axis], int) and x.shape[axis] < 1:
        raise ArgumentError(f"std::{name} of no points")
    return axis


def _declare_transform(name: str, inverse: str, kernel: Callable[..., Any]) -> Operator[..., Any]:
    op = declare(
        f"{name}_c2c(Tensor x, int dim, {_NORM}) -> Tensor", f"`numpy.fft.{name}` of all points."
    )

    @op.register_kernel("cpu")
    def run(x: Any, dim: int, norm: str) -> Array:
        x = np.asarray(x)
        axis = _check(name, x, dim, norm)
        return np.asarray(kernel(x, None, axis, norm), _complex(x.dtype), order="C")

    @op.register_fake
    def spec(x: Any, dim: int, norm: str) -> TensorSpec:
        _check(name, x, dim, norm)
        return TensorSpec(x.shape, _complex(x.dtype))

    @op.register_vjp
    def rule(grad: Tensor, x_spec: TensorSpec, dim: int, norm: str) -> Tensor:
        back = TRANSFORMS[inverse](grad, dim, _OPPOSITE[norm])
        return back if x_spec.dtype.kind == "c" else real(back)

    return op


TRANSFORMS: Final[dict[str, Operator[..., Any]]] = {}
TRANSFORMS["fft"] = _declare_transform("fft", "ifft", np.fft.fft)
TRANSFORMS["ifft"] = _declare_transform("ifft", "fft", np.fft.ifft)


def _resized(x: Tensor, dim: int, n: int | None) -> Tensor:
    """Return x cut or padded with zeros to n points along an axis."""
    axis = normalize_dim(dim, x.ndim)
    length = x.shape[axis]
    if n is None or n == length:
        return x
    if n < length:
        return x.narrow(axis, 0, n)
    return concat([x, x.new_zeros([*x.shape[:axis], n - length, *x.shape[axis + 1 :]])], axis)


def _declare_public(name: str) -> Operator[..., Any]:
    @composite(
        f"{name}(Tensor x, int? n=None, int dim=-1, {_NORM}) -> Tensor",
        f"`numpy.fft.{name}`: the transform along an axis, cut or padded to n points.",
    )
    def one(x: Tensor, n: int | None, dim: int, norm: str) -> Tensor:
        return TRANSFORMS[name](_resized(x, dim, n), dim, norm)

    @composite(
        f"{name}n(Tensor x, int[]? s=None, int[1]? dim=None, {_NORM}) -> Tensor",
        f"`numpy.fft.{name}n`: the transform along several axes, by default all.",
    )
    def several(x: Tensor, s: list[int] | None, dim: list[int] | None, norm: str) -> Tensor:
        dims = _axes(x, s, dim)
        lengths: Sequence[int | None] = s or [None] * len(dims)
        for axis, n in zip(dims, lengths, strict=True):
            x = TRANSFORMS[name](_resized(x, axis, n), axis, norm)
        return x

    return several


def _axes(x: Tensor, s: Sequence[int] | None, dim: Sequence[int] | None) -> list[int]:
    if dim is None:
        dim = range(x.ndim)[-len(s) :] if s else range(x.ndim)
    if s and len(s) != len(dim):
        raise ArgumentError(f"a transform to {len(s)} lengths over {len(dim)} axes")
    return [normalize_dim(axis, x.ndim) for axis in dim]


fftn: Final = _declare_public("fft")
ifftn: Final = _declare_public("ifft")


# ---------------------------------------------------------------------- real input, real output


_RFFT: Final[Callable[..., Any]] = np.fft.rfft
_IRFFT: Final[Callable[..., Any]] = np.fft.irfft

rfft_r2c = declare(
    f"rfft_r2c(Tensor x, int dim, {_NORM}) -> Tensor",
    "`numpy.fft.rfft` of all points: the first half of the transform of real input.",
)


@rfft_r2c.register_kernel("cpu")
def _rfft(x: Any, dim: int, norm: str) -> Array:
    x = np.asarray(x)
    spec = _rfft_spec(x, dim, norm)
    return np.asarray(_RFFT(x, None, dim, norm), spec.dtype, order="C")


@rfft_r2c.register_fake
def _rfft_spec(x: Any, dim: int, norm: str) -> TensorSpec:
    if x.dtype.kind == "c":
        raise ArgumentError("std::rfft takes real input; use fft")
    axis = _check("rfft", x, dim, norm)
    shape = (*x.shape[:axis], x.shape[axis] // 2 + 1, *x.shape[axis + 1 :])
    return TensorSpec(shape, _complex(x.dtype))


@rfft_r2c.register_vjp
def _rfft_grad(grad: Tensor, x_spec: TensorSpec, dim: int, norm: str) -> Tensor:
    """Transform back the half that is there, the other one zero, and keep the real part."""
    full = _resized(grad, dim, x_spec.shape[dim])
    return real(TRANSFORMS["ifft"](full, dim, _OPPOSITE[norm]))


irfft_c2r = declare(
    f"irfft_c2r(Tensor x, int n, int dim, {_NORM}) -> Tensor",
    "`numpy.fft.irfft` to n points, of the ``n // 2 + 1`` first ones of a Hermitian sequence.",
)


@irfft_c2r.register_kernel("cpu")
def _irfft(x: Any, n: int, dim: int, norm: str) -> Array:
    x = np.asarray(x)
    spec = _irfft_spec(x, n, dim, norm)
    return np.asarray(_IRFFT(x, n, dim, norm), spec.dtype, order="C")


@irfft_c2r.register_fake
def _irfft_spec(x: Any, n: int, dim: int, norm: str) -> TensorSpec:
    axis = _check("irfft", x, dim, norm)
    if n < 1 or x.shape[axis] != n // 2 + 1:
        raise ArgumentError(
            f"std::irfft_c2r to {n} points takes {n // 2 + 1} of the transform, "
            f"got {x.shape[axis]}; irfft cuts or pads"
        )
    shape = (*x.shape[:axis], n, *x.shape[axis + 1 :])
    return TensorSpec(shape, real_dtype(_complex(x.dtype)))


@irfft_c2r.register_vjp
def _irfft_grad(grad: Tensor, x_spec: TensorSpec, n: int, dim: int, norm: str) -> Tensor:
    """Transform, and count twice the points that stand for two: all but the first and the last."""
    half = rfft_r2c(grad, dim, _OPPOSITE[norm])
    axis = normalize_dim(dim, grad.ndim)
    weights = np.full(n // 2 + 1, 2.0, dtype=grad.dtype)
    weights[0] = 1
    if n % 2 == 0:
        weights[-1] = 1
    part = half * weights.reshape([-1 if i == axis else 1 for i in range(grad.ndim)])
    return part if x_spec.dtype.kind == "c" else real(part)


@composite(
    f"rfft(Tensor x, int? n=None, int dim=-1, {_NORM}) -> Tensor",
    "`numpy.fft.rfft`: the ``n // 2 + 1`` first points of the transform of real input.",
)
def rfft(x: Tensor, n: int | None, dim: int, norm: str) -> Tensor:
    """Cut or pad, then transform."""
    return rfft_r2c(_resized(x, dim, n), dim, norm)


@composite(
    f"irfft(Tensor x, int? n=None, int dim=-1, {_NORM}) -> Tensor",
    "`numpy.fft.irfft`: n real points, by default an even number, from the first half.",
)
def irfft(x: Tensor, n: int | None, dim: int, norm: str) -> Tensor:
    """Cut or pad to half of n, then transform."""
    points = 2 * (x.shape[dim] - 1) if n is None else n
    return irfft_c2r(_resized(x, dim, points // 2 + 1), points, dim, norm)


@composite(
    f"rfftn(Tensor x, int[]? s=None, int[1]? dim=None, {_NORM}) -> Tensor",
    "`numpy.fft.rfftn`: `rfft` along the last of several axes, by default all, then `fft`.",
)
def rfftn(x: Tensor, s: list[int] | None, dim: list[int] | None, norm: str) -> Tensor:
    """Transform the real axis first."""
    dims, lengths = _axes_and_lengths("rfftn", x, s, dim)
    x = rfft(x, lengths[-1], dims[-1], norm)
    return fftn(x, lengths[:-1], dims[:-1], norm) if dims[1:] else x


@composite(
    f"irfftn(Tensor x, int[]? s=None, int[1]? dim=None, {_NORM}) -> Tensor",
    "`numpy.fft.irfftn`, the inverse of `rfftn`: the last length is by default even.",
)
def irfftn(x: Tensor, s: list[int] | None, dim: list[int] | None, norm: str) -> Tensor:
    """Transform the real axis last."""
    dims, lengths = _axes_and_lengths("irfftn", x, s, dim)
    x = ifftn(x, lengths[:-1], dims[:-1], norm) if dims[1:] else x
    return irfft(x, lengths[-1] if s else None, dims[-1], norm)


def _axes_and_lengths(
    name: str, x: Tensor, s: list[int] | None, dim: list[int] | None
) -> tuple[list[int], list[int]]:
    dims = _axes(x, s, dim)
    if not dims:
        raise ArgumentError(f"std::{name} needs an axis")
    return dims, s or [x.shape[axis] for axis in dims]


# ---------------------------------------------------------------------- moving elements around


@composite(
    "roll(Tensor x, int[1] shifts, int[1]? dim=None) -> Tensor",
    "Elements moved along axes, those that fall off the end to the front (`numpy.roll`).",
)
def roll(x: Tensor, shifts: list[int], dim: list[int] | None) -> Tensor:
    """Join the end and the beginning of each axis."""
    if dim is None:
        return roll(x.reshape([-1]), shifts, [0]).reshape(x.shape)
    given = x
    if len(shifts) != len(dim):
        raise ArgumentError(f"std::roll: {len(shifts)} shifts for {len(dim)} axes")
    for shift, axis in zip(shifts, dim, strict=True):
        length = x.shape[normalize_dim(axis, x.ndim)]
        cut = (-shift) % length if length else 0
        if cut:
            x = concat([x.narrow(axis, cut, length - cut), x.narrow(axis, 0, cut)], axis)
    return fresh(x, given)


@composite(
    "fftshift(Tensor x, int[1]? dim=None) -> Tensor",
    "Zero frequency to the middle of the axes (`numpy.fft.fftshift`).",
)
def fftshift(x: Tensor, dim: list[int] | None) -> Tensor:
    """Roll by half of each length."""
    dims = _axes(x, None, dim)
    return roll(x, [x.shape[axis] // 2 for axis in dims], dims)


@composite(
    "ifftshift(Tensor x, int[1]? dim=None) -> Tensor",
    "The inverse of `fftshift` along axes (`numpy.fft.ifftshift`).",
)
def ifftshift(x: Tensor, dim: list[int] | None) -> Tensor:
    """Roll back by half of each length."""
    dims = _axes(x, None, dim)
    return roll(x, [-(x.shape[axis] // 2) for axis in dims], dims)
