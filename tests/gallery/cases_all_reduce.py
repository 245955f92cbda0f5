from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib.graph.passes import cse, dead_code, run_passes
from tests.gallery.harness import Case, Fails, gallery, normal

example = gallery("all_reduce")
create_group, all_reduce, dispose = example.create_group, example.all_reduce, example.dispose
ALONE = create_group(1)


def program(x):
    out = x * 0
    all_reduce(ALONE, x * 2, out)
    return out + 1


CASES = [
    Case(
        create_group,
        "create_group(int size) -> int",
        [],
        fails=[Fails((0,), ValueError, "got a size of 0")],
    ),
    Case(
        all_reduce,
        "all_reduce(int handle, Tensor inp, Tensor! out) -> ()",
        [(ALONE, normal(3), oplib.zeros(3))],
        opcheck={
            "samples": [((ALONE, normal(3), oplib.zeros(3)), {})],
            "skip": ("threads",),  # calls of one group wait for each other by design
        },
        fails=[
            Fails((999, normal(3), normal(3)), ValueError, "there is no group 999"),
            Fails((ALONE, normal(3), normal(2)), ValueError, "out is float64"),
        ],
        program=(program, (normal(3),)),
    ),
    Case(
        dispose,
        "dispose(int handle) -> ()",
        [],
        fails=[Fails((999,), ValueError, "there is no group 999")],
    ),
]


def test_every_member_gets_the_sum_round_after_round():
    handle = create_group(4)
    members = [normal(2, 3, seed=i) for i in range(4)]
    expected = np.sum([x.numpy() for x in members], 0)
    outs = [oplib.zeros((2, 3)) for _ in members]

    def member(i):
        all_reduce(handle, members[i], outs[i])
        all_reduce(handle, outs[i], outs[i])  # out may be inp itself
        return True

    assert example.together([lambda i=i: member(i) for i in range(4)]) == [True] * 4
    for out in outs:
        np.testing.assert_allclose(out, 4 * expected)


def test_shapes_that_differ_raise_in_all_members_and_the_group_goes_on():
    handle = create_group(2)
    xs = [normal(2), normal(3)]
    errors = example.together([lambda x=x: all_reduce(handle, x, x) for x in xs])
    assert all(isinstance(e, ValueError) and "gave shapes" in str(e) for e in errors)
    same = [oplib.ones(2), oplib.ones(2)]
    assert example.together([lambda x=x: all_reduce(handle, x, x) for x in same]) == [None, None]
    assert same[0].tolist() == same[1].tolist() == [2.0, 2.0]


def test_a_disposed_handle_is_unknown():
    handle = create_group(1)
    dispose(handle)
    with pytest.raises(ValueError, match=f"there is no group {handle}"):
        all_reduce(handle, normal(1), normal(1))


def test_calls_are_never_merged_removed_or_moved():
    def f(x):
        create_group(2)
        all_reduce(ALONE, x, oplib.zeros(3))
        all_reduce(ALONE, x, oplib.zeros(3))
        create_group(2)

    graph = run_passes(oplib.capture(f, normal(3)).graph, [dead_code, cse, dead_code])
    calls = [str(node) for node in graph.calls if "gallery." in str(node)]
    assert [("create" in c, "all_reduce" in c) for c in calls] == [
        *((True, False), (False, True), (False, True), (True, False))
    ]
