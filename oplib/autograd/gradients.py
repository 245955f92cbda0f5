"""Gradient values: validated, summed, copied, and filled in where none arrived.

Note [Who may see a gradient]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A gradient that a user can see is never changed later, and a later write by the user never changes
another gradient. So sums are out of place, except into a sum nobody has seen; what ends in
``.grad`` or in a result of `oplib.grad` is held by nobody else: a copy, unless reference counts say
that there is no other holder; and every gradient that waits at a node has version 0: one that was
written to before is copied when it is delivered, one that is written to while it waits makes the
run raise.

Arithmetic goes through `prims`, so gradients work on every backend and under every interpreter; raw
NumPy is the short way for plain arrays.

Imports floors 0 to 4. Read next: `engine.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from .. import _state
from ..dispatch.keys import AUTOGRAD, BACKENDS, CPU, INTERPRETER, META, VIEW, WEAK
from ..errors import AutogradError
from ..prims import add, cast, clone, new_full, real, sum_to
from ..shapes import broadcast_shapes
from ..tensor.grad_meta import AccumulationNode, GradNode
from ..tensor.tensor import Tensor, alias_of, tensor_from_result, weak_scalar

__all__ = [
    "PASSED_ON",
    "PLACE",
    "UNSHARED",
    "Node",
    "Spec",
    "add_gradients",
    "add_into",
    "check_device",
    "edge_name",
    "fit",
    "is_only_owner",
    "owned_copy",
    "read_only",
    "scaled",
    "zeros_for",
]

Node: TypeAlias = GradNode | AccumulationNode

PLACE: Final = BACKENDS | META | INTERPRETER
"""The keys that say where a tensor lives."""

_ndarray: Final = np.ndarray


class Spec(NamedTuple):
    """What a gradient must be like; a dtype of None accepts any."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None


