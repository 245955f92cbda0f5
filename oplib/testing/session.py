"""One run of `opcheck`: its samples, the calls refused, and what checks share."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np

from ..dispatch.facets import SAMPLES
from ..errors import AliasError, ArgumentError, ReturnError
from ..tensor.tensor import Tensor, tensor_from_array
from .calls import Call, Outcome, Subject, has_fakes
from .compare import Mismatch, compare_arrays, differences
from .sampling import invented, redrawn

__all__ = ["Check", "Compare", "Problem", "Session", "Trial", "Where"]


DRAWS: Final = 3
"""Draws of values after which a refusal is put down to shapes."""


INVENTED: Final = "invented"
"""The label of a call made up for an operator that was given none."""


@dataclass(frozen=True, slots=True)
class Where:
    """What a comparison hook is told: which check, which result, which sample."""

    check: str
    name: str
    index: int
    sample: str


Compare: TypeAlias = Callable[[Any, Any, Where], str | None]


@dataclass(frozen=True, slots=True)
class Problem:
    """What a check found wrong in one call."""

    call: Call
    where: str
    problem: str
    expected: str = ""
    got: str = ""
    advice: str = ""
    facet: str = "kernel"
    cause: Exception | None = None


@dataclass(frozen=True)
class Check:
    """One check: which samples it looks at, when it cannot run, and what it finds."""

    name: str
    kinds: tuple[str, ...]
    examine: Callable[[Trial], Iterator[Problem]]
    unable: Callable[[Session], str] = lambda session: ""
    needs_samples: bool = True


@dataclass
class Session:
    """What all checks of one `opcheck` share."""

    subject: Subject
    seed: int = 0
    rtol: float | None = None
    atol: float | None = None
    compare: Compare | Mapping[Any, Compare] | None = None
    samples: list[Call] = field(default_factory=list)
    refused: list[Outcome] = field(default_factory=list)
    faults: list[Outcome] = field(default_factory=list)
    broken: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    derives: bool = True

    def collect(
        self,
        given: Sequence[Call],
        further: Callable[[Call], Iterable[Call]],
        count: int | None,
        time_limit: float,
        rng: np.random.Generator,
    ) -> None:
        """Find the samples: the calls given, and up to `count` made from the first of them."""
        for call in given:
            self._take(call, self.refused if call.label == INVENTED else self.broken, rng)
        base = self.samples[0] if self.samples else next((f.call for f in self.faults), None)
        if base is None or has_fakes(base):
            return
        deadline = time.monotonic() + time_limit
        for call in further(base):
            if count is not None and len(self.samples) - len(given) >= count:
                return
            if time.monotonic() > deadline:
                self.notes.append(f"sampling stopped at the time limit of {time_limit} s")
                return
            self._take(call, self.refused, rng)

    def _take(self, call: Call, refusals: list[Outcome], rng: np.random.Generator) -> None:
        if has_fakes(call):
            self.samples.append(call)
            return
        for draw in range(DRAWS):
            tried = call if draw == 0 else redrawn(call, rng, call.label, call.kind)
            error = tried.fresh().run().error
            if error is None:
                self.samples.append(tried)
                return
            if blames_result(error):
                self.faults.append(Outcome(tried, None, error))
                return
            if refusals is self.broken or call.kind in ("values", "layout", "dtype"):
                break
        assert error is not None
        refusals.append(Outcome(call, None, error))

    @property
    def only_fakes(self) -> bool:
        """Whether there is data in no sample."""
        return bool(self.samples) and all(has_fakes(call) for call in self.samples)

    def no_sample(self) -> str:
        """Return why there is no valid call."""
        tried = [*self.broken, *self.faults, *self.refused]
        if not tried:
            return "no valid sample found"
        first = tried[0]
        text = str(first.error).partition("\n")[0]
        return f"no valid sample found: {type(first.error).__name__}: {text}"

    # ------------------------------------------------------------------ comparison

    def mismatch(
        self, check: str, actual: Outcome, expected: Outcome
    ) -> tuple[str, Mismatch] | None:
        """Return the first result that differs between two outcomes, and how."""
        got, want = actual.leaves, expected.leaves
        if [name for name, _ in got] != [name for name, _ in want]:
            names = ", ".join(name for name, _ in want), ", ".join(name for name, _ in got)
            return "results", Mismatch("", "structure", *names)
        for index, ((name, a), (_, e)) in enumerate(zip(got, want, strict=True)):
            where = Where(check, name, index, expected.call.place())
            found = self.difference(a, e, where)
            if found is not None:
                return name, found
        return None

    def difference(self, actual: Any, expected: Any, where: Where) -> Mismatch | None:
        """Compare one value, by the caller's hook if there is one for it."""
        hook = self._hook(expected, where)
        if hook is not None:
            message = hook(actual, expected, where)
            return (
                None
                if message is None
                else Mismatch("", "values", "what `compare` accepts", message)
            )
        options: dict[str, Any] = {"rtol": self.rtol, "atol": self.atol}
        if isinstance(actual, Tensor) and isinstance(expected, Tensor):
            return compare_arrays(actual.array, expected.array, **options)
        return next(differences(actual, expected, **options), None)

    def _hook(self, expected: Any, where: Where) -> Compare | None:
        if not isinstance(self.compare, Mapping):
            return self.compare
        dtype = getattr(expected, "dtype", None)
        keys = [where.name, where.index, dtype, getattr(dtype, "name", None)]
        keys += re.findall(r"`(\w+)`", where.name)
        return next((self.compare[k] for k in keys if k in self.compare), None)


