"""Types: every word, every hint, unions, dictionaries, and the table of classes."""

from __future__ import annotations

import pytest

from oplib.errors import RegistrationError, SchemaError
from oplib.schema import (
    BasicType,
    ClassType,
    DictType,
    ListType,
    OptionalType,
    TensorType,
    TupleType,
    UnionType,
    map_tensors,
    opaque_class,
    opaque_name,
    parse,
    parse_type,
    register_opaque_type,
)
from oplib.schema.types import BASIC_WORDS
from tests.schema.helpers import Codec, Mode, argument_text, refused

INT = BasicType("int")


@pytest.mark.parametrize("word", BASIC_WORDS)
def test_every_word_prints_as_itself(word):
    assert parse_type(word) == BasicType(word)
    assert argument_text(f"{word} x") == f"{word} x"


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("Tensor?", OptionalType(TensorType())),
        ("Tensor[]", ListType(TensorType())),
        ("Tensor?[]", ListType(OptionalType(TensorType()))),
        ("Tensor[]?", OptionalType(ListType(TensorType()))),
        ("Tensor?[]?", OptionalType(ListType(OptionalType(TensorType())))),
        ("int[][]", ListType(ListType(INT))),
        ("int[2]", ListType(INT, 2)),
        ("int[2]?", OptionalType(ListType(INT, 2))),
        ("SymInt[1]?", OptionalType(ListType(BasicType("SymInt"), 1))),
        ("(str, str, str)[]", ListType(TupleType((BasicType("str"),) * 3))),
        ("(int)", TupleType((INT,))),
        ("(int, (Tensor, str))", TupleType((INT, TupleType((TensorType(), BasicType("str")))))),
        ("Dict(str, int[][])", DictType(BasicType("str"), ListType(ListType(INT)))),
        ("Dict(int, Tensor[])?", OptionalType(DictType(INT, ListType(TensorType())))),
        ("Any?", OptionalType(BasicType("Any"))),
        ("Union(int, str)", UnionType((INT, BasicType("str")))),
    ],
)
def test_suffixes_nest_in_reading_order(text, type_):
    assert parse_type(text) == type_
    assert str(type_) == text
    assert argument_text(f"{text} x") == f"{text} x"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("Union(int, NoneType)", "int?"),
        ("Union(NoneType, str, int)", "Union(int, str)?"),
        ("Union(str, int)", "Union(int, str)"),
        ("Union(str, Union(int, str), bool)", "Union(bool, int, str)"),
        ("Union(float, Tensor)", "Union(Tensor, float)"),
        ("Union(int, int, NoneType)", "int?"),
        ("Union(int[], (int, int))", "Union((int, int), int[])"),
        ("Union(int, str)?", "Union(int, str)?"),
    ],
)
def test_unions_are_flat_sorted_and_without_repetition(text, printed):
    assert argument_text(f"{text} x") == f"{printed} x"


@pytest.mark.parametrize(
    "text",
    [
        "int??",
        "Union(int, NoneType)?",
        "None?",
        "None",
        "NoneType",
        "NoneType?",
        "(int, NoneType)",
        "Union(int)",
        "Union(int, int)",
        "Union(NoneType)",
        "Union(NoneType, NoneType)",
        "Union(int?, str)",
        "Union(Union(int, NoneType), str)",
        "Union(NoneType[], str)",
        "Union((NoneType, int), str)",
    ],
)
def test_one_question_mark_is_enough_and_none_is_no_type(text):
    refused(f"f({text} x) -> ()", "optional")


def test_none_inside_the_returns_is_no_type():
    refused("f() -> (None, int)", "optional")
    refused("f() -> NoneType?", "optional")


@pytest.mark.parametrize(
    "size", ["[0]", "[-1]", "[1.5]", "[n]", "[2][3]", "[2][]", "[2]?[]", "[01]", "[1025]", "[1e3]"]
)
def test_a_list_size_is_a_positive_integer_and_closes_the_type(size):
    refused(f"f(int{size} x) -> ()", "list-size")


def test_a_reserved_word_is_no_type():
    refused("f(class x) -> ()", "bad-name")


def test_a_bracket_that_never_closes_still_has_a_hint():
    refused("f(Optional[int", "unknown-type", hint="write T?")


def test_an_open_bracket_is_not_a_list_size():
    refused("f(int[", "expected-token")
    refused("f(int[ x) -> ()", "list-size")
    refused("f(int[2 x) -> ()", "expected-token")


@pytest.mark.parametrize("key", ["int[]", "Tensor", "complex", "SymInt", "str?", "Any", "(int)"])
def test_dictionary_keys_are_plain_values(key):
    refused(f"f(Dict({key}, int) x) -> ()", "dict-key")


@pytest.mark.parametrize("key", ["str", "int", "float", "bool"])
def test_plain_keys_are_accepted(key):
    assert argument_text(f"Dict({key}, int) x") == f"Dict({key}, int) x"


def test_a_dictionary_has_a_key_and_a_value_type():
    refused("f(Dict(str) d) -> ()", "expected-token", hint="Dict(str, T)")
    refused("f(Dict(str, int, int) d) -> ()", "expected-token", hint="Dict(str, T)")


