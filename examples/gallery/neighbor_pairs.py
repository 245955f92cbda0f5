"""neighbor_pairs: all pairs of points closer than a cutoff, with forces that can be trained on.

Pairs i > j of one batch in lexicographic order, up to a fixed number; what is unused is -1 and
nan, `num_pairs` counts all that were found. With ``d = x_i - x_j`` and r its length the gradient of
a pair is ``t = g_d + g_r d / r`` (0 where r = 0), +t to i and -t to j. Forces are gradients, so a
loss on them needs the second derivative: the rule computes d and r again from the positions.

Needs: nothing else.
"""

from __future__ import annotations

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
neighbor_pairs = lib.define(
    "neighbor_pairs(Tensor positions, Tensor batch, float cutoff, int max_num_pairs, "
    "bool check_errors)"
    " -> (Tensor pairs, Tensor deltas, Tensor distances, Tensor num_pairs)"
).op


def check(positions, batch, cutoff, max_num_pairs):
    if cutoff <= 0:
        raise ValueError(f"neighbor_pairs: cutoff is positive, got {cutoff}")
    if max_num_pairs < 0:
        raise ValueError(f"neighbor_pairs: max_num_pairs is not negative, got {max_num_pairs}")
    if positions.ndim != 2 or positions.shape[1] != 3 or positions.dtype.kind != "f":
        raise ValueError(f"neighbor_pairs: positions is float [N, 3], got {list(positions.shape)}")
    if batch.shape != positions.shape[:1] or batch.dtype.kind not in "iu":
        raise ValueError(f"neighbor_pairs: batch has an integer per point, got {list(batch.shape)}")


@neighbor_pairs.register_kernel("cpu")
def _(positions, batch, cutoff, max_num_pairs, check_errors):
    check(positions, batch, cutoff, max_num_pairs)
    i, j = np.tril_indices(len(positions), -1)
    delta = positions[i] - positions[j]
    distance = np.sqrt((delta * delta).sum(-1))
    near = np.flatnonzero((distance < cutoff) & (batch[i] == batch[j]))
    count, near = len(near), near[:max_num_pairs]
    if check_errors and count > max_num_pairs:
        raise OverflowError(f"neighbor_pairs: {count} pairs, room for {max_num_pairs}")
    pairs = np.full((2, max_num_pairs), -1)
    deltas = np.full((max_num_pairs, 3), np.nan, positions.dtype)
    distances = np.full(max_num_pairs, np.nan, positions.dtype)
    used = slice(len(near))
    pairs[:, used], deltas[used], distances[used] = (i[near], j[near]), delta[near], distance[near]
    return pairs, deltas, distances, np.array(count)


@neighbor_pairs.register_fake
def _(positions, batch, cutoff, max_num_pairs, check_errors):
    check(positions, batch, cutoff, max_num_pairs)
    m, dtype = max_num_pairs, positions.dtype
    return (
        oplib.empty((2, m), dtype="int64"),
        oplib.empty((m, 3), dtype=dtype),
        oplib.empty((m,), dtype=dtype),
        oplib.empty((), dtype="int64"),
    )


def gradient(grad_deltas, grad_distances, positions, pairs):
    used = (pairs[0] >= 0)[:, None]
    grad_deltas = oplib.where(used, grad_deltas, 0.0)  # what is unused may send anything, nan too
    grad_distances = oplib.where(used, grad_distances[:, None], 0.0)
    i, j = pairs.maximum(0)
    delta = positions[i] - positions[j]
    square = (delta * delta).sum(-1, keepdim=True)
    r = oplib.where(square > 0, square, 1.0).sqrt()
    t = grad_deltas + grad_distances * delta / r
    room = oplib.zeros(positions.shape, dtype=positions.dtype)
    return oplib.index_add(oplib.index_add(room, 0, i, t), 0, j, -t)


neighbor_pairs.register_vjp(positions=gradient)


def main() -> None:
    x = oplib.tensor([[0.0, 0, 0], [1.0, 0, 0], [0, 3.0, 0]], requires_grad=True)
    pairs, _, distances, count = neighbor_pairs(x, oplib.zeros(3, dtype="int64"), 2.0, 4, True)
    print(count.item(), "pair:", pairs[:, 0].tolist(), "at distance", distances[0].item())
    energy = oplib.where(pairs[0] >= 0, (distances - 1.5).square(), 0.0).sum()
    (force,) = oplib.grad(energy, x, create_graph=True)
    print("forces push them apart:", (-force).detach().numpy()[:2, 0])
    force.square().sum().backward()
    print("and a loss on forces has a gradient:", x.grad.numpy()[:2, 0])


if __name__ == "__main__":
    main()
