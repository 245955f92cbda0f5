# ruff: noqa: UP007, UP045  (both spellings of a union are tested)
"""Inference of whole signatures: callables, defaults, what is written, tags."""

import functools
import importlib
import math
from typing import Annotated, Any, Literal, Optional, Union

import numpy as np
import pytest

from oplib.dtypes import Device
from oplib.errors import SchemaError
from oplib.schema import NO_DEFAULT, SchemaType, infer, infer_schema, parse
from tests.schema.helpers import Level, Mode, Tensor


def scheme(function, mutates_args=(), **options):
    text = infer_schema(function, mutates_args=mutates_args, **options)
    assert str(parse(text, nameless=not options.get("op_name"))) == text
    return text


def refused(function, message, hint="", rule="", mutates_args=(), tags=()):
    with pytest.raises(SchemaError) as caught:
        infer_schema(function, mutates_args=mutates_args, tags=tags)
    error = caught.value
    assert message in error.message, str(error)
    assert hint in error.hint, str(error)
    assert rule in ("", error.rule), str(error)
    return error


# Callables ---------------------------------------------------------------------------------------


def test_plain_signatures():
    def one(x: Tensor) -> Tensor: ...
    def keyword(x: Tensor, *, n: int, s: str = "a") -> None: ...
    def nothing() -> None: ...
    def positional(x: Tensor, /, y: int) -> tuple[Tensor, Tensor]: ...

    assert scheme(one) == "(Tensor x) -> Tensor"
    assert scheme(keyword) == '(Tensor x, *, SymInt n, str s="a") -> ()'
    assert scheme(nothing) == "() -> ()"
    assert scheme(positional) == "(Tensor x, SymInt y) -> (Tensor, Tensor)"


class Kernel:
    def __call__(self, x: Tensor, n: int) -> Tensor: ...
    def method(self, x: Tensor) -> Tensor: ...
    @classmethod
    def of_class(cls, x: Tensor) -> Tensor: ...
    @staticmethod
    def static(x: Tensor) -> Tensor: ...


def test_methods_and_callable_objects():
    assert scheme(Kernel()) == "(Tensor x, SymInt n) -> Tensor"
    for bound in (Kernel().method, Kernel.of_class, Kernel.static, staticmethod(Kernel.static)):
        assert scheme(bound) == "(Tensor x) -> Tensor"


def test_partials_drop_positional_bindings_and_keep_keyword_ones():
    def f(x: Tensor, n: int, s: str) -> Tensor: ...

    assert scheme(functools.partial(f, None)) == "(SymInt n, str s) -> Tensor"
    assert scheme(functools.partial(f, n=3)) == "(Tensor x, *, SymInt n=3, str s) -> Tensor"
    assert scheme(functools.partial(Kernel(), n=3)) == "(Tensor x, *, SymInt n=3) -> Tensor"


def test_a_wrapper_has_the_signature_of_what_it_wraps():
    def f(x: Tensor) -> Tensor: ...

    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        return f(*args, **kwargs)

    assert scheme(wrapper) == "(Tensor x) -> Tensor"


def test_functions_without_annotations_need_a_schema():
    refused(np.hypot, "a ufunc has no annotations", '"(Tensor x1, Tensor x2) -> Tensor"')
    refused(np.exp, "a ufunc", '"(Tensor x) -> Tensor"')
    refused(np.divmod, "a ufunc", '"(Tensor x1, Tensor x2) -> (Tensor, Tensor)"')
    refused(math.sqrt, "a built-in function", "schema=")
    refused(len, "built-in len", "schema=")


def test_only_plain_functions_have_a_schema():
    async def coroutine(x: Tensor) -> Tensor: ...

    def generator(x: Tensor) -> Tensor:
        yield x

    async def both(x: Tensor) -> Tensor:
        yield x

    refused(coroutine, "it is a coroutine function", "plain function")
    refused(functools.partial(coroutine), "it is a coroutine function")
    refused(generator, "it is a generator function", "plain function")
    refused(both, "it is a generator function")
    refused(Kernel, "not a class")
    refused(3, "not 3")
    refused(None, "not None")


def test_every_parameter_is_annotated_and_the_return_too():
    def no_annotation(x, y: int) -> None: ...
    def no_return(x: Tensor): ...
    def star(x: Tensor, *args: Tensor) -> None: ...
    def stars(x: Tensor, **kwargs: int) -> None: ...
    def foreign(naïve: Tensor) -> None: ...

    refused(no_annotation, "parameter `x` has no annotation", "`x: Tensor`")
    refused(no_return, "the return has no annotation", "`-> None`")
    refused(star, "`*args`", "list[Tensor]", "varargs")
    refused(stars, "`**kwargs`", "list", "varargs")
    refused(foreign, "`naïve` is not an ASCII identifier", "rename", "bad-name")


