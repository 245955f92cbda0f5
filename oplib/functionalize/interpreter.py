"""The functional run: every call reaches the level below without a written argument.

View operators become geometries; an operator that writes is run by its functional twin, or as one
`functionalized` node, and the regions of its destinations take the new values; all else is called on
current values. Autograd is above: the tape sees the program as it was written.

Imports floors 0 to 4, `storage.py`, `opaque.py`, `outcome.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from .. import _state
from .._tree import flatten, tree_map, unflatten
from ..dispatch.bind import tensor_leaves
from ..dispatch.interpreter import Frame, Interpreter, pop, push
from ..dispatch.keys import AUTOGRAD, BACKENDS, CONSTANT, INTERPRETER, META, WEAK
from ..dispatch.operator import Operator
from ..dispatch.plan import python_call
from ..errors import AliasError, FakeTensorError
from ..prims import clone, graft
from ..tensor.geometry import Geometry, covers, overlap, self_overlap
from ..tensor.grad_meta import AutogradMeta, GradNode, NodeKind, new_meta
from ..tensor.meta_array import MetaArray
from ..tensor.storage import Storage, new_storage
from ..tensor.tensor import (
    ARRAY_TYPES,
    ArrayType,
    Tensor,
    alias_of,
    tensor_from_result,
    view_of,
)
from .opaque import At, functionalized
from .outcome import (
    InputResult,
    InputView,
    LiteralResult,
    Outcome,
    Record,
    SameResult,
    ValueResult,
    ValueView,
    WriteBack,
    settle,
    span_tensor,
)
from .storage import FunctionalArray, Region, form_of, with_strides

__all__ = ["FunctionalRun", "Functionalize", "functionalize", "install", "memory_groups"]

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
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        run = FunctionalRun(tensors)
        outcome, values = run.execute(function, leaves, structure)
        return settle(outcome, run.inputs, values)

    return call  # type: ignore[return-value]


class Functionalize(Interpreter):
    """The interpreter of one functional run."""

    wraps = True

    def __init__(self) -> None:
        self.frame: Frame
        self.adopt: Callable[[Tensor], Tensor] = lambda tensor: tensor
        self.after_write: Callable[[Tensor, Tensor], None] = lambda old, new: None
        self.differentiates = False

    # ------------------------------------------------------------------ tensors

    def owns(self, value: Any) -> bool:
        """Return whether a value is a tensor of this level."""
        return (
            isinstance(value, Tensor)
            and type(value.array) is FunctionalArray
            and value.array.frame is self.frame
        )

    def wrap(self, value: Tensor) -> Tensor:
        """Return a tensor of this level in a region of its own."""
        region = Region(value, form_of(value), new_storage())
        return self.handle(region, region.form)

    def handle(self, region: Region, geometry: Geometry, origin: int | None = None) -> Tensor:
        """Return a tensor of this level that addresses a region."""
        return tensor_from_result(FunctionalArray(self.frame, region, geometry, origin))

    def read(self, op: Operator[..., Any], value: Any) -> Any:
        """Return what a call below receives for one leaf of its arguments."""
        if not self.owns(value):
            return value
        array: FunctionalArray = value.array
        exact = "flexible_layout" not in op.tags
        return with_strides(array.read(), array.geometry, exact)

    # ------------------------------------------------------------------ calls

    def call(self, frame: Frame, op: Operator[..., Any], args: tuple[Any, ...]) -> Any:
        """Run one call on values."""
        args = tuple([tree_map(self._own, value) for value in args])
        schema = op.schema
        if schema.is_mutable:
            return self._write(op, args)
        if schema.is_view or op.view_rule is not None:
            viewed = self._view(op, args)
            if viewed is not None:
                return viewed
        result = op.call_positional([tree_map(lambda v: self.read(op, v), a) for a in args])
        return tree_map(lambda r: self.wrap(r) if isinstance(r, Tensor) else r, result)

    def _own(self, leaf: Any) -> Any:
        """Take a tensor from outside into the run, so that writes to its memory are seen."""
        if not isinstance(leaf, Tensor) or self.owns(leaf) or leaf._keys & WEAK:
            return leaf
        if leaf._keys & CONSTANT:
            return leaf
        return self.adopt(leaf)

    # ------------------------------------------------------------------ views

    def _view(self, op: Operator[..., Any], args: tuple[Any, ...]) -> Any:
        """Return the view handles of a view operator, or None where it makes a copy."""
        base = args[0]
        if not self.owns(base):
            return None
        rule = op.view_rule
        if rule is not None:
            geometry = rule(base.array.geometry, *args[1:])
        else:
            geometry = _inferred_views(op, base, args)
        if geometry is None:
            return None
        if isinstance(geometry, list):
            return [self._view_handle(op, base, part) for part in geometry]
        return self._view_handle(op, base, geometry)

    def _view_handle(self, op: Operator[..., Any], base: Tensor, geometry: Geometry) -> Tensor:
        joins = _joins_family(op)
        array = base.array.view(geometry, detached=not joins)
        return view_of(base, array) if joins else alias_of(base, array)

    # ------------------------------------------------------------------ writes

    def _write(self, op: Operator[..., Any], args: tuple[Any, ...]) -> Any:
        written = self._destinations(op, args)
        twin = op.twin
        if twin is not None and (twin.pre_state or not self._overlaps(args, written)):
            fresh = self._run_twin(op, twin.twin, args, written)
        else:
            fresh = self._run_opaque(op, args, written)
        storages = {id(t._storage): t._storage for t in written}
        for storage in storages.values():
            storage.version += 1
            storage.writer = op.qualname
        return self._results(op, args, fresh)

    def _destinations(self, op: Operator[..., Any], args: tuple[Any, ...]) -> list[Tensor]:
        """Return the written tensors; refuse read-only and self-overlapping ones."""
        written = []
        for argument, value in zip(op.schema.arguments, args, strict=True):
            if argument.name not in op.schema.mutated_arguments:
                continue
            for tensor in tensor_leaves([value]):
                if not self.owns(tensor):
                    raise AliasError(f"{op.qualname}: argument `{argument.name}` is a constant")
                self._check_destination(op, argument.name, tensor, args)
                written.append(tensor)
        return written

    def _check_destination(
        self, op: Operator[..., Any], name: str, tensor: Tensor, args: tuple[Any, ...]
    ) -> None:
        array: FunctionalArray = tensor.array
        inner = array.region.value.array
        if isinstance(inner, np.ndarray) and not inner.flags.writeable and array.region.version == 0:
            raise AliasError(
                f"{op.qualname}: argument `{name}` is written, but its array is read-only\n"
                "  pass a writable copy: x.clone()"
            )
        if self_overlap(array.geometry):
            uniform = "std:own_overlap_check" in op.tags and all(
                other.size <= 1 for other in tensor_leaves(args[1:])
            )
            if not uniform:
                raise AliasError(
                    f"{op.qualname}: argument `{name}` overlaps itself, so the result would depend "
                    "on the order of the writes\n  pass a copy: x.clone()"
                )

    def _overlaps(self, args: tuple[Any, ...], written: Sequence[Tensor]) -> bool:
        """Return whether a written tensor overlaps another tensor of the call."""
        tensors = [t for t in tensor_leaves(args) if self.owns(t)]
        for destination in written:
            for other in tensors:
                if other is destination or other.array.region is not destination.array.region:
                    continue
                if overlap(other.array.geometry, destination.array.geometry):
                    return True
        return len({id(t) for t in written}) != len(written)

    def _run_twin(
        self,
        op: Operator[..., Any],
        twin: Callable[..., Any],
        args: tuple[Any, ...],
        written: Sequence[Tensor],
    ) -> tuple[Any, ...]:
        """Run the functional twin, store the new values, and return the fresh results."""
        for destination in written:
            self._keep_old_value(destination.array.region)
        values = [tree_map(lambda v: self.read(op, v), a) for a in args]
        result = python_call(op, twin)(*values)
        parts = tuple(result) if isinstance(result, tuple | list) else (result,)
        count = len(op.schema.mutated_arguments)
        fresh, new = parts[: len(parts) - count], parts[len(parts) - count :]
        flat = [value for part in new for value in tensor_leaves([part])]
        for destination, value in zip(written, flat, strict=True):
            self._store(destination, value)
        return tuple(self.wrap(value) for value in fresh)

    def _keep_old_value(self, region: Region) -> None:
        """Copy an input's value before its first write if a gradient may need it.

        The write-back at the end overwrites the input, and eager code saves a copy here too.
        """
        recording = bool(_state.current().user & AUTOGRAD)
        if region.is_input and region.version == 0 and recording and self.differentiates:
            region.value = clone(region.value)

    def _store(self, destination: Tensor, value: Tensor) -> None:
        """Give a destination's region the value it has after a write."""
        array: FunctionalArray = destination.array
        region = array.region
        new = array.write(value)
        grafted = self._commit(region, new, array)
        if not grafted and not array.detached:
            array.remember(value)

    def _commit(self, region: Region, new: Tensor, array: FunctionalArray) -> bool:
        """Make `new` a region's value; a write that records nothing keeps the old history.

        Return whether the history was grafted.
        """
        recording = bool(_state.current().user & AUTOGRAD) and not array.detached
        grafted = not recording and region.value.requires_grad
        if grafted:
            state = _state.current()
            with _state.enter(state.replace(user=state.user | AUTOGRAD)):
                new = graft(new, region.value)
        self.after_write(region.value, new)
        region.value = new
        region.version += 1
        if array.origin is not None:
            region.written_through.add(array.origin)
        region.all_no_grad = region.all_no_grad and not recording
        return grafted

    def _run_opaque(
        self, op: Operator[..., Any], args: tuple[Any, ...], written: Sequence[Tensor]
    ) -> tuple[Any, ...]:
        """Run a mutating operator as one `functionalized` call and return the fresh results."""
        arrays = [tensor.array for tensor in written]
        regions = list({id(array.region): array.region for array in arrays}.values())
        position = {id(region): i for i, region in enumerate(regions)}

        def rebuilt(leaf: Any) -> Any:
            if not self.owns(leaf):
                return leaf
            index = position.get(id(leaf.array.region))
            return self.read(op, leaf) if index is None else At(index, leaf.array.geometry)

        arguments = tuple([tree_map(rebuilt, value) for value in args])
        bases = [region.value for region in regions]
        forms = tuple([region.form for region in regions])
        fresh, new = functionalized.call_positional([op.qualname, arguments, bases, forms])
        for region, value in zip(regions, new, strict=True):
            for array in arrays:
                if array.region is region:
                    self._commit(region, value, array)
        return tuple(
            tree_map(lambda r: self.wrap(r) if isinstance(r, Tensor) else r, part) for part in fresh
        )

    def _results(
        self, op: Operator[..., Any], args: tuple[Any, ...], fresh: Sequence[Any]
    ) -> Any:
        """Return a writing call's results: the written arguments themselves, and fresh ones."""
        schema = op.schema
        given = {a.name: value for a, value in zip(schema.arguments, args, strict=True)}
        values = iter(fresh)
        complete = []
        for i in range(len(schema.returns)):
            name = schema.returned_argument(i)
            complete.append(next(values, None) if name is None else given[name])
        if not complete:
            return None
        return complete[0] if len(complete) == 1 else tuple(complete)


