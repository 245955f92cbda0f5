"""The grammar: names, arguments, returns, and where the caret points."""

from __future__ import annotations

import pytest

from oplib.errors import SchemaError
from oplib.schema import parse
from oplib.schema.types import RESERVED_WORDS
from tests.schema.helpers import canonical, refused


def test_a_full_name_has_namespace_name_and_overload():
    schema = parse("ns::foo.bar(Tensor x) -> Tensor")
    assert (schema.namespace, schema.name, schema.overload_name) == ("ns", "foo", "bar")
    assert len(schema.arguments) == len(schema.returns) == 1
    assert schema.qualname == "ns::foo.bar"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("f( Tensor x,Tensor  y )->Tensor", "f(Tensor x, Tensor y) -> Tensor"),
        ("ns :: f . o(Tensor x) -> ()", "ns::f.o(Tensor x) -> ()"),
        ("f\n(Tensor x,\n\t Tensor y)\r\n-> \f Tensor # done", "f(Tensor x, Tensor y) -> Tensor"),
        ("# first\nf(Tensor x, # a comma, )\n int y) -> ()", "f(Tensor x, int y) -> ()"),
        ("f() -> int", "f() -> int"),
        ("f() -> ()", "f() -> ()"),
        ("f(*, Tensor x) -> ()", "f(*, Tensor x) -> ()"),
        ("f(Tensor x) -> (Tensor)", "f(Tensor x) -> Tensor"),
        ("f(Tensor x) -> (Tensor out)", "f(Tensor x) -> Tensor out"),
        ("f(Tensor x) -> ((Tensor))", "f(Tensor x) -> ((Tensor))"),
        ("f(Tensor x) -> (Tensor a, int b)", "f(Tensor x) -> (Tensor a, int b)"),
        ("f() -> ((int, int) p)", "f() -> ((int, int) p)"),
        ("f() -> ((int, int)[])", "f() -> ((int, int)[])"),
        ("f() -> ((int, int), int)", "f() -> ((int, int), int)"),
        ("f() -> None", "f() -> ()"),
        ("f() -> NoneType", "f() -> ()"),
    ],
)
def test_layout_is_free_and_the_canonical_text_is_one(text, printed):
    assert canonical(text) == printed


def test_two_returns_and_one_pair_differ():
    assert len(parse("f() -> (int, int)").returns) == 2
    assert len(parse("f() -> ((int, int))").returns) == 1


def test_the_star_makes_keyword_only_arguments():
    schema = parse("f(int a, *, int b, int c) -> ()")
    assert [argument.name for argument in schema.positional] == ["a"]
    assert [argument.name for argument in schema.keyword_only] == ["b", "c"]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("foo", 3),
        ("foo(", 4),
        ("foo(Tensor x) ->", 16),
        ("foo(Tensor x) => Tensor", 14),
        ("foo(Tensor x) - > Tensor", 14),
        ("foo(Tensor x): Tensor", 13),
        ("foo(Tensor x) -> Tensor;", 23),
        ("foo(Tensor x) -> Tensor)", 23),
        ("foo(Tensor x) -> Tensor,", 23),
        ("f(Tensor x x) -> ()", 11),
        ("f(Tensor x Tensor y) -> ()", 11),
        ("f(Tensor) -> ()", 8),
        ("f(x) -> ()", 2),
        ("f(, Tensor x) -> ()", 2),
        ("f(Tensor x,) -> ()", 11),
        ("f() -> (Tensor,)", 15),
        ("f() -> Tensor x=1", 15),
        ("f(? x) -> ()", 2),
        ("f(int x=) -> ()", 8),
        ("f(int x==1) -> ()", 8),
        ("f(int x=-True) -> ()", 9),
        ("f(int x) -> (int y", 18),
        ("f(1 x) -> ()", 2),
        ("f(int 1) -> ()", 6),
        ("f(* int x) -> ()", 4),
        ("", 0),
    ],
)
def test_a_token_out_of_place_is_under_the_caret(text, at):
    refused(text, "expected-token", at=at)


@pytest.mark.parametrize("suffix", ["[]", "?", " p", "[2]?"])
def test_a_suffix_behind_the_returns_belongs_inside_them(suffix):
    refused(f"f() -> (int, int){suffix}", "expected-token", hint=f"((int, int){suffix})")


def test_several_returns_without_parentheses_are_explained():
    refused("f() -> int, int", "expected-token", hint="-> (A, B)")


def test_each_form_is_accepted_in_its_own_place_only():
    assert str(parse("(Tensor x) -> Tensor", nameless=True)) == "(Tensor x) -> Tensor"
    refused("(Tensor x) -> Tensor", "name-required")
    with pytest.raises(SchemaError) as caught:
        parse("ns::f(Tensor x) -> Tensor", nameless=True)
    assert caught.value.rule == "name-required"


def test_a_nameless_schema_can_be_named():
    schema = parse("(Tensor x) -> Tensor", nameless=True).named("ns", "f", "o")
    assert schema == parse("ns::f.o(Tensor x) -> Tensor")


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("a::b::foo", "bad-name"),
        ("ns.sub::foo", "bad-name"),
        ("::foo", "bad-name"),
        ("ns::", "bad-name"),
        ("foo.bar.baz", "bad-name"),
        ("foo.", "bad-name"),
        ("foo.1", "bad-name"),
        ("ns:foo", "expected-token"),
        ("foo-bar", "expected-token"),
        ("foo bar", "expected-token"),
        ("foo[T]", "expected-token"),
        ("1foo", "expected-token"),
    ],
)
def test_names_are_two_parts_and_an_overload(name, rule):
    refused(f"{name}(Tensor x) -> ()", rule)


