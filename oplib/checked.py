"""Checked mode: what every call is watched for while an operator is being written.

``with oplib.checked():``, or the environment variable ``OPLIB_CHECKED=1``. A kernel gets read-only
arrays for arguments it does not declare written, so an undeclared write fails at its own line; what
comes back is compared with the fake rule. Gradients that arrive at hooks and backward functions are
read-only, and a PyLayer may use no tensor that requires grad besides its arguments. It selects
plans of its own and costs nothing when off.

Imports floors 0 to 5.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from . import _state
from ._dims import SymInt
from ._text import function_site
from ._tree import leaves, tree_map
from .backends.stage import GUARDS
from .dispatch.facets import KernelEntry
from .dispatch.keys import AUTOGRAD, CHECKED, META, WEAK
from .dispatch.lifting import tensor_leaves
from .dispatch.operator import Operator, Plan
from .dispatch.plan import resolve
from .errors import AutogradError, DataDependentError, ReturnError
from .meta import FakeTensorMode
from .tensor.tensor import Tensor

__all__ = ["checked", "install"]

AnyOperator: TypeAlias = Operator[..., Any]
Array: TypeAlias = np.ndarray[Any, Any]


@contextmanager
def checked() -> Iterator[None]:
    """Watch every operator call made inside: undeclared writes, results the fake rule denies.

    Examples
    --------
    >>> import oplib
    >>> with oplib.checked():
    ...     oplib.exp(oplib.zeros(2))
    Tensor([1., 1.])
    """
    state = _state.current()
    with _state.enter(state.replace(include=state.include | CHECKED)):
        yield


class _Guard:
    """What checked mode puts around kernels and plans; see `backends/stage.py`."""

    def kernel(
        self, op: AnyOperator, entry: KernelEntry, kernel: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a kernel whose undeclared writes fail."""
        schema = op.schema
        names = [argument.name for argument in schema.positional]

        def watched(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(names, args, strict=True)) | kwargs
            written = {name: given[name] for name in schema.mutated_arguments}
            before = {name: _geometries(value) for name, value in written.items()}
            ready = {n: v if n in written else _read_only(v) for n, v in given.items()}
            result = kernel(*[ready[n] for n in names], **{n: ready[n] for n in kwargs})
            for name, value in written.items():
                if _geometries(value) != before[name]:
                    raise _error(op, entry, f"changed the shape or dtype of `{name}`")
            _check_written_results(op, entry, result, written)
            if schema.is_view:
                _make_writable(result)
            return result

        return watched

    def plan(self, op: AnyOperator, entry: KernelEntry, plan: Plan) -> Plan:
        """Return a plan whose results are compared with the fake rule."""

        def compared(*args: Any) -> Any:
            layer = _state.current().config.get("checked_layer")
            if layer is not None and op.qualname != "std::detach":
                _check_arguments_of_layer(op, args, *layer)
            expected = _expected(op, args)
            result = plan(*args)
            if expected is not None:
                _compare(op, entry, expected, result)
            return result

        return compared


def _check_arguments_of_layer(
    op: AnyOperator, args: Sequence[Any], title: str, inputs: set[int]
) -> None:
    """Raise if the forward of a PyLayer uses a tensor that requires grad and is no argument."""
    for tensor in tensor_leaves(args):
        if tensor._keys & AUTOGRAD and id(tensor) not in inputs:
            raise AutogradError(
                f"{title}: forward gives {op.qualname} a tensor {tensor.describe()} that requires "
                "grad and is no argument of the layer, so its gradient would be lost\n"
                "  pass it to apply, or state that it is a constant: x.detach()\n"
                "  (found by checked mode)"
            )


def _read_only(value: Any) -> Any:
    """Return an argument with read-only views in place of its arrays, whose flags stay."""

    def guard(leaf: Any) -> Any:
        if type(leaf) is not np.ndarray:
            return leaf
        view = leaf.view()
        view.flags.writeable = False
        return view

    return tree_map(guard, value)


def _make_writable(result: Any) -> None:
    """Undo for declared views what `_read_only` did, where the memory itself is writable."""
    for leaf in leaves(result):
        if type(leaf) is np.ndarray and _owner_is_writable(leaf):
            leaf.flags.writeable = True


def _owner_is_writable(array: Array) -> bool:
    owner: Any = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return bool(owner.flags.writeable)


