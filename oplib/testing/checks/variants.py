"""Checks ``layout``, ``arguments``, ``providers``, ``threads``, ``pickle``: one call in other ways.

Each runs samples differently and compares with the plain run: from other memory, with options given
or left out, by another kernel, in eight threads, through a copy of the operator.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

import numpy as np

from ..._text import is_internal_file
from ...errors import CaptureError, FakeTensorError, OplibError
from ...program import capture
from ...tensor.tensor import Tensor, tensor_from_array
from ..calls import Call, Outcome, quietly, user_traceback
from ..sampling import redrawn
from ..session import Check, Problem, Session, Trial, unrepeatable

__all__ = ["ARGUMENTS", "LAYOUT", "PICKLE", "PROVIDERS", "THREADS"]

THREAD_COUNT: Final = 8
CALLS: Final = 25
"""How often each thread calls."""


def _observed(outcome: Outcome) -> list[tuple[str, Any]]:
    """Return results, and what written arguments hold now."""
    written = [(f"argument `{name}`", t) for name, t in outcome.call.written()]
    return [*outcome.leaves, *written]


def _compared(
    trial: Trial, call: Call, got: Outcome, expected: Outcome, problem: str, advice: str
) -> Iterator[Problem]:
    """Yield the first difference between two runs that should agree."""
    if expected.error is not None:
        return
    if got.error is not None:
        yield Problem(call, "", f"{problem}: it raises", "a result", user_traceback(got.error))
        return
    found = trial.session.mismatch(
        trial.check.name, got, expected, _observed(got), _observed(expected)
    )
    if found is not None:
        name, how = found
        yield Problem(call, name, problem, how.expected, how.got, advice)


# ---------------------------------------------------------------------- layout


def _layout(trial: Trial) -> Iterator[Problem]:
    for call in trial.calls():
        made: dict[int, Tensor] = {}

        def dense(leaf: Any, made: dict[int, Tensor] = made) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return made.setdefault(id(leaf), tensor_from_array(leaf.array.copy(order="C")))

        plain = call.mapped(dense).run()
        problem = "depends on how the arguments lie in memory"
        advice = "index by position: no ravel('K'), no flat buffers, no writes to out.ravel()"
        yield from _compared(trial, call, call.fresh().run(), plain, problem, advice)


def _layout_unable(session: Session) -> str:
    if not any(t.ndim for call in session.samples for _, t in call.tensors):
        return "no argument with axes"
    return unrepeatable(session)


LAYOUT: Final = Check("layout", ("layout",), _layout, _layout_unable)


# ---------------------------------------------------------------------- arguments

ABSENT: Final = (" = None", " = []")
"""How the labels of calls end in which an argument is left empty."""


def _arguments(trial: Trial) -> Iterator[Problem]:
    for _ in trial.calls():
        pass  # a sample is a call that works
    for refusal in trial.session.refused:
        if not refusal.call.label.endswith(ABSENT):
            continue
        trial.run += 1
        assert refusal.error is not None
        if not _is_clean(refusal.error):
            name, _, value = refusal.call.label.partition(" = ")
            yield Problem(
                refusal.call,
                f"argument `{name}`",
                f"the kernel fails for {value}, which the schema allows",
                "a result, or an error that the kernel raises itself",
                user_traceback(refusal.error),
                f"handle {value}, or refuse it: raise ValueError(...)",
            )


def _is_clean(error: BaseException) -> bool:
    """Return whether an exception is a refusal: oplib's, or of a ``raise`` outside NumPy."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    raised = (last.line or "").startswith("raise") and "numpy" not in last.filename
    return raised or isinstance(error, OplibError)


def _arguments_unable(session: Session) -> str:
    calls = [*session.samples, *(refusal.call for refusal in session.refused)]
    some = any(call.kind == "option" for call in calls)
    return "" if some else "no option to give or leave out"


ARGUMENTS: Final = Check("arguments", ("option",), _arguments, _arguments_unable)


# ---------------------------------------------------------------------- providers


