"""The functional level: every call reaches the level below without a written argument.

View operators become geometries; an operator that writes is run by its functional twin, or as one
`functionalized` node, and the regions of its destinations take the new values; all else is called
on current values.

Note [Two tapes] ~~~~~~~~~~~~~~~~ Autograd is above this level, and again below it. The tape above
sees the program as it was written: leaves, views, versions, errors; it serves gradients taken
inside the run. The tape below records the functional calls; it serves gradients taken of the
results. What makes them agree is that a value is handed down with a history exactly when its handle
has one: `_value` takes it away (a view made under no_grad, ``stop_gradient``), and where the level
below never saw it (a `PyLayer` runs its forward under no_grad) puts a node in its place that raises
when a gradient arrives.

Imports floors 0 to 4 and the files above. Read next: `run.py`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from .. import _state
from .._tree import tree_map
from ..dispatch.interpreter import Frame, Interpreter
from ..dispatch.keys import AUTOGRAD, CONSTANT, WEAK
from ..dispatch.lifting import tensor_leaves
from ..dispatch.operator import Operator
from ..dispatch.plan import python_call
from ..errors import AliasError, AutogradError, FakeTensorError
from ..prims import detach, lift
from ..prims.writing import check_order
from ..schema import TensorType
from ..tensor.geometry import Geometry, covers, overlap, self_overlap
from ..tensor.grad_meta import GradNode, NodeKind, new_meta
from ..tensor.meta_array import MetaArray
from ..tensor.storage import new_storage
from ..tensor.tensor import Tensor, alias_of, engine, tensor_from_result, view_of
from .access import access, laid_out, recorded
from .opaque import At, fresh_returns, functionalized, rebased, records
from .storage import FunctionalArray, Region, ViewStep, form_of

__all__ = ["Functionalize"]

AnyOperator: TypeAlias = Operator[..., Any]

_ABSOLUTE: Final = "std:absolute_addresses"
"""Tag of view operators that count from the start of the storage, not of the tensor."""
_CHECKS_ORDER: Final = "std:own_overlap_check"
"""Tag of operators that may write a destination that overlaps itself, if what they store allows
it."""


class _Facts:
    """What a call has to know of an operator, found once."""

    __slots__ = ("exact", "is_mutable", "is_view", "one_result", "plain")

    def __init__(self, op: AnyOperator) -> None:
        schema = op.schema
        kinds = [argument.type for argument in schema.arguments]
        self.is_mutable = schema.is_mutable
        self.is_view = schema.is_view
        self.exact = "flexible_layout" not in op.tags
        self.plain = [isinstance(kind, TensorType) for kind in kinds]
        self.one_result = len(schema.returns) == 1 and isinstance(
            schema.returns[0].type, TensorType
        )


_facts: Final[WeakKeyDictionary[AnyOperator, _Facts]] = WeakKeyDictionary()


class Functionalize(Interpreter):
    """The interpreter of one functional run.

    Attributes
    ----------
    frame : Frame
    inputs : list of Tensor
        What the run was called with, then the tensors of the enclosing scope it met.
    argument_count : int
        How many of them are arguments.
    adopt : callable
        ``adopt(tensor)``: the handle of a tensor of the enclosing scope.
    adopt_beyond : callable
        ``adopt_beyond(index, base, geometry)``: a handle on memory around an input.
    after_write : callable
        ``after_write(old, new)``: a region's value was replaced.
    after_flag : callable
        ``after_flag(handle, value)``: ``requires_grad`` of a handle was set.
    handles : list of Tensor
        The handles of the inputs.
    addressed : set of int
        The inputs of which the program sees where they lie in their storage.
    """

    wraps = True

    def __init__(self, inputs: list[Tensor], adopt: Callable[[Tensor], Tensor]) -> None:
        self.frame: Frame
        self.inputs = inputs
        self.argument_count = len(inputs)
        self.adopt = adopt
        self.after_write: Callable[[Tensor, Tensor], None] = lambda old, new: None
        self.adopt_beyond: Callable[[int, Geometry, Geometry], Tensor]
        self.handles: list[Tensor] = []
        self.addressed: set[int] = set()
        self.after_flag: Callable[[Tensor, bool], None] = lambda handle, value: None

    # ------------------------------------------------------------------ tensors

    def owns(self, value: Any) -> bool:
        """Return whether a value is a tensor of this level."""
        if type(value) is not Tensor:
            return False
        array = value.array
        return type(array) is FunctionalArray and array.frame is self.frame

    def wrap(self, value: Any) -> Any:
        """Return a tensor of this level in a region of its own; what is no tensor stays."""
        if type(value) is not Tensor:
            return value
        storage = new_storage()
        region = Region(value, form_of(value), storage)
        array = FunctionalArray(self.frame, region, region.form)
        array.remember(value)
        return tensor_from_result(array)

    def _own(self, leaf: Any) -> Any:
        """Take a tensor from outside into the run, so that writes to its memory are seen."""
        if type(leaf) is not Tensor or self.owns(leaf) or leaf._keys & (WEAK | CONSTANT):
            return leaf
        return self.adopt(leaf)

    def _value(self, leaf: Any, exact: bool, recording: int) -> Any:
        """Return what a call below receives for one leaf. See Note [Two tapes]."""
        handle = self._own(leaf)
        if not self.owns(handle):
            return leaf
        value = handle.array.read(exact)
        if recording and (leaf._keys ^ value._keys) & AUTOGRAD:
            return detach(value) if value._keys & AUTOGRAD else _without_known_history(value, leaf)
        return value

    # ------------------------------------------------------------------ calls

    def call(self, frame: Frame, op: AnyOperator, args: tuple[Any, ...]) -> Any:
        """Run one call on values."""
        facts = _facts.get(op)
        if facts is None:
            facts = _facts[op] = _Facts(op)
        if facts.is_mutable:
            return self._write(op, args)
        if facts.is_view or op.view_rule is not None:
            viewed = self._view(op, args)
            if viewed is not None:
                return viewed
        if op is lift and not self.owns(args[0]):
            return self.wrap(op.call_positional(list(args)))
        result = op.call_positional(self._values(facts, args))
        return self.wrap(result) if facts.one_result else tree_map(self.wrap, result)

    def _values(self, facts: _Facts, args: tuple[Any, ...]) -> list[Any]:
        recording = _state.current().mask & AUTOGRAD
        exact = facts.exact
        return [
            self._value(value, exact, recording)
            if plain
            else tree_map(lambda leaf: self._value(leaf, exact, recording), value)
            for value, plain in zip(args, facts.plain, strict=True)
        ]

    # ------------------------------------------------------------------ views

    def _view(self, op: AnyOperator, args: tuple[Any, ...]) -> Any:
        """Return the view handles of a view operator, or None where it makes a copy."""
        base = self._own(args[0])
        if not self.owns(base):
            return None
        rule = op.view_rule
        if rule is not None:
            geometry = rule(base.array.geometry, *args[1:])
        else:
            geometry = _inferred_views(op, base, args)
        if geometry is None:
            return None
        no_grad = not _state.current().user & AUTOGRAD
        if not isinstance(geometry, list):
            step = ViewStep(op, args[1:], None, no_grad)
            return self._view_handle(op, base, geometry, step)
        return [
            self._view_handle(op, base, part, ViewStep(op, args[1:], position, no_grad))
            for position, part in enumerate(geometry)
        ]

    def _view_handle(
        self, op: AnyOperator, base: Tensor, geometry: Geometry, step: ViewStep | None
    ) -> Tensor:
        joins = records(op)
        array: FunctionalArray = base.array
        if array.origin is not None and _ABSOLUTE in op.tags:
            self.addressed.add(array.origin)
        inside = _lies_in(geometry, self._memory_of(array))
        around = None if inside else self._beyond(base, geometry)
        if around is not None:
            geometry = around.geometry
        view = array.view(geometry, step, not joins, around)
        return view_of(base, view) if joins else alias_of(base, view)

    def _memory_of(self, array: FunctionalArray) -> Geometry:
        """Return the geometry of the input, or of the temporary, that a handle is a view of."""
        if array.origin is None:
            return array.region.form
        return self.handles[array.origin].array.geometry  # type: ignore[no-any-return]

    def _beyond(self, base: Tensor, geometry: Geometry) -> FunctionalArray:
        """Return the handle of other memory of the same owner, where a view leaves its own."""
        array: FunctionalArray = base.array
        memory = self._memory_of(array)
        family = base._view.family if base._view is not None else None
        has_history = base.requires_grad or (family is not None and family.root is not None)
        if array.origin is None or has_history:
            raise AliasError(
                f"a view {geometry} reaches beyond the memory it is taken of, {memory}, or crosses "
                "it irregularly\n  pass the tensor that owns this memory to the function"
            )
        return self.adopt_beyond(array.origin, memory, geometry).array  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ writes

    def _write(self, op: AnyOperator, args: tuple[Any, ...]) -> Any:
        is_recorded = _is_recorded(op, args)
        owned = tuple([tree_map(self._own, value) for value in args])
        written = self._destinations(op, args, owned, is_recorded)
        for destination in written:
            before_write = destination.array.region.before_write
            if before_write is not None:
                before_write()
        twin = op.twin
        if twin is not None and (twin.pre_state or not self._overlaps(owned, written)):
            fresh = self._run_twin(op, twin.twin, args, written, is_recorded)
        else:
            fresh = self._run_opaque(op, args, written, is_recorded)
        for storage in {id(t._storage): t._storage for t in written}.values():
            storage.version += 1
            storage.writer = op.qualname
        return self._results(op, args, fresh)

    def _destinations(
        self, op: AnyOperator, args: Sequence[Any], owned: Sequence[Any], is_recorded: bool
    ) -> list[Tensor]:
        """Return the handles that are written, after all checks."""
        written = []
        for argument, given, value in zip(op.schema.arguments, args, owned, strict=True):
            if argument.name not in op.schema.mutated_arguments:
                continue
            for original, tensor in zip(
                tensor_leaves([given]), tensor_leaves([value]), strict=True
            ):
                if not self.owns(tensor):
                    raise AliasError(f"{op.qualname}: argument `{argument.name}` is a constant")
                if is_recorded or original._view is not None:
                    self.check_history(op, argument.name, tensor, is_recorded)
                self._check_memory(op, argument.name, tensor, args)
                written.append(tensor)
        return written

    def check_history(self, op: AnyOperator, name: str, tensor: Tensor, is_recorded: bool) -> None:
        """Refuse what eager code refuses because of the history an input has outside."""
        array: FunctionalArray = tensor.array
        if array.origin is None or array.detached or not _state.current().mask & AUTOGRAD:
            return
        outside = self.inputs[array.origin]
        family = outside._view.family if outside._view is not None else None
        if is_recorded or (family is not None and family.root is not None):
            engine.check_write(op, name, outside)
        if type(outside.array) is FunctionalArray:
            outer: Any = outside.array.frame.interpreter
            outer.check_history(op, name, outside, is_recorded)
        if is_recorded and self_overlap(self._memory_of(array)):
            raise AliasError(
                f"{op.qualname}: argument `{name}` lies in an input that overlaps itself; it "
                "cannot be written to while gradients are recorded\n"
                "  pass a copy of the input: x.clone()"
            )
        if is_recorded and array.origin >= self.argument_count:
            raise AutogradError(
                f"{op.qualname}: argument `{name}` is a tensor of the enclosing scope; it "
                "cannot be written to while gradients are recorded\n"
                "  pass it to the function as an argument"
            )

    def _check_memory(
        self, op: AnyOperator, name: str, tensor: Tensor, args: Sequence[Any]
    ) -> None:
        """Refuse read-only and self-overlapping destinations."""
        array: FunctionalArray = tensor.array
        if _is_read_only(tensor):
            raise AliasError(
                f"{op.qualname}: argument `{name}` is written, but its array is read-only\n"
                "  pass a writable copy: x.clone()"
            )
        if _CHECKS_ORDER in op.tags:
            for other in tensor_leaves(args[1:]):
                check_order(array.geometry, other.shape, op.name)
        elif self_overlap(array.geometry):
            raise AliasError(
                f"{op.qualname}: argument `{name}` overlaps itself, so the result would depend on "
                "the order of the writes\n  pass a copy: x.clone()"
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
        op: AnyOperator,
        twin: Callable[..., Any],
        args: tuple[Any, ...],
        written: Sequence[Tensor],
        is_recorded: bool,
    ) -> tuple[Any, ...]:
        """Run the functional twin, store the new values, and return the fresh results."""
        result = python_call(op, twin)(*self._values(_facts[op], args))
        parts = tuple(result) if isinstance(result, tuple | list) else (result,)
        count = len(op.schema.mutated_arguments)
        fresh, new = parts[: len(parts) - count], parts[len(parts) - count :]
        for destination, value in zip(written, tensor_leaves(list(new)), strict=True):
            array: FunctionalArray = destination.array
            before = array.region.value
            stored = self._commit(array, array.write(value), is_recorded)
            self.after_write(before, array.region.value)
            if stored and is_recorded == bool(value._keys & AUTOGRAD):
                array.remember(value)
        return tuple([self.wrap(value) for value in fresh])

    def _commit(self, array: FunctionalArray, new: Tensor, is_recorded: bool) -> bool:
        """Give a handle's region its value after a write; return whether it is `new` as it is."""
        region = array.region
        if array.origin is not None:
            region.written_through.add(array.origin)
            if is_recorded and not array.detached:
                region.recorded_through.add(array.origin)
        return region.replace(array.history, new, is_recorded) is new

    def _run_opaque(
        self,
        op: AnyOperator,
        args: tuple[Any, ...],
        written: Sequence[Tensor],
        is_recorded: bool,
    ) -> tuple[Any, ...]:
        """Run a mutating operator as one `functionalized` call and return the fresh results."""
        recording = _state.current().mask & AUTOGRAD
        arrays: list[FunctionalArray] = [tensor.array for tensor in written]
        regions = {id(array.region): array for array in reversed(arrays)}
        first = [regions[key] for key in dict.fromkeys(id(array.region) for array in arrays)]
        if is_recorded:
            _refuse_several_histories(op, arrays)
        forms = [array.region.form for array in first]
        with recorded():
            bases = [
                laid_out(array.region.current(array.history), form, True)
                for array, form in zip(first, forms, strict=True)
            ]
        position = {id(array.region): i for i, array in enumerate(first)}

        def rebuilt(leaf: Any) -> Any:
            handle = self._own(leaf)
            index = position.get(id(handle.array.region)) if self.owns(handle) else None
            if index is None:
                return self._value(leaf, True, recording)
            if recording and (leaf._keys ^ bases[index]._keys) & AUTOGRAD:
                raise AliasError(
                    f"{op.qualname} writes memory that its arguments see with different histories "
                    "(one of them is detached)\n  pass a copy instead: x.detach().clone()"
                )
            return At(index, rebased(handle.array.geometry, forms[index]))

        arguments = tuple([tree_map(rebuilt, value) for value in args])
        places = tuple([rebased(form, form) for form in forms])
        fresh, new = functionalized.call_positional([op.qualname, arguments, bases, places])
        for array, value in zip(first, new, strict=True):
            before = array.region.value
            self._commit(array, value, is_recorded)
            for other in arrays:
                if other.region is array.region and other is not array:
                    self._note(other, is_recorded)
                    if is_recorded:
                        array.region.share(array.history, other.history)
            self.after_write(before, array.region.value)
        return tuple([tree_map(self.wrap, part) for part in fresh])

    def _note(self, array: FunctionalArray, is_recorded: bool) -> None:
        """Take note that an input was written through, without a new value."""
        if array.origin is not None:
            array.region.written_through.add(array.origin)
            if is_recorded and not array.detached:
                array.region.recorded_through.add(array.origin)

    def _results(self, op: AnyOperator, args: tuple[Any, ...], fresh: Sequence[Any]) -> Any:
        """Return a writing call's results: the written arguments, views of them, fresh ones."""
        schema = op.schema
        given = {a.name: value for a, value in zip(schema.arguments, args, strict=True)}
        indices = fresh_returns(op, args)
        values = dict(zip(indices, fresh, strict=True))
        complete = []
        for i in range(len(schema.returns)):
            name = schema.returned_argument(i)
            if i in values:
                complete.append(values[i])
            elif name is not None:
                complete.append(given[name])
            else:
                complete.append(self._written_view(op, i, args, given))
        if not complete:
            return None
        return complete[0] if len(complete) == 1 else tuple(complete)

    def _written_view(
        self, op: AnyOperator, index: int, args: tuple[Any, ...], given: dict[str, Any]
    ) -> Any:
        """Return a result that is a view of a written argument, as its fake rule describes it."""
        base = self._own(given[op.schema.aliased_arguments(index)[0]])
        return self._view_handle(op, base, _inferred_views(op, base, args, index), None)

    def requires_grad_changed(self, tensor: Tensor, value: bool) -> None:
        """Let the run know that ``requires_grad`` of a handle was set."""
        self.after_flag(tensor, value)


