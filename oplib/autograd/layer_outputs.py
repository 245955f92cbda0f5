"""What forward of a `PyLayer` returned and wrote, turned into outputs of a node.

Outputs are handles of their own on the memory that forward returned, so a cached tensor or an input
that is returned keeps its history; an input that was written is returned as the same object. An
output that lies in an input knows it, so neither is written to behind the other.

Imports floors 0 to 4, `context.py`, `family.py`, `layer_facts.py`, `returned.py`, `wrapper.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from .. import _state
from .._text import short_repr
from ..dispatch.keys import AUTOGRAD, INTERPRETER, VIEW
from ..dtypes import is_inexact
from ..errors import AutogradError
from ..prims import layer_boundary
from ..tensor.grad_meta import (
    AutogradMeta,
    GradNode,
    WideGradNode,
    move_retained,
    new_meta,
    new_view_record,
)
from ..tensor.tensor import Tensor, alias_of, blank_tensor, join_family
from .context import PyLayerContext
from .family import check_write, rebase
from .layer_facts import LayerFacts, plain_arguments
from .returned import Argument, structure_of
from .wrapper import moved_on

__all__ = [
    "LayerCall",
    "as_seen_below",
    "bump_dirty",
    "check_outputs",
    "is_plain",
    "layer_output",
    "rebuilt",
    "record_outputs",
]


class LayerCall:
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
        facts: LayerFacts,
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


def is_plain(ctx: PyLayerContext, result: Any) -> bool:
    """Return whether forward gave one inexact tensor, and marked nothing."""
    if type(result) is not Tensor or result.array.dtype.kind not in "fcV":
        return False
    return not (ctx._ctx_dirty or ctx._ctx_undifferentiable)


def layer_output(ctx: PyLayerContext, made: Tensor, node: GradNode, position: int) -> Tensor:
    """Return a handle of its own for a fresh output."""
    array = made.array
    output = blank_tensor()
    output.array = array
    output._keys = made._keys & ~VIEW | AUTOGRAD
    output._storage = made._storage
    output._view = None
    dtype = array.dtype if ctx.grad_in_dtype_consistent else None
    output.autograd_meta = new_meta(node, position, array.shape, dtype)
    return output


def as_seen_below(facts: LayerFacts, made: Tensor, inputs: list[Tensor]) -> Tensor:
    """Return an output as the levels below should see it.

    Forward ran with grad off on every level, so below this one the output has no history, and its
    gradient would silently be zero there. The boundary makes it raise instead.
    """
    state = _state.current()
    with _state.enter(state.replace(handled=state.handled | AUTOGRAD | VIEW)):
        bounded: Tensor = layer_boundary(made, list(inputs), facts.layer.__name__)
    return bounded


def check_outputs(
    facts: LayerFacts, ctx: PyLayerContext, result: Any, outputs: list[Tensor]
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


def record_outputs(call: LayerCall, ctx: PyLayerContext, result: Any) -> Any:
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
    check_outputs(facts, ctx, result, outputs)
    written = _written_inputs(call, ctx, outputs)
    bump_dirty(ctx, call.inputs, call.versions)
    undifferentiable = ctx._ctx_undifferentiable
    differentiable = [
        is_inexact(t.dtype) and not any(t is marked for marked in undifferentiable) for t in outputs
    ]
    if not any(differentiable) and not any(t._keys & AUTOGRAD for t in outputs):
        return result
    node = _wide_node(call, outputs, layout)
    own = _ids(call.inputs) - _ids(written)
    kept = ctx._ctx_attach(
        node, call.inputs, [None if id(tensor) in own else tensor for tensor in outputs]
    )
    node.saved = (ctx, call.arguments or plain_arguments(facts, call.tensors), structures, kept)
    handles: list[Tensor] = []
    for position, made in enumerate(outputs):
        if not differentiable[position]:
            handles.append(alias_of(made, made.array) if made._keys & AUTOGRAD else made)
        elif any(made is tensor for tensor in written):
            handles.append(_rewritten(facts, ctx, made, node, position))
            written = [tensor for tensor in written if tensor is not made]
        else:
            handles.append(_fresh(call, ctx, made, node, position))
    ctx._ctx_forget_marks()
    return rebuilt(result, iter(handles))


def _ids(tensors: Sequence[Tensor]) -> set[int]:
    return {id(tensor) for tensor in tensors}


def _wide_node(call: LayerCall, outputs: list[Tensor], layout: list[int | None]) -> WideGradNode:
    node = WideGradNode()
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


def _fresh(
    call: LayerCall, ctx: PyLayerContext, made: Tensor, node: GradNode, position: int
) -> Tensor:
    """Return the handle of an output that is no written input, but may lie in an input.

    Such an alias is an opaque member of the input's family, so neither is written to behind the
    other.
    """
    seen = as_seen_below(call.facts, made, call.inputs) if made._keys & INTERPRETER else made
    handle = layer_output(ctx, seen, node, position)
    base = next((t for t in call.inputs if t._storage is made._storage), None)
    if base is not None:
        handle._view = new_view_record(join_family(base), opaque=call.facts.title)
        handle._keys |= VIEW
    return handle


def _rewritten(
    facts: LayerFacts, ctx: PyLayerContext, written: Tensor, node: GradNode, position: int
) -> Tensor:
    """Return an input that forward wrote: the same object, with the layer as its history."""
    if written._keys & INTERPRETER:
        raise AutogradError(
            f"{facts.title} writes to an input that requires grad, inside a function that is "
            "functionalized or captured; its gradient cannot be kept there\n"
            "  return a new tensor from forward, or make it an operator with register_autograd"
        )
    before = written.autograd_meta
    dtype = written.dtype if ctx.grad_in_dtype_consistent else None
    meta = new_meta(node, position, written.shape, dtype)
    if before is not None and before.retained is not None:
        move_retained(meta, before)
    written.autograd_meta = meta
    written._keys |= AUTOGRAD
    rebase(written)
    return written


def rebuilt(value: Any, handles: Iterator[Tensor]) -> Any:
    """Return what forward returned with its tensors replaced, containers keeping their types."""
    if isinstance(value, Tensor):
        return next(handles)
    if isinstance(value, tuple):
        elements = [rebuilt(element, handles) for element in value]
        return type(value)(*elements) if hasattr(value, "_fields") else type(value)(elements)
    if isinstance(value, list):
        same = copy.copy(value)
        same[:] = [rebuilt(element, handles) for element in value]
        return same
    if isinstance(value, dict):
        changed = copy.copy(value)
        for key, element in value.items():
            changed[key] = rebuilt(element, handles)
        return changed
    return value


# ---------------------------------------------------------------------- written inputs


def _written_inputs(call: LayerCall, ctx: PyLayerContext, outputs: list[Tensor]) -> list[Tensor]:
    """Return the inputs that forward wrote and returned, after checking that it may.

    Where inputs share memory, marks say which of them was written; without marks every one was.
    """
    dirty = ctx._ctx_dirty
    for tensor in dirty:
        if not any(tensor is other for other in call.inputs):
            raise AutogradError(
                f"{call.facts.title}: mark_dirty was given a tensor that is no input"
            )
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
        unmarked = (*ctx._ctx_not_inplace, *ctx._ctx_undifferentiable)
        denied = any(tensor is other for other in unmarked)
        if edge is not None and (denied or not returned):
            why = "it was marked otherwise" if denied else "it was not returned"
            raise AutogradError(
                f"{call.facts.title}: forward wrote to an input that requires grad, but {why}, "
                "so its gradient would be wrong\n"
                "  return the written tensor, or work on a copy: x.clone()"
            )
        if returned and not denied:
            written.append(tensor)
    return written


def bump_dirty(ctx: PyLayerContext, inputs: list[Tensor], versions: list[int]) -> None:
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
                    ctx._ctx_records = [moved_on(record, storage) for record in ctx._ctx_records]