def test_a_refusal_names_function_and_place():
    def f(x: set) -> None: ...

    error = refused(f, "`f`: the annotation of `x`: `set` has no schema type", "Sequence")
    line = f.__code__.co_firstlineno
    assert f"test_infer.py:{line}" in error.message


def test_words_of_python_that_a_schema_reserves_are_not_parameter_names():
    def f(lambda_: int, self: int) -> None: ...

    assert scheme(f) == "(SymInt lambda_, SymInt self) -> ()"


def test_a_rule_of_schemas_is_reported_for_the_function():
    class Named(Kernel):
        pass

    def f(x: Tensor, y: Annotated[Any, SchemaType("int(a)")]) -> None: ...
    def g(x: Annotated[Tensor, SchemaType("Tensor(a!)")], y: Tensor) -> Named: ...

    refused(f, "`f`: the annotation of `y`", "effects=", "alias-non-tensor")
    refused(g, "`g`: the return annotation", "move it to module level")


def test_annotations_that_are_evaluated_on_access_report_the_missing_name():
    class Lazy:
        def __call__(self, x: Tensor) -> Tensor: ...

        @property
        def __signature__(self):
            raise NameError("name 'Missing' is not defined", name="Missing")

    refused(Lazy(), "`Missing` in an annotation is not defined", rule="annotation-name")


# Names -------------------------------------------------------------------------------------------


def test_op_name_comes_before_the_text():
    def f(x: Tensor) -> Tensor: ...

    assert scheme(f, op_name="ns::f.out") == "ns::f.out(Tensor x) -> Tensor"
    assert parse("f" + scheme(f)).qualname == "f"
    with pytest.raises(SchemaError, match="no overload name") as caught:
        scheme(f, op_name="ns::f.default")
    assert caught.value.rule == "bad-overload"


# Defaults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "default", "printed"),
    [
        (int, 3, "SymInt x=3"),
        (int, True, None),
        (int, np.int32(3), "SymInt x=3"),
        (int, Level.HIGH, "SymInt x=7"),
        (int | float, Level.HIGH, "Scalar x=7"),
        (float, 1, "float x=1.0"),
        (float, math.inf, "float x=inf"),
        (float, -math.inf, "float x=-inf"),
        (float, math.nan, "float x=nan"),
        (float, np.float32(0.5), "float x=0.5"),
        (float, np.float64(0.5), "float x=0.5"),
        (bool, False, "bool x=False"),
        (bool, np.bool_(True), "bool x=True"),
        (complex, 1, "complex x=1+0j"),
        (complex, 1 - 2j, "complex x=1-2j"),
        (complex, complex(math.inf, 0), None),
        (complex, math.nan, None),
        (str, 'q"\\\n', r'str x="q\"\\\n"'),
        (str, "q'q", 'str x="q\'q"'),
        (Optional[str], None, "str? x=None"),
        (str, None, "str? x=None"),
        (Tensor, None, "Tensor? x=None"),
        (Any, None, "Any x=None"),
        (list[int], (1, 2), "SymInt[] x=[1, 2]"),
        (list[int], [1, np.int8(2)], "SymInt[] x=[1, 2]"),
        (list[int], [], "SymInt[] x=[]"),
        (tuple[int, ...], (1, 2), "SymInt[] x=[1, 2]"),
        (tuple[int, float], (1, 2), "(SymInt, float) x=(1, 2.0)"),
        (tuple[int, float], (1, 2, 3), None),
        (list[list[int]], ([1], ()), "SymInt[][] x=[[1], []]"),
        (np.dtype, np.float32, "ScalarType x=float32"),
        (np.dtype, np.dtype("f4"), "ScalarType x=float32"),
        (np.dtype, "float32", "ScalarType x=float32"),
        (np.dtype, float, "ScalarType x=float64"),
        (np.dtype, np.dtype(">f4"), None),
        (np.dtype, "datetime64[ns]", None),
        (np.dtype, 3, None),
        (np.dtype, "bfloat16", "ScalarType x=bfloat16"),
        (Device, Device("cuda", 1), 'Device x="cuda:1"'),
        (Device, "cpu", 'Device x="cpu"'),
        (Device, "toaster", None),
        (Mode, Mode.EXACT, "tests.schema.helpers.Mode x=EXACT"),
        (Mode, Level.HIGH, None),
        (Mode, "EXACT", None),
        (Mode, None, "tests.schema.helpers.Mode? x=None"),
        (Literal["a", "b"], "b", 'str x="b"'),
        (Literal["a", None], None, "str? x=None"),
        (Literal["alpha"], "alpho", None),
        (Literal["auto"] | int, 3, "Union(SymInt, str) x=3"),
        (Union[float, str], 1, "Union(float, str) x=1.0"),
        (Union[float, str], np.float32(0.5), "Union(float, str) x=0.5"),
        (Union[float, str], None, "Union(float, str)? x=None"),
        (Union[Tensor, float], 2, "Union(Tensor, float) x=2.0"),
        (Union[list[int], str], [1], "Union(SymInt[], str) x=[1]"),
        (Union[Tensor, float], "a", None),
        (Annotated[list[int], SchemaType("int[2]")], 1, "int[2] x=[1, 1]"),
        (Annotated[list[int], SchemaType("int[2]")], [1, 2, 3], None),
        (
            Annotated[str, SchemaType("MemoryFormat")],
            "channels_last",
            "MemoryFormat x=channels_last",
        ),
        (Annotated[str, SchemaType("Layout")], "sparse", None),
        (int, 2.5, None),
        (int, "x", None),
        (int, 2**63, None),
        (str, 3, None),
        (str, b"a", None),
        (Tensor, np.zeros(2), None),
        (Tensor, 1, None),
        (list[int], {1}, None),
        (list[int], 1, None),
        (dict[str, int], {}, None),
        (Any, object(), None),
        (float, np.longdouble(1), None),
    ],
)
def test_a_default_is_a_value_of_the_inferred_type(annotation, default, printed):
    def f(x=default) -> None: ...

    f.__annotations__["x"] = annotation
    if printed is None:
        with pytest.raises(SchemaError) as caught:
            infer_schema(f, mutates_args=())
        assert "`x`" in caught.value.message or "default" in caught.value.message
    else:
        assert scheme(f) == f"({printed}) -> ()"


