"""Programs: a function captured as a graph, with its signature and guards.

Reading order: `recorder.py` (operator calls become nodes), `capture.py`, `export.py`,
`program.py`;
`saving.py`; `kernels.py`, `joint.py`, `compile.py`. Importing the package makes captured arrays
known to tensors and lets graphs run functionalized nodes.
"""

from __future__ import annotations

from . import program, recorder
from .capture import capture
from .compile import Compiled, compile
from .export import ExportForm
from .program import Program
from .saving import load, save

__all__ = ["Compiled", "ExportForm", "Program", "capture", "compile", "load", "save"]

recorder.install()
program.install()
