"""Writes docs/gallery.md and its pictures from examples/gallery.

``python -m tests.gallery.page``. A picture is a function entered in `PICTURES` by the name of the
file it belongs to; it returns SVG made of `grid`, `curves` and `boxes`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import oplib
from tests.gallery.harness import GALLERY, all_cases, gallery

__all__ = ["DOCS", "PICTURES", "page"]

DOCS = Path(__file__).parents[2] / "docs"
ORDER = (
    "rms_norm fused_add_rms_norm layer_norm rotary_embedding attention attention_bwd swiglu_mlp "
    "silu_and_mul dropout cross_entropy cross_entropy_inplace fused_linear_cross_entropy "
    "adamw_step reshape_and_cache copy_blocks causal_conv1d spectral_conv segment_sum scatter "
    "index_select sort_topk nms quant_absmax group_quant linear_solvers neighbor_pairs "
    "all_reduce write_file decoder release_param"
).split()
INTRODUCTION = """\
# Gallery

Operators as projects ship them, each in a file of its own under `examples/gallery`, written with
the public API and NumPy. Every file runs alone and prints what it shows. The tests hold each to its
schema, to `opcheck`, to central differences, to its errors, and to a program that was captured,
saved and loaded.
"""

# -- pictures ------------------------------------------------------------------------------------

WIDTH, HEIGHT = 420, 180
COLORS = ("#4878a8", "#c8553d", "#588157")


def svg(parts: Sequence[str], width: float = WIDTH, height: float = HEIGHT) -> str:
    """Return a picture of parts, on white."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}">'
    return "\n".join(
        [head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""]
    )


def grid(values: np.ndarray[Any, Any], cell: float) -> str:
    """Return numbers from 0 to 1 as shades, row by row."""
    rows, columns = values.shape
    cells = [
        f'<rect x="{j * cell:g}" y="{i * cell:g}" width="{cell:g}" height="{cell:g}" '
        f'fill="{COLORS[0]}" fill-opacity="{values[i, j]:.2f}"/>'
        for i in range(rows)
        for j in range(columns)
        if values[i, j] >= 0.005
    ]
    return svg(cells, columns * cell, rows * cell)


def curves(lines: dict[str, np.ndarray[Any, Any]]) -> str:
    """Return lines over their index, with a legend."""
    low, high = min(map(np.min, lines.values())), max(map(np.max, lines.values()))
    parts = []
    for (label, values), color, row in zip(lines.items(), COLORS, range(3), strict=False):
        xs = np.linspace(10, WIDTH - 10, len(values))
        ys = HEIGHT - 10 - (values - low) / (high - low) * (HEIGHT - 40)
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(
            f'<text x="{10 + 140 * row}" y="18" font-size="13" font-family="sans-serif" '
            f'fill="{color}">{label}</text>'
        )
    return svg(parts)


def attention() -> str:
    """Show which keys each query attends to, causal."""
    rng = np.random.default_rng(4)
    q, k = (oplib.from_numpy(rng.normal(size=(16, 8)) * 1.5) for _ in range(2))
    weights, _ = gallery("attention").attention(q, k, oplib.eye(16), causal=True)
    return grid(weights.numpy(), 12)


def rotary() -> str:
    """Show the cosines of the first pairs over positions."""
    cosines = gallery("rotary_embedding").cache(64, 8).numpy()[:, :3]
    return curves({f"pair {i}": cosines[:, i] for i in range(3)})


def spectral() -> str:
    """Show a noisy wave and what its lowest modes leave of it."""
    noise = np.random.default_rng(0).normal(size=96) * 0.4
    x = np.sin(np.arange(96) * 2 * np.pi / 48) + noise
    weight = oplib.ones((1, 1, 5), dtype="complex128")
    y = gallery("spectral_conv").spectral_conv(oplib.from_numpy(x[None, None]), weight)
    return curves({"signal": x, "lowest modes": y.numpy()[0, 0]})


def causal() -> str:
    """Show a step and its causal average."""
    x = (np.arange(64) >= 24).astype(float)
    weight = oplib.from_numpy(np.full((1, 8), 1 / 8))
    y, _ = gallery("causal_conv1d").conv(oplib.from_numpy(x[None, None]), weight)
    return curves({"input": x, "average of 8, looking back": y.numpy()[0, 0]})


def boxes() -> str:
    """Show kept boxes, and dashed those they hide."""
    rng = np.random.default_rng(3)
    centres = rng.uniform((60, 50), (360, 130), (6, 2)).repeat(3, 0) + rng.normal(size=(18, 2)) * 8
    sizes = rng.uniform(24, 44, (18, 2))
    dets = np.concatenate([centres - sizes / 2, centres + sizes / 2], 1)
    scores = rng.uniform(size=18)
    kept = set(gallery("nms").nms(oplib.from_numpy(dets), oplib.from_numpy(scores), 0.2).tolist())
    shown = f'stroke="{COLORS[0]}" stroke-width="2"', 'stroke="#999" stroke-dasharray="4 3"'
    parts = [
        f'<rect x="{a:.1f}" y="{b:.1f}" width="{c - a:.1f}" height="{d - b:.1f}" fill="none" '
        f"{shown[i not in kept]}/>"
        for i, (a, b, c, d) in enumerate(dets)
    ]
    return svg(parts)


PICTURES: dict[str, Callable[[], str]] = {
    "attention": attention,
    "rotary_embedding": rotary,
    "spectral_conv": spectral,
    "causal_conv1d": causal,
    "nms": boxes,
}

# -- the page ------------------------------------------------------------------------------------


def page() -> str:
    """Return the text of docs/gallery.md."""
    schemas: dict[str, list[str]] = {}
    for case in all_cases():
        home = schemas.setdefault(Path(case.op.definition_source.file).stem, [])
        home.extend({str(case.op.schema): None}.keys() - set(home))
    return "\n".join([INTRODUCTION, *(_section(name, schemas[name]) for name in ORDER)])


def _section(name: str, schemas: list[str]) -> str:
    text = ast.get_docstring(ast.parse((GALLERY / f"{name}.py").read_text("utf-8"))) or ""
    title, _, body = text.partition("\n\n")
    body = body.rpartition("\n\nNeeds:")[0]
    names, _, summary = title.rstrip(".").partition(": ")
    lines = [f"## {names}", "", f"{summary[0].upper()}{summary[1:]}.", "", body, ""]
    if name in PICTURES:
        lines += [f"![{PICTURES[name].__doc__}](gallery/{name}.svg)", ""]
    lines += ["```text", *schemas, "```", ""]
    lines += [f"[examples/gallery/{name}.py](../examples/gallery/{name}.py)", ""]
    return "\n".join(lines)


def main() -> None:
    (DOCS / "gallery").mkdir(exist_ok=True)
    (DOCS / "gallery.md").write_text(page(), "utf-8")
    for name, draw in PICTURES.items():
        (DOCS / "gallery" / f"{name}.svg").write_text(draw(), "utf-8")


if __name__ == "__main__":
    main()
