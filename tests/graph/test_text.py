from __future__ import annotations

import math
import struct
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from oplib.dtypes import Device
from oplib.errors import CaptureError
from oplib.graph import (
    Dialect,
    Graph,
    GraphBuilder,
    Provenance,
    PyMeta,
    Reference,
    Same,
    TensorMeta,
    parse,
    verify,
)
from oplib.schema import register_opaque_type
from tests.graph.helpers import AnyOperator, at, graphs, meta, operator, reparsed

OPERATORS = {
    op.qualname: op
    for op in (
        operator("std::select(Tensor(a) x, int dim, int index) -> Tensor(a)"),
        operator("std::add(Tensor x, Tensor y) -> Tensor"),
        operator("std::add.Scalar(Tensor x, Scalar y, *, Scalar alpha=1) -> Tensor"),
        operator("std::mul(Tensor x, Tensor y) -> Tensor"),
        operator("std::std(Tensor x) -> Tensor"),
        operator("std::slice(Tensor(a) x, int d, int? start=None, int? stop=None) -> Tensor(a)"),
        operator("std::zeros(int[] size, ScalarType dtype=float32) -> Tensor"),
        operator("std::select_scatter(Tensor x, Tensor v, int dim, int index) -> Tensor"),
        operator("std::reshape(Tensor(*) x, SymInt[] size) -> Tensor(*)"),
        operator("std::split(Tensor(a) x, int n) -> Tensor(a)[]"),
        operator("std::transpose(Tensor(a) x, int[] dims) -> Tensor(a)"),
        operator("std::unsqueeze(Tensor(a) x, int dim) -> Tensor(a)"),
        operator("std::squeeze(Tensor(a) x, int dim) -> Tensor(a)"),
        operator("std::clone(Tensor x) -> Tensor"),
        operator("std::graft(Tensor x, Tensor history) -> Tensor"),
        operator("std::foreach_add(Tensor[] xs, Tensor y) -> Tensor[]"),
        operator("std::strided_get(Tensor x, int[] size, int[] stride, int offset) -> Tensor"),
        operator("std::strided_put(Tensor x, Tensor v, int[] n, int[] s, int at) -> Tensor"),
        operator("my::axpy_(Tensor(a!) y, Tensor x) -> ()"),
        operator("my::rms_norm(Tensor x, Tensor w, float eps=1e-05) -> Tensor"),
        operator("my::log(Tensor x) -> ()"),
        operator("my::both(Tensor x) -> Tensor", ("io", "ordered")),
        operator("my::inc_(Tensor(a!) x) -> ()"),
        operator("my::pure(Tensor x) -> ()", ()),
        operator("my::two_(Tensor(a!) x, Tensor(b!) y) -> Tensor"),
        operator("my::lst_(Tensor(a!)?[] xs, Tensor s) -> ()"),
        operator("my::any(Tensor x, Any a, *, Any b=None, int lambda=0) -> Tensor"),
        operator("my::after(Tensor x, *, int after=0) -> Tensor", ("ordered",)),
        operator("my::maybe(Tensor x) -> (Tensor?, Tensor)"),
        operator("my::nonzero(Tensor x) -> Tensor"),
        operator("my::draw(Tensor x, Generator g) -> Tensor", ("random",)),
        operator("my::count(Tensor x) -> int"),
    )
}


def op(name: str) -> AnyOperator:
    return OPERATORS[name.replace(".", "::", 1)]


def read(text: str, **options: Any) -> Graph:
    return parse(text, resolve=OPERATORS.__getitem__, **options)


def _resolve(name: str) -> AnyOperator:
    if name not in OPERATORS:
        raise CaptureError("not here")
    return OPERATORS[name]


def canonical(text: str) -> Graph:
    """Assert that a text is what its graph prints, and return the graph."""
    graph = read(text)
    assert str(graph) == text
    assert read(str(graph)) == graph
    return graph


