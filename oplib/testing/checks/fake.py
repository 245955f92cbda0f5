"""Checks ``fake`` and ``dtypes``: the fake rule predicts every result without data.

Structure, shape, dtype, device, strides, offset, and which memory a result lies in are compared
with a real run on every sample; refusals must agree both ways.

Imports floors 0 to 7, `calls.py`, `prediction.py`, `session.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

from ..._dims import SymInt
from ..._text import short_repr
from ..._tree import leaves
from ...dispatch.facets import FAKE
from ...dispatch.keys import META
from ...dispatch.plan import resolve
from ...errors import DataDependentError, OplibError
from ...tensor.tensor import Tensor
from ..calls import Call, Outcome, user_traceback
from ..prediction import Prediction, first_difference, predict, shown
from ..session import Check, Problem, Refusal, Session, Trial

__all__ = ["DTYPES_CHECK", "FAKE_CHECK", "predicts"]


def _unable(session: Session) -> str:
    op = session.subject.op
    assert op is not None
    missing = resolve(op, META).kind == "missing" and op.view_rule is None
    if missing and not op.schema.output_slots:
        return "no fake rule, and no tensor among the results"
    return ""


def _examine(trial: Trial) -> Iterator[Problem]:
    for call in trial.calls():
        yield from predicts(call)
    op = trial.subject.op
    assert op is not None
    if resolve(op, META).kind == "derived":
        return  # the schema is the rule, and says nothing about which shapes fit
    for refusal in trial.session.refused:
        if refusal.call.kind in ("size", "option"):
            yield from _refuses_too(trial, refusal)


# ---------------------------------------------------------------------- one sample


def predicts(call: Call) -> Iterator[Problem]:
    """Yield where the fake rule and the kernel differ on one call."""
    given = call.fresh()
    predicted = predict(given)
    real = given.run()
    if real.error is not None:
        return
    if predicted.error is not None:
        yield _refused(call, predicted.error)
        return
    found = first_difference(real, predicted.outcome)
    if found is not None:
        yield Problem(
            call, found.where, f"wrong {found.what}", found.expected, found.got, found.advice, FAKE
        )
    else:
        yield from _repeats(call, predicted)


def _refused(call: Call, error: Exception) -> Problem:
    if isinstance(error, DataDependentError):
        what, advice = "the rule reads a value", "a rule sees shapes and dtypes only"
    elif isinstance(error, OplibError) and "has no fake rule" in str(error):
        return Problem(call, "", str(error), facet=FAKE)
    else:
        what, advice = "the rule raises where the kernel works", "accept what the kernel accepts"
    return Problem(call, "", what, "a prediction", user_traceback(error), advice, FAKE)


def _repeats(call: Call, first: Prediction) -> Iterator[Problem]:
    """Yield a rule that answers differently the second time, or in another thread."""
    found: list[Prediction] = []
    thread = threading.Thread(target=lambda: found.append(predict(call)))
    thread.start()
    thread.join()
    for again, when in ((predict(call), "the second time"), (found[0], "in another thread")):
        if again.error is not None or _form(again.result) != _form(first.result):
            got = str(again.error) if again.error is not None else str(_form(again.result))
            what = f"answers differently {when}"
            yield Problem(call, "", what, str(_form(first.result)), got, facet=FAKE)
            return


def _form(result: Any) -> list[Any]:
    """Return what a prediction says, apart from sizes that are unknown."""
    flat = leaves(result)
    return [
        (t.dtype, *("?" if isinstance(n, SymInt) else n for n in t.shape))
        if isinstance(t, Tensor)
        else short_repr(t)
        for t in flat
    ]


# ---------------------------------------------------------------------- refusals


def _refuses_too(trial: Trial, refusal: Refusal) -> Iterator[Problem]:
    """Yield a call that the kernel refuses whatever its values are, and the rule accepts."""
    call = refusal.call
    predicted = predict(call.fresh())
    trial.run += 1
    if predicted.error is None:
        yield Problem(
            call,
            "",
            "the rule accepts a call that the kernel refuses",
            f"{type(refusal.error).__name__}: {refusal.error}".partition("\n")[0],
            str(shown(predicted.result)),
            "raise in the rule where the kernel raises",
            FAKE,
        )


FAKE_CHECK: Final = Check("fake", ("given", "size", "option"), _examine, _unable)


# ---------------------------------------------------------------------- other dtypes


def _dtypes(trial: Trial) -> Iterator[Problem]:
    """Compare the dtypes of results; shapes and the like are the business of ``fake``."""
    for call in trial.calls():
        given = call.fresh()
        predicted, real = predict(given), given.run()
        if predicted.error is None and real.error is None:
            yield from _wrong_dtypes(call, real, predicted.outcome)
    for refusal in trial.session.refused:
        if refusal.call.kind == "dtype" and predict(refusal.call.fresh()).error is None:
            trial.session.notes.append(
                f"the kernel refuses what the fake rule accepts: {refusal.call.label}"
            )


def _wrong_dtypes(call: Call, real: Outcome, fake: Outcome) -> Iterator[Problem]:
    predicted = dict(fake.leaves)
    for name, result in real.leaves:
        twin = predicted.get(name)
        if not isinstance(result, Tensor) or not isinstance(twin, Tensor):
            continue
        if result.dtype != twin.dtype:
            advice = "the kernel's dtype is what callers get"
            yield Problem(
                call, name, "wrong dtype", str(result.dtype), str(twin.dtype), advice, FAKE
            )
            return


def _dtypes_unable(session: Session) -> str:
    reason = _unable(session)
    if reason:
        return reason
    return "" if any(call.inexact for call in session.samples) else "no inexact tensor argument"


DTYPES_CHECK: Final = Check("dtypes", ("dtype",), _dtypes, _dtypes_unable)
