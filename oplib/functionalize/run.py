"""One functional run: inputs become handles, the function runs, handles become an outcome.

Imports floors 0 to 4 and the other files of this package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from .. import _state
from .._tree import flatten, unflatten
from ..dispatch.interpreter import Frame, pop, push
from ..dispatch.keys import AUTOGRAD, BACKENDS, INTERPRETER, META, VIEW
from ..errors import AliasError
from ..prims import detach, graft
from ..tensor.geometry import Geometry
from ..tensor.grad_meta import (
    AccumulationNode,
    Family,
    GradNode,
    NodeKind,
    new_meta,
    new_view_record,
)
from ..tensor.storage import Storage, new_storage
from ..tensor.tensor import (
    ARRAY_TYPES,
    ArrayType,
    Tensor,
    alias_of,
    leaf_meta_of,
    settle_apart,
    tensor_from_result,
)
from .access import recorded, view_at
from .finish import Finish
from .groups import InputMemory
from .interpreter import Functionalize
from .memory import check_inside_owner, own_geometry, span_of
from .outcome import Derived, Outcome
from .settle import settle
from .storage import FunctionalArray, Region

__all__ = ["FunctionalRun", "functionalize", "install", "memory_around"]

F = TypeVar("F", bound=Callable[..., Any])


def functionalize(function: F) -> F:
    """Return a function with the same observable effect as `function`, run without writes below.

    Views and in-place operators inside become pure operators on values; each mutated argument is
    written once, after everything was computed. If the function raises, no argument has changed.

    Examples
    --------
    >>> import oplib
    >>> def f(x):
    ...     x[0].add_(1)
    ...     return x.sum()
    >>> x = oplib.zeros(3)
    >>> oplib.functionalize(f)(x), x
    (Tensor(1.), Tensor([1., 0., 0.]))
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = flatten((args, kwargs))
        run = FunctionalRun([leaf for leaf in leaves if isinstance(leaf, Tensor)])
        outcome, values = run.execute(function, leaves, structure)
        return settle(outcome, run.inputs, values)

    return call  # type: ignore[return-value]


