"""`gradcheck` and `gradgradcheck`: gradients against numeric differences.

For an incoming gradient `v` let ``L(x) = Re sum(conj(v) * f(x))``. The engine, seeded with `v`,
must return for each input a `g` with ``dL(x; u) = Re sum(conj(g) * u)`` for every direction `u`.
With `K` incoming gradients and `K` directions that is a matrix: its analytic side takes `K`
backward runs, its numeric side ``4 K`` evaluations, and every entry is compared. With unit vectors
it is the Jacobian; otherwise the vectors are random, some of them moving one input alone.

An entry whose numeric value is uncertain is computed again with other steps, then at another point.
If that does not help the check is inconclusive: skipped, never passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ..errors import ArgumentError, AutogradError, OpCheckError
from ..tensor.tensor import Tensor
from .compare import Array, same_bytes
from .hints import Evidence, hint_for
from .numeric import Attempt, Entries, Options, Point, attempt_at
from .problem import Problem, call_problem, derivative
from .report import GradCheckReport, GradientMismatch, Status
from .space import Space, Vectors

__all__ = ["gradcheck", "gradgradcheck", "inconsistencies"]


def inconsistencies(
    problem: Problem, at: Point, before: list[Array], tolerance: float
) -> Iterator[GradientMismatch]:
    """Yield what is wrong with the recorded run at a point."""
    yield from _evaluations_repeat(problem, at, tolerance)
    yield from _backward_repeats(problem, at, tolerance)
    yield from _absent_is_zero(problem, at)
    for block, array, tensor in zip(problem.domain.blocks, before, at.line.inputs, strict=True):
        if not same_bytes(array, _bytes_of(tensor)):
            yield GradientMismatch.plain(f"{block.name} was written", "the rule writes an input")


def _evaluations_repeat(
    problem: Problem, at: Point, tolerance: float
) -> Iterator[GradientMismatch]:
    again = problem.evaluate(list(problem.domain.unpack(at.vector)))
    for block, first, second in zip(at.codomain.blocks, at.values, again, strict=True):
        if not _repeats(first, second, tolerance):
            yield GradientMismatch.plain(
                f"{block.name} differs between two evaluations at equal inputs",
                "give a random function a Generator, or raise nondet_tol",
            )


def _backward_repeats(problem: Problem, at: Point, tolerance: float) -> Iterator[GradientMismatch]:
    seen: list[tuple[Tensor, Array]] = []
    hooks = [
        output.register_hook(lambda g: seen.append((g, _bytes_of(g).copy())))
        for output in at.line.outputs
        if output.requires_grad
    ]
    first = at.line.pull_back(_ones(at.values))
    for hook in hooks:
        hook.remove()
    if any(not same_bytes(_bytes_of(gradient), copy) for gradient, copy in seen):
        yield GradientMismatch.plain(
            "backward writes the incoming gradient",
            "compute out of place: grad * 2, not grad *= 2",
        )
    second = at.line.pull_back(_ones(at.values))
    for block, a, b in zip(problem.domain.blocks, first, second, strict=True):
        if not _repeats(a, b, tolerance):
            yield GradientMismatch.plain(
                f"two backward runs give different gradients of {block.name}",
                "the rule writes what it saved, or depends on something outside",
            )


def _bytes_of(tensor: Tensor) -> Array:
    array: Array = tensor.array
    return array


def _ones(values: list[Array]) -> list[Array]:
    return [np.ones(value.shape, value.dtype) for value in values]


def _absent_is_zero(problem: Problem, at: Point) -> Iterator[GradientMismatch]:
    if len(at.values) < 2:
        return
    pack = problem.domain.pack
    for position, block in enumerate(at.codomain.blocks):
        ones = _ones(at.values)
        zeros = [one if k == position else np.zeros_like(one) for k, one in enumerate(ones)]
        absent = [one if k == position else None for k, one in enumerate(ones)]
        given, expected = pack(at.line.pull_back(absent)), pack(at.line.pull_back(zeros))
        scale = float(np.abs(expected).max(initial=0.0))
        if not np.allclose(given, expected, rtol=1e-6, atol=1e-6 * scale, equal_nan=True):
            yield GradientMismatch.plain(
                f"with a gradient for {block.name} only, absent gradients do not act as zeros",
                "a rule that receives None must treat it as zero",
            )
            return


def _repeats(a: Array | None, b: Array | None, tolerance: float) -> bool:
    if a is None or b is None:
        return a is b
    if tolerance == 0:
        return np.array_equal(a, b, equal_nan=True)
    return np.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True)


FULL_LIMIT: Final = 200
"""Real numbers in inputs and results together up to which unit vectors are the default."""

EVIDENCE_LIMIT: Final = 2000
"""The same, up to which a failure found by random directions is located exactly."""

DRAWS: Final = 3
"""Points tried before a check is inconclusive: the given one, and others near it."""


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
    options = Options(full, directions, eps, rtol, atol, nondet_tol, seed)
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
    options: Options,
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


class _Check:
    """One run of `gradcheck` on a problem."""

    def __init__(self, problem: Problem, options: Options, rng: np.random.Generator) -> None:
        self.problem = problem
        self.options = options
        self.rng = rng
        self.failures: list[GradientMismatch] = []
        self.notes: tuple[str, ...] = ()

    def report(self) -> GradCheckReport:
        """Compare at the given point, and at others near it while nothing can be concluded."""
        vector = self.problem.domain.pack(self.problem.point)
        at = given = Point.of(self.problem, vector)
        if not at.codomain.dimension or not self.problem.domain.dimension:
            return self.made("skipped", _nothing(at))
        before = [tensor.array.copy() for tensor in at.line.inputs]
        full = self.options.full
        if full is None:
            full = self.problem.domain.dimension + at.codomain.dimension <= FULL_LIMIT
        self.problem.runs.update({"evaluations": 0, "backward runs": 0})
        reason = ""
        for _ in range(DRAWS):
            attempt = attempt_at(self.problem, at, full, self.options, self.rng)
            if np.isfinite(at.base).all() and attempt.entries.wrong.any():
                self.failures.append(self.mismatch(at, attempt))
            if self.failures or attempt.kinked or not attempt.inconclusive:
                break
            at = Point.of(self.problem, self.near(vector))
            reason = reason or attempt.inconclusive
        counts = dict(self.problem.runs)
        self.failures += inconsistencies(self.problem, given, before, self.options.nondet_tol)
        self.problem.runs.update(counts)
        if self.failures:
            return self.made("failed", "", attempt)
        if attempt.inconclusive:
            return self.made("skipped", reason or attempt.inconclusive, attempt)
        if reason:
            self.notes = (f"checked near the given point, which is inconclusive: {reason}",)
        return self.made("passed", "", attempt)

    def near(self, vector: Array) -> Array:
        """Return a random point within a tenth of a given one."""
        nudge = 0.1 * self.rng.uniform(-1, 1, vector.shape)
        return np.where(vector == 0, nudge, vector * (1 + nudge))

    def made(self, status: Status, reason: str, attempt: Attempt | None = None) -> GradCheckReport:
        """Return the report."""
        problem = self.problem
        return GradCheckReport(
            name=problem.name,
            site=problem.site,
            order=problem.order,
            status=status,
            reason=reason,
            failures=tuple(self.failures),
            full=attempt.full if attempt else False,
            entries=attempt.entries.analytic.size if attempt else 0,
            left_out=attempt.left_out if attempt else 0,
            evaluations=problem.runs["evaluations"],
            backward_runs=problem.runs["backward runs"],
            seed=self.options.seed,
            notes=self.notes,
        )

    def mismatch(self, at: Point, attempt: Attempt) -> GradientMismatch:
        """Return the worst wrong entry, located in full where that is affordable, with a hint."""
        domain, codomain = self.problem.domain, at.codomain
        if not attempt.full and domain.dimension + codomain.dimension <= EVIDENCE_LIMIT:
            exact = attempt_at(self.problem, at, True, self.options, self.rng)
            if exact.entries.wrong.any():
                attempt = exact
        entries = attempt.entries
        i, j = entries.worst()
        if not attempt.full:
            return _measured(entries, _along(domain), _through(codomain), _projected_hint(entries))
        together = i >= codomain.dimension
        evidence = Evidence(
            analytic=np.where(entries.left_out, 0.0, entries.analytic)[: codomain.dimension],
            numeric=np.where(entries.left_out, 0.0, entries.numeric)[: codomain.dimension],
            dense=_dense(entries, attempt.seeds),
            domain=domain,
            codomain=codomain,
            input=domain.block_of(j),
            result=0 if together else codomain.block_of(i),
            indices=self.problem.indices,
            order=self.problem.order,
        )
        result = "all results together" if together else codomain.place(i)
        return _measured(entries, domain.place(j), result, hint_for(evidence))


def _nothing(at: Point) -> str:
    return "no elements" if at.codomain.blocks else "no float or complex result"


def _measured(entries: Entries, input: str, result: str, hint: str) -> GradientMismatch:
    """Return the failure of the worst entry."""
    worst = entries.worst()
    return GradientMismatch(
        input=input,
        result=result,
        analytic=float(entries.analytic[worst]),
        numeric=float(entries.numeric[worst]),
        error=float(entries.error[worst]),
        wrong=int(entries.wrong.sum()),
        total=int(entries.wrong.size),
        hint=hint,
    )


def _along(domain: Space) -> str:
    return f"{' and '.join(b.name for b in domain.blocks)} along a random direction"


def _through(codomain: Space) -> str:
    return f"{' and '.join(b.name for b in codomain.blocks)} with a random incoming gradient"


def _projected_hint(entries: Entries) -> str:
    """Return what random projections can tell: a common factor, or nothing at all."""
    rows, columns = (Space.of([("all", np.empty(n))]) for n in entries.analytic.shape)
    return hint_for(Evidence(entries.analytic, entries.numeric, None, columns, rows, 0, 0))


def _dense(entries: Entries, seeds: Vectors) -> tuple[Array, Array, Array] | None:
    """Return the incoming gradient of all results at once, and both gradients for it."""
    together = np.flatnonzero(seeds.group == -1)
    if not len(together):
        return None
    row = int(together[0])
    return seeds[row], entries.analytic[row], entries.numeric[row]
