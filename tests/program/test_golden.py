"""Golden graphs: the text of captured programs, as a reader sees it, and what they compute.

The docstring of each program is its graph. Every program is also compared with eager code, results
and arguments, on contents other than those it was captured with.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import Library, Tensor
from oplib.graph import parse, verify

Program = Callable[..., Any]
Inputs = Callable[[], list[Tensor]]

PROGRAMS: dict[str, tuple[Program, Inputs]] = {}


def numbers(*shape: int, dtype: str = "f4") -> Tensor:
    """Return 0, 1, 2, ... in a shape."""
    return oplib.from_numpy(np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape))


def golden(inputs: Inputs | None = None, shape: tuple[int, ...] = (4, 2)) -> Any:
    """Enter a program in the table; without `inputs` it takes numbers in `shape`."""

    def enter(program: Program) -> Program:
        count = len(inspect.signature(program).parameters)
        make = inputs or (lambda: [numbers(*shape) for _ in range(count)])
        PROGRAMS[program.__name__] = program, make
        return program

    return enter


def slices(size: int, *parts: slice) -> Inputs:
    """Return what makes tensors over parts of one buffer."""

    def make() -> list[Tensor]:
        buffer = np.arange(size, dtype="f4")
        return [oplib.from_numpy(buffer[part]) for part in parts]

    return make


# ---------------------------------------------------------------------- views of a temporary


@golden()
def write_to_a_reshaped_input(x: Tensor) -> Any:
    """
    graph write_to_a_reshaped_input(x):
    strided_get = std.strided_get(x, [8], [1], 0)
    add = std.add(strided_get, 1)
    x_1 = std.strided_put(x, add, [8], [1], 0)
    mul = std.mul(x_1, 2)
    write x = x_1
    return mul
    """
    x.reshape(8).add_(1)
    return x * 2


@golden()
def write_to_a_part_of_a_row(x: Tensor) -> Any:
    """
    graph write_to_a_part_of_a_row(x):
    clone = std.clone(x)
    strided_get = std.strided_get(clone, [1], [0], 1)
    mul = std.mul(strided_get, 10)
    clone_1 = std.strided_put(clone, mul, [1], [0], 1)
    return &clone_1[4, 2]:[2, 1]+0, &clone_1[2]:[1]+0
    """
    y = x.clone()
    y[0][1:].mul_(10)
    return y, y[0]


@golden()
def parts_written_in_turn(x: Tensor) -> Any:
    """
    graph parts_written_in_turn(x):
    clone = std.clone(x)
    strided_get = std.strided_get(clone, [2, 2], [2, 1], 0)
    strided_get_1 = std.strided_get(clone, [2, 2], [2, 1], 4)
    add = std.add(strided_get, strided_get_1)
    clone_1 = std.strided_put(clone, add, [2, 2], [2, 1], 0)
    strided_get_2 = std.strided_get(clone_1, [2, 2], [2, 1], 4)
    mul = std.mul(strided_get_2, add)
    clone_2 = std.strided_put(clone_1, mul, [2, 2], [2, 1], 4)
    return clone_2
    """
    y = x.clone()
    a, b = y.split(2)
    a.add_(b)
    b.mul_(a)
    return y


@golden()
def a_written_row_is_returned(x: Tensor) -> Any:
    """
    graph a_written_row_is_returned(x):
    clone = std.clone(x)
    strided_get = std.strided_get(clone, [2], [1], 4)
    strided_get_1 = std.strided_get(clone, [2], [1], 2)
    add = std.add(strided_get, strided_get_1)
    clone_1 = std.strided_put(clone, add, [2], [1], 4)
    return &clone_1[2]:[1]+4
    """
    rows = x.clone().unbind()
    rows[2].add_(rows[1])
    return rows[2]


@golden(shape=(3, 3))
def write_to_a_diagonal(x: Tensor) -> Any:
    """
    graph write_to_a_diagonal(x):
    clone = std.clone(x)
    strided_get = std.strided_get(clone, [3], [4], 0)
    with_layout = std.with_layout(strided_get, [4])
    add = std.add(with_layout, 1)
    clone_1 = std.strided_put(clone, add, [3], [4], 0)
    return clone_1
    """
    y = x.clone()
    y.diagonal().add_(1)
    return y


@golden()
def as_strided_counts_from_the_storage(x: Tensor) -> Any:
    """
    graph as_strided_counts_from_the_storage(x):
    clone = std.clone(x)
    strided_get = std.strided_get(clone, [3], [2], 1)
    with_layout = std.with_layout(strided_get, [2])
    add = std.add(with_layout, 5)
    clone_1 = std.strided_put(clone, add, [3], [2], 1)
    return clone_1
    """
    y = x.clone()
    y[2].as_strided((3,), (2,), 1).add_(5)
    return y


@golden(shape=(4, 1))
def fill_through_an_expand(x: Tensor) -> Any:
    """
    graph fill_through_an_expand(x):
    clone = std.clone(x)
    full = std.full([4, 3], 7, dtype=f32)
    strided_get = std.strided_get(full, [4, 1], [3, 1], 0)
    clone_1 = std.strided_put(clone, strided_get, [4, 1], [1, 0], 0)
    return clone_1
    """
    y = x.clone()
    y.expand((4, 3)).fill_(7)
    return y


@golden(shape=(8,))
def windows_with_gaps(x: Tensor) -> Any:
    """
    graph windows_with_gaps(x):
    clone = std.clone(x)
    strided_get = std.strided_get(clone, [2, 3], [4, 1], 0)
    with_layout = std.with_layout(strided_get, [4, 1])
    add = std.add(with_layout, 1)
    clone_1 = std.strided_put(clone, add, [2, 3], [4, 1], 0)
    return clone_1
    """
    y = x.clone()
    y.unfold(0, 3, 4).add_(1)
    return y


@golden(lambda: [numbers(3, dtype="c8")])
def parts_of_complex_numbers(x: Tensor) -> Any:
    """
    graph parts_of_complex_numbers(x):
    clone = std.clone(x)
    view_as_real = std.view_as_real(clone)
    strided_get = std.strided_get(view_as_real, [3], [2], 0)
    with_layout = std.with_layout(strided_get, [2])
    add = std.add(with_layout, 1)
    view_as_real_1 = std.view_as_real(clone)
    strided_put = std.strided_put(view_as_real_1, add, [3], [2], 0)
    clone_1 = std.view_as_complex(strided_put)
    view_as_real_2 = std.view_as_real(clone_1)
    strided_get_1 = std.strided_get(view_as_real_2, [3], [2], 1)
    with_layout_1 = std.with_layout(strided_get_1, [2])
    mul = std.mul(with_layout_1, 2)
    view_as_real_3 = std.view_as_real(clone_1)
    strided_put_1 = std.strided_put(view_as_real_3, mul, [3], [2], 1)
    clone_2 = std.view_as_complex(strided_put_1)
    return clone_2
    """
    y = x.clone()
    y.real.add_(1)
    y.imag.mul_(2)
    return y


@golden()
def out_is_a_part(x: Tensor) -> Any:
    """
    graph out_is_a_part(x):
    zeros = std.zeros([8, 2], dtype=f32)
    add = std.add(x, 1)
    zeros_1 = std.strided_put(zeros, add, [4, 2], [2, 1], 4)
    return zeros_1
    """
    z = oplib.zeros(8, 2, dtype="float32")
    oplib.ops.std.add(x, 1, out=z[2:6])
    return z


@golden()
def column_onto_column(x: Tensor) -> Any:
    """
    graph column_onto_column(x):
    clone = std.clone(x)
    strided_get = std.strided_get(clone, [4], [2], 0)
    with_layout = std.with_layout(strided_get, [2])
    clone_1 = std.strided_put(clone, with_layout, [4], [2], 1)
    return clone_1
    """
    y = x.clone()
    y[:, 1] = y[:, 0]
    return y


@golden()
def f_order_is_kept(x: Tensor) -> Any:
    """
    graph f_order_is_kept(x):
    strided_get = std.strided_get(x, [2, 4], [1, 2], 0)
    clone = std.clone(strided_get)
    full = std.full([3], 0, dtype=f32)
    permute = std.permute(clone, [1, 0])
    strided_put = std.strided_put(permute, full, [3], [1], 1)
    clone_1 = std.permute(strided_put, [1, 0])
    return clone_1
    """
    y = x.T.clone()
    y.as_strided((3,), (1,), 1).fill_(0)
    return y


# ---------------------------------------------------------------------- inputs


@golden()
def write_to_a_row_of_an_input(x: Tensor) -> Any:
    """
    graph write_to_a_row_of_an_input(x):
    full = std.full([2], 0, dtype=f32)
    x_1 = std.strided_put(x, full, [2], [1], 2)
    write x = x_1
    return
    """
    x[1].fill_(0)


@golden()
def copy_then_write_the_source(x: Tensor, z: Tensor) -> Any:
    """
    graph copy_then_write_the_source(x, z):
    z_1 = std.add(z, 1)
    write x = z
    write z = z_1
    return
    """
    x.copy_(z)
    z.add_(1)


@golden()
def swap(x: Tensor, z: Tensor) -> Any:
    """
    graph swap(x, z):
    z_1 = std.clone(x)
    write x = z
    write z = z_1
    return
    """
    kept = x.clone()
    x.copy_(z)
    z.copy_(kept)


@golden(slices(4, np.s_[:3], np.s_[1:]))
def overlapping_inputs(x: Tensor, z: Tensor) -> Any:
    """
    graph overlapping_inputs(x, z, span x_z_span):
    strided_get = std.strided_get(x_z_span, [3], [1], 0)
    add = std.add(strided_get, 1)
    x_z_span_1 = std.strided_put(x_z_span, add, [3], [1], 0)
    strided_get_1 = std.strided_get(x_z_span_1, [3], [1], 1)
    mul = std.mul(strided_get_1, 2)
    write x = add
    return mul
    """
    x.add_(1)
    return z * 2


@golden(slices(4, np.s_[:], np.s_[1:]))
def an_input_inside_another(x: Tensor, z: Tensor) -> Any:
    """
    graph an_input_inside_another(x, z):
    strided_get = std.strided_get(x, [3], [1], 1)
    add = std.add(strided_get, 1)
    x_1 = std.strided_put(x, add, [3], [1], 1)
    mul = std.mul(x_1, 2)
    write z = add
    return mul
    """
    z.add_(1)
    return x * 2


@golden(slices(8, np.s_[::2]))
def an_input_with_holes(x: Tensor) -> Any:
    """
    graph an_input_with_holes(x):
    x_1 = std.add(x, 1)
    mul = std.mul(x_1, 2)
    write x = x_1
    return mul
    """
    x.add_(1)
    return x * 2


@golden(slices(8, np.s_[::2]))
def a_write_into_the_holes_of_an_input(x: Tensor) -> Any:
    """
    graph a_write_into_the_holes_of_an_input(x, captured captured, span x_captured_span):
    full = std.full([2], 9, dtype=f32)
    x_captured_span_1 = std.strided_put(x_captured_span, full, [2], [1], 0)
    strided_get = std.strided_get(x_captured_span_1, [4], [2], 0)
    mul = std.mul(strided_get, 2)
    strided_get_1 = std.strided_get(x_captured_span_1, [2], [1], 0)
    write captured = strided_get_1
    return mul
    """
    x.as_strided((2,), (1,), 0).fill_(9)
    return x * 2


@golden()
def views_of_an_input_returned(x: Tensor) -> Any:
    """
    graph views_of_an_input_returned(x):
    strided_get = std.strided_get(x, [2], [1], 0)
    clone = std.clone(strided_get)
    return &x, &x[2]:[1]+0, &x[2]:[1]+0, clone
    """
    return x, x[0], x[0], x[0].clone()


@golden(lambda: [numbers(4, 2).requires_grad_()])
def a_leaf_written_without_gradient(x: Tensor) -> Any:
    """
    graph a_leaf_written_without_gradient(x):
    clone = std.clone(x)
    add = std.add(clone, 1) ! no_grad
    clone_1 = std.graft(add, clone)
    mul = std.mul(clone_1, 2)
    write x = clone_1 ! no_grad
    return mul
    """
    with oplib.no_grad():
        x.add_(1)
    return x * 2


@golden()
def comparison_in_place(x: Tensor) -> Any:
    """
    graph comparison_in_place(x):
    ge = std.ge(x, 3)
    x_1 = std.cast(ge, f32)
    write x = x_1
    return &x
    """
    x.copy_(x.ge(3))
    return x


@golden()
def lists_of_views(x: Tensor) -> Any:
    """
    graph lists_of_views(x):
    clone = std.clone(x)
    strided_get = std.strided_get(clone, [2], [1], 0)
    strided_get_1 = std.strided_get(clone, [2], [1], 2)
    [foreach_add, foreach_add_1] = golden.foreach_add([strided_get, strided_get_1], 1.0)
    clone_1 = std.strided_put(clone, foreach_add, [2], [1], 0)
    clone_2 = std.strided_put(clone_1, foreach_add_1, [2], [1], 2)
    return clone_2
    """
    y = x.clone()
    oplib.ops.golden.foreach_add_([y[0], y[1]], 1.0)
    return y


# ---------------------------------------------------------------------- handles that move


@golden()
def moved_and_back(x: Tensor) -> Any:
    """
    graph moved_and_back(x):
    clone = std.clone(x)
    strided_get = std.strided_get(clone, [4], [2], 0)
    with_layout = std.with_layout(strided_get, [2])
    add = std.add(with_layout, 1)
    clone_1 = std.strided_put(clone, add, [4], [2], 0)
    return &clone_1[4, 2]:[2, 1]+0, &clone_1[4]:[2]+0
    """
    y = x.clone()
    y.transpose_()
    z = y[0]
    y.transpose_()
    z.add_(1)
    return y, z


@golden()
def an_input_moved(x: Tensor) -> Any:
    """
    graph an_input_moved(x):
    strided_get = std.strided_get(x, [2, 4], [1, 2], 0)
    add = std.add(strided_get, 1)
    rebind x = &x[2, 4]:[1, 2]+0
    return add
    """
    x.transpose_()
    return x + 1


@golden()
def an_input_moved_and_written(x: Tensor) -> Any:
    """
    graph an_input_moved_and_written(x):
    strided_get = std.strided_get(x, [1, 4, 2], [0, 2, 1], 0)
    mul = std.mul(strided_get, 2)
    x_1 = std.strided_put(x, mul, [1, 4, 2], [0, 2, 1], 0)
    write x = x_1
    rebind x = &x[1, 4, 2]:[0, 2, 1]+0
    return &x
    """
    x.unsqueeze_(0)
    x.mul_(2)
    return x


@golden()
def an_input_set_to_a_temporary(x: Tensor) -> Any:
    """
    graph an_input_set_to_a_temporary(x):
    add = std.add(x, 1)
    rebind x = &add[4, 2]:[2, 1]+0
    return &add[4, 2]:[2, 1]+0
    """
    y = x + 1
    x.set_(y)
    return y


# ---------------------------------------------------------------------- opaque operators


@golden()
def opaque_write_to_an_input(x: Tensor) -> Any:
    """
    graph opaque_write_to_an_input(x):
    x_1 = functionalized(golden.inc_, &x)
    mul = std.mul(x_1, 2)
    write x = x_1
    return mul
    """
    oplib.ops.golden.inc_(x)
    return x * 2


@golden()
def opaque_writes_to_row_and_column(x: Tensor) -> Any:
    """
    graph opaque_writes_to_row_and_column(x):
    clone = std.clone(x)
    clone_1 = functionalized(golden.inc_, &clone[2]:[1]+2)
    clone_2 = functionalized(golden.inc_, &clone_1[4]:[2]+0)
    return clone_2
    """
    y = x.clone()
    oplib.ops.golden.inc_(y[1])
    oplib.ops.golden.inc_(y.T[0])
    return y


@golden()
def opaque_operator_on_a_base_and_its_view(x: Tensor) -> Any:
    """
    graph opaque_operator_on_a_base_and_its_view(x):
    clone = std.clone(x)
    two, clone_1 = functionalized(golden.two_, &clone, &clone[2]:[1]+2)
    return two, clone_1
    """
    y = x.clone()
    return oplib.ops.golden.two_(y, y[1]), y


@golden(lambda: [numbers(4, 2), numbers(2)])
def opaque_operator_on_a_list(x: Tensor, s: Tensor) -> Any:
    """
    graph opaque_operator_on_a_list(x, s):
    clone = std.clone(x)
    clone_1 = std.clone(x)
    clone_2, clone_3 = functionalized(golden.each_, [&clone[2]:[1]+0, None, &clone_1, &clone], s)
    return clone_2, clone_3
    """
    y, z = x.clone(), x.clone()
    oplib.ops.golden.each_([y[0], None, z, y], s)
    return y, z


@golden()
def opaque_operator_on_one_tensor_twice(x: Tensor) -> Any:
    """
    graph opaque_operator_on_one_tensor_twice(x):
    clone = std.clone(x)
    clone_1 = functionalized(golden.axpy_, &clone, &clone)
    return clone_1
    """
    y = x.clone()
    oplib.ops.golden.axpy_(y, y)
    return y


@golden()
def opaque_operator_on_halves(x: Tensor) -> Any:
    """
    graph opaque_operator_on_halves(x):
    clone = std.clone(x)
    _, clone_1 = functionalized(golden.two_, &clone[4, 1]:[2, 1]+0, &clone[4, 1]:[2, 1]+1)
    return clone_1
    """
    y = x.clone()
    oplib.ops.golden.two_(y[:, :1], y[:, 1:])
    return y


@golden(slices(4, np.s_[:3], np.s_[1:]))
def opaque_operator_on_overlapping_inputs(x: Tensor, z: Tensor) -> Any:
    """
    graph opaque_operator_on_overlapping_inputs(x, z, span x_z_span):
    strided_get = std.strided_get(z, [], [], 0)
    clone = std.clone(strided_get)
    x_z_span_1 = functionalized(golden.each_, [&x_z_span[3]:[1]+0, &x_z_span[3]:[1]+1], clone)
    strided_get_1 = std.strided_get(x_z_span_1, [3], [1], 0)
    strided_get_2 = std.strided_get(x_z_span_1, [3], [1], 1)
    write x = strided_get_1
    write z = strided_get_2
    return
    """
    oplib.ops.golden.each_([x, z], z[0].clone())


@golden()
def effects_in_their_order(x: Tensor) -> Any:
    """
    graph effects_in_their_order(x):
    log = golden.log(x)
    mul = std.mul(x, 3)
    log_1 = golden.log(mul, after=log)
    return
    """
    oplib.ops.golden.log(x)
    oplib.ops.golden.log(x * 3)


# ---------------------------------------------------------------------- the operators and tests


def _inc(x: Any) -> None:
    x += 1


def _axpy(y: Any, x: Any) -> None:
    y += x


def _two(x: Any, y: Any) -> Any:
    total = np.full(2, x.sum(), x.dtype)
    x += 1
    y *= 2
    return total


def _each(xs: Any, s: Any) -> None:
    for x in xs:
        if x is not None:
            x += s


@contextlib.contextmanager
def operators() -> Iterator[None]:
    """Define the opaque operators of the programs."""
    with Library("golden", "DEF") as lib:
        for schema, kernel in (
            ("inc_(Tensor(a!) x) -> ()", _inc),
            ("two_(Tensor(a!) x, Tensor(b!) y) -> Tensor", _two),
            ("each_(Tensor(a!)?[] xs, Tensor s) -> ()", _each),
            ("axpy_(Tensor(a!) y, Tensor x) -> ()", _axpy),
            ("log(Tensor x) -> ()", lambda x: LOG.append(x.copy())),
            ("foreach_add_(Tensor(a!)[] xs, float s) -> ()", _each),
            ("foreach_add(Tensor[] xs, float s) -> Tensor[]", lambda xs, s: [x + s for x in xs]),
        ):
            lib.define(schema).op.register_kernel("cpu", kernel)
        like_all = lambda xs, s: [x.new_empty(x.shape) for x in xs]  # noqa: E731
        oplib.register_fake("golden::foreach_add", like_all)
        twin = oplib.ops.golden.foreach_add
        oplib.ops.golden.foreach_add_.register_functional(twin, pre_state=True)
        oplib.register_fake("golden::two_", lambda x, y: x.new_empty((2,)))
        yield


LOG: list[Any] = []


@pytest.fixture
def golden_operators() -> Iterator[None]:
    """The opaque operators, for one test."""
    LOG.clear()
    with operators():
        yield


@pytest.mark.usefixtures("golden_operators")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_graph_of_a_program_is_its_docstring(name: str) -> None:
    function, make = PROGRAMS[name]
    graph = oplib.capture(function, *make()).graph
    verify(graph)
    assert parse(str(graph)) == graph
    lines = graph.text(types=False).splitlines()
    assert [line.strip() for line in lines] == str(inspect.getdoc(function)).splitlines()


@pytest.mark.usefixtures("golden_operators")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_on_other_contents_what_eager_code_does(name: str) -> None:
    function, make = PROGRAMS[name]
    program = oplib.capture(function, *make())
    seen = []
    for run in (function, program):
        inputs = make()
        with oplib.no_grad():
            inputs[0].mul_(3)
        LOG.clear()
        results = run(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        seen.append(
            [None if t is None else t.detach().numpy().tolist() for t in (*results, *inputs)]
            + [t.inplace_version for t in inputs]
            + [array.tolist() for array in LOG]
        )
    assert seen[0] == seen[1]
