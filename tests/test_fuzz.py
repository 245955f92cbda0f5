"""Random programs behave alike eagerly, functionalized, and captured.

``pytest tests/test_fuzz.py --fuzz 100000`` runs more of them than the default run; ``--fuzz-seed``
says where to begin. A program that fails is made small and printed as Python text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from oplib.functionalize import access, groups, memory, opaque, settle, storage, tapes, writes
from oplib.program import signature
from tests.fuzz.check import MODES, check, check_guards
from tests.fuzz.differences import differentiable, gradient_problem
from tests.fuzz.generate import random_program
from tests.fuzz.program import Broken, Program
from tests.fuzz.shrink import shrunk

pytestmark = pytest.mark.fuzz

NESTED = [mode for mode in MODES if " " in mode]
CHUNKS = 20


def modes_of(seed: int) -> list[str]:
    """Return the modes a program is run in: two, and now and then one of the nested ones."""
    return ["functionalize", "capture", *([NESTED[seed // 8 % 3]] if seed % 8 == 0 else [])]


def explained(seed: int, program: Program, fails: Callable[[Program], str]) -> str:
    """Return the smallest program that fails like this one, and how."""
    small = shrunk(program, lambda candidate: bool(fails(candidate)))
    return f"seed {seed}\n{small.text()}\n\n{fails(small)}"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_programs_behave_alike_in_every_mode(chunk: int, fuzz_range: range) -> None:
    for seed in fuzz_range[chunk::CHUNKS]:
        program, fails = random_program(seed), functools.partial(check, modes=modes_of(seed))
        if fails(program):
            pytest.fail(explained(seed, program, fails))


def test_a_program_computes_nothing_else_on_inputs_that_share_memory_differently() -> None:
    for seed in range(150):
        program = random_program(seed, 12)
        if check_guards(program):
            pytest.fail(explained(seed, program, check_guards))


def gradient_difference(program: Program) -> str:
    """Return how eager gradients differ from finite differences; errors do not count here."""
    try:
        return gradient_problem(program)
    except Broken:
        raise
    except Exception:
        return ""


def test_gradients_of_eager_code_are_those_of_finite_differences() -> None:
    compared = 0
    for seed in range(1000, 1250):
        program = differentiable(random_program(seed, 10))
        if program is None:
            continue
        try:
            problem = gradient_difference(program)
        except Broken:
            continue  # a step was taken away that others need
        compared += 1
        if problem:
            pytest.fail(explained(seed, program, gradient_difference))
    assert compared > 80


# ---------------------------------------------------------------------- does it see mistakes?

Switch = Callable[[pytest.MonkeyPatch], None]


def _cached_at_any_version(patch: pytest.MonkeyPatch) -> None:
    read = storage.FunctionalArray.read

    def stale(self: Any, exact: bool = False) -> Any:
        return read(self, exact) if self._cached is None else self._cached

    patch.setattr(storage.FunctionalArray, "read", stale)


def _stores_without_copies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        settle, "_values_to_store", lambda o, inputs, values: [values[w.value] for w in o.writes]
    )


def _offset_dropped(patch: pytest.MonkeyPatch) -> None:
    get = access.strided_get
    patch.setattr(access, "strided_get", lambda base, size, stride, _: get(base, size, stride, 0))


def _no_graft(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(storage, "graft", lambda value, history: value)


def _no_overwrite(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(storage, "overwrite", lambda value, old: value)


def _no_detach(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tapes, "detach", lambda value: value)


def _arguments_as_values(patch: pytest.MonkeyPatch) -> None:
    view_at, seen = opaque.view_at, set()

    def copied(root: Any, form: Any, geometry: Any) -> Any:
        view = view_at(root, form, geometry)
        if id(root) not in seen:
            seen.add(id(root))
            return view
        return view.clone()

    patch.setattr(opaque, "view_at", copied)


def _twin_in_spite_of_overlap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writes.WritingCall, "_overlaps", lambda call: False)


def _no_groups(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(groups, "groups_of", lambda tensors: [[i] for i in range(len(tensors))])


def _layouts_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(storage, "laid_out", lambda value, geometry, exact: value)


def _views_as_copies(patch: pytest.MonkeyPatch) -> None:
    replayed = settle._replayed
    patch.setattr(settle, "_replayed", lambda root, steps: replayed(root, steps).clone())


def _duplicates_as_copies(patch: pytest.MonkeyPatch) -> None:
    unflatten = settle.unflatten
    patch.setattr(
        settle, "unflatten", lambda tree, leaves: unflatten(tree, (x.alias() for x in leaves))
    )


def _old_values_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(groups.InputMemory, "keep_old_values", lambda self, group: None)


def _versions_left_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        settle, "_store", lambda target, value, write: settle._copy(target.detach(), value)
    )


SWITCHES: dict[str, Switch] = {
    "a cached value is used at any version": _cached_at_any_version,
    "inputs are stored without copies": _stores_without_copies,
    "the offset of a view is dropped": _offset_dropped,
    "a write under no_grad loses the history": _no_graft,
    "a recorded write of a constant loses the history": _no_overwrite,
    "a value without history is handed down with one": _no_detach,
    "arguments of an opaque operator are passed as values": _arguments_as_values,
    "a twin is used although arguments overlap": _twin_in_spite_of_overlap,
    "inputs that share memory are not grouped": _no_groups,
    "layouts are ignored": _layouts_ignored,
    "results that are views are copies": _views_as_copies,
    "results lose their identity": _duplicates_as_copies,
    "values a gradient needs are overwritten": _old_values_not_kept,
    "the write-back is not recorded": _versions_left_alone,
}


LATE = {
    "a value without history is handed down with one": 270,
    "a twin is used although arguments overlap": 380,
    "layouts are ignored": 800,
}
"""Where to begin with mistakes that few programs make, so that they are found in less time."""


def finds_a_mistake(first: int) -> bool:
    """Return whether the fuzz finds anything wrong within a thousand programs."""
    for seed in range(first, first + 1000):
        try:
            if check(random_program(seed), modes_of(seed), seeds=[0]):
                return True
        except Exception:  # a switch may break more than results
            return True
    return False


@pytest.mark.parametrize("switch", SWITCHES)
def test_the_fuzz_finds_that(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SWITCHES[switch](monkeypatch)
    access.access.cache_clear()
    assert finds_a_mistake(LATE.get(switch, 0))


def test_the_guard_test_finds_that_memory_is_not_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "memory_groups", lambda inputs, written: ())
    assert memory.memory_groups is not signature.memory_groups
    assert any(check_guards(random_program(seed, 12)) for seed in range(150))
