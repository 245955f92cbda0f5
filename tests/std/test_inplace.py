"""Writing operators: what they store, what they refuse, what flows back."""

from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib import AliasError, ArgumentError, AutogradError
from oplib.std import load_all
from oplib.tensor.methods import IN_PLACE
from tests.std.cases import CASES, as_tensors, operator

load_all()
UNARY = [name for name in IN_PLACE if len(operator(name).schema.arguments) == 1]
BINARY = [name for name in IN_PLACE if str(operator(name).schema).count("Tensor") == 3]


@pytest.mark.parametrize("name", IN_PLACE)
def test_the_gradient_equals_that_of_the_functional_form(name):
    given = CASES[f"{name}_"][0]
    call = as_tensors(given, requires_grad=True)
    tensors = [arg for arg in call.args if isinstance(arg, oplib.Tensor)]
    expected = operator(name)(*call.args)
    x = call.args[0] * 1
    written = operator(f"{name}_")(x, *call.args[1:])
    assert written is x
    seed = oplib.tensor(np.linspace(-1.0, 2.0, x.size).reshape(x.shape))
    wanted = oplib.grad(expected, tensors, [seed])
    found = oplib.grad(written, tensors, [seed])
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("name", BINARY)
def test_an_operand_that_is_the_destination_is_read_before_the_write(name):
    values = [2.0, 3.0, 0.5]
    expected = operator(name)(oplib.tensor(values), oplib.tensor(values))
    x = oplib.tensor(values)
    assert operator(f"{name}_")(x, x).tolist() == expected.tolist()


def test_an_operand_that_overlaps_the_destination_is_read_before_the_write():
    x = oplib.tensor([1.0, 2.0, 3.0, 4.0])
    x[1:].add_(x[:-1])
    assert x.tolist() == [1.0, 3.0, 5.0, 7.0]


def test_squaring_in_place_has_the_gradient_of_the_old_value():
    x = oplib.tensor([3.0], requires_grad=True)
    y = x * 1
    y.mul_(y)
    y.backward(oplib.tensor([1.0]))
    assert x.grad.tolist() == [6.0]


@pytest.mark.parametrize("name", ["div", "exp", "sqrt", "sigmoid", "rsqrt", "pow"])
def test_a_float_result_does_not_fit_an_integer_and_nothing_is_written(name):
    x = oplib.tensor([4, 9])
    others = [0.5] * (len(operator(name).schema.arguments) - 1)
    with pytest.raises(TypeError, match="cannot store float64 into int64"):
        operator(f"{name}_")(x, *others)
    assert x.tolist() == [4, 9]


def test_a_wider_float_is_cast_down():
    x = oplib.tensor([1.0], dtype="float32")
    x += oplib.tensor([0.5])
    assert x.dtype == np.float32
    assert x.tolist() == [1.5]


def test_a_complex_result_does_not_fit_a_float():
    with pytest.raises(TypeError, match="cannot store complex128 into float64"):
        oplib.ones(2).mul_(1j)


@pytest.mark.parametrize("name", BINARY)
def test_a_write_never_changes_a_shape(name):
    for x, y in (
        (oplib.ones(3), oplib.ones(2, 3)),
        (oplib.ones(1), oplib.ones(3)),
        (oplib.ones(2), oplib.ones(3)),
    ):
        with pytest.raises((ArgumentError, ValueError)):
            operator(f"{name}_")(x, y)
        assert x.tolist() == [1.0] * x.size


def test_the_error_about_a_shape_is_oplibs_own():
    with pytest.raises(ArgumentError, match=r"std::add_ stores a value of shape \(2, 3\)"):
        oplib.ones(3).add_(oplib.ones(2, 3))


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_a_destination_that_overlaps_itself_is_refused(name):
    x = oplib.ones(1).expand(3)
    others = [oplib.tensor([1.0, 2.0, 3.0])] if name in BINARY else []
    with pytest.raises(AliasError, match="overlaps itself"):
        operator(f"{name}_")(x, *others)


