"""Every Python snippet of README.md, docs/ and public docstrings runs and prints what it says.

A document is one session from top to bottom: its ```python blocks share their names, and what a
``>>>`` line prints is compared. Each document, and the docstrings together, run in an interpreter
of their own, so operators they define meet nobody.
"""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import oplib

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(
    r"^(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)


# -- running -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Snippet:
    """A piece of Python in a document; `line` is the number of lines above its first one."""

    code: str
    line: int


def snippets(text: str) -> Iterator[Snippet]:
    for match in FENCE.finditer(text):
        yield Snippet(textwrap.dedent(match["code"]), text.count("\n", 0, match.start("code")))


def run_document(path: Path) -> int:
    """Execute the snippets of `path` in order and return how many printed something else.

    An exception propagates, with the line of the document in its traceback.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    parser = doctest.DocTestParser()
    for snippet in snippets(path.read_text("utf-8")):
        if ">>> " in snippet.code:
            test = parser.get_doctest(snippet.code, {}, path.name, str(path), snippet.line)
            test.globs = names
            runner.run(test, clear_globs=False)
        else:
            exec(compile("\n" * snippet.line + snippet.code, str(path), "exec"), names)
    return runner.failures


def docstring_examples(modules: Iterable[ModuleType]) -> Iterator[doctest.DocTest]:
    """Yield the examples in the docstrings of `modules` and of what their `__all__` lists, once.

    As is the custom, an example sees the names of the module it stands in.
    """
    finder, parser = doctest.DocTestFinder(), doctest.DocTestParser()
    seen: set[str] = set()
    for module in modules:
        things = {module.__name__: module}
        listed = getattr(module, "__all__", ())
        things |= {f"{module.__name__}.{name}": getattr(module, name) for name in listed}
        for name, thing in things.items():
            text = thing.__doc__ or ""
            if text in seen or not is_of(module.__name__.partition(".")[0], thing):
                continue
            seen.add(text)
            if isinstance(thing, type):
                found = finder.find(thing, name, module=False)
            else:
                found = [parser.get_doctest(text, {}, name, name, 0)]
            home = sys.modules.get(getattr(thing, "__module__", ""), module)
            for test in found:
                test.globs = {**vars(module), **vars(home)}
                yield test


def is_of(package: str, thing: object) -> bool:
    """Return whether the docstring of `thing` was written in `package` (a dtype's was not)."""
    home = thing if hasattr(thing, "__module__") else type(thing)
    name = thing.__name__ if isinstance(thing, ModuleType) else home.__module__
    return name.partition(".")[0] == package


def run_docstrings(package: str) -> int:
    """Run the docstring examples of `package` and return how many printed something else."""
    root = importlib.import_module(package)
    names = [name for _, name, _ in pkgutil.iter_modules(root.__path__) if name[0] != "_"]
    modules = [root, *(importlib.import_module(f"{package}.{name}") for name in names)]
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in docstring_examples(modules):
        test.globs |= {package: root, "np": np}
        runner.run(test)
    return runner.failures


# -- testing -----------------------------------------------------------------------------------


def run_apart(target: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """Run a document or the docstrings of a package in a new interpreter, warnings as errors."""
    search = os.pathsep.join(map(str, [*path, Path(oplib.__file__).parents[1]]))
    return subprocess.run(
        [sys.executable, "-P", "-W", "error", __file__, target],
        env={**os.environ, "PYTHONPATH": search},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_snippets_of_a_document_run(document: Path) -> None:
    result = run_apart(str(document))
    assert result.returncode == 0, result.stdout + result.stderr


def test_examples_in_public_docstrings_run() -> None:
    result = run_apart("oplib")
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_readme_holds_one_command_to_try_oplib_and_one_to_test_it() -> None:
    commands = re.findall(r"^python3 -m venv .*$", (ROOT / "README.md").read_text("utf-8"), re.M)
    assert [command.split("/")[-1] for command in commands] == ["digits.py", "pytest -n auto"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", "line 6"),
        ("```python\n>>> 1 + 1\n3\n```\n", "Expected:\n    3\nGot:\n    2"),
        ("- item\n\n  ```python\n  undefined\n  ```\n", "NameError"),
        ("```python\nimport warnings; warnings.warn('old')\n```\n", "UserWarning: old"),
    ],
)
def test_a_snippet_that_does_not_do_what_it_says_is_reported(
    tmp_path: Path, text: str, complaint: str
) -> None:
    document = tmp_path / "wrong.md"
    document.write_text(text, "utf-8")
    result = run_apart(str(document))
    assert result.returncode != 0
    assert complaint in result.stdout + result.stderr


def test_snippets_of_a_document_share_their_names_and_other_languages_are_left_alone(
    tmp_path: Path,
) -> None:
    document = tmp_path / "right.md"
    document.write_text(
        "```python\nx = 1\n```\n```python\n>>> x\n1\n>>> y = 2\n```\n"
        "```python\nassert x + y == 3\n```\n```sh\nfalse\n```\n",
        "utf-8",
    )
    result = run_apart(str(document))
    assert result.returncode == 0, result.stdout + result.stderr


TOY = '''"""A module.

>>> 1
{module}
"""
__all__ = ["A", "f"]

def f():
    """A function.

    >>> 1
    {function}
    """

class A:
    def m(self):
        """A method.

        >>> 1
        {method}
        """
'''


@pytest.mark.parametrize("place", ["module", "function", "method"])
def test_a_docstring_that_does_not_print_what_it_says_is_reported(
    tmp_path: Path, place: str
) -> None:
    printed = dict.fromkeys(["module", "function", "method"], 1) | {place: 2}
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "__init__.py").write_text(TOY.format(**printed), "utf-8")
    result = run_apart("toy", tmp_path)
    assert result.returncode != 0
    assert result.stdout.count("Failed example") == 1


if __name__ == "__main__":
    target = sys.argv[1]
    failures = run_document(Path(target)) if target.endswith(".md") else run_docstrings(target)
    sys.exit(failures > 0)
