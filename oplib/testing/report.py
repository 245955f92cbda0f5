"""What a check found: results by check, failures with everything needed to act on them.

Imports floor 0. Read next: `compare.py`.
"""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal, TypeAlias

__all__ = [
    "CheckResult",
    "Failure",
    "GradCheckReport",
    "GradientMismatch",
    "OpCheckReport",
    "Status",
]


Status: TypeAlias = Literal["passed", "failed", "skipped"]

LINE_WIDTH: Final = 100


# ---------------------------------------------------------------------- gradcheck


@dataclass(frozen=True, slots=True)
class GradientMismatch:
    """One thing that is wrong about a gradient.

    Attributes
    ----------
    input, result : str
        The element whose gradient is wrong, and the element it was asked through.
    analytic, numeric, error : float
        What the rule gave, what differences gave, and the error estimate of the latter.
    wrong, total : int
        How many entries of the matrix disagree, of how many.
    hint : str
        What the author probably did.
    message : str
        For what is no wrong value: a run that does not repeat, an array that was written.
    """

    input: str = ""
    result: str = ""
    analytic: float = 0.0
    numeric: float = 0.0
    error: float = 0.0
    wrong: int = 0
    total: int = 0
    hint: str = ""
    message: str = ""

    @staticmethod
    def plain(message: str, hint: str) -> GradientMismatch:
        """Return a failure that is told in words."""
        return GradientMismatch(message=message, hint=hint)

    def __str__(self) -> str:
        lines = (
            [self.message]
            if self.message
            else [
                f"gradient of {self.input} through {self.result}",
                f"  analytic  {self.analytic:.12g}",
                f"  numeric   {self.numeric:.12g} ± {self.error:.1g}",
                f"  {self.wrong} of {self.total} entries disagree",
            ]
        )
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class GradCheckReport:
    """The outcome of `gradcheck`; true in a condition if the gradient is right.

    Attributes
    ----------
    name, site : str
        The function, and where its gradient rule was written.
    order : int
        Which derivative was checked.
    status : {"passed", "failed", "skipped"}
        An inconclusive check is skipped.
    reason : str
        Why it was skipped.
    failures : tuple of GradientMismatch
    full : bool
        Whether every entry of the Jacobian was compared, or random projections.
    entries, left_out : int
        Numbers compared, and those at kinks that were not.
    evaluations, backward_runs : int
        What the comparison took.
    seed : int
    notes : tuple of str
        Remarks that are no failures.
    """

    name: str
    site: str
    order: int
    status: Status
    reason: str = ""
    failures: tuple[GradientMismatch, ...] = ()
    full: bool = False
    entries: int = 0
    left_out: int = 0
    evaluations: int = 0
    backward_runs: int = 0
    seed: int = 0
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.status == "passed"

    def __str__(self) -> str:
        what = {1: "gradcheck", 2: "gradgradcheck"}.get(
            self.order, f"gradcheck, order {self.order},"
        )
        kind = "all entries" if self.full else "random directions"
        counts = f"{self.entries} numbers, {kind}, seed {self.seed}"
        if self.left_out:
            counts += f", {self.left_out} at kinks left out"
        state = self.status.upper() if self.status == "failed" else self.status
        lines = [f"{what} of {self.name}: {state}  ({counts})"]
        if self.reason:
            lines.append(f"  {self.reason}")
        if self.failures:
            lines.append(f"  {self.site}")
        for failure in self.failures:
            lines += [f"  {line}" for line in str(failure).splitlines()]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


# ---------------------------------------------------------------------- opcheck


