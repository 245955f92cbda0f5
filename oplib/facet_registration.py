"""What is registered on an operator that exists: ``register_*``.

Every function takes an operator, a qualified name, what `define` returned, or a packet of one
overload; each is also a method of `Operator` without that argument. Called with a function it
returns the registration, which can be removed; as a decorator it returns the function. It validates
first and commits last, and remembers the file:line it was called from.

Imports floors 0 to 3, `kernels.py`. Read next: `library.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from ._record import replace
from ._text import function_site, short_repr
from .dispatch import ledger, registry
from .dispatch.facets import (
    AUTOCAST_RULE,
    FUNCTIONAL,
    GRADIENT,
    SAMPLES,
    VIEW_RULE,
    Facet,
    Registration,
    Source,
    TwinRule,
    calling_source,
)
from .dispatch.gradient_rule import ctx_rule, named_rule
from .dispatch.keys import COMPOSITE_EXPLICIT
from .dispatch.operator import Operator
from .dispatch.packet import OperatorPacket
from .dtypes import as_device, as_dtype, is_inexact, short_dtype
from .errors import RegistrationError
from .kernels import fake_facet, kernel_facet, kernel_keys
from .schema import FunctionSchema, Return, TensorType, Type, check_signature, map_tensors

__all__ = [
    "OpLike",
    "Scope",
    "commit",
    "install_operator_methods",
    "register_autocast",
    "register_autograd",
    "register_facets",
    "register_fake",
    "register_functional",
    "register_kernel",
    "register_samples",
    "register_view",
    "register_vjp",
]

AnyOperator: TypeAlias = Operator[..., Any]
OpLike: TypeAlias = str | AnyOperator | OperatorPacket | Registration
F = TypeVar("F", bound=Callable[..., Any])


class Scope(Protocol):
    """What binds the lifetime of registrations: a `Library`."""

    def require_open(self) -> None:
        """Raise if nothing can be registered any more."""
        ...

    def keep(self, registration: Registration) -> Registration:
        """Remove a registration when this scope ends."""
        ...


def commit(
    op: AnyOperator,
    facets: Sequence[Facet],
    source: Source,
    lib: Scope | None = None,
    override: bool = False,
) -> list[Registration]:
    """Register validated facets, all or none, and bind their lifetime to `lib`."""
    if lib is not None:
        lib.require_open()
    made = ledger.register(op, facets, source=source, override=override)
    if lib is not None:
        for registration in made:
            lib.keep(registration)
    return made


def register_facets(
    op: OpLike,
    fn: Any,
    facets: Callable[[AnyOperator, Any], Sequence[Facet]],
    lib: Scope | None,
    override: bool,
) -> Any:
    """Register the facets that `fn` is and return the registration, or a decorator that does."""
    source = calling_source()

    def register(function: Any) -> list[Registration]:
        operator = registry.resolve(op)
        return commit(operator, facets(operator, function), source, lib, override)

    def decorate(function: F) -> F:
        register(function)
        return function

    if fn is None:
        return decorate
    made = register(fn)
    return made[0] if len(made) == 1 else made


# ---------------------------------------------------------------------- kernels and shapes


def register_kernel(
    op: OpLike,
    devices: str | Iterable[str] | None,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    lib: Scope | None = None,
    override: bool = False,
    **options: Any,
) -> Any:
    """Register a kernel for one or several devices, or for all with None.

    Parameters
    ----------
    op : operator or qualified name
    devices : str, iterable of str, or None
        Device names or keys; None registers at ``CompositeExplicitAutograd``.
    fn : callable, optional
        The kernel; without it a decorator is returned. At a device it receives that backend's
        arrays (Tensors, if it is annotated so), with None it receives Tensors.
    lib : Library, optional
        Binds the lifetime of the registration.
    override : bool
        Stack on top of a kernel registered elsewhere.
    **options
        ``provider`` and ``priority``, by which several kernels at one key are told apart and
        chosen; ``dtypes`` (a set, or one per argument) and ``supports`` (a predicate), which limit
        the calls it takes; ``contiguous`` and ``dtype``, which prepare its arrays;
        ``on_alias="copy"``, which copies a result that shares memory with an argument.

    Returns
    -------
    Registration, or a list of them for several devices; the function if used as a decorator

    Examples
    --------
    >>> import numpy as np, oplib
    >>> with oplib.scoped_library("doc") as lib:
    ...     norm = lib.define("norm(Tensor x) -> Tensor").op
    ...     @norm.register_kernel("cpu", contiguous=True)
    ...     def norm_cpu(x):
    ...         return np.sqrt(x.ravel() @ x.ravel())
    ...     norm(oplib.tensor([3.0, 4.0]))
    Tensor(5.)
    """

    def facets(operator: AnyOperator, function: Any) -> list[Facet]:
        keys = [COMPOSITE_EXPLICIT] if devices is None else kernel_keys(devices)
        return [kernel_facet(operator.schema, function, key, options) for key in keys]

    return register_facets(op, fn, facets, lib, override)


def register_fake(
    op: OpLike,
    fn: Any = None,
    /,
    *,
    lib: Scope | None = None,
    override: bool = False,
) -> Any:
    """Register the fake rule: a function of Tensors without data that returns empty results.

    It receives every argument, defaults filled in, and creates its results with `oplib.empty_like`,
    ``x.new_empty`` and the functions of `oplib.shapes`; or it is one of the shape rules there, such
    as ``like("x")``. It reads no values, writes nothing, and returns no argument.
    """

    def facets(operator: AnyOperator, function: Any) -> list[Facet]:
        return [fake_facet(operator.schema, function)]

    return register_facets(op, fn, facets, lib, override)


# ---------------------------------------------------------------------- gradients


def register_vjp(
    op: OpLike,
    fn: Any = None,
    /,
    *,
    lib: Scope | None = None,
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
    >>> with oplib.scoped_library("doc") as lib:
    ...     product = lib.define("product(Tensor x, Tensor y) -> Tensor").op
    ...     _ = product.register_kernel("cpu", np.multiply)
    ...     _ = product.register_vjp(x=lambda grad, y: grad * y, y=lambda grad, x: grad * x)
    ...     x = oplib.tensor([2.0], requires_grad=True)
    ...     product(x, oplib.tensor([5.0])).backward()
    ...     x.grad
    Tensor([5.])
    """
    if isinstance(fn, Mapping):
        per_argument, fn = {**fn, **per_argument}, None
    if fn is not None and per_argument:
        raise RegistrationError(
            "register_vjp takes one function for all arguments, or one for each"
        )

    def facets(operator: AnyOperator, function: Any) -> list[Facet]:
        fused = None if per_argument else function
        rule = named_rule(operator.schema, fused, per_argument, materialize_grads)
        return [Facet(GRADIENT, function, rule)]

    return register_facets(op, dict(per_argument) or fn, facets, lib, override)


