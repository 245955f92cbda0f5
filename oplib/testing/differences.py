"""Numeric derivatives along directions, each with an estimate of its own error.

Central differences at `h` and `h/2` are combined to ``(4 D(h/2) - D(h)) / 3`` (Richardson), which
leaves a truncation error of order h⁴; with ``h = ε^(1/3) max(1, |x|)`` the rounding error stays
near ``ε^(2/3)`` of the function's size. What the two differ by tells how far to trust them.

A kink at the point shows as one-sided differences whose disagreement does not shrink with the step.

Imports floors 0 to 7, `compare.py`, `vectors.py`, `problem.py`. Read next: `entries.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .compare import Array, tolerance_of
from .problem import Problem
from .vectors import Vectors

__all__ = ["Columns", "Precision", "differentiate", "steps_of"]


@dataclass(frozen=True, slots=True)
class Precision:
    """What can be expected of derivatives computed in a floating type.

    Attributes
    ----------
    eps : float
        Distance from 1 to the next number.
    rtol, atol : float
        Tolerances of an entry: relative to itself, and to the largest of its block.
    excuse : float
        The share of the largest entry that an uncertain numeric value may excuse.
    floor : float
        The share of the function's size below which an entry is noise.
    """

    eps: float
    rtol: float
    atol: float

    @staticmethod
    def of(dtypes: Sequence[np.dtype[Any]], rtol: float, atol: float) -> Precision:
        """Return the precision of the coarsest of several dtypes.

        `rtol` and `atol` are for double precision; lower ones take ten times their tolerances of
        comparison where those are larger.
        """
        coarsest = max(dtypes, key=lambda dtype: float(np.finfo(dtype).eps))
        eps = float(np.finfo(coarsest).eps)
        if eps <= np.finfo(np.float64).eps:
            return Precision(eps, rtol, atol)
        wide = tolerance_of(coarsest)
        return Precision(eps, max(rtol, 10 * wide.rtol), max(atol, 10 * wide.atol))

    @property
    def excuse(self) -> float:
        """About 1e-4 in double and 2e-2 in single precision."""
        return max(1e-4, self.eps**0.25) if self.eps > 1e-15 else 1e-4

    @property
    def floor(self) -> float:
        """The smallest share at which rounding, ten times ``ε^(2/3)``, still fits the excuse."""
        return max(1e-5, 10 * self.eps ** (5 / 12)) if self.eps > 1e-15 else 1e-5

    @property
    def step(self) -> float:
        """The step for numbers up to 1."""
        return float(self.eps ** (1 / 3))


def steps_of(point: Array, directions: Vectors, step: float) -> Array:
    """Return a step per direction: `step` times the largest moved coordinate, at least 1."""
    reach = [np.abs(point[directions[j] != 0]).max(initial=1.0) for j in range(len(directions))]
    return step * np.array(reach)


@dataclass(slots=True)
class Columns:
    """Derivatives of all results along each of several directions, one row per direction.

    Attributes
    ----------
    value : numpy.ndarray
        The combined differences.
    spread : numpy.ndarray
        ``D(h/2) - D(h)``, signed so that it can be projected like `value`.
    kink : numpy.ndarray of bool
        Where one-sided differences disagree.
    step : numpy.ndarray
        The step of each direction.
    """

    value: Array
    spread: Array
    kink: Array
    step: Array

    def put(self, rows: Array, other: Columns) -> None:
        """Replace some directions by those of `other`."""
        self.value[rows], self.spread[rows] = other.value, other.spread
        self.kink[rows], self.step[rows] = other.kink, other.step


def differentiate(
    problem: Problem,
    point: Array,
    base: Array,
    directions: Vectors,
    which: Array,
    steps: Array,
    precision: Precision,
) -> Columns:
    """Return derivatives of a problem's results along directions: four evaluations for each.

    Parameters
    ----------
    problem : Problem
    point, base : numpy.ndarray
        The packed point, and the packed results there.
    directions : Vectors
    which : numpy.ndarray of int
        Positions of the directions to take.
    steps : numpy.ndarray
        The step `h` for each of them.
    precision : Precision
    """
    shape = (len(which), len(base))
    columns = Columns(np.zeros(shape), np.zeros(shape), np.zeros(shape, bool), steps.copy())
    at = _packed(problem)
    for j, (position, h) in enumerate(zip(which, steps, strict=True)):
        direction = directions[position]
        wide, wide_bend = _central(at, point, base, direction, h)
        narrow, narrow_bend = _central(at, point, base, direction, h / 2)
        with np.errstate(all="ignore"):
            columns.value[j] = (4 * narrow - wide) / 3
            columns.spread[j] = narrow - wide
            size = np.abs(narrow).max(initial=0.0) + narrow_bend
            least = np.maximum(size, precision.floor * np.abs(base))
            sharp = narrow_bend > precision.excuse * least
            columns.kink[j] = sharp & (narrow_bend > 0.7 * wide_bend)
    return columns


def _packed(problem: Problem) -> Callable[[Array], Array]:
    def at(vector: Array) -> Array:
        values = problem.evaluate(list(problem.domain.unpack(vector)))
        return problem.codomain(values).pack(values)

    return at


def _central(
    at: Callable[[Array], Array], point: Array, base: Array, direction: Array, h: float
) -> tuple[Array, Array]:
    """Return the central difference, and how much the one-sided ones disagree."""
    ahead, behind = at(point + h * direction), at(point - h * direction)
    with np.errstate(all="ignore"):
        return (ahead - behind) / (2 * h), np.abs(ahead + behind - 2 * base) / h
