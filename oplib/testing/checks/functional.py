"""Check ``functional``: eager, functionalized and captured programs around the call agree.

Compared are results, the elements of all inputs afterwards, which inputs were returned and written,
and gradients; or both raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from ..._tree import flatten, leaves, unflatten
from ...autograd.general_grad import grad
from ...dispatch.facets import FUNCTIONAL
from ...dispatch.operator import Operator
from ...dispatch.registry import get_op
from ...dtypes import is_inexact
from ...errors import CaptureError, DataDependentError, FakeTensorError
from ...functionalize.run import functionalize
from ...graph import parse
from ...program import capture
from ...tensor.tensor import Tensor, tensor_from_array
from ..calls import Call, quietly, user_traceback
from ..compare import Array, Mismatch
from ..memory import copy_tree
from ..session import Check, Problem, Session, Trial, Where
from .fake import agrees

__all__ = ["FUNCTIONAL_CHECK", "Scenario", "scenarios"]


Body: TypeAlias = Callable[["Caller", list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A program: a function of leaves, and what to call it with."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]


@dataclass(frozen=True)
class Caller:
    """Calls the subject with the arguments of a call, its leaves replaced."""

    call: Call

    def __call__(self, values: Sequence[Any]) -> Any:
        """Return the result for new leaves, in order."""
        structure = flatten((self.call.args, dict(self.call.kwargs)))[1]
        args, kwargs = unflatten(structure, iter(values))
        return self.call.subject.function(*args, **kwargs)


def scenarios(call: Call) -> Iterator[Scenario]:
    """Yield the programs made of one call."""
    caller = Caller(call)
    values = flatten((call.args, dict(call.kwargs)))[0]

    def program(name: str, body: Body, inputs: Sequence[Any] = values) -> Scenario:
        return Scenario(name, lambda *given: body(caller, list(given)), tuple(inputs))

    yield program("the call itself", lambda f, xs: f(xs))
    yield program("twice in a row", lambda f, xs: (f(xs), f(xs)))
    yield program("its first result unused", _unused)
    padded = [_padded(v) if isinstance(v, Tensor) else v for v in values]
    yield program("on views of its inputs", _on_views, padded)
    if any(isinstance(v, Tensor) and v.ndim > 1 for v in values):
        yield program("on transposed memory", _on_transposed)
    if call.written():
        yield program("followed by reads of bases and views", _reads_after, padded)
        yield from _overlapping(call, program, values)


def _unused(caller: Caller, values: list[Any]) -> Any:
    caller(values)
    return caller(values)


# ---------------------------------------------------------------------- views


def _padded(tensor: Tensor) -> Tensor:
    """Return a tensor with one more element at either end of the first axis."""
    array = tensor.array
    if not array.ndim:
        return tensor_from_array(np.array([array, array, array]))
    made = np.ones((array.shape[0] + 2, *array.shape[1:]), array.dtype)
    made[1:-1] = array
    return tensor_from_array(made)


def _inner(call: Call, values: list[Any]) -> list[Any]:
    """Return views of the middle of padded tensors, shaped as the call's own."""
    given = flatten((call.args, dict(call.kwargs)))[0]
    return [
        (v[1:-1] if t.ndim else v[1]) if isinstance(v, Tensor) else v
        for v, t in zip(values, given, strict=True)
    ]


def _on_views(caller: Caller, values: list[Any]) -> Any:
    return caller(_inner(caller.call, values))


def _on_transposed(caller: Caller, values: list[Any]) -> Any:
    swap = get_op("std::swapaxes")
    fresh = get_op("std::clone")
    turned = [
        swap(fresh(swap(v, -1, -2)), -1, -2) if isinstance(v, Tensor) and v.ndim > 1 else v
        for v in values
    ]
    return caller(turned), [t for t in turned if isinstance(t, Tensor)]


def _reads_after(caller: Caller, values: list[Any]) -> Any:
    fresh = get_op("std::clone")
    bases = [fresh(v) if isinstance(v, Tensor) else v for v in values]
    views = _inner(caller.call, bases)
    result = caller(views)
    read = [fresh(t) for t in (*bases, *views) if isinstance(t, Tensor)]
    return result, read


# ---------------------------------------------------------------------- overlaps


