"""Helpers for fake rules: describe a result instead of computing it.

A fake rule returns `TensorSpec`s (or Tensors without data). The common ones need no function: pass
``like("x")``, ``broadcast("x", "y")`` or ``reduced("x", "dim", "keepdim")`` where a rule is wanted.
Write shape code so that a size may be a symbol: compare sizes only where an answer must exist.

Imports floors 0 to 3, `library.py`. Read next: `prims.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from ._dims import same
from .dispatch.keys import WEAK
from .dtypes import Device, as_dtype, short_dtype
from .errors import ArgumentError
from .schema import FunctionSchema
from .tensor.geometry import contiguous_strides, keep_layout
from .tensor.tensor import Tensor
from .tensor.view_rules import normalize_dim, normalize_dims

__all__ = [
    "ShapeRule",
    "TensorSpec",
    "broadcast",
    "broadcast_shapes",
    "broadcast_spec",
    "like",
    "like_spec",
    "normalize_dim",
    "normalize_dims",
    "reduced",
    "reduced_shape",
    "reduced_spec",
    "result_type",
]

Shape: TypeAlias = tuple[Any, ...]


class TensorSpec:
    """Shape, dtype and strides of a tensor, without data.

    Parameters
    ----------
    shape : tuple of int or size symbol
    dtype : numpy.dtype or its name
    strides : tuple of int, optional
        In bytes; C order by default.
    device : Device, optional
        By default that of the call.
    """

    __slots__ = ("device", "dtype", "shape", "strides")

    def __init__(
        self,
        shape: Shape,
        dtype: Any,
        strides: Shape | None = None,
        device: Device | None = None,
    ) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype if isinstance(dtype, np.dtype) else as_dtype(dtype)
        self.strides = strides
        self.device = device

    @classmethod
    def of(cls, tensor: Any) -> TensorSpec:
        """Return the spec of a tensor or array."""
        return cls(tensor.shape, tensor.dtype, tensor.strides)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return f"TensorSpec({short_dtype(self.dtype)}[{', '.join(map(str, self.shape))}])"


class ShapeRule:
    """A fake rule stated by argument names; a registration turns it into a function.

    Parameters
    ----------
    text : str
        How it is written, for `explain`.
    build : callable
        ``build(arguments: dict) -> TensorSpec``.
    names : sequence of str
        The argument names it uses, checked against the schema.
    """

    def __init__(
        self, text: str, build: Callable[[dict[str, Any]], Any], names: Sequence[str]
    ) -> None:
        self.text = text
        self.build = build
        self.names = tuple(names)

    def for_schema(self, schema: FunctionSchema) -> Callable[..., Any]:
        """Return the fake rule for an operator with this schema."""
        names = [argument.name for argument in schema.positional]
        every = {argument.name for argument in schema.arguments}
        for name in self.names:
            if name not in every:
                raise ArgumentError(f"{schema.qualname}: {self.text} names no argument {name!r}")
        build = self.build

        def rule(*args: Any, **kwargs: Any) -> Any:
            return build({**dict(zip(names, args, strict=True)), **kwargs})

        return rule

    def __repr__(self) -> str:
        return self.text


def like(name: str, dtype: Any = None) -> ShapeRule:
    """Return the rule "a result like argument `name`": its shape, layout, and (default) dtype."""
    return ShapeRule(f"like({name!r})", lambda given: like_spec(given[name], dtype), [name])


def broadcast(*names: str, dtype: Any = None) -> ShapeRule:
    """Return the rule of elementwise operators: shapes broadcast, dtypes promote (NEP 50)."""

    def build(given: dict[str, Any]) -> TensorSpec:
        return broadcast_spec(*[given[name] for name in names], dtype=dtype)

    return ShapeRule(f"broadcast({', '.join(map(repr, names))})", build, names)


def reduced(name: str, dim: str = "dim", keepdim: str = "keepdim", dtype: Any = None) -> ShapeRule:
    """Return the rule of reductions over argument `name` along the argument `dim`.

    `dtype` is a dtype, or a function from the operand's dtype to the result's.
    """

    def build(given: dict[str, Any]) -> TensorSpec:
        x = given[name]
        target = dtype(x.dtype) if callable(dtype) and not isinstance(dtype, type) else dtype
        return reduced_spec(x, given[dim], given[keepdim], target)

    return ShapeRule(f"reduced({name!r}, {dim!r}, {keepdim!r})", build, [name, dim, keepdim])


# ---------------------------------------------------------------------- functions for rules


def like_spec(x: Any, dtype: Any = None) -> TensorSpec:
    """Return the spec of an elementwise result on one operand."""
    kind = x.dtype if dtype is None else as_dtype(dtype)
    strides = keep_layout(x.shape, [(x.shape, x.strides)], kind.itemsize)
    return TensorSpec(x.shape, kind, strides)


def broadcast_spec(*operands: Any, dtype: Any = None) -> TensorSpec:
    """Return the spec of an elementwise result on several operands."""
    shapes = [x.shape for x in operands]
    shape = shapes[0]
    if any(other != shape for other in shapes[1:]):
        shape = broadcast_shapes(*shapes)
    kind = result_type(*operands) if dtype is None else as_dtype(dtype)
    layouts = [(x.shape, x.strides) for x in operands if x.shape]
    return TensorSpec(shape, kind, keep_layout(shape, layouts, kind.itemsize))


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that all `shapes` broadcast to.

    Raises
    ------
    ValueError
        If they do not (as NumPy's own functions raise).
    """
    result: list[Any] = []
    for shape in shapes:
        if len(shape) > len(result):
            result = [1] * (len(shape) - len(result)) + result
        start = len(result) - len(shape)
        for axis, length in enumerate(shape, start):
            if same(result[axis], 1):
                result[axis] = length
            elif not (same(length, 1) or result[axis] == length):
                listed = " ".join(str(tuple(s)) for s in shapes)
                raise ValueError(f"shapes cannot be broadcast together: {listed}")
    return tuple(result)