def add_gradients(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of two gradients of one tensor, as a new tensor."""
    if a._keys == CPU == b._keys:
        array = a.array + b.array
        return tensor_from_result(array if type(array) is _ndarray else np.asarray(array))
    return add(a, b)


def add_into(total: Tensor, gradient: Tensor) -> bool:
    """Add a gradient into a sum that nobody else holds, if that is possible; return whether."""
    a, b = total.array, gradient.array
    if total._keys == CPU == gradient._keys and a.dtype is b.dtype and a.shape == b.shape:
        np.add(a, b, out=a)
        return True
    return False


def _reference_counts() -> tuple[int, int, int]:
    tensor = weak_scalar(0.0)

    def passed_on(value: Tensor) -> int:
        return getrefcount(value)

    array = tensor.array
    return getrefcount(tensor), passed_on(tensor), getrefcount(array)


_COUNTS: Final = _reference_counts()
UNSHARED: Final = _COUNTS[0]
"""What `sys.getrefcount` says of an object that only one local variable holds."""
PASSED_ON: Final = _COUNTS[1]
"""The same for one that a caller's variable holds too."""
_SCALED: Final = PASSED_ON + 1
"""The same for one that was passed on twice."""
_IN_ATTRIBUTE: Final = _COUNTS[2]
"""The same for one that an attribute holds too."""


def is_only_owner(gradient: Tensor) -> bool:
    """Return whether a tensor is the only holder of a dense, writable NumPy array.

    Views, exported buffers and saved values hold a reference to the array.
    """
    if gradient._keys != CPU or gradient.autograd_meta is not None:
        return False
    array = gradient.array
    return getrefcount(array) == _IN_ATTRIBUTE and array.base is None and array.flags.carray


def owned_copy(gradient: Tensor) -> Tensor:
    """Return a writable, dense copy that nobody else holds; with history if that is recorded."""
    if gradient._keys == CPU:
        return tensor_from_result(gradient.array.copy())
    return clone(gradient)


def scaled(gradient: Tensor, factor: Tensor, last: bool) -> Tensor:
    """Return ``gradient * conj(factor)``, in the memory of the gradient if only its run sees it.

    Only the backward that a plan generated may call this, because it counts references: the
    engine's, the backward's, and the one of the parameter. `last` says that no rule reads the
    gradient afterwards. Large arrays take a quarter less time where nothing is allocated.
    """
    state = _state.current()
    if (
        last
        and gradient._keys == CPU
        and factor._keys & ~(AUTOGRAD & ~state.mask) in (CPU, WEAK)
        and not state.include
        and getrefcount(gradient) == _SCALED
        and is_only_owner(gradient)
    ):
        array, by = gradient.array, factor.array
        same = array.dtype is by.dtype and array.shape == by.shape
        if array.dtype.kind == "f" and (same or (factor._keys & WEAK and by.dtype.kind in "fi")):
            np.multiply(array, by if same else by.item(), out=array)
            return gradient
    return gradient * (factor.conj() if factor.array.dtype.kind == "c" else factor)


def read_only(gradient: Tensor) -> Tensor:
    """Return a handle on a gradient through which NumPy cannot write, where it is an array."""
    if gradient._keys & PLACE != CPU:
        return gradient
    array = gradient.array.view()
    array.flags.writeable = False
    handle = alias_of(gradient, array)
    handle.autograd_meta = gradient.autograd_meta
    handle._keys |= gradient._keys & AUTOGRAD
    return handle


def zeros_for(node: GradNode, position: int, like: Tensor) -> Tensor:
    """Return the zero gradient of an output that received none; `like` says where it lives.

    Of a NumPy array it is one read-only element, broadcast.
    """
    shape, dtype = node.output_spec(position)
    if like._keys & ~(AUTOGRAD | VIEW) == CPU:
        return tensor_from_result(np.broadcast_to(np.zeros((), dtype), shape))
    return new_full(like, list(shape), 0, dtype=dtype)


def check_device(gradient: Tensor, node: AccumulationNode) -> None:
    """Raise for a gradient that lives elsewhere than its leaf, or on a deeper level."""
    level = gradient.array.frame.level if gradient._keys & INTERPRETER else 0
    if level <= node.level and node.level:
        return  # a constant of the run is a gradient too
    if level > node.level:
        raise AutogradError(
            "a gradient of a functionalized or captured run reached a tensor from outside of it; "
            "pass that tensor to the run as an argument"
        )
    raise AutogradError(
        f"the gradient of a leaf of shape {list(node.shapes)} lives on another device than the "
        f"leaf: {gradient.describe()}\n  return a gradient on the device of the argument"
    )


# ---------------------------------------------------------------------- validation


def fit(gradient: Any, expected: Any, node: Node, where: str) -> Tensor:
    """Return a gradient fit for the tensor it belongs to.

    A gradient whose shape is a broadcast of the tensor's is summed to it; its dtype is cast, the
    real part taken for a real tensor.

    Parameters
    ----------
    gradient : Tensor, or a number for a 0-d tensor
    expected : object with ``shape`` and ``dtype``
    node : GradNode
        Whose rule returned it, for the message.
    where : str
        Which argument or output it belongs to, for the message.

    Raises
    ------
    AutogradError
        If it cannot be made fit.
    """
    shape, dtype = expected.shape, expected.dtype
    fitted = gradient if type(gradient) is Tensor else _from_number(gradient, shape, node, where)
    if fitted.shape != shape:
        fitted = _summed(fitted, shape, node, where)
    if dtype is None or fitted.dtype == dtype:
        return fitted
    if fitted.dtype.kind == "c" and dtype.kind != "c":
        fitted = real(fitted)
    return fitted if fitted.dtype == dtype else cast(fitted, dtype)


def _from_number(gradient: Any, shape: tuple[int, ...], node: Node, where: str) -> Tensor:
    if shape or not isinstance(gradient, int | float | complex | np.generic):
        raise AutogradError(
            f"{node.name()}: the gradient of {where} must be a Tensor, "
            f"got {type(gradient).__name__}"
        )
    return tensor_from_result(np.asarray(gradient))


def _summed(gradient: Tensor, shape: tuple[int, ...], node: Node, where: str) -> Tensor:
    try:
        summable = broadcast_shapes(shape, gradient.shape) == gradient.shape
    except ValueError:
        summable = False
    if not summable:
        raise AutogradError(
            f"{node.name()}: the gradient of {where} has the wrong shape\n"
            f"  expected  {list(shape)}\n  got       {list(gradient.shape)}\n"
            "  (a shape that the expected one broadcasts to would be summed)"
        )
    return sum_to(gradient, shape)


def edge_name(node: GradNode, saved: tuple[Any, ...], index: int) -> str:
    """Return what users call the `index`-th edge of a node: ``"argument `x`"``."""
    if node.kind.edge_name is not None:
        return node.kind.edge_name(node, saved, index)
    schema = getattr(node.kind.op, "schema", None)
    names: Sequence[str] = getattr(schema, "differentiable_arguments", ())
    layout = node.inputs
    if layout is None:
        return f"argument `{names[index]}`" if index < len(names) else f"input {index}"
    for slot, length in enumerate(layout):
        count = 1 if length is None else length
        if index < count:
            name = f"argument `{names[slot]}`" if slot < len(names) else f"input {slot}"
            return name if length is None else f"{name}, element {index}"
        index -= count
    return f"input {index}"
