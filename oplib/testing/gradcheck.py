"""`gradcheck` and `gradgradcheck`: gradients against numeric differences.

For an incoming gradient `v` let ``L(x) = Re sum(conj(v) * f(x))``. The engine, seeded with `v`, must
return for each input a `g` with ``dL(x; u) = Re sum(conj(g) * u)`` for every direction `u`. With
`K` incoming gradients and `K` directions that is a matrix: its analytic side takes `K` backward
runs, its numeric side ``4 K`` evaluations, and every entry is compared. With unit vectors the matrix
is the Jacobian; otherwise the vectors are random, some of them moving one input alone.

An entry whose numeric value is uncertain is computed again with other steps, then at another point.
If that does not help the check is inconclusive: skipped, never passed.

Imports floors 0 to 7, `report.py`, `compare.py`, `space.py`, `problem.py`, `differences.py`,
`entries.py`, `hints.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ..errors import ArgumentError, AutogradError, OpCheckError
from ..tensor.tensor import Tensor
from .compare import Array, same_bytes
from .differences import Columns, Precision, differentiate, steps_of
from .entries import Entries, Vectors, improved
from .hints import Evidence, hint_for
from .problem import Linearization, Problem, call_problem, derivative
from .report import GradCheckReport, GradientMismatch
from .space import Space

__all__ = ["gradcheck", "gradgradcheck"]

FULL_LIMIT: Final = 200
"""Real numbers in inputs and results together up to which unit vectors are the default."""

EVIDENCE_LIMIT: Final = 2000
"""The same, up to which a failure found by random directions is located exactly."""

DRAWS: Final = 3
"""Points tried before a check is inconclusive: the given one, and others near it."""


@dataclass(frozen=True, slots=True)
class _Options:
    full: bool | None
    directions: int
    eps: float | None
    rtol: float
    atol: float
    nondet_tol: float
    seed: int


def gradcheck(
    f: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    order: int = 1,
    full: bool | None = None,
    directions: int = 8,
    eps: float | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    nondet_tol: float = 0.0,
    upcast: bool = True,
    seed: int = 0,
    raise_exception: bool = True,
) -> GradCheckReport:
    """Compare the gradient of `f` with numeric differences.

    Parameters
    ----------
    f : callable
        An operator, ``Layer.apply`` of a PyLayer, or any function of Tensors. Results may be
        nested; what is no float or complex tensor among them is ignored.
    inputs : Tensor or sequence
        Positional arguments. Tensors that require grad, at any depth, are checked.
    kwargs : mapping, optional
        Keyword arguments.
    order : int
        Which derivative is checked: 2 is `gradgradcheck`.
    full : bool, optional
        Whether to compare every entry of the Jacobian; by default if inputs and results together
        have at most 200 real numbers.
    directions : int
        How many random directions, and incoming gradients, are used otherwise.
    eps : float, optional
        The step; by default it follows precision and size of the inputs, and is adapted.
    rtol, atol : float
        Tolerance relative to an entry, and to the largest entry of its block.
    nondet_tol : float
        How far two evaluations may differ.
    upcast : bool
        Compute in double precision; falls back to the given dtypes if `f` refuses that.
    seed : int
        Of all random draws.
    raise_exception : bool
        Raise if the check fails; with False the report is returned.

    Returns
    -------
    GradCheckReport
        True in a condition if the gradient is right. An inconclusive check has status
        ``"skipped"`` and is false.

    Raises
    ------
    OpCheckError
        If the gradient is wrong; carries the report.
    ArgumentError
        If no input requires grad.

    Examples
    --------
    >>> import oplib
    >>> from oplib.testing import gradcheck
    >>> x = oplib.tensor([0.5, 2.0], requires_grad=True)
    >>> bool(gradcheck(lambda x: x * x, (x,)))
    True
    """
    if not isinstance(order, int) or order < 1:
        raise ArgumentError(f"order is a positive integer, got {order!r}")
    options = _Options(full, directions, eps, rtol, atol, nondet_tol, seed)
    args = (inputs,) if isinstance(inputs, Tensor) else inputs
    report = _run(f, args, kwargs or {}, order, upcast, options)
    if raise_exception and report.status == "failed":
        raise OpCheckError(str(report), report)
    return report


def gradgradcheck(
    f: Callable[..., Any], inputs: Any, kwargs: Mapping[str, Any] | None = None, **options: Any
) -> GradCheckReport:
    """Compare the gradient of the gradient of `f` with numeric differences.

    The function differentiated is ``(x, v) -> g(x, v)``: the gradient as a function of the inputs
    and of the incoming gradients, which are drawn. Options are those of `gradcheck`.

    Examples
    --------
    >>> import oplib
    >>> from oplib.testing import gradgradcheck
    >>> x = oplib.tensor([0.5, 2.0], requires_grad=True)
    >>> bool(gradgradcheck(lambda x: x * x, (x,)))
    True
    """
    return gradcheck(f, inputs, kwargs, order=2, **options)


def _run(
    f: Callable[..., Any],
    args: Any,
    kwargs: Mapping[str, Any],
    order: int,
    upcast: bool,
    options: _Options,
) -> GradCheckReport:
    problem = _first_problem(f, args, kwargs, upcast)
    problem, notes = _differentiable_part(problem)
    rng = np.random.default_rng(options.seed)
    try:
        for _ in range(order - 1):
            problem = derivative(problem, rng)
        report = _Check(problem, options, rng).report()
    except AutogradError as error:
        if order > 1 and "once_differentiable" in str(error):
            return GradCheckReport(
                problem.name, problem.site, order, "skipped", "backward is once_differentiable"
            )
        raise
    return replace(report, notes=(*notes, *report.notes))


def _first_problem(
    f: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], upcast: bool
) -> Problem:
    """Return the problem in double precision, or as given if `f` refuses that."""
    problem = call_problem(f, args, kwargs, upcast)
    if _runs(problem):
        return problem
    as_given = call_problem(f, args, kwargs, upcast=False)
    as_given.linearize(as_given.point)  # its exception is for the caller to see
    return as_given


def _runs(problem: Problem) -> bool:
    try:
        problem.linearize(problem.point)
    except Exception:  # whatever `f` refuses with
        return False
    return True


def _differentiable_part(problem: Problem) -> tuple[Problem, list[str]]:
    """Leave out results without a gradient if others have one, with a note for each."""
    outputs = problem.linearize(problem.point).outputs
    kept = [i for i, output in enumerate(outputs) if output.requires_grad]
    if not kept or len(kept) == len(outputs):
        return problem, []
    whole, name = problem.forward, problem.result_name

    def forward(tensors: list[Tensor]) -> list[Tensor]:
        results = whole(tensors)
        return [results[i] for i in kept]

    left_out = [name(i) for i in range(len(outputs)) if i not in kept]
    notes = [f"{each} does not require grad and was not checked" for each in left_out]
    return replace(problem, forward=forward, result_name=lambda i: name(kept[i])), notes


# ---------------------------------------------------------------------- the check


@dataclass(slots=True)
class _Attempt:
    """What was found at one point."""

    entries: Entries
    seeds: Vectors
    full: bool
    left_out: int
    codomain: Space
    inconclusive: str = ""


class _Check:
    """One run of `gradcheck` on a problem."""

    def __init__(self, problem: Problem, options: _Options, rng: np.random.Generator) -> None:
        self.problem = problem
        self.options = options
        self.rng = rng
        self.failures: list[GradientMismatch] = []
        self.backward_runs = 0

    def report(self) -> GradCheckReport:
        """Run and return the report."""
        self.problem.runs["evaluations"] = 0
        point = self.problem.domain.pack(self.problem.point)
        for draw in range(DRAWS):
            attempt = self.attempt(point, draw == 0)
            if isinstance(attempt, str):
                return self.made("skipped", attempt, None)
            if self.failures or not attempt.inconclusive:
                break
            nudge = 0.1 * self.rng.uniform(-1, 1, point.shape)
            point = np.where(point == 0, nudge, point * (1 + nudge))
        if self.failures:
            return self.made("failed", "", attempt)
        return self.made(
            "skipped" if attempt.inconclusive else "passed", attempt.inconclusive, attempt
        )

    def made(self, status: str, reason: str, attempt: _Attempt | None) -> GradCheckReport:
        return GradCheckReport(
            name=self.problem.name,
            site=self.problem.site,
            order=self.problem.order,
            status=status,
            reason=reason,
            failures=tuple(self.failures),
            full=attempt.full if attempt else False,
            entries=attempt.entries.analytic.size if attempt else 0,
            left_out=attempt.left_out if attempt else 0,
            evaluations=self.problem.runs["evaluations"],
            backward_runs=self.backward_runs,
            seed=self.options.seed,
        )

    # ------------------------------------------------------------------ one point

    def attempt(self, point: Array, consistency: bool) -> _Attempt | str:
        """Compare at one point; a string says why there is nothing to compare."""
        problem = self.problem
        line = problem.linearize(list(problem.domain.unpack(point)))
        if not line.outputs:
            return "no float or complex result"
        values = [output.detach().numpy() for output in line.outputs]  # type: ignore[attr-defined]
        codomain = problem.codomain(values)
        base = codomain.pack(values)
        before = [tensor.detach().numpy().copy() for tensor in line.inputs]  # type: ignore[attr-defined]
        if not codomain.dimension or not problem.domain.dimension:
            return "no elements"
        full = self.is_full(codomain)
        attempt = self.compare(line, point, base, codomain, full)
        if not np.isfinite(base).all():
            where = codomain.place(int(np.flatnonzero(~np.isfinite(base))[0]))
            attempt.inconclusive = f"{where} is not finite at {self.describe(point)}"
        elif attempt.entries.wrong.any():
            self.failures.append(self.mismatch(line, point, base, attempt))
        if consistency:
            self.failures += self.inconsistencies(line, point, values, codomain, before)
        return attempt

    def is_full(self, codomain: Space) -> bool:
        if self.options.full is not None:
            return self.options.full
        return self.problem.domain.dimension + codomain.dimension <= FULL_LIMIT

    def compare(
        self, line: Linearization, point: Array, base: Array, codomain: Space, full: bool
    ) -> _Attempt:
        """Return the matrix of all entries, its numeric side made as sure as it gets."""
        domain = self.problem.domain
        dtypes = [block.dtype for block in (*domain.blocks, *codomain.blocks)]
        precision = Precision.of(dtypes, self.options.rtol, self.options.atol)
        if full:
            directions = Vectors.units(domain, self.rng, together=False)
        else:
            directions = Vectors.random(
                domain, self.rng, self.options.directions, self.scales(point)
            )
        steps = steps_of(domain, point, directions.rows, precision.step)
        if self.options.eps is not None:
            steps = np.full(len(directions.rows), self.options.eps)
        columns = differentiate(self.problem, point, base, directions.rows, steps, precision)
        seeds = self.seeds(codomain, full, columns)
        gradients = self.pull_back(line, codomain, seeds)
        matrix = lambda: Entries.of(gradients, columns, seeds, directions, base, precision)  # noqa: E731
        entries = matrix()
        for factor in (10.0, 0.1) if self.options.eps is None else ():
            unsure = np.flatnonzero(entries.unsure.any(axis=0))
            if not len(unsure):
                break
            rows, changed = directions.rows[unsure], steps[unsure] * factor
            entries = improved(
                entries,
                columns,
                unsure,
                differentiate(self.problem, point, base, rows, changed, precision),
                matrix,
            )
        kinks = int(columns.kink.any(axis=0).sum())
        left_out = int(entries.left_out.sum()) if full else kinks
        attempt = _Attempt(entries, seeds, full, left_out, codomain)
        if entries.mostly_left_out() or (not full and kinks > codomain.dimension / 2):
            attempt.inconclusive = f"most of the function is at a kink at {self.describe(point)}"
        elif entries.unsure.any():
            attempt.inconclusive = (
                f"the numeric derivative is too uncertain at {self.describe(point)}: "
                f"{int(entries.unsure.sum())} of {entries.unsure.size} entries"
            )
        return attempt

    def scales(self, point: Array) -> list[float]:
        """Return the size of every input, at least 1."""
        blocks = self.problem.domain.blocks
        return [max(1.0, float(np.abs(point[b.range]).max(initial=0.0))) for b in blocks]

    def seeds(self, codomain: Space, full: bool, columns: Columns) -> Vectors:
        """Return the incoming gradients; random ones leave out results at kinks."""
        if full:
            return Vectors.units(codomain, self.rng, together=len(codomain.blocks) > 1)
        ones = [1.0] * len(codomain.blocks)
        seeds = Vectors.random(codomain, self.rng, self.options.directions, ones)
        seeds.rows[:, columns.kink.any(axis=0)] = 0.0
        return seeds

    def pull_back(self, line: Linearization, codomain: Space, seeds: Vectors) -> Array:
        """Return the packed gradient for every incoming gradient: one backward run each."""
        gradients = np.zeros((len(seeds.rows), self.problem.domain.dimension))
        for i, (row, group) in enumerate(zip(seeds.rows, seeds.group, strict=True)):
            arrays = list(codomain.unpack(row))
            present = [a if group in (-1, k) else None for k, a in enumerate(arrays)]
            self.backward_runs += 1
            gradients[i] = self.problem.domain.pack(line.pull_back(present))
        return gradients

    def describe(self, point: Array) -> str:
        """Return a point in a few words."""
        parts = []
        for block, array in zip(
            self.problem.domain.blocks, self.problem.domain.unpack(point), strict=True
        ):
            text = np.array2string(array, precision=4, threshold=6, edgeitems=2, separator=", ")
            parts.append(f"{block.name} = {' '.join(text.split())}")
        return "; ".join(parts)

    # ------------------------------------------------------------------ failures

    def mismatch(
        self, line: Linearization, point: Array, base: Array, attempt: _Attempt
    ) -> GradientMismatch:
        """Return the worst wrong entry, located in full where that is affordable, with a hint."""
        domain, codomain = self.problem.domain, attempt.codomain
        exact = attempt
        if not attempt.full and domain.dimension + codomain.dimension <= EVIDENCE_LIMIT:
            exact = self.compare(line, point, base, codomain, full=True)
        if not exact.full or not exact.entries.wrong.any():
            return self.projected_mismatch(attempt)
        entries = exact.entries
        i, j = entries.worst()
        row = i if i < codomain.dimension else int(np.abs(base).argmax())
        evidence = Evidence(
            analytic=np.where(entries.left_out, 0.0, entries.analytic)[: codomain.dimension],
            numeric=np.where(entries.left_out, 0.0, entries.numeric)[: codomain.dimension],
            dense=_dense(entries, exact.seeds),
            domain=domain,
            codomain=codomain,
            input=domain.block_of(j),
            result=codomain.block_of(row),
            indices=self.problem.indices,
            order=self.problem.order,
        )
        return GradientMismatch(
            input=str(domain.place(j)),
            result=str(codomain.place(i)) if i < codomain.dimension else "all results together",
            analytic=float(entries.analytic[i, j]),
            numeric=float(entries.numeric[i, j]),
            error=float(entries.error[i, j]),
            wrong=int(entries.wrong.sum()),
            total=int(entries.wrong.size),
            hint=hint_for(evidence),
        )

    def projected_mismatch(self, attempt: _Attempt) -> GradientMismatch:
        """Return the worst entry along random directions; it names no element."""
        entries, codomain = attempt.entries, attempt.codomain
        i, j = entries.worst()
        one = Space.of([("", np.empty(entries.analytic.shape[1]))])
        rows = Space.of([("", np.empty(entries.analytic.shape[0]))])
        evidence = Evidence(entries.analytic, entries.numeric, None, one, rows, 0, 0)
        names = [block.name for block in self.problem.domain.blocks]
        results = [block.name for block in codomain.blocks]
        hint = hint_for(evidence) if len(names) == 1 else ""
        return GradientMismatch(
            input=f"{' and '.join(names)} along a random direction",
            result=f"{' and '.join(results)} with a random incoming gradient",
            analytic=float(entries.analytic[i, j]),
            numeric=float(entries.numeric[i, j]),
            error=float(entries.error[i, j]),
            wrong=int(entries.wrong.sum()),
            total=int(entries.wrong.size),
            hint=hint,
        )

    def inconsistencies(
        self,
        line: Linearization,
        point: Array,
        values: list[Array],
        codomain: Space,
        before: list[Array],
    ) -> Iterator[GradientMismatch]:
        """Yield what is wrong apart from values: repeatability, absent gradients, writing."""
        problem, tolerance = self.problem, self.options.nondet_tol
        again = problem.evaluate(list(problem.domain.unpack(point)))
        problem.runs["evaluations"] -= 1
        for name, first, second in zip(
            (b.name for b in codomain.blocks), values, again, strict=True
        ):
            if not _repeats(first, second, tolerance):
                yield GradientMismatch.plain(
                    f"{name} differs between two evaluations at equal inputs",
                    "a gradient of a random function means nothing; give it a Generator, "
                    "or raise nondet_tol",
                )
        seeds = [np.ones(value.shape, value.dtype) for value in values]
        first_gradients = line.pull_back(seeds)
        written = [s for s in seeds if not bool((s == 1).all())]
        second_gradients = line.pull_back([np.ones(value.shape, value.dtype) for value in values])
        if written:
            yield GradientMismatch.plain(
                "backward writes the incoming gradient",
                "compute out of place: grad * 2, not grad *= 2",
            )
        for block, a, b in zip(
            problem.domain.blocks, first_gradients, second_gradients, strict=True
        ):
            if not _repeats(a, b, tolerance):
                yield GradientMismatch.plain(
                    f"two backward runs give different gradients of {block.name}",
                    "the rule writes what it saved, or depends on something outside",
                )
        yield from self.absent(line, values)
        for block, array, tensor in zip(problem.domain.blocks, before, line.inputs, strict=True):
            if not same_bytes(array, tensor.detach().numpy()):  # type: ignore[attr-defined]
                yield GradientMismatch.plain(
                    f"{block.name} was written", "the rule writes an input"
                )

    def absent(self, line: Linearization, values: list[Array]) -> Iterator[GradientMismatch]:
        """Compare an absent incoming gradient with one that is zero."""
        if len(values) < 2:
            return
        for position, value in enumerate(values):
            one = np.ones(value.shape, value.dtype)
            alone = [one if k == position else None for k in range(len(values))]
            zeros = [
                one if k == position else np.zeros(v.shape, v.dtype) for k, v in enumerate(values)
            ]
            domain = self.problem.domain
            a, b = domain.pack(line.pull_back(alone)), domain.pack(line.pull_back(zeros))
            if not np.allclose(
                a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max(initial=0), equal_nan=True
            ):
                name = self.problem.result_name(position)
                yield GradientMismatch.plain(
                    f"with a gradient for {name} only, absent gradients do not act as zeros",
                    "a rule that receives None must treat it as zero",
                )
                return


def _dense(entries: Entries, seeds: Vectors) -> tuple[Array, Array, Array] | None:
    """Return the incoming gradient of all results at once, and both gradients for it."""
    together = np.flatnonzero(seeds.group == -1)
    if not len(together):
        return None
    row = int(together[0])
    return seeds.rows[row], entries.analytic[row], entries.numeric[row]


def _repeats(a: Array | None, b: Array | None, tolerance: float) -> bool:
    if a is None or b is None:
        return a is b
    if tolerance == 0:
        return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=True))
    return bool(np.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True))
