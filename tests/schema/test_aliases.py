"""Alias annotations: where they stand, what they print, and the rules they keep."""

from __future__ import annotations

import pytest

from oplib.schema import AliasSet, ListType, OptionalType, TensorType, parse, parse_type
from tests.schema.helpers import argument_text, canonical, refused


def written(*names):
    return TensorType(AliasSet(frozenset(names), True))


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("Tensor!", written()),
        ("Tensor !", written()),
        ("Tensor!?", OptionalType(written())),
        ("Tensor(a!)", written("a")),
        ("Tensor(a!)?", OptionalType(written("a"))),
        ("Tensor(a!)[]", ListType(written("a"))),
        ("Tensor(a!)?[]", ListType(OptionalType(written("a")))),
        ("Tensor(a!)[]?", OptionalType(ListType(written("a")))),
        ("Tensor(a!)[2]", ListType(written("a"), 2)),
        ("Tensor![]", ListType(written())),
    ],
)
def test_a_written_tensor_is_written_wherever_it_stands(text, type_):
    assert parse_type(text) == type_
    (argument,) = parse(f"f({text} x) -> ()").arguments
    assert argument.is_written
    assert argument_text(f"{text} x") == f"{str(text).replace(' !', '!')} x"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("Tensor[](b!)", "Tensor(b!)[]"),
        ("Tensor[](a!)?", "Tensor(a!)[]?"),
        ("Tensor[]!", "Tensor![]"),
        ("Tensor?[](a!)", "Tensor(a!)?[]"),
        ("Tensor[][](a)", "Tensor(a)[][]"),
        ("Tensor[2](a!)", "Tensor(a!)[2]"),
        ("Tensor(b|a)", "Tensor(a|b)"),
        ("Tensor( a ! )", "Tensor(a!)"),
        ("Tensor(a -> b|c)", "Tensor(a -> b|c)"),
        ("Tensor(a! -> *)", "Tensor(a! -> *)"),
        ("Tensor(a -> a)", "Tensor(a)"),
        ("Tensor(* -> *)", "Tensor(*)"),
        ("Tensor(Z|_a|b)", "Tensor(Z|_a|b)"),
        ("(Tensor(a!), int)", "(Tensor(a!), int)"),
        ("Dict(str, Tensor(a!))", "Dict(str, Tensor(a!))"),
        ("Union(Tensor(a), int)", "Union(Tensor(a), int)"),
    ],
)
def test_annotations_print_behind_their_tensor_with_sorted_sets(text, printed):
    assert argument_text(f"{text} x") == f"{printed} x"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("Tensor?(a!)", "write Tensor(a!)?"),
        ("Tensor[]?(a!)", "write Tensor(a!)[]?"),
        ("Tensor?!", "write Tensor!?"),
        ("Tensor?(a!)[]", "write Tensor(a!)?"),
        ("Tensor(a)!", "write one annotation"),
        ("Tensor(a)(b)", "write one annotation"),
        ("Tensor(c!)[](d!)", "annotate the elements only"),
        ("(Tensor, int)(a!)", "annotate the Tensors inside it"),
        ("(Tensor, int)[](a!)", "annotate the Tensors inside it"),
        ("Dict(str, Tensor)(a!)", "annotate the Tensors inside it"),
        ("Dict(str, Tensor)!", "annotate the Tensors inside it"),
        ("Union(Tensor, int)(a)", "annotate the Tensors inside it"),
    ],
)
def test_an_annotation_elsewhere_is_refused_with_its_place(text, hint):
    refused(f"f({text} x) -> ()", "alias-place", hint=hint)


@pytest.mark.parametrize(
    "text",
    ["int(a!)", "str(b)", "Any(c!)", "Generator(d!)?", "int!?", "int[](a!)", "int[]!", "int?!"],
)
def test_only_tensors_are_annotated(text):
    refused(f"f({text} x) -> ()", "alias-non-tensor", hint="effects=")


@pytest.mark.parametrize(
    "text",
    ["Tensor(a!!)", "Tensor(a b)", "Tensor(a,b)", "Tensor(1)", "Tensor(a! x)", "Tensor(a! -> b!)"],
)
def test_an_annotation_has_one_shape(text):
    refused(f"f({text} x) -> ()", "expected-token")


@pytest.mark.parametrize("text", ["()", "(!)", "(a|a)", "(a|*)", "(*|a)", "(a -> )", "(a -> b|b)"])
def test_a_set_is_named_and_its_members_differ(text):
    refused(f"f(Tensor{text} x) -> ()", "alias-set")


