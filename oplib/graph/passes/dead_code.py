"""Dead code: removes calls and constants whose results nothing needs.

Imports `manager.py` and `../ir.py`. Read next: `cse.py`.
"""

from __future__ import annotations

from typing import Any

from ..._tree import leaves
from ..ir import BodyNode, Call, Constant, Graph, defined_values, used_values
from ..literals import symbols_in
from ..values import TensorMeta
from .manager import graph_pass

__all__ = ["dead_code"]


@graph_pass()
def dead_code(graph: Graph) -> Graph:
    """Remove what neither the tail nor an effect reaches.

    Preserves values bitwise, results, writes, rebinds, and effects in order. Kept as roots are the
    tail and every call with effects, draws and checks included: an unused draw still moves its
    generator. A call that writes a buffer stays too; a functionalized one without effects goes
    when nobody needs its results or its regions. Placeholders stay, used or not. May change the
    number of nodes and, with it, names. Idempotent.
    """
    needed = set(graph.tail_values)
    binders = {name: v for v, sites in graph.symbol_sites.items() for name, _ in sites}
    dead: set[BodyNode] = set()
    for node in reversed(graph.body):
        if _has_effects(node) or any(value in needed for value in defined_values(node)):
            needed.update(used_values(node))
            if binders:
                needed.update(binders[name] for name in _symbols(node) if name in binders)
        else:
            dead.add(node)
    if not dead:
        return graph
    return Graph(graph.name, tuple(node for node in graph.nodes if node not in dead))


def _symbols(node: BodyNode) -> set[str]:
    """Return the symbols whose numbers a node needs, for its arguments or its results."""
    sizes: list[Any] = [] if isinstance(node, Constant) else list(leaves(node.arguments))
    for value in defined_values(node):
        if isinstance(value.meta, TensorMeta):
            sizes += value.meta.shape
    return symbols_in(sizes)


def _has_effects(node: BodyNode) -> bool:
    if isinstance(node, Constant):
        return False
    return bool(node.op.effects) or (isinstance(node, Call) and node.op.schema.is_mutable)
