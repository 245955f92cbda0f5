"""Writes and views that other frameworks get wrong without a word: right here, or refused."""

import numpy as np
import pytest

import oplib
from oplib import AliasError, AutogradError


@pytest.fixture
def x():
    return oplib.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)


def grad_of(x, y):
    """Return the gradient of a weighted sum of y by x."""
    weights = np.arange(1.0, y.size + 1).reshape(y.shape)
    (y * weights).sum().backward()
    return x.grad.tolist()


def test_a_view_then_a_write_to_its_base(x):
    y = x * 1
    view = y[1:3]
    y.mul_(10)
    assert grad_of(x, view) == [0.0, 10.0, 20.0, 0.0]


def test_a_write_to_a_view_then_a_use_of_its_base(x):
    y = x * 1
    y[1:3].mul_(10)
    assert grad_of(x, y) == [1.0, 20.0, 30.0, 4.0]


def test_a_write_to_a_view_of_a_view_reaches_siblings(x):
    y = x * 1
    sibling = y.flip([0])
    y.reshape([2, 2]).T[0].mul_(10)
    assert grad_of(x, sibling) == [40.0, 3.0, 20.0, 1.0]


def test_a_fill_through_an_expanded_view_counts_the_element_once(x):
    y = x * 1
    y[0].expand([3]).fill_(7.0)
    assert y.tolist() == [7.0, 2.0, 3.0, 4.0]
    assert grad_of(x, y) == [0.0, 2.0, 3.0, 4.0]


def test_an_update_through_an_expanded_view_is_refused_before_it_writes(x):
    y = x * 1
    with pytest.raises(AliasError, match="overlaps itself"):
        y[0].expand([3]).add_(1)
    assert y.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert y.inplace_version == 0


def test_overlapping_as_strided_windows_sum(x):
    y = (x * 1).as_strided([3, 2], [1, 1])
    assert grad_of(x, y) == [1.0, 5.0, 9.0, 6.0]


def test_a_write_through_one_of_two_overlapping_windows_reaches_the_other(x):
    y = x * 1
    first, second = y.as_strided([2], [1], 0), y.as_strided([2], [1], 1)
    first.mul_(10)
    assert second.tolist() == [20.0, 3.0]
    assert grad_of(x, second) == [0.0, 10.0, 2.0, 0.0]


def test_overlapping_windows_cannot_be_written_at_once(x):
    with pytest.raises(AliasError, match="overlaps itself"):
        (x * 1).as_strided([3, 2], [1, 1]).copy_(oplib.ones([3, 2]))


def test_a_write_through_detach_is_refused_while_gradients_are_recorded(x):
    y = x * 1
    with pytest.raises(AliasError, match="is detached from"):
        y.detach().mul_(10)
    assert y.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert y.inplace_version == 0


def test_a_write_through_detach_under_no_grad_is_caught_where_values_were_saved(x):
    y = x * 1
    z = y * y
    with oplib.no_grad():
        y.detach().mul_(10)
    with pytest.raises(AutogradError, match="written"):
        z.sum().backward()


def test_a_recorded_write_through_detach_leaves_no_constant_behind(x):
    plain = oplib.ones([4])
    plain.detach().mul_(x)
    assert plain.tolist() == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(AliasError, match="written by"):
        plain + 1


def test_a_write_through_a_second_handle_on_one_array_is_refused(x):
    array = np.ones(4)
    first, second = oplib.from_numpy(array), oplib.from_numpy(array[1:])
    first.mul_(x)
    with pytest.raises(AliasError, match="shares memory with"):
        second.add_(1)
    with pytest.raises(AliasError, match="written by"):
        second * 1
    assert array.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_set_value_on_a_saved_tensor_is_caught(x):
    y = x * 1
    z = y * y
    y.set_value(np.zeros(4))
    with pytest.raises(AutogradError, match="written"):
        z.sum().backward()


def test_a_write_through_a_view_made_under_no_grad_is_refused(x):
    y = x * 1
    with oplib.no_grad():
        view = y[:2]
    with pytest.raises(AutogradError, match="made under no_grad"):
        view.mul_(10)
    assert y.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_the_imaginary_part_of_a_complex_base_is_written_with_its_gradient():
    z = oplib.tensor([1 + 2j, 3 + 4j], requires_grad=True)
    y = z * 1
    y.imag.mul_(10)
    y.view_as_real().sum().backward()
    assert z.grad.tolist() == [1 + 10j, 1 + 10j]


def test_an_in_place_form_that_keeps_its_input_keeps_the_old_value(x):
    y = x * 0.1
    y.erf_()
    y.sum().backward()
    expected = 0.1 * 2 / np.sqrt(np.pi) * np.exp(-((x.detach().numpy() * 0.1) ** 2))
    np.testing.assert_allclose(x.grad.numpy(), expected)


def test_an_in_place_form_of_an_operand_by_itself_reads_old_values(x):
    y = x * 1
    y.hypot_(y)
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.full(4, np.sqrt(2.0)))
