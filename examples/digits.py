"""Train a digit classifier on custom operators, then capture its forward pass as a graph.

The network reads the 1,797 handwritten digits (8 x 8 pixels) that ship with scikit-learn. Three of
its pieces are operators defined here: `rms_norm` with a named gradient rule, `SquaredReLU` as a
PyLayer, and `adamw_`, a fused optimizer step that writes into lists of parameters.

Needs: scikit-learn, tqdm.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import oplib
from oplib import Library, PyLayer, Tensor, custom_op, impl

# -- 1. an operator from a function, with a shape rule and a gradient rule
# ---------------------------  y = x / rms(x) * weight with rms(x) = sqrt(mean(x²) + eps), over the
# last axis (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019).


def check(x, weight):
    """Refuse what neither the kernel nor the shape rule is for."""
    if x.dtype.kind != "f" or x.dtype != weight.dtype or weight.shape != x.shape[-1:]:
        raise ValueError("rms_norm: x and weight are floats, weight is as long as a row of x")


@custom_op("digits::rms_norm", mutates_args=())
def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    check(x, weight)
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return x * scale * weight


@rms_norm.register_fake
def _(x, weight, eps=1e-6):
    check(x, weight)
    return oplib.empty_like(x)


def rms_norm_grad_x(grad, x, weight, eps):
    scale = ((x * x).mean(-1, keepdim=True) + eps).rsqrt()
    weighted = grad * weight
    along = (weighted * x).mean(-1, keepdim=True)
    return (weighted - x * along * scale * scale) * scale


def rms_norm_grad_weight(grad, x, eps):
    return grad * x * ((x * x).mean(-1, keepdim=True) + eps).rsqrt()  # summed to weight's shape


rms_norm.register_vjp(x=rms_norm_grad_x, weight=rms_norm_grad_weight)


# -- 2. a pair of forward and backward -----------------------------------------------------------


class SquaredReLU(PyLayer):
    """relu(x)², from So et al., "Primer: Searching for Efficient Transformers", 2021."""

    @staticmethod
    def forward(ctx, x):
        y = oplib.relu(x)
        ctx.save_for_backward(y)
        return y * y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensor()
        return grad * 2 * y


# -- 3. an operator that writes, from a schema ---------------------------------------------------
#
# One AdamW step (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) over lists
# of parameters and their two moments, which it updates in place.

lib = Library("digits", "FRAGMENT")
lib.define(
    "adamw_(Tensor(a!)[] params, Tensor(b!)[] means, Tensor(c!)[] squares, Tensor[] grads, *,"
    " int step, float lr, float beta1=0.9, float beta2=0.99, float decay=0.01) -> ()"
)


@impl(lib, "adamw_", "CPU")
def adamw_cpu(params, means, squares, grads, *, step, lr, beta1, beta2, decay):
    if not len(params) == len(means) == len(squares) == len(grads):
        raise ValueError("adamw_: params, means, squares and grads are lists of one length")
    for param, mean, square, grad in zip(params, means, squares, grads, strict=True):
        mean += (1 - beta1) * (grad - mean)
        square += (1 - beta2) * (grad * grad - square)
        update = mean / (1 - beta1**step) / (np.sqrt(square / (1 - beta2**step)) + 1e-8)
        param -= lr * (update + decay * param)


# -- the network ---------------------------------------------------------------------------------

WIDTH, CLASSES, BATCH, EPOCHS = 96, 10, 64, 12


def initial_parameters(rng: np.random.Generator) -> list[Tensor]:
    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.standard_normal((rows, columns)) / np.sqrt(rows)

    arrays = [
        *(matrix(64, WIDTH), np.ones(WIDTH)),
        *(matrix(WIDTH, WIDTH), np.ones(WIDTH)),
        *(matrix(WIDTH, CLASSES), np.zeros(CLASSES)),
    ]
    return [oplib.tensor(array, dtype="float32", requires_grad=True) for array in arrays]


def forward(params: list[Tensor], x: Tensor) -> Tensor:
    """Return log-probabilities, shape (batch, 10), of images of shape (batch, 64)."""
    first, norm1, second, norm2, last, bias = params
    h = SquaredReLU.apply(rms_norm(x @ first, norm1))
    h = h + SquaredReLU.apply(rms_norm(h @ second, norm2))
    return (h @ last + bias).log_softmax(-1)


def cross_entropy(log_probabilities: Tensor, labels: np.ndarray) -> Tensor:
    rows = np.arange(len(labels))
    return -log_probabilities[rows, labels].mean()


def accuracy(params: list[Tensor], x: Tensor, labels: np.ndarray) -> float:
    with oplib.no_grad():
        return float((forward(params, x).numpy().argmax(-1) == labels).mean())


def main() -> None:
    started = time.perf_counter()
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=0.25, random_state=0, stratify=labels
    )

    rng = np.random.default_rng(0)
    params = initial_parameters(rng)
    means = [oplib.zeros_like(param) for param in params]
    squares = [oplib.zeros_like(param) for param in params]
    steps_per_epoch = -(-len(x_train) // BATCH)

    step = 0
    with tqdm(total=EPOCHS * steps_per_epoch, unit="step") as bar:
        for epoch in range(1, EPOCHS + 1):
            losses = []
            for rows in np.array_split(rng.permutation(len(x_train)), steps_per_epoch):
                loss = cross_entropy(forward(params, oplib.tensor(x_train[rows])), y_train[rows])
                loss.backward()
                step += 1
                with oplib.no_grad():
                    grads = [param.grad for param in params]
                    oplib.ops.digits.adamw_(params, means, squares, grads, step=step, lr=4e-3)
                for param in params:
                    param.clear_grad()
                losses.append(loss.item())
                bar.update()
            bar.write(f"epoch {epoch:2}  loss {np.mean(losses):.4f}")

    test = oplib.tensor(x_test)
    score = accuracy(params, test, y_test)
    print(f"\ntest accuracy {score:.2%} after {time.perf_counter() - started:.1f} s")
    assert score > 0.95

    # Capture runs the function once on fake tensors: shapes only, no data is read.
    program = oplib.capture(forward, params, test)
    print(f"\n{program.graph}\n")
    difference = np.abs(program(params, test).numpy() - forward(params, test).numpy()).max()
    print(f"graph and eager call differ by at most {difference}")
    assert difference == 0


if __name__ == "__main__":
    main()
