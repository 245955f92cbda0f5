"""Whatever NumPy has, the built-in operators compute as NumPy does.

Inputs are drawn: every dtype with its extremes, NaN and infinities, no elements, any order and
direction of axes, shapes that broadcast. Values, dtypes and shapes are compared, and what NumPy
refuses is refused. `test_every_operator_is_compared_or_has_a_reason` keeps the tables complete.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import oplib
from oplib.std import MODULES, load_all
from oplib.tensor.protocols import UFUNCS
from tests.std.cases import operator
from tests.std.test_promotion import DTYPES

load_all()

Array = np.ndarray[Any, Any]
few = settings(max_examples=25, suppress_health_check=list(HealthCheck))

# ---------------------------------------------------------------------- what NumPy has

_OPERATORS = {name: getattr(np, ufunc) for ufunc, name in UFUNCS.items()}
del _OPERATORS["matmul"], _OPERATORS["clone"]  # below

UNARY: dict[str, Callable[..., Any]] = {
    **{name: f for name, f in _OPERATORS.items() if f.nin == 1},
    **{name: getattr(np, name) for name in ("angle", "real", "imag", "round", "nan_to_num")},
}
BINARY: dict[str, Callable[..., Any]] = {name: f for name, f in _OPERATORS.items() if f.nin == 2}

REDUCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(np, name) for name in ("sum", "mean", "prod", "max", "min", "any", "all")
}
ONE_AXIS: dict[str, Callable[..., Any]] = {
    "argmax": lambda x, dim: np.argmax(x, dim),
    "argmin": lambda x, dim: np.argmin(x, dim),
    "count_nonzero": lambda x, dim: np.count_nonzero(x, dim),
    "cumsum": lambda x, dim: np.cumsum(x, dim),
    "cumprod": lambda x, dim: np.cumprod(x, dim),
    "sort": lambda x, dim: (np.sort(x, dim, kind="stable"), np.argsort(x, dim, kind="stable")),
    "argsort": lambda x, dim: np.argsort(x, dim, kind="stable"),
    "flip": lambda x, dim: np.flip(x, dim),
    "unsqueeze": lambda x, dim: np.expand_dims(x, dim),
    "repeat_interleave": lambda x, dim: np.repeat(x, 2, dim),
    "roll": lambda x, dim: np.roll(x, 2, dim),
    "fftshift": lambda x, dim: np.fft.fftshift(x, dim),
    "ifftshift": lambda x, dim: np.fft.ifftshift(x, dim),
}
"""Functions of a tensor and an axis, in which nothing is rounded."""

CALLED: dict[str, Callable[..., Any]] = {
    "repeat_interleave": lambda f, x, dim: f(x, 2, dim),
    "roll": lambda f, x, dim: f(x, 2, dim),
}
"""How the operator is called, where it is not ``f(x, dim=dim)``."""

WHOLE: dict[str, Callable[..., Any]] = {
    "nonzero": np.argwhere,
    "transpose": np.transpose,
    "unique": np.unique,
    "flatten": np.ravel,
    "clone": np.copy,
    "contiguous": np.copy,
    "unique_all": lambda x: tuple(np.unique_all(x)),
}
MATRIX: dict[str, Callable[..., Any]] = {
    "tril": np.tril,
    "triu": np.triu,
    "trace": lambda x: np.trace(x, 0, -2, -1, dtype=oplib.sum(oplib.from_numpy(x)).dtype),
    "diagonal": np.diagonal,
    "swapaxes": lambda x: np.swapaxes(x, -1, -2),
    "movedim": lambda x: np.moveaxis(x, 0, -1),
}
MATRIX_ARGUMENTS: dict[str, tuple[Any, ...]] = {"swapaxes": (-1, -2), "movedim": (0, -1)}

ROUNDED: dict[str, Callable[..., Any]] = {
    "var": lambda x, dim: np.var(x, dim, ddof=1),
    "std": lambda x, dim: np.std(x, dim, ddof=1),
    "norm": lambda x, dim: np.linalg.vector_norm(x, axis=dim),
    "median": lambda x, dim: np.median(x, dim),
    "diff": lambda x, dim: np.diff(x, 1, dim),
    "fft": lambda x, dim: np.fft.fft(x, axis=dim),
    "ifft": lambda x, dim: np.fft.ifft(x, axis=dim),
    "rfft": lambda x, dim: np.fft.rfft(x, axis=dim),
    "irfft": lambda x, dim: np.fft.irfft(x, axis=dim),
}
PRODUCTS: dict[str, tuple[tuple[str, str], Callable[..., Any]]] = {
    "matmul": (("...nk", "...km"), np.matmul),
    "dot": (("k", "k"), np.dot),
    "outer": (("n", "m"), np.outer),
    "vecdot": (("...k", "...k"), np.vecdot),
    "kron": (("nk", "ml"), np.kron),
}
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(
        (
            "basic_index",
            "index",
            "index_put",
            "index_put_",
            "index_select",
            "take",
            "masked_select",
        ),
        "below, and in test_indexing.py",
    ),
    **dict.fromkeys(("take_along_dim", "gather", "concat", "stack", "where", "clamp"), "below"),
    **dict.fromkeys(
        ("expand", "reshape", "squeeze", "tile", "searchsorted", "isin", "add"), "below"
    ),
    **dict.fromkeys(MODULES["creation"], "test_creation.py"),
    **dict.fromkeys(MODULES["inplace"] + MODULES["stored"], "test_inplace.py"),
    **dict.fromkeys(MODULES["views"], "test_views.py"),
    **dict.fromkeys(MODULES["random"], "random"),
    **dict.fromkeys(
        (*MODULES["decompositions"], *MODULES["matrices"], "contract", "einsum", "tensordot"),
        "test_references.py",
    ),
    **dict.fromkeys(("fftn", "ifftn", "rfftn", "irfftn", "pad", "cross"), "test_references.py"),
    **dict.fromkeys(("quantile", "isclose", "cummax", "cummin", "topk"), "test_references.py"),
    **dict.fromkeys(("index_add", "index_copy", "scatter", "scatter_add"), "test_references.py"),
    **dict.fromkeys(("sinc", "logsumexp", "matmul_", "complex", "polar"), "test_references.py"),
    **dict.fromkeys(
        ("fft_c2c", "ifft_c2c", "rfft_r2c", "irfft_c2r", "index_sum", "index_winners"),
        "a part of another operator",
    ),
    **dict.fromkeys(
        (*MODULES["activations"], *MODULES["losses"], *MODULES["layers"], *MODULES["nn"]),
        "NumPy has no such function",
    ),
    **dict.fromkeys(
        ("digamma", "erf", "erfc", "erfinv", "gammaln", "i0", "i1", "logit", "ndtr", "polygamma"),
        "SciPy's: test_references.py",
    ),
    **dict.fromkeys(
        ("rsqrt", "sigmoid", "relu", "masked_fill", "one_hot", "xlogy", "cumargmax", "cumargmin"),
        "NumPy has no such function",
    ),
}
"""Operators compared in another place, or with nothing."""


def test_every_operator_is_compared_or_has_a_reason():
    tables = (UNARY, BINARY, REDUCTIONS, ONE_AXIS, WHOLE, MATRIX, ROUNDED, PRODUCTS)
    compared = {name for table in tables for name in table}
    every = {name for names in MODULES.values() for name in names}
    assert every - compared - set(ELSEWHERE) == set()
    assert set(ELSEWHERE) - every <= {"expand", "add"}


# ---------------------------------------------------------------------- drawing


@st.composite
def turned(draw: Any, array: Array) -> Array:
    """Return an equal array whose axes lie in any order and direction, perhaps with gaps."""
    order = draw(st.permutations(range(array.ndim)))
    step = [draw(st.sampled_from([1, -1, 2, -2])) for _ in array.shape]
    memory = np.zeros([n * abs(s) for n, s in zip(array.shape, step, strict=True)], array.dtype)
    memory = memory.transpose(order).copy().transpose(np.argsort(order))
    view = memory[(*(slice(None, None, s) for s in step), ...)]
    view[...] = array
    return view


def shapes(least: int = 0, most: int = 3) -> Any:
    return hnp.array_shapes(min_dims=least, max_dims=most, min_side=0, max_side=4)


@st.composite
def arrays(draw: Any, shape: Any = None, dtypes: Any = DTYPES, tame: bool = False) -> Array:
    """Return an array of any dtype and layout; `tame` ones hold small numbers."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    given_shape = draw(shapes()) if shape is None else shape
    if tame:
        numbers = st.integers(0 if dtype.kind in "bu" else -4, 4)
        array = draw(hnp.arrays("i8", given_shape, elements=numbers)).astype(dtype)
        array = array * dtype.type(1 + 0.5j) if dtype.kind == "c" else array
    else:
        array = draw(hnp.arrays(dtype, given_shape))
    return draw(turned(array))


def outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return results as a list of arrays, or the exception."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            result = function(*args, **kwargs)
    except Exception as error:
        return error
    parts = result if isinstance(result, tuple | list) else [result]
    return [p.numpy() if isinstance(p, oplib.Tensor) else np.asarray(p) for p in parts]


def assert_same(name: str, actual: Any, expected: Any, rounded: bool = False) -> None:
    """Assert that both are the same arrays, or both exceptions."""
    if isinstance(expected, Exception) or isinstance(actual, Exception):
        both = isinstance(expected, Exception) and isinstance(actual, Exception)
        assert both, f"{name}: {actual!r} for {expected!r}"
        return
    for mine, theirs in zip(actual, expected, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape), name
        if rounded:
            eps = float(np.finfo(mine.dtype).eps) if mine.dtype.kind in "fc" else 0
            np.testing.assert_allclose(mine, theirs, 50 * eps, 200 * eps, err_msg=name)
        else:
            np.testing.assert_array_equal(mine, theirs, err_msg=name)


def tensor(x: Array) -> oplib.Tensor:
    return oplib.from_numpy(x)


# ---------------------------------------------------------------------- elementwise


@few
@given(arrays())
def test_functions_of_one_tensor(x):
    for name, function in UNARY.items():
        assert_same(name, outcome(operator(name), tensor(x)), outcome(function, x))


