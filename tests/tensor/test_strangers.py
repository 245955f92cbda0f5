"""Handles on one buffer that are no views of each other: what may be written, and what be used."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import oplib
from oplib import AliasError, Tensor

DETACHED = "is detached from a tensor that requires grad"
SHARED = "shares memory with a tensor that requires grad"


def tracked() -> Tensor:
    return oplib.ones(3, requires_grad=True) * 2


def test_a_write_through_detach_is_refused_before_it_happens():
    h = tracked()
    with pytest.raises(AliasError, match=DETACHED):
        h.detach().mul_(3)
    assert h.tolist() == [2, 2, 2]
    assert h.inplace_version == 0


@pytest.mark.parametrize("part", [lambda d: d[0:1], lambda d: d.reshape([3, 1]), lambda d: d.T])
def test_a_write_through_a_view_of_it_is_refused(part):
    h = tracked()
    with pytest.raises(AliasError, match=DETACHED):
        part(h.detach()).fill_(0)
    assert h.tolist() == [2, 2, 2]


def test_setitem_and_copies_are_writes_too():
    h = tracked()
    d = h.detach()
    with pytest.raises(AliasError, match=DETACHED):
        d[0] = 1.0
    with pytest.raises(AliasError, match=DETACHED):
        d.copy_(oplib.zeros(3))


def test_a_write_through_a_detached_leaf_is_refused():
    x = oplib.ones(3, requires_grad=True)
    with pytest.raises(AliasError, match=DETACHED):
        x.detach().add_(1)


def test_under_no_grad_it_is_written_counted_and_stale_saved_values_are_caught():
    h = tracked()
    y = h * h
    with oplib.no_grad():
        h.detach().mul_(3)
    assert h.tolist() == [6, 6, 6]
    assert h.inplace_version == 1
    with pytest.raises(oplib.AutogradError):
        y.sum().backward()


def test_once_the_tracked_tensor_is_gone_it_is_a_tensor_like_any():
    h = tracked()
    d = h.detach()
    del h
    gc.collect()
    d.mul_(3)
    assert d.tolist() == [6, 6, 6]


def test_a_living_view_of_the_tracked_tensor_still_counts():
    h = tracked()
    view, d = h[1:], h.detach()
    del h
    with pytest.raises(AliasError, match=DETACHED):
        d.mul_(3)
    assert view.tolist() == [2, 2]


def test_where_nothing_requires_grad_all_handles_write():
    x = oplib.ones(3)
    x.detach().add_(1)
    x.add_(x.detach())
    assert x.tolist() == [4, 4, 4]


def test_a_tensor_that_requires_grad_later_counts_then():
    x = oplib.ones(3)
    d = x.detach()
    d.add_(1)
    x.requires_grad_()
    with pytest.raises(AliasError, match=DETACHED):
        d.add_(1)


def test_a_write_through_a_second_handle_on_one_array_is_refused():
    array = np.ones(3)
    first, second = oplib.from_numpy(array), oplib.from_numpy(array)
    second.add_(1)
    first.requires_grad_()
    with pytest.raises(AliasError, match=SHARED):
        second.add_(1)
    assert array.tolist() == [2, 2, 2]


def test_a_handle_made_of_a_detached_array_is_a_second_handle():
    h = tracked()
    again = oplib.from_numpy(h.detach().numpy())
    with pytest.raises(AliasError, match=SHARED):
        again.add_(1)


def test_handles_on_disjoint_parts_of_one_array_do_not_meet():
    array = np.ones(4)
    first, second = oplib.from_numpy(array[::2]).requires_grad_(), oplib.from_numpy(array[1::2])
    second.add_(1)
    assert (first * 2).tolist() == [2, 2]
    assert array.tolist() == [1, 2, 1, 2]


def recorded_write() -> tuple[Tensor, Tensor, Tensor]:
    array = np.ones(3)
    first, second = oplib.from_numpy(array), oplib.from_numpy(array)
    w = oplib.full((3,), 2.0, requires_grad=True)
    first.mul_(w)
    return first, second, w


def test_after_a_recorded_write_the_other_handle_is_no_constant():
    first, second, w = recorded_write()
    with pytest.raises(AliasError, match="written by std::mul_ through another tensor"):
        second * w
    with pytest.raises(AliasError, match="written by std::mul_"):
        second[1:] * w[1:]
    (first * w).sum().backward()
    assert w.grad.tolist() == [4, 4, 4]


def test_its_value_can_be_read_and_it_is_a_constant_once_detached():
    _, second, w = recorded_write()
    assert second.tolist() == [2, 2, 2]
    with oplib.no_grad():
        assert (second * w).tolist() == [4, 4, 4]
    (second.detach() * w).sum().backward()
    assert w.grad.tolist() == [2, 2, 2]


def test_a_custom_mutating_operator_is_asked_like_any_other():
    with oplib.scoped_library("strangers") as lib:
        lib.define("bump_(Tensor(a!)[] xs) -> ()")
        lib.impl("bump_", lambda xs: [np.add(x, 1, out=x) for x in xs] and None, "CPU")
        h = tracked()
        with pytest.raises(AliasError, match=DETACHED):
            oplib.ops.strangers.bump_([oplib.ones(1), h.detach()])
        assert h.tolist() == [2, 2, 2]


def test_handles_that_died_are_forgotten():
    x = oplib.ones(3)
    for _ in range(100):
        x.detach()
    assert len(x._storage.strangers) <= 3
