from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from oplib._dims import Facts
from oplib.dtypes import Device
from oplib.errors import CaptureError
from oplib.graph import (
    DIALECTS,
    INVARIANTS,
    Call,
    Constant,
    Dialect,
    Functionalized,
    Graph,
    GraphBuilder,
    Output,
    Placeholder,
    Provenance,
    PyMeta,
    Rebind,
    Reference,
    Same,
    TensorMeta,
    TokenMeta,
    Value,
    Write,
    failures,
    parse,
    verify,
)
from oplib.library import Library
from tests.graph.helpers import (
    ADD,
    INC,
    LITERALS,
    LOGGED,
    MAYBE,
    PAIR,
    PARTS,
    SCALE,
    TOTAL,
    TWO,
    ZEROS,
    at,
    graphs,
    meta,
    operator,
)


def broken_by(graph: Graph, dialect: Dialect = "functional", **known: Any) -> set[str]:
    return {failure.invariant.name for failure in failures(graph, dialect, **known)}


X = Value("x", meta(3))
Y = Value("y", meta(3))
INPUTS = (Placeholder(X), Placeholder(Y))


def add(left: Any = X, right: Any = Y, **fields: Any) -> Call:
    return Call(ADD, (left, right), (Value("add", meta(3)),), **fields)


def with_nodes(*nodes: Any, results: tuple[Any, ...] = ()) -> Graph:
    return Graph("f", (*INPUTS, *nodes, Output(results)))


def result_of(node: Any) -> Any:
    return node.results[0]


GOOD = add()
TOKEN = Value("log", TokenMeta("ordered"))
LOG_CALL = Call(LOGGED, (X,), (), (), (TOKEN,))
CONSTANT = Constant(Value("c", meta(3)), np.zeros(3, np.float32))
LONGER = Constant(Value("c", meta(4)), np.zeros(4, np.float32))
WIDER = Constant(Value("c", meta(3, dtype="f8")), np.zeros(3))
FACTS = Facts()
N, M = FACTS.fresh(), FACTS.fresh()

