"""Every built-in operator, by table: what it has, and whether its facets agree with each other."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import oplib
from oplib.errors import ArgumentError, AutogradError
from oplib.std import MODULES, load_all
from oplib.tensor import methods
from oplib.tensor.protocols import UFUNCS
from oplib.testing import gradcheck, gradgradcheck
from tests.std.cases import (
    CASES,
    DYNAMIC,
    LAYOUTS,
    UNINITIALISED,
    WRITING,
    Call,
    as_tensors,
    identifiers,
    operator,
)

load_all()
BUILT_IN = [name for names in MODULES.values() for name in names]


# ---------------------------------------------------------------------- completeness


@pytest.mark.parametrize("module", MODULES)
def test_modules_names_exactly_the_operators_a_module_defines(module):
    file = importlib.import_module(f"oplib.std.{module}").__file__
    defined = {
        op.name
        for op in map(oplib.get_op, oplib.list_ops("std"))
        if op.definition_source.file == file
    }
    assert defined == set(MODULES[module])


def test_every_operator_has_a_case():
    assert set(CASES) == {*BUILT_IN, "add", "expand"}  # these two are primitives


def test_every_method_names_an_operator():
    targets = [*methods.METHODS.values(), *methods.NAMED, *methods.SIZED]
    targets += [*methods.REFLECTED.values(), *methods.LATE.values()]
    for name in targets:
        assert oplib.has_op(f"std::{name}"), name


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_operator_is_documented_and_differentiable_or_declared_not_to_be(name):
    op = operator(name)
    assert op.__doc__
    composite = "CompositeImplicitAutograd" in op.kernels
    by_address = name in ("as_strided", "view")
    if op.schema.differentiable_arguments and not composite and not by_address:
        assert op.gradient_rule is not None


# ---------------------------------------------------------------------- fakes


def described(result: Any, base: Any) -> Any:
    """Return shape, dtype, meaningful strides, and (of a view) how far from the base it begins."""
    if isinstance(result, list | tuple):
        return [described(part, base) for part in result]
    strides = [s for n, s in zip(result.shape, result.strides, strict=True) if n > 1]
    empty = 0 in result.shape
    return result.shape, result.dtype, [] if empty else strides, _offset(result, base)


def _offset(result: Any, base: Any) -> int | None:
    if (
        not isinstance(base, oplib.Tensor)
        or result._storage is not base._storage
        or not result.size
    ):
        return None
    if isinstance(result.array, np.ndarray):
        first, start = (t.array.__array_interface__["data"][0] for t in (result, base))
        return first - start
    return result.array.offset - base.array.offset


def first_argument(given: Call) -> Any:
    return given.args[0] if given.args else None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "given"), identifiers(CASES))
def test_the_fake_rule_predicts_shape_dtype_and_strides(name, given, layout):
    if name == "as_strided" and layout in ("reversed", "strided"):
        pytest.skip("counts from the start of the storage, which is elsewhere")
    if name in DYNAMIC:
        pytest.skip("a size that depends on data")
    real = as_tensors(given.mapped(LAYOUTS[layout]))
    with oplib.FakeTensorMode() as mode:
        fake = Call(_faked(as_tensors(given.mapped(LAYOUTS[layout])).args, mode), given.kwargs)
        predicted = described(operator(name)(*fake.args, **fake.kwargs), first_argument(fake))
    actual = described(operator(name)(*real.args, **real.kwargs), first_argument(real))
    assert predicted == actual


def _faked(value: Any, mode: oplib.FakeTensorMode) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_faked(part, mode) for part in value)
    return mode.from_tensor(value) if isinstance(value, oplib.Tensor) else value


# ---------------------------------------------------------------------- graphs


@pytest.mark.parametrize("transform", ["functionalize", "capture"])
@pytest.mark.parametrize(
    ("name", "given"), identifiers(name for name in CASES if name not in UNINITIALISED)
)
def test_functionalized_and_captured_calls_give_the_eager_values(name, given, transform):
    def run(*tensors: oplib.Tensor) -> Any:
        left = iter(tensors)
        filled = given.mapped(lambda array: next(left))
        return operator(name)(*filled.args, **filled.kwargs)

    def tensors() -> list[oplib.Tensor]:
        arrays: list[Any] = []
        given.mapped(arrays.append)
        return [oplib.from_numpy(array.copy()) for array in arrays]

    program = (
        oplib.functionalize(run) if transform == "functionalize" else oplib.capture(run, *tensors())
    )
    expected, result = run(*tensors()), program(*tensors())
    pairs = (
        zip(expected, result, strict=True)
        if isinstance(expected, list | tuple)
        else [(expected, result)]
    )
    for a, b in pairs:
        np.testing.assert_array_equal(b.numpy(), a.numpy())


def test_every_numpy_ufunc_that_maps_to_an_operator_is_its_kernel():
    for ufunc, name in UFUNCS.items():
        if ufunc not in (
            "matmul",
            "positive",
            "degrees",
            "radians",
            "vecdot",
        ):  # same values, other kernels
            assert operator(name).kernels["CPU"][0].function is getattr(np, ufunc)


# ---------------------------------------------------------------------- gradients


def differentiable(name: str, given: Call) -> Any:
    """Return (function, tensors) for gradient checks, or None if nothing flows back."""
    call = as_tensors(given, requires_grad=True)
    op = operator(name)

    def run(*args: Any) -> Any:
        if name in WRITING:
            args = (args[0] * 1, *args[1:])
        return op(*args, **call.kwargs)

    result = run(*call.args)
    parts = result if isinstance(result, list | tuple) else [result]
    return (run, call.args) if any(part.requires_grad for part in parts) else None


def check(function: Any, args: Any) -> None:
    """Check all of the first order, and the second along random directions.

    Only a result without elements may be skipped.
    """
    for report in (gradcheck(function, args), gradgradcheck(function, args, full=False)):
        assert report or report.reason == "no elements"


DIFFERENTIABLE = [
    name for name in CASES if differentiable(name, CASES[name][0]) and name != "set_value"
]


def test_only_comparisons_positions_and_creation_stop_gradients():
    assert set(CASES) - set(DIFFERENTIABLE) == {
        *MODULES["comparison"],
        *MODULES["creation"],
        *("any", "all", "argmax", "argmin", "index_winners"),
        *("argsort", "searchsorted", "unique", "nonzero", "count_nonzero", "isclose", "isin"),
        *("cumargmax", "cumargmin", "one_hot", "bernoulli", "matrix_rank"),
        *("rand", "randn", "randint", "randperm"),
        *(f"bitwise_{name}_" for name in ("and", "not", "or", "xor", "left_shift", "right_shift")),
        "set_value",
    }


@pytest.mark.parametrize(("name", "given"), identifiers(DIFFERENTIABLE))
def test_gradients_agree_with_differences_in_first_and_second_order(name, given):
    check(*differentiable(name, given))


def complex_part(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return complex numbers near real ones, and what is no float as it is."""
    if array.dtype.kind != "f":
        return array
    return array + 0.6j * array[..., ::-1] + 0.1j if array.ndim else array * (1 + 0.3j)