def test_a_graph_with_a_write_an_effect_and_an_alias_prints_in_full() -> None:
    builder = GraphBuilder("step")
    x, w = builder.placeholder("x", meta(4, 2)), builder.placeholder("w", meta(2))
    [norm] = builder.call(op("my.rms_norm"), (x, w, 1e-5), (meta(4, 2),)).results
    [row] = builder.call(op("std.select"), (x, 0, 0), (meta(2),)).results
    [other] = builder.call(op("std.select"), (norm, 0, 0), (meta(2),)).results
    [total] = builder.call(op("std.add"), (row, other), (meta(2),)).results
    scatter = op("std.select_scatter")
    [new] = builder.call(scatter, (x, total, 0, 0), (meta(4, 2),), stem="x").results
    builder.call(op("my.log"), (norm,), ())
    [double] = builder.call(op("std.mul"), (norm, 2.0), (meta(4, 2),)).results
    builder.write(x, new, only=(at(2, strides=[1]),))
    builder.output(Reference(x), double)
    text = """\
graph step(x: f32[4,2], w: f32[2]):
    rms_norm: f32[4,2] = my.rms_norm(x, w)
    select: f32[2] = std.select(x, 0, 0)
    select_1: f32[2] = std.select(rms_norm, 0, 0)
    add: f32[2] = std.add(select, select_1)
    x_1: f32[4,2] = std.select_scatter(x, add, 0, 0)
    log: token[ordered] = my.log(rms_norm)
    mul: f32[4,2] = std.mul(rms_norm, 2.0)
    write x = x_1 only [2]:[1]+0
    return &x, mul"""
    graph = builder.build()
    assert str(graph) == text
    assert canonical(text) == graph


@pytest.mark.parametrize(
    "text",
    [
        """\
graph f(x: f32[3], z: f32[3], span x_z_span: f32[4]):
    add: f32[3] = std.add(x, 1.0)
    x_z_span_1: f32[4] = std.mul(x_z_span, add)
    write x_z_span = x_z_span_1 only [3]:[1]+0
    return add""",
        """\
graph f(x: f32[2,2,2]):
    _: f32[2], x_1: f32[2,2,2] = functionalized(my.two_, &x[2]:[1]+0, &x[2, 1]:[2, 1]+1)
    write x = x_1
    return""",
        """\
graph f(y: f32[4,2], z: f32[3], s: f32[]):
    y_1: f32[4,2], z_1: f32[3] = functionalized(my.lst_, [&y[2]:[1]+0, None, &z, &y[2]:[1]+2], s)
    return &y_1[4]:[2]+0, &y_1, z_1""",
        """\
graph f(x: f32[4]):
    [split: f32[2], split_1: f32[2]] = std.split(x, 2)
    [_: f32[1], split_2: f32[1]] = std.split(split, 2)
    None, maybe: f32[4] = my.maybe(x)
    return [split_1, {'a': split_2, 2: [maybe]}], (x,), (), same(0), same(1)""",
        """\
graph f(x: f32[4]):
    log: token[ordered] = my.log(x)
    both: f32[4], both_1: token[io], both_2: token[ordered] = my.both(x, after=log)
    _: f32[4], both_3: token[io], both_4: token[ordered] = my.both(x, after=[both_1, both_2])
    after: f32[4], after_1: token[ordered] = my.after(both, after=3, after=both_4)
    my.pure(after)
    return""",
        """\
graph f(x: f32[1,4]):
    transpose: f32[4,1,2]{1,4,8} = std.reshape(x, [4, 1, 2])
    neg: f32[2]{-1} = std.select(x, 0, 0)
    odd: f32[2]{6b} = std.select(x, 0, 1)
    bare: f32[1,4]{4,0} = std.add(x, odd) ! no_grad
    far: f64[2]@npu:0 = std.add(transpose, neg) ! layout_free no_grad
    rebind x = &far:i64[2]:[1]+0
    return bare, &far[2]:[6b]+4b""",
        """\
graph f(captured rng: numpy.random.Generator, u: bool, captured: f32[], span: f32[]):
    draw: f32[], draw_1: token[random:1] = my.draw(captured, rng)
    count: int = my.count(draw)
    return count, span""",
        """\
graph f(x: f32[u0,3], y: f32[u8]):
    nonzero: i64[u1] = my.nonzero(x)
    reshape: f32[3*u0] = std.reshape(x, [3*u0])
    reshape_1: f32[(u1//2)+1,u8]{2*u8,1} = std.reshape(x, [(u1//2)+1, u8])
    zeros: u8[2] = std.zeros([2], u8)
    reshape_2: f32[min(u0,u1)] = std.reshape(reshape, [u1*u8-u0, min(u0,u1)])
    return reshape_2, &reshape_1[u0]:[1]+u1, zeros""",
        """\
graph f():
    constant: f32[2] = constant([0.1, -0.0])
    constant_1: i64[2,0] = constant([[], []])
    constant_2: c64[] = constant(1.0-0.0j)
    constant_3: bool[2,1] = constant([[True], [False]])
    return constant, constant_1, constant_2, constant_3""",
    ],
)
def test_canonical_text_is_a_fixed_point(text: str) -> None:
    canonical(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (1, "1"),
        (-7, "-7"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (1e-05, "1e-05"),
        (5e-324, "5e-324"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        (struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0], "nan(0xfff8000000000001)"),
        (complex(-0.0, 1.0), "-0.0+1.0j"),
        (complex(math.inf, -math.nan), "inf+nan(0xfff8000000000000)j"),
        (complex(1.0, -0.0), "1.0-0.0j"),
        ("it's\n#sha256: [x", repr("it's\n#sha256: [x")),
        (np.dtype("i4"), "i32"),
        (np.dtype("?"), "bool"),
        (Device("npu", 1), "@npu:1"),
        (Device("cpu"), "@cpu"),
        (..., "..."),
        (slice(None), ":"),
        (slice(1, -2, 3), "1:-2:3"),
        (slice(None, None, -1), "::-1"),
        ([0, slice(0, 4), None], "[0, 0:4, None]"),
        ((), "()"),
        ((1,), "(1,)"),
        ([[1.0], []], "[[1.0], []]"),
        ({"a": [1], 2: (None, True)}, "{'a': [1], 2: (None, True)}"),
    ],
)
def test_a_literal_prints_and_parses_to_the_bit(value: Any, text: str) -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(2))
    builder.call(op("my.any"), (x, value, [value], 0), (meta(2),))
    graph = builder.build()
    assert f"my.any(x, {text}, b=[{text}])" in str(graph)
    assert read(str(graph)) == graph


