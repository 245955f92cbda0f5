"""`PyLayer`: a forward and a backward function written by hand, recorded as one node.

``apply`` runs forward once with grad off and turns what it returned into outputs of a `GradNode`. A
PyLayer is not an operator: interpreters see the operators that its forward calls.

Outputs are handles of their own on the memory that forward returned, so a cached tensor or an input
that is returned keeps its history; an input that was written is returned as the same object. Plain
calls (tensors as direct arguments, one fresh tensor returned) take a short way through ``apply``;
everything else is in `_apply` and `_record`.

Imports floors 0 to 4, `context.py`, `engine.py`, `family.py`, `returned.py`, `wrapper.py`.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from .. import _state
from .._text import short_repr
from ..dispatch.keys import AUTOCAST, AUTOGRAD, INTERPRETER, VIEW
from ..dtypes import is_inexact
from ..errors import ArgumentError, AutogradError, DispatchError
from ..prims import layer_boundary
from ..tensor.grad_meta import (
    AutogradMeta,
    GradNode,
    NodeKind,
    ViewRecord,
    WideGradNode,
    move_retained,
    new_meta,
)
from ..tensor.tensor import Tensor, alias_of, join_family
from .context import Context, PyLayerContext
from .family import check_write, rebase, refresh
from .gradients import zeros_for
from .guard import guard
from .modes import grad_off
from .returned import Argument, count_of, mirrored, needs_of, spread, structure_of
from .wrapper import moved_on

__all__ = ["PyLayer", "PyLayerContext", "once_differentiable"]

_new: Final = object.__new__
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
            return _apply(facts, args, kwargs, state)
        inputs: list[Tensor] = []
        edges: list[AutogradMeta | None] = []
        needs: list[bool] = []
        for value in args:
            if type(value) is Tensor:
                if value._keys & VIEW:
                    refresh(value)
                meta = value.autograd_meta if value._keys & AUTOGRAD else None
                inputs.append(value)
                edges.append(meta)
                needs.append(meta is not None)
            elif isinstance(value, list | tuple | dict):
                return _apply(facts, args, kwargs, state)
            else:
                needs.append(False)
        if state.include & AUTOCAST or True not in needs:
            return _apply(facts, args, kwargs, state)
        ctx = PyLayerContext(facts.title, tuple(needs))
        versions = [tensor._storage.version for tensor in inputs]
        _state.set_state(grad_off(state))
        try:
            result = facts.forward(ctx, *args)
        except BaseException:
            _bump_dirty(ctx, inputs, versions)
            raise
        finally:
            _state.set_state(state)
        tensors = None if len(inputs) == len(args) else tuple([type(v) is Tensor for v in args])
        if not _is_plain(ctx, result, inputs, versions):
            call = _Call(facts, tensors, None, tuple(edges), inputs, versions)
            return _record(call, ctx, result)
        node: GradNode = _new(GradNode)
        node.kind = facts.kind
        node.edges = tuple(edges)
        node.hooks = None
        array = result.array
        node.shapes = array.shape
        node.dtypes = array.dtype
        node.saved = (ctx, tensors, ctx._ctx_attach(node, inputs, (result,)))
        return _output(ctx, _below(facts, result, inputs), node, 0)


# ---------------------------------------------------------------------- facts of a class


class _Facts:
    """What `apply` needs to know of a layer class, found once.

    Attributes
    ----------
    title : str
        For messages: ``"PyLayer MyLayer"``.
    forward : callable
    signature : inspect.Signature
        Of forward, without ctx.
    plain_count : int
        Number of positional parameters if there are no others, else -1.
    names : tuple of str
        Of the parameters.
    setup : callable or None
    kind, wide_kind : NodeKind
        Of nodes with one plain output, and of all others.
    """

    __slots__ = (
        "forward",
        "kind",
        "layer",
        "names",
        "plain_count",
        "setup",
        "signature",
        "title",
        "wide_kind",
    )

    def __init__(self, layer: type[PyLayer]) -> None:
        self.layer = layer
        self.title = f"PyLayer {layer.__name__}"
        self.forward: Callable[..., Any] = layer.forward
        self.setup: Callable[..., Any] | None = getattr(layer, "setup_context", None)
        self.signature = _signature(self.forward, skip=0 if self.setup else 1)
        parameters = self.signature.parameters.values()
        self.names = tuple(self.signature.parameters)
        plain = self.setup is None and all(
            p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters
        )
        self.plain_count = len(self.names) if plain else -1
        self.kind = NodeKind(layer, _plain_backward(self), _edge_name)
        self.wide_kind = NodeKind(layer, _wide_backward(self), _edge_name)


def _facts_of(layer: type[PyLayer]) -> _Facts:
    facts = _Facts(layer)
    layer._oplib_facts = facts  # type: ignore[attr-defined]
    return facts


def _signature(function: Callable[..., Any], skip: int) -> inspect.Signature:
    """Return the signature of a function without its first `skip` parameters."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        signature = inspect.signature(lambda ctx, *args, **kwargs: None)
    parameters = list(signature.parameters.values())
    while skip and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del parameters[0]
        skip -= 1
    return inspect.Signature(parameters)


