"""What a pass is, and `run_passes`, which runs a list of them between verifications.

A pass is a pure function `Graph -> Graph` in a file of its own. Its docstring is its contract: what
it preserves and what it may change. A pass that changes nothing returns the graph it was given.

Imports the files of `oplib/graph/`. Read next: `dead_code.py`.
"""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ..._tree import leaves
from ...dispatch.operator import Operator
from ...errors import CaptureError
from ..invariants import DIALECTS, Dialect
from ..ir import Call, Functionalized, Graph
from ..values import Reference, Value
from ..verify import verify

__all__ = ["Pass", "graph_pass", "is_repeatable", "referenced", "run_passes"]

Transform: TypeAlias = Callable[[Graph], Graph]

_NONDETERMINISTIC: Final = {"nondeterministic", "nondeterministic_seeded"}
_UNINITIALISED: Final = {"std::empty", "std::empty_like", "std::empty_strided", "std::new_empty"}


def is_repeatable(op: Operator[..., Any]) -> bool:
    """Return whether equal arguments give equal results and nothing else happens."""
    return not (
        op.effects or _NONDETERMINISTIC.intersection(op.tags) or op.qualname in _UNINITIALISED
    )


def referenced(graph: Graph) -> set[Value]:
    """Return the values whose memory somebody sees, not only their contents."""
    found: set[Value] = {node.reference.value for node in graph.rebinds}
    for node in (*graph.calls, graph.output):
        trees = node.arguments if isinstance(node, Call | Functionalized) else node.results
        found.update(leaf.value for leaf in leaves(trees) if isinstance(leaf, Reference))
    return found


@dataclass(frozen=True, slots=True, repr=False)
class Pass:
    """A named transformation of graphs; calling it runs it without verification.

    Attributes
    ----------
    name : str
    transform : callable
    accepts : tuple
        The dialects it works on.
    yields : str or None
        The dialect of its results; None for the one it was given.
    after : tuple of str
        Names of passes that come before this one wherever both are run.
    contract : str
        What it preserves and what it may change.
    """

    name: str
    transform: Transform
    accepts: tuple[Dialect, ...]
    yields: Dialect | None
    after: tuple[str, ...]
    contract: str

    def __call__(self, graph: Graph) -> Graph:
        """Return the transformed graph; the same object if nothing changes."""
        return self.transform(graph)

    def __repr__(self) -> str:
        return f"<Pass {self.name}: {self.contract.splitlines()[0]}>"


def graph_pass(
    *,
    accepts: tuple[Dialect, ...] = DIALECTS,
    yields: Dialect | None = None,
    after: tuple[str, ...] = (),
) -> Callable[[Transform], Pass]:
    """Make a function a `Pass` under its own name; its docstring is the contract."""

    def make(transform: Transform) -> Pass:
        name, contract = transform.__name__, transform.__doc__
        if not contract:
            raise CaptureError(f"pass `{name}` states no contract; give it a docstring")
        return Pass(name, transform, accepts, yields, after, contract)

    return make


def run_passes(
    graph: Graph, passes: Iterable[Pass], dialect: Dialect = "functional", **known: Any
) -> Graph:
    """Run passes one after another and verify the graph before, between and after.

    Passes run in the order given, except where their `after` asks otherwise.

    Parameters
    ----------
    graph : Graph
    passes : iterable of Pass
    dialect : {"functional", "buffers", "joint"}
        Of `graph`.
    **known
        Handed on to `verify`: ``recompute=``, ``signature=``, ``resolve=``.

    Raises
    ------
    CaptureError
        If a pass breaks an invariant, does not accept the dialect it meets, or the constraints
        contradict each other. The message, or the note on a pass's own exception, names the pass
        and shows the graph before it.
    """
    verify(graph, dialect, **known)
    for each in _ordered(list(passes)):
        if dialect not in each.accepts:
            raise CaptureError(
                f"pass `{each.name}` accepts {' and '.join(each.accepts)}, the graph is {dialect}"
            )
        dialect = each.yields or dialect
        before = graph
        try:
            graph = each(before)
            if graph is not before:
                verify(graph, dialect, stage=f"pass `{each.name}`", **known)
        except Exception as error:
            error.add_note(f"in pass `{each.name}`; the graph before it:\n{before}")
            raise
    return graph


def _ordered(passes: Sequence[Pass]) -> list[Pass]:
    """Sort by the `after` constraints; without any the order stays as it is."""
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter()
    for index, each in enumerate(passes):
        earlier = [i for i, other in enumerate(passes) if other.name in each.after]
        sorter.add(index, *earlier)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        names = " after ".join(f"`{passes[index].name}`" for index in error.args[1])
        raise CaptureError(f"the passes contradict each other: {names}") from None
    ordered: list[Pass] = []
    ready: list[int] = []
    while sorter.is_active():
        ready = sorted((*ready, *sorter.get_ready()))
        first = ready.pop(0)
        ordered.append(passes[first])
        sorter.done(first)
    return ordered
