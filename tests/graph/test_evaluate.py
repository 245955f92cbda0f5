from __future__ import annotations

import copy
import gc
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplib._dims import Facts
from oplib._state import current
from oplib.dispatch.keys import AUTOGRAD
from oplib.dispatch.registry import get_op
from oplib.errors import ArgumentError, CaptureError
from oplib.graph import (
    Graph,
    GraphBuilder,
    Output,
    Provenance,
    Rebind,
    Reference,
    Region,
    RegionView,
    TensorMeta,
    Write,
    compile_graph,
    constant_tensor,
    defined_values,
    evaluate,
    parse,
    python_source,
    set_functionalized_runner,
    used_values,
)
from oplib.graph.literals import literal_key
from oplib.library import Library
from oplib.tensor.geometry import Geometry
from tests.graph import helpers
from tests.graph.helpers import (
    ADD,
    BOTH,
    DRAW,
    F32,
    FAILS,
    INC,
    LITERALS,
    LOG,
    LOGGED,
    MAYBE,
    MUL,
    PAIR,
    PARTS,
    POSITIVE,
    SCALE,
    TOTAL,
    TWO,
    ZEROS,
    at,
    graphs,
    meta,
    run_functionalized,
    same_bits,
    tensor,
)

Runner = Callable[..., Any]


def interpreted(graph: Graph, *inputs: Any, **options: Any) -> Any:
    return evaluate(graph, inputs, run_functionalized=run_functionalized, **options)


def compiled(graph: Graph, *inputs: Any, **options: Any) -> Any:
    return compile_graph(graph, run_functionalized=run_functionalized, **options)(*inputs)


both_ways = pytest.mark.parametrize("run", [interpreted, compiled])


def elements(result: tuple[Any, ...]) -> list[list[float]]:
    return [value.numpy().tolist() for value in result]


def chain(*steps: tuple[Any, ...]) -> Graph:
    """Build ``x -> op(x, *arguments) -> ...`` over three elements."""
    builder = GraphBuilder("chain")
    value = builder.placeholder("x", meta(3))
    for op, *arguments in steps:
        [value] = builder.call(op, (value, *arguments), (meta(3),)).results
    builder.output(value)
    return builder.build()


# Results ------------------------------------------------------------------------------------------


@both_ways
def test_one_argument_one_operator(run: Runner) -> None:
    assert elements(run(chain((MUL, 2.0)), tensor(1, 2, 3))) == [[2, 4, 6]]


@both_ways
def test_the_values_of_the_tail_come_once_each_in_order(run: Runner) -> None:
    builder = GraphBuilder("f")
    x, y = builder.placeholder("x", meta(3)), builder.placeholder("y", meta(3))
    low, high = builder.call(PAIR, (x,), (meta(3), meta(3))).results
    builder.write(y, high)
    builder.output(low, [low, 1.0], Reference(x), {"a": high})
    graph = builder.build()
    assert [graph.names[value] for value in graph.tail_values] == ["y", "pair_1", "pair", "x"]
    result = run(graph, tensor(1, 2, 3), tensor(0, 0, 0))
    assert elements(result) == [[0, 0, 0], [2, 3, 4], [0, 1, 2], [1, 2, 3]]


@both_ways
def test_lists_optionals_dicts_and_keywords_reach_the_operator(run: Runner) -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(3))
    [first, second] = builder.call(PARTS, (x, 2), ([meta(3), meta(3)],)).results[0]
    [total] = builder.call(TOTAL, ([first, None, second],), (meta(3),)).results
    [scaled] = builder.call(SCALE, (total, 2.0, True, [0, 0]), (meta(3),)).results
    [(up, down)] = builder.call(BOTH, (scaled,), ((meta(3), meta(3)),)).results
    [absent] = builder.call(MAYBE, (x, None), (None,)).results
    [given] = builder.call(MAYBE, (x, up), (meta(3),)).results
    assert absent is None
    builder.output(scaled, up, down, given)
    result = run(builder.build(), tensor(1, 2, 3))
    assert elements(result) == [[-4, -8, -12], [-3, -7, -11], [-5, -9, -13], [-3, -7, -11]]


@both_ways
def test_a_functionalized_node_sees_its_aliases_and_leaves_its_inputs_alone(run: Runner) -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(4))
    shifted = Reference(x, at(3, strides=[1], offset=1))
    node = builder.functionalized(TWO, (Reference(x, at(2, strides=[1])), shifted), (meta(2),))
    builder.output(*node.results, *node.regions)
    given = tensor(1, 2, 3, 4)
    before, after = elements(run(builder.build(), given))
    assert before == [1, 2]
    assert after == [2, 6, 6, 8]  # two_ adds to elements 0 and 1, then doubles 1, 2 and 3
    assert given.numpy().tolist() == [1, 2, 3, 4]


