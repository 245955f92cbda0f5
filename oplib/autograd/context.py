"""``ctx``: what a forward function leaves for its backward.

Tensors go through `save_for_backward`, which checks versions; anything else is an attribute. When
the node of the call exists, everything that holds a tensor moves into the node, as `Kept`: so it is
freed with the node, and an output kept on ``ctx`` makes no cycle. ``ctx`` refers to the node weakly
and gives saved tensors their history back when they are read.

Imports floors 0 to 4, `wrapper.py`, `family.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence, Set
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from weakref import ref

from .. import _state
from .._text import short_repr
from .._tree import TreeDef, flatten, leaves, tree_map, unflatten
from ..dispatch.keys import AUTOGRAD, SAVED_TENSOR_HOOKS
from ..dtypes import is_inexact
from ..errors import ArgumentError, AutogradError
from ..tensor.grad_meta import GradNode
from ..tensor.storage import Storage
from ..tensor.tensor import Tensor
from .family import check_write
from .wrapper import PackedTensor, guard, recover, recover_output, save

__all__ = [
    "NOTHING_KEPT",
    "UNMARKED",
    "UNSAVED",
    "Context",
    "Kept",
    "OperatorContext",
    "PyLayerContext",
    "new_context",
]


Place: TypeAlias = int | None
"""Where the history of a kept tensor is: the index of an input's edge, ``-1 - position`` of an
output, or None for an intermediate value, whose history is unknown."""

SavedTensor: TypeAlias = tuple[Any, Storage, int, int, ref[Tensor]] | PackedTensor
"""What is kept of one tensor: array, storage, version, key set, and the handle that was given."""


class SavedAttribute:
    """A tensor inside an attribute of ctx: its record, its place, and whether it is a constant."""

    __slots__ = ("known",)

    def __init__(self, tensor: Tensor, place: Place, constant: bool) -> None:
        self.known = (_kept(tensor), place, constant)


Kept: TypeAlias = tuple[
    Sequence[SavedTensor | None],
    Sequence[Place] | None,
    Set[int],
    TreeDef | None,
    Mapping[str, Any],
]
"""What a node keeps for a ctx; by convention the last element of ``node.saved``.

