from __future__ import annotations

import gc

import pytest

from benchmarks.measure import Timings, measure


def test_a_difference_is_taken_within_a_round_before_the_median() -> None:
    timings = Timings({"a": (1.0, 10.0, 100.0), "b": (0.5, 9.0, 1.0)})
    assert timings.paired({"a": 1, "b": -1}) == 1.0
    assert timings.median("a") - timings.median("b") == 9.0


def test_every_call_has_one_time_per_round() -> None:
    timings = measure({"a": lambda: None, "b": lambda: sum(range(2000))}, rounds=3)
    assert {name: len(times) for name, times in timings.rounds.items()} == {"a": 3, "b": 3}
    assert all(time > 0 for times in timings.rounds.values() for time in times)


def test_the_collector_is_off_during_rounds_and_restored_after_an_exception() -> None:
    enabled = {}

    def call() -> None:
        enabled["last"] = gc.isenabled()

    def fail() -> None:
        if not gc.isenabled():
            raise ZeroDivisionError

    assert gc.isenabled()
    measure({"call": call}, rounds=2)
    assert enabled["last"] is False
    with pytest.raises(ZeroDivisionError):
        measure({"fail": fail}, rounds=1)
    assert gc.isenabled()


def test_a_ratio_is_taken_within_a_round_before_the_median() -> None:
    timings = Timings({"a": (2.0, 40.0, 9.0), "b": (1.0, 10.0, 3.0)})
    assert timings.relative({"a": 1}, {"b": 1}) == 3.0
    assert timings.relative({"a": 1, "b": -1}, {"b": 2}) == 1.0
