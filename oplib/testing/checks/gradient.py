"""Checks ``gradient`` and ``second_gradient``: derivatives against differences, in all variations.

Varied are the arguments that need a gradient, the layout of incoming gradients, and whether another
forward runs before the backward. A mutating operator is checked as the function from old values to
new ones.

Imports floors 0 to 7, `problem.py`, `gradcheck.py`, `calls.py`, `differentiable.py`,
`sampling.py`, `session.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from ...autograd.general_grad import grad
from ...dispatch.facets import GRADIENT
from ...errors import AutogradError
from ...tensor.tensor import Tensor, tensor_from_array
from ..calls import Call, quietly, user_traceback
from ..compare import Array, compare_arrays
from ..differentiable import (
    differentiable_names,
    doubled,
    functional_form,
    has_rule,
    in_domain,
    ones_like,
    subsets,
    with_gradients,
)
from ..gradcheck import gradcheck
from ..layouts import LAYOUTS
from ..problem import inexact_results
from ..report import GradCheckReport
from ..sampling import redrawn
from ..session import Check, Problem, Session, Trial

__all__ = ["GRADIENT_CHECK", "SECOND_GRADIENT"]

SAMPLES: Final = 5
"""How many samples derivatives are checked on: they cost most of a run."""

DIRECTIONS: Final = 6
"""Random directions on derived samples; the caller's are compared in full where that is small."""

ELEMENTS: Final = 100
"""Calls of more elements are left to the other checks, unless they are the caller's."""


# ---------------------------------------------------------------------- what can be checked


def _unable(session: Session) -> str:
    calls = [call for call in session.samples if call.inexact]
    if session.samples and not calls:
        return "no inexact tensor argument"
    if calls and not any(differentiable_names(call) for call in calls):
        return "every argument is declared non-differentiable"
    subject = session.subject
    if subject.op is None or not calls:
        return ""
    if has_rule(subject.op):
        return ""
    return "" if _silent_without_rule(calls[0]) else "no gradient rule"


def _silent_without_rule(call: Call) -> bool:
    """Return whether an operator without a rule fails to say so."""
    return next(iter(_missing_rule(call)), None) is not None


def _missing_rule(call: Call) -> Iterator[Problem]:
    """Yield an operator without a rule that does not raise by name when a gradient is asked for."""
    given = with_gradients(call.fresh(), set(differentiable_names(call)))
    before = given.snapshot()
    outcome = given.run()
    if outcome.error is None:
        results = [t for t in inexact_results(outcome.result) if t.requires_grad]
        if not results:
            return
        try:
            grad(
                results[:1],
                [t for _, t in given.inexact],
                [ones_like(results[0])],
                allow_unused=True,
            )
        except AutogradError as error:
            outcome_error: Exception = error
        else:
            yield Problem(call, "", "has no gradient rule, and backward does not say so")
            return
    else:
        outcome_error = outcome.error
    if call.subject.name not in str(outcome_error):
        yield Problem(
            call, "", "the error for a missing gradient rule does not name the operator",
            call.subject.name, str(outcome_error), facet=GRADIENT,
        )  # fmt: skip
    if outcome.error is not None:
        for change in before.changes():
            yield Problem(call, f"argument `{change.name}`", "was written before the call raised")


# ---------------------------------------------------------------------- samples