Per tensor given to `save_for_backward` a record and a place, None included (no places: they are all
the inputs, in order); which of them are stated to be constant; how they were nested; and the user's
attributes that hold tensors.
"""

_NONE: Final[Set[int]] = frozenset()
NOTHING_KEPT: Final[Kept] = ((), None, _NONE, None, {})


class Marks(NamedTuple):
    """What forward said of its tensors, and the autocast policy it ran under.

    `early` are the dirty ones that were marked before something was saved.
    """

    constants: tuple[Tensor, ...] = ()
    undifferentiable: tuple[Tensor, ...] = ()
    dirty: tuple[Tensor, ...] = ()
    early: tuple[Tensor, ...] = ()
    not_inplace: tuple[Tensor, ...] = ()
    autocast: Any = None


UNMARKED: Final = Marks()

UNSAVED: Final[tuple[Sequence[Tensor | None], list[SavedTensor | None], TreeDef | None]] = (
    (),
    [],
    None,
)
"""The tensors given to `save_for_backward`, their records, and how they were nested."""

_NO_EDGE: Final = object()


class Context:
    """Carries values from the forward call to `backward`.

    Any attribute may be set; its name is free. A tensor that is an output of the call may be an
    attribute, also inside a list, tuple or dict. Made by `new_context`.

    Attributes
    ----------
    materialize_grads, grad_in_dtype_consistent : bool
        As set by the methods of these names.
    """

    # The framework's own fields are slots with a prefix, so the instance dictionary holds the
    # user's attributes and nothing else.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_ctx_marks",
        "_ctx_needs",
        "_ctx_node",
        "_ctx_recording",
        "_ctx_saved",
        "_ctx_title",
        "grad_in_dtype_consistent",
        "materialize_grads",
    )

    _ctx_title: str
    _ctx_needs: tuple[Any, ...]
    _ctx_recording: bool
    _ctx_node: ref[GradNode] | None
    _ctx_saved: tuple[Sequence[Tensor | None], list[SavedTensor | None], TreeDef | None]
    _ctx_marks: Marks
    materialize_grads: bool
    grad_in_dtype_consistent: bool

    needs_input_grad = property(
        attrgetter("_ctx_needs"),
        doc="Per argument in signature order, nested like containers: is a gradient needed.",
    )

    def save_for_backward(self, *values: Any) -> None:
        """Keep tensors (also None, and nested containers of both) for backward; the last call wins.

        Raises
        ------
        ArgumentError
            For a value that is no tensor; keep it as an attribute: ``ctx.name = value``.
        """
        hooked = _state.current().include & SAVED_TENSOR_HOOKS
        records: list[SavedTensor | None] = []
        tree = None
        for value in values:
            if type(value) is not Tensor or hooked:
                flat, tree = flatten(values)
                _require_tensors(flat)
                values = tuple(flat)
                records = [None if t is None else _kept(t) for t in flat if self._ctx_recording]
                break
            storage = value._storage
            records.append((value.array, storage, storage.version, value._keys, ref(value)))
        self._ctx_saved = values, records, tree
        if self._ctx_marks is not UNMARKED:
            self._ctx_marks = self._ctx_marks._replace(early=self._ctx_marks.dirty)

    def saved_tensor(self) -> tuple[Any, ...]:
        """Return what `save_for_backward` was given, with history, after a version check.

        Raises
        ------
        AutogradError
            If a saved tensor was written to, or the graph was released.
        """
        if self._ctx_node is None:
            given, _, tree = self._ctx_saved
            return tuple(given) if tree is None else unflatten(tree, iter(given))
        node = self._ctx_node()
        saved = None if node is None else node.saved
        if saved is None:
            raise _freed("the saved tensors", node)
        assert node is not None
        kept: Kept = saved[-1]
        records, places, _, tree, _ = kept
        edges: Sequence[Any] = node.edges
        if places is not None:
            edges = [_NO_EDGE if place is None or place < 0 else edges[place] for place in places]
        found: list[Tensor | None] = []
        for record, edge in zip(records, edges):  # noqa: B905 (strict costs 10 %)
            if places is None or type(record) is tuple:
                array, storage, version, _, handle = record  # type: ignore[misc]
                own = handle()
                if (
                    own is not None
                    and own.array is array
                    and storage.version == version
                    and (own.autograd_meta if own._keys & AUTOGRAD else None) is edge
                ):
                    found.append(own)  # the caller's own object, which still is what was saved
                    continue
            found.append(_recovered_at(len(found), node, kept))
        return tuple(found) if tree is None else unflatten(tree, iter(found))

    saved_tensors = property(saved_tensor, doc="The same (torch's spelling).")

    def mark_constant(self, *tensors: Tensor) -> None:
        """State that saved tensors do not depend on the differentiable inputs (masks, tables)."""
        self._ctx_mark("constants", _only_tensors("mark_constant", tensors))

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """State that outputs have no gradient: they stay without history."""
        self._ctx_mark("undifferentiable", _only_tensors("mark_non_differentiable", tensors))

    def set_materialize_grads(self, value: bool) -> None:
        """Receive None instead of zeros for outputs without a gradient, if False."""
        self.materialize_grads = _only_bool("set_materialize_grads", value)

    def set_grad_in_dtype_consistent(self, value: bool) -> None:
        """Receive gradients in the dtype they arrive in instead of the output's, if False."""
        self.grad_in_dtype_consistent = _only_bool("set_grad_in_dtype_consistent", value)

    # ------------------------------------------------------------------ the framework's side

    def _ctx_attach(
        self,
        node: GradNode,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor | None],
    ) -> Kept:
        """Hand everything that holds tensors over to the node of the call.

        The plan of a layer that saves just its inputs has lines of its own for that.

        `outputs` has None for inputs that were returned but not written.
        """
        self._ctx_node = ref(node)
        names = self._ctx_tensor_attributes() if self.__dict__ else ()
        if self._ctx_saved is UNSAVED and not names:
            return NOTHING_KEPT
        return self._ctx_keep(_places(inputs, outputs), names)

    def _ctx_keep(self, places: dict[int, int], names: Sequence[str]) -> Kept:
        """Return what a node keeps, given the places of inputs and outputs by id."""
        constants = {id(tensor) for tensor in self._ctx_marks.constants}

        def keep(leaf: Any) -> Any:
            if type(leaf) is not Tensor:
                return leaf
            return SavedAttribute(leaf, places.get(id(leaf)), id(leaf) in constants)

        attributes = {name: tree_map(keep, self.__dict__.pop(name)) for name in names}
        if attributes:
            kind: Any = type(self)
            self.__class__ = _recovering(kind)
        given, records, tree = self._ctx_saved
        self._ctx_saved = UNSAVED
        where = [places.get(id(tensor)) for tensor in given]
        stated = {i for i, tensor in enumerate(given) if id(tensor) in constants}
        return records, where, stated, tree, attributes

    def _ctx_mark(self, what: str, tensors: tuple[Tensor, ...]) -> None:
        marked = getattr(self._ctx_marks, what) + tensors
        self._ctx_marks = self._ctx_marks._replace(**{what: marked})

    def _ctx_forget_marks(self) -> None:
        """Let go of marked tensors, which refer to the node if they are outputs."""
        if self._ctx_marks is not UNMARKED:
            self._ctx_marks = Marks(autocast=self._ctx_marks.autocast)

    def _ctx_stops(self, tensor: Tensor | None) -> bool:
        """Return whether an output is marked non-differentiable."""
        return any(tensor is marked for marked in self._ctx_marks.undifferentiable)

    def _ctx_tensor_attributes(self) -> list[str]:
        """Return the names of the user's attributes that hold a tensor."""
        return [
            name
            for name, value in self.__dict__.items()
            if any(type(leaf) is Tensor for leaf in leaves(value))
        ]


