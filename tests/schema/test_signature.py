"""Which functions can serve a schema."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from oplib.errors import RegistrationError
from oplib.schema import check_signature, parse

SCHEMA = parse("ns::f(Tensor x, Tensor y, float eps=1e-5, *, int[2] k=1, str mode) -> Tensor")


def accepts(function, text=None):
    check_signature(function, parse(text) if text else SCHEMA, "kernel")


def refuses(function, message, text=None):
    schema = parse(text) if text else SCHEMA
    with pytest.raises(RegistrationError) as caught:
        check_signature(function, schema, "fake rule")
    error = str(caught.value)
    assert message in error, error
    assert "fake rule" in error
    assert str(schema) in error
    return error


def test_functions_that_take_every_argument_are_accepted():
    def exact(x, y, eps=1e-5, *, k=(1, 1), mode): ...
    def no_defaults(x, y, eps, *, k, mode): ...
    def other_names(a, b, c, *, k, mode): ...
    def anything(*args, **kwargs): ...
    def some(x, *rest, mode, **others): ...
    def keywords_by_position(x, y, eps, k, mode): ...
    def more(x, y, eps, extra=None, *, k, mode, more=3): ...
    def positional_only(x, y, eps, /, *, k, mode): ...
    def spelled_otherwise(x, y, eps=np.float64(1e-5), *, k=[1, 1], mode="a"): ...  # noqa: B006, B008

    for function in (
        exact,
        no_defaults,
        other_names,
        anything,
        some,
        keywords_by_position,
        more,
        positional_only,
        spelled_otherwise,
        functools.partial(more, more=4),
        functools.partial(lambda extra, x, y, e, *, k, mode: x, None),
        lambda x, y, z, **kw: x,
    ):
        accepts(function)


def test_callable_objects_and_methods_are_accepted():
    class Kernel:
        def __call__(self, x, y): ...
        def method(self, x, y): ...

    for function in (Kernel(), Kernel().method, np.matmul, max, operator_like):
        accepts(function, "f(Tensor x, Tensor y) -> Tensor")


def operator_like(x, y, /): ...


def test_too_few_positional_parameters_are_refused():
    error = refuses(lambda x, y, *, k, mode: x, "takes 2 positional arguments, the schema passes 3")
    assert "test_signature.py:" in error
    assert "add `eps`" in error


def test_a_parameter_that_nothing_fills_needs_a_default():
    refuses(lambda x, y, e, z, *, k, mode: x, "nothing is passed for its parameter `z`")
    refuses(lambda x, y, e, *, k, mode, z: x, "nothing is passed for its parameter `z`")
    refuses(lambda x, y, e, k, /, *, mode: x, "`k`")


def test_a_missing_keyword_is_refused():
    refuses(lambda x, y, e, *, k: x, "does not take the keyword-only argument `mode`")
    refuses(lambda x, y, e, mode, /, *, k: x, "keyword-only argument `mode`")


def test_a_keyword_with_the_name_of_a_position_is_refused():
    refuses(lambda mode, y, e, *, k, **kw: mode, "`mode` has the name of positional parameter 0")


@pytest.mark.parametrize("function", [lambda y, x, eps, **kw: x, lambda a, eps, y, **kw: a])
def test_names_in_another_order_are_refused(function):
    refuses(function, "another order")


def test_one_shared_name_at_another_place_is_no_other_order():
    accepts(lambda x, y: x, "f(Tensor self, Tensor x) -> Tensor")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x, y, eps=1e-6, **kw: x,
            "`eps` has the default 1e-06, the schema's `eps` has 1e-05",
        ),
        (lambda x, y, e=None, **kw: x, "`e` has the default None"),
        (
            lambda x, y, e, *, k=2, mode: x,
            "`k` has the default [2, 2], the schema's `k` has [1, 1]",
        ),
        (lambda x, y, e, k=(1, 2), **kw: x, "`k` has the default [1, 2]"),
        (lambda x, y, e, *, k=object, mode: x, "`k` has the default <class 'object'>"),
    ],
)
def test_a_default_that_differs_is_refused(function, message):
    refuses(function, message)


def test_a_default_where_the_schema_has_none_is_the_functions_own_business():
    accepts(lambda x, bias=None: x, "f(Tensor x, Tensor? bias) -> Tensor")


def test_coroutines_generators_and_other_things_are_refused():
    async def coroutine(x): ...

    def generator(x):
        yield x

    text = "f(Tensor x) -> Tensor"
    refuses(coroutine, "it is a coroutine function", text)
    refuses(generator, "it is a generator function", text)
    refuses(functools.partial(generator), "it is a generator function", text)
    refuses(3, "3 is not callable", text)
    refuses(None, "None is not callable", text)


def test_a_ufunc_is_compared_by_its_inputs():
    accepts(np.hypot, "f(Tensor x, Tensor y) -> Tensor")
    accepts(np.add, "f(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)")
    refuses(np.hypot, "takes 2 inputs, the schema passes 1", "f(Tensor x) -> Tensor")
    refuses(np.exp, "takes 1 inputs, the schema passes 2", "f(Tensor x, int n) -> Tensor")
    refuses(np.exp, "takes no keyword `n`", "f(Tensor x, *, int n) -> Tensor")
