"""`record`: the semantics of a frozen dataclass with slots."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError
from typing import ClassVar

import pytest

from oplib._record import record, replace


@record
class Point:
    """A point."""

    x: int
    y: int = 2
    names: ClassVar[str] = "xy"

    @property
    def total(self) -> int:
        return self.x + self.y


@record
class Point3(Point):
    z: int = 3


@record(eq=False)
class Unique:
    x: int


@record
class Positive:
    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError(self.x)


@record
class Empty:
    pass


def test_fields_are_given_by_position_or_name_and_have_defaults():
    assert (Point(1).x, Point(1).y, Point(y=1, x=2).total, Point.names) == (1, 2, 3, "xy")
    with pytest.raises(TypeError, match="x"):
        Point()


def test_records_of_one_class_with_equal_fields_are_equal():
    assert Point(1) == Point(1, 2) != Point(1, 3)
    assert hash(Point(1)) == hash(Point(1, 2))
    assert Point(1) != (1, 2)
    assert Empty() == Empty()


def test_without_eq_identity_counts():
    one, other = Unique(1), Unique(1)
    assert one != other
    assert {one, other, one} == {one, other}


def test_fields_cannot_change_and_there_are_no_others():
    point = Point(1)
    for name in ("x", "colour"):
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(point, name, 5)
    with pytest.raises(FrozenInstanceError):
        del point.x
    assert not hasattr(point, "__dict__")


def test_a_subclass_adds_fields():
    assert Point3(1, z=5).total == 3
    assert repr(Point3(1)) == "Point3(x=1, y=2, z=3)"
    assert Point3(1) != Point(1)


def test_records_survive_copy_and_pickle():
    point = Point3(1, 5)
    assert copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point


def test_replace_changes_named_fields():
    assert replace(Point(1), y=7) == Point(1, 7)
    with pytest.raises(TypeError, match="colour"):
        replace(Point(1), colour=1)


def test_post_init_runs():
    with pytest.raises(ValueError, match="-1"):
        Positive(-1)


def test_patterns_match_by_position():
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)
