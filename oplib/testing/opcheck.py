"""`opcheck`: proof that the facets of an operator agree.

Schema, kernel, fake rule and gradient rule are four descriptions of one thing. `opcheck` runs the
operator on the call it is given and on calls derived from it, and measures bytes, addresses,
strides and derivatives; it trusts no declaration. A check that did not run says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from .._text import did_you_mean, short_repr
from ..autograd.pylayer import PyLayer
from ..dispatch.operator import Operator
from ..dispatch.packet import OperatorPacket
from ..dispatch.registry import get_op
from ..errors import ArgumentError, OpCheckError
from .calls import Call, Subject
from .checks.agreement import ARGUMENTS, LAYOUT, PICKLE, PROVIDERS, THREADS
from .checks.alias import ALIAS
from .checks.determinism import DETERMINISM
from .checks.fake import DTYPES_CHECK, FAKE_CHECK
from .checks.functional import FUNCTIONAL_CHECK
from .checks.gradient import GRADIENT_CHECK, SECOND_GRADIENT
from .checks.mutation import MUTATION
from .checks.schema import SCHEMA
from .drawing import drawn, shrunk
from .report import CheckResult, Failure, OpCheckReport
from .reproduction import reproduction
from .sampling import derived
from .session import Check, Compare, Problem, Session, Trial, given_calls

__all__ = ["CHECKS", "opcheck"]


CHECKS: Final[Mapping[str, Check]] = {
    check.name: check
    for check in (
        SCHEMA,
        MUTATION,
        ALIAS,
        FAKE_CHECK,
        GRADIENT_CHECK,
        SECOND_GRADIENT,
        DETERMINISM,
        FUNCTIONAL_CHECK,
        LAYOUT,
        DTYPES_CHECK,
        ARGUMENTS,
        PROVIDERS,
        THREADS,
        PICKLE,
    )
}
"""The checks by name, in the order in which they run."""

FOR_LAYERS: Final = (
    *("mutation", "gradient", "second_gradient", "determinism", "layout", "threads"),
)
"""The checks that need no schema, so that they apply to a PyLayer."""

KEPT: Final = 3
"""Failures kept per check: those of the smallest calls."""

Names: TypeAlias = str | Iterable[str]


def opcheck(
    op: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    checks: Names | None = None,
    skip: Names = (),
    require: Names = (),
    samples: Any = "auto",
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    compare: Compare | Mapping[Any, Compare] | None = None,
    time_limit: float = 10.0,
    raise_exception: bool = True,
) -> OpCheckReport:
    """Check that the facets of an operator agree, on a call and on calls derived from it.

    Parameters
    ----------
    op : Operator, OperatorPacket of one overload, str, or PyLayer class
    args, kwargs : tuple or list, mapping
        One valid call; what is missing is made up. They are never written.
    checks, skip : str or iterable of str
        Names of checks to run (all that apply by default), and to leave out.
    require : str or iterable of str
        Checks whose being skipped counts as failure.
    samples : "auto", int, or iterable of (args, kwargs)
        Derive calls (at most so many), or use these and no others.
    seed : int
        Of all draws; the report prints it.
    rtol, atol : float, optional
        Replace the tolerances of every dtype, singly or together.
    compare : callable or mapping, optional
        ``compare(actual, expected, where)`` returns None or what differs; it replaces the
        comparison of results. A mapping has one per result name, index or dtype.
    time_limit : float
        Seconds after which no more calls are derived.
    raise_exception : bool
        Raise at the end if anything failed; with False the report is returned.

    Returns
    -------
    OpCheckReport

    Raises
    ------
    OpCheckError
        If a check failed; carries the report. All checks have run.
    ArgumentError
        If `op` is not one operator, or `args` no tuple.
    ValueError
        For an unknown check.

    Examples
    --------
    >>> import oplib
    >>> from oplib.testing import opcheck
    >>> report = opcheck("std::exp", (oplib.tensor([0.5, 1.0]),), checks=("mutation", "fake"))
    >>> report["mutation"].status, report["fake"].status
    ('passed', 'passed')
    """
    subject = _subject(op)
    chosen = _chosen(subject, checks, skip)
    required = frozenset(_names(require))
    rng = np.random.default_rng(seed)
    session = Session(subject, seed, rtol, atol, compare)
    given = given_calls(subject, args, kwargs, samples, rng)
    own = not isinstance(samples, str | int) and samples is not None
    count = 0 if own else None if samples == "auto" else int(samples)
    if chosen:

        def further(base: Call) -> Iterator[Call]:
            yield from derived(base, rng)
            yield from drawn(base, seed)

        session.collect(given, further, count, time_limit, rng)
    causes: list[Exception] = []
    session.derives = count != 0
    results = {check.name: _result(check, session, causes) for check in chosen}
    notes = [*dict.fromkeys([*session.notes, *_remarks(subject)])]
    total = len(session.samples)
    report = OpCheckReport(subject.name, results, total, seed, tuple(notes), required)
    if raise_exception and report.broken:
        raise OpCheckError(str(report), report) from next(iter(causes), None)
    return report


# ---------------------------------------------------------------------- what to check


def _subject(op: Any) -> Subject:
    """Return what an argument of `opcheck` names."""
    if isinstance(op, str):
        op = get_op(op)
    if isinstance(op, OperatorPacket):
        op = op.single
    if isinstance(op, Operator):
        op.raise_if_removed()
        return Subject(op, op.qualname, op)
    if isinstance(op, type) and issubclass(op, PyLayer):
        return Subject(op.apply, op.__name__, layer=op)
    raise ArgumentError(
        f"opcheck takes an operator, its qualified name, or a PyLayer class, got {short_repr(op)}"
        + ("; register it with oplib.custom_op first" if callable(op) else "")
    )


def _names(names: Names) -> list[str]:
    found = [names] if isinstance(names, str) else list(names)
    for name in found:
        if name not in CHECKS:
            hint = did_you_mean(str(name), CHECKS)
            raise ValueError(f"there is no check {name!r}{hint}; known: {', '.join(CHECKS)}")
    return found


def _chosen(subject: Subject, checks: Names | None, skip: Names) -> list[Check]:
    wanted = list(CHECKS) if checks is None else _names(checks)
    left_out = set(_names(skip))
    if subject.op is None:
        left_out |= set(CHECKS) - set(FOR_LAYERS) if checks is None else set()
    return [check for name, check in CHECKS.items() if name in wanted and name not in left_out]


# ---------------------------------------------------------------------- running


def _result(check: Check, session: Session, causes: list[Exception]) -> CheckResult:
    """Run one check and return its result; an exception of its own code says so."""
    reason = _reason(check, session)
    if reason:
        return CheckResult(check.name, "skipped", reason)
    trial = Trial(session, check)
    problems: list[Problem] = []
    try:
        problems.extend(check.examine(trial))
    except Exception as error:
        error.add_note(
            f"raised by opcheck itself, in its check {check.name!r} of {session.subject.name}"
        )
        raise
    if problems:
        causes += [p.cause for p in problems if p.cause is not None]
        return _failed(check, session, trial, problems)
    if trial.run <= len(trial.inconclusive):
        found = trial.inconclusive[0] if trial.inconclusive else session.no_sample()
        return CheckResult(check.name, "skipped", found)
    return CheckResult(check.name, "passed", samples_run=trial.run - len(trial.inconclusive))


def _reason(check: Check, session: Session) -> str:
    """Return why a check cannot run, or ``""``."""
    if session.subject.op is None and check.name not in FOR_LAYERS:
        return "a PyLayer has no schema"
    if session.only_fakes:
        return "all arguments are fake"
    has_faults = bool(session.faults or session.broken)
    if not session.samples and not (has_faults and not check.needs_samples):
        return session.no_sample()
    return check.unable(session)


def _failed(check: Check, session: Session, trial: Trial, problems: list[Problem]) -> CheckResult:
    problems.sort(key=lambda problem: problem.call.size)
    if session.derives:
        problems[0] = shrunk(session, check, problems[0])
    distinct: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        distinct.setdefault((problem.where, problem.problem), problem)
    failures = [_failure(check, session, p) for p in list(distinct.values())[:KEPT]]
    calls = len({id(problem.call) for problem in problems})
    return CheckResult(
        check.name,
        "failed",
        samples_run=max(trial.run, calls),
        failures=tuple(failures),
        failed=calls,
    )


def _failure(check: Check, session: Session, problem: Problem) -> Failure:
    subject = session.subject
    facet = problem.facet if problem.facet != "schema" else "operator"
    return Failure(
        operator=subject.name,
        check=check.name,
        facet=facet,
        site=subject.site(problem.facet),
        sample=problem.call.place(),
        where=problem.where,
        problem=problem.problem,
        expected=problem.expected,
        got=problem.got,
        advice=problem.advice,
        reproduction=reproduction(problem.call, check.name),
        size=problem.call.size,
    )


def _remarks(subject: Subject) -> list[str]:
    """Return remarks on the operator that are no failures."""
    schema, op = subject.schema, subject.op
    if schema is None or op is None:
        return []
    if schema.input_slots and not schema.returns and not schema.is_mutable and not op.effects:
        return ["takes tensors, writes none, returns nothing and declares no effects"]
    return []