BAD: list[tuple[str, Graph]] = [
    ("node_order", Graph("f", (INPUTS[0], add(X, X), INPUTS[1], Output()))),
    ("node_order", Graph("f", (*INPUTS, Write(X, Y), GOOD, Output()))),
    ("node_order", Graph("f", (*INPUTS, Rebind(X, Reference(Y)), Write(X, Y), Output()))),
    ("node_order", Graph("f", (*INPUTS, Output(), Output()))),
    ("node_order", Graph("f", INPUTS)),
    ("defined_before_use", with_nodes(add(Value("z", meta(3))))),
    ("defined_before_use", with_nodes(add(result_of(GOOD)), GOOD)),
    ("tail_defined", with_nodes(results=(Value("z", meta(3)),))),
    ("tail_defined", with_nodes(Write(X, Value("z", meta(3))))),
    ("tail_defined", with_nodes(Rebind(X, Reference(Value("z", meta(3)))))),
    ("own_results", with_nodes(GOOD, replace(add(), results=GOOD.results))),
    ("own_results", with_nodes(replace(add(), results=(X,)))),
    ("names", with_nodes(replace(add(), results=(Value("1x", meta(3)),)))),
    ("names", with_nodes(replace(add(), results=(Value("größe", meta(3)),)))),
    ("names", Graph("f-1", (*INPUTS, Output()))),
    ("names", Graph("lambda", (*INPUTS, Output()))),
    (
        "registered_operators",
        with_nodes(replace(GOOD, op=operator("gt::nowhere(Tensor x, Tensor y) -> Tensor"))),
    ),
    (
        "registered_operators",
        with_nodes(replace(GOOD, op=operator("gt::add(Tensor x, Tensor z) -> Tensor"))),
    ),
    (
        "registered_operators",
        with_nodes(replace(GOOD, op=operator("gt::add(Tensor x, Tensor y) -> Tensor"))),
    ),
    ("arguments_fit", with_nodes(replace(GOOD, arguments=(X,)))),
    ("arguments_fit", with_nodes(add(right="y"))),
    ("arguments_fit", with_nodes(add(right=None))),
    ("arguments_fit", with_nodes(add(right=Reference(Y)))),
    ("arguments_fit", with_nodes(Call(SCALE, (X, 1, False, [0]), (Value("s", meta(3)),)))),
    ("arguments_fit", with_nodes(Call(SCALE, (X, 1.0, 0, [0]), (Value("s", meta(3)),)))),
    ("arguments_fit", with_nodes(Call(SCALE, (X, 1.0, False, (0,)), (Value("s", meta(3)),)))),
    ("arguments_fit", with_nodes(Call(SCALE, (X, 1.0, False, [True]), (Value("s", meta(3)),)))),
    ("arguments_fit", with_nodes(Call(TOTAL, ([X, "y"],), (Value("t", meta(3)),)))),
    ("results_fit", with_nodes(replace(GOOD, results=()))),
    ("results_fit", with_nodes(replace(GOOD, results=(None,)))),
    ("results_fit", with_nodes(replace(GOOD, results=(Value("n", PyMeta("int")),)))),
    ("results_fit", with_nodes(replace(GOOD, results=([Value("l", meta(3))],)))),
    ("results_fit", with_nodes(Call(PAIR, (X,), (Value("p", meta(3)),)))),
    ("results_fit", with_nodes(Call(PARTS, (X, 2), (Value("p", meta(3)),)))),
    (
        "results_fit",
        with_nodes(
            Functionalized(
                TWO, (Reference(X), Reference(Y)), (), (Value("x", meta(3)), Value("y", meta(3)))
            )
        ),
    ),
    ("nothing_written", with_nodes(Call(INC, (X,), ()))),
    ("regions", with_nodes(Functionalized(INC, (X,), (), ()))),
    ("regions", with_nodes(Functionalized(INC, (Reference(X),), (), ()))),
    ("regions", with_nodes(Functionalized(INC, (Reference(X),), (), (Value("x", meta(4)),)))),
    (
        "regions",
        with_nodes(
            Functionalized(
                INC, (Reference(X),), (), (Value("x", TensorMeta(np.dtype("f4"), (3,), (8,))),)
            )
        ),
    ),
    (
        "regions",
        with_nodes(
            Functionalized(
                INC, (Reference(X, at(2, strides=[1], offset=2)),), (), (Value("x", meta(3)),)
            )
        ),
    ),
    ("symbols_bound", with_nodes(Call(ZEROS, ([N],), (Value("z", meta(N)),)))),
    ("symbols_bound", with_nodes(replace(GOOD, results=(Value("a", meta(2 * N)),)))),
    ("one_write_each", with_nodes(Write(X, Y), Write(X, Y))),
    ("one_write_each", with_nodes(GOOD, Write(result_of(GOOD), Y))),
    ("one_write_each", with_nodes(Write(X, Y, times=0))),
    ("one_write_each", with_nodes(Write(X, Y, (at(2, strides=[1], offset=2),)))),
    ("one_write_each", with_nodes(Write(X, Y, (at(2, strides=[-1], offset=0),)))),
    ("written_value_fits", with_nodes(LONGER, Write(X, LONGER.value))),
    ("written_value_fits", with_nodes(WIDER, Write(X, WIDER.value))),
    ("rebinds", with_nodes(Rebind(X, Reference(X)), Rebind(X, Reference(Y)))),
    ("rebinds", with_nodes(GOOD, Rebind(result_of(GOOD), Reference(Y)))),
    ("rebinds", with_nodes(Rebind(X, Reference(X, at(3, strides=[2]))))),
    ("output_references", with_nodes(results=(Reference(X, at(4, strides=[1])),))),
    ("output_references", with_nodes(results=(Same(0),))),
    ("output_references", with_nodes(results=(X, [Same(2)], Y))),
    ("output_references", with_nodes(results=(X, Same(0), Same(1)))),
    (
        "token_chains",
        with_nodes(LOG_CALL, Call(LOGGED, (X,), (), (), (Value("log", TokenMeta("ordered")),))),
    ),
    (
        "token_chains",
        with_nodes(
            LOG_CALL,
            Call(LOGGED, (X,), (), (TOKEN,), (Value("log", TokenMeta("ordered")),)),
            Call(LOGGED, (X,), (), (TOKEN,), (Value("log", TokenMeta("ordered")),)),
        ),
    ),
    ("token_chains", with_nodes(LOG_CALL, replace(GOOD, after=(TOKEN,)))),
    ("token_chains", with_nodes(LOG_CALL, results=(TOKEN,))),
    ("tokens_match_effects", with_nodes(Call(LOGGED, (X,), ()))),
    ("tokens_match_effects", with_nodes(replace(GOOD, tokens=(TOKEN,)))),
    (
        "tokens_match_effects",
        with_nodes(Call(LOGGED, (X,), (), (), (Value("log", TokenMeta("io")),))),
    ),
    ("constants_stay", with_nodes(CONSTANT, results=(Reference(CONSTANT.value),))),
    ("constants_stay", with_nodes(CONSTANT, Rebind(X, Reference(CONSTANT.value)))),
    ("known_flags", with_nodes(add(flags=("fast",)))),
    ("known_flags", with_nodes(add(flags=("no_grad", "layout_free")))),
    ("known_flags", with_nodes(Write(X, Y, flags=("no_grad", "no_grad")))),
    ("literals", with_nodes(results=(object(),))),
    ("literals", with_nodes(results=(np.float32(1.0),))),
    (
        "literals",
        with_nodes(Call(LITERALS, (X, {1: b"bytes"}, 0, None, 0j), (Value("l", meta(3)),))),
    ),
    (
        "literals",
        with_nodes(Call(LITERALS, (X, np.dtype(">f4"), 0, None, 0j), (Value("l", meta(3)),))),
    ),
]


