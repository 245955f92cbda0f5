"""Registration: how operators come to exist.

Two verbs: `define` (or `Library.define`) makes an operator from a schema, `impl` gives it kernels.
`custom_op` in `custom.py` does both at once from one function, ``register_*`` in
`facet_registration.py` adds everything else. Each of them validates first and commits last,
remembers the file:line it was called from, and can be undone.

Imports floors 0 to 3, `kernels.py`, `definitions.py`, `facet_registration.py`. Read next:
`custom.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

from . import _state
from ._text import did_you_mean, short_repr
from .definitions import described, is_identifier, split_name
from .dispatch import ledger, pending, registry
from .dispatch.facets import Facet, Registration, Source, Undoable, Unique, calling_source
from .dispatch.keys import COMPOSITE_IMPLICIT, canonical_key
from .dispatch.tags import TagsLike
from .errors import ArgumentError, RegistrationError
from .facet_registration import AnyOperator, OpLike, commit, register_facets
from .kernels import kernel_facet, kernel_keys
from .schema import parse

__all__ = ["Library", "define", "impl", "override", "scoped_library"]

F = TypeVar("F", bound=Callable[..., Any])

_KINDS: Final = ("DEF", "FRAGMENT", "IMPL")
_fresh_namespaces: Final = itertools.count()


# ---------------------------------------------------------------------- libraries


class Library(Unique):
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
        self.source = calling_source()
        if kind not in _KINDS:
            hint = did_you_mean(str(kind), _KINDS)
            raise RegistrationError(f"a library is DEF, FRAGMENT or IMPL, got {kind!r}{hint}")
        if not is_identifier(ns):
            raise RegistrationError(f"a namespace is an identifier, got {short_repr(ns)}")
        if dispatch_key and kind != "IMPL":
            raise RegistrationError(
                f"a {kind} library takes no dispatch key, got {dispatch_key!r}; use kind "
                "'IMPL', or name the key in impl"
            )
        self.ns = ns
        self.kind = kind
        self.dispatch_key = canonical_key(dispatch_key) if dispatch_key else ""
        self._kept: list[Undoable] = []
        self._prune_at = 64
        self._closed_at: Source | None = None
        if kind == "DEF":
            _claim_namespace(self)

    def define(
        self,
        schema: str,
        *,
        tags: TagsLike = (),
        effects: Any = None,
        override: bool = False,
    ) -> Registration:
        """Define an operator of this namespace from its schema.

        Parameters
        ----------
        schema : str
            ``"name(...) -> ..."`` or ``"name.overload(...) -> ..."``.
        tags : Tag, str, or iterable of them
            What passes may assume.
        effects : None, str, or iterable of str
            Side effects by name; None derives them, ``()`` declares that there are none.
        override : bool
            Stack on top of a definition made elsewhere.

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
        self.require_open()
        if self.kind == "IMPL":
            raise RegistrationError(
                f"an IMPL library cannot define {schema!r}; use kind 'FRAGMENT'"
            )
        parsed = parse(schema)
        if parsed.namespace and parsed.namespace != self.ns:
            raise RegistrationError(
                f"{parsed.qualname} does not belong to namespace {self.ns!r} of this library"
            )
        named = parsed.named(self.ns, parsed.name, parsed.overload_name)
        made = ledger.define(described(named, tags, effects), source=source, override=override)
        self.keep(made)
        return made

    def impl(
        self,
        op: OpLike,
        fn: Callable[..., Any],
        key: str = "",
        *,
        override: bool = False,
        **options: Any,
    ) -> Registration | pending.PendingKernel:
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
        override : bool
            Stack on top of a kernel registered elsewhere.
        **options
            As for `register_kernel`.

        Returns
        -------
        Registration
            Of an ``IMPL`` library given a name, a handle that follows the definitions of that name.
        """
        source = calling_source()
        self.require_open()
        key = self._key(key)
        name = self._qualified(op)
        if isinstance(op, str) and self.kind == "IMPL":
            return self._follow(name, fn, key, options, source, override)
        operator = registry.resolve(op if not isinstance(op, str) else name)
        facet = kernel_facet(operator.schema, fn, key, options)
        return commit(operator, [facet], source, self, override)[0]

    def _key(self, key: str) -> str:
        """Return the canonical key of a kernel."""
        if not key:
            return self.dispatch_key or COMPOSITE_IMPLICIT
        key = canonical_key(key)
        if self.dispatch_key and key != self.dispatch_key:
            raise RegistrationError(
                f"this library implements {self.dispatch_key} ({self.source}); {key} is "
                "inconsistent with that, use another library"
            )
        return key

    def _qualified(self, op: OpLike) -> str:
        """Return the qualified name that `op` means, which is of this namespace."""
        if isinstance(op, str):
            name = op if "::" in op else f"{self.ns}::{op}"
        else:
            name = registry.resolve(op).qualname
        if not name.startswith(f"{self.ns}::"):
            raise RegistrationError(
                f"{name} does not belong to namespace {self.ns!r} of this library"
            )
        return name.removesuffix(".default")

    def _follow(
        self,
        name: str,
        fn: Callable[..., Any],
        key: str,
        options: dict[str, Any],
        source: Source,
        override: bool,
    ) -> Registration | pending.PendingKernel:
        """Keep a kernel for every operator of this name, the present one included."""
        if not callable(fn):
            raise RegistrationError(f"the kernel for {name} is not callable: {short_repr(fn)}")

        def attach(op: AnyOperator) -> Registration:
            facet = kernel_facet(op.schema, fn, key, options)
            return ledger.register(op, [facet], source=source, override=override)[0]

        kernel = pending.PendingKernel(name, key, fn, source, attach)
        present = registry.get_op(name) if registry.has_op(name) else None
        if present is not None:
            kernel.qualname = present.qualname
            kernel.registration = attach(present)
        pending.add(kernel)
        self.keep(kernel)
        return kernel

    # ------------------------------------------------------------------ lifetime

    def require_open(self) -> None:
        """Raise `RegistrationError` if this library is closed."""
        if self._closed_at is not None:
            raise RegistrationError(
                f"library {self.ns!r} ({self.kind}, {self.source}) was closed at "
                f"{self._closed_at}; nothing can be registered through it"
            )

    def keep(self, made: Any) -> Any:
        """Bind the lifetime of a registration to this library."""
        self._kept.append(made)
        if len(self._kept) > self._prune_at:
            self._kept = [each for each in self._kept if _is_alive(each)]
            self._prune_at = 64 + 2 * len(self._kept)
        return made

    def close(self) -> None:
        """Remove everything registered through this library, newest first; idempotent."""
        if self._closed_at is None:
            self._closed_at = calling_source()
            while self._kept:
                self._kept.pop().remove()
            if _owners.get(self.ns) is self:
                del _owners[self.ns]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        key = f" at {self.dispatch_key}" if self.dispatch_key else ""
        state = "" if self._closed_at is None else ", closed"
        return f"<{self.kind} library {self.ns!r}{key}, {self.source}{state}>"


def _is_alive(made: Undoable) -> bool:
    return not isinstance(made, Registration) or made.active


_owners: Final[dict[str, Library]] = {}
"""The live ``DEF`` library of each namespace."""


def _claim_namespace(library: Library) -> None:
    ns = library.ns
    if ns == "std":
        raise RegistrationError("namespace 'std' is oplib's own; use kind 'FRAGMENT' to add to it")
    owner = _owners.get(ns)
    if owner is not None and not owner.source.same_as(library.source):
        raise RegistrationError(
            f"namespace {ns!r} has an owner already\n"
            f"  there  {owner.source}\n"
            f"  here   {library.source}\n"
            "  close() the first, or use kind 'FRAGMENT' to add operators to it"
        )
    _owners[ns] = library


@contextmanager
def scoped_library(
    ns: str | None = None, kind: str = "FRAGMENT", dispatch_key: str = ""
) -> Iterator[Library]:
    """Yield a library that is closed on exit; without `ns` in a fresh namespace."""
    fresh = f"scoped_{next(_fresh_namespaces)}"
    with Library(fresh if ns is None else ns, kind, dispatch_key) as library:
        yield library


@contextmanager
def override(*names: str, keep: bool = False) -> Iterator[None]:
    """Permit redefining the named operators (all without names) and undo it on exit.

    Parameters
    ----------
    *names : str
        Qualified names.
    keep : bool
        Keep what was registered inside.

    Examples
    --------
    >>> import oplib
    >>> with oplib.override("std::exp"):
    ...     _ = oplib.Library("std", "FRAGMENT").impl("exp", lambda x: x * 0, "CPU")
    ...     oplib.exp(oplib.ones(2))
    Tensor([0., 0.])
    >>> oplib.exp(oplib.zeros(2))
    Tensor([1., 1.])
    """
    for name in names:
        registry.has_op(name)  # a built-in that was not touched yet is defined now, outside
    scope = ledger.OverrideScope(frozenset(name.removesuffix(".default") for name in names))
    try:
        with _state.enter(_state.current().with_config(override=scope)):
            yield
    finally:
        if not keep:
            for registration in reversed(scope.made):
                registration.remove()


# ---------------------------------------------------------------------- define and impl


def define(
    qualname: str,
    schema: str,
    *,
    lib: Library | None = None,
    tags: TagsLike = (),
    effects: Any = None,
    override: bool = False,
) -> Registration:
    """Define an operator from a qualified name and a nameless schema ``"(...) -> ..."``.

    >>> import oplib
    >>> oplib.define("doc::scale", "(Tensor x, float by=1.0) -> Tensor").op
    <Operator doc::scale(Tensor x, float by=1.0) -> Tensor>
    """
    source = calling_source()
    namespace, name, overload_name = split_name(qualname, "define")
    if lib is not None:
        lib.require_open()
    if not isinstance(schema, str) or not schema.lstrip().startswith("("):
        raise RegistrationError(
            f'define({qualname!r}, ...) takes a schema without a name, "(Tensor x) -> Tensor", '
            f"got {short_repr(schema)}"
        )
    named = parse(schema, nameless=True).named(namespace, name, overload_name)
    made = ledger.define(described(named, tags, effects), source=source, override=override)
    return made if lib is None else lib.keep(made)


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


def _impl_in_library(lib: Library, op: OpLike, key: str = "", **options: Any) -> Callable[[F], F]:
    if not isinstance(key, str):
        raise ArgumentError(f"impl(lib, op, key) takes one key, got {short_repr(key)}")

    def decorate(fn: F) -> F:
        lib.impl(op, fn, key, **options)
        return fn

    return decorate


def _impl_by_name(
    op: OpLike,
    keys: str | Iterable[str] = COMPOSITE_IMPLICIT,
    fn: Callable[..., Any] | None = None,
    *,
    lib: Library | None = None,
    override: bool = False,
    **options: Any,
) -> Any:
    names = kernel_keys(keys)

    def facets(operator: AnyOperator, function: Any) -> list[Facet]:
        return [kernel_facet(operator.schema, function, key, options) for key in names]

    return register_facets(op, fn, facets, lib, override)
