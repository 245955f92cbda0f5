"""Constant folding, peepholes, re-inplacing, memory plans: when they fire, when they must not."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplib.errors import CaptureError
from oplib.graph import (
    Graph,
    Pass,
    constant_folding,
    cse,
    dead_code,
    parse,
    peepholes,
    plan_memory,
    reinplace,
    run_passes,
    without_history,
)
from tests.fuzz.check import check
from tests.fuzz.generate import random_program
from tests.graph.helpers import graphs, reparsed, same_bits, tensor
from tests.graph.test_passes import observed

reinplacing, peephole_rules, cse_rules = (
    importlib.import_module(f"oplib.graph.passes.{name}")
    for name in ("reinplace", "peepholes", "cse")
)

HEAD = "graph f(x: f32[3], y: f32[3], m: f32[2,3]):"


def after(transform: Pass, *lines: str) -> list[str]:
    """Return the lines a pass makes of a graph, verified on both sides."""
    graph = run_passes(parse("\n    ".join([HEAD, *lines])), [transform])
    assert reparsed(graph) == graph
    return [line.strip() for line in str(graph).splitlines()[1:]]


def stays(transform: Pass, *lines: str) -> bool:
    """Whether a pass leaves a graph alone."""
    graph = parse("\n    ".join([HEAD, *lines]))
    return run_passes(graph, [transform]) is graph


# Constant folding ---------------------------------------------------------------------------------

ONE = "constant: f32[3] = constant([1.0, 2.0, 3.0])"


def test_folding_computes_what_depends_on_constants_alone() -> None:
    assert after(
        constant_folding,
        ONE,
        "add: f32[3] = std.add(constant, 1.0)",
        "mul: f32[3] = std.mul(add, add)",
        "add_1: f32[3] = std.add(x, mul)",
        "return add_1",
    )[2:] == [
        "mul: f32[3] = constant([4.0, 9.0, 16.0])",
        "add: f32[3] = std.add(x, mul)",
        "return add",
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ("add: f32[3] = std.add(x, 1.0)", "return add"),
        ("zeros: f32[3] = std.zeros([3], dtype=f32)", "return zeros"),
        ("draw: f32[3], draw_1: token[random] = gt.draw(constant)", "return draw"),
        ("drift: f32[3] = gt.drift(constant)", "return drift"),
        ("fails: f32[3] = gt.fails(constant)", "return fails"),
        ("add: f32[3] = std.add(constant, 1.0)", "return &add"),
        ("add: f64[3] = std.add(constant, 1.0)", "return add"),
        ("log: token[ordered] = gt.log(constant)", "return"),
        ("div: f32[3] = std.div(constant, 0.0)", "return div"),
        ("new_full: f32[30000] = std.new_full(constant, [30000], 1.0)", "return new_full"),
    ],
)
def test_folding_leaves_alone_what_is_not_a_small_pure_function_of_constants(
    lines: tuple[str, ...],
) -> None:
    assert stays(constant_folding, ONE, *lines)


def test_folding_needs_the_bytes_of_its_constants() -> None:
    digest = "#sha256:" + "1" * 64
    lines = f"c: f32[9] = constant({digest})", "add: f32[9] = std.add(c, 1.0)", "return add"
    assert stays(constant_folding, *lines)


# Peepholes ----------------------------------------------------------------------------------------

PUT = "put: f32[2,3] = std.strided_put(m, x, [3], [1], 3)"


@pytest.mark.parametrize(
    ("transform", "lines", "result"),
    [
        (peepholes, ("a: f32[3] = std.clone(x)",), "x"),
        (peepholes, ("a: f32[3] = std.cast(x, f32)",), "x"),
        (peepholes, ("a: f32[3] = std.broadcast_to(x, [3])",), "x"),
        (peepholes, ("a: f32[2,3] = std.with_layout(m, [3, 1])",), "m"),
        (
            peepholes,
            ("p: f32[3,2]{1,3} = std.permute(m, [1, 0])", "a: f32[2,3] = std.permute(p, [1, 0])"),
            "m",
        ),
        (
            peepholes,
            (
                "r: f32[3] = std.strided_get(m, [3], [1], 3)",
                "a: f32[2,3] = std.strided_put(m, r, [3], [1], 3)",
            ),
            "m",
        ),
        (without_history, (PUT, "a: f32[3] = std.strided_get(put, [3], [1], 3)"), "x"),
        (without_history, ("a: f32[3] = std.strided_put(y, x, [3], [1], 0)",), "x"),
        (without_history, ("a: f32[3] = std.graft(x, y)",), "x"),
        (without_history, ("a: f32[3] = std.detach(x)",), "x"),
    ],
)
def test_a_peephole_fires(transform: Pass, lines: tuple[str, ...], result: str) -> None:
    assert after(transform, *lines, "return a")[-1] == f"return {result}"


def test_of_two_writes_to_the_same_addresses_the_later_counts() -> None:
    lines = PUT, "a: f32[2,3] = std.strided_put(put, y, [3], [1], 3)", "return a"
    assert after(without_history, *lines)[1] == "a: f32[2,3] = std.strided_put(m, y, [3], [1], 3)"


@pytest.mark.parametrize(
    ("transform", "lines"),
    [
        (peepholes, ("a: f32[3] = std.clone(x) ! no_grad",)),
        (peepholes, ("a: f32[3] = std.clone(x)", "b: f32[3] = functionalized(gt.inc_, &a)")),
        (peepholes, ("a: f32[3,2]{1,3} = std.permute(m, [1, 0])",)),
        (peepholes, ("a: f32[2,3]{1,2} = std.with_layout(m, [1, 2])",)),
        (peepholes, ("a: f64[3] = std.cast(x, f64)",)),
        (
            peepholes,
            (
                PUT,
                "r: f32[3] = std.strided_get(put, [3], [1], 3)",
                "a: f32[2,3] = std.strided_put(m, r, [3], [1], 3)",
            ),
        ),
        (
            peepholes,
            (
                "r: f32[3] = std.strided_get(m, [3], [1], 0)",
                "a: f32[2,3] = std.strided_put(m, r, [3], [1], 3)",
            ),
        ),
        (without_history, (PUT, "a: f32[3] = std.strided_get(put, [3], [1], 2)")),
        (
            without_history,
            (
                "o: f32[2,3] = std.strided_put(m, x, [3], [0], 0)",
                "a: f32[3] = std.strided_get(o, [3], [0], 0)",
            ),
        ),
        (
            without_history,
            (
                "o: f32[2,3] = std.strided_put(m, 1.0, [3], [1], 0)",
                "a: f32[3] = std.strided_get(o, [3], [1], 0)",
            ),
        ),
        (without_history, ("a: f32[3] = std.strided_put(y, x, [3], [-1], 2)",)),
        (without_history, (PUT, "a: f32[2,3] = std.strided_put(put, y, [3], [1], 0)")),
    ],
)
def test_a_peephole_does_not_fire(transform: Pass, lines: tuple[str, ...]) -> None:
    assert stays(transform, *lines, "return a")


def test_what_a_result_shows_of_a_buffer_keeps_its_own() -> None:
    assert stays(peepholes, "a: f32[3] = std.clone(x)", "return &a[2]:[1]+0")


def test_without_history_drops_flags() -> None:
    assert after(without_history, "a: f32[3] = std.add(x, y) ! no_grad", "return a") == [
        "a: f32[3] = std.add(x, y)",
        "return a",
    ]


# Re-inplacing -------------------------------------------------------------------------------------

A = "a: f32[3] = std.add(x, y)"


def test_an_elementwise_call_writes_into_an_operand_that_is_not_needed_any_more() -> None:
    assert after(
        reinplace, A, "b: f32[3] = std.mul(a, 2.0)", "c: f32[3] = std.exp(b)", "return c"
    ) == ["a: f32[3] = std.add(x, y)", "std.mul_(a, 2.0)", "std.exp_(a)", "return a"]


def test_a_functionalized_call_becomes_the_call_that_writes() -> None:
    assert after(
        reinplace, A, "b: f32[3] = std.mul(x, y)",
        "r: f32[3], a_1: f32[3], b_1: f32[3] = functionalized(gt.two_, &a, &b)",
        "return r, a_1, b_1",
    )[2:] == ["r: f32[3] = gt.two_(a, b)", "return r, a, b"]  # fmt: skip


@pytest.mark.parametrize(
    "lines",
    [
        ("b: f32[3] = std.mul(x, 2.0)", "return b"),
        (ONE, "b: f32[3] = std.mul(constant, 2.0)", "return b"),
        (A, "b: f32[3] = std.mul(a, 2.0)", "return a, b"),
        (A, "b: f32[3] = std.mul(a, 2.0)", "c: f32[3] = std.add(b, a)", "return b, c"),
        (A, "b: f32[3] = std.mul(a, 2.0)", "write x = a", "return b"),
        (
            A,
            "p: f32[3] = std.permute(a, [0])",
            "b: f32[3] = std.mul(a, 2.0)",
            "c: f32[3] = std.add(y, p)",
            "return b, c",
        ),
        (A, "p: f32[3] = std.permute(a, [0])", "b: f32[3] = std.mul(p, a)", "return b"),
        ("a: f32[1] = std.strided_get(x, [1], [1], 0)", "b: f32[3] = std.mul(a, y)", "return b"),
        (A, "b: bool[3] = std.gt(a, 1.0)", "return b"),
        (A, "b: f32[3] = gt.mul(a, 2.0)", "return b"),
        (A, "log: token[ordered] = gt.log(a)", "b: f32[3] = std.mul(a, 2.0)", "return b"),
        (A, "a_1: f32[3] = functionalized(gt.inc_, &a[2]:[1]+0)", "return a_1"),
        (A, "a_1: f32[3] = functionalized(gt.inc_, &a)", "return a, a_1"),
        ("x_1: f32[3] = functionalized(gt.inc_, &x)", "return x_1"),
    ],
)
def test_a_call_does_not_write_what_is_needed_or_was_not_allocated_here(
    lines: tuple[str, ...],
) -> None:
    assert stays(reinplace, *lines)


def test_a_value_is_an_operand_twice_of_an_elementwise_call() -> None:
    assert "std.mul_(a, a)" in after(reinplace, A, "b: f32[3] = std.mul(a, a)", "return b")


# Memory plans -------------------------------------------------------------------------------------


def test_temporaries_that_do_not_live_together_share_bytes() -> None:
    graph = parse(
        "\n    ".join([HEAD, A, *(
            f"v{i}: f32[3] = gt.add({f'v{i - 1}' if i else 'a'}, y)" for i in range(6)
        ), "return v5"])
    )  # fmt: skip
    plan = plan_memory(graph)
    assert (len(plan.places), plan.unshared, plan.peak, plan.size) == (6, 72, 24, 76)
    assert str(plan) == "6 temporaries of 72 bytes in 76 (peak 24)"


@pytest.mark.parametrize(
    "lines",
    [
        (A, "return a"),
        (A, "return &a"),
        (A, "write x = a", "return"),
        (A, "log: token[ordered] = gt.log(a)", "return"),
        (A, "p: f32[3] = std.permute(a, [0])", "return p"),
        ("p: f32[3] = std.permute(x, [0])", "b: f32[3] = std.add(p, x)", "return b"),
    ],
)
def test_results_effects_and_views_are_not_planned(lines: tuple[str, ...]) -> None:
    assert not plan_memory(parse("\n    ".join([HEAD, *lines]))).places


@given(graphs())
def test_no_two_values_that_live_together_share_bytes(graph: Graph) -> None:
    plan = plan_memory(graph)
    needed: dict[Any, tuple[int, int]] = {}
    for position, node in enumerate(graph.nodes):
        for value in plan.places:
            if graph.producers[value] is node or node in graph.users.get(value, ()):
                needed[value] = needed.get(value, (position, position))[0], position
    for one, (start, size) in plan.places.items():
        for other, (begin, length) in plan.places.items():
            (a, b), (c, d) = needed[one], needed[other]
            if one is not other and a <= d and c <= b:
                assert start + size <= begin or begin + length <= start
    assert plan.peak <= plan.size or not plan.places


# Any order, and mistakes --------------------------------------------------------------------------

FUNCTIONAL = [constant_folding, peepholes, dead_code, cse, without_history]


@given(graphs(), st.permutations(FUNCTIONAL), st.lists(st.floats(width=32), min_size=9, max_size=9))
def test_rewriting_in_any_order_keeps_values_and_effects(
    graph: Graph, passes: list[Pass], numbers: list[float]
) -> None:
    rows = np.array(numbers, np.float32).reshape(3, 3)
    with np.errstate(all="ignore"):
        for result in (run_passes(graph, passes), run_passes(graph, [*passes, reinplace])):
            inputs = [tensor(*row) for row in rows[: len(graph.placeholders)]]
            values, effects = observed(graph, inputs)
            new_values, new_effects = observed(result, inputs)
            assert same_bits(values, new_values)
            assert effects == new_effects


@pytest.mark.parametrize("transform", [constant_folding, peepholes, without_history, reinplace])
@given(graph=graphs())
def test_rewriting_is_idempotent(transform: Pass, graph: Graph) -> None:
    once = transform(graph)
    assert transform is reinplace or transform(once) is once


Switch = Callable[[pytest.MonkeyPatch], None]


def _nothing_is_used_later(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reinplacing, "_is_free", lambda target, others, position, buffers: True)


def _views_are_buffers(patch: pytest.MonkeyPatch) -> None:
    def apart(node: Any) -> Any:
        return ((value, []) for value in reinplacing.defined_values(node))

    patch.setattr(reinplacing, "_allocated", apart)


def _any_address(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(peephole_rules, "_place", lambda arguments: ([], [], [0]))


def _nothing_is_referenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(peephole_rules, "referenced", lambda graph: set())


def _numbers_are_equal(patch: pytest.MonkeyPatch) -> None:
    key = cse_rules._argument_key
    patch.setattr(
        cse_rules,
        "_argument_key",
        lambda x: 0 if isinstance(x, int | float | list) else key(x),
    )


MUTANTS: list[Switch] = [
    _nothing_is_used_later,
    _views_are_buffers,
    _any_address,
    _nothing_is_referenced,
    _numbers_are_equal,
]


@pytest.mark.fuzz
@pytest.mark.parametrize("switch", MUTANTS)
def test_a_wrong_pass_is_caught(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    switch(monkeypatch)
    for seed in range(60_000, 60_600):
        try:
            if check(random_program(seed).without_gradients(), ["passes"], seeds=(0,)):
                return
        except CaptureError:
            return  # the verifier saw it
    assert values_of(VIEWED) != values_of(reinplace(VIEWED)), "no program of 600 notices"


VIEW = "p: f32[3] = std.permute(a, [0])"
VIEWED = parse("\n    ".join([HEAD, A, VIEW, "b: f32[3] = std.mul(a, 2.0)", "return b, p"]))


def values_of(graph: Graph) -> list[list[float]]:
    """Return what a graph of three vectors computes."""
    values, _ = observed(graph, [tensor(1.0, 2.0, 3.0)] * 3)
    return [value.tolist() for value in values]
