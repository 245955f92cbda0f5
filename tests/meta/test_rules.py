"""Fake rules: what they may do, what is refused, what is derived, and sizes that depend on data."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import (
    ArgumentError,
    DataDependentError,
    FakeTensorError,
    FakeTensorMode,
    Library,
    RegistrationError,
    Tensor,
    TensorSpec,
    get_ctx,
)
from oplib.dispatch.keys import META

from .helpers import define, message


@pytest.fixture
def lib() -> Iterator[Library]:
    with Library("ruletest", "FRAGMENT") as library:
        yield library


@pytest.fixture
def mode() -> FakeTensorMode:
    return FakeTensorMode()


@pytest.fixture
def x(mode: FakeTensorMode) -> Tensor:
    return mode.from_tensor(oplib.ones(2, 3), device="npu:0")


def refused(op: Any, *args: Any, parts: tuple[str, ...]) -> None:
    """Assert that a call raises a FakeTensorError with these parts, schema and both lines."""
    with pytest.raises(FakeTensorError) as caught:
        op(*args)
    text = message(caught.value)
    for part in (*parts, op.qualname, str(op.schema), "tests/meta/test_rules.py:"):
        assert part in text, (part, text)


# ---------------------------------------------------------------------- results


def test_a_rule_may_return_a_tensor_or_a_spec(lib: Library, x: Tensor) -> None:
    by_tensor = define(lib, "f(Tensor x) -> Tensor", lambda x: oplib.empty_like(x))
    by_spec = define(lib, "g(Tensor x) -> Tensor", lambda x: TensorSpec((4,), "f32"))
    by_like = define(lib, "h(Tensor x) -> Tensor", lambda x: TensorSpec((4,), like=x))
    assert (by_tensor(x).shape, str(by_tensor(x).device)) == ((2, 3), "npu:0")
    assert (by_spec(x).shape, by_spec(x).dtype, str(by_spec(x).device)) == (
        (4,),
        np.dtype("f4"),
        "npu:0",
    )
    assert by_like(x).dtype == x.dtype


def test_a_rule_may_call_operators_on_its_arguments(lib: Library, x: Tensor) -> None:
    op = define(lib, "f(Tensor x) -> Tensor", lambda x: (x.T @ x).sum(0) * 2)
    assert op(x).shape == (3,)
    assert op(x).stop_gradient


def test_a_view_that_a_rule_made_of_a_fresh_tensor_is_a_fresh_result(
    lib: Library, x: Tensor
) -> None:
    op = define(lib, "f(Tensor x) -> Tensor", lambda x: oplib.empty_like(x).T[1:])
    y = op(x)
    assert (y.shape, y.strides, y.array.offset) == ((2, 2), (8, 24), 0)
    assert y._view is None


def test_several_results_lists_and_optionals(lib: Library, x: Tensor) -> None:
    op = define(
        lib,
        "f(Tensor x) -> (Tensor a, Tensor? b, Tensor[] c, int n)",
        lambda x: (oplib.empty_like(x), None, [x.new_empty([1]), TensorSpec((2,), "i64")], 3),
    )
    a, b, c, n = op(x)
    assert (a.shape, b, [t.shape for t in c], n) == ((2, 3), None, [(1,), (2,)], 3)
    assert op.schema.returns[3].name == "n"


def test_a_result_with_negative_strides_has_a_place_for_every_element(
    lib: Library, x: Tensor
) -> None:
    op = define(lib, "f(Tensor x) -> Tensor", lambda x: TensorSpec((3,), "f64", (-8,)))
    assert op(x).array.offset == 16
    assert op(x)[::-1].array.offset == 0


@pytest.mark.parametrize(
    ("returned", "parts"),
    [
        (lambda x: (), ("returned a tuple of 0", "one result")),
        (lambda x: (oplib.empty_like(x),), ("returned a tuple of 1", "one result")),
        (lambda x: None, ("result 0 is None", "the schema says Tensor")),
        (lambda x: 1.5, ("result 0 is float 1.5",)),
        (lambda x: np.ones(2), ("result 0 is ndarray",)),
        (lambda x: [oplib.empty_like(x)], ("result 0 is list",)),
        (lambda x: x, ("result 0 is its argument `x`", "oplib.empty_like(x)")),
        (lambda x: x[0], ("result 0 is a view of its argument `x`", "Tensor(a) x -> Tensor(a)")),
        (lambda x: oplib.empty(2), ("device must be npu:0, got cpu", "from an argument")),
        (lambda x: TensorSpec((2,), "f32", device="cpu"), ("device must be npu:0, got cpu",)),
        (lambda x: TensorSpec((2, -1), "f32"), ("size -1 on axis 1",)),
        (lambda x: TensorSpec((2.0,), "f32"), ("size 2.0 on axis 0",)),
        (lambda x: TensorSpec((True,), "f32"), ("size True on axis 0",)),
        (lambda x: TensorSpec((2, 3), "f32", (4,)), ("1 strides for shape (2, 3)",)),
        (lambda x: TensorSpec((2,), np.dtype(">f4")), ("dtype('>f4')", "native order")),
    ],
)
def test_a_wrong_result_is_refused(lib: Library, x: Tensor, returned: Any, parts: Any) -> None:
    refused(define(lib, "f(Tensor x) -> Tensor", returned), x, parts=parts)
    other = define(lib, "g(Tensor x, Tensor? y=None) -> Tensor", lambda x, y=None: returned(x))
    refused(other, x, parts=parts)


def test_a_real_tensor_as_result_is_refused(lib: Library, x: Tensor) -> None:
    real = oplib.ones(2)
    op = define(lib, "f(Tensor x) -> Tensor", lambda x: real)
    refused(op, x, parts=("result 0 is a real tensor", "oplib.empty_like(x)"))


def test_a_result_of_another_mode_is_refused(lib: Library, mode: FakeTensorMode) -> None:
    other = FakeTensorMode().from_tensor(oplib.ones(2))
    op = define(lib, "f(Tensor x) -> Tensor", lambda x: other)
    refused(op, mode.from_tensor(oplib.ones(2)), parts=("belongs to another mode",))


@pytest.mark.parametrize(
    ("returned", "part"),
    [
        (lambda x: oplib.empty_like(x), "returned 1 results, the schema says 2"),
        (lambda x: (oplib.empty_like(x),) * 3, "returned 3 results, the schema says 2"),
        (lambda x: (oplib.empty_like(x), None), "result 1 `b` is None, the schema says Tensor"),
        (lambda x: (oplib.empty_like(x),) * 2, "result 1 `b` shares storage with another result"),
        (lambda x: (oplib.empty_like(x), x), "result 1 `b` is its argument `x`"),
    ],
)
def test_wrong_results_of_several_are_named(
    lib: Library, x: Tensor, returned: Any, part: str
) -> None:
    refused(define(lib, "f(Tensor x) -> (Tensor a, Tensor b)", returned), x, parts=(part,))


def test_a_list_result_must_be_a_list(lib: Library, x: Tensor) -> None:
    op = define(lib, "f(Tensor x) -> Tensor[]", lambda x: oplib.empty_like(x))
    refused(op, x, parts=("result 0 is a tensor", "the schema says Tensor[]"))


def test_a_plain_result_must_have_its_type(lib: Library, x: Tensor) -> None:
    op = define(lib, "f(Tensor x) -> (Tensor, int)", lambda x: (oplib.empty_like(x), "three"))
    refused(op, x, parts=("result 1 is str 'three'", "the schema says int"))


def test_empty_results_may_share_storage(lib: Library, x: Tensor) -> None:
    op = define(lib, "f(Tensor x) -> (Tensor, Tensor)", lambda x: (x[:0], x[:0]))
    assert [y.shape for y in op(x)] == [(0, 3), (0, 3)]


def test_an_effect_returns_nothing(lib: Library, x: Tensor) -> None:
    assert define(lib, "f(Tensor x) -> ()", lambda x: None)(x) is None
    wrong = define(lib, "g(Tensor x) -> ()", lambda x: oplib.empty_like(x))
    refused(wrong, x, parts=("returned a tensor", "returns nothing"))


# ---------------------------------------------------------------------- purity


def test_a_rule_may_not_write_to_an_argument(lib: Library, x: Tensor) -> None:
    def rule(x: Tensor) -> Any:
        x.add_(1)
        return oplib.empty_like(x)

    refused(define(lib, "f(Tensor x) -> Tensor", rule), x, parts=("wrote to an argument",))
    refused(
        define(lib, "g(Tensor[] x) -> Tensor", lambda x: rule(x[0])),
        [x],
        parts=("wrote to an argument",),
    )


def test_a_rule_may_not_change_stop_gradient(lib: Library, x: Tensor) -> None:
    def rule(x: Tensor) -> Any:
        x.requires_grad = True
        return TensorSpec((2,), "f32")

    refused(define(lib, "f(Tensor x) -> Tensor", rule), x, parts=("wrote to an argument",))


def test_a_rule_that_reads_a_value_is_named_with_its_line(lib: Library, x: Tensor) -> None:
    def rule(x: Tensor, y: Tensor) -> Any:
        return TensorSpec((2 if y.item() else 3,), "f32")

    op = define(lib, "f(Tensor x, Tensor y) -> Tensor", rule)
    with pytest.raises(DataDependentError) as caught:
        op(x, x.new_empty([]))
    line = rule.__code__.co_firstlineno + 1
    for part in (
        f"read at  tests/meta/test_rules.py:{line}",
        "item() needs the value",
        "in the fake rule of ruletest::f",
        "argument `y` was read",
        "called as f(x: ",
    ):
        assert part in message(caught.value), part


def test_an_argument_error_of_a_rule_reaches_the_caller(lib: Library, x: Tensor) -> None:
    def rule(x: Tensor) -> Any:
        oplib.meta.check(x.shape[0] == 3, "three rows are needed")

    with pytest.raises(ArgumentError, match="three rows are needed"):
        define(lib, "f(Tensor x) -> Tensor", rule)(x)


def test_a_rule_runs_apart_from_what_surrounds_the_call(lib: Library, x: Tensor) -> None:
    seen = []

    def rule(x: Tensor) -> Any:
        seen.append((oplib.is_grad_enabled(), oplib.empty(1)._keys & META, x.stop_gradient))
        return oplib.empty_like(x)

    class Watch(oplib.DispatchMode):
        def __init__(self) -> None:
            self.names: list[str] = []

        def handle(self, op: Any, args: Any, kwargs: Any) -> Any:
            self.names.append(op.name)
            return op(*args, **kwargs)

    op = define(lib, "f(Tensor x) -> Tensor", rule)
    with Watch() as watch:
        op(x)
    assert watch.names == ["f"]
    with oplib.no_grad():
        op(x)
    assert seen[0] == seen[1]


def test_a_factory_in_a_rule_makes_a_fake_of_the_call(lib: Library, mode: FakeTensorMode) -> None:
    op = define(lib, "f(Tensor x) -> Tensor", lambda x: oplib.zeros(4) + oplib.tensor(1.0))
    assert op(mode.from_tensor(oplib.ones(2))).array.mode is mode
    assert str(op(oplib.ones(2).to("meta")).device) == "meta"


# ---------------------------------------------------------------------- which rule


def test_a_missing_rule_shows_a_stub_that_works_when_pasted(lib: Library, x: Tensor) -> None:
    schemas = {
        "f1(Tensor x, float eps=1e-05, *, str mode='sum') -> Tensor": [x],
        "f2(Tensor[] xs, int n) -> (Tensor, Tensor)": [[x], 2],
        "f3(Tensor x, Tensor(a!) y) -> (Tensor, Tensor(a!))": [x, oplib.empty_like(x)],
        "f4(Tensor? x, Tensor y) -> Tensor[]": [None, x],
        "f5(Tensor(a) x) -> Tensor(a)": [x],
        "f6(Tensor(a) x, int n) -> Tensor(a)[]": [x, 2],
        "f7(Tensor(a!) x, Tensor y) -> (Tensor(a), Tensor)": [oplib.empty_like(x), x],
    }
    for schema, args in schemas.items():
        op = lib.define(schema).op
        with pytest.raises(FakeTensorError) as caught:
            op(*args)
        text = str(caught.value)
        for part in (op.qualname, "no fake rule", "defined  tests/meta", "called   ", "add one:"):
            assert part.strip() in text, part
        stub = [line[4:] for line in text.splitlines() if line.startswith("    ")]
        assert len(stub) == 3
        exec("\n".join(stub), {"oplib": oplib})
        assert op(*args) is not None


def test_the_stub_for_a_view_is_a_view(lib: Library, x: Tensor) -> None:
    op = lib.define("f(Tensor(a) x) -> Tensor(a)").op
    with pytest.raises(FakeTensorError, match=r"return x\[\.\.\.\]  # the view") as caught:
        op(x)
    assert "empty_like" not in str(caught.value)


def test_the_newest_rule_wins_and_removal_exposes_the_older(lib: Library, x: Tensor) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    op.register_fake(lambda x: TensorSpec((1,), "f32"))
    assert op(x).shape == (1,)
    meta_lib = Library("ruletest", "IMPL", "Meta")
    with oplib.override("ruletest::f", keep=True):
        handle = meta_lib.impl("f", lambda x: TensorSpec((2,), "f32"))
    assert op(x).shape == (2,)
    handle.remove()
    assert op(x).shape == (1,)


def test_a_second_rule_without_override_names_both_places(lib: Library, x: Tensor) -> None:
    op = define(lib, "f(Tensor x) -> Tensor", lambda x: TensorSpec((1,), "f32"))
    with pytest.raises(RegistrationError) as caught:
        op.register_fake(lambda x: TensorSpec((1,), "f32"))
    assert len(re.findall(r"test_rules\.py:\d+|helpers\.py:\d+", str(caught.value))) >= 2


def test_a_closed_library_takes_its_rules_along(x: Tensor) -> None:
    with Library("ruletest2", "FRAGMENT") as lib:
        op = lib.define("f(Tensor x) -> Tensor").op
        with Library("ruletest2", "IMPL", "Meta") as rules:
            rules.impl("f", lambda x: oplib.empty_like(x))
            op(x)
        with pytest.raises(FakeTensorError, match="no fake rule"):
            op(x)


def test_a_rule_can_be_registered_by_name_packet_and_decorator(lib: Library, x: Tensor) -> None:
    for i, register in enumerate(
        [
            lambda op: oplib.register_fake(op.qualname, oplib.empty_like),
            lambda op: oplib.register_fake(getattr(oplib.ops.ruletest, op.name), oplib.empty_like),
            lambda op: op.register_fake()(lambda x: oplib.empty_like(x)),
            lambda op: oplib.register_fake(op)(lambda x: oplib.empty_like(x)),
        ]
    ):
        op = lib.define(f"f{i}(Tensor x) -> Tensor").op
        register(op)
        assert op(x).shape == (2, 3)


@pytest.mark.parametrize(
    ("rule", "part"),
    [
        (lambda x: x, "y"),
        (lambda x, y, z: x, "z"),
    ],
)
def test_a_rule_with_another_signature_is_refused(lib: Library, rule: Any, part: str) -> None:
    op = lib.define("f(Tensor x, int y=2) -> Tensor").op
    with pytest.raises(RegistrationError) as caught:
        op.register_fake(rule)
    assert part in str(caught.value)
    assert "ruletest::f" in str(caught.value)


def test_a_rule_receives_every_default(lib: Library, x: Tensor) -> None:
    op = define(
        lib,
        "f(Tensor x, int n=4, *, ScalarType? dtype=None) -> Tensor",
        lambda x, n, *, dtype: TensorSpec((n,), dtype or x.dtype),
    )
    assert op(x).shape == (4,)
    assert op(x, dtype="f32").dtype == np.float32


def test_a_composite_that_decomposes_takes_no_rule(lib: Library, x: Tensor) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    lib.impl("f", lambda x: x * 2 + 1, "CompositeImplicitAutograd")
    assert op(x).shape == (2, 3)
    with pytest.raises(RegistrationError):
        op.register_fake(lambda x: oplib.empty_like(x))


def test_a_composite_kernel_runs_on_fakes_and_may_write_what_it_declares(
    lib: Library, x: Tensor
) -> None:
    op = lib.define("f(Tensor(a!) x, Tensor y) -> Tensor").op

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        return (x * y).sum()

    lib.impl("f", kernel, "CompositeExplicitAutograd")
    y, version = oplib.empty_like(x), x.inplace_version
    assert op(x, y).shape == ()
    assert x.inplace_version > version
    assert y.inplace_version == 0


def test_the_order_of_registrations_does_not_matter(x: Tensor) -> None:
    steps = {
        "kernel": lambda op: op.register_kernel("cpu", lambda x: x * 2),
        "fake": lambda op: op.register_fake(lambda x: oplib.empty_like(x)),
        "vjp": lambda op: op.register_vjp(x=lambda grad: grad * 2),
    }
    for order in itertools.permutations(steps):
        with Library("ruletest3", "FRAGMENT") as lib:
            op = lib.define("f(Tensor x) -> Tensor").op
            for step in order:
                steps[step](op)
            assert op(x).shape == (2, 3)
            assert op(oplib.ones(2)).tolist() == [2, 2]


# ---------------------------------------------------------------------- derived rules


def test_nothing_and_written_arguments_need_no_rule(lib: Library, x: Tensor) -> None:
    y = oplib.empty_like(x)
    assert lib.define("f(Tensor x) -> ()").op(x) is None
    assert lib.define("g(Tensor(a!) x) -> Tensor(a!)").op(x) is x
    out = lib.define("h(Tensor x, *, Tensor(a!) y, Tensor(b!) z) -> (Tensor(a!), Tensor(b!))").op
    z = oplib.empty_like(x)
    first, second = out(x, y=y, z=z)
    assert first is y
    assert second is z


def test_a_derived_call_counts_its_writes(lib: Library, x: Tensor) -> None:
    op = lib.define("f(Tensor(a!) x, Tensor(b!)[] ys, Tensor(c!)? z=None) -> ()").op
    ys = [oplib.empty_like(x), oplib.empty_like(x)]
    op(x, [ys[0], ys[1], ys[0].T])
    assert [t.inplace_version for t in (x, *ys)] == [1, 1, 1]


def test_a_rule_of_an_in_place_operator_returns_its_argument_or_nothing(
    lib: Library, x: Tensor
) -> None:
    for i, rule in enumerate([lambda x: x, lambda x: None]):
        op = define(lib, f"f{i}_(Tensor(a!) x) -> Tensor(a!)", rule)
        version = x.inplace_version
        assert op(x) is x
        assert x.inplace_version == version + 1
    wrong = define(lib, "g_(Tensor(a!) x) -> Tensor(a!)", lambda x: oplib.empty_like(x))
    refused(wrong, x, parts=("result 0, where the schema returns argument `x` itself",))


def test_fresh_results_beside_written_ones(lib: Library, x: Tensor) -> None:
    schema = "(Tensor(a!) x, Tensor y) -> (Tensor, Tensor(a!))"
    rules = [
        lambda x, y: oplib.empty_like(y),
        lambda x, y: (oplib.empty_like(y), x),
        lambda x, y: (oplib.empty_like(y), None),
        lambda x, y: [TensorSpec((1,), "f32")],
    ]
    for i, rule in enumerate(rules):
        fresh, same = define(lib, f"f{i}{schema}", rule)(x, oplib.empty_like(x))
        assert same is x
        assert fresh._storage is not x._storage


def test_an_undeclared_view_and_a_declared_one(lib: Library, x: Tensor) -> None:
    view = define(lib, "f(Tensor(a) x) -> Tensor(a)", lambda x: x[0].T)
    assert view(x)._storage is x._storage
    copy = define(lib, "g(Tensor(a) x) -> Tensor(a)", lambda x: oplib.empty_like(x))
    refused(copy, x, parts=("result 0 must be a view of `x`", "view operators"))
    spec = define(lib, "h(Tensor(a) x) -> Tensor(a)", lambda x: TensorSpec((2,), "f32"))
    refused(spec, x, parts=("result 0 must be a view of `x`",))


# ---------------------------------------------------------------------- devices


def test_tensors_of_several_devices_are_refused_with_each_device(
    lib: Library, mode: FakeTensorMode
) -> None:
    a = mode.from_tensor(oplib.ones(2), device="npu:0")
    b = mode.from_tensor(oplib.ones(2), device="npu:1")
    with pytest.raises(ArgumentError) as caught:
        a + b
    for part in ("std::add: tensors of one call must live on one device", "x: npu:0", "y: npu:1"):
        assert part in str(caught.value)
    many = define(lib, "f(Tensor[] xs, Tensor y) -> Tensor", lambda xs, y: oplib.empty_like(y))
    with pytest.raises(ArgumentError, match=r"xs: npu:0\n  xs: npu:1\n  y: npu:0"):
        many([a, b], a)


def test_a_0d_cpu_tensor_yields_in_elementwise_operators(mode: FakeTensorMode) -> None:
    npu = mode.from_tensor(oplib.ones(2), device="npu:0")
    zero = mode.from_tensor(oplib.ones(()))
    assert str((npu * zero).device) == str((zero * npu).device) == "npu:0"
    with pytest.raises(ArgumentError, match="one device"):
        oplib.ops.std.matmul(npu, mode.from_tensor(oplib.ones(2)))


def test_a_0d_cpu_tensor_does_not_yield_as_a_destination(
    lib: Library, mode: FakeTensorMode
) -> None:
    op = lib.define("f_(Tensor(a!) x, Tensor y) -> Tensor(a!)", tags="pointwise").op
    zero = mode.from_tensor(oplib.ones(()))
    with pytest.raises(ArgumentError, match="one device"):
        op(zero, mode.from_tensor(oplib.ones(()), device="npu:0"))


def test_an_explicit_device_wins(lib: Library, x: Tensor, mode: FakeTensorMode) -> None:
    op = define(
        lib,
        "f(Tensor x, *, Device? device=None) -> Tensor",
        lambda x, *, device: TensorSpec((1,), "f32", device=device),
    )
    assert str(op(x, device="npu:1").device) == "npu:1"
    assert str(op(x).device) == "npu:0"
    source = define(
        lib,
        "g(int n, *, Device? device=None) -> Tensor",
        lambda n, *, device: TensorSpec((n,), "f32"),
    )
    with mode:
        assert [str(source(1, device=d).device) for d in ("npu:3", None)] == ["npu:3", "cpu"]


def test_copy_keeps_the_device_of_its_destination(mode: FakeTensorMode) -> None:
    npu = mode.from_tensor(oplib.ones(2), device="npu:0")
    cpu = mode.from_tensor(oplib.ones(2))
    assert npu.copy_(cpu) is npu
    assert str(npu.device) == "npu:0"


def test_code_that_branches_on_the_device_takes_the_claimed_branch(lib: Library, x: Tensor) -> None:
    op = define(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: TensorSpec((1,) if x.device.type == "npu" else (2,), "f32"),
    )
    assert op(x).shape == (1,)


# ---------------------------------------------------------------------- sizes that depend on data


@pytest.fixture
def nonzero(lib: Library) -> Any:
    def rule(x: Tensor) -> Any:
        return TensorSpec((get_ctx().new_dynamic_size(max=6), x.ndim), "i64")

    op = define(lib, "nonzero(Tensor x) -> Tensor", rule)
    op.register_kernel("cpu", lambda x: np.argwhere(x))
    return op


def test_a_size_that_depends_on_data_needs_permission(nonzero: Any, x: Tensor) -> None:
    with pytest.raises(DataDependentError) as caught:
        nonzero(x)
    for part in (
        "ruletest::nonzero",
        "asked by  the fake rule at tests/meta/test_rules.py:",
        "FakeTensorMode(dynamic=True)",
        "called ",
    ):
        assert part in str(caught.value), part
    with pytest.raises(DataDependentError, match="of meta tensors"):
        nonzero(oplib.ones(2).to("meta"))


def test_a_mode_may_allow_sizes_that_depend_on_data(nonzero: Any) -> None:
    mode = FakeTensorMode(dynamic=True)
    found = nonzero(mode.from_tensor(oplib.ones(2, 3)))
    assert str(found.shape) == "(u0, 2)"
    assert (found.shape[0] <= 6) is True
    assert str(found.strides) == "(16, 8)"
    assert str((found * 2 + found).shape) == "(u0, 2)"
    assert str(nonzero(found).shape) == "(u1, 2)"
    assert found.sum().shape == ()


def test_shape_code_takes_symbols(nonzero: Any) -> None:
    mode = FakeTensorMode(dynamic=True)
    found = nonzero(mode.from_tensor(oplib.ones(2, 3)))
    assert str(found.T.shape) == "(2, u0)"
    assert str(found.T.strides) == "(8, 16)"
    assert str(oplib.concat([found, found]).shape) == "(2*u0, 2)"
    assert str((found.unsqueeze(0) + np.ones((3, 1, 2))).shape) == "(3, u0, 2)"
    assert str(found.reshape([-1]).shape) == "(2*u0,)"
    with pytest.raises(DataDependentError, match="u0"):
        len(range(found.shape[0]))


def test_an_undecided_comparison_says_how_to_state_a_fact(nonzero: Any) -> None:
    mode = FakeTensorMode(dynamic=True)
    found = nonzero(mode.from_tensor(oplib.ones(2, 3)))
    n = found.shape[0]
    with pytest.raises(DataDependentError, match=r"oplib\.meta\.check\(u0 > 2\)"):
        bool(n > 2)
    oplib.meta.check(n > 2)
    assert n > 2
    with pytest.raises(ArgumentError, match="does not hold"):
        oplib.meta.check(n < 2)


def test_a_rule_that_compares_what_it_cannot_know_is_named(lib: Library, nonzero: Any) -> None:
    op = define(lib, "f(Tensor x) -> Tensor", lambda x: x.new_empty([1 if x.shape[0] > 3 else 2]))
    found = nonzero(FakeTensorMode(dynamic=True).from_tensor(oplib.ones(2, 3)))
    with pytest.raises(DataDependentError) as caught:
        op(found)
    for part in ("whether u0 > 3 is not known", "in the fake rule of ruletest::f", "at tests/meta"):
        assert part in message(caught.value), part


def test_a_real_call_of_such_an_operator_has_a_size(nonzero: Any) -> None:
    assert nonzero(oplib.tensor([0.0, 1.0, 2.0])).shape == (2, 1)


@pytest.mark.parametrize(
    "bounds", [{"min": -1}, {"min": 3, "max": 2}, {"max": True}, {"min": 1.0}, {"max": "4"}]
)
def test_bounds_of_a_dynamic_size_are_checked(lib: Library, bounds: dict[str, Any]) -> None:
    op = define(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: TensorSpec((get_ctx().new_dynamic_size(**bounds),), "f32"),
    )
    with pytest.raises(ArgumentError, match="dynamic size"):
        op(FakeTensorMode(dynamic=True).from_tensor(oplib.ones(2)))


def test_a_symbol_is_no_bound(lib: Library) -> None:
    def rule(x: Tensor) -> Any:
        n = get_ctx().new_dynamic_size()
        return TensorSpec((get_ctx().new_dynamic_size(max=n),), "f32")

    with pytest.raises(ArgumentError, match="dynamic size"):
        define(lib, "f(Tensor x) -> Tensor", rule)(
            FakeTensorMode(dynamic=True).from_tensor(oplib.ones(2))
        )


def test_a_context_exists_in_a_rule_only(lib: Library, mode: FakeTensorMode) -> None:
    failures = []

    def elsewhere() -> None:
        try:
            get_ctx()
        except FakeTensorError as error:
            failures.append(str(error))

    def rule(x: Tensor) -> Any:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return TensorSpec((get_ctx().mode is mode,) and (1,), "f32")

    define(lib, "f(Tensor x) -> Tensor", rule)(mode.from_tensor(oplib.ones(2)))
    elsewhere()
    with mode:
        elsewhere()
    assert len(failures) == 3
    assert "tests/meta/test_rules.py:" in failures[0]
    assert "register_fake" in failures[0]


def test_a_nested_rule_has_its_own_context(lib: Library, mode: FakeTensorMode) -> None:
    seen = []
    inner = define(
        lib,
        "inner(Tensor x) -> Tensor",
        lambda x: seen.append(get_ctx().op.name) or oplib.empty_like(x),
    )

    def rule(x: Tensor) -> Any:
        made = inner(x)
        seen.append(get_ctx().op.name)
        return made

    define(lib, "outer(Tensor x) -> Tensor", rule)(mode.from_tensor(oplib.ones(2)))
    assert seen == ["inner", "outer"]


def test_a_symbol_is_never_constant_folded_into_another_mode(nonzero: Any) -> None:
    x = oplib.ones(2)
    a, b = (nonzero(FakeTensorMode(dynamic=True).from_tensor(x)).shape[0] for _ in range(2))
    with pytest.raises(FakeTensorError, match="two modes"):
        a + b


def test_a_rule_may_return_a_symbol_as_an_int(lib: Library) -> None:
    def rule(x: Tensor) -> Any:
        n = get_ctx().new_dynamic_size()
        return TensorSpec((n,), "f32"), n

    op = define(lib, "f(Tensor x) -> (Tensor, int)", rule)
    y, n = op(FakeTensorMode(dynamic=True).from_tensor(oplib.ones(2)))
    assert y.shape[0] is n


# ---------------------------------------------------------------------- explain


def test_explain_shows_the_rule_and_its_place(lib: Library, x: Tensor) -> None:
    op = define(lib, "f(Tensor x) -> Tensor", oplib.meta.like("x"))
    assert "fake rule like('x') registered tests/meta/helpers.py:" in op.explain(x)
    assert "derived" in lib.define("g(Tensor(a!) x) -> ()").op.explain(x)
    assert "no fake rule" in lib.define("h(Tensor x) -> Tensor").op.explain(x)
    assert "geometry" in oplib.ops.std.transpose.explain(x)


def test_several_results_may_have_one_dynamic_size(lib: Library) -> None:
    op = lib.define("pairs(Tensor x) -> (Tensor values, Tensor places)").op
    op.register_kernel("cpu", lambda x: (x[x > 0], np.flatnonzero(x > 0)))

    @op.register_fake
    def _(x: Tensor) -> tuple[Tensor, Tensor]:
        count = oplib.get_ctx().new_dynamic_size()
        return x.new_empty([count]), x.new_empty([count], dtype="int64")

    with oplib.FakeTensorMode(dynamic=True):
        values, places = op(oplib.empty((3,)))
    assert values.shape == places.shape
