from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplib._tree import leaves
from oplib.errors import CaptureError
from oplib.graph import (
    Graph,
    Pass,
    Reference,
    Value,
    cse,
    dead_code,
    evaluate,
    graph_pass,
    parse,
    run_passes,
    verify,
)
from tests.graph.helpers import LOG, graphs, reparsed, run_functionalized, same_bits, tensor


def body(graph: Graph) -> list[str]:
    return [line.strip() for line in str(graph).splitlines()[1:]]


def after(transform: Pass, text: str) -> list[str]:
    """Return the lines a pass makes of a graph, verified on both sides."""
    return body(run_passes(parse(text), [transform]))


# Dead code ----------------------------------------------------------------------------------------


def test_dead_code_removes_what_nothing_needs() -> None:
    assert after(
        dead_code,
        """\
graph f(x: f32[3], unused: f32[3]):
    constant: f32[1] = constant([1.0])
    add: f32[3] = gt.add(x, constant)
    mul: f32[3] = gt.mul(add, 2.0)
    mul_1: f32[3] = gt.mul(x, 2.0)
    x_1: f32[3] = functionalized(gt.inc_, &x)
    return mul_1""",
    ) == ["mul: f32[3] = gt.mul(x, 2.0)", "return mul"]


def test_dead_code_keeps_effects_draws_checks_and_what_they_need() -> None:
    text = """\
graph f(x: f32[3]):
    add: f32[3] = gt.add(x, 1.0)
    log: token[ordered] = gt.log(add)
    _: f32[3], draw: token[random] = gt.draw(x)
    check: token[check], check_1: token[io] = gt.check(x)
    _: f32[3], say: token[io] = functionalized(gt.say_, &x, after=check_1)
    return"""
    graph = parse(text)
    assert run_passes(graph, [dead_code]) is graph


def test_dead_code_keeps_writes_rebinds_and_referenced_values() -> None:
    text = """\
graph f(x: f32[3]):
    add: f32[3] = gt.add(x, 1.0)
    mul: f32[3] = gt.mul(x, 1.0)
    add_1: f32[3] = gt.add(x, 2.0)
    write x = add
    rebind x = &mul[1]:[1]+0
    return &add_1[1]:[1]+0"""
    graph = parse(text)
    assert run_passes(graph, [dead_code]) is graph


def test_dead_code_keeps_all_results_of_a_call_if_one_is_needed() -> None:
    text = """\
graph f(x: f32[3]):
    _: f32[3], pair: f32[3] = gt.pair(x)
    return pair"""
    graph = parse(text)
    assert run_passes(graph, [dead_code]) is graph


def test_dead_code_keeps_what_binds_a_symbol_that_is_needed() -> None:
    text = """\
graph f(x: f32[3]):
    positive: f32[u0] = gt.positive(x)
    positive_1: f32[u1] = gt.positive(x)
    zeros: f32[2*u0] = gt.zeros([2*u0])
    return zeros"""
    assert after(dead_code, text) == [
        "positive: f32[u0] = gt.positive(x)",
        "zeros: f32[2*u0] = gt.zeros([2*u0])",
        "return zeros",
    ]


def test_dead_code_keeps_calls_that_write_a_buffer() -> None:
    graph = parse("graph f(x: f32[3]):\n    gt.inc_(x)\n    return x")
    assert run_passes(graph, [dead_code], "buffers") is graph


# Common subexpressions ----------------------------------------------------------------------------


def merged(first: str, second: str, tail: str = "return a, b", extra: str = "") -> bool:
    """Whether two calls ``a`` and ``b`` become one."""
    head = "graph f(x: f32[3], y: f32[3]):"
    text = "\n    ".join([head, *filter(None, [extra]), f"a: {first}", f"b: {second}", tail])
    graph = parse(text)
    verify(graph)
    result = cse(graph)
    verify(result)
    return result is not graph


