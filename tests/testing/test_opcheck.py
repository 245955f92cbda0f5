"""opcheck fails every operator that is wrong on purpose, by the check named, naming the fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oplib import Library
from oplib.testing import opcheck
from oplib.testing.opcheck import CHECKS
from oplib.testing.report import OpCheckReport
from tests.testing.helpers import scope
from tests.testing.wrong_operators import WRONG, Wrong


@pytest.fixture
def lib() -> Iterator[Library]:
    with scope() as library:
        yield library


def checked(lib: Library, wrong: Wrong, **options: object) -> OpCheckReport:
    op, args, *kwargs = wrong.make(lib)
    return opcheck(op, args, *kwargs, raise_exception=False, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: w.name)
def test_a_wrong_operator_fails_the_check_named_and_the_message_names_the_fault(
    lib: Library, wrong: Wrong
) -> None:
    report = checked(lib, wrong, checks=wrong.check)
    assert report[wrong.check].status == "failed", str(report)
    assert any(wrong.words in str(failure) for failure in report[wrong.check].failures), str(report)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: w.name)
def test_a_wrong_operator_passes_every_check_unrelated_to_its_fault(
    lib: Library, wrong: Wrong
) -> None:
    unrelated = [name for name in CHECKS if name != wrong.check and name not in wrong.also]
    report = checked(lib, wrong, checks=unrelated)
    assert report.ok, str(report)
