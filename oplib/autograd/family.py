"""Views under autograd: handles joined by differentiable views of one root.

Note [Families]
~~~~~~~~~~~~~~~
A view shares memory with its root, so a recorded write through one handle changes the value of all.
The family keeps the root's current gradient record, not the base handle, which may die. A write
makes a new root record and bumps the epoch; a handle that has seen fewer epochs is stale, and the
View stage derives it anew from the root, by addresses, before its key set is taken. Nothing is ever
inverted: the gradient of a view is added at its addresses, that of a write is split by them.

Imports floors 0 to 4, `wrapper.py`, `engine.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from .. import _state
from ..dispatch.keys import AUTOGRAD, CPU, VIEW
from ..dispatch.lifting import tensor_leaves
from ..dispatch.operator import Operator, Plan
from ..dispatch.source import generate, local_name
from ..errors import AliasError, AutogradError
from ..prims import (
    contiguous_last,
    from_memory_order,
    in_memory_order,
    new_full,
    strided_add,
    strided_get,
    strided_put,
    view_as_complex,
    view_as_real,
)
from ..schema import TensorType
from ..tensor.addressing import Address, address_in, geometry_of, real_parts
from ..tensor.geometry import overlap, self_overlap
from ..tensor.grad_meta import (
    AccumulationNode,
    AutogradMeta,
    Family,
    GradNode,
    NodeKind,
    move_retained,
    new_meta,
)
from ..tensor.tensor import Tensor, tensor_from_result

__all__ = ["ViewStage", "check_write", "derive_from", "rebase", "refresh", "refresh_for_use"]


def refresh(tensor: Tensor) -> None:
    """Bring a handle that is behind its family up to date.

    An opaque handle (see `ViewRecord`) stays behind; `refresh_for_use` complains about it.
    """
    record = tensor._view
    if record is None or record.epoch == record.family.epoch or record.opaque:
        return
    family = record.family
    if family.overwritten:
        return
    record.epoch = family.epoch
    before = tensor.autograd_meta
    if tensor.array is family.root_array:
        assert family.root is not None
        tensor.autograd_meta = family.root
    else:
        tensor.autograd_meta = _derived(tensor, family)
    if before is not None and before.retained is not None:
        move_retained(tensor.autograd_meta, before)
    tensor._keys |= AUTOGRAD


def refresh_for_use(tensor: Tensor) -> None:
    """Refresh a handle that is about to be used in a graph.

    Raises
    ------
    AliasError
        If its history cannot be brought up to date.
    """
    refresh(tensor)
    record = tensor._view
    if record is not None and record.family.overwritten and _state.current().mask & AUTOGRAD:
        raise AliasError(
            f"this tensor's memory was written by {record.family.overwritten} through another "
            "tensor, which has a history; using it here would treat its value as a constant\n"
            "  use that tensor, or say that it is a constant: x.detach()"
        )
    stale = record is not None and record.epoch != record.family.epoch
    if stale and tensor._keys & AUTOGRAD and _state.current().mask & AUTOGRAD:
        assert record is not None
        raise AliasError(
            f"this tensor was made by {record.opaque} and lies in a tensor that was written to "
            "since, so its history no longer describes its value\n"
            "  write before the call, or let the function return a copy: x.clone()"
        )


def rebase(tensor: Tensor) -> None:
    """Take note of a recorded write: `tensor` has its new record, its family gets a new root.

    A written view is behind as well: like all others it derives from the new root when it is used
    next, so what is asked of the base counts every use of its value.
    """
    record = tensor._view
    if record is None:
        return
    family = record.family
    family.epoch += 1
    if tensor._storage.strangers:
        _estrange(tensor, family)
    if tensor.array is family.root_array:
        record.epoch = family.epoch
        family.root = tensor.autograd_meta
        return
    split = _split_of(tensor)
    node = _node(_REBASE, (family.root, tensor.autograd_meta), (split,), family.root_array)
    family.root = new_meta(node, 0, family.root_array.shape, family.root_array.dtype)


def _estrange(tensor: Tensor, family: Family) -> None:
    """Make handles of other families on written memory stale; they cannot learn what happened."""
    for other in _others(tensor, family):
        if isinstance(other, Family) and other.root is None and not other.detached:
            other.epoch += 1
            other.overwritten = tensor._storage.writer or "an operator"


def _derived(tensor: Tensor, family: Family) -> AutogradMeta:
    """Return a record that derives a view from the current root, by addresses."""
    split = _split_of(tensor)
    node = _node(_DERIVE, (family.root,), (split,), tensor.array)
    return new_meta(node, 0, tensor.array.shape, tensor.array.dtype)


def _node(
    kind: NodeKind, edges: tuple[AutogradMeta | None, ...], saved: tuple[Any, ...], like: Any
) -> GradNode:
    node = GradNode()
    node.kind = kind
    node.edges = edges
    node.saved = saved
    node.hooks = None
    node.shapes = like.shape
    node.dtypes = like.dtype
    return node


class _Split:
    """How a view lies in its root, and the three moves of gradients between them.

    A root and a view of different dtype (complex and its real parts) meet as real numbers. Where
    they do not differ, the root is in C order and arrays are NumPy's, the moves are made without
    operators; `distinct` says that no address is reached twice.
    """

    __slots__ = ("address", "distinct", "plain", "root_shape", "root_to_real", "view_to_real")

    def __init__(self, view: Any, root: Any) -> None:
        whole = geometry_of(root)
        part = geometry_of(view, root)
        self.root_to_real = whole.dtype.kind == "c" != part.dtype.kind
        self.view_to_real = part.dtype.kind == "c" != whole.dtype.kind
        if self.root_to_real:
            whole = real_parts(whole)
        if self.view_to_real:
            part = real_parts(part)
        address = address_in(part, whole) if whole.dtype == part.dtype else None
        if address is None:
            raise AutogradError(
                f"a view of shape {view.shape} and dtype {view.dtype} is not a regular part of its "
                f"root of shape {root.shape} and dtype {root.dtype}, so gradients cannot be "
                "followed through it\n  write to a copy: x.clone()"
            )
        self.address: Address = address
        self.root_shape = whole.shape
        self.plain = not (self.root_to_real or self.view_to_real or address.order)
        self.distinct = not self_overlap(part)

    def into_root(self, gradient: Tensor) -> Tensor:
        """Return zeros like the root with a view's gradient added at its addresses."""
        if self.plain and self.distinct and gradient._keys == CPU:
            root = np.zeros(self.root_shape, gradient.array.dtype)
            self._window(root)[...] = gradient.array
            return tensor_from_result(root)
        if self.view_to_real:
            gradient = view_as_real(gradient)
        at = self.address
        shape = self._memory_shape()
        spread = strided_add(gradient, shape, list(at.size), list(at.stride), at.offset)
        return self._from_memory(spread)

    def outside(self, gradient: Tensor) -> Tensor:
        """Return the root's gradient with zeros at the view's addresses."""
        if self.plain and gradient._keys == CPU:
            root = gradient.array.copy()
            self._window(root)[...] = 0
            return tensor_from_result(root)
        flat = self._to_memory(gradient)
        zero = new_full(flat, [], 0)
        at = self.address
        return self._from_memory(strided_put(flat, zero, list(at.size), list(at.stride), at.offset))

    def inside(self, gradient: Tensor) -> Tensor:
        """Return the root's gradient at the view's addresses."""
        if self.plain and gradient._keys == CPU:
            return tensor_from_result(self._window(np.ascontiguousarray(gradient.array)).copy())
        at = self.address
        flat = self._to_memory(gradient)
        part: Tensor = strided_get(flat, list(at.size), list(at.stride), at.offset)
        return view_as_complex(contiguous_last(part)) if self.view_to_real else part

    def _window(self, root: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the elements of the view in a root in C order, for plain arrays."""
        at, item = self.address, root.itemsize
        strides = [step * item for step in at.stride]
        return np.ndarray(at.size, root.dtype, root, at.offset * item, strides)

    def _memory_shape(self) -> list[int]:
        order = self.address.order
        return list(self.root_shape if order is None else order.shape)

    def _to_memory(self, root: Tensor) -> Tensor:
        if self.root_to_real:
            root = view_as_real(root)
        return in_memory_order(root, self.address.order)

    def _from_memory(self, flat: Tensor) -> Tensor:
        flat = from_memory_order(flat, self.address.order)
        return view_as_complex(contiguous_last(flat)) if self.root_to_real else flat


_splits: Final[dict[tuple[Any, ...], _Split]] = {}
_MOST_SPLITS: Final = 4096


def _split_of(tensor: Tensor) -> _Split:
    """Return how a handle lies in its root.

    The answer is kept with the handle, and by geometry, because a new one costs some 15 µs.
    """
    record = tensor._view
    assert record is not None
    if record.split is None:
        record.split = _split_by_geometry(tensor.array, record.family.root_array)
    split: _Split = record.split
    return split


def _split_by_geometry(view: Any, root: Any) -> _Split:
    if type(view) is not np.ndarray or type(root) is not np.ndarray:
        return _Split(view, root)
    start = view.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    key = (start, view.dtype, view.shape, view.strides, root.dtype, root.shape, root.strides)
    split = _splits.get(key)
    if split is None:
        split = _Split(view, root)
        if len(_splits) >= _MOST_SPLITS:
            _splits.clear()
        _splits[key] = split
    return split


def _derive_backward(
    node: GradNode, saved: tuple[Any, ...], gradient: Tensor
) -> tuple[Tensor | None]:
    split: _Split = saved[0]
    return (split.into_root(gradient) if node.edges[0] is not None else None,)


def _rebase_backward(
    node: GradNode, saved: tuple[Any, ...], gradient: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    split: _Split = saved[0]
    root, view = node.edges
    return (
        split.outside(gradient) if root is not None else None,
        split.inside(gradient) if view is not None else None,
    )


_DERIVE: Final = NodeKind("view", _derive_backward)
_REBASE: Final = NodeKind("write_through_view", _rebase_backward)


def derive_from(base: Tensor, meta: AutogradMeta, view: Tensor) -> AutogradMeta:
    """Return the record of a view whose operator has no rule of its own: gradients by address."""
    split = _Split(view.array, base.array)
    node = _node(_DERIVE, (meta,), (split,), view.array)
    return new_meta(node, 0, view.array.shape, view.array.dtype)


# ---------------------------------------------------------------------- what may be written


def check_write(op: Any, name: str, tensor: Tensor) -> None:
    """Raise before a recorded write that could not get a right gradient.

    Raises
    ------
    AutogradError
        For a leaf that requires grad or a view of one, a view made under no_grad, and a view whose
        operator gives no addresses.
    """
    meta = tensor.autograd_meta
    if meta is not None and tensor._keys & AUTOGRAD and type(meta.grad_node) is AccumulationNode:
        raise _refused(op, name, "is a leaf that requires grad", _LEAF_REMEDY)
    record = tensor._view
    if record is None:
        return
    if record.opaque:
        why = f"was made by {record.opaque}, which has its own rule, and lies in another tensor"
        raise _refused(op, name, why, _COPY_REMEDY)
    root, is_root = record.family.root, tensor.array is record.family.root_array
    if root is not None and type(root.grad_node) is AccumulationNode:
        what = "is a leaf" if is_root else "is a view of a leaf"
        raise _refused(op, name, f"{what} that requires grad", _LEAF_REMEDY)
    if record.no_grad and root is not None:
        raise _refused(
            op, name, "is a view made under no_grad of a tensor that requires grad", _VIEW_REMEDY
        )
    if tensor._storage.strangers:
        _refuse_stranger(op, name, tensor)
    if not is_root and (type(tensor.array) is np.ndarray or hasattr(tensor.array, "geometry")):
        _split_of(tensor)


def _refuse_stranger(op: Any, name: str, tensor: Tensor) -> None:
    """Raise before a write to memory of a living tensor that requires grad and would not know.

    See Note [Strangers].
    """
    own = tensor._view.family if tensor._view is not None else None
    for other in _others(tensor, own):
        if isinstance(other, Tensor):
            tracked = bool(other._keys & AUTOGRAD)
        else:
            tracked = other.root is not None
        if tracked:
            how = "is detached from" if own is not None and own.detached else "shares memory with"
            raise AliasError(
                f"{getattr(op, 'qualname', op)}: argument `{name}` {how} a tensor that requires "
                "grad and is no view of it: a write would change that tensor's value behind the "
                f"back of its history\n  {_STRANGER_REMEDY}"
            )


def _others(tensor: Tensor, own: Family | None) -> Iterator[Tensor | Family]:
    """Yield what else is alive on the memory of `tensor`: families, and tensors without one."""
    for known in tensor._storage.strangers:
        other = known()
        if isinstance(other, Tensor) and other._view is not None:
            other = other._view.family
        if other is None or other is own or other is tensor:
            continue
        array = other.array if isinstance(other, Tensor) else other.root_array
        if _share_elements(tensor.array, array):
            yield other


def _share_elements(a: Any, b: Any) -> bool:
    """Return whether two arrays on one Storage have a byte in common; if in doubt, they have."""
    if type(a) is np.ndarray and type(b) is np.ndarray:
        try:
            return bool(_shares_memory(a, b, max_work=_WORK))
        except np.exceptions.TooHardError:
            return True
    if hasattr(a, "geometry") and hasattr(b, "geometry"):
        return overlap(a.geometry, b.geometry)
    return True


_shares_memory: Final[Any] = np.shares_memory
_WORK: Final = 10_000
_STRANGER_REMEDY: Final = (
    "write to a copy, x.clone(); or under `with oplib.no_grad():` if the history shall not know"
)
_LEAF_REMEDY: Final = "update it under `with oplib.no_grad():`, or work on a copy: x.clone()"
_VIEW_REMEDY: Final = "take the view where gradients are recorded, or write under no_grad"
_COPY_REMEDY: Final = "write to a copy: x.clone()"


def _refused(op: Any, name: str, why: str, remedy: str) -> AutogradError:
    return AutogradError(
        f"{getattr(op, 'qualname', op)}: argument `{name}` {why}, so it cannot be written to in "
        f"place while gradients are recorded\n  {remedy}"
    )


# ---------------------------------------------------------------------- the stage


class ViewStage:
    """The stage of the key View: refresh stale handles, and guard writes through views."""

    key = VIEW

    def build(self, op: Operator[..., Any], keys: int, below: Plan | None) -> Plan:
        """Return the plan that looks at the families of its arguments first."""
        assert below is not None
        schema = op.schema
        every = [local_name(argument.name) for argument in schema.arguments]
        args = f"({', '.join(every)}{',' if len(every) == 1 else ''})"
        names = {
            "_op_below": below,
            "_op_stale": lambda *values: _refreshed_call(op, values),
            "_op_is_stale": _is_stale,
            "_op_current": _state.current,
            "_op_check": lambda values: _check_unrecorded(op, values),
        }
        lines = [f"def plan({', '.join(every)}):"]
        if schema.is_mutable and not keys & AUTOGRAD:  # a recorded write is checked there
            lines += [f"    if _op_current().mask & {AUTOGRAD}:", f"        _op_check({args})"]
        lines += [
            f"    if {_stale_test(op, args)}:",
            f"        return _op_stale({', '.join(every)})",
            f"    return _op_below({', '.join(every)})",
        ]
        return generate(op, f"view plan {keys}", "plan", lines, names)  # type: ignore[no-any-return]

    def describe(self, op: Operator[..., Any], keys: int, args: list[Any]) -> list[str]:
        """Return the lines `explain` shows for this stage."""
        stale = sum(_is_stale([tensor]) for tensor in tensor_leaves(args))
        return [f"views: {stale} of the arguments are behind their family and refresh first"]


def _stale_test(op: Operator[..., Any], args: str) -> str:
    """Return the expression for: some argument is behind its family."""
    names = op.schema.differentiable_arguments
    if not all(isinstance(op.schema.argument(name).type, TensorType) for name in names):
        return f"_op_is_stale({args})"
    return " or ".join(
        f"({t}._view is not None and {t}._view.epoch != {t}._view.family.epoch)"
        for t in map(local_name, names)
    )


def _is_stale(args: Any) -> bool:
    return any(
        tensor._view is not None and tensor._view.epoch != tensor._view.family.epoch
        for tensor in tensor_leaves(args)
    )


def _refreshed_call(op: Operator[..., Any], args: tuple[Any, ...]) -> Any:
    """Refresh every argument, take the key set anew, and continue below View."""
    rule = op.gradient_rule
    cuts = rule is not None and not any(rule.functions.values())
    keys = 0
    for tensor in tensor_leaves(args):
        (refresh if cuts else refresh_for_use)(tensor)
        keys |= tensor._keys
    state = _state.current()
    keys = (keys | state.include) & state.mask & ~VIEW
    return op.find_plan(keys)(*args)


def _check_unrecorded(op: Operator[..., Any], args: tuple[Any, ...]) -> None:
    """Raise if a write that is not recorded reaches memory of a tensor that requires grad.

    It may: through a view made under no_grad, or a detached handle.
    """
    for argument, value in zip(op.schema.arguments, args, strict=True):
        if argument.name in op.schema.mutated_arguments:
            for tensor in tensor_leaves([value]):
                record = tensor._view
                if record is not None and (record.family.root is not None or record.opaque):
                    check_write(op, argument.name, tensor)
                elif tensor._storage.strangers:
                    _refuse_stranger(op, argument.name, tensor)
