"""One comparison at one point: the matrix of derivatives, its numeric side made as sure as it gets.

Imports floors 0 to 7, `compare.py`, `space.py`, `vectors.py`, `problem.py`, `differences.py`,
`entries.py`. Read next: `gradcheck.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from .compare import Array
from .differences import Columns, Precision, differentiate, steps_of
from .entries import Entries, improved
from .problem import Linearization, Problem
from .space import Space
from .vectors import Vectors

__all__ = ["Attempt", "Options", "Point", "attempt_at"]

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
    """What was found at one point.

    Attributes
    ----------
    entries : Entries
    seeds : Vectors
        The incoming gradients: what the rows of the matrix mean.
    full : bool
        Whether rows and columns are unit vectors.
    left_out : int
        Entries, or for random vectors elements of the results, at kinks.
    inconclusive : str
        Why nothing can be concluded, or empty.
    kinked : bool
        Whether that is because of kinks: another point would be another question.
    """

    entries: Entries
    seeds: Vectors
    full: bool
    left_out: int
    inconclusive: str
    kinked: bool


def attempt_at(
    problem: Problem, at: Point, full: bool, options: Options, rng: np.random.Generator
) -> Attempt:
    """Compare all entries at a point: one backward run per row, four evaluations per column.

    Directions whose numeric derivative is too uncertain are evaluated again with other steps.
    """
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
