"""Shapes, dtypes and layouts of results, computed.

These functions accept arrays, Tensors with and without data, and `TensorSpec`s; a size may be a
symbol. So one validation text serves kernel and fake rule, and both raise the same error. A size is
compared only where an answer must exist.

Imports floors 0 to 3, `spec.py`. Read next: `builders.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .._dims import SymBool, SymInt, same
from .._text import short_repr
from ..dispatch.keys import WEAK
from ..dtypes import as_dtype
from ..errors import ArgumentError, DataDependentError
from ..tensor.geometry import keep_layout
from ..tensor.tensor import Tensor
from ..tensor.view_rules import normalize_dim, normalize_dims
from .spec import Shape, TensorSpec

__all__ = [
    "as_size",
    "broadcast_shapes",
    "broadcast_spec",
    "check",
    "concat_spec",
    "gather_spec",
    "like_spec",
    "matmul_spec",
    "reduced_shape",
    "reduced_spec",
    "result_type",
    "same_shape",
    "stacked_spec",
    "windowed_shape",
]

# ---------------------------------------------------------------------- checks


def check(condition: Any, message: str = "") -> None:
    """State what must hold: raise unless `condition` is true, and remember it about symbols.

    Parameters
    ----------
    condition : bool, or a comparison of sizes
        A comparison that nothing known decides is taken for true from here on.
    message : str
        What to tell the caller.

    Raises
    ------
    ArgumentError
        If it does not hold.
    """
    if isinstance(condition, SymBool):
        condition.left.facts.assume(condition)
    elif not condition:
        raise ArgumentError(message or "a condition of the operator does not hold")


def as_size(value: Any) -> Shape:
    """Return a size given as one int or a sequence as a tuple of lengths.

    Raises
    ------
    ArgumentError
        For a negative length, or one that is no int and no symbol.
    """
    lengths = tuple(value) if isinstance(value, Iterable) else (value,)
    for length in lengths:
        whole = isinstance(length, SymInt | int | np.integer) and not isinstance(length, bool)
        if not whole or (not isinstance(length, SymInt) and length < 0):
            raise ArgumentError(f"a length is an int >= 0, got {short_repr(length)}")
    return tuple([n if isinstance(n, SymInt) else operator.index(n) for n in lengths])


# ---------------------------------------------------------------------- dtypes


def result_type(*operands: Any) -> np.dtype[Any]:
    """Return the dtype operands promote to: `numpy.result_type`, Python numbers weak (NEP 50).

    Parameters
    ----------
    *operands : tensors, arrays, specs, dtypes or numbers
    """
    kinds = []
    for x in operands:
        if isinstance(x, Tensor) and x._keys & WEAK:
            kinds.append(x.array.item())
        else:
            kinds.append(x.dtype if hasattr(x, "dtype") else x)
    first = kinds[0]
    if isinstance(first, np.dtype) and first.isnative and all(kind is first for kind in kinds):
        return first  # the usual case, in a tenth of the time
    return np.result_type(*kinds)


def _check_weak(operands: Sequence[Any], dtype: np.dtype[Any]) -> None:
    """Raise OverflowError, as NumPy's arithmetic does, for an int that `dtype` cannot hold."""
    for x in operands:
        number = x.array.item() if isinstance(x, Tensor) and x._keys & WEAK else x
        if type(number) is int and dtype.kind in "iufc":
            np.asarray(number, dtype)


# ---------------------------------------------------------------------- elementwise


def like_spec(x: Any, dtype: Any = None) -> TensorSpec:
    """Return the spec of an elementwise result on one operand: its layout, and dtype by default."""
    kind = x.dtype if dtype is None else as_dtype(dtype)
    strides = keep_layout(x.shape, [(x.shape, x.strides)], kind.itemsize)
    return TensorSpec(x.shape, kind, strides)


def broadcast_spec(*operands: Any, dtype: Any = None) -> TensorSpec:
    """Return the spec of an elementwise result on several operands.

    Shapes broadcast, dtypes promote unless `dtype` is given, the layout is the one NumPy keeps.
    """
    shape = _common_shape([x.shape for x in operands])
    if dtype is None:
        kind = result_type(*operands)
        _check_weak(operands, kind)
    else:
        kind = as_dtype(dtype)
    layouts = [(x.shape, x.strides) for x in operands if x.shape]
    return TensorSpec(shape, kind, keep_layout(shape, layouts, kind.itemsize))


def _common_shape(shapes: list[Shape]) -> Shape:
    """Return the broadcast of shapes; equal ones, the usual case, in less time."""
    try:
        if shapes.count(shapes[0]) == len(shapes):
            return shapes[0]
    except DataDependentError:  # symbols that may be equal to other sizes
        pass
    return broadcast_shapes(*shapes)


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
            elif not (same(length, 1) or same(result[axis], length) or result[axis] == length):
                listed = " ".join(str(tuple(s)) for s in shapes)
                raise ValueError(f"shapes cannot be broadcast together: {listed}")
    return tuple(result)


