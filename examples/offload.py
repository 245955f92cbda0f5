"""Keep the saved tensors of a deep network on disk, or compute them again: memory for time.

Between forward and backward a network keeps every value its gradient rules named. Here each large
one is written to a file by a pack hook, and read back by the unpack hook when backward gets there;
the file goes when the node that needed it is released. `recompute` is the other way: it keeps the
inputs of a block only and runs the block once more. All three give the same gradients.

Needs: nothing else.
"""

from __future__ import annotations

import gc
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import oplib
from oplib import Tensor
from oplib.autograd import recompute, saved_tensors_hooks

BATCH, WIDTH, BLOCKS = 512, 64, 12

# -- 1. the hooks
# ---------------  What `pack` returns may be any object; it is dropped when its node is released,
# and the file goes with it.


class File:
    """A saved tensor in a file of its own, deleted with this object."""

    written = 0

    def __init__(self, folder: Path, array: np.ndarray) -> None:
        File.written += 1
        self.path = folder / f"{File.written}.npy"
        np.save(self.path, array)

    def __del__(self) -> None:
        self.path.unlink(missing_ok=True)


def on_disk(folder: Path, at_least: int) -> Any:
    """Return a context in which saved tensors of `at_least` bytes are kept in files."""

    def pack(tensor: Tensor) -> Tensor | File:
        is_large = tensor.size * tensor.dtype.itemsize >= at_least
        return File(folder, tensor.numpy()) if is_large else tensor

    def unpack(packed: Tensor | File) -> Tensor:
        return oplib.from_numpy(np.load(packed.path)) if isinstance(packed, File) else packed

    return saved_tensors_hooks(pack, unpack)


# -- 2. the network
# -----------------  Blocks of x + tanh(x W) V. The weights are saved too; they are small, so they
# stay where they are.


def block(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return x + (x @ w).tanh() @ v


def loss_of(x: Tensor, weights: list[tuple[Tensor, Tensor]], call: Callable[..., Tensor]) -> Tensor:
    for w, v in weights:
        x = call(block, x, w, v)
    return (x * x).mean()


def direct(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    return function(*args)


# -- 3. the three ways, measured
# ------------------------------  Peak memory is what tracemalloc counts, NumPy's arrays included.


def measured(title: str, context: Any, call: Callable[..., Tensor]) -> list[np.ndarray]:
    """Run forward and backward in one way, print its peak and its time, return the gradients."""
    rng = np.random.default_rng(0)
    scale = WIDTH**-0.5
    weights = [
        tuple(oplib.tensor(rng.normal(size=(WIDTH, WIDTH)) * scale) for _ in "wv")
        for _ in range(BLOCKS)
    ]
    leaves = [leaf.requires_grad_() for pair in weights for leaf in pair]
    x = oplib.tensor(rng.normal(size=(BATCH, WIDTH)))
    gc.collect()
    tracemalloc.start()
    start = time.perf_counter()
    with context:
        loss = loss_of(x, weights, call)
    held, _ = tracemalloc.get_traced_memory()
    loss.backward()
    seconds = time.perf_counter() - start
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{title:12} held {held / 1e6:5.1f} MB   peak {peak / 1e6:5.1f} MB   {seconds:.3f} s")
    return [leaf.grad.numpy() for leaf in leaves]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = measured("in memory", nullcontext(), direct)
        offloaded = measured("on disk", on_disk(folder, at_least=100_000), direct)
        print(f"{File.written} tensors went to disk, {len(list(folder.iterdir()))} are left there")
        assert not list(folder.iterdir())
        again = measured("recomputed", nullcontext(), recompute)
    for a, b, c in zip(kept, offloaded, again, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    print("the gradients are equal")