def _geometries(value: Any) -> list[tuple[Any, ...]]:
    return [(a.shape, a.dtype, a.strides) for a in leaves(value) if type(a) is np.ndarray]


def _check_written_results(
    op: AnyOperator, entry: KernelEntry, result: Any, written: dict[str, Any]
) -> None:
    """Refuse another array returned in place of a written argument: the caller never gets it."""
    returned = [op.schema.returned_argument(i) for i in range(len(op.schema.returns))]
    values = (result,) if len(returned) == 1 else result
    if not isinstance(values, tuple | list) or len(values) != len(returned):
        return
    for name, value in zip(returned, values, strict=True):
        argument = written.get(name) if name is not None else None
        if type(value) is np.ndarray and type(argument) is np.ndarray and value is not argument:
            raise _error(
                op, entry, f"returned another array for `{name}`; write into the one it is given"
            )


# ---------------------------------------------------------------------- the fake rule


def _expected(op: AnyOperator, args: Sequence[Any]) -> Any:
    """Return the results the fake rule says, or None if nothing says them."""
    if resolve(op, META).kind == "missing" and op.view_rule is None:
        return None
    if not tensor_leaves(list(args)):
        return None
    mode = FakeTensorMode(dynamic=True)

    def faked(leaf: Any) -> Any:
        if type(leaf) is not Tensor or leaf._keys & WEAK:
            return leaf
        return mode.from_tensor(leaf)

    outside = _state.State(user=_state.current().user & ~AUTOGRAD)
    with _state.enter(outside):
        try:
            return op.call_positional([tree_map(faked, value) for value in args])
        except DataDependentError:
            return None


def _compare(op: AnyOperator, entry: KernelEntry, expected: Any, result: Any) -> None:
    """Refuse results of another shape, dtype or layout than the fake rule says."""
    wanted, found = tensor_leaves([expected]), tensor_leaves([result])
    if len(wanted) != len(found):
        raise _denied(op, entry, f"{len(found)} tensors", f"{len(wanted)}")
    for index, (want, have) in enumerate(zip(wanted, found, strict=True)):
        place = f"result {index}" if len(found) > 1 else "a result"
        if not _same_shape(want.shape, have.shape):
            raise _denied(op, entry, f"{place} of shape {have.shape}", f"{want.shape}")
        if want.dtype != have.dtype:
            raise _denied(op, entry, f"{place} of dtype {have.dtype}", f"{want.dtype}")
        if "flexible_layout" not in op.tags and not _same_strides(want, have):
            raise _denied(op, entry, f"{place} with strides {have.strides}", f"{want.strides}")


def _same_shape(want: Sequence[Any], have: Sequence[int]) -> bool:
    """Return whether a shape is the one predicted; a dynamic size has to lie in its bounds."""
    if len(want) != len(have):
        return False
    return all(
        _within(w, h) if isinstance(w, SymInt) else w == h for w, h in zip(want, have, strict=True)
    )


def _within(size: SymInt, length: int) -> bool:
    low, high = size.facts.bounds(size)
    return bool(low <= length <= high)


def _same_strides(want: Tensor, have: Tensor) -> bool:
    if any(isinstance(length, SymInt) for length in (*want.shape, *want.strides)):
        return True
    pairs = zip(have.shape, want.strides, have.strides, strict=True)
    return 0 in have.shape or all(n == 1 or w == h for n, w, h in pairs)


def _denied(op: AnyOperator, entry: KernelEntry, got: str, expected: str) -> ReturnError:
    rule = op.top("fake rule")
    where = f"the fake rule at {rule.source}" if rule is not None else "its schema"
    return _error(op, entry, f"returned {got}; {where} says {expected}")


def _error(op: AnyOperator, entry: KernelEntry, problem: str) -> ReturnError:
    site = function_site(entry.function)
    return ReturnError(
        f"{op.qualname}: the {entry.key} kernel at {site} {problem}\n"
        f"  schema  {op.schema}\n  (found by checked mode)"
    )


def install() -> None:
    """Make plans of the key CHECKED watch; with ``OPLIB_CHECKED=1`` every thread starts so."""
    GUARDS.append(_Guard())
    if os.environ.get("OPLIB_CHECKED") == "1":
        _state.DEFAULT_STATE.include |= CHECKED