def test_equal_calls_merge_and_their_users_follow() -> None:
    assert after(
        cse,
        """\
graph f(x: f32[3]):
    add: f32[3] = gt.add(x, 1.0)
    add_1: f32[3] = gt.add(x, 1.0)
    mul: f32[3] = gt.mul(add, 2.0)
    mul_1: f32[3] = gt.mul(add_1, 2.0)
    return mul, mul_1""",
    ) == [
        "add: f32[3] = gt.add(x, 1.0)",
        "mul: f32[3] = gt.mul(add, 2.0)",
        "return mul, mul",
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("f32[3] = gt.add(x, 1.0)", "f32[3] = gt.add(x, 1)"),
        ("f32[3] = gt.add(x, 1.0)", "f32[3] = gt.add(x, True)"),
        ("f32[3] = gt.mul(x, 0.0)", "f32[3] = gt.mul(x, -0.0)"),
        ("f32[3] = gt.mul(x, nan)", "f32[3] = gt.mul(x, nan(0x7ff8000000000001))"),
        ("f32[3] = gt.add(x, y)", "f32[3] = gt.add(y, x)"),
        ("f32[3] = gt.add(x, y)", "f32[3] = gt.mul(x, y)"),
        ("f32[3] = gt.add(x, y)", "f32[3] = gt.add(x, y) ! no_grad"),
        ("f32[3] = gt.add(x, y)", "f32[3]@npu = gt.add(x, y)"),
        ("f32[3] = gt.add(x, y)", "f64[3] = gt.add(x, y)"),
        ("f32[3] = gt.add(x, y)", "f32[3]{2} = gt.add(x, y)"),
        ("f32[3] = gt.scale(x, shift=[0, 1])", "f32[3] = gt.scale(x, shift=[1, 0])"),
        ("f32[1] = constant([1.0])", "f64[1] = constant([1.0])"),
        ("f32[1] = constant([0.0])", "f32[1] = constant([-0.0])"),
        ("f32[1] = constant([0.0])", "i32[1] = constant([0])"),
        ("f32[1,2] = constant([[0.0, 1.0]])", "f32[2,1] = constant([[0.0], [1.0]])"),
        ("f32[3] = gt.drift(x)", "f32[3] = gt.drift(x)"),
        ("f32[u0] = gt.positive(x)", "f32[u1] = gt.positive(x)"),
    ],
)
def test_calls_that_differ_do_not_merge(first: str, second: str) -> None:
    assert not merged(first, second)


@pytest.mark.parametrize(
    "line",
    [
        "f32[3] = gt.add(x, nan)",
        "f32[3] = gt.scale(x, 2.0, shift=[0, 1])",
        "f32[3] = gt.total([x, None, y])",
        "f32[2] = constant([1.0, -0.0])",
        "f32[3] = functionalized(gt.inc_, &x[1]:[1]+0)",
        "f32[3] = gt.add(x, y) ! no_grad",
    ],
)
def test_calls_that_agree_to_the_bit_merge(line: str) -> None:
    assert merged(line, line)


def test_effects_and_draws_do_not_merge() -> None:
    text = """\
graph f(x: f32[3]):
    draw: f32[3], draw_1: token[random] = gt.draw(x)
    draw_2: f32[3], draw_3: token[random] = gt.draw(x, after=draw_1)
    log: token[ordered] = gt.log(x)
    log_1: token[ordered] = gt.log(x, after=log)
    return draw, draw_2"""
    graph = parse(text)
    assert run_passes(graph, [cse]) is graph


@pytest.mark.parametrize(
    "tail",
    ["return &a, &b", "return a, &b[1]:[1]+0", "rebind x = &b[3]:[1]+0\n    return a"],
)
def test_values_whose_memory_is_seen_stay_apart(tail: str) -> None:
    line = "f32[3] = gt.add(x, 1.0)"
    assert not merged(line, line, tail)


def test_two_regions_of_one_call_stay_two_regions() -> None:
    line = "f32[3] = gt.add(x, 1.0)"
    call = "_: f32[3], _: f32[3], _: f32[3] = functionalized(gt.two_, &a, &b)"
    assert not merged(line, line, f"{call}\n    return")


def test_lists_of_results_merge_one_by_one() -> None:
    assert after(
        cse,
        """\
graph f(x: f32[3]):
    [parts: f32[3], parts_1: f32[3]] = gt.parts(x)
    [parts_2: f32[3], parts_3: f32[3]] = gt.parts(x)
    return parts, parts_3, parts_2""",
    ) == [
        "[parts: f32[3], parts_1: f32[3]] = gt.parts(x)",
        "return parts, parts_1, parts",
    ]


def test_large_constants_merge_by_their_bytes() -> None:
    digest, other = "#sha256:" + "1" * 64, "#sha256:" + "2" * 64
    assert merged(f"f64[9] = constant({digest})", f"f64[9] = constant({digest})")
    assert not merged(f"f64[9] = constant({digest})", f"f64[9] = constant({other})")


# All passes ---------------------------------------------------------------------------------------

every_order = st.permutations([dead_code, cse, dead_code])


def observed(graph: Graph, inputs: list[Any]) -> tuple[list[Any], list[bytes]]:
    """Run a graph; return the values of its writes and results in order, and the effects."""
    LOG.clear()
    values = evaluate(graph, inputs, run_functionalized=run_functionalized)
    environment = dict(zip(graph.tail_values, values, strict=True))

    def look(tree: Any) -> list[Any]:
        if isinstance(tree, Value):
            return [environment[tree]]
        if isinstance(tree, list | tuple):
            return [leaf for item in tree for leaf in look(item)]
        return look(list(tree.values())) if isinstance(tree, dict) else []

    written = [environment[write.value] for write in graph.writes]
    return [*written, *look(graph.output.results)], [entry.tobytes() for entry in LOG]


