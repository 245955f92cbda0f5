"""Recording of every shape of schema: lists, optionals, containers, several outputs, ctx rules.

`stage.py` generates code for the common shape; this path walks the call instead. It serves named
and ctx rules, operators without a rule (whose node raises, or uses a rule registered meanwhile),
and views without a rule.

Imports floors 0 to 4, `family.py`, `recorder.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..dispatch.facets import GradientRule
from ..dispatch.gradient_rule import written_unreturned
from ..dispatch.keys import AUTOGRAD
from ..dispatch.lifting import tensor_leaves
from ..dispatch.operator import Operator, Plan
from ..dtypes import is_inexact
from ..tensor.grad_meta import AutogradMeta, NodeKind, WideGradNode, move_retained, new_meta
from ..tensor.tensor import Tensor
from .family import check_write, derive_from, rebase
from .recorder import Call, Recorder

__all__ = ["general_plan", "record_view"]


def general_plan(op: Operator[..., Any], rule: GradientRule | None, below: Plan) -> Plan:
    """Return the recording plan of any operator."""
    recorder = Recorder(op, rule)
    stopped_slots = recorder.undifferentiable()
    written = [
        (i, a.name)
        for i, a in enumerate(op.schema.arguments)
        if a.name in op.schema.mutated_arguments
    ]

    def plan(*args: Any) -> Any:
        call = Call(op, args)
        rewritten = []
        for i, name in written:
            for tensor in tensor_leaves([args[i]]):
                check_write(op, name, tensor)
                rewritten.append(tensor)
        saved = recorder.save_before(call)
        result = below(*args)
        outputs, layout = _outputs(op, args, result)
        stopped = _positions(layout, stopped_slots)
        if not _any_differentiable(outputs, stopped):
            return result
        recorder.save_after(call, saved, result)
        node = _wide_node(recorder.kind, call, outputs, layout)
        context = recorder.fill(node, call, saved, args, result, outputs)
        consistent = True
        if context is not None:
            stopped |= {i for i, t in enumerate(outputs) if context._ctx_stops(t)}
            consistent = context.grad_in_dtype_consistent
            context._ctx_forget_marks()
        _attach(node, outputs, rewritten, stopped, consistent)
        return result

    return plan


def _positions(layout: Sequence[int | None], slots: frozenset[int]) -> set[int]:
    """Return the flat positions that belong to some slots."""
    found: set[int] = set()
    start = 0
    for slot, length in enumerate(layout if slots else ()):
        stop = start + (1 if length is None else length)
        if slot in slots:
            found.update(range(start, stop))
        start = stop
    return found


def _any_differentiable(outputs: Sequence[Tensor | None], stopped: set[int]) -> bool:
    return any(
        tensor is not None and position not in stopped and is_inexact(tensor.dtype)
        for position, tensor in enumerate(outputs)
    )


def _outputs(
    op: Operator[..., Any], args: Sequence[Any], result: Any
) -> tuple[list[Tensor | None], tuple[int | None, ...]]:
    """Return the output tensors of a call, flattened, and how they are grouped.

    After the returns come the written arguments that no return is.
    """
    returns = op.schema.returns
    values = [result] if len(returns) == 1 else list(result or ())
    if op.schema.is_mutable:
        given = {a.name: value for a, value in zip(op.schema.arguments, args, strict=True)}
        values += [given[name] for name in written_unreturned(op.schema)]
    flat: list[Tensor | None] = []
    layout: list[int | None] = []
    for value in values:
        if isinstance(value, Tensor):
            layout.append(None)
            flat.append(value)
        else:
            found = [] if value is None else tensor_leaves(value)
            layout.append(len(found))
            flat += found
    return flat, tuple(layout)


def _wide_node(
    kind: NodeKind, call: Call, outputs: Sequence[Tensor | None], layout: tuple[int | None, ...]
) -> WideGradNode:
    """Return a node for a call with any number of outputs."""
    node = WideGradNode()
    node.kind = kind
    node.edges = call.edges
    node.saved = ()
    node.hooks = None
    node.shapes = tuple([t.shape if t is not None else () for t in outputs])
    node.dtypes = tuple([t.dtype if t is not None else None for t in outputs])
    node.input_layout = call.layout
    node.output_layout = layout
    return node


def _attach(
    node: WideGradNode,
    outputs: Sequence[Tensor | None],
    written: Sequence[Tensor],
    stopped: set[int],
    consistent: bool,
) -> None:
    """Give every differentiable output its record, and rebase the families of written ones."""
    rewritten = {id(tensor) for tensor in written}
    for position, tensor in enumerate(outputs):
        if tensor is None or not is_inexact(tensor.dtype):
            continue
        if position in stopped and id(tensor) not in rewritten:
            continue
        meta = new_meta(node, position, tensor.shape, tensor.dtype if consistent else None)
        before = tensor.autograd_meta
        if before is not None and before.retained is not None and id(tensor) in rewritten:
            move_retained(meta, before)
        tensor.autograd_meta = meta
        tensor._keys |= AUTOGRAD
        if id(tensor) in rewritten:
            rebase(tensor)


# ---------------------------------------------------------------------- views without a rule


def record_view(op: Operator[..., Any], below: Plan) -> Plan:
    """Return the plan of a view operator without a rule: gradients follow the addresses."""

    def plan(*args: Any) -> Any:
        result = below(*args)
        bases: dict[int, tuple[Tensor, AutogradMeta]] = {}
        for tensor in tensor_leaves(args):
            if tensor._view is not None and tensor._keys & AUTOGRAD:
                bases[id(tensor._view.family)] = (tensor, tensor.autograd_meta)
        for view in tensor_leaves([result]):
            if view._view is not None and not view._keys & AUTOGRAD:
                base = bases.get(id(view._view.family))
                if base is not None:
                    view.autograd_meta = derive_from(*base, view)
                    view._keys |= AUTOGRAD
        return result

    return plan
