# ruff: noqa: UP006, UP007, UP035, UP045  (every spelling of an annotation is tested)
"""What each annotation is in a schema. Annotations here are objects; postponed ones come after."""

import collections
import collections.abc
import dataclasses
import enum
import itertools
import numbers
import pathlib
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Dict, List, Literal, NamedTuple, NewType, Optional, Tuple, Union

import numpy as np
import numpy.typing as npt
import pytest
import typing_extensions

from oplib.dtypes import Device
from oplib.errors import RegistrationError, SchemaError
from oplib.schema import (
    SchemaType,
    infer,
    infer_schema,
    kernel_convention,
    parse,
    parse_type,
    register_opaque_type,
)
from tests.schema.helpers import Codec, Level, Mode, Tensor

Rows = NewType("Rows", int)
Shape = typing_extensions.TypeAliasType("Shape", list[int])
Item = typing.TypeVar("Item")
Many = typing_extensions.TypeAliasType("Many", list[Item], type_params=(Item,))
Dims: typing.TypeAlias = tuple[int, ...]


class Pair(NamedTuple):
    mean: Tensor
    count: int


class Nested(NamedTuple):
    mean: "Tensor"
    rows: "list[Codec]"


Untyped = collections.namedtuple("Untyped", "a b")


@dataclasses.dataclass
class Options:
    depth: int


class Plain:
    pass


class Color(enum.Enum):
    RED = 1
    BLUE = "blue"


def parameter(annotation, **default):
    """Return the text of a parameter with this annotation."""

    def f(x) -> None: ...

    f.__annotations__["x"] = annotation
    if default:
        f.__defaults__ = (default["default"],)
    text = infer_schema(f, mutates_args=())
    assert str(parse(text, nameless=True)) == text
    return text.removeprefix("(").removesuffix(" x) -> ()").removesuffix(") -> ()")


def returned(annotation):
    """Return the text of the returns with this annotation."""

    def f() -> None: ...

    f.__annotations__["return"] = annotation
    return infer_schema(f, mutates_args=()).removeprefix("() -> ")


def refused(annotation, hint, *, rule="annotation", where="the annotation of `x`"):
    with pytest.raises(SchemaError) as caught:
        parameter(annotation)
    error = caught.value
    assert error.rule == rule
    assert where in error.message
    assert "test_annotations.py:" in error.message
    assert "`f`" in error.message
    assert hint in error.hint, error.hint