def test_a_required_parameter_has_no_default():
    def f(x: Tensor, *, n: int) -> None: ...

    schema = parse(scheme(f), nameless=True)
    assert all(argument.default is NO_DEFAULT for argument in schema.arguments)


def test_a_default_outside_its_literal_is_refused_with_the_nearest_value():
    def f(mode: Literal["nearest", "linear"] = "liner") -> None: ...

    refused(
        f,
        "default of `mode` must be `'nearest'` or `'linear'`, got 'liner' (did you mean 'linear'?)",
    )


def test_a_dtype_of_a_missing_package_is_a_default_by_name(monkeypatch):
    def f(x: np.dtype = "float8_e5m2") -> None: ...

    def missing(module):
        raise ImportError(module)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert scheme(f) == "(ScalarType x=float8_e5m2) -> ()"


def test_an_array_default_is_replaced_by_none():
    def f(x: Tensor = np.zeros(2)) -> None: ...  # noqa: B008

    refused(f, "parameter `x`: default", "use None", "default-type")


# What is written ---------------------------------------------------------------------------------


def many(
    x: Tensor, n: int, ys: list[Tensor], *, zs: list[Optional[Tensor]], t: Union[Tensor, int] = 1
) -> None: ...


def several(x: Tensor, n: int, ys: list[Tensor], *, zs: list[Tensor | None]) -> None: ...


@pytest.mark.parametrize(
    "mutates_args",
    [
        {"x", "ys"},
        ["ys", "x", "x"],
        ("x", "ys"),
        {"x": 1, "ys": 2},
        {"x": 1, "ys": 2}.keys(),
        frozenset(("x", "ys")),
    ],
)
def test_mutates_args_is_any_iterable_of_names(mutates_args):
    expected = "(Tensor(a0!) x, SymInt n, Tensor(a2!)[] ys, *, Tensor?[] zs) -> ()"
    assert scheme(several, mutates_args) == expected
    assert scheme(several, (name for name in mutates_args)) == expected


def test_labels_count_every_argument():
    assert scheme(several, ["zs"]).endswith("*, Tensor(a3!)?[] zs) -> ()")
    assert scheme(several, "unknown") == (
        "(Tensor(a0!) x, SymInt n, Tensor(a2!)[] ys, *, Tensor(a3!)?[] zs) -> ()"
    )
    assert scheme(several, ()) == "(Tensor x, SymInt n, Tensor[] ys, *, Tensor?[] zs) -> ()"


def test_a_written_parameter_keeps_its_default():
    def f(x: Tensor, out: Tensor | None = None) -> None: ...

    assert scheme(f, ["out"]) == "(Tensor x, Tensor(a1!)? out=None) -> ()"


def test_tensors_in_tuples_and_dictionaries_are_written_with_their_argument():
    def f(t: tuple[Tensor, int], d: dict[str, Tensor]) -> None: ...

    assert scheme(f, "unknown") == "((Tensor(a0!), SymInt) t, Dict(str, Tensor(a1!)) d) -> ()"


def test_a_name_that_is_no_parameter_is_reported():
    refused(several, "names `xx`, no parameter", "`x`, `n`, `ys` and `zs`", mutates_args=["xx"])
    refused(several, "(did you mean 'ys'?)", mutates_args=["yss"])
    refused(several, "names ``, no parameter", rule="mutates-args", mutates_args=("",))