class Mode(Enum):
    MEAN = 1
    SUM = 2


def test_members_of_registered_enums_and_operators_are_literals() -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(2))
    arguments = (x, [Mode.SUM, op("std.add.Scalar")], op("my.log"), 0)
    builder.call(op("my.any"), arguments, (meta(2),))
    graph = builder.build()
    with_name = register_opaque_type(Mode, "tests.Mode")
    try:
        assert "my.any(x, [tests.Mode.SUM, std.add.Scalar], b=my.log)" in str(graph)
        assert read(str(graph)) == graph
        with pytest.raises(CaptureError, match=r"no operator `tests\.Mode\.MAX`"):
            parse(str(graph).replace("SUM", "MAX"), resolve=_resolve)
    finally:
        with_name.remove()


def test_what_is_no_literal_shows_its_type() -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(2))
    builder.call(op("my.any"), (x, object(), None, 0), (meta(2),))
    assert "my.any(x, <object>)" in str(builder.build())


def test_literals_that_python_calls_equal_are_different_graphs() -> None:
    def graph(value: Any) -> Graph:
        builder = GraphBuilder("f")
        builder.call(op("my.any"), (builder.placeholder("x", meta()), value, None, 0), (meta(),))
        return builder.build()

    values = [0, 0.0, -0.0, False, 0j, [0], (0,), None, "0", slice(0)]
    assert len({str(graph(value)) for value in values}) == len(values)
    assert all((graph(a) == graph(b)) == (a is b) for a in values for b in values)
    assert graph(math.nan) == graph(math.nan)


@given(graphs(runnable=False))
def test_parsing_the_text_of_a_graph_gives_an_equal_graph_with_equal_text(graph: Graph) -> None:
    again = reparsed(graph)
    assert again == graph
    assert str(again) == str(graph)
    assert hash(again) == hash(graph)


