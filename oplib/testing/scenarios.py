"""Small programs around one call, where aliasing matters.

A `Scenario` is a function of tensors that calls the subject, and arguments for it: on views of an
input, on transposed memory, twice in a row, with written arguments that overlap others.

Imports floors 0 to 7, `calls.py`. Read next: `checks/functional.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .._tree import flatten, unflatten
from ..dispatch.registry import get_op
from ..tensor.tensor import Tensor, tensor_from_array
from .calls import Call

__all__ = ["Scenario", "scenarios"]

Body: TypeAlias = Callable[["Caller", list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A program: a function of leaves, and what to call it with."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]


@dataclass(frozen=True)
class Caller:
    """Calls the subject with the arguments of a call, its leaves replaced."""

    call: Call

    def __call__(self, values: Sequence[Any]) -> Any:
        """Return the result for new leaves, in order."""
        structure = flatten((self.call.args, dict(self.call.kwargs)))[1]
        args, kwargs = unflatten(structure, iter(values))
        return self.call.subject.function(*args, **kwargs)


def scenarios(call: Call) -> Iterator[Scenario]:
    """Yield the programs made of one call."""
    caller = Caller(call)
    values = flatten((call.args, dict(call.kwargs)))[0]

    def program(name: str, body: Body, inputs: Sequence[Any] = values) -> Scenario:
        return Scenario(name, lambda *given: body(caller, list(given)), tuple(inputs))

    yield program("the call itself", lambda f, xs: f(xs))
    yield program("twice in a row", lambda f, xs: (f(xs), f(xs)))
    yield program("its first result unused", _unused)
    padded = [_padded(v) if isinstance(v, Tensor) else v for v in values]
    yield program("on views of its inputs", _on_views, padded)
    if any(isinstance(v, Tensor) and v.ndim > 1 for v in values):
        yield program("on transposed memory", _on_transposed)
    if call.written():
        yield program("followed by reads of bases and views", _reads_after, padded)
        yield from _overlapping(call, program, values)


def _unused(caller: Caller, values: list[Any]) -> Any:
    caller(values)
    return caller(values)


# ---------------------------------------------------------------------- views


def _padded(tensor: Tensor) -> Tensor:
    """Return a tensor with one more element at either end of the first axis."""
    array = tensor.array
    if not array.ndim:
        return tensor_from_array(np.array([array, array, array]))
    made = np.ones((array.shape[0] + 2, *array.shape[1:]), array.dtype)
    made[1:-1] = array
    return tensor_from_array(made)


def _inner(call: Call, values: list[Any]) -> list[Any]:
    """Return views of the middle of padded tensors, shaped as the call's own."""
    given = flatten((call.args, dict(call.kwargs)))[0]
    return [
        (v[1:-1] if t.ndim else v[1]) if isinstance(v, Tensor) else v
        for v, t in zip(values, given, strict=True)
    ]


def _on_views(caller: Caller, values: list[Any]) -> Any:
    return caller(_inner(caller.call, values))


def _on_transposed(caller: Caller, values: list[Any]) -> Any:
    swap = get_op("std::swapaxes")
    fresh = get_op("std::clone")
    turned = [
        swap(fresh(swap(v, -1, -2)), -1, -2) if isinstance(v, Tensor) and v.ndim > 1 else v
        for v in values
    ]
    return caller(turned), [t for t in turned if isinstance(t, Tensor)]


def _reads_after(caller: Caller, values: list[Any]) -> Any:
    fresh = get_op("std::clone")
    bases = [fresh(v) if isinstance(v, Tensor) else v for v in values]
    views = _inner(caller.call, bases)
    result = caller(views)
    read = [fresh(t) for t in (*bases, *views) if isinstance(t, Tensor)]
    return result, read


# ---------------------------------------------------------------------- overlaps


def _overlapping(
    call: Call, program: Callable[..., Scenario], values: list[Any]
) -> Iterator[Scenario]:
    """Yield programs in which a written argument and another one lie in one buffer."""
    written = {id(t) for _, t in call.written()}
    places = [i for i, v in enumerate(values) if isinstance(v, Tensor)]
    targets = [i for i in places if id(values[i]) in written]
    for target in targets[:1]:
        twins = [
            i
            for i in places
            if i != target
            and values[i].shape == values[target].shape
            and values[i].dtype == values[target].dtype
        ]
        for twin in twins[:1]:
            yield program("the written tensor also read", _same(target, twin))
            if values[target].ndim and values[target].shape[0] > 1:
                for name, shift in (("disjoint", values[target].shape[0]), ("overlapping", 1)):
                    buffer = np.ones(
                        (values[target].shape[0] + shift, *values[target].shape[1:]),
                        values[target].dtype,
                    )
                    buffer[: values[target].shape[0]] = values[target].array
                    inputs = list(values)
                    inputs[target] = tensor_from_array(buffer)
                    body = _two_views(target, twin, shift, values[target].shape[0])
                    yield program(f"two {name} slices of one tensor", body, inputs)


def _same(target: int, twin: int) -> Body:
    def body(caller: Caller, values: list[Any]) -> Any:
        values[twin] = values[target]
        return caller(values)

    return body


def _two_views(target: int, twin: int, shift: int, length: int) -> Body:
    def body(caller: Caller, values: list[Any]) -> Any:
        base = values[target]
        values[target] = base[:length]
        values[twin] = base[shift : shift + length]
        return caller(values)

    return body
