"""`Problem`: a function of tensors at a point, as a gradient check sees it.

It can be evaluated at a nearby point, and linearized: run with gradients recorded, so that incoming
gradients can be pulled back. `derivative` makes the problem of the next order: the gradient as a
function of the inputs and of the incoming gradients.

Every evaluation gets arrays, tensors and random generators of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from .._text import function_site
from .._tree import flatten, leaf_paths, leaves, unflatten
from ..autograd.general_grad import grad
from ..dispatch.facets import GRADIENT
from ..dispatch.gradient_rule import return_names
from ..dispatch.operator import Operator
from ..dispatch.packet import OperatorPacket
from ..dtypes import is_inexact
from ..errors import ArgumentError
from ..tensor.tensor import Tensor, tensor_from_array
from .compare import Array
from .space import Space, like_layout

__all__ = ["Linearization", "Problem", "call_problem", "derivative", "upcast_dtype"]


Forward: TypeAlias = Callable[[list[Tensor]], list[Tensor]]


@dataclass(frozen=True, slots=True)
class Linearization:
    """One recorded run: the inputs and results, connected by a graph."""

    inputs: list[Tensor]
    outputs: list[Tensor]

    def pull_back(self, seeds: Sequence[Array | None]) -> list[Array | None]:
        """Return the gradients of the inputs for one incoming gradient per result, or None."""
        pairs = [
            (output, tensor_from_array(seed))
            for output, seed in zip(self.outputs, seeds, strict=True)
            if seed is not None and output.requires_grad
        ]
        if not pairs:
            return [None] * len(self.inputs)
        outputs, incoming = map(list, zip(*pairs, strict=True))
        found = grad(outputs, self.inputs, incoming, retain_graph=True, allow_unused=True)
        return [None if g is None else g.array for g in found]


@dataclass(frozen=True)
class Problem:
    """A function and the point at which it is looked at."""

    name: str
    site: str
    forward: Forward
    domain: Space
    point: tuple[Array, ...]
    result_name: Callable[[int], str]
    indices: tuple[Array, ...] = ()
    order: int = 1
    runs: dict[str, int] = field(default_factory=lambda: {"evaluations": 0, "backward runs": 0})

    def evaluate(self, point: Sequence[Array]) -> list[Array]:
        """Return the results at a point, without recording."""
        self.runs["evaluations"] += 1
        tensors = [tensor_from_array(array) for array in self.layouts(point)]
        return [t.array for t in self.forward(tensors)]

    def linearize(self, point: Sequence[Array]) -> Linearization:
        """Return a recorded run at a point."""
        tensors = [tensor_from_array(array).requires_grad_() for array in self.layouts(point)]
        return Linearization(tensors, self.forward(tensors))

    def layouts(self, point: Sequence[Array]) -> Iterator[Array]:
        """Yield fresh copies of a point's arrays, laid out in memory as the given ones."""
        return (like_layout(x, given) for x, given in zip(point, self.point, strict=True))

    def codomain(self, values: Sequence[Any]) -> Space:
        """Return the space of the results."""
        return Space.of((self.result_name(i), value) for i, value in enumerate(values))


# ---------------------------------------------------------------------- from a call