@given(graphs())
def test_text_with_defaults_and_lines_is_the_same_graph(graph: Graph) -> None:
    assert parse(graph.text(defaults=True, lines=True)) == graph


def test_trailing_defaults_are_left_out_unless_asked_for() -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(2))
    builder.call(op("std.slice"), (x, 0, None, None), (meta(2),))
    builder.call(op("std.slice"), (x, 0, None, 1), (meta(2),))
    builder.call(op("std.add.Scalar"), (x, 1, 1), (meta(2),))
    builder.call(op("std.add.Scalar"), (x, 1, 1.0), (meta(2),))
    graph = builder.build()
    assert "std.slice(x, 0)\n" in str(graph)
    assert "std.slice(x, 0, None, 1)\n" in str(graph)
    assert "std.add.Scalar(x, 1)\n" in str(graph)
    assert "std.add.Scalar(x, 1, alpha=1.0)\n" in str(graph)
    full = graph.text(defaults=True)
    assert "std.slice(x, 0, None, None)" in full
    assert "alpha=1)" in full
    assert read(full) == graph


def test_provenance_is_a_comment_that_the_parser_skips() -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta(2))
    builder.call(op("std.std"), (x,), (meta(2),), where=Provenance("user.py", 12, "step"))
    graph = builder.build()
    assert "std.std(x)  # user.py:12 in step" in graph.text(lines=True)
    assert "#" not in str(graph)
    assert read(graph.text(lines=True)) == graph


def test_text_without_types_is_short() -> None:
    graph = read("graph f(x: f32[2]):\n    std_1: f32[2] = std.std(x)\n    return std_1")
    assert graph.text(types=False) == "graph f(x):\n    std_1 = std.std(x)\n    return std_1"


# The forms that functionalization records ---------------------------------------------------------

RECORDED = {
    "a write through a reshaped input": """\
graph f(x: f32[4,2]):
    reshape: f32[8] = std.reshape(x, [8])
    add: f32[8] = std.add(reshape, 1.0)
    x_1: f32[4,2] = std.reshape(add, [4, 2])
    mul: f32[4,2] = std.mul(x_1, 2.0)
    write x = x_1
    return mul""",
    "views of a temporary": """\
graph f(x: f32[4,2]):
    clone: f32[4,2] = std.clone(x)
    transpose: f32[2,4]{1,2} = std.transpose(clone, [1, 0])
    select: f32[4]{2} = std.select(transpose, 0, 0)
    add: f32[4] = std.add(select, 1.0)
    select_scatter: f32[2,4] = std.select_scatter(transpose, add, 0, 0)
    clone_1: f32[4,2] = std.transpose(select_scatter, [1, 0])
    return &clone_1, &clone_1[4]:[2]+0""",
    "a handle that changes its geometry": """\
graph f(x: f32[4,2]):
    unsqueeze: f32[1,4,2] = std.unsqueeze(x, 0)
    mul: f32[1,4,2] = std.mul(unsqueeze, 2.0)
    x_1: f32[4,2] = std.squeeze(mul, 0)
    write x = x_1
    rebind x = &x[1, 4, 2]:[8, 2, 1]+0
    return &x""",
    "a swap": """\
graph f(x: f32[2], z: f32[2]):
    clone: f32[2] = std.clone(x)
    write x = z
    write z = clone
    return""",
    "overlapping inputs": """\
graph f(x: f32[3], z: f32[3], span x_z_span: f32[4]):
    add: f32[3] = std.add(x, 1.0)
    x_z_span_1: f32[4] = std.strided_put(x_z_span, add, [3], [1], 0)
    strided_get: f32[3] = std.strided_get(x_z_span_1, [3], [1], 1)
    mul: f32[3] = std.mul(strided_get, 2.0)
    write x_z_span = x_z_span_1 only [3]:[1]+0
    return mul""",
    "opaque calls on parts of one region": """\
graph f(x: f32[4,2]):
    clone: f32[4,2] = std.clone(x)
    clone_1: f32[4,2] = functionalized(my.inc_, &clone[2]:[1]+2)
    clone_2: f32[4,2] = functionalized(my.inc_, &clone_1[4]:[2]+0)
    clone_3: f32[4,2] = functionalized(my.axpy_, &clone_2, &clone_2)
    _: f32[], clone_4: f32[4,2] = functionalized(my.two_, &clone_3[4, 1]:[2, 1]+0, &clone_3)
    return clone_4""",
    "a write without gradient": """\
graph f(x: f32[2]):
    add: f32[2] = std.add(x, 1.0) ! no_grad
    x_1: f32[2] = std.graft(add, x)
    mul: f32[2] = std.mul(x_1, 2.0)
    write x = x_1 ! no_grad
    return mul""",
    "two effects": """\
graph f(x: f32[2]):
    log: token[ordered] = my.log(x)
    mul: f32[2] = std.mul(x, 3.0)
    log_1: token[ordered] = my.log(mul, after=log)
    return""",
    "a list of results": """\
graph f(x: f32[2,2]):
    select: f32[2] = std.select(x, 0, 0)
    select_1: f32[2] = std.select(x, 0, 1)
    [foreach_add: f32[2], foreach_add_1: f32[2]] = std.foreach_add([select, select_1], 1.0)
    x_1: f32[2,2] = std.select_scatter(x, foreach_add, 0, 0)
    x_2: f32[2,2] = std.select_scatter(x_1, foreach_add_1, 0, 1)
    write x = x_2
    return &x""",
    "two writes that cancel": """\
graph f(x: f32[2]):
    write x = x times 2
    return""",
    "a call that writes a buffer": """\
graph f(x: f32[2]):
    my.inc_(x)
    mul: f32[2] = std.mul(x, 2.0)
    return mul""",
}