def _refuse_several_histories(op: AnyOperator, arrays: Sequence[FunctionalArray]) -> None:
    """Raise if a recorded call writes one memory through handles with different histories."""
    for one, other in itertools.combinations(arrays, 2):
        different = one.region is other.region and one.history != other.history
        if different and overlap(one.geometry, other.geometry):
            raise AliasError(
                f"{op.qualname} writes one memory through arguments with different histories\n"
                "  pass views of one tensor"
            )


def _is_read_only(tensor: Tensor) -> bool:
    """Return whether the memory of a tensor, at the outermost level, cannot be written."""
    array = tensor.array
    while type(array) is FunctionalArray and array.origin is not None:
        array = array.frame.interpreter.inputs[array.origin].array  # type: ignore[attr-defined]
    return isinstance(array, np.ndarray) and not array.flags.writeable


# ---------------------------------------------------------------------- histories


def _is_recorded(op: AnyOperator, args: Sequence[Any]) -> bool:
    """Return whether the tape above gives what this call writes a new history."""
    if not _state.current().mask & AUTOGRAD:
        return False
    if not any(tensor._keys & AUTOGRAD for tensor in tensor_leaves(args)):
        return False
    return records(op)


def _refuse(node: GradNode, saved: tuple[Any, ...], gradient: Any) -> Any:
    raise AutogradError(saved[0])


