"""Passes over graphs, one per file; `run_passes` runs them between verifications."""

from __future__ import annotations

from .constant_folding import constant_folding
from .cse import cse
from .dead_code import dead_code
from .manager import Pass, graph_pass, run_passes
from .memory_plan import MemoryPlan, plan_memory
from .peepholes import peepholes, without_history
from .reinplace import reinplace

__all__ = [
    "MemoryPlan",
    "Pass",
    "constant_folding",
    "cse",
    "dead_code",
    "graph_pass",
    "peepholes",
    "plan_memory",
    "reinplace",
    "run_passes",
    "without_history",
]