@pytest.mark.parametrize("text", RECORDED.values(), ids=RECORDED)
def test_what_functionalization_records_prints_like_this(text: str) -> None:
    graph = canonical(text)
    dialect: Dialect = "buffers" if "\n    my.inc_(x)" in text else "functional"
    verify(graph, dialect, resolve=OPERATORS.__getitem__)


# Names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["lambda", "None", "inf", "f32", "bool", "same", "u0", "_", "gt"])
def test_reserved_words_are_no_names(word: str) -> None:
    builder = GraphBuilder("f")
    x = builder.placeholder(word, meta(2))
    builder.call(operator("gt::f(Tensor x) -> Tensor"), (x,), (meta(2),))
    assert builder.build().names[x] == f"{word}_1"


def test_a_namespace_is_no_name_where_its_operators_are_used() -> None:
    text = "graph f(x: f32[2]):\n    std_1: f32[2] = std.std(x)\n    return std_1"
    assert [value.stem for value in canonical(text).names] == ["x", "std"]


def test_names_go_around_those_that_are_taken() -> None:
    builder = GraphBuilder("f")
    for stem in ["x", "x_1", "x", "x_1", "x"]:
        builder.placeholder(stem, meta())
    graph = builder.build()
    assert list(graph.names.values()) == ["x", "x_1", "x_2", "x_1_1", "x_3"]
    assert list(read(str(graph)).names.values()) == list(graph.names.values())


def test_a_thousand_nodes_of_one_stem_are_numbered_in_order() -> None:
    builder = GraphBuilder("f")
    value = builder.placeholder("add", meta())
    for _ in range(1000):
        [value] = builder.call(op("std.add"), (value, 1.0), (meta(),)).results
    builder.output(value)
    graph = builder.build()
    assert list(graph.names.values()) == ["add", *(f"add_{i}" for i in range(1, 1001))]
    assert read(str(graph)) == graph


def test_values_that_nothing_uses_take_no_number() -> None:
    text = """\
graph f(x: f32[2]):
    _: f32[2] = std.add(x, 1.0)
    add: f32[2] = std.add(x, 2.0)
    return add"""
    canonical(text)


# Constants ----------------------------------------------------------------------------------------