@pytest.mark.parametrize("text", ["(*!)", "(a|b!)"])
def test_a_written_tensor_has_one_set_of_its_own(text):
    refused(f"f(Tensor{text} x) -> ()", "alias-write")


def test_a_reserved_word_is_no_set():
    refused("f(Tensor(in!) x) -> ()", "bad-name")


@pytest.mark.parametrize(
    "text",
    [
        "f(Tensor(a!) x) -> Tensor(b!)",
        "f(Tensor x) -> Tensor(a!)",
        "f(Tensor x) -> Tensor(a)",
        "f(Tensor[] x) -> Tensor(a)[]",
        "f(Tensor(*) x) -> Tensor(a)",
    ],
)
def test_a_set_on_a_return_is_carried_by_an_argument(text):
    refused(text, "return-set", message="no argument is labelled")


def test_the_wildcard_needs_no_argument():
    assert canonical("f(Tensor x) -> Tensor(*)")
    assert canonical("f(Tensor(a! -> *) x) -> Tensor(*)")
    assert canonical("f(Tensor(a -> b|c) x) -> Tensor(b)")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("f(Tensor(a) x) -> Tensor(a!)", "label it (a!)"),
        ("f(Tensor x) -> Tensor!", "label both (a!)"),
        ("f(Tensor! x) -> Tensor!", "label both (a!)"),
        ("f(Tensor(a) x) -> Tensor(a -> b)", "write one set"),
        ("f(Tensor(a -> b) x) -> Tensor(b!)", "label it (b!)"),
    ],
)
def test_a_written_return_is_a_written_argument(text, hint):
    refused(text, "return-write", hint=hint)


@pytest.mark.parametrize(
    "text",
    [
        "f(Tensor(a!)[] xs) -> Tensor(a!)",
        "f(Tensor(a!) x) -> Tensor(a!)?",
        "f(Tensor(a!)?[] xs) -> Tensor(a!)[]",
        "f(Tensor(a!)[]? xs) -> Tensor(a!)",
        "f(Tensor(a!) x, Tensor(b!) y) -> ((Tensor(a!), Tensor(b!)))",
    ],
)
def test_a_written_return_has_the_type_of_its_argument(text):
    refused(text, "return-type")


@pytest.mark.parametrize(
    "text",
    [
        "f(Tensor(a!)? x) -> Tensor(a!)",
        "f(Tensor(a!)? x) -> Tensor(a!)?",
        "f(Tensor(a!)[] xs) -> Tensor(a!)[]",
        "f(Tensor(a!)[]? xs) -> Tensor(a!)[]",
        "f(Tensor(a!) x) -> Tensor(a)",
        "f(Tensor(a) x, Tensor(a) y) -> Tensor(a)",
        "f(Tensor(a) x) -> (Tensor(a), Tensor(a))",
        "f(Tensor(a!) out) -> Tensor(a!) out",
        "f(Tensor! x, Tensor! y) -> ()",
        "f((Tensor(a!), Tensor(a!)) t) -> ()",
    ],
)
def test_these_say_something_sensible(text):
    assert canonical(text) == text


@pytest.mark.parametrize(
    "text",
    ["Tensor(a!) x, Tensor(a!) y", "Tensor(a) x, Tensor(a!) y", "Tensor(a!) x, Tensor(b|a) y"],
)
def test_a_written_set_belongs_to_one_argument(text):
    message = "`a` labels both `x` and `y`"
    refused(f"f({text}) -> ()", "alias-shared", message=message, hint="its own letter")


def test_a_written_argument_is_returned_once():
    refused("f(Tensor(a!) x) -> (Tensor(a!), Tensor(a!))", "return-twice", message="`x`")


@pytest.mark.parametrize(
    "text",
    [
        "f(Tensor! out) -> Tensor out",
        "f(Tensor x) -> Tensor x",
        "f(Tensor(a!) x, Tensor(b!) y) -> (Tensor(a!) y, Tensor(b!) x)",
    ],
)
def test_a_return_named_like_an_argument_is_that_argument(text):
    refused(text, "return-name", hint="label both (a!) or rename")


def test_a_union_is_not_written_and_not_returned_with_a_tensor():
    refused("f(Union(Tensor(a!), int) x) -> ()", "union-tensor")
    refused("f(Union(Tensor(a!), int)?[] x) -> ()", "union-tensor")
    refused("f() -> Union(Tensor, int)", "union-tensor", message="structure is fixed")
    refused("f() -> ((int, Dict(str, Union(Tensor[], int))))", "union-tensor")
    assert canonical("f(Union(Tensor(a), int) x) -> Union(float, str)")