@dataclass
class Trial:
    """One check running on the samples of a session."""

    session: Session
    check: Check
    run: int = 0
    inconclusive: list[str] = field(default_factory=list)

    @property
    def subject(self) -> Subject:
        """What is checked."""
        return self.session.subject

    def calls(self, *kinds: str) -> Iterator[Call]:
        """Yield the samples of the check's kinds (or of the given ones), counting them."""
        for call in self.session.samples:
            if call.kind in (kinds or self.check.kinds) and not has_fakes(call):
                self.run += 1
                yield call


def blames_result(error: Exception) -> bool:
    """Return whether the framework refused what a kernel returned, rather than the call."""
    if isinstance(error, ReturnError):
        return True
    return isinstance(error, AliasError) and re.search(r": result \d", str(error)) is not None


# ---------------------------------------------------------------------- calls to begin with


def given_calls(
    subject: Subject,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    samples: Any,
    rng: np.random.Generator,
) -> list[Call]:
    """Return the calls to begin with: the caller's, then those of `register_samples`."""
    if not isinstance(args, tuple | list):
        raise ArgumentError(
            f"opcheck takes the arguments of one call as a tuple, got {type(args).__name__}; "
            "write `(x,)`"
        )
    if not isinstance(samples, str | int) and samples is not None:
        return [_call(subject, a, k, f"sample {i}") for i, (a, k) in enumerate(samples)]
    calls = [_call(subject, args, kwargs or {}, "as given")] if args or kwargs else []
    registered = subject.op.payload(SAMPLES) if subject.op is not None else None
    if registered is not None:
        calls += [
            _call(subject, a, k, f"registered sample {i}") for i, (a, k) in enumerate(registered())
        ]
    if calls:
        return _completed(calls, rng)
    return _invented(subject, rng)


def _call(subject: Subject, args: Iterable[Any], kwargs: Mapping[str, Any], label: str) -> Call:
    call = Call(subject, tuple(args), dict(kwargs), label)
    return replace(call, args=tuple(map(_lifted, call.args)))


def _lifted(value: Any) -> Any:
    """Return arrays given for tensors as tensors that share their memory."""
    return tensor_from_array(value) if type(value) is np.ndarray else value


def _completed(calls: list[Call], rng: np.random.Generator) -> list[Call]:
    """Return the calls with values for required arguments that are missing."""
    schema = calls[0].subject.schema
    if schema is None:
        return calls
    done = []
    for call in calls:
        given = dict(call.named)
        like = next((t for _, t in call.tensors), None)
        shape = like.shape if like is not None else (3, 4)
        missing = {
            a.name: invented(a.type, shape, rng)
            for a in schema.arguments
            if a.name not in given and not a.has_default
        }
        done.append(replace(call, kwargs={**call.kwargs, **missing}) if missing else call)
    return done


def _invented(subject: Subject, rng: np.random.Generator) -> list[Call]:
    """Return the first invented call that the operator accepts, or the first of all."""
    if subject.schema is None:
        return []
    tried = []
    for shape in ((3, 4), (4, 4), (5,), (2, 3, 4), ()):
        values = {
            a.name: invented(a.type, shape, rng)
            for a in subject.schema.arguments
            if not a.has_default
        }
        tried.append(Call(subject, (), values, INVENTED))
        error = tried[-1].fresh().run().error
        if error is None or blames_result(error):
            return tried[-1:]
    return tried[:1]
