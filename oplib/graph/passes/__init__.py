"""Passes over graphs, one per file; `run_passes` runs them between verifications."""

from __future__ import annotations

from .cse import cse
from .dead_code import dead_code
from .manager import Pass, graph_pass, run_passes

__all__ = ["Pass", "cse", "dead_code", "graph_pass", "run_passes"]
