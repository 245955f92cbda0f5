"""Libraries: where operators are defined, and how long registrations live.

Three verbs make an operator. `define` (or `Library.define`) gives it a schema, `impl` gives it
kernels, the ``register_*`` functions of `facet_registration.py` give it everything else;
`custom_op` does the first two at once from one function. Each validates first and commits last,
remembers the file:line it was called from, and can be undone.

Imports floors 0 to 3, `attach.py`. Read next: `facet_registration.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from . import _state
from ._text import did_you_mean
from .attach import OpLike, attach_kernel, decorator_or_registration, kept, resolve_operator
from .dispatch import registry
from .dispatch.bind import signature_of
from .dispatch.facets import Registration, Source, calling_source
from .dispatch.keys import COMPOSITE_IMPLICIT, canonical_key
from .dispatch.operator import Operator
from .dispatch.tags import TagsLike, normalize_effects, normalize_tags
from .errors import RegistrationError
from .schema import FunctionSchema, parse

__all__ = [
    "Library",
    "define",
    "define_operator",
    "impl",
    "override",
    "scoped_library",
    "split_name",
]

AnyOperator = Operator[..., Any]
F = TypeVar("F", bound=Callable[..., Any])

_KINDS: Final = ("DEF", "FRAGMENT", "IMPL")


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
        return self.keep(define_operator(named, tags, effects, source, override))

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
            return self._impl_later(name, fn, key, entry, source)  # type: ignore[no-any-return]
        return self.keep(attach_kernel(resolve_operator(name), fn, key, entry, source))

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
        name = (
            op
            if isinstance(op, str)
            else op.qualname
            if not isinstance(op, Registration)
            else str(op)
        )
        if not name.startswith(self.ns + "::"):
            raise RegistrationError(f"{name} does not belong to namespace {self.ns!r}")
        return op

    def _impl_later(
        self, name: str, fn: Callable[..., Any], key: str, entry: dict[str, Any], source: Source
    ) -> Any:
        def attach(op: AnyOperator) -> None:
            self.keep(attach_kernel(op, fn, key, entry, source))

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
    namespace, name, overload_name = split_name(qualname, "define")
    parsed = parse(schema, nameless=True).named(namespace, name, overload_name)
    return kept(define_operator(parsed, tags, effects, source, override), lib)


def split_name(qualname: str, who: str) -> tuple[str, str, str]:
    """Return namespace, name and overload of a qualified name that `who` was given."""
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


def define_operator(
    schema: FunctionSchema, tags: TagsLike, effects: Any, source: Source, override: bool
) -> Registration:
    """Define an operator from a parsed schema, its tags and effects checked."""
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
        operator = resolve_operator(op)
        return [kept(attach_kernel(operator, function, k, entry, source), lib) for k in canonical]

    return decorator_or_registration(fn, register)