def same_shape(*operands: Any) -> Shape:
    """Return the shape that all operands have.

    Raises
    ------
    ArgumentError
        If they differ.
    """
    shape: Shape = operands[0].shape
    if any(x.shape != shape for x in operands[1:]):
        listed = ", ".join(str(list(x.shape)) for x in operands)
        raise ArgumentError(f"tensors of one shape are needed, got {listed}")
    return shape


# ---------------------------------------------------------------------- reductions


def reduced_shape(shape: Shape, dim: Any, keepdim: bool) -> Shape:
    """Return the shape after reducing over `dim` (None: all axes)."""
    dims = normalize_dims(dim, len(shape))
    if keepdim:
        return tuple([1 if axis in dims else length for axis, length in enumerate(shape)])
    return tuple([length for axis, length in enumerate(shape) if axis not in dims])


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
    return TensorSpec(reduced_shape(x.shape, dims, keepdim), kind, strides)


# ---------------------------------------------------------------------- products, joins, windows


def matmul_spec(a: Any, b: Any) -> TensorSpec:
    """Return the spec of ``a @ b``: C order, leading axes broadcast, a 1-d operand is a vector.

    Raises
    ------
    ArgumentError
        If an operand has no axes.
    ValueError
        If the inner lengths differ.
    """
    check(a.ndim and b.ndim, "a matrix product needs operands with axes; multiply numbers with *")
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ValueError(
            f"a matrix product of {list(a.shape)} and {list(b.shape)}: {a.shape[-1]} != {inner}"
        )
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows = a.shape[-2:-1] if a.ndim > 1 else ()
    columns = b.shape[-1:] if b.ndim > 1 else ()
    return TensorSpec((*batch, *rows, *columns), result_type(a, b))


def concat_spec(parts: Sequence[Any], dim: int) -> TensorSpec:
    """Return the spec of parts joined along an axis, in the order of axes they agree on."""
    first, axis = _joined(parts, dim, extra=0)
    length: Any = 0
    for part in parts:
        others = [n for i, n in enumerate(part.shape) if i != axis]
        if part.ndim != first.ndim or others != [n for i, n in enumerate(first.shape) if i != axis]:
            shapes = ", ".join(str(list(p.shape)) for p in parts)
            raise ArgumentError(f"joining along {dim}: other axes differ in length: {shapes}")
        length = length + part.shape[axis]
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    kind = result_type(*parts)
    layouts = [(part.shape, part.strides) for part in parts]
    return TensorSpec(shape, kind, keep_layout(shape, layouts, kind.itemsize))


def stacked_spec(parts: Sequence[Any], dim: int) -> TensorSpec:
    """Return the spec of parts of one shape stacked along a new axis, in C order."""
    _, axis = _joined(parts, dim, extra=1)
    shape = same_shape(*parts)
    return TensorSpec((*shape[:axis], len(parts), *shape[axis:]), result_type(*parts))


def _joined(parts: Sequence[Any], dim: int, extra: int) -> tuple[Any, int]:
    check(len(parts), "joining needs at least one tensor")
    return parts[0], normalize_dim(dim, parts[0].ndim + extra)


def gather_spec(x: Any, index: Any, dim: int) -> TensorSpec:
    """Return the spec of elements at positions along an axis: the shape of `index`, in C order."""
    axis = normalize_dim(dim, x.ndim)
    check(index.dtype.kind in "iu", f"positions are integers, got {index.dtype}")
    check(index.ndim == x.ndim, f"positions with {x.ndim} axes are needed, got {list(index.shape)}")
    for i, (wanted, length) in enumerate(zip(index.shape, x.shape, strict=True)):
        if i != axis:
            check(wanted <= length, f"positions {list(index.shape)} exceed {list(x.shape)}")
    return TensorSpec(index.shape, x.dtype)


def windowed_shape(
    spatial: Sequence[Any], size: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1
) -> Shape:
    """Return how many windows fit along each axis, as convolution and pooling count them.

    ``(n + 2 padding - dilation (size - 1) - 1) // stride + 1`` per axis; a single number counts
    for all axes.

    Raises
    ------
    ArgumentError
        If a window is larger than its padded axis, or a stride, size or dilation is not positive.
    """
    count = len(spatial)
    sizes, strides, paddings, dilations = (
        _per_axis(value, count) for value in (size, stride, padding, dilation)
    )
    shape = []
    for n, k, s, p, d in zip(spatial, sizes, strides, paddings, dilations, strict=True):
        check(min(k, s, d) > 0 and p >= 0, f"window {k}, stride {s}, padding {p}, dilation {d}")
        free = n + 2 * p - d * (k - 1) - 1
        check(free >= 0, f"a window of {k} (dilation {d}) does not fit into {n} + 2 * {p}")
        shape.append(free // s + 1)
    return tuple(shape)


def _per_axis(value: Any, count: int) -> Sequence[Any]:
    values = list(value) if isinstance(value, Sequence) else [value] * count
    values = values * count if len(values) == 1 else values
    check(len(values) == count, f"one number per axis is needed, {count}; got {values}")
    return values
