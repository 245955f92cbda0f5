"""A row as it is measured, judged and printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from .cases import SIZE, Case
from .measure import Call, measure
from .probes import Probe

__all__ = ["HEADER", "REFERENCE", "Row", "measure_case", "measure_probe"]

REFERENCE: Final = 0.26
"""Microseconds of ``numpy.multiply`` on two small vectors where the budgets were stated."""


@dataclass(frozen=True)
class Row:
    """What one line of the table says.

    Attributes
    ----------
    cost : float or None
        What the budget limits, in `unit` on this machine; None if it could not be measured.
    scaled : float or None
        The same where ``numpy.multiply`` takes `REFERENCE`; this is compared with the budget.
    oplib, kernel : float or None
        The median times behind it.
    ratio : float or None
        How often the bare kernel fits into the time of oplib.
    at : float or None
        Where on a curve the row is a point.
    suite : str
        The module the row is written in.
    peers : Mapping
        The median times of other libraries, by label.
    """

    key: str
    title: str
    unit: str
    budget: float | None
    cost: float | None
    scaled: float | None
    oplib: float | None = None
    kernel: float | None = None
    ratio: float | None = None
    at: float | None = None
    suite: str = "cases"
    peers: Mapping[str, float] = field(default_factory=dict)

    @property
    def missed(self) -> bool:
        """Whether the scaled cost is above the budget."""
        if self.scaled is None or self.budget is None:
            return False
        return self.scaled > self.budget

    def lines(self) -> Iterator[str]:
        """Yield the line of the row, and one for each peer."""
        verdict = "MISSED" if self.missed else "" if self.budget is None else "ok"
        verdict = "not measured" if self.cost is None else verdict
        numbers = (self.kernel, self.oplib, self.ratio, self.cost, self.scaled, self.budget)
        cells = " ".join(_cell(number) for number in numbers)
        yield f"{self.title:<60} {cells} {self.unit:<2} {verdict}"
        for label, time in self.peers.items():
            factor = f"{time / self.oplib:.1f} × oplib" if self.oplib else ""
            yield f"    {label:<56} {_cell(None)} {_cell(time)} {factor}"


def _cell(number: float | None) -> str:
    return f"{'':8}" if number is None else f"{number:8.2f}"


_COLUMNS = ("kernel", "oplib", "ratio", "cost", "scaled", "budget")
HEADER: Final = " ".join([f"{'':60}", *(f"{column:>8}" for column in _COLUMNS)])


def measure_case(case: Case, peers: Mapping[str, Call], rounds: int) -> Row:
    """Time a case, its peers and the reference in the same rounds."""
    calls = case.setup()
    a, b = np.ones(SIZE), np.ones(SIZE)
    reference = {"reference": lambda: np.multiply(a, b), "nothing": lambda: None}
    timings = measure({**calls, **peers, **reference}, rounds)
    speed = timings.relative(case.weights, {"reference": 1, "nothing": -1})
    has_kernel = "kernel" in calls
    return Row(
        key=case.key,
        title=case.title,
        unit="µs",
        budget=case.budget,
        cost=timings.paired(case.weights) / case.per,
        scaled=speed * REFERENCE / case.per,
        oplib=timings.median("oplib") / case.per,
        kernel=timings.median("kernel") / case.per if has_kernel else None,
        ratio=timings.relative({"oplib": 1}, {"kernel": 1}) if has_kernel else None,
        at=case.at,
        suite=case.suite,
        peers={label: timings.median(label) / case.per for label in peers},
    )


def measure_probe(probe: Probe, rounds: int) -> Row:
    """Take the number of a probe, which is not scaled."""
    value = probe.measure(rounds)
    return Row(probe.key, probe.title, probe.unit, probe.budget, value, value)
