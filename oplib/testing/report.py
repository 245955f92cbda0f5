"""What a check found: results by check, failures with everything needed to act on them.

Imports floor 0. Read next: `compare.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["GradCheckReport", "GradientMismatch", "Status"]

Status: TypeAlias = Literal["passed", "failed", "skipped"]


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
