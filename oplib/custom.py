"""`custom_op`: an operator from one function, its schema inferred and the function its kernel.

Imports floors 0 to 3, `library.py` and above. Read next: `shapes/`, then `std/elementwise.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, ParamSpec, TypeVar, overload

from ._text import join_names
from .definitions import described, split_name
from .dispatch import ledger
from .dispatch.bind import device_argument
from .dispatch.facets import Convention, Facet, calling_source
from .dispatch.keys import COMPOSITE_EXPLICIT
from .dispatch.operator import Operator
from .dispatch.tags import TagsLike
from .errors import RegistrationError
from .facet_registration import AnyOperator
from .kernels import fake_facet, kernel_facet, kernel_keys
from .library import Library
from .schema import FunctionSchema, check_signature, infer, kernel_convention, parse

__all__ = ["custom_op"]

P = ParamSpec("P")
R = TypeVar("R")
Mutates = Iterable[str] | Literal["unknown"]


@overload
def custom_op(
    name: str,
    fn: Callable[P, R],
    /,
    *,
    mutates_args: Mutates = ...,
    device_types: str | Iterable[str] | None = ...,
    schema: str | None = ...,
    tags: TagsLike = ...,
    effects: Any = ...,
    fake: Any = ...,
    lib: Library | None = ...,
    override: bool = ...,
    **options: Any,
) -> Operator[P, R]: ...
@overload
def custom_op(
    name: str,
    fn: None = None,
    /,
    *,
    mutates_args: Mutates = ...,
    device_types: str | Iterable[str] | None = ...,
    schema: str | None = ...,
    tags: TagsLike = ...,
    effects: Any = ...,
    fake: Any = ...,
    lib: Library | None = ...,
    override: bool = ...,
    **options: Any,
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
    **options: Any,
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
    tags, effects
        As for `Library.define`.
    fake : callable or shape rule, optional
        The fake rule.
    lib : Library, optional
        Binds the lifetime of everything registered to that library.
    override : bool
        Stack on top of an operator of that name defined elsewhere.
    **options
        As for `register_kernel`.

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
    namespace, op_name, overload_name = split_name(name, "custom_op")
    if mutates_args is None and schema is None:
        raise RegistrationError(
            f"custom_op({name!r}) needs mutates_args: the names of the arguments that are written, "
            "or () for none"
        )

    def make(function: Callable[..., Any]) -> AnyOperator:
        if lib is not None:
            lib.require_open()
        parsed, convention, choices = _interface(function, mutates_args, schema, tags)
        parsed = parsed.named(namespace, op_name, overload_name)
        facets = _facets(parsed, function, device_types, convention, options)
        if fake is not None:
            facets.append(fake_facet(parsed, fake))
        definition = described(
            parsed,
            tags,
            effects,
            choices=choices,
            arrays_in_arrays_out=convention == "array",
        )
        made = ledger.define(definition, facets, source=source, override=override)
        if lib is not None:
            lib.keep(made)
        return _dressed(made.op, function)

    return make if fn is None else make(fn)


def _interface(
    function: Any, mutates_args: Any, schema: str | None, tags: TagsLike
) -> tuple[FunctionSchema, Convention, Mapping[str, tuple[Any, ...]]]:
    """Return the nameless schema of a function, its convention, and its literal choices."""
    if schema is None:
        words = [tags] if isinstance(tags, str) else list(tags or ())
        found = infer(function, mutates_args=mutates_args, tags=tuple(map(str, words)))
        return parse(found.text, nameless=True), found.convention or "array", found.choices
    parsed = parse(schema, nameless=True)
    if mutates_args is not None:
        _check_agreement(parsed, schema, mutates_args)
    return parsed, kernel_convention(function) or "array", {}


def _check_agreement(parsed: FunctionSchema, schema: str, mutates_args: Any) -> None:
    """Refuse a schema and ``mutates_args`` that say different things."""
    named = set(mutates_args) if mutates_args != "unknown" else set(parsed.differentiable_arguments)
    if named != set(parsed.mutated_arguments):
        written = join_names(parsed.mutated_arguments) or "nothing"
        said = join_names(sorted(named)) or "nothing"
        raise RegistrationError(
            f"schema and mutates_args disagree: {schema} writes {written}, mutates_args says {said}"
            "\n  leave mutates_args out; the schema says it"
        )


def _facets(
    schema: FunctionSchema,
    function: Any,
    device_types: str | Iterable[str] | None,
    convention: Convention,
    options: Mapping[str, Any],
) -> list[Facet]:
    """Return the kernels that a function is."""
    check_signature(function, schema, "function")
    if device_types is None:
        keys = ["CPU" if convention == "array" else COMPOSITE_EXPLICIT]
    else:
        keys = kernel_keys(device_types)
        if not schema.differentiable_arguments and device_argument(schema) is None:
            raise RegistrationError(
                f"{schema.qualname} has no tensor argument, so nothing would choose among devices\n"
                "  add an argument `device: oplib.Device | None = None`, or leave device_types out"
            )
    return [kernel_facet(schema, function, key, options) for key in keys]


def _dressed(op: AnyOperator, function: Any) -> AnyOperator:
    """Give an operator the name, docstring, module and signature of its function."""
    functools.update_wrapper(op, function)
    if not op.__doc__:
        del op.__doc__  # that of an operator says what is registered on it
    try:
        op.__signature__ = inspect.signature(function)
    except (TypeError, ValueError):
        op.__dict__.pop("__signature__", None)  # a built-in does not tell; the schema does
    return op
