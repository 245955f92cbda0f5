"""A hundred functions whose derivatives are known: the table gradcheck is measured on.

The gradient of a function of `z` is ``grad * conj(df/dz) + conj(grad) * df/dz̄``; for a holomorphic
function the second term is zero, for a real input the real part of it all is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["FUNCTIONS", "Analytic"]

Elementwise = Callable[[Any], Any]


def nothing(z: Any) -> Any:
    return np.zeros_like(z)


@dataclass(frozen=True)
class Analytic:
    """One function: ``kind`` is ``"R->C"`` for real input and complex result, and so on."""

    name: str
    kind: str
    value: Elementwise
    dz: Elementwise
    dzbar: Elementwise = nothing

    def gradient(self, grad: Any, x: Any) -> Any:
        """Return the gradient for one incoming gradient."""
        g = grad * np.conj(self.dz(x)) + np.conj(grad) * self.dzbar(x)
        return np.real(g) if self.kind[0] == "R" else g


def powers() -> list[tuple[str, Elementwise, Elementwise]]:
    return [
        (f"x**{p}", lambda x, p=p: x**p, lambda x, p=p: p * x ** (p - 1))
        for p in (-3, -2, -1, -0.5, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 7, 9, 11)
    ]


def scaled() -> list[tuple[str, Elementwise, Elementwise]]:
    return [
        *((f"{c:g}*x", lambda x, c=c: c * x, lambda x, c=c: c + 0 * x) for c in (1e8, 1e-8, -3.0)),
        *(
            (f"exp({c}x)", lambda x, c=c: np.exp(c * x), lambda x, c=c: c * np.exp(c * x))
            for c in (-5, 0.1, 50)
        ),
        *(
            (f"sin({c:g}x)", lambda x, c=c: np.sin(c * x), lambda x, c=c: c * np.cos(c * x))
            for c in (0.01, 10, 1e3)
        ),
        *((f"x+{c:g}", lambda x, c=c: x + c, lambda x: 1 + 0 * x) for c in (1.0, -1e3)),
    ]


HOLOMORPHIC: list[tuple[str, Elementwise, Elementwise]] = [
    ("exp", np.exp, np.exp),
    ("log", np.log, lambda x: 1 / x),
    ("log1p", np.log1p, lambda x: 1 / (1 + x)),
    ("expm1", np.expm1, np.exp),
    ("sin", np.sin, np.cos),
    ("cos", np.cos, lambda x: -np.sin(x)),
    ("tan", np.tan, lambda x: 1 / np.cos(x) ** 2),
    ("sinh", np.sinh, np.cosh),
    ("cosh", np.cosh, np.sinh),
    ("tanh", np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    ("arcsin", np.arcsin, lambda x: 1 / np.sqrt(1 - x * x)),
    ("arctan", np.arctan, lambda x: 1 / (1 + x * x)),
    ("arcsinh", np.arcsinh, lambda x: 1 / np.sqrt(1 + x * x)),
    ("arctanh", np.arctanh, lambda x: 1 / (1 - x * x)),
    ("sqrt", np.sqrt, lambda x: 0.5 / np.sqrt(x)),
    ("square", np.square, lambda x: 2 * x),
    ("reciprocal", np.reciprocal, lambda x: -1 / x**2),
    ("logistic", lambda x: 1 / (1 + np.exp(-x)), lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2),
    ("x exp(x)", lambda x: x * np.exp(x), lambda x: (1 + x) * np.exp(x)),
    ("x sin(x)", lambda x: x * np.sin(x), lambda x: np.sin(x) + x * np.cos(x)),
    ("x/(1+x²)", lambda x: x / (1 + x * x), lambda x: (1 - x * x) / (1 + x * x) ** 2),
    ("x³-2x", lambda x: x**3 - 2 * x, lambda x: 3 * x * x - 2),
    ("exp(-x²)", lambda x: np.exp(-x * x), lambda x: -2 * x * np.exp(-x * x)),
    ("sin(exp(x))", lambda x: np.sin(np.exp(x)), lambda x: np.cos(np.exp(x)) * np.exp(x)),
    ("log(1+x²)", lambda x: np.log(1 + x * x), lambda x: 2 * x / (1 + x * x)),
]

REAL_ONLY: list[tuple[str, Elementwise, Elementwise]] = [
    ("abs", np.abs, np.sign),
    ("log2", np.log2, lambda x: 1 / (x * np.log(2))),
    ("log10", np.log10, lambda x: 1 / (x * np.log(10))),
    ("cbrt", np.cbrt, lambda x: 1 / (3 * np.cbrt(x) ** 2)),
    ("exp2", np.exp2, lambda x: np.log(2) * np.exp2(x)),
    ("arccos", np.arccos, lambda x: -1 / np.sqrt(1 - x * x)),
    ("maximum(x, 0)", lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    ("hypot(x, 1)", lambda x: np.hypot(x, 1), lambda x: x / np.hypot(x, 1)),
]

ANTIHOLOMORPHIC: list[tuple[str, Elementwise, Elementwise, Elementwise]] = [
    ("conj", np.conj, nothing, lambda z: 1 + 0 * z),
    ("z conj(z)", lambda z: z * np.conj(z), np.conj, lambda z: z),
    ("conj(z)²", lambda z: np.conj(z) ** 2, nothing, lambda z: 2 * np.conj(z)),
    ("z² conj(z)", lambda z: z * z * np.conj(z), lambda z: 2 * z * np.conj(z), lambda z: z * z),
    ("z + conj(z)", lambda z: z + np.conj(z), lambda z: 1 + 0 * z, lambda z: 1 + 0 * z),
]

TO_REAL: list[tuple[str, Elementwise, Elementwise, Elementwise]] = [
    ("real", lambda z: np.real(z).copy(), lambda z: 0.5 + 0 * z, lambda z: 0.5 + 0 * z),
    ("imag", lambda z: np.imag(z).copy(), lambda z: -0.5j + 0 * z, lambda z: 0.5j + 0 * z),
    ("abs", np.abs, lambda z: np.conj(z) / (2 * np.abs(z)), lambda z: z / (2 * np.abs(z))),
    ("abs²", lambda z: np.abs(z) ** 2, np.conj, lambda z: z),
    ("angle", np.angle, lambda z: -0.5j / z, lambda z: 0.5j / np.conj(z)),
    ("re(z²)", lambda z: np.real(z * z), lambda z: z, np.conj),
]

TO_COMPLEX: list[tuple[str, Elementwise, Elementwise]] = [
    ("exp(ix)", lambda x: np.exp(1j * x), lambda x: 1j * np.exp(1j * x)),
    ("x + ix", lambda x: x + 1j * x, lambda x: 1 + 1j + 0 * x),
    ("ix²", lambda x: 1j * x * x, lambda x: 2j * x),
    ("1/(x+i)", lambda x: 1 / (x + 1j), lambda x: -1 / (x + 1j) ** 2),
    ("log(x+2i)", lambda x: np.log(x + 2j), lambda x: 1 / (x + 2j)),
]

FUNCTIONS: tuple[Analytic, ...] = (
    *(Analytic(n, "R->R", f, d) for n, f, d in [*HOLOMORPHIC, *REAL_ONLY, *powers(), *scaled()]),
    *(Analytic(n, "C->C", f, d) for n, f, d in HOLOMORPHIC),
    *(Analytic(n, "C->C", f, d, e) for n, f, d, e in ANTIHOLOMORPHIC),
    *(Analytic(n, "C->R", f, d, e) for n, f, d, e in TO_REAL),
    *(Analytic(n, "R->C", f, d) for n, f, d in TO_COMPLEX),
)
