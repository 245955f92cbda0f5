# ruff: noqa: UP037  (strings inside postponed annotations are what is tested)
"""Annotations that are strings, as every one in this file is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

from oplib.errors import SchemaError
from oplib.schema import infer, infer_schema, kernel_convention, register_opaque_type
from tests.schema.helpers import Tensor

if TYPE_CHECKING:
    from somewhere import Missing


class Stats(NamedTuple):
    mean: Tensor
    counts: list[int]


def module_level(x: Tensor, y: list[Tensor] | None = None) -> tuple[Tensor, int]: ...


def missing(x: Tensor, y: Missing | None) -> None: ...


def missing_return(x: Tensor) -> Missing: ...


def named(x: Tensor) -> Stats: ...


def test_names_resolve_in_the_globals_of_the_function():
    text = "(Tensor x, Tensor[]? y=None) -> (Tensor, SymInt)"
    assert infer_schema(module_level, mutates_args=()) == text
    assert infer(module_level, mutates_args=()).convention == "tensor"


def test_names_resolve_in_the_closure():
    def outer():
        class Inner:
            pass

        def f(x: Inner) -> None:
            return Inner

        return f, Inner

    function, inner = outer()
    registration = register_opaque_type(inner, "closure.Inner")
    assert infer_schema(function, mutates_args=()) == "(closure.Inner x) -> ()"
    registration.remove()


def test_names_resolve_in_the_frame_that_decorates():
    class Here:
        pass

    registration = register_opaque_type(Here, "frame.Here")

    def f(x: Here, y: list[Here]) -> None: ...

    assert infer_schema(f, mutates_args=()) == "(frame.Here x, frame.Here[] y) -> ()"
    registration.remove()


def test_globals_come_before_the_closure():
    Tensor = int  # noqa: N806

    def f(x: Tensor) -> None:
        return Tensor

    assert infer_schema(f, mutates_args=()) == "(Tensor x) -> ()"


def test_a_name_that_does_not_resolve_is_reported_by_name_and_parameter():
    message = r"`Missing` in the annotation of `y` is not defined where .*postponed.*py:\d+ was"
    with pytest.raises(SchemaError, match=message) as caught:
        infer_schema(missing, mutates_args=())
    assert "TYPE_CHECKING" in caught.value.hint
    with pytest.raises(SchemaError, match="`Missing` in the return annotation"):
        infer_schema(missing_return, mutates_args=())


def test_names_that_do_not_resolve_say_nothing_about_arrays():
    assert kernel_convention(missing) == "tensor"
    assert kernel_convention(missing_return) == "tensor"

    def f(x: Missing) -> Missing: ...

    assert kernel_convention(f) is None


@pytest.mark.parametrize("text", ["np.nothing", "list[", "1 / 0", "Tensor | 3"])
def test_an_annotation_that_cannot_be_evaluated_is_shown(text):
    def f(x) -> None: ...

    f.__annotations__["x"] = text
    with pytest.raises(SchemaError, match="in the annotation of `x` cannot be evaluated"):
        infer_schema(f, mutates_args=())
    assert kernel_convention(f) is None


def test_nested_strings_resolve():
    def f(x: list["Tensor"], y: dict[str, "list[np.ndarray]"]) -> None: ...

    with pytest.raises(SchemaError, match="mixed"):
        infer_schema(f, mutates_args=())

    def g(x: list["Tensor"], y: "list['Tensor | None']") -> None: ...

    assert infer_schema(g, mutates_args=()) == "(Tensor[] x, Tensor?[] y) -> ()"


def test_a_named_tuple_resolves_its_own_strings():
    assert infer_schema(named, mutates_args=()) == "(Tensor x) -> (Tensor mean, SymInt[] counts)"


def test_the_function_behind_a_method_resolves_names():
    class Kernel:
        def __call__(self, x: Tensor) -> Tensor: ...

        def method(self, x: Tensor) -> Tensor: ...

    assert infer_schema(Kernel(), mutates_args=()) == "(Tensor x) -> Tensor"
    assert infer_schema(Kernel().method, mutates_args=()) == "(Tensor x) -> Tensor"
    assert kernel_convention(Kernel()) == kernel_convention(Kernel().method) == "tensor"
