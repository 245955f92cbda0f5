"""Runs a program in every mode and compares what can be observed.

Eager code is the reference. What is compared: the exception and the step it came from; results
(bits, dtype, shape, strides, aliases, identity, requires_grad); the bytes of all memory and the
versions of inputs; gradients of all leaves."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import oplib
from oplib import Tensor
from oplib.graph import (
    constant_folding,
    cse,
    dead_code,
    peepholes,
    reinplace,
    run_passes,
    verify,
    without_history,
)
from oplib.program import load, save
from tests.fuzz.inputs import Inputs
from tests.fuzz.program import Broken, Program, Runner

__all__ = [
    "MODES",
    "Observation",
    "check",
    "check_beside_capture",
    "check_guards",
    "observe",
    "seed_of",
]

Array = np.ndarray[Any, Any]
Call = Callable[[Callable[..., Any], Program, Sequence[Tensor]], Any]


# ---------------------------------------------------------------------- modes


def _eager(function: Callable[..., Any], program: Program, inputs: Sequence[Tensor]) -> Any:
    return function(*inputs)


def _functionalized(
    function: Callable[..., Any], program: Program, inputs: Sequence[Tensor]
) -> Any:
    return oplib.functionalize(function)(*inputs)


def _twice(function: Callable[..., Any], program: Program, inputs: Sequence[Tensor]) -> Any:
    return oplib.functionalize(oplib.functionalize(function))(*inputs)


def _captured(function: Callable[..., Any], program: Program, inputs: Sequence[Tensor]) -> Any:
    made = oplib.capture(function, *program.layout.make(99).tensors)
    verify(made.graph)
    return made(*inputs)


def _captured_inside(
    function: Callable[..., Any], program: Program, inputs: Sequence[Tensor]
) -> Any:
    inner = oplib.capture(function, *program.layout.make(98).tensors)
    return oplib.functionalize(inner)(*inputs)


def _functionalized_inside(
    function: Callable[..., Any], program: Program, inputs: Sequence[Tensor]
) -> Any:
    return _captured(oplib.functionalize(function), program, inputs)


FUNCTIONAL = (constant_folding, peepholes, dead_code, cse)
BUFFERS = (without_history, *FUNCTIONAL, reinplace, dead_code)


def _after_passes(function: Callable[..., Any], program: Program, inputs: Sequence[Tensor]) -> Any:
    made = oplib.capture(function, *program.layout.make(97).tensors)
    graph = run_passes(made.graph, FUNCTIONAL if program.is_differentiated else BUFFERS)
    return made.with_graph(graph)(*inputs)


def _saved(function: Callable[..., Any], program: Program, inputs: Sequence[Tensor]) -> Any:
    made = oplib.capture(function, *program.layout.make(95).tensors)
    file = io.BytesIO()
    save(made, file)
    loaded = load(file)
    assert str(loaded) == str(made)
    assert loaded.guards == made.guards
    return loaded(*inputs)


def _compiled(function: Callable[..., Any], program: Program, inputs: Sequence[Tensor]) -> Any:
    compiled = oplib.compile(function)
    examples = program.layout.make(96)
    compiled(*examples.tensors)
    result = compiled(*inputs)
    assert len(compiled.programs) <= 1, "its own guards did not hold"
    return result


MODES: dict[str, Call] = {
    "functionalize": _functionalized,
    "capture": _captured,
    "passes": _after_passes,
    "compile": _compiled,
    "saved": _saved,
    "functionalize twice": _twice,
    "capture in functionalize": _captured_inside,
    "functionalize in capture": _functionalized_inside,
}


# ---------------------------------------------------------------------- what is seen


@dataclass
class Observation:
    """Everything observable of one run."""

    error: tuple[int, str] | None = None
    raised: BaseException | None = None
    results: list[tuple[Any, ...]] = field(default_factory=list)
    aliases: list[list[bool]] = field(default_factory=list)
    identities: list[int] = field(default_factory=list)
    memory: list[bytes] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    flags: list[bool | str] = field(default_factory=list)
    gradients: list[Array | None] | str = field(default_factory=list)
    gradient_error: BaseException | None = None


def observe(call: Call, program: Program, seed: int) -> Observation:
    """Run a program in one mode on fresh inputs."""
    seen = Observation()
    inputs = program.layout.make(seed)
    before = [array.tobytes() for array in inputs.arrays]
    storages = [tensor._storage for tensor in inputs.tensors]
    runner = Runner(program)
    with np.errstate(all="ignore"):
        try:
            results = call(runner, program, inputs.tensors)
        except Broken:
            raise
        except Exception as error:
            seen.error = runner.reached, type(error).__name__
            seen.raised = error
            changed = before != [array.tobytes() for array in inputs.arrays]
            seen.flags = [call is not _eager and changed]
            return seen
        _look_at(seen, results, inputs)
        seen.versions = [storage.version for storage in storages]
        _differentiate(seen, results, inputs)
    return seen


def _look_at(seen: Observation, results: list[Tensor], inputs: Inputs) -> None:
    every = [tensor.numpy() for tensor in (*results, *inputs.tensors)]
    seen.results = [_bits(array) for array in every]
    seen.aliases = [[bool(np.shares_memory(a, b)) for b in every] for a in every]
    handles = [*inputs.tensors, *results]
    seen.identities = [next(i for i, h in enumerate(handles) if h is r) for r in results]
    seen.memory = [_canonical(array).tobytes() for array in inputs.arrays]
    seen.flags = [_requires_grad(tensor) for tensor in handles]


def _requires_grad(tensor: Tensor) -> bool | str:
    try:
        return tensor.requires_grad
    except oplib.AutogradError as error:  # its history cannot be told from addresses
        return type(error).__name__


def _bits(array: Array) -> tuple[Any, ...]:
    strides = [s for n, s in zip(array.shape, array.strides, strict=True) if n > 1 and array.size]
    return array.dtype.str, array.shape, tuple(strides), _canonical(array).tobytes()


def _canonical(array: Array) -> Array:
    """Return a C-ordered copy with one bit pattern for NaN (its sign depends on the loop used)."""
    copy = np.array(array, order="C")
    if copy.dtype.kind in "fc":
        parts = copy.view(copy.real.dtype) if copy.ndim else copy.reshape(1).view(copy.real.dtype)
        parts[np.isnan(parts)] = np.nan
    return copy


def _differentiate(seen: Observation, results: list[Tensor], inputs: Inputs) -> None:
    outputs = list({id(r): r for r in results if _requires_grad(r) is True}.values())
    if not outputs:
        return
    seeds = [oplib.from_numpy(seed_of(output)) for output in outputs]
    try:
        found = oplib.grad(outputs, inputs.leaves, seeds, allow_unused=True)
    except Exception as error:
        seen.gradients = type(error).__name__
        seen.gradient_error = error
        return
    seen.gradients = [None if g is None else np.array(g.numpy()) for g in found]


def seed_of(output: Tensor) -> Array:
    """Return the incoming gradient of a result."""
    weights = (np.arange(output.size) % 5 - 1.0).reshape(output.shape)
    if output.dtype.kind == "c":
        weights = weights + 1j * (weights[::-1] if weights.ndim else weights)
    return np.asarray(weights, output.dtype)


# ---------------------------------------------------------------------- what differs


def check(program: Program, modes: Sequence[str], seeds: Sequence[int] = (0, 1)) -> str:
    """Return how some mode differs from eager code, or the empty string."""
    for seed in seeds:
        expected = observe(_eager, program, seed)
        for mode in modes:
            difference = _difference(expected, observe(MODES[mode], program, seed))
            if difference:
                return f"{mode}, contents {seed}: {difference}"
    return ""


def check_beside_capture(program: Program, mode: str) -> str:
    """Return how a mode that begins with a capture differs from eager code where capture does not.

    What capture itself gets wrong is found by its own test.
    """
    difference = check(program, [mode])
    return "" if difference and check(program, ["capture"]) else difference


def check_guards(program: Program) -> str:
    """Return how a program captured where inputs share memory is wrong where they do not.

    And the other way round. It may refuse, by a `GuardError`; it must not compute something else.
    """
    apart = replace(program, layout=program.layout.apart())
    for made_for, called_with in ((program, apart), (apart, program)):
        examples = made_for.layout.make(97).tensors
        try:
            made = oplib.capture(Runner(made_for), *examples)
        except (oplib.OplibError, TypeError, ValueError, IndexError):
            continue
        found = observe(lambda _, __, inputs, made=made: made(*inputs), called_with, 0)
        if isinstance(found.raised, oplib.GuardError):
            continue
        expected = observe(_eager, called_with, 0)
        difference = _difference(expected, found)
        if difference and not expected.error:
            return f"called with other aliases: {difference}"
    return ""


REFUSALS = (
    # An opaque operator writes memory that another argument sees through detach().
    "with different histories",
    # as_strided around an input that requires grad: its history says nothing about that memory.
    "reaches beyond the memory it is taken of",
    # A recorded write to a part of an input that overlaps itself.
    "lies in an input that overlaps itself",
    # A result whose history eager code is only asked for later.
    "is not a regular part of its root",
)
"""What functional runs refuse, by a named error with these words, although eager code allows it."""


def is_refusal(found: Observation) -> bool:
    """Return whether a run was refused for a documented reason."""
    return isinstance(found.raised, oplib.AliasError | oplib.AutogradError) and any(
        words in str(found.raised) for words in REFUSALS
    )


def _difference(expected: Observation, found: Observation) -> str:
    if is_refusal(found) and not found.flags[0]:
        return ""
    if expected.error or found.error:
        if expected.error != found.error:
            note = f"\n{_trace(found.raised or expected.raised)}"
            return f"error: expected {expected.error}, found {found.error}{note}"
        return "an input was changed although the run raised" if found.flags[0] else ""
    for name in ("identities", "results", "aliases", "memory", "versions", "flags"):
        ours, theirs = getattr(expected, name), getattr(found, name)
        if ours != theirs:
            return f"{name}: expected {_shown(ours)}, found {_shown(theirs)}"
    return _gradient_difference(expected, found)


def _gradient_difference(expected: Observation, found: Observation) -> str:
    if isinstance(expected.gradients, str):
        return ""  # a captured program may give a gradient where eager code refuses one
    if isinstance(found.gradients, str):
        return f"gradients: expected values, found {_trace(found.gradient_error)}"
    for number, (a, b) in enumerate(zip(expected.gradients, found.gradients, strict=True)):
        if a is None and b is None:
            continue
        if a is None or b is None:
            if not np.any(a if b is None else b):
                continue  # no gradient, or zeros
            return f"gradient {number}: expected {a}, found {b}"
        if not np.isfinite(a).all():
            continue
        if a.dtype != b.dtype or not np.allclose(a, b, rtol=1e-4 if a.itemsize <= 4 else 1e-9):
            return f"gradient {number}: expected {a.tolist()}, found {b.tolist()}"
    return ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 900 else text[:900] + "..."


def _trace(error: BaseException | None) -> str:
    import traceback

    return "" if error is None else "".join(traceback.format_exception(error)[-4:])
