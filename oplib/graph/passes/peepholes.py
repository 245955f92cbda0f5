"""Peepholes: small patterns of copies, reads and writes that need not be computed.

A rule is a function of one call; it returns the value that the call's result equals, the arguments
the same operator may be called with instead, or None. Rules see that shape, dtype and layout of
what they return agree before they are believed.

Imports `manager.py`, `../ir.py`. Read next: `reinplace.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

from ..._dims import SymInt
from ..._tree import leaves
from ...tensor.geometry import Geometry, contiguous_strides, self_overlap
from ..ir import Call, Functionalized, Graph, Node, Write, substitute
from ..values import Value
from .manager import graph_pass, referenced

__all__ = ["peepholes", "without_history"]

Found: TypeAlias = Value | tuple[Any, ...] | None
Producer: TypeAlias = Callable[[Any, str], Call | None]
Rule: TypeAlias = Callable[[Call, Producer], Found]


@graph_pass(accepts=("functional", "joint"))
def peepholes(graph: Graph) -> Graph:
    """Remove copies, conversions to what is there already, and writes of what was there.

    A clone, a cast, broadcast, sum or layout that changes nothing is its operand; a write of what
    was read from the same addresses is its base; opposite permutations cancel, two in a row are
    one. A rule applies where dtype, shape and layout stay as recorded and no size is a symbol; not
    to a value whose memory a reference names; and not to a call under no_grad, which cuts a
    history, unless the graph is a joint one.

    Preserves values bitwise, results, writes, effects in order, gradients, and which buffers are
    distinct (a value returned twice is two buffers). May change nodes and names. Idempotent.
    """
    return _rewritten(graph, _RULES, _is_recorded)


@graph_pass(accepts=("functional",))
def without_history(graph: Graph) -> Graph:
    """Drop what only gradients see, for a graph that is run without recording any.

    Flags go, and operators that return an argument with another history. A read of what was just
    written at the same addresses, none of them twice, is the value written; of two writes to the
    same addresses the later counts, and one to all addresses is the value.

    Preserves values bitwise, results, writes, effects in order; not gradients. Idempotent.
    """
    nodes = tuple(map(_without_flags, graph.nodes))
    same = not any(map(_differ, nodes, graph.nodes))
    return _rewritten(graph if same else Graph(graph.name, nodes), _HISTORY, lambda _: True)


def _without_flags(node: Node) -> Node:
    if isinstance(node, Call | Functionalized | Write) and node.flags:
        return replace(node, flags=())
    return node


def _rewritten(graph: Graph, rules: dict[str, Rule], allows: Callable[[Call], bool]) -> Graph:
    """Apply rules by operator, in node order."""
    pinned = referenced(graph)
    producers: dict[Value, Node] = {}
    gone: dict[Value, Value] = {}
    nodes: list[Node] = []

    def producer(value: Any, name: str) -> Call | None:
        """Return the call of ``std::name`` that made a value, if that is what made it."""
        node = producers.get(value) if isinstance(value, Value) else None
        return node if isinstance(node, Call) and _named(node, name) and allows(node) else None

    for original in graph.nodes:
        node = substitute(original, gone)
        if isinstance(node, Call) and node.op.namespace == "std" and allows(node):
            rule = rules.get(node.op.name)
            result = node.results[0] if len(node.results) == 1 else None
            if rule is not None and isinstance(result, Value) and result not in pinned:
                found = rule(node, producer) if _is_static(node) else None
                if isinstance(found, Value) and found.meta == result.meta:
                    gone[result] = found
                    continue
                if isinstance(found, tuple):
                    node = replace(node, arguments=found)
        producers.update((value, node) for value in leaves(getattr(node, "results", ())))
        nodes.append(node)
    changed = len(nodes) != len(graph.nodes) or any(map(_differ, nodes, graph.nodes))
    return Graph(graph.name, tuple(nodes)) if changed else graph


def _differ(one: Node, other: Node) -> bool:
    return one is not other


def _named(node: Call, name: str) -> bool:
    return bool(node.op.qualname == f"std::{name}")


def _is_recorded(node: Call) -> bool:
    return "no_grad" not in node.flags or "backward" in node.flags or "forward" in node.flags


def _is_static(node: Call) -> bool:
    return not any(type(leaf) is SymInt for leaf in leaves(node.arguments))


# Rules --------------------------------------------------------------------------------------------


def _same(node: Call, producer: Producer) -> Found:
    value: Found = node.arguments[0]
    return value


def _place(arguments: tuple[Any, ...]) -> tuple[list[Any], ...]:
    """Return size, stride and offset, which end the arguments of a strided operator."""
    size, stride, offset = arguments[-3:]
    return list(size), list(stride), [offset]


def _get(node: Call, producer: Producer) -> Found:
    """Read what was just written at the same addresses."""
    put = producer(node.arguments[0], "strided_put")
    if put is None or _place(put.arguments) != _place(node.arguments):
        return None
    size, stride, _ = _place(node.arguments)
    item = put.results[0].tensor.dtype.itemsize
    steps = tuple(step * item for step in stride)
    if self_overlap(Geometry(put.results[0].tensor.dtype, tuple(size), steps)):
        return None
    value: Found = put.arguments[1] if isinstance(put.arguments[1], Value) else None
    return value


def _put_back(node: Call, producer: Producer) -> Found:
    """Write what is there already."""
    base, value = node.arguments[:2]
    read = producer(value, "strided_get")
    if read is None or read.arguments[0] is not base:
        return None
    return base if _place(read.arguments) == _place(node.arguments) else None


def _put(node: Call, producer: Producer) -> Found:
    """Write all elements, or over what was just written."""
    base, value = node.arguments[:2]
    here = _place(node.arguments)
    shape = base.tensor.shape
    whole = list(shape), list(contiguous_strides(shape, 1)), [0]
    if isinstance(value, Value) and here == whole:
        return value
    earlier = producer(base, "strided_put")
    if earlier is None or _place(earlier.arguments) != here:
        return None
    old = earlier.arguments[0]
    return (old, *node.arguments[1:]) if old.meta == base.meta else None


def _permute(node: Call, producer: Producer) -> Found:
    """Fuse two permutations, and drop one that changes nothing."""
    before = producer(node.arguments[0], "permute")
    dims = list(node.arguments[1])
    if dims == list(range(len(dims))):
        return _same(node, producer)
    if before is None:
        return None
    fused = [before.arguments[1][axis] for axis in dims]
    source: Value = before.arguments[0]
    return source if fused == list(range(len(fused))) else (source, fused)


_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(("clone", "cast", "broadcast_to", "with_layout", "sum_to", "expand"), _same),
    "strided_put": _put_back,
    "permute": _permute,
}
_HISTORY: Final[dict[str, Rule]] = {
    **dict.fromkeys(("graft", "overwrite", "layer_boundary", "detach", "alias"), _same),
    "strided_get": _get,
    "strided_put": _put,
}
