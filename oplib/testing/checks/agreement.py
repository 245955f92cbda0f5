"""Checks ``layout``, ``arguments``, ``providers``, ``threads``, ``pickle``: the same, otherwise.

An operator computes the same values whatever the strides of its arguments, whichever kernel serves
it, in however many threads, and after it was pickled; what it does not take it refuses by name.

Imports floors 0 to 7, `calls.py`, `session.py`, `fake.py`, `functional.py`.
"""

from __future__ import annotations

import copy
import itertools
import linecache
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ..._tree import tree_map
from ...dispatch.keys import META
from ...dispatch.plan import resolve
from ...errors import CaptureError, DataDependentError, FakeTensorError, OplibError
from ...functionalize.views import ABSOLUTE
from ...program import capture
from ...schema import parse
from ...schema.types import ListType, OptionalType
from ...tensor.tensor import Tensor, tensor_from_array
from ..calls import Call, Outcome, quietly, user_traceback
from ..compare import compare_arrays
from ..session import Check, Problem, Session, Trial, blames_result
from .fake import predicts
from .functional import scenarios

__all__ = ["ARGUMENTS", "LAYOUT", "PICKLE", "PROVIDERS", "THREADS"]


def _unrepeatable(session: Session) -> str:
    op = session.subject.op
    if op is not None and "nondeterministic" in op.tags:
        return "tagged nondeterministic"
    random = bool(session.samples) and all(call.is_random for call in session.samples)
    return "random, and no generator is given" if random else ""


def _differs(trial: Trial, call: Call, got: Outcome, want: Outcome, what: str) -> Iterator[Problem]:
    """Yield how two outcomes of one call differ: in an exception, a result, or what was written."""
    if got.error is not None or want.error is not None:
        if got.error is None or want.error is None:
            error = got.error or want.error
            assert error is not None
            if blames_result(error):
                return  # memory shared undeclared, or the reverse, is the business of `alias`
            yield Problem(call, "", f"raises {what}, not otherwise", "", user_traceback(error))
        return
    found = trial.session.mismatch(trial.check.name, got, want)
    if found is not None:
        name, mismatch = found
        yield Problem(
            call, name, f"differs {what}", mismatch.expected, mismatch.got, mismatch.detail
        )
        return
    for (name, a), (_, b) in zip(got.call.written(), want.call.written(), strict=True):
        difference = compare_arrays(a.array, b.array, rtol=trial.session.rtol)
        if difference is not None:
            what = f"what is written differs {what}"
            yield Problem(call, name, what, difference.expected, difference.got)
            return


# ---------------------------------------------------------------------- strides


def _layout(trial: Trial) -> Iterator[Problem]:
    op = trial.subject.op
    for call in trial.calls():
        plain = _in_c_order(call)
        want = plain.fresh().run()
        if want.error is None and not _repeats(trial, plain, want):
            continue
        yield from _differs(trial, call, call.fresh().run(), want, "with these strides")
        if op is not None and resolve(op, META).kind != "missing" and not any(predicts(plain)):
            yield from predicts(call)


def _repeats(trial: Trial, call: Call, first: Outcome) -> bool:
    """Return whether a call gives the same again; if not, other checks say so."""
    return not any(_differs(trial, call, call.fresh().run(), first, "the second time"))


