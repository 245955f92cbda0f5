"""Operators: the nouns a call names.

An `Operator` is one overload: a schema, its facets, and the functions generated from them. Calling
it calls the generated *bind* directly: ``__call__`` is a slot of the instance, which costs 0.06 µs
where a method that forwards ``*args, **kwargs`` costs 0.2. The first call generates the bind; every
registration gives the operator a new table of facets and a new, empty dictionary of plans.

Imports floors 0 and 1, `keys.py`, `facets.py`, `preference.py`. Read next: `packet.py`, then
`registry.py`, where operators come from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

from .._text import did_you_mean
from ..errors import ArgumentError, OperatorNotFoundError, OperatorRemovedError
from ..schema import FunctionSchema
from . import preference
from .facets import (
    FAKE,
    FUNCTIONAL,
    GRADIENT,
    KERNEL,
    VIEW_RULE,
    GradientRule,
    KernelEntry,
    Registration,
    Slot,
    Source,
    TwinRule,
    Unique,
)

__all__ = ["Operator", "OwnDoc", "Plan", "Stacks", "hooks"]

Plan: TypeAlias = Callable[..., Any]
Stacks: TypeAlias = Mapping[Slot, tuple[Registration, ...]]
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_NO_FACETS: Final[Stacks] = MappingProxyType({})


class _Hooks:
    """What operators need of higher files and floors, installed once at import.

    `tensor` is the class of tensors, `bind_call` makes the bind function of an operator,
    `bind_positional` its entry for converted arguments, `build_plan` the plan for a key set;
    `signature` makes a Python signature, `explain` the report on a call, `source` the generated
    text; `resolve_overload` makes the call of a packet; `lookup` finds operators by name.
    """

    tensor: Any
    bind_call: Callable[[Operator[..., Any]], Plan]
    bind_positional: Callable[[Operator[..., Any]], Plan]
    build_plan: Callable[[Operator[..., Any], int], Plan]
    redispatch: Callable[..., Any]
    below: Callable[[Operator[..., Any], str], Plan]
    signature: Callable[[FunctionSchema], inspect.Signature]
    explain: Callable[..., str]
    source: Callable[[Operator[..., Any]], str]
    resolve_overload: Callable[[Any], Plan]
    lookup: Callable[[str], Operator[..., Any]]
    lookup_packet: Callable[[str, str], Any]


hooks: Final = _Hooks()


if TYPE_CHECKING:

    class _Registers(Protocol):
        """A ``register_*`` without its first argument: a bare decorator, a decorator, or a call."""

        @overload
        def __call__(self, fn: F, /) -> F: ...
        @overload
        def __call__(self, fn: None = None, /, **options: Any) -> Callable[[F], F]: ...
        @overload
        def __call__(self, fn: Any, /, **options: Any) -> Registration: ...

    class _Registering:
        """What `facet_registration.py` installs."""

        @overload
        def register_kernel(
            self, devices: Any, fn: None = None, /, **options: Any
        ) -> Callable[[F], F]: ...
        @overload
        def register_kernel(self, devices: Any, fn: Any, /, **options: Any) -> Any: ...
        def register_kernel(self, devices: Any, fn: Any = None, /, **options: Any) -> Any: ...
        @overload
        def register_vjp(self, fn: F, /) -> F: ...
        @overload
        def register_vjp(self, fn: Any = None, /, **options: Any) -> Any: ...
        def register_vjp(self, fn: Any = None, /, **options: Any) -> Any: ...

        register_fake: _Registers
        register_autograd: _Registers
        register_functional: _Registers
        register_view: _Registers
        register_samples: _Registers

else:
    _Registering = object


class Operator(Generic[P, R], Unique, _Registering):
    """One overload of an operator: a schema and its facets.

    Made by `oplib.custom_op` or `Library.define`, never directly. Callable; hashes by identity;
    pickles by qualified name.

    Attributes
    ----------
    schema : FunctionSchema
    qualname : str
        ``ns::name`` or ``ns::name.overload``.
    namespace, name, overload_name : str
        Its parts.
    tags : tuple of str
    effects : frozenset of str
    choices : mapping of str to tuple
        The values `Literal` annotations allow, by argument.
    arrays_in_arrays_out : bool
        Whether a call with arrays and without any Tensor returns arrays.
    definition_source : Source
        Where it was defined.
    definition : Registration
        The registration of its definition.
    own_facets : tuple of Registration
        The facets its definition came with.
    """

    __slots__ = ("__call__", "__dict__", "__weakref__")

    if TYPE_CHECKING:

        @overload
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
        @overload
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    definition: Registration
    own_facets: tuple[Registration, ...]

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
        self.choices: Mapping[str, tuple[Any, ...]] = MappingProxyType({})
        self.arrays_in_arrays_out = True
        self._stacks = _NO_FACETS
        self._removed_at: Source | None = None
        self._plans: dict[int, Plan] = {}
        self._plan_holders: list[dict[str, Any]] = []
        self.__name__ = schema.name
        self.__qualname__ = schema.name
        self.reset_call()

    # ------------------------------------------------------------------ calling

    def reset_call(self) -> None:
        """Make the next call generate the bind."""

        def first_call(*args: Any, **kwargs: Any) -> Any:
            return self.bind()(*args, **kwargs)

        self.converters: list[Callable[[Any], Any]] | None = None
        self._bind: Plan | None = None
        self._positional: Plan | None = None
        self.__call__ = first_call  # type: ignore[method-assign]

    def bind(self) -> Plan:
        """Return the generated function that this operator's calls run, making it if needed."""
        bind = self._bind
        if bind is None:
            self.raise_if_removed()
            bind = self._bind = self.__call__ = hooks.bind_call(self)  # type: ignore[method-assign]
        return bind

    def call_positional(self, args: tuple[Any, ...] | list[Any]) -> Any:
        """Call with every argument in schema order, already converted (what interpreters do)."""
        positional = self._positional
        if positional is None:
            positional = self._positional = hooks.bind_positional(self)
        return positional(*args)

    def hold_plans(self, namespace: dict[str, Any]) -> None:
        """Keep ``namespace["_op_plans"]`` at the current plan dictionary from now on."""
        self._plan_holders.append(namespace)
        namespace["_op_plans"] = None
        while namespace["_op_plans"] is not self._plans:  # a registration may land in between
            namespace["_op_plans"] = self._plans

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

    def redispatch(self, keys: int, /, *args: Any, **kwargs: Any) -> Any:
        """Call with the given key set instead of the arguments' own.

        A kernel registered with ``with_keyset=True`` goes on with
        ``op.redispatch(keys.below("Autograd"), ...)``.
        """
        return hooks.redispatch(self, keys, *args, **kwargs)

    def below(self, key: str) -> Plan:
        """Return this operator as seen from below `key`: what an impl at that key goes on with."""
        return hooks.below(self, key)

    def prefer(self, *providers: str) -> AbstractContextManager[None]:
        """Choose kernels of the named providers first, in that order, inside ``with``.

        >>> import numpy as np, oplib
        >>> double = oplib.custom_op("doc::double", lambda x: x + x, schema="(Tensor x) -> Tensor")
        >>> _ = double.register_kernel("cpu", lambda x: 2.0 * x, provider="fast", priority=-1)
        >>> with double.prefer("fast"):
        ...     double(oplib.ones(2))
        Tensor([2., 2.])
        """
        for provider in providers:
            if not isinstance(provider, str):
                raise ArgumentError(f"a provider is named by a string, got {provider!r}")
        return preference.prefer(self, providers)

    def set_kernel_enabled(
        self, device: str, *, enabled: bool, provider: str | None = None
    ) -> AbstractContextManager[None]:
        """Skip the kernels for a device (of one provider, or all) inside ``with``."""
        return preference.set_kernel_enabled(self, device, enabled, provider)

    # ------------------------------------------------------------------ facets

    def change_facets(self, stacks: Stacks) -> None:
        """Replace the table of facets and start a new plan dictionary (the registry does this)."""
        self._stacks = stacks
        plans: dict[int, Plan] = {}
        self._plans = plans
        for namespace in self._plan_holders:
            namespace["_op_plans"] = plans

    def stack(self, slot: Slot) -> tuple[Registration, ...]:
        """Return the live registrations that compete for a slot, the one in effect last."""
        return self._stacks.get(slot, ())

    def top(self, facet: str, key: str = "", provider: str = "default") -> Registration | None:
        """Return the registration in effect for a facet, or None."""
        stack = self._stacks.get((facet, key, provider))
        return stack[-1] if stack else None

    def payload(self, facet: str) -> Any:
        """Return what is registered for a facet, or None."""
        registration = self.top(facet)
        return None if registration is None else registration.payload

    def entries(self, key: str) -> list[Registration]:
        """Return the kernel registrations at a canonical key: highest priority, then newest."""
        found = [
            stack[-1]
            for (facet, where, _), stack in self._stacks.items()
            if facet == KERNEL and where == key
        ]
        return sorted(found, key=lambda r: (-r.payload.priority, -r.serial))

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """Every live registration on this operator, oldest first."""
        facets = [r for stack in self._stacks.values() for r in stack]
        own = [] if self.removed else [self.definition]
        return (*own, *sorted(facets, key=lambda r: r.serial))

    @property
    def kernels(self) -> dict[str, list[KernelEntry]]:
        """Kernel entries by key, in order of preference."""
        keys = dict.fromkeys(key for facet, key, _ in self._stacks if facet == KERNEL)
        return {key: [r.payload for r in self.entries(key)] for key in keys}

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
    def packet(self) -> Any:
        """The `OperatorPacket` of all overloads of this name."""
        return hooks.lookup_packet(self.namespace, self.name)

    @property
    def removed(self) -> bool:
        """Whether the definition behind this handle was removed."""
        return self._removed_at is not None

    def mark_removed(self, source: Source) -> None:
        """Make every further use of this handle raise (the registry does this)."""
        self._removed_at = source
        self.change_facets(_NO_FACETS)

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

    def explain(self, /, *args: Any, **kwargs: Any) -> str:
        """Return the steps a call with these arguments would take; nothing is run."""
        return hooks.explain(self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "__signature__":  # made when first asked for: most operators never are
            self.__signature__ = hooks.signature(self.schema)
            return self.__signature__
        raise AttributeError(
            f"an operator has no attribute {name!r}{did_you_mean(name, dir(self))}"
        )

    def __repr__(self) -> str:
        return f"<Operator {self.schema}{' (removed)' if self.removed else ''}>"

    def __str__(self) -> str:
        return self.qualname

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return _unpickle, (self.qualname, self.__module__)


class OwnDoc:
    """The ``__doc__`` of a class whose instances describe themselves to `help`."""

    def __init__(self, cls: type, describe: Callable[[Any], str]) -> None:
        self.text = cls.__doc__
        self.describe = describe
        cls.__doc__ = self  # type: ignore[assignment]

    def __get__(self, instance: Any, owner: type) -> str | None:
        return self.text if instance is None else self.describe(instance)


def _doc(op: Operator[..., Any]) -> str:
    """Return the schema of an operator that has no docstring, and what is registered on it."""
    places = [f"{r.facet}{' at ' if r.key else ''}{r.key}  {r.source}" for r in op.registrations]
    return "\n".join([str(op.schema), "", *places])


OwnDoc(Operator, _doc)


def _unpickle(qualname: str, module: str) -> Operator[..., Any]:
    try:
        return hooks.lookup(qualname if "." in qualname else f"{qualname}.default")
    except OperatorNotFoundError as error:
        raise OperatorNotFoundError(
            f"cannot unpickle operator {qualname}: it is not defined here; "
            f"import the module that defines it ({module}) first"
        ) from error
