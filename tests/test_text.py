"""The pieces error messages are made of."""

from __future__ import annotations

import functools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplib import _text
from oplib._text import caret_excerpt, did_you_mean, function_site, join_names, short_repr


def test_the_nearest_candidate_is_proposed() -> None:
    assert did_you_mean("sofmax", ["softmax", "sigmoid"]) == " (did you mean 'softmax'?)"
    assert did_you_mean("SoftMax", ["softmax"]) == " (did you mean 'softmax'?)"
    assert did_you_mean("xyz", ["softmax"]) == ""
    assert did_you_mean("x", []) == ""


def test_names_are_joined_as_in_a_sentence() -> None:
    assert join_names([]) == ""
    assert join_names(["a"]) == "`a`"
    assert join_names(["a", "b", "c"]) == "`a`, `b` and `c`"
    assert join_names("ab", "or") == "`a` or `b`"


def test_carets_stand_below_what_they_mark() -> None:
    assert caret_excerpt("f(Tensor y)", 2, 8) == "  f(Tensor y)\n    ^^^^^^"
    assert caret_excerpt("f(", 2, 2) == "  f(\n    ^"


@given(st.text(max_size=200), st.data())
def test_carets_of_long_texts_agree_with_the_cut(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    shown, carets = caret_excerpt(text, start, end).split("\n")
    assert len(shown) <= 2 + 60 + 6
    column = carets.index("^")
    if start < len(text) and text[start].isprintable():
        assert shown[column] == text[start]


def test_a_repr_is_short_and_on_one_line() -> None:
    assert short_repr([1, 2]) == "[1, 2]"
    assert short_repr("a" * 100) == "'" + "a" * 56 + "..."
    assert short_repr({"a": "b\nc"}, 40) == "{'a': 'b\\nc'}"


def test_a_repr_that_raises_does_not_hide_the_error_at_hand() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    assert short_repr(Broken()) == "<Broken whose repr raised ZeroDivisionError>"


def here() -> None:
    """Mark a place."""


class Callable:
    def __call__(self) -> None:
        """Mark a place."""


def test_a_function_is_found_through_what_wraps_it() -> None:
    site = f"tests/test_text.py:{here.__code__.co_firstlineno}"

    @functools.wraps(here)
    def wrapper() -> None:
        here()

    for function in (here, functools.partial(here), wrapper, functools.partial(wrapper)):
        assert function_site(function) == site
    assert function_site(Callable()).startswith("tests/test_text.py:")
    assert function_site(math.sin) == "built-in sin"
    assert function_site(3) == "built-in int"


def test_the_caller_is_outside_of_the_package() -> None:
    assert _text.caller_site().startswith("tests/test_text.py:")


@pytest.mark.parametrize(
    ("part", "internal"),
    [("tensor/tensor.py", True), ("std/elementwise.py", False), ("meta/stage.py", True)],
)
def test_built_in_operators_count_as_user_code(part: str, internal: bool) -> None:
    assert _text.is_internal_file(_text._PACKAGE + part) == internal
    assert _text.is_internal_file("<oplib std::mul bind>")
    assert not _text.is_internal_file("user.py")
