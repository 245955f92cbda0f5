"""Gradients of random programs against finite differences: is the reference itself right?

Only programs count whose gradient is the derivative of what they compute: without no_grad and
``detach``, and with operators whose rule holds for arguments that overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import oplib
from oplib import Tensor
from tests.fuzz.check import seed_of
from tests.fuzz.inputs import Inputs
from tests.fuzz.program import Program, Runner

__all__ = ["differentiable", "gradient_problem"]

Array = np.ndarray[Any, Any]

NOT_DERIVATIVES = (
    "detach",
    "set_value",
    "fz.opt_",
    "fz.axpy_",
    "fz.two_",
    "fz.lst_",
    "fz.swap_",
    "fz.scale_",
)
"""Words in steps whose gradient is not the derivative, for arguments that overlap at least."""


def differentiable(program: Program) -> Program | None:
    """Return the program without steps that differences cannot follow; None if nothing is left."""
    steps = [
        replace(step, no_grad=False)
        for step in program.steps
        if not step.no_grad and not any(word in step.text for word in NOT_DERIVATIVES)
    ]
    buffers = program.layout.buffers
    if any(b.dtype not in ("float64", "complex128") for b in buffers if b.kind != "plain"):
        return None
    return replace(program, steps=tuple(steps))


def gradient_problem(program: Program, step: float = 1e-3) -> str:
    """Return how a gradient differs from finite differences, or the empty string."""
    inputs = program.layout.make(0, smooth=True)
    contents = [leaf.numpy().copy() for leaf in inputs.leaves]
    outputs = _outputs(program, inputs)
    if not outputs:
        return ""
    seeds = [seed_of(output) for output in outputs]
    found = oplib.grad(
        outputs, inputs.leaves, list(map(oplib.from_numpy, seeds)), allow_unused=True
    )
    for number, gradient in enumerate(found):
        numeric = _numeric(program, contents, number, seeds, step)
        if numeric is None:
            continue
        exact = np.zeros_like(numeric) if gradient is None else gradient.numpy()
        scale = 1 + np.abs(numeric).max(initial=0)
        if not np.allclose(exact / scale, numeric / scale, atol=1e-5):
            return f"leaf {number}: gradient {exact.tolist()}, differences {numeric.tolist()}"
    return ""


def _outputs(program: Program, inputs: Inputs) -> list[Tensor]:
    results = Runner(program)(*inputs.tensors)
    return list({id(r): r for r in results if r.requires_grad}.values())


def _numeric(
    program: Program, contents: Sequence[Array], number: int, seeds: Sequence[Array], step: float
) -> Array | None:
    """Return the derivative by every element of a leaf, or None where differences do not settle."""
    gradient = np.zeros_like(contents[number])
    units = [1.0, 1j] if gradient.dtype.kind == "c" else [1.0]
    for index in np.ndindex(gradient.shape):
        for unit in units:
            coarse, fine = (
                (
                    _loss(program, contents, number, index, unit * h, seeds)
                    - _loss(program, contents, number, index, -unit * h, seeds)
                )
                / (2 * h)
                for h in (step, step / 2)
            )
            better = (4 * fine - coarse) / 3
            if not np.isfinite(better) or abs(better - fine) > 1e-2 * (1 + abs(better)):
                return None
            gradient[index] += unit * better
    return gradient


def _loss(
    program: Program,
    contents: Sequence[Array],
    number: int,
    index: tuple[int, ...],
    change: complex,
    seeds: Sequence[Array],
) -> float:
    """Return the real part of the sum of all results, weighted, at a changed leaf."""
    made = program.layout.make(0, smooth=True)
    arrays = iter(contents)
    every = [
        next(arrays).copy() if buffer.kind != "plain" else array.copy()
        for buffer, array in zip(program.layout.buffers, made.arrays, strict=True)
    ]
    places = [i for i, buffer in enumerate(program.layout.buffers) if buffer.kind != "plain"]
    every[places[number]][index] += change
    outputs = _outputs(program, program.layout.make_of(every))
    pairs = zip(outputs, seeds, strict=True)
    return float(sum(np.real(np.sum(np.conj(seed) * out.numpy())) for out, seed in pairs))
