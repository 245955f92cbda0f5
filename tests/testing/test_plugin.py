"""The pytest plugin: fixtures that clean up, tests made from a module's operators."""

from __future__ import annotations

import types
from importlib.metadata import entry_points

import pytest

import oplib
from oplib.testing import operators, plugin
from oplib.testing.opcheck import CHECKS
from tests.testing.helpers import operator, scope

pytest_plugins = ["pytester"]

INSTALLED = any(point.name == "oplib" for point in entry_points(group="pytest11"))
PLUGIN = () if INSTALLED else ("-p", "oplib.testing.plugin")

HEAD = """
import numpy as np
import pytest
import oplib
import oplib.testing
"""


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Return a function that runs a file of tests in this process with the plugin."""

    def run(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(HEAD + text)
        return pytester.runpytest_inprocess("-p", "no:randomly", *PLUGIN, *options)

    return run


def test_a_scoped_library_ends_with_a_failing_test(run):
    result = run(
        """
def test_fails(scoped_library):
    scoped_library.define("f(Tensor x) -> Tensor")
    assert oplib.has_op("test_fails::f")
    assert False

def test_after():
    assert not oplib.has_op("test_fails::f")
"""
    )
    result.assert_outcomes(passed=1, failed=1)


def test_checked_mode_holds_for_one_test(run):
    result = run(
        """
@oplib.custom_op("plugin::sneaky", mutates_args=())
def sneaky(x: np.ndarray) -> np.ndarray:
    x += 1
    return x * 1

def test_watched(checked_mode):
    with pytest.raises(ValueError, match="read-only"):
        sneaky(oplib.ones(1))

def test_not_watched():
    sneaky(oplib.ones(1))
"""
    )
    result.assert_outcomes(passed=2)


def test_operators_of_a_module_become_one_test_per_check(run):
    result = run(
        """
import sys

@oplib.custom_op("plugin::triple", mutates_args=())
def triple(x: np.ndarray) -> np.ndarray:
    return x * 3

triple.register_fake(oplib.shapes.like("x"))
triple.register_vjp(x=lambda grad: grad * 2)

@oplib.testing.operators(sys.modules[__name__], checks=["fake", "gradient"])
def test_facets(op, check):
    oplib.testing.opcheck(op, checks=check)
""",
        "-v",
        "-m",
        "opcheck",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*plugin::triple-fake* PASSED*", "*plugin::triple-gradient* FAILED*"]
    )


def test_a_module_without_operators_is_refused():
    with pytest.raises(ValueError, match="empty defines no operator"):
        operators(types.ModuleType("empty"))


def test_all_checks_run_by_default():
    with scope() as lib:
        made = operator(lib, "f(Tensor x) -> Tensor", lambda x: x + 0)
        module = types.ModuleType(made.definition_source.module)
        [_, pairs] = operators(module).args
    assert [check for op, check in (p.values for p in pairs) if op is made] == list(CHECKS)


def test_the_plugin_exports_no_names():
    assert plugin.__all__ == []
    assert oplib.testing.operators is operators
