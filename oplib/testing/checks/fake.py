"""Checks ``fake`` and ``dtypes``: the fake rule predicts every result without data.

Structure, shape, dtype, device, strides, offset, and which memory a result lies in are compared
with a real run on every sample; refusals must agree both ways.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ..._dims import SymInt
from ..._text import short_repr
from ..._tree import flatten, leaves, tree_map
from ...dispatch.facets import FAKE
from ...dispatch.keys import META
from ...dispatch.plan import resolve
from ...errors import DataDependentError, OplibError
from ...meta import FakeTensorMode
from ...tensor.tensor import Tensor
from ..calls import Call, Outcome, user_traceback
from ..compare import Mismatch
from ..memory import address_of, overlap
from ..session import Check, Problem, Session, Trial

__all__ = [
    "DTYPES_CHECK",
    "FAKE_CHECK",
    "agrees",
    "first_difference",
    "predict",
    "predicts",
    "shown",
]


def predict(call: Call) -> Outcome:
    """Run the fake rule on fakes of a call."""
    mode = FakeTensorMode(allow_real=True, dynamic=True)

    def faked(leaf: Any) -> Any:
        return mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf

    fakes = call.mapped(faked)
    with mode:
        return fakes.run()


# ---------------------------------------------------------------------- comparison


def first_difference(real: Outcome, fake: Outcome) -> Mismatch | None:
    """Return where, what, expected, got, advice of the first wrong prediction."""
    for index, (r, f) in enumerate(zip(real.results, fake.results, strict=True)):
        name = real.call.subject.result_name(index)
        (flat, structure), (predicted, predicted_structure) = flatten(r), flatten(f)
        if structure != predicted_structure:
            return Mismatch(
                name, "structure", str(shown(r)), str(shown(f)), detail="return one fake per tensor"
            )
        for position, (a, b) in enumerate(zip(flat, predicted, strict=True)):
            where = name if len(flat) == 1 else f"{name}, element {position}"
            found = _leaf_difference(real, fake, where, a, b)
            if found is not None:
                return found
    return _alias_difference(real, fake)


def shown(value: Any) -> Any:
    """Return a nested result with its tensors in words."""
    return tree_map(lambda leaf: leaf.describe() if isinstance(leaf, Tensor) else leaf, value)


def _leaf_difference(real: Outcome, fake: Outcome, where: str, a: Any, b: Any) -> Mismatch | None:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        if isinstance(a, Tensor) or isinstance(b, Tensor) or a is None or b is None:
            if a is b:
                return None
            return Mismatch(where, "kind of result", str(shown(a)), str(shown(b)))
        if type(a) is type(b) and a != b and not (a != a and b != b):
            return Mismatch(where, "value", repr(a), repr(b))
        return None
    if len(a.shape) != len(b.shape) or not all(map(_covers, b.shape, a.shape)):
        return Mismatch(where, "shape", str(a.shape), str(tuple(b.shape)), detail=_shape_advice(b))
    if a.dtype != b.dtype:
        return Mismatch(
            where,
            "dtype",
            str(a.dtype),
            str(b.dtype),
            detail="the kernel's dtype is what callers get",
        )
    if a.device != b.device:
        return Mismatch(where, "device", str(a.device), str(b.device))
    return _stride_difference(real, where, a, b)


def _covers(predicted: Any, actual: int) -> bool:
    """Return whether a predicted size allows the real one: equal, or within its bounds."""
    if not isinstance(predicted, SymInt):
        return bool(predicted == actual)
    low, high = predicted.facts.bounds(predicted)
    return bool(low <= actual <= high)


def _shape_advice(b: Tensor) -> str:
    for length in b.shape:
        if isinstance(length, SymInt):
            low, high = length.facts.bounds(length)
            return f"the rule says new_dynamic_size(min={low}, max={high})"
    return "compute shapes from the shapes of the arguments"


def _stride_difference(real: Outcome, where: str, a: Tensor, b: Tensor) -> Mismatch | None:
    if not a.size or any(isinstance(n, SymInt) for n in b.shape):
        return None
    pairs = zip(a.shape, a.strides, b.strides, strict=True)
    if all(n == 1 or s == t for n, s, t in pairs):
        return None
    keeps = any(t.strides == a.strides for _, t in real.call.tensors)
    advice = "the kernel keeps the order of an argument; use oplib.empty_like" if keeps else ""
    return Mismatch(where, "strides", str(a.strides), str(b.strides), detail=advice)


def _alias_difference(real: Outcome, fake: Outcome) -> Mismatch | None:
    """Compare which argument, and which other result, every result shares memory with."""
    arguments = list(zip(real.call.tensors, fake.call.tensors, strict=True))
    predicted = {name: t for name, t in fake.leaves if isinstance(t, Tensor)}
    for name, result in real.leaves:
        if not isinstance(result, Tensor) or not result.size:
            continue
        twin = predicted[name]
        for (argument, a), (_, b) in arguments:
            if (result is a) != (twin is b):
                says = [f"`{argument}` itself", f"not `{argument}`"]
                says = says if result is a else says[::-1]
                return Mismatch(name, "identity", says[0], says[1])
            shares = overlap(result.array, a.array)
            if shares and twin._storage is not b._storage:
                return Mismatch(name, "memory", f"a view of `{argument}`", "memory of its own")
            if not shares and twin._storage is b._storage and result._storage is not a._storage:
                return Mismatch(name, "memory", "memory of its own", f"a view of `{argument}`")
            if shares and a is not result and not _same_offset(result, a, twin, b):
                return Mismatch(name, "offset", f"that of the kernel in `{argument}`", "another")
    return None


def _same_offset(result: Tensor, a: Tensor, twin: Tensor, b: Tensor) -> bool:
    distance = address_of(result.array) - address_of(a.array)
    return bool(twin.array.offset - b.array.offset == distance)


def agrees(call: Call) -> bool:
    """Return whether the fake rule predicts a real run of a call."""
    given = call.fresh()
    predicted = predict(given)
    if predicted.error is not None:
        return False
    real = given.run()
    return real.error is None and first_difference(real, predicted) is None


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
        if refusal.call.kind in ("size", "option") and not _by_value(refusal):
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
    found = first_difference(real, predicted)
    if found is not None:
        yield Problem(
            call, found.where, f"wrong {found.what}", found.expected, found.got, found.detail, FAKE
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


def _repeats(call: Call, first: Outcome) -> Iterator[Problem]:
    """Yield a rule that answers differently the second time, or in another thread."""
    found: list[Outcome] = []
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


def _by_value(refusal: Outcome) -> bool:
    """Return whether values were refused: an index outside an axis, a singular matrix."""
    indices = any(t.dtype.kind in "iu" and t.size for _, t in refusal.call.tensors)
    error = refusal.error
    return isinstance(error, np.linalg.LinAlgError) or (isinstance(error, IndexError) and indices)


def _refuses_too(trial: Trial, refusal: Outcome) -> Iterator[Problem]:
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
            yield from _wrong_dtypes(call, real, predicted)
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
