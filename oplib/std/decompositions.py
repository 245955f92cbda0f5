"""Decompositions of matrices and what is made of them; leading axes are batches.

Gradients are those of Giles, "Collected matrix derivative results for forward and reverse mode
algorithmic differentiation" (2008), with adjoints so that they hold for complex matrices. Where a
function is not differentiable (a singular matrix, equal eigenvalues) the gradient is infinite or
NaN, as the formula says.

Imports floors 0 to 4, `declare.py`, `creation.py`, `linalg.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..errors import ArgumentError, AutogradError
from ..prims import mask, sum_to
from ..shapes import TensorSpec, broadcast_shapes, result_type
from ..tensor.tensor import Tensor
from .creation import arange
from .declare import Array, composite, declare, inexact, inexact_dtype, real_dtype
from .linalg import adjoint, matmul

__all__ = ["inv", "matrix", "solve", "svd", "tril", "triu"]

_LAPACK: Final = tuple(map(np.dtype, ("float32", "float64", "complex64", "complex128")))
"""What LAPACK computes in; float16 and the like are refused by the choice of kernels."""


def _lapack(op: Any, kernel: Callable[..., Any]) -> None:
    """Register a kernel that takes what LAPACK takes, and integers as float64."""
    integers = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    op.register_kernel("cpu", kernel, dtypes=[*_LAPACK, *integers, "bool"])


def matrix(name: str, x: Any, square: bool = True) -> Any:
    """Return `x`, which must be a (square) matrix or a batch of them."""
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        kind = "square matrices" if square else "matrices"
        raise ArgumentError(f"std::{name} takes {kind}, [..., n, n], got {list(x.shape)}")
    return x


def _c(x: Any) -> Array:
    return np.asarray(x, order="C")


def _hermitian(x: Any) -> Any:
    """Return the Hermitian part, ``(x + xᴴ) / 2``."""
    return (x + adjoint(x)) / 2


def _hermitian_part(x: Any) -> Array:
    x = inexact(x)
    return np.asarray((x + x.swapaxes(-1, -2).conj()) / 2)


# ---------------------------------------------------------------------- inverses and determinants

inv = declare("inv(Tensor x) -> Tensor", "The inverse of square matrices (`numpy.linalg.inv`).")
_lapack(inv, lambda x: _c(np.linalg.inv(matrix("inv", np.asarray(x)))))
inv.register_fake(lambda x: TensorSpec(matrix("inv", x).shape, inexact_dtype(x.dtype)))


@inv.register_vjp
def _inv_grad(grad: Tensor, out: Tensor) -> Tensor:
    return -matmul(adjoint(out), matmul(grad, adjoint(out)))


det = declare("det(Tensor x) -> Tensor", "The determinant of square matrices (`numpy.linalg.det`).")
_lapack(det, lambda x: np.linalg.det(matrix("det", np.asarray(x))))
det.register_fake(lambda x: TensorSpec(matrix("det", x).shape[:-2], inexact_dtype(x.dtype)))


@det.register_vjp
def _det_grad(grad: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """Differentiate (Jacobi): ``det(X) X⁻ᴴ``; raises for a singular matrix."""
    return (grad * out.conj())[..., None, None] * adjoint(inv(x))


slogdet = declare(
    "slogdet(Tensor x) -> (Tensor sign, Tensor logabsdet)",
    "Sign and ``log |det x|`` of square matrices (`numpy.linalg.slogdet`).",
)
_lapack(slogdet, lambda x: tuple(np.linalg.slogdet(matrix("slogdet", np.asarray(x)))))


@slogdet.register_fake
def _slogdet_spec(x: Any) -> tuple[TensorSpec, TensorSpec]:
    shape = matrix("slogdet", x).shape[:-2]
    return TensorSpec(shape, inexact_dtype(x.dtype)), TensorSpec(shape, real_dtype(x.dtype))


@slogdet.register_vjp
def _slogdet_grad(
    x: Tensor, sign: Tensor, grad_sign: Tensor | None = None, grad_logabsdet: Tensor | None = None
) -> Tensor:
    """Differentiate: ``g X⁻ᴴ``; the sign of a complex determinant turns with its phase."""
    total: Any = 0 if grad_logabsdet is None else grad_logabsdet
    if grad_sign is not None and x.dtype.kind == "c":
        turned = grad_sign * sign.conj()
        total = total + (turned - turned.conj()) / 2
    scale = total[..., None, None] if isinstance(total, Tensor) else total
    return scale * adjoint(inv(x))


@composite(
    "trace(Tensor x) -> Tensor", "The sum of the diagonal of matrices (`numpy.linalg.trace`)."
)
def trace(x: Tensor) -> Tensor:
    """Sum the diagonal of the last two axes."""
    return matrix("trace", x, square=False).diagonal(0, -2, -1).sum(-1)


# ---------------------------------------------------------------------- linear systems


def _solution(name: str, a: Any, b: Any) -> TensorSpec:
    """Return the spec of ``a⁻¹ b``; a 1-d `b` is a vector, as in NumPy."""
    matrix(name, a)
    rows = b.shape[-1] if b.ndim == 1 else b.shape[-2] if b.ndim else None
    if rows != a.shape[-1]:
        raise ArgumentError(
            f"std::{name}: {list(a.shape)} and {list(b.shape)} disagree: {a.shape[-1]} equations, "
            f"{rows} right-hand sides"
        )
    dtype = inexact_dtype(result_type(a, b))
    if b.ndim == 1:
        return TensorSpec(a.shape[:-1], dtype)
    return TensorSpec((*broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]), dtype)


solve = declare(
    "solve(Tensor a, Tensor b) -> Tensor",
    "The solution x of ``a x = b`` for square a; a 1-d `b` is one vector.",
)
solve_triangular = declare(
    "solve_triangular(Tensor a, Tensor b, *, bool upper) -> Tensor",
    "The solution x of ``a x = b``, as `solve`, where only one triangle of matrices a is read.",
)


def _solve(a: Any, b: Any) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    _solution("solve", a, b)
    return _c(np.linalg.solve(a, b))


def _solve_triangular(a: Any, b: Any, *, upper: bool) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    _solution("solve_triangular", a, b)
    return _c(np.linalg.solve(np.triu(a) if upper else np.tril(a), b))


_lapack(solve, _solve)
_lapack(solve_triangular, _solve_triangular)
solve.register_fake(lambda a, b: _solution("solve", a, b))
solve_triangular.register_fake(lambda a, b, *, upper: _solution("solve_triangular", a, b))


def _outer(left: Tensor, right: Tensor, vector: bool) -> Tensor:
    """Return ``left rightᴴ`` of matrices, or of vectors."""
    if vector:
        return left[..., :, None] * right.conj()[..., None, :]
    return matmul(left, adjoint(right))


@solve.register_vjp
def _solve_grad(grad: Tensor, a: Tensor, b_spec: TensorSpec, out: Tensor) -> Any:
    vector = b_spec.ndim == 1
    columns = grad[..., None] if vector else grad
    to_b = solve(adjoint(a), columns)
    to_b = to_b[..., 0] if vector else to_b
    return sum_to(-_outer(to_b, out, vector), a.shape), sum_to(to_b, b_spec.shape)


@solve_triangular.register_vjp
def _solve_triangular_grad(
    grad: Tensor, a: Tensor, b_spec: TensorSpec, out: Tensor, upper: bool
) -> Any:
    vector = b_spec.ndim == 1
    columns = grad[..., None] if vector else grad
    to_b = solve_triangular(adjoint(a), columns, upper=not upper)
    to_b = to_b[..., 0] if vector else to_b
    to_a = sum_to(-_outer(to_b, out, vector), a.shape)
    return triu(to_a) if upper else tril(to_a), sum_to(to_b, b_spec.shape)


pinv = declare(
    "pinv(Tensor x, float? rtol=None) -> Tensor",
    "The Moore-Penrose inverse ``[..., n, m]`` of matrices ``[..., m, n]``; singular values up to "
    "``rtol`` times the largest count as zero, by default ``max(m, n)`` times the precision.",
)


def _pinv(x: Any, rtol: float | None) -> Array:
    x = inexact(matrix("pinv", np.asarray(x), square=False))
    rtol = max(x.shape[-2:]) * np.finfo(x.dtype).eps if rtol is None else rtol
    return _c(np.linalg.pinv(x, rtol))


_lapack(pinv, _pinv)


@pinv.register_fake
def _pinv_spec(x: Any, rtol: float | None) -> TensorSpec:
    matrix("pinv", x, square=False)
    return TensorSpec((*x.shape[:-2], x.shape[-1], x.shape[-2]), inexact_dtype(x.dtype))


@pinv.register_vjp
def _pinv_grad(grad: Tensor, x: Tensor, out: Tensor, rtol: float | None) -> Tensor:
    """Differentiate at constant rank (Golub and Pereyra, 1973)."""
    if rtol is not None:
        lost = (matmul(matmul(x, out), x) - x).abs()
        if bool((lost > 1e-6 * x.abs().max()).any()):
            raise AutogradError(
                f"std::pinv: rtol={rtol:g} cuts off singular values that are not zero, and the "
                "inverse of what is left has another derivative\n"
                "  leave rtol out, or invert the singular values of svd yourself"
            )
    grad = adjoint(grad)
    k = matmul(grad, out)
    right = matmul(k, adjoint(out))
    return (
        right
        - adjoint(matmul(out, k))
        - matmul(matmul(x, out), right)
        + matmul(matmul(adjoint(out), out), grad - matmul(k, x))
    )


@composite(
    "lstsq(Tensor a, Tensor b) -> Tensor",
    "The x of least norm among those that minimize ``|a x - b|``, for any shape and rank of a.",
)
def lstsq(a: Tensor, b: Tensor) -> Tensor:
    """Multiply by the Moore-Penrose inverse."""
    return matmul(pinv(a), b)


# ---------------------------------------------------------------------- factors


cholesky = declare(
    "cholesky(Tensor x) -> Tensor",
    "The lower triangular L, ``[..., n, n]``, with ``L Lᴴ = (x + xᴴ) / 2``, positive definite.",
)
_lapack(cholesky, lambda x: _c(np.linalg.cholesky(_hermitian_part(matrix("cholesky", x)))))
cholesky.register_fake(lambda x: TensorSpec(matrix("cholesky", x).shape, inexact_dtype(x.dtype)))


@cholesky.register_vjp
def _cholesky_grad(grad: Tensor, out: Tensor) -> Tensor:
    """Differentiate (Murray, arXiv:1602.07527): ``L⁻ᴴ Φ(Lᴴ g) L⁻¹``, Hermitian part."""
    middle = _lower_half(matmul(adjoint(out), grad))
    left = solve_triangular(adjoint(out), middle, upper=True)
    return _hermitian(adjoint(solve_triangular(adjoint(out), adjoint(left), upper=True)))


def _lower_half(x: Tensor) -> Tensor:
    """Return the lower triangle with half the diagonal."""
    return (tril(x) + tril(x, -1)) / 2


qr = declare(
    'qr(Tensor x, str mode="reduced") -> (Tensor q, Tensor r)',
    "The factors of matrices: Q with orthonormal columns, upper triangular R, ``x = Q R``; with "
    "mode ``complete`` Q is square.",
)


def _qr(x: Any, mode: str) -> tuple[Array, ...]:
    _qr_spec(x, mode)
    return tuple(map(_c, np.linalg.qr(np.asarray(x), mode)))  # type: ignore[call-overload]


_lapack(qr, _qr)


@qr.register_fake
def _qr_spec(x: Any, mode: str) -> tuple[TensorSpec, TensorSpec]:
    *batch, rows, columns = matrix("qr", x, square=False).shape
    if mode not in ("reduced", "complete"):
        raise ArgumentError(f"std::qr: mode is reduced or complete, got {mode!r}")
    rank, dtype = rows if mode == "complete" else min(rows, columns), inexact_dtype(x.dtype)
    return TensorSpec((*batch, rows, rank), dtype), TensorSpec((*batch, rank, columns), dtype)


@qr.register_vjp
def _qr_grad(
    x_spec: TensorSpec,
    q: Tensor,
    r: Tensor,
    grad_q: Tensor | None = None,
    grad_r: Tensor | None = None,
) -> Tensor:
    """Differentiate for at least as many rows as columns (Walter and Lehmann, arXiv:1009.6112)."""
    if q.shape[-1] != x_spec.shape[-1]:
        if q.shape[-1] > x_spec.shape[-1]:
            raise AutogradError(
                "std::qr: no gradient in mode complete, whose last columns of q are arbitrary; "
                "use mode reduced"
            )
        raise AutogradError(
            f"std::qr: no gradient for {list(x_spec.shape)}, which has fewer rows than columns; "
            "factor the first columns, which determine q"
        )
    middle: Any = 0 if grad_r is None else matmul(grad_r, adjoint(r))
    if grad_q is not None:
        middle = middle - matmul(adjoint(q), grad_q)
    upper = triu(middle)
    mirrored = matmul(q, triu(middle, 1) + adjoint(upper) - _imaginary_diagonal(upper))
    total = mirrored if grad_q is None else grad_q + mirrored
    return adjoint(solve_triangular(r, adjoint(total), upper=True))


def _imaginary_diagonal(x: Tensor) -> Any:
    """Return what `_qr_grad` must not count: the diagonal is real where R's is."""
    if x.dtype.kind != "c":
        return 0
    diagonal = tril(triu(x))
    return (adjoint(diagonal) - diagonal) / 2


