"""The facets of an operator beside its definition: ``register_kernel`` and its kin.

Every function takes an operator, a qualified name, or a packet of one overload; each is also a
method of `Operator` without that argument. Given the function it registers, it returns that
function, so it can be used as a decorator.

Imports floors 0 to 3, `attach.py`, `library.py`. Read next: `custom.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from .attach import (
    OpLike,
    attach_fake,
    attach_kernel,
    check_facets_agree,
    decorator_or_function,
    decorator_or_registration,
    kept,
    kernel_keys,
    resolve_operator,
)
from .dispatch import registry
from .dispatch.facets import (
    FUNCTIONAL,
    GRADIENT,
    SAMPLES,
    VIEW_RULE,
    Registration,
    Source,
    TwinRule,
    calling_source,
)
from .dispatch.gradient_rule import ctx_rule, named_rule
from .dispatch.keys import COMPOSITE_EXPLICIT
from .dispatch.operator import Operator
from .errors import RegistrationError
from .library import Library

__all__ = [
    "install_operator_methods",
    "register_autograd",
    "register_fake",
    "register_functional",
    "register_kernel",
    "register_samples",
    "register_view",
    "register_vjp",
]

F = TypeVar("F", bound=Callable[..., Any])


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
        operator = resolve_operator(op)
        keys = [COMPOSITE_EXPLICIT] if devices is None else kernel_keys(devices, "array")
        return [
            kept(attach_kernel(operator, function, key, entry, source, None, override), lib)
            for key in keys
        ]

    return decorator_or_registration(fn, register)


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
    return decorator_or_function(
        fn,
        lambda function: kept(attach_fake(resolve_operator(op), function, source, override), lib),
    )


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
        raise RegistrationError(
            "register_vjp takes one function for all arguments, or one for each"
        )
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
    operator = resolve_operator(op)
    check_facets_agree(operator, GRADIENT)
    rule = named_rule(operator.schema, fused, per_argument, materialize_grads)
    function = fused if fused is not None else dict(per_argument)
    made = registry.register(operator, GRADIENT, function, rule, source=source, override=override)
    kept(made, lib)


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
        operator = resolve_operator(op)
        check_facets_agree(operator, GRADIENT)
        rule = ctx_rule(operator.schema, function, setup_context)
        made = registry.register(
            operator, GRADIENT, function, rule, source=source, override=override
        )
        return kept(made, lib)

    return decorator_or_function(backward, register)


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
        operator = resolve_operator(op)
        if not operator.schema.is_mutable:
            raise RegistrationError(f"{operator.qualname} writes nothing; a twin has no effect")
        callee = function if callable(function) else resolve_operator(function)
        payload = TwinRule(callee, pre_state)
        made = registry.register(
            operator, FUNCTIONAL, function, payload, source=source, override=override
        )
        return kept(made, lib)

    return decorator_or_function(twin, register)


def register_view(
    op: OpLike, rule: Any = None, /, *, lib: Library | None = None, override: bool = False
) -> Any:
    """Register the geometry of a view operator: ``rule(geometry, *others) -> Geometry``."""
    source = calling_source()

    def register(function: Any) -> Registration:
        operator = resolve_operator(op)
        if not operator.schema.is_view:
            raise RegistrationError(
                f"{operator.qualname} is no view operator; declare it: Tensor(a) x -> Tensor(a)"
            )
        made = registry.register(
            operator, VIEW_RULE, function, function, source=source, override=override
        )
        return kept(made, lib)

    return decorator_or_function(rule, register)


def register_samples(
    op: OpLike, fn: Any = None, /, *, lib: Library | None = None, override: bool = False
) -> Any:
    """Register a function that yields ``(args, kwargs)`` of valid calls, for `opcheck`."""
    source = calling_source()

    def register(function: Any) -> Registration:
        made = registry.register(
            resolve_operator(op), SAMPLES, function, function, source=source, override=override
        )
        return kept(made, lib)

    return decorator_or_function(fn, register)


def install_operator_methods() -> None:
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
