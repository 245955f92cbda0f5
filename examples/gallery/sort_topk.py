"""sort, topk, argsort: values in order, and where they came from.

NaN sorts last in ascending order and first in descending; descending, equals keep their order if
stable. Values pass their gradient to the places they came from, indices have none.

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
sort = lib.define(
    "sort(Tensor x, int dim=-1, bool descending=False, bool stable=True)"
    " -> (Tensor values, Tensor indices)"
).op
topk = lib.define(
    "topk(Tensor x, int k, int dim=-1, bool largest=True) -> (Tensor values, Tensor indices)"
).op
argsort = lib.define("argsort(Tensor x, int dim=-1, bool descending=False) -> Tensor").op


def check(x, dim, k=None):
    if not -x.ndim <= dim < x.ndim:
        raise IndexError(f"sort: x has {x.ndim} axes, no axis {dim}")
    if k is not None and not 0 <= k <= x.shape[dim]:
        raise ValueError(f"topk: k lies in 0 .. {x.shape[dim]}, got {k}")


def order(x, dim, descending):
    """Return the stable order; reversed twice, so that equals keep theirs in descending order."""
    if not descending:
        return np.argsort(x, dim, kind="stable")
    back = np.flip(np.argsort(np.flip(x, dim), dim, kind="stable"), dim)
    return x.shape[dim] - 1 - back


def taken(x, indices, dim):
    return np.ascontiguousarray(np.take_along_axis(x, indices, dim)), np.ascontiguousarray(indices)


@sort.register_kernel("cpu")
def _(x, dim, descending, stable):
    check(x, dim)
    return taken(x, order(x, dim, descending), dim)


@topk.register_kernel("cpu")
def _(x, k, dim, largest):
    check(x, dim, k)
    return taken(x, np.take(order(x, dim, largest), np.arange(k), dim), dim)


@argsort.register_kernel("cpu")
def _(x, dim, descending):
    check(x, dim)
    return np.ascontiguousarray(order(x, dim, descending))


def pair(shape, x):
    return oplib.empty(shape, dtype=x.dtype), oplib.empty(shape, dtype="int64")


@sort.register_fake
def _(x, dim, descending, stable):
    check(x, dim)
    return pair(x.shape, x)


@topk.register_fake
def _(x, k, dim, largest):
    check(x, dim, k)
    return pair([k if axis == dim % x.ndim else n for axis, n in enumerate(x.shape)], x)


@argsort.register_fake
def _(x, dim, descending):
    check(x, dim)
    return oplib.empty(x.shape, dtype="int64")


def back(grad_values, indices, dim, x_spec):
    """Add the gradient at the places the values came from."""
    room = oplib.zeros(x_spec.shape, dtype=grad_values.dtype)
    return oplib.scatter_add(room, dim, indices, grad_values)


sort.register_vjp(x=back)
topk.register_vjp(x=back)


def main() -> None:
    x = oplib.tensor([2.0, float("nan"), 1.0, 2.0], requires_grad=True)
    values, indices = sort(x, descending=True)
    print("descending, NaN first:", values.tolist(), "from", indices.tolist())
    print("ascending, NaN last:  ", argsort(x).tolist())
    values, _ = topk(x, 2, largest=False)
    values.sum().backward()
    print("the two smallest get the gradient:", x.grad.tolist())


if __name__ == "__main__":
    main()
