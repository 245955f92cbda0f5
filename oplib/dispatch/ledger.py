"""The ledger: which operators are defined, and how registrations stack, replace and vanish.

It owns operators: dropping a `Library` changes nothing. Everything is validated before it comes
here; under one lock a registration either commits completely or raises without a trace. Calls take
no lock: they see tables from before a registration or after it, never between, because tables are
never changed but replaced.

Imports floors 0 and 1, `facets.py`, `operator.py`, `packet.py`. Read next: `registry.py`,
which finds operators by name.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from .. import _state
from ..errors import RegistrationError
from ..schema import FunctionSchema
from .facets import (
    DEFINITION,
    FAKE,
    GRADIENT,
    KERNEL,
    Facet,
    Registration,
    Slot,
    Source,
    calling_source,
)
from .keys import AUTOGRAD_KEY, COMPOSITE_IMPLICIT
from .operator import Operator, Stacks
from .packet import OperatorPacket

__all__ = [
    "DEFINITION_LISTENERS",
    "Definition",
    "OverrideScope",
    "define",
    "definitions",
    "find",
    "find_packet",
    "lock",
    "move_key",
    "names",
    "operators",
    "packets",
    "refuse_excluded",
    "register",
]

AnyOperator = Operator[..., Any]

lock: Final = threading.RLock()
_definitions: Final[dict[str, tuple[Registration, ...]]] = {}
_packets: Final[dict[tuple[str, str], OperatorPacket]] = {}
_empty_packets: Final[weakref.WeakValueDictionary[tuple[str, str], OperatorPacket]] = (
    weakref.WeakValueDictionary()
)

DEFINITION_LISTENERS: Final[list[Callable[[str], None]]] = []
"""Called with the qualified name whenever a definition appears, is replaced, or goes."""


# ---------------------------------------------------------------------- defining


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """What a definition says about its operator: all of it validated."""

    schema: FunctionSchema
    tags: tuple[str, ...] = ()
    effects: frozenset[str] = frozenset()
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    arrays_in_arrays_out: bool = True


def define(
    definition: Definition, facets: Sequence[Facet] = (), *, source: Source, override: bool = False
) -> Registration:
    """Define an operator together with facets of its own; return the registration.

    An identical schema from the same source keeps the `Operator` object that is there, and the
    facets that others registered on it.

    Raises
    ------
    RegistrationError
        If the name is defined elsewhere and overriding is not permitted.
    """
    name = definition.schema.qualname
    with lock:
        stack = _definitions.get(name, ())
        for current in stack:
            if current.source.same_as(source) and current.op.schema == definition.schema:
                return _redefine(stack, current, definition, facets, source)
        if stack and not override and not _scope_permits(name):
            raise RegistrationError(_already_defined(stack[-1], definition.schema, source))
        op: AnyOperator = Operator(definition.schema, definition.tags, definition.effects, source)
        registration = Registration(op, _definition_facet(definition), source, _undefine)
        change = _Change(op, facets, source, override=False)
        _describe(op, definition, registration, change)
        change.commit()
        _publish(name, (*stack, registration))
        _note_in_scope([registration])
    return registration


def _definition_facet(definition: Definition) -> Facet:
    return Facet(DEFINITION, None, definition)


def _describe(
    op: AnyOperator, definition: Definition, registration: Registration, change: _Change
) -> None:
    """Give an operator what its definition says beside the schema."""
    op.tags = definition.tags
    op.effects = definition.effects
    op.choices = definition.choices
    op.arrays_in_arrays_out = definition.arrays_in_arrays_out
    op.definition = registration
    op.definition_source = registration.source
    op.own_facets = tuple(change.made)
    op.__module__ = registration.source.module


def _redefine(
    stack: tuple[Registration, ...],
    current: Registration,
    definition: Definition,
    facets: Sequence[Facet],
    source: Source,
) -> Registration:
    """Replace a definition by an identical one from the same source; the Operator stays."""
    op: AnyOperator = current.op
    renewed = Registration(op, _definition_facet(definition), source, _undefine)
    renewed.serial = current.serial
    change = _Change(op, facets, source, override=False)
    change.drop(op.own_facets)
    current.active = False
    _describe(op, definition, renewed, change)
    change.commit()
    op.reset_call()
    _publish(op.qualname, tuple([renewed if r is current else r for r in stack]))
    return renewed


def _already_defined(current: Registration, schema: FunctionSchema, source: Source) -> str:
    changed = "" if current.op.schema == schema else " with another schema"
    return (
        f"{schema.qualname} is already defined{changed}\n"
        f"  there  {current.source}  {current.op.schema}\n"
        f"  here   {source}  {schema}\n"
        f"  choose another name, pass override=True, or define it inside "
        f"`with oplib.override({schema.qualname!r})`"
    )


def _undefine(registration: Registration) -> None:
    """Remove a definition and with it every facet registered on its operator."""
    source = calling_source()
    with lock:
        if not registration.active:
            return
        op = registration.op
        for facet in op.registrations:
            facet.active = False
        registration.active = False
        stack = tuple(r for r in _definitions[op.qualname] if r is not registration)
        op.mark_removed(source)
        _publish(op.qualname, stack)


def _publish(name: str, stack: tuple[Registration, ...]) -> None:
    """Let lookups and the packet see a changed stack of definitions."""
    if stack:
        _definitions[name] = stack
    else:
        _definitions.pop(name, None)
    namespace, _, rest = name.partition("::")
    base, _, overload_name = rest.partition(".")
    key = namespace, base
    packet = _packets.get(key) or _empty_packets.get(key) or OperatorPacket(namespace, base)
    overloads = {n: op for n, op in packet._overloads.items() if n != overload_name}
    if stack:
        overloads[overload_name] = stack[-1].op
    packet.set_overloads(overloads)
    if overloads:
        _packets[key] = packet
    else:  # whoever keeps the packet sees a later definition; the registry does not keep it
        _packets.pop(key, None)
        _empty_packets[key] = packet
    for listener in DEFINITION_LISTENERS:
        listener(name)


# ---------------------------------------------------------------------- facets


def register(
    op: AnyOperator, facets: Sequence[Facet], *, source: Source, override: bool = False
) -> list[Registration]:
    """Attach facets to an operator, all or none, and return their registrations.

    Raises
    ------
    RegistrationError
        If the operator has one of them from elsewhere and overriding is not permitted, or has a
        facet that excludes it.
    OperatorRemovedError
        If `op` is a handle to a removed definition.
    """
    with lock:
        op.raise_if_removed()
        change = _Change(op, facets, source, override or _scope_permits(op.qualname))
        change.commit()
        _note_in_scope(change.made)
    return change.made


class _Change:
    """A new table of facets for an operator; making it checks, `commit` puts it in place."""

    def __init__(
        self, op: AnyOperator, facets: Sequence[Facet], source: Source, override: bool
    ) -> None:
        self.op = op
        self.stacks: dict[Slot, tuple[Registration, ...]] = dict(op._stacks)
        self.made: list[Registration] = []
        self.gone: list[Registration] = []
        for facet in facets:
            refuse_excluded(op.qualname, self.stacks, facet)
            self._add(facet, source, override)

    def _add(self, facet: Facet, source: Source, override: bool) -> None:
        """Stack a facet, or put it in the place of the one from the same source."""
        registration = Registration(self.op, facet, source, _detach)
        stack = self.stacks.get(facet.slot, ())
        same = next((old for old in stack if old.source.same_as(source)), None)
        if same is not None:
            registration.serial = same.serial
            stack = tuple([registration if old is same else old for old in stack])
            self.gone.append(same)
        elif stack and not override:
            raise RegistrationError(_already_registered(stack[-1], source))
        else:
            stack = (*stack, registration)
        self.stacks[facet.slot] = stack
        self.made.append(registration)

    def drop(self, registrations: Sequence[Registration]) -> None:
        """Take registrations out of their stacks."""
        for registration in registrations:
            stack = self.stacks.get(registration.slot, ())
            rest = tuple(r for r in stack if r is not registration)
            if rest:
                self.stacks[registration.slot] = rest
            else:
                self.stacks.pop(registration.slot, None)
            self.gone.append(registration)

    def commit(self) -> None:
        """Put the new table in place."""
        for registration in self.gone:
            registration.active = False
        self.op.change_facets(MappingProxyType(self.stacks))


def _already_registered(current: Registration, source: Source) -> str:
    where = f" for {current.key}" if current.key else ""
    by = "" if current.provider == "default" else f" from provider {current.provider!r}"
    return (
        f"{current.op.qualname} already has a {current.facet}{where}{by}\n"
        f"  there  {current.source}\n"
        f"  here   {source}\n"
        f"  remove() the first, pass override=True, or register inside "
        f"`with oplib.override({current.op.qualname!r})`"
    )


def _detach(registration: Registration) -> None:
    """Remove a facet; the one below it in the stack takes effect again."""
    with lock:
        if registration.active:
            change = _Change(registration.op, (), registration.source, override=False)
            change.drop([registration])
            change.commit()


def refuse_excluded(qualname: str, stacks: Stacks, facet: Facet) -> None:
    """Refuse facets that exclude each other, whichever comes second.

    Raises
    ------
    RegistrationError
        Saying why the two cannot both take effect.
    """

    def has(kind: str, key: str = "") -> bool:
        return any(slot[:2] == (kind, key) for slot in stacks)

    added = facet.kind, facet.key
    if added == (KERNEL, COMPOSITE_IMPLICIT) and (has(GRADIENT) or has(FAKE)):
        have = GRADIENT if has(GRADIENT) else FAKE
        raise RegistrationError(
            f"{qualname} has a {have}, so the body of a CompositeImplicitAutograd kernel would "
            "never be differentiated or traced through\n"
            "  register it at 'CompositeExplicitAutograd', or remove the rule"
        )
    if facet.kind in (GRADIENT, FAKE) and has(KERNEL, COMPOSITE_IMPLICIT):
        raise RegistrationError(
            f"{qualname} decomposes: it has a CompositeImplicitAutograd kernel whose body is "
            f"differentiated and traced through, so a {facet.kind} would never be used\n"
            "  register the body at 'CompositeExplicitAutograd' to give it rules of its own"
        )
    if added == (KERNEL, AUTOGRAD_KEY) and has(GRADIENT):
        raise RegistrationError(
            f"{qualname} has a gradient rule, so it cannot have a kernel at Autograd too\n"
            "  keep one: both say how a call is recorded"
        )
    if facet.kind == GRADIENT and has(KERNEL, AUTOGRAD_KEY):
        raise RegistrationError(
            f"{qualname} has a kernel at Autograd, so it cannot have a gradient rule too\n"
            "  keep one: both say how a call is recorded"
        )


def move_key(old: str, new: str) -> None:
    """Move the kernels registered for a device name to the key a backend claims for it.

    Raises
    ------
    RegistrationError
        If an operator has kernels of one provider at both.
    """
    with lock:
        changes = []
        for op in operators():
            moved = [stack for slot, stack in op._stacks.items() if slot[:2] == (KERNEL, old)]
            for stack in moved:
                _refuse_occupied(op, stack[-1], new)
            if moved:
                changes.append((op, [registration for stack in moved for registration in stack]))
        for op, registrations in changes:
            for registration in registrations:
                registration.move(new)
            kept = [r for r in op.registrations if r.facet != DEFINITION]
            op.change_facets(MappingProxyType(_by_slot(kept)))


def _refuse_occupied(op: AnyOperator, moved: Registration, key: str) -> None:
    other = op.top(KERNEL, key, moved.provider)
    if other is not None:
        raise RegistrationError(_already_registered(other, moved.source))


def _by_slot(registrations: Sequence[Registration]) -> dict[Slot, tuple[Registration, ...]]:
    stacks: dict[Slot, tuple[Registration, ...]] = {}
    for registration in registrations:
        stacks[registration.slot] = (*stacks.get(registration.slot, ()), registration)
    return stacks


# ---------------------------------------------------------------------- override scopes


@dataclass(slots=True, eq=False)
class OverrideScope:
    """Permission to override the named operators, and what was registered under it."""

    names: frozenset[str]
    made: list[Registration] = field(default_factory=list)


def _scope_permits(qualname: str) -> bool:
    scope = _state.current().config.get("override")
    return scope is not None and (not scope.names or qualname in scope.names)


def _note_in_scope(made: Sequence[Registration]) -> None:
    scope = _state.current().config.get("override")
    if scope is not None:
        scope.made += made


# ---------------------------------------------------------------------- what exists


def find(name: str) -> AnyOperator | None:
    """Return the operator of exactly this qualified name, or None."""
    stack = _definitions.get(name)
    return stack[-1].op if stack else None


def find_packet(namespace: str, name: str) -> OperatorPacket | None:
    """Return the packet of a name that has overloads, or None."""
    return _packets.get((namespace, name))


def definitions(name: str) -> tuple[Registration, ...]:
    """Return the stacked definitions of a qualified name, the one in effect last."""
    return _definitions.get(name, ())


def operators() -> list[AnyOperator]:
    """Return all operators, overridden definitions included."""
    return [definition.op for stack in _definitions.values() for definition in stack]


def names() -> list[str]:
    """Return the qualified names of all operators."""
    return list(_definitions)


def packets() -> list[tuple[str, str]]:
    """Return (namespace, name) of every packet that has overloads."""
    return list(_packets)
