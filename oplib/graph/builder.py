"""`GraphBuilder`: records nodes one by one and makes the `Graph`.

Recording one operator costs a few microseconds: a node, its values, nothing else. Token chains are
kept here, so a recorder never handles them. Nothing is checked while recording; `verify` does that.

    builder = GraphBuilder("f")
    x = builder.placeholder("x", meta)
    call = builder.call(op, (x, 1.0), (meta,))
    builder.write(x, call.results[0])
    builder.output(Reference(x))
    graph = builder.build()

Imports `ir.py`. Read next: `text.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..dispatch.operator import Operator
from ..tensor.geometry import Geometry
from .ir import (
    Call,
    Constant,
    Functionalized,
    Graph,
    Node,
    Output,
    Placeholder,
    Provenance,
    Rebind,
    Role,
    Write,
)
from .values import Meta, Reference, TensorMeta, TokenMeta, Value

__all__ = ["GraphBuilder"]


class GraphBuilder:
    """Records a graph; `build` returns it. One builder serves one graph, on one thread.

    Attributes
    ----------
    name : str
    nodes : list
        The placeholders and body nodes recorded so far.
    """

    __slots__ = ("_constants", "_tail", "_tokens", "name", "nodes", "placeholders")

    def __init__(self, name: str) -> None:
        self.name = name
        self.placeholders: list[Placeholder] = []
        self.nodes: list[Constant | Call | Functionalized] = []
        self._tail: list[Node] = []
        self._tokens: dict[str, Value] = {}

    # Inputs ---------------------------------------------------------------------------------------

    def placeholder(self, stem: str, meta: Meta, role: Role = "argument") -> Value:
        """Add a placeholder, at any time, and return its value.

        Arguments come first in the graph, then captured tensors, then spans, each in the order
        they were added.
        """
        node = Placeholder(Value(stem, meta), role)
        self.placeholders.append(node)
        return node.value

    def constant(
        self,
        data: np.ndarray[Any, Any],
        *,
        meta: TensorMeta | None = None,
        stem: str = "constant",
        where: Provenance | None = None,
    ) -> Value:
        """Add a constant and return its value; `data` must not be written afterwards."""
        meta = TensorMeta(data.dtype, data.shape, data.strides) if meta is None else meta
        node = Constant(Value(stem, meta), data, where)
        self.nodes.append(node)
        return node.value

    # Calls ----------------------------------------------------------------------------------------

    def call(
        self,
        op: Operator[..., Any],
        arguments: tuple[Any, ...],
        metas: tuple[Any, ...],
        *,
        stem: str | None = None,
        effects: Iterable[str] | None = None,
        flags: tuple[str, ...] = (),
        where: Provenance | None = None,
    ) -> Call:
        """Add a call and return its node.

        Parameters
        ----------
        op : Operator
        arguments : tuple
            In schema order: values, literals, lists of them. Lists are copied.
        metas : tuple
            One entry per return: a meta, a list or tuple of metas, or None.
        stem : str, optional
            Of the results; the operator's name without trailing underscores unless given. Pass the
            region's stem for the call that makes a region's new value, or `rename` it later.
        effects : iterable of str, optional
            Names of the chains the call belongs to; the operator's effects unless given. A
            generator other than the default one has a chain of its own, ``random:1``.
        flags, where
            As in `Call`.
        """
        results = _values(metas, stem or op.name.rstrip("_") or op.name)
        effects = op.effects if effects is None else effects
        after, tokens = self._chain(op, effects) if effects else ((), ())
        node = Call(op, _own_lists(arguments), results, after, tokens, flags, where)
        self.nodes.append(node)
        return node

    def functionalized(
        self,
        op: Operator[..., Any],
        arguments: tuple[Any, ...],
        metas: tuple[Any, ...],
        *,
        effects: Iterable[str] | None = None,
        flags: tuple[str, ...] = (),
        where: Provenance | None = None,
    ) -> Functionalized:
        """Add a mutating call made pure and return its node.

        `arguments` hold a `Reference` for every tensor in a written region, written or only read.
        `metas` has one entry per return that ``schema.fresh_returns`` names. Every region's new
        value gets the stem and the meta of its old one; ``node.regions`` follows ``node.bases``.
        Two regions need two base values: copy one if both hold the same value.
        """
        results = _values(metas, op.name.rstrip("_") or op.name)
        arguments = _own_lists(arguments)
        bases = Functionalized(op, arguments, (), ()).bases
        regions = tuple([Value(base.stem, base.meta) for base in bases])
        effects = op.effects if effects is None else effects
        after, tokens = self._chain(op, effects) if effects else ((), ())
        node = Functionalized(op, arguments, results, regions, after, tokens, flags, where)
        self.nodes.append(node)
        return node

    def _chain(
        self, op: Operator[..., Any], effects: Iterable[str]
    ) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        stem = op.name.rstrip("_") or op.name
        names = sorted(effects)
        before = (self._tokens.get(name) for name in names)
        after = tuple(token for token in before if token is not None)
        tokens = tuple(Value(stem, TokenMeta(name)) for name in names)
        self._tokens.update(zip(names, tokens, strict=True))
        return after, tokens

    def rename(self, value: Value, stem: str) -> None:
        """Give a value another stem, while the graph is still being recorded."""
        object.__setattr__(value, "stem", stem)

    # Tail -----------------------------------------------------------------------------------------

    def write(
        self,
        target: Value,
        value: Value,
        only: tuple[Geometry, ...] = (),
        times: int = 1,
        flags: tuple[str, ...] = (),
    ) -> None:
        """Add a `Write` to the tail."""
        self._tail.append(Write(target, value, only, times, flags))

    def rebind(self, target: Value, reference: Reference) -> None:
        """Add a `Rebind` to the tail, after all writes."""
        self._tail.append(Rebind(target, reference))

    def output(self, *results: Any) -> None:
        """Set the results; a graph without this call returns nothing."""
        self._tail.append(Output(results))

    def build(self) -> Graph:
        """Return the graph recorded so far."""
        roles = ("argument", "captured", "span")
        inputs = sorted(self.placeholders, key=lambda node: roles.index(node.role))
        kinds = (Write, Rebind, Output)
        tail = sorted(self._tail, key=lambda node: kinds.index(type(node)))
        if not tail or type(tail[-1]) is not Output:
            tail.append(Output())
        return Graph(self.name, (*inputs, *self.nodes, *tail))


def _values(metas: tuple[Any, ...], stem: str) -> tuple[Any, ...]:
    """Return new values in the structure of `metas`."""
    if len(metas) == 1 and type(metas[0]) is TensorMeta:
        return (Value(stem, metas[0]),)
    return tuple([_value(meta, stem) for meta in metas])


def _value(meta: Any, stem: str) -> Any:
    if type(meta) is list:
        return [_value(item, stem) for item in meta]
    if type(meta) is tuple:
        return tuple([_value(item, stem) for item in meta])
    return None if meta is None else Value(stem, meta)


def _own_lists(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return `arguments` with its lists copied: a kernel may change the list it was given."""
    for argument in arguments:
        if type(argument) is list:
            return tuple([item.copy() if type(item) is list else item for item in arguments])
    return arguments
