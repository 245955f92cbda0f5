"""The vectors a gradient check is made with: unit vectors, or random ones per block.

Imports floors 0 to 7, `compare.py`, `space.py`. Read next: `differences.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .compare import Array
from .space import Space

__all__ = ["Vectors"]


@dataclass(frozen=True, slots=True)
class Vectors:
    """Directions, or incoming gradients: packed vectors, and which block each of them moves.

    Attributes
    ----------
    units : int
        How many of them are the unit vectors, in order; they are not stored.
    rows : numpy.ndarray
        The others, which follow.
    group : numpy.ndarray of int
        The position of the block that a vector moves, or -1 for all of them.
    """

    units: int
    rows: Array
    group: Array

    @staticmethod
    def unit(space: Space, rng: np.random.Generator, together: bool) -> Vectors:
        """Return the unit vectors, and with `together` one random vector over all blocks."""
        rows = rng.standard_normal((1 if together else 0, space.dimension))
        sizes = [block.stop - block.start for block in space.blocks]
        group = [*np.repeat(range(len(sizes)), sizes), *([-1] if together else [])]
        return Vectors(space.dimension, rows, np.array(group, int))

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
        return Vectors(0, rows, np.array(group, int))

    def __len__(self) -> int:
        return self.units + len(self.rows)

    def __getitem__(self, index: int) -> Array:
        if index >= self.units:
            return np.asarray(self.rows[index - self.units])
        vector = np.zeros(self.units)
        vector[index] = 1.0
        return vector

    def times(self, matrix: Array) -> Array:
        """Return the products of every vector with a matrix, as rows."""
        rest = self.rows @ matrix
        return np.concatenate([matrix, rest]) if self.units else rest

    def magnitudes(self) -> Vectors:
        """Return the vectors of absolute values."""
        return Vectors(self.units, np.abs(self.rows), self.group)

    def without(self, coordinates: Array) -> Vectors:
        """Return random vectors with some coordinates set to zero."""
        return Vectors(self.units, np.where(coordinates, 0.0, self.rows), self.group)
