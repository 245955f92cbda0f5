"""Draws graphs: the language of Graphviz, Mermaid flowcharts for Markdown, and web pages.

All show the nodes and names that the text shows. Chains of effects are dashed edges; everything
that carries one written region, from its placeholder to its write, has one colour.

Imports floor 0, `ir.py` and `text.py`. Read next: `passes/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .. import _drawing
from .._drawing import Arrow, Box
from .ir import Graph, Node, Placeholder, hooks, used_values
from .text import printer_of

__all__ = ["dot", "html", "mermaid"]

_COLOURS: Final = ("#cfe8ff", "#ffe3c2", "#d9f2d0", "#f6d5ea", "#fff3b0", "#dcd6f7")


def dot(graph: Graph) -> str:
    """Return the graph in the language of Graphviz."""
    return _drawing.dot(graph.name, _boxes(graph), _arrows(graph))


def mermaid(graph: Graph) -> str:
    """Return the graph as a Mermaid flowchart."""
    return _drawing.mermaid(_boxes(graph), _arrows(graph))


def html(graph: Graph) -> str:
    """Return a web page with the graph as a drawing and as text; it loads nothing else."""
    return _drawing.html(f"graph {graph.name}", str(graph), _boxes(graph), _arrows(graph))


def _boxes(graph: Graph) -> Iterator[Box]:
    printer = printer_of(graph)
    colours = _colours(graph)
    for node in graph.nodes:
        yield Box(printer.line(node), isinstance(node, Placeholder), colours.get(node, ""))


def _arrows(graph: Graph) -> Iterator[Arrow]:
    places = {node: index for index, node in enumerate(graph.nodes)}
    for end, node in enumerate(graph.nodes):
        for value in dict.fromkeys(used_values(node)):
            producer = graph.producers.get(value)
            if producer is not None:
                yield Arrow(places[producer], end, graph.names[value], value.is_token)


def _colours(graph: Graph) -> dict[Node, str]:
    """Give every written placeholder a colour, and to the nodes that make its new values too.

    A value belongs to the region of a write when it is what is stored, or the region's old value
    inside a node that makes such a value.
    """
    found: dict[Node, str] = {}
    for index, write in enumerate(graph.writes):
        colour = _COLOURS[index % len(_COLOURS)]
        stem = write.target.stem
        found[write] = colour
        value = write.value
        while (node := graph.producers.get(value)) is not None and node not in found:
            found[node] = colour
            before = [old for old in used_values(node) if old.stem == stem and old is not value]
            if not before:
                break
            value = before[0]
        target = graph.producers.get(write.target)
        if target is not None:
            found.setdefault(target, colour)
    return found


hooks.dot = dot
hooks.mermaid = mermaid
hooks.html = html
hooks.svg = lambda graph: _drawing.svg(_boxes(graph), _arrows(graph))
