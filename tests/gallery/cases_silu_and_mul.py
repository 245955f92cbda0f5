from __future__ import annotations

import numpy as np
import pytest

import oplib
from tests.gallery.harness import Case, Fails, gallery, normal

example = gallery("silu_and_mul")
X = normal(3, 8)
HOW = ', str approximate="none"'
WHOLE = normal(3, 8)


def cases(name, into, functional, option, extra):
    def program(x):
        out = oplib.empty((3, 4))
        into(out, x * 2, *extra)
        return out + functional(x, *extra)

    return [
        Case(
            functional,
            f"{name}.functional(Tensor input{option}) -> Tensor",
            [(X, *extra), (normal(0, 4), *extra), (normal(2, 0), *extra)],
            gradients=[(lambda x: functional(x, *extra), (X,))],
            fails=[
                Fails((normal(3, 5),), ValueError, "two halves"),
                *([Fails((X, "erf"), ValueError, "approximate is")] if option else []),
            ],
            half=True,
        ),
        Case(
            into,
            f"{name}(Tensor! out, Tensor input{option}) -> ()",
            [(normal(3, 4), X, *extra)],
            fails=[
                Fails((normal(3, 3), X), ValueError, "half as wide"),
                Fails((normal(3, 4).cast("float32"), X), ValueError, "of its dtype"),
                Fails((WHOLE[:, :4], WHOLE), ValueError, "overlaps input"),
            ],
            program=(program, (X,)),
            half=True,
        ),
    ]


GELU = "gelu_and_mul", example.gelu_and_mul, example.gelu_functional, HOW
CASES = [
    *cases("silu_and_mul", example.silu_and_mul, example.silu_functional, "", ()),
    *cases(*GELU, ()),
    *cases(*GELU, ("tanh",)),
]


@pytest.mark.parametrize("functional", [example.silu_functional, example.gelu_functional])
def test_far_from_zero_the_gate_is_open_or_shut(functional):
    gate = oplib.tensor([-700.0, 700.0])
    assert np.array_equal(functional(oplib.ops.std.concat([gate, oplib.ones(2)])), [-0.0, 700.0])
