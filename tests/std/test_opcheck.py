"""opcheck passes every built-in operator; `test_facets.py` has their gradients and programs."""

from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib.testing import opcheck
from tests.std.cases import CASES, UNINITIALISED, as_tensors, operator

oplib.std.load_all()

ELSEWHERE = ("gradient", "second_gradient", "functional", "threads")
SAMPLES = 2
"""Derived calls per operator: a few of three hundred operators take long enough."""

FOR_RULES_ONLY = ("index_sum", "index_winners")
"""What only gradient rules call: arguments a user cannot give are not refused by name."""


EVERY = [n for n in CASES if n not in (*UNINITIALISED, *FOR_RULES_ONLY)]

NOT_RECORDED = ("set_value",)
"""Their results do not depend on the values as far as gradients are concerned."""


def given(name):
    """Return the arguments of one call."""
    call = as_tensors(CASES[name][0])
    args = call.args
    if name in ("imag", "conj_"):  # a view of a complex array only; a change of one only
        args = (oplib.from_numpy(np.array([1 + 2j, 3 - 1j])),)
    if name == "nan_to_num_":
        args = (oplib.from_numpy(np.array([1.0, np.nan])),)
    return args, call.kwargs


@pytest.mark.parametrize("name", EVERY)
def test_the_facets_of_every_operator_agree(name):
    report = opcheck(operator(name), *given(name), samples=SAMPLES, skip=ELSEWHERE)
    assert any(result.status == "passed" for result in report)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_every_check_passes_every_operator_on_all_that_is_derived(name):
    skip = ("gradient", "second_gradient") if name in NOT_RECORDED else ()
    assert opcheck(operator(name), *given(name), skip=skip).ok


@pytest.mark.parametrize("name", ["exp", "matmul", "sum", "add_", "cross_entropy", "index_select"])
def test_every_check_passes_one_operator_of_each_kind(name):
    call = as_tensors(CASES[name][0])
    report = opcheck(operator(name), call.args, call.kwargs, samples=2 * SAMPLES)
    assert report["gradient"].status == report["threads"].status == "passed"


@pytest.mark.parametrize("name", ["dropout", "bernoulli"])
def test_what_is_random_is_skipped_without_a_generator_and_repeats_with_one(name):
    x = oplib.from_numpy(np.linspace(0.1, 0.9, 12).reshape(3, 4))
    assert opcheck(f"std::{name}", (x,), checks="determinism", samples=0)["determinism"].reason == (
        "random, and no generator is given"
    )
    report = opcheck(f"std::{name}", (x,), {"rng": np.random.default_rng(3)}, samples=3)
    assert report["determinism"].status == "passed"
