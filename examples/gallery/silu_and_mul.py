"""silu_and_mul, gelu_and_mul: the gate of a gated linear unit.

The last axis holds two halves a and b; the result is ``f(a) b``, with ``silu(a) = a σ(a)`` or
``gelu(a) = a Φ(a)``, Φ the normal distribution (or its approximation by tanh). The gradients are
``g b f'(a)`` and ``g f(a)``, side by side.
(Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202.)

Needs: nothing else.
"""

from __future__ import annotations

import math

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
SQRT_2_PI = math.sqrt(2 * math.pi)


@oplib.custom_op("gallery::normal_cdf", mutates_args=(), fake=oplib.shapes.like("x"))
def normal_cdf(x: np.ndarray) -> np.ndarray:
    """Φ(x), of floats."""
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x.flat], x.dtype).reshape(x.shape)


normal_cdf.register_vjp(x=oplib.derivative(lambda x: (x * x / -2).exp() / SQRT_2_PI))


def silu(a):
    with np.errstate(over="ignore"):
        return a / (1 + np.exp(-a))


def gelu(a, approximate):
    """Return ``a Φ(a)``, of an array or a Tensor."""
    if approximate == "none":
        return a * normal_cdf(a)
    inner = (a + a * a * a * 0.044715) * math.sqrt(2 / math.pi)
    return a * 0.5 * ((inner.tanh() if isinstance(a, oplib.Tensor) else np.tanh(inner)) + 1)


def check(input, approximate="none"):
    if input.ndim == 0 or input.shape[-1] % 2 or input.dtype.kind != "f":
        raise ValueError(
            f"the last axis holds two halves of floats, got {input.dtype}{list(input.shape)}"
        )
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu_and_mul: approximate is 'none' or 'tanh', got {approximate!r}")


def define(name, activation, option):
    """Define ``name`` (writes out) and ``name.functional``."""
    into = lib.define(f"{name}(Tensor! out, Tensor input{option}) -> ()").op
    functional = lib.define(f"{name}.functional(Tensor input{option}) -> Tensor").op

    def check_out(out, input, *how):
        check(input, *how)
        if out.shape != (*input.shape[:-1], input.shape[-1] // 2) or out.dtype != input.dtype:
            raise ValueError(f"{name}: out is half as wide as input, and of its dtype")

    @functional.register_kernel("cpu")
    def computed(input, *how):
        check(input, *how)
        a, b = np.split(input.astype(np.promote_types(input.dtype, np.float32)), 2, axis=-1)
        return (activation(a, *how) * b).astype(input.dtype, "C")

    @into.register_kernel("cpu")
    def _(out, input, *how):
        check_out(out, input, *how)
        if np.shares_memory(out, input):
            raise ValueError(f"{name}: out overlaps input, which is read while out is written")
        out[...] = computed(input, *how)

    @functional.register_fake
    def _(input, *how):
        check(input, *how)
        return oplib.empty((*input.shape[:-1], input.shape[-1] // 2), dtype=input.dtype)

    into.register_fake(check_out)
    return into, functional


silu_and_mul, silu_functional = define("silu_and_mul", silu, "")
gelu_and_mul, gelu_functional = define("gelu_and_mul", gelu, ', str approximate="none"')


@silu_functional.register_vjp
def _(grad, input):
    a, b = input.chunk(2, -1)
    s = a.sigmoid()
    return oplib.ops.std.concat([grad * b * s * (1 + a * (1 - s)), grad * a * s], -1)


@gelu_functional.register_vjp
def _(grad, input, approximate):
    a, b = input.chunk(2, -1)
    if approximate == "none":
        slope = normal_cdf(a) + a * (a * a / -2).exp() / SQRT_2_PI
    else:
        c = math.sqrt(2 / math.pi)
        t = ((a + a * a * a * 0.044715) * c).tanh()
        slope = 0.5 * (1 + t) + 0.5 * a * (1 - t * t) * c * (1 + 3 * 0.044715 * a * a)
    return oplib.ops.std.concat([grad * b * slope, grad * gelu(a, approximate)], -1)


def main() -> None:
    gate, value = [-1.0, 0.0, 1.0], [10.0, 10.0, 10.0]
    out, input = oplib.empty(3), oplib.tensor(gate + value)
    silu_and_mul(out, input)
    print("silu of the gate times the value:", out.numpy().round(3))
    print("with gelu:                       ", gelu_functional(input).numpy().round(3))


if __name__ == "__main__":
    main()
