"""One comparison at one point: numeric derivatives, how sure they are, and the matrix compared.

Central differences at `h` and `h/2` are combined to ``(4 D(h/2) - D(h)) / 3`` (Richardson), which
leaves a truncation error of order h⁴; with ``h = ε^(1/3) max(1, |x|)`` the rounding error stays
near ``ε^(2/3)`` of the function's size. What the two differ by tells how far to trust them. A kink
shows as one-sided differences whose disagreement does not shrink with the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .compare import Array, tolerance_of
from .problem import Linearization, Problem
from .space import Space, Vectors

__all__ = [
    "Attempt",
    "Columns",
    "Entries",
    "Options",
    "Point",
    "Precision",
    "attempt_at",
    "differentiate",
    "improved",
    "steps_of",
]


@dataclass(frozen=True, slots=True)
class Precision:
    """What can be expected of derivatives computed in a floating type."""

    eps: float
    rtol: float
    atol: float

    @staticmethod
    def of(dtypes: Sequence[np.dtype[Any]], rtol: float, atol: float) -> Precision:
        """Return the precision of the coarsest of several dtypes."""
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
    """Derivatives of all results along each of several directions, one row per direction."""

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
    """Return derivatives of a problem's results along directions: four evaluations for each."""
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


@dataclass(slots=True)
class Entries:
    """The matrix: analytic and numeric values, how sure the latter are, and what is left out."""

    analytic: Array
    numeric: Array
    error: Array
    scale: Array
    left_out: Array
    precision: Precision

    @staticmethod
    def of(
        gradients: Array,
        columns: Columns,
        seeds: Vectors,
        directions: Vectors,
        base: Array,
        precision: Precision,
    ) -> Entries:
        """Return the matrix of incoming gradients against directions."""
        with np.errstate(all="ignore"):
            size = seeds.magnitudes().times(np.abs(base))
            touched = seeds.magnitudes().times(columns.kink.T.astype(float)) > 0
            value, spread = (
                np.where(columns.kink, 0.0, part) for part in (columns.value, columns.spread)
            )
            numeric = seeds.times(value.T)
            error = np.abs(seeds.times(spread.T))
            error += precision.eps * size[:, None] / columns.step[None, :]
            scale = _block_maximum(np.where(touched, 0.0, np.abs(numeric)), seeds, directions)
            scale = np.maximum(scale, precision.floor * size[:, None])
            analytic = directions.times(gradients.T).T
        return Entries(analytic, numeric, error, scale, touched, precision)

    @property
    def uncertainty(self) -> Array:
        """Ten times the error estimate, as a multiple of what it may excuse."""
        allowed = self.precision.excuse * self.scale
        with np.errstate(all="ignore"):
            ratio = np.where(self.error == 0, 0.0, 10 * self.error / allowed)
        sure = np.nan_to_num(ratio, nan=np.inf, posinf=np.inf)
        return np.asarray(np.where(self.left_out, 0.0, sure))

    @property
    def unsure(self) -> Array:
        """Whose numeric value cannot be used."""
        return self.uncertainty > 1

    @property
    def wrong(self) -> Array:
        """Whose numeric value can be used and does not agree."""
        excused = np.minimum(10 * self.error, self.precision.excuse * self.scale)
        allowed = self.precision.rtol * np.abs(self.numeric) + self.precision.atol * self.scale
        with np.errstate(all="ignore"):
            holds = np.abs(self.analytic - self.numeric) <= allowed + excused
        return np.asarray(~holds & ~self.left_out & ~self.unsure)

    def worst(self) -> tuple[int, int]:
        """Return the wrong entry that is off most, relative to its block."""
        with np.errstate(all="ignore"):
            off = np.abs(self.analytic - self.numeric) / np.where(self.scale, self.scale, 1.0)
        off = np.where(self.wrong, np.where(np.isfinite(off), off, np.inf), -1.0)
        i, j = np.unravel_index(int(off.argmax()), off.shape)
        return int(i), int(j)

    def mostly_left_out(self) -> bool:
        """Return whether more than half of the entries that say something lie on kinks."""
        with np.errstate(all="ignore"):
            telling = self.left_out | (np.abs(self.numeric) > self.precision.excuse * self.scale)
        return bool(self.left_out.sum() > telling.sum() / 2)


def _block_maximum(values: Array, seeds: Vectors, directions: Vectors) -> Array:
    """Return, per entry, the largest finite value of its block (one result, one input)."""
    result = np.zeros(values.shape)
    finite = np.where(np.isfinite(values), values, 0.0)
    for row_group in np.unique(seeds.group):
        rows = np.flatnonzero(seeds.group == row_group)
        for column_group in np.unique(directions.group):
            block = np.ix_(rows, np.flatnonzero(directions.group == column_group))
            result[block] = finite[block].max(initial=0.0)
    return result


def improved(
    entries: Entries,
    columns: Columns,
    rows: Array,
    other: Columns,
    matrix: Callable[[], Entries],
) -> Entries:
    """Put in other estimates of some directions where they are surer; return the entries."""
    kept = Columns(
        columns.value[rows], columns.spread[rows], columns.kink[rows], columns.step[rows]
    )
    before = entries.uncertainty.max(axis=0)[rows]
    columns.put(rows, other)
    after = matrix().uncertainty.max(axis=0)[rows]
    worse = np.flatnonzero(after >= before)
    columns.put(
        rows[worse],
        Columns(kept.value[worse], kept.spread[worse], kept.kink[worse], kept.step[worse]),
    )
    return matrix()