@st.composite
def pairs(draw: Any) -> tuple[Array, Array]:
    two = hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3)
    left, right = draw(two).input_shapes
    return draw(arrays(left)), draw(arrays(right))


@few
@given(pairs())
def test_functions_of_two_tensors_broadcast(pair):
    x, y = pair
    for name, function in BINARY.items():
        expected = outcome(function, x, y)
        assert_same(name, outcome(operator(name), tensor(x), tensor(y)), expected)


@few
@given(arrays(), st.sampled_from([True, 0, 3, -1.5, float("nan"), 2j]))
def test_functions_of_a_tensor_and_a_number(x, number):
    for name, function in BINARY.items():
        made = operator(name)
        assert_same(name, outcome(made, tensor(x), number), outcome(function, x, number))
        assert_same(name, outcome(made, number, tensor(x)), outcome(function, number, x))


@few
@given(pairs(), st.data())
def test_choices_between_elements(pair, data):
    x, y = pair
    keep = data.draw(arrays(y.shape, ["bool"]))
    expected = outcome(np.where, keep, x, y)
    assert_same("where", outcome(oplib.where, tensor(keep), tensor(x), tensor(y)), expected)
    if x.dtype.kind != "c":
        assert_same("clamp", outcome(oplib.clamp, tensor(x), 0, 2), outcome(np.clip, x, 0, 2))


# ---------------------------------------------------------------------- along axes


@few
@given(arrays(), st.data())
def test_reductions_over_any_axes(x, data):
    axes = data.draw(st.none() | st.sets(st.integers(0, max(x.ndim - 1, 0)), max_size=x.ndim))
    signs = [axis - x.ndim * data.draw(st.booleans()) for axis in axes or ()]
    dim = None if axes is None else tuple(signs)
    keep = data.draw(st.booleans())
    for name, function in REDUCTIONS.items():
        expected = outcome(function, x, axis=dim, keepdims=keep)
        assert_same(name, outcome(operator(name), tensor(x), dim, keep), expected)


@few
@given(arrays(), st.data())
def test_functions_along_one_axis(x, data):
    if not x.ndim:
        return
    dim = data.draw(st.integers(-x.ndim, x.ndim - 1))
    for name, function in ONE_AXIS.items():
        call = CALLED.get(name, lambda f, x, dim: f(x, dim=dim))
        actual = outcome(call, operator(name), tensor(x), dim)
        assert_same(name, actual, outcome(function, x, dim))


@few
@given(arrays(tame=True), st.data())
def test_functions_along_one_axis_that_round(x, data):
    if not x.ndim:
        return
    dim = data.draw(st.integers(-x.ndim, x.ndim - 1))
    for name, function in ROUNDED.items():
        if unlike_numpy(name, x, dim):
            continue
        actual = outcome(operator(name), tensor(x), dim=dim)
        assert_same(name, actual, outcome(function, x, dim), rounded=True)


def unlike_numpy(name: str, x: Array, dim: int) -> bool:
    """Return whether oplib means something else on purpose."""
    if name == "median":  # NumPy: NaN; oplib: an error, as for max
        return 0 in x.shape or x.dtype.kind == "c"
    if name == "irfft":  # NumPy: float16 of float16; oplib: float32, as all transforms compute it
        return x.dtype == "float16"
    return False