# ---------------------------------------------------------------------- any call


class _Call:
    """The tensors of one recorded call.

    Attributes
    ----------
    tensors : tuple of bool or None
        Of a plain call: which arguments are tensors; None if all are.
    arguments : list of Argument or None
        Of any other call.
    edges, inputs, versions : sequences
        One element per tensor; versions are those before forward.
    """

    __slots__ = ("arguments", "edges", "facts", "inputs", "tensors", "versions")

    def __init__(
        self,
        facts: _Facts,
        tensors: tuple[bool, ...] | None,
        arguments: list[Argument] | None,
        edges: tuple[AutogradMeta | None, ...],
        inputs: list[Tensor],
        versions: list[int],
    ) -> None:
        self.facts = facts
        self.tensors = tensors
        self.arguments = arguments
        self.edges = edges
        self.inputs = inputs
        self.versions = versions


def _apply(
    facts: _Facts, args: tuple[Any, ...], kwargs: dict[str, Any], state: _state.State
) -> Any:
    """Run any call: containers, keywords, nothing to record, autocast, ``setup_context``."""
    inputs: list[Tensor] = []
    bound = _bound(facts, args, kwargs)
    arguments = [Argument(name, value, inputs) for name, value in bound]
    for tensor in inputs:
        refresh(tensor)
    recording = state.mask & AUTOGRAD
    edges = tuple([t.autograd_meta if recording and t._keys & AUTOGRAD else None for t in inputs])
    needed = iter([edge is not None for edge in edges])
    needs = tuple([needs_of(argument.structure, needed) for argument in arguments])
    ctx = PyLayerContext(facts.title, needs, any(edge is not None for edge in edges))
    if state.include & AUTOCAST:
        ctx._ctx_autocast = state.config.get("autocast")
    versions = [tensor._storage.version for tensor in inputs]
    _state.set_state(grad_off(state))
    try:
        if facts.setup is None:
            result = facts.forward(ctx, *args, **kwargs)
        else:
            result = facts.forward(*args, **kwargs)
            facts.setup(ctx, tuple([value for _, value in bound]), result)
    except BaseException:
        _bump_dirty(ctx, inputs, versions)
        raise
    finally:
        _state.set_state(state)
    if ctx._ctx_recording:
        return _record(_Call(facts, None, arguments, edges, inputs, versions), ctx, result)
    outputs: list[Tensor] = []
    structure_of(result, outputs)
    _check_outputs(facts, ctx, result, outputs)
    _bump_dirty(ctx, inputs, versions)
    return result


