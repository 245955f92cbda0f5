from __future__ import annotations

import sys

import pytest

from benchmarks import __main__ as command
from benchmarks.cases import OVER_KERNEL, Case
from benchmarks.peers import PEERS
from benchmarks.suites import CASES
from benchmarks.table import Row, measure_case


def row(cost: float | None) -> Row:
    return Row("call", "a call", "µs", 0.5, cost, cost)


def test_a_budget_is_missed_above_it_only() -> None:
    assert [row(cost).missed for cost in (0.5, 0.51, None)] == [False, True, False]
    assert ["MISSED" in next(row(cost).lines()) for cost in (0.5, 0.51, None)] == [0, 1, 0]
    assert "not measured" in next(row(None).lines())


def test_times_of_a_case_are_per_operator_and_peers_are_set_beside_them() -> None:
    def spin(count: int) -> int:
        return sum(range(count))

    case = Case(
        "toy",
        "a toy",
        0.0,
        lambda: {"oplib": lambda: spin(2000), "kernel": lambda: spin(10)},
        OVER_KERNEL,
        per=10,
    )
    measured = measure_case(case, {"peer": lambda: spin(2000)}, rounds=3)
    assert measured.missed
    assert measured.oplib is not None
    assert measured.kernel is not None
    assert measured.cost is not None
    assert measured.cost < measured.oplib
    assert [line.split()[0] for line in measured.lines()] == ["a", "peer"]


def test_the_command_names_a_missed_budget_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "rows", lambda *_: iter([row(0.4), row(0.6)]))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--peers", "none", "--budget"])
    assert command.main() == 1
    assert "1 of 2 budgets missed\n  a call: 0.60 µs, budget 0.50" in capsys.readouterr().out


def test_every_case_runs_and_every_weight_names_one_of_its_calls() -> None:
    for case in CASES:
        if case.at is not None and case.at > 10_000:
            continue  # the same code as the points before it on its curve
        calls = case.setup()
        assert case.weights.keys() <= calls.keys(), case.key
        for call in calls.values():
            call()


@pytest.mark.parametrize(
    "peer", [pytest.param(name, marks=pytest.mark.peer(name)) for name in PEERS]
)
def test_the_rows_of_a_peer_belong_to_cases_and_run(peer: str) -> None:
    table = PEERS[peer]()
    assert table.keys() <= {case.key for case in CASES}
    for calls in table.values():
        for call in calls.values():
            call()