@dataclass(frozen=True, slots=True)
class Failure:
    """One disagreement between the facets of an operator.

    Attributes
    ----------
    operator, check : str
    facet, site : str
        Which part of the operator is wrong, and where it was written.
    sample : str
        The call: how it came to be, and its arguments.
    where : str
        Argument or result, by name and position.
    problem : str
        What is wrong, in words.
    expected, got : str
        The same in figures, where that says more.
    advice : str
        What to do.
    reproduction : str
        A snippet that repeats this failure.
    size : int
        Number of elements of the call; the smallest failing call is kept.
    """

    operator: str
    check: str
    facet: str
    site: str
    sample: str
    where: str
    problem: str
    expected: str = ""
    got: str = ""
    advice: str = ""
    reproduction: str = ""
    size: int = 0

    def lines(self) -> list[str]:
        """Return the failure as lines, without its reproduction."""
        found = [f"{self.where}: {self.problem}" if self.where else self.problem]
        if self.expected or self.got:
            found += [f"  expected  {self.expected}", f"  got       {self.got}"]
        found += [f"  {self.facet} at {self.site}", f"  sample    {self.sample}"]
        found += [f"  {self.advice}"] if self.advice else []
        return [line for text in found for line in _indented(text)]

    def __str__(self) -> str:
        lines = [f"{self.operator}, check {self.check}", *self.lines()]
        if self.reproduction:
            lines += ["to repeat:", *(f"  {line}" for line in self.reproduction.splitlines())]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check.

    Attributes
    ----------
    check : str
    status : {"passed", "failed", "skipped"}
    reason : str
        Why it was skipped.
    samples_run : int
    failures : tuple of Failure
        The smallest failing calls.
    failed : int
        How many samples failed.
    """

    check: str
    status: Status
    reason: str = ""
    samples_run: int = 0
    failures: tuple[Failure, ...] = ()
    failed: int = 0

    @property
    def summary(self) -> str:
        """One line: ``passed 12``, ``FAILED 3/12``, ``skipped  no gradient rule``."""
        if self.status == "failed":
            return f"FAILED {self.failed}/{self.samples_run}"
        return (
            f"passed {self.samples_run}" if self.status == "passed" else f"skipped  {self.reason}"
        )


@dataclass(frozen=True)
class OpCheckReport:
    """What `opcheck` found: ``report["fake"]`` is one `CheckResult`.

    Attributes
    ----------
    name : str
        The operator.
    results : mapping of str to CheckResult
    samples, seed : int
    notes : tuple of str
        Remarks that are no failures.
    required : frozenset of str
        Checks whose being skipped counts as failure.
    """

    name: str
    results: Mapping[str, CheckResult]
    samples: int
    seed: int
    notes: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()

    def __getitem__(self, check: str) -> CheckResult:
        return self.results[check]

    def __iter__(self) -> Iterator[CheckResult]:
        return iter(self.results.values())

    def __len__(self) -> int:
        return len(self.results)

    @property
    def ok(self) -> bool:
        """Whether nothing failed and nothing required was skipped."""
        return not self.broken

    @property
    def broken(self) -> list[CheckResult]:
        """The checks that failed, and the required ones that were skipped."""
        return [
            result
            for result in self
            if result.status == "failed"
            or (result.status == "skipped" and result.check in self.required)
        ]

    def __str__(self) -> str:
        lines = [f"opcheck {self.name}  ({self.samples} samples, seed {self.seed})"]
        for result in self:
            needed = result.status == "skipped" and result.check in self.required
            lines.append(f"  {result.check:<16}{result.summary}{' (required)' if needed else ''}")
            for failure in result.failures[:1]:
                lines += [f"      {line}" for line in failure.lines()]
        lines += [f"  note: {note}" for note in self.notes]
        first = next((f for result in self for f in result.failures if f.reproduction), None)
        if first is not None:
            lines += ["to repeat:", *(f"  {line}" for line in first.reproduction.splitlines())]
        return "\n".join(wrapped for line in lines for wrapped in _wrapped(line))

    def _repr_html_(self) -> str:
        colours = {"passed": "green", "failed": "crimson", "skipped": "gray"}
        rows = "".join(
            f"<tr><td>{html.escape(result.check)}</td>"
            f'<td style="color:{colours[result.status]}">{html.escape(result.summary)}</td>'
            f"<td><pre>{html.escape(_first_text(result))}</pre></td></tr>"
            for result in self
        )
        title = f"opcheck {self.name} ({self.samples} samples, seed {self.seed})"
        return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"

    def to_json(self) -> str:
        """Return the report as JSON: one object per check."""
        return json.dumps(
            {
                "operator": self.name,
                "ok": self.ok,
                "samples": self.samples,
                "seed": self.seed,
                "notes": list(self.notes),
                "checks": [asdict(result) for result in self],
            },
            indent=2,
        )


def _indented(text: str) -> list[str]:
    """Return the lines of a text, the later ones indented more than the first."""
    first, *rest = text.splitlines() or [""]
    indent = " " * (len(first) - len(first.lstrip()) + 2)
    return [first, *(indent + line for line in rest)]


def _first_text(result: CheckResult) -> str:
    return "\n".join(result.failures[0].lines()) if result.failures else ""


def _wrapped(line: str) -> list[str]:
    """Return a line cut into pieces shorter than 100 columns, continued with its indentation."""
    if len(line) < LINE_WIDTH:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line,
        LINE_WIDTH - 1,
        subsequent_indent=f"{indent}    ",
        drop_whitespace=False,
        break_on_hyphens=False,
    )