# ---------------------------------------------------------------------- spectra


eigh = declare(
    "eigh(Tensor x) -> (Tensor eigenvalues, Tensor eigenvectors)",
    "`numpy.linalg.eigh`: eigenvalues, ascending, and eigenvectors (columns) of the Hermitian part "
    "of matrices.",
)
_lapack(eigh, lambda x: tuple(map(_c, np.linalg.eigh(_hermitian_part(matrix("eigh", x))))))


@eigh.register_fake
def _eigh_spec(x: Any) -> tuple[TensorSpec, TensorSpec]:
    shape = matrix("eigh", x).shape
    return TensorSpec(shape[:-1], real_dtype(x.dtype)), TensorSpec(shape, inexact_dtype(x.dtype))


@eigh.register_vjp
def _eigh_grad(
    eigenvalues: Tensor,
    eigenvectors: Tensor,
    grad_eigenvalues: Tensor | None = None,
    grad_eigenvectors: Tensor | None = None,
) -> Tensor:
    """Differentiate: ``V (diag(g) + F ∘ Vᴴ gᵥ) Vᴴ`` with F = 1 / (λⱼ - λᵢ) off the diagonal."""
    middle: Any = 0
    if grad_eigenvectors is not None:
        turned = matmul(adjoint(eigenvectors), grad_eigenvectors)
        if eigenvectors.dtype.kind == "c":
            _refuse_phases(turned)
        middle = turned * _inverse_gaps(eigenvalues)
    if grad_eigenvalues is not None:
        middle = middle + _diagonal(grad_eigenvalues)
    return _hermitian(matmul(matmul(eigenvectors, middle), adjoint(eigenvectors)))


