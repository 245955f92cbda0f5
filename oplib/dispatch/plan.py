"""Plans: the stages of a call, composed once per key set.

A `Stage` handles one key: it *builds* the part of a plan above the rest. `build_plan` picks the
highest stage of a key set and hands it the plan without that key. Which implementation serves a key
set is decided by `resolve`, in one place and independent of the order of registration.

Imports floors 0 and 1 and the files above. Read next: `explain.py`, which prints what this decides;
then the stages themselves, in `backends/stage.py`, `meta.py` and `autograd/stage.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from .. import _state
from ..errors import ArgumentError, DispatchError
from .bind import tensor_leaves
from .facets import FAKE, KERNEL, Registration
from .keys import (
    AUTOGRAD,
    AUTOGRAD_KEY,
    BACKENDS,
    COMPOSITE_EXPLICIT,
    COMPOSITE_IMPLICIT,
    CPU,
    INTERPRETER,
    META,
    VIEW,
    canonical_key,
    highest_stage,
    key_bit,
)
from .operator import Operator, Plan, hooks

__all__ = [
    "Resolution",
    "Stage",
    "backend_of",
    "device_error",
    "install_stage",
    "python_call",
    "resolve",
    "stage_of",
]

AnyOperator: TypeAlias = Operator[..., Any]


class Stage(Protocol):
    """What handles one key.

    `build` returns the plan for `keys`, whose highest stage is this one. `below` is the plan
    without this key; backends and Meta, which compute, get None.
    """

    key: int

    def build(self, op: AnyOperator, keys: int, below: Plan | None) -> Plan:
        """Return the plan of `op` for `keys`."""
        ...

    def describe(self, op: AnyOperator, keys: int, args: list[Any]) -> list[str]:
        """Return what `explain` prints for this stage: rules found, with their places."""
        ...


_stages: Final[dict[int, Stage]] = {}


def install_stage(stage: Stage) -> None:
    """Make `stage` serve its key (or each key of its key set)."""
    keys = stage.key
    while keys:
        bit = keys & -keys
        _stages[bit] = stage
        keys &= ~bit


def stage_of(keys: int) -> tuple[int, Stage]:
    """Return the highest stage bit of a key set and its stage."""
    bit = highest_stage(keys) or CPU
    return bit, _stages[bit]


def build_plan(op: AnyOperator, keys: int) -> Plan:
    """Build the plan of `op` for a key set."""
    if _several_backends(keys):
        return _several_devices(op)
    if not (keys & AUTOGRAD and op.top(KERNEL, AUTOGRAD_KEY)):
        found = resolve(op, backend_of(keys))
        if found.kind == "implicit" and found.registration is not None:
            return _implicit(op, found.registration)
    bit, stage = stage_of(keys)
    if bit & (BACKENDS | META | INTERPRETER):
        return stage.build(op, keys, None)
    return stage.build(op, keys, op.find_plan(keys & ~bit))


def backend_of(keys: int) -> int:
    """Return the backend bit (or META) of a key set; without tensors the default device's."""
    return keys & META or keys & BACKENDS or CPU


def _several_backends(keys: int) -> bool:
    """Return whether tensors of a call live on several backends; Meta and interpreters decide."""
    bits = keys & BACKENDS
    return bool(bits & (bits - 1)) and not keys & (META | INTERPRETER)


def _several_devices(op: AnyOperator) -> Plan:
    def refuse(*args: Any) -> Any:
        raise device_error(op, args)

    return refuse


def device_error(op: AnyOperator, args: Sequence[Any]) -> ArgumentError:
    """Return the error for tensors of one call that live on several devices."""
    lines = [
        f"  {argument.name}: {tensor.device}"
        for argument, value in zip(op.schema.arguments, args, strict=True)
        for tensor in tensor_leaves([value])
    ]
    return ArgumentError(
        f"{op.qualname}: tensors of one call must live on one device\n"
        + "\n".join(lines)
        + "\n  move them first, or make the constant inside the call"
    )


# ---------------------------------------------------------------------- which implementation


@dataclass(frozen=True, slots=True)
class Resolution:
    """Which implementation serves a backend: its kind, and the registrations that provide it."""

    kind: Literal["kernel", "explicit", "implicit", "fake", "derived", "missing"]
    registrations: tuple[Registration, ...] = ()

    @property
    def registration(self) -> Registration | None:
        """The preferred registration."""
        return self.registrations[0] if self.registrations else None


def resolve(op: AnyOperator, backend: int) -> Resolution:
    """Decide which implementation of `op` serves `backend` (one bit; META for fakes)."""
    if backend == META:
        fake = op.top(FAKE)
        if fake is not None:
            return Resolution("fake", (fake,))
        if _returns_only_written(op) and not op.entries(COMPOSITE_IMPLICIT):
            return Resolution("derived")
    else:
        kernels = _kernels_at(op, backend)
        if kernels:
            return Resolution("kernel", tuple(kernels))
    explicit = op.entries(COMPOSITE_EXPLICIT)
    if explicit:
        return Resolution("explicit", tuple(explicit))
    implicit = op.entries(COMPOSITE_IMPLICIT)
    if implicit:
        return Resolution("implicit", tuple(implicit))
    return Resolution("missing")


def _kernels_at(op: AnyOperator, backend: int) -> list[Registration]:
    found = []
    for key in {key: None for facet, key, _ in op._stacks if facet == KERNEL}:
        if key_bit(key) == backend:
            found += op.entries(key)
    return found


def _returns_only_written(op: AnyOperator) -> bool:
    """Return whether a fake rule can be derived: every return is a written argument, or none."""
    schema = op.schema
    return all(schema.returned_argument(i) is not None for i in range(len(schema.returns)))


# ---------------------------------------------------------------------- Tensor-level code


def python_call(op: AnyOperator, function: Callable[..., Any]) -> Plan:
    """Return `function` taking all arguments in schema order: keyword-only ones by keyword."""
    count = len(op.schema.positional)
    names = tuple(argument.name for argument in op.schema.keyword_only)
    if not names:
        return function

    def call(*args: Any) -> Any:
        return function(*args[:count], **dict(zip(names, args[count:], strict=True)))

    return call


def _implicit(op: AnyOperator, registration: Registration) -> Plan:
    """Return the body of a composite operator: it runs above autograd and is differentiated."""
    return python_call(op, registration.payload.function)


def below(op: AnyOperator, key: str) -> Plan:
    """Return `op` as a callable that starts below `key`."""
    bit = key_bit(canonical_key(key))
    if not bit & (AUTOGRAD | VIEW):
        raise DispatchError(f"{op.qualname}.below() takes 'Autograd', got {key!r}")

    def call(*args: Any, **kwargs: Any) -> Any:
        state = _state.current()
        with _state.enter(state.replace(handled=state.handled | bit)):
            return op(*args, **kwargs)

    return call


hooks.build_plan = build_plan
hooks.below = below