def upcast_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the double precision dtype of the same kind, or the dtype if it is not inexact."""
    if not is_inexact(dtype):
        return dtype
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def call_problem(
    function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], upcast: bool
) -> Problem:
    """Return the problem of ``function(*args, **kwargs)`` in its tensors that require grad."""
    found, structure = flatten([list(args), dict(kwargs)])
    names = list(_argument_names(function, args, kwargs))
    convert = upcast_dtype if upcast else lambda dtype: dtype
    slots: dict[int, int] = {}  # id of a tensor -> its position among the inputs
    inputs: list[tuple[str, Array]] = []
    for leaf, name in zip(found, names, strict=True):
        if isinstance(leaf, Tensor) and leaf.requires_grad and id(leaf) not in slots:
            slots[id(leaf)] = len(inputs)
            inputs.append((name, _values(leaf, convert)))
    if not inputs:
        raise ArgumentError(
            f"gradcheck of {_name(function)} needs an input that requires grad; none of "
            f"{', '.join(names) or 'its inputs'} does\n  pass oplib.tensor(..., requires_grad=True)"
        )
    constants = [
        _values(leaf, convert) if isinstance(leaf, Tensor) and id(leaf) not in slots else leaf
        for leaf in found
    ]

    def forward(tensors: list[Tensor]) -> list[Tensor]:
        given = [
            tensors[slots[id(leaf)]] if id(leaf) in slots else _fresh(leaf, constant)
            for leaf, constant in zip(found, constants, strict=True)
        ]
        positional, keywords = unflatten(structure, iter(given))
        return inexact_results(function(*positional, **keywords))

    return Problem(
        name=_name(function),
        site=_site(function),
        forward=forward,
        domain=Space.of(inputs),
        point=tuple(array for _, array in inputs),
        result_name=lambda i: _result_name(function, i),
        indices=tuple(c for c in constants if isinstance(c, np.ndarray) and c.dtype.kind in "iu"),
    )


def _values(tensor: Tensor, convert: Callable[[np.dtype[Any]], np.dtype[Any]]) -> Array:
    array: Array = tensor.array
    return like_layout(array.astype(convert(array.dtype), order="K", copy=False), array)


def _fresh(leaf: Any, constant: Any) -> Any:
    """Return the argument to pass for a leaf that is no input: nothing is shared between runs."""
    if isinstance(leaf, Tensor):
        return tensor_from_array(like_layout(constant, constant))
    return copy.deepcopy(leaf) if isinstance(leaf, np.ndarray | np.random.Generator) else leaf


def inexact_results(result: Any) -> list[Tensor]:
    """Return the float and complex tensors of a nested result, in order."""
    return [t for t in leaves(result) if isinstance(t, Tensor) and is_inexact(t.dtype)]


def _single(function: Any) -> Any:
    """Return the operator that a packet, or a function wrapped around one, stands for."""
    if hasattr(function, "result_name"):
        function = function.__wrapped__
    return function.single if isinstance(function, OperatorPacket) else function


def _name(function: Any) -> str:
    function = _single(function)
    if isinstance(function, Operator):
        return function.qualname
    layer = getattr(function, "__self__", None)
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return f"{layer.__qualname__}.apply" if isinstance(layer, type) else str(name)


def _site(function: Any) -> str:
    function = _single(function)
    if not isinstance(function, Operator):
        layer = getattr(function, "__self__", None)
        return function_site(getattr(layer, "backward", function))
    rule = function.top(GRADIENT)
    return (
        f"gradient rule at {rule.source}" if rule is not None else str(function.definition_source)
    )


def _argument_names(function: Any, args: Any, kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Yield the name of every leaf of a call: the operator's word for it, or its position."""
    function = _single(function)
    words: list[str] = []
    if isinstance(function, Operator):
        words = [argument.name for argument in function.schema.positional]
    for position, value in enumerate(args):
        prefix = words[position] if position < len(words) else f"inputs[{position}]"
        yield from leaf_paths(flatten(value)[1], prefix)
    for name, value in kwargs.items():
        yield from leaf_paths(flatten(value)[1], name)


def _result_name(function: Any, position: int) -> str:
    """Return what a result is called; a function may know better (``function.result_name``)."""
    if hasattr(function, "result_name"):
        return str(function.result_name(position))
    function = _single(function)
    if isinstance(function, Operator) and position < len(function.schema.returns):
        return f"result {position} `{return_names(function.schema)[position]}`"
    return f"result {position}"


# ---------------------------------------------------------------------- the next order


def derivative(problem: Problem, rng: np.random.Generator) -> Problem:
    """Return the problem of ``(x, v) -> gradient of <v, f> at x``, with `v` drawn at random."""
    outputs = problem.evaluate(problem.point)
    names = [problem.result_name(i) for i in range(len(outputs))]
    inputs = [(b.name, x) for b, x in zip(problem.domain.blocks, problem.point, strict=True)]
    seeds = [(f"grad of {name}", _draw(rng, y)) for name, y in zip(names, outputs, strict=True)]
    count = len(inputs)

    def forward(tensors: list[Tensor]) -> list[Tensor]:
        xs = [t if t.requires_grad else t.requires_grad_() for t in tensors[:count]]
        results = problem.forward(xs)
        pairs = [(y, v) for y, v in zip(results, tensors[count:], strict=True) if y.requires_grad]
        found: list[Tensor | None] = [None] * count
        if pairs:
            ys, vs = map(list, zip(*pairs, strict=True))
            found = grad(ys, xs, vs, create_graph=True, allow_unused=True)
        return [
            tensor_from_array(np.zeros(x.shape, x.dtype)) if g is None else g
            for x, g in zip(xs, found, strict=True)
        ]

    named = [*inputs, *seeds]
    return Problem(
        name=problem.name,
        site=problem.site,
        forward=forward,
        domain=Space.of(named),
        point=tuple(array for _, array in named),
        result_name=lambda i: f"gradient of {problem.domain.blocks[i].name}",
        indices=problem.indices,
        order=problem.order + 1,
    )


def _draw(rng: np.random.Generator, like: Array) -> Array:
    values = rng.standard_normal((2, *like.shape))
    drawn = values[0] + 1j * values[1] if like.dtype.kind == "c" else values[0]
    return np.asarray(drawn).astype(like.dtype)
