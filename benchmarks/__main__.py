"""The command: ``python -m benchmarks [--budget] [--peers torch,paddle] [--chart FILE]``."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from .chart import draw
from .peers import PEERS, Rows, is_installed
from .suites import ALL_PROBES, CASES, SUITES
from .table import HEADER, REFERENCE, Row, measure_case, measure_probe


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="TEXTS", help="rows whose key contains one of TEXTS"
    )
    parser.add_argument(
        "--suite", choices=[*SUITES, "probes"], help="rows of one suite (default: all)"
    )
    parser.add_argument(
        "--peers",
        default=",".join(PEERS),
        metavar="NAMES",
        help="libraries to compare with, or 'none' (default: %(default)s, where installed)",
    )
    parser.add_argument("--rounds", type=int, default=31, help="default: %(default)s")
    parser.add_argument(
        "--budget", action="store_true", help="name the budgets that are missed; exit 1 if any is"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw the rows: .svg or .png")
    return parser.parse_args()


def conditions(rounds: int) -> dict[str, str]:
    """Return what the numbers depend on."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "unit": "µs per call unless the row says otherwise",
        "method": f"median of {rounds} interleaved rounds; differences within a round",
        "scaled": f"as if numpy.multiply took {REFERENCE} µs; this is what budgets are for",
        "garbage collector": "off during rounds, run before each row",
    }


def load_peers(names: str) -> dict[str, Rows]:
    """Return the rows of each named library that is installed, and name those that are not."""
    chosen = [] if names == "none" else names.split(",")
    if unknown := [name for name in chosen if name not in PEERS]:
        raise SystemExit(f"unknown peers {', '.join(unknown)}; there are {', '.join(PEERS)}")
    if absent := [name for name in chosen if not is_installed(name)]:
        print(f"not installed, so left out: {', '.join(absent)}")
    return {name: PEERS[name]() for name in chosen if is_installed(name)}


def rows(only: str, suite: str | None, peers: dict[str, Rows], rounds: int) -> Iterator[Row]:
    """Measure the rows of a suite whose key contains one of the texts in `only`."""

    def chosen(key: str, own: str) -> bool:
        return suite in (None, own) and any(text in key for text in only.split(","))

    for case in CASES:
        if chosen(case.key, case.suite):
            calls = {
                f"{peer} {label}": call
                for peer, table in peers.items()
                for label, call in table.get(case.key, {}).items()
            }
            yield measure_case(case, calls, rounds)
    for probe in ALL_PROBES:
        if chosen(probe.key, "probes"):
            yield measure_probe(probe, rounds)


def main() -> int:
    """Print the table and return the exit status."""
    options = arguments()
    about = conditions(options.rounds)
    for name, value in about.items():
        print(f"{name}: {value}")
    peers = load_peers(options.peers)
    print(f"\n{HEADER}")
    measured: list[Row] = []
    for row in rows(options.only, options.suite, peers, options.rounds):
        measured.append(row)
        print("\n".join(row.lines()), flush=True)
    if options.json:
        report = {"conditions": about, "rows": [asdict(row) for row in measured]}
        options.json.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    if options.chart:
        draw(measured, options.chart)
    if not options.budget:
        return 0
    missed = [row for row in measured if row.missed]
    print(f"\n{len(missed)} of {sum(row.budget is not None for row in measured)} budgets missed")
    for row in missed:
        print(f"  {row.title}: {row.scaled:.2f} {row.unit}, budget {row.budget:.2f}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
