from __future__ import annotations

import numpy as np

import oplib
from tests.gallery.harness import Case, Fails, gallery, normal, tensor

example = gallery("segment_sum")
csr, into, repeat = example.csr, example.into, example.repeat
SRC, PTR = normal(5, 2), tensor([0, 2, 2, 5])
CALLS = [
    *((SRC, PTR), (SRC, PTR, normal(3, 2)), (normal(0, 2), tensor([0, 0])), (SRC, tensor([0]))),
    *((normal(4), tensor([1, 3, 3])), (normal(5, 0), PTR)),
]
SAMPLES = {"samples": [(call, {}) for call in CALLS]}
VALUES = [(SRC, PTR, oplib.ones((3, 2)))]


def program(src):
    out = oplib.ones((3, 2))
    into(src * 2, PTR, out=out)
    return csr(src, PTR, out) + out


CASES = [
    Case(
        csr,
        "segment_sum_csr(Tensor src, Tensor indptr, Tensor? out=None) -> Tensor",
        CALLS,
        opcheck=SAMPLES,
        gradients=[
            (lambda src: csr(src, PTR), (SRC,)),
            (lambda src, out: csr(src, tensor([1, 3, 3, 4]), out), (SRC, normal(3, 2))),
        ],
        fails=[
            Fails((SRC, tensor([0, 3, 2])), ValueError, "indptr rises"),
            Fails((SRC, tensor([0, 6])), ValueError, "indptr rises"),
            Fails((SRC, tensor([-1, 3])), ValueError, "indptr rises"),
            Fails((SRC, PTR, normal(2, 2)), ValueError, "out is float64"),
            Fails((SRC, tensor([0.0, 3.0])), ValueError, "one integer more"),
        ],
        program=(program, (SRC,)),
        half=True,
    ),
    Case(
        repeat,
        "repeat_segments(Tensor rows, Tensor indptr, SymInt length) -> Tensor",
        [(normal(3, 2), PTR, 5)],
        opcheck={"samples": [((normal(3, 2), PTR, 5), {}), ((normal(3), PTR, 7), {})]},
        gradients=[(lambda rows: repeat(rows, PTR, 5), (normal(3, 2),))],
        program=(lambda rows: repeat(rows * 2, PTR, 5) + 1, (normal(3, 2),)),
    ),
]


def test_the_form_that_accumulates_returns_out_itself():
    out = oplib.ones((3, 2))
    assert into(SRC, PTR, out=out) is out
    assert out.inplace_version == 1
    assert np.array_equal(out, csr(SRC, PTR, oplib.ones((3, 2))))
    assert np.array_equal(into(SRC, PTR, out=None), csr(SRC, PTR))
