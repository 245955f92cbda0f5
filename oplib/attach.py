"""Attaching kernels and fake rules: validated against the schema, then committed.

What every form of registration shares: which operator is meant, whether a function fits, whether
facets exclude each other, and how a decorator answers. `library.py`, `facet_registration.py` and
`custom.py` are the public forms.

Imports floors 0 to 3. Read next: `library.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np

from ._text import did_you_mean, function_site, short_repr
from .dispatch import registry
from .dispatch.facets import FAKE, GRADIENT, KERNEL, Convention, KernelEntry, Registration, Source
from .dispatch.keys import AUTOGRAD_KEY, COMPOSITE_EXPLICIT, COMPOSITE_IMPLICIT, canonical_key
from .dispatch.operator import Operator, OperatorPacket
from .dtypes import as_dtype
from .errors import ArgumentError, RegistrationError
from .schema import check_signature, kernel_convention

__all__ = [
    "AnyOperator",
    "Keeper",
    "OpLike",
    "attach_fake",
    "attach_kernel",
    "check_facets_agree",
    "decorator_or_function",
    "decorator_or_registration",
    "kept",
    "kernel_keys",
    "resolve_operator",
]

AnyOperator: TypeAlias = Operator[..., Any]
OpLike: TypeAlias = str | AnyOperator | OperatorPacket | Registration
F = TypeVar("F", bound=Callable[..., Any])

_ABOVE_BACKENDS: Final = ("Meta", AUTOGRAD_KEY, COMPOSITE_EXPLICIT, COMPOSITE_IMPLICIT)


class Keeper(Protocol):
    """What binds the lifetime of registrations: a `Library`."""

    def keep(self, registration: Registration) -> Registration:
        """Remove `registration` when this is closed."""
        ...


def kept(registration: Registration, lib: Keeper | None) -> Registration:
    """Return a registration after binding its lifetime to `lib`, if there is one."""
    return registration if lib is None else lib.keep(registration)


def resolve_operator(op: OpLike) -> AnyOperator:
    """Return the operator that a registration names."""
    if isinstance(op, Operator):
        op.raise_if_removed()
        return op
    if isinstance(op, OperatorPacket):
        return op.single
    if isinstance(op, Registration):
        return resolve_operator(op.op)
    if isinstance(op, str):
        return registry.get_op(op)
    raise ArgumentError(
        f"expected an operator or its qualified name 'ns::name', got {short_repr(op)}"
    )


def kernel_keys(devices: str | Iterable[str] | None, convention: Convention) -> list[str]:
    """Return the canonical keys that a custom_op's or register_kernel's devices name."""
    if devices is None:
        return ["CPU" if convention == "array" else COMPOSITE_EXPLICIT]
    keys = [canonical_key(d) for d in ([devices] if isinstance(devices, str) else devices)]
    if not keys:
        raise RegistrationError(
            "device_types is empty, so nothing would run; None means any device"
        )
    return keys


def decorator_or_registration(fn: Any, register: Callable[[Any], list[Registration]]) -> Any:
    """Register `fn` and return the registration, or return a decorator."""
    if fn is not None:
        made = register(fn)
        return made[0] if len(made) == 1 else made

    def decorate(function: F) -> F:
        register(function)
        return function

    return decorate


def decorator_or_function(fn: Any, register: Callable[[Any], Registration]) -> Any:
    """Register `fn` and return it, or return a decorator."""

    def decorate(function: F) -> F:
        register(function)
        return function

    return decorate if fn is None else decorate(fn)


def attach_kernel(
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
        return attach_fake(op, fn, source, override)
    check_signature(fn, op.schema, f"kernel for {key}")
    if key in _ABOVE_BACKENDS:
        if kernel_convention(fn) == "array":
            raise RegistrationError(
                f"{op.qualname}: a kernel at {key} receives Tensors, but {function_site(fn)} "
                "is annotated with arrays; annotate it with oplib.Tensor or register it for 'cpu'"
            )
        convention = "tensor"
    check_facets_agree(op, KERNEL, key)
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
            hint = did_you_mean(name, _ENTRY_FIELDS)
            raise RegistrationError(
                f"{op.qualname}: a kernel has no option {name!r}{hint}; "
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


def check_facets_agree(op: AnyOperator, facet: str, key: str = "") -> None:
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
        raise RegistrationError(
            f"{op.qualname} has a kernel at Autograd; it cannot have a rule too"
        )
    if facet == KERNEL and key == AUTOGRAD_KEY and gradient:
        raise RegistrationError(f"{op.qualname} has a gradient rule; it cannot have a kernel too")


def attach_fake(op: AnyOperator, fn: Any, source: Source, override: bool = False) -> Registration:
    """Validate and commit a fake rule: a function, or a shape rule bound to the schema."""
    check_facets_agree(op, FAKE)
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
