from __future__ import annotations

import numpy as np
import pytest

import oplib
from tests.gallery.harness import Case, Fails, gallery, normal, tensor

example = gallery("scatter")
scatter, scatter_max = example.scatter, example.scatter_max
SRC, INDEX = normal(5, 2), tensor([0, 3, 0, 1, 3])
CALLS = [
    *(
        (SRC, INDEX),
        (SRC, INDEX, 0, 6),
        (normal(2, 5), INDEX, -1),
        (normal(0), tensor([], "int64")),
    ),
    *((normal(0, 3), tensor([], "int64"), 0, 2), (normal(5, 0), INDEX)),
]
MEANS = [(*call, *(0, None)[len(call) - 2 :], "mean") for call in CALLS]
FAILS = [
    Fails((SRC, INDEX, 0, 3), IndexError, "outside 0 .. 2"),
    Fails((SRC, tensor([0, -1, 0, 0, 0])), IndexError, "outside"),
    Fails((SRC, INDEX[:4]), ValueError, "one integer for each of 5 rows"),
    Fails((SRC, INDEX, 2), ValueError, "has an axis 2"),
]


def program(src):
    return scatter(src * 2, INDEX, 0, 4, "mean") + scatter_max(src, INDEX, 0, 4)[0]


CASES = [
    Case(
        scatter,
        "scatter(Tensor src, Tensor index, int dim=0, int? dim_size=None, str reduce='sum')"
        " -> Tensor",
        [*CALLS, *MEANS],
        opcheck={"samples": [(call, {}) for call in (*CALLS, *MEANS)]},
        gradients=[
            (lambda src, how=how: scatter(src, INDEX, 0, 5, how), (SRC,)) for how in ("sum", "mean")
        ]
        + [(lambda src: scatter(src, INDEX, 1, None, "mean"), (normal(2, 5, 2),))],
        fails=[*FAILS, Fails((SRC, INDEX, 0, None, "prod"), ValueError, "reduce is")],
        program=(program, (SRC,)),
        half=True,
    ),
    Case(
        scatter_max,
        "scatter_max(Tensor src, Tensor index, int dim=0, int? dim_size=None)"
        " -> (Tensor values, Tensor arg)",
        CALLS,
        opcheck={"samples": [(call, {}) for call in CALLS]},
        gradients=[
            (lambda src: scatter_max(src, INDEX, 0, 5)[0], (SRC,)),
            (lambda src: scatter_max(src, INDEX, -1)[0], (normal(2, 5),)),
        ],
        fails=FAILS,
        program=(lambda src: scatter_max(src * 2, INDEX, 0, 4)[0].sum(0), (SRC,)),
    ),
]


def test_of_equal_rows_the_first_is_the_maximum_and_an_empty_group_has_no_row():
    values, arg = scatter_max(oplib.tensor([1.0, 2.0, 2.0]), tensor([2, 0, 0]))
    assert values.tolist() == [2.0, 0.0, 1.0]
    assert arg.tolist() == [1, 3, 0]


def test_means_of_negative_numbers_and_maxima_of_them_are_not_zero():
    src = -SRC.abs()
    assert np.all(scatter(src, INDEX, reduce="mean").numpy()[[0, 1, 3]] < 0)
    assert np.all(scatter_max(src, INDEX)[0].numpy()[[0, 1, 3]] < 0)


@pytest.mark.parametrize("op", [scatter, scatter_max])
def test_without_a_size_the_fake_result_has_an_unknown_length(op):
    with oplib.FakeTensorMode(dynamic=True):
        result = op(oplib.empty((5, 2)), oplib.empty((5,), dtype="int64"))
    shape = (result[0] if isinstance(result, tuple) else result).shape
    assert str(shape[0]).startswith("u")
    assert shape[1] == 2
