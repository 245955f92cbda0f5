"""The registry: which operators exist, and how registrations stack, replace and vanish.

It owns operators: dropping a `Library` changes nothing. Everything is validated before it comes
here; under one lock a registration either commits completely or raises without a trace. Calls take
no lock: they see tables from before a registration or after it, never between.

Imports floors 0 and 1, `facets.py`, `operator.py`. Read next: `bind.py`.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from .. import _state
from .._text import did_you_mean
from ..errors import ArgumentError, OperatorNotFoundError, RegistrationError
from ..schema import FunctionSchema
from .facets import DEFINITION, Registration, Source, calling_source
from .operator import Operator, OperatorPacket, hooks

__all__ = [
    "OpNamespace",
    "Ops",
    "PendingKernel",
    "add_pending",
    "define",
    "get_op",
    "has_op",
    "list_ops",
    "ops",
    "packet",
    "pending",
    "register",
]

AnyOperator = Operator[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class PendingKernel:
    """A kernel that waits for its operator to be defined."""

    qualname: str
    key: str
    source: Source
    attach: Callable[[AnyOperator], None]

    def __str__(self) -> str:
        return f"{self.qualname} at {self.key}, registered {self.source}"


_lock: Final = threading.RLock()
_definitions: Final[dict[str, tuple[Registration, ...]]] = {}
_packets: Final[dict[tuple[str, str], OperatorPacket]] = {}
_pending: Final[dict[str, list[PendingKernel]]] = {}
_loaded_entry_points: Final[set[str]] = set()

LOADERS: Final[dict[str, Callable[[str], bool]]] = {}
"""Namespace -> ``load(name)``: define an operator of it that was not touched yet, if there is
one."""
DEFINITION_LISTENERS: Final[list[Callable[[str], None]]] = []
"""Called with the qualified name whenever a definition appears, is replaced, or goes."""


# ---------------------------------------------------------------------- registering


def define(
    schema: FunctionSchema,
    *,
    tags: tuple[str, ...] = (),
    effects: frozenset[str] = frozenset(),
    source: Source,
    override: bool = False,
) -> Registration:
    """Define an operator and return the registration of its definition.

    An identical schema from the same source keeps the `Operator` object that is there.

    Raises
    ------
    RegistrationError
        If the name is defined elsewhere and overriding is not permitted.
    """
    name = schema.qualname
    with _lock:
        stack = _definitions.get(name, ())
        if stack and not override and not _override_scope_permits(name):
            current = stack[-1]
            if current.source.same_as(source) and current.op.schema == schema:
                return _redefined(current, tags, effects, source)
            raise RegistrationError(_already_defined(current, schema, source))
        op: AnyOperator = Operator(schema, tags, effects, source)
        registration = Registration(op, DEFINITION, "", "default", None, schema, source, _undefine)
        _set_definitions(name, (*stack, registration))
        _note_in_scope(registration)
        waiting = list(_pending.get(name, ()))
    for kernel in waiting:
        kernel.attach(op)
    return registration


def _redefined(
    current: Registration, tags: tuple[str, ...], effects: frozenset[str], source: Source
) -> Registration:
    """Replace a definition by an identical one from the same source; the Operator stays."""
    op = current.op
    op.tags, op.effects, op.definition_source = tags, effects, source
    renewed = Registration(op, DEFINITION, "", "default", None, op.schema, source, _undefine)
    current.active = False
    _set_definitions(op.qualname, (*_definitions[op.qualname][:-1], renewed))
    op.facets_changed()
    return renewed


def _already_defined(current: Registration, schema: FunctionSchema, source: Source) -> str:
    changed = "" if current.op.schema == schema else " with another schema"
    return (
        f"{schema.qualname} is already defined{changed}\n"
        f"  there  {current.op.schema}  {current.source}\n"
        f"  here   {schema}  {source}\n"
        f"  choose another name, pass override=True, or define it inside "
        f"`with oplib.override({schema.qualname!r})`"
    )


def _undefine(registration: Registration) -> None:
    """Remove a definition and with it every facet registered on its operator."""
    with _lock:
        if not registration.active:
            return
        registration.active = False
        op = registration.op
        stack = _definitions.get(op.qualname, ())
        rest = tuple(r for r in stack if r is not registration)
        for facet in op.registrations:
            facet.active = False
        op._stacks.clear()
        op._removed_at = calling_source()
        op._reset_call()
        op.facets_changed()
        _set_definitions(op.qualname, rest)


def _set_definitions(name: str, stack: tuple[Registration, ...]) -> None:
    if stack:
        _definitions[name] = stack
    else:
        _definitions.pop(name, None)
    base = name.partition("::")[2].partition(".")[0]
    namespace = name.partition("::")[0]
    found = _packets.get((namespace, base))
    if found is None:
        found = _packets[namespace, base] = OperatorPacket(namespace, base)
    overloads = dict(found._overloads)
    overload_name = name.partition("::")[2].partition(".")[2]
    if stack:
        overloads[overload_name] = stack[-1].op
    else:
        overloads.pop(overload_name, None)
    found.set_overloads(overloads)
    for listener in DEFINITION_LISTENERS:
        listener(name)


def register(
    op: AnyOperator,
    facet: str,
    function: Any,
    payload: Any,
    *,
    key: str = "",
    provider: str = "default",
    source: Source,
    override: bool = False,
) -> Registration:
    """Attach a facet to an operator and return its registration.

    Raises
    ------
    RegistrationError
        If the operator has this facet from elsewhere and overriding is not permitted.
    OperatorRemovedError
        If `op` is a handle to a removed definition.
    """
    with _lock:
        op.raise_if_removed()
        registration = Registration(op, facet, key, provider, function, payload, source, _detach)
        stack = op._stacks.get(registration.slot, ())
        if stack and not override and not _override_scope_permits(op.qualname):
            current = stack[-1]
            if not current.source.same_as(source):
                raise RegistrationError(_already_registered(current, source))
            current.active = False
            stack = stack[:-1]
        op._stacks[registration.slot] = (*stack, registration)
        op.facets_changed()
        _note_in_scope(registration)
    return registration


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
    with _lock:
        if not registration.active:
            return
        registration.active = False
        op = registration.op
        stack = op._stacks.get(registration.slot, ())
        rest = tuple(r for r in stack if r is not registration)
        if rest:
            op._stacks[registration.slot] = rest
        else:
            op._stacks.pop(registration.slot, None)
        op.facets_changed()


def add_pending(kernel: PendingKernel) -> Callable[[], None]:
    """Keep a kernel for whenever its operator is defined; return the undo."""
    with _lock:
        _pending.setdefault(kernel.qualname, []).append(kernel)

    def undo() -> None:
        with _lock:
            waiting = _pending.get(kernel.qualname, [])
            if kernel in waiting:
                waiting.remove(kernel)

    return undo


def pending() -> list[PendingKernel]:
    """Return the kernels of `IMPL` libraries whose operators are not defined (yet)."""
    with _lock:
        return [k for name, ks in _pending.items() if name not in _definitions for k in ks]


# ---------------------------------------------------------------------- override scopes


def _override_scope_permits(qualname: str) -> bool:
    scope = _state.current().config.get("override")
    return scope is not None and (not scope.names or qualname in scope.names)


def _note_in_scope(registration: Registration) -> None:
    scope = _state.current().config.get("override")
    if scope is not None:
        scope.made.append(registration)


# ---------------------------------------------------------------------- lookup


def has_op(qualname: str) -> bool:
    """Return whether ``"ns::name[.overload]"`` is defined (a packet counts for its overloads)."""
    try:
        get_op(qualname)
    except ArgumentError:
        return True
    except OperatorNotFoundError:
        return False
    return True


def get_op(qualname: str) -> AnyOperator:
    """Return the operator named ``"ns::name"`` or ``"ns::name.overload"``.

    ``"ns::name"`` finds the unnamed overload, or the only one; ``.default`` names the unnamed one.

    Raises
    ------
    OperatorNotFoundError
        If there is none, with the nearest names.
    ArgumentError
        If the name is a packet of several overloads.
    """
    if not isinstance(qualname, str):
        raise ArgumentError(f"an operator name is a string, got {type(qualname).__name__}")
    plain = qualname.removesuffix(".default")
    stack = _definitions.get(plain)
    if stack:
        return stack[-1].op  # type: ignore[no-any-return]
    namespace, _, base = plain.partition("::")
    found = _packets.get((namespace, base))
    if found is not None and found._overloads and plain == qualname:
        return found.single
    if _load(namespace, base.partition(".")[0]):
        return get_op(qualname)
    raise OperatorNotFoundError(_not_found(qualname))


def _not_found(qualname: str) -> str:
    hint = did_you_mean(qualname, _definitions)
    waiting = [str(kernel) for kernel in _pending.get(qualname, ())]
    lines = [f"no operator {qualname!r}{hint}"]
    if "::" not in qualname:
        lines.append("  a qualified name has the form 'ns::name' or 'ns::name.overload'")
    lines += [f"  a kernel waits for it: {text}" for text in waiting]
    return "\n".join(lines)


def list_ops(namespace: str | None = None) -> list[str]:
    """Return the qualified names of all operators, or of one namespace, sorted."""
    names = list(_definitions)
    if namespace is not None:
        names = [name for name in names if name.startswith(namespace + "::")]
    return sorted(names)


def packet(namespace: str, name: str) -> OperatorPacket:
    """Return the packet ``ns::name``.

    Raises
    ------
    OperatorNotFoundError
        If no overload of it is defined.
    """
    found = _packets.get((namespace, name))
    if found is not None and found._overloads:
        return found
    if _load(namespace, name):
        return packet(namespace, name)
    raise OperatorNotFoundError(_not_found(f"{namespace}::{name}"))


def _load(namespace: str, name: str) -> bool:
    """Let whoever provides a namespace define `name`; return whether anything was loaded."""
    loader = LOADERS.get(namespace)
    if loader is not None and loader(name):
        return True
    return _load_entry_points(namespace)


def _load_entry_points(namespace: str) -> bool:
    """Load the ``oplib.ops`` entry points for a namespace, once; return whether any loaded."""
    if namespace in _loaded_entry_points or not namespace:
        return False
    _loaded_entry_points.add(namespace)
    loaded = False
    metadata = importlib.import_module("importlib.metadata")  # 24 ms that most programs never need
    for entry in metadata.entry_points(group="oplib.ops", name=namespace):
        try:
            entry.load()
        except Exception as error:
            distribution = entry.dist.name if entry.dist is not None else entry.value
            raise OperatorNotFoundError(
                f"operators of namespace {namespace!r} are provided by {distribution!r}, "
                f"which failed to import: {type(error).__name__}: {error}"
            ) from error
        loaded = True
    return loaded


class OpNamespace:
    """The operators of one namespace: ``oplib.ops.ns``. Attributes are packets."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> OperatorPacket:
        if name.startswith("__"):
            raise AttributeError(name)
        return packet(self._name, name)

    def __iter__(self) -> Iterator[OperatorPacket]:
        return (_packets[self._name, name] for name in self._names())

    def __dir__(self) -> list[str]:
        return self._names()

    def __repr__(self) -> str:
        return f"<oplib.ops.{self._name}: {len(self._names())} operators>"

    def _names(self) -> list[str]:
        return sorted(
            name for (ns, name), found in _packets.items() if ns == self._name and found._overloads
        )


class Ops:
    """All operators: ``oplib.ops.ns.name(...)``."""

    def __init__(self) -> None:
        self._namespaces: dict[str, OpNamespace] = {}

    def __getattr__(self, name: str) -> OpNamespace:
        if name.startswith("__"):
            raise AttributeError(name)
        known = {namespace for namespace, _ in _packets}
        if name not in known and name not in LOADERS and not _load_entry_points(name):
            hint = did_you_mean(name, known)
            raise OperatorNotFoundError(f"no operators in namespace {name!r}{hint}")
        return self._namespaces.setdefault(name, OpNamespace(name))

    def __dir__(self) -> list[str]:
        return sorted({namespace for (namespace, _), p in _packets.items() if p._overloads})

    def __repr__(self) -> str:
        return f"<oplib.ops: {', '.join(self.__dir__())}>"


ops: Final = Ops()
hooks.lookup = get_op
hooks.lookup_packet = packet
