from __future__ import annotations

import numpy as np

import oplib
from tests.gallery.harness import Case, Fails, gallery, normal

example = gallery("swiglu_mlp")
op, keeping = example.swiglu_mlp, example.keeping
INPUTS = normal(2, 3), normal(3, 4), normal(3, 4, seed=1), normal(4, 5)
SMALL = normal(1, 2), normal(2, 2), normal(2, 2, seed=1), normal(2, 1)
WEIGHTS = "Tensor x, Tensor w_gate, Tensor w_up, Tensor w_down"
FAILS = [
    Fails((normal(2, 2), *INPUTS[1:]), ValueError, "do not fit"),
    Fails((*INPUTS[:2], normal(3, 5), INPUTS[3]), ValueError, "do not fit"),
    Fails((*INPUTS[:3], normal(3, 5)), ValueError, "do not fit"),
    Fails((INPUTS[0].cast("float32"), *INPUTS[1:]), ValueError, "one dtype"),
]

CASES = [
    Case(
        op,
        f"swiglu_mlp({WEIGHTS}) -> Tensor",
        [INPUTS, (normal(2, 2, 3), *INPUTS[1:]), (normal(0, 3), *INPUTS[1:])],
        gradients=[(op, INPUTS)],
        fails=FAILS,
        program=(lambda *a: op(*a).sum(-1), INPUTS),
        half=True,
    ),
    Case(
        keeping,
        f"swiglu_mlp_saving({WEIGHTS}) -> (Tensor y, Tensor a, Tensor b)",
        [INPUTS],
        opcheck={"samples": [(SMALL, {})]},
        gradients=[(keeping, SMALL)],
        fails=FAILS[:1],
    ),
]


def test_one_variant_saves_its_inputs_only():
    given = [t.clone().requires_grad_() for t in INPUTS]
    saved = op(*given).grad_fn.saved
    kept = [part for part in saved if part is not None]
    assert len(kept) == 4
    assert all(any(part[0] is t.array for t in given) for part in kept)
    assert len([part for part in keeping(*given)[0].grad_fn.saved if part is not None]) > 4


def test_both_variants_have_the_same_gradients():
    given = [t.clone().requires_grad_() for t in INPUTS]
    again = oplib.grad(op(*given).sum(), given)
    for one, other in zip(again, oplib.grad(keeping(*given)[0].sum(), given), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