def _refuse_phases(turned: Tensor) -> None:
    """Raise if ``Vᴴ gᵥ`` says that turning the phase of an eigenvector changes the result.

    The phases are LAPACK's choice, so such a gradient has no meaning.
    """
    size = turned.abs()
    eps = np.finfo(size.dtype).eps
    if bool(((turned * _identity(size, size.shape[-1])).imag.abs() > 1e4 * eps * size.max()).any()):
        raise AutogradError(
            "std::eigh: the result depends on the phases of complex eigenvectors, which nothing "
            "determines, so its gradient has no meaning; use v @ vᴴ, abs(v), or eigenvalues only"
        )


def _identity(like: Tensor, n: Any) -> Tensor:
    from_ones = like.new_ones([n, n])
    return tril(triu(from_ones))


def _diagonal(values: Tensor) -> Tensor:
    """Return diagonal matrices."""
    return values[..., None] * _identity(values, values.shape[-1])


def _inverse_gaps(values: Tensor) -> Tensor:
    """Return ``1 / (vⱼ - vᵢ)``, zero on the diagonal."""
    one = _identity(values, values.shape[-1])
    return (1 - one) / (values[..., None, :] - values[..., :, None] + one)


svd = declare(
    "svd(Tensor x, bool full=False) -> (Tensor u, Tensor s, Tensor vh)",
    "The factors of matrices: ``x = U diag(S) Vh``, singular values descending; U and Vh are "
    "square if `full`.",
)


