"""`oplib.graph.readiness`: what graph compilers expect of an operator, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import Library
from oplib.graph import readiness


@pytest.fixture
def lib() -> Iterator[Library]:
    """A library whose operators live for one test."""
    with Library("ready", "DEF") as library:
        yield library


def define(lib: Library, schema: str, kernel: Any = None, rule: Any = None, **options: Any) -> Any:
    """Define an operator with what is given."""
    op = lib.define(schema, **options).op
    if kernel is not None:
        op.register_kernel("cpu", kernel)
    if rule is not None:
        op.register_fake(rule)
    return op


def like(x: Any, *rest: Any) -> Any:
    """Describe a result like the first argument."""
    return oplib.empty_like(x)


def write_one(x: Any, *rest: Any) -> None:
    """Add one in place."""
    np.add(x, 1, out=x)


def write_and_double(x: Any) -> Any:
    """Write what the schema does not say is written."""
    write_one(x)
    return x * 2


X = oplib.ones(2, 3)


def test_a_functional_operator_is_ready(lib: Library) -> None:
    op = define(lib, "scale(Tensor x, float by) -> Tensor", lambda x, by: x * by, like)
    found = readiness(op, X, 2.0)
    assert found.ready
    assert not found.missing
    assert found.verdicts["functional form"] is None
    assert found.verdicts["symbolic sizes"] == ""


def test_an_in_place_operator_is_ready_without_rule_or_twin(lib: Library) -> None:
    found = readiness(define(lib, "inc_(Tensor(a!) x) -> ()", write_one), X)
    assert found.ready
    assert found.verdicts["functional form"] == ""
    np.testing.assert_array_equal(X.numpy(), np.ones((2, 3)))


def test_operators_made_by_custom_op_are_judged_alike() -> None:
    @oplib.custom_op("ready::doubled", mutates_args=())
    def doubled(x: np.ndarray) -> np.ndarray:
        return x * 2

    try:
        assert set(readiness(doubled, X).missing) == {"fake rule"}
        oplib.register_fake("ready::doubled", like)
        assert readiness(doubled, X).ready
    finally:
        doubled.definition.remove()


@pytest.mark.parametrize(
    ("schema", "kernel", "rule", "args", "requirement", "parts"),
    [
        (
            "rule(Tensor x) -> Tensor",
            lambda x: x + 1,
            None,
            (X,),
            "fake rule",
            ['oplib.register_fake("ready::rule")'],
        ),
        (
            "kernel_(Tensor(a!) x) -> ()",
            None,
            None,
            (),
            "kernel",
            ['oplib.register_kernel("ready::kernel_"'],
        ),
        (
            "kernel_(Tensor(a!) x) -> ()",
            None,
            None,
            (),
            "functional form",
            ['oplib.register_functional("ready::kernel_")'],
        ),
        (
            "device(Tensor x) -> Tensor",
            lambda x: x + 1,
            lambda x: oplib.empty(x.shape, device="cpu"),
            (X,),
            "fakes on npu:0",
            ["device must be npu:0, got cpu", "test_readiness.py"],
        ),
        (
            "write(Tensor x) -> Tensor",
            write_and_double,
            like,
            (X,),
            "declared writes",
            ["`x` is written", "Tensor(a!) x"],
        ),
        (
            "mixed(Tensor(a!) x, Tensor y) -> (Tensor(a!), Tensor extra)",
            lambda x, y: (x, y + 1),
            lambda x, y: (x, oplib.empty_like(y)),
            (X, X),
            "returns",
            ["`x` returned", "return (Tensor extra) only"],
        ),
        (
            "scalar(Tensor x, Scalar s, Device? d=None) -> Tensor",
            lambda x, s, d: x * s,
            like,
            (X, 2),
            "attribute types",
            ["`Scalar s` and `Device? d`", "converters take int"],
        ),
        (
            "order(int n, Tensor[] xs, Tensor x) -> Tensor",
            lambda n, xs, x: x + n,
            lambda n, xs, x: oplib.empty_like(x),
            (1, [X], X),
            "argument order",
            ["`xs` and `x` forward"],
        ),
        (
            "sizes(Tensor x) -> Tensor",
            lambda x: x + 1,
            lambda x: x.new_empty([int(n) for n in x.shape]),
            (X,),
            "symbolic sizes",
            ["int(), range()", "test_readiness.py"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_is_missing_is_named_with_its_remedy(
    lib: Library,
    schema: str,
    kernel: Callable[..., Any] | None,
    rule: Callable[..., Any] | None,
    args: tuple[Any, ...],
    requirement: str,
    parts: list[str],
) -> None:
    found = readiness(define(lib, schema, kernel, rule), *args)
    assert not found.ready
    assert requirement in found.missing
    for part in parts:
        assert part in found.missing[requirement]


def test_an_operator_without_results_writes_or_effects_would_be_dropped(lib: Library) -> None:
    kept = define(lib, "log(Tensor x) -> ()", lambda x: None)
    dropped = define(lib, "silent(Tensor x) -> ()", lambda x: None, effects=())
    assert readiness(kept).ready
    assert set(readiness(dropped).missing) == {"effects"}


def test_registered_samples_are_run(lib: Library) -> None:
    op = define(lib, "sampled(Tensor x) -> Tensor", write_and_double, like)
    assert readiness(op).verdicts["declared writes"] is None
    op.register_samples(lambda: [((oplib.zeros(0),), {}), ((X.clone(),), {})])
    assert set(readiness(op).missing) == {"declared writes"}


def test_the_order_of_registrations_does_not_matter(lib: Library) -> None:
    op = lib.define("late_(Tensor(a!) x) -> Tensor").op
    op.register_fake(like)
    op.register_functional(lambda x: (x * 2, x + 1))
    assert set(readiness(op, X).missing) == {"kernel"}
    op.register_kernel("cpu", write_and_double)
    assert readiness(op, X).ready


def test_a_report_prints_one_line_per_requirement(lib: Library) -> None:
    define(lib, "shown(Tensor x) -> Tensor", lambda x: x + 1)
    lines = str(readiness("ready::shown", X)).splitlines()
    assert lines[0] == "ready::shown: not ready"
    assert lines[4].split() == ["kernel", "pass"]
    assert lines[5].split(maxsplit=3)[:3] == ["fake", "rule", "FAIL"]
    assert len(lines) == 11
