"""The message when no kernel serves a call: what was asked, what there is, what to add.

Imports floors 0 to 4. Read next: `host.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

from ..dispatch.bind import device_argument
from ..dispatch.choice import rejections
from ..dispatch.describe import describe_call
from ..dispatch.facets import FAKE, KERNEL, Registration
from ..dispatch.keys import DEVICE_BITS, key_name
from ..dispatch.lifting import tensor_leaves
from ..dispatch.operator import Operator, Plan
from ..errors import DispatchError

__all__ = ["missing_kernel", "missing_text"]

AnyOperator: TypeAlias = Operator[..., Any]
_LISTED = 3


def missing_kernel(op: AnyOperator, backend: int, rejected: Sequence[Registration]) -> Plan:
    """Return the plan of calls that no kernel serves: it raises."""

    def missing(*args: Any) -> NoReturn:
        raise DispatchError(missing_text(op, backend, args, rejected))

    return missing


def missing_text(
    op: AnyOperator, backend: int, args: Sequence[Any], rejected: Sequence[Registration] = ()
) -> str:
    """Return the whole message, at most eight lines."""
    reasons = rejections(op, rejected, args)
    problem = "no kernel takes this call on" if reasons else "has no kernel for"
    device = _device(op, backend, args)
    lines = [
        f"{op.qualname}{':' if reasons else ''} {problem} {key_name(backend)}",
        f"  called as  {describe_call(op, args)}",
    ]
    if not tensor_leaves(list(args)):
        lines.append(f"  device     {device}, {_why(op, args)}")
    if reasons:
        lines += [f"  rejected   {reason}" for reason in reasons[:_LISTED]]
        if len(reasons) > _LISTED:
            lines.append(f"             and {len(reasons) - _LISTED} more")
    else:
        have = [
            f"{r.key or 'Meta'}  {r.source}" for r in op.registrations if r.facet in (KERNEL, FAKE)
        ]
        lines.append(f"  registered {' · '.join(have) or 'nothing'}")
        lines.append(f"  defined    {op.definition_source}")
    lines.append(f'  add one:   @oplib.register_kernel("{op.qualname}", "{device}")')
    if backend != DEVICE_BITS["cpu"]:
        lines[-1] += f'   (or host fallback: register_backend("{device}", fallback="host"))'
    return "\n".join(lines)


def _device(op: AnyOperator, backend: int, args: Sequence[Any]) -> str:
    """Return the device type of a call."""
    for tensor in tensor_leaves(list(args)):
        if tensor._keys & backend:
            return str(tensor.device.type)
    return next((name for name, bit in DEVICE_BITS.items() if bit == backend), key_name(backend))


def _why(op: AnyOperator, args: Sequence[Any]) -> str:
    """Return why a call without tensors is on its device."""
    position = device_argument(op.schema)
    if position is not None and args[position] is not None:
        return "chosen by its argument `device`"
    return "the default: the call has no tensor and names no device"
