"""Makes a failing program smaller: fewer steps, fewer results, as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.fuzz.program import Broken, Program, Step

__all__ = ["shrunk"]


def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Return a program that still fails and from which no step can be deleted."""

    def still_fails(candidate: Program) -> bool:
        try:
            return fails(candidate)
        except Broken:
            return False

    size = max(1, len(program.steps) // 2)
    while size:
        start = 0
        while start < len(program.steps):
            candidate = program.without(start, size)
            if still_fails(candidate):
                program = candidate
            else:
                start += size
        size //= 2
    for name in program.results:
        rest = tuple(other for other in program.results if other != name)
        candidate = replace(program, results=rest)
        if rest and still_fails(candidate):
            program = candidate
    for number, step in enumerate(program.steps):
        if step.no_grad:
            steps = [*program.steps]
            steps[number] = Step(step.text)
            candidate = replace(program, steps=tuple(steps))
            if still_fails(candidate):
                program = candidate
    return program
