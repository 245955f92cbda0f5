"""Whatever is written: print and parse are inverse, and nothing but a SchemaError comes out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplib.dtypes import Device
from oplib.errors import SchemaError
from oplib.schema import (
    NO_DEFAULT,
    AliasSet,
    Argument,
    BasicType,
    DictType,
    FunctionSchema,
    ListType,
    OptionalType,
    Return,
    TensorType,
    TupleType,
    format_literal,
    parse,
    union_of,
)
from oplib.schema.types import RESERVED_WORDS

NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,5}", fullmatch=True).filter(
    lambda name: name not in RESERVED_WORDS
)
INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_subnormal=True)
COMPLEX = st.complex_numbers(allow_nan=False, allow_infinity=False)
TEXTS = st.text()
DEFAULTS = {
    "int": INTS,
    "SymInt": INTS,
    "float": FLOATS,
    "complex": COMPLEX,
    "bool": st.booleans(),
    "SymBool": st.booleans(),
    "str": TEXTS,
    "Scalar": st.one_of(INTS, FLOATS, COMPLEX, st.booleans()),
    "Any": st.one_of(st.none(), INTS, FLOATS, COMPLEX, st.booleans(), TEXTS),
    "Device": st.sampled_from([Device("cpu"), Device("cuda", 3)]),
    "ScalarType": st.sampled_from([np.dtype("float32"), np.dtype("bool")]),
    "Layout": st.just("strided"),
    "MemoryFormat": st.sampled_from(["channels_last", "preserve_format"]),
}
WORDS = st.sampled_from([*DEFAULTS, "Generator"]).map(BasicType)
ALIASES = st.none() | st.builds(
    AliasSet,
    st.frozensets(st.sampled_from("abc"), min_size=1),
    st.just(False),
    st.just(frozenset()) | st.just(frozenset("d")),
)
TENSORS = st.builds(TensorType, ALIASES)


def _wrapped(types):
    plain = types.filter(lambda type_: not isinstance(type_, OptionalType))
    open_ = types.filter(lambda type_: not _closes(type_))
    return st.one_of(
        st.builds(ListType, open_, st.none() | st.integers(1, 3)),
        st.builds(OptionalType, plain),
        st.builds(
            lambda elements: TupleType(tuple(elements)), st.lists(types, min_size=1, max_size=3)
        ),
        st.builds(DictType, st.sampled_from(["str", "int", "float", "bool"]).map(BasicType), types),
        st.lists(plain, min_size=2, max_size=3).map(union_of),
    )


def _closes(type_):
    """Return whether a sized list ends the type, so that only `?` may follow."""
    while isinstance(type_, (ListType, OptionalType)):
        if isinstance(type_, ListType) and type_.size is not None:
            return True
        type_ = type_.element
    return False


TYPES = st.recursive(WORDS | TENSORS, _wrapped, max_leaves=5)


@st.composite
def defaults_of(draw, type_):
    """Draw a default that `type_` may have, or NO_DEFAULT where there is none."""
    match type_:
        case BasicType(name):
            return draw(DEFAULTS[name]) if name in DEFAULTS else NO_DEFAULT
        case OptionalType(element):
            value = draw(defaults_of(element))
            return None if value is NO_DEFAULT or draw(st.booleans()) else value
        case ListType(element, size):
            length = size or draw(st.integers(0, 3))
            values = tuple(draw(defaults_of(element)) for _ in range(length))
            return () if any(value is NO_DEFAULT for value in values) else values
        case TupleType(elements):
            values = tuple(draw(defaults_of(element)) for element in elements)
            return NO_DEFAULT if any(value is NO_DEFAULT for value in values) else values
    return NO_DEFAULT


@st.composite
def schemas(draw):
    """Draw a well-formed schema."""
    names = draw(st.lists(NAMES, unique=True, max_size=6))
    split = draw(st.integers(0, len(names)))
    arguments = []
    needs_default = False
    for position, name in enumerate(names):
        type_ = draw(TYPES)
        default = draw(defaults_of(type_)) if draw(st.booleans()) else NO_DEFAULT
        if needs_default and default is NO_DEFAULT and position < split:
            type_, default = OptionalType(BasicType("int")), None
        needs_default = default is not NO_DEFAULT and position < split
        arguments.append(Argument(name, type_, default, position >= split))
    returns = [Return(type_) for type_ in draw(st.lists(WORDS, max_size=3))]
    namespace, name = draw(st.just("") | NAMES), draw(NAMES)
    overload = draw(st.just("") | NAMES.filter(lambda n: n != "default" and n[:2] != "__"))
    return FunctionSchema(namespace, name, overload, tuple(arguments), tuple(returns))


@given(schemas())
def test_parse_inverts_str(schema):
    text = str(schema)
    again = parse(text)
    assert again == schema
    assert str(again) == text
    assert hash(again) == hash(schema)
    assert again.arguments == schema.arguments
    assert again.returns == schema.returns


@given(TYPES.flatmap(lambda type_: st.tuples(st.just(type_), defaults_of(type_))))
def test_a_default_comes_back_as_it_was(pair):
    type_, value = pair
    if value is NO_DEFAULT:
        return
    (argument,) = parse(f"f({type_} x={format_literal(value, type_)}) -> ()").arguments
    assert argument == Argument("x", type_, value)


VALID = [
    "ns::foo.bar(Tensor(a!) x, Tensor? y=None, *, int[2] k=[1, 2], float e=1e-5) -> Tensor(a!)",
    "f(Dict(str, (int, Tensor[])) d, Union(int, str)? u='a\\n', complex c=-2j) -> (Tensor m, int)",
    'g(Tensor(a|b) x, Device d="cuda:1", ScalarType? t=float32, str s="""q""") -> Tensor(a)[]',
    "h(Tensor(a! -> *)[] xs, MemoryFormat m=channels_last, bool[] b=[True]) -> ((int, int)[])",
]
PIECES = [
    *"()[]{},.=!?|*+-:;<>&#'\"\\ \n\t0123456789ej_é$",
    *("->", "::", "...", "Tensor", "Union(", "Dict(", "None", "NoneType", "int", "(a!)", "[2]"),
    *("default", "__x", "inf", "nan", "1e400", "0x1F", '"""', "class", "T", "Optional[", "*,"),
]