@both_ways
def test_a_region_with_holes_and_negative_strides_keeps_its_form(run: Runner) -> None:
    layout = TensorMeta(np.dtype("f4"), (3,), (-8,))
    builder = GraphBuilder("f")
    x = builder.placeholder("x", layout)
    node = builder.functionalized(INC, (Reference(x, at(2, strides=[2])),), ())
    builder.output(node.regions[0])
    assert elements(run(builder.build(), tensor(1, 2, 3))) == [[1, 3, 4]]


def test_a_runner_can_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["oplib.graph.evaluate"], "_runner", None)
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(2))
    builder.output(builder.functionalized(INC, (Reference(x),), ()).regions[0])
    graph = builder.build()
    with pytest.raises(CaptureError, match="nothing runs the functionalized call of gt::inc_"):
        evaluate(graph, [tensor(1, 2)])
    seen: list[Any] = []

    def runner(op: Any, arguments: Any, regions: tuple[Region, ...]) -> list[Any]:
        seen.extend([op, arguments, regions[0].form])
        return [regions[0].value]

    set_functionalized_runner(runner)
    assert elements(evaluate(graph, [tensor(1, 2)])) == [[1, 2]]
    assert elements(compile_graph(graph)(tensor(1, 2))) == [[1, 2]]
    assert seen[:3] == [INC, (RegionView(0),), at(2, strides=[1])]


@both_ways
def test_constants_are_new_tensors_in_their_layout(run: Runner) -> None:
    data = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    builder = GraphBuilder("f")
    builder.output(builder.constant(data))
    [result] = run(builder.build())
    assert result.numpy().tolist() == data.tolist()
    assert result.strides == data.strides
    assert not np.shares_memory(result.numpy(), data)


@both_ways
def test_constants_can_be_supplied(run: Runner) -> None:
    builder = GraphBuilder("f")
    builder.output(builder.constant(np.zeros(2, np.float32)))
    mine = tensor(5, 6)
    [result] = run(builder.build(), constants=lambda node: mine)
    assert result is mine


def test_a_constant_without_its_bytes_is_named() -> None:
    graph = parse(f"graph f():\n    c: f64[9] = constant(#sha256:{'0' * 64})\n    return c")
    with pytest.raises(CaptureError, match="parse the text with constants="):
        constant_tensor(graph.constants[0])


@both_ways
def test_effects_run_in_order(run: Runner) -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(1))
    builder.call(LOGGED, (x,), ())
    [y] = builder.call(MUL, (x, 3.0), (meta(1),)).results
    builder.call(LOGGED, (y,), ())
    LOG.clear()
    assert run(builder.build(), tensor(1)) == ()
    assert [entry.tolist() for entry in LOG] == [[1], [3]]


@both_ways
def test_nodes_under_no_grad_run_without_recording(run: Runner) -> None:
    recording: list[bool] = []

    def probe(x: Any) -> Any:
        recording.append(bool(current().user & AUTOGRAD))
        return x * 2

    with Library("gtgrad", "DEF") as library:
        op = get_op(str(library.define("probe(Tensor x) -> Tensor")))
        library.impl(op, probe, "CPU")
        builder = GraphBuilder("f")
        value = builder.placeholder("x", meta(1))
        for flags in [(), ("no_grad",), ()]:
            [value] = builder.call(op, (value,), (meta(1),), flags=flags).results
        builder.output(value)
        assert elements(run(builder.build(), tensor(1))) == [[8]]
    assert recording == [True, False, True]


