"""seek, next: a stream of frames whose place is state, in a tensor or in an object.

Projects hide a decoder behind a mutable tensor, so that calls stay in order: here it holds the
number of a stream and the place in it, and `next` and `seek` are declared to write it. The other
form takes the object itself, an opaque type of the schema language. The size of a frame is in the
data. A stream that ends raises an error with a name: StopIteration would end somebody's loop.

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib


class EndOfStreamError(RuntimeError):
    """There is no further frame."""


class Decoder:
    """A stream of frames, `rate` per second, and the place in it."""

    def __init__(self, frames, rate=25.0):
        self.frames, self.rate, self.place = frames, rate, 0

    def seek(self, seconds):
        self.place = int(np.ceil(seconds * self.rate))

    def __next__(self):
        if not 0 <= self.place < len(self.frames):
            raise StopIteration
        self.place += 1
        return self.frames[self.place - 1], (self.place - 1) / self.rate, 1 / self.rate


oplib.register_opaque_type(Decoder, "gallery.Decoder")
lib = oplib.Library("gallery", "FRAGMENT")
RESULTS = "(Tensor frame, Tensor pts, Tensor duration)"
seek = lib.define("seek(Tensor(a!) decoder, float seconds) -> ()").op
following = lib.define(f"next(Tensor(a!) decoder) -> {RESULTS}").op
OBJECT = "seek.object(gallery.Decoder decoder, float seconds) -> ()"
seek_object = lib.define(OBJECT, effects=("decoder",)).op
OBJECT = f"next.object(gallery.Decoder decoder) -> {RESULTS}"
next_object = lib.define(OBJECT, effects=("decoder",)).op
STREAMS: list[Decoder] = []


def opened(decoder):
    """Return the tensor that stands for a stream."""
    STREAMS.append(decoder)
    return oplib.tensor([len(STREAMS) - 1, 0])


def at(state):
    """Return the stream of a tensor, at its place."""
    if state.shape != (2,) or not 0 <= state[0] < len(STREAMS):
        raise ValueError("a decoder is the tensor that `opened` returned")
    stream = STREAMS[state[0]]
    own = Decoder(stream.frames, stream.rate)  # of this call: others may run in other threads
    own.place = int(state[1])
    return own


@next_object.register_kernel("cpu")
def read(decoder):
    try:
        frame, pts, duration = next(decoder)
    except StopIteration:
        raise EndOfStreamError("next: the stream has ended; seek to go back") from None
    return np.array(frame, np.uint8), np.array(pts), np.array(duration)


seek_object.register_kernel("cpu", lambda decoder, seconds: decoder.seek(seconds))


@seek.register_kernel("cpu")
def _(decoder, seconds):
    stream = at(decoder)
    stream.seek(seconds)
    decoder[1] = stream.place


@following.register_kernel("cpu")
def _(decoder):
    results = read(stream := at(decoder))
    decoder[1] = stream.place
    return results


def a_frame(decoder):
    height, width = (oplib.get_ctx().new_dynamic_size() for _ in range(2))
    return oplib.empty((height, width, 3), dtype="uint8"), oplib.empty(()), oplib.empty(())


for op in (following, next_object):
    op.register_fake(a_frame)
for op in (seek, seek_object):
    op.register_fake(lambda decoder, seconds: None)


def main() -> None:
    frames = [np.full((2, 3, 3), i) for i in range(4)]
    state, stream = opened(Decoder(frames, 2.0)), Decoder(frames, 2.0)
    for move, take, decoder in ((seek, following, state), (seek_object, next_object, stream)):
        first = take(decoder)[0]
        move(decoder, 1.5)
        frame, pts, _ = take(decoder)
        seen = first[0, 0, 0].item(), frame[0, 0, 0].item()
        print("frames", seen, "the last at", pts.item(), "s")


if __name__ == "__main__":
    main()
