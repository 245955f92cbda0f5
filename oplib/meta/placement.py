"""Which device and mode a call without data belongs to; a call that belongs to two is refused.

Imports floors 0 to 4, `context.py`, `mode.py`. Read next: `results.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .._text import caller_site
from ..dispatch.keys import META, WEAK
from ..dispatch.lifting import tensor_leaves
from ..dispatch.operator import Operator
from ..dispatch.plan import device_error
from ..dtypes import CPU as CPU_DEVICE
from ..dtypes import META as META_DEVICE
from ..dtypes import Device
from ..errors import FakeTensorError
from ..tensor.tensor import Tensor
from .context import current_mode
from .mode import FakeTensorMode, admit

__all__ = ["Place", "place_of"]


class Place(NamedTuple):
    """Where the results of a call are, and the arguments as they are there."""

    device: Device
    mode: FakeTensorMode | None
    args: Sequence[Any]


def place_of(op: Operator[..., Any], args: Sequence[Any], asked: Device | None) -> Place:
    """Return the place of a call; `asked` is the device that its ``device`` argument names.

    Raises
    ------
    FakeTensorError
        For fakes of two modes, meta tensors beside fakes, and real tensors that the mode does not
        allow.
    ArgumentError
        For tensors of several devices.
    """
    tensors = [t for t in tensor_leaves(args) if not t._keys & WEAK]
    modes = list({id(t.array.mode): t.array.mode for t in tensors if t._keys & META}.values())
    if len(modes) > 1:
        raise _two_modes(op, args, modes)
    mode: FakeTensorMode | None = modes[0] if modes else current_mode()
    if not all(t._keys & META for t in tensors):
        args = admit(op, args, mode)
        tensors = [t for t in tensor_leaves(args) if not t._keys & WEAK]
    device = asked or _common_device(op, args, tensors)
    if device is None:
        device = META_DEVICE if mode is None else CPU_DEVICE
    return Place(device, None if device.type == "meta" else mode, args)


def _common_device(
    op: Operator[..., Any], args: Sequence[Any], tensors: Sequence[Tensor]
) -> Device | None:
    """Return the device of the tensors; a 0-d tensor on the CPU yields in elementwise operators."""
    found: list[Device] = list(dict.fromkeys(tensor.device for tensor in tensors))
    if len(found) < 2 or "mixed_devices" in op.tags:
        return found[0] if found else None
    if "pointwise" in op.tags:
        written = op.schema.mutated_arguments
        kept: set[Device] = {
            tensor.device
            for argument, value in zip(op.schema.arguments, args, strict=True)
            for tensor in tensor_leaves([value])
            if not tensor._keys & WEAK
            and (tensor.shape or tensor.device != CPU_DEVICE or argument.name in written)
        }
        if len(kept) == 1:
            return kept.pop()
    raise device_error(op, args)


# ---------------------------------------------------------------------- complaints


def _two_modes(op: Operator[..., Any], args: Sequence[Any], modes: list[Any]) -> FakeTensorError:
    lines = []
    for argument, value in zip(op.schema.arguments, args, strict=True):
        for tensor in tensor_leaves([value]):
            if tensor._keys & META:
                whose = "no mode: a meta tensor" if tensor.array.mode is None else tensor.array.mode
                lines.append(f"  {argument.name}: {tensor.describe()} of {whose}")
    if None in modes:
        what, remedy = "a meta tensor beside a fake", "convert it: mode.from_tensor(x, device=...)"
    else:
        what, remedy = "fakes of two modes", "convert all tensors with one mode"
    listed = "\n".join(lines)
    return FakeTensorError(
        f"{op.qualname}: {what} in one call\n{listed}\n  called  {caller_site()}\n  {remedy}"
    )
