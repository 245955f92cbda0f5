"""What a fake rule returned: number, types, places and memory of every result, checked.

Imports floors 0 to 4, `context.py`, `mode.py`, `placement.py`. Read next: `stage.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from .._dims import SymInt, same
from .._text import caller_site, function_site, join_names, short_repr
from ..dispatch.convert import Misfit, converter
from ..dispatch.keys import INTERPRETER, META
from ..dispatch.lifting import tensor_leaves
from ..dispatch.operator import Operator
from ..dtypes import Device
from ..errors import FakeTensorError
from ..schema import BasicType, ListType, OptionalType, TensorType, Type
from ..shapes import ShapeRule, TensorSpec
from ..tensor.geometry import Geometry, contiguous_strides, extent
from ..tensor.meta_array import MetaArray
from ..tensor.storage import Storage, new_storage
from ..tensor.tensor import Tensor, blank_tensor, stranger_of, view_of
from .placement import Place

__all__ = ["FakeResults", "joins_family", "tensor_of"]


def joins_family(op: Operator[..., Any]) -> bool:
    """Return whether views by `op` are differentiable views of their base."""
    rule = op.gradient_rule
    if rule is None or rule.style != "per_argument":
        return True
    return any(function is not None for function in rule.functions.values())


def tensor_of(spec: TensorSpec, device: Device, mode: Any) -> Tensor:
    """Return the tensor without data that a valid `spec` describes."""
    strides = spec.strides
    if strides is None:
        strides = contiguous_strides(spec.shape, spec.dtype.itemsize)
    offset = 0
    for stride in strides:
        if stride.__class__ is int and stride < 0:
            offset = -extent(Geometry(spec.dtype, spec.shape, strides))[0]
            break
    array = MetaArray(spec.shape, strides, spec.dtype, device, new_storage(), offset, mode)
    tensor = blank_tensor()
    tensor.array = array
    tensor._keys = META
    tensor.autograd_meta = None
    tensor._view = None
    tensor._storage = array.storage
    return tensor


class FakeResults:
    """Turns what one rule returns into what the caller gets.

    Parameters
    ----------
    op : Operator
    rule : callable
        As the author wrote it, for messages.
    """

    def __init__(self, op: Operator[..., Any], rule: Any) -> None:
        self.op = op
        self.site = repr(rule) if isinstance(rule, ShapeRule) else function_site(rule)
        self.returns = op.schema.returns
        self.written = [op.schema.returned_argument(i) for i in range(len(self.returns))]
        self.fresh = [i for i, name in enumerate(self.written) if name is None]
        self.names = [argument.name for argument in op.schema.arguments]

    def finish(self, result: Any, place: Place) -> Any:
        """Return the results of the call."""
        given = dict(zip(self.names, place.args, strict=True))
        seen: list[Storage] = []
        complete = []
        for i, value in enumerate(self._values(result)):
            name = self.written[i]
            if name is None:
                complete.append(self._result(self.returns[i].type, i, value, place, seen))
            else:
                self._check_returned(i, name, value, given[name])
                complete.append(given[name])
        if not complete:
            return None
        return complete[0] if len(complete) == 1 else tuple(complete)

    # ------------------------------------------------------------------ number

    def _values(self, result: Any) -> list[Any]:
        """Return one value per return of the schema, None for written arguments left out."""
        total, fresh = len(self.returns), len(self.fresh)
        if total == 0:
            if result is not None:
                self.wrong(f"returned {_what(result)}; the schema says it returns nothing")
            return []
        if fresh == 0 and result is None:
            return [None] * total
        if total == 1:
            if isinstance(result, tuple) and isinstance(self.returns[0].type, TensorType):
                self.wrong(f"returned a tuple of {len(result)}, the schema says one result")
            return [result]
        if fresh == 1 and not isinstance(result, tuple | list):
            return self._with_gaps([result])
        count = len(result) if isinstance(result, tuple | list) else 1
        if count == total and isinstance(result, tuple | list):
            return list(result)
        if count != fresh or not isinstance(result, tuple | list):
            self.wrong(f"returned {count} results, the schema says {total}")
        return self._with_gaps(result)

    def _with_gaps(self, values: Sequence[Any]) -> list[Any]:
        """Put the fresh values at their places, None at those of written arguments."""
        complete: list[Any] = [None] * len(self.returns)
        for i, value in zip(self.fresh, values, strict=True):
            complete[i] = value
        return complete

    def _check_returned(self, index: int, name: str, value: Any, argument: Any) -> None:
        """Refuse anything but None and the written argument where the schema returns that."""
        if value is None or value is argument:
            return
        both = isinstance(value, list | tuple) and isinstance(argument, list | tuple)
        if both and list(map(id, value)) == list(map(id, argument)):
            return
        self.wrong(
            f"returned {_what(value)} as result {index}, where the schema returns argument "
            f"`{name}` itself; return that argument, or None"
        )

    # ------------------------------------------------------------------ one result

    def _result(self, kind: Type, index: int, value: Any, place: Place, seen: list[Storage]) -> Any:
        if isinstance(kind, OptionalType):
            if value is None:
                return None
            kind = kind.element
        if isinstance(kind, TensorType):
            return self._tensor(kind, index, value, place, seen)
        if isinstance(kind, ListType) and _holds_tensors(kind.element):
            if not isinstance(value, list | tuple):
                self.wrong(f"result {index} is {_what(value)}, the schema says {kind}")
            return [self._result(kind.element, index, v, place, seen) for v in value]
        if isinstance(value, SymInt) and isinstance(kind, BasicType) and kind.name == "int":
            return value
        try:
            return converter(kind, lambda v: self._tensor(TensorType(None), index, v, place, seen))(
                value
            )
        except Misfit:
            return self.wrong(f"result {index} is {_what(value)}, the schema says {kind}")

    def _tensor(
        self, kind: TensorType, index: int, value: Any, place: Place, seen: list[Storage]
    ) -> Tensor:
        where = f"result {index}{self._name_of(index)}"
        if type(value) is TensorSpec:
            if kind.alias is not None and "*" not in kind.alias.before:
                self._no_view(index)
            self._check_spec(where, value, place)
            return tensor_of(value, place.device, place.mode)
        if not isinstance(value, Tensor):
            self.wrong(f"{where} is {_what(value)}, the schema says Tensor")
        if not value._keys & META or value._keys & INTERPRETER:
            self.wrong(f"{where} is a real tensor; make it with oplib.empty_like(x) or TensorSpec")
        if kind.alias is not None:
            return self._view(kind, index, value, place)
        self._check_device(where, value.device, place)
        if value.array.mode is not place.mode:
            self.wrong(f"{where} belongs to another mode: {value.array.mode}")
        if not any(same(length, 0) for length in value.shape):
            self._refuse_shared(where, value, place, seen)
        return value if value._keys == META else _fresh(value)

    def _check_spec(self, where: str, spec: TensorSpec, place: Place) -> None:
        """Check a description: lengths, strides, dtype, device."""
        for axis, length in enumerate(spec.shape):
            if isinstance(length, SymInt):
                continue
            if (type(length) is not int and not isinstance(length, np.integer)) or length < 0:
                self.wrong(f"{where} has size {length!r} on axis {axis}; a size is an int >= 0")
        if spec.strides is not None and len(spec.strides) != len(spec.shape):
            self.wrong(f"{where} has {len(spec.strides)} strides for shape {spec.shape}")
        if not spec.dtype.isnative or spec.dtype.kind in "OUSMm":
            self.wrong(f"{where} has dtype {spec.dtype!r}; numbers in native order are needed")
        if spec.device is not None:
            self._check_device(where, spec.device, place)

    def _check_device(self, where: str, device: Device, place: Place) -> None:
        if device != place.device:
            self.wrong(
                f"{where}: device must be {place.device}, got {device}; create results from an "
                "argument: oplib.empty_like(x), x.new_empty(size), TensorSpec"
            )

    # ------------------------------------------------------------------ memory

    def _refuse_shared(self, where: str, value: Tensor, place: Place, seen: list[Storage]) -> None:
        for name, given in zip(self.names, place.args, strict=True):
            for tensor in tensor_leaves([given]):
                if tensor._storage is value._storage:
                    what = "its argument" if value is tensor else "a view of its argument"
                    self.wrong(
                        f"{where} is {what} `{name}`; return oplib.empty_like({name}), or declare "
                        f"it: Tensor(a) {name} -> Tensor(a)"
                    )
        if any(value._storage is other for other in seen):
            self.wrong(f"{where} shares storage with another result; make each of them fresh")
        seen.append(value._storage)

    def _view(self, kind: TensorType, index: int, value: Tensor, place: Place) -> Tensor:
        """Return a view handle on the argument the result lies in."""
        given = dict(zip(self.names, place.args, strict=True))
        for name in self.op.schema.aliased_arguments(index):
            for base in tensor_leaves([given[name]]):
                if base._storage is value._storage:
                    make = view_of if joins_family(self.op) else stranger_of
                    return make(base, value.array)
        if kind.alias is not None and "*" in kind.alias.before:
            return value
        return self._no_view(index)

    def _no_view(self, index: int) -> NoReturn:
        names = join_names(self.op.schema.aliased_arguments(index), "or")
        self.wrong(f"result {index} must be a view of {names}; make it with view operators")

    # ------------------------------------------------------------------ complaints

    def wrong(self, problem: str) -> NoReturn:
        """Raise for a rule that broke its contract."""
        raise FakeTensorError(
            f"{self.op.qualname}: the fake rule at {self.site} {problem}\n"
            f"  schema  {self.op.schema}\n"
            f"  called  {caller_site()}"
        )

    def _name_of(self, index: int) -> str:
        name = self.returns[index].name
        return f" `{name}`" if name else ""


def _fresh(value: Tensor) -> Tensor:
    """Return a result as a plain fresh tensor: no family, no history."""
    array = value.array
    spec = TensorSpec(array.shape, array.dtype, array.strides)
    return tensor_of(spec, array.device, array.mode)


def _holds_tensors(kind: Type) -> bool:
    while isinstance(kind, OptionalType | ListType):
        kind = kind.element
    return isinstance(kind, TensorType)


def _what(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        return f"a tensor {value.describe()}"
    return f"{type(value).__name__} {short_repr(value)}"
