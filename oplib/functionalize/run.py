"""One functional run: inputs become handles, the function runs, handles become an outcome.

Inputs that share memory form a group. Each keeps its own region while nobody writes; the first write
to a member joins them into one region: that of the member that covers all, or one over their span.

Imports floors 0 to 4 and the files above.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from .. import _state
from .._tree import flatten, unflatten
from ..dispatch.interpreter import pop, push
from ..dispatch.keys import AUTOGRAD, BACKENDS, INTERPRETER, META
from ..errors import AliasError
from ..prims import clone, detach, graft
from ..tensor.geometry import Geometry, extent, self_overlap
from ..tensor.grad_meta import AccumulationNode, AutogradMeta, GradNode, NodeKind, new_meta
from ..tensor.storage import Storage, new_storage
from ..tensor.tensor import ARRAY_TYPES, ArrayType, Tensor, tensor_from_result
from .access import access, recorded
from .interpreter import Functionalize
from .memory import (
    covers_all,
    geometries_in_group,
    groups_of,
    own_geometry,
    share_memory,
    span_of,
)
from .outcome import (
    Gradient,
    InputResult,
    InputView,
    LiteralResult,
    Outcome,
    Past,
    Record,
    SameResult,
    ValueResult,
    ValueView,
    WriteBack,
)
from .settle import settle
from .storage import FunctionalArray, Region

__all__ = ["FunctionalRun", "functionalize", "install"]

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

    Attributes
    ----------
    inputs, inner : list of Tensor
        Each input once, tensors of the enclosing scope last; what stands for them below.
    handles : list of Tensor
        What stands for them inside the run.
    differentiates : bool
        Whether the level below records.
    has_inner_leaves : bool
        Whether ``requires_grad`` was switched on inside.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        inner: Sequence[Tensor] | None = None,
        adopt_inner: Callable[[Tensor], Tensor] = lambda tensor: tensor,
        span_inner: Callable[[Tensor, tuple[int, ...]], Tensor] = lambda tensor, members: tensor,
    ) -> None:
        given = {id(t): (t, i) for t, i in zip(tensors, inner or tensors, strict=True)}
        self.inputs: list[Tensor] = [tensor for tensor, _ in given.values()]
        self.inner: list[Tensor] = [below for _, below in given.values()]
        self.handles: list[Tensor] = []
        self.interpreter = Functionalize(self.inputs, self._adopt)
        self.interpreter.after_flag = self._flag_changed
        self._adopt_inner = adopt_inner
        self._span_inner = span_inner
        self._index: dict[int, int] = {}
        self._groups: list[_Group] = []
        self._storages: dict[int, Storage] = {}
        self._first_versions: dict[int, int] = {}
        self._leaves: dict[int, tuple[AccumulationNode, Any]] = {}
        self._flags: dict[int, bool] = {}
        self._undo: list[tuple[Tensor, bool]] = []
        self.differentiates = False
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
                return _Finish(self).outcome(result)
        except BaseException:
            for tensor, flag in self._undo:
                tensor.requires_grad = flag
            raise
        finally:
            pop(frame)

    # ------------------------------------------------------------------ inputs

    def _enter_inputs(self) -> None:
        geometries: dict[int, Geometry] = {}
        group_of: dict[int, _Group] = {}
        for members in groups_of(self.inputs):
            group = _Group(self)
            placed = geometries_in_group([self.inputs[index] for index in members])
            if len(members) == 1:
                placed = [own_geometry(self.inputs[members[0]])]
            for index, geometry in zip(members, placed, strict=True):
                geometries[index], group_of[index] = geometry, group
        for index in range(len(self.inputs)):
            self._enter(index, geometries[index], group_of[index])

    def _enter(self, index: int, geometry: Geometry, group: _Group) -> Tensor:
        """Make the handle of an input, in a region of its own."""
        tensor = self.inputs[index]
        storage = self._storage_like(tensor._storage)
        region = Region(self.inner[index], geometry, storage)
        region.before_write = group.before_write
        region.span = functools.partial(group.span, (index,), region)
        group.members.append((index, region))
        array = FunctionalArray(self.interpreter.frame, region, geometry, index)
        array.remember(region.value)
        handle = tensor_from_result(array)
        self._index[id(tensor)] = index
        self.handles.append(handle)
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

    def _make_differentiable(self, index: int, handle: Tensor) -> None:
        """Make a handle a leaf of this level, or a tensor whose gradient goes on outside."""
        tensor = self.inputs[index]
        self.differentiates |= bool(self.inner[index]._keys & AUTOGRAD)
        handle.requires_grad = True
        meta = handle.autograd_meta
        assert meta is not None
        node = meta.grad_node
        assert isinstance(node, AccumulationNode)
        if tensor.is_leaf:
            outside = tensor.autograd_meta.grad_node  # type: ignore[union-attr]
            assert isinstance(outside, AccumulationNode)
            node.hooks, node.post_hooks = outside.hooks, outside.post_hooks
            if self.inner[index] is tensor and outside.grad is not None:
                node.grad = self._adopt(outside.grad)
        else:
            handle.autograd_meta = _passing_on(meta)
        self._leaves[index] = node, node.grad

    # ------------------------------------------------------------------ the enclosing scope

    def _adopt(self, tensor: Tensor) -> Tensor:
        """Return the handle of a tensor of the enclosing scope, a hidden input."""
        found = self._index.get(id(tensor))
        if found is not None:
            return self.handles[found]
        index = len(self.inputs)
        shared = [i for i, other in enumerate(self.inputs) if share_memory(other, tensor)]
        self.inputs.append(tensor)
        self.inner.append(self._adopt_inner(tensor))
        if not shared:
            return self._enter(index, own_geometry(tensor), _Group(self))
        groups = {id(g): g for i in shared for g in self._groups if i in g.indices}
        if len(groups) != 1:
            raise _reaches_further()
        (group,) = groups.values()
        first = group.members[0][0]
        geometry = geometries_in_group([self.inputs[first], tensor])[1]
        handle = self._enter(index, geometry, group)
        if group.joined is not None:
            group.take_in(index, handle.array._region)
        return handle

    # ------------------------------------------------------------------ requires_grad

    def _flag_changed(self, handle: Tensor, value: bool) -> None:
        """Follow ``requires_grad`` of a handle, which was set inside the run."""
        array: FunctionalArray = handle.array
        index = next((i for i, known in enumerate(self.handles) if known is handle), None)
        if index is not None:
            self._flags[index] = value
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
            assert meta is not None and isinstance(meta.grad_node, AccumulationNode)
            self._leaves[index] = meta.grad_node, None

    def _leaf_of_input(self, index: int, current: Tensor) -> Tensor:
        """Return the current value of an input that becomes a leaf, as a leaf of the level below."""
        below = self.inner[index]
        self._undo.append((below, below.requires_grad))
        below.requires_grad = True
        self.differentiates = True
        return below if current is below else graft(current, below)


class _Group:
    """Inputs that share memory, each in a region of its own until one of them is written.

    Attributes
    ----------
    members : list of (input index, Region)
    joined : Region or None
        The region they were merged into.
    """

    def __init__(self, run: FunctionalRun) -> None:
        self.run = run
        self.members: list[tuple[int, Region]] = []
        self.joined: Region | None = None
        run._groups.append(self)

    @property
    def indices(self) -> list[int]:
        """The inputs that belong to the group."""
        return [index for index, _ in self.members]

    def before_write(self) -> None:
        """Make the members one region, whose value the write may replace."""
        if self.joined is None:
            _, first = self.members[0]
            self.joined = first
            if len(self.members) > 1 or self_overlap(first.form):
                self._join()
            self.joined.before_write = None
            self._keep_old_value(self.joined)

    def _keep_old_value(self, region: Region) -> None:
        """Copy what a gradient may need: the write-back at the end overwrites the inputs.

        Eager code saves a copy here too.
        """
        if self.run.differentiates and _state.current().mask & AUTOGRAD:
            with recorded():
                region.value = clone(region.value)
                region.others = {key: clone(value) for key, value in region.others.items()}
            region.version += 1

    def _join(self) -> None:
        forms = [region.form for _, region in self.members]
        cover = next((m for m in self.members if covers_all(m[1].form, forms)), None)
        if cover is None:
            value, form = self.span(tuple(self.indices), *[region for _, region in self.members])
            main: Any = self
        else:
            value, form = cover[1].value, cover[1].form
            main = self._past_of(cover[0])
        first = self.members[0][1]
        joined = self.joined = Region(value, form, first.storage)
        joined.span = None if cover is None else cover[1].span
        for index, region in self.members:
            self._merge(index, region, joined, main)

    def _merge(self, index: int, region: Region, joined: Region, main: Any) -> None:
        """Make the handles of a region handles of the joined one, with the history they have."""
        past = self._past_of(index)
        region.history = None if past is main else past
        if region.history is not None and region.value._keys & AUTOGRAD:
            place = access(region.form, joined.form)
            assert place is not None
            with recorded():
                joined.others[past] = place.put(joined.current(past), region.value)
        for key, value in region.others.items():
            joined.others[key] = value
        region.joined = joined

    def _past_of(self, index: int) -> Any:
        """Return what identifies the history of an input: the family it belongs to outside."""
        record = self.run.inputs[index]._view
        return index if record is None else record.family

    def span(self, indices: tuple[int, ...], *regions: Region) -> tuple[Tensor, Geometry]:
        """Return all memory from the first byte of some members to the last, and its form."""
        flat = span_of([self.run.inputs[index] for index in indices])
        low = min(extent(region.form)[0] for region in regions)
        form = Geometry(flat.dtype, flat.shape, flat.strides, low)
        return self.run._span_inner(flat, indices), form

    def take_in(self, index: int, region: Region) -> None:
        """Merge a tensor of the enclosing scope into a group that was written already."""
        assert self.joined is not None
        if access(region.form, self.joined.form) is None:
            raise _reaches_further()
        region.history = self._past_of(index)
        region.joined = self.joined


def _reaches_further() -> AliasError:
    return AliasError(
        "a tensor of the enclosing scope shares memory with arguments and reaches beyond it\n"
        "  pass it to the function as an argument too"
    )


def _pass_on(node: GradNode, saved: tuple[Any, ...], gradient: Tensor) -> tuple[Tensor]:
    return (gradient,)


_INPUT = NodeKind("input_of_functionalize", _pass_on)


def _passing_on(leaf: AutogradMeta) -> AutogradMeta:
    """Return the record of an input that is no leaf outside: its gradient goes on to `leaf`."""
    node: GradNode = object.__new__(GradNode)
    node.kind = _INPUT
    node.edges = (leaf,)
    node.saved = ()
    node.hooks = None
    node.shapes, node.dtypes = leaf.shape, leaf.dtype
    return new_meta(node, 0, leaf.shape, leaf.dtype)


# ---------------------------------------------------------------------- the outcome


class _Finish:
    """Describes what a run left behind, with the values this names."""

    def __init__(self, run: FunctionalRun) -> None:
        self.run = run
        self.owns = run.interpreter.owns
        self.values: list[Tensor] = []
        self.roots: dict[int, int] = {}

    def outcome(self, result: Any) -> tuple[Outcome, list[Tensor]]:
        """Return the outcome and its values."""
        run, found = self.run, Outcome()
        leaves, found.structure = flatten(result)
        leaves = [run._adopt(x) if self._is_outside(x) else x for x in leaves]
        self._writes(found)
        seen: dict[int, int] = {}
        shared = self._shared_regions(leaves)
        for position, leaf in enumerate(leaves):
            earlier = seen.setdefault(id(leaf), position)
            if isinstance(leaf, Tensor) and earlier != position:
                found.records.append(SameResult(earlier))
            else:
                found.records.append(self._record(leaf, shared))
        self._gradients(found)
        found.flags = list(run._flags.items())
        return found, self.values

    def _is_outside(self, leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and not self.owns(leaf)

    def _writes(self, found: Outcome) -> None:
        """Describe what is stored into the inputs, and by how much versions rise."""
        counted = set()
        for index, handle in enumerate(self.run.handles):
            array: FunctionalArray = handle.array
            region = array.region
            if index in region.written_through:
                recorded = index in region.recorded_through
                no_grad = not recorded and self.run.inputs[index].requires_grad
                found.writes.append(WriteBack(index, self._add(array.read()), no_grad))
            storage = handle._storage
            count = storage.version - self.run._first_versions[id(storage)]
            if count and id(storage) not in counted:
                counted.add(id(storage))
                found.versions.append((index, count))

    def _add(self, value: Tensor) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _shared_regions(self, leaves: Iterable[Any]) -> set[int]:
        """Return the regions that several different results live in."""
        handles: dict[int, set[int]] = {}
        for leaf in leaves:
            if self.owns(leaf):
                handles.setdefault(id(leaf.array.region), set()).add(id(leaf))
        return {region for region, found in handles.items() if len(found) > 1}

    def _record(self, leaf: Any, shared: set[int]) -> Record:
        if not isinstance(leaf, Tensor):
            return LiteralResult(leaf)
        for index, handle in enumerate(self.run.handles):
            if handle is leaf:
                return InputResult(index)
        array: FunctionalArray = leaf.array
        region = array.region
        if array.origin is not None:
            base: FunctionalArray = self.run.handles[array.origin].array
            past = self._past(leaf, base.history)
            return InputView(array.origin, base.geometry, array.geometry, past)
        requires_grad = leaf.requires_grad
        if array.is_whole and array.history is None and id(region) not in shared:
            return ValueResult(self._root(region), region.form, requires_grad)
        return ValueView(self._root(region), region.form, array.geometry, self._past(leaf, None))

    def _past(self, leaf: Tensor, of_base: Any) -> Past:
        """Return what a view remembers besides its addresses."""
        array: FunctionalArray = leaf.array
        requires_grad = leaf.requires_grad
        detached = array.history is not of_base
        value = self._add(array.read()) if detached and requires_grad else None
        no_grad = leaf._view is not None and leaf._view.no_grad
        return Past(detached, no_grad, requires_grad, value)

    def _root(self, region: Region) -> int:
        """Return the value of a temporary, in a buffer that no input and no other result has."""
        found = self.roots.get(id(region))
        if found is None:
            value = region.value
            known = [*self.run.inner, *(self.values[i] for i in self.roots.values())]
            if any(value is other for other in known):
                value = clone(value)
            found = self.roots[id(region)] = self._add(value)
        return found

    def _gradients(self, found: Outcome) -> None:
        """Describe the gradients that arrived at inputs inside the run."""
        for index, (node, before) in self.run._leaves.items():
            if node.grad is before:
                continue
            value = None if node.grad is None else self._add(node.grad.array.read())
            found.gradients.append(Gradient(index, value))


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
