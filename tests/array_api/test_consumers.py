"""Libraries written for the array API standard take Tensors: SciPy and scikit-learn.

They read a setting when they are imported, so each program runs in an interpreter of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCIPY = """\
from scipy import integrate, signal, special, stats

CALLS = {
    "logsumexp": lambda x: special.logsumexp(x, axis=1),
    "softmax": lambda x: special.softmax(x, axis=1),
    "zscore": lambda x: stats.zscore(x, axis=0),
    "skew": lambda x: stats.skew(x, axis=0),
    "kurtosis": lambda x: stats.kurtosis(x, axis=0),
    "moment": lambda x: stats.moment(x, 3, axis=0),
    "gmean": lambda x: stats.gmean(x**2 + 1, axis=0),
    "trapezoid": lambda x: integrate.trapezoid(x, axis=0),
    "hilbert": lambda x: signal.hilbert(x, axis=0),
    "fftconvolve": lambda x: signal.fftconvolve(x, x),
}
for name, call in CALLS.items():
    x = oplib.tensor(X, requires_grad=True)
    result = call(x)
    assert np.allclose(result.detach().numpy(), call(X)), name
    assert gradcheck(call, (oplib.tensor(X, requires_grad=True),)), name
    done.append(name)
"""

SKLEARN = """\
from sklearn import config_context
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.preprocessing import MinMaxScaler, Normalizer

LABELS = (X[:, 0] > 0).astype(int)
CALLS = {
    "PCA": lambda x, y: PCA(2, svd_solver="full").fit_transform(x),
    "LDA": lambda x, y: LinearDiscriminantAnalysis().fit(x, y).predict(x),
    "MinMaxScaler": lambda x, y: MinMaxScaler().fit_transform(x),
    "Normalizer": lambda x, y: Normalizer().fit_transform(x),
    "Ridge": lambda x, y: Ridge(solver="svd").fit(x, x[:, 0]).coef_,
    "r2_score": lambda x, y: r2_score(x, x * 2),
}
for name, call in CALLS.items():
    with config_context(array_api_dispatch=True):
        result = call(oplib.from_numpy(X), oplib.from_numpy(LABELS))
    assert np.allclose(result, call(X, LABELS)), name
    assert name == "r2_score" or isinstance(result, oplib.Tensor), name
    done.append(name)
"""

FRAME = """\
import json
import numpy as np
import oplib
from oplib.testing import gradcheck
X = np.random.default_rng(0).normal(size=(8, 4))
done = []
{body}
print(json.dumps(done))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "count"),
    [
        pytest.param(SCIPY, 10, marks=pytest.mark.peer("scipy"), id="scipy"),
        pytest.param(SKLEARN, 6, marks=pytest.mark.peer("sklearn"), id="sklearn"),
    ],
)
def test_a_library_of_the_standard_computes_on_tensors(body: str, count: int) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FRAME.format(body=body)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
    )
    assert run.returncode == 0, run.stderr
    assert len(json.loads(run.stdout)) == count
