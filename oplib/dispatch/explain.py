"""`explain`: the five steps of a concrete call, with the place of every rule; nothing is run.

Imports floors 0 and 1 and the files above. The last file of this package.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from .. import _state
from ..errors import OplibError
from . import ledger, pending, registry
from .bind import bind_arguments, device_argument
from .choice import refusal
from .describe import describe_call
from .facets import KERNEL, Registration
from .keys import (
    AUTOCAST,
    AUTOGRAD,
    AUTOGRAD_KEY,
    BACKENDS,
    INTERPRETER,
    META,
    VIEW,
    device_bit,
    key_set_names,
)
from .lifting import tensor_leaves
from .operator import Operator, hooks
from .overload import resolve_call
from .packet import OperatorPacket
from .plan import backend_of, implementations, resolve, stage_of
from .preference import ranked

__all__ = ["explain"]

AnyOperator: TypeAlias = Operator[..., Any]
_NOTHING: Final = "does not take part"


def explain(op: Any, *args: Any, **kwargs: Any) -> str:
    """Return the steps a call would take: key set, stages, rules with file:line, kernel chosen.

    Nothing of the user's is run. What would fail is said, with the line that fixes it.

    Parameters
    ----------
    op : Operator, packet, or qualified name
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
    if isinstance(op, OperatorPacket) and len(op.overloads) > 1:
        try:
            op = resolve_call(op.qualname, list(op), args, kwargs)
        except OplibError as error:
            return str(error)
    operator = registry.resolve(op)
    lines = [str(operator.schema)]
    try:
        values = bind_arguments(operator, args, kwargs)
        keys = _key_set(operator, values)
    except OplibError as error:
        return "\n".join([*lines, *_numbered("① bind", [f"fails: {error}"])])
    lines.append(f"  called as  {describe_call(operator, values)}")
    bound = [f"key set {key_set_names(keys)}", *_definition_lines(operator)]
    lines += _numbered("① bind", bound)
    lines += _numbered("② autocast", _stage_lines(operator, keys, AUTOCAST, values))
    lines += _numbered("③ autograd", _autograd_lines(operator, keys, values))
    lines += _numbered("④ backend", _backend_lines(operator, keys, values))
    lines += _numbered("⑤ kernel", _kernel_lines(operator, keys, values))
    return "\n".join(lines)


def _key_set(op: AnyOperator, values: list[Any]) -> int:
    """Return the key set of a call, as bind computes it."""
    state = _state.current()
    keys = state.include
    for tensor in tensor_leaves(values):
        keys |= tensor._keys
    keys &= state.mask
    position = device_argument(op.schema)
    if position is not None and values[position] is not None and not keys & (BACKENDS | META):
        keys |= device_bit(values[position].type)
    return keys


def _numbered(title: str, texts: list[str]) -> list[str]:
    first, *rest = [line for text in texts or [_NOTHING] for line in text.splitlines()]
    return [f"{title:<12} {first}", *(f"{'':<12} {text}" for text in rest)]


def _definition_lines(op: AnyOperator) -> list[str]:
    """Return where the operator was defined, what that overrides, and what does not fit it."""
    lines = [f"defined {op.definition_source}; generated text: op.source()"]
    lines += [
        f"overrides the definition at {definition.source}"
        for definition in reversed(ledger.definitions(op.qualname))
        if definition.op is not op
    ]
    lines += [
        f"a kernel for {kernel.key} does not fit and takes no part, {kernel.source}"
        for kernel in pending.detached(op.qualname)
    ]
    return lines


def _stage_lines(op: AnyOperator, keys: int, bit: int, values: list[Any]) -> list[str]:
    if not keys & bit:
        return []
    _, stage = stage_of(bit)
    return stage.describe(op, keys, values)


def _autograd_lines(op: AnyOperator, keys: int, values: list[Any]) -> list[str]:
    lines = _stage_lines(op, keys, VIEW, values)
    kernels = op.entries(AUTOGRAD_KEY)
    if keys & AUTOGRAD and kernels:
        lines.append(f"kernel at Autograd, {kernels[0].source}{_stacked(kernels[0])}")
    elif keys & AUTOGRAD and resolve(op, backend_of(keys)).kind == "implicit":
        lines.append("the composite body runs here; the calls in it are recorded")
    else:
        lines += _stage_lines(op, keys, AUTOGRAD, values)
    lines += _stage_lines(op, keys, INTERPRETER, values)
    if not lines and op.gradient_rule is not None:
        lines = ["no argument requires grad here, nothing is recorded"]
    return lines


def _backend_lines(op: AnyOperator, keys: int, values: list[Any]) -> list[str]:
    _, stage = stage_of(backend_of(keys))
    return stage.describe(op, backend_of(keys), values)


def _kernel_lines(op: AnyOperator, keys: int, values: list[Any]) -> list[str]:
    """Return what runs in the end; predicates are not asked, so they may still decide."""
    backend = backend_of(keys)
    found = [resolve(op, backend).registration] if backend == META else _taking(op, backend, values)
    if not found or found[0] is None:
        return ["none runs"]
    lines = []
    for registration in found:
        assert registration is not None
        name = getattr(registration.function, "__qualname__", repr(registration.function))
        place = f"{registration.facet} registered {registration.source}{_stacked(registration)}"
        asks = registration.facet == KERNEL and registration.payload.supports is not None
        lines.append(f"{name}, {place}{', if its predicate accepts' if asks else ''}")
        if not asks:
            break
    return lines


def _taking(op: AnyOperator, backend: int, values: list[Any]) -> list[Registration | None]:
    """Return the entries that may take a call, in order of preference."""
    entries = [r for _, kind in implementations(op, backend) for r in kind]
    return [r for r in ranked(op, entries) if not refusal(op, r.payload, values, ask=False)]


def _stacked(registration: Registration) -> str:
    """Return what a registration overrides."""
    below = [r for r in registration.op.stack(registration.slot) if r is not registration]
    return f", over {' and '.join(str(r.source) for r in reversed(below))}" if below else ""


hooks.explain = explain
