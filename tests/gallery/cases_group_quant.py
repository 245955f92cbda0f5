from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib.testing import opcheck
from tests.gallery.harness import Case, Fails, gallery, normal

example = gallery("group_quant")
op = example.group_quant
X = normal(3, 8)
RANGE = (4, 1e-10, -128.0, 127.0)


def outputs(dtype="int8"):
    return oplib.zeros((3, 8), dtype=dtype), oplib.zeros((3, 2))


def program(x):
    q, s = outputs()
    op(x * 2, q, s, *RANGE)
    return q, s + 1


CASES = [
    Case(
        op,
        f"per_token_group_quant{example.SCHEMA}",
        [(X, *outputs(), *RANGE), (X, *outputs(), *RANGE, True)],
        opcheck={"samples": [((X, *outputs(), *RANGE), {}), ((X, *outputs(), *RANGE, True), {})]},
        fails=[
            Fails((X, *outputs(), 3, *RANGE[1:]), ValueError, "groups of 3 do not divide"),
            Fails((X, normal(3, 7), outputs()[1], *RANGE), ValueError, "output_q is"),
            Fails((X, outputs()[0], normal(3, 3), *RANGE), ValueError, "one scale per group"),
            Fails((X, *outputs(), 4, 1e-10, -129.0, 127.0), ValueError, "int8 does not hold -129"),
            Fails((X, *outputs("uint8"), *RANGE), ValueError, "uint8 does not hold"),
        ],
        program=(program, (X,)),
    )
]


def test_what_is_stored_is_off_by_half_a_step_at_most():
    q, s = outputs()
    op(X, q, s, *RANGE)
    back = q.numpy().reshape(3, 2, 4) * s.numpy()[..., None]
    assert np.all(np.abs(back - X.numpy().reshape(3, 2, 4)) <= s.numpy()[..., None] / 2 + 1e-12)
    assert np.abs(q.numpy().astype(int)).reshape(3, 2, 4).max(-1).min() == 127


def test_powers_of_two_are_not_below_the_plain_scales():
    (q, plain), (_, powers) = outputs(), outputs()
    op(X, q, plain, *RANGE)
    op(X, q, powers, *RANGE, True)
    assert np.all(powers.numpy() >= plain.numpy())
    assert np.all(powers.numpy() < 2 * plain.numpy())
    assert np.array_equal(np.log2(powers), np.rint(np.log2(powers)))


def test_small_floats_hold_the_range_of_their_type():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q = oplib.from_numpy(np.zeros((3, 8), ml_dtypes.float8_e4m3fn))
    s = oplib.zeros((3, 2))
    op(X, q, s, 4, 1e-10, -448.0, 448.0)
    back = q.numpy().astype(float).reshape(3, 2, 4) * s.numpy()[..., None]
    np.testing.assert_allclose(back, X.numpy().reshape(3, 2, 4), rtol=2**-3, atol=1e-2)


def test_writes_that_the_schema_forgets_are_reported():
    with oplib.scoped_library("forgetful") as lib:
        silent = lib.define(f"quant{example.SCHEMA}".replace("Tensor!", "Tensor")).op
        silent.register_kernel("cpu", example.quantize)
        silent.register_fake(lambda *args: None)
        args = (X, *outputs(), *RANGE)
        report = opcheck(silent, args, checks="mutation", samples=0, raise_exception=False)
        assert report["mutation"].status == "failed"
        assert {f.where for f in report["mutation"].failures} & {
            "argument `output_q`",
            "argument `output_s`",
        }
        with oplib.checked(), pytest.raises((oplib.OplibError, ValueError), match="read-only"):
            silent(*args)
