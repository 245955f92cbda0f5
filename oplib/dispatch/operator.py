"""Operators and packets: the nouns a call names.

An `Operator` is one overload: a schema, its facets, and the functions generated from them. Calling
it calls the generated *bind* directly: ``__call__`` is a slot of the instance, which costs 0.06 µs
where a method that forwards ``*args, **kwargs`` costs 0.2. The first call generates the bind; every
registration gives the operator a new, empty dictionary of plans.

Imports floors 0 and 1, `keys.py`, `facets.py`. Read next: `registry.py`, where operators come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeAlias, TypeVar, overload

from .._text import did_you_mean
from ..errors import ArgumentError, OperatorNotFoundError, OperatorRemovedError
from ..schema import FunctionSchema
from .facets import (
    FAKE,
    FUNCTIONAL,
    GRADIENT,
    KERNEL,
    VIEW_RULE,
    GradientRule,
    KernelEntry,
    Registration,
    Source,
    TwinRule,
)

__all__ = ["Operator", "OperatorPacket", "Plan", "hooks"]

Plan: TypeAlias = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class _Hooks:
    """Functions of higher files and floors that operators call, installed once at import.

    `bind_call` makes the bind function of an operator, `build_plan` the plan for a key set,
    `explain` the report on a call, `lookup` finds operators for unpickling.
    """

    bind_call: Callable[[Operator[..., Any]], Plan]
    bind_positional: Callable[[Operator[..., Any]], Plan]
    build_plan: Callable[[Operator[..., Any], int], Plan]
    explain: Callable[..., str]
    source: Callable[[Operator[..., Any]], str]
    below: Callable[..., Any]
    lookup: Callable[[str], Operator[..., Any]]
    lookup_packet: Callable[[str, str], OperatorPacket]


hooks: Final = _Hooks()


class Operator(Generic[P, R]):
    """One overload of an operator: a schema and its facets.

    Made by `oplib.custom_op` or `Library.define`, never directly. Callable; hashes by identity;
    pickles by qualified name.

    Attributes
    ----------
    schema : FunctionSchema
    qualname : str
        ``ns::name`` or ``ns::name.overload``.
    tags : tuple of str
    effects : frozenset of str
    """

    __slots__ = ("__call__", "__dict__", "__weakref__")

    if TYPE_CHECKING:

        @overload
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
        @overload
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

        # What `library.py` installs: every ``register_*`` function without its first argument.
        @overload
        def register_kernel(
            self, devices: Any, fn: None = None, /, **options: Any
        ) -> Callable[[F], F]: ...
        @overload
        def register_kernel(self, devices: Any, fn: Any, /, **options: Any) -> Any: ...
        def register_kernel(self, devices: Any, fn: Any = None, /, **options: Any) -> Any: ...
        @overload
        def register_fake(self, fn: None = None, /, **options: Any) -> Callable[[F], F]: ...
        @overload
        def register_fake(self, fn: F, /, **options: Any) -> F: ...
        @overload
        def register_fake(self, fn: Any, /, **options: Any) -> Any: ...
        def register_fake(self, fn: Any = None, /, **options: Any) -> Any: ...
        @overload
        def register_vjp(self, fn: F, /, **options: Any) -> F: ...
        @overload
        def register_vjp(self, fn: None = None, /, **options: Any) -> Callable[[F], F]: ...
        def register_vjp(self, fn: Any = None, /, **options: Any) -> Any: ...
        @overload
        def register_autograd(self, fn: F, /, **options: Any) -> F: ...
        @overload
        def register_autograd(self, fn: None = None, /, **options: Any) -> Callable[[F], F]: ...
        def register_autograd(self, fn: Any = None, /, **options: Any) -> Any: ...
        @overload
        def register_functional(self, fn: F, /, **options: Any) -> F: ...
        @overload
        def register_functional(self, fn: None = None, /, **options: Any) -> Callable[[F], F]: ...
        def register_functional(self, fn: Any = None, /, **options: Any) -> Any: ...
        @overload
        def register_view(self, fn: F, /, **options: Any) -> F: ...
        @overload
        def register_view(self, fn: None = None, /, **options: Any) -> Callable[[F], F]: ...
        def register_view(self, fn: Any = None, /, **options: Any) -> Any: ...
        @overload
        def register_samples(self, fn: F, /, **options: Any) -> F: ...
        @overload
        def register_samples(self, fn: None = None, /, **options: Any) -> Callable[[F], F]: ...
        def register_samples(self, fn: Any = None, /, **options: Any) -> Any: ...

    def __init__(
        self,
        schema: FunctionSchema,
        tags: tuple[str, ...],
        effects: frozenset[str],
        source: Source,
    ) -> None:
        self.schema = schema
        self.qualname = schema.qualname
        self.namespace = schema.namespace
        self.name = schema.name
        self.overload_name = schema.overload_name
        self.tags = tags
        self.effects = effects
        self.definition_source = source
        self.arrays_in_arrays_out = True
        self.choices: dict[str, tuple[Any, ...]] = {}
        self._stacks: dict[tuple[str, str, str], tuple[Registration, ...]] = {}
        self._removed_at: Source | None = None
        self._plans: dict[int, Plan] = {}
        self._plan_holders: list[dict[str, Any]] = []
        self._positional: Plan | None = None
        self.converters: list[Callable[[Any], Any]] | None = None
        self.__name__ = schema.name
        self.__qualname__ = schema.name
        self.__doc__ = None
        self._reset_call()

    # ------------------------------------------------------------------ calling

    def _reset_call(self) -> None:
        """Make the next call generate the bind."""

        def first_call(*args: Any, **kwargs: Any) -> Any:
            return self.bind()(*args, **kwargs)

        self._bound = False
        self._positional = None
        self._plan_holders = []
        self.__call__ = first_call  # type: ignore[method-assign]

    def bind(self) -> Plan:
        """Return the generated function that this operator's calls run, making it if needed."""
        if not self._bound:
            self.raise_if_removed()
            self.__call__ = hooks.bind_call(self)  # type: ignore[method-assign]
            self._bound = True
        return self.__call__

    def call_positional(self, args: tuple[Any, ...] | list[Any]) -> Any:
        """Call with every argument in schema order, already converted (what interpreters do)."""
        positional = self._positional
        if positional is None:
            positional = self._positional = hooks.bind_positional(self)
        return positional(*args)

    def hold_plans(self, namespace: dict[str, Any]) -> None:
        """Keep ``namespace["_op_plans"]`` at the current plan dictionary from now on."""
        namespace["_op_plans"] = self._plans
        self._plan_holders.append(namespace)

    def find_plan(self, keys: int) -> Plan:
        """Return the plan for a key set, building it if needed.

        A builder stores its plan in the dictionary it looked in. A registration that lands while
        it builds has replaced that dictionary, so a plan from old tables is never found later.
        """
        plans = self._plans
        plan = plans.get(keys)
        if plan is None:
            self.raise_if_removed()
            plan = plans[keys] = hooks.build_plan(self, keys)
        return plan

    def below(self, key: str) -> Plan:
        """Return this operator as seen from below `key`: the public redispatch.

        An implementation at ``"Autograd"`` calls ``op.below("Autograd")(...)`` to run what it
        stands in front of.
        """
        return hooks.below(self, key)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ facets

    def facets_changed(self) -> None:
        """Start a new plan dictionary. Called under the registry's lock."""
        self._plans = {}
        for namespace in self._plan_holders:
            namespace["_op_plans"] = self._plans

    def top(self, facet: str, key: str = "", provider: str = "default") -> Registration | None:
        """Return the registration in effect for a facet, or None."""
        stack = self._stacks.get((facet, key, provider))
        return stack[-1] if stack else None

    def payload(self, facet: str, key: str = "") -> Any:
        """Return what is registered for a facet, or None."""
        registration = self.top(facet, key)
        return None if registration is None else registration.payload

    def entries(self, key: str) -> list[Registration]:
        """Return the kernel registrations at a canonical key: highest priority, then newest."""
        found = [
            stack[-1]
            for (facet, where, _), stack in self._stacks.items()
            if facet == KERNEL and where == key and stack
        ]
        found.reverse()
        found.sort(key=lambda registration: -registration.payload.priority)
        return found

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """Every live registration on this operator, oldest first within each facet."""
        return tuple(r for stack in self._stacks.values() for r in stack)

    @property
    def kernels(self) -> dict[str, list[KernelEntry]]:
        """Kernel entries by key, in order of preference."""
        keys = {key: None for facet, key, _ in self._stacks if facet == KERNEL}
        found = {key: [r.payload for r in self.entries(key)] for key in keys}
        return {key: entries for key, entries in found.items() if entries}

    @property
    def fake_rule(self) -> Callable[..., Any] | None:
        """The registered fake rule, or None."""
        return self.payload(FAKE)  # type: ignore[no-any-return]

    @property
    def gradient_rule(self) -> GradientRule | None:
        """The registered gradient rule, or None."""
        return self.payload(GRADIENT)  # type: ignore[no-any-return]

    @property
    def twin(self) -> TwinRule | None:
        """The functional twin of a mutating operator, or None."""
        return self.payload(FUNCTIONAL)  # type: ignore[no-any-return]

    @property
    def view_rule(self) -> Callable[..., Any] | None:
        """The geometry rule of a view operator, or None."""
        return self.payload(VIEW_RULE)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ introspection

    @property
    def removed(self) -> bool:
        """Whether the definition behind this handle was removed."""
        return self._removed_at is not None

    def raise_if_removed(self) -> None:
        """Raise `OperatorRemovedError` if the definition behind this handle is gone."""
        if self._removed_at is not None:
            raise OperatorRemovedError(
                f"{self.qualname} was removed\n"
                f"  defined  {self.definition_source}\n"
                f"  removed  {self._removed_at}\n"
                f"  look it up again: oplib.get_op({self.qualname!r})"
            )

    def source(self) -> str:
        """Return the Python text generated for this operator so far: bind and plans."""
        return hooks.source(self)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return the steps a call with these arguments would take; nothing is run."""
        return hooks.explain(self, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<Operator {self.schema}{' (removed)' if self.removed else ''}>"

    def __str__(self) -> str:
        return self.qualname

    def __copy__(self) -> Operator[P, R]:
        return self

    def __deepcopy__(self, memo: object) -> Operator[P, R]:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return _unpickle, (self.qualname, self.__module__)


def _unpickle(qualname: str, module: str) -> Operator[..., Any]:
    try:
        return hooks.lookup(qualname)
    except OperatorNotFoundError as error:
        raise OperatorNotFoundError(
            f"cannot unpickle operator {qualname}: it is not defined here; "
            f"import the module that defines it ({module}) first"
        ) from error


class OperatorPacket:
    """All overloads of one operator name: ``oplib.ops.ns.name``.

    With a single overload the packet is that operator in all but identity: calling it and using it
    where an operator is expected resolve to it. Overloads are attributes; the unnamed one is
    ``default``.
    """

    def __init__(self, namespace: str, name: str) -> None:
        self._namespace = namespace
        self._name = name
        self._overloads: dict[str, Operator[..., Any]] = {}
        self._single: Plan | None = None
        self.__name__ = name
        self.__qualname__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        single = self._single
        if single is None:
            return self.single(*args, **kwargs)  # says why, and lists the overloads
        return single(*args, **kwargs)

    def set_overloads(self, overloads: dict[str, Operator[..., Any]]) -> None:
        """Replace the overloads (the registry does this)."""
        self._overloads = overloads
        self._single = next(iter(overloads.values())) if len(overloads) == 1 else None

    @property
    def qualname(self) -> str:
        """``ns::name``."""
        return f"{self._namespace}::{self._name}"

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
        """
        if len(self._overloads) == 1:
            return next(iter(self._overloads.values()))
        if not self._overloads:
            raise OperatorRemovedError(f"{self.qualname} has no overloads left")
        listed = "\n".join(f"  {op.schema}  {op.definition_source}" for op in self)
        raise ArgumentError(f"{self.qualname} has several overloads; name one of\n{listed}")

    def __iter__(self) -> Iterator[Operator[..., Any]]:
        return iter(self.overloads.values())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        overloads = self.overloads
        if name in overloads:
            return overloads[name]
        if len(overloads) == 1:
            return getattr(self.single, name)
        hint = did_you_mean(name, overloads)
        raise OperatorNotFoundError(
            f"{self.qualname} has no overload {name!r}{hint}; it has {', '.join(overloads)}"
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.overloads]

    def __repr__(self) -> str:
        return f"<OperatorPacket {self.qualname}: {', '.join(self.overloads)}>"

    def __copy__(self) -> OperatorPacket:
        return self

    def __deepcopy__(self, memo: object) -> OperatorPacket:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return _unpickle_packet, (self._namespace, self._name)


def _unpickle_packet(namespace: str, name: str) -> OperatorPacket:
    return hooks.lookup_packet(namespace, name)
