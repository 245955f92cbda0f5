"""Sums of products over named or numbered axes.

Imports floors 0 to 4, `declare.py`, `linalg.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._dims import same
from ..errors import ArgumentError
from ..prims import expand, sum_to
from ..shapes import TensorSpec, normalize_dim, result_type
from ..tensor.tensor import Tensor
from .declare import Array, composite, declare
from .linalg import matmul

__all__ = ["einsum"]

contract = declare(
    "contract(str equation, Tensor[] operands) -> Tensor",
    "`numpy.einsum` of operands in which no label occurs twice; `einsum` brings any to that form.",
)


@contract.register_kernel("cpu")
def _contract(equation: str, operands: list[Array]) -> Array:
    try:
        found = np.einsum(equation, *operands, optimize=len(operands) > 2)
    except ValueError:
        _lengths(_labels(equation)[0], operands)  # says better what is wrong
        raise
    return np.array(found, order="C", copy=len(operands) == 1 or None)  # of one it is a view


def _labels(equation: str) -> tuple[list[str], str]:
    inputs, _, output = equation.partition("->")
    return inputs.split(","), output


def _lengths(inputs: Sequence[str], operands: Sequence[Any]) -> dict[str, Any]:
    """Return the length of each label; axes of a label agree, or have one element."""
    lengths: dict[str, Any] = {}
    if len(inputs) != len(operands):
        raise ArgumentError(
            f"std::einsum: {','.join(inputs)!r} names {len(inputs)} operands, "
            f"{len(operands)} are given"
        )
    for labels, operand in zip(inputs, operands, strict=True):
        for label, length in zip(labels, operand.shape, strict=True):
            known = lengths.setdefault(label, length)
            if same(known, 1):
                lengths[label] = length
            elif not same(known, length) and not same(length, 1):
                raise ArgumentError(f"std::einsum: `{label}` is {lengths[label]} and {length} long")
    return lengths


@contract.register_fake
def _contract_spec(equation: str, operands: list[Any]) -> TensorSpec:
    inputs, output = _labels(equation)
    lengths = _lengths(inputs, operands)
    return TensorSpec(tuple([lengths[label] for label in output]), result_type(*operands))


@contract.register_vjp
def _contract_grad(
    grad: Tensor, equation: str, operands: list[Tensor], operands_spec: list[TensorSpec]
) -> list[Tensor]:
    """Contract the gradient with the other operands; along a label only summed it is constant."""
    inputs, output = _labels(equation)
    found = []
    for i, (labels, spec) in enumerate(zip(inputs, operands_spec, strict=True)):
        others = [*inputs[:i], *inputs[i + 1 :]]
        kept = [label for label in labels if label in output or any(label in o for o in others)]
        factors = [operand.conj() for j, operand in enumerate(operands) if j != i]
        part = contract(f"{','.join([output, *others])}->{''.join(kept)}", [grad, *factors])
        for axis, label in enumerate(labels):
            if label not in kept:
                part = part.unsqueeze(axis)
        own = [1 if same(n, 1) else m for n, m in zip(spec.shape, part.shape, strict=True)]
        found.append(expand(sum_to(part, own), spec.shape))
    return found


@composite(
    "einsum(str equation, Tensor[] operands) -> Tensor",
    "Einstein summation: ``einsum('ij,jk->ik', [a, b])``; labels may repeat, ``...`` broadcasts.",
)
def einsum(equation: str, operands: list[Tensor]) -> Tensor:
    """Take diagonals of repeated labels, name the axes of the ellipsis, contract."""
    text = equation.replace(" ", "")
    written, arrow, output = text.partition("->")
    inputs = written.split(",")
    if len(inputs) != len(operands):
        raise ArgumentError(
            f"std::einsum: {equation!r} names {len(inputs)} operands, {len(operands)} are given"
        )
    spare = [c for c in _ALPHABET if c not in text]
    hidden = [
        x.ndim - len(part.replace("...", "")) for part, x in zip(inputs, operands, strict=True)
    ]
    for part, rest, x in zip(inputs, hidden, operands, strict=True):
        if rest < 0 or (rest and "..." not in part):
            raise ArgumentError(f"std::einsum: {part!r} does not name the axes of {x.describe()}")
    most = max([rest for part, rest in zip(inputs, hidden, strict=True) if "..." in part] or [0])
    batch = "".join(spare[:most])
    parts = [
        part.replace("...", batch[len(batch) - rest :])
        for part, rest in zip(inputs, hidden, strict=True)
    ]
    if not arrow:
        once = sorted(c for c in set("".join(inputs)) - {"."} if "".join(inputs).count(c) == 1)
        output = "..." + "".join(once) if "..." in text else "".join(once)
    output = output.replace("...", batch)
    _check_labels(equation, parts, output)
    single = [_without_repeats(part, x) for part, x in zip(parts, operands, strict=True)]
    aligned = _broadcast([part for part, _ in single], [x for _, x in single], batch)
    return contract(f"{','.join(part for part, _ in aligned)}->{output}", [x for _, x in aligned])


_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _check_labels(equation: str, parts: Sequence[str], output: str) -> None:
    wrong = [c for c in "".join(parts) + output if c not in _ALPHABET]
    unknown = [c for c in output if c not in "".join(parts)]
    if wrong or unknown or len(set(output)) != len(output):
        what = (
            f"{wrong[0]!r} is no label" if wrong else "the output names each label once, of those"
        )
        raise ArgumentError(f"std::einsum: {equation!r}: {what}" + ("" if wrong else " given"))


def _without_repeats(labels: str, x: Tensor) -> tuple[str, Tensor]:
    """Return an operand with the diagonal taken of labels that occur twice in it."""
    for label in labels:
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if not same(x.shape[first], x.shape[second]):
                raise ArgumentError(
                    f"std::einsum: `{label}` is {x.shape[first]} and {x.shape[second]} long"
                )
            x = x.diagonal(0, first, second)
            labels = labels[:first] + labels[first + 1 : second] + labels[second + 1 :] + label
    return labels, x


def _broadcast(
    parts: Sequence[str], operands: Sequence[Tensor], batch: str
) -> list[tuple[str, Tensor]]:
    """Return operands without the axes of length one that broadcast against longer ones."""
    longest: dict[str, Any] = {}
    for part, x in zip(parts, operands, strict=True):
        for label, length in zip(part, x.shape, strict=True):
            if label not in longest or same(longest[label], 1):
                longest[label] = length
    aligned = []
    for labels, operand in zip(parts, operands, strict=True):
        part, x = labels, operand
        for label in labels:
            axis = part.index(label)
            if label in batch and same(x.shape[axis], 1) and not same(longest[label], 1):
                x, part = x.squeeze(axis), part.replace(label, "")
        aligned.append((part, x))
    return aligned


@composite(
    "tensordot(Tensor x, Tensor y, int[] dims_x, int[] dims_y) -> Tensor",
    "Sum of products over pairs of axes (`numpy.tensordot`); the axes left are x's, then y's.",
)
def tensordot(x: Tensor, y: Tensor, dims_x: list[int], dims_y: list[int]) -> Tensor:
    """Multiply as matrices."""
    if len(dims_x) != len(dims_y):
        raise ArgumentError(f"std::tensordot pairs axes; got {dims_x} and {dims_y}")
    over_x = [normalize_dim(dim, x.ndim) for dim in dims_x]
    over_y = [normalize_dim(dim, y.ndim) for dim in dims_y]
    rest_x = [axis for axis in range(x.ndim) if axis not in over_x]
    rest_y = [axis for axis in range(y.ndim) if axis not in over_y]
    summed = 1
    rows, columns = (
        math.prod([v.shape[axis] for axis in rest]) for v, rest in ((x, rest_x), (y, rest_y))
    )
    for i, j in zip(over_x, over_y, strict=True):
        if not same(x.shape[i], y.shape[j]):
            raise ArgumentError(
                f"std::tensordot: axes {i} and {j} are {x.shape[i]} and {y.shape[j]} long"
            )
        summed = summed * x.shape[i]
    left = x.permute([*rest_x, *over_x]).reshape([rows, summed])
    right = y.permute([*over_y, *rest_y]).reshape([summed, columns])
    shape = [*(x.shape[axis] for axis in rest_x), *(y.shape[axis] for axis in rest_y)]
    return matmul(left, right).reshape(shape)


@composite(
    "kron(Tensor x, Tensor y) -> Tensor",
    "The Kronecker product: axes are multiplied (`numpy.kron`).",
)
def kron(x: Tensor, y: Tensor) -> Tensor:
    """Multiply every element of x by all of y."""
    rank = max(x.ndim, y.ndim)
    x = x.reshape([*[1] * (rank - x.ndim), *x.shape])
    y = y.reshape([*[1] * (rank - y.ndim), *y.shape])
    pairs = x.reshape([n for length in x.shape for n in (length, 1)]) * y.reshape(
        [n for length in y.shape for n in (1, length)]
    )
    return pairs.reshape([m * n for m, n in zip(x.shape, y.shape, strict=True)])
