"""The entry points of the engine: `backward` and `grad`.

Both validate their arguments before anything runs, then start one `Run`. `GeneralGrad` is the run
behind `oplib.grad`: it knows its targets by (node, position), finds the nodes that lead to one, and
explains an input that was not reached.

Imports floors 0 to 4, `engine.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dispatch.keys import AUTOGRAD, CPU
from ..errors import ArgumentError, AutogradError
from ..prims import cast, new_full
from ..tensor.grad_meta import AutogradMeta
from ..tensor.tensor import Tensor, tensor_from_result
from .engine import Node, Run

__all__ = ["GeneralGrad", "backward", "grad"]


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> None:
    """Accumulate gradients of `tensors` into the leaves they were computed from.

    Parameters
    ----------
    tensors : Tensor or sequence of Tensor
        Roots; each must require grad.
    grad_tensors : Tensor, sequence of Tensor or None, optional
        Incoming gradient per root; ones by default.
    retain_graph : bool, optional
        Keep saved values; defaults to `create_graph`.
    create_graph : bool
        Record the gradient computation.

    Raises
    ------
    ArgumentError
        For arguments of a wrong type or number.
    AutogradError
        For a root without gradient, a seed of a wrong shape, or a released graph.
    """
    roots = _tensor_list(tensors, "tensors")
    retain = _flags(retain_graph, create_graph)
    Run(retain, create_graph).execute(_seeded(roots, grad_tensors, "grad_tensors"))


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool = False,
    no_grad_vars: Any = None,
) -> list[Tensor | None]:
    """Return gradients of `outputs` with respect to `inputs`; no ``.grad`` is touched.

    Parameters
    ----------
    outputs, inputs : Tensor or sequence of Tensor
    grad_outputs : Tensor, sequence of Tensor or None, optional
        Incoming gradient per output; ones by default.
    retain_graph, create_graph : bool
        As in `backward`.
    allow_unused : bool
        Give None for an input that the outputs do not depend on, instead of raising.
    no_grad_vars : Tensor or collection of Tensor, optional
        Tensors through which no gradient flows in this run.

    Returns
    -------
    list of Tensor or None
        One per input.

    Examples
    --------
    >>> import oplib
    >>> x = oplib.tensor([2.0], requires_grad=True)
    >>> oplib.grad(x * x * x, x)
    [Tensor([12.])]
    """
    if only_inputs is not True:
        raise ArgumentError("oplib.grad computes gradients of inputs only; only_inputs must be True")
    if not isinstance(allow_unused, bool):
        raise ArgumentError(f"allow_unused is a bool, got {allow_unused!r}")
    roots = _tensor_list(outputs, "outputs")
    targets = _tensor_list(inputs, "inputs")
    retain = _flags(retain_graph, create_graph)
    seeded = _seeded(roots, grad_outputs, "grad_outputs")
    run = GeneralGrad(seeded, targets, _constants(no_grad_vars, targets))
    return run.execute(retain, create_graph, allow_unused)


class GeneralGrad:
    """One call of `oplib.grad`."""

    def __init__(
        self,
        roots: list[tuple[AutogradMeta, Tensor]],
        inputs: list[Tensor],
        constants: list[Tensor],
    ) -> None:
        self.roots = roots
        self.inputs = inputs
        self.cut = frozenset(
            (t.autograd_meta.grad_node, t.autograd_meta.position)
            for t in constants
            if t.requires_grad and t.autograd_meta is not None
        )
        self.targets: dict[tuple[Node, int], int] = {}
        self.position_of: list[int | None] = []
        for tensor in inputs:
            meta = tensor.autograd_meta if tensor.requires_grad else None
            if meta is None:
                self.position_of.append(None)
            else:
                key = (meta.grad_node, meta.position)
                self.position_of.append(self.targets.setdefault(key, len(self.targets)))

    def execute(
        self, retain_graph: bool, create_graph: bool, allow_unused: bool
    ) -> list[Tensor | None]:
        """Run and return one gradient per input."""
        needed, reachable = self._needed()
        run = Run(retain_graph, create_graph, self.targets, needed, self.cut)
        roots = [(meta, seed) for meta, seed in self.roots if meta.grad_node in needed]
        if roots:
            run.execute(roots)
        results: list[Tensor | None] = []
        for index, position in enumerate(self.position_of):
            found = run.captured.get(position) if position is not None else None
            if found is None and not allow_unused:
                raise AutogradError(self._why_unreached(index, reachable))
            results.append(found if found is None else _result(found, create_graph))
        return results

    def _needed(self) -> tuple[set[Node], set[Node]]:
        """Return the nodes between the outputs and a target, and all that are reachable."""
        parents: dict[Node, list[Node]] = {}
        reachable: set[Node] = {meta.grad_node for meta, _ in self.roots}
        queue: deque[Node] = deque(reachable)
        while queue:
            node = queue.popleft()
            for edge in node.edges:
                if edge is None or (edge.grad_node, edge.position) in self.cut:
                    continue
                parents.setdefault(edge.grad_node, []).append(node)
                if edge.grad_node not in reachable:
                    reachable.add(edge.grad_node)
                    queue.append(edge.grad_node)
        needed: set[Node] = {node for node, _ in self.targets if node in reachable}
        pending = list(needed)
        while pending:
            for parent in parents.get(pending.pop(), ()):
                if parent not in needed:
                    needed.add(parent)
                    pending.append(parent)
        return needed, reachable

    def _why_unreached(self, index: int, reachable: set[Node]) -> str:
        tensor = self.inputs[index]
        meta = tensor.autograd_meta
        if meta is None or not tensor.requires_grad:
            reason = "its stop_gradient is True"
        elif meta.grad_node in reachable:
            reason = "it was reached, but every rule on the way returned None"
        elif self.cut:
            reason = "it was not reached from the outputs, or was cut off by no_grad_vars"
        else:
            reason = "it was not reached from the outputs"
        return (
            f"inputs[{index}] ({tensor.describe()}) has no gradient: {reason}\n"
            "  pass allow_unused=True to get None for it"
        )


def _result(gradient: Tensor, create_graph: bool) -> Tensor:
    """Return a captured gradient as a handle of the caller's own."""
    if create_graph:
        return gradient
    if gradient._keys == CPU:
        return tensor_from_result(gradient.array.copy())
    return gradient