def _joins_family(op: Operator[..., Any]) -> bool:
    rule = op.gradient_rule
    if rule is None or rule.style != "per_argument":
        return True
    return any(function is not None for function in rule.functions.values())


def _inferred_views(op: Operator[..., Any], base: Tensor, args: tuple[Any, ...]) -> Any:
    """Return the geometry of a view operator without a view rule, by its fake rule."""
    array: FunctionalArray = base.array
    storage = new_storage()
    g = array.geometry
    meta = tensor_from_result(
        MetaArray(g.shape, g.strides, g.dtype, base.device, storage, g.offset)
    )
    with _state.enter(_state.DEFAULT_STATE):
        try:
            result = op.call_positional([meta, *args[1:]])
        except FakeTensorError as error:
            error.add_note(
                f"{op.qualname} is a view operator; give it a geometry: "
                f"oplib.register_view({op.qualname!r}, rule)"
            )
            raise
    parts = result if isinstance(result, list | tuple) else [result]
    if any(part._storage is not storage for part in parts):
        return None
    found = [part.array.geometry for part in parts]
    return found if isinstance(result, list | tuple) else found[0]


# ---------------------------------------------------------------------- one run


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
        self.interpreter = Functionalize()
        self.interpreter.adopt = self._adopt
        self._adopt_inner = adopt_inner
        self._span_inner = span_inner
        self._handles: dict[int, Tensor] = {}
        self._storages: dict[int, Storage] = {}
        self._leaves: dict[int, Any] = {}
        self._first_versions: dict[int, int] = {}

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
                self._handles[id(leaf)] if isinstance(leaf, Tensor) else leaf for leaf in leaves
            ]
            args, kwargs = unflatten(structure, iter(handles))
            result = function(*args, **kwargs)
            with _state.enter(frame.outer_state()):
                return self._finish(result)
        finally:
            pop(frame)

    def _enter_inputs(self) -> None:
        """Make a handle of every input, grouping those that share memory into one region."""
        for group in _groups(self.inputs):
            if len(group) == 1:
                (index,) = group
                region = self._region(index, self.inner[index], form_of(self.inputs[index]))
                self._make_handle(index, region, region.form)
            else:
                self._enter_group(group)

    def _enter_group(self, group: list[int]) -> None:
        """Give several inputs over one memory one region: the one that covers it, or its span."""
        geometries = _relative([self.inputs[index] for index in group])
        cover = next((i for i, g in enumerate(geometries) if _covers_all(g, geometries)), None)
        if cover is not None:
            region = self._region(group[cover], self.inner[group[cover]], geometries[cover])
        else:
            span, geometries = span_tensor([self.inputs[index] for index in group])
            region = self._region(group[0], self._span_inner(span, tuple(group)), form_of(span))
        for index, geometry in zip(group, geometries, strict=True):
            self._make_handle(index, region, geometry)

    def _region(self, index: int, inner: Tensor, form: Geometry) -> Region:
        """Return the region of an input's memory, on the storage its other regions have."""
        outside = self.inputs[index]._storage
        storage = self._storages.get(id(outside))
        if storage is None:
            storage = self._storages[id(outside)] = new_storage()
            storage.version = outside.version
            self._first_versions[id(storage)] = storage.version
        region = Region(inner, form, storage)
        region.is_input = True
        return region

    def _make_handle(self, index: int, region: Region, geometry: Geometry) -> Tensor:
        tensor = self.inputs[index]
        handle = self.interpreter.handle(region, geometry, index)
        self._handles[id(tensor)] = handle
        if tensor.requires_grad:
            self.interpreter.differentiates |= self.inner[index].requires_grad
            handle.requires_grad = True
            assert handle.autograd_meta is not None
            self._leaves[index] = handle.autograd_meta.grad_node
            if not tensor.is_leaf:
                handle.autograd_meta = _passing_on(handle.autograd_meta)
        return handle

    def _adopt(self, tensor: Tensor) -> Tensor:
        """Return the handle of a tensor of the enclosing scope, a hidden input."""
        found = self._handles.get(id(tensor))
        if found is not None:
            return found
        shared = next((t for t in self.inputs if _share([t, tensor])), None)
        index = len(self.inputs)
        self.inputs.append(tensor)
        self.inner.append(self._adopt_inner(tensor))
        if shared is None:
            region = self._region(index, self.inner[index], form_of(tensor))
            return self._make_handle(index, region, region.form)
        array: FunctionalArray = self._handles[id(shared)].array
        relative = _relative([shared, tensor])
        shift = array.geometry.offset - relative[0].offset
        part = relative[1]
        geometry = Geometry(part.dtype, part.shape, part.strides, part.offset + shift)
        if not covers(array.region.form, geometry):
            raise AliasError(
                "a tensor of the enclosing scope shares memory with an argument and reaches beyond "
                "it\n  pass it to the function as an argument too"
            )
        return self._make_handle(index, array.region, geometry)

    # ------------------------------------------------------------------ the outcome

    def _finish(self, result: Any) -> tuple[Outcome, list[Tensor]]:
        """Describe results, writes and gradients, with the values they name."""
        outcome = Outcome()
        values: list[Tensor] = []
        self._writes(outcome, values)
        leaves, outcome.structure = flatten(result)
        seen: dict[int, int] = {}
        shared = _shared_regions(leaves, self.interpreter)
        for position, leaf in enumerate(leaves):
            earlier = seen.setdefault(id(leaf), position)
            if isinstance(leaf, Tensor) and earlier != position:
                outcome.records.append(SameResult(earlier))
            else:
                outcome.records.append(self._record(leaf, values, shared))
        self._gradients(outcome, values)
        return outcome, values

    def _writes(self, outcome: Outcome, values: list[Tensor]) -> None:
        """Describe what is stored into the inputs, and by how much versions rise."""
        counted = set()
        for index, tensor in enumerate(self.inputs):
            array: FunctionalArray = self._handles[id(tensor)].array
            if index in array.region.written_through:
                values.append(array.read())
                outcome.writes.append(
                    WriteBack(index, len(values) - 1, array.region.all_no_grad)
                )
            storage = array.region.storage
            count = storage.version - self._first_versions.get(id(storage), storage.version)
            if count and id(storage) not in counted:
                counted.add(id(storage))
                outcome.versions.append((index, count))

    def _record(self, leaf: Any, values: list[Tensor], shared: set[int]) -> Record:
        if not isinstance(leaf, Tensor):
            return LiteralResult(leaf)
        if not self.interpreter.owns(leaf):
            leaf = self._adopt(leaf)
        for index, tensor in enumerate(self.inputs):
            handle = self._handles[id(tensor)]
            if handle is leaf:
                return InputResult(index)
        array: FunctionalArray = leaf.array
        for index, tensor in enumerate(self.inputs):
            handle = self._handles[id(tensor)]
            if handle.array.region is array.region and covers(handle.array.geometry, array.geometry):
                return InputView(index, handle.array.geometry, array.geometry, array.detached)
        if array.is_whole and id(array.region) not in shared:
            values.append(array.read())
            return ValueResult(len(values) - 1, array.strides)
        value = next((i for i, v in enumerate(values) if v is array.region.value), None)
        if value is None:
            values.append(array.region.value)
            value = len(values) - 1
        return ValueView(value, array.region.form, array.geometry)

    def _gradients(self, outcome: Outcome, values: list[Tensor]) -> None:
        """Describe the gradients that arrived at inputs inside the run."""
        for index, node in self._leaves.items():
            if node.grad is not None:
                values.append(node.grad.array.read())
                outcome.gradients.append((index, len(values) - 1))


