from __future__ import annotations

import numpy as np
import pytest

import oplib
from tests.gallery.harness import Case, Fails, gallery, normal, tensor

example = gallery("decoder")
Decoder, opened = example.Decoder, example.opened
FRAMES = [np.full((2, 3, 3), i, np.uint8) for i in range(6)]
RESULTS = "(Tensor frame, Tensor pts, Tensor duration)"
STATE = opened(Decoder(FRAMES, 2.0))


def program(state):
    first, *_ = example.following(state)
    example.seek(state, 2.0)
    second, pts, _ = example.following(state)
    return first.cast("int64").sum() * 100 + second.cast("int64").sum(), pts


CASES = [
    Case(
        example.seek,
        "seek(Tensor(a!) decoder, float seconds) -> ()",
        [(STATE, 1.5)],
        opcheck={"samples": [((STATE, 1.5), {})]},
        fails=[Fails((normal(2), 1.0), ValueError, "the tensor that `opened` returned")],
    ),
    Case(
        example.following,
        f"next(Tensor(a!) decoder) -> {RESULTS}",
        [(STATE,)],
        opcheck={"samples": [((STATE,), {})]},
        fails=[
            Fails((tensor([STATE[0].item(), 6]),), example.EndOfStreamError, "the stream has ended")
        ],
        program=(program, (STATE,)),
    ),
    Case(
        example.seek_object,
        "seek.object(gallery.Decoder decoder, float seconds) -> ()",
        [],
        fails=[Fails((3, 1.0), oplib.ArgumentError, "instance of gallery.Decoder, got int 3")],
    ),
    Case(
        example.next_object,
        f"next.object(gallery.Decoder decoder) -> {RESULTS}",
        [],
        fails=[
            Fails(("x",), oplib.ArgumentError, "instance of gallery.Decoder, got str"),
            Fails((Decoder([]),), example.EndOfStreamError, "the stream has ended"),
        ],
    ),
]


def test_both_forms_read_the_same_frames():
    state, stream = opened(Decoder(FRAMES, 2.0)), Decoder(FRAMES, 2.0)
    for seconds in (0.0, 1.5, 0.5):
        example.seek(state, seconds)
        example.seek_object(stream, seconds)
        for one, other in zip(example.following(state), example.next_object(stream), strict=True):
            assert np.array_equal(one, other)


def test_each_call_moves_the_version_of_the_state():
    state = opened(Decoder(FRAMES))
    example.following(state)
    example.seek(state, 0.0)
    example.following(state)
    assert state.inplace_version == 3


def test_the_end_of_a_stream_does_not_end_a_loop():
    stream = Decoder(FRAMES)
    with pytest.raises(example.EndOfStreamError):
        list(example.next_object(stream) for _ in range(7))  # noqa: C400


def test_the_size_of_a_frame_is_unknown():
    with oplib.FakeTensorMode(dynamic=True):
        frame, pts, _ = example.following(oplib.empty((2,), dtype="int64"))
    assert str(frame.shape) == "(u0, u1, 3)"
    assert frame.dtype == np.uint8
    assert pts.shape == ()
