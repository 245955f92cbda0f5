"""Random programs of views and writes agree with a reference written in plain NumPy.

Compared are which steps raise, every value, the bytes of whole buffers, counts of writes, and
gradients. ``pytest tests/test_memory.py --fuzz 20000`` runs more programs than the default run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oplib
from oplib.autograd import family
from oplib.backends import stage
from oplib.prims import writing
from oplib.std import indexing
from oplib.tensor import storage, tensor, writes
from tests.fuzz.memory_programs import MemoryProgram

pytestmark = pytest.mark.fuzz
CHUNKS = 4


def problem_of(seed: int) -> str:
    program = MemoryProgram(seed)
    problem = program.run()
    return f"seed {seed}: {problem}\n  " + "\n  ".join(program.lines) if problem else ""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_programs_of_views_and_writes_agree_with_the_index_array_model(
    chunk: int, fuzz_range: range
) -> None:
    compared = refused = 0
    for seed in fuzz_range[chunk::CHUNKS]:
        program = MemoryProgram(seed)
        problem = program.run()
        if problem:
            pytest.fail("\n  ".join([f"seed {seed}: {problem}", *program.lines]))
        compared, refused = compared + program.compared, refused + program.refused
    assert compared > len(fuzz_range) / CHUNKS / 4
    assert refused > len(fuzz_range) / CHUNKS / 4


# ---------------------------------------------------------------------- does it see mistakes?

Switch = Callable[[pytest.MonkeyPatch], None]


def _replaced(owner: Any, name: str, by: Any) -> Switch:
    return lambda patch: patch.setattr(owner, name, by)


def _without_version(patch: pytest.MonkeyPatch) -> None:
    lines = stage._writing_lines
    patch.setattr(stage, "_writing_lines", lambda *a: [s for s in lines(*a) if "version" not in s])


def _offset_dropped(patch: pytest.MonkeyPatch) -> None:
    address_in = family.address_in

    def dropped(part: Any, whole: Any) -> Any:
        address = address_in(part, whole)
        if address is None or not address.size:
            return address
        return type(address)(address.size, address.stride, 0, address.order)

    patch.setattr(family, "address_in", dropped)


def _element_by_element(patch: pytest.MonkeyPatch) -> None:
    def store(destination: Any, value: Any, name: str) -> Any:
        value = np.broadcast_to(writing.storable(value, destination.dtype, name), destination.shape)
        for index in np.ndindex(destination.shape):
            destination[index] = value[index]
        return destination

    patch.setattr(writing, "store", store)


def _new_storage(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tensor, "storage_of_array", lambda array: storage.new_storage())


SWITCHES: dict[str, Switch] = {
    "a write is not counted": _without_version,
    "an offset in the root is dropped": _offset_dropped,
    "a written view leaves the root's gradient whole": _replaced(
        family._Split, "outside", lambda self, gradient: gradient
    ),
    "a written view gets no gradient": _replaced(
        family._Split, "inside", lambda self, gradient: inside(self, gradient) * 0
    ),
    "a view gives its root no gradient": _replaced(
        family._Split, "into_root", lambda self, gradient: into_root(self, gradient) * 0
    ),
    "stale views are not derived anew": _replaced(family, "refresh", lambda tensor: None),
    "writes behind a history's back are let through": _replaced(
        family, "_refuse_stranger", lambda *args: None
    ),
    "strangers stay constants": _replaced(family, "_estrange", lambda *args: None),
    "a write reads what it has written": _element_by_element,
    "an augmented item is stored twice": _replaced(indexing, "_is_same_view", lambda a, b: False),
    "positions are written in reverse": _replaced(
        indexing,
        "index_put_",
        lambda view, indices, value: put(
            view, [i if i is None else i[::-1] for i in indices], value
        ),
    ),
    "handles of one array do not know of each other": _new_storage,
    "repeated addresses are written": _replaced(writes, "self_overlap", lambda geometry: False),
}
put = indexing.index_put_
inside, into_root = family._Split.inside, family._Split.into_root


def forget_plans() -> None:
    """Have every operator build its plans anew, with what is patched."""
    family._splits.clear()
    for name in oplib.list_ops():
        oplib.get_op(name)._plans.clear()


@pytest.mark.parametrize("switch", SWITCHES)
def test_the_programs_find_that(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        SWITCHES[switch](patch)
        forget_plans()
        try:
            assert any(map(fails, range(2000)))
        finally:
            patch.undo()
            forget_plans()


def fails(seed: int) -> bool:
    try:
        return bool(problem_of(seed))
    except Exception:  # a switch may break more than results
        return True
