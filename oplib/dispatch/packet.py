"""Packets: all overloads of one operator name, ``oplib.ops.ns.name``.

Imports `operator.py`. Read next: `registry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .._text import did_you_mean
from ..errors import ArgumentError, OperatorNotFoundError, OperatorRemovedError
from .facets import Unique
from .operator import Operator, OwnDoc, hooks

__all__ = ["OperatorPacket"]


class OperatorPacket(Unique):
    """All overloads of one operator name: ``oplib.ops.ns.name``.

    With a single overload the packet is that operator in all but identity: calling it and using it
    where an operator is expected resolve to it. Overloads are attributes; the unnamed one is
    ``default``.
    """

    __slots__ = ("__call__", "__dict__", "__weakref__")

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Call the overload that the arguments mean."""

    def __init__(self, namespace: str, name: str) -> None:
        self._namespace = namespace
        self.__name__ = name
        self.__qualname__ = name
        self.__module__ = f"oplib.ops.{namespace}"
        self.set_overloads({})

    def set_overloads(self, overloads: Mapping[str, Operator[..., Any]]) -> None:
        """Replace the overloads (the registry does this); the next call resolves them anew."""
        self._overloads = overloads
        self.__call__ = self._first_call  # type: ignore[method-assign]

    def _first_call(self, *args: Any, **kwargs: Any) -> Any:
        overloads = None
        while overloads is not self._overloads:  # a definition may land in between
            overloads = self._overloads
            several = len(overloads) > 1
            call = hooks.resolve_overload(self) if several else self.single.bind()
            self.__call__ = call  # type: ignore[method-assign]
        return call(*args, **kwargs)

    @property
    def qualname(self) -> str:
        """``ns::name``."""
        return f"{self._namespace}::{self.__name__}"

    @property
    def overloads(self) -> dict[str, Operator[..., Any]]:
        """Operators by overload name; the unnamed one under ``"default"``."""
        return {name or "default": op for name, op in sorted(self._overloads.items())}

    @property
    def single(self) -> Operator[..., Any]:
        """The only overload.

        Raises
        ------
        ArgumentError
            If there are several; the message lists them.
        OperatorRemovedError
            If there is none left.
        """
        overloads = self._overloads
        if not overloads:
            raise OperatorRemovedError(
                f"every overload of {self.qualname} was removed\n"
                "  keep the registrations, or define it again"
            )
        if len(overloads) > 1:
            listed = "\n".join(f"  {op.schema}  {op.definition_source}" for op in self)
            example = next(iter(self.overloads))
            raise ArgumentError(
                f"{self.qualname} has several overloads\n{listed}\n"
                f"  name one of them, as in {self.qualname + '.' + example!r}"
            )
        return next(iter(overloads.values()))

    def __iter__(self) -> Iterator[Operator[..., Any]]:
        return iter(self.overloads.values())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__signature__":
            raise AttributeError(name)
        overloads = self.overloads
        if name in overloads:
            return overloads[name]
        if len(overloads) == 1:
            return getattr(self.single, name)
        hint = did_you_mean(name, overloads)
        listed = ", ".join(overloads) or "none left"
        raise OperatorNotFoundError(
            f"{self.qualname} has no overload {name!r}{hint}; its overloads: {listed}"
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.overloads]

    def __repr__(self) -> str:
        return f"<OperatorPacket {self.qualname}: {', '.join(self.overloads) or 'removed'}>"

    def __str__(self) -> str:
        return self.qualname

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return _unpickle_packet, (self._namespace, self.__name__)


OwnDoc(OperatorPacket, lambda packet: "\n\n".join(str(op.__doc__) for op in packet))


def _unpickle_packet(namespace: str, name: str) -> OperatorPacket:
    return hooks.lookup_packet(namespace, name)  # type: ignore[no-any-return]