def test_only_tensors_are_written():
    refused(several, "names `n`", "effects=", "alias-non-tensor", mutates_args=["n"])
    refused(many, "names `t`", "of its own", "union-tensor", mutates_args=["t"])
    refused(many, "names `t`", rule="union-tensor", mutates_args="unknown")


@pytest.mark.parametrize(
    ("value", "hint"),
    [("y", "mutates_args=('y',)"), ("", "mutates_args=()"), ("x, y", "mutates_args=('x, y',)")],
)
def test_a_bare_string_is_no_list_of_names(value, hint):
    with pytest.raises(SchemaError) as caught:
        infer_schema(None, mutates_args=value)  # before anything else happens
    assert hint in caught.value.hint


@pytest.mark.parametrize("value", [None, 3, [None], [3]])
def test_mutates_args_of_another_type_is_a_type_error(value):
    with pytest.raises(TypeError, match="mutates_args"):
        infer_schema(several, mutates_args=value)


def test_mutates_args_is_required():
    with pytest.raises(TypeError, match="mutates_args"):
        infer_schema(several)


# Tags --------------------------------------------------------------------------------------------


def add_(x: Tensor, y: Tensor) -> Tensor: ...
def add_out(x: Tensor, *, out: Tensor) -> Tensor: ...
def split_out(x: Tensor, *, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]: ...


def test_the_tag_inplace_returns_the_first_argument():
    text = "(Tensor(a0!) x, Tensor y) -> Tensor(a0!)"
    assert scheme(add_, ["x"], tags=("inplace",)) == text
    assert scheme(add_, ["x"], tags="inplace") == text
    assert parse(text, nameless=True).is_inplace


def test_the_tag_out_returns_what_is_written():
    assert scheme(add_out, ["out"], tags={"out", "other"}) == (
        "(Tensor x, *, Tensor(a1!) out) -> Tensor(a1!)"
    )
    text = "(Tensor x, *, Tensor(a1!) lo, Tensor(a2!) hi) -> (Tensor(a1!), Tensor(a2!))"
    assert scheme(split_out, ["hi", "lo"], tags=["out"]) == text
    assert parse(text, nameless=True).is_out


def no_positional(*, x: Tensor) -> Tensor: ...
def number_first(n: int, x: Tensor) -> Tensor: ...
def optional_first(x: Optional[Tensor]) -> Tensor: ...
def returns_two(x: Tensor) -> tuple[Tensor, Tensor]: ...
def returns_none(x: Tensor) -> None: ...
def out_positional(x: Tensor, out: Tensor) -> Tensor: ...
def out_optional(x: Tensor, *, out: Optional[Tensor]) -> Tensor: ...
def out_list(x: Tensor, *, out: list[Tensor]) -> list[Tensor]: ...
def out_one_tuple(x: Tensor, *, out: Tensor) -> tuple[Tensor]: ...


@pytest.mark.parametrize(
    ("function", "mutates_args", "tag", "message"),
    [
        (no_positional, ["x"], "inplace", "no positional argument"),
        (number_first, ["x"], "inplace", "`n` is `SymInt`"),
        (optional_first, ["x"], "inplace", "`x` is `Tensor(a0!)?`"),
        (add_, [], "inplace", "names nothing instead of `x` alone"),
        (add_, ["x", "y"], "inplace", "names `x` and `y` instead of `x` alone"),
        (returns_two, ["x"], "inplace", "returns `(Tensor, Tensor)`"),
        (returns_none, ["x"], "inplace", "returns `()`"),
        (add_out, [], "out", "names nothing"),
        (out_positional, ["out"], "out", "`out` is not keyword-only"),
        (out_optional, ["out"], "out", "`out` is `Tensor?`"),
        (out_list, ["out"], "out", "`out` is `Tensor[]`"),
        (split_out, ["lo"], "out", "writes `lo` but returns `(Tensor, Tensor)`"),
        (out_one_tuple, ["out"], "out", "returns `((Tensor))`"),
    ],
)
def test_a_tag_that_does_not_fit_is_refused(function, mutates_args, tag, message):
    error = refused(function, message, rule="tags", mutates_args=mutates_args, tags=[tag])
    assert f"tagged `{tag}`" in error.message


def test_the_two_tags_exclude_each_other():
    refused(add_, "exclude each other", mutates_args=["x"], tags=["inplace", "out"])


def test_inference_says_all_it_found():
    def f(x: np.ndarray, mode: Literal["a", "b"] = "a") -> np.ndarray: ...

    found = infer(f, mutates_args=())
    assert found.text == '(Tensor x, str mode="a") -> Tensor'
    assert found.convention == "array"
    assert found.choices == {"mode": ("a", "b")}
