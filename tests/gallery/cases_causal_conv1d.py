from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib.testing import assert_close
from tests.gallery.harness import Case, Fails, gallery, normal

example = gallery("causal_conv1d")
conv, update = example.conv, example.update
X, W, B, S = normal(2, 3, 5), normal(3, 4), normal(3), normal(2, 3, 3)


def with_states(x, weight, bias, states):
    y, final = conv(x, weight, bias, states, "silu", True)
    return y, final


def stream(x, state):
    state = state * 1
    parts = [update(x[..., t : t + 2], state, W, B, "silu") for t in (0, 2)]
    return oplib.concat(parts, -1), state


CASES = [
    Case(
        conv,
        "causal_conv1d(Tensor x, Tensor weight, Tensor? bias=None, Tensor? initial_states=None, "
        "str? activation=None, bool return_final_states=False)"
        " -> (Tensor y, Tensor? final_states)",
        [
            *((X, W), (X, W, B, S, "silu", True), (normal(0, 3, 2), W, B), (normal(2, 3, 0), W)),
            *((X, normal(3, 1)), (normal(1, 3, 2), W, None, normal(1, 3, 3), None, True)),
        ],
        gradients=[
            (with_states, (normal(2, 2, 3), normal(2, 3), normal(2), normal(2, 2, 2))),
            (lambda x, w: conv(x, w)[0], (normal(1, 2, 4), normal(2, 3))),
        ],
        fails=[
            Fails((X, normal(2, 4)), ValueError, "weight .D, K."),
            Fails((X, W, normal(4)), ValueError, "bias is"),
            Fails((X, W, B, normal(2, 3, 2)), ValueError, "states is"),
            Fails((X, W, B, S, "relu"), ValueError, "got 'relu'"),
        ],
        program=(with_states, (X, W, B, S)),
        half=True,
    ),
    Case(
        update,
        "causal_conv1d_update(Tensor x, Tensor(a!) conv_state, Tensor weight, Tensor? bias=None, "
        "str? activation=None) -> Tensor",
        [(normal(2, 3, 1), S, W), (normal(2, 3, 2), S, W, B, "swish")],
        fails=[
            Fails((normal(2, 3, 1), normal(2, 3, 2), W), ValueError, "states is"),
            Fails((normal(2, 3, 1), S, W, B, "tanh"), ValueError, "got 'tanh'"),
        ],
        program=(stream, (normal(2, 3, 4), S)),
        half=True,
    ),
]


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_a_stream_in_chunks_gives_what_one_call_gives(chunk):
    whole, final = conv(X, W, B, S, "silu", True)
    state = S.clone()
    parts = [update(X[..., t : t + chunk], state, W, B, "silu") for t in range(0, 5, chunk)]
    assert_close(oplib.concat(parts, -1), whole)
    assert_close(state, final)


def test_a_result_looks_back_only():
    changed = X.clone()
    changed[..., 3:] = 0.0
    assert np.array_equal(conv(X, W)[0][..., :3], conv(changed, W)[0][..., :3])


def test_final_states_are_a_copy():
    _, final = conv(X, W, return_final_states=True)
    assert not np.shares_memory(final.numpy(), X.numpy())
