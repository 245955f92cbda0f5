"""`explain`: the five steps of a concrete call, with the place of every rule; nothing is run.

Imports floors 0 and 1 and the files above. The last file of this package.
"""

from __future__ import annotations

from typing import Any, Final

from .. import _state
from ..errors import OplibError
from .bind import bind_arguments, describe_call, tensor_leaves
from .facets import KERNEL
from .keys import (
    AUTOCAST,
    AUTOGRAD,
    AUTOGRAD_KEY,
    INTERPRETER,
    VIEW,
    key_set_names,
)
from .operator import Operator, OperatorPacket, hooks
from .plan import backend_of, resolve, stage_of

__all__ = ["explain"]

_NOTHING: Final = "does not take part"


def explain(op: Any, *args: Any, **kwargs: Any) -> str:
    """Return the steps a call would take: key set, stages, rules with file:line, kernel chosen.

    Nothing of the user's is run. What would fail is said, with the line that fixes it.

    Parameters
    ----------
    op : Operator, packet of one overload, or qualified name
    *args, **kwargs
        The arguments of the call.

    Examples
    --------
    >>> import oplib
    >>> print(oplib.explain("std::exp", oplib.ones(2)))  # doctest: +ELLIPSIS
    std::exp(Tensor x) -> Tensor
      called as  exp(x: f64[2])
    ...
    """
    operator = _as_operator(op)
    lines = [str(operator.schema)]
    try:
        values = bind_arguments(operator, args, kwargs)
    except OplibError as error:
        return "\n".join([*lines, *_numbered("① bind", [f"fails: {error}"])])
    lines.append(f"  called as  {describe_call(operator, values)}")
    state = _state.current()
    keys = state.include
    for tensor in tensor_leaves(values):
        keys |= tensor._keys
    keys &= state.mask
    lines += _numbered("① bind", [f"key set {key_set_names(keys)}", *_generated(operator)])
    lines += _numbered("② autocast", _stage_lines(operator, keys, AUTOCAST, values))
    lines += _numbered("③ autograd", _autograd_lines(operator, keys, values))
    lines += _numbered("④ backend", _backend_lines(operator, keys, values))
    lines += _numbered("⑤ kernel", _kernel_lines(operator, keys))
    return "\n".join(lines)


def _as_operator(op: Any) -> Operator[..., Any]:
    if isinstance(op, str):
        return hooks.lookup(op)
    return op.single if isinstance(op, OperatorPacket) else op


def _numbered(title: str, texts: list[str]) -> list[str]:
    first, *rest = [line for text in texts or [_NOTHING] for line in text.splitlines()]
    return [f"{title:<12} {first}", *(f"{'':<12} {text}" for text in rest)]


def _generated(op: Operator[..., Any]) -> list[str]:
    return [f"defined {op.definition_source}; generated text: op.source()"]


def _stage_lines(op: Operator[..., Any], keys: int, bit: int, values: list[Any]) -> list[str]:
    if not keys & bit:
        return []
    _, stage = stage_of(bit)
    return stage.describe(op, keys, values)


def _autograd_lines(op: Operator[..., Any], keys: int, values: list[Any]) -> list[str]:
    lines = _stage_lines(op, keys, VIEW, values)
    kernel = op.top(KERNEL, AUTOGRAD_KEY)
    if keys & AUTOGRAD and kernel is not None:
        lines.append(f"kernel at Autograd, {kernel.source}")
    elif keys & AUTOGRAD and resolve(op, backend_of(keys)).kind == "implicit":
        lines.append("the composite body runs here; the calls in it are recorded")
    else:
        lines += _stage_lines(op, keys, AUTOGRAD, values)
    lines += _stage_lines(op, keys, INTERPRETER, values)
    if not lines and op.gradient_rule is not None:
        lines = ["no argument requires grad here, nothing is recorded"]
    return lines


def _backend_lines(op: Operator[..., Any], keys: int, values: list[Any]) -> list[str]:
    _, stage = stage_of(backend_of(keys))
    return stage.describe(op, backend_of(keys), values)


def _kernel_lines(op: Operator[..., Any], keys: int) -> list[str]:
    found = resolve(op, backend_of(keys)).registration
    if found is None:
        return ["none runs"]
    name = getattr(found.function, "__qualname__", repr(found.function))
    return [f"{name}, {found.facet} registered {found.source}"]


hooks.explain = explain