OTHER_STEPS: Final = (10.0, 0.1)
"""Multiples of the step tried for directions whose derivative is too uncertain."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller of `gradcheck` chose; see there."""

    full: bool | None
    directions: int
    eps: float | None
    rtol: float
    atol: float
    nondet_tol: float
    seed: int


@dataclass(frozen=True, slots=True)
class Point:
    """A point, the recorded run there, and the results, packed."""

    vector: Array
    line: Linearization
    values: list[Array]
    codomain: Space
    base: Array

    @staticmethod
    def of(problem: Problem, vector: Array) -> Point:
        """Return the recorded run of a problem at a packed point."""
        line = problem.linearize(list(problem.domain.unpack(vector)))
        values = [output.array for output in line.outputs]
        codomain = problem.codomain(values)
        return Point(vector, line, values, codomain, codomain.pack(values))

    def describe(self, domain: Space) -> str:
        """Return the point in a few words."""
        parts = []
        for block, array in zip(domain.blocks, domain.unpack(self.vector), strict=True):
            text = np.array2string(array, precision=4, threshold=6, edgeitems=2, separator=", ")
            parts.append(f"{block.name} = {' '.join(text.split())}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What was found at one point."""

    entries: Entries
    seeds: Vectors
    full: bool
    left_out: int
    inconclusive: str
    kinked: bool


def attempt_at(
    problem: Problem, at: Point, full: bool, options: Options, rng: np.random.Generator
) -> Attempt:
    """Compare all entries at a point: one backward run per row, four evaluations per column."""
    domain = problem.domain
    dtypes = [block.dtype for block in (*domain.blocks, *at.codomain.blocks)]
    precision = Precision.of(dtypes, options.rtol, options.atol)
    directions = _directions(domain, at.vector, full, options.directions, rng)
    steps = steps_of(at.vector, directions, precision.step)
    if options.eps is not None:
        steps = np.full(len(directions), options.eps)

    def along(which: Array, factor: float) -> Columns:
        chosen = steps[which] * factor
        return differentiate(problem, at.vector, at.base, directions, which, chosen, precision)

    columns = along(np.arange(len(directions)), 1.0)
    seeds = _seeds(at.codomain, full, options.directions, columns, rng)
    gradients = _pulled_back(problem, at, seeds)

    def matrix() -> Entries:
        return Entries.of(gradients, columns, seeds, directions, at.base, precision)

    entries = matrix()
    for factor in OTHER_STEPS if options.eps is None else ():
        unsure = np.flatnonzero(entries.unsure.any(axis=0))
        if not len(unsure):
            break
        entries = improved(entries, columns, unsure, along(unsure, factor), matrix)
    kinks = int(columns.kink.any(axis=0).sum())
    left_out = int(entries.left_out.sum()) if full else kinks
    kinked = entries.mostly_left_out() or (not full and kinks > at.codomain.dimension / 2)
    reason = "most of the function is at a kink" if kinked else _uncertain(entries)
    if not np.isfinite(at.base).all():
        reason = f"{at.codomain.place(int((~np.isfinite(at.base)).argmax()))} is not finite"
    if reason:
        reason += f" at {at.describe(domain)}"
    return Attempt(entries, seeds, full, left_out, reason, kinked)


def _directions(
    domain: Space, vector: Array, full: bool, count: int, rng: np.random.Generator
) -> Vectors:
    if full:
        return Vectors.unit(domain, rng, together=False)
    sizes = [float(np.abs(vector[b.range]).max(initial=0.0)) for b in domain.blocks]
    return Vectors.random(domain, rng, count, [max(1.0, size) for size in sizes])


def _seeds(
    codomain: Space, full: bool, count: int, columns: Columns, rng: np.random.Generator
) -> Vectors:
    """Return the incoming gradients; random ones leave out results at kinks."""
    if full:
        return Vectors.unit(codomain, rng, together=len(codomain.blocks) > 1)
    seeds = Vectors.random(codomain, rng, count, [1.0] * len(codomain.blocks))
    return seeds.without(np.asarray(columns.kink.any(axis=0)))


def _pulled_back(problem: Problem, at: Point, seeds: Vectors) -> Array:
    """Return the packed gradients, one row per incoming gradient."""
    gradients = np.zeros((len(seeds), problem.domain.dimension))
    for i, group in enumerate(seeds.group):
        arrays = at.codomain.unpack(seeds[i])
        present = [array if group in (-1, k) else None for k, array in enumerate(arrays)]
        problem.runs["backward runs"] += 1
        gradients[i] = problem.domain.pack(at.line.pull_back(present))
    return gradients


def _uncertain(entries: Entries) -> str:
    if not entries.unsure.any():
        return ""
    count = f"{int(entries.unsure.sum())} of {entries.unsure.size}"
    return f"the numeric derivative of {count} entries is too uncertain"
