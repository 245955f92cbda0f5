"""What is checked, and one call of it: arguments by name, a run on copies, and how to repeat it.

A `Subject` is an operator or a PyLayer. A `Call` holds arguments that are never touched: every run
gets copies. A run that raises is an `Outcome` too.
"""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from .._text import function_site, is_internal_file, short_repr
from .._tree import flatten, leaf_paths, leaves, tree_map
from ..autograd.pylayer import PyLayer
from ..dispatch.facets import FAKE, FUNCTIONAL, GRADIENT
from ..dispatch.gradient_rule import return_names
from ..dispatch.operator import Operator
from ..dispatch.tags import RANDOM
from ..dtypes import is_inexact
from ..schema import FunctionSchema
from ..schema.types import (
    AliasSet,
    DictType,
    ListType,
    OptionalType,
    TensorType,
    TupleType,
    Type,
    UnionType,
)
from ..tensor.tensor import Tensor
from .compare import Array
from .memory import Snapshot, copy_tree

__all__ = ["Call", "Outcome", "Subject", "describe", "quietly", "user_traceback"]


# ---------------------------------------------------------------------- what is checked


@dataclass(frozen=True)
class Subject:
    """An operator, or a PyLayer class, with what checks ask about it."""

    function: Callable[..., Any]
    name: str
    op: Operator[..., Any] | None = None
    layer: type[PyLayer] | None = None

    @property
    def schema(self) -> FunctionSchema | None:
        """The schema, which a PyLayer has not."""
        return None if self.op is None else self.op.schema

    @property
    def module(self) -> str:
        """The module that has to be imported to have it."""
        if self.layer is not None:
            return self.layer.__module__
        return self.op.definition_source.module if self.op is not None else ""

    def site(self, facet: str) -> str:
        """Return where a facet was registered: ``"kernel"``, or one of the facet names."""
        if self.op is None:
            backward = facet == GRADIENT and hasattr(self.layer, "backward")
            return function_site(self.layer.backward if backward else self.layer.forward)  # type: ignore[union-attr]
        if facet in (FAKE, GRADIENT, FUNCTIONAL):
            found = self.op.top(facet)
            return str(found.source if found is not None else self.op.definition_source)
        kernels = [r for key in self.op.kernels for r in self.op.entries(key)]
        return function_site(kernels[0].function) if kernels else str(self.op.definition_source)

    def result_name(self, index: int) -> str:
        """Return what messages call a return."""
        if self.schema is None or index >= len(self.schema.returns):
            return f"result {index}"
        name = self.schema.returns[index].name
        return f"result {index} `{name}`" if name else f"result {index}"

    def rule_result_name(self, index: int) -> str:
        """Return what a gradient rule calls a return."""
        return return_names(self.schema)[index] if self.schema is not None else f"out{index}"


# ---------------------------------------------------------------------- one call


@dataclass(frozen=True)
class Call:
    """Arguments to call a subject with."""

    subject: Subject
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    label: str = "as given"
    kind: str = "given"

    @cached_property
    def named(self) -> list[tuple[str, Any]]:
        """The values of the call by argument name."""
        schema = self.subject.schema
        words = [a.name for a in schema.positional] if schema is not None else []
        names = [words[i] if i < len(words) else f"args[{i}]" for i in range(len(self.args))]
        return [*zip(names, self.args, strict=True), *self.kwargs.items()]

    @cached_property
    def leaves(self) -> list[tuple[str, Any]]:
        """Every leaf of every argument, with its path."""
        found: list[tuple[str, Any]] = []
        for name, value in self.named:
            flat, structure = flatten(value)
            found += zip(leaf_paths(structure, name), flat, strict=True)
        return found

    @property
    def tensors(self) -> list[tuple[str, Tensor]]:
        """The tensors among the leaves."""
        return [(name, leaf) for name, leaf in self.leaves if isinstance(leaf, Tensor)]

    @property
    def is_random(self) -> bool:
        """Whether equal calls may differ: tagged so, or random without a generator."""
        op = self.subject.op
        if op is None:
            return False
        random = RANDOM in op.effects or "nondeterministic_seeded" in op.tags
        given = any(isinstance(leaf, np.random.Generator) for _, leaf in self.leaves)
        return "nondeterministic" in op.tags or (random and not given)

    @property
    def inexact(self) -> list[tuple[str, Tensor]]:
        """The float and complex tensors among the leaves."""
        return [(name, t) for name, t in self.tensors if is_inexact(t.dtype)]

    @property
    def size(self) -> int:
        """Number of elements of all tensors."""
        return sum(t.size for _, t in self.tensors)

    def written(self) -> list[tuple[str, Tensor]]:
        """Return the tensors in slots the schema declares written."""
        return [(name, t) for name, alias, t in self.slots() if alias is not None and alias.written]

    def slots(self) -> Iterator[tuple[str, AliasSet | None, Tensor]]:
        """Yield every tensor that stands where the schema has a Tensor, with its annotation."""
        schema = self.subject.schema
        if schema is None:
            yield from ((name, None, t) for name, t in self.tensors)
            return
        for name, value in self.named:
            yield from tensor_slots(schema.argument(name).type, value, name)

    # ------------------------------------------------------------------ runs

    def fresh(self, protect: Callable[[Any], bool] = lambda leaf: False) -> Call:
        """Return the call on copies of everything it could change."""
        args, kwargs = copy_tree((self.args, dict(self.kwargs)), protect)
        return replace(self, args=args, kwargs=kwargs)

    def mapped(self, change: Callable[[Any], Any], label: str = "", kind: str = "") -> Call:
        """Return the call with every leaf replaced by what `change` returns for it."""
        args, kwargs = tree_map(change, (self.args, dict(self.kwargs)))
        label, kind = label or self.label, kind or self.kind
        return Call(self.subject, args, kwargs, label, kind)

    def with_leaves(self, values: Iterable[Any]) -> Call:
        """Return the call with other leaves, in order."""
        following = iter(values)
        return self.mapped(lambda leaf: next(following))

    def snapshot(self) -> Snapshot:
        """Return what the arguments are like now."""
        return Snapshot(self.leaves, list(_containers((*self.args, *self.kwargs.values()))))

    def run(self) -> Outcome:
        """Call the subject on these very arguments."""
        with quietly():
            try:
                return Outcome(self, self.subject.function(*self.args, **self.kwargs))
            except Exception as error:  # whatever the operator raises is the outcome
                return Outcome(self, None, error)

    # ------------------------------------------------------------------ text

    def describe(self) -> str:
        """Return the call on one line: ``x f32[8, 4] strides (1, 8), eps=1e-05``."""
        parts = []
        for name, leaf in self.leaves:
            is_array = isinstance(leaf, Tensor | np.ndarray)
            text = describe(leaf)
            parts.append(f"{name} {text}" if is_array else f"{name}={text}")
        return ", ".join(parts) or "no arguments"

    def place(self) -> str:
        """Return how the call came to be and what it is."""
        return f"{self.label}: {self.describe()}"


