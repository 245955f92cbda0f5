"""Random programs as data: lines of Python that run one by one, print, and can be deleted.

A line names tensors ``x0, x1, ...`` (inputs) and ``v0, v1, ...`` (made by earlier lines). A program
that lost the line a name comes from raises `Broken`, which is how shrinking notices.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

import numpy as np

import oplib
from oplib import Tensor
from tests.fuzz import operators
from tests.fuzz.inputs import Layout

__all__ = ["Broken", "Program", "Step"]

SCOPE = {"oplib": oplib, "np": np, "fz": operators}


class Broken(Exception):  # noqa: N818
    """A line uses a name that no line makes."""


@dataclass(frozen=True)
class Step:
    """One line, and whether it runs under no_grad."""

    text: str
    no_grad: bool = False

    @property
    def code(self) -> CodeType:
        """The compiled line."""
        return _compiled(self.text)


@functools.lru_cache(maxsize=20_000)
def _compiled(text: str) -> CodeType:
    return compile(text, "<fuzz>", "exec")


@dataclass(frozen=True)
class Program:
    """Inputs, steps, and the names of the results."""

    layout: Layout
    steps: tuple[Step, ...]
    results: tuple[str, ...]

    def text(self) -> str:
        """Return the program as Python text."""
        names = ", ".join(f"x{i}" for i in range(len(self.layout.inputs)))
        lines = [f"layout = {self.layout.text()}", "", f"def program({names}):"]
        inside = False
        for step in self.steps:
            if step.no_grad and not inside:
                lines.append("    with oplib.no_grad():")
            inside = step.no_grad
            lines.append(f"    {'    ' * inside}{step.text}")
        return "\n".join([*lines, f"    return [{', '.join(self.results)}]"])

    @property
    def is_differentiated(self) -> bool:
        """Whether a gradient may be recorded anywhere."""
        kinds = {buffer.kind for buffer in self.layout.buffers}
        return kinds != {"plain"} or any("grad" in step.text for step in self.steps)

    def without_gradients(self) -> Program:
        """Return the program on inputs of which none requires grad."""
        buffers = tuple(replace(each, kind="plain") for each in self.layout.buffers)
        return replace(self, layout=replace(self.layout, buffers=buffers))

    def without(self, start: int, count: int) -> Program:
        """Return the program without some steps."""
        return replace(self, steps=self.steps[:start] + self.steps[start + count :])


class Runner:
    """Runs a program; `reached` is the number of the step that ran last."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.reached = -1

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Run all steps and return the results."""
        names: dict[str, Any] = {f"x{i}": tensor for i, tensor in enumerate(tensors)}
        for number, step in enumerate(self.program.steps):
            self.reached = number
            run_step(step, names)
        self.reached = len(self.program.steps)
        return results_of(self.program.results, names)


def run_step(step: Step, names: dict[str, Any]) -> None:
    """Run one step on the tensors of `names`."""
    try:
        if step.no_grad:
            with oplib.no_grad():
                exec(step.code, SCOPE, names)
        else:
            exec(step.code, SCOPE, names)
    except NameError as error:
        raise Broken(str(error)) from None


def results_of(results: Sequence[str], names: dict[str, Any]) -> list[Tensor]:
    """Return the tensors with these names."""
    missing = [name for name in results if name not in names]
    if missing:
        raise Broken(missing[0])
    return [names[name] for name in results]