def _pass_on(node: GradNode, saved: tuple[()], gradient: Tensor) -> tuple[Tensor]:
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


def _shared_regions(leaves: Iterable[Any], interpreter: Functionalize) -> set[int]:
    """Return the regions that several different results live in."""
    found: dict[int, set[int]] = {}
    for leaf in leaves:
        if interpreter.owns(leaf):
            found.setdefault(id(leaf.array.region), set()).add(id(leaf))
    return {region for region, handles in found.items() if len(handles) > 1}


# ---------------------------------------------------------------------- memory of inputs


def _place(tensor: Tensor) -> tuple[Any, Geometry]:
    """Return which memory a tensor lies in, and its geometry there."""
    array = tensor.array
    if isinstance(array, np.ndarray):
        return "memory", Geometry.of_array(array, 0)
    if type(array) is FunctionalArray:
        return id(array.region), array.geometry
    if type(array) is MetaArray:
        return id(array.storage), array.geometry
    return id(tensor._storage), form_of(tensor)


def _share(tensors: Sequence[Tensor]) -> bool:
    (memory, a), (other, b) = map(_place, tensors)
    return bool(memory == other and overlap(a, b))


def _relative(tensors: Sequence[Tensor]) -> list[Geometry]:
    """Return the geometries of tensors in one memory, from the lowest address of the first."""
    places = [geometry for _, geometry in map(_place, tensors)]
    base = min(_lowest(g) for g in places)
    return [Geometry(g.dtype, g.shape, g.strides, g.offset - base) for g in places]