LOST: Final = NodeKind("history_above_functionalize", _refuse)
"""The kind of node that stands for a history the level below has not seen."""


def _without_known_history(value: Tensor, handle: Tensor) -> Tensor:
    """Return a value whose handle has a history that the level below has not seen."""
    node: GradNode = object.__new__(GradNode)
    node.kind = LOST
    node.edges = ()
    source = handle.grad_fn.name() if handle.grad_fn is not None else "a leaf made inside"
    node.saved = (
        f"a result of a functional run depends on {source}, which was recorded inside the run "
        "only\n  make it an operator with a gradient rule (register_autograd), or take the "
        "gradient inside the run",
    )
    node.hooks = None
    node.shapes, node.dtypes = value.shape, value.dtype
    alias = alias_of(value, value.array)
    alias.autograd_meta = new_meta(node, 0, value.shape, value.dtype)
    alias._keys |= AUTOGRAD
    return alias


# ---------------------------------------------------------------------- geometries of views


@functools.lru_cache(maxsize=4096)
def _lies_in(geometry: Geometry, form: Geometry) -> bool:
    """Return whether a view addresses, in a regular pattern, the memory it is taken of."""
    return covers(form, geometry) and access(geometry, form) is not None


def _inferred_views(
    op: AnyOperator, base: Tensor, args: tuple[Any, ...], index: int | None = None
) -> Any:
    """Return the geometry of a view that has no view rule, by the operator's fake rule.

    Parameters
    ----------
    index : int, optional
        Which result of the operator is meant, if it has others too.
    """
    storage = new_storage()
    g: Geometry = base.array.geometry
    array = MetaArray(g.shape, g.strides, g.dtype, base.device, storage, g.offset)
    meta = tensor_from_result(array)

    def without_data(leaf: Any) -> Any:
        if leaf is base or not isinstance(leaf, Tensor) or leaf._keys & WEAK:
            return meta if leaf is base else leaf
        g = form_of(leaf)
        return tensor_from_result(
            MetaArray(g.shape, g.strides, g.dtype, base.device, new_storage(), g.offset)
        )

    with _state.enter(_state.DEFAULT_STATE):
        try:
            result = op.call_positional([tree_map(without_data, value) for value in args])
        except FakeTensorError as error:
            error.add_note(
                f"{op.qualname} makes a view; give it a geometry: "
                f"oplib.register_view({op.qualname!r}, rule)"
            )
            raise
    if index is not None and len(op.schema.returns) > 1:
        result = result[index]
    parts = result if isinstance(result, list | tuple) else [result]
    if any(part._storage is not storage for part in parts):
        return None
    found = [part.array.geometry for part in parts]
    return found if isinstance(result, list | tuple) else found[0]
