"""Hooks as data: what is attached to a node of the backward graph from outside, and its undo.

Imports floor 0. Read next: `grad_meta.py`; the engine runs hooks in `autograd/observe.py`.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any, Final

from .._text import short_repr
from ..errors import ArgumentError

__all__ = ["HookHandle", "NodeHooks", "add_hook", "require_callable"]


class NodeHooks:
    """What was attached to one node from outside.

    Attributes
    ----------
    tensor : dict
        Position -> ordered hooks on that output's gradient.
    retain : dict
        Position -> weak references to the metas that retain its gradient.
    pre, post : dict
        Hooks on the node itself.
    site : str
        The forward line, recorded in anomaly mode.
    """

    __slots__ = ("post", "pre", "retain", "site", "tensor")

    def __init__(self) -> None:
        self.tensor: dict[int, dict[int, Callable[..., Any]]] = {}
        self.retain: dict[int, list[weakref.ref[Any]]] = {}
        self.pre: dict[int, Callable[..., Any]] = {}
        self.post: dict[int, Callable[..., Any]] = {}
        self.site = ""


_hook_numbers: Final = itertools.count()


class HookHandle:
    """The undo of a hook: ``remove()`` is True the first time, False later."""

    __slots__ = ("_key", "_table")

    def __init__(self, table: dict[int, Callable[..., Any]], key: int) -> None:
        self._table = table
        self._key = key

    def remove(self) -> bool:
        """Take the hook back; return whether it was still there."""
        return self._table.pop(self._key, None) is not None


def add_hook(table: dict[int, Callable[..., Any]], hook: Callable[..., Any]) -> HookHandle:
    """Append a hook to an ordered table and return its handle."""
    require_callable(hook)
    key = next(_hook_numbers)
    table[key] = hook
    return HookHandle(table, key)


def require_callable(hook: Any) -> None:
    """Raise `ArgumentError` for what cannot be called."""
    if not callable(hook):
        raise ArgumentError(f"a hook must be callable, got {short_repr(hook)}")
