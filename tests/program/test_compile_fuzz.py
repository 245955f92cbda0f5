"""Compiled random functions are eager code: values, gradients, writes, identity of results."""

from __future__ import annotations

import pytest

from tests.fuzz.check import check_beside_capture
from tests.fuzz.generate import random_program

pytestmark = pytest.mark.fuzz


@pytest.mark.parametrize("chunk", range(10))
def test_compiled_programs_are_eager_code(chunk: int, fuzz_range: range) -> None:
    for seed in range(70_000 + chunk, 70_000 + len(fuzz_range) // 8, 10):
        program = random_program(seed)
        assert not check_beside_capture(program, "compile"), f"seed {seed}\n{program.text()}"


@pytest.mark.parametrize("chunk", range(10))
def test_compiled_programs_without_gradients_are_eager_code(chunk: int, fuzz_range: range) -> None:
    for seed in range(80_000 + chunk, 80_000 + len(fuzz_range) // 8, 10):
        program = random_program(seed).without_gradients()
        assert not check_beside_capture(program, "compile"), f"seed {seed}\n{program.text()}"
