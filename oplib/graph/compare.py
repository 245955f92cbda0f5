"""Equality of graphs: whether two graphs compute the same in the same steps.

Values correspond when they are defined at the same place. Operators compare by name, literals by
bits, constants by the digest of their bytes, metadata and geometries as they are observed. Names
and provenance do not count.

Imports `ir.py` and `literals.py`. Read next: `verify.py`.
"""

from __future__ import annotations

from typing import Any

from ..dispatch.operator import Operator
from ..tensor.geometry import Geometry
from .ir import (
    Call,
    Constant,
    Functionalized,
    Graph,
    Node,
    Output,
    Placeholder,
    Rebind,
    Write,
    hooks,
)
from .literals import array_digest, literal_key
from .values import Digest, Reference, Value, same_layout, same_size, same_sizes

__all__ = ["same_graph"]


def same_graph(left: Graph, right: Graph) -> bool:
    """Return whether two graphs are equal; see `Graph`."""
    if left is right:
        return True
    same = _Comparison()
    return len(left.nodes) == len(right.nodes) and all(
        same.nodes(one, other) for one, other in zip(left.nodes, right.nodes, strict=True)
    )


class _Comparison:
    """Compares node by node and remembers which value of one graph is which of the other."""

    def __init__(self) -> None:
        self.partners: dict[Value, Value] = {}

    def nodes(self, left: Node, right: Node) -> bool:
        """Compare two nodes at the same place; their results correspond from then on."""
        match left, right:
            case Placeholder(), Placeholder():
                return left.role == right.role and self.defined(left.value, right.value)
            case Constant(), Constant():
                same_data = _digest(left) == _digest(right)
                return same_data and self.defined(left.value, right.value)
            case Call(), Call():
                return self.calls(left, right)
            case Functionalized(), Functionalized():
                return self.calls(left, right)
            case Write(), Write():
                return (
                    self.used((left.target, left.value), (right.target, right.value))
                    and len(left.only) == len(right.only)
                    and all(map(same_geometry, left.only, right.only))
                    and (left.times, left.flags) == (right.times, right.flags)
                )
            case Rebind(), Rebind():
                return self.used((left.target, left.reference), (right.target, right.reference))
            case Output(), Output():
                return self.used(left.results, right.results)
        return False

    def calls(self, left: Call | Functionalized, right: Call | Functionalized) -> bool:
        """Compare two calls: operator, arguments, tokens, flags, then results."""
        regions = getattr(left, "regions", ()), getattr(right, "regions", ())
        return (
            left.op.qualname == right.op.qualname
            and left.flags == right.flags
            and self.used((left.arguments, left.after), (right.arguments, right.after))
            and self.defined((left.results, regions[0]), (right.results, regions[1]))
            and self.defined(left.tokens, right.tokens)
        )

    def defined(self, left: Any, right: Any) -> bool:
        """Pair the values of two structures of results."""
        if isinstance(left, Value) and isinstance(right, Value):
            self.partners[left] = right
            return left.meta == right.meta
        if left is None or right is None:
            return left is right
        return (
            type(left) is type(right)
            and len(left) == len(right)
            and all(map(self.defined, left, right))
        )

    def used(self, left: Any, right: Any) -> bool:
        """Compare two arguments or results, whatever they contain."""
        if type(left) is not type(right):
            return isinstance(left, Operator) and str(left) == str(right)
        if isinstance(left, Value):
            return self.partners.get(left) is right
        if isinstance(left, Reference):
            return self.used(left.value, right.value) and same_geometry(
                left.geometry, right.geometry
            )
        if isinstance(left, list | tuple):
            return len(left) == len(right) and all(map(self.used, left, right))
        if isinstance(left, dict):
            keys = literal_key(tuple(left)) == literal_key(tuple(right))
            return keys and all(map(self.used, left.values(), right.values()))
        if isinstance(left, Operator):
            return bool(left.qualname == right.qualname)
        return bool(literal_key(left) == literal_key(right))


def same_geometry(left: Geometry | None, right: Geometry | None) -> bool:
    """Compare geometries as they are observed; symbols by their text."""
    if left is None or right is None:
        return left is right
    return (
        left.dtype.name == right.dtype.name
        and same_sizes(left.shape, right.shape)
        and same_layout(left.shape, left.strides, right.strides)
        and same_size(left.offset, right.offset)
    )


def _digest(node: Constant) -> str:
    return node.data.text if isinstance(node.data, Digest) else array_digest(node.data)


hooks.equal = same_graph
