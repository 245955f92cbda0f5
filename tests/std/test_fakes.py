"""Every built-in operator on fakes, on operands of every layout and size: real calls are the model.

Shape, dtype, strides, offset and alias of every result, versions of arguments, and the class of an
error are those of the real call; only errors that values cause are not foreseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import oplib
from oplib.std import load_all
from tests.std.cases import (
    CASES,
    DYNAMIC,
    LAYOUTS,
    Call,
    as_tensors,
    identifiers,
    operator,
)
from tests.std.test_facets import described, first_argument

load_all()

BY_VALUE = (IndexError, np.linalg.LinAlgError)
"""Errors about positions and matrices, which no shape shows."""

Array = np.ndarray[Any, Any]
Change = Callable[[Array], Array]


def permuted(rng: np.random.Generator) -> Change:
    """Return a change of layout: axes in any order in memory."""

    def change(array: Array) -> Array:
        order = rng.permutation(array.ndim)
        dense = array.transpose(order).copy(order="C")
        return dense.transpose(np.argsort(order))

    return change


def expanded(rng: np.random.Generator) -> Change:
    """Return a change: one axis gets stride 0."""

    def change(array: Array) -> Array:
        if not array.size or not array.ndim:
            return array.copy()
        axis = int(rng.integers(array.ndim))
        return np.broadcast_to(np.take(array, [0], axis), array.shape)

    return change


def mixed(rng: np.random.Generator) -> Change:
    """Return a change of layout that differs from operand to operand."""
    changes = [*LAYOUTS.values(), permuted(rng), expanded(rng)]
    return lambda array: changes[rng.integers(len(changes))](array)


def resized(length: int, size: int, then: Change) -> Change:
    """Return a change: every axis of one length is cut to a size, 0 or 1."""

    def change(array: Array) -> Array:
        kept = np.ix_(*[range(size if n == length else n) for n in array.shape])
        return then(array[kept].copy() if array.ndim else array.copy())

    return change


def changes(given: Call, rng: np.random.Generator) -> Iterator[Change]:
    """Yield what is done to the arrays of a call."""
    lengths: set[int] = set()
    given.mapped(lambda array: lengths.update(array.shape))
    yield permuted(rng)
    yield mixed(rng)
    for length in sorted(lengths):
        for size in {0, 1} - {length}:
            yield resized(length, size, mixed(rng))


def outcome(op: Any, given: Call) -> Any:
    """Return what can be seen of a call: its results and versions, or the class of its error."""
    try:
        with np.errstate(all="ignore"):
            result = op(*given.args, **given.kwargs)
    except BY_VALUE:
        return None
    except Exception as error:
        return type(error)
    tensors = [arg for arg in given.args if isinstance(arg, oplib.Tensor)]
    return described(result, first_argument(given)), [t.inplace_version for t in tensors]


def faked(value: Any, mode: oplib.FakeTensorMode) -> Any:
    """Return the fakes of tensors in any nesting."""
    if isinstance(value, list | tuple):
        return type(value)(faked(part, mode) for part in value)
    return mode.from_tensor(value) if isinstance(value, oplib.Tensor) else value


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("name", "given"), identifiers(n for n in CASES if n not in (*DYNAMIC, "as_strided"))
)
def test_a_call_on_fakes_has_the_outcome_of_the_real_call(name: str, given: Call) -> None:
    rng = np.random.default_rng([len(name), len(CASES[name])])
    op = operator(name)
    for change in changes(given, rng):
        arrays = given.mapped(change)
        real, twin = as_tensors(arrays), as_tensors(arrays)
        with oplib.FakeTensorMode() as mode:
            fake = Call(faked(twin.args, mode), twin.kwargs)
            predicted = outcome(op, fake)
        found = outcome(op, real)
        assert found is None or predicted == found, [getattr(a, "shape", a) for a in real.args]
