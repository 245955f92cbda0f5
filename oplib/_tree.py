"""Flatten and rebuild nested lists, tuples, named tuples and dicts.

Leaves are whatever is none of these. Dicts keep insertion order, named tuples their type. The
structure (`TreeDef`) is hashable and compares by value, so it can be guarded.

Imports nothing of oplib.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from ._record import record

__all__ = ["TreeDef", "flatten", "leaf_paths", "leaves", "tree_map", "unflatten"]


@record
class TreeDef:
    """The structure of one container; a leaf is ``TreeDef(None)``.

    `kind` is the container's type, `keys` the keys of a dict, `children` one TreeDef per element.
    """

    kind: type | None
    keys: tuple[Any, ...] = ()
    children: tuple[TreeDef, ...] = ()

    def __str__(self) -> str:
        return repr(unflatten(self, itertools.repeat(_Star())))


class _Star:
    """Stands for a leaf where a structure is shown."""

    def __repr__(self) -> str:
        return "*"


LEAF = TreeDef(None)


def flatten(tree: Any) -> tuple[list[Any], TreeDef]:
    """Return the leaves of `tree` in order, and its structure."""
    found: list[Any] = []
    return found, _flatten(tree, found)


def _flatten(tree: Any, found: list[Any]) -> TreeDef:
    kind = type(tree)
    if kind is dict:
        children = tuple(_flatten(value, found) for value in tree.values())
        return TreeDef(dict, tuple(tree), children)
    if kind is list or kind is tuple or _is_named_tuple(tree):
        return TreeDef(kind, (), tuple(_flatten(value, found) for value in tree))
    found.append(tree)
    return LEAF


def _is_named_tuple(tree: Any) -> bool:
    return isinstance(tree, tuple) and hasattr(tree, "_fields")


def unflatten(structure: TreeDef, leaves: Iterator[Any]) -> Any:
    """Rebuild a container of `structure` from an iterator over its leaves."""
    kind = structure.kind
    if kind is None:
        return next(leaves)
    values = [unflatten(child, leaves) for child in structure.children]
    if kind is dict:
        return dict(zip(structure.keys, values, strict=True))
    if kind is list:
        return values
    return tuple(values) if kind is tuple else kind(*values)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return `tree` with `function` applied to every leaf."""
    kind = type(tree)
    if kind is list:
        return [tree_map(function, value) for value in tree]
    if kind is tuple:
        return tuple([tree_map(function, value) for value in tree])
    if kind is dict:
        return {key: tree_map(function, value) for key, value in tree.items()}
    if _is_named_tuple(tree):
        return kind(*[tree_map(function, value) for value in tree])
    return function(tree)


def leaves(tree: Any) -> Iterator[Any]:
    """Iterate over the leaves of `tree` in order."""
    kind = type(tree)
    if kind is dict:
        tree = tree.values()
    elif kind is not list and kind is not tuple and not _is_named_tuple(tree):
        yield tree
        return
    for value in tree:
        yield from leaves(value)


def leaf_paths(structure: TreeDef, prefix: str) -> Iterator[str]:
    """Iterate over readable paths of the leaves: ``args[0]['w'][1]``."""
    if structure.kind is None:
        yield prefix
        return
    steps = structure.keys if structure.kind is dict else range(len(structure.children))
    for step, child in zip(steps, structure.children, strict=True):
        yield from leaf_paths(child, f"{prefix}[{step!r}]")
