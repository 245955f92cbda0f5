"""Boxes and arrows: the language of Graphviz, Mermaid flowcharts for Markdown, and web pages.

Imports nothing of oplib. Used for captured graphs and for backward graphs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ._record import record

__all__ = ["Arrow", "Box", "dot", "html", "mermaid", "svg"]


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


_STYLE: Final = """body{font:13px monospace;margin:1em}path{fill:none;stroke:#888}
path.dashed{stroke-dasharray:4 3}rect{stroke:#555}text{font:12px monospace}"""
_ENTITIES: Final = {ord(char): f"&#{ord(char)};" for char in "&<>\"'"}
_ROW: Final = 46
_GAP: Final = 20
_CHAR: Final = 7.4
"""Pixels: from row to row, between boxes, and the width of a letter."""


def _entities(text: str) -> str:
    return text.translate(_ENTITIES)


def svg(boxes: Iterable[Box], arrows: Iterable[Arrow]) -> str:
    """Return a drawing as SVG: every box below all boxes that have an arrow to it."""
    boxes, arrows = list(boxes), list(arrows)
    ranks = [0] * len(boxes)
    for arrow in sorted(arrows, key=lambda arrow: arrow.end):
        ranks[arrow.end] = max(ranks[arrow.end], ranks[arrow.start] + 1)
    ends = [float(_GAP)] * (max(ranks, default=0) + 1)
    places = []
    for box, rank in zip(boxes, ranks, strict=True):
        width = len(box.label) * _CHAR + 12
        places.append((ends[rank], rank * _ROW + 10.0, width))
        ends[rank] += width + _GAP
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(ends):g}" ']
    lines[0] += f'height="{len(ends) * _ROW + 10}">'
    for arrow in arrows:
        (x, y, width), (u, v, span) = places[arrow.start], places[arrow.end]
        dashed = ' class="dashed"' if arrow.is_dashed else ""
        start, end = f"{x + width / 2:g},{y + 24:g}", f"{u + span / 2:g},{v:g}"
        curve = f"C{x + width / 2:g},{y + 40:g} {u + span / 2:g},{v - 16:g}"
        lines.append(f"<path{dashed} d='M{start} {curve} {end}'/>")
    for box, (x, y, width) in zip(boxes, places, strict=True):
        corner = 12 if box.is_round else 2
        lines.append(
            f"<g><title>{_entities(box.label)}</title>"
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="24" rx="{corner}" '
            f'fill="{box.fill or "#fff"}"/>'
            f'<text x="{x + 6:g}" y="{y + 16:g}">{_entities(box.label)}</text></g>'
        )
    return "\n".join([*lines, "</svg>"])


def html(title: str, text: str, boxes: Iterable[Box], arrows: Iterable[Arrow]) -> str:
    """Return a page that needs nothing else: the drawing, and the text below it."""
    return (
        f'<!doctype html>\n<html><head><meta charset="utf-8"><title>{_entities(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{svg(boxes, arrows)}\n"
        f"<pre>{_entities(text)}</pre></body></html>\n"
    )