def _lowest(g: Geometry) -> int:
    return g.offset + sum(
        min(0, (n - 1) * s) for n, s in zip(g.shape, g.strides, strict=True)
    )


def _covers_all(g: Geometry, others: Sequence[Geometry]) -> bool:
    return not self_overlap(g) and all(o.dtype == g.dtype and covers(g, o) for o in others)


def _groups(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return connected components of overlapping tensors, in order of their first member."""
    group_of = list(range(len(tensors)))
    for i in range(len(tensors)):
        for j in range(i):
            if group_of[i] != group_of[j] and _share([tensors[i], tensors[j]]):
                old, new = max(group_of[i], group_of[j]), min(group_of[i], group_of[j])
                group_of = [new if g == old else g for g in group_of]
    return [[i for i, g in enumerate(group_of) if g == label] for label in sorted(set(group_of))]


def memory_groups(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return which tensors share memory: per group of several, (index, geometry) pairs.

    Geometries count from the lowest address of the group, so the same pattern elsewhere is equal.
    """
    shared = [group for group in _groups(tensors) if len(group) > 1]
    return tuple(
        tuple(zip(group, map(str, _relative([tensors[i] for i in group])), strict=True))
        for group in shared
    )


def install() -> None:
    """Make functional arrays known to tensors."""

    def to_numpy(array: FunctionalArray) -> np.ndarray[Any, Any]:
        with _state.enter(array.frame.outer_state()):
            value = array.read().numpy().view()
        value.flags.writeable = False
        return value

    ARRAY_TYPES[FunctionalArray] = ArrayType(
        key=lambda array: INTERPRETER | (array.region.value._keys & (BACKENDS | META)),
        device=lambda array: array.device,
        to_numpy=to_numpy,
    )


install()
