"""layer_norm, group_norm: mean zero and variance one, over rows or over groups of channels.

``h = (x - mean) r`` with ``r = (var + eps)^(-1/2)``, over the last axis or over each group of
channels with its spatial axes; then ``h weight + bias``. With ``u = g weight`` the gradient is
``gx = r (u - mean(u) - h mean(u h))``; weight collects ``g h``, bias g (arXiv:1803.08494).

Needs: nothing else.
"""

from __future__ import annotations

import math

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
layer_norm = lib.define(
    "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps=1e-5) -> Tensor"
).op
group_norm = lib.define(
    "group_norm(Tensor x, int groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-5)"
    " -> Tensor"
).op


def check(x, size, weight=None, bias=None):
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None and (value.shape != (size,) or value.dtype != x.dtype):
            raise ValueError(f"{name} is {x.dtype}[{size}], got {value.dtype}{list(value.shape)}")
    if x.dtype.kind != "f" or x.ndim == 0:
        raise ValueError(f"x holds floats along axes, got {x.dtype}{list(x.shape)}")


def check_groups(x, groups, weight, bias):
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(f"group_norm: {groups} groups do not divide channels of {list(x.shape)}")
    check(x, x.shape[1], weight, bias)


def normalized(rows, eps):
    """Return ``(x - mean) r`` over the last axis, of an array or a Tensor, and r."""
    n = max(rows.shape[-1], 1)
    centred = rows - rows.sum(-1)[..., None] / n
    r = ((centred * centred).sum(-1)[..., None] / n + eps) ** -0.5
    return centred * r, r


def as_rows(x, groups):
    """Return one row per group of channels."""
    return x.reshape((x.shape[0] * groups, math.prod(x.shape[1:]) // groups))


def affine(h, weight, bias, axes):
    """Scale and shift h; parameters run along the first of its last `axes` axes."""
    ones = (1,) * (axes - 1)
    h = h if weight is None else h * weight.reshape((*weight.shape, *ones))
    return h if bias is None else h + bias.reshape((*bias.shape, *ones))


@layer_norm.register_kernel("cpu")
def _(x, weight, bias, eps):
    check(x, x.shape[-1], weight, bias)
    h, _ = normalized(x.astype(np.promote_types(x.dtype, np.float32)), eps)
    return affine(h, weight, bias, 1).astype(x.dtype, "C")


@group_norm.register_kernel("cpu")
def _(x, groups, weight, bias, eps):
    check_groups(x, groups, weight, bias)
    h, _ = normalized(as_rows(x.astype(np.promote_types(x.dtype, np.float32)), groups), eps)
    return affine(h.reshape(x.shape), weight, bias, x.ndim - 1).astype(x.dtype, "C")


@layer_norm.register_fake
def _(x, weight, bias, eps):
    check(x, x.shape[-1], weight, bias)
    return oplib.empty(x.shape, dtype=x.dtype)


@group_norm.register_fake
def _(x, groups, weight, bias, eps):
    check_groups(x, groups, weight, bias)
    return oplib.empty(x.shape, dtype=x.dtype)


def backward(grad, x, weight, bias, eps, rows, axes):
    """Return the gradients of x, weight and bias; `rows` lays x out as what is normalized."""
    h, r = normalized(rows(x), eps)
    u = rows(affine(grad, weight, None, axes))
    n = max(h.shape[-1], 1)
    gx = r * (u - u.sum(-1, keepdim=True) / n - h * ((u * h).sum(-1, keepdim=True) / n))
    others = [axis for axis in range(x.ndim) if axis != x.ndim - axes]
    return {
        "x": gx.reshape(x.shape),
        "weight": None if weight is None else (grad * h.reshape(x.shape)).sum(others),
        "bias": None if bias is None else grad.sum(others),
    }


@layer_norm.register_vjp
def _(grad, x, weight, bias, eps):
    return backward(grad, x, weight, bias, eps, lambda t: t, 1)


@group_norm.register_vjp
def _(grad, x, groups, weight, bias, eps):
    return backward(grad, x, weight, bias, eps, lambda t: as_rows(t, groups), x.ndim - 1)


def main() -> None:
    x = oplib.arange(8.0).reshape((1, 4, 2))
    print("rows:", layer_norm(x, None, None).numpy().round(2).tolist())
    print("groups of two channels:", group_norm(x, 2).numpy().round(2).tolist())


if __name__ == "__main__":
    main()
