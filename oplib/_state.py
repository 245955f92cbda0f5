"""The ambient state: one immutable `State` in one context variable.

Everything that holds "here and now" for operator calls lives in it and nowhere else: grad mode, the
stack of interpreters, and a mapping of settings (autocast, saved-tensor hooks, preferred providers,
the default device, the fake policy). Context managers restore by value, so an exception, a
generator or an asyncio task can never leave a level raised. A new thread starts from the default
State.

Imports nothing of oplib. Read next: `dispatch/plan.py`, which reads ``include`` and ``mask`` on
every call.
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

__all__ = ["DEFAULT_STATE", "State", "copy_state", "current", "enter", "set_state"]

_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
_ALL_KEYS: Final = -1
_blank: Final = object.__new__


class State:
    """What surrounds an operator call.

    Attributes
    ----------
    include : int
        Key bits added to every call (the Interpreter bit while the stack is not empty, and bits
        that only select other plans).
    user : int
        The user's mask: ``no_grad`` clears the Autograd bit. It holds on all levels.
    handled : int
        Keys that the code running now is below. It holds for one level only.
    mask : int
        ``user & ~handled``: the keys that may take part.
    stack : tuple
        The interpreters, outermost first; the position of one is its level.
    config : Mapping
        Settings by name, never mutated.
    """

    __slots__ = ("config", "handled", "include", "mask", "stack", "user")

    def __init__(
        self,
        include: int = 0,
        user: int = _ALL_KEYS,
        handled: int = 0,
        stack: tuple[Any, ...] = (),
        config: Mapping[str, Any] = _EMPTY,
    ) -> None:
        self.include = include
        self.user = user
        self.handled = handled
        self.mask = user & ~handled
        self.stack = stack
        self.config = config

    def replaced(self, include: int, user: int, config: Mapping[str, Any]) -> State:
        """Return a State that differs in these fields, four times faster than `replace`."""
        state: State = _blank(State)
        state.include = include
        state.user = user
        state.handled = self.handled
        state.mask = user & ~self.handled
        state.stack = self.stack
        state.config = config
        return state

    def replace(self, **changes: Any) -> State:
        """Return a State that differs in the named fields."""
        fields: dict[str, Any] = {
            "include": self.include,
            "user": self.user,
            "handled": self.handled,
            "stack": self.stack,
            "config": self.config,
        }
        fields.update(changes)
        return State(**fields)

    def with_config(self, **settings: Any) -> State:
        """Return a State whose `config` has the given settings; None removes one."""
        merged = {**self.config, **settings}
        kept = {name: value for name, value in merged.items() if value is not None}
        return self.replace(config=MappingProxyType(kept))


DEFAULT_STATE: Final = State()
_variable: ContextVar[State] = ContextVar("oplib.state", default=DEFAULT_STATE)

current = _variable.get
set_state = _variable.set


class enter:
    """Context manager that makes `state` current and restores what it found on exit."""

    __slots__ = ("_outer", "_state")

    def __init__(self, state: State) -> None:
        self._state = state

    def __enter__(self) -> State:
        self._outer = current()
        set_state(self._state)
        return self._state

    def __exit__(self, *_: object) -> None:
        set_state(self._outer)


def copy_state() -> contextvars.Context:
    """Return a context that carries the ambient state of the caller to another thread.

    >>> import threading, oplib
    >>> with oplib.no_grad():
    ...     context = oplib.copy_state()
    >>> threading.Thread(target=context.run, args=(print, "runs with grad mode off")).start()
    runs with grad mode off
    """
    return contextvars.copy_context()