@pytest.mark.parametrize("overload", ["default", "__x", "__init__"])
def test_some_overload_names_are_taken(overload):
    refused(f"foo.{overload}(Tensor x) -> ()", "bad-overload", hint="without a dot")


def test_default_with_a_suffix_is_an_overload_name():
    assert parse("foo.default_() -> ()").overload_name == "default_"


@pytest.mark.parametrize("word", sorted(RESERVED_WORDS))
def test_reserved_words_name_nothing(word):
    refused(f"{word}() -> ()", "bad-name", message=f"`{word}` is reserved")
    refused(f"f.{word}() -> ()", "bad-name")
    refused(f"f(int {word}) -> ()", "bad-name")
    refused(f"f() -> int {word}", "bad-name")


@pytest.mark.parametrize("word", ["self", "from", "lambda", "async", "yield", "try", "input"])
def test_other_words_of_python_are_ordinary_names(word):
    assert parse(f"f(int {word}) -> ()").argument(word).name == word


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("f(x: Tensor) -> ()", "Tensor x"),
        ("f(Tensor x:int) -> ()", "Tensor x"),
        ("f(Tensor x) => Tensor", "->"),
        ("ns:foo() -> ()", "ns::name"),
        ("f(Tensor x Tensor y) -> ()", "commas"),
    ],
)
def test_the_hint_shows_how_it_is_written_here(text, hint):
    with pytest.raises(SchemaError) as caught:
        parse(text)
    assert hint in caught.value.hint


@pytest.mark.parametrize("arguments", ["*", "int a, *", "*, ", "int a, *, *, int b", "*, *, int a"])
def test_one_star_stands_before_a_keyword_only_argument(arguments):
    refused(f"f({arguments}) -> ()", "star")


@pytest.mark.parametrize(
    "text",
    [
        "f(...) -> ()",
        "f(Tensor x, ...) -> ()",
        "f(*, ...) -> ()",
        "f(*args) -> ()",
        "f(Tensor x, *args) -> ()",
        "f(**kw) -> ()",
        "f(*args, **kw) -> ()",
        "f() -> ...",
        "f() -> (Tensor, ...)",
    ],
)
def test_arguments_and_returns_are_fixed(text):
    refused(text, "varargs", hint="list")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("f(Tensor é) -> ()", "é"),
        ("f(Tensor x$) -> ()", "$"),
        ("f(Tensor x\x00) -> ()", "U+0000"),
        ("f(Tensor x\u200b) -> ()", "U+200B"),
        ("f(Tensor x\v) -> ()", "U+000B"),
        ("f(Tensor ١) -> ()", "١"),
        ("f@1() -> ()", "@"),
    ],
)
def test_a_foreign_character_is_shown(text, shown):
    refused(text, "unexpected-character", message=shown)


def test_the_first_mistake_in_reading_order_is_reported():
    refused("f(Tensor x y, int $) -> ()", "expected-token", at=11)


@pytest.mark.parametrize("depth", [33, 10_000])
@pytest.mark.parametrize(("opening", "closing"), [("(", ")"), ("Dict(str, ", ")")])
def test_types_nest_32_deep(opening, closing, depth):
    assert parse(f"f({opening * 32}int{closing * 32} x) -> ()").arguments
    refused(f"f({opening * depth}int{closing * depth} x) -> ()", "nesting")


def test_suffixes_and_literals_nest_32_deep():
    assert canonical(f"f(int{'[]' * 32} x) -> ()")
    refused(f"f(int{'[]' * 33} x) -> ()", "nesting")
    refused(f"f((({'int' + '[]' * 31})) x) -> ()", "nesting")
    assert canonical(f"f(int{'[]' * 32} x={'[' * 32}{']' * 32}) -> ()")
    refused(f"f(int[] x={'[' * 33}{']' * 33}) -> ()", "nesting")
    refused(f"f(int[] x={'(' * 9999}) -> ()", "nesting")


@pytest.mark.parametrize("value", [None, 3, b"f() -> ()", ["f() -> ()"]])
def test_only_a_string_is_parsed(value):
    with pytest.raises(TypeError, match="a schema is a str"):
        parse(value)


def test_duplicate_names_are_refused():
    refused("f(int id, Tensor id) -> ()", "duplicate-argument", message="`id` appears twice", at=17)
    refused("f() -> (int a, int a)", "duplicate-return", message="`a` appears twice", at=19)
    assert canonical("f() -> (int, int)")


def test_rules_are_checked_in_their_order_not_in_the_order_of_the_text():
    refused("f(int x=1.0, int x=2) -> ()", "duplicate-argument")
    refused("f(int a=1, int b, int c=1.5) -> ()", "default-type")
    refused("f(int(a!) x, int a=1, int b) -> ()", "default-order")


def test_an_error_shows_what_where_and_what_instead():
    error = refused("ns::f(Tensor x, double y) -> ()", "unknown-type", hint="use float", at=16)
    assert str(error) == (
        "ns::f: unknown type `double`\n"
        "  ns::f(Tensor x, double y) -> ()\n"
        "                  ^^^^^^\n"
        "hint: use float"
    )


def test_a_long_schema_is_cut_to_the_surroundings_of_the_caret():
    arguments = ", ".join(f"Tensor x{i}" for i in range(200))
    error = refused(f"f({arguments}, double y, {arguments}) -> ()", "unknown-type")
    excerpt, carets = str(error).splitlines()[1:3]
    assert len(excerpt) < 72
    start = carets.index("^")
    assert excerpt[start : start + carets.count("^")] == "double"
