"""What every test gets: profiles, the `peer` marker, and a check that nothing ambient is left."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from hypothesis import settings

from oplib import _state

# A slow machine is no failure, so examples have no deadline; a failure prints how to repeat it.
settings.register_profile("oplib", deadline=None, print_blob=True)
settings.load_profile("oplib")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``peer("torch")`` where that package is not installed."""
    for mark in item.iter_markers("peer"):
        for package in mark.args:
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed")


@pytest.fixture(autouse=True)
def ambient_state_is_restored() -> Iterator[None]:
    """Fail a test that leaves grad mode, an interpreter or a setting behind."""
    before = _state.current()
    yield
    after = _state.current()
    _state.set_state(before)
    assert after is before, f"the test left an ambient state behind: {after!r}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add how many random programs to run, and where to begin."""
    parser.addoption("--fuzz", type=int, default=2000, help="random programs to run")
    parser.addoption("--fuzz-seed", type=int, default=0, help="seed of the first random program")


@pytest.fixture(scope="session")
def fuzz_range(request: pytest.FixtureRequest) -> range:
    """Return the seeds of the random programs of this run."""
    first = request.config.getoption("--fuzz-seed")
    return range(first, first + request.config.getoption("--fuzz"))
