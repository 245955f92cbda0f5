"""Values, dtypes and shapes are NumPy's: every dtype, weak numbers, broadcasting, zero sizes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import oplib
from oplib import ArgumentError
from oplib.std import comparison, elementwise, load_all
from tests.std.cases import operator

load_all()

DTYPES = (
    *("bool", "int8", "uint8", "int32", "uint64", "int64", "float16", "float32", "float64"),
    *("complex64", "complex128"),
)
BINARY = {
    "add": np.add,
    **{name: ufunc for name, (ufunc, *_) in elementwise.BINARY.items()},
    **{name: ufunc for name, ufunc in comparison.COMPARISONS.items() if ufunc.nin == 2},
}
UNARY = {
    **{n: f for n, (f, _) in elementwise.UNARY.items() if isinstance(f, np.ufunc)},
    **{name: ufunc for name, ufunc in comparison.COMPARISONS.items() if ufunc.nin == 1},
}
REDUCTIONS = {
    **{name: getattr(np, name) for name in ("sum", "mean", "prod", "max", "min", "any", "all")},
    **{name: getattr(np, name) for name in ("argmax", "argmin")},
}


def outcome(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return (dtype, shape) of a result, or TypeError if there is none of these dtypes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function(*args, **kwargs)
    except TypeError:
        return TypeError
    return np.dtype(result.dtype), result.shape


def ones(dtype: str, *shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, dtype)


def fake_outcome(name: str, *args: Any, **kwargs: Any) -> Any:
    with oplib.FakeTensorMode() as mode:
        faked = [
            mode.from_tensor(oplib.from_numpy(a)) if isinstance(a, np.ndarray) else a for a in args
        ]
        return outcome(operator(name), *faked, **kwargs)


def real_outcome(name: str, *args: Any, **kwargs: Any) -> Any:
    made = [oplib.from_numpy(a) if isinstance(a, np.ndarray) else a for a in args]
    return outcome(operator(name), *made, **kwargs)


# ---------------------------------------------------------------------- dtypes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*UNARY, "sigmoid", "rsqrt", "relu", "round", "angle", "imag"])
def test_unary_dtypes_are_numpys_real_and_fake(name, dtype):
    x = ones(dtype, 2, 3)
    real = real_outcome(name, x)
    assert fake_outcome(name, x) == real
    if name in UNARY:
        assert real == outcome(UNARY[name], x)


@pytest.mark.parametrize("other", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_binary_dtypes_are_numpys_real_and_fake(dtype, other):
    x, y = ones(dtype, 2, 1), ones(other, 3)
    for name, ufunc in BINARY.items():
        assert real_outcome(name, x, y) == outcome(ufunc, x, y), name
        assert fake_outcome(name, x, y) == outcome(ufunc, x, y), name


@pytest.mark.parametrize("number", [True, 2, 2.0, 2j], ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_python_numbers_are_weak_real_and_fake(dtype, number):
    x = ones(dtype, 2)
    for name, ufunc in BINARY.items():
        assert real_outcome(name, x, number) == outcome(ufunc, x, number), name
        assert fake_outcome(name, x, number) == outcome(ufunc, x, number), name
        assert real_outcome(name, number, x) == outcome(ufunc, number, x), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction_dtypes_are_numpys_real_and_fake(name, dtype):
    x = ones(dtype, 2, 3)
    expected = outcome(REDUCTIONS[name], x, axis=1)
    assert real_outcome(name, x, 1) == expected
    assert fake_outcome(name, x, 1) == expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["var", "std", "norm", "logsumexp", "softmax", "log_softmax"])
def test_moments_and_softmax_have_the_dtype_their_fake_rule_says(name, dtype):
    x = ones(dtype, 2, 3)
    assert fake_outcome(name, x) == real_outcome(name, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["where", "concat", "stack", "matmul", "cumsum", "complex", "polar"]
)
def test_joining_and_products_promote_alike_real_and_fake(name, dtype):
    x, y = ones(dtype, 2, 2), ones("float32", 2, 2)
    args: dict[str, Any] = {
        "where": (x, x, y),
        "concat": ([x, y],),
        "stack": ([x, y],),
        "cumsum": (x, 0),
    }
    given_args = args.get(name, (x, y))

    def tensors(value: Any, convert: Any) -> Any:
        if isinstance(value, list):
            return [tensors(part, convert) for part in value]
        return convert(oplib.from_numpy(value)) if isinstance(value, np.ndarray) else value

    real = outcome(operator(name), *[tensors(a, lambda t: t) for a in given_args])
    with oplib.FakeTensorMode() as mode:
        fake = outcome(operator(name), *[tensors(a, mode.from_tensor) for a in given_args])
    assert fake == real


def test_reductions_take_a_dtype():
    x = oplib.tensor([1, 2, 3], dtype="int8")
    assert x.sum(dtype="float32").dtype == np.float32
    assert x.sum().dtype == np.int64
    assert x.cumsum(0, dtype="int16").dtype == np.int16


# ---------------------------------------------------------------------- values

SHAPES = hnp.mutually_broadcastable_shapes(
    num_shapes=2, min_dims=0, max_dims=3, min_side=0, max_side=3
)


@st.composite
def operands(draw: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return two arrays that broadcast, each with axes in any order and direction."""
    arrays = []
    for shape in draw(SHAPES).input_shapes:
        array = draw(
            hnp.arrays(
                draw(st.sampled_from(["f4", "f8", "i4"])), shape, elements=st.integers(-3, 3)
            )
        )
        order = draw(st.permutations(range(len(shape))))
        array = array.transpose(order).copy().transpose(np.argsort(order))
        step = [draw(st.sampled_from([1, -1])) for _ in shape]
        arrays.append(array[(*(slice(None, None, s) for s in step), ...)])
    return arrays[0], arrays[1]


