"""`FakeTensorMode`: run a program on shapes.

The mode is an interpreter: inside of it factories make fakes and real tensors are refused, or
converted if it allows them. Fakes keep working after the mode was left.

Imports floors 0 to 4, `conversion.py`. Read next: `context.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, Self

from .. import _state
from .._dims import Facts
from .._text import caller_site, short_repr
from .._tree import tree_map
from ..dispatch.describe import describe_call
from ..dispatch.interpreter import Frame, Interpreter, pop, push
from ..dispatch.keys import AUTOGRAD, CONSTANT, INTERPRETER, META, WEAK
from ..dispatch.operator import Operator
from ..dtypes import META as META_DEVICE
from ..dtypes import Device, as_device
from ..errors import ArgumentError, FakeTensorError
from ..tensor.meta_array import meta_array
from ..tensor.tensor import Tensor, tensor_from_result
from .conversion import Converter

__all__ = ["FakeTensorMode", "admit", "adopt"]

_READY: Final = META | INTERPRETER | WEAK
"""Keys of tensors that a mode lets pass: without data, of another level, or a number."""


class FakeTensorMode(Interpreter):
    """Run a program on shapes: factories make fakes, real tensors are refused or converted.

    Parameters
    ----------
    allow_real : bool
        Convert real tensors met in a call instead of refusing them. One that is written, or that
        gradients are recorded for, is refused all the same.
    dynamic : bool
        Allow result sizes that depend on data; they become symbols.

    Examples
    --------
    >>> import oplib
    >>> with oplib.FakeTensorMode() as mode:
    ...     x = mode.from_tensor(oplib.ones((2, 3)))
    ...     (x * 2).shape
    (2, 3)
    """

    def __init__(self, allow_real: bool = False, dynamic: bool = False) -> None:
        self.allow_real = allow_real
        self.dynamic = dynamic
        self.facts = Facts()
        self.made_at = caller_site()
        self.states: dict[object, _state.State] = {}
        self.converter = Converter(self)
        self._inside: tuple[_state.State, _state.State] | None = None

    def __repr__(self) -> str:
        words = {"allow_real": self.allow_real, "dynamic": self.dynamic}
        options = ", ".join(f"{name}=True" for name, value in words.items() if value)
        return f"FakeTensorMode({options}) made at {self.made_at}"

    def __enter__(self) -> Self:
        push(self)
        return self

    def __exit__(self, *_: object) -> None:
        pop(next(f for f in reversed(_state.current().stack) if f.interpreter is self))

    def __deepcopy__(self, memo: object) -> FakeTensorMode:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.allow_real, self.dynamic, self.facts, self.made_at)

    # ------------------------------------------------------------------ conversion

    def from_tensor(self, tensor: Tensor, *, device: Device | str | None = None) -> Tensor:
        """Return the fake of a tensor: same geometry, dtype, gradient state, and device.

        The same tensor gives the same fake, tensors over one storage give fakes over one storage,
        views of one base stay views of one base. Data is neither read nor kept.

        Parameters
        ----------
        tensor : Tensor
            Real, or a meta tensor.
        device : Device or str, optional
            The device to claim instead of the tensor's own; it need not exist.

        Raises
        ------
        FakeTensorError
            For a fake of another mode, and for a tensor of a running transform.
        """
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"from_tensor takes a Tensor, got {short_repr(tensor)}")
        if tensor._keys & INTERPRETER:
            raise FakeTensorError(
                f"{tensor!r} belongs to a transform that is running\n"
                "  convert what the transform was given, or what it returns"
            )
        mode = tensor.array.mode if tensor._keys & META else None
        if mode is self:
            return tensor
        if mode is not None:
            raise FakeTensorError(f"the tensor is a fake of another mode: {mode}, not {self}")
        place = tensor.device if device is None else as_device(device)
        return self.converter.fake_of(tensor, place)

    # ------------------------------------------------------------------ calls

    def take_in(self, tensor: Tensor) -> Tensor:
        """Return the fake of a tensor made from an array inside of the mode."""
        return tensor if tensor._keys & _READY else self.from_tensor(tensor)

    def call(self, frame: Frame, op: Operator[..., Any], args: tuple[Any, ...]) -> Any:
        """Run the call on fakes."""
        state = _state.current()
        _state.set_state(self._state_inside(state))
        try:
            return op.call_positional(args if _all_ready(args) else admit(op, args, self))
        finally:
            _state.set_state(state)

    def _state_inside(self, outer: _state.State) -> _state.State:
        """Return the State of calls that this mode sends on; the last one is kept.

        Modes further out do not see them: the innermost serves factories.
        """
        if self._inside is not None:
            known, inner = self._inside
            if (
                known.user == outer.user
                and known.handled == outer.handled
                and known.include == outer.include
                and known.stack is outer.stack
                and known.config is outer.config
            ):
                return inner
        stack = tuple(f for f in outer.stack if not isinstance(f.interpreter, FakeTensorMode))
        include = outer.include | META if stack else outer.include & ~INTERPRETER | META
        inner = outer.replace(include=include, stack=stack).with_config(fake_mode=self)
        self._inside = outer, inner
        return inner


def _restored(allow_real: bool, dynamic: bool, facts: Facts, made_at: str) -> FakeTensorMode:
    mode = FakeTensorMode(allow_real, dynamic)
    mode.facts, mode.made_at = facts, made_at
    return mode


# ---------------------------------------------------------------------- what meets fakes


def adopt(constant: Tensor, like: Tensor) -> Tensor:
    """Turn a constant beside a tensor without data into one, on the same device."""
    if not like._keys & META or like._keys & INTERPRETER or constant._keys & WEAK:
        return constant
    return _without_data(constant, like.device, like.array.mode)


def _without_data(constant: Tensor, device: Device, mode: FakeTensorMode | None) -> Tensor:
    array = constant.array
    return tensor_from_result(meta_array(array.shape, array.dtype, device, array.strides, mode))


def _all_ready(args: tuple[Any, ...]) -> bool:
    """Return whether nothing among plain arguments needs `admit`; containers count as a no."""
    for value in args:
        kind = type(value)
        if kind is Tensor:
            if not value._keys & _READY:
                return False
        elif kind is list or kind is tuple or kind is dict:
            return False
    return True


def admit(op: Operator[..., Any], args: Sequence[Any], mode: FakeTensorMode | None) -> list[Any]:
    """Return the arguments of a call with every real tensor converted; no mode means meta tensors.

    Raises
    ------
    FakeTensorError
        For a real tensor that is no constant, unless the mode allows it and nothing would be
        written or recorded.
    """
    written = op.schema.mutated_arguments

    def admitted(name: str, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf._keys & _READY:
            return leaf
        if leaf._keys & CONSTANT and name not in written:
            return _without_data(leaf, META_DEVICE if mode is None else leaf.device, mode)
        if mode is None:
            raise _refused(op, args, name, leaf, "used with meta tensors", _TO_META)
        if not mode.allow_real:
            raise _refused(op, args, name, leaf, f"used with a {mode}", _CONVERT)
        if name in written:
            raise _refused(op, args, name, leaf, "which would be written", _CONVERT_FIRST)
        if leaf.requires_grad and _state.current().user & AUTOGRAD:
            raise _refused(op, args, name, leaf, "whose gradient would be a fake", _CONVERT_FIRST)
        return mode.from_tensor(leaf)

    return [
        tree_map(functools.partial(admitted, argument.name), value)
        for argument, value in zip(op.schema.arguments, args, strict=True)
    ]


_TO_META: Final = 'convert it: x.to("meta")'
_CONVERT: Final = "convert it: mode.from_tensor(x), or make the mode with allow_real=True"
_CONVERT_FIRST: Final = "convert it once, before it is used: x = mode.from_tensor(x)"


def _refused(
    op: Operator[..., Any], args: Any, name: str, tensor: Tensor, why: str, remedy: str
) -> FakeTensorError:
    return FakeTensorError(
        f"{op.qualname}: argument `{name}` is a real tensor {tensor.describe()}, {why}\n"
        f"  called as  {describe_call(op, list(args))}\n"
        f"  called     {caller_site()}\n"
        f"  {remedy}"
    )
