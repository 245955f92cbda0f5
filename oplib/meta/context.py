"""What surrounds a fake rule: the State it runs in, `get_ctx`, and the error for reading a value.

A rule depends on nothing but its arguments, so the State it runs in follows from operator and mode
alone: no interpreter, no setting of the caller, keys above Meta handled.

Imports floors 0 to 4, `mode.py`. Read next: `placement.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final, NoReturn

from .. import _state
from .._text import caller_site, is_internal_file
from ..dispatch.describe import describe_call
from ..dispatch.interpreter import BELOW_AUTOGRAD
from ..dispatch.keys import META
from ..dispatch.lifting import tensor_leaves
from ..dispatch.operator import Operator
from ..dtypes import short_dtype
from ..errors import DataDependentError, FakeTensorError
from ..tensor.meta_array import MetaArray
from .mode import FakeTensorMode

__all__ = [
    "FakeContext",
    "current_mode",
    "get_ctx",
    "note_rule",
    "refuse_value",
    "rule_state",
]


class FakeContext:
    """What a fake rule may ask for beside its arguments."""

    __slots__ = ("mode", "op", "site")

    def __init__(self, op: Operator[..., Any], mode: FakeTensorMode | None, site: str) -> None:
        self.op = op
        self.mode = mode
        self.site = site

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:
        """Return a size that is known only when the kernel runs, between `min` and `max`.

        Raises
        ------
        ArgumentError
            Unless ``0 <= min <= max`` are plain ints.
        DataDependentError
            On meta tensors, and in a mode made without ``dynamic=True``.
        """
        if self.mode is not None and self.mode.dynamic:
            return self.mode.facts.fresh(min, max)
        where = "of meta tensors" if self.mode is None else f"in a {self.mode}"
        raise DataDependentError(
            f"{self.op.qualname}: a result has a size that depends on data, which cannot be known "
            f"{where}\n"
            f"  asked by  the fake rule at {self.site}\n"
            f"  called    {caller_site()}\n"
            "  run it in FakeTensorMode(dynamic=True), which allows such sizes, or on real tensors"
        )


def get_ctx() -> FakeContext:
    """Return the context of the fake rule that is running.

    Raises
    ------
    FakeTensorError
        Outside of a fake rule.
    """
    context: FakeContext | None = _state.current().config.get("fake_context")
    if context is None:
        raise FakeTensorError(
            f"get_ctx() was called at {caller_site()}, where no fake rule is running\n"
            "  call it in the function given to register_fake"
        )
    return context


def current_mode() -> FakeTensorMode | None:
    """Return the mode whose rule or call is running now."""
    return _state.current().config.get("fake_mode")


def rule_state(op: Operator[..., Any], mode: FakeTensorMode | None, site: str) -> _state.State:
    """Return the State for the rule of `op` at `site`: factories make tensors without data."""
    config: dict[str, Any] = {"fake_context": FakeContext(op, mode, site)}
    if mode is not None:
        config["fake_mode"] = mode
    return _state.State(include=META, handled=BELOW_AUTOGRAD, config=MappingProxyType(config))


# ---------------------------------------------------------------------- reading a value


_ASKED: Final = {"__array__": "numpy.asarray()", "_array_of": "numpy.asarray()"}
"""How to call the method that was asked for a value, where its name does not say it."""


def refuse_value(array: MetaArray) -> NoReturn:
    """Raise for reading the value of a tensor without data."""
    name = _entry_point()
    asked = _ASKED.get(name, f"{name.strip('_')}()")
    kind = "a meta tensor" if array.mode is None else "a fake tensor"
    shape = ", ".join(map(str, array.shape))
    error = DataDependentError(
        f"{asked} needs the value of {kind} {short_dtype(array.dtype)}[{shape}], which has shape "
        f"and dtype only\n"
        f"  read at  {caller_site()}\n"
        "  use oplib.where instead of `if`, make the value an argument, or compute on real tensors"
    )
    error.array = array
    raise error


def _entry_point() -> str:
    """Return the name of the function of this package that was called from outside of it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_internal_file(frame.f_back.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_name


def note_rule(error: Exception, op: Operator[..., Any], site: str, args: Sequence[Any]) -> None:
    """Add to an error that a rule raised: which rule, in which call, on whose value."""
    error.add_note(f"in the fake rule of {op.qualname}, {site}")
    error.add_note(f"called as {describe_call(op, list(args))} at {caller_site()}")
    if isinstance(error, DataDependentError):
        for argument, value in zip(op.schema.arguments, args, strict=True):
            if any(tensor.array is error.array for tensor in tensor_leaves([value])):
                error.add_note(f"the value of argument `{argument.name}` was read")