class FunctionalRun:
    """One call of a function under functionalization.

    Parameters
    ----------
    tensors : sequence of Tensor
        The inputs, as the caller has them.
    inner : sequence of Tensor, optional
        What stands for them at the level below (a capture's tensors); the inputs themselves else.
    adopt_inner : callable, optional
        ``adopt_inner(tensor)``: what stands for a tensor of the enclosing scope.
    span_inner : callable, optional
        ``span_inner(tensor, members)``: what stands for the memory several inputs lie in.
    outside : Frame, optional
        The frame that was entered where the inputs come from, if that is not this run's.

    Attributes
    ----------
    inputs, inner : list of Tensor
        Each input once, tensors of the enclosing scope last; what stands for them below.
    handles : list of Tensor
        What stands for them inside the run.
    derived : dict
        Input -> how it lies around another one, for memory that only ``as_strided`` reached.
    leaves : dict
        Input -> the node its gradient arrives at, and the gradient it began with.
    roots : list of (input, node)
        The same for tensors that several inputs are views of.
    flags : dict
        Input -> ``requires_grad``, where it was set inside.
    has_inner_leaves : bool
        Whether ``requires_grad`` was switched on inside.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        inner: Sequence[Tensor] | None = None,
        adopt_inner: Callable[[Tensor], Tensor] = lambda tensor: tensor,
        span_inner: Callable[[Tensor, tuple[int, ...]], Tensor] = lambda tensor, members: tensor,
        outside: Frame | None = None,
    ) -> None:
        given = {id(t): (t, i) for t, i in zip(tensors, inner or tensors, strict=True)}
        self.inputs: list[Tensor] = [tensor for tensor, _ in given.values()]
        self.inner: list[Tensor] = [below for _, below in given.values()]
        self._adopt_inner = adopt_inner
        self._span_inner = span_inner
        self._outside = outside
        self._index: dict[int, int] = {}
        self.memory = InputMemory(self.inputs, self._span)
        self.interpreter = Functionalize(
            self.inputs, self.inner, self.adopt, lambda: self.memory.differentiates
        )
        self.interpreter.adopt_beyond = self._adopt_beyond
        self.interpreter.after_flag = self._flag_changed
        self.handles = self.interpreter.handles
        self._storages: dict[int, Storage] = {}
        self._first_versions: dict[int, int] = {}
        self.leaves: dict[int, tuple[AccumulationNode, Any]] = {}
        self.roots: list[tuple[int, AccumulationNode]] = []
        self.flags: dict[int, bool] = {}
        self._undo: list[tuple[Tensor, bool]] = []
        self.derived: dict[int, Derived] = {}
        self.has_inner_leaves = False

    # ------------------------------------------------------------------ running

    def execute(
        self, function: Callable[..., Any], leaves: list[Any], structure: Any
    ) -> tuple[Outcome, list[Tensor]]:
        """Run `function` on functional handles of the inputs; return what it left behind."""
        frame = push(self.interpreter)
        try:
            self.interpreter.frame = frame
            with _state.enter(frame.outer_state()):
                self._enter_inputs()
            handles = [
                self.handles[self._index[id(leaf)]] if isinstance(leaf, Tensor) else leaf
                for leaf in leaves
            ]
            args, kwargs = unflatten(structure, iter(handles))
            result = function(*args, **kwargs)
            with _state.enter(frame.outer_state()), recorded():
                return Finish(self).outcome(result)
        except BaseException:
            for tensor, flag in self._undo:
                tensor.requires_grad = flag
            raise
        finally:
            pop(frame)

    def outside(self) -> _state.enter:
        """Return a context for calls on the inputs as the caller has them."""
        frame = self._outside or self.interpreter.frame
        return _state.enter(frame.outer_state())

    # ------------------------------------------------------------------ inputs

    def _enter_inputs(self) -> None:
        storages = [self._storage_like(tensor._storage) for tensor in self.inputs]
        for index, region in enumerate(self.memory.place_all(self.inner, storages)):
            self._enter(index, region)
        self._join_families()
        self._introduce_strangers()
        for index in list(self.leaves):
            self._adopt_gradient(index)

    def _enter(self, index: int, region: Region) -> Tensor:
        """Make the handle of an input."""
        tensor = self.inputs[index]
        array = FunctionalArray(self.interpreter.frame, region, region.form, index)
        array.remember(region.value)
        handle = tensor_from_result(array)
        self._index[id(tensor)] = index
        self.handles.append(handle)
        self.interpreter.places.append(array)
        self.interpreter.storages.append(handle._storage)
        if tensor.requires_grad:
            self._make_differentiable(index, handle)
        return handle

    def _storage_like(self, outside: Storage) -> Storage:
        """Return the storage that stands for one outside, with its version."""
        storage = self._storages.get(id(outside))
        if storage is None:
            storage = self._storages[id(outside)] = new_storage()
            storage.version = outside.version
            self._first_versions[id(storage)] = storage.version
        return storage

    def first_version(self, storage: Storage) -> int:
        """Return the version a storage of this run began with."""
        return self._first_versions[id(storage)]

    def _make_differentiable(self, index: int, handle: Tensor) -> None:
        """Make a handle a leaf of this level, or a tensor whose gradient goes on outside."""
        tensor = self.inputs[index]
        self.memory.differentiates |= bool(self.inner[index]._keys & AUTOGRAD)
        node = _make_leaf(handle)
        if tensor.is_leaf:
            outside = tensor.autograd_meta.grad_node  # type: ignore[union-attr]
            assert isinstance(outside, AccumulationNode)
            node.hooks, node.post_hooks = outside.hooks, outside.post_hooks
        else:
            _pass_on_from(handle)
        self.leaves[index] = node, None

    def _adopt_gradient(self, index: int) -> None:
        """Let a leaf have the gradient it has outside (a graph starts without one)."""
        tensor = self.inputs[index]
        if tensor.grad is not None and self.inner[index] is tensor:
            node, _ = self.leaves[index]
            node.grad = self.adopt(tensor.grad)
            self.leaves[index] = node, node.grad

    def _join_families(self) -> None:
        """Let inputs that are views of one tensor outside be so inside: all see a write to one.

        See Note [Families].
        """
        members: dict[int, list[int]] = {}
        for index, tensor in enumerate(self.inputs):
            if tensor._view is not None:
                members.setdefault(id(tensor._view.family), []).append(index)
        for indices in members.values():
            if len(indices) > 1:
                self._join_family(indices)

    def _join_family(self, indices: list[int]) -> None:
        records = {index: self.inputs[index]._view for index in indices}
        outside = records[indices[0]].family  # type: ignore[union-attr]
        first = self.inputs[indices[0]]
        is_root = [i for i in indices if self.inputs[i].array is outside.root_array]
        if is_root:
            root = self.handles[is_root[0]]
        else:
            region = self.handles[indices[0]].array._region
            geometry = own_geometry(alias_of(first, outside.root_array))
            array = FunctionalArray(self.interpreter.frame, region, geometry)
            root = tensor_from_result(array)
            if outside.root is not None:
                self.roots.append((indices[0], _make_leaf(root)))
                if type(outside.root.grad_node) is not AccumulationNode:
                    _pass_on_from(root)
        family = Family(root.autograd_meta, root.array, root._keys & ~(AUTOGRAD | VIEW))
        for index, record in records.items():
            assert record is not None
            handle = self.handles[index]
            handle._view = new_view_record(family, record.no_grad, record.opaque)
            handle._keys |= VIEW
            if handle is not root and not record.opaque and index in self.leaves:
                handle._view.epoch = -1  # its record is derived from the root when it is needed
                del self.leaves[index]

    def _introduce_strangers(self) -> None:
        """Let inputs on one buffer that are no views of each other be so inside.

        See Note [Strangers].
        """
        for handle, tensor in zip(self.handles, self.inputs, strict=True):
            known = [ref() for ref in tensor._storage.strangers]
            if sum(other is not None for other in known) > 1:
                family = settle_apart(handle)
                if tensor._view is not None:
                    family.detached = tensor._view.family.detached
                    family.overwritten = tensor._view.family.overwritten

    # ------------------------------------------------------------------ the enclosing scope

    def adopt(self, tensor: Tensor) -> Tensor:
        """Return the handle of a tensor of the enclosing scope, a hidden input."""
        found = self._index.get(id(tensor))
        if found is not None:
            return self.handles[found]
        index = len(self.inputs)
        self.inputs.append(tensor)
        self.inner.append(self._adopt_inner(tensor))
        storage = self._storage_like(tensor._storage)
        return self._enter(index, self.memory.place(index, self.inner[index], storage))

    def _adopt_beyond(self, index: int, base: Geometry, geometry: Geometry) -> Tensor:
        """Return a handle on memory of an input's owner that the input itself does not have."""
        derived = Derived(index, base, geometry)
        with self.outside():
            view = memory_around(self.inputs, derived)
        self.derived[len(self.inputs)] = derived
        return self.adopt(view)

    def _span(self, indices: tuple[int, ...]) -> Tensor:
        """Return what stands for the memory that several inputs lie in."""
        with self.outside():
            flat = span_of([self.inputs[index] for index in indices])
        return self._span_inner(flat, indices)

    # ------------------------------------------------------------------ requires_grad

    def _flag_changed(self, handle: Tensor, value: bool) -> None:
        """Follow ``requires_grad`` of a handle, which was set inside the run."""
        array: FunctionalArray = handle.array
        index = next((i for i, known in enumerate(self.handles) if known is handle), None)
        if index is not None:
            self.flags[index] = value
            if handle.array is not self.interpreter.places[index]:
                raise AliasError(
                    "requires_grad of an input was set after its shape was changed in place, in a "
                    "functional run\n  set it before"
                )
        if not value or handle.grad_fn is not None:
            return
        with _state.enter(self.interpreter.frame.outer_state()), recorded():
            region, current = array.region, array.read()
            if current._keys & AUTOGRAD:
                return
            self.has_inner_leaves = True
            leaf = detach(current) if index is None else self._leaf_of_input(index, current)
            leaf.requires_grad = True
            if array.history is None and not array.is_whole:
                array.history = object()
            if array.history is None:
                region.value = leaf
            else:
                region.others[array.history] = array.write(leaf)
        array.remember(leaf)
        if index is not None:
            meta = handle.autograd_meta
            assert meta is not None
            assert isinstance(meta.grad_node, AccumulationNode)
            self.leaves[index] = meta.grad_node, None

    def _leaf_of_input(self, index: int, current: Tensor) -> Tensor:
        """Return the value of an input that becomes a leaf, as a leaf of the level below."""
        below = self.inner[index]
        self._undo.append((below, below.requires_grad))
        below.requires_grad = True
        self.memory.differentiates = True
        return below if current is below else graft(current, below)


