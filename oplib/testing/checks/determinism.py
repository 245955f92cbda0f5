"""Check ``determinism``: equal inputs give equal bytes, and nothing ambient changes."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ... import _state
from ...dispatch.tags import RANDOM
from ...dtypes import is_inexact
from ...tensor.tensor import Tensor, tensor_from_array
from ..calls import Call, Outcome, user_traceback
from ..compare import Array, same_bytes
from ..sampling import redrawn
from ..session import Check, Problem, Session, Trial

__all__ = ["DETERMINISM"]


def _unable(session: Session) -> str:
    op = session.subject.op
    if op is None:
        return ""
    if "nondeterministic" in op.tags:
        return "tagged nondeterministic"
    random = all(call.is_random for call in session.samples)
    return "random, and no generator is given" if random else ""


def _examine(trial: Trial) -> Iterator[Problem]:
    rng = np.random.default_rng(trial.session.seed)
    for call in trial.calls():
        if call.is_random:
            trial.run -= 1
            continue
        yield from _repeats(trial, call)
        yield from _follows_the_values(trial, call, rng)
        yield from _effects(trial, call)
    for call in trial.session.samples[:1]:
        if not call.is_random:
            yield from _ambient(call)
    yield from _remembers(trial)


# ---------------------------------------------------------------------- equal inputs


def _repeats(trial: Trial, call: Call) -> Iterator[Problem]:
    """Run on the same buffers twice, after unrelated calls, and on copies elsewhere."""
    given = call.fresh()
    first = _anew(given, call).run()
    if first.error is not None:
        return
    frozen = first.frozen()
    for when in ("the second time", "after unrelated calls"):
        if when == "after unrelated calls":
            for other in trial.session.samples[:3]:
                other.fresh().run()
        found = _first_change(frozen, _anew(given, call).run(), when)
        if found is not None:
            yield found_problem(call, *found)
            return
    elsewhere = call.fresh().run()
    if elsewhere.error is None:
        mismatch = trial.session.mismatch("determinism", elsewhere, _anew(given, call).run())
        if mismatch is not None:
            name, how = mismatch
            what = "differs for equal arguments at other addresses"
            yield Problem(call, name, what, how.expected, how.got)


def _anew(given: Call, call: Call, values: Call | None = None) -> Call:
    """Return a call on the buffers of `given`, which hold the values of `call` again."""
    anew = call.fresh()
    tensors = dict(given.leaves)
    for name, source in (values or call).tensors:
        array = tensors[name].array
        overlapping = 0 in array.strides and array.size > 1
        if array.shape == source.shape and array.flags.writeable and not overlapping:
            array[...] = source.array
    return anew.with_leaves(
        [tensors[name] if isinstance(leaf, Tensor) else leaf for name, leaf in anew.leaves]
    )


def _first_change(
    frozen: list[tuple[str, Any]], again: Outcome, when: str
) -> tuple[str, str, str, str] | None:
    if again.error is not None:
        return "", f"the call raises {when}", "", user_traceback(again.error)
    now = again.frozen()
    if len(now) != len(frozen):
        return "", f"the number of results differs {when}", str(len(frozen)), str(len(now))
    for (name, before), (_, after) in zip(frozen, now, strict=True):
        if isinstance(before, np.ndarray) and isinstance(after, np.ndarray):
            if not same_bytes(_canonical(before), _canonical(after)):
                return name, f"differs {when}", *_figures(before, after)
        elif type(before) is not type(after) or (before != after and before == before):
            return name, f"differs {when}", repr(before), repr(after)
    return None


def found_problem(call: Call, where: str, problem: str, expected: str, got: str) -> Problem:
    """Return the problem of an operator that does not repeat."""
    advice = "take a Generator, or tag the operator nondeterministic; keep nothing between calls"
    return Problem(call, where, f"{problem} at equal inputs", expected, got, advice)


def _canonical(array: Array) -> Array:
    """Return the array with every NaN the same: payloads may differ."""
    if array.dtype.kind not in "fc":
        return array
    parts = array.view(array.real.dtype) if array.flags.c_contiguous and array.ndim else array
    return np.where(np.isnan(parts), np.nan, parts)


def _figures(before: Array, after: Array) -> tuple[str, str]:
    if before.shape != after.shape or before.dtype != after.dtype:
        return f"{before.dtype}{list(before.shape)}", f"{after.dtype}{list(after.shape)}"
    differ = np.asarray(~((before == after) | ((before != before) & (after != after))))
    if not differ.any():
        return "equal bits", "other bits"
    index = tuple(map(int, np.unravel_index(int(differ.argmax()), differ.shape)))
    return f"{before[index]} at {list(index)}", f"{after[index]}"


# ---------------------------------------------------------------------- what is remembered


def _follows_the_values(trial: Trial, call: Call, rng: np.random.Generator) -> Iterator[Problem]:
    """Change the values inside the same arrays: a result cached by identity would not follow."""
    other = redrawn(call, rng)
    reference = other.fresh().run()
    given = call.fresh()
    fixed = any(not t.array.flags.writeable or 0 in t.array.strides for _, t in given.tensors)
    if fixed or given.written() or not given.tensors or reference.error is not None:
        return
    given.run()
    followed = _anew(given, call, other).run()
    found = None
    if followed.error is None:
        found = trial.session.mismatch("determinism", followed, reference)
    if found is not None:
        name, how = found
        yield Problem(
            call,
            name,
            "does not follow the values of an array whose elements changed",
            how.expected,
            how.got,
            "the operator caches by identity; cache by value, or not at all",
        )


def _remembers(trial: Trial) -> Iterator[Problem]:
    """Let the first call of new shapes see NaN only: a result cached by shape keeps them."""
    for call in trial.session.samples:
        if call.is_random or call.kind != "given" or not call.inexact or call.written():
            continue
        if _has_nan(call.fresh().run()):
            continue
        larger = _with_other_lengths(call)
        if larger is None:
            continue
        poisoned = _poisoned(larger)
        if poisoned.fresh().run().error is not None:
            continue
        outcome = larger.fresh().run()
        if outcome.error is None and _has_nan(outcome):
            yield Problem(
                larger,
                outcome.leaves[0][0],
                "holds NaN of an earlier call with the same shapes",
                "a result of these values",
                "NaN",
                "the operator caches by shape; cache by value, or not at all",
            )
            return


def _with_other_lengths(call: Call) -> Call | None:
    """Return a call of lengths that no sample has: every distinct length becomes a new prime."""
    lengths = sorted({n for _, t in call.tensors for n in t.shape if n > 1})
    primes = (11, 13, 17, 19, 23, 29)
    if not lengths or len(lengths) > len(primes):
        return None
    new = dict(zip(lengths, primes, strict=False))
    made: dict[int, Tensor] = {}
    for _, t in call.tensors:
        shape = tuple(new.get(n, n) for n in t.shape)
        made[id(t)] = tensor_from_array(np.resize(t.array, shape).astype(t.dtype))
    values = [made.get(id(leaf), leaf) for _, leaf in call.leaves]
    return replace(call.with_leaves(values), label="new sizes", kind="size")


def _poisoned(call: Call) -> Call:
    values = [
        tensor_from_array(np.full(leaf.shape, np.nan).astype(leaf.dtype))
        if isinstance(leaf, Tensor) and is_inexact(leaf.dtype)
        else leaf
        for _, leaf in call.leaves
    ]
    return call.with_leaves(values)


def _has_nan(outcome: Outcome) -> bool:
    return any(
        array.dtype.kind in "fc" and bool(np.isnan(array).any()) for _, array in outcome.arrays
    )


# ---------------------------------------------------------------------- surroundings


def _effects(trial: Trial, call: Call) -> Iterator[Problem]:
    """Yield generators that are drawn from without the effect ``"random"``."""
    op = trial.subject.op
    if op is None or RANDOM in op.effects:
        return
    given = call.fresh()
    before = given.snapshot()
    given.run()
    for name in before.generators_used():
        yield Problem(
            call,
            f"argument `{name}`",
            "is drawn from, and the operator does not declare it",
            'effects=("random",)',
            f"effects={tuple(sorted(op.effects))}",
            'declare effects=("random",), so that calls are kept in order',
            "schema",
        )


def _surroundings() -> dict[str, Any]:
    """Return what a call must leave as it finds it."""
    return {
        "NumPy's global random state": _legacy_state(),
        "Python's random state": random.getstate(),
        "np.geterr()": np.geterr(),
        "NumPy's print options": {
            k: v for k, v in np.get_printoptions().items() if k != "override_repr"
        },
        "the warnings filters": list(warnings.filters),
        "the current directory": os.getcwd(),
        "os.environ": dict(os.environ),
        "oplib's ambient state": id(_state.current()),
    }


def _legacy_state() -> Any:
    state: Mapping[str, Any] = np.random.get_state(legacy=False)
    inner = state["state"]
    return (inner["pos"], inner["key"].tobytes(), state["has_gauss"])


def _ambient(call: Call) -> Iterator[Problem]:
    """Run once without any guard, and put everything back."""
    given = call.fresh()
    undo = _restorer()
    np.random.seed(31)
    random.seed(31)
    before = _surroundings()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before["the warnings filters"] = list(warnings.filters)
            given.subject.function(*given.args, **given.kwargs)
            after = _surroundings()
    except Exception:  # other runs tell whether the call is valid
        return
    finally:
        undo()
    for name, value in before.items():
        if after[name] != value:
            yield Problem(
                call,
                name,
                "is changed by the call",
                "unchanged",
                "changed",
                "use a context manager, or an argument of the operator",
            )


def _restorer() -> Callable[[], None]:
    """Return a function that restores what `_surroundings` looks at."""
    legacy, python = np.random.get_state(), random.getstate()
    errors, options = np.geterr(), np.get_printoptions()
    directory, environment, state = os.getcwd(), dict(os.environ), _state.current()

    def undo() -> None:
        np.random.set_state(legacy)
        random.setstate(python)
        np.seterr(**errors)
        np.set_printoptions(**{k: v for k, v in options.items() if k != "override_repr"})  # type: ignore[arg-type]
        os.chdir(directory)
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
        _state.set_state(state)

    return undo


DETERMINISM: Final = Check("determinism", ("given", "option"), _examine, _unable)
