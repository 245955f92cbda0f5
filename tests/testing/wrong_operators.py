"""Operators that are wrong on purpose: each has one fault, and names the check that must find it.

Every other facet of such an operator is right: it passes every check unrelated to its fault.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

import oplib
from oplib import Library
from oplib.shapes import TensorSpec, broadcast, like, like_spec
from tests.testing.helpers import operator, tensor, wrap

__all__ = ["WRONG", "Wrong"]

rng = np.random.default_rng(11)
X = rng.standard_normal((3, 4))
Y = rng.standard_normal((3, 4))
S = rng.standard_normal((3, 3))
Z = X + 1j * Y


@dataclass(frozen=True)
class Wrong:
    """One wrong operator.

    ``also`` names checks that rightly fail too, because they see the same fault.
    """

    name: str
    check: str
    words: str
    make: Callable[[Library], tuple[Any, tuple[Any, ...]]]
    also: tuple[str, ...] = ()


WRONG: list[Wrong] = []


def wrong(check: str, words: str, *also: str) -> Callable[[Any], Any]:
    """Enter a function that makes an operator and the arguments of one call."""

    def enter(make: Any) -> Any:
        WRONG.append(Wrong(make.__name__, check, words, make, also))
        return make

    return enter


def x(array: Any = X) -> Any:
    return oplib.from_numpy(np.array(array))


def linear(factor: float = 1.0) -> dict[str, Any]:
    """Return the gradient rule of a function whose derivative is a constant."""
    return {"x": lambda grad: grad * factor}


def doubled(lib: Library, kernel: Any, **facets: Any) -> Any:
    """Return an operator that computes ``x + x``, apart from what its kernel does beside."""
    facets = {"fake": like("x"), "vjp": linear(2.0), **facets}
    return operator(lib, "f(Tensor x) -> Tensor", kernel, **facets)


# ---------------------------------------------------------------------- mutation


@wrong("mutation", "was changed by the call, undeclared", "functional")
def writes_its_input(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        x += 1
        return x + x

    return operator(lib, "f(Tensor x) -> Tensor", kernel, fake=like("x")), (x(),)


@wrong("mutation", "write-protected")
def writes_equal_bytes(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        x *= 1
        return x + x

    return doubled(lib, kernel), (x(),)


@wrong("mutation", "was changed by the call")
def writes_below_any_tolerance(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        x += 1e-13
        return x + x

    return doubled(lib, kernel), (x(),)


@wrong("mutation", "was changed by the call", "functional")
def sorts_its_input(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        x.sort()
        return x.sum(keepdims=True, dtype=x.dtype)

    return (
        operator(
            lib,
            "f(Tensor x) -> Tensor",
            kernel,
            fake=lambda x: TensorSpec((1,) * x.ndim, x.dtype),
            vjp={"x": lambda grad, x_spec: oplib.broadcast_to(grad, x_spec.shape)},
        ),
        (x(),),
    )


@wrong("mutation", "outside `x`", "functional")
def writes_elsewhere_in_the_buffer(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        result = x + x
        if x.base is not None and isinstance(x.base, np.ndarray) and x.base.flags.writeable:
            x.base.reshape(-1)[:1] += 1
        return result

    return doubled(lib, kernel), (x(),)


@wrong("mutation", "declares writing `y` and never does")
def never_writes(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x, Tensor(a!) y) -> Tensor",
        lambda x, y: x + y,
        fake=broadcast("x", "y"),
    )
    return op, (x(), x(Y))


@wrong("mutation", "is left unwritten")
def leaves_the_last_element_unwritten(lib: Library) -> Any:
    def kernel(x: Any, *, out: Any) -> Any:
        for index in itertools.islice(np.ndindex(x.shape), max(x.size - 1, 0)):
            out[index] = x[index] + x[index]

    op = operator(lib, "f(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", kernel)
    return op, (x(),), {"out": x(np.zeros_like(X))}


@wrong("mutation", "shape was changed", "determinism", "functional")
def sets_the_shape_of_its_input(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        result = x + x
        if x.flags.c_contiguous:
            x.resize(x.shape[::-1], refcheck=False)
        return result

    return operator(lib, "f(Tensor x) -> Tensor", kernel, fake=like("x")), (x(),)


@wrong("mutation", "argument `y`", "functional")
def writes_an_optional_when_it_is_given(lib: Library) -> Any:
    def kernel(x: Any, y: Any = None) -> Any:
        if y is not None:
            y += 1
        return x + x

    op = operator(lib, "f(Tensor x, Tensor? y=None) -> Tensor", kernel, fake=like("x"))
    return op, (x(),)


@wrong("mutation", "argument `xs[1]`", "functional", "arguments")
def writes_one_element_of_a_list(lib: Library) -> Any:
    def kernel(xs: Any) -> Any:
        if len(xs) > 1:
            xs[1][...] += 1
        return xs[0] + xs[0]

    def fake(xs: Any) -> Any:
        return like_spec(xs[0])

    op = operator(lib, "f(Tensor[] xs) -> Tensor", kernel, fake=fake)
    return op, ([x(), x(Y)],)


@wrong("mutation", "argument `d['a']`", "functional")
def writes_a_tensor_inside_a_dict(lib: Library) -> Any:
    def kernel(x: Any, d: Any) -> Any:
        d["a"] += 1
        return x + d["a"]

    op = operator(
        lib,
        "f(Tensor x, Dict(str, Tensor) d) -> Tensor",
        kernel,
        fake=lambda x, d: oplib.shapes.broadcast_spec(x, d["a"]),
    )
    return op, (x(), {"a": x(Y)})


# ---------------------------------------------------------------------- alias


@wrong("alias", "view of `x`")
def returns_a_view(lib: Library) -> Any:
    return operator(lib, "f(Tensor x) -> Tensor", lambda x: x[...], fake=like("x")), (x(),)


@wrong("alias", "`x` itself")
def returns_its_input_when_the_dtype_fits(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: x.astype(np.float32, order="C", copy=False),
        fake=lambda x: TensorSpec(x.shape, np.dtype("float32")),
    )
    return op, (x(),)


@wrong("alias", "view of `x`")
def returns_a_view_when_no_padding_is_needed(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        if x.ndim == 0 or x.shape[-1] % 2 == 0:
            return x[...]
        return np.ascontiguousarray(np.concatenate([x, np.zeros_like(x[..., :1])], axis=-1))

    def fake(x: Any) -> Any:
        last = () if x.ndim == 0 else (x.shape[-1] + x.shape[-1] % 2,)
        return TensorSpec((*x.shape[:-1], *last), x.dtype)

    return operator(lib, "f(Tensor x) -> Tensor", kernel, fake=fake), (x(S),)


@wrong("alias", "shares memory with result 0")
def two_results_share_memory(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        result = x + x
        return result, result[...]

    op = operator(
        lib,
        "f(Tensor x) -> (Tensor, Tensor)",
        kernel,
        fake=lambda x: (like_spec(x), like_spec(x)),
    )
    return op, (x(),)


@wrong("alias", "shares memory with result 0")
def two_elements_of_a_list_share_memory(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        result = x + x
        return [result, result[...]]

    op = operator(
        lib,
        "f(Tensor x) -> Tensor[]",
        kernel,
        fake=lambda x: [like_spec(x), like_spec(x)],
    )
    return op, (x(),)


@wrong("alias", "the next call returns again", "threads")
def returns_its_work_buffer_every_time(lib: Library) -> Any:
    buffers: dict[Any, Any] = {}

    def kernel(x: Any) -> Any:
        work = buffers.setdefault((x.shape, x.dtype.str), np.empty(x.shape, x.dtype))
        np.add(x, x, out=work)
        return work

    fake = lambda x: TensorSpec(x.shape, x.dtype)  # noqa: E731
    return operator(lib, "f(Tensor x) -> Tensor", kernel, fake=fake), (x(),)


@wrong("alias", "is a copy")
def copies_for_some_layouts(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor(a) x) -> Tensor(a)",
        lambda x: x.reshape(-1),
        fake=lambda x: oplib.reshape(x, [-1]),
    )
    return op, (x(),)


@wrong("alias", "is declared a view of `x`", "fake", "functional", "layout")
def returns_a_view_of_the_other_argument(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor(a) x, Tensor y) -> Tensor(a)",
        lambda x, y: y[...],
        fake=lambda x, y: oplib.alias(x),
    )
    return op, (x(), x(Y))


# ---------------------------------------------------------------------- fake


@wrong("fake", "wrong shape", "layout")
def fake_of_a_fixed_size(lib: Library) -> Any:
    return doubled(lib, lambda x: x + x, fake=lambda x: TensorSpec((3, 4), x.dtype)), (x(),)


@wrong("fake", "wrong shape")
def fake_that_swaps_dimensions(lib: Library) -> Any:
    fake = lambda x: TensorSpec(x.shape[::-1], x.dtype)  # noqa: E731
    return doubled(lib, lambda x: np.ascontiguousarray(x + x), fake=fake), (x(S),)


@wrong("fake", "wrong dtype", "dtypes")
def fake_of_another_dtype(lib: Library) -> Any:
    op = operator(lib, "f(Tensor x) -> Tensor", lambda x: x.astype(np.float64), fake=like("x"))
    return op, (x(X.astype(np.float32)),)


@wrong("dtypes", "wrong dtype")
def fake_right_for_floats_only(lib: Library) -> Any:
    return operator(lib, "f(Tensor x) -> Tensor", lambda x: np.asarray(x / 2), fake=like("x")), (
        x(),
    )


@wrong("fake", "wrong strides")
def fake_contiguous_for_a_transposed_result(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: np.asfortranarray(x + x),
        fake=lambda x: TensorSpec(x.shape, x.dtype),
    )
    return op, (x(),)


@wrong("layout", "wrong strides")
def fake_right_for_contiguous_inputs_only(lib: Library) -> Any:
    return doubled(lib, lambda x: x + x, fake=lambda x: TensorSpec(x.shape, x.dtype)), (x(),)


@wrong("fake", "wrong shape")
def fake_wrong_for_no_elements(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        return x + x if x.size else np.zeros((0,), x.dtype)

    return operator(lib, "f(Tensor x) -> Tensor", kernel, fake=like("x")), (x(),)


@wrong("fake", "wrong shape")
def fake_that_keeps_what_squeeze_drops(lib: Library) -> Any:
    kernel = lambda x: np.squeeze(x + x)  # noqa: E731
    return operator(lib, "f(Tensor x) -> Tensor", kernel, fake=like("x")), (x(),)


@wrong("fake", "wrong shape", "layout")
def fake_that_ignores_broadcasting(lib: Library) -> Any:
    op = operator(lib, "f(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y, fake=like("x"))
    return op, (x(), x(Y))


@wrong("fake", "is its argument")
def fake_that_returns_its_input(lib: Library) -> Any:
    return doubled(lib, lambda x: x + x, fake=lambda x: x), (x(),)


@wrong("fake", "answers differently", "dtypes")
def fake_that_counts_its_calls(lib: Library) -> Any:
    count = itertools.count()

    def fake(x: Any) -> Any:
        odd = next(count) % 2
        return TensorSpec(x.shape, np.dtype("float32") if odd else x.dtype)

    kernel = lambda x: np.array(x + x, order="C")  # noqa: E731
    return operator(lib, "f(Tensor x) -> Tensor", kernel, fake=fake), (x(),)


@wrong("fake", "the rule reads a value")
def fake_that_reads_a_value(lib: Library) -> Any:
    def fake(x: Any) -> Any:
        return like_spec(x, x.dtype if x.sum() > 0 else None)

    return operator(lib, "f(Tensor x) -> Tensor", lambda x: x + x, fake=fake), (x(),)


def nonzero(lib: Library, **bounds: Any) -> Any:
    def fake(x: Any) -> Any:
        return TensorSpec((oplib.get_ctx().new_dynamic_size(**bounds),), x.dtype)

    return operator(lib, "f(Tensor x) -> Tensor", lambda x: x[x > 0], fake=fake), (x(),)


@wrong("fake", "new_dynamic_size(min=1")
def fake_whose_least_size_is_too_large(lib: Library) -> Any:
    return nonzero(lib, min=1)


@wrong("fake", "max=2")
def fake_whose_largest_size_is_too_small(lib: Library) -> Any:
    return nonzero(lib, max=2)


@wrong("fake", "accepts a call that the kernel refuses")
def fake_that_accepts_too_much(lib: Library) -> Any:
    op = operator(lib, "f(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y, fake=like("x"))
    return op, (x(np.ones(3)), x(np.ones(3)))


@wrong("fake", "the rule raises where the kernel works")
def fake_that_refuses_too_much(lib: Library) -> Any:
    def fake(x: Any) -> Any:
        if x.ndim != 2:
            raise ValueError("x must be a matrix")
        return like_spec(x)

    op = operator(lib, "f(Tensor x) -> Tensor", lambda x: np.array(x + x, order="K"), fake=fake)
    return op, (x(),)


@wrong("fake", "wrong kind of result")
def fake_of_a_tensor_where_there_is_none(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x, bool full=True) -> (Tensor, Tensor?)",
        lambda x, full=True: (x + x, x * x if full else None),
        fake=lambda x, full=True: (like_spec(x), like_spec(x)),
    )
    return op, (x(),)


@wrong("fake", "wrong value")
def fake_of_a_wrong_integer(lib: Library) -> Any:
    op = operator(lib, "f(Tensor x) -> int", lambda x: x.ndim, fake=lambda x: 7)
    return op, (x(),)


@wrong("fake", "has no fake rule")
def no_fake_rule(lib: Library) -> Any:
    op = operator(lib, "f(Tensor x) -> Tensor", lambda x: x + x, vjp=linear(2.0))
    return op, (x(),)


# ---------------------------------------------------------------------- gradient


def pair(rule: Callable[..., Any]) -> Callable[..., Any]:
    def fused(grad: Any, x: Any, y: Any) -> Any:
        g, a, b = (t.detach().numpy() for t in (grad, x, y))
        return tuple(tensor(part) for part in rule(g, a, b))

    return fused


def product(lib: Library, **vjp: Any) -> Any:
    return operator(
        lib,
        "f(Tensor x, Tensor y) -> Tensor",
        np.multiply,
        fake=broadcast("x", "y"),
        vjp={
            "x": lambda grad, y: grad * oplib.conj(y),
            "y": lambda grad, x: grad * oplib.conj(x),
            **vjp,
        },
    )


@wrong("gradient", "off by the factor 3/2")
def gradient_off_by_a_factor(lib: Library) -> Any:
    return product(lib, x=lambda grad, y: 1.5 * grad * oplib.conj(y)), (x(), x(Y))


@wrong("gradient", "this looks like the JVP", "second_gradient")
def gradient_without_the_transpose(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x, Tensor w) -> Tensor",
        np.matmul,
        fake=lambda x, w: TensorSpec(oplib.matmul(x, w).shape, np.result_type(x.dtype, w.dtype)),
        vjp={
            "x": lambda grad, w: oplib.matmul(grad, w),
            "w": lambda grad, x: oplib.matmul(x.swapaxes(-1, -2), grad),
        },
    )
    return op, (x(S), x(S + 1))


@wrong("gradient", "the mean over 3 elements")
def gradient_that_takes_the_mean(lib: Library) -> Any:
    op = product(lib, y=lambda grad, x: (grad * x).mean([0]))
    return op, (x(), x(Y[0]))


@wrong("gradient", "a conjugate is missing")
def gradient_without_conjugate(lib: Library) -> Any:
    return product(lib, x=lambda grad, y: grad * y), (x(Z), x(Z + 1))


@wrong("gradient", "off by the factor 1/2: the gradient is dL/dRe")
def half_the_gradient_of_a_complex_abs(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        np.abs,
        fake=lambda x: TensorSpec.of(oplib.abs(x)),
        vjp={"x": lambda grad, x: 0.5 * grad * x / oplib.abs(x)},
    )
    return op, (x(Z),)


@wrong("gradient", "disagree with differences")
def gradient_of_one_path_only(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: x * x * x,
        fake=like("x"),
        vjp={"x": lambda grad, x: grad * x * x},
    )
    return op, (x(),)


@wrong("gradient", "the contribution of result 1")
def gradient_of_the_first_result_only(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x) -> (Tensor, Tensor)",
        lambda x: (x + x, x * x),
        fake=lambda x: (like_spec(x), like_spec(x)),
        vjp={"x": lambda grads: grads[0] * 2},
    )
    return op, (x(),)


@wrong("gradient", "only x needing a gradient")
def gradient_swapped_when_one_argument_needs_it(lib: Library) -> Any:
    def rule(grad: Any, x: Any, y: Any, needs_input_grad: Any) -> Any:
        if all(needs_input_grad):
            return grad * y, grad * x
        return grad * x, grad * y

    op = operator(
        lib,
        "f(Tensor x, Tensor y) -> Tensor",
        np.multiply,
        fake=broadcast("x", "y"),
        vjp=rule,
    )
    return op, (x(), x(Y))


@wrong("gradient", "np.add.at", "second_gradient")
def gradient_that_adds_at_repeated_indices(lib: Library) -> Any:
    def backward(grad: Any, x: Any, index: Any) -> Any:
        g = np.zeros(x.shape)
        g[index] += grad
        return g

    rule = wrap(backward)
    op = operator(
        lib,
        "f(Tensor x, Tensor index) -> Tensor",
        lambda x, index: x[index],
        fake=lambda x, index: TensorSpec((*index.shape, *x.shape[1:]), x.dtype),
        vjp={"x": lambda grad, x, index: rule(grad, x, index), "index": None},
    )
    return op, (x(), tensor([0, 2, 2]))


@wrong("gradient", "incoming gradient that is read-only", "second_gradient")
def backward_that_writes_the_incoming_gradient(lib: Library) -> Any:
    def rule(grad: Any) -> Any:
        array = grad.detach().numpy()
        array *= 2
        return grad

    return doubled(lib, lambda x: x + x, vjp={"x": rule}), (x(),)


@wrong("gradient", "layout of the incoming gradient", "second_gradient")
def backward_for_contiguous_gradients_only(lib: Library) -> Any:
    rule = wrap(lambda grad: 2 * grad.ravel("K").reshape(grad.shape))
    return doubled(lib, lambda x: x + x, vjp={"x": lambda grad: rule(grad)}), (x(),)


@wrong("gradient", "another forward before the backward", "second_gradient")
def backward_that_reads_a_global(lib: Library) -> Any:
    saved: dict[str, Any] = {}

    def kernel(x: Any) -> Any:
        saved["x"] = x.copy()
        return x * x

    rule = wrap(lambda grad, x: grad * 2 * saved["x"])
    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        kernel,
        fake=like("x"),
        vjp={"x": lambda grad, x: rule(grad, x)},
    )
    return op, (x(),)


@wrong("gradient", "the new value of `x`", "second_gradient")
def in_place_rule_of_the_new_value(lib: Library) -> Any:
    def kernel(x: Any) -> None:
        np.square(x, out=x)

    op = operator(
        lib,
        "f(Tensor(a!) x) -> Tensor(a!)",
        kernel,
        vjp={"x": lambda grad, new_x: grad * 2 * new_x},
    )
    return op, (x(),)


# ---------------------------------------------------------------------- second gradient


@wrong("second_gradient", "saved intermediate")
def saves_an_intermediate(lib: Library) -> Any:
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.slope = 3 * inputs[0].detach().numpy() ** 2

    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: x * x * x,
        fake=like("x"),
        backward=lambda ctx, grad: grad * tensor(ctx.slope),
        setup=setup,
    )
    return op, (x(),)


@wrong("second_gradient", "a value was detached")
def backward_in_numpy(lib: Library) -> Any:
    rule = wrap(lambda grad, x: grad * 2 * x)
    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: x * x,
        fake=like("x"),
        vjp={"x": lambda grad, x: rule(grad, x)},
    )
    return op, (x(),)


# ---------------------------------------------------------------------- functional


@wrong("functional", "the functional twin computes something else")
def wrong_functional_twin(lib: Library) -> Any:
    def kernel(x: Any) -> None:
        x += 1

    op = operator(lib, "f(Tensor(a!) x) -> Tensor(a!)", kernel)
    oplib.register_functional(op, lambda x: x + 1.5, lib=lib)
    return op, (x(),)


# ---------------------------------------------------------------------- determinism


@wrong("determinism", "is drawn from")
def draws_without_the_effect(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x, Generator g) -> Tensor",
        lambda x, g: np.ascontiguousarray(x + g.standard_normal(x.shape)).astype(x.dtype),
        fake=lambda x, g: TensorSpec(x.shape, x.dtype),
        effects=(),
    )
    return op, (x(), np.random.default_rng(3))


@wrong("determinism", "at equal inputs", "schema", "gradient", "functional")
def uses_the_global_generator(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        noise = np.random.standard_normal(x.shape)
        return np.ascontiguousarray(x + x + noise).astype(x.dtype)

    return doubled(lib, kernel, fake=lambda x: TensorSpec(x.shape, x.dtype)), (x(),)


@wrong("determinism", "at equal inputs", "schema", "gradient", "functional")
def depends_on_a_counter(lib: Library) -> Any:
    count = itertools.count()
    return doubled(lib, lambda x: (x + x + next(count)).astype(x.dtype)), (x(),)


@wrong("determinism", "caches by identity")
def caches_by_identity(lib: Library) -> Any:
    cache: dict[int, Any] = {}

    def kernel(x: Any) -> Any:
        if cache.get("x") is not x:
            cache["x"], cache["result"] = x, x + x
        return cache["result"].copy(order="K")

    return doubled(lib, kernel), (x(),)


@wrong("determinism", "caches by shape")
def caches_by_shape(lib: Library) -> Any:
    cache: dict[Any, Any] = {}

    def kernel(x: Any) -> Any:
        return cache.setdefault((x.shape, x.dtype.str), x + x).copy(order="C")

    fake = lambda x: TensorSpec(x.shape, x.dtype)  # noqa: E731
    return operator(lib, "f(Tensor x) -> Tensor", kernel, fake=fake), (x(),)


@wrong("determinism", "np.geterr()")
def leaves_seterr_changed(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        np.seterr(under="call")
        return x + x

    return doubled(lib, kernel), (x(),)


@wrong("determinism", "NumPy's global random state")
def seeds_the_global_generator(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        np.random.seed(0)
        return x + x

    return doubled(lib, kernel), (x(),)


# ---------------------------------------------------------------------- schema


@wrong("schema", "returned None for Tensor")
def returns_none_in_one_branch(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x, bool flag=True) -> Tensor",
        lambda x, flag=True: x + x if flag else None,
        fake=lambda x, flag=True: like_spec(x),
    )
    return op, (x(),)


@wrong("schema", "returned tuple")
def returns_a_tuple_in_one_branch(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x, bool flag=True) -> Tensor",
        lambda x, flag=True: x + x if flag else (x + x,),
        fake=lambda x, flag=True: like_spec(x),
    )
    return op, (x(),)


@wrong("schema", "returned float")
def returns_a_float_for_an_int(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x, bool flag=True) -> int",
        lambda x, flag=True: x.ndim if flag else x.ndim + 0.5,
        fake=lambda x, flag=True: x.ndim,
    )
    return op, (x(),)


# ---------------------------------------------------------------------- layouts


def c_order(x: Any) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype)


@wrong("layout", "differs with these strides", "functional", "gradient", "second_gradient")
def reads_the_buffer_in_memory_order(lib: Library) -> Any:
    return doubled(lib, lambda x: np.add(*[x.ravel("K").reshape(x.shape)] * 2), fake=c_order), (
        x(),
    )


@wrong("layout", "differs with these strides", "functional", "gradient", "second_gradient")
def wrong_for_reversed_input(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        same = all(step >= 0 for step in x.strides)
        return np.array(x + x if same else x + x + x, order="C")

    return doubled(lib, kernel, fake=c_order), (x(),)


@wrong("layout", "what is written differs", "mutation", "functional")
def loses_what_it_writes_to_a_copy(lib: Library) -> Any:
    def kernel(x: Any, *, out: Any) -> None:
        out.ravel()[...] = x.ravel() * 2

    made = operator(lib, "f(Tensor x, *, Tensor(a!) out) -> ()", kernel)
    return made, (x(),), {"out": tensor(np.zeros((3, 4)))}


# ---------------------------------------------------------------------- arguments, kernels, threads


@wrong("arguments", "crashes instead of working", "fake")
def fails_without_its_optional_argument(lib: Library) -> Any:
    made = operator(
        lib,
        "f(Tensor x, Tensor? y=None) -> Tensor",
        lambda x, y: x + x if y.ndim >= 0 else x,
        fake=like("x"),
        vjp={"x": lambda grad: grad * 2, "y": None},
    )
    return made, (x(), x(Y))


@wrong("arguments", "crashes instead of working")
def fails_for_an_empty_list(lib: Library) -> Any:
    def rule(xs: Any) -> Any:
        return like_spec(xs[0])

    made = operator(lib, "f(Tensor[] xs) -> Tensor", lambda xs: xs[0] + xs[0], fake=rule)
    return made, ([x()],)


@wrong("providers", "when provider 'fast' computes it")
def a_provider_is_wrong_in_the_tail_of_odd_sizes(lib: Library) -> Any:
    def fast(x: Any) -> Any:
        result = x + x
        result[..., result.shape[-1] // 2 * 2 :] = 0
        return result

    made = doubled(lib, lambda x: x + x)
    made.register_kernel("cpu", fast, provider="fast", priority=-1, supports=lambda x: x.ndim > 0)
    return made, (x(),)


@wrong("threads", "while threads run it")
def shares_scratch_memory_between_threads(lib: Library) -> Any:
    scratch: dict[Any, Any] = {}

    def kernel(x: Any) -> Any:
        work = scratch.setdefault((x.shape, x.dtype), np.empty(x.shape, x.dtype))
        work[...] = x
        time.sleep(0)  # another thread may run now
        return work + work

    return doubled(lib, kernel, fake=c_order), (x(),)


@wrong("pickle", "a captured program: pickled raises", "functional")
def takes_what_cannot_be_pickled(lib: Library) -> Any:
    class Mode(Enum):  # defined in a function, so pickle cannot find it
        ONLY = 1

    oplib.register_opaque_type(Mode, "tests.LocalMode")
    op = operator(
        lib,
        "f(Tensor x, tests.LocalMode mode) -> Tensor",
        lambda x, mode: x + x,
        fake=lambda x, mode: like_spec(x),
    )
    return op, (x(), Mode.ONLY)
