"""Defaults: read by the declared type, stored converted, printed one way."""

from __future__ import annotations

import builtins
import importlib
import math
import struct

import numpy as np
import pytest

from oplib import dtypes
from oplib.dtypes import Device
from oplib.errors import ArgumentError
from oplib.schema import NO_DEFAULT, DtypeName, parse, register_opaque_type
from tests.schema.helpers import Codec, Level, Mode, argument_text, default_of, refused


def same(left, right):
    """Return whether two stored defaults have the same type and bits."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.mark.parametrize(
    ("text", "value", "printed"),
    [
        ("float x=1", 1.0, "1.0"),
        ("float x=1.", 1.0, "1.0"),
        ("float x=.5", 0.5, "0.5"),
        ("float x=1e-5", 1e-05, "1e-05"),
        ("float x=1.5E+3", 1500.0, "1500.0"),
        ("float x=1e30", 1e30, "1e+30"),
        ("float x=3.4028234663852886e+38", 3.4028234663852886e38, "3.4028234663852886e+38"),
        ("float x=5e-324", 5e-324, "5e-324"),
        ("float x=inf", math.inf, "inf"),
        ("float x=-inf", -math.inf, "-inf"),
        ("float x=- 2", -2.0, "-2.0"),
        ("float x=-0.0", -0.0, "-0.0"),
        ("float? x=2", 2.0, "2.0"),
        ("float? x=None", None, "None"),
        ("int x=-1", -1, "-1"),
        ("int x=- 5", -5, "-5"),
        ("int x=9223372036854775807", 2**63 - 1, "9223372036854775807"),
        ("SymInt x=-9223372036854775808", -(2**63), "-9223372036854775808"),
        ("bool x=True", True, "True"),
        ("SymBool x=False", False, "False"),
        ("complex x=1j", 1j, "1j"),
        ("complex x=1.5", 1.5 + 0j, "1.5+0j"),
        ("complex x=1", 1 + 0j, "1+0j"),
        ("complex x=1.5-2j", 1.5 - 2j, "1.5-2j"),
        ("complex x=-0.5 - 1j", -0.5 - 1j, "-0.5-1j"),
        ("complex x=-0-2j", complex(-0.0, -2.0), "-0-2j"),
        ("complex x=-1j", complex(0.0, -1.0), "-1j"),
        ("complex x=0", 0j, "0j"),
        ("complex x=1e16+1e-5j", 1e16 + 1e-5j, "1e+16+1e-05j"),
        ("Scalar x=1", 1, "1"),
        ("Scalar x=1.0", 1.0, "1.0"),
        ("Scalar x=True", True, "True"),
        ("Scalar x=2.5j", 2.5j, "2.5j"),
        ("Any x=None", None, "None"),
        ("Any x='a'", "a", '"a"'),
        ("Any x=3", 3, "3"),
        ("Generator? x=None", None, "None"),
        ("Tensor? x=None", None, "None"),
        ("Layout x=strided", "strided", "strided"),
        ("MemoryFormat x=channels_last", "channels_last", "channels_last"),
        ("MemoryFormat[] x=[preserve_format]", ("preserve_format",), "[preserve_format]"),
        ("int[] x=[]", (), "[]"),
        ("int[] x=[1,2]", (1, 2), "[1, 2]"),
        ("int[2] x=1", (1, 1), "[1, 1]"),
        ("int[2] x=[]", (), "[]"),
        ("int[1] x=[-2, -1]", (-2, -1), "[-2, -1]"),
        ("int[3]? x=1", (1, 1, 1), "[1, 1, 1]"),
        ("int?[2] x=None", (None, None), "[None, None]"),
        ("int?[2]? x=None", None, "None"),
        ("int[][2] x=[1]", ((1,), (1,)), "[[1], [1]]"),
        ("int[]? x=[1]", (1,), "[1]"),
        ("str[] x=['a']", ("a",), '["a"]'),
        ("Scalar[] x=[1, 2.0]", (1, 2.0), "[1, 2.0]"),
        ("int?[] x=[None]", (None,), "[None]"),
        ("int[][] x=[[1], []]", ((1,), ()), "[[1], []]"),
        ("Tensor[] x=[]", (), "[]"),
        ("Tensor?[] x=[None]", (None,), "[None]"),
        ("float[] x=[1, inf]", (1.0, math.inf), "[1.0, inf]"),
        ("(int, int) x=(1, 2)", (1, 2), "(1, 2)"),
        ("(int) x=(1,)", (1,), "(1,)"),
        ("(float, int[]) x=(1, [2])", (1.0, (2,)), "(1.0, [2])"),
        ("Union(float, int) x=1", 1, "1"),
        ("Union(int, float) x=1.0", 1.0, "1.0"),
        ("Union(bool, int) x=1", 1, "1"),
        ("Union(float, str) x=1", 1.0, "1.0"),
        ("Union(float[], int[]) x=[1]", (1,), "[1]"),
        ("Union((int, int), str) x=(1, 2)", (1, 2), "(1, 2)"),
        ("Union(int[2], str) x=1", (1, 1), "[1, 1]"),
        ("Union(int, str)? x=None", None, "None"),
        ("Union(Device, int) x='cpu'", Device("cpu"), '"cpu"'),
        ("Union(ScalarType, str) x='float32'", "float32", '"float32"'),
        ("Union(ScalarType, str) x=float32", np.dtype("float32"), "float32"),
        ("Union(Layout, int) x=strided", "strided", "strided"),
    ],
)
def test_a_default_is_stored_converted_and_printed_canonically(text, value, printed):
    assert same(default_of(text), value)
    declared = text.partition("=")[0]
    assert argument_text(text).endswith(f"x={printed}")
    assert argument_text(f"{declared}={printed}") == argument_text(text)


def test_nan_is_a_float():
    assert math.isnan(default_of("float x=nan"))
    assert argument_text("Scalar x=nan") == "Scalar x=nan"


@pytest.mark.parametrize(
    ("literal", "value", "printed"),
    [
        ("'x'", "x", '"x"'),
        (r'"q\"q"', 'q"q', r'"q\"q"'),
        ('"q\'q"', "q'q", '"q\'q"'),
        (r"'q\'q'", "q'q", '"q\'q"'),
        ('""', "", '""'),
        (r'"line\nbreak"', "line\nbreak", r'"line\nbreak"'),
        (r'"\r\t\0\\"', "\r\t\0\\", r'"\r\t\x00\\"'),
        (r'"\x41\u0042\U00000043"', "ABC", '"ABC"'),
        ('"naïve"', "naïve", '"naïve"'),
        (r'"\u200b\U000e0001\x7f"', "\u200b\U000e0001\x7f", r'"\u200b\U000e0001\x7f"'),
        (r'"\ud800"', "\ud800", r'"\ud800"'),
        ('"a, b) # c"', "a, b) # c", '"a, b) # c"'),
        ('"""two\nlines "quoted" """', 'two\nlines "quoted" ', r'"two\nlines \"quoted\" "'),
        ('""""""', "", '""'),
    ],
)
def test_strings_keep_their_value(literal, value, printed):
    assert default_of(f"str x={literal}") == value
    assert argument_text(f"str x={literal}") == f"str x={printed}"


@pytest.mark.parametrize(
    "literal",
    [
        '"open',
        "'open",
        '"a\nb"',
        r'"\q"',
        r'"\x4"',
        r'"\U00110000"',
        '"a" "b"',
        "'''a'''",
        r'"\u12"',
    ],
)
def test_a_broken_string_is_refused(literal):
    refused(f"f(str x={literal}) -> ()", "bad-string")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("int x=0x10", "0x10 is 16"),
        ("int x=0b11", "0b11 is 3"),
        ("int x=010", "write 10"),
        ("int x=1_000", "write 1000"),
        ("int x=1x", "decimal"),
        ("float x=1.5f", "decimal"),
        ("float x=1e400", "write inf"),
        ("float x=" + "9" * 400, "write inf"),
        ("complex x=1e400j", "write inf"),
        ("complex x=1+1e400j", "write inf"),
        ("float x=-nan", "write nan"),
        ("float x=1.2.3", "decimal"),
        ("float x=1e", "decimal"),
    ],
)
def test_a_broken_number_is_refused(text, hint):
    refused(f"f({text}) -> ()", "bad-number", hint=hint)


@pytest.mark.parametrize("text", ["int x=+1", "complex x=1+2", "complex x=1+", "int x=1-2"])
def test_only_an_imaginary_part_is_added(text):
    refused(f"f({text}) -> ()", "expected-token")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("int x=1.0", "write 1"),
        ("int x=1e3", "write 1000"),
        ("int x=1.5", ""),
        ("int x=inf", ""),
        ("int x=True", "write 1 or 0"),
        ("int x=None", "write int?"),
        ('int x="a"', ""),
        ("int x=Mean", ""),
        ("int x=y", ""),
        ("int x=contiguous_format", ""),
        ("bool x=1", "write True"),
        ("bool x=0", "write False"),
        ("bool x=true", "write True"),
        ("bool x=None", "write bool?"),
        ("float x=None", "write float?"),
        ("float x=1j", ""),
        ("complex x=inf", "finite"),
        ("complex x='1'", ""),
        ("Scalar x='1'", ""),
        ("str x=a", "quote it"),
        ("str x=1", ""),
        ("Any x=word", ""),
        ("Any x=[]", ""),
        ("Tensor x=None", "Tensor?"),
        ("Tensor? x=[]", "Tensor?"),
        ("Tensor[] x=[None]", "Tensor?"),
        ("Generator x=None", "Generator?"),
        ('ScalarType x="float32"', "write float32 without quotes"),
        ("ScalarType x=torch.float32", "write float32"),
        ("ScalarType x=6", "write float32"),
        ("ScalarType x=39", "write the name"),
        ("ScalarType x=xyz", ""),
        ("ScalarType x=flaot32", "float32"),
        ("Device x=cpu", 'quote it: "cpu"'),
        ("Device x=None", "write Device?"),
        ('Device x="notadevice"', "known:"),
        ('Device x="cuda:-1"', "known:"),
        ("Device x=0", ""),
        ("Layout x=sparse_coo", "`strided`"),
        ("Layout x=0", "`strided`"),
        ('Layout x="strided"', "without quotes"),
        ("MemoryFormat x=nchw", "`channels_last`"),
        ("int[] x=1", "use [1]"),
        ("int[] x=None", "write int[]?"),
        ("int[] x=(1, 2)", "use [1, 2]"),
        ("int[] x=[1.5]", ""),
        ("int[][] x=[1]", "use [1]"),
        ("(int, int) x=(1,)", "a tuple of 2 is written (a, b)"),
        ("(int) x=(1, 2)", "a tuple of 1 is written (a,)"),
        ("(int, int) x=[1, 2]", "(a, b)"),
        ("(int, int) x=None", "write (int, int)?"),
        ("Dict(str, int) x=None", "Dict(K, V)?"),
        ("Union(int, str) x=1.5", ""),
    ],
)
def test_a_literal_of_another_type_is_refused(text, hint):
    name = text.partition("=")[2]
    error = refused(f"f({text}) -> ()", "default-type", hint=hint, message="argument `x`")
    assert "is not a" in error.message
    assert error.text[slice(*error.span)] in name


@pytest.mark.parametrize("literal", ["(1)", "()", "(1, 2,)", "[1, 2, ]", "[,]", "{}", "{'a': 1}"])
def test_containers_have_one_spelling(literal):
    refused(f"f(int[] x={literal}) -> ()", "expected-token")


def test_a_sized_list_takes_its_size_or_one_to_repeat():
    refused(
        "f(int[2] x=[1, 2, 3]) -> ()", "default-length", message="takes 2 values or one to repeat"
    )
    refused("f(int[2] x=[1]) -> ()", "default-length")
    refused("f(int[2]? x=[1]) -> ()", "default-length")


@pytest.mark.parametrize("text", ["int", "SymInt", "Scalar", "Any"])
def test_integers_fit_in_64_bits(text):
    refused(f"f({text} x=9223372036854775808) -> ()", "int-range", message="64 bits")
    refused(f"f(int y=1, {text} x=-9223372036854775809) -> ()", "int-range")


def test_a_positional_argument_without_default_follows_none_with_one():
    message = "`y` has no default but follows `x=1`"
    refused("f(int x=1, int y) -> ()", "default-order", message=message, at=15)
    refused("f(Tensor? b=None, int[] s) -> ()", "default-order")
    assert argument_text("int x=1, *, int y") == "int x=1, *, int y"


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("float", "float32"),
        ("double", "float64"),
        ("half", "float16"),
        ("int", "int32"),
        ("long", "int64"),
        ("short", "int16"),
        ("cfloat", "complex64"),
        ("cdouble", "complex128"),
        ("bool", "bool"),
        ("uint16", "uint16"),
    ],
)
def test_short_dtype_words_keep_the_meaning_of_torch(word, name):
    assert default_of(f"ScalarType x={word}") == np.dtype(name)
    assert argument_text(f"ScalarType x={word}") == f"ScalarType x={name}"


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_names_of_ml_dtypes_parse_without_the_package(name, monkeypatch):
    def missing(module):
        raise ImportError(module)

    monkeypatch.setattr(importlib, "import_module", missing)
    default = default_of(f"ScalarType x={name}")
    assert isinstance(default, DtypeName)
    assert default.name == name
    assert argument_text(f"ScalarType x={name}") == f"ScalarType x={name}"
    with pytest.raises(ArgumentError, match="ml_dtypes"):
        dtypes.as_dtype(default)


def test_a_device_is_quoted_and_known():
    assert default_of('Device x="cuda:1"') == Device("cuda", 1)
    assert argument_text("Device x='cuda:1'") == 'Device x="cuda:1"'
    assert argument_text("Device? x=None") == "Device? x=None"
    refused('f(Device x="toaster") -> ()', "default-type")
    dtypes.register_device_type("toaster")
    try:
        assert argument_text('Device x="toaster:0"') == 'Device x="toaster:0"'
    finally:
        dtypes._device_types.discard("toaster")


def test_an_enum_default_is_a_member_word():
    registrations = [
        register_opaque_type(Mode),
        register_opaque_type(Level),
        register_opaque_type(Codec),
    ]
    try:
        assert default_of("tests.schema.helpers.Mode m=EXACT") is Mode.EXACT
        assert argument_text("tests.schema.helpers.Level m=HIGH").endswith("m=HIGH")
        assert argument_text("tests.schema.helpers.Mode[] m=[FAST]").endswith("m=[FAST]")
        assert argument_text("Union(int, tests.schema.helpers.Level) m=LOW").endswith("m=LOW")
        unknown = "f(tests.schema.helpers.Mode m=SLOW) -> ()"
        refused(unknown, "default-type", hint="`FAST` or `EXACT`")
        refused("f(tests.schema.helpers.Mode m=None) -> ()", "default-type", hint="Mode?")
        refused("f(tests.schema.helpers.Codec c=X) -> ()", "default-type", hint="only an Enum")
    finally:
        for registration in registrations:
            registration.remove()


def test_an_argument_without_default_says_so():
    (argument,) = parse("f(Tensor? x) -> ()").arguments
    assert argument.default is NO_DEFAULT
    assert not argument.has_default
    assert parse("f(Tensor? x=None) -> ()").arguments[0].has_default


def test_defaults_are_immutable():
    assert type(default_of("int[][] x=[[1], [2]]")) is tuple
    assert type(default_of("int[][] x=[[1], [2]]")[0]) is tuple


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("float x=0.0", "float x=-0.0"),
        ("Scalar x=1", "Scalar x=1.0"),
        ("Scalar x=1", "Scalar x=True"),
        ("complex x=-0+1j", "complex x=1j"),
        ("Any x=None", "Any x='None'"),
    ],
)
def test_schemas_whose_defaults_differ_in_kind_or_bits_differ(left, right):
    assert parse(f"f({left}) -> ()") != parse(f"f({right}) -> ()")
    assert parse(f"f({left}) -> ()").arguments[0] != parse(f"f({right}) -> ()").arguments[0]


def test_schemas_with_nan_are_equal_and_hash_alike():
    left, right = parse("f(float x=nan) -> ()"), parse("f(float x=nan) -> ()")
    assert left == right
    assert hash(left) == hash(right)
    assert hash(left.arguments[0]) == hash(right.arguments[0])
    assert left.arguments == right.arguments


def test_a_long_list_is_refused_before_it_is_expanded():
    refused("f(int[1000000000000] x=1) -> ()", "list-size")
    assert len(default_of("int[1024] x=1")) == 1024


def test_no_literal_is_evaluated(monkeypatch):
    def forbidden(*args):
        raise AssertionError("a literal was evaluated")

    monkeypatch.setattr(builtins, "eval", forbidden)
    assert default_of("str x='__import__(1)'") == "__import__(1)"


def test_a_default_still_prints_when_its_class_is_no_longer_registered():
    registration = register_opaque_type(Mode)
    alone = parse("f(tests.schema.helpers.Mode m=FAST) -> ()")
    united = parse("f(Union(int, tests.schema.helpers.Mode) m=FAST) -> ()")
    registration.remove()
    assert str(alone).endswith("m=FAST) -> ()")
    assert str(united).endswith("m=FAST) -> ()")
