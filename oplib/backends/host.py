"""The host fallback: run the CPU kernel for a backend that has none, on copies.

Arrays are copied to NumPy, the operator is called there, results are copied back; written arguments
get their new values. View operators need no kernel at all if the backend can make a view from a
geometry. A warning says once per operator that this happens.

Imports floors 0 to 4, `arrays.py`. Read next: `stage.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from .. import _state
from .._text import function_site
from .._tree import tree_map
from ..dispatch.interpreter import BELOW_AUTOGRAD
from ..dispatch.keys import WEAK
from ..dispatch.lifting import tensor_leaves
from ..dispatch.operator import Operator, Plan
from ..dtypes import Device
from ..errors import AliasError, DispatchError
from ..tensor.geometry import Geometry
from ..tensor.storage import owner_of
from ..tensor.tensor import Tensor, stranger_of, tensor_from_result, view_of
from ..tensor.writes import check_destination
from .arrays import Backend

__all__ = ["HostFallbackWarning", "host_plan"]

AnyOperator: TypeAlias = Operator[..., Any]


class HostFallbackWarning(UserWarning):
    """An operator runs on the host because the backend has no kernel for it."""


_warned: Final[set[tuple[str, str]]] = set()


def host_plan(op: AnyOperator, backend: Backend, keys: int) -> Plan:
    """Return the plan that runs `op` on the host for `backend`."""
    if op.schema.is_view:
        return _view_plan(op, backend)
    schema = op.schema
    mutated = schema.mutated_arguments
    written = [(i, a.name) for i, a in enumerate(schema.arguments) if a.name in mutated]

    def plan(*args: Any) -> Any:
        _warn_once(op, backend)
        for i, name in written:
            for tensor in tensor_leaves([args[i]]):
                check_destination(op, name, tensor)
        moved: dict[int, Tensor] = {}
        on_host = [tree_map(lambda leaf: _to_host(backend, leaf, moved), value) for value in args]
        state = _state.current()
        with _state.enter(state.replace(handled=state.handled | BELOW_AUTOGRAD)):
            result = op.call_positional(on_host)
        originals = {id(host): tensor for tensor, host in _pairs(args, moved)}
        for tensor in tensor_leaves([args[i] for i, _ in written]):
            _write_back(op, backend, tensor, moved[id(tensor)])

        def back(leaf: Any) -> Any:
            if type(leaf) is not Tensor:
                return leaf
            original = originals.get(id(leaf))
            return _from_host(backend, leaf) if original is None else original

        return tree_map(back, result)

    return plan


def _pairs(args: Sequence[Any], moved: dict[int, Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(t, moved[id(t)]) for t in tensor_leaves(list(args)) if id(t) in moved]


def _to_host(backend: Backend, leaf: Any, moved: dict[int, Tensor]) -> Any:
    """Return a CPU tensor with the values of one of the backend; one tensor gives one."""
    if isinstance(leaf, Device) and leaf.type == backend.name:
        return Device("cpu")
    if type(leaf) is not Tensor or not leaf._keys & backend.bit or leaf._keys & WEAK:
        return leaf
    if id(leaf) not in moved:
        moved[id(leaf)] = tensor_from_result(backend.to_numpy(leaf.array).copy())
    return moved[id(leaf)]


def _from_host(backend: Backend, tensor: Tensor) -> Tensor:
    return tensor_from_result(backend.from_numpy(tensor.array))


def _write_back(op: AnyOperator, backend: Backend, tensor: Tensor, host: Tensor) -> None:
    """Copy the values a kernel wrote on the host into the backend's array, and count the write."""
    assert backend.assign is not None
    backend.assign(tensor.array, host.array)
    tensor._storage.version += 1
    tensor._storage.writer = op.qualname


def _view_plan(op: AnyOperator, backend: Backend) -> Plan:
    """Return the plan of a view operator: the geometry rule says what, the backend makes it."""
    rule, view = op.view_rule, backend.view
    if rule is None or view is None:
        raise DispatchError(
            f"{op.qualname} is a view operator and has no kernel for {backend.key}; on the host it "
            "could only copy, and writes to the copy would be lost\n"
            f"  pass view=... to register_backend({backend.name!r}, ...), or register a kernel"
        )

    def plan(base: Tensor, *rest: Any) -> Any:
        array = base.array
        geometry = rule(Geometry(array.dtype, array.shape, array.strides, 0), *rest)
        if geometry is None:
            host = tensor_from_result(backend.to_numpy(array).copy())
            return _from_host(backend, op.call_positional([host, *rest]))
        if isinstance(geometry, list):
            return [handle(base, part) for part in geometry]
        return handle(base, geometry)

    def handle(base: Tensor, geometry: Geometry) -> Tensor:
        made = view(base.array, geometry)
        _check_view(backend, base.array, made, geometry)
        differentiable = op.gradient_rule is None or any(op.gradient_rule.functions.values())
        return view_of(base, made) if differentiable else stranger_of(base, made)

    return plan


def _check_view(backend: Backend, array: Any, made: Any, asked: Geometry) -> None:
    """Refuse a view elsewhere than it should be: gradients and writes go by its address."""
    expected = asked.shape, asked.strides, asked.dtype, array.offset + asked.offset
    found = made.shape, made.strides, made.dtype, made.offset
    if found != expected or owner_of(made) is not owner_of(array):
        raise AliasError(
            f"backend {backend.name!r}: {function_site(backend.view)} made another view than the "
            "one it was asked for\n"
            f"  expected  shape, strides, dtype, offset {expected}, in the memory of its base\n"
            f"  got       {found}"
        )


def _warn_once(op: AnyOperator, backend: Backend) -> None:
    if (op.qualname, backend.name) not in _warned:
        _warned.add((op.qualname, backend.name))
        warnings.warn(
            f"{op.qualname} has no kernel for {backend.name} and runs on the host, on copies; "
            f'register one: @oplib.register_kernel("{op.qualname}", "{backend.name}")',
            HostFallbackWarning,
            stacklevel=3,
        )
