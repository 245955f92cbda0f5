"""`custom_op`: an operator from one function, its schema inferred from the annotations.

Imports floors 0 to 3, `attach.py`, `library.py`. Read next: `shapes/`, then `std/elementwise.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, overload

from .attach import AnyOperator, attach_fake, attach_kernel, kept, kernel_keys
from .dispatch.bind import signature_of
from .dispatch.facets import Convention, calling_source
from .dispatch.operator import Operator
from .dispatch.tags import TagsLike
from .errors import RegistrationError
from .library import Library, define_operator, split_name
from .schema import FunctionSchema, check_signature, infer, kernel_convention, parse

__all__ = ["custom_op"]

P = ParamSpec("P")
R = TypeVar("R")


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
    namespace, op_name, overload_name = split_name(name, "custom_op")
    if mutates_args is None and schema is None:
        raise RegistrationError(
            f"custom_op({name!r}) needs mutates_args: the names of the arguments that are written, "
            "or () for none"
        )

    def make(function: Callable[..., Any]) -> AnyOperator:
        parsed, convention, choices = _schema_of(function, mutates_args, schema, tags)
        parsed = parsed.named(namespace, op_name, overload_name)
        check_signature(function, parsed, "kernel")
        definition = define_operator(parsed, tags, effects, source, override)
        op: AnyOperator = definition.op
        try:
            op.choices = choices
            for key in kernel_keys(device_types, convention):
                attach_kernel(op, function, key, entry, source, convention, override)
            if fake is not None:
                attach_fake(op, fake, source, override)
            kept(definition, lib)
        except BaseException:
            definition.remove()
            raise
        functools.update_wrapper(op, function)
        op.__signature__ = _function_signature(function, parsed)  # type: ignore[attr-defined]
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