def _in_c_order(call: Call) -> Call:
    """Return the call with every tensor in C order; one tensor stays one."""
    made: dict[int, Tensor] = {}

    def plain(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not isinstance(leaf.array, np.ndarray):
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = tensor_from_array(leaf.array.copy(order="C"))
        return made[id(leaf)]

    args, kwargs = tree_map(plain, (call.args, dict(call.kwargs)))
    return replace(call, args=args, kwargs=kwargs)


def _layout_unable(session: Session) -> str:
    if not any(call.kind == "layout" for call in session.samples):
        return "no sample with other strides"
    if session.subject.op is not None and ABSOLUTE in session.subject.op.tags:
        return "it addresses the storage, so its results depend on strides"
    return _unrepeatable(session)


LAYOUT: Final = Check("layout", ("layout",), _layout, _layout_unable)


# ---------------------------------------------------------------------- arguments left out


def _arguments(trial: Trial) -> Iterator[Problem]:
    for call in trial.calls():
        yield from _one_for_all(trial, call)
    for refusal in trial.session.refused:
        absent = refusal.call.label.endswith(("= None", "= []"))
        if refusal.call.kind != "option" or not absent:
            continue
        trial.run += 1
        if refusal.error is not None and not _is_clean(refusal.error):
            yield Problem(
                refusal.call,
                refusal.call.label.partition(" ")[0],
                "crashes instead of working or being refused",
                "results, or an error that names the argument",
                user_traceback(refusal.error),
                "check for it before using it",
                cause=refusal.error,
            )


def _is_clean(error: Exception) -> bool:
    """Return whether an error was raised on purpose: by oplib, or by a ``raise`` in the kernel."""
    if isinstance(error, OplibError):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    line = linecache.getline(frames[-1].filename, frames[-1].lineno or 0) if frames else ""
    return line.strip().startswith(("raise", "assert"))


def _one_for_all(trial: Trial, call: Call) -> Iterator[Problem]:
    """Yield where one value for ``int[2]`` is not the same as two equal ones."""
    schema = trial.subject.schema
    assert schema is not None
    for name, value in call.named:
        kind = schema.argument(name).type
        kind = kind.element if isinstance(kind, OptionalType) else kind
        sized = isinstance(kind, ListType) and kind.size and isinstance(value, list | tuple)
        if not sized or len(set(map(repr, value))) != 1 or isinstance(value[0], Tensor):
            continue
        several, one = _with(call, name, [*value]), _with(call, name, value[0])
        how = f"with one value for `{name}`"
        yield from _differs(trial, call, one.fresh().run(), several.fresh().run(), how)


def _with(call: Call, name: str, value: Any) -> Call:
    names = [each for each, _ in call.named[: len(call.args)]]
    if name not in names:
        return replace(call, kwargs={**call.kwargs, name: value})
    place = names.index(name)
    return replace(call, args=(*call.args[:place], value, *call.args[place + 1 :]))


ARGUMENTS: Final = Check("arguments", ("given", "option"), _arguments, needs_samples=False)


# ---------------------------------------------------------------------- other kernels


def _providers(trial: Trial) -> Iterator[Problem]:
    op = trial.subject.op
    assert op is not None
    names = _provider_names(trial.session)
    for call in trial.calls():
        want = call.fresh().run()
        for name in names[1:]:
            with op.prefer(name):
                got = call.fresh().run()
            yield from _differs(trial, call, got, want, f"when provider {name!r} computes it")


def _provider_names(session: Session) -> list[str]:
    """Return the providers of kernels on NumPy arrays, the default choice first."""
    op = session.subject.op
    return [] if op is None else list(dict.fromkeys(r.provider for r in op.entries("CPU")))


def _providers_unable(session: Session) -> str:
    if len(_provider_names(session)) < 2:
        return "one kernel serves every call"
    return _unrepeatable(session)


PROVIDERS: Final = Check(
    "providers", ("given", "size", "option", "layout"), _providers, _providers_unable
)


# ---------------------------------------------------------------------- threads

_THREADS: Final = 8
_CALLS: Final = 25
_SECONDS: Final = 2.0
_SWITCH: Final = 1e-5
"""Seconds between thread switches while threads are checked: 500 times as many as usual."""


def _threads(trial: Trial) -> Iterator[Problem]:
    pairs = [(call, call.fresh().run()) for call in itertools.islice(trial.calls(), _THREADS)]
    pairs = [(call, want) for call, want in pairs if _repeats(trial, call, want)]
    if not pairs:
        return
    found: list[Problem] = []
    start = threading.Barrier(_THREADS)
    deadline = time.monotonic() + _SECONDS

    def work(index: int) -> None:
        start.wait()
        for turn in range(_CALLS):
            call, want = pairs[(index + turn) % len(pairs)]
            got = call.fresh().run()
            found.extend(_differs(trial, call, got, want, "while threads run it"))
            if found or time.monotonic() > deadline:
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH)
    try:
        with quietly():
            workers = [threading.Thread(target=work, args=(i,)) for i in range(_THREADS)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
    finally:
        sys.setswitchinterval(interval)
    yield from found[:1]


THREADS: Final = Check("threads", ("given", "values"), _threads, _unrepeatable)


# ---------------------------------------------------------------------- pickle


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


_WAYS: Final[tuple[Callable[[Any], Any], ...]] = (_pickled, copy.copy, copy.deepcopy)


def _pickle(trial: Trial) -> Iterator[Problem]:
    op = trial.subject.op
    assert op is not None
    for call in trial.calls():
        for through in _WAYS:
            yield from _survives(call, "the operator", op, through)
            yield from _survives(call, "the schema", op.schema, through)
        yield from _survives(call, "the schema", op.schema, lambda schema: parse(str(schema)))
        program = _captured(call)
        if program is not None:
            text = str(program.graph)
            for through in _WAYS:
                yield from _survives(call, "a captured program", program, through, text)


def _survives(
    call: Call, what: str, value: Any, through: Callable[[Any], Any], text: str = ""
) -> Iterator[Problem]:
    """Yield that a value does not come back; a program is recognized by the `text` of its graph."""
    how = through.__name__.strip("_<>")
    try:
        again = through(value)
    except Exception as error:  # whatever it is, it did not survive
        yield Problem(call, what, f"{how} raises", str(value), user_traceback(error))
        return
    if (str(again.graph) != text) if text else again != value:
        yield Problem(call, what, f"{how} makes another", str(value), str(again))


def _captured(call: Call) -> Any:
    """Return the program of the call, or None where it has no graph."""
    scenario = next(scenarios(call.fresh()))
    try:
        with quietly():
            return capture(scenario.function, *scenario.inputs)
    except (CaptureError, FakeTensorError, DataDependentError):
        return None


PICKLE: Final = Check("pickle", ("given",), _pickle)
