"""A functional level: its tensors, what their values are below, and their views.

Imports floors 0 to 4, `storage.py`, `tapes.py`, `views.py`. Read next: `writes.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from .. import _state
from .._tree import tree_map
from ..dispatch.interpreter import Frame, Interpreter
from ..dispatch.keys import AUTOGRAD, BACKENDS, CONSTANT, INTERPRETER, META, WEAK
from ..dispatch.lifting import may_hold_tensors
from ..dispatch.operator import Operator
from ..errors import AliasError, AutogradError
from ..schema import TensorType
from ..tensor.geometry import Geometry, self_overlap
from ..tensor.storage import Storage, new_storage
from ..tensor.tensor import Tensor, blank_tensor, engine, stranger_of, view_of
from .opaque import records
from .storage import FunctionalArray, Region, ViewStep, form_of
from .tapes import as_its_handle
from .views import ABSOLUTE, inferred_views, lies_in

__all__ = ["Facts", "Level", "facts_of"]


class Facts:
    """What a call has to know of an operator, found once."""

    __slots__ = ("deep", "exact", "is_mutable", "is_view", "one_result", "plain")

    def __init__(self, op: Operator[..., Any]) -> None:
        schema = op.schema
        kinds = [argument.type for argument in schema.arguments]
        self.is_mutable = schema.is_mutable
        self.is_view = schema.is_view
        self.exact = "flexible_layout" not in op.tags
        self.plain = [isinstance(kind, TensorType) for kind in kinds]
        self.deep = sum(map(may_hold_tensors, kinds)) > sum(self.plain)
        self.one_result = len(schema.returns) == 1 and isinstance(
            schema.returns[0].type, TensorType
        )


_facts: Final[WeakKeyDictionary[Operator[..., Any], Facts]] = WeakKeyDictionary()


def facts_of(op: Operator[..., Any]) -> Facts:
    """Return the facts of an operator."""
    facts = _facts.get(op)
    if facts is None:
        facts = _facts[op] = Facts(op)
    return facts


class Level(Interpreter):
    """The tensors of one functional run.

    Attributes
    ----------
    frame : Frame
    inputs : list of Tensor
        What the run was called with, then the tensors of the enclosing scope it met.
    inner : list of Tensor
        What stands for them at the level below.
    differentiates : callable
        Whether any of these requires grad.
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
    places, storages : list of FunctionalArray, list of Storage
        Where these lay at the beginning.
    addressed : set of int
        The inputs of which the program sees where they lie in their storage.
    cleared : set of int
        The inputs whose ``.grad`` was set or cleared.
    """

    wraps = True

    def __init__(
        self,
        inputs: list[Tensor],
        inner: list[Tensor],
        adopt: Callable[[Tensor], Tensor],
        differentiates: Callable[[], bool],
    ) -> None:
        self.frame: Frame
        self.inputs = inputs
        self.inner = inner
        self.differentiates = differentiates
        self.argument_count = len(inputs)
        self.adopt = adopt
        self.after_write: Callable[[Tensor, Tensor], None] = lambda old, new: None
        self.adopt_beyond: Callable[[int, Geometry, Geometry], Tensor]
        self.handles: list[Tensor] = []
        self.places: list[FunctionalArray] = []
        self.storages: list[Storage] = []
        self.addressed: set[int] = set()
        self.cleared: set[int] = set()
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
        form, storage = form_of(value), new_storage()
        region = Region(value, form, storage)
        array = FunctionalArray(self.frame, region, form)
        array._cached, array._cached_version = value, 0
        tensor = blank_tensor()
        tensor.array = array
        tensor._keys = INTERPRETER | (value._keys & (BACKENDS | META))
        tensor.autograd_meta = None
        tensor._view = None
        tensor._storage = storage
        return tensor

    def own(self, leaf: Any) -> Any:
        """Take a tensor from outside into the run, so that writes to its memory are seen."""
        if type(leaf) is not Tensor or self.owns(leaf) or leaf._keys & (WEAK | CONSTANT):
            return leaf
        return self.adopt(leaf)

    def value_of(self, leaf: Any, exact: bool, recording: int) -> Any:
        """Return what a call below receives for one leaf. See Note [Two tapes]."""
        handle = self.own(leaf)
        if not self.owns(handle):
            return leaf
        value = handle.array.read(exact)
        return as_its_handle(value, leaf) if recording else value

    def values_of(self, facts: Facts, args: tuple[Any, ...]) -> list[Any]:
        """Return what the call below receives; the common operand needs no further call."""
        recording = _state.current().mask & AUTOGRAD
        exact, frame = facts.exact, self.frame
        values: list[Any] = []
        for value, plain in zip(args, facts.plain, strict=True):
            if not plain:
                leaf = functools.partial(self.value_of, exact=exact, recording=recording)
                values.append(tree_map(leaf, value) if facts.deep else value)
                continue
            array = value.array
            if type(array) is FunctionalArray and array.frame is frame:
                below = array.read(exact)
                if not recording or not (value._keys ^ below._keys) & AUTOGRAD:
                    values.append(below)
                    continue
            values.append(self.value_of(value, exact, recording))
        return values

    # ------------------------------------------------------------------ views

    def view(self, op: Operator[..., Any], args: tuple[Any, ...]) -> Any:
        """Return the view handles of a view operator, or None where it makes a copy."""
        base = self.own(args[0])
        if not self.owns(base):
            return None
        rule = op.view_rule
        if rule is not None:
            geometry = rule(base.array.geometry, *args[1:])
        else:
            geometry = inferred_views(op, base, args)
        if geometry is None:
            return None
        no_grad = not _state.current().user & AUTOGRAD
        if not isinstance(geometry, list):
            # Taken again by its operator a view would have its effects twice.
            step = None if op.effects else ViewStep(op, args[1:], None, no_grad)
            return self.view_handle(op, base, geometry, step)
        return [
            self.view_handle(op, base, part, ViewStep(op, args[1:], position, no_grad))
            for position, part in enumerate(geometry)
        ]

    def view_handle(
        self, op: Operator[..., Any], base: Tensor, geometry: Geometry, step: ViewStep | None
    ) -> Tensor:
        """Return a handle on a view of `base`; `step` says how to take it again."""
        joins = records(op)
        array: FunctionalArray = base.array
        if array.origin is not None and ABSOLUTE in op.tags:
            self.addressed.add(array.origin)
        inside = lies_in(geometry, self._memory_of(array))
        around = None if inside else self._beyond(base, geometry)
        if around is not None:
            geometry = around.geometry
        view = array.view(geometry, step, not joins, around)
        return view_of(base, view) if joins else stranger_of(base, view)

    def _memory_of(self, array: FunctionalArray) -> Geometry:
        """Return the geometry of the input, or of the temporary, that a handle is a view of."""
        if array.origin is None:
            return array.region.form
        return self.places[array.origin].geometry

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

    # ------------------------------------------------------------------ the level outside

    def check_history(
        self, op: Operator[..., Any], name: str, tensor: Tensor, is_recorded: bool
    ) -> None:
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
