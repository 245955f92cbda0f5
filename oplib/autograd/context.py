"""``ctx``: what a forward function leaves for its backward.

Tensors go through `save_for_backward`, which checks versions; anything else is an attribute. An
attribute that is an output of the call is kept without a cycle: after forward it is replaced by a
wrapper and re-attached when it is read.

Imports floors 0 to 4, `wrapper.py`.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

from .. import _state
from .._text import short_repr
from .._tree import flatten, leaves, tree_map, unflatten
from ..dispatch.keys import AUTOGRAD
from ..dtypes import is_inexact
from ..errors import ArgumentError, AutogradError
from ..tensor.grad_meta import AutogradMeta, GradNode, NodeKind, new_meta
from ..tensor.tensor import Tensor
from .wrapper import recover, save

__all__ = ["Context"]

_new: Final = object.__new__


class _Saved:
    """One saved tensor and where its history is: an edge, an output, or nowhere."""

    __slots__ = ("constant", "edge", "output", "wrapper")

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper
        self.edge: AutogradMeta | None = None
        self.output: int | None = None
        self.constant = False


class Context:
    """Carries saved values from the forward call to `backward`.

    Attributes
    ----------
    needs_input_grad : tuple
        Per argument, nested like containers: whether a gradient is needed.
    """

    def __init__(self) -> None:
        self._saved: list[_Saved | None] | None = None
        self._structure: Any = None
        self._originals: list[Tensor | None] = []
        self._node: Any = None
        self._constants: list[int] = []
        self.needs_input_grad: tuple[Any, ...] = ()
        self.materialize_grads = True

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors (also None, and nested containers of both) for backward; the last call wins.

        Raises
        ------
        ArgumentError
            For a value that is no tensor; keep it as an attribute: ``ctx.name = value``.
        """
        flat, structure = flatten(tuple(tensors))
        for value in flat:
            if value is not None and not isinstance(value, Tensor):
                raise ArgumentError(
                    f"save_for_backward takes Tensors, got {short_repr(value)}; "
                    "keep other values as attributes: ctx.name = value"
                )
        self._structure = structure
        self._originals = list(flat)
        self._saved = [None if t is None else _Saved(save(t)) for t in flat]

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `save_for_backward` was given, with history, after a version check.

        Raises
        ------
        AutogradError
            If a saved tensor was written to, or the graph was released.
        """
        if self._saved is None:
            return ()
        if self._node is None:
            return unflatten(self._structure, iter(self._originals))  # type: ignore[no-any-return]
        node = self._node()
        if node is None or node.released:
            name = "backward" if node is None else node.name()
            raise AutogradError(
                f"{name}: the saved tensors were freed after backward\n"
                "  pass retain_graph=True to the first backward"
            )
        recovered = [
            None if saved is None else self._recover(saved, node, f"saved tensor {i}")
            for i, saved in enumerate(self._saved)
        ]
        return unflatten(self._structure, iter(recovered))  # type: ignore[no-any-return]

    def saved_tensor(self) -> tuple[Any, ...]:
        """Return `saved_tensors` (Paddle's spelling)."""
        return self.saved_tensors

    def mark_constant(self, *tensors: Tensor) -> None:
        """State that saved tensors do not depend on the differentiable inputs (masks, tables)."""
        self._constants.extend(id(tensor) for tensor in tensors)

    def set_materialize_grads(self, value: bool) -> None:
        """Receive None instead of zeros for outputs without a gradient, if False."""
        if not isinstance(value, bool):
            raise ArgumentError(f"set_materialize_grads takes a bool, got {value!r}")
        self.materialize_grads = value

    # ------------------------------------------------------------------ the framework's side

    def _recover(self, saved: _Saved, node: GradNode, what: str) -> Tensor:
        if saved.output is not None:
            shape, dtype = node.output_spec(saved.output)
            meta: AutogradMeta | None = new_meta(node, saved.output, shape, dtype)
        else:
            meta = saved.edge
        tensor = recover(saved.wrapper, node, meta, what)
        assert tensor is not None
        if meta is None and not saved.constant and _state.current().mask & AUTOGRAD:
            _poison(tensor, node, what)
        return tensor

    def _attach(self, node: GradNode, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Note where saved tensors have their history, and take outputs off the attributes."""
        edges = {id(t): e for t, e in zip(inputs, node.edges, strict=True)}
        positions = {id(t): i for i, t in enumerate(outputs)}
        for saved, tensor in zip(self._saved or (), self._originals, strict=True):
            if saved is None or tensor is None:
                continue
            self._locate(saved, tensor, edges, positions)
        self._originals = []
        for name, value in list(vars(self).items()):
            if name.startswith("_") or not any(isinstance(v, Tensor) for v in leaves(value)):
                continue
            setattr(self, name, _Attribute.of(self, name, value, edges, positions))
        self._node = weakref.ref(node)

    def _locate(
        self,
        saved: _Saved,
        tensor: Tensor,
        edges: dict[int, AutogradMeta | None],
        positions: dict[int, int],
    ) -> None:
        saved.constant = id(tensor) in self._constants or not is_inexact(tensor.dtype)
        if id(tensor) in positions:
            saved.output = positions[id(tensor)]
        elif id(tensor) in edges:
            saved.edge = edges[id(tensor)]
            saved.constant = True

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        return value.read() if type(value) is _Attribute else value


class _Attribute:
    """A ctx attribute that held tensors of the call."""

    __slots__ = ("context", "name", "tree")

    @classmethod
    def of(
        cls,
        context: Context,
        name: str,
        value: Any,
        edges: dict[int, AutogradMeta | None],
        positions: dict[int, int],
    ) -> _Attribute:
        """Return the attribute with every tensor replaced by its saved record."""

        def keep(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            saved = _Saved(save(leaf))
            context._locate(saved, leaf, edges, positions)
            return saved

        self = _new(cls)
        self.context = weakref.ref(context)
        self.name = name
        self.tree = tree_map(keep, value)
        return self  # type: ignore[no-any-return]

    def read(self) -> Any:
        """Return the attribute with its tensors recovered."""
        context = self.context()
        node = context._node()

        def back(leaf: Any) -> Any:
            if type(leaf) is not _Saved:
                return leaf
            return context._recover(leaf, node, f"ctx.{self.name}")

        return tree_map(back, self.tree)


def _poison(tensor: Tensor, node: GradNode, what: str) -> None:
    """Make differentiating through a saved intermediate raise: its history is unknown."""

    def backward(poisoned: GradNode, gradient: Any) -> Any:
        raise AutogradError(
            f"{node.name()}: {what} is neither an input nor an output of the call, so its history "
            "is unknown and a second derivative through it would be wrong\n"
            "  recompute it in backward from saved inputs, return it as an output, or state that "
            "it is a constant: ctx.mark_constant(tensor)"
        )

    guard: GradNode = _new(GradNode)
    guard.kind = NodeKind("saved_intermediate", backward)
    guard.edges = node.edges
    guard.saved = ()
    guard.hooks = None
    guard.shapes = tensor.shape
    guard.dtypes = tensor.dtype
    tensor.autograd_meta = new_meta(guard, 0, tensor.shape, tensor.dtype)
    tensor._keys |= AUTOGRAD