def constant_graph(array: Any, layout: TensorMeta | None = None) -> Graph:
    builder = GraphBuilder("f")
    builder.output(builder.constant(array, meta=layout))
    return builder.build()


@pytest.mark.parametrize(
    "array",
    [
        np.array([0.1, 1 / 3, 1e-45, 3.4028235e38], np.float32),
        np.array([0.1, 1 / 3, 5e-324], np.float64),
        np.array([0.1, 65504, 6e-8], np.float16),
        np.array([2**63 - 1, -(2**63)], np.int64),
        np.array([2**64 - 1], np.uint64),
        np.array(0.1 - 0.2j, np.complex64),
        np.array([complex(-0.0, -0.0)], np.complex128),
        np.zeros((2, 0, 3), np.int8),
        np.array(True),
    ],
)
def test_small_constants_print_their_elements_to_the_bit(array: Any) -> None:
    graph = constant_graph(array)
    assert "#sha256" not in str(graph)
    [node] = read(str(graph)).constants
    assert node.data.tobytes() == array.tobytes()
    assert (node.data.dtype, node.data.shape) == (array.dtype, array.shape)


@pytest.mark.parametrize(
    "array", [np.arange(9.0), np.array([math.nan]), np.array([1.0, math.inf], np.float32)]
)
def test_other_constants_print_as_a_digest_and_parse_with_their_bytes(array: Any) -> None:
    graph = constant_graph(array)
    without = read(str(graph))
    assert "constant(#sha256:" in str(graph)
    assert str(without) == str(graph)
    assert without == graph
    assert reparsed(graph).constants[0].data is array


def test_constants_of_other_bytes_are_other_graphs() -> None:
    assert constant_graph(np.arange(9.0)) != constant_graph(np.arange(9.0) + 1)
    assert constant_graph(np.array([0.0])) != constant_graph(np.array([-0.0]))
    assert constant_graph(np.zeros(9, "f4")) != constant_graph(np.zeros(9, "i4"))
    column_major = np.asfortranarray(np.arange(4.0).reshape(2, 2))
    assert constant_graph(column_major) != constant_graph(column_major.copy("C"))


def test_bytes_that_do_not_match_a_digest_are_refused() -> None:
    graph = constant_graph(np.arange(9.0))
    digest = str(graph).split("(")[-1].split(")")[0]
    with pytest.raises(CaptureError, match="other contents"):
        read(str(graph), constants={digest: np.zeros(9)})


# Equality -----------------------------------------------------------------------------------------

