"""Memory plan: which bytes of one arena each temporary lies in.

Not a pass, since a graph has no place for addresses: a plan is data beside the graph, which a
compiled program follows.

Imports `reinplace.py`. The last file of `oplib/graph/`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from ...dtypes import CPU
from ...tensor.geometry import extent
from ..ir import Graph
from ..literals import symbols_in
from ..values import TensorMeta, Value
from .reinplace import Buffers

__all__ = ["MemoryPlan", "plan_memory"]

_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where temporaries lie.

    Attributes
    ----------
    places : dict
        Per planned value its first byte and its number of bytes; no two that are needed at the
        same time share a byte.
    size : int
        Bytes of the arena.
    unshared : int
        Bytes of all planned values together: the peak if nothing were ever freed.
    peak : int
        The most that is needed at one time; `size` exceeds it by alignment and gaps.
    """

    places: dict[Value, tuple[int, int]]
    size: int
    unshared: int
    peak: int

    def __str__(self) -> str:
        count = len(self.places)
        return f"{count} temporaries of {self.unshared} bytes in {self.size} (peak {self.peak})"


def plan_memory(graph: Graph, among: Collection[Value] | None = None) -> MemoryPlan:
    """Return a plan for the temporaries of a graph, in any dialect.

    Planned are buffers that a call allocates on the CPU, of known size, and that nothing in the
    tail names and no call with an effect sees. Everything a view may be of lives as long as it.

    Parameters
    ----------
    graph : Graph
    among : collection of Value, optional
        Plan only these.
    """
    buffers = Buffers(graph)
    kept = {buffer for value in graph.tail_values for buffer in buffers.of(value)}
    kept |= {buffer for buffer, last in buffers.last.items() if last == len(graph.nodes)}
    positions = {node: position for position, node in enumerate(graph.nodes)}
    taken: list[tuple[int, int, int]] = []  # first byte, end, last use
    places: dict[Value, tuple[int, int]] = {}
    live: list[tuple[int, int]] = []
    total = size = peak = 0
    for value, node in graph.producers.items():
        if value not in buffers.owned or value in kept or not _is_plannable(value):
            continue
        if among is not None and value not in among:
            continue
        nbytes = extent(value.tensor.form)[1]
        position = positions[node]
        taken = [each for each in taken if each[2] >= position]
        first = _gap(taken, nbytes)
        taken.append((first, first + nbytes, buffers.last[value]))
        places[value] = first, nbytes
        live = [(n, last) for n, last in live if last >= position]
        live.append((nbytes, buffers.last[value]))
        peak = max(peak, sum(n for n, _ in live))
        total += nbytes
        size = max(size, first + nbytes)
    return MemoryPlan(places, size, total, peak)


def _is_plannable(value: Value) -> bool:
    meta = value.meta
    return isinstance(meta, TensorMeta) and meta.device == CPU and not symbols_in(meta.shape)


def _gap(taken: list[tuple[int, int, int]], nbytes: int) -> int:
    """Return the first aligned byte at which `nbytes` are free."""
    first = 0
    for start, end, _ in sorted(taken):
        if first + nbytes <= start:
            break
        first = max(first, -(-end // _ALIGNMENT) * _ALIGNMENT)
    return first
