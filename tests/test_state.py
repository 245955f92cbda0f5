"""The ambient state: immutable, restored by value, per thread and task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import oplib
from oplib import _state
from oplib._state import DEFAULT_STATE, State, copy_state, current, enter


def test_the_mask_is_the_users_without_what_is_handled() -> None:
    state = State(user=0b111, handled=0b010)
    assert state.mask == 0b101
    assert state.replace(handled=0).mask == 0b111


def test_replace_changes_what_is_named_only() -> None:
    state = State(1, 2, 4, ("frame",), {"a": 1})
    other = state.replace(include=8)
    assert (other.include, other.user, other.handled, other.stack) == (8, 2, 4, ("frame",))
    assert other.config == {"a": 1}
    assert state.include == 1


def test_settings_are_added_replaced_and_removed_in_a_new_state() -> None:
    state = DEFAULT_STATE.with_config(a=1, b=2)
    assert dict(state.with_config(a=3, b=None).config) == {"a": 3}
    assert dict(state.config) == {"a": 1, "b": 2}
    assert not DEFAULT_STATE.config
    with pytest.raises(TypeError):
        state.config["a"] = 4  # type: ignore[index]


def test_enter_restores_what_it_found() -> None:
    before = current()
    one, two = State(include=1), State(include=2)
    with enter(one) as entered:
        assert entered is current() is one
        with enter(two):
            assert current() is two
        assert current() is one
    assert current() is before


def test_an_exception_restores_the_state() -> None:
    before = current()
    with pytest.raises(ZeroDivisionError), enter(State(include=1)):
        raise ZeroDivisionError
    assert current() is before


def test_a_suspended_generator_leaves_the_state_of_its_caller_to_it() -> None:
    def numbers() -> Iterator[int]:
        with enter(State(include=1)):
            yield 1

    before = current()
    generator = numbers()
    next(generator)
    with enter(before):
        assert current() is before
    generator.close()
    assert current() is before


def test_a_new_thread_starts_from_the_default() -> None:
    seen: list[State] = []
    with enter(State(include=1)):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
    assert seen == [DEFAULT_STATE]


def test_copy_state_carries_it_over() -> None:
    seen: list[State] = []
    state = State(include=1)
    with enter(state):
        context = copy_state()
    thread = threading.Thread(target=context.run, args=(lambda: seen.append(current()),))
    thread.start()
    thread.join()
    assert seen == [state]
    assert current() is not state


def test_tasks_do_not_disturb_each_other() -> None:
    async def toggled() -> bool:
        with oplib.no_grad():
            await asyncio.sleep(0)
            return oplib.is_grad_enabled()

    async def plain() -> bool:
        await asyncio.sleep(0)
        return oplib.is_grad_enabled()

    async def both() -> list[bool]:
        return await asyncio.gather(toggled(), plain())

    assert asyncio.run(both()) == [False, True]


def test_states_are_small_and_shared() -> None:
    assert not hasattr(State(), "__dict__")
    assert _state.current() is _state.current()
