"""The rows as a picture: bars against the budgets, and a panel per curve. Needs matplotlib.

Read next: `__main__.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .table import Row

__all__ = ["curves", "draw"]


def curves(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the points of each curve, by its title."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.at is not None:
            found.setdefault(row.title.rpartition(": ")[0], []).append(row)
    return found


def draw(rows: Sequence[Row], file: Path) -> None:
    """Write the picture of `rows`; the suffix of `file` says in which format.

    Raises
    ------
    SystemExit
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit("a chart needs matplotlib: pip install matplotlib") from None
    bars = [row for row in rows if row.at is None and row.oplib is not None]
    panels = curves(rows)
    height = max(2.0, 0.45 * len(bars))
    figure = Figure(figsize=(10, height + 3.2 * len(panels)), layout="constrained")
    ratios = [height, *[3.2] * len(panels)]
    axes = figure.subplots(len(ratios), 1, squeeze=False, height_ratios=ratios)[:, 0]
    _bars(axes[0], bars)
    for axis, (title, points) in zip(axes[1:], panels.items(), strict=True):
        _curve(axis, title, points)
    figure.savefig(file)


def _bars(axis: Any, rows: Sequence[Row]) -> None:
    """Draw the cost of each row on a logarithmic scale, with its kernel, budget and peers."""
    places = range(len(rows))
    axis.barh(places, [row.oplib for row in rows], color="#4878a8", label="oplib")
    for label, value in (("kernel", lambda row: row.kernel), ("budget", _budget)):
        found = [(i, value(row)) for i, row in enumerate(rows) if value(row)]
        axis.plot([v for _, v in found], [i for i, _ in found], "|", ms=14, mew=2, label=label)
    for peer in sorted({label for row in rows for label in row.peers}):
        found = [(i, row.peers[peer]) for i, row in enumerate(rows) if peer in row.peers]
        axis.plot([v for _, v in found], [i for i, _ in found], "o", ms=5, label=peer)
    axis.set(xscale="log", xlabel="µs on this machine", yticks=places)
    axis.set_yticklabels([row.title for row in rows], fontsize=7)
    axis.invert_yaxis()
    axis.legend(fontsize=7, loc="lower right")


def _budget(row: Row) -> float | None:
    """Return the time a row may take on this machine, where its budget limits all of its cost."""
    if row.budget is None or not row.cost or not row.scaled or row.cost != row.oplib:
        return None
    return row.budget * row.cost / row.scaled


def _curve(axis: Any, title: str, points: Sequence[Row]) -> None:
    """Draw one curve, with its kernel and peers."""
    axis.plot([row.at for row in points], [row.oplib for row in points], "o-", label="oplib")
    labels = ["kernel", *sorted({label for row in points for label in row.peers})]
    for label in labels:
        times = [
            (row.at, row.kernel if label == "kernel" else row.peers.get(label)) for row in points
        ]
        if any(time for _, time in times):
            axis.plot([at for at, _ in times], [time for _, time in times], "o--", label=label)
    axis.set(xscale="log", yscale="log", title=title, ylabel="µs")
    axis.title.set_fontsize(8)
    axis.legend(fontsize=7)
