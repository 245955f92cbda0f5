"""From the functions an author gives to a `GradientRule`.

A named rule says by its parameters what it needs: the incoming gradients, arguments, returns, or
the `TensorSpec` of an argument. Only what is named is saved.

Imports floors 0 and 1, `facets.py`, `operator.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from .._text import did_you_mean, function_site, join_names
from ..errors import RegistrationError
from ..schema import FunctionSchema
from .facets import BackwardRule, GradientRule

__all__ = [
    "ctx_rule",
    "derivative",
    "gradient_names",
    "named_rule",
    "rule_names",
    "written_unreturned",
]

SPEC_SUFFIX: Final = "_spec"
NEW_PREFIX: Final = "new_"


class derivative:
    """The gradient rule of an elementwise function, given by its derivative.

    The gradient is ``grad * conj(f'(x))``. As nothing else reads the incoming gradient, the product
    may be computed in its memory, which a rule that multiplies by itself cannot know.

    Parameters
    ----------
    function : callable
        Returns the derivative, in the shape of the result. Its parameters are words of a named
        rule: arguments and results, but no incoming gradient.

    Examples
    --------
    >>> import numpy as np, oplib
    >>> @oplib.custom_op("doc::cube", mutates_args=())
    ... def cube(x: np.ndarray) -> np.ndarray:
    ...     return x**3
    >>> rule = cube.register_vjp(x=oplib.derivative(lambda x: 3 * x * x))
    >>> x = oplib.tensor([2.0], requires_grad=True)
    >>> cube(x).backward()
    >>> x.grad
    Tensor([12.])
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        own = inspect.signature(function)
        grad = inspect.Parameter("grad", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.__signature__ = own.replace(parameters=[grad, *own.parameters.values()])

    def __call__(self, grad: Any, **words: Any) -> Any:
        """Return the gradient of the argument."""
        return grad * self.function(**words).conj()


def return_names(schema: FunctionSchema) -> list[str]:
    """Return what a rule calls each return: its name, ``out``, or ``out0``, ``out1``, ..."""
    count = len(schema.returns)
    names = []
    for i, ret in enumerate(schema.returns):
        written = schema.returned_argument(i)
        if written is not None:
            names.append(NEW_PREFIX + written)
        else:
            names.append(ret.name or ("out" if count == 1 else f"out{i}"))
    return names


def written_unreturned(schema: FunctionSchema) -> list[str]:
    """Return the written arguments that no return is, in schema order."""
    returned = {schema.returned_argument(i) for i in range(len(schema.returns))}
    return [name for name in schema.mutated_arguments if name not in returned]


def gradient_names(schema: FunctionSchema) -> list[list[str]]:
    """Return, per incoming gradient, the words a rule may call it by.

    Incoming gradients are those of the returns, then of the new values of written arguments that
    are not returned.
    """
    arguments = {a.name for a in schema.arguments}
    words = []
    for i, ret in enumerate(schema.returns):
        written = schema.returned_argument(i)
        plain = ret.name or ("out" if len(schema.returns) == 1 else f"out{i}")
        words.append([f"grad_{plain}", *([f"grad_{written}"] if written else [])])
    words += [[f"grad_{name}"] for name in written_unreturned(schema)]
    if len(words) == 1 and "grad" not in arguments:
        words[0].insert(0, "grad")
    return words


def rule_names(schema: FunctionSchema) -> dict[str, tuple[str, Any]]:
    """Return every word a named rule may use, with what it means.

    The meaning is ``("grad", index)``, ``("grads", None)``, ``("argument", name)``,
    ``("spec", name)``, ``("result", index)`` or ``("new", name)``.
    """
    arguments = [a.name for a in schema.arguments]
    meanings: dict[str, tuple[str, Any]] = {}
    for name in schema.differentiable_arguments:
        meanings[name + SPEC_SUFFIX] = ("spec", name)
    for i, name in enumerate(return_names(schema)):
        meanings[name] = ("result", i)
    for name in schema.mutated_arguments:
        meanings[NEW_PREFIX + name] = ("new", name)
    for i, words in enumerate(gradient_names(schema)):
        for word in words:
            meanings[word] = ("grad", i)
    if "grads" not in arguments:
        meanings["grads"] = ("grads", None)
    meanings["needs_input_grad"] = ("needs", None)
    for name in arguments:
        meanings[name] = ("argument", name)
    return meanings


def named_rule(
    schema: FunctionSchema,
    fused: BackwardRule | None,
    per_argument: Mapping[str, BackwardRule | None],
    materialize_grads: bool = True,
) -> GradientRule:
    """Return the rule for one fused function or for one function per argument.

    Raises
    ------
    RegistrationError
        For a name that means nothing or is ambiguous, ``*args``, a rule for an argument without
        tensors, or an operator without differentiable arguments.
    """
    _require_differentiable(schema)
    functions: dict[str, BackwardRule | None] = {"": fused} if fused else dict(per_argument)
    if not functions:
        raise RegistrationError(
            f"{schema.qualname}: register_vjp needs a function, or one per argument"
        )
    style: Literal["per_argument", "fused"] = "fused" if fused else "per_argument"
    differentiable = schema.differentiable_arguments
    needs, optional = {}, set()
    for argument, function in functions.items():
        if argument and argument not in differentiable:
            known = argument in {a.name for a in schema.arguments}
            problem = "holds no tensors" if known else "is not an argument"
            raise RegistrationError(
                f"{schema.qualname}: a gradient rule was given for {argument!r}, which {problem}; "
                f"differentiable arguments are {join_names(differentiable)}"
                + did_you_mean(argument, differentiable)
            )
        if function is not None:
            needs[argument], defaults = _needs(schema, function)
            optional |= defaults
    return GradientRule(style, functions, needs, None, frozenset(optional), materialize_grads)


def _require_differentiable(schema: FunctionSchema) -> None:
    if not schema.differentiable_arguments:
        raise RegistrationError(
            f"{schema.qualname} has no tensor argument, so a gradient rule can have no effect"
        )


def _needs(schema: FunctionSchema, function: BackwardRule) -> tuple[tuple[str, ...], set[str]]:
    """Return the parameter names of a named rule, and those whose default is None."""
    place = f"{schema.qualname}: the gradient rule at {function_site(function)}"
    if not callable(function):
        raise RegistrationError(f"{schema.qualname}: a gradient rule must be callable")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise RegistrationError(f"{place} is a coroutine or generator function")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise RegistrationError(f"{place} has no readable signature; wrap it in a def") from None
    meanings = rule_names(schema)
    names, optional = [], set()
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise RegistrationError(
                f"{place} takes *{parameter.name}; name what it needs: {', '.join(meanings)}"
            )
        _refuse_ambiguous(schema, parameter.name, place)
        if parameter.name not in meanings:
            if parameter.default is not parameter.empty:
                continue
            raise RegistrationError(
                f"{place} asks for {parameter.name!r}, which names nothing"
                f"{did_you_mean(parameter.name, meanings)}; known: {', '.join(meanings)}"
            )
        if parameter.default is None:
            optional.add(parameter.name)
        names.append(parameter.name)
    return tuple(names), optional


def _refuse_ambiguous(schema: FunctionSchema, word: str, place: str) -> None:
    """Refuse ``grad``, ``grads`` and ``out`` where an argument has that name too."""
    if word not in ("grad", "grads", "out") or word not in {a.name for a in schema.arguments}:
        return
    returned = [schema.returned_argument(i) for i in range(len(schema.returns))]
    if word == "out" and word in returned:
        return
    words = [names[-1] for names in gradient_names(schema)]
    raise RegistrationError(
        f"{place}: {word!r} is ambiguous, because an argument has that name; "
        f"the incoming gradient is {join_names(words, 'or')}"
    )


def ctx_rule(
    schema: FunctionSchema, backward: BackwardRule, setup_context: Any = None
) -> GradientRule:
    """Return the rule for ``backward(ctx, *grads)``, checked against the schema.

    Raises
    ------
    RegistrationError
        If a function does not take what it will be given.
    """
    _require_differentiable(schema)
    count = len(gradient_names(schema))
    what = f"ctx and {count} gradient{'' if count == 1 else 's'}"
    _require_positional(schema, "backward", backward, count + 1, what)
    if setup_context is not None:
        _check_setup_context(schema, setup_context)
    return GradientRule("ctx", {"": backward}, {}, setup_context)


def _check_setup_context(schema: FunctionSchema, function: Any) -> None:
    names = set(_parameters(schema, "setup_context", function))
    if not {"ctx", "inputs", "output"} <= names:
        what = "ctx, inputs and output, by these names or by position"
        _require_positional(schema, "setup_context", function, 3, what)


def _parameters(schema: FunctionSchema, what: str, function: Any) -> dict[str, inspect.Parameter]:
    if not callable(function):
        raise RegistrationError(f"{schema.qualname}: {what} must be callable, got {function!r}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise RegistrationError(
            f"{schema.qualname}: {what} at {function_site(function)} is a coroutine or generator"
        )
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


def _require_positional(
    schema: FunctionSchema, what: str, function: Any, count: int, meaning: str
) -> None:
    """Refuse a function that cannot be called with `count` positional arguments."""
    parameters = _parameters(schema, what, function)
    if not parameters and not hasattr(function, "__code__"):
        return
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        raise RegistrationError(
            f"{schema.qualname}: {what} at {function_site(function)} must take {meaning}\n"
            f"  its signature is {inspect.signature(function)}"
        ) from None