SAME = {
    "Tensor": [
        Tensor,
        np.ndarray,
        npt.NDArray[np.float64],
        np.ndarray[Any, np.dtype[np.int8]],
        npt.NDArray,
    ],
    "SymInt": [int, typing.SupportsIndex, numbers.Integral, Rows],
    "float": [float],
    "bool": [bool],
    "str": [str, Literal["a", "b"]],
    "complex": [complex],
    "Scalar": [
        numbers.Number,
        numbers.Real,
        numbers.Complex,
        int | float,
        Union[float, int],
        bool | int | float | complex,
        Union[int, Union[float, bool]],
    ],
    "Scalar?": [int | float | None, Optional[Union[int, float]]],
    "ScalarType": [
        np.dtype,
        np.dtype[Any],
        npt.DTypeLike,
        type[np.generic],
        typing.Type[np.generic],
        type[np.float32],
    ],
    "ScalarType?": [npt.DTypeLike | None, Optional[np.dtype]],
    "Device": [Device],
    "Generator": [np.random.Generator],
    "Any": [Any],
    "Tensor?": [Optional[Tensor], Tensor | None, Union[Tensor, None], Union[None, Tensor]],
    "Tensor[]": [
        list[Tensor],
        List[Tensor],
        typing.Sequence[Tensor],
        Sequence[Tensor],
        tuple[Tensor, ...],
        Tuple[Tensor, ...],
        list["Tensor"],
        List["Tensor"],
        "list[Tensor]",
    ],
    "Tensor[]?": [Optional[list[Tensor]], list[Tensor] | None],
    "Tensor?[]": [list[Optional[Tensor]], list[Tensor | None], Sequence["Tensor | None"]],
    "Tensor?[]?": [Optional[list[Tensor | None]]],
    "SymInt[][]": [list[list[int]], Sequence[tuple[int, ...]]],
    "SymInt[]": [Shape, Dims, Many[int], Annotated[Shape, "note"]],
    "(SymInt, str)": [tuple[int, str], Tuple[int, str], tuple["int", "str"]],
    "(Tensor)": [tuple[Tensor]],
    "Dict(str, Tensor[])": [
        dict[str, list[Tensor]],
        Dict[str, List[Tensor]],
        Mapping[str, list[Tensor]],
        typing.Mapping[str, list[Tensor]],
        dict[Literal["a", "b"], list[Tensor]],
    ],
    "Dict(int, SymInt)": [dict[int, int]],
    "Union(Tensor, float)": [Union[float, Tensor], float | Tensor, Union["Tensor", float]],
    "Union(Scalar, Tensor)": [int | float | Tensor],
    "Union(SymInt, str)": [Literal[1, "a"], int | str, Literal["auto"] | int],
    "str?": [Literal["a", None], Optional[Literal["a"]], Literal["a"] | None],
    "tests.schema.test_annotations.Color": [Color, Literal[Color.RED], Color | Literal[Color.RED]],
    "float?": [Annotated[Optional[float], "note"], Annotated[float, "note"] | None],
    "int[2]": [
        Annotated[list[int], SchemaType("int[2]")],
        Annotated["list[int]", SchemaType("int[2]")],
    ],
    "int[2]?": [Annotated[list[int], SchemaType("int[2]")] | None],
}


@pytest.mark.parametrize(
    ("text", "annotation"), [(text, each) for text, group in SAME.items() for each in group]
)
def test_an_annotation_has_one_schema_type(text, annotation):
    assert parameter(annotation) == text


SCALARS = {
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
    complex: "complex",
    Tensor: "Tensor",
}
SHAPES = {
    "{}": lambda t: t,
    "{}?": lambda t: Optional[t],
    "{}[]": lambda t: list[t],
    "{}?[]": lambda t: list[Optional[t]],
    "{}[]?": lambda t: Optional[list[t]],
    "{}?[]?": lambda t: Optional[list[Optional[t]]],
}


@pytest.mark.parametrize(("scalar", "shape"), list(itertools.product(SCALARS, SHAPES)))
def test_every_shape_of_every_scalar_infers_for_parameters_and_returns(scalar, shape):
    annotation, text = SHAPES[shape](scalar), shape.format(SCALARS[scalar])
    assert parameter(annotation) == text
    assert returned(annotation) == text
    assert str(parse_type(text)) == text


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (None, "()"),
        (type(None), "()"),
        (Tensor, "Tensor"),
        (tuple[Tensor, int, float, bool], "(Tensor, SymInt, float, bool)"),
        (Tuple[Tensor, int], "(Tensor, SymInt)"),
        (tuple[list[Tensor], Tensor], "(Tensor[], Tensor)"),
        (tuple[Tensor], "((Tensor))"),
        (tuple[()], "()"),
        (Tuple[()], "()"),
        ((), "()"),
        (tuple[Tensor, ...], "Tensor[]"),
        (list[Tensor], "Tensor[]"),
        (tuple[Tensor, Tensor | None], "(Tensor, Tensor?)"),
        (tuple[tuple[Tensor, int], dict[str, Tensor]], "((Tensor, SymInt), Dict(str, Tensor))"),
        ((Tensor, Tensor), "(Tensor, Tensor)"),
        ("(Tensor, Tensor)", "(Tensor, Tensor)"),
        ("tuple[Tensor, 'Tensor']", "(Tensor, Tensor)"),
        (Pair, "(Tensor mean, SymInt count)"),
        (Union[int, str], "Union(SymInt, str)"),
        (Optional[tuple[Tensor, int]], "((Tensor, SymInt)?)"),
        (typing_extensions.TypeAliasType("Two", tuple[Tensor, Tensor]), "(Tensor, Tensor)"),
    ],
)
def test_returns(annotation, text):
    assert returned(annotation) == text


