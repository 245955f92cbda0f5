from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given

from oplib._dims import Facts
from oplib.dtypes import Device
from oplib.graph import (
    Call,
    Functionalized,
    Graph,
    GraphBuilder,
    Output,
    Reference,
    TensorMeta,
    Value,
    defined_values,
    parse,
    substitute,
    used_values,
)
from tests.graph.helpers import (
    ADD,
    CHECKED,
    DRAW,
    INC,
    LOGGED,
    PARTS,
    TOTAL,
    TWO,
    at,
    graphs,
    meta,
    operator,
)

# Metadata -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (meta(4, 2), "f32[4,2]"),
        (meta(), "f32[]"),
        (TensorMeta(np.dtype("f4"), (4, 2), (4, 16)), "f32[4,2]{1,4}"),
        (TensorMeta(np.dtype("f4"), (1, 2), (400, 4)), "f32[1,2]"),
        (TensorMeta(np.dtype("i2"), (3,), (3,)), "i16[3]{3b}"),
        (TensorMeta(np.dtype("f8"), (3,), (0,), Device("npu", 0)), "f64[3]{0}@npu:0"),
    ],
)
def test_a_meta_prints_as_it_is_written(value: TensorMeta, text: str) -> None:
    assert str(value) == text


def test_the_form_of_a_meta_begins_at_its_lowest_address() -> None:
    layout = TensorMeta(np.dtype("f4"), (3, 2), (-8, 4))
    assert layout.form == at(3, 2, strides=[-2, 1], offset=4)
    assert meta(0, 3).form.offset == 0


def test_metas_with_symbols_compare_without_deciding_anything() -> None:
    facts = Facts()
    n, m = facts.fresh(), facts.fresh()
    assert meta(n, 2) == meta(n, 2)
    assert meta(n, 2) != meta(m, 2)
    assert meta(n, 2) != meta(3, 2)
    assert str(meta(2 * n + 1, m)) == "f32[2*u0+1,u1]"
    assert len({meta(n), meta(n), meta(m)}) == 2


# Builder ------------------------------------------------------------------------------------------


def test_placeholders_are_ordered_by_role_whenever_they_are_added() -> None:
    builder = GraphBuilder("f")
    span = builder.placeholder("s", meta(4), "span")
    outer = builder.placeholder("outer", meta(), "captured")
    x = builder.placeholder("x", meta(2))
    y = builder.placeholder("y", meta(2))
    builder.output(x)
    graph = builder.build()
    assert [node.value for node in graph.placeholders] == [x, y, outer, span]
    assert [node.role for node in graph.placeholders] == [
        "argument",
        "argument",
        "captured",
        "span",
    ]


def test_results_have_the_structure_of_the_metas() -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(3))
    [parts] = builder.call(PARTS, (x, 2), ([meta(3), meta(3)],)).results
    assert isinstance(parts, list)
    assert [part.stem for part in parts] == ["parts", "parts"]


def test_a_result_has_the_stem_of_its_operator_or_the_one_given() -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(3))
    inplace = operator("my::add_(Tensor x) -> Tensor")
    assert builder.call(inplace, (x,), (meta(3),)).results[0].stem == "add"
    renamed = builder.call(ADD, (x, x), (meta(3),), stem="x").results[0]
    assert renamed.stem == "x"
    builder.rename(renamed, "y")
    builder.output(renamed)
    assert "y: f32[3] = gt.add(x, x)" in str(builder.build())


def test_a_list_argument_is_copied() -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(3))
    given = [x, None]
    node = builder.call(TOTAL, (given,), (meta(3),))
    given.append(x)
    assert node.arguments == ([x, None],)


def test_effects_form_chains_by_name() -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(3))
    log = builder.call(LOGGED, (x,), ())
    check = builder.call(CHECKED, (x,), ())
    one = builder.call(DRAW, (x,), (meta(3),), effects=["random:1"])
    again = builder.call(DRAW, (x,), (meta(3),))
    last = builder.call(LOGGED, (x,), ())
    assert (log.after, check.after, one.after, again.after) == ((), (), (), ())
    assert last.after == log.tokens
    assert [str(token.meta) for token in check.tokens] == ["token[check]", "token[io]"]
    assert [str(token.meta) for token in one.tokens] == ["token[random:1]"]
    assert builder.call(CHECKED, (x,), ()).after == check.tokens


def test_regions_take_stem_and_meta_of_their_bases_in_order_of_appearance() -> None:
    builder = GraphBuilder("f")
    x, y = builder.placeholder("x", meta(3)), builder.placeholder("y", meta(4))
    arguments = (Reference(y, at(3, strides=[1])), Reference(x))
    node = builder.functionalized(TWO, arguments, (meta(3),))
    assert node.bases == (y, x)
    assert [(region.stem, region.meta) for region in node.regions] == [
        ("y", meta(4)),
        ("x", meta(3)),
    ]
    same = builder.functionalized(TWO, (Reference(x), Reference(x)), (meta(3),))
    assert same.bases == (x,)