@pytest.mark.parametrize(("invariant", "graph"), BAD)
def test_a_bad_graph_is_refused_by_exactly_one_invariant(invariant: str, graph: Graph) -> None:
    assert broken_by(graph) == {invariant}
    with pytest.raises(CaptureError, match=f"breaks `{invariant}`"):
        verify(graph)


def forward(flag: str, *operands: Value) -> Call:
    return add(*operands, flags=(flag,))


BACKWARD = forward("backward")
JOINT: list[Graph] = [
    with_nodes(GOOD),
    with_nodes(add(flags=("backward", "forward"))),
    with_nodes(BACKWARD, forward("forward", result_of(BACKWARD))),
]


@pytest.mark.parametrize("graph", JOINT)
def test_a_joint_graph_is_forward_and_backward_and_flows_one_way(graph: Graph) -> None:
    assert broken_by(graph, "joint") == {"halves"}
    assert broken_by(graph, "functional") == set()


def test_a_joint_graph_may_flow_from_forward_to_backward() -> None:
    first = forward("forward")
    assert broken_by(with_nodes(first, forward("backward", result_of(first))), "joint") == set()


def test_buffers_may_be_written_unless_they_overlap_themselves() -> None:
    assert broken_by(with_nodes(Call(INC, (X,), ())), "buffers") == set()
    wide = Value("wide", TensorMeta(np.dtype("f4"), (3,), (0,)))
    graph = Graph("f", (Placeholder(wide), Call(INC, (wide,), ()), Output()))
    assert broken_by(graph, "buffers") == {"written_buffers"}
    graph = with_nodes(CONSTANT, Call(INC, (CONSTANT.value,), ()))
    assert broken_by(graph, "buffers") == {"constants_stay"}


def recompute(changes: dict[str, Any]) -> Callable[[Any], Any]:
    """Return metas that agree with the stored ones, except for the stems in `changes`."""

    def metas(node: Any) -> list[Any]:
        values = (*node.results, *getattr(node, "regions", ()))
        return [changes.get(value.stem, value.meta) for value in values]

    return metas


@pytest.mark.parametrize(
    "computed",
    [
        meta(4),
        meta(3, dtype="f8"),
        TensorMeta(np.dtype("f4"), (3,), (8,)),
        TensorMeta(np.dtype("f4"), (3,), (4,), Device("npu")),
        None,
    ],
)
def test_metadata_are_compared_with_recomputed_ones(computed: Any) -> None:
    graph = with_nodes(GOOD)
    assert broken_by(graph, recompute=recompute({})) == set()
    assert broken_by(graph, recompute=recompute({"add": computed})) == {"metadata"}


def test_strides_that_nobody_observes_need_not_be_recomputed() -> None:
    strided = recompute({"add": TensorMeta(np.dtype("f4"), (3,), (8,))})
    assert broken_by(with_nodes(add(flags=("layout_free",))), recompute=strided) == set()
    other = recompute({"add": meta(4)})
    assert broken_by(with_nodes(add(flags=("layout_free",))), recompute=other) == {"metadata"}


@pytest.mark.parametrize(
    "signature",
    [
        [("argument", meta(3))],
        [("argument", meta(3)), ("captured", meta(3))],
        [("argument", meta(3)), ("argument", meta(4))],
    ],
)
def test_placeholders_are_compared_with_a_signature(signature: Any) -> None:
    graph = with_nodes(GOOD)
    right = [("argument", meta(3)), ("argument", meta(3))]
    assert broken_by(graph, signature=right) == set()
    assert broken_by(graph, signature=signature) == {"signature"}


def test_every_invariant_is_shown_to_fail() -> None:
    shown = {name for name, _ in BAD} | {"halves", "written_buffers", "metadata", "signature"}
    assert shown == set(INVARIANTS)


@given(graphs(runnable=False))
def test_graphs_of_the_generator_are_well_formed(graph: Graph) -> None:
    assert broken_by(graph) == set()
    assert broken_by(graph, "buffers") == set()


