"""The interpreter stack: everything that intercepts operator calls.

A user's `DispatchMode`, fake tensors, functionalization and capture are interpreters on one stack,
`State.stack`. An entry of the stack is a `Frame`: its position is its level, and it remembers the
State it was entered from. An interpreter that wraps tensors gives them arrays with a ``frame``
attribute and the key INTERPRETER.

A call whose key set contains INTERPRETER goes to the highest level among its arguments' arrays and
the top of the stack. That interpreter unwraps its own arrays, treats all others as constants, and
calls the operator again in the State its frame was entered from, so it never sees its own work and
nesting works in any order.

Imports floors 0 and 1, `lifting.py` and above. Read next: `plan.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from .. import _state
from .._text import caller_site
from ..errors import CaptureError
from ..schema import TensorType
from .keys import AUTOCAST, AUTOGRAD, CHECKED, INTERPRETER, VIEW
from .lifting import may_hold_tensors, tensor_leaves
from .operator import Operator
from .preference import carry

__all__ = [
    "BELOW_AUTOGRAD",
    "DispatchMode",
    "Frame",
    "Interpreter",
    "InterpreterStage",
    "pop",
    "push",
]

BELOW_AUTOGRAD: Final = AUTOCAST | VIEW | AUTOGRAD
"""Keys that Tensor-level code below autograd has already been through."""


class Frame:
    """One entry of the stack: an interpreter, its level, and the State it was entered from."""

    __slots__ = ("_below", "closed", "interpreter", "level", "opened_at", "outer")

    def __init__(self, interpreter: Interpreter, outer: _state.State, opened_at: str) -> None:
        self.interpreter = interpreter
        self.outer = outer
        self.level = len(outer.stack) + 1
        self.opened_at = opened_at
        self.closed = False
        self._below: tuple[_state.State | None, _state.State] = (None, outer)

    def outer_state(self) -> _state.State:
        """Return the State for calls this frame makes: its outer one, with the user's mask of now.

        ``no_grad`` holds on all levels, so the current user mask is kept.
        """
        outer, user = self.outer, _state.current().user
        return outer if outer.user == user else outer.replace(user=user)

    def state_below(self, state: _state.State) -> _state.State:
        """Return the State in which the interpreter handles a call made in `state`.

        It is the outer one; what holds on all levels (the user's mask, preferences, checked mode)
        is kept. An interpreter that does not wrap has let the call come through the stages above.
        The last answer is remembered: a level sees many calls from one State.
        """
        known, below = self._below
        if known is state:
            return below
        handled = self.outer.handled if self.interpreter.wraps else state.handled | BELOW_AUTOGRAD
        include = self.outer.include & ~CHECKED | state.include & CHECKED
        below = carry(state, self.outer.replace(include=include, user=state.user, handled=handled))
        self._below = (state, below)
        return below


class Interpreter:
    """Base of everything that intercepts calls. Subclasses define `call`."""

    wraps = False
    """Whether tensors carry this interpreter's own arrays."""
    builds_graph = False
    """Whether calls become nodes that run later."""

    def call(self, frame: Frame, op: Operator[..., Any], args: tuple[Any, ...]) -> Any:
        """Handle one call; `args` are converted and in schema order.

        Runs in the State of the level below, so calling `op` again goes one level down.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define call")

    def take_in(self, tensor: Any) -> Any:
        """Return what a tensor that was just made from an array of the user's is on this level."""
        return tensor

    def requires_grad_changed(self, tensor: Any, value: bool) -> None:
        """Take note that ``requires_grad`` of a tensor with this interpreter's array was set."""

    def grad_replaced(self, tensor: Any) -> None:
        """Take note that ``.grad`` of a tensor with this interpreter's array was set."""

    def grad_mode_asked(self) -> None:
        """Take note that code inside asked whether gradients are recorded."""

    def before_data(self, tensor: Any) -> None:
        """Take note that the data of a tensor is about to be read around the operators."""


def push(interpreter: Interpreter) -> Frame:
    """Put an interpreter on the stack and return its frame; undo with `pop`."""
    outer = _state.current()
    frame = Frame(interpreter, outer, caller_site())
    handled = 0 if interpreter.wraps else outer.handled
    stack = (*outer.stack, frame)
    _state.set_state(
        outer.replace(include=outer.include | INTERPRETER, handled=handled, stack=stack)
    )
    return frame


def pop(frame: Frame) -> None:
    """Restore the State that `frame` was entered from; tensors it wrapped become unusable."""
    frame.closed = frame.interpreter.wraps
    _state.set_state(frame.outer)


class DispatchMode(Interpreter):
    """A user's interception point: sees every operator call made inside ``with mode:`` once.

    Override `handle`. Calling ``op(*args, **kwargs)`` in it continues the call one level down,
    below autograd; what it returns is the result of the call.

    >>> import oplib
    >>> class Count(oplib.DispatchMode):
    ...     calls = 0
    ...     def handle(self, op, args, kwargs):
    ...         self.calls += 1
    ...         return op(*args, **kwargs)
    >>> with Count() as count:
    ...     y = oplib.ones(2) * 3
    >>> count.calls
    2
    """

    def handle(self, op: Operator[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle one call; the default continues it unchanged."""
        return op(*args, **kwargs)

    def call(self, frame: Frame, op: Operator[..., Any], args: tuple[Any, ...]) -> Any:
        """Split `args` as the schema does and pass the call to `handle`."""
        count = len(op.schema.positional)
        if count == len(args):
            return self.handle(op, args, {})
        names = [argument.name for argument in op.schema.keyword_only]
        return self.handle(op, args[:count], dict(zip(names, args[count:], strict=True)))

    def __enter__(self) -> Self:
        push(self)
        return self

    def __exit__(self, *_: object) -> None:
        pop(next(f for f in reversed(_state.current().stack) if f.interpreter is self))


class InterpreterStage:
    """The stage of the key INTERPRETER: choose a frame and hand the call to it."""

    key = INTERPRETER

    def build(
        self, op: Operator[..., Any], keys: int, below: Callable[..., Any] | None
    ) -> Callable[..., Any]:
        """Return the plan that runs the highest interpreter of a call."""
        leaves_of = _tensors_of(op)
        current, set_state = _state.current, _state.set_state

        def interpret(*args: Any) -> Any:
            state = current()
            frame = _highest_frame(state, leaves_of(args))
            if frame is None:
                return op.find_plan(keys & ~INTERPRETER)(*args)
            set_state(frame.state_below(state))
            try:
                return frame.interpreter.call(frame, op, args)
            finally:
                set_state(state)

        return interpret

    def describe(self, op: Operator[..., Any], keys: int, args: list[Any]) -> list[str]:
        """Return the lines `explain` shows for this stage."""
        frame = _highest_frame(_state.current(), tensor_leaves(args))
        if frame is None:
            return ["no interpreter takes part"]
        name = type(frame.interpreter).__name__
        return [f"{name} at level {frame.level}, entered {frame.opened_at}"]


def _tensors_of(op: Operator[..., Any]) -> Callable[[tuple[Any, ...]], Sequence[Any]]:
    """Return a function that finds the tensors among the arguments of a call."""
    kinds = [argument.type for argument in op.schema.arguments]
    plain = [i for i, kind in enumerate(kinds) if isinstance(kind, TensorType)]
    if sum(map(may_hold_tensors, kinds)) > len(plain):
        return tensor_leaves
    return lambda args: [args[i] for i in plain]


def _highest_frame(state: _state.State, tensors: Sequence[Any]) -> Frame | None:
    """Return the highest of the arguments' levels and the top of the stack."""
    frame = state.stack[-1] if state.stack else None
    for tensor in tensors:
        if tensor._keys & INTERPRETER:
            found = tensor.array.frame
            if found.closed:
                raise _leaked(found)
            if frame is None or found.level > frame.level:
                frame = found
    return frame


def _leaked(frame: Frame) -> CaptureError:
    around = frame.outer.stack[-1:]
    captured = any(f.closed and f.interpreter.builds_graph for f in (frame, *around))
    name = "capture" if captured else type(frame.interpreter).__name__
    return CaptureError(
        f"a tensor of a finished {name} was used again; the run was opened at {frame.opened_at}\n"
        f"  return it from the function instead of keeping it"
    )
