"""The pytest plugin: fixtures `scoped_library` and `checked_mode`, marker ``opcheck``.

It is loaded by its entry point wherever oplib and pytest are installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from ..checked import checked
from ..library import Library, scoped_library

__all__: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", "opcheck: runs one check of oplib.testing.opcheck")


@pytest.fixture(name="scoped_library")
def _scoped_library(request: pytest.FixtureRequest) -> Iterator[Library]:
    """Return a library in a namespace named after the test; it ends with the test."""
    with scoped_library(re.sub(r"\W+", "_", request.node.name).strip("_")) as library:
        yield library


@pytest.fixture(name="checked_mode")
def _checked_mode() -> Iterator[None]:
    """Run the test in checked mode."""
    with checked():
        yield
