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
from collections.abc import Callable
from typing import Any, Final, TypeVar

from .. import _state
from ..dispatch.keys import ANOMALY, AUTOCAST, AUTOGRAD, CHECKED, INTERPRETER, VIEW
from ..dtypes import is_inexact
from ..errors import ArgumentError, DispatchError
from ..tensor.grad_meta import AutogradMeta, GradNode
from ..tensor.tensor import Tensor, alias_of
from .anomaly import note_line
from .context import Context, PyLayerContext
from .family import refresh_for_use
from .guard import guard
from .layer_facts import LayerFacts
from .layer_outputs import (
    LayerCall,
    as_seen_below,
    bump_dirty,
    check_outputs,
    is_plain,
    layer_output,
    rebuilt,
    record_outputs,
)
from .modes import grad_off
from .returned import Argument, needs_of, structure_of

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
        facts = cls.__dict__.get("_oplib_facts")
        if facts is None or facts.forward != cls.forward:
            facts = _facts_of(cls)
        state = _state.current()
        if kwargs or len(args) != facts.plain_count or not state.mask & AUTOGRAD:
            return _apply_any(facts, args, kwargs, state)
        inputs: list[Tensor] = []
        edges: list[AutogradMeta | None] = []
        needs: list[bool] = []
        for value in args:
            if type(value) is Tensor:
                if value._keys & VIEW:
                    refresh_for_use(value)
                meta = value.autograd_meta if value._keys & AUTOGRAD else None
                inputs.append(value)
                edges.append(meta)
                needs.append(meta is not None)
            elif isinstance(value, list | tuple | dict):
                return _apply_any(facts, args, kwargs, state)
            else:
                needs.append(False)
        if state.include & (ANOMALY | AUTOCAST | CHECKED) or True not in needs:
            return _apply_any(facts, args, kwargs, state)
        ctx = PyLayerContext(facts.title, tuple(needs))
        storages = [tensor._storage for tensor in inputs]
        versions = [storage.version for storage in storages]
        _state.set_state(grad_off(state))
        try:
            result = facts.forward(ctx, *args)
        except BaseException:
            bump_dirty(ctx, inputs, versions)
            raise
        finally:
            _state.set_state(state)
        tensors = None if len(inputs) == len(args) else tuple([type(v) is Tensor for v in args])
        if not is_plain(ctx, result) or (
            result._storage in storages or [storage.version for storage in storages] != versions
        ):
            call = LayerCall(facts, tensors, None, tuple(edges), inputs, versions)
            return record_outputs(call, ctx, result)
        node = GradNode()
        node.kind = facts.kind
        node.edges = tuple(edges)
        node.hooks = None
        array = result.array
        node.shapes = array.shape
        node.dtypes = array.dtype
        node.saved = (ctx, tensors, ctx._ctx_attach(node, inputs, (result,), fresh=True))
        if result._keys & INTERPRETER:
            result = as_seen_below(facts, result, inputs)
        return layer_output(ctx, result, node, 0)


# ---------------------------------------------------------------------- any call


def _facts_of(layer: type[PyLayer]) -> LayerFacts:
    facts = LayerFacts(layer)
    layer._oplib_facts = facts  # type: ignore[attr-defined]
    return facts


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
        ctx._ctx_autocast = state.config.get("autocast")
    versions = [tensor._storage.version for tensor in inputs]
    inside = grad_off(state)
    if state.include & CHECKED and recording:
        inside = inside.with_config(checked_layer=(facts.title, set(map(id, inputs))))
    _state.set_state(inside)
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
        call = LayerCall(facts, None, arguments, edges, inputs, versions)
        recorded = record_outputs(call, ctx, result)
        if state.include & ANOMALY:
            note_line([recorded])
        return recorded
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