def register_autograd(
    op: OpLike,
    backward: Callable[..., Any] | None = None,
    /,
    *,
    setup_context: Callable[..., Any] | None = None,
    lib: Scope | None = None,
    override: bool = False,
) -> Any:
    """Register a gradient rule in ctx style: ``backward(ctx, *grads)``.

    ``setup_context(ctx, inputs, output)`` runs after a recorded call and saves what backward
    needs: ``ctx.save_for_backward(...)``, attributes. `backward` gets one gradient per return and
    gives one per tensor argument, one per argument (None for the others), or a dict by name.
    """

    def facets(operator: AnyOperator, function: Any) -> list[Facet]:
        return [Facet(GRADIENT, function, ctx_rule(operator.schema, function, setup_context))]

    return register_facets(op, backward, facets, lib, override)


# ---------------------------------------------------------------------- writes, views, samples


def register_functional(
    op: OpLike,
    twin: Any = None,
    /,
    *,
    pre_state: bool = False,
    lib: Scope | None = None,
    override: bool = False,
) -> Any:
    """Register the functional twin of an operator that writes.

    The twin (an operator, or a function of Tensors) takes the same arguments and returns the fresh
    results, then one new value per written argument. ``pre_state=True`` states that the in-place
    kernel computes from the state before the call.
    """

    def facets(operator: AnyOperator, function: Any) -> list[Facet]:
        if not operator.schema.is_mutable:
            raise RegistrationError(f"{operator.qualname} writes nothing; a twin has no effect")
        is_operator = isinstance(function, str | Operator | OperatorPacket | Registration)
        callee = registry.resolve(function) if is_operator else function
        _check_twin(operator.schema, callee)
        return [Facet(FUNCTIONAL, function, TwinRule(callee, pre_state))]

    return register_facets(op, twin, facets, lib, override)


def _check_twin(schema: FunctionSchema, twin: Any) -> None:
    """Refuse a twin that does not take the arguments, or does not return the new values."""
    if not isinstance(twin, Operator):
        check_signature(twin, schema, "functional twin")
        return
    expected, given = _twin_schema(schema), twin.schema
    takes = [(str(a.type), a.kwarg_only) for a in given.arguments]
    same = takes == [(str(a.type), a.kwarg_only) for a in expected.arguments]
    if not same or [r.type for r in given.returns] != [r.type for r in expected.returns]:
        raise RegistrationError(
            f"{given.qualname} is no functional twin of {schema}\n"
            f"  expected  {expected}\n"
            f"  got       {given}\n"
            "  a twin takes the same arguments and returns the fresh results, then the new values"
        )


