"""How a PyLayer is called: a plan generated for plain calls, and the general way for all others.

A plan is for the parameters of one forward function and for which of them are given tensors; it
records only. What it finds unusual (containers, nothing to record, autocast, marks, a result that
is an input or no fresh tensor, a write) it hands over.

Imports floors 0 to 4, `layer_facts.py`, `layer_outputs.py`, `context.py`, `family.py`, `modes.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from sys import getrefcount
from typing import Any, Final
from weakref import ref

import numpy as np

from .. import _state
from ..dispatch.keys import ANOMALY, AUTOCAST, AUTOGRAD, CHECKED, INTERPRETER, VIEW
from ..dispatch.source import generate, local_name, tuple_text
from ..errors import ArgumentError
from ..tensor.grad_meta import AutogradMeta, GradNode
from ..tensor.tensor import Tensor, alias_of
from .anomaly import note_line
from .context import NOTHING_KEPT, UNMARKED, UNSAVED, PyLayerContext, new_context
from .family import refresh_for_use
from .gradients import UNSHARED
from .layer_facts import LayerFacts
from .layer_outputs import LayerCall, as_seen_below, bump_dirty, check_outputs, record_outputs
from .modes import grad_off
from .returned import Argument, needs_of, structure_of

__all__ = ["apply_any", "facts_of"]

_CONTAINERS: Final = (list, tuple, dict)
_SLOWER: Final = ANOMALY | AUTOCAST | CHECKED


def facts_of(layer: Any) -> LayerFacts:
    """Return what is known of a layer class, with a plan for the first call to come."""
    facts = LayerFacts(layer)
    facts.plan = _chooser(facts)
    return facts


# ---------------------------------------------------------------------- plain calls


def _chooser(facts: LayerFacts) -> Callable[..., Any]:
    """Return the function that finds the plan of a call by which arguments are tensors."""
    plans: dict[tuple[bool, ...], Callable[..., Any]] = {}

    def choose(*args: Any) -> Any:
        if any(isinstance(value, _CONTAINERS) for value in args):
            return apply_any(facts, args, {})
        tensors = tuple([type(value) is Tensor for value in args])
        plan = plans.get(tensors)
        if plan is None:
            plan = plans[tensors] = _plan(facts, tensors, choose)
        facts.plan = plan  # for the next call, which most likely is alike
        return plan(*args)

    return choose


def _plan(
    facts: LayerFacts, tensors: tuple[bool, ...], choose: Callable[..., Any]
) -> Callable[..., Any]:
    """Generate the plan of plain calls with tensors at the given places."""
    every = [local_name(name) for name in facts.names]
    lines = [f"def plan({', '.join(every)}):", *_forward_lines(every, tensors)]
    lines += _record_lines([x for x, t in zip(every, tensors, strict=True) if t])
    names = {
        **_NAMES,
        "_op_choose": choose,
        "_op_facts": facts,
        "_op_forward": facts.forward,
        "_op_kind": facts.kind,
        "_op_tensors": None if all(tensors) else tensors,
        "_op_title": facts.title,
    }
    owner: Any = facts
    return generate(owner, f"apply {tensors}", "plan", lines, names)  # type: ignore[no-any-return]


def _forward_lines(every: list[str], tensors: tuple[bool, ...]) -> list[str]:
    """Return the lines that read edges and run forward."""
    given = [x for x, t in zip(every, tensors, strict=True) if t]
    unlike = [
        f"_op_type({x}) is not _op_Tensor" if t else f"_op_isinstance({x}, _op_other_types)"
        for x, t in zip(every, tensors, strict=True)
    ]
    needs = [f"_op_m_{x} is not None" if x in given else "False" for x in every]
    args, written = tuple_text(every), tuple_text([f"_op_v_{x}" for x in given])
    lines = [
        f"    if {' or '.join(unlike) or 'False'}:",
        f"        return _op_choose({', '.join(every)})",
        "    _op_state = _op_current()",
        f"    if _op_state.include & {_SLOWER} or not _op_state.mask & {AUTOGRAD}:",
        f"        return _op_any(_op_facts, {args}, {{}})",
    ]
    for x in given:
        lines += [
            f"    if {x}._keys & {VIEW}: _op_refresh({x})",
            f"    _op_m_{x} = {x}.autograd_meta if {x}._keys & {AUTOGRAD} else None",
        ]
    return [
        *lines,
        f"    _op_needs = {tuple_text(needs)}",
        "    if True not in _op_needs:",
        f"        return _op_any(_op_facts, {args}, {{}})",
        *[f"    _op_s_{x} = {x}._storage; _op_v_{x} = _op_s_{x}.version" for x in given],
        "    _op_ctx = _op_Context()",
        "    _op_ctx._ctx_title = _op_title",
        "    _op_ctx._ctx_needs = _op_needs",
        "    _op_ctx._ctx_recording = True",
        "    _op_ctx.materialize_grads = _op_ctx.grad_in_dtype_consistent = True",
        "    _op_ctx._ctx_node = None",
        "    _op_ctx._ctx_saved = _op_unsaved",
        "    _op_ctx._ctx_marks = _op_unmarked",
        "    _op_set_state(_op_off if _op_state is _op_default else _op_grad_off(_op_state))",
        "    try:",
        f"        _op_out = _op_forward({', '.join(['_op_ctx', *every])})",
        "    except BaseException:",
        f"        _op_bump(_op_ctx, {tuple_text(given)}, {written})",
        "        raise",
        "    finally:",
        "        _op_set_state(_op_state)",
    ]


def _record_lines(given: list[str]) -> list[str]:
    """Return the lines that make a node of one fresh result, or hand over any other."""
    inputs = tuple_text(given)
    metas = tuple_text([f"_op_m_{x}" for x in given])
    versions = tuple_text([f"_op_v_{x}" for x in given])
    unusual = [f"_op_s_{x}.version != _op_v_{x} or _op_out._storage is _op_s_{x}" for x in given]
    saved = ["_op_tree is None", f"_op_len(_op_g) == {len(given)}", "not _op_ctx.__dict__"]
    saved += [f"_op_g[{i}] is {x}" for i, x in enumerate(given)]
    return [
        "    if (_op_type(_op_out) is not _op_Tensor or _op_ctx._ctx_marks is not _op_unmarked",
        *[f"            or {condition}" for condition in unusual],
        "            or (_op_d := (_op_a := _op_out.array).dtype) is not _op_float64",
        "            and _op_d.kind not in 'fcV'):",
        f"        _op_call = _op_Call(_op_facts, _op_tensors, None, {metas}, {inputs}, {versions})",
        "        return _op_record(_op_call, _op_ctx, _op_out)",
        "    _op_n = _op_Node()",
        "    _op_n.kind = _op_kind",
        f"    _op_n.edges = {metas}",
        "    _op_n.hooks = None",
        "    _op_m = _op_Meta()",
        "    _op_m.grad_node = _op_n",
        "    _op_m.position = 0",
        "    _op_m.retained = None",
        "    _op_n.shapes = _op_m.shape = _op_a.shape",
        "    _op_n.dtypes = _op_m.dtype = _op_d",
        "    if not _op_ctx.grad_in_dtype_consistent: _op_m.dtype = None",
        "    _op_g, _op_r, _op_tree = _op_ctx._ctx_saved",
        f"    if {' and '.join(saved)}:  # the inputs, as most layers do",
        "        _op_ctx._ctx_node = _op_ref(_op_n)",
        "        _op_ctx._ctx_saved = _op_unsaved",
        "        _op_kept = _op_r, None, _op_unstated, None, _op_unnamed",
        f"    else: _op_kept = _op_ctx._ctx_attach(_op_n, {inputs}, (_op_out,))",
        "    _op_n.saved = (_op_ctx, _op_tensors, _op_kept)",
        f"    if _op_out._keys & {INTERPRETER}:",
        f"        _op_out = _op_seen(_op_facts, _op_out, {inputs})",
        f"    if _op_references(_op_out) != {UNSHARED} or _op_out._view is not None:",
        "        _op_out = _op_alias(_op_out, _op_out.array)  # somebody else holds that handle",
        "    _op_out.autograd_meta = _op_m",
        f"    _op_out._keys |= {AUTOGRAD}",
        "    return _op_out",
    ]


# ---------------------------------------------------------------------- any call


def apply_any(facts: LayerFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run any call: containers, keywords, nothing to record, autocast, ``setup_context``."""
    state = _state.current()
    inputs: list[Tensor] = []
    bound = _bound(facts, args, kwargs)
    arguments = [Argument(name, value, inputs) for name, value in bound]
    for tensor in inputs:
        refresh_for_use(tensor)
    recording = state.mask & AUTOGRAD
    edges = tuple([t.autograd_meta if recording and t._keys & AUTOGRAD else None for t in inputs])
    needed = iter([edge is not None for edge in edges])
    needs = tuple([needs_of(argument.structure, needed) for argument in arguments])
    records = any(edge is not None for edge in edges)
    ctx = new_context(PyLayerContext, facts.title, needs, records)
    if state.include & AUTOCAST:
        ctx._ctx_marks = UNMARKED._replace(autocast=state.config.get("autocast"))
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


_NAMES: Final[dict[str, Any]] = {
    "_op_Call": LayerCall,
    "_op_Context": PyLayerContext,
    "_op_Meta": AutogradMeta,
    "_op_Node": GradNode,
    "_op_Tensor": Tensor,
    "_op_alias": alias_of,
    "_op_any": apply_any,
    "_op_bump": bump_dirty,
    "_op_current": _state.current,
    "_op_default": _state.DEFAULT_STATE,
    "_op_float64": np.dtype(np.float64),
    "_op_grad_off": grad_off,
    "_op_isinstance": isinstance,
    "_op_len": len,
    "_op_off": grad_off(_state.DEFAULT_STATE),
    "_op_other_types": (Tensor, *_CONTAINERS),
    "_op_record": record_outputs,
    "_op_ref": ref,
    "_op_references": getrefcount,
    "_op_refresh": refresh_for_use,
    "_op_seen": as_seen_below,
    "_op_set_state": _state.set_state,
    "_op_type": type,
    "_op_unmarked": UNMARKED,
    "_op_unnamed": NOTHING_KEPT[4],
    "_op_unsaved": UNSAVED,
    "_op_unstated": NOTHING_KEPT[2],
}
"""What the text of every plan refers to."""
