"""Checks ``gradient`` and ``second_gradient``: derivatives against differences, in all variations.

Varied are the arguments that need a gradient, the layout of incoming gradients, and whether another
forward runs before the backward. A mutating operator is checked as the function from old values to
new ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any, Final

import numpy as np

from ..._tree import leaves, tree_map
from ...autograd.general_grad import grad
from ...dispatch.facets import GRADIENT
from ...dispatch.keys import AUTOGRAD_KEY, COMPOSITE_IMPLICIT
from ...dispatch.operator import Operator
from ...dtypes import is_inexact
from ...errors import AutogradError
from ...prims import clone
from ...tensor.tensor import Tensor, tensor_from_array
from ..calls import Call, quietly, user_traceback
from ..compare import Array, compare_arrays
from ..gradcheck import gradcheck
from ..problem import inexact_results, upcast_dtype
from ..report import GradCheckReport
from ..sampling import LAYOUTS, redrawn
from ..session import Check, Problem, Session, Trial

__all__ = [
    "GRADIENT_CHECK",
    "SECOND_GRADIENT",
    "differentiable_names",
    "doubled",
    "functional_form",
    "has_rule",
    "in_domain",
    "ones_like",
    "subsets",
    "with_gradients",
]


def has_rule(op: Operator[..., Any]) -> bool:
    """Return whether gradients flow: by a rule, a decomposition, or the geometry of a view."""
    return bool(
        op.gradient_rule is not None
        or op.entries(COMPOSITE_IMPLICIT)
        or op.entries(AUTOGRAD_KEY)
        or op.schema.is_view
    )


def differentiable_names(call: Call) -> list[str]:
    """Return the inexact arguments of a call, without those declared non-differentiable."""
    op = call.subject.op
    rule = op.gradient_rule if op is not None else None
    none = set()
    if rule is not None and rule.style == "per_argument":
        none = {name for name, function in rule.functions.items() if function is None}
    names = [name for name, _ in call.inexact if name.partition("[")[0] not in none]
    return list(dict.fromkeys(names))


def ones_like(like: Tensor) -> Tensor:
    """Return an incoming gradient of ones."""
    return tensor_from_array(np.ones(like.shape, like.dtype))


def with_gradients(call: Call, names: set[str]) -> Call:
    """Set `requires_grad` on the named tensors of a call on copies."""
    for name, tensor in call.inexact:
        if name in names and not tensor.requires_grad:
            tensor.requires_grad_()
    return call


def doubled(call: Call) -> Call:
    """Return the call in double precision, or as it is if the operator refuses that."""
    made: dict[int, Tensor] = {}

    def double(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not is_inexact(leaf.dtype):
            return leaf
        dtype = upcast_dtype(leaf.dtype)
        if dtype == leaf.dtype:
            return leaf
        return made.setdefault(id(leaf), tensor_from_array(leaf.array.astype(dtype, order="K")))

    doubled = call.mapped(double)
    return doubled if not made or doubled.fresh().run().error is None else call


DOMAINS: Final[tuple[Callable[[Array], Array], ...]] = (
    np.abs,
    lambda x: np.asarray(x / (1 + np.abs(x))),
    lambda x: np.asarray(1 + np.abs(x)),
)
"""Ways to move values to where functions such as log, arcsin and arccosh are defined."""


def in_domain(call: Call) -> Call:
    """Return the call, or one with its real values moved to where the results are finite."""
    if _finite(call):
        return call
    for change in DOMAINS:

        def moved(leaf: Any, change: Any = change) -> Any:
            if not isinstance(leaf, Tensor) or leaf.dtype.kind != "f":
                return leaf
            return tensor_from_array(change(leaf.array))

        other = call.mapped(moved, f"{call.label}, other values")
        if _finite(other):
            return other
    return call


def _finite(call: Call) -> bool:
    outcome = call.fresh().run()
    return outcome.error is None and all(np.isfinite(a).all() for _, a in outcome.arrays)


def subsets(names: list[str]) -> Iterator[set[str]]:
    """Yield the subsets of arguments that need a gradient: all up to 4, else the telling ones."""
    if len(names) <= 4:
        for count in range(len(names), 0, -1):
            yield from map(set, combinations(names, count))
        return
    yield set(names)
    yield from ({name} for name in names)
    yield from (set(names) - {name} for name in names)


def functional_form(call: Call) -> Callable[..., Any]:
    """Return the subject as a function of its arguments: old values in, new values out."""
    subject, schema = call.subject, call.subject.schema
    if schema is None or not schema.is_mutable:
        return subject.function

    @functools.wraps(subject.function)
    def functional(*args: Any, **kwargs: Any) -> Any:
        called = Call(subject, args, kwargs)
        copies = {id(t): clone(t) for _, t in called.written()}
        args, kwargs = tree_map(lambda leaf: copies.get(id(leaf), leaf), (args, kwargs))
        result = subject.function(*args, **kwargs)
        fresh = [t for t in leaves(result) if not any(t is c for c in copies.values())]
        return [*copies.values(), *fresh]

    count = len(schema.mutated_arguments)
    names = [f"the new value of `{name}`" for name in schema.mutated_arguments]
    functional.result_name = lambda i: names[i] if i < count else f"result {i - count}"  # type: ignore[attr-defined]
    return functional


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
    if calls and all(call.is_random for call in calls):
        return "random, and no generator is given"
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
            yield Problem(call, f"argument `{change.where}`", "was written before the call raised")


# ---------------------------------------------------------------------- samples


def _calls(trial: Trial) -> Iterator[Call]:
    """Yield the samples for derivatives: the caller's and a spread of small finite ones."""
    usable = [
        call
        for call in trial.calls()
        if differentiable_names(call)
        and not call.is_random
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
            if _is_refusal(call, error):
                trial.inconclusive.append(str(error).partition("\n")[0])
                return None
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


def _is_refusal(call: Call, error: Exception) -> bool:
    """Return whether a rule says by name that a call has no gradient; the engine's words do not."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    raised_in = "" if frame is None else frame.tb_frame.f_globals.get("__name__", "")
    own = not raised_in.startswith("oplib.autograd")
    return isinstance(error, AutogradError) and own and call.subject.name in str(error)


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


def _recorded(call: Call, layout: str = "") -> Callable[[], list[Array | None]]:
    """Record a call; return what runs its backward with random gradients laid out one way."""
    rng = np.random.default_rng(0)
    given = with_gradients(call.fresh(), set(differentiable_names(call)))
    inputs = _distinct([t for _, t in given.inexact if t.requires_grad])
    made = inexact_results(functional_form(call)(*given.args, **given.kwargs))
    results = _distinct([t for t in made if t.requires_grad])
    for result in results:
        values = rng.standard_normal(result.shape).astype(result.dtype)
        incoming = tensor_from_array(LAYOUTS[layout](values) if layout else values)
        result.register_hook(functools.partial(_replacement, incoming))

    def backward() -> list[Array | None]:
        if not results:
            return []
        found = grad(results, inputs, [ones_like(t) for t in results], allow_unused=True)
        return [None if g is None else g.array for g in found]

    return backward


def _distinct(tensors: list[Tensor]) -> list[Tensor]:
    return list({id(t): t for t in tensors}.values())


def _one_forward_at_a_time(call: Call, seed: int) -> Iterator[Problem]:
    """Run another forward before the backward: what a rule reads must be saved per call."""
    other = redrawn(call, np.random.default_rng(seed))
    with quietly():
        try:
            expected = _recorded(call)()
            waiting = _recorded(call)
            other.fresh().run()
            _recorded(other)
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
                got = _recorded(call, label)()
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
