"""The rows that are no call: import time, the wheel, and a very long chain."""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import oplib

from .cases import vector
from .measure import collector_off
from .operators import mul

__all__ = ["PROBES", "Probe"]


@dataclass(frozen=True)
class Probe:
    """A row with one number; `measure` returns None where it cannot be taken."""

    key: str
    title: str
    unit: str
    budget: float | None
    measure: Callable[[int], float | None]


IMPORT: Final = """
import time
import numpy
start = time.process_time()
import oplib
print((time.process_time() - start) * 1e3)
"""
"""Processor time: what else the machine does in between does not count."""


def import_time(rounds: int) -> float:
    """Return the milliseconds that `oplib` takes where NumPy is imported: a median of processes."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {
            **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPATH": str(Path(oplib.__file__).parents[1]),
            "PYTHONPYCACHEPREFIX": directory,
        }

        def run() -> float:
            command = [sys.executable, "-c", IMPORT]
            return float(subprocess.check_output(command, env=environment, text=True))

        run()  # writes the bytecode
        return statistics.median(run() for _ in range(rounds))


def wheel_size(_: int) -> float | None:
    """Return the kilobytes of the wheel, where hatchling and the project are at hand."""
    project = Path(__file__).parents[1]
    if importlib.util.find_spec("hatchling") is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory]
        subprocess.run(command, cwd=project, check=True, capture_output=True)
        [wheel] = Path(directory).glob("*.whl")
        return wheel.stat().st_size / 1000


def long_chain(_: int) -> float:
    """Return how much more an operator costs in a chain of a million than in one of 10,000."""

    def microseconds(length: int) -> float:
        x, y = vector(requires_grad=True), vector()
        start = time.perf_counter()
        value = x
        for _ in range(length):
            value = mul(value, y)
        value.backward()
        del value
        return (time.perf_counter() - start) / length * 1e6

    with collector_off():
        short = statistics.median(microseconds(10_000) for _ in range(9))
        return microseconds(1_000_000) / short


PROBES: Final = (
    Probe("import", "import oplib, over import numpy", "ms", 60.0, import_time),
    Probe("wheel", "wheel", "kB", 500.0, wheel_size),
    Probe(
        "long_chain", "chain of 1,000,000: per operator, over one of 10,000", "×", 1.5, long_chain
    ),
)
