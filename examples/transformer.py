"""Train a small transformer on Python's own documentation, with operators of the gallery.

The text is the docstrings of the standard library, read as bytes. Every block is rms_norm, causal
attention on rotated queries and keys, and a gated MLP; the loss is the fused linear cross entropy,
the optimizer the fused AdamW step: all of them operators of examples/gallery. The loss curve is
saved as a picture. ``--steps N`` trains for N steps, ``--picture FILE`` says where to.

Needs: tqdm, matplotlib.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

import oplib
from oplib import Tensor

sys.path.insert(0, str(Path(__file__).parent / "gallery"))
rms_norm = importlib.import_module("rms_norm").rms_norm
rotary = importlib.import_module("rotary_embedding")
attention = importlib.import_module("attention").attention
swiglu_mlp = importlib.import_module("swiglu_mlp").swiglu_mlp
linear_cross_entropy = importlib.import_module("fused_linear_cross_entropy").loss_of
adamw_step_ = importlib.import_module("adamw_step").adamw_step_

WIDTH, HEADS, HIDDEN, BLOCKS, CONTEXT, BATCH = 64, 4, 128, 2, 64, 16
VOCABULARY = 128  # ASCII
MODULES = (
    "argparse collections contextlib csv datetime functools heapq inspect io json logging math os "
    "pathlib pickle random re shutil socket statistics string subprocess tempfile textwrap "
    "threading time traceback unittest urllib.request uuid weakref zipfile"
).split()


def documentation() -> np.ndarray:
    """Return the docstrings of the standard library as bytes below 128."""
    modules = list(map(importlib.import_module, MODULES))
    things = [thing for module in modules for thing in (module, *vars(module).values())]
    kinds = inspect.ismodule, inspect.isroutine, inspect.isclass
    texts = [inspect.getdoc(thing) or "" for thing in things if any(is_a(thing) for is_a in kinds)]
    data = "\n\n".join(dict.fromkeys(texts)).encode("ascii", "ignore")
    return np.frombuffer(data, np.uint8).astype(np.int64)


def parameters(rng: np.random.Generator) -> dict[str, Tensor]:
    """Return the parameters by name, in single precision."""

    def matrix(*shape: int) -> Tensor:
        values = rng.normal(size=shape) / np.sqrt(shape[0])
        return oplib.tensor(values.astype(np.float32), requires_grad=True)

    def ones() -> Tensor:
        return oplib.ones(WIDTH, dtype="float32", requires_grad=True)

    made = {"embedding": matrix(VOCABULARY, WIDTH), "head": matrix(VOCABULARY, WIDTH)}
    made["norm"] = ones()
    for i in range(BLOCKS):
        made |= {f"{i}.norm1": ones(), f"{i}.norm2": ones()}
        made |= {f"{i}.{name}": matrix(WIDTH, WIDTH) for name in ("q", "k", "v", "o")}
        made |= {f"{i}.gate": matrix(WIDTH, HIDDEN), f"{i}.up": matrix(WIDTH, HIDDEN)}
        made[f"{i}.down"] = matrix(HIDDEN, WIDTH)
    return made


TABLE = rotary.cache(CONTEXT, WIDTH // HEADS).cast("float32")
POSITIONS = oplib.from_numpy(np.tile(np.arange(CONTEXT), BATCH))


def heads(x: Tensor) -> Tensor:
    """Return ``[batch, heads, context, size]`` of rows."""
    return x.reshape((BATCH, CONTEXT, HEADS, WIDTH // HEADS)).swapaxes(1, 2)


def hidden(p: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Return what the last block leaves for every token."""
    x = oplib.embedding(p["embedding"], tokens).reshape((BATCH * CONTEXT, WIDTH))
    for i in range(BLOCKS):
        h = rms_norm(x, p[f"{i}.norm1"])
        q, k, v = (h @ p[f"{i}.{name}"] for name in "qkv")
        q, k = rotary.rotated(POSITIONS, q, k, WIDTH // HEADS, TABLE, True)
        seen, _ = attention(heads(q), heads(k), heads(v), causal=True)
        x = x + seen.swapaxes(1, 2).reshape((BATCH * CONTEXT, WIDTH)) @ p[f"{i}.o"]
        h = rms_norm(x, p[f"{i}.norm2"])
        x = x + swiglu_mlp(h, p[f"{i}.gate"], p[f"{i}.up"], p[f"{i}.down"])
    return rms_norm(x, p["norm"])


def train(steps: int) -> list[float]:
    """Train for a number of steps and return the losses, in bits per byte."""
    rng = np.random.default_rng(0)
    data, named = documentation(), parameters(rng)
    values = list(named.values())
    means, squares = ([oplib.zeros(v.shape, dtype="float32") for v in values] for _ in range(2))
    losses = []
    with tqdm(range(1, steps + 1), unit="step") as bar:
        for step in bar:
            starts = rng.integers(0, len(data) - CONTEXT - 1, BATCH)
            rows = data[starts[:, None] + np.arange(CONTEXT + 1)]
            tokens = oplib.from_numpy(rows[:, :-1])
            target = oplib.from_numpy(rows[:, 1:].reshape(-1))
            loss = linear_cross_entropy(hidden(named, tokens), named["head"], target)
            grads = oplib.grad(loss, values)
            rate = 3e-3 * min(1.0, step / 20) * (1 - step / (steps + 1))
            with oplib.no_grad():
                adamw_step_(values, grads, means, squares, None, step, rate, 0.9, 0.99, 1e-8, 0.01)
            losses.append(loss.item() / np.log(2))
            bar.set_postfix(bits=f"{losses[-1]:.3f}")
    return losses


def draw(losses: list[float], file: Path) -> None:
    """Save the loss curve."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(losses, linewidth=1)
    axes.set(xlabel="step", ylabel="bits per byte", title="A transformer of gallery operators")
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--picture", type=Path, default=Path("transformer_loss.svg"))
    options = parser.parse_args()
    losses = train(options.steps)
    last = np.mean(losses[-20:])
    print(f"bits per byte: {losses[0]:.2f} at first, {last:.2f} at last")
    draw(losses, options.picture)
    print(f"the loss curve is in {options.picture}")
    assert last < losses[0]


if __name__ == "__main__":
    main()
