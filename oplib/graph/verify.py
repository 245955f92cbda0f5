"""Verification: `verify` raises at the first broken invariant, `failures` lists all.

It runs after capture and on both sides of every pass, so the pass that breaks a graph is the one
that is named.

Imports `invariants.py`. Read next: `evaluate.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..dispatch.operator import Operator
from ..dispatch.registry import get_op
from ..errors import CaptureError
from .invariants import INVARIANTS, Dialect, Invariant, Recompute, Subject
from .ir import (
    Graph,
    Node,
    Role,
)
from .text import graph_text, line_of
from .values import Meta

__all__ = ["Failure", "failures", "verify"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A broken invariant: where, and in what way."""

    invariant: Invariant
    node: Node | None
    message: str


def verify(
    graph: Graph,
    dialect: Dialect = "functional",
    *,
    stage: str = "",
    only: Collection[str] = INVARIANTS,
    recompute: Recompute | None = None,
    signature: Sequence[tuple[Role, Meta]] | None = None,
    resolve: Callable[[str], Operator[..., Any]] = get_op,
) -> None:
    """Raise unless `graph` obeys every invariant of `dialect`.

    Parameters
    ----------
    graph : Graph
    dialect : {"functional", "buffers", "joint"}
    stage : str, optional
        What made the graph, for the message: ``"pass dead_code"``.
    only : collection of str, optional
        Names of the invariants that are checked; all unless given.
    recompute : callable, optional
        Returns the metas of a node's results and regions anew, in the structure of
        ``(*node.results, *node.regions)``; they are compared with the stored ones.
    signature : sequence, optional
        (role, meta) of every placeholder that the program's signature asks for, in order.
    resolve : callable, optional
        Returns the registered operator of a qualified name.

    Raises
    ------
    CaptureError
        Names the invariant, the node and the stage, and shows the graph.
    """
    for failure in failures(
        graph, dialect, only=only, recompute=recompute, signature=signature, resolve=resolve
    ):
        raise CaptureError(_message(graph, failure, stage))


def failures(
    graph: Graph,
    dialect: Dialect = "functional",
    *,
    only: Collection[str] = INVARIANTS,
    recompute: Recompute | None = None,
    signature: Sequence[tuple[Role, Meta]] | None = None,
    resolve: Callable[[str], Operator[..., Any]] = get_op,
) -> Iterator[Failure]:
    """Iterate over everything that is wrong with a graph; see `verify`."""
    subject = Subject(graph, dialect, resolve, recompute, signature)
    for invariant in INVARIANTS.values():
        if dialect in invariant.dialects and invariant.name in only:
            for node, message in invariant.check(subject):
                yield Failure(invariant, node, message)


def _message(graph: Graph, failure: Failure, stage: str) -> str:
    after = f" after {stage}" if stage else ""
    name, rule = failure.invariant.name, failure.invariant.rule
    lines = [f"graph `{graph.name}`{after} breaks `{name}` ({rule}): {failure.message}"]
    if failure.node is not None:
        position = next((i for i, node in enumerate(graph.nodes) if node is failure.node), 0)
        lines.append(f"  node {position}: {line_of(graph, failure.node)}")
        if where := getattr(failure.node, "where", None):
            lines.append(f"  recorded at {where}")
    return "\n".join([*lines, *(f"  | {line}" for line in _excerpt(graph))])


def _excerpt(graph: Graph, limit: int = 40) -> list[str]:
    lines = graph_text(graph).splitlines()
    cut = len(lines) - limit
    return lines if cut <= 0 else [*lines[:limit], f"    ... {cut} more lines"]