def _twin_schema(schema: FunctionSchema) -> FunctionSchema:
    """Return the schema a functional twin has: nothing is written, new values are returned."""

    def fresh(kind: Type) -> Type:
        return map_tensors(kind, lambda tensor: TensorType())

    arguments = tuple(replace(argument, type=fresh(argument.type)) for argument in schema.arguments)
    returns = [
        Return(fresh(each.type), each.name)
        for i, each in enumerate(schema.returns)
        if schema.returned_argument(i) is None
    ]
    returns += [Return(fresh(schema.argument(name).type)) for name in schema.mutated_arguments]
    return FunctionSchema("", "twin", "", arguments, tuple(returns))


def register_view(
    op: OpLike, rule: Any = None, /, *, lib: Scope | None = None, override: bool = False
) -> Any:
    """Register the geometry of a view operator: ``rule(geometry, *others) -> Geometry``."""

    def facets(operator: AnyOperator, function: Any) -> list[Facet]:
        if not operator.schema.is_view:
            raise RegistrationError(
                f"{operator.qualname} is no view operator; declare it: Tensor(a) x -> Tensor(a)"
            )
        count = len(operator.schema.arguments)
        meaning = f"a geometry and the other {count - 1} arguments, by position"
        _require_positional(operator, function, "view rule", count, meaning)
        return [Facet(VIEW_RULE, function, function)]

    return register_facets(op, rule, facets, lib, override)


def register_samples(
    op: OpLike, fn: Any = None, /, *, lib: Scope | None = None, override: bool = False
) -> Any:
    """Register a function that yields ``(args, kwargs)`` of valid calls, for `opcheck`."""

    def facets(operator: AnyOperator, function: Any) -> list[Facet]:
        _require_positional(operator, function, "samples", 0, "no argument")
        return [Facet(SAMPLES, function, function)]

    return register_facets(op, fn, facets, lib, override)


def register_autocast(
    op: OpLike, device_type: str, dtype: Any, /, *, lib: Scope | None = None, override: bool = False
) -> Registration:
    """Make calls inside `oplib.amp.auto_cast` cast tensors of a device to `dtype`.

    The rule comes before the lists of `auto_cast`; each device has its own. Every float16,
    bfloat16 and float32 tensor is cast, in lists, optionals and keyword-only arguments too, but
    none that the operator writes or views. Inside the call autocast is off.

    Raises
    ------
    RegistrationError
        For a dtype that is neither float nor complex, and for an operator with nothing to cast.
    """
    source = calling_source()
    operator = registry.resolve(op)
    device, kind = as_device(device_type).type, as_dtype(dtype)
    if not is_inexact(kind):
        raise RegistrationError(
            f"{operator.qualname}: autocast casts to a float dtype, got {short_dtype(kind)}"
        )
    if not operator.schema.read_only_arguments:
        raise RegistrationError(f"{operator.qualname} has no argument that autocast could cast")
    facet = Facet(AUTOCAST_RULE, kind, kind, device)
    return commit(operator, [facet], source, lib, override)[0]


def _require_positional(
    op: AnyOperator, function: Any, what: str, count: int, meaning: str
) -> None:
    """Refuse what cannot be called with `count` positional arguments."""
    if not callable(function):
        raise RegistrationError(
            f"{op.qualname}: {what} must be callable, got {short_repr(function)}"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a built-in that does not tell
    try:
        signature.bind(*[None] * count)
    except TypeError:
        raise RegistrationError(
            f"{op.qualname}: {what} at {function_site(function)} must take {meaning}\n"
            f"  its signature is {signature}"
        ) from None


# ---------------------------------------------------------------------- methods


def install_operator_methods() -> None:
    """Make every ``register_*`` a method of `Operator`, without its first argument.

    Given a function and nothing else, a method is a bare decorator and returns the function.
    """
    for function in (
        register_kernel,
        register_fake,
        register_vjp,
        register_autograd,
        register_functional,
        register_view,
        register_samples,
        register_autocast,
    ):
        setattr(Operator, function.__name__, _method(function))


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(op: AnyOperator, /, *args: Any, **kwargs: Any) -> Any:
        made = function(op, *args, **kwargs)
        bare = isinstance(made, Registration) and len(args) == 1 and not kwargs
        return args[0] if bare and callable(args[0]) else made

    return method
