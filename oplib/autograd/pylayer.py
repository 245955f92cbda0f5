"""`PyLayer`: a forward and a backward function written by hand, recorded as one node.

``apply`` runs forward once with grad off and turns what it returned into outputs of a `GradNode`. A
PyLayer is not an operator: interpreters see the operators that its forward calls. Plain calls
(tensors as direct arguments, one fresh tensor returned) take a short way through ``apply``;
everything else goes through `_apply_any` and `record_outputs`.

Imports floors 0 to 4, `layer_facts.py`, `layer_outputs.py`, `context.py`, `guard.py`, `modes.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from itertools import compress
from operator import attrgetter
from sys import getrefcount
from typing import Any, ClassVar, Final, TypeVar

from .. import _state
from ..dispatch.keys import AUTOCAST, AUTOGRAD, INTERPRETER, VIEW
from ..dtypes import is_inexact
from ..errors import ArgumentError, DispatchError
from ..tensor.grad_meta import AutogradMeta, GradNode
from ..tensor.storage import Storage
from ..tensor.tensor import Tensor, alias_of
from .context import UNMARKED, Context, PyLayerContext
from .family import refresh_for_use
from .gradients import UNSHARED
from .guard import guard
from .layer_facts import LayerFacts
from .layer_outputs import (
    LayerCall,
    as_seen_below,
    bump_dirty,
    check_outputs,
    rebuilt,
    record_outputs,
)
from .modes import grad_off
from .returned import Argument, needs_of, structure_of

__all__ = ["PyLayer", "PyLayerContext", "once_differentiable"]

_new: Final = object.__new__
_storage_of: Final = attrgetter("_storage")
_version_of: Final = attrgetter("version")
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
            facts = cls._oplib_facts = LayerFacts(cls)
        state = _state.current()
        short = not kwargs and len(args) == facts.plain_count and not state.include & AUTOCAST
        if not short or not state.mask & AUTOGRAD:
            return _apply_any(facts, args, kwargs, state)
        metas: list[AutogradMeta | None] = []
        tensors = None
        for value in args:
            if type(value) is Tensor:
                if value._keys & VIEW:
                    refresh_for_use(value)
                metas.append(value.autograd_meta if value._keys & AUTOGRAD else None)
            elif isinstance(value, list | tuple | dict):
                return _apply_any(facts, args, kwargs, state)
            else:
                metas.append(None)
                tensors = ()
        if not any(metas):
            return _apply_any(facts, args, kwargs, state)
        needs = tuple(map(bool, metas))
        inputs: Sequence[Tensor] = args
        if tensors is not None:
            tensors = tuple([type(value) is Tensor for value in args])
            inputs, metas = list(compress(args, tensors)), list(compress(metas, tensors))
        storages = list(map(_storage_of, inputs))
        versions = list(map(_version_of, storages))
        ctx = PyLayerContext(facts.title, needs)
        _state.set_state(grad_off(state))
        try:
            result = facts.forward(ctx, *args)
        except BaseException:
            bump_dirty(ctx, inputs, versions)
            raise
        finally:
            _state.set_state(state)
        if (
            type(result) is not Tensor
            or ctx._ctx_marks is not UNMARKED
            or result._storage in storages
            or list(map(_version_of, storages)) != versions
            or (array := result.array).dtype.kind not in "fcV"
        ):
            call = LayerCall(facts, tensors, None, tuple(metas), inputs, versions)
            return record_outputs(call, ctx, result)
        node: GradNode = _new(GradNode)
        node.kind = facts.kind
        node.edges = tuple(metas)
        node.hooks = None
        meta = _new(AutogradMeta)
        meta.grad_node = node
        meta.position = 0
        meta.retained = None
        meta.shape = node.shapes = array.shape
        meta.dtype = node.dtypes = array.dtype
        if not ctx.grad_in_dtype_consistent:
            meta.dtype = None
        node.saved = (ctx, tensors, ctx._ctx_attach(node, inputs, (result,), fresh=True))
        if result._keys & INTERPRETER:
            result = as_seen_below(facts, result, inputs)
        if getrefcount(result) != UNSHARED or result._view is not None:
            result = alias_of(result, result.array)  # somebody else holds that handle
        result.autograd_meta = meta
        result._keys |= AUTOGRAD
        return result


# ---------------------------------------------------------------------- any call


def _apply_any(
    facts: LayerFacts, args: tuple[Any, ...], kwargs: dict[str, Any], state: _state.State
) -> Any:
    """Run any call: containers, keywords, nothing to record, autocast, ``setup_context``."""
    inputs: list[Tensor] = []
    bound = _bound(facts, args, kwargs)
    arguments = [Argument(name, value, inputs) for name, value in bound]
    for tensor in inputs:
        refresh_for_use(tensor)
    recording = state.mask & AUTOGRAD
    edges = tuple([t.autograd_meta if recording and t._keys & AUTOGRAD else None for t in inputs])
    needed = iter([edge is not None for edge in edges])
    needs = tuple([needs_of(argument.structure, needed) for argument in arguments])
    ctx = PyLayerContext(facts.title, needs, any(edge is not None for edge in edges))
    if state.include & AUTOCAST:
        ctx._ctx_marks = UNMARKED._replace(autocast=state.config.get("autocast"))
    versions = [tensor._storage.version for tensor in inputs]
    _state.set_state(grad_off(state))
    try:
        if facts.setup is None:
            result = facts.forward(ctx, *args, **kwargs)
        else:
            result = facts.forward(*args, **kwargs)
            facts.setup(ctx, tuple([value for _, value in bound]), result)
    except BaseException:
        bump_dirty(ctx, inputs, versions)
        raise
    finally:
        _state.set_state(state)
    if ctx._ctx_recording:
        return record_outputs(
            LayerCall(facts, None, arguments, edges, inputs, versions), ctx, result
        )
    outputs: list[Tensor] = []
    structure_of(result, outputs)
    check_outputs(facts, ctx, result, outputs)
    bump_dirty(ctx, inputs, versions)
    return result


def _bound(
    facts: LayerFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, Any]]:
    """Return (name, value) of every argument in signature order, defaults filled in."""
    try:
        bound = facts.signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(
            f"{facts.layer.__name__}.apply: {error}\n  signature  forward{facts.signature}"
        ) from None
    bound.apply_defaults()
    found: list[tuple[str, Any]] = []
    for name, value in bound.arguments.items():
        kind = facts.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            found += [(f"{name}[{i}]", element) for i, element in enumerate(value)]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            found += value.items()
        else:
            found.append((name, value))
    return found


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
