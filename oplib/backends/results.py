"""What kernels return: checked against the schema, then made into Tensors.

The generated plan handles the common result inline (one fresh array of the backend's own class) and
comes here for everything else: scalars, subclasses, several results, lists, views, and mistakes.
Number, type and memory of every result are checked on every call.

Imports floors 0 to 4, `arrays.py`. Read next: `stage.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from .._text import function_site, join_names, short_repr
from ..dispatch.convert import Misfit, converter
from ..dispatch.facets import KernelEntry
from ..dispatch.keys import META
from ..dispatch.lifting import may_hold_tensors, tensor_leaves
from ..dispatch.operator import Operator
from ..errors import AliasError, ReturnError
from ..schema import (
    BasicType,
    DictType,
    ListType,
    OptionalType,
    TensorType,
    TupleType,
    Type,
    UnionType,
)
from ..tensor.geometry import Geometry, self_overlap
from ..tensor.storage import owner_of
from ..tensor.tensor import ARRAY_TYPES, Tensor, alias_of, stranger_of, tensor_from_array, view_of
from .arrays import Backend

__all__ = ["UNSHARED", "ResultFinisher"]

Seen: TypeAlias = list[tuple[int, Any]]

_SCALARS: Final = (bool, int, float, complex, np.generic)


def _references_to_a_fresh_array() -> int:
    """Return what `sys.getrefcount` says of an array only a local variable holds."""
    array = np.empty(0)
    return sys.getrefcount(array)


UNSHARED: Final = _references_to_a_fresh_array()
"""Reference count that shows a result to be fresh. Whoever could share its memory (an argument that
is
the array, a view of it, a cache of the kernel) holds a reference, so one comparison replaces one
for every argument."""


class ResultFinisher:
    """Turns the raw result of one kernel entry into what the caller gets.

    Parameters
    ----------
    op : Operator
    entry : KernelEntry
    backend : Backend
    differentiable : bool
        Whether views made here join the family of their base.
    """

    def __init__(
        self, op: Operator[..., Any], entry: KernelEntry, backend: Backend, differentiable: bool
    ) -> None:
        self.op = op
        self.entry = entry
        self.backend = backend
        self.differentiable = differentiable
        self.returns = op.schema.returns
        self.written = [op.schema.returned_argument(i) for i in range(len(self.returns))]
        self.fresh = [i for i, name in enumerate(self.written) if name is None]
        self.names = [argument.name for argument in op.schema.arguments]

    def finish(self, result: Any, args: Sequence[Any]) -> Any:
        """Return what the caller gets."""
        given = dict(zip(self.names, args, strict=True))
        seen: Seen = []
        values = iter(self._fresh_values(result))
        complete = []
        for index, name in enumerate(self.written):
            if name is None:
                ret = self.returns[index]
                complete.append(self._value(ret.type, index, next(values), args, seen))
            elif given[name] is None:
                complete.append(self._omitted(index, result, args, seen))
            else:
                complete.append(given[name])
        if not complete:
            return None
        return complete[0] if len(complete) == 1 else tuple(complete)

    def _omitted(self, index: int, result: Any, args: Sequence[Any], seen: Seen) -> Any:
        """Return the fresh tensor for a written optional that was not given."""
        several = isinstance(result, tuple | list) and len(self.returns) > 1
        parts = list(result) if several else [result]
        if len(parts) != len(self.returns):
            return self._wrong(
                f"returned {len(parts)} values; `{self.written[index]}` was not given, so all "
                f"{len(self.returns)} are needed"
            )
        array = self._as_array(parts[index], index)
        return self._fresh_tensor(array, index, args, seen)

    # ------------------------------------------------------------------ number

    def _fresh_values(self, result: Any) -> list[Any]:
        """Return the values of the fresh returns, in order."""
        total, fresh = len(self.returns), len(self.fresh)
        if total == 0 and result is not None:
            self._wrong(f"returned {_what(result)}; the schema returns nothing", hint="return None")
        if fresh == 0:
            return []
        if total == 1:
            if isinstance(result, tuple) and _is_single(self.returns[0].type):
                hint = (
                    "return the value itself" if len(result) == 1 else "the schema has one return"
                )
                self._wrong(f"returned {_what(result)} for {self.returns[0].type}", 0, hint)
            return [result]
        if fresh == 1 and not isinstance(result, tuple):
            return [result]
        if not isinstance(result, tuple | list):
            self._wrong(f"returned {_what(result)}; the schema has {total} returns")
        if len(result) == total:
            return [result[i] for i in self.fresh]
        if len(result) == fresh:
            return list(result)
        return self._wrong(f"returned {len(result)} values; the schema has {total} returns")

    # ------------------------------------------------------------------ one value

    def _value(self, kind: Type, index: int, value: Any, args: Sequence[Any], seen: Seen) -> Any:
        """Return the value of one return, or of one element in it."""
        if isinstance(kind, OptionalType):
            if value is None:
                return None
            kind = kind.element
        if isinstance(kind, TensorType):
            return self._tensor(kind, index, value, args, seen)
        if may_hold_tensors(kind) and not isinstance(kind, BasicType):
            return self._container(kind, index, value, args, seen)
        try:
            return converter(kind, lambda leaf: leaf)(value)
        except Misfit:
            return self._wrong(f"returned {_what(value)} for {kind}", index)

    def _container(
        self, kind: Type, index: int, value: Any, args: Sequence[Any], seen: Seen
    ) -> Any:
        """Return a list, tuple, dict or union with tensors in it."""

        def inner(element_kind: Type, element: Any) -> Any:
            return self._value(element_kind, index, element, args, seen)

        if isinstance(kind, UnionType):
            return self._member(kind, index, value, args, seen)
        if isinstance(kind, DictType) and isinstance(value, dict):
            return {key: inner(kind.value, element) for key, element in value.items()}
        if isinstance(value, list | tuple):
            if isinstance(kind, ListType):
                return [inner(kind.element, element) for element in value]
            if isinstance(kind, TupleType) and len(value) == len(kind.elements):
                return tuple([inner(k, v) for k, v in zip(kind.elements, value, strict=True)])
        return self._wrong(f"returned {_what(value)} for {kind}", index)

    def _member(
        self, kind: UnionType, index: int, value: Any, args: Sequence[Any], seen: Seen
    ) -> Any:
        """Return a value of a union: a tensor if it is one, else of the nearest other member."""
        tensor = next((m for m in kind.members if isinstance(m, TensorType)), None)
        is_tensor = type(value) is Tensor or isinstance(value, self.backend.array_types)
        if tensor is not None and is_tensor:
            return self._value(tensor, index, value, args, seen)
        try:
            return converter(kind, _refuse)(value)
        except Misfit:
            return self._wrong(f"returned {_what(value)} for {kind}", index)

    # ------------------------------------------------------------------ tensors

    def _tensor(
        self, kind: TensorType, index: int, value: Any, args: Sequence[Any], seen: Seen
    ) -> Tensor:
        array = self._as_array(value, index)
        if kind.alias is not None:
            return self._view(kind, index, array, args)
        return self._fresh_tensor(array, index, args, seen, value)

    def _fresh_tensor(
        self, array: Any, index: int, args: Sequence[Any], seen: Seen, value: Any = None
    ) -> Tensor:
        """Return the Tensor of a result that shares memory with no argument and no other result."""
        array = self._unshared(array, index, args)
        for other, earlier in seen:
            if _share_memory(array, earlier):
                what = f"shares memory with result {other}{self._name_of(other)}"
                self._shared(what, index, "return copies")
        seen.append((index, array))
        if type(value) is Tensor and array is value.array:
            return alias_of(value, array)  # a handle of the caller's own, without history
        return tensor_from_array(array)

    def _view(self, kind: TensorType, index: int, array: Any, args: Sequence[Any]) -> Tensor:
        """Return a view handle on the argument the result lies in."""
        names = self.op.schema.aliased_arguments(index)
        given = dict(zip(self.names, args, strict=True))
        for base in tensor_leaves([given[name] for name in names]):
            if _lies_in(array, base.array):
                array = array.view() if array is base.array else array
                return view_of(base, array) if self.differentiable else stranger_of(base, array)
        assert kind.alias is not None
        if kind.alias.is_wildcard:
            return tensor_from_array(array)
        return self._shared(
            f"is declared a view of {join_names(names, 'or')}, but is a copy: "
            "writes to it would be lost",
            index,
            "return a view, or declare the return without an alias set",
        )

    def _as_array(self, value: Any, index: int) -> Any:
        """Return the backend's array in a result, 0-d for scalars."""
        if type(value) in self.backend.array_types:
            if self.entry.convention == "tensor":
                self._wrong(
                    f"returned {_what(value)} for Tensor", index, "this kernel works on Tensors"
                )
            return self._numeric(value, index)
        if type(value) is Tensor:
            if self.entry.convention == "array":
                self._wrong(
                    "returned a Tensor", index, "a kernel on arrays returns arrays: x.numpy()"
                )
            if value._keys & META:
                self._wrong("returned a tensor without data", index)
            return value.array
        if isinstance(value, _SCALARS):
            return self.backend.from_numpy(self._numeric(np.asarray(value), index))
        if isinstance(value, self.backend.array_types) and not hasattr(value, "mask"):
            return self._numeric(np.asarray(value), index)  # np.matrix, np.memmap and the like
        hint = "return numpy.asarray(...)" if isinstance(value, list | tuple) else ""
        return self._wrong(f"returned {_what(value)} for Tensor", index, hint)

    def _numeric(self, array: Any, index: int) -> Any:
        if getattr(array.dtype, "kind", "f") in "OUSMm":
            self._wrong(f"returned an array of dtype {array.dtype}, which holds no numbers", index)
        return array

    # ------------------------------------------------------------------ memory

    def _unshared(self, array: Any, index: int, args: Sequence[Any]) -> Any:
        """Return `array`, copied if it overlaps itself or may be copied; refuse shared memory."""
        for name, base in self._array_arguments(args):
            if _share_memory(array, base):
                if self.entry.on_alias == "copy":
                    return self._copied(array)
                what = f"`{name}` itself" if array is base else f"a view of `{name}`"
                label = "(a!)" if name in self.op.schema.mutated_arguments else "(a)"
                hint = f"return a copy of it, or declare it: Tensor{label} {name} -> Tensor{label}"
                self._shared(f"is {what}", index, hint)
            if array is base:  # of no elements
                return self._copied(array)
        if type(array) is not np.ndarray:
            return array
        return array.copy() if not array.flags.writeable or _overlaps_itself(array) else array

    def _copied(self, array: Any) -> Any:
        return self.backend.from_numpy(self.backend.to_numpy(array).copy())

    def _array_arguments(self, args: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Yield the arrays among the arguments with the argument's name."""
        for name, value in zip(self.names, args, strict=True):
            for tensor in tensor_leaves([value]):
                yield name, tensor.array

    # ------------------------------------------------------------------ complaints

    def _wrong(self, problem: str, index: int | None = None, hint: str = "") -> NoReturn:
        where = "" if index is None else f" (result {index}{self._name_of(index)})"
        raise ReturnError(self._message(f" {problem}{where}", hint))

    def _shared(self, problem: str, index: int, hint: str) -> NoReturn:
        raise AliasError(self._message(f": result {index}{self._name_of(index)} {problem}", hint))

    def _message(self, problem: str, hint: str) -> str:
        site = function_site(self.entry.function)
        lines = [
            f"{self.op.qualname}: the {self.entry.key} kernel at {site}{problem}",
            f"  schema  {self.op.schema}",
        ]
        return "\n".join([*lines, *([f"  hint    {hint}"] if hint else [])])

    def _name_of(self, index: int) -> str:
        name = self.returns[index].name
        return f" `{name}`" if name else ""


def _refuse(value: Any) -> NoReturn:
    raise Misfit


def _is_single(kind: Type) -> bool:
    """Return whether a value of this type is no container."""
    kind = kind.element if isinstance(kind, OptionalType) else kind
    return isinstance(kind, TensorType | BasicType)


def _share_memory(a: Any, b: Any) -> bool:
    """Return whether two arrays of one owner overlap (exactly, with bounded work)."""
    if 0 in a.shape or 0 in b.shape:
        return False
    if a is b:
        return True
    if type(a) is not np.ndarray or type(b) is not np.ndarray:
        return owner_of(a) is owner_of(b)
    if (a.base is None and b.base is None) or owner_of(a) is not owner_of(b):
        return False
    try:
        return np.shares_memory(a, b, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _lies_in(array: Any, base: Any) -> bool:
    """Return whether an array addresses memory that belongs to the owner of `base`."""
    return 0 in array.shape or owner_of(array) is owner_of(base)


def _overlaps_itself(array: np.ndarray[Any, Any]) -> bool:
    if array.flags.forc or array.size == 0:
        return False
    return self_overlap(Geometry(array.dtype, array.shape, array.strides, 0))


def _what(value: Any) -> str:
    if value is None:
        return "None"
    if type(value) in ARRAY_TYPES or isinstance(value, np.ndarray):
        return f"{type(value).__name__} of shape {value.shape}"
    if type(value) is Tensor:
        return f"a Tensor {value.describe()}"
    return f"{type(value).__name__} {short_repr(value)}"
