"""segment_sum_csr: rows summed by segment, and its transpose, rows repeated over segments.

Segment i is the sum of ``src[indptr[i] : indptr[i+1]]``, zero if it is empty, added to out if that
is given. The gradient of src repeats row i over the segment; the gradient of that is a segment sum
again, so two operators that are each other's transpose differentiate to any order. The form `into`
accumulates in place, and returns out itself.

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
csr = lib.define("segment_sum_csr(Tensor src, Tensor indptr, Tensor? out=None) -> Tensor").op
into = lib.define(
    "segment_sum_csr.into(Tensor src, Tensor indptr, *, Tensor(a!)? out) -> Tensor(a!)"
).op
repeat = lib.define("repeat_segments(Tensor rows, Tensor indptr, SymInt length) -> Tensor").op


def sums(src, indptr, out=None):
    starts = indptr[:-1]
    if np.any(np.diff(indptr) < 0) or np.any(starts < 0) or np.any(indptr[-1:] > len(src)):
        raise ValueError("segment_sum_csr: indptr rises from 0 to at most the number of rows")
    wide = src.astype(np.promote_types(src.dtype, np.float32), copy=False)
    total = np.zeros((len(starts), *src.shape[1:]), wide.dtype)
    for i, (a, b) in enumerate(zip(starts, indptr[1:], strict=True)):
        total[i] = wide[a:b].sum(0)
    return (total if out is None else total + out).astype(src.dtype)


def csr_shape(src, indptr, out=None):
    if indptr.ndim != 1 or indptr.dtype.kind != "i" or not indptr.shape[0] or src.ndim == 0:
        raise ValueError("segment_sum_csr: indptr holds one integer more than there are segments")
    shape = (indptr.shape[0] - 1, *src.shape[1:])
    if src.dtype.kind != "f" or (out is not None and (out.shape, out.dtype) != (shape, src.dtype)):
        raise ValueError(f"segment_sum_csr: src holds floats, out is {src.dtype}{list(shape)}")
    return shape


@csr.register_kernel("cpu")
def _(src, indptr, out):
    csr_shape(src, indptr, out)
    return sums(src, indptr, out)


@into.register_kernel("cpu")
def _(src, indptr, *, out):
    csr_shape(src, indptr, out)
    if out is None:
        return sums(src, indptr)
    out[...] = sums(src, indptr, out)
    return out


@csr.register_fake
def _(src, indptr, out):
    return oplib.empty(csr_shape(src, indptr, out), dtype=src.dtype)


@into.register_fake
def _(src, indptr, *, out):
    shape = csr_shape(src, indptr, out)
    return oplib.empty(shape, dtype=src.dtype) if out is None else out


@repeat.register_kernel("cpu")
def _(rows, indptr, length):
    result = np.zeros((length, *rows.shape[1:]), rows.dtype)
    result[indptr[0] : indptr[-1]] = np.repeat(rows, np.diff(indptr), axis=0)
    return result


repeat.register_fake(lambda rows, indptr, length: rows.new_empty([length, *rows.shape[1:]]))
repeat.register_vjp(rows=lambda grad, indptr: csr(grad, indptr))
csr.register_vjp(
    src=lambda grad, indptr, src_spec: repeat(grad, indptr, src_spec.shape[0]),
    out=lambda grad: grad,
)


def main() -> None:
    src, indptr = oplib.arange(1.0, 6.0).requires_grad_(), oplib.tensor([0, 2, 2, 5])
    total = csr(src, indptr)
    print("1+2, nothing, 3+4+5:     ", total.tolist())
    (total * oplib.tensor([10.0, 20.0, 30.0])).sum().backward()
    print("the gradient is repeated:", src.grad.tolist())
    out = oplib.ones(3)
    print("and accumulated:         ", into(src.detach(), indptr, out=out).tolist())


if __name__ == "__main__":
    main()
