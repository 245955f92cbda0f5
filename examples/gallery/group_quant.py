"""per_token_group_quant: rows quantized group by group into memory of the caller.

Groups of `group_size` lie along the last axis; ``s = max(absmax, eps) / qmax``, rounded up to a
power of two with `ue8m0`, and ``q = clip(input / s, qmin, qmax)`` rounded to the dtype of
`output_q`. Both outputs are written; the scales are stored in `output_s`.

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
SCHEMA = (
    "(Tensor input, Tensor! output_q, Tensor! output_s, int group_size, float eps, float qmin, "
    "float qmax, bool ue8m0=False) -> ()"
)
group_quant = lib.define(f"per_token_group_quant{SCHEMA}").op


def limits(dtype):
    """Return the least and the largest number of a dtype: integers, or float8 of ml_dtypes."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return (-448.0, 448.0) if dtype.name.startswith("float8_e4m3") else (-np.inf, np.inf)


def check(input, output_q, output_s, group_size, eps, qmin, qmax, ue8m0):
    if input.ndim == 0 or group_size < 1 or input.shape[-1] % group_size:
        raise ValueError(
            f"per_token_group_quant: groups of {group_size} do not divide {list(input.shape)}"
        )
    if output_q.shape != input.shape:
        raise ValueError(f"per_token_group_quant: output_q is {list(input.shape)}")
    if output_s.shape != (*input.shape[:-1], input.shape[-1] // group_size):
        raise ValueError("per_token_group_quant: output_s has one scale per group")
    if input.dtype.kind != "f" or output_s.dtype.kind != "f":
        raise ValueError("per_token_group_quant: input and output_s hold floats")
    low, high = limits(output_q.dtype)
    if not low <= qmin < 0 < qmax <= high:
        raise ValueError(
            f"per_token_group_quant: {output_q.dtype} does not hold {qmin:g} .. {qmax:g}"
        )


@group_quant.register_kernel("cpu")
def quantize(input, output_q, output_s, group_size, eps, qmin, qmax, ue8m0):
    check(input, output_q, output_s, group_size, eps, qmin, qmax, ue8m0)
    groups = input.astype(np.promote_types(input.dtype, np.float32))
    groups = groups.reshape((*output_s.shape, group_size))
    scale = np.maximum(np.abs(groups).max(-1), eps) / qmax
    if ue8m0:
        scale = np.exp2(np.ceil(np.log2(scale)))
    q = np.clip(groups / scale[..., None], qmin, qmax)
    q = np.rint(q) if output_q.dtype.kind in "iu" else q
    output_q[...] = q.reshape(input.shape).astype(output_q.dtype)
    output_s[...] = scale


group_quant.register_fake(check)


def main() -> None:
    x = oplib.tensor([[1.0, -2.0, 100.0, 50.0]])
    q, s = oplib.zeros((1, 4), dtype="int8"), oplib.zeros((1, 2))
    group_quant(x, q, s, 2, 1e-10, -128, 127)
    print("each group uses the whole range:", q.tolist(), "scales", s.numpy().round(4).tolist())
    group_quant(x, q, s, 2, 1e-10, -128, 127, True)
    print("scales as powers of two:        ", s.tolist())


if __name__ == "__main__":
    main()
