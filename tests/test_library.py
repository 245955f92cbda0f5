"""Libraries, definitions, custom_op, facets, their lifetime, and how all of it is undone."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import importlib
import inspect
import pickle
import pydoc
import re
import runpy
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import oplib
from oplib import _state
from oplib.dispatch import ledger
from oplib.dispatch.plan import fallthrough
from oplib.errors import (
    AliasError,
    ArgumentError,
    DispatchError,
    OperatorNotFoundError,
    OperatorRemovedError,
    RegistrationError,
    RegistrationWarning,
    SchemaError,
)

X = oplib.ones(2)


@pytest.fixture
def lib() -> Iterator[oplib.Library]:
    with oplib.Library("r", "FRAGMENT") as library:
        yield library


@pytest.fixture(autouse=True)
def registry_is_as_before() -> Iterator[None]:
    """Fail a test that leaves an operator or a waiting kernel behind."""
    oplib.std.load_all()
    before = oplib.list_ops(), len(oplib.pending())
    yield
    assert (oplib.list_ops(), len(oplib.pending())) == before


def values(tensor: Any) -> list[float]:
    return tensor.tolist()  # type: ignore[no-any-return]


# -- libraries -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("r", "def"), "did you mean 'DEF'"),
        (("r", "X"), "DEF, FRAGMENT or IMPL"),
        (("", "DEF"), "identifier"),
        (("a b", "DEF"), "identifier"),
        (("a.b", "DEF"), "identifier"),
        (("a::b", "DEF"), "identifier"),
        (("std", "DEF"), "FRAGMENT"),
        (("r", "DEF", "CPU"), "IMPL"),
        (("r", "FRAGMENT", "CPU"), "IMPL"),
        (("r", "IMPL", "AutogradCPU"), "Autograd"),
    ],
)
def test_a_library_that_cannot_be_is_refused(args: tuple[str, ...], message: str) -> None:
    with pytest.raises(RegistrationError, match=message):
        oplib.Library(*args)


def test_a_namespace_has_one_owner_at_a_time_and_any_number_of_fragments() -> None:
    first = oplib.Library("r", "DEF")
    with pytest.raises(RegistrationError, match=r"(?s)there.*test_library.*here.*test_library"):
        oplib.Library("r", "DEF")
    oplib.Library("r", "FRAGMENT")
    first.close()
    oplib.Library("r", "DEF").close()


def test_closing_removes_what_was_registered_and_is_final(lib: oplib.Library) -> None:
    other = oplib.Library("r", "FRAGMENT")
    op = other.define("f(Tensor x) -> Tensor").op
    other.close()
    other.close()
    assert not oplib.has_op("r::f")
    assert op.removed
    for call in (
        lambda: other.define("g(Tensor x) -> Tensor"),
        lambda: oplib.define("r::g", "(Tensor x) -> Tensor", lib=other),
        lambda: oplib.custom_op("r::g", np.negative, schema="(Tensor x) -> Tensor", lib=other),
    ):
        with pytest.raises(RegistrationError, match=r"was closed at .*test_library"):
            call()
    assert not oplib.has_op("r::g")


def test_dropping_a_library_changes_nothing() -> None:
    def register() -> Any:
        return oplib.Library("dropped", "FRAGMENT").define("f(Tensor x) -> Tensor")

    made = register()
    gc.collect()
    assert oplib.has_op("dropped::f")
    made.remove()


def test_a_scoped_library_undoes_everything_on_an_exception_too() -> None:
    namespaces: list[str] = []

    def fail() -> None:
        with oplib.scoped_library() as scope, oplib.scoped_library() as inner:
            for library in (scope, inner):
                library.define("f(Tensor x) -> Tensor")
                namespaces.append(library.ns)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(set(namespaces)) == 2
    assert [oplib.list_ops(namespace) for namespace in namespaces] == [[], []]


def test_an_impl_library_implements_at_its_key_only(lib: oplib.Library) -> None:
    lib.define("f(Tensor x) -> Tensor")
    with oplib.Library("r", "IMPL", "Meta") as impl:
        with pytest.raises(RegistrationError, match="cannot define"):
            impl.define("g(Tensor x) -> Tensor")
        with pytest.raises(RegistrationError, match="inconsistent"):
            impl.impl("f", np.negative, "CPU")
        impl.impl("f", lambda x: oplib.empty_like(x), "meta")
        assert oplib.get_op("r::f").fake_rule is not None
    assert oplib.get_op("r::f").fake_rule is None


def test_a_kernel_waits_for_its_operator_and_follows_its_definitions() -> None:
    with oplib.Library("r", "IMPL", "CPU") as impl, oplib.Library("r", "FRAGMENT") as lib:
        kernel = impl.impl("f", np.negative)
        assert [k.qualname for k in oplib.pending()] == ["r::f"]
        with pytest.raises(OperatorNotFoundError, match=r"a kernel waits for it: CPU .*test_lib"):
            oplib.get_op("r::f")
        for _ in range(2):
            made = lib.define("f(Tensor x) -> Tensor")
            assert oplib.pending() == []
            assert values(made.op(X)) == [-1, -1]
            made.remove()
        assert kernel.waits
        with pytest.warns(
            RegistrationWarning, match=r"(?s)kernel .*test_lib.*definition .*test_lib"
        ):
            lib.define("f(Tensor x, Tensor y) -> Tensor").remove()
    assert oplib.pending() == []


def test_elsewhere_an_operator_must_exist(lib: oplib.Library) -> None:
    lib.define("found(Tensor x) -> Tensor")
    with pytest.raises(OperatorNotFoundError, match="did you mean 'r::found'"):
        lib.impl("fuond", np.negative, "CPU")


# -- define and impl -----------------------------------------------------------------------


def test_define_gives_what_names_exactly_that_overload(lib: oplib.Library) -> None:
    lib.define("f(Tensor x) -> Tensor")
    made = lib.define("f.o(Tensor x, Tensor y) -> Tensor")
    assert str(made) == "r::f.o"
    lib.impl(made, np.add, "CPU")
    assert values(oplib.ops.r.f.o(X, X)) == [2, 2]
    assert oplib.get_op("r::f.default").kernels == {}


@pytest.mark.parametrize("schema", ["r::f(Tensor x) -> Tensor", "f(Tensor x) -> Tensor"])
def test_a_schema_may_name_the_namespace_of_its_library(lib: oplib.Library, schema: str) -> None:
    assert str(lib.define(schema)) == "r::f"
    with pytest.raises(RegistrationError, match="does not belong"):
        lib.define("other::f(Tensor x) -> Tensor")


def test_define_takes_a_qualified_name_and_a_nameless_schema(lib: oplib.Library) -> None:
    made = oplib.define("r::f", "(Tensor x,\n  float y=1.0)\n-> Tensor", lib=lib)
    assert str(made.op.schema) == "r::f(Tensor x, float y=1.0) -> Tensor"
    for args in [("r::g", "f(Tensor x) -> Tensor"), ("g", "(Tensor x) -> Tensor"), (3, "() -> ()")]:
        with pytest.raises(RegistrationError, match=r"form|schema without a name"):
            oplib.define(*args)  # type: ignore[arg-type]


def test_every_form_of_impl_registers_and_answers(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op

    @oplib.impl(lib, "f", "CPU")
    def kernel(x: Any) -> Any:
        return -x

    assert isinstance(kernel, types.FunctionType)
    assert lib.impl("r::f", np.positive, "CPU", override=True).function is np.positive
    made = oplib.impl("r::f", ["Meta", "npu"], lambda x: oplib.empty_like(x), lib=lib)
    assert [registration.key or "Meta" for registration in made] == ["Meta", "npu"]
    for target in (op, oplib.ops.r.f, made[0], "r::f.default"):
        oplib.register_fake(target, lambda x: oplib.empty_like(x), override=True)


def test_impl_refuses_what_names_no_operator_or_is_no_kernel(lib: oplib.Library) -> None:
    lib.define("f(Tensor x) -> Tensor")
    lib.define("f.two(Tensor x, Tensor y) -> Tensor")
    with pytest.raises(ArgumentError, match=r"(?s)several overloads.*f\.two"):
        oplib.impl(oplib.ops.r.f, "CPU", np.negative)
    with pytest.raises(ArgumentError, match="expected an operator"):
        oplib.impl(3, "CPU", np.negative)
    with pytest.raises(RegistrationError, match="not callable"):
        oplib.impl("r::f.default", "CPU", 3)


def test_a_failing_registration_at_several_keys_leaves_no_trace(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    lib.impl("f", np.negative, "npu")
    before, plans = op.registrations, op._plans
    with pytest.raises(RegistrationError, match="already has a kernel for npu"):
        oplib.impl("r::f", ["CPU", "npu"], np.positive)
    assert op.registrations == before
    assert op._plans is plans


@pytest.mark.parametrize("key", ["cpu", "CPU", "meta", "Meta", "PrivateUse1", "cuda", "CUDA"])
def test_keys_are_accepted_under_every_name(lib: oplib.Library, key: str) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    op.register_kernel(key, lambda x: x)
    assert len(op.registrations) == 2


def test_without_a_key_a_kernel_is_composite(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    lib.impl("f", lambda x: x * 3)
    assert list(op.kernels) == ["CompositeImplicitAutograd"]
    op = lib.define("g(Tensor x) -> Tensor").op
    op.register_kernel(None, lambda x: x * 3)
    assert list(op.kernels) == ["CompositeExplicitAutograd"]


# -- custom_op -----------------------------------------------------------------------------


def test_decorator_and_call_give_the_same_operator_dressed_as_the_function(
    lib: oplib.Library,
) -> None:
    def half(x: np.ndarray, by: float = 2.0) -> np.ndarray:
        """Divide."""
        return x / by

    op = oplib.custom_op("r::half", half, mutates_args=(), lib=lib)
    assert op is oplib.ops.r.half.default is oplib.get_op("r::half")
    assert (op.__name__, op.__doc__, op.__module__) == ("half", "Divide.", __name__)
    assert op.__wrapped__ is half
    assert inspect.signature(op) == inspect.signature(half)
    decorated = oplib.custom_op("r::third", mutates_args=(), lib=lib)(half)
    assert decorated is oplib.ops.r.third.default
    assert values(decorated(X, by=4)) == [0.25, 0.25]


def test_mutates_args_is_required_and_must_agree_with_a_schema(lib: oplib.Library) -> None:
    with pytest.raises(RegistrationError, match="needs mutates_args"):
        oplib.custom_op("r::f", np.negative)
    with pytest.raises(RegistrationError, match=r"disagree.*writes `x`.*says nothing"):
        oplib.custom_op("r::f", lambda x: None, schema="(Tensor(a!) x) -> ()", mutates_args=())


@pytest.mark.parametrize("name", ["noname", "a::b::c", "r::f.default", "r::", "::f", "r::f g"])
def test_a_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(RegistrationError, match="of the form 'ns::name'"):
        oplib.custom_op(name, np.negative, schema="(Tensor x) -> Tensor")


def test_annotations_say_what_the_function_receives(lib: oplib.Library) -> None:
    seen: list[type] = []

    def arrays(x: np.ndarray) -> np.ndarray:
        seen.append(type(x))
        return -x

    def tensors(x: oplib.Tensor) -> oplib.Tensor:
        seen.append(type(x))
        return -x

    first = oplib.custom_op("r::arrays", arrays, mutates_args=(), lib=lib)
    second = oplib.custom_op("r::tensors", tensors, mutates_args=(), lib=lib)
    assert (list(first.kernels), list(second.kernels)) == (["CPU"], ["CompositeExplicitAutograd"])
    assert type(first(X)) is type(second(X)) is oplib.Tensor
    assert seen == [np.ndarray, oplib.Tensor]
    assert type(first(np.ones(2))) is np.ndarray
    assert type(second(np.ones(2))) is oplib.Tensor

    def mixed(x: np.ndarray, y: oplib.Tensor) -> np.ndarray:
        return x

    with pytest.raises((SchemaError, RegistrationError)):
        oplib.custom_op("r::mixed", mixed, mutates_args=(), lib=lib)


def test_device_types_choose_the_keys(lib: oplib.Library) -> None:
    schema = "(Tensor x) -> Tensor"
    op = oplib.custom_op("r::f", np.negative, schema=schema, device_types=("cpu", "npu"), lib=lib)
    assert list(op.kernels) == ["CPU", "npu"]
    with pytest.raises(RegistrationError, match="nothing would run"):
        oplib.custom_op("r::g", np.negative, schema=schema, device_types=(), lib=lib)
    with pytest.raises(RegistrationError, match="no tensor argument"):
        oplib.custom_op("r::g", lambda n: 1.0, schema="(int n) -> Tensor", device_types="cpu")
    assert oplib.list_ops("r") == ["r::f"]


class Callable_:
    def __call__(self, x: Any) -> Any:
        return -x


@pytest.mark.parametrize(
    "function", [np.negative, abs, functools.partial(np.add, 1.0), Callable_()]
)
def test_with_a_schema_any_callable_is_a_kernel(lib: oplib.Library, function: Any) -> None:
    op = oplib.custom_op("r::f", function, schema="(Tensor x) -> Tensor", lib=lib)
    np.testing.assert_array_equal(op(X).numpy(), function(np.ones(2)))


def _later() -> Any:
    async def coroutine(x: Any) -> Any:
        return x

    def generator(x: Any) -> Any:
        yield x

    return [coroutine, generator, 3, None, lambda: 0, lambda x, y: x]


@pytest.mark.parametrize("function", _later()[:3] + _later()[4:])
def test_a_function_that_cannot_serve_is_refused_as_every_facet(
    lib: oplib.Library, function: Any
) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    before = op.registrations
    for register in (
        lambda: op.register_kernel("cpu", function),
        lambda: op.register_kernel("cpu", np.negative, supports=function),
        lambda: op.register_fake(function),
        lambda: lib.impl("f", function, "CPU"),
        lambda: oplib.custom_op("r::g", function, schema="(Tensor x) -> Tensor"),
    ):
        with pytest.raises(RegistrationError):
            register()
    assert op.registrations == before
    assert oplib.list_ops("r") == ["r::f"]


def test_a_default_that_contradicts_the_schema_is_refused(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x, float y=1.0) -> Tensor").op
    with pytest.raises(RegistrationError, match=r"default 2\.0.*has 1\.0"):
        op.register_kernel("cpu", lambda x, y=2.0: x)
    with pytest.raises(RegistrationError, match="default"):
        op.register_fake(lambda x, y=2.0: x)


def test_defaults_reach_the_kernel_as_schema_values(lib: oplib.Library) -> None:
    seen: list[Any] = []

    def kernel(x: Any, n: int, d: Any, t: Any, *, dims: Any) -> Any:
        seen[:] = [n, d, t, dims]
        return -x

    schema = "f(Tensor x, int n=2, Device d='cpu', ScalarType t=float32, *, int[] dims=[1, 2])"
    op = lib.define(f"{schema} -> Tensor").op
    lib.impl(op, kernel, "CPU")
    op(X)
    assert seen == [2, oplib.Device("cpu"), np.dtype("float32"), [1, 2]]
    seen[3].append(3)
    op(X)
    assert seen[3] == [1, 2]


def test_a_failing_definition_leaves_the_older_operator_untouched(lib: oplib.Library) -> None:
    op = oplib.custom_op("r::f", np.negative, schema="(Tensor x) -> Tensor", lib=lib)
    before = op.registrations
    for options in (
        {"fake": lambda: 0},
        {"tags": "no_such_tag"},
        {"device_types": ()},
        {"effects": [3]},
        {"dtypes": {"y": "float32"}},
    ):
        with pytest.raises((RegistrationError, SchemaError)):
            oplib.custom_op(
                "r::f", np.negative, schema="(Tensor x) -> Tensor", override=True, **options
            )
    assert oplib.get_op("r::f") is op
    assert op.registrations == before
    assert values(op(X)) == [-1, -1]


def test_literal_annotations_limit_the_values(lib: oplib.Library) -> None:
    def f(x: np.ndarray, mode: Literal["mean", "sum"] = "mean") -> np.ndarray:
        return -x

    op = oplib.custom_op("r::f", f, mutates_args=(), lib=lib)
    op(X, "sum")
    with pytest.raises(ArgumentError, match=r"one of 'mean', 'sum'; got 'maen' \(did you mean"):
        op(X, "maen")


def test_literal_annotations_limit_the_elements_of_a_list_and_keyword_arguments(
    lib: oplib.Library,
) -> None:
    def f(
        x: np.ndarray, *, how: Literal["a", "b"] | None = None, order: list[Literal[1, 2]] | None
    ) -> np.ndarray:
        return -x

    op = oplib.custom_op("r::f", f, mutates_args=(), lib=lib)
    assert values(op(X, order=None)) == values(op(X, how="a", order=[2, 1])) == [-1, -1]
    for arguments in [{"how": "c", "order": None}, {"order": [1, 3]}]:
        with pytest.raises(ArgumentError, match=r"must be one of .*; got ('c'|3)"):
            op(X, **arguments)


# -- facets --------------------------------------------------------------------------------


def test_facets_that_exclude_each_other_are_refused_in_either_order(lib: oplib.Library) -> None:
    rule, fake, body = (lambda grad: grad), (lambda x: oplib.empty_like(x)), (lambda x: x * 2)
    pairs = [
        (lambda op: op.register_vjp(x=rule), lambda op: lib.impl(op, body)),
        (lambda op: op.register_fake(fake), lambda op: lib.impl(op, body)),
        (lambda op: op.register_vjp(x=rule), lambda op: lib.impl(op, body, "Autograd")),
    ]
    for i, pair in enumerate(pairs):
        for j, (first, second) in enumerate([pair, pair[::-1]]):
            op = lib.define(f"f{i}{j}(Tensor x) -> Tensor").op
            first(op)
            before = op.registrations
            with pytest.raises(RegistrationError, match=r"\n  "):
                second(op)
            assert op.registrations == before


def test_a_functional_twin_must_have_the_schema_of_one(lib: oplib.Library) -> None:
    op = lib.define("f_(Tensor(a!) x, Tensor y) -> Tensor(a!)").op
    wrong = lib.define("g(Tensor x) -> Tensor").op
    with pytest.raises(RegistrationError, match=r"expected  twin\(Tensor x, Tensor y\) -> Tensor"):
        op.register_functional(wrong)
    op.register_functional(lib.define("h(Tensor x, Tensor y) -> Tensor").op)
    assert op.twin is not None


def test_names_of_later_stages_do_not_exist(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    for name in ("register_vmap", "register_jvp", "register_sharding"):
        assert not hasattr(op, name)
        assert not hasattr(oplib, name)


def test_a_call_returns_the_registration_and_a_decorator_the_function(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor(a!) x, Tensor y) -> Tensor(a!)").op

    def fake(x: Any, y: Any) -> Any:
        return None

    def twin(x: Any, y: Any) -> Any:
        return x + y

    def backward(ctx: Any, grad: Any) -> Any:
        return grad, grad

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    for register, function, options in [
        (oplib.register_fake, fake, {}),
        (oplib.register_functional, twin, {"pre_state": True}),
        (oplib.register_autograd, backward, {"setup_context": setup}),
        (oplib.register_samples, lambda: [], {}),
    ]:
        with register(op, function, **options) as made:
            assert (made.op, made.function, made.active) == (op, function, True)
        assert not made.active
        assert register("r::f")(function) is function
        op.registrations[-1].remove()
        assert getattr(op, register.__name__)(function) is function
        op.registrations[-1].remove()
    assert len(op.registrations) == 1


def test_registrations_remember_where_they_were_made(lib: oplib.Library) -> None:
    here = inspect.currentframe()
    assert here is not None
    op = lib.define("f(Tensor x) -> Tensor").op
    first = here.f_lineno - 1
    lib.impl(op, np.negative, "CPU")
    op.register_fake(lambda x: oplib.empty_like(x))
    oplib.register_vjp(op, x=lambda grad: -grad)
    assert [r.source.line for r in op.registrations] == [first, *range(first + 2, first + 5)]
    assert {r.source.file for r in op.registrations} == {__file__}
    assert [r.facet for r in op.registrations] == [
        *("definition", "kernel", "fake rule", "gradient rule"),
    ]


# -- lifetime ------------------------------------------------------------------------------


def kernels_of_three(op: Any) -> list[Any]:
    """Stack kernels that multiply by 2, 3 and 4."""
    one = op.register_kernel("cpu", lambda x: x * 2)
    two = op.register_kernel("cpu", lambda x: x * 3, override=True)
    three = op.register_kernel("cpu", lambda x: x * 4, override=True)
    return [one, two, three]


@pytest.mark.parametrize(
    "order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
)
def test_removing_any_layer_exposes_the_next_live_one(
    lib: oplib.Library, order: tuple[int, ...]
) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    made = kernels_of_three(op)
    alive = {0, 1, 2}
    for index in order:
        assert values(op(X)) == [max(alive) + 2] * 2
        made[index].remove()
        made[index].remove()
        assert not made[index].active
        alive.remove(index)
    with pytest.raises(DispatchError, match="has no kernel"):
        op(X)


def test_a_registration_is_a_context_manager(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    with op.register_kernel("cpu", np.negative):
        assert values(op(X)) == [-1, -1]
    assert op.kernels == {}


def test_an_overriding_definition_starts_bare_and_gives_the_old_one_back_whole(
    lib: oplib.Library,
) -> None:
    old = lib.define("f(Tensor x) -> Tensor").op
    lib.impl(old, np.negative, "CPU")
    with pytest.raises(RegistrationError, match="already defined\n"):
        lib.define("f(Tensor x) -> Tensor")
    made = lib.define("f(Tensor x, Tensor y) -> Tensor", override=True)
    assert oplib.get_op("r::f") is made.op is not old
    assert made.op.kernels == {}
    assert values(old(X)) == [-1, -1]
    packet = oplib.ops.r.f
    with pytest.raises(ArgumentError, match="missing argument `y`"):
        packet(X)
    made.remove()
    assert oplib.get_op("r::f") is old
    assert values(packet(X)) == [-1, -1]


def test_a_removed_operator_is_refused_by_name_everywhere(lib: oplib.Library) -> None:
    made = lib.define("f(Tensor x) -> Tensor")
    op, packet, bound = made.op, oplib.ops.r.f, made.op.bind()
    op.register_kernel("cpu", np.negative)
    op(X)
    made.remove()
    for call in (
        lambda: op(X),
        lambda: bound(X),
        lambda: packet(X),
        lambda: op.register_fake(lambda x: x),
        lambda: oplib.register_kernel(made, "cpu", np.negative),
    ):
        with pytest.raises(OperatorRemovedError, match="r::f"):
            call()
    again = lib.define("f(Tensor x) -> Tensor").op
    again.register_kernel("cpu", np.positive)
    assert values(packet(X)) == [1, 1]
    with pytest.raises(OperatorRemovedError):
        op(X)


def test_an_override_scope_permits_what_it_names_and_undoes_it(lib: oplib.Library) -> None:
    for name in ("f", "g"):
        lib.impl(lib.define(f"{name}(Tensor x) -> Tensor"), np.negative, "CPU")
    f, g = oplib.get_op("r::f"), oplib.get_op("r::g")
    with oplib.override("r::f"):
        f.register_kernel("cpu", np.positive)
        assert values(f(X)) == [1, 1]
        with pytest.raises(RegistrationError):
            g.register_kernel("cpu", np.positive)
    assert values(f(X)) == [-1, -1]
    with oplib.override("r::f", keep=True):
        kept = f.register_kernel("cpu", np.positive)
    assert values(f(X)) == [1, 1]
    kept.remove()


def test_built_in_operators_are_overridden_in_a_scope_methods_included() -> None:
    zeros = oplib.zeros(2)
    with oplib.Library("std", "FRAGMENT") as lib, oplib.override("std::exp"):
        lib.impl("exp", lambda x: x + 5, "CPU")
        assert values(oplib.exp(zeros)) == values(zeros.exp()) == [5, 5]
    assert values(oplib.exp(zeros)) == values(zeros.exp()) == [1, 1]


def test_changing_one_operator_keeps_the_plans_of_others(lib: oplib.Library) -> None:
    f, g = (lib.define(f"{name}(Tensor x) -> Tensor").op for name in "fg")
    for op in (f, g):
        op.register_kernel("cpu", np.negative)
        op(X)
    plans = dict(g._plans)
    f.register_kernel("cpu", np.positive, override=True)
    assert f._plans == {}
    assert g._plans == plans


MODULE = """
import numpy as np, oplib
@oplib.custom_op("reloaded::f", mutates_args=())
def f(x: np.ndarray) -> np.ndarray:
    return x * {factor}