BASE = """\
graph f(x: f32[4], y: f32[4]):
    add: f32[4] = std.add(x, y)
    x_1: f32[4] = functionalized(my.inc_, &x[2]:[1]+0)
    write x = x_1 only [2]:[1]+0
    rebind y = &x[2]:[1]+0
    return add, [1.0, &x[2]:[1]+0]"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y: f32[4]", "captured y: f32[4]"),
        ("y: f32[4]", "y: f64[4]"),
        ("add: f32[4]", "add: f32[4]@npu"),
        ("add: f32[4]", "add: f32[4]{2}"),
        ("std.add(x, y)", "std.add(y, x)"),
        ("std.add(x, y)", "std.mul(x, y)"),
        ("std.add(x, y)", "std.add(x, y) ! no_grad"),
        ("std.add(x, y)", "std.add(x, 1.0)"),
        ("my.inc_, &x[2]:[1]+0", "my.inc_, &x[2]:[1]+1"),
        ("my.inc_, &x[2]:[1]+0", "my.inc_, &x"),
        ("only [2]:[1]+0", ""),
        ("only [2]:[1]+0", "only [2]:[1]+1"),
        ("only [2]:[1]+0", "only [2]:[1]+0 times 2"),
        ("only [2]:[1]+0", "only [2]:[1]+0 ! no_grad"),
        ("rebind y = &x[2]:[1]+0", "rebind y = &x[2]:[2]+0"),
        ("    rebind y = &x[2]:[1]+0\n", ""),
        ("[1.0, ", "[1, "),
        ("[1.0, ", "[True, "),
        ("return add,", "return &add,"),
        ("return add,", "return y,"),
    ],
)
def test_graphs_that_differ_in_one_place_are_not_equal(old: str, new: str) -> None:
    assert old in BASE
    assert read(BASE) != read(BASE.replace(old, new, 1))
    assert read(BASE) == read(BASE)


def test_names_provenance_and_unobserved_strides_do_not_count_in_equality() -> None:
    renamed = BASE.replace("add", "plus").replace("std.plus", "std.add").replace("f(x", "g(x")
    assert read(BASE) == read(renamed)
    one = TensorMeta(np.dtype("f4"), (1, 3), (999, 4))
    assert one == meta(1, 3)
    assert TensorMeta(np.dtype("f4"), (0, 3), (7, 7)) == meta(0, 3)
    assert one != TensorMeta(np.dtype("f4"), (1, 3), (999, 8))


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message", "under"),
    [
        ("add: f32[2] = std.add(x, z)", "`z` is not defined above this line", "z"),
        ("add: f32[2] = std.plus(x, x)", "no operator `std.plus`", "std.plus"),
        ("add: f32[2] = std.add(x, x, x)", "takes no such argument", "x"),
        ("add: f32[2] = std.add(x, z=x)", "takes no such argument", "z"),
        ("add: f32[2] = std.add(x)", "needs `y`", "add: f32[2] = std.add(x)"),
        ("add: f32[2] = std.add(x, x", "expected `,`, found the end of the line", ""),
        ("add: f32[2] = std.add(x, x) y", "expected the end of the line, found `y`", "y"),
        ("add: f32[2] = std.add(x; x)", "a character that begins nothing", ";"),
        ("add: f32[2]{1,1} = std.add(x, x)", "1 sizes and 2 strides", ""),
        ("x: f32[2] = std.add(x, x)", "`x` is defined twice", "x"),
        ("if: f32[2] = std.add(x, x)", "`if` is a reserved word", "if"),
        ("add = std.add(x, x)", "expected `:`, found `=`", "="),
        ("frob x = x", "expected `write`", "frob"),
        ("c: f32[2] = constant([1.0])", "no elements of f32[2]", ""),
        ("c: int = constant(1)", "a constant is one tensor", ""),
        ("a: f32[2] = functionalized(my.two_, &x, &x)", "has 1 fresh results and 1 regions", ""),
        ("a: f32[2] = my.any(x, 1.0*2)", "expected a size", "1.0"),
        ("a: f32[2] = my.any(x, 2.0j)", "expected the real part first", "2.0j"),
    ],
)
def test_a_syntax_error_shows_the_line_with_a_caret(line: str, message: str, under: str) -> None:
    text = f"graph f(x: f32[2]):\n    {line}\n    return"
    with pytest.raises(CaptureError) as caught:
        parse(text, resolve=_resolve)
    first, shown, carets = str(caught.value).splitlines()[:3]
    assert message in str(caught.value)
    if "not here" not in first:
        assert first.startswith("line 2 of a graph's text: ")
    start = carets.index("^")
    assert shown[start : start + carets.count("^")].startswith(under)


@pytest.mark.parametrize(
    "text", ["", "# nothing", "graph f():", "graph f():\n    return\n    return"]
)
def test_a_text_without_head_or_end_is_refused(text: str) -> None:
    with pytest.raises(CaptureError, match=r"return|empty"):
        parse(text)


def test_a_node_alone_prints_with_stems() -> None:
    [node] = read("graph f(x: f32[2]):\n    add_7: f32[2] = std.add(x, x)\n    return add_7").calls
    assert str(node) == "add_7: f32[2] = std.add(x, x)"
    assert repr(node) == "<Call add_7: f32[2] = std.add(x, x)>"
    assert repr(node.results[0]) == "<Value add_7: f32[2]>"


def test_python_values_print_the_name_of_their_type() -> None:
    builder = GraphBuilder("f")
    builder.output(builder.placeholder("seed", PyMeta("numpy.random.Generator")), Same(0))
    assert str(builder.build()) == (
        "graph f(seed: numpy.random.Generator):\n    return seed, same(0)"
    )
