"""Whether a function can serve a schema.

Imports `infer.py` and below.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter
from types import FunctionType
from typing import Any, Final, NoReturn

import numpy as np

from .._text import function_site, join_names, short_repr
from ..errors import RegistrationError
from .callables import name_of, underlying, unsuitable_kind
from .defaults import adopt
from .literals import BadDefaultError, format_literal
from .model import Argument, FunctionSchema

__all__ = ["check_signature"]

_UNUSUAL: Final = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_UFUNC_KEYWORDS: Final = frozenset({"out", "where", "dtype", "casting", "order", "subok"})


def check_signature(function: Callable[..., Any], schema: FunctionSchema, facet: str) -> None:
    """Refuse a `function` that cannot be called with the arguments of `schema`.

    Positional arguments come by position, keyword-only ones by their names. Parameters beyond them
    need defaults; ``*args`` and ``**kwargs`` accept. Where function and schema both have a default
    it is the same value, and the schema's names do not stand in another order.

    Parameters
    ----------
    function : callable
    schema : FunctionSchema
    facet : str
        What the function is registered as, for the message: ``"kernel"``, ``"fake rule"``.

    Raises
    ------
    RegistrationError
        Naming the function, the parameter and the schema.
    """
    _Check(function, schema, facet).run()


def _is_alike(function: Any, schema: FunctionSchema) -> bool:
    """Return whether a plain function has exactly the schema's names and no defaults.

    That is most functions, and takes a tenth of the time `inspect.signature` does.
    """
    if type(function) is not FunctionType or function.__defaults__ or function.__kwdefaults__:
        return False
    code = function.__code__
    if code.co_flags & _UNUSUAL or function.__dict__:
        return False
    count = code.co_argcount
    names = code.co_varnames[: count + code.co_kwonlyargcount]
    return names == schema.names and count == len(schema.positional)


class _Check:
    """One comparison."""

    def __init__(self, function: Any, schema: FunctionSchema, facet: str) -> None:
        self.function = function
        self.schema = schema
        self.facet = facet

    def refuse(self, message: str) -> NoReturn:
        function = f"`{name_of(self.function)}` ({function_site(self.function)})"
        raise RegistrationError(f"{self.facet} {function} does not fit {self.schema}: {message}")

    def run(self) -> None:
        function = self.function
        if not callable(function):
            raise RegistrationError(
                f"{self.facet} of {self.schema}: {short_repr(function)} is not callable"
            )
        if isinstance(function, np.ufunc):
            return self.check_ufunc(function)
        if _is_alike(function, self.schema):
            return None
        kind = unsuitable_kind(underlying(function))
        if kind:
            self.refuse(f"it is {kind}; use a plain function that returns its results")
        try:
            signature = inspect.signature(function)
        except (ValueError, TypeError):
            return None  # a built-in that does not tell
        return self.check_parameters(list(signature.parameters.values()))

    def check_ufunc(self, ufunc: np.ufunc) -> None:
        """Compare the number of inputs."""
        count = len(self.schema.positional)
        if count != ufunc.nin:
            self.refuse(f"the ufunc takes {ufunc.nin} inputs, the schema passes {count}")
        for argument in self.schema.keyword_only:
            if argument.name not in _UFUNC_KEYWORDS:
                self.refuse(f"a ufunc takes no keyword `{argument.name}`; wrap it in a function")

    def check_parameters(self, parameters: Sequence[Parameter]) -> None:
        positional = [each for each in parameters if each.kind in _POSITIONAL]
        kinds = {each.kind for each in parameters}
        passed = self.schema.positional
        if len(positional) < len(passed) and Parameter.VAR_POSITIONAL not in kinds:
            missing = join_names(each.name for each in passed[len(positional) :])
            self.refuse(
                f"it takes {len(positional)} positional arguments, the schema passes "
                f"{len(passed)}; add {missing}, or *args"
            )
        taken = positional[: len(passed)]
        self.check_order(taken)
        for parameter, argument in zip(taken, passed, strict=False):
            self.check_default(parameter, argument)
        by_name = {each.name: each for each in parameters if _can_be_named(each)}
        self.check_keywords(by_name, taken, Parameter.VAR_KEYWORD in kinds)
        self.check_extra(positional[len(passed) :], parameters)

    def check_order(self, taken: Sequence[Parameter]) -> None:
        """Refuse the schema's own names in another order: the kernel would mix up its inputs."""
        places = {each.name: place for place, each in enumerate(self.schema.positional)}
        found = [each.name for each in taken if each.name in places]
        if found != sorted(found, key=places.__getitem__):
            wanted = join_names(sorted(found, key=places.__getitem__))
            self.refuse(
                f"its parameters {join_names(found)} stand in another order than the schema's "
                f"{wanted}; arguments come by position"
            )

    def check_default(self, parameter: Parameter, argument: Argument) -> None:
        if parameter.default is Parameter.empty or not argument.has_default:
            return
        written = format_literal(argument.default, argument.type)
        try:
            own = format_literal(adopt(parameter.default, argument.type), argument.type)
        except BadDefaultError:
            own = short_repr(parameter.default)
        if own != written:
            self.refuse(
                f"parameter `{parameter.name}` has the default {own}, the schema's "
                f"`{argument.name}` has {written}; the schema's is used, so write the same or none"
            )

    def check_keywords(
        self, by_name: dict[str, Parameter], taken: Sequence[Parameter], accepts_any: bool
    ) -> None:
        positions = [each.name for each in taken]
        for argument in self.schema.keyword_only:
            parameter = by_name.get(argument.name)
            if parameter is not None and argument.name in positions:
                self.refuse(
                    f"the keyword-only argument `{argument.name}` has the name of positional "
                    f"parameter {positions.index(argument.name)}; rename that"
                )
            if parameter is not None:
                self.check_default(parameter, argument)
            elif not accepts_any:
                self.refuse(
                    f"it does not take the keyword-only argument `{argument.name}`; "
                    f"add `*, {argument.name}`, or **kwargs"
                )

    def check_extra(self, surplus: Sequence[Parameter], parameters: Sequence[Parameter]) -> None:
        """Refuse parameters that no argument fills."""
        filled = {each.name for each in self.schema.keyword_only}
        keyword_only = [each for each in parameters if each.kind is Parameter.KEYWORD_ONLY]
        for parameter in (*surplus, *keyword_only):
            is_filled = parameter.name in filled and _can_be_named(parameter)
            if parameter.default is Parameter.empty and not is_filled:
                self.refuse(
                    f"nothing is passed for its parameter `{parameter.name}`; "
                    "give it a default or add it to the schema"
                )


def _can_be_named(parameter: Parameter) -> bool:
    return parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