def _svd(x: Any, full: bool) -> tuple[Array, ...]:
    return tuple(map(_c, np.linalg.svd(matrix("svd", np.asarray(x), square=False), full)))


_lapack(svd, _svd)


@svd.register_fake
def _svd_spec(x: Any, full: bool) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    *batch, rows, columns = matrix("svd", x, square=False).shape
    rank, dtype = min(rows, columns), inexact_dtype(x.dtype)
    return (
        TensorSpec((*batch, rows, rows if full else rank), dtype),
        TensorSpec((*batch, rank), real_dtype(x.dtype)),
        TensorSpec((*batch, columns if full else rank, columns), dtype),
    )


@svd.register_vjp
def _svd_grad(
    u: Tensor,
    s: Tensor,
    vh: Tensor,
    grad_u: Tensor | None = None,
    grad_s: Tensor | None = None,
    grad_vh: Tensor | None = None,
) -> Tensor:
    """Differentiate (Townsend, "Differentiating the Singular Value Decomposition", 2016)."""
    if u.dtype.kind == "c" and not (grad_u is None and grad_vh is None):
        raise AutogradError(
            "std::svd: singular vectors of complex matrices are determined up to a phase, so "
            "their gradient has no meaning; use eigh(x @ xᴴ), or singular values only"
        )
    rank = s.shape[-1]
    if u.shape[-1] != rank or vh.shape[-2] != rank:
        if not (grad_u is None and grad_vh is None):
            raise AutogradError(
                "std::svd: no gradient of the full factors, whose last vectors are arbitrary; "
                "use full=False"
            )
        u, vh = u[..., :rank], vh[..., :rank, :]
    inner: Any = 0
    outer: Any = 0
    gaps = _inverse_gaps(s * s)
    if grad_s is not None:
        inner = inner + _diagonal(grad_s)
    if grad_u is not None:
        turned = matmul(adjoint(u), grad_u)
        inner = inner + (turned - adjoint(turned)) * gaps * s[..., None, :]
        if u.shape[-2] > u.shape[-1]:
            outer = outer + matmul((grad_u - matmul(u, turned)) / s[..., None, :], vh)
    if grad_vh is not None:
        turned = matmul(vh, adjoint(grad_vh))
        inner = inner + s[..., :, None] * (turned - adjoint(turned)) * gaps
        if vh.shape[-1] > vh.shape[-2]:
            rest = grad_vh - matmul(adjoint(turned), vh)
            outer = outer + matmul(u / s[..., None, :], rest)
    return matmul(matmul(u, inner), vh) + outer


def _below(x: Tensor, diagonal: int, name: str) -> Tensor:
    """Return where ``column - row <= diagonal``."""
    if x.ndim < 2:
        raise ArgumentError(f"std::{name} takes matrices, got {list(x.shape)}")
    rows = arange(0, x.shape[-2], device=x.device).unsqueeze(-1)
    return arange(0, x.shape[-1], device=x.device) - rows <= diagonal


@composite(
    "tril(Tensor x, int diagonal=0) -> Tensor",
    "`numpy.tril`: the lower triangle of matrices, up to a diagonal; zero above.",
)
def tril(x: Tensor, diagonal: int) -> Tensor:
    """Keep what lies on and below a diagonal."""
    return mask(x, _below(x, diagonal, "tril"))


@composite(
    "triu(Tensor x, int diagonal=0) -> Tensor",
    "`numpy.triu`: the upper triangle of matrices, from a diagonal; zero below.",
)
def triu(x: Tensor, diagonal: int) -> Tensor:
    """Keep what lies on and above a diagonal."""
    return mask(x, _below(x, diagonal - 1, "triu").logical_not())
