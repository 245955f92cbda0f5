"""The matrix a gradient check compares.

Imports floors 0 to 7, `compare.py`, `vectors.py`, `differences.py`. Read next: `attempt.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .compare import Array
from .differences import Columns, Precision
from .vectors import Vectors

__all__ = ["Entries", "improved"]


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