@settings(max_examples=60)
@given(
    operands(),
    st.sampled_from(["add", "sub", "mul", "maximum", "minimum", "eq", "lt", "logical_or"]),
)
def test_binary_values_and_strides_are_numpys(pair, name):
    x, y = pair
    result = operator(name)(oplib.from_numpy(x), oplib.from_numpy(y))
    expected = np.asarray(BINARY[name](x, y))
    np.testing.assert_array_equal(result.numpy(), expected)
    assert result.strides == expected.strides
    assert result.dtype == expected.dtype


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_extremes_over_no_elements_are_refused_real_and_fake(name):
    x = oplib.zeros(2, 0)
    with pytest.raises(ArgumentError, match="over no elements"):
        operator(name)(x, 1)
    assert operator(name)(x, 0).shape == (0,)
    with oplib.FakeTensorMode() as mode, pytest.raises(ArgumentError, match="over no elements"):
        operator(name)(mode.from_tensor(x), 1)


def test_softmax_and_logsumexp_do_not_overflow():
    x = oplib.tensor([1e4, 0.0])
    assert x.softmax(0).tolist() == [1.0, 0.0]
    assert x.log_softmax(0).tolist() == [0.0, -1e4]
    assert x.logsumexp(0).item() == 1e4
    assert oplib.zeros(0).logsumexp(0).item() == -np.inf


def test_sigmoid_is_accurate_at_both_ends():
    assert oplib.tensor([-1000.0, -40.0, 0.0, 1000.0]).sigmoid().tolist() == pytest.approx(
        [0.0, np.exp(-40.0), 0.5, 1.0], rel=1e-12
    )


def test_var_divides_by_the_number_of_elements_less_correction():
    x = oplib.tensor([1.0, 2.0, 4.0])
    assert x.var().item() == pytest.approx(np.var([1, 2, 4], ddof=1))
    assert x.var(correction=0).item() == pytest.approx(np.var([1, 2, 4]))
    assert x.std().item() == pytest.approx(np.std([1, 2, 4], ddof=1))


@pytest.mark.parametrize("ord", [2.0, 1.0, 3.0, 0.0, np.inf, -np.inf])
def test_norm_is_numpys_vector_norm(ord):
    x = np.array([[1.0, -2.0, 0.0], [3.0, 4.0, -5.0]])
    result = oplib.from_numpy(x).norm(ord, 1).numpy()
    np.testing.assert_allclose(result, np.linalg.vector_norm(x, axis=1, ord=ord))


def test_clamp_without_bounds_is_refused_real_and_fake():
    with pytest.raises(ArgumentError, match="needs min, max, or both"):
        oplib.ones(2).clamp()
    with (
        oplib.FakeTensorMode() as mode,
        pytest.raises(ArgumentError, match="needs min, max, or both"),
    ):
        mode.from_tensor(oplib.ones(2)).clamp()


@pytest.mark.parametrize(
    "shapes", [((2, 3), (2, 3)), ((), (3,)), ((2, 3), (4,)), ((2, 2, 2), (3, 2, 2))]
)
def test_matmul_refuses_shapes_that_disagree_real_and_fake(shapes):
    x, y = (oplib.zeros(shape) for shape in shapes)
    with pytest.raises((ValueError, ArgumentError)) as real:
        x @ y
    with oplib.FakeTensorMode() as mode, pytest.raises((ValueError, ArgumentError)) as fake:
        mode.from_tensor(x) @ mode.from_tensor(y)
    assert str(real.value) == str(fake.value)


