"""`oplib.array_api` is the array API standard 2024.12, compared with ``array-api-strict``.

Every function of the standard is called on generated inputs: each dtype, shapes with and without
elements, keyword arguments. Where strict refuses a call the standard says nothing about it, and
neither does this test. `DEVIATIONS` holds what differs, with the reason; the page of the operators
shows the same table.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import array_api
from oplib.testing import gradcheck
from tests.array_api.calls import BINARY, CALLS, DTYPES, Arrays
from tests.array_api.compare import difference, found, outcome
from tests.array_api.more_calls import DEVIATIONS, STANDARD

pytestmark = pytest.mark.peer("array_api_strict")

DOCS = Path(__file__).parents[2] / "docs" / "builtins.md"


def compared(name: str, dtype: str) -> list[str]:
    """Return how oplib differs from strict in the calls of a function on one dtype."""
    import array_api_strict as strict

    generate = CALLS[name]
    arrays = Arrays(dtype)
    extra = (name,) if generate.__code__.co_argcount == 2 else ()
    differences = []
    count = 0
    for args, kwargs in generate(arrays, *extra):
        expected = outcome(strict, strict.asarray, name, args, kwargs)
        if isinstance(expected, Exception):
            continue  # outside of the standard
        count += 1
        actual = outcome(array_api, oplib.from_numpy, name, args, kwargs)
        if isinstance(actual, Exception):
            text = f"{type(actual).__name__}: {actual}"
        else:
            text = difference(name, actual, expected)
        if text:
            differences.append(f"{name}({args}, {kwargs}): {text}")
    COMPARED[name] = COMPARED.get(name, 0) + count
    return differences


COMPARED: dict[str, int] = {}
"""Function -> how many calls the standard allows were compared."""


@pytest.mark.parametrize("name", [name for name in CALLS if name != "__array_namespace_info__"])
def test_a_function_agrees_with_the_standard(name):
    COMPARED[name] = 0
    differences = [text for dtype in DTYPES for text in compared(name, dtype)]
    assert COMPARED[name], "strict accepted no call"
    if name in DEVIATIONS:
        assert differences, f"{name} agrees: remove it from DEVIATIONS"
    else:
        assert not differences, "\n".join(differences[:5])


def test_a_function_that_is_wrong_is_reported(monkeypatch):
    monkeypatch.setattr(array_api, "floor", lambda x: x + 0.0)
    assert compared("floor", "float64")
    monkeypatch.setattr(array_api, "unique_counts", lambda x: array_api.unique_inverse(x))
    assert compared("unique_counts", "int8")
    monkeypatch.setattr(array_api, "sum", lambda x, **options: x.mean(0))
    assert compared("sum", "float32")


@pytest.mark.parametrize("name", BINARY)
def test_two_dtypes_promote_as_the_standard_says(name):
    import array_api_strict as strict

    differences = []
    for left in DTYPES:
        for right in DTYPES:
            args = (Arrays(left)(3), abs(Arrays(right)(3)).astype(right))
            expected = outcome(strict, strict.asarray, name, args, {})
            if not isinstance(expected, Exception):
                actual = outcome(array_api, oplib.from_numpy, name, args, {})
                text = difference(name, actual, expected)
                differences += [f"{left}, {right}: {text}"] if text else []
    assert not differences, differences


# ---------------------------------------------------------------------- gradients

GRADIENTS: dict[str, Callable[..., Any]] = {
    "clip": lambda x, y: array_api.clip(x, y, 1.0),
    "meshgrid": lambda x, y: array_api.meshgrid(x[0], y[0])[1],
    "cumulative_prod": lambda x, y: array_api.cumulative_prod(x, axis=1, include_initial=True),
    "diff": lambda x, y: array_api.diff(x, n=2, append=y),
    "repeat": lambda x, y: array_api.repeat(x, oplib.tensor([2, 0, 1]), axis=0),
    "take": lambda x, y: array_api.take(x * y, oplib.tensor([0, 0, 2]), axis=1),
    "sort": lambda x, y: array_api.sort(x * y, descending=True),
    "unique_values": lambda x, y: array_api.unique_values(x * y),
    "astype": lambda x, y: array_api.astype(x * y, array_api.complex128),
    "std": lambda x, y: array_api.std(x, axis=0, correction=0.5),
    "linalg.cross": lambda x, y: array_api.linalg.cross(x, y),
    "linalg.vecdot": lambda x, y: array_api.linalg.vecdot(x, y, axis=-2),
    "linalg.matrix_norm": lambda x, y: array_api.linalg.matrix_norm(x, ord="nuc"),
    "linalg.pinv": lambda x, y: array_api.linalg.pinv(x),
    "linalg.qr": lambda x, y: array_api.linalg.qr(x, mode="complete").R,
    "linalg.svdvals": lambda x, y: array_api.linalg.svdvals(x),
    "linalg.svd": lambda x, y: array_api.linalg.svd(x[:2]).S,
    "linalg.matrix_power": lambda x, y: array_api.linalg.matrix_power(x, -2),
    "linalg.trace": lambda x, y: array_api.linalg.trace(x * y, offset=1),
    "fft.hfft": lambda x, y: array_api.fft.hfft(x * y),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_flow_through_what_is_made_here(name):
    rng = np.random.default_rng(1)
    tensors = [oplib.tensor(rng.normal(size=(3, 3)) + np.eye(3)) for _ in range(2)]
    used = [x.requires_grad_() for x in tensors]
    assert gradcheck(GRADIENTS[name], used)


# ---------------------------------------------------------------------- coverage


def present(name: str) -> bool:
    if name.startswith("array."):
        return hasattr(oplib.Tensor, name.removeprefix("array."))
    try:
        found(array_api, name)
    except AttributeError:
        return False
    return True


def test_everything_the_standard_lists_is_there_and_no_public_name_is_untested():
    import array_api_strict as strict

    assert [name for name in STANDARD if not present(name)] == []
    listed = {name for name in strict.__all__ if not name.startswith("_")}
    own = {"broadcast_shapes", "Device", "ArrayAPIStrictFlags"}  # newer, and strict's own
    own |= {name for name in listed if name.endswith("array_api_strict_flags")}
    assert listed - own - {"fft", "linalg"} <= set(STANDARD)
    extensions = [f"{part}.{n}" for part in ("fft", "linalg") for n in vars(found(array_api, part))]
    assert {n for n in extensions if "__" not in n} == {n for n in CALLS if "." in n}
    assert {n for n in array_api.__all__ if n not in ("fft", "linalg")} <= set(STANDARD)


def test_the_page_shows_the_coverage_and_every_deviation():
    text = DOCS.read_text("utf-8")
    agreeing = len(STANDARD) - len(DEVIATIONS)
    assert f"{len(STANDARD)} names" in text
    assert f"{agreeing} agree" in text
    for name, reason in DEVIATIONS.items():
        assert f"| `{name}` | {reason} |" in text