def test_a_named_tuple_resolves_its_names_where_it_was_defined():
    registration = register_opaque_type(Codec, "Codec")
    assert returned(Nested) == "(Tensor mean, Codec[] rows)"
    registration.remove()


@pytest.mark.parametrize("annotation", [Tensor | int, list[Tensor | float], Optional[Tensor | int]])
def test_a_union_with_a_tensor_is_not_returned(annotation):
    with pytest.raises(SchemaError, match="the return annotation: a return's structure") as caught:
        returned(annotation)
    assert caught.value.rule == "union-tensor"
    assert "two operators" in caught.value.hint


def test_a_bare_tuple_is_not_returned():
    with pytest.raises(SchemaError, match="the return annotation: `tuple` has no schema type"):
        returned(tuple)


def test_unions_infer_while_numpy_typing_is_not_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy._typing")
    assert parameter(int | str) == "Union(SymInt, str)"


def test_an_untyped_namedtuple_is_not_returned():
    with pytest.raises(SchemaError, match="does not say the type of `a` and `b`"):
        returned(Untyped)


@pytest.mark.parametrize(
    ("annotation", "hint"),
    [
        (list, "list[Tensor]"),
        (List, "list[Tensor]"),
        (tuple, "tuple[int, ...]"),
        (Tuple, "tuple[int, ...]"),
        (dict, "dict[str, Tensor]"),
        (Dict, "dict[str, Tensor]"),
        (Sequence, "Sequence[Tensor]"),
        (set, "Sequence[T]"),
        (set[int], "Sequence[T]"),
        (typing.Set[int], "Sequence[T]"),
        (frozenset[int], "Sequence[T]"),
        (Iterable[int], "Sequence[T]"),
        (typing.Iterator[int], "Sequence[T]"),
        (collections.abc.MutableMapping[str, int], "dict[K, V]"),
        (bytes, "use str"),
        (Literal[b"a"], "use str"),
        (Callable, "data only"),
        (Callable[[int], int], "data only"),
        (typing.Callable[..., int], "data only"),
        (type, "numpy.dtype"),
        (type[int], "numpy.dtype"),
        (typing.TypeVar("T"), "no type variables"),
        (typing.ParamSpec("P"), "no type variables"),
        (list[Item], "no type variables"),
        (typing.Self, "name of the class"),
        (pathlib.Path, "use str"),
        (slice, "start, stop and step"),
        (npt.ArrayLike, "NDArray or Tensor"),
        (Optional[npt.ArrayLike], "NDArray or Tensor"),
        (np.float32, "use float"),
        (np.int64, "use int"),
        (np.bool_, "use bool"),
        (np.complex64, "use complex"),
        (np.matrix, "use numpy.ndarray"),
        (object, "use Any"),
        (Pair, "pass the fields"),
        (Options, "pass the fields"),
        (Plain, "oplib.register_opaque_type(Plain)"),
        (Optional[Plain], "oplib.register_opaque_type(Plain)"),
        (None, "T | None"),
        (Literal[None], "leave it out"),
        (list[...], "documentation"),
        (3, "documentation"),
        (typing.ClassVar[int], "documentation"),
    ],
)
def test_an_annotation_without_schema_type_is_refused_with_its_replacement(annotation, hint):
    refused(annotation, hint)


def test_an_empty_tuple_and_a_wrong_key_keep_their_rules():
    refused(tuple[()], "leave it out", rule="empty-tuple")
    refused(dict[Tensor, int], "str, int, float or bool", rule="dict-key")
    refused(dict[int | str, int], "str, int, float or bool", rule="dict-key")
    refused(Annotated[list[int], SchemaType("double[2]")], "use float", rule="unknown-type")


def test_a_foreign_tensor_class_is_told_from_ours():
    foreign = type("Tensor", (), {"__module__": "elsewhere"})
    refused(foreign, "use oplib.Tensor or numpy.ndarray")


