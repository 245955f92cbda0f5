"""Bring an array library of your own: a simulated NPU, its kernels, and everything oplib does.

The accelerator has memory that NumPy cannot see. One call registers it; after that its arrays are
Tensors on device "npu". It has kernels for three built-in operators and one custom operator. All
other operators run on the host, on copies. Gradients, in-place writes, views, fake tensors and
captured graphs need nothing more.

Needs: nothing else.
"""

from __future__ import annotations

import warnings

import numpy as np

import oplib
from oplib import FakeTensorMode, custom_op, register_backend, register_kernel
from oplib.tensor.geometry import Geometry

# -- 1. the device -------------------------------------------------------------------------------
#
# What oplib asks of an array: `shape`, `dtype`, `strides` (in bytes) and `nbytes`. One that lies in
# the memory of another has it as `base`, and says at which byte of that memory it starts: `offset`.


class NpuArray:
    """A block of device memory, or a view of one."""

    launches = 0  # kernels run on the device
    transfers = 0  # copies between host and device

    def __init__(self, memory, geometry, base=None):
        self._memory = memory  # bytes of the device: only its kernels and the two copies look here
        self.dtype, self.shape = geometry.dtype, geometry.shape
        self.strides, self.offset = geometry.strides, geometry.offset
        self.nbytes = self.dtype.itemsize * int(np.prod(self.shape))
        self.base = base

    @classmethod
    def allocate(cls, shape, dtype):
        like = np.empty(shape, dtype)
        memory = bytearray(max(like.nbytes, 1))
        return cls(memory, Geometry(like.dtype, like.shape, like.strides, 0))

    def lanes(self):
        """Return the elements as the arithmetic units of the device see them."""
        return np.ndarray(self.shape, self.dtype, self._memory, self.offset, self.strides)


def to_numpy(array):
    NpuArray.transfers += 1
    return array.lanes().copy()


def from_numpy(values):
    NpuArray.transfers += 1
    array = NpuArray.allocate(values.shape, values.dtype)
    array.lanes()[...] = values
    return array


def assign(array, values):
    NpuArray.transfers += 1
    array.lanes()[...] = values


def view(array, geometry):
    """Return a view: `geometry` counts bytes from the first element of `array`."""
    inside = Geometry(
        geometry.dtype, geometry.shape, geometry.strides, array.offset + geometry.offset
    )
    return NpuArray(array._memory, inside, array)


register_backend(
    "npu",
    array_types=NpuArray,
    dispatch_key="PrivateUse1",
    to_numpy=to_numpy,
    from_numpy=from_numpy,
    view=view,
    assign=assign,
    fallback="host",
)


# -- 2. its kernels ------------------------------------------------------------------------------


def launch(program, *operands):
    """Run a program of the device: NpuArrays and numbers in, a fresh NpuArray out."""
    NpuArray.launches += 1
    ready = [x.lanes() if isinstance(x, NpuArray) else x for x in operands]
    values = np.asarray(program(*ready))
    result = NpuArray.allocate(values.shape, values.dtype)
    result.lanes()[...] = values
    return result


@register_kernel("std::mul", "npu")
def mul_npu(x, y):
    return launch(np.multiply, x, y)


@register_kernel("std::matmul", "npu")
def matmul_npu(x, y):
    return launch(np.matmul, x, y)


@register_kernel("std::add_", "npu")
def add_npu_(x, y):  # in place: writes the memory it is given
    NpuArray.launches += 1
    x.lanes()[...] += y.lanes() if isinstance(y, NpuArray) else y


# -- 3. a custom operator: a kernel for the CPU, one for the NPU, a shape rule, a gradient ---------


@custom_op("npu::swish", mutates_args=())
def swish(x: np.ndarray, beta: float = 1.0) -> np.ndarray:
    """X * sigmoid(beta * x)."""
    return x / (1 + np.exp(-beta * x))


@swish.register_kernel("npu")
def swish_npu(x, beta):
    return launch(lambda lanes: lanes / (1 + np.exp(-beta * lanes)), x)


@swish.register_fake
def _(x, beta):
    return oplib.empty_like(x, dtype=oplib.result_type(x, beta))


@swish.register_vjp
def _(grad, x, beta):
    gate = (x * beta).sigmoid()
    return (grad * gate * (1 + x * beta * (1 - gate)),)


# -- 4. everything else works --------------------------------------------------------------------


def report(title, *lines):
    print(f"{title}:", *lines, sep="\n  ")


def main() -> None:
    values = oplib.arange(6.0).reshape((2, 3)) / 10

    # A tensor goes there and back; the operators in between run on the device.
    x = values.to("npu")
    NpuArray.launches = NpuArray.transfers = 0
    y = swish(x @ x.T)
    assert (NpuArray.launches, NpuArray.transfers) == (2, 0)
    assert np.allclose(y.numpy(), swish(values @ values.T).numpy())
    report("kernels", f"{NpuArray.launches} launches, 0 transfers", f"result on {y.device}")

    # A built-in operator without a kernel for the device runs on the host and says so once.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        total = y.exp().sum()
    report("fallback", *(str(warning.message).split(";")[0] for warning in caught))
    assert np.isclose(total.item(), np.exp(y.numpy()).sum())
    warnings.simplefilter("ignore")

    # Writes and views reach the device's memory.
    z = oplib.zeros((2, 3), device="npu")
    z[0] += x[1]
    z[:, 2].fill_(9.0)
    report("views and writes", *z.tolist())

    # Gradients: rules are operators, so they run where their tensors are.
    def loss(w):
        h = swish(x @ w, beta=2.0)
        h[0] *= 3.0  # recorded through the view
        return h.sum()

    w = oplib.tensor([[1.0], [0.5], [-1.0]]).to("npu").requires_grad_()
    loss(w).backward()
    assert w.grad.device == w.device
    h = 1e-6 * np.eye(3)[:, :, None]
    slopes = [(loss(w.detach() + e).item() - loss(w.detach() - e).item()) / 2e-6 for e in h]
    assert np.allclose(w.grad.numpy().ravel(), slopes, atol=1e-6)
    report("gradient", f"on {w.grad.device}, {np.round(w.grad.numpy().ravel(), 4)}")

    # Fake tensors: the same program on shapes; the device is not touched.
    NpuArray.launches = NpuArray.transfers = 0
    with FakeTensorMode() as mode:
        fake = swish(mode.from_tensor(x) @ mode.from_tensor(w).detach())
    assert (NpuArray.launches, NpuArray.transfers) == (0, 0)
    report("fake", fake)

    # Capture: a program and its gradient as graphs, which run on the device.
    program = oplib.capture(lambda x: swish(x @ x.T, 2.0) * 10, x)
    assert np.array_equal(program(x).numpy(), (swish(x @ x.T, 2.0) * 10).numpy())
    report("captured", *str(program.graph).splitlines())
    gradient = oplib.capture(lambda w: oplib.grad(loss(w), [w])[0], w)
    assert gradient(w).device == w.device
    assert np.allclose(gradient(w).numpy(), w.grad.numpy())

    # What would be wrong is refused.
    try:
        x + values
    except oplib.ArgumentError as error:
        report("refused", *str(error).splitlines())


if __name__ == "__main__":
    main()