@pytest.mark.parametrize("text", ["()", "()[]", "(int, ())", "Dict(str, ())"])
def test_an_empty_tuple_is_no_type(text):
    refused(f"f({text} x) -> ()", "empty-tuple")


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        *[(word, "use float") for word in ("double", "float64", "float32", "SymFloat", "Float")],
        *[(word, "int or SymInt") for word in ("int64_t", "int32_t", "size_t", "long", "int64")],
        *[(word, "use str") for word in ("string", "char", "Str")],
        ("std::string", "write str"),
        ("number", "use Scalar"),
        ("Number", "use Scalar"),
        ("scalar", "use Scalar"),
        ("dtype", "use ScalarType"),
        ("device", "use Device"),
        *[(word, "use Tensor") for word in ("tensor", "ndarray", "NDArray", "Array")],
        ("boolean", "use bool"),
        ("Int", "use int"),
        ("Bool", "use bool"),
        ("symint", "use SymInt"),
        ("Optional[int]", "write int?"),
        ("Optional[List[int]]", "write List[int]?"),
        ("List[int]", "write int[]"),
        ("list[Tensor]", "write Tensor[]"),
        ("Sequence[int]", "write int[]"),
        ("Tuple[int, str]", "write (int, str)"),
        ("tuple[int, str]", "write (int, str)"),
        ("Dict[str, int]", "write Dict(str, int)"),
        ("dict[str, int]", "write Dict(str, int)"),
        ("Union[int, str]", "write Union(int, str)"),
        ("List", "write T[]"),
        ("Dict", "write Dict(A, B)"),
        ("int | str", "write Union(int, str)"),
        ("int | None", "write int?"),
        ("int | str | None", "write Union(int, str)?"),
        ("const Tensor&", "write Tensor"),
        ("Tensor&", "write Tensor"),
        ("Tensor*", "write Tensor"),
        ("PyObject", "use Any, or register the class"),
        ("object", "use Any, or register the class"),
        ("void", "-> ()"),
        *[(word, "one overload per type") for word in ("T", "t", "t1")],
        ("Tensr", "did you mean Tensor?"),
        ("Future(Tensor)", "register_opaque_type"),
        ("my.pkg.Codec", 'register_opaque_type(cls, "my.pkg.Codec")'),
        ("Storage", "register_opaque_type"),
        ("QScheme", "register_opaque_type"),
        ("std::vector<int>", "write T[]"),
    ],
)
def test_an_unknown_type_comes_with_the_spelling_to_use(written, hint):
    refused(f"f(int a, {written} x) -> ()", "unknown-type", hint=hint)


def test_void_and_unions_are_explained_in_returns_too():
    refused("f() -> void", "unknown-type", hint="()")
    refused("f() -> Tensor | None", "unknown-type", hint="Tensor?")


def test_parse_type_takes_one_type_and_nothing_else():
    for text in ("int x", "", "int]", "NoneType", "int(a)", "$"):
        with pytest.raises(SchemaError):
            parse_type(text)


def test_a_class_name_parses_while_it_is_registered():
    refused("f(my.Codec c) -> my.Codec", "unknown-type")
    registration = register_opaque_type(Codec, "my.Codec")
    try:
        assert argument_text("my.Codec? c") == "my.Codec? c"
        assert parse("f(my . Codec c) -> ()").arguments[0].type == ClassType("my.Codec")
        assert opaque_class("my.Codec") is Codec
        assert opaque_name(Codec) == "my.Codec"
    finally:
        registration.remove()
    refused("f(my.Codec c) -> my.Codec", "unknown-type")
    assert opaque_class("my.Codec") is None


def test_the_default_name_of_a_class_is_its_place():
    registration = register_opaque_type(Codec)
    assert registration.name == "tests.schema.helpers.Codec"
    assert "tests.schema.helpers.Codec" in repr(registration)
    registration.remove()


def test_one_name_belongs_to_one_class():
    registration = register_opaque_type(Codec, "my.Thing")
    try:
        with pytest.raises(RegistrationError, match=r"helpers\.Mode.*belongs to.*helpers\.Codec"):
            register_opaque_type(Mode, "my.Thing")
        assert register_opaque_type(Codec, "my.Thing").name == "my.Thing"
    finally:
        registration.remove()


def test_a_class_defined_again_takes_the_place_of_its_older_self():
    again = type("Codec", (), {"__module__": Codec.__module__})
    first = register_opaque_type(Codec, "my.Codec")
    second = register_opaque_type(again, "my.Codec")
    assert opaque_class("my.Codec") is again
    first.remove()
    assert opaque_class("my.Codec") is again
    second.remove()


@pytest.mark.parametrize("name", ["int", "Tensor", "Dict", "Union", "NoneType", "Any"])
def test_built_in_words_are_no_class_names(name):
    with pytest.raises(RegistrationError, match=rf"Codec as `{name}`: .*built-in"):
        register_opaque_type(Codec, name)


@pytest.mark.parametrize("name", ["", "my..Codec", "my.class", "1x", "é", "a b", ".x"])
def test_class_names_are_identifiers_joined_by_dots(name):
    with pytest.raises(RegistrationError, match="identifiers joined by dots"):
        register_opaque_type(Codec, name)


def test_a_local_class_needs_a_name():
    class Local:
        pass

    with pytest.raises(RegistrationError, match="move it to module level or give name="):
        register_opaque_type(Local)
    register_opaque_type(Local, "my.Local").remove()


def test_only_classes_are_registered():
    with pytest.raises(RegistrationError, match="takes a class"):
        register_opaque_type(3)


def test_map_tensors_reaches_every_tensor():
    text = "Dict(str, (Tensor(a!)?[], Union(Tensor(a), int)[2])?)"
    plain = map_tensors(parse_type(text), lambda tensor: TensorType())
    assert str(plain) == "Dict(str, (Tensor?[], Union(Tensor, int)[2])?)"
    assert map_tensors(INT, lambda tensor: TensorType()) == INT
