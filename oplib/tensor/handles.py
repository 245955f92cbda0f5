"""Methods that change where a handle lies: `transpose_`, `resize_`, `set_` and their kin.

They write nothing: the handle becomes another view of its memory, all other handles stay, and
versions do not move. No operator can do that; each method is a view operator, and `become`.

Imports floors 0 to 2, `tensor.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from .. import _state
from ..dispatch import registry
from ..dispatch.keys import AUTOGRAD
from ..errors import AliasError, ArgumentError, AutogradError
from .geometry import Geometry, contiguous_strides, extent, numel
from .tensor import Tensor

__all__ = ["MOVES", "become", "install_moves"]

MOVES: Final = ("as_strided", "movedim", "permute", "squeeze", "swapaxes", "transpose", "unsqueeze")
"""View operators with a form, named ``name_``, that changes the handle instead."""


def become(tensor: Tensor, other: Tensor) -> None:
    """Make a handle the handle that `other` is: its memory, geometry and history."""
    old = tensor._storage
    if old is not other._storage and old.strangers:
        old.strangers = [ref for ref in old.strangers if ref() is not tensor]
    tensor.array = other.array
    tensor._keys = other._keys
    tensor.autograd_meta = other.autograd_meta
    tensor._storage = other._storage
    tensor._view = other._view


def _moved(method: str, tensor: Tensor, view: Callable[[], Tensor]) -> Tensor:
    """Give a handle the place of a view that is taken now, whatever the grad mode is.

    Raises
    ------
    AutogradError
        If ``.grad`` of the tensor has the shape it is about to lose.
    AliasError
        In the function of an operator: its arguments are the caller's.
    """
    state = _state.current()
    meta = tensor.autograd_meta
    if tensor.requires_grad and (
        tensor.is_leaf or (meta is not None and meta.retained is not None)
    ):
        raise AutogradError(
            f"{method} changes the shape of a tensor, and .grad of this one, "
            f"{tensor.describe()}, keeps the shape it has\n  use the view: "
            f"y = x.{method.removesuffix('_')}(...)"
        )
    if state.handled:
        raise AliasError(
            f"{method} was called in the function of an operator, on {tensor.describe()}; an "
            "operator cannot change where a tensor of its caller lies\n  use the view: "
            f"y = x.{method.removesuffix('_')}(...)"
        )
    with _state.enter(state if state.user & AUTOGRAD else state.replace(user=-1)):
        become(tensor, view())
    return tensor


def _move(name: str) -> Callable[..., Tensor]:
    """Return the method that does to a handle what a view operator does."""

    def method(self: Tensor, *args: Any, **keywords: Any) -> Tensor:
        return _moved(f"{name}_", self, lambda: getattr(Tensor, name)(self, *args, **keywords))

    method.__name__ = method.__qualname__ = f"{name}_"
    method.__doc__ = f"Make this handle what ``{name}`` returns; other handles keep their place."
    return method


def _resize(self: Tensor, *size: Any) -> Tensor:
    """Make this handle contiguous with another size, from its first element on.

    Raises
    ------
    AliasError
        If it would need more bytes than the handle has: no memory is allocated.
    """
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], list | tuple) else size
    if any(isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0 for n in shape):
        raise ArgumentError(f"resize_ takes sizes, ints from 0 on; got {shape}")
    here = Geometry(self.dtype, self.shape, self.strides)
    low, high = extent(here)
    needed = numel(shape) * self.itemsize
    if low < 0 or needed > high:
        raise AliasError(
            f"resize_ of a tensor {self.describe()} to {shape} needs {needed} bytes from its first "
            f"element on, and it has {high}\n  make a new tensor: x.new_zeros(...)"
        )
    strides = contiguous_strides(shape, 1)
    view = registry.packet("std", "strided_view")
    return _moved("resize_", self, lambda: view(self, list(shape), list(strides), 0))


def _set(self: Tensor, source: Tensor) -> Tensor:
    """Make this handle another one on the memory of `source`, with its geometry and history.

    Views of the old memory keep it.

    Raises
    ------
    ArgumentError
        If `source` is no tensor of the same dtype and device.
    """
    if not isinstance(source, Tensor):
        raise ArgumentError(f"set_ takes a Tensor, got {source!r}")
    if (source.dtype, source.device) != (self.dtype, self.device):
        raise ArgumentError(
            f"set_: a handle {self.describe()} cannot be one on {source.describe()}"
        )
    return _moved("set_", self, lambda: registry.packet("std", "alias")(source))


def install_moves() -> None:
    """Put these methods on `Tensor`."""
    for name in MOVES:
        setattr(Tensor, f"{name}_", _move(name))
    for function in (_resize, _set):
        function.__name__ = function.__name__.removeprefix("_") + "_"
        setattr(Tensor, function.__name__, function)
