"""Operators that SciPy computes say so when it is missing; the others do without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """\
import sys
sys.modules["scipy"] = None  # as if it were not installed
import oplib
x = oplib.ones(2, requires_grad=True)
oplib.gelu(x, "tanh").sum().backward()
oplib.sinc(x), oplib.logit(x / 2)
for name in ("erf", "erfc", "erfinv", "gammaln", "digamma", "i0", "i1", "ndtr"):
    try:
        getattr(oplib, name)(x)
    except oplib.DispatchError as error:
        print(error)
try:
    oplib.polygamma(1, x)
except oplib.DispatchError as error:
    print(error)
with oplib.FakeTensorMode():
    print(oplib.erf(oplib.ones(3)).shape)
"""


def test_what_scipy_computes_says_so_when_it_is_missing():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert run.returncode == 0, run.stderr
    *missing, shape = run.stdout.splitlines()
    assert shape == "(3,)"
    for line in missing:
        assert "computed by SciPy, which is missing: pip install 'oplib[scipy]'" in line
    assert len(missing) == 9
