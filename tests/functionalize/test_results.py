"""Results of functional runs: identity, aliases, layouts, flags."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oplib
from oplib import AliasError, Tensor
from tests.functionalize.helpers import assert_values, counted, every_mode, tensor


@every_mode
def test_a_returned_argument_is_that_argument(mode: Any) -> None:
    x, y = counted(4, 2), counted(4, 2)
    assert mode(lambda x, y: (y, x))(x, y)[1] is x


@every_mode
def test_a_written_and_returned_argument_is_that_argument(mode: Any) -> None:
    x = counted(4, 2)
    assert mode(lambda x: x.add_(1))(x) is x
    assert_values(x, np.arange(8.0).reshape(4, 2) + 1)


@every_mode
def test_an_argument_passed_twice_is_one_tensor(mode: Any) -> None:
    x = tensor(1, 2)
    first, second = mode(lambda a, b: (a.add_(b), b))(x, x)
    assert first is second is x
    assert_values(x, [2, 4])


@every_mode
def test_a_temporary_returned_twice_is_one_object(mode: Any) -> None:
    first, second = mode(lambda x: [x + 1] * 2)(tensor(1))
    assert first is second


@every_mode
def test_a_view_of_an_argument_is_a_view_of_it(mode: Any) -> None:
    x = counted(4, 2)
    v = mode(lambda x: x.reshape(8).add_(1).reshape(2, 4)[1])(x)
    assert np.shares_memory(v.numpy(), x.numpy())
    assert_values(v, [5, 6, 7, 8])
    x[2].fill_(0)
    assert_values(v, [0, 0, 7, 8])
    assert v.inplace_version == x.inplace_version


@every_mode
def test_several_views_of_a_temporary_share_its_memory(mode: Any) -> None:
    y, row, column = mode(lambda x: (y := x.clone(), y[0], y[:, 0]))(counted(3, 2))
    y.fill_(7)
    assert_values(row, [7, 7])
    assert_values(column, [7, 7, 7])


@every_mode
def test_a_view_of_a_temporary_alone_keeps_its_strides(mode: Any) -> None:
    view = mode(lambda x: (x + 0)[::2])(counted(4, 2))
    assert view.strides == (32, 8)


@every_mode
def test_two_temporaries_with_one_value_are_two_buffers(mode: Any) -> None:
    def f(x: Tensor) -> Any:
        a = x * 2
        b = oplib.empty(2)
        b.copy_(a)
        return a[:1], a, b[:1], b

    a1, a, b1, b = mode(f)(tensor(1, 2))
    a.fill_(0)
    assert_values(a1, [0])
    assert_values(b, [2, 4])
    assert np.shares_memory(b1.numpy(), b.numpy())


@every_mode
def test_a_copy_of_an_argument_is_no_alias_of_it(mode: Any) -> None:
    x = tensor(1, 2)
    copy = mode(lambda x: oplib.empty(2).copy_(x))(x)
    copy.fill_(0)
    assert_values(x, [1, 2])


@every_mode
def test_a_reshape_copies_exactly_where_eager_code_does(mode: Any) -> None:
    def f(x: Tensor) -> Any:
        y = x.clone()
        y.T.reshape(8).add_(1)  # a copy
        y.reshape(8).mul_(2)  # a view
        return y

    assert_values(mode(f)(counted(4, 2)), np.arange(8.0).reshape(4, 2) * 2)


@every_mode
def test_results_keep_the_layout_their_operands_imply(mode: Any) -> None:
    y = mode(lambda x: (x.T + 1) * 2)(counted(4, 2))
    assert y.strides == (8, 16)


@every_mode
def test_an_expanded_result_keeps_its_stride_of_zero(mode: Any) -> None:
    y = mode(lambda x: (x + 1).expand(3, 2))(tensor(1, 2))
    assert y.strides == (0, 8)
    assert_values(y, [[2, 3]] * 3)


@every_mode
def test_containers_and_literals_come_back_as_they_are(mode: Any) -> None:
    def f(x: Tensor, scale: float) -> Any:
        return {"b": [x * scale, None], "a": (3, "text"), "c": True}

    found = mode(f)(tensor(1), 2.0)
    assert list(found) == ["b", "a", "c"]
    assert found["b"][1] is None
    assert (found["a"], found["c"]) == ((3, "text"), True)
    assert_values(found["b"][0], [2])


@every_mode
def test_stop_gradient_of_results_is_that_of_eager_code(mode: Any) -> None:
    def f(x: Tensor) -> Any:
        y = x * 2
        with oplib.no_grad():
            view = y[:1]
        return y, y.detach(), view, y[:1]

    results = mode(f)(tensor(1, 2).requires_grad_())
    assert [r.requires_grad for r in results] == [True, False, False, True]


@every_mode
def test_a_detached_view_that_was_written_has_a_history_of_its_own(mode: Any) -> None:
    def f(x: Tensor, w: Tensor) -> Any:
        y = x * 2
        d = y.detach()
        d.mul_(w)
        return d, d[:1]

    w = tensor(3, 4).requires_grad_()
    d, part = mode(f)(tensor(1, 2), w)
    d.backward(tensor(1, 1))
    assert_values(w.grad, [2, 4])
    assert np.shares_memory(d.numpy(), part.numpy())


@every_mode
def test_a_write_through_a_detached_handle_of_what_requires_grad_is_refused(mode: Any) -> None:
    def f(x: Tensor) -> Any:
        y = x * 2
        y.detach().mul_(3)
        return y

    with pytest.raises(AliasError, match="is detached from a tensor that requires grad"):
        mode(f)(tensor(1, 2).requires_grad_())


@every_mode
def test_a_result_made_by_a_user_defined_view_is_a_view(mode: Any) -> None:
    with oplib.Library("views", "DEF") as lib:
        evens = lib.define("evens(Tensor(a) x) -> Tensor(a)").op
        evens.register_kernel("cpu", lambda x: x[::2])
        evens.register_fake(lambda x: x[::2])

        def f(x: Tensor) -> Tensor:
            view: Tensor = evens(x)
            view[1:].add_(10)
            return view

        x = counted(6)
        view = mode(f)(x)
        assert_values(x, [0, 1, 12, 3, 14, 5])
        assert np.shares_memory(view.numpy(), x.numpy())


@every_mode
def test_results_that_depend_on_nothing_are_fresh_each_time(mode: Any) -> None:
    f = mode(lambda x: oplib.tensor([1.0, 2.0]).add_(x))
    f(tensor(1, 1)).fill_(9)
    assert_values(f(tensor(1, 1)), [2, 3])
