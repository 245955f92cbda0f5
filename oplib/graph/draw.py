"""Draws graphs: the language of Graphviz, and Mermaid flowcharts for Markdown.

Both show the nodes and names that the text shows. Chains of effects are dashed edges; everything
that carries one written region, from its placeholder to its write, has one colour.

Imports `ir.py` and `text.py`. Read next: `passes/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .ir import Graph, Node, Placeholder, hooks, used_values
from .text import printer_of

__all__ = ["dot", "mermaid"]

_COLOURS: Final = ("#cfe8ff", "#ffe3c2", "#d9f2d0", "#f6d5ea", "#fff3b0", "#dcd6f7")


@dataclass(frozen=True, slots=True)
class _Edge:
    start: int
    end: int
    label: str
    is_effect: bool


def dot(graph: Graph) -> str:
    """Return the graph in the language of Graphviz."""
    lines = [f"digraph {_quoted(graph.name)} {{", "    node [shape=box, fontname=monospace];"]
    colours = _colours(graph)
    for index, (node, text) in enumerate(_nodes(graph)):
        shape = ", shape=ellipse" if isinstance(node, Placeholder) else ""
        fill = f', style=filled, fillcolor="{colours[node]}"' if node in colours else ""
        lines.append(f"    n{index} [label={_quoted(text)}{shape}{fill}];")
    for edge in _edges(graph):
        style = ", style=dashed" if edge.is_effect else ""
        lines.append(f"    n{edge.start} -> n{edge.end} [label={_quoted(edge.label)}{style}];")
    return "\n".join([*lines, "}"])


def mermaid(graph: Graph) -> str:
    """Return the graph as a Mermaid flowchart."""
    lines = ["flowchart TD"]
    colours = _colours(graph)
    styles = []
    for index, (node, text) in enumerate(_nodes(graph)):
        left, right = ("([", "])") if isinstance(node, Placeholder) else ("[", "]")
        lines.append(f"    n{index}{left}{_quoted(_escaped(text))}{right}")
        if node in colours:
            styles.append(f"    style n{index} fill:{colours[node]}")
    for edge in _edges(graph):
        arrow = "-.->" if edge.is_effect else "-->"
        lines.append(f"    n{edge.start} {arrow}|{_escaped(edge.label)}| n{edge.end}")
    return "\n".join([*lines, *styles])


def _nodes(graph: Graph) -> Iterator[tuple[Node, str]]:
    printer = printer_of(graph)
    for node in graph.nodes:
        yield node, printer.line(node)


def _edges(graph: Graph) -> Iterator[_Edge]:
    places = {node: index for index, node in enumerate(graph.nodes)}
    for end, node in enumerate(graph.nodes):
        for value in dict.fromkeys(used_values(node)):
            producer = graph.producers.get(value)
            if producer is not None:
                name = graph.names[value]
                yield _Edge(places[producer], end, name, value.is_token)


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


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(text: str) -> str:
    """Return text in which Mermaid sees no markup."""
    for char, entity in (("#", "#35;"), ('"', "#quot;"), ("|", "#124;"), ("<", "#lt;")):
        text = text.replace(char, entity)
    return text


hooks.dot = dot
hooks.mermaid = mermaid
