"""Symbolic sizes against plain ints: forms, bounds, facts, and what they refuse to answer."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oplib._dims import Facts, SymBool, SymInt, same, shorter, substitute, sym_max, sym_min
from oplib.errors import ArgumentError, DataDependentError, FakeTensorError


def symbols(count: int = 3, **bounds: Any) -> tuple[Facts, list[Any]]:
    facts = Facts()
    return facts, [facts.fresh(**bounds) for _ in range(count)]


BINARY: list[Callable[[Any, Any], Any]] = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    sym_min,
    sym_max,
]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@st.composite
def expressions(draw: st.DrawFn, leaves: list[Any], values: dict[str, int]) -> tuple[Any, int]:
    """A random expression of symbols, and its value where the symbols have `values`."""
    pairs = [(leaf, values[str(leaf)]) for leaf in leaves] + [(n, n) for n in range(-3, 6)]
    found, value = draw(st.sampled_from(pairs))
    for _ in range(draw(st.integers(0, 5))):
        other, other_value = draw(st.sampled_from(pairs))
        compute = draw(st.sampled_from(BINARY))
        if draw(st.booleans()):
            found, value, other, other_value = other, other_value, found, value
        if compute in (operator.floordiv, operator.mod):
            assume(other_value != 0)
            if isinstance(other, SymInt):
                assume((other != 0) is True)
        found, value = compute(found, other), compute(value, other_value)
    return found, value


VALUES = {"u0": 3, "u1": 0, "u2": 7}


def bounded_symbols() -> tuple[Facts, list[Any]]:
    facts = Facts()
    return facts, [facts.fresh(1, 9), facts.fresh(), facts.fresh(min=2)]


@given(st.data())
def test_every_expression_evaluates_to_the_value_of_its_ints(data: st.DataObject) -> None:
    facts, leaves = bounded_symbols()
    found, value = data.draw(expressions(leaves, VALUES))
    assert substitute(found, VALUES) == value
    low, high = facts.bounds(found)
    assert low <= value <= high


@given(st.data())
def test_a_comparison_is_right_or_undecided(data: st.DataObject) -> None:
    _, leaves = bounded_symbols()
    left, left_value = data.draw(expressions(leaves, VALUES))
    right, right_value = data.draw(expressions(leaves, VALUES))
    compare = data.draw(st.sampled_from(COMPARISONS))
    answer = compare(left, right)
    if not isinstance(answer, SymBool):
        assert answer == compare(left_value, right_value)


@given(st.data())
def test_comparisons_stay_right_under_facts(data: st.DataObject) -> None:
    """Facts that hold for the values never lead to an answer that does not."""
    facts, leaves = bounded_symbols()
    for _ in range(data.draw(st.integers(1, 4))):
        left, left_value = data.draw(expressions(leaves, VALUES))
        right, right_value = data.draw(expressions(leaves, VALUES))
        compare = data.draw(st.sampled_from(COMPARISONS))
        answer = compare(left, right)
        if isinstance(answer, SymBool):
            if compare(left_value, right_value):
                facts.assume(answer)
                assert answer.known() in (True, None)
        else:
            assert answer == compare(left_value, right_value)


@given(st.data())
def test_polynomials_do_not_depend_on_how_they_were_written(data: st.DataObject) -> None:
    _, (a, b, c) = bounded_symbols()
    x, y, z = (data.draw(st.sampled_from([a, b, c, a + 1, b - c, 2 * c, a * b])) for _ in range(3))
    assert same(x * (y + z), z * x + x * y)
    assert same((x + y) * (x - y), x * x - y * y)
    assert same(x - x, 0)
    assert hash(x + y) == hash(y + x)


# -- forms ------------------------------------------------------------------------------------


def test_symbols_are_numbered_and_print_as_polynomials() -> None:
    _, (a, b, _) = symbols()
    assert str(2 * (a + 1) - 2) == "2*u0"
    assert str(3 - a * b) == "-u0*u1 + 3"
    assert str(b * a - a * a + b) == "-u0*u0 + u0*u1 + u1"
    assert str((a + 1) // 2) == "((u0 + 1)//2)"
    assert str(sym_min(a, b) % 3) == "(min(u0, u1)%3)"


def test_constant_results_are_ints() -> None:
    _, (a, _, _) = symbols()
    for value, expected in (
        (a - a, 0),
        (a * 0, 0),
        (a + 3 - a, 3),
        ((2 * a + 1) % 2, 1),
        (sym_min(a, -1), -1),
    ):
        assert type(value) is int
        assert value == expected


def test_divisions_that_come_out_even_are_carried_out() -> None:
    facts = Facts()
    a, b, c = facts.fresh(), facts.fresh(min=1), facts.fresh(min=1)
    assert same((a * b * c) // c, a * b)
    assert same((a * b + b) // b, a + 1)
    assert same((6 * a + 4) // 2, 3 * a + 2)
    assert same((4 * a + b) // 4, a + b // 4)
    assert same((a * (b + c)) // (b + c), a)
    assert same((a * b) % b, 0)
    assert same((2 * a - 1) // 2, a - 1)
    assert same(7 // (b * 0 + 2), 3)


def test_bounds_simplify_divisions_minima_and_maxima() -> None:
    facts = Facts()
    n, m = facts.fresh(1, 3), facts.fresh(min=5)
    assert same(n // 4, 0)
    assert same(n % 4, n)
    assert same(n // m, 0)
    assert same(sym_min(n, m), n)
    assert same(sym_max(n, m), m)
    assert same(abs(-m), m)
    assert same(sym_max(n, 0), n)
    assert sym_min(2, 3) == 2
    assert sym_max(2, 3) == 3


def test_quotients_and_remainders_of_negative_sizes_are_bounded_as_python_rounds() -> None:
    facts = Facts()
    n, m = facts.fresh(1, 5), facts.fresh(min=7)
    assert facts.bounds(-n % 7) == (0, 6)
    assert facts.bounds(-n // 7) == (-1, -1)
    assert facts.bounds(-n // m) == (-1, -1)
    assert facts.bounds(-n % m) == (0, float("inf"))
    assert facts.bounds(n % -3) == (-float("inf"), float("inf"))


def test_minima_do_not_depend_on_the_order_of_their_sides() -> None:
    _, (a, b, _) = symbols()
    assert same(sym_min(a, b), sym_min(b, a))
    assert not same(sym_min(a, b), sym_max(a, b))


def test_division_by_what_may_be_zero_asks_and_by_zero_raises() -> None:
    _, (a, b, _) = symbols()
    with pytest.raises(DataDependentError, match="whether u1 == 0 is not known"):
        a // b
    with pytest.raises(ZeroDivisionError):
        a % 0


def test_same_compares_forms_and_never_raises() -> None:
    facts, (a, b, _) = symbols()
    assert a.same(a + 0)
    assert not a.same(b)
    assert same(3, 3)
    assert not same(3, 4)
    assert not same(a, 3)
    assert not same(3, a)
    facts.assume(a == b)
    assert not same(a, b)


def test_symbols_hash_and_copy_as_values() -> None:
    _, (a, b, _) = symbols()
    assert {(a + b, 2): "x"}[(b + a, 2)] == "x"
    assert copy.deepcopy([a])[0] is a
    assert copy.copy(a).same(a)


def test_numpy_integers_and_bools_take_part() -> None:
    _, (a, _, _) = symbols()
    assert same(np.int64(3) * a, 3 * a)
    assert same(a + np.int32(1), a + 1)
    assert same(a + True, a + 1)
    assert same(np.int64(7) - a, 7 - a)


# -- comparisons ------------------------------------------------------------------------------


def test_bounds_decide_comparisons() -> None:
    facts = Facts()
    n = facts.fresh(min=2, max=8)
    assert (n > 1) is True
    assert (n >= 9) is False
    assert (n != 0) is True
    assert (n == 9) is False
    assert (2 * n == 7) is False
    assert (n + 1 > n) is True
    assert (n * n >= 4) is True
    assert (n != "x") is True
    assert (n == 2.0) is not False
    assert bool(n) is True


def test_corners_decide_comparisons_of_products() -> None:
    facts = Facts()
    a, b = facts.fresh(min=1), facts.fresh(min=1)
    assert (a * b >= a) is True
    assert (a * b + 1 > b) is True
    assert isinstance(a * b > a, SymBool)


def test_an_undecided_comparison_raises_when_asked_and_says_what_to_do() -> None:
    _, (a, b, _) = symbols()
    relation = a <= 10
    assert isinstance(relation, SymBool)
    assert str(relation) == "u0 <= 10"
    assert relation.known() is None
    with pytest.raises(DataDependentError) as caught:
        bool(relation)
    for part in ("whether u0 <= 10 is not known here", "(0 <= u0)", "oplib.meta.check(u0 <= 10)"):
        assert part in str(caught.value)
    with pytest.raises(DataDependentError, match=r"check\(u0 == u1\) or .*check\(u0 != u1\)"):
        bool(a != b)


def test_equality_is_never_false_for_lack_of_knowledge() -> None:
    _, (a, b, _) = symbols()
    assert isinstance(a == b, SymBool)
    for shapes in (((a, 2), (b, 2)), ((a,), (3,))):
        with pytest.raises(DataDependentError):
            shapes[0] == shapes[1]  # noqa: B015
    assert (a, 2) == (a + 0, 2)


@pytest.mark.parametrize(
    "ask", [int, float, range, operator.index, lambda a: [0] * a, lambda a: [1, 2][a], np.zeros]
)
def test_the_value_of_a_symbol_cannot_be_read(ask: Callable[[Any], Any]) -> None:
    facts = Facts()
    n = facts.fresh(max=4)
    with pytest.raises(DataDependentError, match=r"size u0 is not known here \(0 <= u0 <= 4\)"):
        ask(n)


def test_symbols_of_two_modes_do_not_mix() -> None:
    _, (a, _, _) = symbols()
    _, (b, _, _) = symbols()
    for compute in (operator.add, operator.eq, operator.lt, operator.floordiv):
        with pytest.raises(FakeTensorError, match="belong to two modes"):
            compute(a, b)
    assert not a.same(b)


def test_other_types_are_no_sizes() -> None:
    _, (a, _, _) = symbols()
    for bad in ("x", 1.5, None, [1]):
        with pytest.raises(TypeError):
            a + bad
        with pytest.raises(TypeError):
            a < bad  # noqa: B015


def test_shorter_counts_unknown_sizes_as_at_least_two() -> None:
    facts = Facts()
    a, b, one = facts.fresh(), facts.fresh(), facts.fresh(max=1)
    assert shorter(3, 4)
    assert not shorter(4, 4)
    assert shorter(8, 8 * a)
    assert not shorter(8 * a, 8)
    assert shorter(8 * b, 8 * a * b)
    with pytest.raises(DataDependentError):
        shorter(8 * a, 8 * b)
    with pytest.raises(DataDependentError):
        shorter(0, one)


# -- facts ------------------------------------------------------------------------------------


def test_fresh_symbols_have_the_bounds_they_were_given() -> None:
    facts = Facts()
    assert facts.bounds(facts.fresh()) == (0, float("inf"))
    assert facts.bounds(facts.fresh(min=2, max=5)) == (2, 5)
    assert facts.bounds(7) == (7, 7)
    fixed = facts.fresh(3, 3)
    assert (fixed == 3) is True


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"min": -1}, "min .* >= 0, got -1"),
        ({"min": True}, "got True"),
        ({"max": 2.0}, "max .* got 2.0"),
        ({"min": 3, "max": 2}, "min <= max, got min=3, max=2"),
    ],
)
def test_bounds_are_plain_ints(bounds: dict[str, Any], text: str) -> None:
    facts = Facts()
    with pytest.raises(ArgumentError, match=text):
        facts.fresh(**bounds)
    assert str(facts.fresh()) == "u0"


def test_a_symbol_is_no_bound() -> None:
    facts = Facts()
    with pytest.raises(ArgumentError, match="got u0"):
        facts.fresh(max=facts.fresh())


def test_a_bound_that_was_assumed_decides_what_follows_from_it() -> None:
    facts, (a, b, _) = symbols()
    facts.assume(a <= 10)
    assert (a < 11) is True
    assert (2 * a + 1 > 21) is False
    facts.assume(3 * b >= 4)
    assert facts.bounds(b) == (2, float("inf"))
    facts.assume(b > 3)
    assert facts.bounds(-b) == (-float("inf"), -4)
    assert facts.describe(a + b) == "0 <= u0 <= 10, 4 <= u1"


def test_a_fact_about_a_sum_decides_its_multiples() -> None:
    facts, (a, b, _) = symbols()
    facts.assume(a + b < 8)
    assert (3 * a + 3 * b <= 21) is True
    assert isinstance(a - b < 8, SymBool)


def test_equal_symbols_are_equal_everywhere() -> None:
    facts, (a, b, c) = symbols()
    facts.assume(a == b)
    facts.assume(b == c)
    assert (a == c) is True
    assert (a * 7 + a * b == 7 * c + c * c) is True
    assert ((a + 1) // 2 == (c + 1) // 2) is True
    facts.assume(c <= 4)
    assert facts.bounds(a) == (0, 4)


def test_bounds_pass_through_equalities() -> None:
    facts = Facts()
    a, b = facts.fresh(2, 9), facts.fresh()
    facts.assume(a == 2 * b)
    assert facts.bounds(b) == (1, 4)
    assert (a % 2 == 0) is True
    with pytest.raises(ArgumentError):
        facts.assume(b == 5)


def test_a_size_that_was_fixed_is_decided() -> None:
    facts, (a, b, _) = symbols()
    facts.assume(a == 5)
    assert (a == 5) is True
    assert (a * b == 5 * b) is True
    assert facts.bounds(a // 2) == (2, 2)


def test_divisibility_makes_divisions_exact() -> None:
    facts, (a, b, _) = symbols()
    facts.assume(a % 4 == 0)
    assert ((a // 4) * 4 == a) is True
    assert (a % 2 == 0) is True
    assert (b * a == b * 4 * (a // 4)) is True
    assert (a == 6) is False
    assert facts.bounds(a) == (0, float("inf"))


def test_inequalities_exclude_ends_and_inner_values() -> None:
    facts, (a, b, c) = symbols()
    facts.assume(a != 0)
    assert facts.bounds(a) == (1, float("inf"))
    facts.assume(b != 4)
    assert (b == 4) is False
    assert (4 - b == 0) is False
    facts.assume(a != c)
    assert (c == a) is False


def test_a_fact_that_cannot_hold_is_refused_and_changes_nothing() -> None:
    facts = Facts()
    n = facts.fresh(max=4)
    with pytest.raises(ArgumentError, match="never holds"):
        facts.assume(n > 4)
    with pytest.raises(ArgumentError, match="never holds"):
        facts.assume(False)
    assert facts.bounds(n) == (0, 4)
    facts.assume(n >= 0)
    facts.assume(True)


def test_a_relation_is_decided_by_facts_recorded_after_it() -> None:
    facts, (a, _, _) = symbols()
    relation = a < 5
    facts.assume(a <= 2)
    assert relation.known() is True
    assert bool(relation)


def test_a_mode_may_answer_what_is_undecided() -> None:
    """The same code runs where sizes have example values and answers become guards."""
    guards: list[str] = []

    def by_example(relation: SymBool) -> bool:
        guards.append(str(relation))
        compare = {"<": operator.lt, "==": operator.eq}[relation.sign]
        return bool(compare(substitute(relation.left, {"u0": 3}), relation.right))

    facts = Facts(undecided=by_example)
    n = facts.fresh()
    assert n < 5
    assert (n, 2) != (4, 2)
    assert guards == ["u0 < 5", "u0 == 4"]


def test_substitute_binds_symbols_inside_of_divisions_and_minima() -> None:
    _, (a, b, _) = symbols()
    value = sym_min(a, 5) + (a * b + 1) // 3
    assert substitute(value, {"u0": 7, "u1": 2}) == 5 + 5
    assert str(substitute(value, {"u0": 7})) == "((7*u1 + 1)//3) + 5"
    assert substitute(4, {}) == 4
