"""fft_conv, spectral_conv: convolutions as products of spectra.

fft_conv is the causal linear convolution on the last axis: transforms of length L + K, their
product, cropped to L. Its gradients are correlations, ``gu = irfft(G conj(K))`` and
``gk = irfft(G conj(U))``. spectral_conv keeps the lowest modes of x, multiplies the channels of
each mode by a complex matrix and transforms back. With ``GY = rfft(g) c / n``, c = 1 at zero
frequency and, n even, at the highest, else 2, ``gweight`` sums ``conj(X) GY`` over the batch and
``gx`` is the inverse transform of ``GY conj(weight)``.
(Li et al., "Fourier Neural Operator", arXiv:2010.08895.)

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
fft_conv = lib.define("fft_conv(Tensor u, Tensor k) -> Tensor").op
spectral_conv = lib.define("spectral_conv(Tensor x, Tensor weight) -> Tensor").op


def check_conv(u, k):
    if not u.ndim or not k.ndim or not u.shape[-1] or not k.shape[-1]:
        raise ValueError(f"fft_conv: u and k have elements, got {list(u.shape)}, {list(k.shape)}")
    if u.dtype.kind != "f" or u.dtype != k.dtype or u.dtype.itemsize < 4:
        raise ValueError(f"fft_conv: u and k are float32 or float64, got {u.dtype}, {k.dtype}")
    return (*np.broadcast_shapes(tuple(u.shape[:-1]), tuple(k.shape[:-1])), u.shape[-1])


def check_spectral(x, weight):
    if x.ndim != 3 or weight.ndim != 3 or x.shape[1] != weight.shape[0] or not x.shape[2]:
        raise ValueError(
            "spectral_conv: x is [B, in, n] and weight [in, out, modes], "
            f"got {list(x.shape)}, {list(weight.shape)}"
        )
    if x.dtype.kind != "f" or weight.dtype != np.result_type(x.dtype, 1j) or x.dtype.itemsize < 4:
        raise ValueError(f"spectral_conv: weight is complex as x is real, got {weight.dtype}")
    if weight.shape[2] > x.shape[2] // 2 + 1:
        raise ValueError(f"spectral_conv: {x.shape[2]} samples have {x.shape[2] // 2 + 1} modes")


@fft_conv.register_kernel("cpu")
def _(u, k):
    check_conv(u, k)
    n = u.shape[-1] + k.shape[-1]
    y = np.fft.irfft(np.fft.rfft(u, n) * np.fft.rfft(k, n), n)
    return y[..., : u.shape[-1]].astype(u.dtype, "C")


@spectral_conv.register_kernel("cpu")
def _(x, weight):
    check_spectral(x, weight)
    modes = np.fft.rfft(x)[..., : weight.shape[2]]
    y = np.einsum("bim,iom->bom", modes, weight)
    return np.fft.irfft(y, x.shape[2]).astype(x.dtype, "C")


@fft_conv.register_fake
def _(u, k):
    return oplib.empty(check_conv(u, k), dtype=u.dtype)


@spectral_conv.register_fake
def _(x, weight):
    check_spectral(x, weight)
    return oplib.empty((x.shape[0], weight.shape[1], x.shape[2]), dtype=x.dtype)


def correlated(grad, other, n, length):
    """Return ``irfft(rfft(grad) conj(rfft(other)))``, cropped."""
    product = oplib.rfft(grad, n) * oplib.rfft(other, n).conj()
    return oplib.irfft(product, n)[..., :length]


@fft_conv.register_vjp
def _(grad, u, k):
    n = u.shape[-1] + k.shape[-1]
    return correlated(grad, k, n, u.shape[-1]), correlated(grad, u, n, k.shape[-1])


@spectral_conv.register_vjp
def _(grad, x, weight):
    n, modes = x.shape[2], weight.shape[2]
    count = np.full(modes, 2.0)
    count[:1] = 1
    count[n // 2 :] = count[n // 2 :] if n % 2 else 1
    gy = oplib.rfft(grad)[..., :modes] * oplib.from_numpy((count / n).astype(x.dtype))
    seen = oplib.rfft(x)[..., :modes]
    back = oplib.einsum("bom,iom->bim", [gy, weight.conj()])
    gx = n * oplib.ifft(oplib.pad(back, [0, n - modes])).real
    return gx, oplib.einsum("bim,bom->iom", [seen.conj(), gy])


def main() -> None:
    u, k = oplib.tensor([1.0, 2.0, 0.0, 0.0]), oplib.tensor([1.0, 10.0])
    print("convolved:", fft_conv(u, k).numpy().round(6))
    x = oplib.from_numpy(np.sin(np.arange(16) * np.pi / 2)[None, None] + 3.0)
    weight = oplib.ones((1, 1, 3), dtype="complex128")
    print(
        "without the modes above 2 a wave is gone:",
        spectral_conv(x, weight).numpy().round(6)[0, 0, :4],
    )


if __name__ == "__main__":
    main()