def _bound(
    facts: _Facts, args: tuple[Any, ...], kwargs: dict[str, Any]
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


# ---------------------------------------------------------------------- outputs


def _is_plain(
    ctx: PyLayerContext, result: Any, inputs: list[Tensor], versions: list[int]
) -> bool:
    """Return whether forward gave one fresh inexact tensor and wrote to no input."""
    if type(result) is not Tensor or result.array.dtype.kind not in "fcV":
        return False
    storage = result._storage
    for tensor, version in zip(inputs, versions, strict=True):
        if tensor._storage is storage or tensor._storage.version != version:
            return False
    return not (ctx._ctx_dirty or ctx._ctx_undifferentiable)


def _output(ctx: PyLayerContext, made: Tensor, node: GradNode, position: int) -> Tensor:
    """Return a handle of its own for a fresh output."""
    array = made.array
    dtype = array.dtype if ctx.grad_in_dtype_consistent else None
    output = alias_of(made, array)
    output.autograd_meta = new_meta(node, position, array.shape, dtype)
    output._keys |= AUTOGRAD
    return output


def _below(facts: _Facts, made: Tensor, inputs: list[Tensor]) -> Tensor:
    """Return an output as the levels below should see it.

    Forward ran with grad off on every level, so below this one the output has no history, and its
    gradient would silently be zero there. The boundary makes it raise instead.
    """
    if not made._keys & INTERPRETER:
        return made
    state = _state.current()
    with _state.enter(state.replace(handled=state.handled | AUTOGRAD | VIEW)):
        bounded: Tensor = layer_boundary(made, list(inputs), facts.layer.__name__)
    return bounded


def _check_outputs(
    facts: _Facts, ctx: PyLayerContext, result: Any, outputs: list[Tensor]
) -> None:
    """Raise unless there is an output tensor, and every mark is on one."""
    if not outputs:
        raise AutogradError(
            f"{facts.title}: forward must return a Tensor, or a container with one; "
            f"got {short_repr(result)}"
        )
    for marked in ctx._ctx_undifferentiable:
        if not any(marked is output for output in outputs):
            raise AutogradError(
                f"{facts.title}: mark_non_differentiable was given a tensor that is no output\n"
                "  give it the very objects that forward returns"
            )


def _record(call: _Call, ctx: PyLayerContext, result: Any) -> Any:
    """Make the node of a call and the handles of its outputs."""
    facts = call.facts
    slots = list(result) if isinstance(result, tuple) else [result]
    outputs: list[Tensor] = []
    structures, layout = [], []
    for slot in slots:
        before = len(outputs)
        structures.append(structure_of(slot, outputs))
        if len(outputs) > before:
            layout.append(None if isinstance(slot, Tensor) else len(outputs) - before)
    _check_outputs(facts, ctx, result, outputs)
    written = _written_inputs(call, ctx, outputs)
    _bump_dirty(ctx, call.inputs, call.versions)
    undifferentiable = ctx._ctx_undifferentiable
    differentiable = [
        is_inexact(t.dtype) and not any(t is marked for marked in undifferentiable) for t in outputs
    ]
    if not any(differentiable):
        return result
    node = _wide_node(call, outputs, layout)
    own = _ids(call.inputs) - _ids(written)
    kept = ctx._ctx_attach(
        node, call.inputs, [None if id(tensor) in own else tensor for tensor in outputs]
    )
    node.saved = (ctx, call.arguments or _plain_arguments(facts, call.tensors), structures, kept)
    storages = {id(tensor._storage): tensor for tensor in call.inputs}
    handles: list[Tensor] = []
    for position, made in enumerate(outputs):
        if not differentiable[position]:
            handle = alias_of(made, made.array) if made._keys & AUTOGRAD else made
        elif any(made is tensor for tensor in written):
            _refuse_below(facts, made)
            handle = _rewritten(ctx, made, node, position)
            written = [tensor for tensor in written if tensor is not made]
        else:
            handle = _output(ctx, _below(facts, made, call.inputs), node, position)
            if id(made._storage) in storages:
                _join_as_alias(handle, storages[id(made._storage)], facts.title)
        handles.append(handle)
    return _rebuilt(result, iter(handles))


def _ids(tensors: Sequence[Tensor]) -> set[int]:
    return {id(tensor) for tensor in tensors}


def _wide_node(
    call: _Call, outputs: list[Tensor], layout: list[int | None]
) -> WideGradNode:
    node: WideGradNode = _new(WideGradNode)
    node.kind = call.facts.wide_kind
    node.edges = call.edges
    node.hooks = None
    node.shapes = tuple([tensor.shape for tensor in outputs])
    node.dtypes = tuple([tensor.dtype for tensor in outputs])
    node.output_layout = tuple(layout)
    node.input_layout = None
    if call.arguments is not None:
        holding = [argument for argument in call.arguments if argument.tensor]
        node.input_layout = tuple([argument.length for argument in holding])
    return node


def _rewritten(
    ctx: PyLayerContext, written: Tensor, node: GradNode, position: int
) -> Tensor:
    """Return an input that forward wrote: the same object, with the layer as its history."""
    before = written.autograd_meta
    dtype = written.dtype if ctx.grad_in_dtype_consistent else None
    meta = new_meta(node, position, written.shape, dtype)
    if before is not None and before.retained is not None:
        move_retained(meta, before)
    written.autograd_meta = meta
    written._keys |= AUTOGRAD
    rebase(written)
    return written


def _refuse_below(facts: _Facts, written: Tensor) -> None:
    if written._keys & INTERPRETER:
        raise AutogradError(
            f"{facts.title} writes to an input that requires grad, inside a function that is "
            "functionalized or captured; its gradient cannot be kept there\n"
            "  return a new tensor from forward, or make it an operator with register_autograd"
        )


def _join_as_alias(handle: Tensor, base: Tensor, title: str) -> None:
    """Let an output that lies in an input know it: neither may be written to behind the other."""
    family = join_family(base)
    handle._view = ViewRecord(family, opaque=title)
    handle._keys |= VIEW


def _rebuilt(value: Any, handles: Iterator[Tensor]) -> Any:
    """Return what forward returned with its tensors replaced, containers keeping their types."""
    if isinstance(value, Tensor):
        return next(handles)
    if isinstance(value, tuple):
        elements = [_rebuilt(element, handles) for element in value]
        return type(value)(*elements) if hasattr(value, "_fields") else type(value)(elements)
    if isinstance(value, list):
        same = copy.copy(value)
        same[:] = [_rebuilt(element, handles) for element in value]
        return same
    if isinstance(value, dict):
        changed = copy.copy(value)
        for key, element in value.items():
            changed[key] = _rebuilt(element, handles)
        return changed
    return value


# ---------------------------------------------------------------------- written inputs


def _written_inputs(call: _Call, ctx: PyLayerContext, outputs: list[Tensor]) -> list[Tensor]:
    """Return the inputs that forward wrote and returned, after checking that it may.

    Where inputs share memory, marks say which of them was written; without marks every one was.
    """
    dirty = ctx._ctx_dirty
    for tensor in dirty:
        if not any(tensor is other for other in call.inputs):
            raise AutogradError(f"{call.facts.title}: mark_dirty was given a tensor that is no input")
    marked = {id(tensor._storage) for tensor in dirty}
    written: list[Tensor] = []
    for tensor, edge, version in zip(call.inputs, call.edges, call.versions, strict=True):
        is_dirty = any(tensor is other for other in dirty)
        changed = tensor._storage.version != version and id(tensor._storage) not in marked
        if not (is_dirty or changed) or any(tensor is other for other in written):
            continue
        if changed:
            check_write(call.facts.title, "an input", tensor)
        returned = any(tensor is other for other in outputs)
        denied = any(tensor is other for other in ctx._ctx_not_inplace)
        if edge is not None and (denied or not returned):
            why = "was given to mark_not_inplace" if denied else "was not returned"
            raise AutogradError(
                f"{call.facts.title}: forward wrote to an input that requires grad and {why}, so "
                "its gradient would be wrong\n"
                "  return the written tensor, or work on a copy: x.clone()"
            )
        if returned and not denied:
            written.append(tensor)
    return written


def _bump_dirty(ctx: PyLayerContext, inputs: list[Tensor], versions: list[int]) -> None:
    """Count the writes that only ``mark_dirty`` knows of: those through raw arrays.

    What was saved after the mark was saved after the write, so its snapshot moves along.
    """
    for tensor in ctx._ctx_dirty:
        storage = tensor._storage
        for other, version in zip(inputs, versions, strict=True):
            if other is tensor and storage.version == version:
                storage.version += 1
                storage.writer = ctx._ctx_title
                if any(tensor is early for early in ctx._ctx_dirty_when_saved):
                    ctx._ctx_records = [
                        moved_on(record, storage) for record in ctx._ctx_records
                    ]


# ---------------------------------------------------------------------- backward


def _plain_arguments(facts: _Facts, tensors: tuple[bool, ...] | None) -> list[Argument]:
    """Return the descriptions of the arguments of a plain call."""
    flags = (True,) * len(facts.names) if tensors is None else tensors
    return [Argument.plain(name, flag) for name, flag in zip(facts.names, flags, strict=True)]


def _plain_backward(facts: _Facts) -> Callable[..., Any]:
    """Return the backward of nodes with one plain output and plain arguments."""
    layer = facts.layer

    def backward(node: GradNode, saved: tuple[Any, ...], gradient: Tensor) -> Sequence[Any]:
        ctx = saved[0]
        if _state.current().include & AUTOCAST:
            result = _run(layer, ctx, (gradient,))
        else:
            result = layer.backward(ctx, gradient)
        edges = node.edges
        if type(result) is tuple and len(result) == len(edges):
            return result
        if type(result) is Tensor and len(edges) == 1:
            return (result,)
        needed = [edge is not None for edge in edges]
        return spread(result, _plain_arguments(facts, saved[1]), needed, node.name())

    return backward


def _wide_backward(facts: _Facts) -> Callable[..., Any]:
    """Return the backward of all other nodes."""
    layer = facts.layer

    def backward(
        node: WideGradNode, saved: tuple[Any, ...], incoming: list[Tensor | None]
    ) -> Sequence[Any]:
        ctx, arguments, structures, _ = saved
        if ctx.materialize_grads:
            like = next(gradient for gradient in incoming if gradient is not None)
            incoming = [
                zeros_for(node, position, like) if gradient is None else gradient
                for position, gradient in enumerate(incoming)
            ]
        flat = iter(incoming)
        gradients = [mirrored(structure, flat) for structure in structures]
        if _positional_count(layer.backward) != len(gradients):
            held = zip(gradients, structures, strict=True)
            gradients = [g for g, structure in held if count_of(structure)]
        result = _run(layer, ctx, gradients)
        needed = [edge is not None for edge in node.edges]
        return spread(result, arguments, needed, node.name())

    return backward


def _run(layer: type[PyLayer], ctx: PyLayerContext, gradients: Sequence[Any]) -> Any:
    """Run the user's backward under the autocast state of its forward."""
    state = _state.current()
    if not state.include & AUTOCAST and ctx._ctx_autocast is None:
        return layer.backward(ctx, *gradients)
    bits = state.include & ~AUTOCAST
    if ctx._ctx_autocast is not None:
        bits |= AUTOCAST
    with _state.enter(state.replace(include=bits).with_config(autocast=ctx._ctx_autocast)):
        return layer.backward(ctx, *gradients)


@functools.lru_cache(maxsize=1024)
def _positional_count(backward: Callable[..., Any]) -> int:
    """Return how many gradients a backward names, or -1 if it takes any number."""
    parameters = _signature(backward, skip=1).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return -1
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _edge_name(node: GradNode, saved: tuple[Any, ...], index: int) -> str:
    """Return what users call the `index`-th tensor of a call."""
    arguments = saved[1]
    if not isinstance(arguments, list):
        facts = node.kind.op._oplib_facts
        arguments = _plain_arguments(facts, arguments)
    for argument in arguments:
        count = count_of(argument.structure)
        if index < count:
            name = f"argument `{argument.name}`"
            return name if argument.structure is True else f"{name}, tensor {index}"
        index -= count
    return f"input {index}"


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
        ctx = next(value for value in args if isinstance(value, Context))
        node = ctx._ctx_node() if ctx._ctx_node is not None else None
        if node is None:
            return result
        incoming: list[Tensor] = []
        structure_of(args, incoming)
        edges = (*node.edges, *(g.autograd_meta for g in incoming if g._keys & AUTOGRAD))
        found: list[Tensor] = []
        structure_of(result, found)
        message = f"{node.name()}: its backward is once_differentiable, so {_NO_SECOND}"
        handles = [alias_of(tensor, tensor.array) for tensor in found]
        for handle in handles:
            if is_inexact(handle.dtype):
                guard(handle, edges, message)
        return _rebuilt(result, iter(handles))

    return backward  # type: ignore[return-value]


_NO_SECOND: Final = (
    "its results have no derivative\n  write it with differentiable operators and drop the decorator"
)
