"""Passes on programs captured from random functions: what they compute stays, to the bit."""

from __future__ import annotations

import pytest

from tests.fuzz.check import check_beside_capture
from tests.fuzz.generate import random_program

pytestmark = pytest.mark.fuzz


@pytest.mark.parametrize("chunk", range(10))
def test_programs_after_passes_are_eager_code(chunk: int) -> None:
    for seed in range(50_000 + chunk, 50_300, 10):
        program = random_program(seed)
        assert not check_beside_capture(program, "passes"), f"seed {seed}\n{program.text()}"


@pytest.mark.parametrize("chunk", range(10))
def test_programs_that_write_into_their_buffers_are_eager_code(chunk: int) -> None:
    for seed in range(60_000 + chunk, 60_300, 10):
        program = random_program(seed).without_gradients()
        assert not check_beside_capture(program, "passes"), f"seed {seed}\n{program.text()}"