WITH_NAN: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "median": (lambda t: oplib.median(t, 0), lambda x: np.median(x, 0)),
    "quantile 0.3": (lambda t: oplib.quantile(t, 0.3, 0), lambda x: np.quantile(x, 0.3, 0)),
    "quantile 0.5": (lambda t: oplib.quantile(t, 0.5, 0), lambda x: np.quantile(x, 0.5, 0)),
    "quantile 0.9": (lambda t: oplib.quantile(t, 0.9, 0), lambda x: np.quantile(x, 0.9, 0)),
    "cummax": (lambda t: oplib.cummax(t, 0)[0], np.maximum.accumulate),
    "cummin": (lambda t: oplib.cummin(t, 0)[0], np.minimum.accumulate),
    "isclose": (lambda t: oplib.isclose(t, t), lambda x: np.isclose(x, x)),
    "logsumexp": (lambda t: oplib.logsumexp(t, 0), np.logaddexp.reduce),
    "sinc": (oplib.sinc, np.sinc),
    "largest": (lambda t: oplib.norm(t, np.inf), lambda x: np.linalg.norm(x, np.inf)),
}
SPECIAL = st.lists(st.sampled_from([0.5, 1.0, 2.0, -3.0, np.nan, np.inf, -np.inf]), min_size=1)


@few
@given(SPECIAL)
def test_numbers_that_are_none_and_infinities_count_as_in_numpy(values):
    x = np.array(values)
    for name, (mine, numpys) in WITH_NAN.items():
        assert_same(name, outcome(mine, tensor(x)), outcome(numpys, x), rounded=True)


def test_small_integers_do_not_wrap_where_results_are_means():
    x, y = (oplib.tensor(v, dtype="uint8") for v in ([1, 3, 250], [3, 1, 0]))
    assert oplib.l1_loss(x, y).item() == (2 + 2 + 250) / 3
    assert oplib.mse_loss(x, y).item() == (4 + 4 + 250**2) / 3
    assert oplib.huber_loss(x, y, "sum").item() == 1.5 + 1.5 + 249.5
    assert oplib.median(oplib.tensor([100, 120], dtype="int8")).item() == 110
    row = oplib.tensor([[100, 120, 90]], dtype="int8")
    for function in (
        lambda t: oplib.cosine_similarity(t, t),
        oplib.rms_norm,
        lambda t: oplib.attention(t, t, t),
        lambda t: oplib.kl_div(t, t),
        lambda t: oplib.binary_cross_entropy_with_logits(t, t),
    ):
        np.testing.assert_allclose(function(row).numpy(), function(row.cast("float64")).numpy())


def test_a_target_of_integers_does_not_widen_a_loss():
    logits, target = oplib.zeros(3, dtype="float32"), oplib.tensor([True, False, True])
    for loss in (oplib.binary_cross_entropy_with_logits, oplib.mse_loss, oplib.l1_loss):
        assert loss(logits, target).dtype == np.float32


@few
@given(arrays())
def test_functions_of_the_whole_tensor(x):
    for name, function in WHOLE.items():
        assert_same(name, outcome(operator(name), tensor(x)), outcome(function, x))


@few
@given(st.data())
def test_functions_of_matrices(data):
    x = data.draw(arrays(data.draw(shapes(2))))
    for name, function in MATRIX.items():
        arguments = MATRIX_ARGUMENTS.get(name, ())
        actual = outcome(operator(name), tensor(x), *arguments)
        assert_same(name, actual, outcome(function, x))


# ---------------------------------------------------------------------- products


@few
@given(st.sampled_from(sorted(PRODUCTS)), st.data())
def test_products_of_vectors_and_matrices(name, data):
    (left, right), function = PRODUCTS[name]
    sizes = {label: data.draw(st.integers(0, 3)) for label in "nkml"}
    batch = [data.draw(st.sampled_from([(), (2,), (1,), (2, 1)])) for _ in range(2)]
    made = []
    for labels, more in zip((left, right), batch, strict=True):
        core = tuple(sizes[label] for label in labels.removeprefix("..."))
        shape = (*more, *core) if labels.startswith("...") else core
        made.append(data.draw(arrays(shape, tame=True)))
    x, y = made
    if name == "vecdot" and "b" in x.dtype.kind + y.dtype.kind:
        return  # NumPy has no vecdot of bools
    actual = outcome(operator(name), tensor(x), tensor(y))
    assert_same(name, actual, outcome(function, x, y), rounded=True)


