"""The rows in torch: custom_op, a Library kernel, autograd.Function and its own operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..cases import LENGTH, SIZE, WRITES
from ..measure import Call
from .rows import Rows, repeated
from .torch_training import torch_training

__all__ = ["torch_rows"]


def torch_rows() -> Rows:
    """Return the rows in torch: custom_op, a Library kernel, autograd.Function and its own ops."""
    import torch

    torch.set_num_threads(1)

    def tensor(requires_grad: bool = False) -> Any:
        return torch.ones(SIZE, dtype=torch.float64, requires_grad=requires_grad)

    custom, library, in_place, function = _torch_operators(torch)
    x, y, z, g = tensor(), tensor(), torch.zeros_like(tensor()), tensor(requires_grad=True)
    seed = tensor()

    def chain(op: Callable[[Any, Any], Any], both: bool = False) -> Call:
        a, b = tensor(requires_grad=True), tensor(requires_grad=both)

        def run() -> None:
            repeated(op, a, b).backward(seed)
            a.grad = b.grad = None

        return run

    def apply_backward() -> None:
        function.apply(g, y).backward(seed)
        g.grad = None

    return {
        "call": {"custom_op": lambda: custom(x, y), "Library": lambda: library(x, y)},
        "number": {"native": lambda: x * 2.0},
        "recording": {"custom_op": lambda: custom(g, y), "native": lambda: g * y},
        "chain_one": {"custom_op": chain(custom)},
        "chain_both": {"custom_op": chain(custom, both=True)},
        "chain_built_in": {"native": chain(torch.mul)},
        "pylayer": {"Function": lambda: function.apply(g, y)},
        "pylayer_backward": {"Function": apply_backward},
        "in_place": {"custom_op": lambda: in_place(x, z)},
        "in_place_built_in": {"native": lambda: x.add_(z)},
        "view": {"native": lambda: x[1:]},
        "view_recorded": {"native": lambda: g[1:]},
        **_torch_writes(tensor),
        **_torch_transforms(torch, custom, x, y),
        **torch_training(),
    }


def _torch_operators(torch: Any) -> tuple[Any, Any, Any, Any]:
    """Define the product and the in-place sum in torch's four ways."""
    tensor = torch.Tensor

    def product(x: Any, y: Any) -> Any:
        return x * y

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def gradients(ctx: Any, grad: Any) -> tuple[Any, Any]:
        x, y = ctx.saved_tensors
        needs_x, needs_y = ctx.needs_input_grad
        return grad * y if needs_x else None, grad * x if needs_y else None

    def add(x: Any, y: Any) -> None:
        x.add_(y)

    product.__annotations__ = {"x": tensor, "y": tensor, "return": tensor}
    add.__annotations__ = {"x": tensor, "y": tensor, "return": None}
    custom = torch.library.custom_op("oplib_bench::mul", product, mutates_args=())
    custom.register_fake(lambda x, y: torch.empty_like(x))
    custom.register_autograd(gradients, setup_context=save)
    in_place = torch.library.custom_op("oplib_bench::add_", add, mutates_args=("x",))

    torch.library.define("oplib_bench::library_mul", "(Tensor x, Tensor y) -> Tensor")
    torch.library.impl("oplib_bench::library_mul", "CPU", product)

    class Product(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return x * y

        backward = staticmethod(gradients)

    return custom, torch.ops.oplib_bench.library_mul.default, in_place, Product


def _torch_writes(tensor: Callable[..., Any]) -> Rows:
    """Return the rows that write into a recorded result."""
    x, y = tensor(requires_grad=True), tensor()
    z, short = y * 0, y[1:] * 0

    def in_place() -> None:
        value = x * y
        for _ in range(WRITES):
            value.add_(z)

    def through_view() -> None:
        part = (x * y)[1:]
        for _ in range(WRITES):
            part.add_(short)

    return {
        "in_place_recorded": {"native": in_place},
        "view_write": {"native": through_view},
    }


def _torch_transforms(torch: Any, custom: Any, x: Any, y: Any) -> Rows:
    """Return the rows on fake tensors, in graphs and under a mode."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    class PassOn(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    def calls_in_mode() -> None:
        with PassOn():
            for _ in range(LENGTH):
                custom(x, y)

    with FakeTensorMode():
        fake_x, fake_y = torch.empty(SIZE), torch.empty(SIZE)

    def pure(a: Any, b: Any) -> Any:
        return repeated(custom, a, b)

    return {
        "mode": {"custom_op": calls_in_mode},
        "fake": {"custom_op": lambda: custom(fake_x, fake_y)},
        "capture": {
            "make_fx": lambda: make_fx(torch.func.functionalize(pure), tracing_mode="fake")(x, y)
        },
    }
