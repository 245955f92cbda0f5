"""cholesky, triangular_solve, lstsq: factors and solutions with their gradients.

cholesky: with ``P = tril(Lᴴ g)``, its diagonal real and halved, ``S = L⁻ᴴ P L⁻¹`` and
``ga = (S + Sᴴ) / 2`` (Murray, arXiv:1602.07527). triangular_solve: ``gb = a⁻ᴴ g``, and ga is the
triangle of ``-gb xᴴ``. lstsq of full column rank, with ``G = (aᴴa)⁻¹ g``: ``gb = a G`` and
``ga = (b - a x) Gᴴ - gb xᴴ``; its other results are not differentiable.

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
cholesky = lib.define("cholesky(Tensor a) -> Tensor").op
solve = lib.define("triangular_solve(Tensor a, Tensor b, *, bool upper=False) -> Tensor").op
lstsq = lib.define(
    "lstsq(Tensor a, Tensor b)"
    " -> (Tensor solution, Tensor residuals, Tensor rank, Tensor singular_values)"
).op


def check(name, a, b=None):
    square = name != "lstsq"
    if not square and (a.ndim != 2 or not a.shape[0] >= a.shape[1] > 0):
        raise ValueError(f"lstsq: a has no more columns than rows, got {list(a.shape)}")
    if a.ndim < 2 or a.dtype.kind not in "fc" or (square and a.shape[-1] != a.shape[-2]):
        raise ValueError(f"{name}: a holds {'square ' * square}matrices, got {list(a.shape)}")
    if b is not None and (b.dtype != a.dtype or b.ndim != a.ndim or b.shape[:-1] != a.shape[:-1]):
        raise ValueError(f"{name}: b has the rows and the dtype of a, got {list(b.shape)}")


def adjoint(x):
    return x.swapaxes(-1, -2).conj()


@cholesky.register_kernel("cpu")
def _(a):
    check("cholesky", a)
    return np.linalg.cholesky((a + adjoint(a)) / 2)


@solve.register_kernel("cpu")
def _(a, b, *, upper):
    check("triangular_solve", a, b)
    return np.linalg.solve(np.triu(a) if upper else np.tril(a), b)


@lstsq.register_kernel("cpu")
def _(a, b):
    check("lstsq", a, b)
    x, residuals, rank, values = np.linalg.lstsq(a, b, rcond=None)
    if not residuals.size:  # NumPy gives none for a square or a deficient a
        residuals = (np.abs(b - a @ x) ** 2).sum(0)
    return x, residuals, np.array(rank, np.int64), values


@cholesky.register_fake
def _(a):
    check("cholesky", a)
    return oplib.empty(a.shape, dtype=a.dtype)


@solve.register_fake
def _(a, b, *, upper):
    check("triangular_solve", a, b)
    return oplib.empty(b.shape, dtype=b.dtype)


@lstsq.register_fake
def _(a, b):
    check("lstsq", a, b)
    real = np.empty(0, a.dtype).real.dtype
    shapes = (a.shape[1], b.shape[1]), b.shape[1:], (), a.shape[1:]
    dtypes = a.dtype, real, "int64", real
    return tuple(oplib.empty(s, dtype=d) for s, d in zip(shapes, dtypes, strict=True))


@cholesky.register_vjp
def _(grad, out):
    product, upper = adjoint(out) @ grad, adjoint(out)
    diagonal = product * oplib.eye(out.shape[-1], dtype=out.dtype)
    p = product.tril(-1) + (diagonal + diagonal.conj()) / 4
    s = solve(upper, adjoint(solve(upper, p, upper=True)), upper=True)
    return (s + adjoint(s)) / 2


@solve.register_vjp
def _(grad, a, out, upper):
    gb = solve(adjoint(a), grad, upper=not upper)
    ga = -(gb @ adjoint(out))
    return {"a": ga.triu() if upper else ga.tril(), "b": gb}


@lstsq.register_vjp
def _(grad_solution, a, b, solution, rank):
    if rank.item() < a.shape[1]:
        raise oplib.AutogradError("gallery::lstsq: no gradient for a matrix of deficient rank")
    lower = cholesky(adjoint(a) @ a)
    g = solve(adjoint(lower), solve(lower, grad_solution), upper=True)
    gb = a @ g
    return (b - a @ solution) @ adjoint(g) - gb @ adjoint(solution), gb


def main() -> None:
    a = oplib.tensor([[4.0, 2.0], [2.0, 3.0]])
    lower = cholesky(a)
    print("the factor times its transpose:", (lower @ lower.transpose()).numpy().round(9).tolist())
    line = oplib.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    y = oplib.tensor([[1.0], [3.0], [5.0]])
    print("a line through 1, 3, 5:", lstsq(line, y)[0].tolist())


if __name__ == "__main__":
    main()
