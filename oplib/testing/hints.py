"""What a wrong gradient looks like: the table of hints.

Each row of `HINTS` is a test on the evidence: the gradient that the rule gave and the one that
differences gave, as matrices with one row per incoming gradient (unit vectors) and one column per
coordinate of the input. The first test that holds to 1e-4 says what the author probably did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Final

import numpy as np

from .compare import Array
from .space import Block, Space

__all__ = ["HINTS", "Evidence", "hint_for"]


@dataclass(frozen=True)
class Evidence:
    """One failure in full."""

    analytic: Array
    numeric: Array
    dense: tuple[Array, Array, Array] | None
    domain: Space
    codomain: Space
    input: int
    result: int
    indices: Sequence[Array] = ()
    order: int = 1

    @property
    def x(self) -> Block:
        """The input whose gradient is wrong."""
        return self.domain.blocks[self.input]

    @property
    def y(self) -> Block:
        """The result through which it is wrong."""
        return self.codomain.blocks[self.result]

    @property
    def given(self) -> Array:
        """What the rule gave for the input, for every result."""
        return np.asarray(self.analytic[:, self.x.range])

    @property
    def true(self) -> Array:
        """What differences gave for the input, for every result."""
        return np.asarray(self.numeric[:, self.x.range])

    def right_results(self) -> list[int]:
        """Return the results through which the gradient of the input is right."""
        return [
            position
            for position, block in enumerate(self.codomain.blocks)
            if _agree(self.given[block.range], self.true[block.range])
        ]


def _close(a: Array, b: Array) -> bool:
    """Return whether `a` is `b` to 1e-4, and `b` is not nothing."""
    size = float(np.linalg.norm(b))
    return size > 0 and float(np.linalg.norm(a - b)) <= 1e-4 * size


def _agree(a: Array, b: Array) -> bool:
    return _close(a, b) or not (a.any() or b.any())


def hint_for(evidence: Evidence) -> str:
    """Return the first hint whose test holds, or ``""``."""
    with np.errstate(all="ignore"):
        return next((hint for test in HINTS if (hint := test(evidence))), "")


# ---------------------------------------------------------------------- the tests


def _conjugate(e: Evidence) -> str:
    """Look for ``conj(g)``, or for a sign that only imaginary incoming gradients show."""
    real = slice(e.y.start, e.y.start + e.y.size)
    given, true = e.given[real].copy(), e.true[real]
    if e.x.is_complex:
        given[:, e.x.size :] *= -1
        missing = _close(given, true) and not _close(e.given[real], true)
    else:
        imaginary = slice(real.stop, e.y.stop)
        missing = _agree(given, true) and _close(-e.given[imaginary], e.true[imaginary])
    if not missing:
        return ""
    return "a conjugate is missing or surplus: a holomorphic f has the gradient grad * conj(f'(x))"


def _jvp(e: Evidence) -> str:
    """Look for a product with the Jacobian instead of its transpose."""
    given, true = e.given[e.y.range], e.true[e.y.range]
    square = given.shape[0] == given.shape[1] > 1
    if square and _close(given, true.T) and not _close(given, true):
        return "this looks like the JVP (J v): multiply by the transpose of the Jacobian"
    return ""


def _transposed(e: Evidence) -> str:
    """Look for a gradient that is transposed as an array."""
    shape = e.x.shape
    if len(shape) < 2 or shape != shape[::-1]:
        return ""
    given = e.given.reshape(len(e.given), -1, *shape)
    turned = given.transpose(0, 1, *range(given.ndim - 1, 1, -1)).reshape(e.given.shape)
    if _close(turned, e.true) and not _close(e.given, e.true):
        return "the gradient is transposed"
    return ""


def _factor(e: Evidence) -> str:
    """Look for one number by which all is off."""
    for given, true in ((e.given, e.true), (e.given[e.y.range], e.true[e.y.range])):
        square = float((true * true).sum())
        factor = float((given * true).sum()) / square if square else 0.0
        if abs(factor) > 1e-4 and abs(factor - 1) > 1e-6 and _close(given, factor * true):
            fraction = Fraction(factor).limit_denominator(1000)
            nice = abs(float(fraction) - factor) <= 1e-5 * abs(factor)
            simple = nice and max(abs(fraction.numerator), fraction.denominator) <= 4
            if simple or np.count_nonzero(true) > 1:  # of one number to another there is a factor
                number = str(fraction) if nice else f"{factor:.6g}"
                return f"off by the factor {number}{_meaning(fraction if nice else None, e)}"
    return ""


def _meaning(factor: Fraction | None, e: Evidence) -> str:
    """Return what a factor usually means."""
    if factor is None:
        return ""
    if factor == -1:
        return ": the sign is wrong"
    if factor in (2, Fraction(1, 2)) and (e.x.is_complex or e.y.is_complex):
        return ": the gradient is dL/dRe + i dL/dIm, twice the conjugate Wirtinger derivative"
    lengths = {*e.x.shape, *e.y.shape, e.x.size, e.y.size, *_broadcast_lengths(e)} - {0, 1}
    for n in sorted(lengths):
        if factor == Fraction(1, n):
            return f": the mean over {n} elements was taken where their sum is due"
        if factor == n and n != 2:
            return f": the sum over {n} elements was taken where their mean is due"
    return ": the derivative of a square, perhaps" if factor in (2, Fraction(1, 2)) else ""


def _broadcast_lengths(e: Evidence) -> set[int]:
    axes = _broadcast_axes(e.x.shape, e.y.shape)
    return {prod(e.y.shape[axis] for axis in axes)}


def _result_missing(e: Evidence) -> str:
    """Look for a result that contributes nothing while others are right."""
    if len(e.codomain.blocks) < 2:
        return ""
    right = e.right_results()
    if right and not e.given[e.y.range].any():
        return f"the contribution of {e.y.name} is missing"
    if e.dense is not None and len(right) == len(e.codomain.blocks):
        seed, given, true = e.dense[0], e.dense[1][e.x.range], e.dense[2][e.x.range]
        for block in e.codomain.blocks:
            rest = true - seed[block.range] @ e.true[block.range]
            if _close(given, rest) or not (given.any() or rest.any()):
                return (
                    f"with gradients for all results, the contribution of {block.name} is missing"
                )
        return "right for each result alone, wrong when several gradients come in"
    return ""


def _zero(e: Evidence) -> str:
    """Look for a rule that returns nothing."""
    others = [b.range for b in e.domain.blocks if b is not e.x]
    if e.order > 1 and any(_close(e.analytic[:, r], e.numeric[:, r]) for r in others):
        return ""
    if np.linalg.norm(e.given) <= 1e-4 * np.linalg.norm(e.true):
        return (
            "the rule returns zero; or a value was detached, for example by computing in NumPy code"
        )
    return ""


def _other_argument(e: Evidence) -> str:
    """Look for the gradient of another argument."""
    for block in e.domain.blocks:
        same = (block.shape, block.dtype) == (e.x.shape, e.x.dtype)
        if block is not e.x and same and _close(e.given, e.numeric[:, block.range]):
            return f"this is the gradient of `{block.name}`: gradients are in the wrong order"
    return ""


def _broadcast_axes(small: tuple[int, ...], large: tuple[int, ...]) -> list[int]:
    """Return the axes of `large` along which `small` is repeated."""
    lead = len(large) - len(small)
    if lead < 0 or any(n not in (1, m) for n, m in zip(small, large[lead:], strict=True)):
        return []
    return [
        axis
        for axis, length in enumerate(large)
        if length > 1 and (axis < lead or small[axis - lead] == 1)
    ]


def _broadcast(e: Evidence) -> str:
    """Look for broadcast axes along which only one slice contributes."""
    axes = _broadcast_axes(e.x.shape, e.y.shape)
    if not axes:
        return ""
    given, true = e.given[e.y.range], e.true[e.y.range]
    wrong = np.array([not _agree(g, t) for g, t in zip(given, true, strict=True)])
    if wrong.all() or given[wrong].any():
        return ""
    index = np.unravel_index(np.arange(e.y.size), e.y.shape)
    for axis in axes:
        coordinates = np.tile(index[axis], 2 if e.y.is_complex else 1)
        if len(set(coordinates[~wrong].tolist())) == 1:
            return f"the sum over broadcast axes is missing (axis {axis} of {e.y.name})"
    return ""


def _repeated_index(e: Evidence) -> str:
    """Look for errors only where an integer argument names a position more than once."""
    columns = np.linalg.norm(e.given - e.true, axis=0) > 1e-6 * np.linalg.norm(e.true)
    wrong = np.flatnonzero(columns) % max(e.x.size, 1)
    if not e.x.shape or not len(wrong):
        return ""
    index = np.unravel_index(wrong, e.x.shape)
    for array in e.indices:
        values, counts = np.unique(array, return_counts=True)
        repeated = values[counts > 1]
        for axis, length in enumerate(e.x.shape):
            if len(repeated) and np.isin(index[axis], repeated % length).all():
                return (
                    "wrong only where an index repeats: `np.add.at(g, index, v)` is needed instead "
                    "of `g[index] += v`"
                )
    return ""


def _constant_intermediate(e: Evidence) -> str:
    """Explain a wrong derivative of the gradient that nothing else explains."""
    if e.order < 2:
        return ""
    return (
        "a saved intermediate is treated as constant: save inputs or results, or recompute it in "
        "backward"
    )


HINTS: Final[tuple[Callable[[Evidence], str], ...]] = (
    # A missing conjugate in front of a diagonal Jacobian also looks like the JVP; it is told first.
    _conjugate,
    _jvp,
    _transposed,
    _factor,
    _zero,
    _other_argument,
    _broadcast,
    _repeated_index,
    _result_missing,
    _constant_intermediate,
)
