"""Inputs of random programs: how they lie in memory, as data, so that they can be made again.

A `Buffer` is memory; an `Input` is a view of it. Buffers are plain arrays, leaves that require
grad, or results of a recorded operation (so that inputs are no leaves, or views of one tensor that
is none)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import oplib
from oplib import Tensor
from oplib.tensor.storage import owner_of

__all__ = ["Buffer", "Input", "Inputs", "Layout", "random_layout"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Buffer:
    """Memory of some elements; `kind` is plain, leaf or result."""

    dtype: str
    size: int
    kind: str


@dataclass(frozen=True)
class Input:
    """A view of a buffer, counted in elements. With `whole` it is the buffer's tensor itself."""

    buffer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    whole: bool = False
    read_only: bool = False


@dataclass(frozen=True)
class Layout:
    """All buffers and inputs of a program."""

    buffers: tuple[Buffer, ...]
    inputs: tuple[Input, ...]

    def text(self) -> str:
        """Return the layout as Python text that makes it."""
        lines = ["Layout(", "    buffers=("]
        lines += [f"        {buffer!r}," for buffer in self.buffers]
        lines += ["    ),", "    inputs=("]
        lines += [f"        {one!r}," for one in self.inputs]
        return "\n".join([*lines, "    ),", ")"])

    def make(self, seed: int, smooth: bool = False) -> Inputs:
        """Return fresh inputs with contents that depend on `seed`: small integers.

        With `smooth` no two elements are equal, so that choices between elements do not change
        under a small step.
        """
        numbers = np.random.default_rng(seed)
        contents = [_contents(buffer, numbers) for buffer in self.buffers]
        if smooth:
            for array in contents:
                array += (np.arange(1, array.size + 1) * 0.0173).astype(array.dtype)
        return self.make_of(contents)

    def make_of(self, contents: Sequence[Array]) -> Inputs:
        """Return inputs over buffers that hold the given arrays."""
        made = Inputs()
        pairs = zip(self.buffers, contents, strict=True)
        roots = [_root(buffer, array.copy(), made) for buffer, array in pairs]
        made.tensors = [
            _view(roots[one.buffer], one, self.buffers[one.buffer]) for one in self.inputs
        ]
        made.arrays = [_owner(root) for root in roots]
        return made

    def apart(self) -> Layout:
        """Return the layout in which no two inputs share memory."""
        buffers = [self.buffers[one.buffer] for one in self.inputs]
        inputs = [replace(one, buffer=number) for number, one in enumerate(self.inputs)]
        return Layout(tuple(buffers), tuple(inputs))


@dataclass
class Inputs:
    """Fresh tensors, the leaves they depend on, and the whole memory they lie in."""

    tensors: list[Tensor] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)


def _contents(buffer: Buffer, numbers: np.random.Generator) -> Array:
    whole = numbers.integers(-2, 4, buffer.size).astype(float)
    if buffer.dtype.startswith("complex"):
        whole = whole + 1j * numbers.integers(-2, 4, buffer.size)
    return whole.astype(buffer.dtype)


def _root(buffer: Buffer, contents: Array, made: Inputs) -> Tensor:
    tensor = oplib.from_numpy(contents)
    if buffer.kind == "plain":
        return tensor
    tensor.requires_grad = True
    made.leaves.append(tensor)
    return tensor if buffer.kind == "leaf" else tensor * 1


def _view(root: Tensor, one: Input, buffer: Buffer) -> Tensor:
    if one.whole:
        return root
    if buffer.kind != "plain":
        return root.as_strided(list(one.shape), list(one.strides), one.offset)
    array = root.numpy()
    strides = tuple(step * array.itemsize for step in one.strides)
    view = np.ndarray(one.shape, array.dtype, array, one.offset * array.itemsize, strides)
    view.flags.writeable = not one.read_only
    return oplib.from_numpy(view)


def _owner(tensor: Tensor) -> Array:
    owner = owner_of(tensor.numpy())
    assert isinstance(owner, np.ndarray)
    return owner


# ---------------------------------------------------------------------- random layouts

SHAPES = [
    (),
    (1,),
    (2,),
    (3,),
    (4,),
    (2, 3),
    (3, 2),
    (2, 2),
    (3, 3),
    (1, 3),
    (2, 1, 2),
    (0,),
    (0, 2),
]


def random_layout(pick: random.Random) -> Layout:
    """Return one to three inputs, half of the time several over one buffer."""
    buffers: list[Buffer] = []
    inputs: list[Input] = []
    dtype = pick.choice(["float64"] * 6 + ["complex128", "float32", "int64"])
    count = pick.choice([1, 2, 2, 3, 3])
    if count > 1 and pick.random() < 0.2:  # inputs that can be exchanged
        whole = Input(0, (6,), (1,), 0)
        buffers = [Buffer(dtype, 6, "plain") for _ in range(count)]
        return Layout(tuple(buffers), tuple(replace(whole, buffer=i) for i in range(count)))
    while len(inputs) < count:
        if buffers and pick.random() < 0.45:
            buffer = pick.randrange(len(buffers))
        else:
            kinds = ["plain"] if dtype == "int64" else ["plain"] * 4 + ["leaf"] * 2 + ["result"] * 3
            buffers.append(Buffer(dtype, pick.choice([6, 9, 12, 16]), pick.choice(kinds)))
            buffer = len(buffers) - 1
            dtype = pick.choice([dtype, dtype, dtype, "float64"])
        inputs.append(_random_input(pick, buffer, buffers[buffer]))
    return Layout(tuple(buffers), tuple(inputs))


def _random_input(pick: random.Random, index: int, buffer: Buffer) -> Input:
    if buffer.kind == "leaf" and pick.random() < 0.8:
        return Input(index, (buffer.size,), (1,), 0, whole=True)
    read_only = buffer.kind == "plain" and pick.random() < 0.03
    for _ in range(50):
        shape = pick.choice(SHAPES)
        strides = _random_strides(pick, shape)
        reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True) if n]
        low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        if high - low < buffer.size:
            offset = pick.randint(-low, buffer.size - 1 - high)
            return Input(index, shape, strides, offset, read_only=read_only)
    return Input(index, (buffer.size,), (1,), 0, read_only=read_only)


def _random_strides(pick: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides of a C, permuted, spaced, reversed or (seldom) overlapping layout."""
    if pick.random() < 0.05:
        return tuple(pick.choice([0, 1, 1, 2]) for _ in shape)
    order = list(range(len(shape)))
    if pick.random() < 0.4:
        pick.shuffle(order)
    strides, step = [0] * len(shape), pick.choice([1, 1, 1, 2])
    for axis in reversed(order):
        strides[axis] = step * pick.choice([1, 1, 1, -1])
        step *= max(shape[axis], 1)
        step += pick.choice([0, 0, 0, 1])
    return tuple(strides)
