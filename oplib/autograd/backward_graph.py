"""`describe`: the backward graph of a tensor as a tree, and as a drawing.

Imports floors 0 to 4, `context.py` and what is above it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from .. import _drawing
from .._drawing import Arrow, Box
from .._text import short_repr
from ..dtypes import short_dtype
from ..errors import ArgumentError
from ..tensor.grad_meta import AccumulationNode, AutogradMeta, WideGradNode
from ..tensor.storage import Storage
from ..tensor.tensor import Tensor
from .context import SavedAttribute
from .engine import in_topological_order
from .family import refresh
from .gradients import Node, edge_name
from .wrapper import PackedTensor

__all__ = ["BackwardGraph", "describe"]

_DEEPEST: Final = 16  # levels of indentation; deeper parts follow below, so chains stay readable


def describe(tensor: Tensor) -> BackwardGraph:
    """Return the backward graph of a tensor, which prints as a tree.

    A line shows a node, its outputs, and the tensors it keeps; below it, by the names of arguments
    that are not stopped, stand the nodes their gradients go to. A node with several users is shown
    once and has a number. ``.dot()`` and ``.mermaid()`` give drawings.

    Examples
    --------
    >>> import oplib
    >>> x = oplib.tensor([1.0, 2.0], requires_grad=True)
    >>> y = x * x
    >>> print(oplib.autograd.describe(y.sum()))
    backward graph of f64[]: 3 nodes
    GradNode_std::sum  f64[]
    └─ x: GradNode_std::mul  f64[2]  keeps f64[2], f64[2]
       ├─ x: #1 leaf  f64[2]
       └─ y: #1 above
    """
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"describe takes a Tensor, got {short_repr(tensor)}")
    refresh(tensor)
    return BackwardGraph(tensor.describe(), tensor.autograd_meta if tensor.requires_grad else None)


class BackwardGraph:
    """The backward graph of one tensor.

    Attributes
    ----------
    nodes : list of GradNode or AccumulationNode
        Each before those its edges lead to; empty for a tensor that does not require grad.
    """

    def __init__(self, title: str, root: AutogradMeta | None) -> None:
        self._title = title
        self._root = root
        roots = [] if root is None else [root.grad_node]
        self.nodes: list[Node] = in_topological_order(roots, frozenset())

    def dot(self) -> str:
        """Return the graph in the language of Graphviz; arrows go the way gradients do."""
        return _drawing.dot("backward", self._boxes(), self._arrows())

    def mermaid(self) -> str:
        """Return the graph as a Mermaid flowchart."""
        return _drawing.mermaid(self._boxes(), self._arrows())

    def _boxes(self) -> Iterator[Box]:
        for node in self.nodes:
            yield Box(_node_text(node), isinstance(node, AccumulationNode))

    def _arrows(self) -> Iterator[Arrow]:
        places = {node: index for index, node in enumerate(self.nodes)}
        for start, node in enumerate(self.nodes):
            for name, edge in _edges(node):
                label = f"{name}, {_output(edge)}" if _output(edge) else name
                yield Arrow(start, places[edge.grad_node], label)

    def __str__(self) -> str:
        if self._root is None:
            return f"{self._title} has no backward graph: it does not require grad"
        plural = "" if len(self.nodes) == 1 else "s"
        head = f"backward graph of {self._title}: {len(self.nodes)} node{plural}"
        return "\n".join([head, *self._lines(self._root)])

    __repr__ = __str__

    def _lines(self, root: AutogradMeta) -> Iterator[str]:
        """Yield one line per edge, without recursion, starting anew where it gets too deep."""
        users = Counter(edge.grad_node for node in self.nodes for _, edge in _edges(node))
        numbers: dict[Node, int] = {}
        shown: set[Node] = set()
        starts = [root]
        for start in starts:  # grows while it is iterated over
            pending = [("", "", "", start, 0)] if start.grad_node not in shown else []
            while pending:
                prefix, below, name, edge, depth = pending.pop()
                node = edge.grad_node
                is_below = depth == _DEEPEST and bool(node.edges) and node not in shown
                if users[node] > 1 or is_below:
                    numbers.setdefault(node, len(numbers) + 1)
                number = f"#{numbers[node]} " if node in numbers else ""
                output = f"{_output(edge)} of " if _output(edge) else ""
                line = f"{prefix}{name}{': ' if name else ''}{output}{number}"
                if is_below:
                    starts.append(edge)
                    yield f"{line}below"
                elif node in shown:
                    yield f"{line}above"
                else:
                    shown.add(node)
                    yield line + _node_text(node)
                    branch, stem = "└─ ", "   "
                    for argument, to in reversed(list(_edges(node))):
                        pending.append((below + branch, below + stem, argument, to, depth + 1))
                        branch, stem = "├─ ", "│  "


def _edges(node: Node) -> Iterator[tuple[str, AutogradMeta]]:
    """Yield what users call each argument whose gradient flows on, and its edge."""
    for index, edge in enumerate(node.edges):
        if edge is None:
            continue
        name = f"input {index}"
        if not isinstance(node, AccumulationNode):
            saved = node.saved
            if saved is not None or node.kind.edge_name is None:
                name = edge_name(node, saved or (), index)
        yield name.removeprefix("argument ").replace("`", ""), edge


def _output(edge: AutogradMeta) -> str:
    """Return which output of its node an edge leads to, if there are several."""
    if edge.grad_node.width == 1:
        return ""
    rank = f", element {edge.rank}" if (edge.grad_node.layout or ())[edge.slot] is not None else ""
    return f"output {edge.slot}{rank}"


def _node_text(node: Node) -> str:
    outputs = ", ".join(_described(*node.output_spec(i)) for i in range(node.width))
    if isinstance(node, AccumulationNode):
        return f"leaf  {outputs}"
    name = f"{node.name()}  {f'({outputs})' if isinstance(node, WideGradNode) else outputs}"
    if node.saved is None:
        return f"{name}  released"
    kept = ", ".join(_kept(node.saved))
    return f"{name}  keeps {kept}" if kept else name


def _described(shape: tuple[int, ...], dtype: Any) -> str:
    kind = "?" if dtype is None else short_dtype(dtype)
    return f"{kind}[{', '.join(map(str, shape))}]"


def _kept(saved: Any) -> Iterator[str]:
    """Yield a description of every tensor in what a node saves."""
    pending = [saved]
    while pending:
        found = pending.pop()
        if type(found) is SavedAttribute:
            found = found.known
        if isinstance(found, PackedTensor):
            yield f"{_described(found.shape, found.dtype)} packed"
        elif isinstance(found, tuple) and len(found) > 3 and isinstance(found[1], Storage):
            yield _described(found[0].shape, found[0].dtype)
        elif isinstance(found, tuple | list | dict):
            pending += reversed(list(found.values() if isinstance(found, dict) else found))
