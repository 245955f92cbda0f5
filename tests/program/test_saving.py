"""Programs in files: what comes back runs to the bit, and what cannot is refused by name."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import oplib
from oplib.program import load, save
from oplib.testing import assert_close
from tests.fuzz.check import check_beside_capture
from tests.fuzz.generate import random_program


@pytest.mark.fuzz
@pytest.mark.parametrize("chunk", range(4))
def test_loaded_programs_are_eager_code(chunk: int) -> None:
    for seed in range(90_000 + chunk, 90_120, 4):
        program = random_program(seed)
        assert not check_beside_capture(program, "saved"), f"seed {seed}\n{program.text()}"


def reloaded(program: oplib.Program) -> oplib.Program:
    """Return a program as it comes back from a file."""
    file = io.BytesIO()
    save(program, file)
    return load(file)


def test_literals_come_back_to_the_bit(tmp_path: Path) -> None:
    nan = np.array(0x7FF8000000000001).view(np.float64).item()
    literals = [
        1,
        1.0,
        True,
        -0.0,
        nan,
        float("-inf"),
        2 - 0.0j,
        "text",
        None,
        (1, [2]),
        slice(1, None),
    ]
    table = oplib.tensor(np.arange(20.0, dtype=np.float32))

    def f(x: Any, other: Any, *, mode: str) -> Any:
        return {"a": (x * 0.1 + table, other[0]), "b": [x.T, mode]}

    x = oplib.ones(20)
    program = oplib.capture(f, x, literals, mode="fast")
    save(program, tmp_path / "p.oplib")
    loaded = load(tmp_path / "p.oplib")
    assert str(loaded) == str(program)
    assert not loaded.check(x, literals, mode="fast")
    assert loaded.check(x, [*literals[:3], 0.0, *literals[4:]], mode="fast")
    a, b = program(x, literals, mode="fast"), loaded(x, literals, mode="fast")
    assert a["a"][0].numpy().tobytes() == b["a"][0].numpy().tobytes()
    assert (b["a"][1], b["b"][1]) == (1, "fast")
    assert np.shares_memory(b["b"][0].numpy(), x.numpy())


def test_a_loaded_program_has_gradients() -> None:
    x = oplib.tensor([1.0, 2.0], requires_grad=True)
    reloaded(oplib.capture(lambda x: (x * x).sum(), x))(x).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize(
    "function",
    [
        oplib.ops.std.unique,
        lambda x: oplib.concat([oplib.masked_select(x, x > 0), oplib.masked_select(x, x < 0)]) * 2,
        lambda x: (oplib.masked_select(x, x > 0).sum(), x),
    ],
)
def test_sizes_that_depend_on_data_come_back(function: Callable[[Any], Any]) -> None:
    program = oplib.capture(function, oplib.tensor([1.0, -2.0, 3.0]))
    assert program.graph.symbol_sites
    loaded = reloaded(program)
    assert loaded.graph == program.graph
    for values in ([1.0, -2.0, 3.0], [0.0, -1.0, -4.0], [-1.0, -1.0, -1.0]):
        x = oplib.tensor(values)
        assert_close(loaded(x), function(x))


def test_a_file_holds_no_pickle() -> None:
    file = io.BytesIO()
    save(oplib.capture(lambda x: x + oplib.tensor(np.arange(9.0)), oplib.ones(9)), file)
    with zipfile.ZipFile(file) as archive:
        assert archive.namelist() == ["program.json", "arrays.npz"]
        arrays = np.load(io.BytesIO(archive.read("arrays.npz")), allow_pickle=False)
        assert [array.dtype for array in arrays.values()] == [np.dtype(np.uint8)]


def changed(program: oplib.Program, change: Callable[[dict[str, Any]], Any]) -> io.BytesIO:
    """Return the file of a program whose JSON was changed."""
    file = io.BytesIO()
    save(program, file)
    with zipfile.ZipFile(file) as archive:
        record, arrays = json.loads(archive.read("program.json")), archive.read("arrays.npz")
    change(record)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("program.json", json.dumps(record))
        archive.writestr("arrays.npz", arrays)
    return made


def refused(change: Callable[[dict[str, Any]], Any], message: str) -> None:
    constant = np.arange(9.0)
    program = oplib.capture(lambda x: x * oplib.tensor(constant), oplib.ones(9))
    with pytest.raises(oplib.CaptureError, match=message):
        load(changed(program, change))


def test_damaged_files_and_other_formats_are_refused() -> None:
    refused(lambda r: r.update(format=[2, 0]), r"format 2.0; this oplib reads 1.0")
    refused(lambda r: r.update(format=[1, 1], requires=["axes"]), r"format 1.1 and needs axes")
    refused(lambda r: r.pop("outcome"), "damaged")
    refused(lambda r: r.update(graph=r["graph"].replace("std.mul(x", "std.mul(y")), "y")
    refused(
        lambda r: r["arrays"].update({next(iter(r["arrays"])): ["f32", [18]]}),
        "is not what was saved",
    )
    refused(lambda r: r.update(outcome={"Popen": {"args": "ls"}}), "damaged")
    file = io.BytesIO()
    save(oplib.capture(lambda x: x + 1, oplib.ones(2)), file)
    with pytest.raises(oplib.CaptureError, match="damaged"):
        load(io.BytesIO(file.getvalue()[:-60]))
    with pytest.raises(FileNotFoundError):
        load("nowhere.oplib")


def test_an_unknown_optional_field_of_a_newer_minor_is_no_reason_to_refuse() -> None:
    program = oplib.capture(lambda x: x + 1, oplib.ones(2))
    file = changed(program, lambda r: r.update(format=[1, 7], colour="blue"))
    assert load(file)(oplib.ones(2)).tolist() == [2.0, 2.0]


def test_missing_and_changed_operators_are_listed_together() -> None:
    with oplib.scoped_library("saved", "DEF") as library:
        for name in ("one", "two", "three"):
            op = library.define(f"{name}(Tensor x) -> Tensor").op
            op.register_fake(lambda x: oplib.TensorSpec(x.shape, x.dtype))
        ops = oplib.ops.saved
        program = oplib.capture(lambda x: ops.three(ops.two(ops.one(x))), oplib.ones(2))
        file = io.BytesIO()
        save(program, file)
    with oplib.scoped_library("saved", "DEF") as library:
        library.define("three(Tensor x, int n=0) -> Tensor")
        with pytest.raises(oplib.CaptureError) as caught:
            load(file)
    lines = str(caught.value).splitlines()
    assert lines[1] == f"  saved::one is not registered; it was defined in {__name__}: import it"
    assert lines[3] == "  saved::three has changed"
    assert lines[4] == "    saved       saved::three(Tensor x) -> Tensor []"
    assert lines[5] == "    registered  saved::three(Tensor x, int n=0) -> Tensor []"


def test_a_tensor_of_the_enclosing_scope_is_saved_as_it_is() -> None:
    outside = oplib.from_numpy(np.arange(6.0).reshape(2, 3).T)
    outside.requires_grad = True
    program = oplib.capture(lambda x: x + outside, oplib.ones(3, 2))
    loaded = reloaded(program)
    outside.detach().numpy().fill(0.0)
    assert loaded(oplib.zeros(3, 2)).tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert loaded.captured[0].requires_grad


class Pair(NamedTuple):
    first: Any
    second: Any


def test_what_a_file_cannot_hold_is_refused_before_it_is_written(tmp_path: Path) -> None:
    outside, path = oplib.ones(2), tmp_path / "p"

    def writes(x: Any) -> Any:
        outside.add_(x)

    x = oplib.ones(2)
    for program, message in (
        (oplib.capture(writes, x), "writes a tensor of the enclosing scope"),
        (oplib.capture(lambda p: p.first + p.second, Pair(x, x)), "holds the container Pair"),
    ):
        with pytest.raises(oplib.CaptureError, match=message):
            save(program, path)
    assert not path.exists()
