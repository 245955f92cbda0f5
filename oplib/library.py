"""Registration: how operators come to exist and what is attached to them.

Three verbs: `define` (or `Library.define`) makes an operator from a schema, `impl` gives it kernels,
``register_*`` gives it everything else. `custom_op` does the first two at once from one function.
Each of them validates first and commits last, remembers the file:line it was called from, and can be
undone.

Every ``register_*`` function takes an operator, a qualified name, or a packet of one overload; each
is also a method of `Operator` without that argument. Given the function it registers as its only
other argument it returns that function, so it can be used as a decorator.

Imports floors 0 to 3. Read next: `shapes.py`, then `std/elementwise.py`, which uses all of this.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, Self, TypeAlias, TypeVar, overload

import numpy as np

from . import _state
from ._text import did_you_mean, function_site, short_repr
from .dispatch import registry
from .dispatch.bind import signature_of
from .dispatch.facets import (
    AUTOCAST_RULE,
    FAKE,
    FUNCTIONAL,
    GRADIENT,
    KERNEL,
    SAMPLES,
    VIEW_RULE,
    Convention,
    KernelEntry,
    Registration,
    Source,
    TwinRule,
    calling_source,
)
from .dispatch.gradient_rule import ctx_rule, named_rule
from .dispatch.keys import (
    AUTOGRAD_KEY,
    COMPOSITE_EXPLICIT,
    COMPOSITE_IMPLICIT,
    canonical_key,
)
from .dispatch.operator import Operator, OperatorPacket
from .dispatch.tags import TagsLike, normalize_effects, normalize_tags
from .dtypes import as_dtype
from .errors import ArgumentError, OperatorNotFoundError, RegistrationError, SchemaError
from .schema import (
    FunctionSchema,
    check_signature,
    infer,
    infer_schema,
    kernel_convention,
    parse,
)

__all__ = [
    "Library",
    "custom_op",
    "define",
    "impl",
    "infer_schema",
    "override",
    "register_autograd",
    "register_fake",
    "register_functional",
    "register_kernel",
    "register_samples",
    "register_view",
    "register_vjp",
    "scoped_library",
]

AnyOperator: TypeAlias = Operator[..., Any]
OpLike: TypeAlias = str | AnyOperator | OperatorPacket | Registration
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_KINDS: Final = ("DEF", "FRAGMENT", "IMPL")
_ABOVE_BACKENDS: Final = ("Meta", AUTOGRAD_KEY, COMPOSITE_EXPLICIT, COMPOSITE_IMPLICIT)


# ---------------------------------------------------------------------- libraries


class Library:
    """A scope for registrations in one namespace.

    Dropping it changes nothing: operators belong to the registry. ``close()``, or leaving
    ``with Library(...)``, removes what was registered through it.

    Parameters
    ----------
    ns : str
        The namespace.
    kind : {"DEF", "FRAGMENT", "IMPL"}
        ``DEF`` owns the namespace, ``FRAGMENT`` adds operators to it, ``IMPL`` only implements.
    dispatch_key : str
        Default key of `impl`, for ``IMPL`` libraries.

    Raises
    ------
    RegistrationError
        For another kind, a namespace that is not an identifier, or a second live ``DEF``.

    Examples
    --------
    >>> import oplib
    >>> with oplib.Library("doc", "FRAGMENT") as lib:
    ...     _ = lib.define("twice(Tensor x) -> Tensor")
    ...     _ = lib.impl("twice", lambda x: 2 * x, "CPU")
    ...     print(oplib.ops.doc.twice(oplib.tensor([1.0])))
    Tensor([2.])
    """

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        source = calling_source()
        if kind not in _KINDS:
            raise RegistrationError(
                f"a library is DEF, FRAGMENT or IMPL, got {kind!r}{did_you_mean(str(kind), _KINDS)}"
            )
        _check_identifier(ns, "a namespace")
        if dispatch_key and kind != "IMPL":
            raise RegistrationError(f"a {kind} library takes no dispatch key; use kind 'IMPL'")
        if kind == "DEF":
            _claim_namespace(ns, self, source)
        self.ns = ns
        self.kind = kind
        self.dispatch_key = canonical_key(dispatch_key) if dispatch_key else ""
        self.source = source
        self._undo: list[Callable[[], None]] = []
        self._closed_at: Source | None = None

    def define(
        self,
        schema: str,
        *,
        tags: TagsLike = (),
        effects: Any = None,
        override: bool = False,
    ) -> Registration:
        """Define an operator of this namespace from its schema.

        Returns
        -------
        Registration
            Usable wherever an operator is named; its ``str`` is the qualified name.

        Raises
        ------
        SchemaError
            If the schema breaks a rule of the language.
        RegistrationError
            If the operator is defined elsewhere, or this library cannot define.
        """
        source = calling_source()
        if self.kind == "IMPL":
            raise RegistrationError(f"an IMPL library cannot define {schema!r}; use FRAGMENT")
        parsed = parse(schema)
        if parsed.namespace and parsed.namespace != self.ns:
            raise RegistrationError(
                f"{parsed.qualname} does not belong to namespace {self.ns!r} of this library"
            )
        named = parsed.named(self.ns, parsed.name, parsed.overload_name)
        return self.keep(_define(named, tags, effects, source, override))

    def impl(self, op: OpLike, fn: Callable[..., Any], key: str = "", **entry: Any) -> Registration:
        """Register a kernel for an operator of this namespace.

        Parameters
        ----------
        op : str, Operator or Registration
            ``"name"``, ``"name.overload"``, a qualified name, an operator, or what `define` gave.
        fn : callable
            At a backend key it receives that backend's arrays, elsewhere Tensors.
        key : str
            A dispatch key or device name; ``CompositeImplicitAutograd`` when neither this nor the
            library names one.
        **entry
            ``provider, dtypes, supports, priority, contiguous, dtype, on_alias``.
        """
        source = calling_source()
        key = self._key(key)
        name = self._qualify(op)
        if isinstance(name, str) and self.kind == "IMPL" and not registry.has_op(name):
            return self._impl_later(name, fn, key, entry, source)
        return self.keep(_register_kernel(_resolve(name), fn, key, entry, source))

    def _key(self, key: str) -> str:
        if not key:
            return self.dispatch_key or COMPOSITE_IMPLICIT
        key = canonical_key(key)
        if self.dispatch_key and key != self.dispatch_key:
            raise RegistrationError(
                f"this library implements {self.dispatch_key}; {key} is inconsistent with that"
            )
        return key

    def _qualify(self, op: OpLike) -> OpLike:
        if isinstance(op, str) and "::" not in op:
            return f"{self.ns}::{op}"
        name = op if isinstance(op, str) else op.qualname if not isinstance(op, Registration) else str(op)
        if not name.startswith(self.ns + "::"):
            raise RegistrationError(f"{name} does not belong to namespace {self.ns!r}")
        return op

    def _impl_later(
        self, name: str, fn: Callable[..., Any], key: str, entry: dict[str, Any], source: Source
    ) -> Any:
        def attach(op: AnyOperator) -> None:
            self.keep(_register_kernel(op, fn, key, entry, source))

        undo = registry.add_pending(registry.PendingKernel(name, key, source, attach))
        self._undo.append(undo)
        return None

    def keep(self, registration: Registration) -> Registration:
        """Bind the lifetime of a registration to this library."""
        if self._closed_at is not None:
            registration.remove()
            raise RegistrationError(f"this library was closed at {self._closed_at}")
        self._undo.append(registration.remove)
        return registration

    def close(self) -> None:
        """Remove everything registered through this library, newest first; idempotent."""
        if self._closed_at is None:
            self._closed_at = calling_source()
            while self._undo:
                self._undo.pop()()
            _release_namespace(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " (closed)" if self._closed_at else ""
        return f"<Library {self.ns!r} {self.kind} {self.dispatch_key}{state}>"


_namespace_owners: Final[dict[str, Library]] = {}


def _claim_namespace(ns: str, library: Library, source: Source) -> None:
    if ns == "std":
        raise RegistrationError("namespace 'std' is oplib's own; use kind 'FRAGMENT' to add to it")
    owner = _namespace_owners.get(ns)
    if owner is not None and not owner.source.same_as(source):
        raise RegistrationError(
            f"namespace {ns!r} has an owner already\n  there  {owner.source}\n  here   {source}\n"
            "  use kind 'FRAGMENT' to add operators to it"
        )
    _namespace_owners[ns] = library


def _release_namespace(library: Library) -> None:
    if _namespace_owners.get(library.ns) is library:
        del _namespace_owners[library.ns]


def _check_identifier(text: object, what: str) -> None:
    if not isinstance(text, str) or not text.isidentifier() or not text.isascii():
        raise RegistrationError(f"{what} is an identifier, got {text!r}")


@contextmanager
def scoped_library(
    ns: str | None = None, kind: str = "FRAGMENT", dispatch_key: str = ""
) -> Iterator[Library]:
    """Yield a library that is closed on exit; without `ns` in a fresh namespace."""
    if ns is None:
        known = {name.partition("::")[0] for name in registry.list_ops()}
        ns = next(f"scoped_{i}" for i in range(len(known) + 1) if f"scoped_{i}" not in known)
    with Library(ns, kind, dispatch_key) as library:
        yield library


@dataclass(slots=True)
class _OverrideScope:
    names: frozenset[str]
    made: list[Registration] = field(default_factory=list)


@contextmanager
def override(*names: str, keep: bool = False) -> Iterator[None]:
    """Permit redefining the named operators (all without names) and undo it on exit.

    Parameters
    ----------
    *names : str
        Qualified names.
    keep : bool
        Keep what was registered inside.
    """
    scope = _OverrideScope(frozenset(names))
    try:
        with _state.enter(_state.current().with_config(override=scope)):
            yield
    finally:
        if not keep:
            for registration in reversed(scope.made):
                registration.remove()


# ---------------------------------------------------------------------- defining


def define(
    qualname: str,
    schema: str,
    *,
    lib: Library | None = None,
    tags: TagsLike = (),
    effects: Any = None,
    override: bool = False,
) -> Registration:
    """Define an operator from a qualified name and a nameless schema ``"(...) -> ..."``."""
    source = calling_source()
    namespace, name, overload_name = _split_name(qualname, "define")
    parsed = parse(schema, nameless=True).named(namespace, name, overload_name)
    return _kept(_define(parsed, tags, effects, source, override), lib)


def _split_name(qualname: str, who: str) -> tuple[str, str, str]:
    form = f"{who} takes a name of the form 'ns::name' or 'ns::name.overload', got {qualname!r}"
    if not isinstance(qualname, str) or qualname.count("::") != 1:
        raise RegistrationError(form)
    namespace, rest = qualname.split("::")
    name, dot, overload_name = rest.partition(".")
    parts = [namespace, name, *([overload_name] if dot else [])]
    if not all(part.isidentifier() and part.isascii() for part in parts):
        raise RegistrationError(form)
    if overload_name == "default":
        raise RegistrationError(f"{form}; the unnamed overload is written without a dot")
    return namespace, name, overload_name


def _define(
    schema: FunctionSchema, tags: TagsLike, effects: Any, source: Source, override: bool
) -> Registration:
    registration = registry.define(
        schema,
        tags=normalize_tags(tags, schema),
        effects=normalize_effects(effects, schema),
        source=source,
        override=override,
    )
    op = registration.op
    op.__signature__ = signature_of(schema)
    op.__module__ = _module_of_caller()
    return registration


def _module_of_caller() -> str:
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("oplib"):
        name = frame.f_globals["__name__"]
        if name.startswith("oplib.std.") and name != "oplib.std.declare":
            break
        frame = frame.f_back
    return frame.f_globals.get("__name__", "__main__") if frame is not None else "__main__"


def _kept(registration: Registration, lib: Library | None) -> Registration:
    return registration if lib is None else lib.keep(registration)


def _resolve(op: OpLike) -> AnyOperator:
    """Return the operator that a registration names."""
    if isinstance(op, Operator):
        op.raise_if_removed()
        return op
    if isinstance(op, OperatorPacket):
        return op.single
    if isinstance(op, Registration):
        return _resolve(op.op)
    if isinstance(op, str):
        return registry.get_op(op)
    raise ArgumentError(
        f"expected an operator or its qualified name 'ns::name', got {short_repr(op)}"
    )


# ---------------------------------------------------------------------- custom_op


@overload
def custom_op(
    name: str,
    fn: Callable[P, R],
    /,
    *,
    mutates_args: Iterable[str] | str = ...,
    device_types: str | Iterable[str] | None = ...,
    schema: str | None = ...,
    tags: TagsLike = ...,
    effects: Any = ...,
    fake: Any = ...,
    lib: Library | None = ...,
    override: bool = ...,
    **entry: Any,
) -> Operator[P, R]: ...
@overload
def custom_op(
    name: str,
    fn: None = None,
    /,
    *,
    mutates_args: Iterable[str] | str = ...,
    device_types: str | Iterable[str] | None = ...,
    schema: str | None = ...,
    tags: TagsLike = ...,
    effects: Any = ...,
    fake: Any = ...,
    lib: Library | None = ...,
    override: bool = ...,
    **entry: Any,
) -> Callable[[Callable[P, R]], Operator[P, R]]: ...
def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: Any = None,
    device_types: str | Iterable[str] | None = None,
    schema: str | None = None,
    tags: TagsLike = (),
    effects: Any = None,
    fake: Any = None,
    lib: Library | None = None,
    override: bool = False,
    **entry: Any,
) -> Any:
    """Make an operator of a function: its schema is inferred, the function is its kernel.

    With ``numpy.ndarray`` annotations the function is a CPU kernel (or one for `device_types`) and
    receives arrays; with `oplib.Tensor` annotations it receives Tensors, below autograd, on every
    device.

    Parameters
    ----------
    name : str
        ``"ns::name"`` or ``"ns::name.overload"``.
    fn : callable, optional
        The function; without it a decorator is returned.
    mutates_args : iterable of str, or "unknown"
        Names of the arguments the function writes; required unless `schema` is given.
    device_types : str or iterable of str, optional
        Devices the kernel serves.
    schema : str, optional
        ``"(...) -> ..."`` instead of inference.
    fake : callable or shape rule, optional
        The fake rule.
    lib : Library, optional
        Binds the lifetime of everything registered to that library.

    Returns
    -------
    Operator
        Callable like the function, with the function's name, docstring and signature.

    Raises
    ------
    SchemaError
        If no schema can be inferred; the message names the parameter and what to type.
    RegistrationError
        If the name is taken, or the function does not fit the schema.

    Examples
    --------
    >>> import numpy as np, oplib
    >>> @oplib.custom_op("doc::half", mutates_args=())
    ... def half(x: np.ndarray) -> np.ndarray:
    ...     return x / 2
    >>> half(oplib.tensor([2.0, 4.0]))
    Tensor([1., 2.])
    """
    source = calling_source()
    namespace, op_name, overload_name = _split_name(name, "custom_op")
    if mutates_args is None and schema is None:
        raise RegistrationError(
            f"custom_op({name!r}) needs mutates_args: the names of the arguments that are written, "
            "or () for none"
        )

    def make(function: Callable[..., Any]) -> AnyOperator:
        parsed, convention, choices = _schema_of(function, mutates_args, schema, tags)
        parsed = parsed.named(namespace, op_name, overload_name)
        check_signature(function, parsed, "kernel")
        definition = _define(parsed, tags, effects, source, override)
        op: AnyOperator = definition.op
        try:
            op.choices = choices
            for key in _kernel_keys(device_types, convention):
                _register_kernel(op, function, key, entry, source, convention, override)
            if fake is not None:
                _register_fake(op, fake, source, override)
            _kept(definition, lib)
        except BaseException:
            definition.remove()
            raise
        functools.update_wrapper(op, function)
        op.__signature__ = _function_signature(function, parsed)
        return op

    return make if fn is None else make(fn)


def _schema_of(
    function: Any, mutates_args: Any, schema: str | None, tags: TagsLike
) -> tuple[FunctionSchema, Convention, dict[str, tuple[Any, ...]]]:
    """Return the nameless schema of a function, its convention, and its literal choices."""
    if schema is None:
        words = [tags] if isinstance(tags, str) else list(tags or ())
        found = infer(function, mutates_args=mutates_args, tags=tuple(words))
        return parse(found.text, nameless=True), found.convention or "array", dict(found.choices)
    parsed = parse(schema, nameless=True)
    if mutates_args is not None and set(mutates_args) != set(parsed.mutated_arguments):
        raise RegistrationError(
            f"schema and mutates_args disagree: {schema} writes "
            f"{list(parsed.mutated_arguments)}, mutates_args says {list(mutates_args)}"
        )
    return parsed, kernel_convention(function) or "array", {}


def _function_signature(function: Any, schema: FunctionSchema) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return signature_of(schema)


def _kernel_keys(devices: str | Iterable[str] | None, convention: Convention) -> list[str]:
    """Return the canonical keys that a custom_op's or register_kernel's devices name."""
    if devices is None:
        return ["CPU" if convention == "array" else COMPOSITE_EXPLICIT]
    keys = [canonical_key(d) for d in ([devices] if isinstance(devices, str) else devices)]
    if not keys:
        raise RegistrationError("device_types is empty, so nothing would run; None means any device")
    return keys


# ---------------------------------------------------------------------- kernels


def impl(*args: Any, **kwargs: Any) -> Any:
    """Register kernels: ``@impl(lib, op, key)`` or ``impl(qualname, keys, fn)``.

    The first form is a decorator that registers through a library and returns the function. The
    second takes a qualified name, one key or a sequence of keys, and the function (or, without it,
    is a decorator); `lib` binds its lifetime. Further keywords are those of `Library.impl`.

    Examples
    --------
    >>> import oplib
    >>> lib = oplib.Library("doc", "FRAGMENT")
    >>> _ = lib.define("thrice(Tensor x) -> Tensor")
    >>> @oplib.impl(lib, "thrice", "CPU")
    ... def thrice_cpu(x):
    ...     return 3 * x
    >>> oplib.ops.doc.thrice(oplib.tensor([1.0]))
    Tensor([3.])
    >>> lib.close()
    """
    if args and isinstance(args[0], Library):
        return _impl_in_library(*args, **kwargs)
    return _impl_by_name(*args, **kwargs)


def _impl_in_library(lib: Library, op: OpLike, key: str = "", **entry: Any) -> Callable[[F], F]:
    def decorate(fn: F) -> F:
        lib.impl(op, fn, key, **entry)
        return fn

    return decorate


def _impl_by_name(
    op: OpLike,
    keys: str | Iterable[str] = COMPOSITE_IMPLICIT,
    fn: Callable[..., Any] | None = None,
    *,
    lib: Library | None = None,
    **entry: Any,
) -> Any:
    source = calling_source()
    names = [keys] if isinstance(keys, str) else list(keys)
    canonical = [canonical_key(name) for name in names]

    def register(function: Callable[..., Any]) -> list[Registration]:
        operator = _resolve(op)
        return [_kept(_register_kernel(operator, function, k, entry, source), lib) for k in canonical]

    return _decorator_or_registration(fn, register)


def _decorator_or_registration(fn: Any, register: Callable[[Any], list[Registration]]) -> Any:
    """Register `fn` and return the registration, or return a decorator that returns its function."""
    if fn is not None:
        made = register(fn)
        return made[0] if len(made) == 1 else made

    def decorate(function: F) -> F:
        register(function)
        return function

    return decorate


def register_kernel(
    op: OpLike,
    devices: str | Iterable[str] | None,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    lib: Library | None = None,
    override: bool = False,
    **entry: Any,
) -> Any:
    """Register a kernel for one or several devices, or for all with None.

    Parameters
    ----------
    op : operator or qualified name
    devices : str, iterable of str, or None
        Device names or keys; None registers at ``CompositeExplicitAutograd``.
    fn : callable, optional
        The kernel; without it a decorator is returned.
    **entry
        ``provider, dtypes, supports, priority, contiguous, dtype, on_alias``.
    """
    source = calling_source()

    def register(function: Callable[..., Any]) -> list[Registration]:
        operator = _resolve(op)
        keys = [COMPOSITE_EXPLICIT] if devices is None else _kernel_keys(devices, "array")
        return [
            _kept(_register_kernel(operator, function, key, entry, source, None, override), lib)
            for key in keys
        ]

    return _decorator_or_registration(fn, register)


def _register_kernel(
    op: AnyOperator,
    fn: Callable[..., Any],
    key: str,
    entry: Mapping[str, Any],
    source: Source,
    convention: Convention | None = None,
    override: bool = False,
) -> Registration:
    """Validate and commit one kernel at one canonical key."""
    if key == "Meta":
        return _register_fake(op, fn, source, override)
    check_signature(fn, op.schema, f"kernel for {key}")
    if key in _ABOVE_BACKENDS:
        if kernel_convention(fn) == "array":
            raise RegistrationError(
                f"{op.qualname}: a kernel at {key} receives Tensors, but {function_site(fn)} "
                "is annotated with arrays; annotate it with oplib.Tensor or register it for 'cpu'"
            )
        convention = "tensor"
    _check_facets_agree(op, KERNEL, key)
    payload = _kernel_entry(op, fn, key, convention or kernel_convention(fn) or "array", entry)
    return registry.register(
        op,
        KERNEL,
        fn,
        payload,
        key=key,
        provider=payload.provider,
        source=source,
        override=override,
    )


_ENTRY_FIELDS: Final = (
    *("provider", "dtypes", "supports", "priority"),
    *("contiguous", "dtype", "on_alias", "with_keyset"),
)


def _kernel_entry(
    op: AnyOperator, fn: Any, key: str, convention: Convention, entry: Mapping[str, Any]
) -> KernelEntry:
    """Return the validated entry of a kernel."""
    for name in entry:
        if name not in _ENTRY_FIELDS:
            raise RegistrationError(
                f"{op.qualname}: a kernel has no option {name!r}{did_you_mean(name, _ENTRY_FIELDS)}; "
                f"known: {', '.join(_ENTRY_FIELDS)}"
            )
    fields = dict(entry)
    tensors = op.schema.differentiable_arguments
    contiguous = fields.pop("contiguous", ())
    if contiguous is True:
        contiguous = tensors
    elif isinstance(contiguous, str):
        contiguous = (contiguous,)
    for name in contiguous or ():
        if name not in tensors:
            raise RegistrationError(f"{op.qualname}: contiguous={name!r} names no tensor argument")
    if fields.get("dtype") is not None:
        fields["dtype"] = as_dtype(fields["dtype"])
    if fields.get("supports") is not None:
        check_signature(fields["supports"], op.schema, "predicate `supports`")
    if fields.get("on_alias", "error") not in ("error", "copy"):
        raise RegistrationError(f"{op.qualname}: on_alias is 'error' or 'copy'")
    fields["dtypes"] = _dtype_sets(op, fields.get("dtypes"))
    return KernelEntry(fn, key, convention, contiguous=tuple(contiguous or ()), **fields)


def _dtype_sets(op: AnyOperator, dtypes: Any) -> Any:
    """Return the dtypes option as frozensets: one for all arguments, or one per argument."""
    if dtypes is None:
        return None
    if isinstance(dtypes, Mapping):
        for name in dtypes:
            if name not in op.schema.differentiable_arguments:
                raise RegistrationError(f"{op.qualname}: dtypes names no tensor argument {name!r}")
        return {name: _dtype_set(value) for name, value in dtypes.items()}
    return _dtype_set(dtypes)


def _dtype_set(value: Any) -> frozenset[np.dtype[Any]]:
    single = isinstance(value, str | type | np.dtype)
    return frozenset(as_dtype(dtype) for dtype in ([value] if single else value))


def _check_facets_agree(op: AnyOperator, facet: str, key: str = "") -> None:
    """Refuse facets that exclude each other, whichever comes second."""
    implicit = bool(op.entries(COMPOSITE_IMPLICIT))
    gradient = op.gradient_rule is not None
    fake = op.fake_rule is not None
    if facet == KERNEL and key == COMPOSITE_IMPLICIT and (gradient or fake):
        have = "gradient rule" if gradient else "fake rule"
        raise RegistrationError(
            f"{op.qualname} has a {have}, so a CompositeImplicitAutograd body would never be "
            "differentiated or traced through; register it at 'CompositeExplicitAutograd'"
        )
    if facet in (GRADIENT, FAKE) and implicit:
        raise RegistrationError(
            f"{op.qualname} decomposes (it has a CompositeImplicitAutograd kernel), so a {facet} "
            "would never be used; its body is the rule"
        )
    if facet == GRADIENT and op.entries(AUTOGRAD_KEY):
        raise RegistrationError(f"{op.qualname} has a kernel at Autograd; it cannot have a rule too")
    if facet == KERNEL and key == AUTOGRAD_KEY and gradient:
        raise RegistrationError(f"{op.qualname} has a gradient rule; it cannot have a kernel too")


# ---------------------------------------------------------------------- the other facets


def register_fake(
    op: OpLike,
    fn: Any = None,
    /,
    *,
    lib: Library | None = None,
    override: bool = False,
) -> Any:
    """Register the fake rule: a function of Tensors without data that returns empty results.

    It receives every argument, defaults filled in, and creates its results with `oplib.empty_like`,
    ``x.new_empty`` and the functions of `oplib.shapes`; or it is one of the shape rules there, such
    as ``like("x")``. It reads no values, writes nothing, and returns no argument.
    """
    source = calling_source()
    return _facet(
        fn, lambda function: _kept(_register_fake(_resolve(op), function, source, override), lib)
    )


def _register_fake(op: AnyOperator, fn: Any, source: Source, override: bool = False) -> Registration:
    _check_facets_agree(op, FAKE)
    for_schema = getattr(fn, "for_schema", None)
    rule = fn if for_schema is None else for_schema(op.schema)
    if for_schema is None:
        check_signature(fn, op.schema, "fake rule")
        if kernel_convention(fn) == "array":
            raise RegistrationError(
                f"{op.qualname}: the fake rule at {function_site(fn)} receives Tensors, "
                "but it is annotated with arrays"
            )
    return registry.register(op, FAKE, fn, rule, source=source, override=override)


def _facet(fn: Any, register: Callable[[Any], Registration]) -> Any:
    """Register `fn` and return it, or return a decorator."""

    def decorate(function: F) -> F:
        register(function)
        return function

    return decorate if fn is None else decorate(fn)


def register_vjp(
    op: OpLike,
    fn: Any = None,
    /,
    *,
    lib: Library | None = None,
    override: bool = False,
    materialize_grads: bool = True,
    **per_argument: Callable[..., Any] | None,
) -> Any:
    """Register a named gradient rule: one function, or one per argument.

    The parameter names of a function say what it needs: ``grad`` (``grad_<return>`` or ``grads``
    with several returns), any argument, any return (``out`` for a single unnamed one), or
    ``<argument>_spec`` for shape and dtype without data. Only what is named is saved.

    A function per argument (keyword, or a mapping given by position) returns that argument's
    gradient and runs only when it is needed; None declares the argument non-differentiable. A
    single function returns a tuple in the order of the tensor arguments, or a dict by name.

    For an operator that writes, an argument's name means its value before the call and
    ``new_<name>`` the value after; the rule is that of the functional twin.

    Examples
    --------
    >>> import numpy as np, oplib
    >>> lib = oplib.Library("doc", "FRAGMENT")
    >>> _ = lib.define("product(Tensor x, Tensor y) -> Tensor")
    >>> _ = lib.impl("product", np.multiply, "CPU")
    >>> oplib.register_vjp("doc::product", x=lambda grad, y: grad * y, y=lambda grad, x: grad * x)
    >>> x = oplib.tensor([2.0], requires_grad=True)
    >>> oplib.ops.doc.product(x, oplib.tensor([5.0])).backward()
    >>> x.grad
    Tensor([5.])
    >>> lib.close()
    """
    source = calling_source()
    if isinstance(fn, Mapping):
        per_argument, fn = {**fn, **per_argument}, None
    if fn is None and not per_argument:

        def decorate(function: F) -> F:
            _register_vjp(op, function, {}, lib, override, materialize_grads, source)
            return function

        return decorate
    if fn is not None and per_argument:
        raise RegistrationError("register_vjp takes one function for all arguments, or one for each")
    _register_vjp(op, fn, per_argument, lib, override, materialize_grads, source)
    return fn


def _register_vjp(
    op: OpLike,
    fused: Any,
    per_argument: Mapping[str, Any],
    lib: Library | None,
    override: bool,
    materialize_grads: bool,
    source: Source,
) -> None:
    operator = _resolve(op)
    _check_facets_agree(operator, GRADIENT)
    rule = named_rule(operator.schema, fused, per_argument, materialize_grads)
    function = fused if fused is not None else dict(per_argument)
    made = registry.register(operator, GRADIENT, function, rule, source=source, override=override)
    _kept(made, lib)


def register_autograd(
    op: OpLike,
    backward: Callable[..., Any] | None = None,
    /,
    *,
    setup_context: Callable[..., Any] | None = None,
    lib: Library | None = None,
    override: bool = False,
) -> Any:
    """Register a gradient rule in ctx style: ``backward(ctx, *grads)``.

    ``setup_context(ctx, inputs, output)`` runs after a recorded call and saves what backward
    needs: ``ctx.save_for_backward(...)``, attributes. `backward` gets one gradient per return and
    gives one per tensor argument, one per argument (None for the others), or a dict by name.
    """
    source = calling_source()

    def register(function: Callable[..., Any]) -> Registration:
        operator = _resolve(op)
        _check_facets_agree(operator, GRADIENT)
        rule = ctx_rule(operator.schema, function, setup_context)
        made = registry.register(
            operator, GRADIENT, function, rule, source=source, override=override
        )
        return _kept(made, lib)

    return _facet(backward, register)


def register_functional(
    op: OpLike,
    twin: Any = None,
    /,
    *,
    pre_state: bool = False,
    lib: Library | None = None,
    override: bool = False,
) -> Any:
    """Register the functional twin of an operator that writes.

    The twin (an operator, or a function of Tensors) takes the same arguments and returns the fresh
    results, then one new value per written argument. ``pre_state=True`` states that the in-place
    kernel computes from the state before the call.
    """
    source = calling_source()

    def register(function: Any) -> Registration:
        operator = _resolve(op)
        if not operator.schema.is_mutable:
            raise RegistrationError(f"{operator.qualname} writes nothing; a twin has no effect")
        callee = function if callable(function) else _resolve(function)
        payload = TwinRule(callee, pre_state)
        made = registry.register(
            operator, FUNCTIONAL, function, payload, source=source, override=override
        )
        return _kept(made, lib)

    return _facet(twin, register)


def register_view(
    op: OpLike, rule: Any = None, /, *, lib: Library | None = None, override: bool = False
) -> Any:
    """Register the geometry of a view operator: ``rule(geometry, *other_arguments) -> Geometry``."""
    source = calling_source()

    def register(function: Any) -> Registration:
        operator = _resolve(op)
        if not operator.schema.is_view:
            raise RegistrationError(
                f"{operator.qualname} is no view operator; declare it: Tensor(a) x -> Tensor(a)"
            )
        made = registry.register(
            operator, VIEW_RULE, function, function, source=source, override=override
        )
        return _kept(made, lib)

    return _facet(rule, register)


def register_samples(
    op: OpLike, fn: Any = None, /, *, lib: Library | None = None, override: bool = False
) -> Any:
    """Register a function that yields ``(args, kwargs)`` of valid calls, for `opcheck`."""
    source = calling_source()

    def register(function: Any) -> Registration:
        made = registry.register(
            _resolve(op), SAMPLES, function, function, source=source, override=override
        )
        return _kept(made, lib)

    return _facet(fn, register)


def _install_operator_methods() -> None:
    """Make every ``register_*`` a method of `Operator`, without its first argument."""
    for function in (
        register_kernel,
        register_fake,
        register_vjp,
        register_autograd,
        register_functional,
        register_view,
        register_samples,
    ):
        setattr(Operator, function.__name__, function)


_install_operator_methods()
