"""The stopwatch: callables timed side by side, so that their differences can be trusted.

A machine changes its speed by more than what is measured here, within seconds. So every round times
each callable once, in a shuffled order, and differences and ratios are taken between times of one
round before the median over the rounds is. The garbage collector is off while a round runs.

Knows nothing of oplib. Read next: `cases.py`.
"""

from __future__ import annotations

import contextlib
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat

__all__ = ["Call", "Timings", "collector_off", "measure"]

Call = Callable[[], object]

WARM_UP_SECONDS = 0.02
BATCH_SECONDS = 0.001
ROW_SECONDS = 20.0
"""Rows of slow calls get fewer rounds, at least three."""


@dataclass(frozen=True)
class Timings:
    """Microseconds per call: for each name one number per round."""

    rounds: Mapping[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        """Return the median time of one callable."""
        return statistics.median(self.rounds[name])

    def paired(self, weights: Mapping[str, float]) -> float:
        """Return the median over the rounds of a weighted sum of the times of one round.

        >>> Timings({"oplib": (2.0, 4.0, 9.0), "kernel": (1.0, 3.0, 7.0)}).paired(
        ...     {"oplib": 1, "kernel": -1}
        ... )
        1.0
        """
        return statistics.median(self._sums(weights))

    def relative(self, weights: Mapping[str, float], base: Mapping[str, float]) -> float:
        """Return the median over the rounds of one weighted sum divided by another."""
        pairs = zip(self._sums(weights), self._sums(base), strict=True)
        return statistics.median(value / unit for value, unit in pairs)

    def _sums(self, weights: Mapping[str, float]) -> list[float]:
        columns = [[weight * t for t in self.rounds[name]] for name, weight in weights.items()]
        return [sum(row) for row in zip(*columns, strict=True)]


def measure(calls: Mapping[str, Call], rounds: int) -> Timings:
    """Time `calls` over a number of rounds.

    A call that takes less than a millisecond is repeated in a loop that fills one; the loop's own
    cost is some 20 ns, the same for all.
    """
    order = [(name, call, _repetitions(call)) for name, call in calls.items()]
    times: dict[str, list[float]] = {name: [] for name in calls}
    shuffle = random.Random(0).shuffle
    with collector_off():
        start = time.perf_counter()
        for done in range(rounds):
            if done >= 3 and time.perf_counter() - start > ROW_SECONDS:
                break
            shuffle(order)
            for name, call, repetitions in order:
                times[name].append(_seconds(call, repetitions) / repetitions * 1e6)
    return Timings({name: tuple(values) for name, values in times.items()})


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Collect garbage, then keep the collector off for the body."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _seconds(call: Call, repetitions: int) -> float:
    start = time.perf_counter()
    for _ in repeat(None, repetitions):
        call()
    return time.perf_counter() - start


def _repetitions(call: Call) -> int:
    """Warm `call` up and return how often it fits into one batch, at least once.

    The first call of all, which generates code, says nothing about the ones that follow.
    """
    call()
    count, seconds = 1, _seconds(call, 1)
    while seconds < WARM_UP_SECONDS:
        count *= 2
        seconds = _seconds(call, count)
    return max(1, round(count * BATCH_SECONDS / seconds))