@pytest.mark.parametrize(
    ("schema", "arguments", "fresh"),
    [
        ("m::a(Tensor(a!) x, Tensor y) -> Tensor", (1, 2), (0,)),
        ("m::b(Tensor(a!) x) -> Tensor(a!)", (1,), ()),
        ("m::c(Tensor(a!) x) -> Tensor(a)", (1,), ()),
        ("m::d(Tensor(a!) x) -> (Tensor(a!), Tensor)", (1,), (1,)),
        ("m::e(Tensor x, *, Tensor(a!)? out=None) -> Tensor(a!)", (1, None), (0,)),
        ("m::f(Tensor x, *, Tensor(a!)? out=None) -> Tensor(a!)", (1, 2), ()),
        ("m::g(Tensor(a!) x, Tensor(b) y) -> Tensor(b)", (1, 2), (0,)),
        ("m::h(Tensor(a!) x) -> ()", (1,), ()),
    ],
)
def test_fresh_returns_are_those_that_are_no_written_argument_or_view_of_one(
    schema: str, arguments: tuple[object, ...], fresh: tuple[int, ...]
) -> None:
    assert operator(schema).schema.fresh_returns(arguments) == fresh


def test_writes_rebinds_and_output_are_put_in_order() -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(2))
    builder.output(x)
    builder.rebind(x, Reference(x, at(1, strides=[1])))
    builder.write(x, x)
    graph = builder.build()
    assert [type(node).__name__ for node in graph.nodes[1:]] == ["Write", "Rebind", "Output"]
    [alone] = GraphBuilder("g").build().nodes
    assert isinstance(alone, Output)


# Derived ------------------------------------------------------------------------------------------


@given(graphs())
def test_users_and_producers_agree_with_the_nodes(graph: Graph) -> None:
    for node in graph.nodes:
        assert all(graph.producers[value] is node for value in defined_values(node))
        assert all(node in graph.users[value] for value in used_values(node))
    assert sum(map(len, graph.users.values())) == sum(
        len(set(used_values(node))) for node in graph.nodes
    )


@given(graphs())
def test_every_value_dies_once_after_its_last_use_unless_the_tail_names_it(graph: Graph) -> None:
    places = {node: index for index, node in enumerate(graph.nodes)}
    dead = [(value, node) for node, values in graph.dead_after.items() for value in values]
    assert len(dict(dead)) == len(dead)
    mortal = {v for v in graph.producers if not v.is_token} - set(graph.tail_values)
    assert {value for value, _ in dead} == mortal
    for value, node in dead:
        last = max(
            [places[graph.producers[value]], *(places[n] for n in graph.users.get(value, ()))]
        )
        assert places[node] == last


def test_a_node_is_frozen_and_a_graph_too() -> None:
    graph = parse("graph f(x: f32[2]):\n    return x")
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.output.results = ()  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.nodes = ()  # type: ignore[misc]


def test_substitution_replaces_uses_everywhere_and_keeps_untouched_nodes() -> None:
    text = """\
graph f(x: f32[2], y: f32[2]):
    log: token[ordered] = gt.log(x)
    log_1: token[ordered] = gt.log(y, after=log)
    total: f32[2] = gt.total([x, None, y])
    x_1: f32[2] = functionalized(gt.inc_, &x)
    write x = x
    rebind x = &x[1]:[1]+1
    return [x, {'a': &x}], total, x_1"""
    graph = parse(text)
    x, y = (node.value for node in graph.placeholders)
    nodes = tuple(substitute(node, {x: y}) for node in graph.nodes)
    changed = [old is not new for old, new in zip(graph.nodes, nodes, strict=True)]
    assert changed == [False, False, True, False, True, True, True, True, True]
    assert x not in {value for node in nodes for value in used_values(node)}
    first = graph.calls[0].tokens[0]
    token = Value("other", first.meta)
    assert substitute(graph.calls[1], {first: token}).after == (token,)  # type: ignore[union-attr]


# Copies -------------------------------------------------------------------------------------------


@given(graphs())
def test_graphs_pickle_and_copy_as_equal_graphs(graph: Graph) -> None:
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert copy.deepcopy(graph) == graph
    assert str(pickle.loads(pickle.dumps(graph))) == str(graph)


def test_nodes_and_values_pickle() -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(2))
    node = builder.functionalized(INC, (Reference(x),), ())
    again = pickle.loads(pickle.dumps(node))
    assert isinstance(again, Functionalized)
    assert (str(again), again.op) == (str(node), INC)
    assert again.bases[0].meta == meta(2)
    assert isinstance(copy.copy(builder.call(ADD, (x, x), (meta(2),))), Call)


def test_a_graph_shows_itself_in_one_line() -> None:
    graph = parse("graph f(x: f32[2]):\n    log: token[ordered] = gt.log(x)\n    return")
    assert repr(graph) == "<Graph f: 1 inputs, 1 calls>"
    assert len(graph) == 3
    assert list(graph) == list(graph.nodes)
