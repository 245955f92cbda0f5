"""`Space`: a list of arrays as one real vector, and back.

Derivatives are linear algebra on real numbers. A complex element is two of them, its real and its
imaginary part, so that ``Re sum(conj(g) * u)`` is the dot product of packed vectors and one
statement covers real and complex functions alike.

Imports floors 0 to 7. Read next: `problem.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from .compare import Array

__all__ = ["Block", "Place", "Space", "like_layout"]


@dataclass(frozen=True, slots=True)
class Place:
    """One real coordinate: an element of a block, and which part of it."""

    name: str
    index: tuple[int, ...]
    part: str

    def __str__(self) -> str:
        element = str(list(self.index)) if self.index else ""
        return f"{self.name}{element}{f' ({self.part} part)' if self.part else ''}"


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

    def place(self, coordinate: int) -> Place:
        """Return which element a coordinate (of the whole space) is."""
        part, flat = divmod(coordinate - self.start, max(self.size, 1))
        index = tuple(map(int, np.unravel_index(flat, self.shape))) if self.shape else ()
        names = ("real", "imaginary") if self.is_complex else ("",)
        return Place(self.name, index, names[part])


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

    def place(self, coordinate: int) -> Place:
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