def _containers(tree: Any) -> Iterator[Any]:
    if isinstance(tree, list | dict):
        yield tree
    if isinstance(tree, list | tuple):
        for value in tree:
            yield from _containers(value)
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _containers(value)


def tensor_slots(
    kind: Type, value: Any, path: str
) -> Iterator[tuple[str, AliasSet | None, Tensor]]:
    """Yield the tensors of a value by their place in its schema type."""
    if isinstance(value, Tensor):
        yield path, _alias_of(kind), value
    elif isinstance(value, list | tuple):
        for i, element in enumerate(value):
            yield from tensor_slots(_element(kind, i), element, f"{path}[{i}]")
    elif isinstance(value, dict):
        for key, element in value.items():
            yield from tensor_slots(_element(kind, key), element, f"{path}[{key!r}]")


def _alias_of(kind: Type) -> AliasSet | None:
    match kind:
        case TensorType(alias):
            return alias
        case OptionalType(element):
            return _alias_of(element)
        case UnionType(members):
            found = [_alias_of(member) for member in members]
            return next((alias for alias in found if alias is not None), None)
    return None


def _element(kind: Type, step: Any) -> Type:
    match kind:
        case OptionalType(element):
            return _element(element, step)
        case ListType(element):
            return element
        case DictType(_, value):
            return value
        case TupleType(elements):
            inside: Type = elements[step]
            return inside
        case UnionType(members):
            inner = [m for m in members if isinstance(m, ListType | DictType | TupleType)]
            return _element(inner[0], step) if inner else kind
    return kind


def describe(value: Any) -> str:
    """Return a value in short: ``f32[8, 4] strides (4, 32) read-only`` for a tensor."""
    if not isinstance(value, Tensor):
        return short_repr(value, 30)
    text = value.describe()
    if not value.is_contiguous():
        text += f" strides {value.strides}"
    if isinstance(value.array, np.ndarray) and not value.array.flags.writeable:
        text += " read-only"
    return text


# ---------------------------------------------------------------------- what a call did


@dataclass(frozen=True)
class Outcome:
    """The result of a run on `call`'s own arguments, or the exception."""

    call: Call
    result: Any
    error: Exception | None = None

    @property
    def results(self) -> list[Any]:
        """One value per return."""
        schema = self.call.subject.schema
        if schema is None:
            return list(self.result) if isinstance(self.result, tuple) else [self.result]
        if not schema.returns:
            return []
        return [self.result] if len(schema.returns) == 1 else list(self.result)

    @property
    def leaves(self) -> list[tuple[str, Any]]:
        """Every leaf of every result, with its path."""
        found: list[tuple[str, Any]] = []
        for index, value in enumerate(self.results):
            flat, structure = flatten(value)
            found += zip(
                leaf_paths(structure, self.call.subject.result_name(index)), flat, strict=True
            )
        return found

    @property
    def arrays(self) -> list[tuple[str, Array]]:
        """The arrays of the tensors among the results."""
        return [(name, t.array) for name, t in self.leaves if isinstance(t, Tensor)]

    def frozen(self) -> list[tuple[str, Any]]:
        """Return the leaves with copies of all data, which later calls cannot change."""
        return [
            (name, leaf.array.copy() if isinstance(leaf, Tensor) else leaf)
            for name, leaf in self.leaves
        ]


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Ignore floating point and other warnings."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def user_traceback(error: BaseException | None) -> str:
    """Return the frames of an exception outside oplib, innermost last, and its message."""
    assert error is not None
    frames = [
        f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not is_internal_file(frame.filename)
    ]
    return "\n".join([*frames[-3:], f"{type(error).__name__}: {error}"])


def has_fakes(call: Call) -> bool:
    """Return whether a call has tensors, none of them with data in memory."""
    found = [t for t in leaves((call.args, dict(call.kwargs))) if isinstance(t, Tensor)]
    return bool(found) and not any(isinstance(t.array, np.ndarray) for t in found)