def _overlapping(
    call: Call, program: Callable[..., Scenario], values: list[Any]
) -> Iterator[Scenario]:
    """Yield programs in which a written argument and another one lie in one buffer."""
    written = {id(t) for _, t in call.written()}
    places = [i for i, v in enumerate(values) if isinstance(v, Tensor)]
    targets = [i for i in places if id(values[i]) in written]
    for target in targets[:1]:
        twins = [
            i
            for i in places
            if i != target
            and values[i].shape == values[target].shape
            and values[i].dtype == values[target].dtype
        ]
        for twin in twins[:1]:
            yield program("the written tensor also read", _same(target, twin))
            if values[target].ndim and values[target].shape[0] > 1:
                for name, shift in (("disjoint", values[target].shape[0]), ("overlapping", 1)):
                    buffer = np.ones(
                        (values[target].shape[0] + shift, *values[target].shape[1:]),
                        values[target].dtype,
                    )
                    buffer[: values[target].shape[0]] = values[target].array
                    inputs = list(values)
                    inputs[target] = tensor_from_array(buffer)
                    body = _two_views(target, twin, shift, values[target].shape[0])
                    yield program(f"two {name} slices of one tensor", body, inputs)


def _same(target: int, twin: int) -> Body:
    def body(caller: Caller, values: list[Any]) -> Any:
        values[twin] = values[target]
        return caller(values)

    return body


def _two_views(target: int, twin: int, shift: int, length: int) -> Body:
    def body(caller: Caller, values: list[Any]) -> Any:
        base = values[target]
        values[target] = base[:length]
        values[twin] = base[shift : shift + length]
        return caller(values)

    return body


SAMPLES: Final = 5
"""How many samples programs are made of: capturing costs most."""


def _unable(session: Session) -> str:
    op = session.subject.op
    assert op is not None
    if "nondeterministic" in op.tags:
        return "tagged nondeterministic"
    random = any(
        isinstance(leaf, np.random.Generator) for call in session.samples for _, leaf in call.leaves
    )
    return "takes a random generator" if random else ""


def _examine(trial: Trial) -> Iterator[Problem]:
    taken = 0
    for call in trial.calls():
        if taken >= SAMPLES:
            trial.run -= 1
            continue
        taken += 1
        captured = agrees(call)
        for scenario in scenarios(call):
            problem = _disagreement(trial, call, scenario, captured, gradient=False)
            if problem is None and call.kind == "given" and _has_gradient(trial.subject.op):
                problem = _disagreement(trial, call, scenario, captured, gradient=True)
            if problem is not None:
                yield problem
                break


def _has_gradient(op: Operator[..., Any] | None) -> bool:
    return op is not None and op.gradient_rule is not None


# ---------------------------------------------------------------------- one way to run


@dataclass(frozen=True, slots=True)
class _Effect:
    """Everything one can observe of a run."""

    results: list[Any]
    returned: list[int]
    inputs: list[Array]
    written: list[bool]
    gradients: list[Array | None]


def _observe(scenario: Scenario, run: Callable[..., Any], gradient: bool) -> _Effect:
    """Run a program on fresh inputs and return what can be observed."""
    inputs = _inputs(scenario, gradient)
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    versions = [t.inplace_version for t in tensors]
    flat = list(leaves(run(*inputs)))
    returned = [next((i for i, t in enumerate(tensors) if t is leaf), -1) for leaf in flat]
    gradients = _gradients(flat, tensors) if gradient else []
    return _Effect(
        [leaf.array.copy() if isinstance(leaf, Tensor) else leaf for leaf in flat],
        returned,
        [t.array.copy() for t in tensors],
        [t.inplace_version > v for t, v in zip(tensors, versions, strict=True)],
        gradients,
    )


def _inputs(scenario: Scenario, gradient: bool) -> tuple[Any, ...]:
    inputs: tuple[Any, ...] = copy_tree(scenario.inputs)
    if gradient:
        for x in inputs:
            if isinstance(x, Tensor) and is_inexact(x.dtype):
                x.requires_grad = True
    return inputs


def _gradients(results: list[Any], inputs: list[Tensor]) -> list[Array | None]:
    outputs = {id(r): r for r in results if isinstance(r, Tensor) and r.requires_grad}
    leaves_ = [t for t in inputs if t.requires_grad]
    if not outputs or not leaves_:
        return []
    seeds = [tensor_from_array(np.ones(r.shape, r.dtype)) for r in outputs.values()]
    distinct = list({id(t): t for t in leaves_}.values())
    found = grad(list(outputs.values()), distinct, seeds, allow_unused=True)
    return [None if g is None else g.array for g in found]


# ---------------------------------------------------------------------- comparison


