"""What `PyLayer.apply` knows of a class, and how the class's backward is run.

Everything that can be found once per class is: the signature of forward, whether calls can take the
short way, the two `NodeKind`s of its nodes (one plain output, and everything else).

Imports floors 0 to 4, `context.py`, `gradients.py`, `returned.py`. Read next: `layer_outputs.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from .. import _state
from ..dispatch.keys import AUTOCAST
from ..tensor.grad_meta import GradNode, NodeKind, WideGradNode
from ..tensor.tensor import Tensor
from .context import PyLayerContext
from .gradients import zeros_for
from .returned import Argument, count_of, mirrored, spread

__all__ = ["LayerFacts", "plain_arguments"]


class LayerFacts:
    """What `apply` needs to know of a layer class, found once.

    Attributes
    ----------
    title : str
        For messages: ``"PyLayer MyLayer"``.
    plan : callable
        What runs plain calls (see `layer_plan.py`).
    forward : callable
    signature : inspect.Signature
        Of forward, without ctx.
    plain_count : int
        Number of positional parameters if there are no others, else -1.
    names : tuple of str
        Of the parameters.
    qualname : str
        For the generated plan.
    setup : callable or None
    kind, wide_kind : NodeKind
        Of nodes with one plain output, and of all others.
    """

    __slots__ = (
        "__weakref__",
        "forward",
        "kind",
        "layer",
        "names",
        "plain_count",
        "plan",
        "qualname",
        "setup",
        "signature",
        "title",
        "wide_kind",
    )

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.title = f"PyLayer {layer.__name__}"
        self.qualname = self.title
        self.plan: Callable[..., Any]
        self.forward: Callable[..., Any] = layer.forward
        self.setup: Callable[..., Any] | None = getattr(layer, "setup_context", None)
        self.signature = _signature(self.forward, skip=0 if self.setup else 1)
        parameters = self.signature.parameters.values()
        self.names = tuple(self.signature.parameters)
        plain = self.setup is None and all(
            p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters
        )
        self.plain_count = len(self.names) if plain else -1
        self.kind = NodeKind(layer, _plain_backward(self), functools.partial(_edge_name, self))
        self.wide_kind = NodeKind(layer, _wide_backward(self), functools.partial(_edge_name, self))


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


# ---------------------------------------------------------------------- backward


def plain_arguments(facts: LayerFacts, tensors: tuple[bool, ...] | None) -> list[Argument]:
    """Return the descriptions of the arguments of a plain call."""
    flags = (True,) * len(facts.names) if tensors is None else tensors
    return [Argument.plain(name, flag) for name, flag in zip(facts.names, flags, strict=True)]


def _plain_backward(facts: LayerFacts) -> Callable[..., Any]:
    """Return the backward of nodes with one plain output and plain arguments."""
    layer = facts.layer

    def backward(node: GradNode, saved: tuple[Any, ...], gradient: Tensor) -> Sequence[Any]:
        ctx = saved[0]
        if ctx._ctx_marks.autocast is None:
            result = layer.backward(ctx, gradient)
        else:
            result = _run(layer, ctx, (gradient,))
        edges = node.edges
        if type(result) is tuple and len(result) == len(edges):
            return result
        if type(result) is Tensor and len(edges) == 1:
            return (result,)
        needed = [edge is not None for edge in edges]
        return spread(result, plain_arguments(facts, saved[1]), needed, node.name())

    return backward


def _wide_backward(facts: LayerFacts) -> Callable[..., Any]:
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


def _run(layer: Any, ctx: PyLayerContext, gradients: Sequence[Any]) -> Any:
    """Run the user's backward under the autocast policy of its forward; the engine has none."""
    if ctx._ctx_marks.autocast is None:
        return layer.backward(ctx, *gradients)
    state = _state.current()
    inside = state.replace(include=state.include | AUTOCAST)
    with _state.enter(inside.with_config(autocast=ctx._ctx_marks.autocast)):
        return layer.backward(ctx, *gradients)


@functools.lru_cache(maxsize=1024)
def _positional_count(backward: Callable[..., Any]) -> int:
    """Return how many gradients a backward names, or -1 if it takes any number."""
    parameters = _signature(backward, skip=1).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return -1
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _edge_name(facts: LayerFacts, node: GradNode, saved: tuple[Any, ...], index: int) -> str:
    """Return what users call the `index`-th tensor of a call."""
    arguments = saved[1]
    if not isinstance(arguments, list):
        arguments = plain_arguments(facts, arguments)
    for argument in arguments:
        count = count_of(argument.structure)
        if index < count:
            name = f"argument `{argument.name}`"
            return name if argument.structure is True else f"{name}, tensor {index}"
        index -= count
    return f"input {index}"
