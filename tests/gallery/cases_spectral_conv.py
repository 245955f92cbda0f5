from __future__ import annotations

import numpy as np
import pytest

import oplib
from tests.gallery.harness import Case, Fails, gallery, normal, wide

example = gallery("spectral_conv")
fft_conv, spectral_conv = example.fft_conv, example.spectral_conv
U, K = normal(2, 5), normal(3)
X, W = normal(2, 3, 8), wide(3, 2, 4)
CALLS = [(X, W), (X, wide(3, 2, 5)), (normal(2, 3, 7), W), (normal(0, 3, 8), W)]

CASES = [
    Case(
        fft_conv,
        "fft_conv(Tensor u, Tensor k) -> Tensor",
        [(U, K), (U, normal(2, 3)), (normal(3), normal(7)), (normal(0, 4), K)],
        gradients=[(fft_conv, (U, K)), (fft_conv, (normal(2, 1, 4), normal(3, 2)))],
        fails=[
            Fails((U, normal(0)), ValueError, "have elements"),
            Fails((U, K.cast("float32")), ValueError, "float32 or float64"),
            Fails((U, normal(3, 3)), ValueError, "broadcast"),
        ],
        program=(lambda u, k: fft_conv(u * 2, k).sum(-1), (U, K)),
    ),
    Case(
        spectral_conv,
        "spectral_conv(Tensor x, Tensor weight) -> Tensor",
        CALLS,
        opcheck={"samples": [(call, {}) for call in CALLS]},
        gradients=[
            (spectral_conv, (normal(2, 2, 6), wide(2, 2, 3))),
            (spectral_conv, (normal(1, 2, 6), wide(2, 1, 4))),
            (spectral_conv, (normal(2, 1, 5), wide(1, 2, 3))),
        ],
        fails=[
            Fails((X, wide(3, 2, 6)), ValueError, "8 samples have 5 modes"),
            Fails((X, wide(2, 2, 4)), ValueError, "weight .in, out, modes."),
            Fails((X, normal(3, 2, 4)), ValueError, "weight is complex"),
        ],
        program=(lambda x, w: spectral_conv(x * 2, w).sum(-1), (X, W)),
    ),
]


def test_it_is_the_convolution_that_looks_back():
    for row, got in zip(U.numpy(), fft_conv(U, K).numpy(), strict=True):
        np.testing.assert_allclose(got, np.convolve(row, K.numpy())[:5])


@pytest.mark.parametrize("n", [7, 8])
def test_the_identity_on_all_modes_gives_x_back(n):
    x = normal(2, 3, n)
    eye = oplib.eye(3, dtype="complex128")[..., None].expand((3, 3, n // 2 + 1))
    np.testing.assert_allclose(spectral_conv(x, eye), x, atol=1e-12)


def test_single_precision_stays_single():
    y = spectral_conv(X.cast("float32"), W.cast("complex64"))
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, spectral_conv(X, W), atol=1e-5)
