"""What a gradient must do apart from having the right value.

It repeats, treats an absent incoming gradient as zero, and writes neither inputs nor incoming
gradients.

Imports floors 0 to 7, `report.py`, `compare.py`, `problem.py`, `attempt.py`. Read next:
`gradcheck.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..tensor.tensor import Tensor
from .attempt import Point
from .compare import Array, same_bytes
from .problem import Problem
from .report import GradientMismatch

__all__ = ["inconsistencies"]


def inconsistencies(
    problem: Problem, at: Point, before: list[Array], tolerance: float
) -> Iterator[GradientMismatch]:
    """Yield what is wrong with the recorded run at a point.

    Parameters
    ----------
    problem : Problem
    at : Point
    before : list of numpy.ndarray
        Copies of the inputs made before any backward run.
    tolerance : float
        How far two runs may differ; 0 asks for equal bits.
    """
    yield from _evaluations_repeat(problem, at, tolerance)
    yield from _backward_repeats(problem, at, tolerance)
    yield from _absent_is_zero(problem, at)
    for block, array, tensor in zip(problem.domain.blocks, before, at.line.inputs, strict=True):
        if not same_bytes(array, _bytes_of(tensor)):
            yield GradientMismatch.plain(f"{block.name} was written", "the rule writes an input")


def _evaluations_repeat(
    problem: Problem, at: Point, tolerance: float
) -> Iterator[GradientMismatch]:
    again = problem.evaluate(list(problem.domain.unpack(at.vector)))
    for block, first, second in zip(at.codomain.blocks, at.values, again, strict=True):
        if not _repeats(first, second, tolerance):
            yield GradientMismatch.plain(
                f"{block.name} differs between two evaluations at equal inputs",
                "give a random function a Generator, or raise nondet_tol",
            )


def _backward_repeats(problem: Problem, at: Point, tolerance: float) -> Iterator[GradientMismatch]:
    seen: list[tuple[Tensor, Array]] = []
    hooks = [
        output.register_hook(lambda g: seen.append((g, _bytes_of(g).copy())))
        for output in at.line.outputs
        if output.requires_grad
    ]
    first = at.line.pull_back(_ones(at.values))
    for hook in hooks:
        hook.remove()
    if any(not same_bytes(_bytes_of(gradient), copy) for gradient, copy in seen):
        yield GradientMismatch.plain(
            "backward writes the incoming gradient",
            "compute out of place: grad * 2, not grad *= 2",
        )
    second = at.line.pull_back(_ones(at.values))
    for block, a, b in zip(problem.domain.blocks, first, second, strict=True):
        if not _repeats(a, b, tolerance):
            yield GradientMismatch.plain(
                f"two backward runs give different gradients of {block.name}",
                "the rule writes what it saved, or depends on something outside",
            )


def _bytes_of(tensor: Tensor) -> Array:
    array: Array = tensor.array
    return array


def _ones(values: list[Array]) -> list[Array]:
    return [np.ones(value.shape, value.dtype) for value in values]


def _absent_is_zero(problem: Problem, at: Point) -> Iterator[GradientMismatch]:
    if len(at.values) < 2:
        return
    pack = problem.domain.pack
    for position, block in enumerate(at.codomain.blocks):
        ones = _ones(at.values)
        zeros = [one if k == position else np.zeros_like(one) for k, one in enumerate(ones)]
        absent = [one if k == position else None for k, one in enumerate(ones)]
        given, expected = pack(at.line.pull_back(absent)), pack(at.line.pull_back(zeros))
        scale = float(np.abs(expected).max(initial=0.0))
        if not np.allclose(given, expected, rtol=1e-6, atol=1e-6 * scale, equal_nan=True):
            yield GradientMismatch.plain(
                f"with a gradient for {block.name} only, absent gradients do not act as zeros",
                "a rule that receives None must treat it as zero",
            )
            return


def _repeats(a: Array | None, b: Array | None, tolerance: float) -> bool:
    if a is None or b is None:
        return a is b
    if tolerance == 0:
        return np.array_equal(a, b, equal_nan=True)
    return np.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True)