def _providers(trial: Trial) -> Iterator[Problem]:
    op = trial.subject.op
    assert op is not None
    names = dict.fromkeys(r.provider for key in op.kernels for r in op.entries(key))
    for call in trial.calls():
        plain = call.fresh().run()
        for provider in names:
            with op.prefer(provider):
                got = call.fresh().run()
            problem = f"provider {provider!r} gives something else"
            yield from _compared(trial, call, got, plain, problem, "compare its kernel")


def _providers_unable(session: Session) -> str:
    op = session.subject.op
    assert op is not None
    several = any(len(op.entries(key)) > 1 for key in op.kernels)
    return unrepeatable(session) if several else "one kernel per backend"


PROVIDERS: Final = Check("providers", ("given", "size", "dtype"), _providers, _providers_unable)


# ---------------------------------------------------------------------- threads


def _threads(trial: Trial) -> Iterator[Problem]:
    rng = np.random.default_rng(trial.session.seed)
    for call in trial.calls():
        calls = [redrawn(call, rng) for _ in range(THREAD_COUNT)]
        serial = [each.fresh().run() for each in calls]
        if any(outcome.error is not None for outcome in serial):
            continue
        for number, outcomes in enumerate(_at_once(calls)):
            for outcome in outcomes:
                found = list(
                    _compared(
                        trial,
                        calls[number],
                        outcome,
                        serial[number],
                        f"differs when {THREAD_COUNT} threads call at once",
                        "keep nothing between calls, or guard it with a lock",
                    )
                )
                if found:
                    yield found[0]
                    return


def _at_once(calls: list[Call]) -> list[list[Outcome]]:
    """Run every call several times, each in a thread of its own, switching as often as possible."""
    copies = [[call.fresh() for _ in range(CALLS)] for call in calls]
    done: list[list[Outcome]] = [[] for _ in calls]
    barrier = threading.Barrier(len(calls))

    def work(number: int) -> None:
        sys.settrace(_give_way)
        barrier.wait()
        for call in copies[number]:
            with np.errstate(all="ignore"):
                done[number].append(call.run_loudly())

    workers = [threading.Thread(target=work, args=(n,)) for n in range(len(calls))]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with quietly():
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
    finally:
        sys.setswitchinterval(interval)
    return done


def _give_way(frame: FrameType, event: str, argument: Any) -> Any:
    """Let another thread run before every line of the user's code."""
    if is_internal_file(frame.f_code.co_filename):
        return None
    time.sleep(1e-6)
    return _give_way


THREADS: Final = Check("threads", ("given",), _threads, unrepeatable)


# ---------------------------------------------------------------------- pickle

COPIES: Final[dict[str, Callable[[Any], Any]]] = {
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def _pickle(trial: Trial) -> Iterator[Problem]:
    op = trial.subject.op
    assert op is not None
    for call in trial.calls():
        things = {"the operator": op, "the packet": op.packet, "the schema": op.schema}
        with contextlib.suppress(CaptureError, FakeTensorError):  # other checks say why
            given = call.fresh()
            with quietly():
                things["a captured program"] = capture(op, *given.args, **given.kwargs)
        for what, thing in things.items():
            for how, copied in COPIES.items():
                yield from _survives(trial, call, what, thing, how, copied)


def _survives(
    trial: Trial, call: Call, what: str, thing: Any, how: str, copied: Callable[[Any], Any]
) -> Iterator[Problem]:
    try:
        twin = copied(thing)
        if what == "a captured program":
            given, again = call.fresh(), call.fresh()
            with quietly():
                try:
                    expected = Outcome(given, thing(*given.args, **given.kwargs))
                except Exception:  # then the copy need not run either
                    return
                got = Outcome(again, twin(*again.args, **again.kwargs))
            yield from _compared(trial, call, got, expected, f"{what} changes in {how}", "")
        elif twin is not thing and (what != "the schema" or twin != thing):
            yield Problem(call, what, f"is another one after {how}", repr(thing), repr(twin))
    except Exception as error:  # whatever it raises, there is no copy that runs
        problem = f"does not survive {how}"
        yield Problem(call, what, problem, got=user_traceback(error), cause=error)


PICKLE: Final = Check("pickle", ("given",), _pickle, unrepeatable)
