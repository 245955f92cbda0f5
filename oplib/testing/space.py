"""`Space`: a list of arrays as one real vector, and the vectors a gradient check is made with.

Derivatives are linear algebra on real numbers. A complex element is two of them, so that
``Re sum(conj(g) * u)`` is a dot product and one statement covers real and complex functions alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from .compare import Array

__all__ = ["Block", "Space", "Vectors", "like_layout"]


@dataclass(frozen=True, slots=True)
class Block:
    """One array of a space: what it is called and where it lies in the packed vector."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int
    start: int
    stop: int

    @staticmethod
    def of(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], start: int) -> Block:
        """Return the block of an array whose first coordinate is `start`."""
        size = prod(shape)
        return Block(
            name, shape, dtype, size, start, start + size * (2 if dtype.kind == "c" else 1)
        )

    @property
    def is_complex(self) -> bool:
        """Whether an element takes two coordinates."""
        return self.dtype.kind == "c"

    @property
    def range(self) -> slice:
        """The coordinates of this block."""
        return slice(self.start, self.stop)

    def place(self, coordinate: int) -> str:
        """Return which element a coordinate (of the whole space) is."""
        part, flat = divmod(coordinate - self.start, max(self.size, 1))
        index = tuple(map(int, np.unravel_index(flat, self.shape))) if self.shape else ()
        names = ("real", "imaginary") if self.is_complex else ("",)
        element = str(list(index)) if index else ""
        return f"{self.name}{element}{f' ({names[part]} part)' if names[part] else ''}"


@dataclass(frozen=True)
class Space:
    """The arrays of one side of a function, in order."""

    blocks: tuple[Block, ...]

    @staticmethod
    def of(named: Iterable[tuple[str, Any]]) -> Space:
        """Return the space of named things with ``shape`` and ``dtype``."""
        blocks: list[Block] = []
        start = 0
        for name, array in named:
            blocks.append(Block.of(name, tuple(array.shape), array.dtype, start))
            start = blocks[-1].stop
        return Space(tuple(blocks))

    @cached_property
    def dimension(self) -> int:
        """Number of real coordinates."""
        return self.blocks[-1].stop if self.blocks else 0

    def pack(self, arrays: Sequence[Array | None]) -> Array:
        """Return arrays as one vector of float64; None counts as zero."""
        vector = np.zeros(self.dimension)
        for block, array in zip(self.blocks, arrays, strict=True):
            if array is None:
                continue
            flat = np.asarray(array).reshape(-1)
            middle = block.start + block.size
            vector[block.start : middle] = flat.real
            if block.is_complex:
                vector[middle : block.stop] = flat.imag
        return vector

    def unpack(self, vector: Array) -> Iterator[Array]:
        """Yield the arrays of a packed vector, in the dtype of each block."""
        for block in self.blocks:
            part = vector[block.range]
            if block.is_complex:
                part = part[: block.size] + 1j * part[block.size :]
            yield part.astype(block.dtype).reshape(block.shape)

    def place(self, coordinate: int) -> str:
        """Return which element of which block a coordinate is."""
        return self.blocks[self.block_of(coordinate)].place(coordinate)

    def block_of(self, coordinate: int) -> int:
        """Return the position of the block that a coordinate belongs to."""
        return next(i for i, block in enumerate(self.blocks) if coordinate < block.stop)


def like_layout(values: Array, template: Array) -> Array:
    """Return a dense copy of `values` whose axes run in memory as those of `template` do."""
    if not values.ndim:
        return values.copy()
    order = sorted(range(values.ndim), key=lambda axis: -abs(template.strides[axis]))
    buffer = np.empty([values.shape[axis] for axis in order], values.dtype)
    copy = buffer.transpose(np.argsort(order))
    copy = copy[tuple(slice(None, None, -1 if step < 0 else 1) for step in template.strides)]
    copy[...] = values
    return copy


@dataclass(frozen=True, slots=True)
class Vectors:
    """Directions, or incoming gradients: packed vectors, and which block each of them moves."""

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
