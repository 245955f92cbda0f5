"""Programs: guards, captured tensors, constants, what a graph says, and errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import CaptureError, DataDependentError, GuardError, Tensor
from oplib.graph import parse, verify
from tests.functionalize.helpers import assert_values, counted, tensor


def text_of(function: Any, *examples: Any) -> str:
    """Return the graph of a function without types, as a reader sees it."""
    program = oplib.capture(function, *examples)
    verify(program.graph)
    return program.graph.text(types=False)


# ---------------------------------------------------------------------- graphs


def test_a_write_through_a_view_is_a_put_and_one_store() -> None:
    def f(x: Tensor) -> Tensor:
        x[1].fill_(0)
        return x * 2

    assert text_of(f, counted(4, 2)).splitlines() == [
        "graph f(x):",
        "    full = std.full([2], 0, dtype=f64)",
        "    x_1 = std.strided_put(x, full, [2], [1], 2)",
        "    mul = std.mul(x_1, 2)",
        "    write x = x_1",
        "    return mul",
    ]


def test_an_opaque_write_is_one_node() -> None:
    with oplib.Library("opaque", "DEF") as lib:
        inc = lib.define("inc_(Tensor(a!) x) -> ()").op
        inc.register_kernel("cpu", lambda x: x.__iadd__(1) and None)

        def f(x: Tensor) -> Any:
            y = x.clone()
            inc(y[1])
            return y, y[0]

        assert text_of(f, counted(4, 2)).splitlines()[2:] == [
            "    clone_1 = functionalized(opaque.inc_, &clone[2]:[1]+2)",
            "    return &clone_1[4, 2]:[2, 1]+0, &clone_1[2]:[1]+0",
        ]


def test_a_view_nobody_reads_leaves_no_node() -> None:
    def f(x: Tensor) -> Tensor:
        view, _ = x[0], x[1]
        x.add_(1)
        return view

    text = text_of(f, counted(4, 2))
    assert "strided_get" not in text
    assert "return &x[2]:[1]+0" in text


def test_inputs_that_overlap_and_are_only_read_need_no_span() -> None:
    buffer = np.arange(4.0)
    x, z = oplib.from_numpy(buffer[:3]), oplib.from_numpy(buffer[1:])
    assert "span" not in text_of(lambda x, z: x + z, x, z)


def test_the_text_of_a_program_parses_back() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x[:1].mul_(y[0])
        return (x + y).T

    graph = oplib.capture(f, counted(2, 2), counted(2, 2)).graph
    assert parse(str(graph)) == graph


def test_nodes_recorded_under_no_grad_say_so() -> None:
    def f(x: Tensor) -> Tensor:
        with oplib.no_grad():
            y = x * 2
        return y * x

    lines = str(oplib.capture(f, tensor(1).requires_grad_())).splitlines()
    assert lines[1].endswith("! no_grad")
    assert not lines[2].endswith("! no_grad")


def test_the_source_of_a_program_is_python() -> None:
    program = oplib.capture(lambda x: x * 2, tensor(1))
    compile(program.source(), "program", "exec")
    assert repr(program) == "<Program f: 1 calls>"


def test_a_node_knows_the_line_that_recorded_it() -> None:
    (call,) = oplib.capture(lambda x: x * 2, tensor(1)).graph.calls
    assert call.where is not None
    assert call.where.filename == __file__


# ---------------------------------------------------------------------- inputs


def test_the_example_is_neither_read_nor_written() -> None:
    x = tensor(math.nan, 2)
    oplib.capture(lambda x: x.add_(1), x)
    assert math.isnan(x.tolist()[0])
    assert x.inplace_version == 0


def test_containers_of_arguments_are_part_of_the_signature() -> None:
    def f(batch: dict[str, Any], *, scale: float) -> Any:
        return batch["x"] * scale + batch["more"][0]

    program = oplib.capture(f, {"x": tensor(1), "more": [tensor(2), None]}, scale=3.0)
    assert_values(program({"x": tensor(4), "more": [tensor(5), None]}, scale=3.0), [17])
    with pytest.raises(GuardError, match="structure"):
        program({"x": tensor(4), "more": [tensor(5)]}, scale=3.0)


def test_an_unused_argument_keeps_its_place() -> None:
    program = oplib.capture(lambda x, y: y * 2, tensor(1), tensor(2))
    assert_values(program(tensor(5), tensor(6)), [12])


def test_an_array_inside_is_a_constant_and_a_tensor_of_the_scope_is_not() -> None:
    array, outside = np.array([1.0]), tensor(1)
    program = oplib.capture(lambda x: x + array + outside, tensor(0))
    array[0] = outside.numpy()[0] = 100
    assert_values(program(tensor(0)), [101])


def test_a_literal_is_made_anew_by_each_call() -> None:
    def f(x: Tensor) -> Any:
        made = oplib.tensor([1.0, 2.0])
        made.add_(x)
        return made, oplib.tensor([5.0])

    program = oplib.capture(f, tensor(1, 1))
    for result in program(tensor(1, 1)):
        result.fill_(99)
    first, second = program(tensor(1, 1))
    assert_values(first, [2, 3])
    assert_values(second, [5])


def test_two_threads_of_calls_do_not_meet_in_a_program() -> None:
    program = oplib.capture(lambda x: x.mul_(2), tensor(1))
    first, second = tensor(1), tensor(2)
    assert program(first) is first
    assert program(second) is second
    assert_values(first, [2])


# ---------------------------------------------------------------------- guards


def scaled(x: Tensor, k: Any = 2.0) -> Tensor:
    """Multiply by a number that is specialised."""
    return x * k


@pytest.mark.parametrize(
    ("captured", "called"),
    [(2.0, 3.0), (1, 1.0), (1, True), (0.0, -0.0), ("a", "b"), (math.nan, 1.0)],
)
def test_a_literal_is_guarded_by_type_and_bits(captured: Any, called: Any) -> None:
    program = oplib.capture(lambda x, k: x * 2, tensor(1), captured)
    program(tensor(1), captured)
    with pytest.raises(GuardError, match=r"args\[1\]: expected"):
        program(tensor(1), called)


MISFITS: dict[str, tuple[Any, str]] = {
    "a shape": (counted(3), r"shape: expected \(2,\), found \(3,\)"),
    "a dtype": (counted(2).cast("f32"), "dtype: expected float64, found float32"),
    "strides": (counted(4)[::2], r"strides: expected \(8,\), found \(16,\)"),
    "stop_gradient": (tensor(1, 2).requires_grad_(), "stop_gradient: expected True, found False"),
    "a type": (2.0, "expected a Tensor, found 2.0"),
}


@pytest.mark.parametrize("what", MISFITS)
def test_a_tensor_is_guarded_by(what: str) -> None:
    other, message = MISFITS[what]
    program = oplib.capture(scaled, tensor(1, 2))
    with pytest.raises(GuardError, match=message):
        program(other)
    assert len(program.check(other)) == 1
    assert program.check(tensor(5, 6)) == []


def test_a_captured_tensor_is_guarded() -> None:
    outside = tensor(1, 1).requires_grad_()
    program = oplib.capture(lambda x: x + outside, tensor(1, 2))
    outside.stop_gradient = True
    with pytest.raises(GuardError, match=r"captured\[0\]: stop_gradient"):
        program(tensor(1, 2))


def test_the_grad_mode_is_guarded_where_it_matters() -> None:
    with oplib.no_grad():
        program = oplib.capture(scaled, tensor(1).requires_grad_())
        program(tensor(1).requires_grad_())
    with pytest.raises(GuardError, match="grad mode: expected off, found on"):
        program(tensor(1).requires_grad_())
    plain = oplib.capture(scaled, tensor(1))
    with oplib.no_grad():
        plain(tensor(1))


def test_the_grad_mode_is_guarded_when_the_function_asks_for_it() -> None:
    def f(x: Tensor) -> Tensor:
        return x + 1 if oplib.is_grad_enabled() else x - 1

    program = oplib.capture(f, tensor(1))
    with oplib.no_grad(), pytest.raises(GuardError, match="grad mode: expected on, found off"):
        program(tensor(1))
    compiled = oplib.compile(f)
    assert_values(compiled(tensor(1)), [2])
    with oplib.no_grad():
        assert_values(compiled(tensor(1)), [0])


def test_the_policy_of_autocast_is_guarded() -> None:
    x = oplib.ones(2, 2, dtype="float32")
    plain = oplib.capture(lambda x: x @ x, x)
    with oplib.amp.auto_cast():
        with pytest.raises(GuardError, match="autocast: expected off, found O1 f16"):
            plain(x)
        cast = oplib.capture(lambda x: x @ x + 1, x)
        assert cast(x).dtype == np.float16
        assert "autocast: O1 f16" in cast.guards.splitlines()
    other = oplib.amp.auto_cast(custom_white_list=["mul", "add"], use_promote=False)
    with other, pytest.raises(GuardError, match="found O1 f16; white add, mul; no promotion"):
        cast(x)


def test_a_program_captured_under_autocast_casts_once() -> None:
    with oplib.Library("castonce", "DEF") as lib:
        op = lib.define("twice(Tensor x) -> Tensor").op
        op.register_kernel("CompositeImplicitAutograd", lambda x: oplib.exp(x))
        x = oplib.ones(2, dtype="float16")
        with oplib.amp.auto_cast():
            eager = op(x)
            program = oplib.capture(lambda x: op(x), x)
            assert program(x).dtype == eager.dtype


def test_a_function_is_no_argument_a_graph_can_hold() -> None:
    with oplib.Library("functions", "DEF") as lib:
        op = lib.define("apply(Tensor x, Any f) -> Tensor").op
        op.register_kernel("cpu", lambda x, f: f(x))
        oplib.register_fake("functions::apply", lambda x, f: x.new_empty(x.shape))
        with pytest.raises(CaptureError, match="<ufunc 'sin'> of type ufunc is no literal"):
            oplib.capture(lambda x: op(x, np.sin), tensor(1))


def test_a_read_only_array_is_refused_before_anything_runs() -> None:
    program = oplib.capture(lambda x: x.add_(1), tensor(1))
    array = np.ones(1)
    array.flags.writeable = False
    with pytest.raises(GuardError, match="writable"):
        program(oplib.from_numpy(array))


def test_memory_shared_with_a_written_argument_is_guarded() -> None:
    def f(x: Tensor, z: Tensor) -> Tensor:
        x.add_(1)
        return z * 2

    def over(size: int, first: slice, second: slice) -> tuple[Tensor, Tensor]:
        buffer = np.arange(float(size))
        return oplib.from_numpy(buffer[first]), oplib.from_numpy(buffer[second])

    apart = oplib.capture(f, counted(3), counted(3))
    shifted = oplib.capture(f, *over(4, slice(0, 3), slice(1, 4)))
    with pytest.raises(GuardError, match="shared memory"):
        apart(*over(4, slice(0, 3), slice(1, 4)))
    with pytest.raises(GuardError, match="shared memory"):
        shifted(counted(3), counted(3))
    assert_values(shifted(*over(9, slice(5, 8), slice(6, 9))), [14, 16, 16])


def test_memory_nobody_writes_may_be_shared_in_any_way() -> None:
    program = oplib.capture(lambda x, z: x + z, counted(3), counted(3))
    buffer = np.arange(4.0)
    result = program(oplib.from_numpy(buffer[:3]), oplib.from_numpy(buffer[1:]))
    assert_values(result, [1, 3, 5])


def test_the_same_tensor_twice_is_the_same_at_each_call() -> None:
    x = tensor(1)
    program = oplib.capture(lambda a, b: a.add_(b), x, x)
    y = tensor(3)
    assert program(y, y) is y
    assert_values(y, [6])
    with pytest.raises(GuardError, match="the same tensor"):
        program(tensor(1), tensor(1))


def test_where_an_input_begins_is_guarded_if_the_program_saw_it() -> None:
    buffer = np.arange(6.0)
    program = oplib.capture(lambda x: x.as_strided([1], [1], 2) * 1, oplib.from_numpy(buffer[1:4]))
    assert_values(program(oplib.from_numpy(np.arange(6.0)[1:4])), [2])
    with pytest.raises(GuardError, match="at byte 8 of its storage"):
        program(oplib.from_numpy(np.arange(6.0)[2:5]))


def test_a_gradient_that_is_there_already_is_guarded() -> None:
    program = oplib.capture(lambda x: (x * 2).sum().backward(), tensor(1).requires_grad_())
    x = tensor(1).requires_grad_()
    program(x)
    with pytest.raises(GuardError, match="clear it first"):
        program(x)
    assert_values(x.grad, [2])


def test_guards_print_one_per_line() -> None:
    program = oplib.capture(lambda x, k: x.add_(k), tensor(1, 2), 3)
    assert program.guards.splitlines() == [
        "args[0]: f64[2] strides (8,) on cpu",
        "args[1]: 3",
        "args[0]: writable",
    ]


# ---------------------------------------------------------------------- gradients


def test_a_program_is_differentiable() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x * w
        y[0].mul_(2)
        return y

    x, w = tensor(1, 2).requires_grad_(), tensor(3, 4).requires_grad_()
    program = oplib.capture(f, x, w)
    program(x, w).backward(tensor(1, 1))
    assert_values(x.grad, [6, 4])
    assert_values(w.grad, [2, 2])


def test_the_stores_of_a_program_do_not_invalidate_what_its_gradient_needs() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x * w
        x.add_(1)
        return y

    leaf, w = tensor(1, 2).requires_grad_(), tensor(3, 4).requires_grad_()
    x = leaf * 1
    oplib.capture(f, x, w)(x, w).backward(tensor(1, 1))
    assert_values(w.grad, [1, 2])


# ---------------------------------------------------------------------- errors


def test_reading_a_value_names_the_line() -> None:
    with pytest.raises(DataDependentError, match=r"test_program\.py") as caught:
        oplib.capture(lambda x: x if x.sum() > 0 else -x, tensor(1))
    assert "while capturing f: " in "".join(caught.value.__notes__)


def test_shapes_may_be_asked_for() -> None:
    program = oplib.capture(lambda x: x * 2 if x.shape[0] > 1 else x, tensor(1, 2))
    assert_values(program(tensor(3, 4)), [6, 8])


def test_an_exception_of_the_function_leaves_no_state_behind() -> None:
    def f(x: Tensor) -> None:
        _ = x * 2
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        oplib.capture(f, tensor(1))
    assert "1 nodes recorded, the last one mul" in "".join(caught.value.__notes__)
    assert_values(tensor(1) * 2, [2])


def test_a_captured_tensor_is_unusable_after_the_capture() -> None:
    kept: list[Tensor] = []
    oplib.capture(lambda x: kept.append(x), tensor(1))
    with pytest.raises(CaptureError, match="finished capture"):
        _ = kept[0] * 2


def test_only_functions_are_captured() -> None:
    with pytest.raises(oplib.ArgumentError, match="takes a function"):
        oplib.capture(3)  # type: ignore[arg-type]


def test_arguments_that_are_views_of_one_tensor_get_no_gradient_inside_a_program() -> None:
    base = (tensor(1, 2, 3).requires_grad_()) * 1

    def f(x: Tensor, z: Tensor) -> None:
        (x.sum() + z.sum()).backward()

    with pytest.raises(CaptureError, match="views of one tensor"):
        oplib.capture(f, base[:2], base[1:])
