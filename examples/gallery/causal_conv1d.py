"""causal_conv1d: every channel convolved with its own short filter, looking back only.

With x ``[B, D, L]`` extended by K-1 columns in front, zeros or `initial_states`, to xp:
``z[b,d,t] = bias[d] + sum_k weight[d,k] xp[b,d,t+k]``; "silu" or "swish" gives ``z σ(z)``. The last
K-1 columns of xp are the states a next call continues from; the form that updates keeps them in
place. (As in Gu and Dao, "Mamba", arXiv:2312.00752.)

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
conv = lib.define(
    "causal_conv1d(Tensor x, Tensor weight, Tensor? bias=None, Tensor? initial_states=None, "
    "str? activation=None, bool return_final_states=False) -> (Tensor y, Tensor? final_states)"
).op
update = lib.define(
    "causal_conv1d_update(Tensor x, Tensor(a!) conv_state, Tensor weight, Tensor? bias=None, "
    "str? activation=None) -> Tensor"
).op


def check(x, weight, bias, states, activation):
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"causal_conv1d: activation is 'silu' or 'swish', got {activation!r}")
    if x.ndim != 3 or weight.ndim != 2 or weight.shape[0] != x.shape[1] or not weight.shape[1]:
        shapes = f"{list(x.shape)}, {list(weight.shape)}"
        raise ValueError(f"causal_conv1d: x is [B, D, L], weight [D, K]; got {shapes}")
    wanted = {"bias": (bias, x.shape[1:2]), "states": (states, (*x.shape[:2], weight.shape[1] - 1))}
    for name, (value, shape) in wanted.items():
        if value is not None and value.shape != shape:
            raise ValueError(f"causal_conv1d: {name} is {list(shape)}, got {list(value.shape)}")
    given = [value for value in (x, weight, bias, states) if value is not None]
    if x.dtype.kind != "f" or any(value.dtype != x.dtype for value in given):
        raise ValueError("causal_conv1d: all tensors hold floats of one dtype")


def computed(x, weight, bias, states, activation):
    """Return y and the extended x."""
    width, length = weight.shape[1], x.shape[2]
    if states is None:
        states = np.zeros((*x.shape[:2], width - 1), x.dtype)
    xp = np.concatenate([states, x], -1)
    z = np.zeros(x.shape, np.promote_types(x.dtype, np.float32))
    for k in range(width):
        z += weight[:, k, None].astype(z.dtype) * xp[..., k : k + length]
    z = z if bias is None else z + bias[:, None]
    with np.errstate(over="ignore"):
        y = z if activation is None else z / (1 + np.exp(-z))
    return y.astype(x.dtype, "C"), xp


@conv.register_kernel("cpu")
def _(x, weight, bias, initial_states, activation, return_final_states):
    check(x, weight, bias, initial_states, activation)
    y, xp = computed(x, weight, bias, initial_states, activation)
    return y, xp[..., x.shape[2] :].copy() if return_final_states else None


@update.register_kernel("cpu")
def _(x, conv_state, weight, bias, activation):
    check(x, weight, bias, conv_state, activation)
    y, xp = computed(x, weight, bias, conv_state, activation)
    conv_state[...] = xp[..., x.shape[2] :]
    return y


@conv.register_fake
def _(x, weight, bias, initial_states, activation, return_final_states):
    check(x, weight, bias, initial_states, activation)
    states = (*x.shape[:2], weight.shape[1] - 1)
    final = oplib.empty(states, dtype=x.dtype) if return_final_states else None
    return oplib.empty(x.shape, dtype=x.dtype), final


@update.register_fake
def _(x, conv_state, weight, bias, activation):
    check(x, weight, bias, conv_state, activation)
    return oplib.empty(x.shape, dtype=x.dtype)


@conv.register_vjp
def _(grad_y, grad_final_states, x, weight, bias, initial_states, activation):
    width, length = weight.shape[1], x.shape[2]
    states = oplib.zeros((*x.shape[:2], width - 1), dtype=x.dtype)
    xp = oplib.concat([states if initial_states is None else initial_states, x], -1)
    gz = grad_y
    if activation is not None:
        z = conv(x, weight, bias, initial_states)[0]
        s = z.sigmoid()
        gz = grad_y * s * (1 + z * (1 - s))
    gxp = sum(oplib.pad(gz * weight[:, k : k + 1], [k, width - 1 - k]) for k in range(width))
    if grad_final_states is not None:
        gxp = gxp + oplib.pad(grad_final_states, [length, 0])
    taps = [(gz * xp.narrow(-1, k, length)).sum([0, 2]) for k in range(width)]
    return {
        "x": gxp[..., width - 1 :],
        "weight": oplib.stack(taps, 1),
        "bias": None if bias is None else gz.sum([0, 2]),
        "initial_states": None if initial_states is None else gxp[..., : width - 1],
    }


def main() -> None:
    x, weight = oplib.arange(1.0, 6.0).reshape((1, 1, 5)), oplib.tensor([[0.5, 0.5, 0.0]])
    print("means of two steps back:", conv(x, weight)[0].flatten().tolist())
    state = oplib.zeros((1, 1, 2))
    steps = [update(x[..., t : t + 1], state, weight).item() for t in range(5)]
    print("step by step the same:  ", steps, "and the state:", state.flatten().tolist())


if __name__ == "__main__":
    main()
