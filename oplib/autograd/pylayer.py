"""`PyLayer`: a forward and a backward function written by hand, recorded as one node.

A PyLayer is not an operator: interpreters see the operators that its forward calls. Plain calls
(tensors as direct arguments, one fresh tensor returned) run a plan generated for the class;
everything else goes through `apply_any`.

Imports floors 0 to 4, `layer_plan.py`, `layer_outputs.py`, `context.py`, `wrapper.py`, `modes.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeVar

from .. import _state
from ..dispatch.keys import AUTOGRAD
from ..dtypes import is_inexact
from ..errors import ArgumentError, DispatchError
from ..tensor.tensor import Tensor, alias_of
from .context import Context, PyLayerContext
from .layer_facts import LayerFacts
from .layer_outputs import rebuilt
from .layer_plan import apply_any, facts_of
from .modes import grad_off
from .returned import structure_of
from .wrapper import guard

__all__ = ["PyLayer", "PyLayerContext", "once_differentiable"]

F = TypeVar("F", bound=Callable[..., Any])


class PyLayer:
    """A differentiable function with a backward of its own.

    Subclasses define ``forward(ctx, ...)`` and ``backward(ctx, *grads)`` as static or class methods
    and are called by ``apply``. With ``setup_context(ctx, inputs, output)`` defined, ``forward``
    takes no ctx.

    `backward` gets one gradient per output that holds a tensor, containers mirrored, and returns
    one value per tensor argument, or one per argument with None for the others, or a dict by name.

    Examples
    --------
    >>> import oplib
    >>> class Cube(oplib.PyLayer):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x * x
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         (x,) = ctx.saved_tensors
    ...         return grad * 3 * x * x
    >>> x = oplib.tensor([2.0], requires_grad=True)
    >>> Cube.apply(x).backward()
    >>> x.grad
    Tensor([12.])
    """

    _oplib_facts: ClassVar[LayerFacts | None] = None

    def __new__(cls, *args: Any, **kwargs: Any) -> PyLayer:
        """Refuse construction; a layer has no instances."""
        raise ArgumentError(f"a PyLayer is not instantiated; call {cls.__name__}.apply(...)")

    @staticmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; runs once with grad off."""
        raise DispatchError("this PyLayer defines no forward(ctx, ...)")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Compute the gradients of the arguments from those of the outputs."""
        raise DispatchError("this PyLayer defines no backward(ctx, *grads)")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run forward and record it.

        Parameters
        ----------
        *args, **kwargs
            As `forward` takes them after ctx. Tensors are tracked at any depth of lists, tuples
            and dicts.

        Returns
        -------
        object
            What forward returned; its tensors require grad if any tensor argument does.
        """
        facts = cls._oplib_facts
        if facts is None or facts.layer is not cls or facts.forward != cls.forward:
            facts = cls._oplib_facts = facts_of(cls)
        if kwargs or len(args) != facts.plain_count:
            return apply_any(facts, args, kwargs)
        return facts.plan(*args)


# ---------------------------------------------------------------------- first order only


def once_differentiable(function: F) -> F:
    """Run a backward with grad off; differentiating what it returns raises, naming the class.

    For a backward whose result is right but whose operations are not differentiable.
    """

    @functools.wraps(function)
    def backward(*args: Any) -> Any:
        state = _state.current()
        if not state.mask & AUTOGRAD:
            return function(*args)
        with _state.enter(grad_off(state)):
            result = function(*args)
        return _guarded(result, args)

    return backward  # type: ignore[return-value]


def _guarded(result: Any, args: tuple[Any, ...]) -> Any:
    """Return what a backward returned, such that differentiating it raises."""
    ctx = next(value for value in args if isinstance(value, Context))
    node = None if ctx._ctx_node is None else ctx._ctx_node()
    if node is None:
        return result
    incoming: list[Tensor] = []
    found: list[Tensor] = []
    structure_of(args, incoming)
    structure_of(result, found)
    edges = (*node.edges, *(g.autograd_meta for g in incoming if g._keys & AUTOGRAD))
    message = f"{node.name()}: its backward is once_differentiable, so {_NO_SECOND}"
    handles = [alias_of(tensor, tensor.array) for tensor in found]
    for handle in handles:
        if is_inexact(handle.dtype):
            guard(handle, edges, message)
    return rebuilt(result, iter(handles))


_NO_SECOND: Final = (
    "its results have no derivative\n"
    "  write it with differentiable operators and drop the decorator"
)
