"""Common subexpressions: computes equal things once.

Imports `manager.py`, `../ir.py`, `../literals.py`. Read next: `constant_folding.py`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from ..ir import Call, Constant, Functionalized, Graph, Node, defined_values, substitute
from ..literals import array_digest, literal_key
from ..values import Digest, Reference, Value
from .manager import graph_pass, is_repeatable, referenced

__all__ = ["cse"]


@graph_pass(accepts=("functional", "joint"))
def cse(graph: Graph) -> Graph:
    """Merge calls, and constants, that have the same value for the same reason.

    Two calls merge when operator, arguments (values by identity, literals by type and bits), flags
    and metadata are equal, and the operator has no effects, is deterministic, gives initialised
    memory and binds no symbol. Constants merge by dtype, shape, layout and bytes.

    Preserves values bitwise, results, writes, effects in order, and which buffers are distinct: a
    value that a reference names has a buffer of its own and is left alone, and two results that
    become one value are still two results. May change the number of nodes and names. Idempotent.
    """
    pinned = referenced(graph)
    kept: list[Node] = []
    first: dict[Hashable, Node] = {}
    merged: dict[Value, Value] = {}
    for original in graph.nodes:
        node = substitute(original, merged)
        defined = defined_values(node)
        mergeable = not any(v in pinned or v in graph.symbol_sites for v in defined)
        key = _key(node) if mergeable else None
        if key is None or key not in first:
            kept.append(node)
            if key is not None:
                first[key] = node
        else:
            merged.update(zip(defined, defined_values(first[key]), strict=True))
    return Graph(graph.name, tuple(kept)) if merged else graph


def _key(node: Node) -> Hashable:
    """Return what equal nodes have in common, or None for a node that merges with no other."""
    if isinstance(node, Constant):
        data = node.data
        return node.value.meta, data.text if isinstance(data, Digest) else array_digest(data)
    if not isinstance(node, Call | Functionalized):
        return None
    op = node.op
    if not is_repeatable(op):
        return None
    metas = tuple(value.meta for value in defined_values(node))
    return type(node), op, _argument_key(node.arguments), node.flags, metas


def _argument_key(argument: Any) -> Hashable:
    if isinstance(argument, Value):
        return argument
    if isinstance(argument, Reference):
        geometry = argument.geometry
        return Reference, argument.value, geometry and (geometry.dtype, str(geometry))
    if isinstance(argument, list | tuple):
        return type(argument), tuple(map(_argument_key, argument))
    if isinstance(argument, dict):
        items = argument.items()
        return dict, tuple((literal_key(key), _argument_key(item)) for key, item in items)
    return literal_key(argument)
