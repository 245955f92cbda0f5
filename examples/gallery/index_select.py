"""index_select: rows by index, with repeats, and a gradient that counts every repeat.

A row that was taken twice gets two gradients. ``zeros[index] += g`` keeps one of them, the classic
wrong answer; `numpy.add.at` adds both. Gathering and adding are each other's transpose, so two
operators differentiate to any order.

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
index_select = lib.define("index_select(Tensor x, Tensor index, int dim=0) -> Tensor").op
add_rows = lib.define("add_rows(Tensor rows, Tensor index, SymInt length, int dim) -> Tensor").op


def check(x, index, dim):
    if not -x.ndim <= dim < x.ndim:
        raise IndexError(f"index_select: x has {x.ndim} axes, no axis {dim}")
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise TypeError(
            f"index_select: index holds integers along one axis, got {index.dtype} in {index.ndim}"
        )
    return dim % x.ndim


def positions(index, length):
    """Return the index counted from the start; negative numbers count from the end."""
    if index.size and not -length <= index.min() <= index.max() < length:
        raise IndexError(f"index_select: an index lies outside -{length} .. {length - 1}")
    return index % max(length, 1)


@index_select.register_kernel("cpu")
def _(x, index, dim):
    dim = check(x, index, dim)
    return np.take(x, positions(index, x.shape[dim]), dim)


@add_rows.register_kernel("cpu")
def _(rows, index, length, dim):
    dim = check(rows, index, dim)
    total = np.zeros((*rows.shape[:dim], length, *rows.shape[dim + 1 :]), rows.dtype)
    np.add.at(np.moveaxis(total, dim, 0), positions(index, length), np.moveaxis(rows, dim, 0))
    return total


@index_select.register_fake
def _(x, index, dim):
    dim = check(x, index, dim)
    return x.new_empty([*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :]])


@add_rows.register_fake
def _(rows, index, length, dim):
    dim = check(rows, index, dim)
    return rows.new_empty([*rows.shape[:dim], length, *rows.shape[dim + 1 :]])


index_select.register_vjp(
    x=lambda grad, x_spec, index, dim: add_rows(grad, index, x_spec.shape[dim], dim)
)
add_rows.register_vjp(rows=lambda grad, index, dim: index_select(grad, index, dim))


def main() -> None:
    x = oplib.tensor([1.0, 2.0, 3.0], requires_grad=True)
    taken = index_select(x, oplib.tensor([0, 2, 2, -1]))
    print("rows 0, 2, 2 and the last:", taken.tolist())
    taken.sum().backward()
    print("row 2 was taken thrice:   ", x.grad.tolist())


if __name__ == "__main__":
    main()
