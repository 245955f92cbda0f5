"""The public surface, as `tests/public_surface.txt` records it.

Public is what the `__all__` of `oplib` and of its modules and packages without an underscore list;
a package whose `__init__` lists nothing is internal.
After a change on purpose, write the file anew and read the difference::

    python -m tests.test_public_surface
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import oplib

SNAPSHOT = Path(__file__).with_name("public_surface.txt")


def public_modules() -> Iterator[ModuleType]:
    """Yield `oplib` and the modules and packages that lie directly in it and list names."""
    yield oplib
    for found in pkgutil.iter_modules(oplib.__path__):
        if not found.name.startswith("_"):
            module = importlib.import_module(f"oplib.{found.name}")
            if hasattr(module, "__all__"):
                yield module


def surface() -> str:
    """Return one line per module and, indented below it, one per public name."""
    lines: list[str] = []
    for module in public_modules():
        lines += [module.__name__, *(f"    {name}" for name in sorted(module.__all__))]
    return "\n".join(lines) + "\n"


def test_the_public_surface_is_the_recorded_one() -> None:
    assert surface() == SNAPSHOT.read_text("utf-8"), "run: python -m tests.test_public_surface"


@pytest.mark.parametrize("module", list(public_modules()), ids=lambda module: module.__name__)
def test_every_public_name_exists_and_is_listed_once(module: ModuleType) -> None:
    names = module.__all__
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(module, name)] == []


def test_public_things_of_oplib_are_documented() -> None:
    things = {name: getattr(oplib, name) for name in oplib.__all__}
    functions = {name: thing for name, thing in things.items() if callable(thing)}
    assert [name for name, thing in functions.items() if not thing.__doc__] == []


if __name__ == "__main__":
    SNAPSHOT.write_text(surface(), "utf-8")
