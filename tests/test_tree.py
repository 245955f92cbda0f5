"""Nested containers: flatten, rebuild, map, name."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplib._tree import TreeDef, flatten, leaf_paths, leaves, tree_map, unflatten

Point = namedtuple("Point", "x y")

leaf = st.integers() | st.text(max_size=2) | st.none()
trees = st.recursive(
    leaf,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.tuples(inner, inner).map(lambda pair: Point(*pair))
    ),
    max_leaves=12,
)


@given(trees)
def test_unflatten_undoes_flatten(tree: Any) -> None:
    found, structure = flatten(tree)
    rebuilt = unflatten(structure, iter(found))
    assert rebuilt == tree
    assert type(rebuilt) is type(tree)


@given(trees)
def test_leaves_are_those_of_flatten_in_order(tree: Any) -> None:
    assert list(leaves(tree)) == flatten(tree)[0]


@given(trees)
def test_mapping_the_identity_rebuilds_containers(tree: Any) -> None:
    mapped = tree_map(lambda value: value, tree)
    assert mapped == tree
    if isinstance(tree, list | dict):
        assert mapped is not tree


@given(trees, trees)
def test_structures_compare_and_hash_by_value(a: Any, b: Any) -> None:
    first, second = flatten(a)[1], flatten(b)[1]
    assert flatten(tree_map(str, a))[1] == first
    if first == second:
        assert hash(first) == hash(second)


def test_structures_tell_containers_and_keys_apart() -> None:
    trees = [[1, 2], (1, 2), {"a": 1, "b": 2}, {"b": 1, "a": 2}, Point(1, 2), 1, [], (), {}]
    structures = [flatten(tree)[1] for tree in trees]
    assert len(set(structures)) == len(trees)
    assert flatten(1)[1] == TreeDef(None)


def test_other_containers_are_leaves() -> None:
    ordered, text, numbers = OrderedDict(a=1), "ab", {1, 2}
    assert flatten([ordered, text, numbers])[0] == [ordered, text, numbers]


def test_paths_read_like_python() -> None:
    tree = ([1, {"w": (2, 3)}], Point(4, 5))
    structure = flatten(tree)[1]
    paths = list(leaf_paths(structure, "args"))
    assert paths == [
        "args[0][0]",
        "args[0][1]['w'][0]",
        "args[0][1]['w'][1]",
        "args[1][0]",
        "args[1][1]",
    ]
    assert [eval(path, {"args": tree}) for path in paths] == flatten(tree)[0]


def test_too_few_leaves_are_noticed() -> None:
    structure = flatten([1, 2])[1]
    with pytest.raises((StopIteration, RuntimeError)):
        unflatten(structure, iter([1]))
