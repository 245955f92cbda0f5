"""opcheck fails every operator that is wrong on purpose, by the check named, naming the fault."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oplib
from oplib import Library
from oplib.errors import ArgumentError, OpCheckError
from oplib.shapes import TensorSpec, broadcast, like, like_spec
from oplib.testing import opcheck
from oplib.testing.compare import same_bytes
from oplib.testing.memory import copy_tree
from oplib.testing.opcheck import CHECKS
from oplib.testing.sampling import LAYOUTS
from tests.testing.helpers import leaf, operator, scope, tensor
from tests.testing.right_operators import RIGHT
from tests.testing.wrong_operators import WRONG, Wrong


@pytest.fixture
def lib() -> Iterator[Library]:
    with scope() as library:
        yield library


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: w.name)
def test_a_wrong_operator_fails_the_check_named_and_passes_unrelated_ones(
    lib: Library, wrong: Wrong
) -> None:
    op, args, *kwargs = wrong.make(lib)
    report = opcheck(op, args, *kwargs, raise_exception=False)
    assert report[wrong.check].status == "failed", str(report)
    assert any(wrong.words in str(failure) for failure in report[wrong.check].failures), str(report)
    failed = {result.check for result in report if result.status == "failed"}
    assert failed <= {wrong.check, *wrong.also}, str(report)


@pytest.mark.parametrize(
    "name",
    [
        "fake_of_a_fixed_size",
        "fake_wrong_for_no_elements",
        "fake_that_keeps_what_squeeze_drops",
        "gradient_that_adds_at_repeated_indices",
    ],
)
def test_a_failing_call_is_shrunk_to_axes_of_two_at_most(lib: Library, name: str) -> None:
    wrong = next(w for w in WRONG if w.name == name)
    op, args, *kwargs = wrong.make(lib)
    report = opcheck(op, args, *kwargs, checks=wrong.check, raise_exception=False)
    sample = report[wrong.check].failures[0].sample
    lengths = [int(n) for shape in re.findall(r"\[([\d, ]+)\]", sample) for n in shape.split(",")]
    assert lengths
    assert max(lengths) <= 2, sample


def test_without_hypothesis_fewer_calls_are_drawn_and_faults_are_found(
    lib: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = doubled(lib, fake=lambda x: TensorSpec((3, 4), x.dtype))
    args = (tensor(np.ones((3, 4))),)
    drawn = opcheck(op, args, checks="fake", raise_exception=False)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    plain = opcheck(op, args, checks="fake", raise_exception=False)
    assert plain["fake"].status == drawn["fake"].status == "failed"
    assert "sizes 3 -> 0" in plain["fake"].failures[0].sample
    assert plain.samples < drawn.samples


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 10))
@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: w.name)
def test_another_seed_finds_the_same_fault(lib: Library, wrong: Wrong, seed: int) -> None:
    op, args, *kwargs = wrong.make(lib)
    report = opcheck(op, args, *kwargs, checks=wrong.check, seed=seed, raise_exception=False)
    assert report[wrong.check].status == "failed", str(report)


# ---------------------------------------------------------------------- right operators


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_operator_does_not_fail(lib: Library, name: str) -> None:
    op, args, kwargs, options = (*RIGHT[name](lib), {}, {})[:4]
    report = opcheck(op, args, kwargs, raise_exception=False, **options)
    assert report.ok, str(report)
    assert any(result.status == "passed" for result in report)


@pytest.mark.parametrize(
    ("name", "check", "reason"),
    [
        ("tagged_nondeterministic", "determinism", "tagged nondeterministic"),
        ("an_effect_and_no_result", "gradient", "no gradient rule"),
        ("in_place_without_a_gradient_rule", "gradient", "no gradient rule"),
        ("integer_and_bool_results", "gradient", "every argument is declared non-differentiable"),
        ("no_arguments", "gradient", "no inexact tensor argument"),
        ("an_integer_without_a_fake_rule", "fake", "no fake rule, and no tensor among the results"),
        ("random_with_a_generator", "functional", "takes a random generator"),
    ],
)
def test_a_check_that_cannot_run_is_skipped_with_the_reason(
    lib: Library, name: str, check: str, reason: str
) -> None:
    op, args, *_ = RIGHT[name](lib)
    report = opcheck(op, args, checks=check, raise_exception=False)
    assert (report[check].status, report[check].reason) == ("skipped", reason)


# ---------------------------------------------------------------------- the call


def doubled(lib: Library, **facets: Any) -> Any:
    facets = {"fake": like("x"), "vjp": {"x": lambda grad: grad * 2}, **facets}
    return operator(lib, "f(Tensor x) -> Tensor", lambda x: x + x, **facets)


def test_checks_are_named_by_any_collection(lib: Library) -> None:
    op, args = doubled(lib), (tensor([1.0, 2.0]),)
    for names in ("fake", ["fake"], ("fake",), {"fake"}, iter(["fake"])):
        assert [r.check for r in opcheck(op, args, checks=names)] == ["fake"]
    assert len(opcheck(op, args, checks=())) == 0
    assert "fake" not in {r.check for r in opcheck(op, args, skip="fake")}


def test_an_unknown_check_is_a_value_error_with_a_suggestion(lib: Library) -> None:
    with pytest.raises(ValueError, match="did you mean 'gradient'"):
        opcheck(doubled(lib), (tensor([1.0]),), checks="gradeint")


def test_a_required_check_that_is_skipped_is_a_failure(lib: Library) -> None:
    op = operator(lib, "f(Tensor x) -> Tensor", lambda x: x + x, fake=like("x"))
    assert opcheck(op, (tensor([1.0]),)).ok
    report = opcheck(op, (tensor([1.0]),), require=("gradient",), raise_exception=False)
    assert not report.ok
    assert "(required)" in str(report)
    with pytest.raises(OpCheckError):
        opcheck(op, (tensor([1.0]),), require="gradient")


def test_what_is_no_single_operator_is_refused(lib: Library) -> None:
    with pytest.raises(ArgumentError, match="write `\\(x,\\)`"):
        opcheck(doubled(lib), tensor([1.0]))
    for wrong in (lambda x: x, 3, np.zeros(3)):
        with pytest.raises(ArgumentError, match="opcheck takes an operator"):
            opcheck(wrong, (tensor([1.0]),))
    lib.define("g.one(Tensor x) -> Tensor")
    lib.define("g.two(Tensor x, Tensor y) -> Tensor")
    with pytest.raises(ArgumentError, match="several overloads"):
        opcheck(oplib.ops.t.g, (tensor([1.0]),))


def test_an_operator_is_named_by_a_packet_and_by_its_name(lib: Library) -> None:
    doubled(lib)
    for op in ("t::f", oplib.ops.t.f):
        assert opcheck(op, (tensor([1.0]),), checks="fake").ok


def test_the_error_carries_the_report_after_all_checks_ran(lib: Library) -> None:
    op = doubled(lib, fake=lambda x: TensorSpec((7,), x.dtype))
    with pytest.raises(OpCheckError) as caught:
        opcheck(op, (tensor([1.0]),))
    report: Any = caught.value.report
    assert report["fake"].status == "failed"
    assert report["determinism"].status == "passed"


def test_the_first_cause_is_chained(lib: Library) -> None:
    op = operator(lib, "f(Tensor x) -> Tensor", lambda x: x[...], fake=like("x"))
    with pytest.raises(OpCheckError) as caught:
        opcheck(op, (tensor([1.0]),))
    assert isinstance(caught.value.__cause__, oplib.AliasError)


def test_the_tensors_of_the_caller_are_never_touched(lib: Library) -> None:
    def kernel(x: Any, y: Any) -> Any:
        x += 1
        return x + y

    op = operator(lib, "f(Tensor(a!) x, Tensor y) -> Tensor", kernel, fake=broadcast("x", "y"))
    x, y = leaf([1.0, 2.0]), tensor([3.0, 4.0])
    before = (x.array.copy(), x.inplace_version, x.requires_grad, x.grad, x.is_leaf)
    opcheck(op, (x, y), raise_exception=False)
    assert x.array.tolist() == before[0].tolist()
    assert (x.inplace_version, x.requires_grad, x.grad, x.is_leaf) == before[1:]


def test_memory_shared_by_arguments_is_shared_by_their_copies() -> None:
    buffer = np.arange(6.0)
    a, b = oplib.from_numpy(buffer[1:4]), oplib.from_numpy(buffer[2:])
    copied_a, copied_b, again = copy_tree([a, b, a])
    assert copied_a is again
    copied_a.array[1] = 77.0
    assert copied_b.array[0] == 77.0
    assert buffer.tolist() == [0, 1, 2, 3, 4, 5]
    assert copied_a.strides == a.strides


@given(
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(["f8", "f4", "c16", "i2", "?"]),
    st.sampled_from(sorted(LAYOUTS)),
)
def test_copies_keep_values_strides_and_flags(shape: list[int], dtype: str, layout: str) -> None:
    array = LAYOUTS[layout]((np.arange(np.prod(shape, dtype=int)) % 3).reshape(shape).astype(dtype))
    (copy,) = copy_tree([array])
    assert same_bytes(np.array(copy), np.array(array))
    assert not np.shares_memory(copy, array)
    assert copy.flags.writeable == array.flags.writeable
    assert copy.strides == array.strides or not array.size


def test_numpy_arrays_are_taken_for_tensors(lib: Library) -> None:
    assert opcheck(doubled(lib), (np.ones((2, 3)),)).ok


def test_arguments_that_are_missing_are_made_up(lib: Library) -> None:
    report = opcheck(doubled(lib))
    assert report.ok
    assert report.samples > 10


def test_samples_given_by_the_caller_are_used_as_they_are(lib: Library) -> None:
    samples = [((tensor([1.0]),), {}), ((tensor([[2.0]]),), {})]
    report = opcheck(doubled(lib), samples=samples)
    assert report.samples == 2
    assert opcheck(doubled_again(lib), (tensor([1.0]),), samples=3).samples == 4


def doubled_again(lib: Library) -> Any:
    return operator(lib, "again(Tensor x) -> Tensor", lambda x: x + x, fake=like("x"))


def test_registered_samples_are_used(lib: Library) -> None:
    op = operator(
        lib, "f(Tensor x, int k) -> Tensor", lambda x, k: x + x, fake=lambda x, k: like_spec(x)
    )
    oplib.register_samples(op, lambda: [((tensor([1.0]), 7), {})], lib=lib)
    report = opcheck(op, samples=0)
    assert report.samples == 1
    assert report.ok


def test_a_call_of_the_caller_that_raises_is_the_operators_failure(lib: Library) -> None:
    def kernel(x: Any) -> Any:
        raise ZeroDivisionError("mine")

    op = operator(lib, "f(Tensor x) -> Tensor", kernel, fake=like("x"))
    report = opcheck(op, (tensor([1.0]),), raise_exception=False)
    assert report["schema"].status == "failed"
    assert "ZeroDivisionError: mine" in str(report)
    assert "test_opcheck.py" in str(report)
    assert report["alias"].status == "skipped"
    assert report["alias"].reason.startswith("no valid sample found: ZeroDivisionError")


def test_fake_arguments_are_skipped_never_passed(lib: Library) -> None:
    fake = oplib.FakeTensorMode().from_tensor(tensor([1.0]))
    report = opcheck(doubled(lib), (fake,))
    assert {(r.status, r.reason) for r in report} == {("skipped", "all arguments are fake")}


def test_an_exception_of_a_check_is_told_from_the_operators(
    lib: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(trial: Any) -> Any:
        raise LookupError("planted")

    check = replace(CHECKS["alias"], examine=broken)
    monkeypatch.setattr(sys.modules["oplib.testing.opcheck"], "CHECKS", {"alias": check})
    with pytest.raises(LookupError, match="planted") as caught:
        opcheck(doubled(lib), (tensor([1.0]),))
    assert "raised by opcheck itself" in caught.value.__notes__[0]


def test_nothing_is_cached_between_two_runs(lib: Library) -> None:
    op = doubled(lib)
    assert opcheck(op, (tensor([1.0]),)).ok
    oplib.register_fake(op, lambda x: TensorSpec((5,), x.dtype), override=True)
    assert not opcheck(op, (tensor([1.0]),), raise_exception=False).ok


def test_tensors_without_effect_or_result_are_remarked(lib: Library) -> None:
    op = operator(lib, "f(Tensor x) -> ()", lambda x: None, effects=())
    report = opcheck(op, (tensor([1.0]),))
    assert report.ok
    assert any("declares no effects" in note for note in report.notes)


# ---------------------------------------------------------------------- comparison


def noisy(lib: Library, error: float) -> Any:
    count = itertools.count()
    return operator(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: np.array((x + x) * (1 + error * (next(count) % 2)), order="C"),
        fake=lambda x: TensorSpec(x.shape, x.dtype),
    )


def test_tolerances_replace_the_defaults_and_zero_is_honoured(lib: Library) -> None:
    op, args = noisy(lib, 1e-12), (tensor([1.0, 3.0]),)
    assert opcheck(op, args, checks="schema").ok
    report = opcheck(op, args, checks="schema", rtol=0, atol=0, raise_exception=False)
    assert report["schema"].status == "failed"
    with oplib.override("t::f"):
        op = noisy(lib, 1e-4)
        assert not opcheck(op, args, checks="schema", raise_exception=False).ok
        assert opcheck(op, args, checks="schema", rtol=1e-3).ok


def test_a_comparison_of_the_caller_replaces_that_of_results(lib: Library) -> None:
    op, args = noisy(lib, 1e-2), (tensor([1.0, 3.0]),)
    seen = []

    def compare(actual: Any, expected: Any, where: Any) -> str | None:
        seen.append((where.check, where.name, where.index))
        return None

    assert opcheck(op, args, checks="schema", compare=compare).ok
    assert ("schema", "result 0", 0) in seen
    assert opcheck(op, args, checks="schema", compare={0: compare}).ok
    assert opcheck(op, args, checks="schema", compare={np.dtype("float64"): compare}, samples=0).ok
    report = opcheck(
        op, args, checks="schema", compare=lambda a, e, w: "not mine", raise_exception=False
    )
    assert "not mine" in str(report)


def test_a_comparison_of_the_caller_is_not_asked_about_bytes(lib: Library) -> None:
    def compare(actual: Any, expected: Any, where: Any) -> str | None:
        raise AssertionError(where.check)

    checks = ("mutation", "alias", "fake")
    assert opcheck(doubled(lib), (tensor([1.0]),), checks=checks, compare=compare).ok


# ---------------------------------------------------------------------- the report


def test_text_json_and_html_carry_the_same_statuses(lib: Library) -> None:
    op = doubled(lib, fake=lambda x: TensorSpec((7,), x.dtype))
    report = opcheck(op, (tensor(np.ones((2, 3))),), raise_exception=False)
    data = json.loads(report.to_json())
    statuses = {result.check: result.status for result in report}
    assert {check["check"]: check["status"] for check in data["checks"]} == statuses
    html = report._repr_html_()
    for result in report:
        assert result.check in html
        assert result.summary.split()[0] in str(report)
    assert max(map(len, str(report).splitlines())) < 100


def test_a_failure_names_operator_place_sample_result_and_figures(lib: Library) -> None:
    op = doubled(lib, fake=lambda x: TensorSpec(x.shape, np.dtype("float32")))
    report = opcheck(op, (tensor([[1.0, 2.0]]),), checks="fake", raise_exception=False)
    (failure, *_) = report["fake"].failures
    assert failure.operator == "t::f"
    assert failure.facet == "fake rule"
    assert "tests/testing/helpers.py:" in failure.site
    assert failure.sample.startswith(("as given: x f64[1, 2]", "sizes"))
    assert (failure.where, failure.problem) == ("result 0", "wrong dtype")
    assert (failure.expected, failure.got) == ("float64", "float32")


def test_the_smallest_failing_call_is_kept(lib: Library) -> None:
    op = doubled(lib, fake=lambda x: TensorSpec((3, 4), x.dtype))
    report = opcheck(op, (tensor(np.ones((3, 4))),), checks="fake", raise_exception=False)
    assert report["fake"].failures[0].size <= 4


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_the_reproduction_fails_the_same_way(lib: Library, layout: str) -> None:
    op = doubled(lib, fake=lambda x: TensorSpec(x.shape, np.dtype("float32")))
    x = oplib.from_numpy(LAYOUTS[layout](np.arange(6.0).reshape(2, 3)))
    report = opcheck(op, (x,), checks="fake", samples=0, raise_exception=False)
    (failure,) = report["fake"].failures
    with pytest.raises(OpCheckError) as caught:
        exec(failure.reproduction, {})
    again: Any = caught.value.report
    assert again["fake"].failures[0].problem == failure.problem
    assert again["fake"].failures[0].sample == failure.sample


DEFINED = """
import enum, numpy as np, oplib

