"""Constant folding: computes once what depends on constants alone.

Imports `manager.py`, `../evaluate.py`. Read next: `peepholes.py`.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import numpy as np

from ..._state import DEFAULT_STATE, enter
from ..._tree import leaves, tree_map
from ...dispatch.keys import AUTOGRAD
from ...dtypes import CPU
from ...tensor.tensor import Tensor
from ..evaluate import constant_tensor
from ..ir import Call, Constant, Graph, Node, defined_values, used_values
from ..literals import symbols_in
from ..values import Digest, TensorMeta, Value
from .manager import graph_pass, is_repeatable, referenced

__all__ = ["constant_folding"]

_LIMIT: Final = 2**16
"""Bytes of the largest result that is kept as a constant."""


@graph_pass(accepts=("functional", "joint"))
def constant_folding(graph: Graph) -> Graph:
    """Replace calls whose tensors are all constants by constants.

    The kernel runs once, on copies. Only calls on the CPU that are deterministic, have no effects,
    and whose results have the recorded metadata and at most 65536 bytes are folded; never a
    captured tensor, a symbolic size, or a value whose memory a reference names. A call that raises,
    or that NumPy would warn of, stays and does so at every run.

    Preserves values bitwise, results, writes, effects in order. May change nodes and names.
    Idempotent.
    """
    pinned = referenced(graph)
    known: dict[Value, Constant] = {
        node.value: node for node in graph.constants if not isinstance(node.data, Digest)
    }
    nodes: list[Node] = []
    for node in graph.nodes:
        folded = _folded(node, known) if isinstance(node, Call) else []
        if folded and pinned.isdisjoint(defined_values(node)):
            known.update((each.value, each) for each in folded)
            nodes += folded
        else:
            nodes.append(node)
    changed = any(new is not old for new, old in zip(nodes, graph.nodes, strict=False))
    return Graph(graph.name, tuple(nodes)) if changed else graph


def _folded(node: Call, known: dict[Value, Constant]) -> list[Constant]:
    """Return the constants a call gives, or nothing if it must stay."""
    operands, results = used_values(node), defined_values(node)
    if not operands or not results or not all(value in known for value in operands):
        return []
    metas = [value.meta for value in results]
    if not is_repeatable(node.op) or node.op.schema.is_mutable or not all(map(_is_small, metas)):
        return []
    if symbols_in(leaves(node.arguments)):
        return []

    def given(leaf: Any) -> Any:
        return constant_tensor(known[leaf]) if isinstance(leaf, Value) else leaf

    state = DEFAULT_STATE.replace(user=~AUTOGRAD)
    with contextlib.suppress(Exception), enter(state), np.errstate(all="raise"):
        computed = node.op.call_positional(tree_map(given, node.arguments))
        arrays = [leaf.array for leaf in leaves(computed) if isinstance(leaf, Tensor)]
        found = [TensorMeta(array.dtype, array.shape, array.strides) for array in arrays]
        if found == metas:
            return [
                Constant(value, array.copy(order="K"), node.where)
                for value, array in zip(results, arrays, strict=True)
            ]
    return []


def _is_small(meta: Any) -> bool:
    if not isinstance(meta, TensorMeta) or meta.device != CPU or symbols_in(meta.shape):
        return False
    return int(np.prod(meta.shape, dtype=object)) * meta.dtype.itemsize <= _LIMIT