@st.composite
def edits(draw):
    """Draw a valid schema with a few pieces put in, taken out or doubled."""
    text = draw(st.sampled_from(VALID))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 6)))
        piece = draw(st.sampled_from(PIECES) | st.just(text[start:end] * 2))
        text = text[:start] + piece + text[end:]
    return text


def check_explanation(error, text):
    assert error.rule
    assert error.text == text
    assert 0 <= error.span[0] <= error.span[1] <= len(text)
    assert set(str(error).splitlines()[2]) == {" ", "^"}


def parses_or_explains(text):
    for nameless in (False, True):
        try:
            schema = parse(text, nameless=nameless)
        except SchemaError as error:
            check_explanation(error, text)
        else:
            assert str(parse(str(schema), nameless=nameless)) == str(schema)


@pytest.mark.fuzz
@given(edits())
def test_an_edited_schema_parses_or_is_explained(text):
    parses_or_explains(text)


@pytest.mark.fuzz
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.text())
def test_any_text_parses_or_is_explained(text):
    parses_or_explains(text)
    parses_or_explains(f"f({text}) -> ()")
    parses_or_explains(f"f(str x={text}) -> {text}")


@pytest.mark.parametrize(
    "piece", ['"', '"""', "'\\", "(", "[", "a.", "int[]", "|", "1e", "#", "-", " ", "?"]
)
def test_texts_of_fifty_thousand_pieces_are_refused_in_linear_time(piece):
    for text in (piece * 50_000, f"f({piece * 50_000}", f"f(int x={piece * 50_000}"):
        with pytest.raises(SchemaError):
            parse(text)