def test_concat_refuses_other_axes_that_differ():
    with pytest.raises(ArgumentError, match="other axes differ"):
        operator("concat")([oplib.zeros(2, 3), oplib.zeros(2, 4)], 0)
    with pytest.raises(ArgumentError, match="at least one"):
        operator("concat")([], 0)
    with pytest.raises(ArgumentError, match="one shape"):
        operator("stack")([oplib.zeros(2), oplib.zeros(3)])


# ---------------------------------------------------------------------- points where rules divide


@pytest.mark.parametrize("name", ["abs", "norm", "angle", "sign"])
@pytest.mark.parametrize("zero", [0.0, 0j])
def test_gradients_at_zero_are_zero(name, zero):
    x = oplib.tensor([zero, zero], requires_grad=True)
    out = operator(name)(x)
    (gradient,) = oplib.grad(out, [x], [oplib.ones_like(out)])
    assert gradient.tolist() == [0.0, 0.0]


def test_std_of_equal_numbers_has_a_zero_gradient():
    x = oplib.ones(3, requires_grad=True)
    x.std().backward()
    assert x.grad.tolist() == [0.0, 0.0, 0.0]


def test_prod_gradient_is_exact_at_zeros():
    x = oplib.tensor([2.0, 0.0, 3.0], requires_grad=True)
    (g,) = oplib.grad(x.prod(), [x], create_graph=True)
    assert g.tolist() == [0.0, 6.0, 0.0]
    (h,) = oplib.grad(g, [x], [oplib.tensor([1.0, 0.0, 0.0])])
    assert h.tolist() == [0.0, 3.0, 0.0]


@pytest.mark.parametrize(
    ("x", "y", "gx"), [(0.0, 0, 0.0), (0.0, 1, 1.0), (0.0, 2, 0.0), (3.0, 0, 0.0)]
)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_pow_has_the_limit_gradient_at_zero(x, y, gx, as_tensor):
    x = oplib.tensor(x, requires_grad=True)
    (x ** (oplib.tensor(float(y)) if as_tensor else y)).backward()
    assert x.grad.item() == gx


def test_pow_of_zero_has_no_gradient_in_the_exponent():
    y = oplib.tensor([0.0, 2.0], requires_grad=True)
    out = oplib.tensor([0.0, 0.0]) ** y
    (gradient,) = oplib.grad(out, [y], [oplib.ones(2)])
    assert gradient.tolist() == [0.0, 0.0]


def test_an_extreme_that_is_nan_has_no_gradient():
    x = oplib.tensor([1.0, np.nan], requires_grad=True)
    x.max().backward()
    assert x.grad.tolist() == [0.0, 0.0]


def test_equal_elements_share_the_gradient_of_an_extreme():
    x = oplib.tensor([1.0, 5.0, 5.0], requires_grad=True)
    x.max().backward()
    assert x.grad.tolist() == [0.0, 0.5, 0.5]
    a, b = (oplib.tensor(1.0, requires_grad=True) for _ in range(2))
    operator("maximum")(a, b).backward()
    assert (a.grad.item(), b.grad.item()) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("f", "second"),
    [
        (lambda z: z**3, lambda z: 6 * z),
        (lambda z: z.sin(), lambda z: -np.sin(z)),
        (lambda z: 1 / z, lambda z: 2 / z**3),
        (lambda z: z.log(), lambda z: -1 / z**2),
        (lambda z: z.sqrt(), lambda z: -(z**-1.5) / 4),
    ],
)
def test_second_order_complex_gradients_have_their_textbook_values(f, second):
    value = 2 + 3j
    z = oplib.tensor(value, requires_grad=True)
    (first,) = oplib.grad(f(z).real, [z], create_graph=True)
    (of_real,) = oplib.grad(first.real, [z], retain_graph=True)
    (of_imag,) = oplib.grad(first.imag, [z])
    expected = np.conj(second(value))
    assert of_real.item() == pytest.approx(expected)
    assert of_imag.item() == pytest.approx(-1j * expected)


@pytest.mark.parametrize(
    "name", [*REDUCTIONS, "var", "norm", "logsumexp", "softmax", "cumsum", "unbind", "select"]
)
def test_a_dim_out_of_range_is_refused_alike_real_and_fake(name):
    args = (5, 0) if name == "select" else (2.0, 5) if name == "norm" else (5,)
    x = oplib.ones(2, 3)
    with pytest.raises(ArgumentError, match="dim 5 is out of range"):
        operator(name)(x, *args)
    with (
        oplib.FakeTensorMode() as mode,
        pytest.raises(ArgumentError, match="dim 5 is out of range"),
    ):
        operator(name)(mode.from_tensor(x), *args)
