"""The registry: operators by name, ``oplib.ops``, and what waits to be found.

A name is looked up among the definitions; if it is not there, whoever provides its namespace is
asked once to define it: oplib's own loader for ``std``, the entry points of group ``oplib.ops`` for
packages.

Imports floors 0 and 1, `ledger.py` and above. Read next: `pending.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from .._text import did_you_mean, short_repr
from ..errors import ArgumentError, OperatorNotFoundError
from . import ledger
from .facets import Registration, Unique
from .operator import Operator, OwnDoc, hooks
from .packet import OperatorPacket

__all__ = [
    "LOADERS",
    "NOTES",
    "OpNamespace",
    "Ops",
    "get_op",
    "has_op",
    "list_ops",
    "ops",
    "packet",
    "resolve",
]

AnyOperator = Operator[..., Any]

LOADERS: Final[dict[str, Callable[[str], bool]]] = {}
"""Namespace -> ``load(name)``: define an operator of it that was not touched yet."""

NOTES: Final[list[Callable[[str], list[str]]]] = []
"""What "no such operator" adds about a qualified name: kernels that wait for it."""

_loaded_entry_points: Final[set[str]] = set()


def has_op(qualname: str) -> bool:
    """Return whether ``"ns::name[.overload]"`` is defined (a packet counts for its overloads).

    >>> import oplib
    >>> oplib.has_op("std::exp"), oplib.has_op("std::nothing")
    (True, False)
    """
    return _find(_name(qualname)) is not None


def get_op(qualname: str) -> AnyOperator:
    """Return the operator named ``"ns::name"`` or ``"ns::name.overload"``.

    ``"ns::name"`` finds the unnamed overload, or the only one; ``.default`` names the unnamed one.

    Raises
    ------
    OperatorNotFoundError
        If there is none, with the nearest names.
    ArgumentError
        If the name is a packet of several overloads.

    Examples
    --------
    >>> import oplib
    >>> oplib.get_op("std::exp")
    <Operator std::exp(Tensor x) -> Tensor>
    """
    found = _find(_name(qualname))
    if found is None:
        raise OperatorNotFoundError(_not_found(qualname))
    return found.single if isinstance(found, OperatorPacket) else found


def list_ops(namespace: str | None = None) -> list[str]:
    """Return the qualified names of all operators defined so far, or of one namespace, sorted."""
    names = ledger.names()
    if namespace is not None:
        names = [name for name in names if name.startswith(f"{namespace}::")]
    return sorted(names)


def packet(namespace: str, name: str) -> OperatorPacket:
    """Return the packet ``ns::name``.

    Raises
    ------
    OperatorNotFoundError
        If no overload of it is defined.
    """
    found = ledger.find_packet(namespace, name)
    if found is None and _load(namespace, name):
        found = ledger.find_packet(namespace, name)
    if found is None:
        raise OperatorNotFoundError(_not_found(f"{namespace}::{name}"))
    return found


def resolve(op: Any) -> AnyOperator:
    """Return the operator that a registration or an introspection names.

    Parameters
    ----------
    op : str, Operator, OperatorPacket or Registration
        A qualified name, an operator, a packet of one overload, or what `define` returned.

    Raises
    ------
    ArgumentError
        For anything else, and for a packet of several overloads.
    OperatorRemovedError
        If the operator was removed.
    """
    if isinstance(op, Registration):
        op = op.op
    if isinstance(op, OperatorPacket):
        return op.single
    if isinstance(op, Operator):
        op.raise_if_removed()
        return op
    if isinstance(op, str):
        return get_op(op)
    raise ArgumentError(
        f"expected an operator or its qualified name 'ns::name', got {short_repr(op)}"
    )


# ---------------------------------------------------------------------- finding


def _name(qualname: Any) -> str:
    if not isinstance(qualname, str):
        raise ArgumentError(f"an operator name is a string, got {short_repr(qualname)}")
    return qualname


def _find(qualname: str) -> AnyOperator | OperatorPacket | None:
    """Return what a qualified name names, letting its provider define it; None if nothing."""
    found = _find_defined(qualname)
    if found is None:
        namespace, _, rest = qualname.partition("::")
        if _load(namespace, rest.partition(".")[0]):
            found = _find_defined(qualname)
    return found


def _find_defined(qualname: str) -> AnyOperator | OperatorPacket | None:
    plain = qualname.removesuffix(".default")
    found = ledger.find(plain)
    if found is None and plain == qualname:
        namespace, _, name = plain.partition("::")
        return ledger.find_packet(namespace, name)
    return found


def _load(namespace: str, name: str) -> bool:
    """Let whoever provides a namespace define `name`; return whether anything was loaded."""
    loader = LOADERS.get(namespace)
    if loader is not None and loader(name):
        return True
    return _load_entry_points(namespace)


def _load_entry_points(namespace: str) -> bool:
    """Load the ``oplib.ops`` entry points for a namespace, once; return whether any loaded."""
    if namespace in _loaded_entry_points or not namespace.isidentifier():
        return False
    _loaded_entry_points.add(namespace)
    loaded = False
    metadata = importlib.import_module("importlib.metadata")  # 24 ms that most programs never need
    for entry in metadata.entry_points(group="oplib.ops", name=namespace):
        try:
            entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist is not None else entry.value
            raise OperatorNotFoundError(
                f"operators of namespace {namespace!r} are provided by package {package!r}, "
                f"which failed to import: {type(error).__name__}: {error}"
            ) from error
        loaded = True
    return loaded


def _not_found(qualname: str) -> str:
    """Return the message for a name that nothing has."""
    namespace, colons, _ = qualname.partition("::")
    if not colons:
        form = "a qualified name has the form 'ns::name' or 'ns::name.overload'"
        return f"no operator {qualname!r}: {form}"
    near = list_ops(namespace) or ledger.names()
    return "\n".join(
        [
            f"no operator {qualname!r}{did_you_mean(qualname, near)}",
            *(f"  {line}" for note in NOTES for line in note(qualname)),
        ]
    )


# ---------------------------------------------------------------------- oplib.ops


class OpNamespace(Unique):
    """The operators of one namespace: ``oplib.ops.ns``. Attributes are packets."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> OperatorPacket:
        if name.startswith("__"):
            raise AttributeError(name)
        found = self.__dict__[name] = packet(self.__name__, name)
        return found

    def __iter__(self) -> Iterator[OperatorPacket]:
        return (packet(self.__name__, name) for name in dir(self))

    def __dir__(self) -> list[str]:
        return sorted(name for namespace, name in ledger.packets() if namespace == self.__name__)

    def __repr__(self) -> str:
        return f"<oplib.ops.{self.__name__}: {', '.join(dir(self))}>"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Ops, str]]:
        return getattr, (ops, self.__name__)


