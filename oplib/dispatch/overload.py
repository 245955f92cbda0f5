"""Overloads: which operator of a packet a call means.

Every candidate is bound; the arguments given are ranked by how near they are to the declared types
(`ranks.py`). A candidate wins if it is nowhere farther than another and somewhere nearer; among
equals the one that uses fewer defaults. The order of definition plays no part. The choice is
remembered by the types of the arguments.

Imports floors 0 and 1, `bind.py` and above. Read next: `explain.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from .._record import record
from ..errors import ArgumentError
from .bind import bind_arguments
from .describe import describe_value
from .operator import Operator, Plan, hooks
from .packet import OperatorPacket
from .ranks import rank

__all__ = ["resolve_call"]

AnyOperator: TypeAlias = Operator[..., Any]

_REMEMBERED: Final = 1000
_LONG: Final = 8


@record
class _Candidate:
    """An overload that binds: the rank of each argument given, and how many defaults it uses."""

    op: AnyOperator
    ranks: tuple[int, ...]
    defaults: int

    def beats(self, other: _Candidate) -> bool:
        """Return whether this is nowhere farther than `other` and somewhere nearer."""
        pairs = list(zip(self.ranks, other.ranks, strict=True))
        if any(mine > theirs for mine, theirs in pairs):
            return False
        return self.ranks != other.ranks or self.defaults < other.defaults


def _packet_call(packet: OperatorPacket) -> Plan:
    """Return the call of a packet with several overloads as it is now."""
    overloads = list(packet)
    known: dict[Hashable, Plan] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        key = _types_of(args), _types_of(kwargs)
        bind = known.get(key) if None not in key else None
        if bind is None:
            bind = resolve_call(packet.qualname, overloads, args, kwargs).bind()
            if None not in key and len(known) < _REMEMBERED:
                known[key] = bind
        return bind(*args, **kwargs)

    return call


def _types_of(value: Any) -> Hashable:
    """Return what the ranks of a value depend on, or None if they cannot be told by types."""
    if isinstance(value, hooks.tensor):
        return (hooks.tensor, value.ndim == 0, value.dtype)
    kind = type(value)
    if kind is dict:
        parts = [(name, _types_of(v)) for name, v in sorted(value.items())]
        return None if any(types is None for _, types in parts) else (dict, tuple(parts))
    if kind is list or kind is tuple:
        types = [_types_of(element) for element in value[: _LONG + 1]]
        return None if len(value) > _LONG or None in types else (kind, tuple(types))
    if kind is str or isinstance(value, Mapping):
        return None
    if hasattr(value, "dtype") and hasattr(value, "ndim"):
        return (kind, value.ndim, value.dtype)
    return kind.__qualname__, id(kind)


def resolve_call(
    name: str, overloads: Sequence[AnyOperator], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AnyOperator:
    """Return the overload that a call means.

    Raises
    ------
    ArgumentError
        If none binds, with the reason of each, or if several are equally near.
    """
    fitting, reasons = [], []
    for op in overloads:
        try:
            bind_arguments(op, args, kwargs)
        except ArgumentError as error:
            reasons.append((op, str(error).splitlines()[0]))
        else:
            fitting.append(_ranked(op, args, kwargs))
    if not fitting:
        raise ArgumentError(_none_fits(name, reasons))
    best = [c for c in fitting if all(c is other or c.beats(other) for other in fitting)]
    if not best:
        equal = [c.op for c in fitting if not any(other.beats(c) for other in fitting)]
        raise ArgumentError(_ambiguous(name, equal, args, kwargs))
    return best[0].op


def _ranked(op: AnyOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Candidate:
    schema = op.schema
    positional = zip(schema.positional, args, strict=False)
    by_name = [(schema.argument(name), value) for name, value in kwargs.items()]
    ranks = [rank(argument.type, value) for argument, value in [*positional, *by_name]]
    return _Candidate(op, tuple(ranks), len(schema.arguments) - len(ranks))


def _none_fits(name: str, reasons: Sequence[tuple[AnyOperator, str]]) -> str:
    lines = [f"{name}: no overload takes this call"]
    for op, reason in reasons:
        lines += [f"  {op.schema}", f"    {reason}"]
    return "\n".join(lines)


def _ambiguous(
    name: str, equal: Sequence[AnyOperator], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    given = [describe_value(value) for value in args]
    given += [f"{word}={describe_value(value)}" for word, value in kwargs.items()]
    lines = [f"{name}: the call is ambiguous, several overloads take ({', '.join(given)})"]
    lines += [f"  {op.schema}  {op.definition_source}" for op in equal]
    word = equal[0].overload_name or "default"
    return "\n".join([*lines, f"  name one, as in {equal[0].name}.{word}(...)"])


hooks.resolve_overload = _packet_call
