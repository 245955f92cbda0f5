"""Every error of registration, binding, dispatch and results, as the text a user reads.

Places are written ``FILE:LINE``. A message says what was asked, what was found, where it comes
from, and what to do; and whatever it refuses has changed nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Any, Literal

import numpy as np
import pytest

import oplib
from oplib.errors import (
    AliasError,
    ArgumentError,
    DispatchError,
    FakeTensorError,
    OperatorNotFoundError,
    OperatorRemovedError,
    OplibError,
    RegistrationError,
    ReturnError,
    SchemaError,
)


@pytest.fixture
def lib() -> Iterator[oplib.Library]:
    with oplib.Library("m", "FRAGMENT") as library:
        yield library


def define(lib: oplib.Library, schema: str, kernel: Any = None, **options: Any) -> Any:
    op = lib.define(schema, **options).op
    if kernel is not None:
        lib.impl(op, kernel, "CPU")
    return op


def text(error: BaseException) -> str:
    """Return a message with places normalised."""
    return re.sub(r"\S*test_messages\.py:\d+", "FILE:LINE", str(error))


def raises(kind: type[OplibError], call: Callable[[], Any], expected: str) -> None:
    """Assert that `call` raises exactly `kind` with exactly this text."""
    with pytest.raises(OplibError) as caught:
        call()
    assert type(caught.value) is kind
    assert text(caught.value) == dedent(expected).strip("\n")


X = oplib.ones(2)


# -- calls that do not fit ----------------------------------------------------------------------


def test_a_wrong_argument_type(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x, float eps=1e-06) -> Tensor", lambda x, eps: x + eps)
    raises(
        ArgumentError,
        lambda: op(X, eps="a"),
        """
        m::f: argument `eps` must be float, got str 'a'
          signature  m::f(Tensor x, float eps=1e-06) -> Tensor
        """,
    )
    raises(
        ArgumentError,
        lambda: op(None),
        """
        m::f: argument `x` must be a Tensor, got None
          signature  m::f(Tensor x, float eps=1e-06) -> Tensor
          hint       it is not optional; declare it `Tensor?` to allow None
        """,
    )
    raises(
        ArgumentError,
        lambda: op([1.0]),
        """
        m::f: argument `x` must be a Tensor, got list [1.0]
          signature  m::f(Tensor x, float eps=1e-06) -> Tensor
          hint       write oplib.tensor(...) around it
        """,
    )


def test_a_call_with_missing_surplus_unknown_or_doubled_arguments(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x, Tensor y, *, float alpha=1.0) -> Tensor", lambda *a, **k: None)
    signature = "  signature  m::f(Tensor x, Tensor y, *, float alpha=1.0) -> Tensor"
    for call, first in [
        (lambda: op(X), "m::f() is missing argument `y`"),
        (
            lambda: op(X, X, X),
            "m::f() takes 2 positional arguments but 3 were given; pass `alpha` by keyword",
        ),
        (lambda: op(X, X, alhpa=1), "m::f() has no argument 'alhpa' (did you mean 'alpha'?)"),
        (lambda: op(X, X, x=X), "m::f() got argument `x` twice, by position and by keyword"),
    ]:
        raises(ArgumentError, call, f"{first}\n{signature}")


def test_an_array_for_a_written_argument_beside_a_tensor(lib: oplib.Library) -> None:
    op = define(lib, "f_(Tensor(a!) x, Tensor y) -> Tensor(a!)", lambda x, y: np.add(x, y, x))
    array = np.ones(1)
    raises(
        ArgumentError,
        lambda: op(array, X),
        """
        m::f_: argument `x` is written, so it must be a Tensor; got numpy.ndarray array([1.])
          signature  m::f_(Tensor(a!) x, Tensor y) -> Tensor(a!)
          hint       write oplib.from_numpy(array) to share its memory
        """,
    )
    assert array[0] == 1


def test_a_read_only_destination_is_refused_and_not_written(lib: oplib.Library) -> None:
    op = define(lib, "f_(Tensor(a!) x) -> Tensor(a!)", lambda x: np.add(x, 1, x))
    array = np.ones(2)
    array.flags.writeable = False
    x = oplib.from_numpy(array)
    raises(
        AliasError,
        lambda: op(x),
        """
        m::f_: argument `x` is written, but its array is read-only
          pass a writable copy: x.clone()
        """,
    )
    assert x.inplace_version == 0


def test_an_element_that_does_not_fit_is_named(lib: oplib.Library) -> None:
    schema = "m::f(Tensor[] xs, int[][] n=[], Dict(str, Tensor)? d=None) -> Tensor"
    op = define(lib, schema, lambda xs, n, d: xs[0] + 1)
    raises(
        ArgumentError,
        lambda: op([X, "a"]),
        f"""
        m::f: argument `xs[1]` must be a Tensor, got str 'a'
          signature  {schema}
          hint       pass a Tensor, a numpy.ndarray or a number
        """,
    )
    raises(
        ArgumentError,
        lambda: op([X], [[1], [2, 3.0]]),
        f"""
        m::f: argument `n[1][1]` must be int, got float 3.0
          signature  {schema}
          hint       write 3
        """,
    )
    raises(
        ArgumentError,
        lambda: op([X], d={"a": X, "b": None}),
        f"""
        m::f: argument `d['b']` must be a Tensor, got None
          signature  {schema}
          hint       it is not optional; declare it `Tensor?` to allow None
        """,
    )


def test_a_list_where_something_else_is_given(lib: oplib.Library) -> None:
    schema = "m::f(Tensor[] xs, str[] words=[]) -> Tensor"
    op = define(lib, schema, lambda xs, words: xs[0] + 1)
    raises(
        ArgumentError,
        lambda: op(X),
        f"""
        m::f: argument `xs` must be Tensor[], got a Tensor f64[2]
          signature  {schema}
          hint       write list(x), or [x] for a list of one
        """,
    )
    raises(
        ArgumentError,
        lambda: op([X], {"a"}),
        f"""
        m::f: argument `words` must be str[], got set {{'a'}}
          signature  {schema}
          hint       write list(...) around it: its order or length is not fixed
        """,
    )


def test_a_value_that_a_literal_annotation_does_not_allow(lib: oplib.Library) -> None:
    def f(x: np.ndarray, *, mode: Literal["mean", "sum"] = "sum") -> np.ndarray:
        return x + 1

    op = oplib.custom_op("m::f", f, mutates_args=(), lib=lib)
    raises(
        ArgumentError,
        lambda: op(X, mode="maen"),
        """
        m::f: argument `mode` must be one of 'mean', 'sum'; got 'maen' (did you mean 'mean'?)
          signature  m::f(Tensor x, *, str mode="sum") -> Tensor
        """,
    )


def test_tensors_of_two_devices(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x, Tensor y) -> Tensor", np.add)
    op.register_fake(lambda x, y: oplib.empty_like(x))
    mode = oplib.FakeTensorMode()
    raises(
        ArgumentError,
        lambda: op(mode.from_tensor(X), mode.from_tensor(X, device="cuda")),
        """
        m::f: tensors of one call must live on one device
          x: cpu
          y: cuda
          move them first, or make the constant inside the call
        """,
    )


# -- nothing serves the call --------------------------------------------------------------------


def test_a_missing_kernel(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x, float eps=1e-06) -> Tensor")
    op.register_fake(lambda x, eps: oplib.empty_like(x))
    raises(
        DispatchError,
        lambda: op(X),
        """
        m::f has no kernel for CPU
          called as  f(x: f64[2], eps=1e-06)
          registered Meta  FILE:LINE
          defined    FILE:LINE
          add one:   @oplib.register_kernel("m::f", "cpu")
        """,
    )
    empty = define(lib, "g(*, Device? device=None) -> Tensor")
    raises(
        DispatchError,
        lambda: empty(),
        """
        m::g has no kernel for CPU
          called as  g(device=None)
          device     cpu, the default: the call has no tensor and names no device
          registered nothing
          defined    FILE:LINE
          add one:   @oplib.register_kernel("m::g", "cpu")
        """,
    )


def test_a_device_that_nobody_serves(lib: oplib.Library) -> None:
    op = define(lib, "f(*, Device? device=None) -> Tensor", lambda device: np.ones(1))
    raises(
        ArgumentError,
        lambda: op(device="cuda"),
        """
        m::f: no backend serves device 'cuda'; served are cpu, meta
          add one: oplib.register_backend('cuda', ...)
        """,
    )


def test_kernels_that_refuse_a_call_say_why(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x) -> Tensor")
    op.register_kernel("cpu", np.negative, dtypes={"float32"})
    raises(
        DispatchError,
        lambda: op(X),
        """
        m::f: no kernel takes this call on CPU
          called as  f(x: f64[2])
          rejected   CPU  FILE:LINE  `x` is f64, it takes f32
          add one:   @oplib.register_kernel("m::f", "cpu")
        """,
    )


def test_a_missing_fake_rule_shows_a_stub(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x) -> Tensor", np.negative)
    with pytest.raises(FakeTensorError, match=r'@oplib.register_fake\("m::f"\)'):
        op(oplib.FakeTensorMode().from_tensor(X))


def test_real_and_fake_tensors_do_not_mix(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x, Tensor y) -> Tensor", np.add)
    op.register_fake(lambda x, y: oplib.empty_like(x))
    fake = oplib.FakeTensorMode().from_tensor(X)
    for args in [(X, fake), (fake, X)]:
        with pytest.raises(FakeTensorError, match="real tensor"):
            op(*args)


def test_an_operator_that_is_not_there(lib: oplib.Library) -> None:
    define(lib, "rms_norm(Tensor x) -> Tensor")
    raises(
        OperatorNotFoundError,
        lambda: oplib.get_op("m::rms_nrom"),
        "no operator 'm::rms_nrom' (did you mean 'm::rms_norm'?)",
    )
    with pytest.raises(AttributeError, match="did you mean"):
        oplib.ops.m.rms_nrom  # noqa: B018


def test_an_operator_that_was_removed(lib: oplib.Library) -> None:
    made = lib.define("f(Tensor x) -> Tensor")
    made.remove()
    raises(
        OperatorRemovedError,
        lambda: made.op(X),
        """
        m::f was removed
          defined  FILE:LINE
          removed  FILE:LINE
          look it up again: oplib.get_op('m::f')
        """,
    )
    assert str(made.op) == "m::f"
    assert repr(made.op) == "<Operator m::f(Tensor x) -> Tensor (removed)>"


# -- what kernels return --------------------------------------------------------------------------

RESULTS = [
    (
        "f(Tensor x) -> Tensor",
        lambda x: None,
        "returned None for Tensor (result 0)",
        "",
    ),
    (
        "f(Tensor x) -> Tensor",
        lambda x: "no",
        "returned str 'no' for Tensor (result 0)",
        "",
    ),
    (
        "f(Tensor x) -> Tensor",
        lambda x: [1.0],
        "returned list [1.0] for Tensor (result 0)",
        "return numpy.asarray(...)",
    ),
    (
        "f(Tensor x) -> Tensor",
        lambda x: oplib.ones(1),
        "returned a Tensor (result 0)",
        "a kernel on arrays returns arrays: x.numpy()",
    ),
    (
        "f(Tensor x) -> (Tensor, Tensor mean)",
        lambda x: (x + 1, x + 1, x + 1),
        "returned 3 values; the schema has 2 returns",
        "",
    ),
    (
        "f(Tensor x) -> (Tensor, Tensor mean)",
        lambda x: (x + 1, None),
        "returned None for Tensor (result 1 `mean`)",
        "",
    ),
    ("f(Tensor x) -> int", lambda x: 1.5, "returned float 1.5 for int (result 0)", ""),
    ("f(Tensor x) -> ()", lambda x: 1, "returned int 1; the schema returns nothing", "return None"),
]


@pytest.mark.parametrize(("schema", "kernel", "problem", "hint"), RESULTS)
def test_a_wrong_number_or_type_of_results(
    lib: oplib.Library, schema: str, kernel: Any, problem: str, hint: str
) -> None:
    op = define(lib, schema, kernel)
    lines = [f"m::f: the CPU kernel at FILE:LINE {problem}", f"  schema  m::{schema}"]
    raises(
        ReturnError, lambda: op(X), "\n".join([*lines, *([f"  hint    {hint}"] if hint else [])])
    )


ALIASES = [
    ("itself", lambda x: x, "`x` itself"),
    ("asarray", lambda x: np.asarray(x), "`x` itself"),
    ("slice", lambda x: x[:1], "a view of `x`"),
    ("transpose", lambda x: x.T, "a view of `x`"),
    ("reshape", lambda x: x.reshape(2, 1), "a view of `x`"),
]


@pytest.mark.parametrize(("name", "kernel", "what"), ALIASES)
def test_a_functional_kernel_that_returns_its_input(
    lib: oplib.Library, name: str, kernel: Any, what: str
) -> None:
    op = define(lib, "f(Tensor x) -> Tensor", kernel)
    raises(
        AliasError,
        lambda: op(X),
        f"""
        m::f: the CPU kernel at FILE:LINE: result 0 is {what}
          schema  m::f(Tensor x) -> Tensor
          hint    return a copy of it, or declare it: Tensor(a) x -> Tensor(a)
        """,
    )


def test_a_kernel_that_returns_what_it_writes_undeclared(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor(a!) x) -> Tensor", lambda x: np.add(x, 1, out=x))
    raises(
        AliasError,
        lambda: op(oplib.ones(2)),
        """
        m::f: the CPU kernel at FILE:LINE: result 0 is `x` itself
          schema  m::f(Tensor(a!) x) -> Tensor
          hint    return a copy of it, or declare it: Tensor(a!) x -> Tensor(a!)
        """,
    )


def test_a_kernel_that_returns_the_base_of_its_input(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x) -> Tensor", lambda x: x.base)
    with pytest.raises(AliasError, match="is a view of `x`"):
        op(oplib.from_numpy(np.ones(4)[:2]))


def test_two_results_in_one_memory(lib: oplib.Library) -> None:
    def kernel(x: Any) -> Any:
        fresh = x + 1
        return fresh, fresh[:1]

    op = define(lib, "f(Tensor x) -> (Tensor, Tensor)", kernel)
    raises(
        AliasError,
        lambda: op(X),
        """
        m::f: the CPU kernel at FILE:LINE: result 1 shares memory with result 0
          schema  m::f(Tensor x) -> (Tensor, Tensor)
          hint    return copies
        """,
    )


# -- registration ---------------------------------------------------------------------------------


def test_a_duplicate_definition_names_both_places(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x) -> Tensor", np.negative)
    raises(
        RegistrationError,
        lambda: oplib.define("m::f", "(Tensor x, Tensor y) -> Tensor"),
        """
        m::f is already defined with another schema
          there  FILE:LINE  m::f(Tensor x) -> Tensor
          here   FILE:LINE  m::f(Tensor x, Tensor y) -> Tensor
          choose another name, pass override=True, or define it inside `with oplib.override('m::f')`
        """,
    )
    assert oplib.get_op("m::f") is op
    assert oplib.list_ops("m") == ["m::f"]


def test_a_duplicate_kernel_names_both_places(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x) -> Tensor", np.negative)
    before = op.registrations
    raises(
        RegistrationError,
        lambda: op.register_kernel("cpu", np.positive),
        """
        m::f already has a kernel for CPU
          there  FILE:LINE
          here   FILE:LINE
          remove() the first, pass override=True, or register inside `with oplib.override('m::f')`
        """,
    )
    assert op.registrations == before


def test_a_schema_syntax_error_has_a_caret(lib: oplib.Library) -> None:
    with pytest.raises(SchemaError) as caught:
        lib.define("f(Tensor x, flaot y) -> Tensor")
    assert "^^^^^" in str(caught.value)
    assert oplib.list_ops("m") == []


def test_a_kernel_with_the_arguments_in_another_order(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x, Tensor y) -> Tensor")
    with pytest.raises(RegistrationError, match="stand in another order"):
        op.register_kernel("cpu", lambda y, x: x)
    assert op.kernels == {}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("AutogradCPU", "use 'Autograd'"),
        ("BackendSelect", "`device` argument"),
        ("Functionalize", "register_functional"),
        ("CompositeExplicitAutogradNonFunctional", "use 'CompositeExplicitAutograd'"),
        ("cuda:0", "write 'cuda'"),
        ("cpuu", "did you mean 'cpu'"),
    ],
)
def test_a_key_that_oplib_has_not(lib: oplib.Library, key: str, message: str) -> None:
    op = define(lib, "f(Tensor x) -> Tensor")
    with pytest.raises(RegistrationError, match=re.escape(message)):
        op.register_kernel(key, np.negative)


def test_facets_that_exclude_each_other(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x) -> Tensor")
    op.register_fake(lambda x: oplib.empty_like(x))
    raises(
        RegistrationError,
        lambda: lib.impl(op, lambda x: x * 2),
        "m::f has a fake rule, so the body of a CompositeImplicitAutograd kernel would never be "
        "differentiated or traced through\n"
        "  register it at 'CompositeExplicitAutograd', or remove the rule",
    )


def test_a_kernel_option_that_is_not_one(lib: oplib.Library) -> None:
    op = define(lib, "f(Tensor x) -> Tensor")
    raises(
        RegistrationError,
        lambda: op.register_kernel("cpu", np.negative, dtype_set={"f4"}),
        "m::f: a kernel has no option 'dtype_set' (did you mean 'dtypes'?); known are provider, "
        "dtypes, supports, priority, contiguous, dtype, on_alias, with_keyset",
    )


def test_a_library_that_is_closed(lib: oplib.Library) -> None:
    lib.close()
    raises(
        RegistrationError,
        lambda: lib.define("f(Tensor x) -> Tensor"),
        "library 'm' (FRAGMENT, FILE:LINE) was closed at FILE:LINE; nothing can be registered "
        "through it",
    )


def test_a_packet_where_one_overload_is_meant(lib: oplib.Library) -> None:
    define(lib, "f.a(Tensor x) -> Tensor")
    define(lib, "f.b(Tensor x, Tensor y) -> Tensor")
    raises(
        ArgumentError,
        lambda: oplib.register_kernel("m::f", "cpu", np.negative),
        """
        m::f has several overloads
          m::f.a(Tensor x) -> Tensor  FILE:LINE
          m::f.b(Tensor x, Tensor y) -> Tensor  FILE:LINE
          name one of them, as in 'm::f.a'
        """,
    )


def test_custom_op_without_mutates_args() -> None:
    raises(
        RegistrationError,
        lambda: oplib.custom_op("m::f", np.negative),
        "custom_op('m::f') needs mutates_args: the names of the arguments that are written, or () "
        "for none",
    )