def test_one_number_may_be_written_over_a_destination_that_overlaps_itself():
    base = oplib.zeros(1)
    assert base.expand(3).fill_(2.0).tolist() == [2.0, 2.0, 2.0]
    base.expand(3).copy_(3.0)
    assert base.expand(3).zero_().tolist() == [0.0, 0.0, 0.0]


def test_a_read_only_destination_is_refused():
    array = np.ones(2)
    array.flags.writeable = False
    x = oplib.from_numpy(array)
    for name in ("add_", "fill_", "copy_", "set_value", "masked_fill_"):
        others = [oplib.tensor([True, False])] if name == "masked_fill_" else []
        value = oplib.ones(2) if name in ("set_value", "copy_") else 1.0
        with pytest.raises(AliasError, match="read-only"):
            getattr(x, name)(*others, value)
    assert array.tolist() == [1.0, 1.0]


def test_an_integer_power_that_fails_writes_nothing():
    x = oplib.tensor([2, 3])
    with pytest.raises(ValueError, match="negative integer powers"):
        x.pow_(oplib.tensor([2, -1]))
    assert x.tolist() == [2, 3]


@pytest.mark.parametrize("symbol", ["+", "-", "*", "/", "//", "%", "**"])
def test_augmented_assignment_is_in_place(symbol):
    x = y = oplib.tensor([5.0, 6.0])
    scope = {"x": x}
    exec(f"x {symbol}= 2", scope)
    assert scope["x"] is y
    expected = {"x": np.array([5.0, 6.0])}
    exec(f"x {symbol}= 2", expected)
    assert y.tolist() == expected["x"].tolist()
    assert y.inplace_version == 1


def test_a_write_to_a_leaf_that_requires_grad_is_refused_unless_not_recorded():
    x = oplib.ones(2, requires_grad=True)
    for write in (lambda: x.add_(1), lambda: x.fill_(0.0), lambda: x.masked_fill_(x > 0, 0.0)):
        with pytest.raises(AutogradError, match="leaf"):
            write()
    with oplib.no_grad():
        x.add_(1)
    assert x.tolist() == [2.0, 2.0]


def test_set_value_replaces_a_leaf_and_keeps_it_one():
    x = oplib.ones(2, requires_grad=True)
    assert x.set_value(np.array([3.0, 4.0])) is x
    assert x.tolist() == [3.0, 4.0]
    assert x.is_leaf
    assert x.inplace_version == 1
    with pytest.raises(ArgumentError, match="shape"):
        x.set_value(oplib.ones(1))


@pytest.mark.parametrize(
    "write", [lambda y: y.fill_(1.0), lambda y: y.zero_(), lambda y: y.copy_(2.0)]
)
def test_what_was_overwritten_gets_a_zero_gradient(write):
    x = oplib.ones(2, requires_grad=True)
    y = x * 1
    write(y)
    (y * 3).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0]


def test_a_saved_result_of_an_in_place_operator_is_guarded_by_its_version():
    x = oplib.ones(2, requires_grad=True)
    y = x * 1
    y.exp_()
    y.exp_()
    with pytest.raises(AutogradError):
        y.sum().backward()


def test_an_old_value_is_saved_as_a_copy():
    x = oplib.ones(2, requires_grad=True)
    y = x * 1
    y.sin_()
    y.sin_()
    y.sum().backward()
    expected = np.cos(np.sin(1.0)) * np.cos(1.0)
    np.testing.assert_allclose(x.grad.numpy(), expected)


def test_writes_under_functionalize_agree_with_eager_ones():
    def program(x):
        y = x * 2
        y[0] += 1
        y[:, 1].exp_()
        y[[0, 1], [0, 0]] = 7.0
        y.clamp_(-1.0, 8.0).masked_fill_(y > 7.5, 0.0)
        return y

    x = oplib.tensor([[0.1, 0.2], [0.3, 0.4]])
    np.testing.assert_allclose(oplib.functionalize(program)(x).numpy(), program(x).numpy())
