"""What a call costs in counts, which do not depend on the machine: a guard for what is timed."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.paths import paths
from benchmarks.profile import bytecodes

REPEATS = 100


def calls_of(function: Callable[[], object]) -> tuple[int, int]:
    """Return how many Python functions and how many C functions a call runs, once it is warm.

    Now and then a call also tidies up, so the least of several counts.
    """
    for _ in range(3):
        function()
    return min(_count(function) for _ in range(5))


def _count(function: Callable[[], object]) -> tuple[int, int]:
    ran: dict[str, list[str]] = {"call": [], "c_call": []}

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and not frame.f_code.co_name.startswith("<"):
            ran[event].append(frame.f_code.co_name)
        elif event == "c_call":
            ran[event].append(argument.__name__)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return len(ran["call"]), len(ran["c_call"]) - 1  # without `setprofile`


def blocks_of(function: Callable[[], object]) -> float:
    """Return how many blocks of memory the result of a call keeps allocated."""
    kept: list[object] = [None] * REPEATS
    for i in range(REPEATS):  # fills free lists and caches
        kept[i] = function()
    kept = [None] * REPEATS
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        for i in range(REPEATS):
            kept[i] = function()
        return (sys.getallocatedblocks() - before) / REPEATS
    finally:
        if was_on:
            gc.enable()


@functools.cache
def fresh(name: str) -> dict[str, Callable[[], object]]:
    """Return paths whose tensors no other test has used; the cache keeps them alive."""
    return paths()


CALLS: dict[str, tuple[int, int]] = {
    "call": (3, 2),
    "call built-in": (2, 1),
    "number": (5, 7),
    "ndarray": (6, 14),
    "recording": (4, 2),
    "layer": (8, 11),
    "backward of a call": (18, 17),
    "backward of a layer": (20, 21),
    "in place": (3, 1),
    "in place built-in": (3, 1),
    "view": (5, 2),
    "view recorded": (10, 3),
    "fake": (25, 18),
}
"""Python and C functions that a call may run. Lower a number when it is beaten."""

BLOCKS: dict[str, int] = {"call": 3, "recording": 9, "layer": 19, "view": 3, "view recorded": 13}
"""Blocks of memory that a result may keep."""


@pytest.mark.parametrize("name", CALLS)
def test_a_call_runs_no_more_functions_than_it_did(name: str) -> None:
    found = calls_of(fresh(name)[name])
    assert tuple(map(min, found, CALLS[name])) == found, f"{name}: {found}, was {CALLS[name]}"


@pytest.mark.parametrize("name", BLOCKS)
def test_a_result_keeps_no_more_blocks_than_it_did(name: str) -> None:
    assert blocks_of(fresh(name)[name]) < BLOCKS[name] + 0.5


def test_one_function_or_one_block_more_is_seen() -> None:
    call = fresh("more")["recording"]

    def more() -> object:
        return len(()), call()

    python, c = calls_of(call)
    assert calls_of(lambda: more()) == (python + 1, c + 1)
    assert blocks_of(lambda: (call(),)) >= blocks_of(call) + 0.9


def test_a_profile_attributes_every_bytecode_to_a_function() -> None:
    found = bytecodes(fresh("profile")["recording"])
    assert any("bench::mul bind" in name for name in found)
    assert any("autograd plan" in name for name in found)
    assert 100 < found.total() < 500
    assert bytecodes(lambda: None).total() <= 3