@given(graphs(), every_order, st.lists(st.floats(width=32), min_size=9, max_size=9))
def test_passes_in_any_order_keep_values_effects_and_references(
    graph: Graph, passes: list[Pass], numbers: list[float]
) -> None:
    result = run_passes(graph, passes)
    rows = np.array(numbers, np.float32).reshape(3, 3)
    inputs = [tensor(*row) for row in rows[: len(graph.placeholders)]]
    with np.errstate(all="ignore"):
        values, effects = observed(graph, inputs)
        new_values, new_effects = observed(result, inputs)
    assert same_bits(values, new_values)
    assert effects == new_effects
    assert len(referenced(graph)) == len(referenced(result))
    assert reparsed(result) == result


def referenced(graph: Graph) -> set[Value]:
    """Return the values whose memory the results show."""
    found = leaves(graph.output.results)
    return {leaf.value for leaf in found if isinstance(leaf, Reference)}


@pytest.mark.parametrize("transform", [dead_code, cse])
@given(graph=graphs())
def test_passes_are_idempotent(transform: Pass, graph: Graph) -> None:
    once = transform(graph)
    assert transform(once) is once


# Running ------------------------------------------------------------------------------------------


@graph_pass()
def renamed(graph: Graph) -> Graph:
    """Give the graph another name."""
    return Graph("renamed", graph.nodes)


@graph_pass()
def broken(graph: Graph) -> Graph:
    """Forget the first node."""
    return Graph(graph.name, graph.nodes[1:])


@graph_pass()
def raising(graph: Graph) -> Graph:
    """Raise."""
    raise KeyError("oops")


SMALL = "graph f(x: f32[3]):\n    add: f32[3] = gt.add(x, x)\n    return add"


def test_a_pass_that_breaks_a_graph_is_named_with_the_graph_before_it() -> None:
    with pytest.raises(CaptureError, match="after pass `broken` breaks `defined_before_use`") as e:
        run_passes(parse(SMALL), [renamed, broken])
    assert (
        "in pass `broken`; the graph before it:\ngraph renamed(x: f32[3]):" in e.value.__notes__[0]
    )


def test_a_pass_that_raises_is_named() -> None:
    with pytest.raises(KeyError) as caught:
        run_passes(parse(SMALL), [raising])
    assert caught.value.__notes__[0].startswith("in pass `raising`; the graph before it:\ngraph f(")


def test_a_graph_that_is_broken_before_any_pass_is_refused() -> None:
    with pytest.raises(CaptureError, match="graph `f` breaks"):
        run_passes(broken(parse(SMALL)), [])


def test_passes_run_in_the_order_given_unless_they_ask_for_another() -> None:
    ran: list[str] = []

    def step(name: str, *after: str) -> Pass:
        def transform(graph: Graph) -> Graph:
            """Note that it ran."""
            ran.append(name)
            return graph

        transform.__name__ = name
        return graph_pass(after=after)(transform)

    run_passes(parse(SMALL), [step("c"), step("b", "a", "elsewhere"), step("d"), step("a")])
    assert ran == ["c", "d", "a", "b"]
    with pytest.raises(CaptureError, match=r"contradict each other: .*`a` after"):
        run_passes(parse(SMALL), [step("a", "b"), step("b", "a")])


def test_a_pass_refuses_a_dialect_it_does_not_accept() -> None:
    with pytest.raises(CaptureError, match="`cse` accepts functional and joint, the graph is buf"):
        run_passes(parse(SMALL), [cse], "buffers")


def test_a_pass_may_change_the_dialect() -> None:
    @graph_pass(yields="buffers")
    def to_buffers(graph: Graph) -> Graph:
        """Write in place."""
        return parse("graph f(x: f32[3]):\n    gt.inc_(x)\n    return x")

    assert "gt.inc_(x)" in str(run_passes(parse(SMALL), [to_buffers, dead_code]))


def test_a_pass_has_a_name_and_a_contract() -> None:
    assert dead_code.name == "dead_code"
    assert "effects in order" in cse.contract
    assert repr(renamed) == "<Pass renamed: Give the graph another name.>"
    with pytest.raises(CaptureError, match="states no contract"):
        graph_pass()(lambda graph: graph)


def test_a_pass_that_changes_nothing_returns_the_same_graph() -> None:
    graph = parse(SMALL)
    assert run_passes(graph, [dead_code, cse]) is graph
