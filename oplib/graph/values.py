"""Values and what is known of them: metadata, references to their memory.

A `Value` is one result of one node and is known by identity; names exist only in text. Its meta
says what is known of it without data: `TensorMeta`, `TokenMeta`, or `PyMeta`.

Imports floors 0 and 3, `literals.py`. Read next: `ir.py`, the nodes that define values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from ..dtypes import CPU, Device, short_dtype
from ..tensor.geometry import Geometry, contiguous_strides, extent
from .literals import size_text

__all__ = [
    "Digest",
    "Meta",
    "PyMeta",
    "Reference",
    "Same",
    "TensorMeta",
    "TokenMeta",
    "Value",
    "count_text",
    "same_layout",
    "same_size",
    "same_sizes",
]


@dataclass(frozen=True, slots=True, eq=False)
class TensorMeta:
    """What is known of a tensor without its data; prints as ``f32[4,2]{1,4}@npu:0``.

    Attributes
    ----------
    dtype : numpy.dtype
    shape : tuple
        Sizes: ints, or symbols that print as expressions.
    strides : tuple
        In bytes. Text counts elements and shows strides only if they are not those of C order.
    device : Device

    Two metas are equal when dtype, shape, device and the strides of axes longer than one are; the
    strides of an empty tensor do not count.
    """

    dtype: np.dtype[Any]
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    device: Device = CPU

    @classmethod
    def contiguous(cls, dtype: Any, shape: Iterable[Any], device: Device = CPU) -> TensorMeta:
        """Return the meta of a tensor in C order."""
        dtype, shape = np.dtype(dtype), tuple(shape)
        return cls(dtype, shape, contiguous_strides(shape, dtype.itemsize), device)

    @property
    def is_contiguous(self) -> bool:
        """Whether the strides are those of C order."""
        return same_layout(
            self.shape, self.strides, contiguous_strides(self.shape, self.dtype.itemsize)
        )

    @property
    def form(self) -> Geometry:
        """The tensor's geometry in a buffer that begins at its lowest address."""
        lowest, _ = extent(Geometry(self.dtype, self.shape, self.strides))
        return Geometry(self.dtype, self.shape, self.strides, -lowest)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorMeta):
            return NotImplemented
        return (
            self.dtype == other.dtype
            and self.device == other.device
            and same_sizes(self.shape, other.shape)
            and same_layout(self.shape, self.strides, other.strides)
        )

    def __hash__(self) -> int:
        return hash((self.dtype, self.device, *map(str, self.shape)))

    def __str__(self) -> str:
        sizes = ",".join(map(size_text, self.shape))
        text = f"{short_dtype(self.dtype)}[{sizes}]"
        if not self.is_contiguous:
            counts = (count_text(stride, self.dtype.itemsize) for stride in self.strides)
            text += f"{{{','.join(counts)}}}"
        return text if self.device == CPU else f"{text}@{self.device}"


@dataclass(frozen=True, slots=True)
class TokenMeta:
    """The meta of a token, which orders the calls of one effect; prints as ``token[ordered]``."""

    effect: str

    def __str__(self) -> str:
        return f"token[{self.effect}]"


@dataclass(frozen=True, slots=True)
class PyMeta:
    """The meta of a Python value: the name of its type, ``int`` or ``numpy.random.Generator``."""

    type_name: str

    def __str__(self) -> str:
        return self.type_name


Meta: TypeAlias = TensorMeta | TokenMeta | PyMeta


def same_size(left: Any, right: Any) -> bool:
    """Return whether two sizes are the same int or the same expression; never asks for facts."""
    if type(left) is int and type(right) is int:
        return left == right
    return str(left) == str(right)


def same_sizes(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    """Return whether two shapes agree in every axis."""
    return len(left) == len(right) and all(map(same_size, left, right))


def same_layout(shape: tuple[Any, ...], left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    """Return whether strides agree on the axes longer than one; an empty shape has no layout."""
    if any(type(size) is int and size == 0 for size in shape):
        return True
    axes = zip(shape, left, right, strict=True)
    return all(
        same_size(one, other) for size, one, other in axes if type(size) is not int or size != 1
    )


def count_text(count: Any, itemsize: int) -> str:
    """Return a byte count in elements, or as ``6b`` when it is no whole number of elements."""
    if type(count) is int and count % itemsize:
        return f"{count}b"
    return size_text(count // itemsize)


# Values and references ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Value:
    """One result of one node, known by identity.

    Attributes
    ----------
    stem : str
        What its printed name is made of: ``add`` becomes ``add``, ``add_1``, ... in node order.
    meta : TensorMeta, TokenMeta or PyMeta
        A snapshot from when the node was recorded.
    """

    stem: str
    meta: Meta

    @property
    def is_tensor(self) -> bool:
        """Whether the value is a tensor."""
        return isinstance(self.meta, TensorMeta)

    @property
    def is_token(self) -> bool:
        """Whether the value carries no data and only orders effects."""
        return isinstance(self.meta, TokenMeta)

    @property
    def tensor(self) -> TensorMeta:
        """The meta of a value that is known to be a tensor."""
        return cast("TensorMeta", self.meta)

    def __repr__(self) -> str:
        return f"<Value {self.stem}: {self.meta}>"


@dataclass(frozen=True, slots=True)
class Reference:
    """``&x`` or ``&x[2]:[1]+0``: memory of a value rather than its contents.

    As an argument of a `Functionalized` node: a view of the clone of `value`. In the tail: a handle
    on the buffer of an input, or on the temporary buffer that holds `value`.

    Attributes
    ----------
    value : Value
    geometry : Geometry or None
        How the handle addresses the buffer, counted from the lowest address of the value's own
        form; None stands for that form.
    """

    value: Value
    geometry: Geometry | None = None


@dataclass(frozen=True, slots=True)
class Same:
    """``same(0)``: the very object that result `index` is; leaves are counted."""

    index: int


@dataclass(frozen=True, slots=True)
class Digest:
    """Stands for the bytes of a constant whose text was parsed without its data."""

    text: str
