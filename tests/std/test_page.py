"""`docs/builtins.md` lists every built-in operator, by module, as the registry has it.

After a change, write the table anew and read the difference::

    python -m tests.std.test_page
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import oplib
from oplib.std import MODULES, load_all

PAGE = Path(__file__).parents[2] / "docs" / "builtins.md"
BEGIN, END = "<!-- operators -->\n", "<!-- end -->\n"


def table() -> str:
    """Return the operators as Markdown: one section per module, one line per operator."""
    load_all()
    return "".join(_sections())


def _sections() -> Iterator[str]:
    for module, names in MODULES.items():
        doc = importlib.import_module(f"oplib.std.{module}").__doc__ or ""
        title = doc.split("\n\n")[0].replace("\n", " ")
        yield f"### {module}\n\n{title}\n\n"
        if module in ("inplace", "stored"):
            yield ", ".join(f"`{name}`" for name in sorted(names)) + "\n\n"
            continue
        yield "| operator | |\n|---|---|\n"
        for name in sorted(names):
            op = oplib.get_op(f"std::{name}")
            schema = str(op.schema).removeprefix("std::").replace("|", "\\|")
            said = " ".join((op.__doc__ or "").split()).replace("|", "\\|")
            yield f"| `{schema}` | {said} |\n"
        yield "\n"


def written(text: str) -> str:
    """Return the page with the table in its place."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}{END}{rest.partition(END)[2]}"


def test_the_page_lists_the_operators_as_they_are() -> None:
    text = PAGE.read_text("utf-8")
    assert written(text) == text, "run: python -m tests.std.test_page"


def test_a_change_of_an_operator_shows() -> None:
    text = PAGE.read_text("utf-8")
    assert written(text.replace("`cross(", "`crossed(")) == text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
