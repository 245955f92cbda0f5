"""The model: queries, slots, order, identity."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import random
import subprocess
import sys

import pytest

from oplib._record import replace
from oplib.schema import NO_DEFAULT, Argument, FunctionSchema, Return, Slot, TensorType, parse
from tests.schema.helpers import schema_of

KINDS = ("is_functional", "is_mutable", "is_view", "is_inplace", "is_out", "is_effect")


@pytest.mark.parametrize(
    ("arguments", "returns", "kinds"),
    [
        ("Tensor x", "Tensor", {"is_functional"}),
        ("Tensor(a) x", "Tensor", {"is_functional"}),
        ("Tensor x", "int", {"is_functional"}),
        ("Tensor(a) x", "Tensor(a)", {"is_view"}),
        ("Tensor(a) x", "Tensor(a)[]", {"is_view"}),
        ("Tensor x", "(Tensor, Tensor(*))", {"is_view"}),
        ("Tensor(a!) x, Tensor y", "Tensor(a!)", {"is_mutable", "is_inplace"}),
        ("Tensor(a!) x", "(Tensor(a!), Tensor)", {"is_mutable"}),
        ("Tensor x, Tensor(a!) y", "Tensor(a!)", {"is_mutable"}),
        ("Tensor(a!) x, Tensor(b!) y", "Tensor(a!)", {"is_mutable"}),
        ("Tensor(a!) x", "Tensor(a)", {"is_mutable"}),
        ("Tensor(a!)[] x", "Tensor(a!)[]", {"is_mutable"}),
        ("Tensor x, *, Tensor(a!) out", "Tensor(a!)", {"is_mutable", "is_out"}),
        (
            "Tensor x, *, Tensor(a!) u, Tensor(b!) v, Tensor(c!) w",
            "(Tensor(a!), Tensor(b!), Tensor(c!))",
            {"is_mutable", "is_out"},
        ),
        ("*, Tensor(a!) u, Tensor(b!) v", "(Tensor(b!), Tensor(a!))", {"is_mutable"}),
        ("Tensor(a!) x, *, Tensor(b!) out", "Tensor(b!)", {"is_mutable"}),
        ("Tensor x, *, Tensor(a!)? out=None", "Tensor(a!)", {"is_mutable"}),
        ("Tensor x, *, Tensor(a!) out", "(Tensor(a!), Tensor)", {"is_mutable"}),
        ("Tensor!? x, Tensor![] y", "()", {"is_mutable"}),
        ("*, Tensor! out", "()", {"is_mutable"}),
        ("Tensor x", "()", {"is_effect"}),
        ("", "()", {"is_effect"}),
        ("", "Tensor", {"is_functional"}),
    ],
)
def test_what_kind_of_operator_a_schema_describes(arguments, returns, kinds):
    schema = schema_of(arguments, returns)
    assert {kind for kind in KINDS if getattr(schema, kind)} == kinds


def test_written_arguments_are_named_in_order():
    schema = schema_of("Tensor a, Tensor(b!) b, int c, (int, Tensor!) d, *, Tensor(e!)?[] e")
    assert schema.mutated_arguments == ("b", "d", "e")


def test_a_written_return_is_its_argument():
    schema = schema_of("Tensor(a!) x, Tensor(b!)? y=None", "(Tensor(b!), Tensor, Tensor(a!))")
    assert [schema.returned_argument(i) for i in range(3)] == ["y", None, "x"]
    assert [schema.aliased_arguments(i) for i in range(3)] == [(), (), ()]


def test_a_view_may_be_of_each_argument_with_its_label():
    schema = schema_of("Tensor(a) x, Tensor y, Tensor(b|c)[] z", "(Tensor(a|b), Tensor(c), int)")
    assert schema.aliased_arguments(0) == ("x", "z")
    assert schema.aliased_arguments(1) == ("z",)
    assert schema.aliased_arguments(2) == ()


def test_a_wildcard_view_may_be_of_any_argument_with_tensors():
    schema = schema_of("Tensor x, int n, Tensor[] ys", "Tensor(*)")
    assert schema.aliased_arguments(0) == ("x", "ys")


def test_a_view_of_a_written_argument_is_not_that_argument():
    schema = schema_of("Tensor(a!) x", "Tensor(a)")
    assert schema.returned_argument(0) is None
    assert schema.aliased_arguments(0) == ("x",)


def test_a_set_taken_on_after_the_call_counts_for_views():
    assert schema_of("Tensor(a -> b) x", "Tensor(b)").aliased_arguments(0) == ("x",)


def test_slots_are_the_tensor_positions():
    schema = schema_of("(Tensor, int)[] t, Dict(str, Tensor?) d, Any a, Union(Tensor, int) u")
    assert schema.input_slots == (
        Slot(0, ("[]", 0), False, None),
        Slot(1, ("{}",), True, None),
        Slot(3, (), True, None),
    )
    assert schema.differentiable_arguments == ("t", "d", "u")


def test_a_slot_behind_an_optional_container_may_be_absent():
    (slot,) = schema_of("Tensor(a!)[]? xs").input_slots
    assert slot.optional
    assert slot.alias is not None
    assert str(slot.alias) == "(a!)"


def test_output_slots_are_those_of_the_returns():
    schema = schema_of("", "(Tensor, int, (Tensor?, Tensor[]))")
    assert [(slot.index, slot.path, slot.optional) for slot in schema.output_slots] == [
        (0, (), False),
        (2, (0,), True),
        (2, (1, "[]"), False),
    ]


def test_arguments_and_returns_are_found_by_name():
    schema = schema_of("Tensor x, *, int n=3", "(Tensor mean, Tensor)")
    assert schema.argument("n").default == 3
    assert schema.argument("n").kwarg_only
    assert schema.return_("mean") is schema.returns[0]
    with pytest.raises(KeyError):
        schema.argument("mean")
    with pytest.raises(KeyError):
        schema.return_("x")


@pytest.mark.parametrize(
    ("text", "qualname"),
    [("ns::f.o() -> ()", "ns::f.o"), ("ns::f() -> ()", "ns::f"), ("f.o() -> ()", "f.o")],
)
def test_qualname_leaves_out_what_is_missing(text, qualname):
    assert parse(text).qualname == qualname


def test_fields_cannot_be_assigned():
    schema = schema_of("Tensor(a!) x, int n=3", "Tensor(a!)")
    nouns = [schema, schema.arguments[0], schema.returns[0], schema.arguments[0].type]
    for noun in [*nouns, schema.arguments[0].type.alias]:
        field = noun.__match_args__[0]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(noun, field, None)
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        schema.colour = "red"


def test_repr_shows_the_canonical_text():
    schema = schema_of("Tensor(a!) x, *, int[] n=[3]", "Tensor(a!) x")
    for noun in (schema, *schema.arguments, *schema.returns, schema.arguments[0].type):
        assert str(noun) in repr(noun)
    assert repr(schema.arguments[0].default) == "NO_DEFAULT"


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_are_equal(again):
    schema = schema_of(
        "Tensor(a!)?[] x, Dict(str, (int, Tensor)) d, *, "
        'float e=nan, ScalarType t=float, Device v="cpu"',
        "(Tensor, Tensor(*) out)",
    )
    assert schema.is_mutable  # a computed query does not get in the way
    copied = again(schema)
    assert copied == schema
    assert {schema: "found"}[copied] == "found"
    assert copied.arguments[0].default is NO_DEFAULT
    for noun in (schema.arguments[0], schema.returns[1], schema.arguments[0].type):
        assert again(noun) == noun
        assert hash(again(noun)) == hash(noun)


def test_schemas_are_ordered_by_name_then_text():
    texts = [
        "a::f(Tensor x) -> ()",
        "a::f.o(Tensor x) -> ()",
        "a::f.o(int x) -> ()",
        "a::g() -> ()",
        "b::f() -> ()",
    ]
    schemas = [parse(text) for text in texts]
    shuffled = random.Random(0).sample(schemas, len(schemas))
    assert sorted(shuffled) == schemas
    assert schemas[0] < schemas[1] <= schemas[1]
    assert max(schemas) == schemas[-1]
    with pytest.raises(TypeError):
        sorted([schemas[0], "a::f() -> ()"])


def test_equality_is_structural_and_names_of_sets_count():
    assert parse("f(Tensor(a!) x) -> ()") != parse("f(Tensor(b!) x) -> ()")
    assert parse("f(Tensor! x) -> ()") != parse("f(Tensor(a!) x) -> ()")
    assert parse("f(int x) -> ()") != parse("f(*, int x) -> ()")
    assert parse("f(int x) -> ()").arguments[0] != parse("f(*, int x) -> ()").arguments[0]
    assert parse("f() -> ()") != "f() -> ()"
    assert parse("f(int x) -> ()").arguments[0] != "int x"


def test_a_schema_can_be_put_together_by_hand():
    arguments = (
        Argument("x", TensorType()),
        Argument("n", parse("f(int[] n) -> ()").arguments[0].type, (1, 2)),
    )
    schema = FunctionSchema("ns", "f", "", arguments, (Return(TensorType()),))
    assert schema == parse("ns::f(Tensor x, int[] n=[1, 2]) -> Tensor")
    assert replace(schema, name="g") == schema.named("ns", "g")


def test_texts_do_not_depend_on_the_hash_seed():
    program = (
        "from oplib.schema import parse\n"
        "print(parse('f(Tensor(z|b|a|q) x, Union(str, Tensor(a|b), int, bool) y) -> Tensor(q|z)'))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert printed == {
        "f(Tensor(a|b|q|z) x, Union(Tensor(a|b), bool, int, str) y) -> Tensor(q|z)\n"
    }