# ---------------------------------------------------------------------- shapes and positions


@few
@given(arrays(), st.data())
def test_shapes_change_as_in_numpy(x, data):
    t = tensor(x)
    assert_same("squeeze", outcome(oplib.squeeze, t), outcome(np.squeeze, x))
    wide = (2, *x.shape)
    assert_same("expand", outcome(oplib.expand, t, wide), outcome(np.broadcast_to, x, wide))
    size = data.draw(st.sampled_from([(-1,), (x.size, 1), (1, *x.shape[::-1])]))
    if x.size:
        assert_same("reshape", outcome(oplib.reshape, t, size), outcome(np.reshape, x, size))
    repeats = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
    assert_same("tile", outcome(oplib.tile, t, repeats), outcome(np.tile, x, repeats))


@few
@given(arrays(), st.data())
def test_joining(x, data):
    if not x.ndim:
        return
    y = data.draw(arrays(x.shape))
    dim = data.draw(st.integers(-x.ndim, x.ndim - 1))
    for name, function in (("concat", np.concatenate), ("stack", np.stack)):
        actual = outcome(operator(name), [tensor(x), tensor(y)], dim)
        assert_same(name, actual, outcome(function, [x, y], dim))


@few
@given(arrays(), st.data())
def test_positions_and_masks_select_and_store(x, data):
    index: Any
    if x.size and x.ndim:
        index = data.draw(
            hnp.basic_indices(x.shape, allow_newaxis=True)
            | hnp.integer_array_indices(x.shape)
            | arrays(x.shape, ["bool"])
        )
    else:
        index = data.draw(st.just(...) | arrays(x.shape, ["bool"]))
    parts = index if isinstance(index, tuple) else (index,)
    with_tensors = tuple(tensor(p) if isinstance(p, np.ndarray) else p for p in parts)
    t = tensor(x)
    expected = outcome(lambda: x[index])
    assert_same("index", outcome(lambda: t[with_tensors]), expected)
    changed, written = x.copy(), tensor(x.copy())
    changed[index] = written[with_tensors] = x.dtype.type(1)
    assert_same("index_put_", [written.numpy()], [changed])
    if isinstance(index, np.ndarray):
        assert_same("masked_select", outcome(oplib.masked_select, t, tensor(index)), expected)


@few
@given(arrays(), st.data())
def test_elements_taken_by_position_along_an_axis(x, data):
    if not x.ndim or not x.size:
        return
    dim = data.draw(st.integers(-x.ndim, x.ndim - 1))
    length = x.shape[dim]
    places = st.integers(-length, length - 1)
    one = data.draw(hnp.arrays("i8", data.draw(st.integers(0, 4)), elements=places))
    t = tensor(x)
    actual = outcome(oplib.index_select, t, tensor(one), dim)
    assert_same("index_select", actual, outcome(np.take, x, one, dim))
    every = data.draw(hnp.arrays("i8", x.shape, elements=places))
    expected = outcome(np.take_along_axis, x, every, dim)
    assert_same("take_along_dim", outcome(oplib.take_along_dim, t, tensor(every), dim), expected)
    assert_same("gather", outcome(oplib.gather, t, dim, tensor(every)), expected)
    flat = data.draw(hnp.arrays("i8", (2, 3), elements=st.integers(-x.size, x.size - 1)))
    assert_same("take", outcome(oplib.take, t, tensor(flat)), outcome(np.take, x, flat))


@few
@given(st.data())
def test_places_in_a_sorted_sequence(data):
    dtype = data.draw(st.sampled_from(DTYPES))
    x = np.sort(data.draw(arrays(data.draw(shapes(1, 1)), [dtype])))
    y = data.draw(arrays(None, [dtype]))
    for side in ("left", "right"):
        actual = outcome(oplib.searchsorted, tensor(x), tensor(y), right=side == "right")
        assert_same("searchsorted", actual, outcome(np.searchsorted, x, y, side))
    assert_same("isin", outcome(oplib.isin, tensor(y), tensor(x)), outcome(np.isin, y, x))


# ---------------------------------------------------------------------- the comparison fails


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([np.ones(2)], [np.ones(2, "f4")]),
        ([np.ones(2)], [np.ones((1, 2))]),
        ([np.ones(2)], [np.array([1.0, np.nan])]),
        ([np.ones(2)], TypeError()),
        (TypeError(), [np.ones(2)]),
    ],
)
def test_what_differs_is_reported(actual, expected):
    with pytest.raises(AssertionError):
        assert_same("wrong", actual, expected)
