"""Sizes that are not known yet: `SymInt` beside `int`, and the facts that decide about them.

The size of a result of ``nonzero`` depends on data. On tensors without data it is a symbol ``u0``,
and every size computed from it a `SymInt`: an integer polynomial in canonical form. Divisions,
remainders, minima and maxima that do not come out even are factors of it, such as ``(u0//2)``.

A comparison answers when the canonical forms, the bounds of the symbols or recorded facts decide
it. Otherwise it is a `SymBool`, which can be recorded with `Facts.assume` and which raises
`DataDependentError` when it is asked for a truth value. ``==`` is never false for lack of
knowledge. So shape code written for ints works for symbols as long as it does not branch on what
nobody can know; other modules say ``int`` in their annotations and mean both.

Imports `errors.py`.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Any, Final, NoReturn, TypeAlias

from .errors import ArgumentError, DataDependentError, FakeTensorError

__all__ = ["Facts", "SymBool", "SymInt", "same", "shorter", "substitute", "sym_max", "sym_min"]

Product: TypeAlias = tuple[str, ...]
"""Factors, sorted, repeated for powers. A factor *is* its text, which is canonical too."""
Terms: TypeAlias = tuple[tuple[Product, int], ...]
"""(product, coefficient) pairs, longest products first; the empty product is the constant."""
Interval: TypeAlias = tuple[float, float]
"""A closed interval of ints whose open ends are infinities."""
Truth: TypeAlias = Any
"""What a comparison gives: a bool if it is decided, else a `SymBool`."""

_ANYTHING: Final[Interval] = (-math.inf, math.inf)
_WHERE_TRUE: Final[Mapping[str, Interval]] = {
    "<": (-math.inf, -1),
    "<=": (-math.inf, 0),
    "==": (0, 0),
    ">=": (0, math.inf),
    ">": (1, math.inf),
}
"""Where ``left - right`` lies when a comparison holds; ``!=`` is the opposite of ``==``."""


def _binary(function: Callable[[SymInt, Any], Any]) -> Any:
    """Make a method of `function`, for ints and symbols of the same mode."""

    def method(self: SymInt, other: Any) -> Any:
        if isinstance(other, float) and other.is_integer():
            other = int(other)
        if not isinstance(other, (SymInt, Integral)):
            return NotImplemented
        if isinstance(other, SymInt) and other.facts is not self.facts:
            raise FakeTensorError(
                f"sizes {self} and {other} belong to two modes; a symbol of one means nothing in "
                "the other. Convert all tensors with one mode"
            )
        return function(self, other if isinstance(other, SymInt) else int(other))

    return method


def _comparison(sign: str) -> Any:
    def compare(left: SymInt, right: Any) -> Truth:
        known = left.facts.known(sign, left - right)
        return SymBool(left, sign, right) if known is None else known

    return _binary(compare)


class SymInt:
    """A size computed from symbols; immutable, hashed by its canonical form, never constant.

    Arithmetic with ints and symbols of the same `Facts` gives ints where it can. ``int()``,
    ``range()`` and use as an index raise `DataDependentError`.
    """

    __slots__ = ("facts", "terms")
    __array_ufunc__ = None  # numpy's integers leave the arithmetic to this class

    def __init__(self, facts: Facts, terms: Terms) -> None:
        self.facts = facts
        self.terms = terms

    __add__ = __radd__ = _binary(lambda a, b: _polynomial(a.facts, (*a.terms, *_terms(b))))
    __mul__ = __rmul__ = _binary(lambda a, b: _polynomial(a.facts, _products(a.terms, _terms(b))))
    __sub__ = _binary(lambda a, b: a + b * -1)
    __rsub__ = _binary(lambda a, b: a * -1 + b)
    __floordiv__ = _binary(lambda a, b: _divmod(a, b)[0])
    __rfloordiv__ = _binary(lambda a, b: _divmod(b, a)[0])
    __mod__ = _binary(lambda a, b: _divmod(a, b)[1])
    __rmod__ = _binary(lambda a, b: _divmod(b, a)[1])
    __eq__ = _comparison("==")
    __ne__ = _comparison("!=")
    __lt__ = _comparison("<")
    __le__ = _comparison("<=")
    __gt__ = _comparison(">")
    __ge__ = _comparison(">=")

    def __neg__(self) -> Any:
        return self * -1

    def __abs__(self) -> Any:
        return sym_max(self, -self)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __hash__(self) -> int:
        return hash(self.terms)

    def __int__(self) -> NoReturn:
        raise DataDependentError(
            f"the value of size {self} is not known here ({self.facts.describe(self)}); int(), "
            "range(), indices and list lengths need one. Compute with the symbol instead, or make "
            "the size an argument of the operator"
        )

    __index__ = __float__ = __int__

    def __deepcopy__(self, memo: Any) -> SymInt:
        return self

    def __repr__(self) -> str:
        text = ""
        for product, coefficient in self.terms:
            number = () if product and abs(coefficient) == 1 else (str(abs(coefficient)),)
            text += f" {'-' if coefficient < 0 else '+'} {'*'.join((*number, *product))}"
        return text[3:] if text[1] == "+" else f"-{text[3:]}"

    def same(self, other: Any) -> bool:
        """Return whether `other` has the same canonical form; decides nothing, never raises."""
        return type(other) is SymInt and self.terms == other.terms and self.facts is other.facts


class SymBool:
    """A comparison of sizes that nothing known decides; prints as it is written: ``u0 <= 4``.

    ``bool()`` asks `Facts.undecided`, which raises unless the mode knows better.
    """

    __slots__ = ("left", "right", "sign")

    def __init__(self, left: SymInt, sign: str, right: int | SymInt) -> None:
        self.left = left
        self.sign = sign
        self.right = right

    def known(self) -> bool | None:
        """Return the answer if forms, bounds or facts decide it by now, else None."""
        return self.left.facts.known(self.sign, self.left - self.right)

    def __bool__(self) -> bool:
        known = self.known()
        return self.left.facts.undecided(self) if known is None else known

    def __repr__(self) -> str:
        return f"{self.left} {self.sign} {self.right}"


def _raise_undecided(relation: SymBool) -> bool:
    """Refuse to guess; the default of `Facts.undecided`."""
    asked, known = repr(relation), relation.left.facts.describe(relation)
    ways = f"oplib.meta.check({asked})"
    if relation.sign == "!=":  # asks the same as ==
        asked = f"{relation.left} == {relation.right}"
        ways = f"oplib.meta.check({asked}) or {ways}"
    raise DataDependentError(
        f"whether {asked} is not known here ({known}). If the answer is always the same, state it "
        f"before: {ways}. If it depends on the data, write this code without asking"
    )


class Facts:
    """The symbols of one mode, their bounds, and what was assumed about them.

    Parameters
    ----------
    undecided : callable, optional
        Answers a `SymBool` that nothing decides. The default raises `DataDependentError`; a mode
        with example values may answer by the example and record a guard.

    Examples
    --------
    >>> facts = Facts()
    >>> n = facts.fresh(max=8)
    >>> 2 * (n + 1) - 2, n + 1 > 0, n > 3
    (2*u0, True, u0 > 3)
    >>> facts.assume(n > 3)
    >>> n >= 4
    True
    """

    def __init__(self, undecided: Callable[[SymBool], bool] = _raise_undecided) -> None:
        self.undecided = undecided
        self._count = 0
        self._intervals: dict[Terms, Interval] = {}  # of symbols and of sums, by primitive form
        self._nonzero: set[Terms] = set()
        self._solved: dict[str, int | SymInt] = {}
        self._opaque: dict[str, tuple[str, int | SymInt, int | SymInt]] = {}

    def fresh(self, min: int = 0, max: int | None = None) -> Any:
        """Return a new symbol ``u0``, ``u1``, … for a size between `min` and `max`.

        The result is a `SymInt`, annotated so that it passes where sizes are ints.
        """
        for name, bound in (("min", min), ("max", 0 if max is None else max)):
            if type(bound) is not int or bound < 0:
                raise ArgumentError(f"{name} of a dynamic size must be an int >= 0, got {bound!r}")
        if max is not None and max < min:
            raise ArgumentError(f"a dynamic size needs min <= max, got min={min}, max={max}")
        symbol = _factor(self, f"u{self._count}")
        self._count += 1
        self._intervals[symbol.terms] = (min, math.inf if max is None else max)
        return symbol

    def assume(self, relation: Truth) -> None:
        """Record that `relation` holds from here on.

        Raises
        ------
        ArgumentError
            If what is known already says that it does not hold.
        """
        known = relation.known() if isinstance(relation, SymBool) else bool(relation)
        if known is False:
            where = f" ({self.describe(relation)})" if isinstance(relation, SymBool) else ""
            raise ArgumentError(f"a size check never holds: {relation}{where}")
        if known:
            return
        difference = relation.left - relation.right
        low, high = self.bounds(difference)
        if relation.sign == "==":
            self._equate(self._rewrite(difference))
        elif relation.sign != "!=":
            self._restrict(difference, _WHERE_TRUE[relation.sign])
        elif 0 in (low, high):
            self._restrict(difference, _WHERE_TRUE[">" if low == 0 else "<"])
        else:
            self._nonzero |= {difference.terms, (-difference).terms}

    def known(self, sign: str, difference: int | SymInt) -> bool | None:
        """Return whether ``difference <sign> 0`` holds, or None if nothing decides it."""
        if sign == "!=":
            equal = self.known("==", difference)
            return None if equal is None else not equal
        low, high = self.bounds(difference)
        wanted_low, wanted_high = _WHERE_TRUE[sign]
        if wanted_low <= low and high <= wanted_high:
            return True
        if high < wanted_low or wanted_high < low:
            return False
        return False if sign == "==" and self._never_zero(difference) else None

    def bounds(self, value: int | SymInt, at_least: float = -math.inf) -> Interval:
        """Return the closed interval `value` lies in; open ends are infinities.

        `at_least` is one more lower bound, for every symbol whose upper bound allows it.
        """
        value = self._rewrite(value)
        if not isinstance(value, SymInt):
            return value, value
        primitive, scale, constant = _primitive(value)
        low, high = _hull((scale, scale), self._primitive_bounds(primitive, at_least))
        return low + constant, high + constant

    def describe(self, value: int | SymInt | Truth) -> str:
        """Return what is known about the symbols of `value`: ``"0 <= u0 <= 4, 1 <= u1"``."""
        sides = (value.left, value.right) if isinstance(value, SymBool) else (value,)
        parts = []
        for name in sorted(set().union(*map(self._symbols_in, sides))):
            low, high = self.bounds(_factor(self, name))
            parts.append(f"{low} <= {name}" + ("" if high == math.inf else f" <= {high}"))
        return ", ".join(parts)

    def _primitive_bounds(self, primitive: Terms, at_least: float) -> Interval:
        """Bound by the table, by the sum of the terms, and by the value at the lowest corner."""
        factors = {factor for product, _ in primitive for factor in product}
        known = {factor: self._factor_bounds(factor, at_least) for factor in factors}
        ends = [
            _hull((count, count), *(known[factor] for factor in product))
            for product, count in primitive
        ]
        bound = _intersect(
            self._intervals.get(primitive, _ANYTHING),
            (sum(low for low, _ in ends), sum(high for _, high in ends)),
        )
        if len(primitive) > 1 and all(low > -math.inf for low, _ in known.values()):
            # Where x = low + y has no coefficient below 0, it is least at y = 0; and vice versa.
            corner = {factor: _factor(self, factor) + int(known[factor][0]) for factor in factors}
            shifted, scale, constant = _primitive(substitute(SymInt(self, primitive), corner))
            if all(count > 0 for _, count in shifted):  # the first one always is
                above = (constant, math.inf) if scale > 0 else (-math.inf, constant)
                bound = _intersect(bound, above)
        return bound

    def _factor_bounds(self, factor: str, at_least: float) -> Interval:
        low, high = self._intervals.get((((factor,), 1),), _ANYTHING)
        if factor not in self._opaque:
            return (max(low, at_least) if high >= at_least else low), high
        name, left, right = self._opaque[factor]
        ends = self.bounds(left, at_least), self.bounds(right, at_least)
        return _intersect((low, high), _OPERATIONS[name][1](*ends))

    def _never_zero(self, difference: int | SymInt) -> bool:
        difference = self._rewrite(difference)
        if not isinstance(difference, SymInt) or difference.terms in self._nonzero:
            return True
        _, scale, constant = _primitive(difference)
        return constant % scale != 0

    def _restrict(self, value: int | SymInt, interval: Interval) -> None:
        """Record that `value` lies in `interval`."""
        bounds = _intersect(self.bounds(value), interval)
        if bounds[0] > bounds[1]:
            raise ArgumentError(f"no value is left for {value} ({self.describe(value)})")
        value = self._rewrite(value)
        if isinstance(value, SymInt):
            primitive, scale, constant = _primitive(value)
            low, high = bounds[0] - constant, bounds[1] - constant
            low, high = (low, high) if scale > 0 else (-high, -low)
            self._intervals[primitive] = -_floor(-low, abs(scale)), _floor(high, abs(scale))

    def _equate(self, value: int | SymInt) -> None:
        """Record ``value == 0``, solved for a symbol if one stands alone."""
        terms = value.terms if isinstance(value, SymInt) else ()
        for product, count in terms:
            if len(product) != 1 or abs(count) != 1:
                continue
            name, left, right = self._opaque.get(product[0], ("", 0, 0))
            rest = (value - _factor(self, product[0]) * count) * -count
            if name == "%" and same(rest, 0):
                quotient = _factor(self, f"({_operand(left)}/{_operand(right)})")
                return self._equate(self._rewrite(left - right * quotient))
            if not name and product[0] not in self._symbols_in(rest):
                self._restrict(rest, self.bounds(_factor(self, product[0])))
                found = {product[0]: rest}
                solved = {key: substitute(old, found) for key, old in self._solved.items()}
                self._solved = solved | found
                return None
        return self._restrict(value, (0, 0))

    def _rewrite(self, value: int | SymInt) -> int | SymInt:
        return substitute(value, self._solved) if self._solved else value

    def _symbols_in(self, value: int | SymInt) -> set[str]:
        found: set[str] = set()
        for factor in {f for product, _ in _terms(value) for f in product}:
            _, left, right = self._opaque.get(factor, ("", 0, 0))
            inner = self._symbols_in(left) | self._symbols_in(right)
            found |= inner if factor in self._opaque else {factor}
        return found


def same(a: int | SymInt, b: int | SymInt) -> bool:
    """Return whether two sizes are equal by form alone; decides nothing, never raises."""
    return a.same(b) if type(a) is SymInt else type(b) is not SymInt and bool(a == b)


def shorter(a: int | SymInt, b: int | SymInt) -> bool:
    """Return ``a < b``, counting every size that is not known as at least two.

    Layout rules compare strides this way: an axis of unknown length is an axis.
    """
    if type(a) is not SymInt and type(b) is not SymInt:
        return bool(a < b)
    difference = a - b
    if not isinstance(difference, SymInt):
        return difference < 0
    low, high = difference.facts.bounds(difference, at_least=2)
    return True if high < 0 else False if low >= 0 else bool(a < b)


def sym_min(a: int | SymInt, b: int | SymInt) -> Any:
    """Return the smaller of two sizes, as ``min(a, b)`` if nothing decides which that is."""
    return _extreme("min", a, b)


def sym_max(a: int | SymInt, b: int | SymInt) -> Any:
    """Return the larger of two sizes, as ``max(a, b)`` if nothing decides which that is."""
    return _extreme("max", a, b)


def substitute(value: int | SymInt, values: Mapping[str, int | SymInt]) -> Any:
    """Return `value` with symbols replaced by name; an int once every symbol has one.

    >>> n = Facts().fresh()
    >>> substitute(n // 2 + 1, {"u0": 7})
    4
    """
    if not isinstance(value, SymInt):
        return value
    total: Any = 0
    for product, count in value.terms:
        term: Any = count
        for factor in product:
            if factor in values or factor not in value.facts._opaque:
                term = term * values.get(factor, _factor(value.facts, factor))
            else:
                name, left, right = value.facts._opaque[factor]
                compute = _OPERATIONS[name][0]
                term = term * compute(substitute(left, values), substitute(right, values))
        total = total + term
    return total


def _terms(value: int | SymInt) -> Terms:
    if isinstance(value, SymInt):
        return value.terms
    return (((), value),) if value else ()


def _factor(facts: Facts, text: str) -> Any:
    return SymInt(facts, (((text,), 1),))


def _polynomial(facts: Facts, terms: Iterable[tuple[Product, int]]) -> Any:
    """Return the sum of `terms` in canonical form, an int if it is constant."""
    sums: Counter[Product] = Counter()
    for product, count in terms:
        sums[product] += count
    kept = [term for term in sums.items() if term[1]]
    kept.sort(key=lambda term: (-len(term[0]), term[0]))
    if kept and kept[0][0]:
        return SymInt(facts, tuple(kept))
    return kept[0][1] if kept else 0


def _products(left: Terms, right: Terms) -> Iterable[tuple[Product, int]]:
    return ((tuple(sorted(a + b)), m * n) for a, m in left for b, n in right)


def _primitive(value: SymInt) -> tuple[Terms, int, int]:
    """Split into ``scale * primitive + constant``; the first count of primitive is positive."""
    counts = {product: count for product, count in value.terms if product}
    scale = math.gcd(*counts.values()) * (1 if value.terms[0][1] > 0 else -1)
    primitive = tuple((product, count // scale) for product, count in counts.items())
    return primitive, scale, sum(count for product, count in value.terms if not product)


def _divmod(dividend: Any, divisor: Any) -> tuple[Any, Any]:
    """Divide as polynomials; what does not come out even becomes a factor of its own."""
    if not divisor != 0:
        raise ZeroDivisionError(f"{dividend} divided by a size of zero")
    facts: Facts = (dividend if type(dividend) is SymInt else divisor).facts
    lead, unit = _terms(divisor)[0]
    quotient: Any = 0
    rest: Any = 0
    while terms := _terms(dividend):
        product, count = terms[0]
        times, left_over = divmod(count, unit)
        if Counter(lead) - Counter(product) or (left_over and product):
            part = _polynomial(facts, terms[:1])
            rest, dividend = rest + part, dividend - part
        else:
            factors = tuple(sorted((Counter(product) - Counter(lead)).elements()))
            part = _polynomial(facts, [(factors, times)])
            quotient, dividend = quotient + part, dividend - part * divisor
            if left_over:  # the constant, by an int
                rest, dividend = rest + left_over, 0
    ints = type(rest) is not SymInt and type(divisor) is not SymInt
    if ints or (facts.known(">=", rest) and facts.known("<", rest - divisor)):
        return quotient, rest
    return quotient + _opaque("//", rest, divisor), _opaque("%", rest, divisor)


def _extreme(name: str, a: int | SymInt, b: int | SymInt) -> Any:
    if not isinstance(a, SymInt) and not isinstance(b, SymInt):
        return min(a, b) if name == "min" else max(a, b)
    for smaller, larger in ((a, b), (b, a)):
        if (smaller <= larger) is True:
            return smaller if name == "min" else larger
    return _opaque(name, *sorted((a, b), key=str))


def _opaque(name: str, left: Any, right: Any) -> Any:
    facts: Facts = (left if type(left) is SymInt else right).facts
    if name in ("min", "max"):
        text = f"{name}({left}, {right})"
    else:
        text = f"({_operand(left)}{name}{_operand(right)})"
    facts._opaque[text] = name, left, right
    return _factor(facts, text)


def _operand(value: int | SymInt) -> str:
    """Show a side of a division, in brackets unless it is one factor or number."""
    (product, count), *others = _terms(value) or (((), 0),)
    return f"({value})" if others or len(product) > 1 or (product and count != 1) else str(value)


def _floor(value: float, divisor: float) -> float:
    if math.isinf(divisor):
        return 0 if value >= 0 else -1
    return value if math.isinf(value) else value // divisor


def _intersect(a: Interval, b: Interval) -> Interval:
    return max(a[0], b[0]), min(a[1], b[1])


def _hull(*intervals: Interval) -> Interval:
    """Return the interval of the products of numbers from `intervals`."""
    low, high = intervals[0]
    for other in intervals[1:]:
        ends = [x * y if x and y else 0 for x in (low, high) for y in other]
        low, high = min(ends), max(ends)
    return low, high


def _quotient_bounds(a: Interval, b: Interval) -> Interval:
    if b[0] < 1:
        return _ANYTHING
    ends = [_floor(x, y) for x in a for y in b]
    return min(ends), max(ends)


def _remainder_bounds(a: Interval, b: Interval) -> Interval:
    if b[0] < 1:
        return _ANYTHING
    return 0, min(b[1] - 1, a[1] if a[0] >= 0 else math.inf)


_OPERATIONS: Final[Mapping[str, tuple[Callable[..., Any], Callable[..., Interval]]]] = {
    "//": (operator.floordiv, _quotient_bounds),
    "%": (operator.mod, _remainder_bounds),
    "min": (sym_min, lambda a, b: (min(a[0], b[0]), min(a[1], b[1]))),
    "max": (sym_max, lambda a, b: (max(a[0], b[0]), max(a[1], b[1]))),
}
"""How to compute an opaque factor, and the bounds of its value from those of its sides."""