f.register_vjp(x=lambda grad: grad * {factor})
"""


def test_a_reloaded_module_replaces_its_operators_and_handles_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "reloaded_module.py"
    path.write_text(MODULE.format(factor=2))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.import_module("reloaded_module")
    op = module.f
    fake = op.register_fake(lambda x: oplib.empty_like(x))
    assert values(op(X)) == [2, 2]
    path.write_text("\n\n" + MODULE.format(factor=30))
    importlib.reload(module)
    assert module.f is op
    assert op.fake_rule is fake
    assert values(op(X)) == [30, 30]
    assert len(op.registrations) == 4
    oplib.get_op("reloaded::f").definition.remove()


def test_a_script_run_anew_replaces_and_the_same_text_elsewhere_does_not(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(MODULE.format(factor=2))
    runpy.run_path(str(tmp_path / "a.py"))
    op = oplib.get_op("reloaded::f")
    runpy.run_path(str(tmp_path / "a.py"))
    assert oplib.get_op("reloaded::f") is op
    with pytest.raises(RegistrationError, match=r"(?s)there.*a\.py.*here.*b\.py"):
        runpy.run_path(str(tmp_path / "b.py"))
    op.definition.remove()


def test_interactive_input_replaces_earlier_input() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell, factor in [("<cell 1>", 2), ("<cell 2>", 7)]:
        exec(compile(MODULE.format(factor=factor), cell, "exec"), namespace)
    assert values(namespace["f"](X)) == [7, 7]
    with pytest.raises(RegistrationError, match="with another schema"):
        exec(
            compile(
                MODULE.replace("x * {factor}", "x").replace("x: np", "y: np").replace("(x=", "(y="),
                "<cell 3>",
                "exec",
            ),
            namespace,
        )
    namespace["f"].definition.remove()


def test_two_lines_of_one_run_do_not_replace_each_other(lib: oplib.Library) -> None:
    lib.define("f(Tensor x) -> Tensor")
    with pytest.raises(RegistrationError, match="already defined"):
        lib.define("f(Tensor x) -> Tensor")


# -- introspection -------------------------------------------------------------------------


def test_all_listings_agree(lib: oplib.Library) -> None:
    assert not oplib.has_op("r::f")
    assert not hasattr(oplib.ops, "r")
    first = lib.define("f(Tensor x) -> Tensor")
    packet = oplib.ops.r.f
    second = lib.define("f.two(Tensor x, Tensor y) -> Tensor")
    assert oplib.list_ops("r") == ["r::f", "r::f.two"]
    assert [op.qualname for op in packet] == ["r::f", "r::f.two"]
    assert dir(oplib.ops.r) == ["f"]
    assert "r" in dir(oplib.ops)
    assert {"default", "two"} <= set(dir(packet))
    first.remove()
    assert list(packet) == [second.op]
    second.remove()
    assert not hasattr(oplib.ops, "r")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_operators_and_packets_pickle_by_name(lib: oplib.Library, protocol: int) -> None:
    made = lib.define("f(Tensor x) -> Tensor")
    lib.define("f.two(Tensor x, Tensor y) -> Tensor")
    for value in (made.op, oplib.ops.r.f, oplib.get_op("r::f.two")):
        assert pickle.loads(pickle.dumps(value, protocol)) is value
        assert copy.deepcopy(value) is copy.copy(value) is value
        assert hash(value) == hash(value)
    data = pickle.dumps(made.op, protocol)
    made.remove()
    with pytest.raises(OperatorNotFoundError, match=f"r::f.*{__name__}"):
        pickle.loads(data)


def test_what_exists_once_is_copied_to_itself_and_only_names_pickle(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    namespace, registration = oplib.ops.r, op.registrations[0]
    for unique in [op, op.packet, namespace, oplib.ops, lib, registration]:
        assert copy.copy(unique) is copy.deepcopy([unique])[0] is unique
    for named in [op, op.packet, namespace, oplib.ops]:
        assert pickle.loads(pickle.dumps(named)) is named
    for local in [lib, registration]:
        with pytest.raises(TypeError, match="belongs to this process"):
            pickle.dumps(local)


def test_help_shows_docstrings_or_schema_and_places(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    lib.impl(op, np.negative, "CPU")
    text = pydoc.render_doc(op.packet, renderer=pydoc.plaintext)
    assert "r::f(Tensor x) -> Tensor" in text
    assert "kernel at CPU  tests/test_library.py:" in text
    assert pydoc.render_doc(oplib.ops.r, renderer=pydoc.plaintext).endswith(f"{op.schema}\n")

    def g(x: np.ndarray) -> np.ndarray:
        """Double it."""
        return x * 2

    assert oplib.custom_op("r::g", g, mutates_args=(), lib=lib).__doc__ == "Double it."
    assert "Double it." in pydoc.render_doc(oplib.ops.r.g)
    assert str(type(op).__doc__).startswith("One overload")


def test_built_in_operators_are_registered_by_files_of_oplib() -> None:
    for name in ("std::exp", "std::add", "std::clone", "std::strided_get"):
        sources = [str(r.source) for r in oplib.get_op(name).registrations]
        assert all(re.fullmatch(r".*oplib/(std|prims)/\w+\.py:\d+", source) for source in sources)


def test_probing_for_dunders_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oplib.dispatch.registry._load_entry_points", lambda name: 1 / 0)
    assert not hasattr(oplib.ops, "__wrapped__")
    assert not hasattr(oplib.ops.std, "__wrapped__")


class Entry:
    def __init__(self, load: Any) -> None:
        self.load = load
        self.dist = types.SimpleNamespace(name="their-package")
        self.value = "theirs"


def test_entry_points_are_loaded_once_and_a_failing_one_names_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[str] = []
    scope = oplib.Library("theirs", "FRAGMENT")

    def load() -> None:
        loaded.append("theirs")
        scope.define("f(Tensor x) -> Tensor")

    def entry_points(group: str, name: str) -> list[Entry]:
        assert group == "oplib.ops"
        return {"theirs": [Entry(load)], "broken": [Entry(lambda: 1 / 0)]}.get(name, [])

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    assert str(oplib.ops.theirs.f) == "theirs::f"
    assert not oplib.has_op("theirs::g")
    assert loaded == ["theirs"]
    with pytest.raises(OperatorNotFoundError, match=r"'their-package', which failed.*ZeroDivision"):
        oplib.get_op("broken::f")
    scope.close()


def test_ten_thousand_operators_come_and_go_without_growth(lib: oplib.Library) -> None:
    def cycle(count: int) -> None:
        for i in range(count):
            lib.define(f"f{i}(Tensor x) -> Tensor").remove()
        gc.collect()

    cycle(100)
    before = len(gc.get_objects()), len(ledger._packets), len(ledger._empty_packets)
    cycle(2000)
    after = len(gc.get_objects()), len(ledger._packets), len(ledger._empty_packets)
    assert after[1:] == before[1:]
    assert after[0] < before[0] + 500


# -- threads and tasks ---------------------------------------------------------------------


def test_many_threads_may_define_call_override_and_remove(lib: oplib.Library) -> None:
    lib.impl(lib.define("f(Tensor x) -> Tensor"), lambda x: x * 2, "CPU")
    f = oplib.get_op("r::f")
    unexpected: list[BaseException] = []
    stop = threading.Event()

    def guard(work: Any) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            unexpected.append(error)

    def call() -> None:
        assert values(f(X)) in ([2, 2], [3, 3])

    def override() -> None:
        f.register_kernel("cpu", lambda x: x * 3, override=True).remove()

    def define_and_remove() -> None:
        name = f"t{threading.get_ident()}"
        made = lib.define(f"{name}(Tensor x) -> Tensor")
        made.op.register_kernel("cpu", np.negative)
        assert values(made.op(X)) == [-1, -1]
        made.remove()
        with pytest.raises(OperatorRemovedError):
            made.op(X)

    jobs = [call, call, call, override, override, define_and_remove, define_and_remove, call]
    threads = [threading.Thread(target=guard, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    stop.wait(1.0)
    stop.set()
    for thread in threads:
        thread.join()
    assert unexpected == []
    assert len(f.registrations) == 2


def test_everything_ambient_stays_in_its_thread_and_task(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    op.register_kernel("cpu", np.negative)
    op.register_kernel("cpu", np.positive, provider="other", priority=-1)

    class Seven(oplib.DispatchMode):
        def handle(self, op: Any, args: Any, kwargs: Any) -> Any:
            return oplib.full((2,), 7.0)

    def observed() -> tuple[Any, ...]:
        x = oplib.ones(2, requires_grad=True)
        state = _state.current()
        return values(op(X)), (x * 2).requires_grad, state.include, dict(state.config)

    def contexts() -> list[Any]:
        return [
            oplib.no_grad(),
            op.set_kernel_enabled("cpu", enabled=False, provider="default"),
            op.prefer("other"),
            oplib.checked(),
            oplib.override("r::f"),
            Seven(),
        ]

    plain = observed()

    async def inside(context: Any) -> None:
        with contextlib.suppress(ZeroDivisionError), context:
            await asyncio.sleep(0)
            assert observed() != plain
            raise ZeroDivisionError

    async def outside() -> None:
        for _ in range(3):
            assert observed() == plain
            await asyncio.sleep(0)

    async def both(context: Any) -> None:
        await asyncio.gather(inside(context), outside())
        assert observed() == plain

    for context in contexts():
        asyncio.run(both(context))
    for context in contexts():
        seen: list[Any] = []
        with context:
            thread = threading.Thread(target=lambda seen=seen: seen.append(observed()))
            thread.start()
            thread.join()
        assert seen == [plain]


def test_preferences_stay_in_their_thread_and_task(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    op.register_kernel("cpu", np.negative)
    op.register_kernel("cpu", np.positive, provider="other", priority=-1)
    seen: list[Any] = []
    with op.prefer("other"):
        assert values(op(X)) == [1, 1]
        thread = threading.Thread(target=lambda: seen.append(values(op(X))))
        thread.start()
        thread.join()
    assert seen == [[-1, -1]]

    async def preferring() -> list[float]:
        with op.prefer("other"):
            await asyncio.sleep(0)
            return values(op(X))

    async def plain() -> list[float]:
        await asyncio.sleep(0)
        return values(op(X))

    async def both() -> list[list[float]]:
        return await asyncio.gather(preferring(), plain())

    assert asyncio.run(both()) == [[1, 1], [-1, -1]]


def test_calling_fallthrough_says_what_it_is() -> None:
    with pytest.raises(DispatchError, match="no function to call"):
        fallthrough()


def test_writing_through_an_undeclared_alias_is_refused(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    op.register_kernel("cpu", lambda x: x[:1])
    with pytest.raises(AliasError):
        op(X)


def test_a_method_finds_the_definition_that_overrides_its_operator() -> None:
    x = oplib.zeros(2)
    assert values(x.exp()) == values(2.0 + x - 1) == [1, 1]
    with oplib.Library("std", "FRAGMENT") as lib:
        for name, arguments in [("exp", "Tensor x"), ("add", "Tensor x, Tensor y")]:
            made = lib.define(f"{name}({arguments}) -> Tensor", override=True)
            made.op.register_kernel("cpu", lambda x, *rest: x * 0 + 7)
        assert values(x.exp()) == values(oplib.exp(x)) == values(x + 1) == [7, 7]
        assert values(2.0 + x) == 7
    assert values(x.exp()) == values(oplib.exp(x)) == [1, 1]
    assert values(2.0 + x) == values(x + 2) == [2, 2]


# ---------------------------------------------------------------------- several kernels, writes


def test_overloads_coexist_and_a_packet_call_picks_by_arity(lib: oplib.Library) -> None:
    lib.define("arity(Tensor x) -> Tensor")
    lib.define("arity.two(Tensor x, Tensor y) -> Tensor")
    lib.impl("arity", lambda x: x + 1, "CPU")
    lib.impl("arity.two", lambda x, y: x + y, "CPU")
    packet = oplib.ops.r.arity
    one = oplib.ones(1)
    assert packet(one).tolist() == [2.0]
    assert packet(one, one * 5).tolist() == [6.0]


def test_a_write_bumps_written_tensors_in_lists_and_optionals_and_no_others(
    lib: oplib.Library,
) -> None:
    schema = "touch(Tensor(a!) x, Tensor(b!)[] xs, Tensor(c!)? y=None, Tensor? z=None) -> ()"
    touch = lib.define(schema).op
    lib.impl(touch, lambda x, xs, y, z: None, "CPU")
    x, a, b, z = [oplib.ones(1) for _ in range(4)]
    touch(x, [a, b], None, z)
    assert [t.inplace_version for t in (x, a, b, z)] == [1, 1, 1, 0]


def test_a_kernel_added_for_the_cpu_serves_it_and_the_general_one_the_rest(
    lib: oplib.Library,
) -> None:
    @oplib.custom_op("r::general", mutates_args=(), lib=lib)
    def general(x: oplib.Tensor) -> oplib.Tensor:
        return x * 2

    assert general(oplib.ones(1)).tolist() == [2.0]
    general.register_kernel("cpu", lambda x: x * 3)
    assert general(oplib.ones(1)).tolist() == [3.0]
    assert general(oplib.ones(1, device="meta")).shape == (1,)
