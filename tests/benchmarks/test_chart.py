from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.chart import curves, draw
from benchmarks.table import Row


def point(at: float) -> Row:
    title = f"cost by size: {at:,.0f}"
    return Row("cost", title, "µs", None, at, at, at, kernel=at / 2, at=at, peers={"peer": 3 * at})


ROWS = [
    Row("call", "a call", "µs", 0.5, 1.0, 0.4, oplib=1.0, kernel=0.5, peers={"peer": 2.0}),
    point(10.0),
    Row("wheel", "the wheel", "kB", 500.0, 600.0, 600.0),
    point(100.0),
]


def test_the_points_of_a_curve_are_found_by_its_title() -> None:
    assert {title: [row.at for row in rows] for title, rows in curves(ROWS).items()} == {
        "cost by size": [10.0, 100.0]
    }


def test_a_chart_shows_bars_curves_and_peers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").rcParams["svg.fonttype"] = "none"
    draw(ROWS, tmp_path / "chart.svg")
    text = (tmp_path / "chart.svg").read_text("utf-8")
    for words in ("a call", "cost by size", "kernel", "peer"):
        assert f">{words}<" in text, words
    assert "the wheel" not in text  # it is no time


def test_without_matplotlib_a_chart_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match="pip install matplotlib"):
        draw(ROWS, tmp_path / "chart.svg")
