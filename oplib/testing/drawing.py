"""Calls beyond the derived ones: drawn by hypothesis where it is installed, and smaller ones.

The derived calls change one thing at a time; a drawn call changes the length of every class of
equal sizes and the layout of every tensor at once. A failure is shrunk by trying the smallest
lengths first, with or without hypothesis.
"""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from .calls import Call
from .sampling import LAYOUTS, ONLY_FOR_READING, laid_out, resized
from .session import DRAWS, Check, Problem, Session, Trial

__all__ = ["drawn", "shrunk"]

EXAMPLES: Final = 12
"""Calls that hypothesis draws."""

LONGEST: Final = 6
"""The longest axis that is drawn."""


def _lengths(call: Call) -> list[int]:
    """Return the lengths of the axes of a call, each once: classes that change together."""
    return sorted({length for _, tensor in call.tensors for length in tensor.shape})


# ---------------------------------------------------------------------- drawing


def drawn(base: Call, seed: int) -> list[Call]:
    """Return calls like `base` in other sizes and layouts; none without hypothesis."""
    try:
        hypothesis: Any = importlib.import_module("hypothesis")
    except ImportError:
        return []
    strategies = importlib.import_module("hypothesis.strategies")
    classes, tensors = _lengths(base), base.tensors
    if not tensors:
        return []
    found: list[Call] = []
    written = {id(tensor) for _, tensor in base.written()}
    for_writing = [label for label in LAYOUTS if label not in ONLY_FOR_READING]

    def draw(data: Any) -> None:
        def one(options: Sequence[Any]) -> Any:
            return data.draw(strategies.sampled_from(options))

        lengths = {old: one(range(LONGEST + 1)) for old in classes}
        layouts = [one([None, *(for_writing if id(t) in written else LAYOUTS)]) for _, t in tensors]
        rng = np.random.default_rng(one(range(1000)))
        call = resized(base, rng, _label(lengths), lengths)
        if any(layouts):
            label = f"{call.label}, {' and '.join(dict.fromkeys(filter(None, layouts)))}"
            call = replace(laid_out(call, layouts, label), kind="layout")
        found.append(call)

    settings = hypothesis.settings(
        max_examples=EXAMPLES, database=None, deadline=None, phases=[hypothesis.Phase.generate]
    )
    hypothesis.seed(seed)(settings(hypothesis.given(strategies.data())(draw)))()
    return found


def _label(lengths: dict[int, int]) -> str:
    """Return what was changed, in words."""
    changed = [f"{old} -> {new}" for old, new in lengths.items() if old != new]
    return f"sizes {', '.join(changed)}" if changed else "other values"


# ---------------------------------------------------------------------- shrinking


def shrunk(session: Session, check: Check, problem: Problem) -> Problem:
    """Return the same problem in a smaller call, or as it is."""
    rng = np.random.default_rng(session.seed)
    for call in _smaller(problem.call, rng):
        if call.fresh().run().error is not None:
            continue
        alone = replace(session, samples=[call], refused=[], faults=[], broken=[])
        for found in check.examine(Trial(alone, check)):
            if _gist(found) == _gist(problem):
                return found
    return problem


def _gist(problem: Problem) -> str:
    """Return what is wrong, without the numbers in it."""
    return re.sub(r"[\d.]+", "", problem.problem)


def _smaller(call: Call, rng: np.random.Generator) -> Iterator[Call]:
    """Yield calls with axes of length 0, 1 and 2, the smallest first, several draws of each."""
    classes = _lengths(call)
    choices = itertools.product((0, 1, 2), repeat=len(classes)) if len(classes) < 4 else ()
    made = []
    for chosen in choices or [(n,) * len(classes) for n in (0, 1, 2)]:
        lengths = dict(zip(classes, chosen, strict=True))
        made += [resized(call, rng, _label(lengths), lengths) for _ in range(DRAWS)]
    for smaller in sorted(made, key=_extent):
        if _extent(smaller) < _extent(call):
            if call.label in LAYOUTS:
                label = f"{call.label}, {smaller.label}"
                smaller = laid_out(smaller, [call.label] * len(smaller.tensors), label)
            yield replace(smaller, kind=call.kind)


def _extent(call: Call) -> tuple[int, int]:
    """Return the number of elements and the sum of all lengths of a call."""
    return call.size, sum(length for _, tensor in call.tensors for length in tensor.shape)
