"""`detect_anomaly`: a NaN in a gradient raises where it arises, with the forward line.

The key bit ANOMALY selects plans that note the user's line on every node, and in a run it gives
every node hooks, so the engine runs it the long way; off, nothing is different.

Imports floors 0 to 4, `gradients.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import _state
from .._text import user_line
from ..dispatch.keys import ANOMALY, CPU, INTERPRETER, META
from ..dispatch.lifting import tensor_leaves
from ..dispatch.operator import Operator, Plan
from ..errors import ArgumentError, AutogradError
from ..tensor.grad_meta import GradNode
from ..tensor.tensor import Tensor
from .gradients import Node, edge_name

__all__ = ["checked_for_anomaly", "detect_anomaly", "note_line", "noting_line", "watch"]


@contextlib.contextmanager
def detect_anomaly(*, inf: bool = False) -> Iterator[None]:
    """Raise where a gradient becomes NaN, and say which line of the forward computation made it.

    Only nodes made inside know their line. Other exceptions of a backward get it as a note. Calls
    are slower inside, and cost nothing outside.

    Parameters
    ----------
    inf : bool
        Take infinities for anomalies too.

    Examples
    --------
    >>> import oplib
    >>> x = oplib.tensor([0.0], requires_grad=True)
    >>> with oplib.autograd.detect_anomaly(), np.errstate(all="ignore"):
    ...     (x.sqrt() * 0).backward()
    Traceback (most recent call last):
    oplib.errors.AutogradError: GradNode_std::sqrt: the gradient of argument `x` holds NaN ...
    """
    if not isinstance(inf, bool):
        raise ArgumentError(f"detect_anomaly: inf is a bool, got {inf!r}")
    state = _state.current()
    inner = state.replace(include=state.include | ANOMALY).with_config(anomaly_inf=inf or None)
    with _state.enter(inner):
        yield


def noting_line(op: Operator[..., Any], plan: Plan) -> Plan:
    """Return a recording plan that also notes the user's line on the node it makes."""
    written = [
        i for i, a in enumerate(op.schema.arguments) if a.name in op.schema.mutated_arguments
    ]

    def noting(*args: Any) -> Any:
        result = plan(*args)
        note_line([result, *(args[i] for i in written)])
        return result

    return noting


def note_line(made: Any) -> None:
    """Note the user's line on the nodes that made some tensors, unless they have one."""
    for tensor in tensor_leaves(made):
        meta = tensor.autograd_meta
        if meta is not None and isinstance(meta.grad_node, GradNode):
            hooks = meta.grad_node._hooks()
            hooks.site = hooks.site or user_line()


def watch(nodes: Iterable[Node]) -> None:
    """Have the engine run these nodes the long way, where their results are checked."""
    for node in nodes:
        node._hooks()


def checked_for_anomaly(
    node: GradNode, saved: tuple[Any, ...], incoming: Sequence[Any], outgoing: Iterable[Any]
) -> tuple[Any, ...]:
    """Return what a node returned, or raise for a NaN in it."""
    gradients = tuple(outgoing)
    inf = "anomaly_inf" in _state.current().config
    for index, (edge, gradient) in enumerate(zip(node.edges, gradients, strict=False)):
        bad = _bad_value(gradient, inf) if edge is not None else ""
        if bad:
            site = node.hooks.site if node.hooks is not None else ""
            line = site or "outside of detect_anomaly, so the line is not known"
            came = any(_bad_value(g, inf) for g in incoming)
            hint = "\n  it came with the gradient that arrived here" if came else ""
            raise AutogradError(
                f"{node.name()}: the gradient of {edge_name(node, saved, index)} holds {bad}\n"
                f"  recorded  {line}{hint}"
            )
    return gradients


def _bad_value(gradient: Any, inf: bool) -> str:
    """Return what is wrong with a gradient, or an empty string."""
    if not isinstance(gradient, Tensor) or gradient._keys & (META | INTERPRETER):
        return ""
    array = gradient.array if gradient._keys & CPU else gradient.numpy()
    if np.isfinite(array).all():
        return ""
    return "NaN" if np.isnan(array).any() else "an infinity" if inf else ""