@both_ways
def test_symbols_get_their_numbers_from_the_results_that_bind_them(run: Runner) -> None:
    facts = Facts()
    n, m = facts.fresh(), facts.fresh()
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(n))
    [y] = builder.call(POSITIVE, (x,), (meta(m),)).results
    [z] = builder.call(ZEROS, ([n + 2 * m, 1, m // 2],), (meta(n + 2 * m, 1, m // 2),)).results
    builder.output(z)
    graph = builder.build()
    assert dict(graph.symbol_sites) == {x: (("u0", 0),), y: (("u1", 0),)}
    [result] = run(graph, tensor(1, -1, 2, 3))
    assert result.shape == (4 + 2 * 3, 1, 3 // 2)


@both_ways
def test_a_size_outside_its_interval_is_refused_where_it_is_bound(run: Runner) -> None:
    size = Facts().fresh(min=1, max=2)
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(3))
    builder.output(*builder.call(POSITIVE, (x,), (meta(size),)).results)
    graph = builder.build()
    assert [value.shape for value in run(graph, tensor(1, 2, -3))] == [(2,)]
    with pytest.raises(ArgumentError, match="u0 is 3 in this run, outside 1 <= u0 <= 2") as caught:
        run(graph, tensor(1, 2, 3))
    assert "positive: f32[u0] = gt.positive(x)" in caught.value.__notes__[0]


@both_ways
def test_geometries_with_symbols_get_their_numbers(run: Runner) -> None:
    size = Facts().fresh()
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(size))
    last = Reference(x, Geometry(F32, (1,), (4,), (size - 1) * 4))
    builder.output(*builder.functionalized(INC, (last,), ()).regions)
    graph = builder.build()
    assert "functionalized(gt.inc_, &x[1]:[1]+u0-1)" in str(graph)
    assert elements(run(graph, tensor(1, 2, 3))) == [[1, 2, 4]]


@both_ways
def test_the_number_of_inputs_is_checked(run: Runner) -> None:
    with pytest.raises((CaptureError, TypeError), match=r"1 inputs, got 2|takes 1 positional"):
        run(chain((MUL, 2.0)), tensor(1), tensor(2))


# Hooks and the tail -------------------------------------------------------------------------------


@given(graphs())
def test_the_hook_sees_every_node_once_in_order(graph: Graph) -> None:
    seen: list[Any] = []
    inputs = [tensor(1, 2, 3) for _ in graph.placeholders]
    with np.errstate(all="ignore"):
        interpreted(graph, *inputs, hook=lambda node, values: seen.append((node, values)))
    assert [node for node, _ in seen] == list(graph.nodes)
    for node, values in seen:
        is_tail = isinstance(node, Write | Rebind | Output)
        named = used_values(node) if is_tail else defined_values(node)
        assert len(values) == len([value for value in named if not value.is_token])


@both_ways
def test_the_epilogue_makes_the_result(run: Runner) -> None:
    result = run(chain((MUL, 2.0)), tensor(1, 2, 3), epilogue=lambda y: ("done", y.shape))
    assert result == ("done", (3,))


@given(graphs(), st.lists(st.floats(width=32), min_size=9, max_size=9))
def test_source_and_evaluator_give_the_same_bits_and_the_same_effects(
    graph: Graph, numbers: list[float]
) -> None:
    arrays = np.array(numbers, np.float32).reshape(3, 3)
    inputs = [tensor(*row) for row in arrays[: len(graph.placeholders)]]
    with np.errstate(all="ignore"):
        LOG.clear()
        one = interpreted(graph, *inputs)
        logged = [entry.tobytes() for entry in LOG]
        LOG.clear()
        other = compiled(graph, *inputs)
    assert same_bits(one, other)
    assert logged == [entry.tobytes() for entry in LOG]
    assert [t.numpy().tobytes() for t in inputs] == [row.tobytes() for row in arrays[: len(inputs)]]


# Lifetime, errors, threads ------------------------------------------------------------------------


@both_ways
def test_values_are_freed_after_their_last_use(run: Runner) -> None:
    alive: list[list[int]] = []
    references: list[Any] = []

    def probe(x: Any) -> Any:
        result = x + 1
        references.append(weakref.ref(result))
        gc.collect()
        alive.append([i for i, r in enumerate(references) if r() is not None])
        return result

    with Library("gtprobe", "DEF") as library:
        op = get_op(str(library.define("probe(Tensor x) -> Tensor")))
        library.impl(op, probe, "CPU")
        [result] = run(chain(*[(op,)] * 4), tensor(1, 2, 3))
    assert result.numpy().tolist() == [5, 6, 7]
    # while node i runs, its operand i - 1 and its result live, nothing older
    assert alive == [[0], [0, 1], [1, 2], [2, 3]]


@both_ways
def test_an_exception_keeps_its_type_and_names_the_node_and_the_line(run: Runner) -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(3))
    [y] = builder.call(MUL, (x, 2.0), (meta(3),)).results
    where = Provenance("user.py", 7, "step")
    [z] = builder.call(FAILS, (y,), (meta(3),), where=where).results
    builder.output(z)
    with pytest.raises(KeyError) as caught:
        run(builder.build(), tensor(1, 2, 3))
    assert (
        "while running graph `f`: fails: f32[3] = gt.fails(mul), recorded at user.py:7 in step"
        in caught.value.__notes__
    )


def test_generated_source_shows_in_tracebacks() -> None:
    with pytest.raises(KeyError) as caught:
        compiled(chain((FAILS,)), tensor(1, 2, 3))
    assert "fails = gt_fails(x)" in "".join(traceback.format_exception(caught.value))


@both_ways
def test_threads_may_run_one_graph_at_the_same_time(run: Runner) -> None:
    graph = chain(*[(ADD, 1.0)] * 50)
    results: dict[int, Any] = {}

    def work(number: int) -> None:
        for _ in range(5):
            results[number] = elements(run(graph, tensor(number, 0, 0)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: [[i + 50, 50, 50]] for i in range(4)}


@both_ways
def test_a_kernel_that_changes_its_list_does_not_change_the_graph(run: Runner) -> None:
    with Library("gtlist", "DEF") as library:
        op = get_op(str(library.define("grow(Tensor x, int[] n) -> Tensor")))
        library.impl(op, lambda x, n: x + (n.append(1) or len(n)), "CPU")
        graph = chain((op, [7]))
        assert elements(run(graph, tensor(0, 0, 0))) == [[2, 2, 2]]
        assert elements(run(graph, tensor(0, 0, 0))) == [[2, 2, 2]]


# Source -------------------------------------------------------------------------------------------


def test_the_source_has_one_assignment_per_node_and_lets_go_of_values() -> None:
    builder = GraphBuilder("f")
    x, unused = builder.placeholder("x", meta(3)), builder.placeholder("unused", meta(3))
    [y] = builder.call(SCALE, (x, 1.0, True, [0, 1]), (meta(3),)).results
    _, high = builder.call(PAIR, (y,), (meta(3), meta(3))).results
    builder.call(DRAW, (y,), (meta(3),))
    builder.output(high)
    assert unused.stem == "unused"
    assert (
        python_source(builder.build())
        == """\
from oplib.dispatch.registry import get_op

gt_scale = get_op("gt::scale")
gt_pair = get_op("gt::pair")
gt_draw = get_op("gt::draw")


def f(x, unused):
    del unused
    scale = gt_scale(x, negate=True, shift=[0, 1])
    del x
    _, pair = gt_pair(scale)
    del _
    gt_draw(scale)
    del scale
    return epilogue(pair)
"""
    )


def test_source_runs_in_a_fresh_namespace() -> None:
    graph = chain((SCALE, float("nan"), False, [0]), (MUL, -0.0), (ADD, float("-inf")))
    namespace: dict[str, Any] = {"epilogue": lambda *values: values}
    exec(python_source(graph), namespace)
    with np.errstate(all="ignore"):
        result = namespace["chain"](tensor(1, 2, 3))
        assert same_bits(result, interpreted(graph, tensor(1, 2, 3)))


def test_names_of_values_never_hide_what_the_source_needs() -> None:
    builder = GraphBuilder("get_op")
    stems = ["gt_mul", "get_op", "Geometry", "epilogue", "constants", "RegionView", "slice", "min"]
    values = [builder.placeholder(stem, meta(2)) for stem in stems]
    node = builder.functionalized(INC, (Reference(values[0], at(1, strides=[1])),), ())
    [product] = builder.call(MUL, (node.regions[0], values[-1]), (meta(2),)).results
    builder.output(product)
    inputs = [tensor(i, i) for i in range(len(values))]
    assert elements(compiled(builder.build(), *inputs)) == [[7, 0]]


@given(helpers.literals, helpers.floats, helpers.floats)
def test_literals_in_source_are_exact(value: Any, real: float, imaginary: float) -> None:
    seen: list[Any] = []

    def record(*args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs))

    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(1))
    arguments = (x, value, real, np.dtype("u1"), complex(real, imaginary))
    builder.call(LITERALS, arguments, (meta(1),))
    namespace: dict[str, Any] = {"epilogue": lambda: None, "record": record}
    exec(python_source(builder.build()).replace('get_op("gt::literals")', "record"), namespace)
    namespace["f"]("x")
    [(args, kwargs)] = seen
    rebuilt = [None, 0, None, 0j]
    rebuilt[: len(args) - 1] = args[1:]
    for index, name in enumerate(["a", "b", "t", "c"]):
        rebuilt[index] = kwargs.get(name, rebuilt[index])
    assert literal_key(rebuilt) == literal_key(list(arguments[1:]))


# Size ---------------------------------------------------------------------------------------------


def test_ten_thousand_nodes_run_without_recursion() -> None:
    graph = chain(*[(ADD, 1.0)] * 10_000)
    assert elements(interpreted(graph, tensor(0, 1, 2))) == [[10_000, 10_001, 10_002]]
    assert elements(compiled(graph, tensor(0, 1, 2))) == [[10_000, 10_001, 10_002]]
    assert copy.deepcopy(graph) == graph