OwnDoc(OpNamespace, lambda ns: "\n".join(str(op.schema) for packet in ns for op in packet))


class Ops(Unique):
    """All operators: ``oplib.ops.ns.name(...)``."""

    def __getattr__(self, name: str) -> OpNamespace:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in LOADERS and name not in dir(self):
            _load_entry_points(name)
            if name not in dir(self):
                raise OperatorNotFoundError(
                    f"no operators in namespace {name!r}{did_you_mean(name, dir(self))}"
                )
        found = self.__dict__[name] = OpNamespace(name)
        return found

    def __iter__(self) -> Iterator[OpNamespace]:
        return (getattr(self, name) for name in dir(self))

    def __dir__(self) -> list[str]:
        return sorted({namespace for namespace, _ in ledger.packets()})

    def __repr__(self) -> str:
        return f"<oplib.ops: {', '.join(dir(self))}>"

    def __reduce__(self) -> str:
        return "ops"


ops: Final = Ops()


def _forget(qualname: str) -> None:
    """Drop cached attributes of `ops` that name nothing any more."""
    namespace, _, rest = qualname.partition("::")
    name = rest.partition(".")[0]
    if ledger.find_packet(namespace, name) is None:
        found = ops.__dict__.get(namespace)
        if found is not None:
            found.__dict__.pop(name, None)
            if not dir(found):
                ops.__dict__.pop(namespace, None)


ledger.DEFINITION_LISTENERS.append(_forget)
hooks.lookup = get_op
hooks.lookup_packet = packet
