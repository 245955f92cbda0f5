"""Complex numbers from their parts, and their parts from them.

A gradient of a complex tensor is dL/dRe + i dL/dIm; that of a real one is real, so a rule may
return a complex value for it and the engine takes the real part.

Imports floors 0 to 4, `declare.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..shapes import TensorSpec, broadcast_spec, like_spec, result_type
from ..tensor import view_rules
from ..tensor.tensor import Tensor
from .declare import Array, allocate, declare

__all__ = ["complex_", "imag", "polar"]


def _complex_spec(real: Any, imag: Any) -> TensorSpec:
    if np.dtype(result_type(real, imag)).kind == "c":
        raise ArgumentError("std::complex and std::polar make complex numbers of real ones")
    return broadcast_spec(real, imag, dtype=result_type(real, imag, 0j))


complex_ = declare(
    "complex(Tensor real, Tensor imag) -> Tensor",
    "``real + i imag``; operands broadcast.",
    "pointwise",
    "flexible_layout",
)


@complex_.register_kernel("cpu")
def _complex(real: Any, imag: Any) -> Array:
    real, imag = np.asarray(real), np.asarray(imag)
    result = allocate(_complex_spec(real, imag))
    result.real = real
    result.imag = imag
    return result


complex_.register_fake(_complex_spec)
complex_.register_vjp(real=lambda grad: grad.real, imag=lambda grad: grad.imag)

polar = declare(
    "polar(Tensor abs, Tensor angle) -> Tensor",
    "``abs exp(i angle)``; operands broadcast.",
    "pointwise",
    "flexible_layout",
)


@polar.register_kernel("cpu")
def _polar(abs: Any, angle: Any) -> Array:
    abs, angle = np.asarray(abs), np.asarray(angle)
    result = allocate(_complex_spec(abs, angle))
    np.exp(np.multiply(angle, 1j, out=result), out=result)
    return np.multiply(abs, result, out=result)


polar.register_fake(_complex_spec)
polar.register_vjp(
    abs=lambda grad, angle: (grad * (angle * -1j).exp()).real,
    angle=lambda grad, out: (grad * (out * 1j).conj()).real,
)

angle = declare(
    "angle(Tensor x) -> Tensor",
    "`numpy.angle` of every element: 0 or π for a real one.",
    "pointwise",
    "flexible_layout",
)
angle.register_kernel("cpu", np.angle)
angle.register_fake(lambda x: like_spec(x, np.angle(np.empty(0, x.dtype)).dtype))


@angle.register_vjp
def _angle_grad(grad: Tensor, x: Tensor) -> Tensor:
    """Differentiate: ``i x / |x|²``, zero at zero (and real, so zero, for a real tensor)."""
    square = (x * x.conj()).real
    return grad * 1j * x / (square + (square == 0))


imag = declare(
    "imag(Tensor(*) x) -> Tensor(*)",
    "The imaginary part: a view of a complex tensor, fresh zeros for a real one.",
)


@imag.register_kernel("cpu")
def _imag(x: Array) -> Array:
    if x.dtype.kind == "c":
        return x.imag
    zeros = allocate(like_spec(x))
    zeros.fill(0)
    return zeros


imag.register_view(lambda g: view_rules.imag(g) if g.dtype.kind == "c" else None)
imag.register_fake(like_spec)
imag.register_vjp(x=lambda grad: grad * 1j)