def takes_complex(name: str) -> bool:
    """Return whether complex numbers are accepted and something flows back."""
    try:
        return differentiable(name, CASES[name][0].mapped(complex_part)) is not None
    except (ArgumentError, TypeError, ValueError):
        return False


TAKES_COMPLEX = [name for name in DIFFERENTIABLE if takes_complex(name)]

REFUSED_BACKWARD = {
    "svd": "determined up to a phase",
    "eigh": "depends on the phases",
    "digamma": "polygamma of real numbers only",
    "digamma_": "polygamma of real numbers only",
}
"""Complex gradients that have no meaning or no formula, with words of the error."""

FIRST_ORDER_ONLY = {
    "matrix_norm": "the second derivative of singular values goes through their vectors",
}


COMPLEX_NAMES = [name for name in TAKES_COMPLEX if name not in REFUSED_BACKWARD]


@pytest.mark.parametrize(
    ("name", "given"), identifiers([n for n in COMPLEX_NAMES if not n.endswith("_")])
)
def test_complex_gradients_agree_with_differences_in_first_and_second_order(name, given):
    check_complex(name, given)


@pytest.mark.slow  # their rules are those of the functional forms
@pytest.mark.parametrize(
    ("name", "given"), identifiers([n for n in COMPLEX_NAMES if n.endswith("_")])
)
def test_complex_gradients_of_in_place_forms_agree_with_differences(name, given):
    check_complex(name, given)


def check_complex(name: str, given: Call) -> None:
    try:
        function, args = differentiable(name, given.mapped(complex_part))
    except (ArgumentError, TypeError):
        pytest.skip("this call is for real numbers")
    if name in FIRST_ORDER_ONLY:
        assert gradcheck(function, args)
    else:
        check(function, args)


@pytest.mark.parametrize("name", REFUSED_BACKWARD)
def test_complex_gradients_without_meaning_are_refused_by_name(name):
    function, args = differentiable(name, CASES[name][0].mapped(complex_part))
    with pytest.raises(AutogradError, match=REFUSED_BACKWARD[name]):
        gradcheck(function, args)


def test_results_that_no_phase_of_an_eigenvector_changes_have_gradients():
    def projector(x):
        values, vectors = oplib.eigh(x + x.conj().transpose())
        largest = vectors[:, 2:]
        return largest @ largest.conj().transpose(), vectors.abs(), values

    rng = np.random.default_rng(0)
    x = oplib.tensor(rng.normal(size=(3, 3)) + 1j * rng.normal(size=(3, 3)), requires_grad=True)
    assert gradcheck(projector, (x,))


# ---------------------------------------------------------------------- writing


@pytest.mark.parametrize(
    ("name", "given"), identifiers(n for n in (*methods.IN_PLACE, *methods.STORED) if n != "conj")
)
def test_in_place_operators_store_what_the_functional_ones_compute(name, given):
    call = as_tensors(given)
    expected = operator(name)(*call.args, **call.kwargs)
    x = call.args[0]
    if f"{name}_" not in CASES or not isinstance(x, oplib.Tensor) or expected.shape != x.shape:
        pytest.skip("grows")
    version = x.inplace_version
    written = operator(f"{name}_")(*call.args, **call.kwargs)
    assert written is x
    assert x.inplace_version == version + 1
    np.testing.assert_array_equal(x.numpy(), expected.numpy().astype(x.dtype))


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "C"])
@pytest.mark.parametrize(
    ("name", "given"),
    identifiers(n for n in CASES if n not in {*MODULES["creation"], *UNINITIALISED}),
)
def test_values_do_not_depend_on_layout(name, given, layout):
    if name == "as_strided":
        pytest.skip("addresses the memory itself")
    plain, other = as_tensors(given), as_tensors(given.mapped(LAYOUTS[layout]))
    expected = operator(name)(*plain.args, **plain.kwargs)
    result = operator(name)(*other.args, **other.kwargs)
    pairs = (
        zip(expected, result, strict=True)
        if isinstance(result, list | tuple)
        else [(expected, result)]
    )
    for a, b in pairs:
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-12, atol=1e-14)
