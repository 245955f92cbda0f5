"""The entry points of the engine: `backward` and `grad`.

Both validate their arguments before anything runs, then start one `run`. `GeneralGrad` is the run
behind `oplib.grad`: it knows its targets by (node, position), finds the nodes that lead to one, and
explains an input that was not reached.

Imports floors 0 to 4, `engine.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _state
from ..dispatch.keys import AUTOGRAD, CPU, INTERPRETER, VIEW
from ..errors import ArgumentError, AutogradError
from ..prims import cast, clone, new_full
from ..tensor.grad_meta import AutogradMeta
from ..tensor.tensor import Tensor, tensor_from_result
from .engine import Targets, in_topological_order, run
from .family import refresh
from .gradients import Node, owned_copy
from .modes import grad_off

__all__ = ["GeneralGrad", "backward", "backward_from", "grad"]


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
    run(_seeded(roots, grad_tensors, "grad_tensors", create_graph), retain, create_graph)


def backward_from(root: Tensor, seed: Any, retain_graph: Any, create_graph: Any) -> None:
    """Accumulate gradients of one tensor: `Tensor.backward`."""
    plain = retain_graph is None and create_graph is False  # the common call costs no other
    retain = False if plain else _flags(retain_graph, create_graph)
    meta = root.autograd_meta if root._keys & (AUTOGRAD | VIEW) == AUTOGRAD else None
    meta = _meta_of_root(root, 0) if meta is None else meta
    run([(meta, _seed(root, seed, "grad_tensors[0]", create_graph))], retain, create_graph)


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
        raise ArgumentError(
            "oplib.grad computes gradients of inputs only; only_inputs must be True"
        )
    if not isinstance(allow_unused, bool):
        raise ArgumentError(f"allow_unused is a bool, got {allow_unused!r}")
    roots = _tensor_list(outputs, "outputs")
    targets = _tensor_list(inputs, "inputs")
    retain = _flags(retain_graph, create_graph)
    seeded = _seeded(roots, grad_outputs, "grad_outputs", create_graph)
    general = GeneralGrad(seeded, targets, _constants(no_grad_vars, targets))
    return general.execute(retain, create_graph, allow_unused)


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
        cut = frozenset(key for key in map(_key_of, constants) if key is not None)
        index: dict[tuple[Node, int], int] = {}
        self.index_of: list[int | None] = []
        for tensor in inputs:
            key = _key_of(tensor)
            self.index_of.append(None if key is None else index.setdefault(key, len(index)))
        self.targets = Targets(index, cut)

    def execute(
        self, retain_graph: bool, create_graph: bool, allow_unused: bool
    ) -> list[Tensor | None]:
        """Run and return one gradient per input."""
        targets = self.targets
        self._find_needed()
        roots = [(meta, seed) for meta, seed in self.roots if meta.grad_node in targets.needed]
        if roots:
            run(roots, retain_graph, create_graph, targets)
        results = [None if i is None else targets.captured.get(i) for i in self.index_of]
        for position, result in enumerate(results):
            if result is None and not allow_unused:
                raise AutogradError(self._why_unreached(position))
        return results

    def _find_needed(self) -> None:
        """Find the nodes that lead to a target, from the last to the first."""
        targets = self.targets
        needed = targets.needed
        order = in_topological_order([meta.grad_node for meta, _ in self.roots], targets.cut)
        for node in reversed(order):
            for edge in node.edges:
                if edge is not None and edge.grad_node in needed and not targets.is_cut(edge):
                    targets.executed.add(node)
                    needed.add(node)
                    break
            else:
                if node in targets.nodes:
                    needed.add(node)

    def _why_unreached(self, position: int) -> str:
        tensor = self.inputs[position]
        key = _key_of(tensor)
        starts = [meta.grad_node for meta, _ in self.roots]
        if key is None:
            reason = "its stop_gradient is True"
        elif _reached(key, starts, self.targets.cut):
            reason = "it was reached, but every rule on the way returned None"
        elif _reached(key, starts, frozenset()):
            reason = "it was cut off by no_grad_vars"
        else:
            reason = "it was not reached from the outputs"
        return (
            f"inputs[{position}] ({tensor.describe()}) has no gradient: {reason}\n"
            "  pass allow_unused=True to get None for it"
        )


def _key_of(tensor: Tensor) -> tuple[Node, int] | None:
    """Return (node, position) of a tensor, or None if it is stopped."""
    meta = tensor.autograd_meta if tensor.requires_grad else None
    return None if meta is None else (meta.grad_node, meta.position)


def _reached(key: tuple[Node, int], starts: list[Node], cut: frozenset[tuple[Node, int]]) -> bool:
    return any(
        edge is not None and (edge.grad_node, edge.position) == key
        for node in in_topological_order(starts, cut)
        for edge in node.edges
    )


# ---------------------------------------------------------------------- arguments


def _flags(retain_graph: Any, create_graph: Any) -> bool:
    if retain_graph is None and create_graph is False:
        return False
    if not isinstance(create_graph, bool):
        raise ArgumentError(f"create_graph is a bool, got {create_graph!r}")
    if retain_graph is None:
        return create_graph
    if not isinstance(retain_graph, bool):
        raise ArgumentError(f"retain_graph is a bool or None, got {retain_graph!r}")
    return retain_graph


def _tensor_list(value: Any, name: str) -> list[Tensor]:
    """Return the tensors of an argument, refusing anything else and duplicates."""
    if type(value) is Tensor:
        return [value]
    if type(value) is list and len(value) == 1 and type(value[0]) is Tensor:
        return value
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


def _seeded(
    roots: list[Tensor], seeds: Any, name: str, create_graph: bool
) -> list[tuple[AutogradMeta, Tensor]]:
    """Return each root's record with its validated seed."""
    if seeds is None:
        seeds = [None] * len(roots)
    elif isinstance(seeds, Tensor):
        seeds = [seeds]
    if not isinstance(seeds, list | tuple) or len(seeds) != len(roots):
        raise ArgumentError(
            f"{name} must hold one seed per root, {len(roots)} in all, got {seeds!r}"
        )
    return [
        (_meta_of_root(root, position), _seed(root, seed, f"{name}[{position}]", create_graph))
        for position, (root, seed) in enumerate(zip(roots, seeds, strict=True))
    ]


