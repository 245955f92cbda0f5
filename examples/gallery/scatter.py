"""scatter, scatter_max: rows with an equal index summed, averaged or compared.

Group i takes the rows where ``index == i``; a group without rows is 0. Without a `dim_size` there
are ``max(index) + 1`` groups, which only the data know: the fake result has an unknown length. The
gradient of a sum is ``g[index]``, that of a mean ``(g / count)[index]``; the maximum passes its
gradient to the row it came from, the first of equals, and `arg` has none.

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
GROUPS = "Tensor src, Tensor index, int dim=0, int? dim_size=None"
scatter = lib.define(f'scatter({GROUPS}, str reduce="sum") -> Tensor').op
scatter_max = lib.define(f"scatter_max({GROUPS}) -> (Tensor values, Tensor arg)").op


def check(src, index, dim, dim_size, reduce="sum"):
    """Return the axis, after refusing what shapes and dtypes tell."""
    if reduce not in ("sum", "mean"):
        raise ValueError(f"scatter: reduce is 'sum' or 'mean', got {reduce!r}")
    if src.dtype.kind != "f" or not -src.ndim <= dim < src.ndim:
        raise ValueError(f"scatter: src holds floats and has an axis {dim}, got {list(src.shape)}")
    dim %= src.ndim
    if index.dtype.kind not in "iu" or index.ndim != 1 or index.shape[0] != src.shape[dim]:
        raise ValueError(f"scatter: index has one integer for each of {src.shape[dim]} rows")
    if dim_size is not None and dim_size < 0:
        raise ValueError(f"scatter: dim_size is not negative, got {dim_size}")
    return dim


def grouped(src, index, dim, dim_size):
    """Return the rows first, and the number of groups."""
    groups = int(index.max(initial=-1)) + 1 if dim_size is None else dim_size
    if index.size and not 0 <= index.min() <= index.max() < groups:
        raise IndexError(f"scatter: an index lies outside 0 .. {groups - 1}")
    return np.moveaxis(src, dim, 0), groups


def shape_of(src, dim, dim_size):
    groups = oplib.get_ctx().new_dynamic_size(min=0) if dim_size is None else dim_size
    return [*src.shape[:dim], groups, *src.shape[dim + 1 :]]


@scatter.register_kernel("cpu")
def _(src, index, dim, dim_size, reduce):
    dim = check(src, index, dim, dim_size, reduce)
    rows, groups = grouped(src, index, dim, dim_size)
    result = np.zeros((groups, *rows.shape[1:]), np.promote_types(src.dtype, np.float32))
    np.add.at(result, index, rows)
    if reduce == "mean":
        count = np.bincount(index, minlength=groups).clip(1)
        result /= count.reshape(-1, *[1] * (rows.ndim - 1))
    return np.ascontiguousarray(np.moveaxis(result, 0, dim).astype(src.dtype))


@scatter_max.register_kernel("cpu")
def _(src, index, dim, dim_size):
    dim = check(src, index, dim, dim_size)
    rows, groups = grouped(src, index, dim, dim_size)
    values = np.zeros((groups, *rows.shape[1:]), src.dtype)
    arg = np.full(values.shape, len(rows))
    for i, group in enumerate(index):
        better = (arg[group] == len(rows)) | (rows[i] > values[group])
        values[group] = np.where(better, rows[i], values[group])
        arg[group] = np.where(better, i, arg[group])
    return tuple(np.ascontiguousarray(np.moveaxis(x, 0, dim)) for x in (values, arg))


@scatter.register_fake
def _(src, index, dim, dim_size, reduce):
    dim = check(src, index, dim, dim_size, reduce)
    return oplib.empty(shape_of(src, dim, dim_size), dtype=src.dtype)


@scatter_max.register_fake
def _(src, index, dim, dim_size):
    shape = shape_of(src, check(src, index, dim, dim_size), dim_size)
    return oplib.empty(shape, dtype=src.dtype), oplib.empty(shape, dtype="int64")


def scatter_grad(grad, index, dim, reduce):
    if reduce == "mean":
        count = scatter(oplib.ones(index.shape, dtype=grad.dtype), index, 0, grad.shape[dim])
        grad = grad / count.maximum(1).reshape([-1] + [1] * (grad.ndim - 1 - dim % grad.ndim))
    return oplib.ops.std.index_select(grad, index, dim)


def scatter_max_grad(grad_values, arg, dim, src_spec):
    rows = src_spec.shape[dim]  # a group without rows sends its gradient one row beyond them
    shape = [n + 1 if i == dim % src_spec.ndim else n for i, n in enumerate(src_spec.shape)]
    room = oplib.zeros(shape, dtype=grad_values.dtype)
    return oplib.ops.std.scatter_add(room, dim, arg, grad_values).narrow(dim, 0, rows)


scatter.register_vjp(src=scatter_grad)
scatter_max.register_vjp(src=scatter_max_grad)


def main() -> None:
    src, index = oplib.tensor([3.0, 1.0, 3.0, 5.0]), oplib.tensor([0, 2, 0, 2])
    print("sums of groups 0, 1, 2:", scatter(src, index).tolist())
    print("means:                 ", scatter(src, index, reduce="mean").tolist())
    print("maxima and their rows: ", [x.tolist() for x in scatter_max(src, index)])


if __name__ == "__main__":
    main()
