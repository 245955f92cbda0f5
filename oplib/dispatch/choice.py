"""Choosing among kernel entries: by dtype, predicate, priority, and what the context prefers.

An operator whose only entry takes every call never comes here: a choice is made only where there is
more than one entry, a condition, or a context with ``op.prefer`` or ``op.set_kernel_enabled``.

Imports floors 0 and 1, `preference.py`, `lifting.py` and above. Read next: `plan.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from .._text import function_site
from .._tree import leaves, tree_map
from ..dtypes import short_dtype
from .facets import KernelEntry, Registration
from .keys import META, PREFER, WEAK
from .lifting import tensor_leaves
from .operator import Operator, Plan, hooks
from .preference import is_enabled, ranked

__all__ = ["Candidate", "choose", "refusal", "rejections", "unwrap"]

AnyOperator: TypeAlias = Operator[..., Any]
Candidate: TypeAlias = tuple[Registration, Callable[[], Plan]]
"""An entry, and what builds the plan that runs it."""


def choose(
    op: AnyOperator, candidates: Sequence[Candidate], keys: int, otherwise: Callable[[], Plan]
) -> Plan:
    """Return the plan that runs the first candidate whose conditions accept the call.

    `otherwise` builds the plan for calls that none accepts. Plans are built when first needed.
    """
    if not keys & PREFER:
        if not candidates:
            return otherwise()
        registration, build = candidates[0]
        if not registration.payload.is_conditional or keys & META:
            return build()
    builders = dict(candidates)
    built: dict[Registration | None, Plan] = {}

    def chosen(*args: Any) -> Any:
        entries = list(builders)
        for registration in ranked(op, entries) if keys & PREFER else entries:
            if keys & META or not refusal(op, registration.payload, args):
                break
        else:
            registration = None
        plan = built.get(registration)
        if plan is None:
            build = otherwise if registration is None else builders[registration]
            plan = built[registration] = build()
        return plan(*args)

    return chosen


def rejections(
    op: AnyOperator, registrations: Sequence[Registration], args: Sequence[Any]
) -> list[str]:
    """Return why each entry does not run a call: one line per entry that does not."""
    lines = []
    for registration in registrations:
        on = is_enabled(op, registration)
        reason = refusal(op, registration.payload, args) if on else "it is switched off here"
        if reason:
            lines.append(f"{registration.key}  {registration.source}  {reason}")
    return lines


def refusal(op: AnyOperator, entry: KernelEntry, args: Sequence[Any], ask: bool = True) -> str:
    """Return why an entry refuses a call, or an empty string; `ask` its predicate too."""
    for argument, value in zip(op.schema.arguments, args, strict=True):
        allowed = _allowed_dtypes(entry, argument.name)
        for tensor in tensor_leaves([value]) if allowed is not None else ():
            if not tensor._keys & WEAK and tensor.dtype not in allowed:
                listed = ", ".join(sorted(map(short_dtype, allowed)))
                return f"`{argument.name}` is {short_dtype(tensor.dtype)}, it takes {listed}"
    if ask and entry.supports is not None and not _supports(op, entry, args):
        return f"its predicate, {function_site(entry.supports)}, says no"
    return ""


def _allowed_dtypes(entry: KernelEntry, argument: str) -> Any:
    """Return the dtypes an entry takes for an argument, or None for all."""
    dtypes = entry.dtypes
    return dtypes.get(argument) if isinstance(dtypes, Mapping) else dtypes


def _supports(op: AnyOperator, entry: KernelEntry, args: Sequence[Any]) -> bool:
    """Ask the predicate of an entry, which gets what the kernel would get."""
    received = args if entry.convention == "tensor" else [unwrap(value) for value in args]
    count = len(op.schema.positional)
    names = [argument.name for argument in op.schema.keyword_only]
    assert entry.supports is not None
    try:
        keywords = dict(zip(names, received[count:], strict=True))
        return bool(entry.supports(*received[:count], **keywords))
    except BaseException as error:
        site = function_site(entry.supports)
        error.add_note(f"in the predicate of the {entry.key} kernel of {op.qualname}, {site}")
        raise


def unwrap(value: Any) -> Any:
    """Return an argument with arrays (or numbers, for weak ones) in place of its tensors."""
    tensor = hooks.tensor
    if type(value) is tensor:
        return value.array.item() if value._keys & WEAK else value.array
    if not any(type(leaf) is tensor for leaf in leaves(value)):
        return value
    return tree_map(lambda leaf: unwrap(leaf) if type(leaf) is tensor else leaf, value)
