"""What tests of graphs share: operators in namespace ``gt``, metas, a runner, random graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from oplib.dispatch.facets import calling_source
from oplib.dispatch.operator import Operator
from oplib.dispatch.registry import get_op
from oplib.dtypes import Device
from oplib.graph import (
    Constant,
    Graph,
    GraphBuilder,
    Reference,
    Region,
    RegionView,
    Same,
    TensorMeta,
    Value,
    parse,
)
from oplib.graph.literals import array_digest
from oplib.library import Library
from oplib.schema import parse as parse_schema
from oplib.tensor.geometry import Geometry, extent
from oplib.tensor.tensor import Tensor, tensor_from_array

AnyOperator = Operator[..., Any]
F32 = np.dtype(np.float32)

LOG: list[Any] = []
"""What ``gt::log`` was called with."""

_library = Library("gt", "DEF")


def _define(schema: str, kernel: Any = None, **options: Any) -> AnyOperator:
    op: AnyOperator = get_op(str(_library.define(schema, **options)))
    if kernel is not None:
        _library.impl(op, kernel, "CPU")
    return op


def _increment(x: Any) -> None:
    x += 1


def _two(x: Any, y: Any) -> Any:
    before = x.copy()
    x += 1
    y *= 2
    return before


def _maybe(x: Any, bias: Any) -> Any:
    return None if bias is None else bias.copy()


ADD = _define("add(Tensor x, Tensor y) -> Tensor", np.add)
MUL = _define("mul(Tensor x, Tensor y) -> Tensor", np.multiply)
SCALE = _define(
    "scale(Tensor x, float factor=1.0, *, bool negate=False, int[] shift=[0]) -> Tensor",
    lambda x, factor, negate, shift: (-x if negate else x) * np.float32(factor) + len(shift),
)
PAIR = _define("pair(Tensor x) -> (Tensor low, Tensor high)", lambda x: (x - 1, x + 1))
PARTS = _define("parts(Tensor x, int n=2) -> Tensor[]", lambda x, n: [x + i for i in range(n)])
TOTAL = _define("total(Tensor?[] xs) -> Tensor", lambda xs: sum(x for x in xs if x is not None))
LOGGED = _define("log(Tensor x) -> ()", lambda x: LOG.append(x.copy()))
CHECKED = _define("check(Tensor x) -> ()", lambda x: None, effects=("check", "io"))
DRAW = _define("draw(Tensor x) -> Tensor", lambda x: x + 0.5, effects=("random",))
DRIFT = _define("drift(Tensor x) -> Tensor", lambda x: x + 0.25, tags=("nondeterministic",))
INC = _define("inc_(Tensor(a!) x) -> ()", _increment)
TWO = _define("two_(Tensor(a!) x, Tensor(b!) y) -> Tensor", _two)
SAY = _define("say_(Tensor(a!) x) -> ()", _increment, effects=("io",))
MAYBE = _define("maybe(Tensor x, Tensor? bias=None) -> Tensor?", _maybe)
BOTH = _define("both(Tensor x) -> Dict(str, Tensor)", lambda x: {"up": x + 1, "down": x - 1})
LITERALS = _define(
    "literals(Tensor x, Any a=None, *, Scalar b=0, ScalarType? t=None, complex c=0j) -> Tensor"
)
POSITIVE = _define("positive(Tensor x) -> Tensor", lambda x: x[x > 0])
ZEROS = _define("zeros(SymInt[] size) -> Tensor", lambda size: np.zeros(size, np.float32))
FAILS = _define("fails(Tensor x) -> Tensor", lambda x: {}["nothing"])


def operator(
    schema: str, effects: tuple[str, ...] | None = None, tags: tuple[str, ...] = ()
) -> AnyOperator:
    """Return an operator that is not registered, for text only."""
    parsed = parse_schema(schema)
    if effects is None:
        effects = ("ordered",) if parsed.is_effect else ()
    return Operator(parsed, tags, frozenset(effects), calling_source())


def meta(*shape: Any, dtype: Any = F32) -> TensorMeta:
    """Return the meta of a contiguous tensor."""
    return TensorMeta.contiguous(dtype, shape)


def at(*shape: int, strides: Sequence[int], offset: int = 0, dtype: Any = F32) -> Geometry:
    """Return a geometry given in elements."""
    size = np.dtype(dtype).itemsize
    return Geometry(np.dtype(dtype), shape, tuple(s * size for s in strides), offset * size)


def tensor(*elements: float) -> Tensor:
    """Return a float32 tensor with one axis."""
    return tensor_from_array(np.array(elements, np.float32))


def run_functionalized(
    op: AnyOperator, arguments: tuple[Any, ...], regions: tuple[Region, ...]
) -> list[Any]:
    """Run a functionalized node on NumPy buffers, as Note [Running a functionalized node] says."""
    buffers = [_buffer(region) for region in regions]

    def rebuilt(leaf: Any) -> Any:
        if not isinstance(leaf, RegionView):
            return leaf
        region = leaf.region
        return tensor_from_array(_view(buffers[region], leaf.geometry or regions[region].form))

    rebuilt_arguments = tuple(
        [rebuilt(item) for item in value] if isinstance(value, list) else rebuilt(value)
        for value in arguments
    )
    result = op.call_positional(rebuilt_arguments)
    returned = (result,) if len(op.schema.returns) == 1 else result or ()
    fresh = [returned[index] for index in op.schema.fresh_returns(arguments)]
    forms = (region.form for region in regions)
    news = [_view(buffer, form).copy() for buffer, form in zip(buffers, forms, strict=True)]
    return [*fresh, *map(tensor_from_array, news)]


def _buffer(region: Region) -> Any:
    buffer = np.zeros(extent(region.form)[1], np.uint8)
    _view(buffer, region.form)[...] = region.value.numpy()
    return buffer


def _view(buffer: Any, geometry: Geometry) -> Any:
    return np.ndarray(geometry.shape, geometry.dtype, buffer, geometry.offset, geometry.strides)


def reparsed(graph: Graph) -> Graph:
    """Return the graph that the text of `graph` describes, with the bytes of its constants."""
    arrays = [node.data for node in graph.constants if isinstance(node.data, np.ndarray)]
    return parse(str(graph), constants={array_digest(array): array for array in arrays})


def same_bits(left: Any, right: Any) -> bool:
    """Return whether two tuples of tensors agree in dtype, shape and bytes."""
    return len(left) == len(right) and all(
        a.numpy().dtype == b.numpy().dtype
        and a.numpy().shape == b.numpy().shape
        and a.numpy().tobytes() == b.numpy().tobytes()
        for a, b in zip(left, right, strict=True)
    )


# Random graphs ------------------------------------------------------------------------------------

floats = st.floats(allow_nan=False) | st.sampled_from([float("nan"), float("-inf"), -0.0])
literals = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | floats
    | st.complex_numbers(allow_nan=False)
    | st.text(max_size=6)
    | st.sampled_from([F32, np.dtype("u1"), np.dtype("?"), Device("npu", 1), ...])
    | st.builds(slice, st.none() | st.integers(), st.none() | st.integers(), st.none()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)


@st.composite
def graphs(draw: st.DrawFn, *, runnable: bool = True) -> Graph:
    """Draw a well-formed graph over tensors of three elements.

    All placeholders and values have shape (3,). Graphs that are not `runnable` hold literals of
    every kind too.
    """
    builder = GraphBuilder(draw(st.sampled_from(["f", "step", "graph_1"])))
    stems = st.sampled_from(["x", "y", "add", "lambda", "u8", "x_1", "write"])
    inputs = [builder.placeholder(draw(stems), meta(3)) for _ in range(draw(st.integers(1, 3)))]
    values = [*inputs]
    steps = st.sampled_from(_STEPS if runnable else [*_STEPS, _literals_step])
    for _ in range(draw(st.integers(0, 8))):
        draw(steps)(draw, builder, values)
    pick = st.sampled_from(values)
    written = draw(st.lists(st.sampled_from(inputs), unique=True, max_size=2))
    for target in written:
        only = (at(2, strides=[1], offset=1),) if draw(st.booleans()) else ()
        builder.write(target, draw(pick), only, draw(st.integers(1, 2)))
    results: list[Any] = draw(st.lists(pick | st.sampled_from([1.0, None, -0.0]), max_size=3))
    results += draw(st.sampled_from([[], [[draw(pick)]], [{"a": draw(pick)}]]))
    if results and draw(st.booleans()):
        results.append(Same(0))
    constants = {node.value for node in builder.nodes if isinstance(node, Constant)}
    free = [value for value in values if value not in constants]
    if draw(st.booleans()):
        results.append(Reference(draw(st.sampled_from(free)), at(2, strides=[1], offset=1)))
    builder.output(*results)
    return builder.build()


def _binary(draw: st.DrawFn, builder: GraphBuilder, values: list[Value]) -> None:
    op = draw(st.sampled_from([ADD, MUL]))
    left, right = (
        draw(st.sampled_from(values)),
        draw(st.sampled_from([*values, 2.0, -0.0, 1, True])),
    )
    flags = ("no_grad",) if draw(st.integers(0, 3)) == 0 else ()
    values += builder.call(op, (left, right), (meta(3),), flags=flags).results


def _scale(draw: st.DrawFn, builder: GraphBuilder, values: list[Value]) -> None:
    factor, negate = draw(st.sampled_from([1.0, 0.5, -0.0, float("nan")])), draw(st.booleans())
    shift = draw(st.lists(st.integers(0, 1), max_size=2))
    arguments = (draw(st.sampled_from(values)), factor, negate, shift)
    values += builder.call(SCALE, arguments, (meta(3),)).results


def _several(draw: st.DrawFn, builder: GraphBuilder, values: list[Value]) -> None:
    x = draw(st.sampled_from(values))
    match draw(st.integers(0, 3)):
        case 0:
            values += builder.call(PAIR, (x,), (meta(3), meta(3))).results
        case 1:
            values += builder.call(PARTS, (x, 2), ([meta(3), meta(3)],)).results[0]
        case 2:
            values += builder.call(BOTH, (x,), ((meta(3), meta(3)),)).results[0]
        case 3:
            values += builder.call(
                TOTAL, ([x, None, draw(st.sampled_from(values))],), (meta(3),)
            ).results


def _effect(draw: st.DrawFn, builder: GraphBuilder, values: list[Value]) -> None:
    x = draw(st.sampled_from(values))
    if draw(st.booleans()):
        builder.call(draw(st.sampled_from([LOGGED, CHECKED])), (x,), ())
    else:
        values += builder.call(DRAW, (x,), (meta(3),)).results


def _constant(draw: st.DrawFn, builder: GraphBuilder, values: list[Value]) -> None:
    numbers = draw(st.lists(st.floats(width=32), min_size=3, max_size=3))
    values.append(builder.constant(np.array(numbers, np.float32)))


def _functionalized(draw: st.DrawFn, builder: GraphBuilder, values: list[Value]) -> None:
    x, y = draw(st.sampled_from(values)), draw(st.sampled_from(values))
    match draw(st.integers(0, 2)):
        case 0:
            values += builder.functionalized(INC, (Reference(x),), ()).regions
        case 1:
            part = Reference(x, at(2, strides=[1], offset=draw(st.integers(0, 1))))
            values += builder.functionalized(SAY, (part,), ()).regions
        case 2:
            node = builder.functionalized(TWO, (Reference(x), Reference(y)), (meta(3),))
            values += (*node.results, *node.regions)


def _literals_step(draw: st.DrawFn, builder: GraphBuilder, values: list[Value]) -> None:
    number = draw(st.booleans() | st.integers() | floats)
    dtype = draw(st.none() | st.just(np.dtype("u1")))
    complex_number = complex(draw(floats), draw(floats))
    arguments = (draw(st.sampled_from(values)), draw(literals), number, dtype, complex_number)
    values += builder.call(LITERALS, arguments, (meta(3),)).results


_STEPS = [_binary, _binary, _scale, _several, _effect, _constant, _functionalized]
