"""Operators that are right, in ways a checker could mistake for wrong: none of them may fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import oplib
from oplib import Library
from oplib.shapes import TensorSpec, broadcast, like, like_spec
from tests.testing.helpers import operator, tensor

__all__ = ["RIGHT"]

rng = np.random.default_rng(5)
X = rng.standard_normal((3, 4))
Y = rng.standard_normal((3, 4))

RIGHT: dict[str, Callable[[Library], Any]] = {}


def right(make: Callable[[Library], Any]) -> Callable[[Library], Any]:
    """Enter a function that makes an operator, the arguments of one call, and options."""
    RIGHT[make.__name__] = make
    return make


def x(array: Any = X) -> Any:
    return oplib.from_numpy(np.array(array))


FLOATS = {"dtypes": ("float32", "float64")}


@right
def results_with_nan_and_infinity(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.where(x > 0, np.inf, np.log(x))

    op = operator(lib, "f(Tensor x) -> Tensor", kernel, fake=like("x"), entry=FLOATS)
    return op, (x(),)


@right
def the_same_empty_array_twice(lib: Library) -> Any:
    empty = np.zeros((0,))
    op = operator(
        lib,
        "f(Tensor x) -> (Tensor, Tensor)",
        lambda x: (empty, empty),
        fake=lambda x: (TensorSpec((0,), np.dtype("float64")),) * 2,
    )
    return op, (x(),)


@right
def integer_and_bool_results(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x) -> (Tensor, Tensor, int)",
        lambda x: (np.array(x.ndim), np.ascontiguousarray(x > 0), x.ndim),
        fake=lambda x: (
            TensorSpec((), np.dtype("int64")),
            TensorSpec(x.shape, np.dtype("bool")),
            x.ndim,
        ),
        vjp={"x": None},
    )
    return op, (x(),)


@right
def a_size_that_depends_on_data(lib: Library) -> Any:
    def fake(x: Any) -> Any:
        return TensorSpec((oplib.get_ctx().new_dynamic_size(),), x.dtype)

    return operator(lib, "f(Tensor x) -> Tensor", lambda x: x[x > 0], fake=fake), (x(),)


@right
def scalars_only(lib: Library) -> Any:
    def kernel(x: Any) -> Any:
        if x.ndim:
            raise ValueError("x is a scalar")
        return x * x

    def fake(x: Any) -> Any:
        if x.ndim:
            raise ValueError("x is a scalar")
        return like_spec(x)

    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        kernel,
        fake=fake,
        vjp={"x": lambda grad, x: grad * 2 * oplib.conj(x)},
    )
    return op, (x(1.5),)


@right
def forty_six_arguments(lib: Library) -> Any:
    names = [f"a{i}" for i in range(44)]
    schema = f"f(Tensor x, {', '.join(f'int {n}=0' for n in names)}, Tensor? y=None) -> Tensor"
    op = operator(
        lib,
        schema,
        eval(f"lambda x, {', '.join(names)}, y: x + x"),
        fake=eval(f"lambda x, {', '.join(names)}, y: like(x)", {"like": like_spec}),
    )
    return op, (x(),), {}, {"time_limit": 1.0}


@right
def no_arguments(lib: Library) -> Any:
    return operator(lib, "f() -> int", lambda: 3, fake=lambda: 3), ()


@right
def random_with_a_generator(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x, Generator g) -> Tensor",
        lambda x, g: np.ascontiguousarray(x + g.standard_normal(x.shape)).astype(x.dtype),
        fake=lambda x, g: TensorSpec(x.shape, x.dtype),
    )
    return op, (x(), np.random.default_rng(3))


@right
def tagged_nondeterministic(lib: Library) -> Any:
    noise = np.random.default_rng(1)
    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: np.ascontiguousarray(x + noise.standard_normal(x.shape)).astype(x.dtype),
        fake=lambda x: TensorSpec(x.shape, x.dtype),
        tags="nondeterministic",
    )
    return op, (x(),)


@right
def an_effect_and_no_result(lib: Library) -> Any:
    seen: list[Any] = []
    return operator(lib, "f(Tensor x) -> ()", lambda x: seen.append(x.shape)), (x(),)


@right
def tensors_in_a_dict_and_a_tuple(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Dict(str, Tensor?[]) d, (Tensor, int) pair) -> Tensor",
        lambda d, pair: np.array(pair[0] + pair[0]),
        fake=lambda d, pair: like_spec(pair[0]),
    )
    return op, ({"a": [x(), None], "b": []}, (x(Y), 2))


@right
def in_place_returning_its_argument(lib: Library) -> Any:
    def kernel(x: Any) -> None:
        np.add(x, x, out=x)

    op = operator(lib, "f(Tensor(a!) x) -> Tensor(a!)", kernel, vjp={"x": lambda grad: grad * 2})
    return op, (x(),)


@right
def in_place_without_a_gradient_rule(lib: Library) -> Any:
    def kernel(x: Any, y: Any) -> None:
        x[...] = y

    def fits(x: Any, y: Any) -> None:
        np.broadcast_shapes(x.shape, y.shape)

    op = operator(lib, "f(Tensor(a!) x, Tensor y) -> Tensor(a!)", kernel, entry=FLOATS)
    return op, (x(), x(Y))


@right
def a_functional_twin(lib: Library) -> Any:
    def kernel(x: Any, y: Any) -> None:
        x += y

    op = operator(lib, "f(Tensor(a!) x, Tensor y) -> ()", kernel, entry=FLOATS)
    oplib.register_functional(op, lambda x, y: x + y, pre_state=True, lib=lib)
    return op, (x(), x(Y))


@right
def a_view(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor(a) x) -> Tensor(a)",
        lambda x: x[..., ::-1] if x.ndim else x[...],
        fake=lambda x: oplib.flip(x, [-1]) if x.ndim else oplib.alias(x),
    )
    return op, (x(),)


@right
def an_optional_that_is_written(lib: Library) -> Any:
    def kernel(x: Any, y: Any = None) -> Any:
        if y is not None:
            y += 1
        return x + x

    op = operator(
        lib,
        "f(Tensor x, Tensor(a!)? y=None) -> Tensor",
        kernel,
        fake=lambda x, y=None: like_spec(x),
        entry=FLOATS,
    )
    return op, (x(),)


@right
def an_out_argument(lib: Library) -> Any:
    def kernel(x: Any, *, out: Any) -> None:
        np.add(x, x, out=out)

    op = operator(lib, "f(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", kernel, entry=FLOATS)
    return op, (x(),), {"out": x(np.zeros_like(X))}


@right
def a_contiguous_entry(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape) + x,
        fake=lambda x: TensorSpec(x.shape, x.dtype),
        entry={"contiguous": True},
        vjp={"x": lambda grad: grad * 2},
    )
    return op, (x(),)


@right
def single_precision_only(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        np.sin,
        fake=like("x"),
        entry={"dtypes": "float32"},
        vjp={"x": lambda grad, x: grad * oplib.cos(x)},
    )
    return op, (x(X.astype(np.float32)),)


@right
def relu_abs_and_max(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: np.maximum(x, 0) + np.abs(x),
        fake=like("x"),
        entry=FLOATS,
        vjp={"x": lambda grad, x: grad * (oplib.sign(x) + oplib.sign(oplib.relu(x)))},
    )
    return op, (x(),)


@right
def an_inverse_near_singular(lib: Library) -> Any:
    def shape(x: Any) -> None:
        if x.ndim < 2 or x.shape[-1] != x.shape[-2] or not x.shape[-1]:
            raise ValueError("x must be square")

    def kernel(x: Any) -> Any:
        shape(x)
        return np.ascontiguousarray(np.linalg.inv(x))

    def fake(x: Any) -> Any:
        shape(x)
        return TensorSpec(x.shape, x.dtype)

    def rule(grad: Any, out: Any) -> Any:
        turned = out.swapaxes(-1, -2)
        return -(turned @ grad @ turned)

    op = operator(lib, "f(Tensor x) -> Tensor", kernel, fake=fake, vjp={"x": rule}, entry=FLOATS)
    near = np.eye(3) + 1.0
    near[2] = near[1] + [0, 0, 1e-3]
    return op, (x(near),), {}, {"samples": 0}


@right
def eigenvectors_up_to_sign(lib: Library) -> Any:
    flip = [1]

    def kernel(x: Any) -> Any:
        flip[0] = -flip[0]
        return np.ascontiguousarray(np.linalg.eigh(x).eigenvectors * flip[0])

    op = operator(lib, "f(Tensor x) -> Tensor", kernel, fake=lambda x: TensorSpec(x.shape, x.dtype))

    def up_to_sign(actual: Any, expected: Any, where: Any) -> str | None:
        signs = np.sign((actual.numpy() * expected.numpy()).sum(axis=-2, keepdims=True))
        close = np.allclose(actual.numpy() * signs, expected.numpy())
        return None if close else "eigenvectors differ"

    options = {"compare": up_to_sign, "samples": 0, "checks": ("schema", "fake", "mutation")}
    return op, (x(X.T @ X),), {}, options


@right
def one_that_reads_its_indices(lib: Library) -> Any:
    def kernel(x: Any, index: Any) -> Any:
        return np.ascontiguousarray(x[index])

    op = operator(
        lib,
        "f(Tensor x, Tensor index) -> Tensor",
        kernel,
        fake=lambda x, index: TensorSpec((*index.shape, *x.shape[1:]), x.dtype),
        vjp={"x": _scattered, "index": None},
    )
    return op, (x(), tensor([0, 2, 2])), {}, {"checks": ("schema", "mutation", "gradient")}


def _scattered(grad: Any, x_spec: Any, index: Any) -> Any:
    made = np.zeros(x_spec.shape, x_spec.dtype)
    np.add.at(made, index.numpy(), grad.detach().numpy())
    return tensor(made)


@right
def an_integer_without_a_fake_rule(lib: Library) -> Any:
    return operator(lib, "f(Tensor x) -> int", lambda x: x.ndim), (x(),)


@right
def broadcasting(lib: Library) -> Any:
    op = operator(
        lib,
        "f(Tensor x, Tensor y) -> Tensor",
        np.multiply,
        fake=broadcast("x", "y"),
        vjp={
            "x": lambda grad, y: grad * oplib.conj(y),
            "y": lambda grad, x: grad * oplib.conj(x),
        },
    )
    return op, (x(), x(Y[0]))
