"""Boxes and arrows as text: the language of Graphviz, and Mermaid flowcharts for Markdown.

Imports nothing of oplib. Used for captured graphs and for backward graphs.
"""

from __future__ import annotations

from collections.abc import Iterable

from ._record import record

__all__ = ["Arrow", "Box", "dot", "mermaid"]


@record
class Box:
    """A node; `fill` is a colour like ``"#cfe8ff"``."""

    label: str
    is_round: bool = False
    fill: str = ""


@record
class Arrow:
    """An edge between two boxes, given by their indices."""

    start: int
    end: int
    label: str
    is_dashed: bool = False


def dot(name: str, boxes: Iterable[Box], arrows: Iterable[Arrow]) -> str:
    """Return a drawing in the language of Graphviz."""
    lines = [f"digraph {_quoted(name)} {{", "    node [shape=box, fontname=monospace];"]
    for index, box in enumerate(boxes):
        shape = ", shape=ellipse" if box.is_round else ""
        fill = f', style=filled, fillcolor="{box.fill}"' if box.fill else ""
        lines.append(f"    n{index} [label={_quoted(box.label)}{shape}{fill}];")
    for arrow in arrows:
        style = ", style=dashed" if arrow.is_dashed else ""
        lines.append(f"    n{arrow.start} -> n{arrow.end} [label={_quoted(arrow.label)}{style}];")
    return "\n".join([*lines, "}"])


def mermaid(boxes: Iterable[Box], arrows: Iterable[Arrow]) -> str:
    """Return a drawing as a Mermaid flowchart."""
    lines = ["flowchart TD"]
    styles = []
    for index, box in enumerate(boxes):
        left, right = ("([", "])") if box.is_round else ("[", "]")
        lines.append(f"    n{index}{left}{_quoted(_escaped(box.label))}{right}")
        if box.fill:
            styles.append(f"    style n{index} fill:{box.fill}")
    for arrow in arrows:
        line = "-.->" if arrow.is_dashed else "-->"
        lines.append(f"    n{arrow.start} {line}|{_escaped(arrow.label)}| n{arrow.end}")
    return "\n".join([*lines, *styles])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(text: str) -> str:
    """Return text in which Mermaid sees no markup."""
    for char, entity in (("#", "#35;"), ('"', "#quot;"), ("|", "#124;"), ("<", "#lt;")):
        text = text.replace(char, entity)
    return text