_WEAK_KINDS: Final = {"b": bool, "i": int, "u": int, "f": float, "c": complex}


def result_type(*operands: Any) -> np.dtype[Any]:
    """Return the dtype operands promote to: `numpy.result_type`, Python numbers weak (NEP 50)."""
    kinds = []
    for x in operands:
        if isinstance(x, Tensor) and x._keys & WEAK:
            kinds.append(x.array.item())
        else:
            kinds.append(x.dtype if hasattr(x, "dtype") else x)
    return np.result_type(*kinds)


def reduced_shape(shape: Shape, dim: Any, keepdim: bool) -> Shape:
    """Return the shape after reducing over `dim` (None: all axes)."""
    dims = normalize_dims(dim, len(shape))
    if keepdim:
        return tuple(1 if axis in dims else length for axis, length in enumerate(shape))
    return tuple(length for axis, length in enumerate(shape) if axis not in dims)


def reduced_spec(x: Any, dim: Any, keepdim: bool, dtype: Any = None) -> TensorSpec:
    """Return the spec of a reduction: the axes that remain keep their order in memory."""
    dims = normalize_dims(dim, x.ndim)
    kind = x.dtype if dtype is None else as_dtype(dtype)
    kept = [axis for axis in range(x.ndim) if axis not in dims]
    lengths = tuple([x.shape[axis] for axis in kept])
    operand = lengths, tuple([x.strides[axis] for axis in kept])
    strides = keep_layout(lengths, [operand], kind.itemsize)
    if keepdim:
        dealt = dict(zip(kept, strides, strict=True))
        strides = tuple([dealt.get(axis, kind.itemsize) for axis in range(x.ndim)])
    return TensorSpec(reduced_shape(x.shape, dim, keepdim), kind, strides)


def contiguous_spec(shape: Shape, dtype: Any) -> TensorSpec:
    """Return the spec of a C-contiguous result."""
    kind = as_dtype(dtype)
    return TensorSpec(shape, kind, contiguous_strides(tuple(shape), kind.itemsize))
