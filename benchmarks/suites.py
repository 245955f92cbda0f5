"""All rows: importing a suite enters its cases.

Read next: `peers/`, the same rows in other libraries.
"""

from __future__ import annotations

from typing import Final

from . import compiled, hooks, kinds, scaling, training
from .cases import CASES
from .memory import MEMORY
from .probes import PROBES, Probe

__all__ = ["ALL_PROBES", "CASES", "SUITES"]

SUITES: Final = (
    "cases",
    *(m.__name__.rpartition(".")[2] for m in (kinds, hooks, compiled, scaling, training)),
)
"""In the order of the table: budgets, arguments, hooks, compiled runs, curves, training."""

ALL_PROBES: Final[tuple[Probe, ...]] = (*PROBES, *MEMORY)

CASES.sort(key=lambda case: SUITES.index(case.suite))