class OperatorContext(Context):
    """The ctx of ``setup_context`` and ``backward`` of an operator."""

    __slots__ = ()

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Refuse: the schema says what an operator writes."""
        raise _by_schema("mark_dirty")

    def mark_not_inplace(self, *tensors: Tensor) -> None:
        """Refuse: the schema says what an operator writes."""
        raise _by_schema("mark_not_inplace")


class PyLayerContext(Context):
    """The ctx of a `PyLayer`."""

    __slots__ = ()

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Declare inputs that forward writes; call it before writing.

        Raises
        ------
        AutogradError
            For a leaf that requires grad, or a view that cannot be written to.
        """
        for tensor in _only_tensors("mark_dirty", tensors):
            if self._ctx_recording:
                check_write(self._ctx_title, "mark_dirty", tensor)
        self._ctx_mark("dirty", tensors)

    def mark_not_inplace(self, *tensors: Tensor) -> None:
        """State that an input which is returned was not written: the output is an alias of it."""
        self._ctx_mark("not_inplace", _only_tensors("mark_not_inplace", tensors))


C = TypeVar("C", bound=Context)


def new_context(kind: type[C], title: str, needs: tuple[Any, ...], recording: bool = True) -> C:
    """Return a ctx. The plan of a layer has these lines itself: a call costs as much as they do.

    Parameters
    ----------
    kind : type
    title : str
        What was called, for messages.
    needs : tuple
        See `Context.needs_input_grad`.
    recording : bool
        Whether a node will be made.
    """
    context = kind()
    context._ctx_title = title
    context._ctx_needs = needs
    context._ctx_recording = recording
    context.materialize_grads = context.grad_in_dtype_consistent = True
    context._ctx_node = None
    context._ctx_saved = UNSAVED
    context._ctx_marks = UNMARKED
    return context


# ---------------------------------------------------------------------- saving and recovering