def memory_around(inputs: Sequence[Tensor], derived: Derived) -> Tensor:
    """Return memory of an input's owner.

    Raises
    ------
    AliasError
        If the owner does not have it.
    """
    tensor = inputs[derived.index]
    check_inside_owner(tensor, derived.base, derived.geometry)
    plain = alias_of(tensor, tensor.array)
    view = view_at(plain, derived.base, derived.geometry)
    return alias_of(view, view.array)


def _pass_on(node: GradNode, saved: tuple[Any, ...], gradient: Tensor) -> tuple[Tensor]:
    return (gradient,)


_INPUT = NodeKind("input_of_functionalize", _pass_on)


def _make_leaf(handle: Tensor) -> AccumulationNode:
    """Make a handle a leaf and return its node."""
    handle.autograd_meta = leaf_meta_of(handle)
    handle._keys |= AUTOGRAD
    node = handle.autograd_meta.grad_node
    assert isinstance(node, AccumulationNode)
    return node


def _pass_on_from(handle: Tensor) -> None:
    """Make a leaf a tensor with a producer, as it is outside, where its gradient goes on."""
    leaf = handle.autograd_meta
    assert leaf is not None
    node = GradNode()
    node.kind = _INPUT
    node.edges = (leaf,)
    node.saved = ()
    node.hooks = None
    node.shapes, node.dtypes = leaf.shape, leaf.dtype
    handle.autograd_meta = new_meta(node, 0, leaf.shape, leaf.dtype)


def install() -> None:
    """Make functional arrays known to tensors."""

    def to_numpy(array: FunctionalArray) -> np.ndarray[Any, Any]:
        with _state.enter(array.frame.outer_state()):
            value = array.read().numpy().view()
        value.flags.writeable = False
        return value

    ARRAY_TYPES[FunctionalArray] = ArrayType(
        key=lambda array: INTERPRETER | (array._region.value._keys & (BACKENDS | META)),
        device=lambda array: array.device,
        to_numpy=to_numpy,
    )


install()
