"""Grad modes: whether operations are recorded, as context managers and decorators.

`no_grad` clears the Autograd bit of the user's mask, which holds on all levels of interpreters. The
mode lives in the ambient State: it is restored on exceptions, new threads start with recording on,
and a decorated generator has the mode only while its body runs.

Imports floors 0 to 4.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Final, Self, TypeVar, overload

from .. import _state
from ..dispatch.keys import AUTOGRAD
from ..errors import ArgumentError

__all__ = ["enable_grad", "grad_off", "is_grad_enabled", "no_grad", "set_grad_enabled"]

F = TypeVar("F", bound=Callable[..., Any])


def is_grad_enabled() -> bool:
    """Return whether operations on tensors that require grad are recorded now."""
    state = _state.current()
    for frame in state.stack:
        frame.interpreter.grad_mode_asked()
    return bool(state.user & AUTOGRAD)


_DEFAULT_OFF: Final = _state.DEFAULT_STATE.replace(user=_state.DEFAULT_STATE.user & ~AUTOGRAD)


def _with_mode(state: _state.State, enabled: bool) -> _state.State:
    """Return `state` in a mode; the two most common ones exist once."""
    user = state.user | AUTOGRAD if enabled else state.user & ~AUTOGRAD
    if user == state.user:
        return state
    if state is _state.DEFAULT_STATE:
        return _DEFAULT_OFF
    return _state.DEFAULT_STATE if state is _DEFAULT_OFF else state.replace(user=user)


def grad_off(state: _state.State) -> _state.State:
    """Return `state` with recording off."""
    return _DEFAULT_OFF if state is _state.DEFAULT_STATE else _with_mode(state, False)


class _GradMode:
    """Context manager and decorator that sets the grad mode."""

    _enabled: bool

    def __enter__(self) -> None:
        outer = _state.current()
        self.__dict__.setdefault("_outer", []).append(outer)
        _state.set_state(_with_mode(outer, self._enabled))

    def __exit__(self, *_: object) -> None:
        _state.set_state(self.__dict__["_outer"].pop())

    def __call__(self, function: F) -> F:
        """Return `function` running in this mode."""
        return _decorated(function, self._enabled)


def _decorated(function: F, enabled: bool) -> F:
    """Return a function, generator function or coroutine function with the mode set inside."""
    if not callable(function):
        raise ArgumentError(f"a grad mode decorates a function, got {function!r}")

    def mode() -> _state.enter:
        return _state.enter(_with_mode(_state.current(), enabled))

    if inspect.isgeneratorfunction(function):
        return _decorated_generator(function, mode)  # type: ignore[return-value]
    if inspect.isasyncgenfunction(function):
        return _decorated_async_generator(function, mode)  # type: ignore[return-value]
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with mode():
                return await function(*args, **kwargs)

        return coroutine  # type: ignore[return-value]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with mode():
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def _decorated_generator(
    function: Callable[..., Any], mode: Callable[[], _state.enter]
) -> Callable[..., Any]:
    """Return a generator function whose body runs in the mode; suspended, it leaves no trace."""

    @functools.wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **kwargs)
        step, value = generator.send, None
        while True:
            try:
                with mode():
                    item = step(value)
            except StopIteration as stop:
                return stop.value
            try:
                step, value = generator.send, (yield item)
            except GeneratorExit:
                with mode():
                    generator.close()
                raise
            except BaseException as error:
                step, value = generator.throw, error

    return generate


def _decorated_async_generator(
    function: Callable[..., Any], mode: Callable[[], _state.enter]
) -> Callable[..., Any]:
    """Return the same for an asynchronous generator function."""

    @functools.wraps(function)
    async def generate(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        step, value = generator.asend, None
        while True:
            try:
                with mode():
                    item = await step(value)
            except StopAsyncIteration:
                return
            try:
                step, value = generator.asend, (yield item)
            except GeneratorExit:
                with mode():
                    await generator.aclose()
                raise
            except BaseException as error:
                step, value = generator.athrow, error

    return generate


class _Switch(_GradMode):
    """A mode without arguments: called with a function it decorates that."""

    @overload
    def __new__(cls) -> Self: ...
    @overload
    def __new__(cls, function: F) -> F: ...  # type: ignore[misc]
    def __new__(cls, function: Any = None) -> Any:
        """Return the context manager, or the decorated function."""
        return object.__new__(cls) if function is None else _decorated(function, cls._enabled)


class no_grad(_Switch):
    """Do not record operations: ``with no_grad():``, ``@no_grad``, ``@no_grad()``.

    Writes are allowed on leaves inside; they bump versions and leave histories alone.

    >>> import oplib
    >>> x = oplib.ones(2, requires_grad=True)
    >>> with oplib.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    _enabled = False


class enable_grad(_Switch):
    """Record operations, also inside `no_grad`; used like it."""

    _enabled = True


class set_grad_enabled(_GradMode):
    """Set the grad mode at once; as a context manager it is restored on exit.

    Parameters
    ----------
    mode : bool
    """

    def __init__(self, mode: bool) -> None:
        if not isinstance(mode, bool):
            raise ArgumentError(f"set_grad_enabled takes a bool, got {mode!r}")
        self._enabled = mode
        self._before = _state.current()
        _state.set_state(_with_mode(self._before, mode))

    def __enter__(self) -> None:
        self.__dict__.setdefault("_outer", []).append(self._before)
        _state.set_state(_with_mode(_state.current(), self._enabled))

    def __call__(self, function: F) -> F:
        """Return `function` running in this mode; the mode of the caller is restored."""
        _state.set_state(self._before)
        return _decorated(function, self._enabled)