def _places(inputs: Sequence[Tensor], outputs: Sequence[Tensor | None]) -> dict[int, int]:
    """Return id -> place; a written input counts as an output, an output twice as its first."""
    places = {}
    for position in range(len(outputs) - 1, -1, -1):
        places[id(outputs[position])] = -1 - position
    places.pop(id(None), None)
    for index, tensor in enumerate(inputs):
        places.setdefault(id(tensor), index)
    return places


def _recovered(
    node: GradNode, name: str | int, record: SavedTensor, place: Place, constant: bool
) -> Tensor:
    """Return a kept tensor with its history, after a version check."""
    what = f"saved tensor {name}" if isinstance(name, int) else f"ctx.{name}"
    known = record if isinstance(record, PackedTensor) else record[:4]
    if place is None:
        tensor = recover(known, node, None, what)
        if not constant and is_inexact(tensor.dtype) and _state.current().mask & AUTOGRAD:
            guard(tensor, node.edges, _UNKNOWN.format(node=node.name(), what=what))
        return tensor
    if place < 0:
        return recover_output(known, node, -1 - place, what)
    return recover(known, node, node.edges[place], what)


def _recovered_at(index: int, node: GradNode, kept: Kept) -> Tensor | None:
    """Return what the `index`-th tensor given to `save_for_backward` was."""
    records, places, constants, _, _ = kept
    record, place = records[index], index if places is None else places[index]
    return None if record is None else _recovered(node, index, record, place, index in constants)


@functools.cache
def _recovering(kind: Any) -> Any:
    """Return the class of a ctx with attributes that hold tensors.

    Others go without ``__getattr__``, which would make every access to a ctx several times slower.
    """
    names = {"__slots__": (), "__getattr__": _recovered_attribute, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), names)


def _recovered_attribute(self: Context, name: str) -> Any:
    """Return an attribute that holds tensors of the call, recovered."""
    node = None if self._ctx_node is None else self._ctx_node()
    saved = None if node is None else node.saved
    if node is None or saved is None:
        raise _freed(f"ctx.{name}", node)
    attributes = saved[-1][-1]
    if name not in attributes:
        raise AttributeError(f"the ctx of {node.name()} has no attribute {name!r}")

    def back(leaf: Any) -> Any:
        return _recovered(node, name, *leaf.known) if type(leaf) is SavedAttribute else leaf

    return tree_map(back, attributes[name])


_UNKNOWN: Final = (
    "{node}: {what} is neither an input nor an output of the call, so its history is unknown and a "
    "second derivative through it would be wrong\n"
    "  recompute it in backward from saved inputs, return it as an output, or state that it is a "
    "constant: ctx.mark_constant(tensor)"
)


def _kept(tensor: Tensor) -> SavedTensor:
    """Return what is kept of a tensor, by way of a pack hook if there is one."""
    record = save(tensor)
    return record if isinstance(record, PackedTensor) else (*record, ref(tensor))


def _freed(what: str, node: GradNode | None) -> AutogradError:
    name = "this call" if node is None else node.name()
    return AutogradError(
        f"{what} of {name} were freed when the graph was released\n"
        "  pass retain_graph=True to the first backward"
    )


# ---------------------------------------------------------------------- arguments


def _require_tensors(values: Sequence[Any]) -> None:
    for value in values:
        if value is not None and type(value) is not Tensor:
            raise ArgumentError(
                f"save_for_backward takes Tensors, got {short_repr(value)}; "
                "keep other values as attributes: ctx.name = value"
            )


def _only_tensors(what: str, values: tuple[Any, ...]) -> tuple[Tensor, ...]:
    for value in values:
        if type(value) is not Tensor:
            raise ArgumentError(f"{what} takes Tensors, got {short_repr(value)}")
    return values


def _only_bool(what: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ArgumentError(f"{what} takes a bool, got {short_repr(value)}")
    return value


def _by_schema(what: str) -> AutogradError:
    return AutogradError(f"{what} is for PyLayer; what an operator writes is said by its schema")