def _calls(trial: Trial) -> Iterator[Call]:
    """Yield the samples for derivatives: the caller's and a spread of small finite ones."""
    usable = [
        call
        for call in trial.calls()
        if differentiable_names(call)
        and any(t.size for _, t in call.inexact)
        and all(np.isfinite(t.array).all() for _, t in call.inexact)
        and (call.size <= ELEMENTS or call.kind == "given")
    ]
    given = [call for call in usable if call.kind == "given"]
    others = [call for call in usable if call.kind != "given"]
    spread = others[:: max(1, len(others) // SAMPLES)][:SAMPLES]
    trial.run = 0
    for call in (*given, *spread):
        trial.run += 1
        yield in_domain(doubled(call))


# ---------------------------------------------------------------------- gradient


def _gradient(trial: Trial) -> Iterator[Problem]:
    op = trial.subject.op
    if op is not None and not has_rule(op):
        for call in trial.calls("given"):
            yield from _missing_rule(call)
        return
    first = True
    for call in _calls(trial):
        if first:
            found = [*_one_forward_at_a_time(call, trial.session.seed), *_incoming_layouts(call)]
            yield from found
            if found:
                return
        yield from _against_differences(trial, call, first)
        first = False


def _against_differences(trial: Trial, call: Call, all_subsets: bool) -> Iterator[Problem]:
    names = differentiable_names(call)
    for subset in subsets(names) if all_subsets else [set(names)]:
        found = _checked(trial, call, subset, order=1)
        if isinstance(found, Problem):
            yield found
            return
        if found is None:
            continue
        yield from _problems(call, found, subset if len(subset) < len(names) else set())
        if found.failures:
            return


def _checked(
    trial: Trial, call: Call, subset: set[str], order: int
) -> GradCheckReport | Problem | None:
    """Run gradcheck: a report, what the operator raised, or None if nothing can be concluded."""
    given = with_gradients(call.fresh(), subset)
    with quietly():
        try:
            report = gradcheck(
                functional_form(call),
                given.args,
                given.kwargs,
                order=order,
                full=None if call.kind == "given" or call.size <= DIRECTIONS else False,
                directions=DIRECTIONS,
                seed=trial.session.seed,
                raise_exception=False,
            )
        except Exception as error:
            if not _from_backward(error):
                raise
            return Problem(
                call, "gradient", "the rule raises", got=user_traceback(error),
                facet=GRADIENT, cause=error,
            )  # fmt: skip
    if report.status == "skipped":
        note = f"{trial.check.name} is inconclusive for {call.label}: {report.reason:.100}"
        if report.reason not in ("no elements", "no float or complex result"):
            trial.session.notes.append(note)
        trial.inconclusive.append(report.reason)
        return None
    return report


def _from_backward(error: Exception) -> bool:
    """Return whether an exception comes from a gradient rule, or from the engine checking it."""
    notes = getattr(error, "__notes__", [])
    return isinstance(error, AutogradError) or any("in the backward of" in note for note in notes)


def _problems(call: Call, report: GradCheckReport, subset: set[str]) -> Iterator[Problem]:
    only = f" (only {' and '.join(sorted(subset))} needing a gradient)" if subset else ""
    for failure in report.failures:
        if failure.message:
            yield Problem(call, "", failure.message + only, advice=failure.hint, facet=GRADIENT)
            continue
        yield Problem(
            call,
            f"gradient of {failure.input} through {failure.result}{only}",
            f"{failure.wrong} of {failure.total} entries disagree with differences",
            f"{failure.numeric:.9g} ± {failure.error:.1g}",
            f"{failure.analytic:.9g}",
            failure.hint,
            GRADIENT,
        )


# ---------------------------------------------------------------------- other variations


def _gradients(call: Call, seeds: list[Array] | None = None) -> Callable[[], list[Array | None]]:
    """Record a call; return what runs its backward."""
    given = with_gradients(call.fresh(), set(differentiable_names(call)))
    inputs = [t for _, t in given.inexact if t.requires_grad]
    results = [
        t
        for t in inexact_results(functional_form(call)(*given.args, **given.kwargs))
        if t.requires_grad
    ]

    def backward() -> list[Array | None]:
        if not results:
            return []
        incoming = [ones_like(t) for t in results]
        found = grad(results, _distinct(inputs), incoming, allow_unused=True)
        return [None if g is None else g.array for g in found]

    return backward


def _distinct(tensors: list[Tensor]) -> list[Tensor]:
    return list({id(t): t for t in tensors}.values())


def _one_forward_at_a_time(call: Call, seed: int) -> Iterator[Problem]:
    """Run another forward before the backward: what a rule reads must be saved per call."""
    other = redrawn(call, np.random.default_rng(seed))
    with quietly():
        try:
            expected = _gradients(call)()
            waiting = _gradients(call)
            other.fresh().run()
            _gradients(other)
            got = waiting()
        except Exception:  # an invalid second call, or an error the comparison reports
            return
    found = _first_mismatch(got, expected)
    if found:
        yield Problem(
            call,
            "gradient",
            "another forward before the backward changes it",
            *found,
            "save per call: name what the rule needs, or use ctx; no globals",
            GRADIENT,
        )


def _first_mismatch(
    got: list[Array | None], expected: list[Array | None]
) -> tuple[str, str] | None:
    for a, e in zip(got, expected, strict=True):
        if (a is None) != (e is None):
            return str(e), str(a)
        if a is not None and e is not None:
            mismatch = compare_arrays(a, e, rtol=1e-7, atol=1e-9)
            if mismatch is not None:
                return mismatch.expected, mismatch.got
    return None


def _incoming_layouts(call: Call) -> Iterator[Problem]:
    """Give the rule equal incoming gradients laid out in every way, read-only ones included."""
    expected = None
    for label in ("", "last axes transposed", "reversed", "every other element", "read-only"):
        with quietly():
            try:
                got = _with_layout(call, label)
            except Exception as error:  # the rule's own, which a plain gradient does not raise
                if expected is None:
                    return
                yield Problem(
                    call, "gradient", f"fails for an incoming gradient that is {label}",
                    got=user_traceback(error), facet=GRADIENT,
                    advice="compute out of place, and for every layout",
                )  # fmt: skip
                return
        expected = got if expected is None else expected
        found = _first_mismatch(got, expected)
        if found:
            yield Problem(
                call,
                "gradient",
                f"depends on the layout of the incoming gradient: wrong for one that is {label}",
                *found,
                "index it by position, not by memory: no ravel('K'), no flat buffer",
                GRADIENT,
            )
            return


def _with_layout(call: Call, label: str) -> list[Array | None]:
    """Return the gradients for random incoming gradients laid out one way."""
    rng = np.random.default_rng(0)
    given = with_gradients(call.fresh(), set(differentiable_names(call)))
    inputs = _distinct([t for _, t in given.inexact if t.requires_grad])
    made = inexact_results(functional_form(call)(*given.args, **given.kwargs))
    results = _distinct([t for t in made if t.requires_grad])
    if not results:
        return []
    for result in results:
        values = rng.standard_normal(result.shape).astype(result.dtype)
        incoming = tensor_from_array(LAYOUTS[label](values) if label else values)
        result.register_hook(functools.partial(_replacement, incoming))
    found = grad(results, inputs, [ones_like(t) for t in results], allow_unused=True)
    return [None if g is None else g.array for g in found]


def _replacement(incoming: Tensor, _: Tensor) -> Tensor:
    """Return the gradient that a hook puts in place of the one it is given."""
    return incoming


GRADIENT_CHECK: Final = Check("gradient", ("given", "size", "option"), _gradient, _unable)


# ---------------------------------------------------------------------- second gradient


def _second_unable(session: Session) -> str:
    reason = _unable(session)
    op = session.subject.op
    if not reason and op is not None and not has_rule(op):
        return "no gradient rule"
    return reason


def _second(trial: Trial) -> Iterator[Problem]:
    for call in _calls(trial):
        found = _checked(trial, call, set(differentiable_names(call)), order=2)
        if isinstance(found, Problem):
            yield found
        elif found is not None:
            yield from _problems(call, found, set())


SECOND_GRADIENT: Final = Check(
    "second_gradient", ("given", "size", "option"), _second, _second_unable
)
