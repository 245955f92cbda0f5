"""Programs for other uses: captured tensors lifted to arguments, and the form without a tail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oplib
from oplib import CaptureError, Tensor
from oplib.graph import verify
from tests.functionalize.helpers import assert_values, counted, tensor


def test_lift_makes_captured_tensors_the_last_positional_arguments() -> None:
    total, step = tensor(0, 0), tensor(1, 2)

    def f(x: Tensor, *, scale: Tensor) -> Tensor:
        total.add_(x * scale)
        return total + step

    program = oplib.capture(f, tensor(1, 1), scale=tensor(3, 3))
    lifted = program.lift()
    mine = tensor(10, 10)
    assert_values(lifted(tensor(1, 2), mine, tensor(5, 5), scale=tensor(2, 2)), [17, 19])
    assert_values(mine, [12, 14])
    assert_values(total, [0, 0])
    assert lifted.captured == ()
    assert lifted.check(tensor(1, 2), tensor(1), tensor(1, 1), scale=tensor(1, 1)) == [
        "args[1]: shape: expected (2,), found (1,)"
    ]


def test_a_lifted_program_returns_the_tensor_it_was_given() -> None:
    total = tensor(0, 0)
    lifted = oplib.capture(lambda x: total.add_(x), tensor(1, 1)).lift()
    mine = tensor(1, 1)
    assert lifted(tensor(1, 1), mine) is mine


def test_lift_keeps_memory_that_only_as_strided_reached() -> None:
    buffer = np.arange(8.0)
    other = tensor(1, 2)

    def f(x: Tensor) -> Tensor:
        return x.as_strided((2,), (1,), 4) * other

    x = oplib.from_numpy(buffer[:4])
    program = oplib.capture(f, x)
    assert_values(program(x), [4, 10])
    assert_values(program.lift()(x, tensor(0, 1)), [0, 5])


def exported(function: Any, *examples: Any) -> Any:
    """Return the export form of a function, verified."""
    form = oplib.capture(function, *examples).as_function()
    verify(form.graph)
    assert not form.graph.writes
    return form


def test_the_export_form_returns_what_is_written_then_the_results() -> None:
    def f(x: Tensor, y: Tensor) -> dict[str, Any]:
        x[1].mul_(y)
        return {"x": x, "rows": x[1:], "again": x, "n": 3}

    form = exported(f, counted(3, 2), tensor(2, 3))
    assert form.written == ("args[0]",)
    x = counted(3, 2)
    (new,), results = form(x, tensor(10, 10))
    assert_values(new, [[0, 1], [20, 30], [4, 5]])
    assert_values(results["rows"], [[20, 30], [4, 5]])
    assert_values(results["x"], new.tolist())
    assert results["n"] == 3
    assert_values(x, counted(3, 2).tolist())


def test_views_of_temporaries_are_their_elements_in_the_export_form() -> None:
    def f(x: Tensor) -> Any:
        y = x.T.clone()
        y[0].add_(1)
        return y, y[:, ::2], y.detach()[1]

    form = exported(f, counted(3, 2))
    written, results = form(counted(3, 2))
    assert written == ()
    for mine, eager in zip(results, f(counted(3, 2)), strict=True):
        assert_values(mine, eager.tolist())


def test_the_export_form_has_captured_tensors_as_its_last_inputs() -> None:
    total = tensor(1, 1)
    form = exported(lambda x: total.add_(x), tensor(1, 1))
    assert form.written == ("captured[0]",)
    (new,), result = form(tensor(1, 2), tensor(5, 5))
    assert_values(new, [6, 7])
    assert_values(result, [6, 7])
    assert_values(total, [1, 1])


def test_inputs_that_share_written_memory_have_no_export_form() -> None:
    buffer = np.arange(4.0)
    x, z = oplib.from_numpy(buffer[:3]), oplib.from_numpy(buffer[1:])
    for function in (lambda x, z: x.add_(z), lambda x, z: z.add_(1).sum() + x.sum()):
        with pytest.raises(CaptureError, match="several of its inputs lie in"):
            oplib.capture(function, x, z).as_function()


def test_a_program_that_sets_gradients_has_no_export_form() -> None:
    def f(x: Tensor) -> None:
        (x * x).sum().backward()

    program = oplib.capture(f, tensor(1, 2).requires_grad_())
    with pytest.raises(CaptureError, match=r"sets \.grad"):
        program.as_function()