def test_an_opaque_class_infers_after_it_is_registered():
    refused(Codec, "register_opaque_type(Codec)")
    registration = register_opaque_type(Codec)
    assert parameter(Codec | None) == "tests.schema.helpers.Codec?"
    registration.remove()
    refused(Codec, "register_opaque_type(Codec)")


def test_a_registered_generic_class_infers_by_its_name():
    class Box(typing.Generic[Item]):
        pass

    registration = register_opaque_type(Box, "Box")
    assert parameter(Box[int]) == "Box"
    registration.remove()


def test_a_local_class_says_why_it_is_refused():
    class Local:
        pass

    class Kind(enum.Enum):
        A = 1

    refused(Local, "move it to module level")
    with pytest.raises(SchemaError, match="defined inside a function"):
        parameter(Kind)
    registration = register_opaque_type(Local, name="my.Local")
    assert parameter(Local) == "my.Local"
    registration.remove()


@pytest.mark.parametrize(
    ("annotation", "choices"),
    [
        (Literal["nearest", "linear"], ("nearest", "linear")),
        (Optional[Literal["a", "b"]], ("a", "b")),
        (Literal["a", None], ("a",)),
        (Literal["a"] | Literal["b", "a"], ("a", "b")),
        (Literal["auto"] | int, ("auto",)),
        (Literal[1, "a", True], (1, "a", True)),
        (Literal[Color.RED], (Color.RED,)),
        (list[Literal["x", "y"]], ("x", "y")),
        (Literal["a"] | str, None),
        (str, None),
    ],
)
def test_the_values_of_a_literal_are_kept_beside_the_schema(annotation, choices):
    def f(x, other: int) -> None: ...

    f.__annotations__["x"] = annotation
    found = infer(f, mutates_args=()).choices
    assert found == ({} if choices is None else {"x": choices})


@pytest.mark.parametrize(
    ("annotations", "convention"),
    [
        ({"x": np.ndarray}, "array"),
        ({"x": npt.NDArray[np.float64] | None}, "array"),
        ({"x": Annotated[np.ndarray, SchemaType("Tensor")]}, "array"),
        ({"x": Annotated[list[np.ndarray], SchemaType("Tensor[]")]}, "array"),
        ({"x": Tensor}, "tensor"),
        ({"x": "Tensor"}, "tensor"),
        ({"x": list[Optional[Tensor]], "return": dict[str, "Tensor"]}, "tensor"),
        ({"x": int, "return": np.ndarray}, "array"),
        ({"x": int}, None),
        ({"x": Literal["Tensor"]}, None),
    ],
)
def test_annotations_say_what_a_function_works_on(annotations, convention):
    def f(x) -> None: ...

    f.__annotations__ = {"return": None, **annotations}
    assert kernel_convention(f) == convention
    assert infer(f, mutates_args=()).convention == convention


def test_arrays_and_tensors_do_not_mix():
    def f(x: np.ndarray, y: Tensor) -> None: ...

    def g(x: "Tensor") -> list[npt.NDArray[Any]]: ...

    for function in (f, g):
        with pytest.raises(
            RegistrationError, match=r"test_annotations\.py:\d+.*arrays and with Tensors"
        ):
            kernel_convention(function)
        with pytest.raises(SchemaError, match="arrays and Tensors are mixed"):
            infer(function, mutates_args=())


def test_a_function_without_annotations_works_on_whatever_the_key_says():
    assert kernel_convention(lambda x: x) is None
    assert kernel_convention(np.hypot) is None
    assert kernel_convention(len) is None
    assert kernel_convention(3) is None


def test_enums_are_registered_when_they_are_met():
    assert parameter(Mode) == "tests.schema.helpers.Mode"
    assert parameter(Level | None) == "tests.schema.helpers.Level?"
    assert parse("f(tests.schema.helpers.Mode m=FAST) -> ()").arguments[0].default is Mode.FAST