# ---------------------------------------------------------------------- arguments


def _flags(retain_graph: Any, create_graph: Any) -> bool:
    for name, value in (("retain_graph", retain_graph), ("create_graph", create_graph)):
        if not isinstance(value, bool) and not (name == "retain_graph" and value is None):
            raise ArgumentError(f"{name} is a bool, got {value!r}")
    return bool(create_graph if retain_graph is None else retain_graph)


def _tensor_list(value: Any, name: str) -> list[Tensor]:
    """Return the tensors of an argument, refusing anything else and duplicates."""
    if isinstance(value, Tensor):
        return [value]
    if not isinstance(value, list | tuple) or not value:
        raise ArgumentError(f"{name} is a Tensor or a non-empty list of Tensors, got {value!r}")
    seen: dict[int, int] = {}
    for position, tensor in enumerate(value):
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{name}[{position}] must be a Tensor, got {tensor!r}")
        first = seen.setdefault(id(tensor), position)
        if first != position:
            raise ArgumentError(f"{name}[{position}] is the same tensor as {name}[{first}]")
    return list(value)


def _seeded(roots: list[Tensor], seeds: Any, name: str) -> list[tuple[AutogradMeta, Tensor]]:
    """Return each root's record with its validated seed."""
    if seeds is None:
        seeds = [None] * len(roots)
    elif isinstance(seeds, Tensor):
        seeds = [seeds]
    if not isinstance(seeds, list | tuple) or len(seeds) != len(roots):
        raise ArgumentError(f"{name} must hold one seed per root, {len(roots)} in all, got {seeds!r}")
    pairs = []
    for position, (root, seed) in enumerate(zip(roots, seeds, strict=True)):
        if not root.requires_grad or root.autograd_meta is None:
            raise AutogradError(
                f"root {position} ({root.describe()}) does not require grad, so there is nothing to "
                "differentiate; was it computed from a leaf with stop_gradient=False, outside no_grad?"
            )
        pairs.append((root.autograd_meta, _seed(root, seed, f"{name}[{position}]")))
    return pairs


def _seed(root: Tensor, seed: Any, name: str) -> Tensor:
    if seed is None:
        if root.dtype.kind == "c":
            raise AutogradError(
                f"a complex root needs an explicit seed ({name}): the gradient of which real "
                "function of it is wanted?"
            )
        if root._keys & ~AUTOGRAD == CPU:
            return tensor_from_result(np.ones(root.shape, root.dtype))
        return new_full(root.detach(), list(root.shape), 1)  # type: ignore[attr-defined,no-any-return]
    if not isinstance(seed, Tensor):
        raise ArgumentError(f"{name} must be a Tensor or None, got {type(seed).__name__}")
    if seed.shape != root.shape:
        raise AutogradError(
            f"{name} has shape {list(seed.shape)}, the root has shape {list(root.shape)}"
        )
    if seed.dtype.kind == "c" and root.dtype.kind != "c":
        raise AutogradError(f"{name} is complex, the root is real; pass its real part")
    return seed if seed.dtype == root.dtype else cast(seed, root.dtype)  # type: ignore[no-any-return]


def _constants(value: Any, inputs: list[Tensor]) -> list[Tensor]:
    if value is None:
        return []
    found = [value] if isinstance(value, Tensor) else list(value)
    for tensor in found:
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"no_grad_vars holds Tensors, got {tensor!r}")
        if any(tensor is other for other in inputs):
            raise AutogradError("a tensor of no_grad_vars is also an input")
    return found