class Mode(enum.Enum):
    PLAIN = 1

oplib.register_opaque_type(Mode, "repeated.Mode")
lib = oplib.Library("repeated", "FRAGMENT")
twice = lib.define("twice(Tensor x, repeated.Mode mode) -> Tensor").op
twice.register_kernel("cpu", lambda x, mode: x * 2)
twice.register_fake(lambda x, mode: oplib.TensorSpec(x.shape, np.dtype("float32")))

class Layer(oplib.PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * 3
"""


@pytest.mark.parametrize("name", ["twice", "Layer"])
def test_the_reproduction_runs_in_a_fresh_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "repeated_ops.py").write_text(DEFINED, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("repeated_ops")
    try:
        args = (tensor(np.ones(2)), *([module.Mode.PLAIN] if name == "twice" else []))
        check = "fake" if name == "twice" else "gradient"
        report = opcheck(getattr(module, name), args, checks=check, raise_exception=False)
    finally:
        module.lib.close()
        del sys.modules["repeated_ops"]
    failure = report[check].failures[0]
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    again = subprocess.run(
        [sys.executable, "-c", failure.reproduction],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert again.returncode == 1
    assert "OpCheckError" in again.stderr, again.stderr
    assert failure.problem in again.stderr, again.stderr


def test_the_same_seed_gives_the_same_text(lib: Library) -> None:
    op = doubled(lib, fake=lambda x: TensorSpec((3, 4), x.dtype))
    texts = {
        str(opcheck(op, (tensor(np.ones((3, 4))),), seed=4, raise_exception=False))
        for _ in range(2)
    }
    assert len(texts) == 1


# ---------------------------------------------------------------------- PyLayers


class Product(oplib.PyLayer):
    """A product with its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, y = ctx.saved_tensors
        return grad * y, grad * x


class WrongProduct(Product):
    """A product whose gradients are in the wrong order."""

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, y = ctx.saved_tensors
        return grad * x, grad * y


def test_a_layer_is_checked_without_a_schema() -> None:
    report = opcheck(Product, (tensor([1.0, 2.0]), tensor([3.0, 5.0])))
    assert report.ok
    statuses = {result.check: result.status for result in report}
    assert statuses == dict.fromkeys(
        ("mutation", "gradient", "second_gradient", "determinism", "layout", "threads"), "passed"
    )
    report = opcheck(Product, (tensor([1.0]), tensor([3.0])), checks="fake")
    assert report["fake"].reason == "a PyLayer has no schema"


def test_a_layer_with_a_wrong_backward_fails() -> None:
    args = (tensor([1.0, 2.0]), tensor([3.0, 5.0]))
    report = opcheck(WrongProduct, args, checks="gradient", raise_exception=False)
    assert report["gradient"].status == "failed"
    assert "wrong order" in str(report)
    assert "test_opcheck.py" in str(report)