def _meta_of_root(root: Tensor, position: int) -> AutogradMeta:
    """Return the record of a tensor to start from, or raise if it has none."""
    if root._view is not None:
        refresh(root)
    meta = root.autograd_meta
    if meta is None or not root._keys & AUTOGRAD:
        raise AutogradError(
            f"root {position} ({root.describe()}) does not require grad, so there is nothing "
            "to differentiate\n"
            "  was it computed outside no_grad, from a leaf with stop_gradient=False?"
        )
    return meta


def _seed(root: Tensor, seed: Any, name: str, create_graph: bool) -> Tensor:
    """Return a seed nobody else holds: ones, or a copy of the user's in the root's dtype."""
    own = root.array
    if seed is None:
        if own.dtype.kind == "c":
            raise AutogradError(
                f"a complex root needs an explicit seed ({name}): the gradient of which real "
                "function of it is wanted?"
            )
        if root._keys & ~(AUTOGRAD | VIEW) == CPU:
            ones = own.copy()  # half as expensive as np.empty, which has arguments to read
            ones.fill(1)
            return tensor_from_result(ones)
        return new_full(root.detach(), list(root.shape), 1)
    if type(seed) is Tensor and seed._keys == CPU and not root._keys & INTERPRETER:
        given = seed.array
        if own.dtype is given.dtype and own.shape == given.shape:  # by far the most common
            return owned_copy(seed)
    if not isinstance(seed, Tensor):
        raise ArgumentError(f"{name} must be a Tensor or None, got {type(seed).__name__}")
    if seed.shape != root.shape:
        raise AutogradError(
            f"{name} has shape {list(seed.shape)}, the root has shape {list(root.shape)}"
        )
    if seed.dtype.kind == "c" and root.dtype.kind != "c":
        raise AutogradError(f"{name} is complex, the root is real; pass its real part")
    with _state.enter(_state.current() if create_graph else grad_off(_state.current())):
        if seed.dtype != root.dtype:
            return cast(seed, root.dtype)
        # A run that wraps tensors has to see a seed from outside of it: a graph may hold no copy.
        return clone(seed) if root._keys & INTERPRETER else owned_copy(seed)


def _constants(value: Any, inputs: list[Tensor]) -> list[Tensor]:
    if value is None:
        return []
    if not isinstance(value, Tensor | list | tuple | set | frozenset):
        raise ArgumentError(
            f"no_grad_vars is None, a Tensor, or a list, tuple or set of them, got {value!r}"
        )
    found = [value] if isinstance(value, Tensor) else list(value)
    for tensor in found:
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"no_grad_vars holds Tensors, got {tensor!r}")
        for position, other in enumerate(inputs):
            if tensor is other:
                raise AutogradError(f"a tensor of no_grad_vars is also inputs[{position}]")
    return found
