"""Special functions: NumPy's two-argument ones, and SciPy's (extra ``scipy``).

Sources of the derivatives: NIST Digital Library of Mathematical Functions, chapters 5, 7 and 10.

Imports floors 0 to 4, `declare.py`, `complex.py`, `elementwise.py`.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..dispatch.gradient_rule import derivative
from ..dispatch.operator import Operator
from ..errors import AutogradError, DispatchError
from ..prims import mask
from ..shapes import TensorSpec, like_spec
from ..tensor.tensor import Tensor
from .complex import complex_
from .declare import Array, Rule, composite, declare, declare_binary, inexact, inexact_dtype
from .elementwise import where, zeros

__all__ = ["BINARY", "UNARY", "erf", "logaddexp"]


def _hypot_part(grad: Tensor, part: Tensor, out: Tensor) -> Tensor:
    """Differentiate ``sqrt(x² + y²)``: the part over the whole, zero at the origin."""
    return mask(grad, out != 0) * part / (out + (out == 0))


def _share(grad: Tensor, part: Tensor, out: Tensor) -> Tensor:
    """Differentiate ``log(eˣ + eʸ)``: the share of one part; at -inf both have none."""
    return grad * where(part == -math.inf, -math.inf, part - out).exp()


def _over(grad: Tensor, x: Tensor, y: Tensor, by: Tensor) -> Tensor:
    return grad * by / (x * x + y * y)


BINARY: Final[dict[str, tuple[np.ufunc, Rule, Rule]]] = {
    # f          NumPy's f     gradient of x, gradient of y
    "atan2": (
        np.arctan2,
        lambda grad, x, y: _over(grad, x, y, y),
        lambda grad, x, y: _over(grad, x, y, -x),
    ),
    "hypot": (
        np.hypot,
        lambda grad, x, out: _hypot_part(grad, x, out),
        lambda grad, y, out: _hypot_part(grad, y, out),
    ),
    "logaddexp": (
        np.logaddexp,
        lambda grad, x, out: _share(grad, x, out),
        lambda grad, y, out: _share(grad, y, out),
    ),
    "fmod": (np.fmod, lambda grad: grad, lambda grad, x, y: -grad * (x / y).trunc()),
    "nextafter": (np.nextafter, lambda grad: grad, zeros),
    "copysign": (
        np.copysign,
        lambda grad, x, out: grad * where(x.sign() == out.sign(), 1.0, -1.0),
        zeros,
    ),
}
"""Functions of two real tensors: name -> (ufunc, rule for x, rule for y)."""


_made: Final = {name: declare_binary(name, *entry) for name, entry in BINARY.items()}
logaddexp: Final = _made["logaddexp"]


# ---------------------------------------------------------------------- SciPy


@functools.cache
def _scipy(name: str) -> Any:
    """Return a function of `scipy.special`."""
    try:
        return getattr(importlib.import_module("scipy.special"), name)
    except ImportError as error:
        raise DispatchError(
            f"std::{name} is computed by SciPy, which is missing: pip install 'oplib[scipy]'"
        ) from error


def _trigamma(x: Tensor) -> Tensor:
    if x.dtype.kind == "c":
        raise AutogradError(
            "std::digamma: no gradient for complex x, because SciPy computes polygamma of real "
            "numbers only"
        )
    return polygamma(1, x)


_SQRT_PI: Final = math.sqrt(math.pi)

UNARY: Final[dict[str, Callable[..., Any]]] = {
    # f in scipy.special -> derivative
    "erf": lambda x: (-x * x).exp() * (2 / _SQRT_PI),
    "erfc": lambda x: (-x * x).exp() * (-2 / _SQRT_PI),
    "erfinv": lambda out: (out * out).exp() * (_SQRT_PI / 2),
    "gammaln": lambda x: _made["digamma"](x),
    "digamma": lambda x: _trigamma(x),
    "ndtr": lambda x: (x * x * -0.5).exp() / math.sqrt(2 * math.pi),
    "i0": lambda x: _made["i1"](x),
    "i1": lambda x, out: _made["i0"](x) - out / x,
}
"""Functions of one tensor that SciPy computes; erf, erfc, ndtr and digamma also of complex ones."""


def _declare_scipy(name: str, slope: Callable[..., Any]) -> Operator[..., Any]:
    op = declare(
        f"{name}(Tensor x) -> Tensor",
        f"`scipy.special.{name}` of every element.",
        "pointwise",
        "flexible_layout",
    )

    @op.register_kernel("cpu")
    def kernel(x: Any) -> Array:  # some of SciPy's compute small types in larger ones
        x = inexact(x)
        return np.asarray(_scipy(name)(x), x.dtype)

    op.register_fake(lambda x: like_spec(x, inexact_dtype(x.dtype)))
    op.register_vjp(x=derivative(slope))
    return op


_made.update({name: _declare_scipy(name, slope) for name, slope in UNARY.items()})
erf: Final = _made["erf"]

polygamma = declare(
    "polygamma(int n, Tensor x) -> Tensor",
    "The n-th derivative of `digamma` at every element (`scipy.special.polygamma`).",
    "pointwise",
)


@polygamma.register_kernel("cpu")
def _polygamma(n: int, x: Any) -> Any:
    x = inexact(x)
    return np.asarray(_scipy("polygamma")(n, x), x.dtype, order="C")


polygamma.register_fake(lambda n, x: TensorSpec(x.shape, inexact_dtype(x.dtype)))
polygamma.register_vjp(x=lambda grad, n, x: grad * polygamma(n + 1, x))


# ---------------------------------------------------------------------- limits taken care of


@composite(
    "xlogy(Tensor x, Tensor y) -> Tensor", "``x log(y)``, zero where x is zero.", "pointwise"
)
def xlogy(x: Tensor, y: Tensor) -> Tensor:
    """Take the logarithm of one where x is zero."""
    return x * where(x == 0, 1, y).log()


@composite(
    "logit(Tensor x) -> Tensor", "``log(x / (1 - x))``, the inverse of `sigmoid`.", "pointwise"
)
def logit(x: Tensor) -> Tensor:
    """Subtract logarithms."""
    return x.log() - (-x).log1p()


@composite(
    "sinc(Tensor x) -> Tensor", "``sin(pi x) / (pi x)``, 1 at 0 (`numpy.sinc`).", "pointwise"
)
def sinc(x: Tensor) -> Tensor:
    """Divide, where that can be done."""
    angle = where(x == 0, 1.0, x) * math.pi
    return where(x == 0, 1.0, angle.sin() / angle)


@composite(
    "nan_to_num(Tensor x, float nan=0.0, float? posinf=None, float? neginf=None) -> Tensor",
    "Elements NaN and infinite replaced, these by the largest finite numbers (`numpy.nan_to_num`).",
    "pointwise",
)
def nan_to_num(x: Tensor, nan: float, posinf: float | None, neginf: float | None) -> Tensor:
    """Choose, of complex numbers in both parts."""
    if x.dtype.kind == "c":
        return complex_(*[nan_to_num(part, nan, posinf, neginf) for part in (x.real, x.imag)])
    if x.dtype.kind not in "fV":
        return x.clone()
    limits = np.finfo(x.dtype)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    finite = where(x == math.inf, high, where(x == -math.inf, low, x))
    return where(x.isnan(), nan, finite)
