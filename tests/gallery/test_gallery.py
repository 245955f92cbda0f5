"""Every operator of examples/gallery holds what it was specified to hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import schema
from oplib._tree import flatten, leaves, tree_map
from oplib.testing import assert_close, gradcheck, gradgradcheck, opcheck
from tests.gallery.harness import GALLERY, Case, Fails, all_cases, fresh, gallery, snapshot
from tests.gallery.page import DOCS, ORDER, PICTURES, page

CASES = all_cases()
FILES = sorted(path.stem for path in GALLERY.glob("*.py"))


def named(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@named(CASES)
def test_the_schema_is_the_one_specified(case: Case) -> None:
    assert str(case.op.schema) == str(schema.parse(f"gallery::{case.schema}"))


@named([case for case in CASES if case.calls])
def test_opcheck_passes(case: Case) -> None:
    options = {"samples": 2, **case.opcheck}
    if case.gradients and case.second:  # gradgradcheck runs below
        options["skip"] = {"second_gradient", *options.get("skip", ())}
    report = opcheck(case.op, case.calls[0], **options)
    assert any(result.status == "passed" for result in report)


@named(CASES)
def test_every_call_runs_and_functionalized_it_gives_the_same(case: Case) -> None:
    for call in case.calls:
        eager, other = fresh(call), fresh(call)
        expected = case.op(*eager)
        found = oplib.functionalize(lambda *args: case.op(*args))(*other)
        assert_close(found, expected)
        assert_close(list(leaves(other)), list(leaves(eager)))


GRADIENTS = [(case, i) for case in CASES for i in range(len(case.gradients))]


@pytest.mark.parametrize(("case", "i"), GRADIENTS, ids=lambda v: getattr(v, "name", v))
def test_gradients_agree_with_central_differences(case: Case, i: int) -> None:
    function, args = case.gradients[i]
    given = [
        leaf.detach().clone() if isinstance(leaf, oplib.Tensor) else leaf
        for leaf in flatten(args)[0]
    ]
    for leaf in given:
        if isinstance(leaf, oplib.Tensor) and leaf.dtype.kind in "fc":
            leaf.requires_grad = True
    following = iter(given)
    inputs = tree_map(lambda _: next(following), args)
    assert gradcheck(function, inputs, rtol=1e-7)
    if case.second:
        assert gradgradcheck(function, inputs)


FAILS = [(case, fails) for case in CASES for fails in case.fails]


@pytest.mark.parametrize(
    ("case", "fails"), FAILS, ids=lambda v: v.name if isinstance(v, Case) else v.words
)
def test_what_is_wrong_raises_and_changes_nothing(case: Case, fails: Fails) -> None:
    before = snapshot((fails.args, fails.kwargs))
    with pytest.raises(fails.error, match=fails.words):
        (fails.function or case.op)(*fails.args, **fails.kwargs)
    assert snapshot((fails.args, fails.kwargs)) == before


@named([case for case in CASES if case.program is not None])
def test_a_program_captured_saved_and_loaded_gives_the_same(case: Case, tmp_path: Path) -> None:
    assert case.program is not None
    function, args = case.program
    eager = fresh(args)
    expected = function(*eager)
    program = oplib.capture(function, *fresh(args))
    assert "gallery." in str(program.graph)  # the operator, or its functional twin
    oplib.program.save(program, tmp_path / "program.json")
    for run in (program, oplib.program.load(tmp_path / "program.json")):
        given = fresh(args)
        assert_close(run(*given), expected)
        assert_close(list(leaves(given)), list(leaves(eager)))


@named([case for case in CASES if case.half])
def test_half_precision_computes_in_single_and_casts_back(case: Case) -> None:
    def cast(value: Any, dtype: str) -> Any:
        is_float = isinstance(value, oplib.Tensor) and value.dtype.kind == "f"
        return value.cast(dtype) if is_float else value

    for call in case.calls:
        half = fresh(tree_map(lambda v: cast(v, "float16"), call))
        single = fresh(tree_map(lambda v: cast(v, "float32"), half))
        found = [*leaves(case.op(*half)), *leaves(half)]
        expected = [*leaves(case.op(*single)), *leaves(single)]
        for got, want in zip(found, expected, strict=True):
            if isinstance(got, oplib.Tensor) and got.dtype == np.float16:
                assert np.array_equal(got.numpy(), want.numpy().astype("float16"), equal_nan=True)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_gallery_is_short_and_prints_what_it_shows(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (GALLERY / f"{name}.py").read_text("utf-8")
    assert text.count("\n") < 120
    gallery(name).main()
    assert capsys.readouterr().out


def test_every_file_of_the_gallery_has_cases() -> None:
    declared = {path.stem.removeprefix("cases_") for path in Path(__file__).parent.glob("cases_*")}
    assert set(FILES) == declared


def test_the_page_of_the_gallery_is_made_from_its_files() -> None:
    assert (DOCS / "gallery.md").read_text("utf-8") == page(), "run python -m tests.gallery.page"
    assert set(ORDER) == set(FILES)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_drawn_and_small(name: str) -> None:
    text = PICTURES[name]()
    assert text.startswith("<svg")
    assert len(text) < 25_000
    assert (DOCS / "gallery" / f"{name}.svg").exists()