def test_symbols_are_bound_by_inputs_and_by_results() -> None:
    x = Value("x", meta(N, 2))
    zeros = Call(ZEROS, ([2 * N, 3],), (Value("zeros", meta(2 * N, 3)),))
    assert broken_by(Graph("f", (Placeholder(x), zeros, Output((x,))))) == set()
    bound = Call(ADD, (x, x), (Value("add", meta(M)),))
    later = Call(ZEROS, ([M - 1],), (Value("zeros", meta(M - 1)),))
    assert broken_by(Graph("f", (Placeholder(x), bound, later, Output()))) == set()
    assert broken_by(Graph("f", (Placeholder(x), later, bound, Output()))) == {"symbols_bound"}


def test_arguments_of_every_kind_fit() -> None:
    op = operator(
        "my::all(Tensor x, Tensor? t, Tensor[] ts, int[2] two, (int, Tensor) pair, "
        "Dict(str, Tensor) named, Union(int, str) u, SymInt n, ScalarType d, Device dev, "
        "str s, Generator? g, Any any) -> ()",
        effects=(),
    )
    generator = Value("rng", PyMeta("numpy.random.Generator"))
    count = Value("n", PyMeta("int"))

    def graph(**changes: Any) -> set[str]:
        arguments: dict[str, Any] = {
            "x": X,
            "t": None,
            "ts": [X, Y],
            "two": [1, 2],
            "pair": (1, X),
            "named": {"a": X},
            "u": "u",
            "n": count,
            "d": np.dtype("f4"),
            "dev": Device("cpu"),
            "s": "s",
            "g": generator,
            "any": [X, 1, None],
        }
        node = Call(op, tuple((arguments | changes).values()), ())
        placeholders = (*INPUTS, Placeholder(generator), Placeholder(count))
        return broken_by(Graph("f", (*placeholders, node, Output())), resolve=lambda name: op)

    assert graph() == set()
    assert graph(two=[], t=2.0, u=1, n=4) == set()
    for wrong in [
        {"two": [1]},
        {"pair": (1,)},
        {"pair": [1, X]},
        {"named": {1: X}},
        {"named": {"a": 1j, "b": "x"}},
        {"u": 1.0},
        {"n": 1.0},
        {"n": True},
        {"d": "float32"},
        {"dev": "cpu"},
        {"s": None},
        {"g": 3},
        {"ts": (X, Y)},
        {"x": generator},
    ]:
        assert graph(**wrong) == {"arguments_fit"}, wrong


def test_absent_optionals_and_written_returns_may_be_none() -> None:
    assert broken_by(with_nodes(Call(MAYBE, (X, None), (None,)))) == set()
    op = operator("my::add_(Tensor(a!) x, Tensor y) -> Tensor(a!)")
    graph = with_nodes(Call(op, (X, Y), (None,)))
    assert broken_by(graph, "buffers", resolve=lambda name: op) == set()
    named = with_nodes(Call(op, (X, Y), (Value("add", meta(3)),)))
    assert broken_by(named, "buffers", resolve=lambda name: op) == set()


def test_a_written_optional_that_is_left_out_is_not_written() -> None:
    op = operator("my::neg(Tensor x, *, Tensor(a!)? out=None) -> Tensor(a!)")
    graph = with_nodes(Call(op, (X, None), (Value("neg", meta(3)),)))
    assert broken_by(graph, resolve=lambda name: op) == set()
    absent = with_nodes(Call(op, (X, None), (None,)))
    assert broken_by(absent, resolve=lambda name: op) == {"results_fit"}


def test_the_message_names_invariant_rule_node_stage_line_and_shows_the_graph() -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(3))
    builder.call(ADD, (x, "y"), (meta(3),), where=Provenance("user.py", 3, "step"))
    with pytest.raises(CaptureError) as caught:
        verify(builder.build(), stage="capture")
    assert (
        str(caught.value)
        == """\
graph `f` after capture breaks `arguments_fit` (arguments fit the schema): `y` is a Tensor, \
got 'y' of type str
  node 1: _: f32[3] = gt.add(x, 'y')
  recorded at user.py:3 in step
  | graph f(x: f32[3]):
  |     _: f32[3] = gt.add(x, 'y')
  |     return"""
    )


def test_a_long_graph_is_cut_in_the_message() -> None:
    graph = with_nodes(*[add() for _ in range(100)], replace(add(), arguments=()))
    with pytest.raises(CaptureError, match="63 more lines"):
        verify(graph)


def test_an_operator_that_is_gone_is_refused() -> None:
    with Library("gtgone", "DEF") as library:
        library.define("f(Tensor x) -> Tensor")
        graph = parse("graph g(x: f32[1]):\n    f: f32[1] = gtgone.f(x)\n    return f")
        verify(graph)
    with pytest.raises(CaptureError, match="registered_operators"):
        verify(graph)


def test_every_invariant_has_a_rule_and_a_dialect() -> None:
    for invariant in INVARIANTS.values():
        assert invariant.rule
        assert set(invariant.dialects) <= set(DIALECTS)
