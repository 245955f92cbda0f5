"""Remove noise from photographs with a network of spectral convolutions.

The pictures are the two photographs that ship with scikit-learn, in grey and cut into tiles. A
layer mixes channels along rows and along columns with `spectral_conv` of examples/gallery, whose
weights are complex, and adds what a pointwise layer passes by; the network predicts the noise. Loss
curve and a tile before and after are saved as a picture. ``--steps N``, ``--picture FILE``.

Needs: scikit-learn, tqdm, matplotlib.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_sample_images
from tqdm import tqdm

import oplib
from oplib import Tensor

sys.path.insert(0, str(Path(__file__).parent / "gallery"))
spectral_conv = importlib.import_module("spectral_conv").spectral_conv
adamw_step_ = importlib.import_module("adamw_step").adamw_step_

TILE, CHANNELS, MODES, LAYERS, BATCH, NOISE = 32, 8, 17, 3, 8, 0.15


def tiles() -> np.ndarray:
    """Return square tiles of the photographs, grey levels from 0 to 1, in a fixed random order."""
    found = []
    for image in load_sample_images().images:
        grey = (image.astype(np.float32) / 255).mean(-1)
        rows, columns = (n // TILE for n in grey.shape)
        cut = grey[: rows * TILE, : columns * TILE].reshape(rows, TILE, columns, TILE)
        found.append(cut.swapaxes(1, 2).reshape(-1, TILE, TILE))
    return np.random.default_rng(0).permutation(np.concatenate(found))


def parameters(rng: np.random.Generator) -> list[Tensor]:
    """Return the weights of all layers, in single precision."""

    def leaf(values: np.ndarray) -> Tensor:
        return oplib.tensor(values, requires_grad=True)

    def pointwise(given: int, made: int) -> Tensor:
        return leaf((rng.normal(size=(given, made)) / np.sqrt(given)).astype(np.float32))

    def spectrum() -> Tensor:
        """Return a complex weight as its two parts, which the optimizer steps as real numbers."""
        values = rng.normal(size=(CHANNELS, CHANNELS, MODES, 2)) / (2 * CHANNELS)
        return leaf(values.astype(np.float32))

    layers = [(spectrum(), spectrum(), pointwise(CHANNELS, CHANNELS)) for _ in range(LAYERS)]
    last = leaf(np.zeros((CHANNELS, 1), np.float32))
    return [pointwise(1, CHANNELS), *(w for layer in layers for w in layer), last]


def along(x: Tensor, axis: int, weight: Tensor) -> Tensor:
    """Convolve ``[B, channels, rows, columns]`` along an axis."""
    x = x.movedim(axis, -1).swapaxes(1, 2)
    lines = x.reshape((x.shape[0] * TILE, CHANNELS, TILE))
    y = spectral_conv(lines, weight.view_as_complex()).reshape(x.shape)
    return y.swapaxes(1, 2).movedim(-1, axis)


def mixed(x: Tensor, weight: Tensor) -> Tensor:
    """Mix the channels of every pixel."""
    return oplib.einsum("bchw,cd->bdhw", [x, weight])


def cleaned(p: list[Tensor], noisy: Tensor) -> Tensor:
    """Return tiles ``[B, 1, rows, columns]`` without the noise that the network sees."""
    first, *layers, last = p
    x = mixed(noisy, first)
    for i in range(LAYERS):
        rows, columns, passed = layers[3 * i : 3 * i + 3]
        x = x + (along(x, 2, rows) + along(x, 3, columns) + mixed(x, passed)).tanh()
    return noisy - mixed(x, last)


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio in dB."""
    return float(-10 * np.log10(np.mean((a - b) ** 2)))


def noisy(clean: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (clean + NOISE * rng.normal(size=clean.shape)).astype(np.float32)


def train(steps: int, clean: np.ndarray) -> tuple[list[Tensor], list[float]]:
    """Train for a number of steps; return the weights and the losses."""
    rng = np.random.default_rng(1)
    p = parameters(rng)
    means, squares = ([oplib.zeros(w.shape, dtype="float32") for w in p] for _ in range(2))
    losses = []
    with tqdm(range(1, steps + 1), unit="step") as bar:
        for step in bar:
            batch = clean[rng.integers(0, len(clean), BATCH)][:, None]
            given, wanted = oplib.from_numpy(noisy(batch, rng)), oplib.from_numpy(batch)
            loss = (cleaned(p, given) - wanted).square().mean()
            grads = oplib.grad(loss, p)
            rate = 5e-3 * min(1.0, step / 10) * (1 - step / (steps + 1))
            with oplib.no_grad():
                adamw_step_(p, grads, means, squares, None, step, rate, 0.9, 0.99, 1e-8, 0.0)
            losses.append(loss.item())
            bar.set_postfix(loss=f"{losses[-1]:.5f}")
    return p, losses


def draw(losses: list[float], shown: dict[str, np.ndarray], file: Path) -> None:
    """Save the loss curve and a tile before and after."""
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes = figure.subplots(1, 1 + len(shown))
    axes[0].semilogy(losses, linewidth=1)
    axes[0].set(xlabel="step", title="mean square error")
    for axis, (title, tile) in zip(axes[1:], shown.items(), strict=True):
        axis.imshow(tile, cmap="gray", vmin=0, vmax=1)
        axis.set(title=title, xticks=[], yticks=[])
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--picture", type=Path, default=Path("denoise.png"))
    options = parser.parse_args()
    found = tiles()
    clean, unseen = found[:-32], found[-32:, None]
    p, losses = train(options.steps, clean)
    given = noisy(unseen, np.random.default_rng(2))
    with oplib.no_grad():
        result = cleaned(p, oplib.from_numpy(given)).numpy()
    before, after = psnr(unseen, given), psnr(unseen, result)
    print(f"tiles it never saw: {before:.1f} dB with noise, {after:.1f} dB without")
    draw(
        losses,
        {"noisy": given[0, 0], "cleaned": result[0, 0], "clean": unseen[0, 0]},
        options.picture,
    )
    print(f"loss and tiles are in {options.picture}")
    assert after > before


if __name__ == "__main__":
    main()
