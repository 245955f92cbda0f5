"""The matrix a gradient check compares, and the vectors it is made with.

Imports floors 0 to 7, `compare.py`, `space.py`, `differences.py`. Read next: `attempt.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .compare import Array
from .differences import Columns, Precision
from .space import Space

__all__ = ["Entries", "Vectors", "improved"]


# ---------------------------------------------------------------------- vectors


@dataclass(frozen=True, slots=True)
class Vectors:
    """Directions, or incoming gradients: packed rows, and which blocks each row moves.

    `group` is the position of the block, or -1 for all of them.
    """

    rows: Array
    group: Array

    @staticmethod
    def units(space: Space, rng: np.random.Generator, together: bool) -> Vectors:
        """Return the unit vectors, and with `together` one random vector over all blocks."""
        rows = np.eye(space.dimension)
        group = [space.block_of(k) for k in range(space.dimension)]
        if together:
            rows = np.vstack([rows, rng.standard_normal(space.dimension)])
            group.append(-1)
        return Vectors(rows, np.array(group, int))

    @staticmethod
    def random(
        space: Space, rng: np.random.Generator, count: int, scales: Sequence[float]
    ) -> Vectors:
        """Return random vectors of unit length per block: all blocks together, and each alone."""
        supports = [-1, *range(len(space.blocks))] if len(space.blocks) > 1 else [-1]
        group = [supports[j % len(supports)] for j in range(max(count, len(supports)))]
        rows = np.zeros((len(group), space.dimension))
        for row, support in zip(rows, group, strict=True):
            for position, block in enumerate(space.blocks):
                if support in (-1, position) and block.size:
                    part = rng.standard_normal(block.stop - block.start)
                    share = scales[position] / max(scales) if support == -1 else 1.0
                    row[block.range] = part * (share / np.linalg.norm(part))
        return Vectors(rows, np.array(group, int))


# ---------------------------------------------------------------------- entries


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
            size = np.abs(seeds.rows) @ np.abs(base)
            touched = (seeds.rows != 0).astype(float) @ columns.kink.T.astype(float) > 0
            value, spread = (
                np.where(columns.kink, 0.0, part) for part in (columns.value, columns.spread)
            )
            numeric = seeds.rows @ value.T
            error = np.abs(seeds.rows @ spread.T)
            error += precision.eps * size[:, None] / columns.step[None, :]
            scale = _block_maximum(np.where(touched, 0.0, np.abs(numeric)), seeds, directions)
            scale = np.maximum(scale, precision.floor * size[:, None])
            analytic = gradients @ directions.rows.T
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