def _disagreement(
    trial: Trial, call: Call, scenario: Scenario, captured: bool, gradient: bool
) -> Problem | None:
    """Return the first way in which running a program functionally differs from running it."""
    with quietly():
        try:
            expected = _observe(scenario, scenario.function, gradient)
        except Exception as error:  # the program is invalid here; then it must be in both ways
            return _must_raise(call, scenario, error, gradient)
        for how, run in _ways(scenario, captured, gradient):
            try:
                got = _observe(scenario, run(), gradient)
            except (CaptureError, FakeTensorError, DataDependentError):
                continue  # a fake rule that is missing or wrong is another check's business
            except Exception as error:  # whatever it is, the eager run does not raise it
                return Problem(
                    call, scenario.name, f"raises when {how}", "the results of the eager run",
                    user_traceback(error), facet=FUNCTIONAL,
                )  # fmt: skip
            found = _difference(trial, call, expected, got)
            if found is not None:
                what, mismatch = found
                return Problem(
                    call,
                    scenario.name,
                    f"{what} differ when {how}{' (with gradients)' if gradient else ''}",
                    mismatch.expected,
                    mismatch.got,
                    _advice(trial, mismatch),
                    FUNCTIONAL if trial.subject.op and trial.subject.op.twin else "kernel",
                )
    if gradient or not captured or call.kind != "given":
        return None
    return _graph_problem(trial, call, scenario)


def _advice(trial: Trial, mismatch: Mismatch) -> str:
    op = trial.subject.op
    if op is not None and op.twin is not None:
        return "the functional twin computes something else than the kernel writes"
    return mismatch.detail


def _ways(
    scenario: Scenario, captured: bool, gradient: bool
) -> Iterator[tuple[str, Callable[[], Callable[..., Any]]]]:
    """Yield the ways to run a program without writes: captured only if the fake rule is right."""
    yield "functionalized", lambda: functionalize(scenario.function)
    if captured:
        yield "captured", lambda: capture(scenario.function, *_inputs(scenario, gradient))


def _must_raise(call: Call, scenario: Scenario, error: Exception, gradient: bool) -> Problem | None:
    try:
        _observe(scenario, functionalize(scenario.function), gradient)
    except Exception:  # the functional run refuses too
        return None
    return Problem(
        call,
        scenario.name,
        "raises eagerly and runs functionalized",
        f"{type(error).__name__}: {error}".partition("\n")[0],
        "results",
        facet=FUNCTIONAL,
    )


def _difference(
    trial: Trial, call: Call, expected: _Effect, got: _Effect
) -> tuple[str, Mismatch] | None:
    if len(expected.results) != len(got.results):
        counts = str(len(expected.results)), str(len(got.results))
        return "results", Mismatch("", "structure", *counts)
    for index, (e, g) in enumerate(zip(expected.results, got.results, strict=True)):
        where = Where("functional", f"result {index}", index, call.place())
        found = trial.session.difference(g, e, where)
        if found is not None:
            return "results", found
    for what, e, g in (
        ("returned inputs", expected.returned, got.returned),
        ("written inputs", expected.written, got.written),
    ):
        if e != g:
            return what, Mismatch("", "identity", str(e), str(g))
    for what, arrays, others in (
        ("inputs afterwards", expected.inputs, got.inputs),
        ("gradients", expected.gradients, got.gradients),
    ):
        for e, g in zip(arrays, others, strict=True):
            found = trial.session.difference(g, e, Where("functional", what, -1, call.place()))
            if found is not None:
                return what, found
    return None


# ---------------------------------------------------------------------- the graph


def _graph_problem(trial: Trial, call: Call, scenario: Scenario) -> Problem | None:
    """Return what is wrong with the captured graph itself."""
    op = trial.subject.op
    assert op is not None
    try:
        graph = capture(scenario.function, *_inputs(scenario, False)).graph
    except (CaptureError, FakeTensorError, DataDependentError):
        return None
    in_place = [node.op for node in graph.calls if node.op.schema.is_mutable]
    if in_place and not any("functionalized" in str(node) for node in graph.calls):
        name = in_place[0].qualname
        return Problem(call, scenario.name, f"the captured graph has an in-place node: {name}")
    if parse(str(graph)) != graph:
        return Problem(call, scenario.name, "the captured graph does not survive its text")
    calls = sum(node.op is op for node in graph.calls)
    if op.effects and scenario.name == "its first result unused" and calls < 2:
        return Problem(
            call,
            scenario.name,
            "a call with effects was removed from the captured program",
            "2 calls",
            f"{calls}",
        )
    return None


FUNCTIONAL_CHECK: Final = Check("functional", ("given", "option", "layout"), _examine, _unable)
