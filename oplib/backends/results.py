"""What kernels return: checked against the schema, then made into Tensors.

The generated plan handles the common result inline (one fresh array of the backend's own class) and
comes here for everything else: scalars, subclasses, several results, lists, views, and mistakes.
Number, type and memory of every result are checked on every call.

Imports floors 0 to 4. Read next: `stage.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NoReturn

import numpy as np

from .._text import function_site, join_names, short_repr
from ..dispatch.bind import tensor_leaves
from ..dispatch.convert import Misfit, converter
from ..dispatch.facets import KernelEntry
from ..dispatch.operator import Operator
from ..errors import AliasError, ReturnError
from ..schema import BasicType, ListType, OptionalType, Return, TensorType, Type
from ..tensor.storage import owner_of
from ..tensor.tensor import (
    ARRAY_TYPES,
    Tensor,
    alias_of,
    tensor_from_array,
    tensor_from_result,
    view_of,
)

__all__ = ["ResultFinisher"]

_SCALARS: Final = (bool, int, float, complex, np.generic)


class ResultFinisher:
    """Turns the raw result of one kernel entry into what the caller gets.

    Parameters
    ----------
    op : Operator
    entry : KernelEntry
    array_type : type
        The backend's array class; Tensors are expected when the entry's convention says so.
    differentiable : bool
        Whether views made here join the family of their base.
    """

    def __init__(
        self, op: Operator[..., Any], entry: KernelEntry, array_type: type, differentiable: bool
    ) -> None:
        self.op = op
        self.entry = entry
        self.array_type = array_type
        self.differentiable = differentiable
        self.returns = op.schema.returns
        self.written = [op.schema.returned_argument(i) for i in range(len(self.returns))]
        self.fresh = [i for i, name in enumerate(self.written) if name is None]
        self.names = [argument.name for argument in op.schema.arguments]

    # ------------------------------------------------------------------ entry points

    def array(self, result: Any, args: tuple[Any, ...]) -> Any:
        """Return the array for the single fresh Tensor result of a functional operator."""
        return self._refuse_shared(self._as_array(result, 0), 0, args)

    def finish(self, result: Any, args: tuple[Any, ...]) -> Any:
        """Return what the caller gets for any schema."""
        values = self._fresh_values(result)
        made: list[Any] = []
        seen: list[tuple[int, Any]] = []
        for index, value in zip(self.fresh, values, strict=True):
            made.append(self._result(self.returns[index], index, value, args, seen))
        fresh = iter(made)
        given = dict(zip(self.names, args, strict=True))
        complete = []
        for name in self.written:
            argument = given[name] if name is not None else None
            complete.append(next(fresh) if name is None else argument)
        complete = [self._fresh_out(i, v, result) for i, v in enumerate(complete)]
        if not complete:
            return None
        return complete[0] if len(complete) == 1 else tuple(complete)

    def _fresh_out(self, index: int, value: Any, result: Any) -> Any:
        """Return a fresh tensor for a written optional that was omitted, else `value`."""
        if self.written[index] is None or value is not None:
            return value
        parts = result if isinstance(result, tuple) and len(self.returns) > 1 else (result,)
        if len(parts) != len(self.returns) or parts[index] is None:
            return None
        return self._tensor(self._as_array(parts[index], index))

    # ------------------------------------------------------------------ number

    def _fresh_values(self, result: Any) -> list[Any]:
        """Return the values of the fresh returns, in order."""
        total, fresh = len(self.returns), len(self.fresh)
        if fresh == 0:
            if total == 0 and result is not None:
                self._wrong(f"returned {_what(result)}; the schema returns nothing")
            return []
        if total == 1:
            if isinstance(result, tuple) and self._is_plain(self.returns[0].type):
                hint = "; return the value itself" if len(result) == 1 else ""
                self._wrong(f"returned a tuple of {len(result)} for one return{hint}")
            return [result]
        if fresh == 1 and not isinstance(result, tuple | list):
            return [result]
        if not isinstance(result, tuple | list):
            self._wrong(f"returned {_what(result)}; the schema has {total} returns")
        if len(result) == total:
            return [result[i] for i in self.fresh]
        if len(result) == fresh:
            return list(result)
        return self._wrong(f"returned {len(result)} values; the schema has {total} returns")

    @staticmethod
    def _is_plain(kind: Type) -> bool:
        kind = kind.element if isinstance(kind, OptionalType) else kind
        return isinstance(kind, TensorType | BasicType)

    # ------------------------------------------------------------------ one result

    def _result(
        self,
        ret: Return,
        index: int,
        value: Any,
        args: tuple[Any, ...],
        seen: list[tuple[int, Any]],
    ) -> Any:
        kind = ret.type
        if isinstance(kind, OptionalType):
            if value is None:
                return None
            kind = kind.element
        if isinstance(kind, TensorType):
            return self._tensor_result(kind, index, value, args, seen)
        if isinstance(kind, ListType) and _holds_tensors(kind.element):
            if not isinstance(value, list | tuple):
                self._wrong(f"returned {_what(value)} for {kind}", index)
            inner = Return(kind.element, ret.name)
            return [self._result(inner, index, element, args, seen) for element in value]
        try:
            return converter(kind, lambda v: self._tensor(self._as_array(v, index)))(value)
        except Misfit:
            return self._wrong(f"returned {_what(value)} for {kind}", index)

    def _tensor_result(
        self,
        kind: TensorType,
        index: int,
        value: Any,
        args: tuple[Any, ...],
        seen: list[tuple[int, Any]],
    ) -> Any:
        array = self._as_array(value, index)
        if kind.alias is not None:
            return self._view_result(kind, index, array, value, args)
        array = self._refuse_shared(array, index, args)
        for other, earlier in seen:
            if _share_memory(array, earlier):
                self._shared(
                    f"result {index} shares memory with result {other}", "return copies instead"
                )
        seen.append((index, array))
        return value if type(value) is Tensor else self._tensor(array)

    def _tensor(self, array: Any) -> Tensor:
        if self.array_type is np.ndarray and array.base is not None:
            return tensor_from_array(array)
        return tensor_from_result(array)

    def _view_result(
        self, kind: TensorType, index: int, array: Any, value: Any, args: tuple[Any, ...]
    ) -> Any:
        """Return a view handle on the argument the result lies in."""
        names = self.op.schema.aliased_arguments(index)
        given = dict(zip(self.names, args, strict=True))
        for name in names:
            for base in tensor_leaves([given[name]]):
                if array.size == 0 or _lies_in(array, base.array):
                    array = array.view() if array is base.array else array
                    make = view_of if self.differentiable else alias_of
                    return make(base, array)
        if kind.alias is not None and "*" in kind.alias.before:
            return self._tensor(array)
        return self._shared(
            f"result {index} is declared a view of {join_names(names, 'or')}, but is a copy: "
            "writes to it would be lost",
            "return a view, or declare the return without an alias set",
        )

    # ------------------------------------------------------------------ type

    def _as_array(self, value: Any, index: int) -> Any:
        """Return the backend's array in a result, 0-d for scalars."""
        if type(value) is self.array_type:
            return self._numeric(value, index)
        if self.entry.convention == "tensor":
            if type(value) is Tensor:
                return value.array
            if isinstance(value, np.ndarray):
                self._wrong("returned an array; this kernel works on Tensors", index)
        elif type(value) is Tensor:
            self._wrong("returned a Tensor; a kernel on arrays returns arrays", index)
        if self.array_type is np.ndarray:
            if isinstance(value, _SCALARS):
                return np.asarray(value)
            if isinstance(value, np.ndarray) and not hasattr(value, "mask"):
                return self._numeric(np.asarray(value), index)
        return self._wrong(f"returned {_what(value)} for Tensor", index)

    def _numeric(self, array: Any, index: int) -> Any:
        kind = getattr(getattr(array, "dtype", None), "kind", "f")
        if kind in "OUSMm":
            self._wrong(f"returned an array of dtype {array.dtype}, which holds no numbers", index)
        return array

    # ------------------------------------------------------------------ memory

    def _refuse_shared(self, array: Any, index: int, args: tuple[Any, ...]) -> Any:
        """Return `array`, copied if it overlaps itself or may be copied; refuse shared memory."""
        if type(array) is not np.ndarray:
            self._refuse_same_storage(array, index, args)
            return array
        for name, base in self._array_arguments(args):
            if array is base or _share_memory(array, base):
                if self.entry.on_alias == "copy":
                    return array.copy()
                what = f"`{name}` itself" if array is base else f"a view of `{name}`"
                self._shared(
                    f"result {index} is {what}",
                    "return a copy, for example x.copy(), or declare it: "
                    f"Tensor(a) {name} -> Tensor(a)",
                )
        if not array.flags.writeable or (0 in array.strides and _repeats(array)):
            return array.copy()
        return array

    def _refuse_same_storage(self, array: Any, index: int, args: tuple[Any, ...]) -> None:
        for name, value in zip(self.names, args, strict=True):
            if any(tensor.array is array for tensor in tensor_leaves([value])):
                self._shared(f"result {index} is `{name}` itself", "return a copy")

    def _array_arguments(self, args: tuple[Any, ...]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        for name, value in zip(self.names, args, strict=True):
            for tensor in tensor_leaves([value]):
                if type(tensor.array) is np.ndarray:
                    yield name, tensor.array

    # ------------------------------------------------------------------ complaints

    def _wrong(self, problem: str, index: int | None = None) -> NoReturn:
        where = "" if index is None else f" (result {index}{self._return_name(index)})"
        raise ReturnError(
            f"{self.op.qualname}: the kernel at {function_site(self.entry.function)} "
            f"{problem}{where}\n  schema  {self.op.schema}"
        )

    def _shared(self, problem: str, remedy: str) -> NoReturn:
        raise AliasError(
            f"{self.op.qualname}: the kernel at {function_site(self.entry.function)}: {problem}\n"
            f"  schema  {self.op.schema}\n  {remedy}"
        )

    def _return_name(self, index: int) -> str:
        name = self.returns[index].name
        return f" `{name}`" if name else ""


def _holds_tensors(kind: Type) -> bool:
    kind = kind.element if isinstance(kind, OptionalType) else kind
    return isinstance(kind, TensorType)


def _repeats(array: np.ndarray[Any, Any]) -> bool:
    """Return whether several elements of an array are one, by a stride of zero."""
    return any(
        step == 0 and length > 1 for length, step in zip(array.shape, array.strides, strict=True)
    )


def _share_memory(a: Any, b: Any) -> bool:
    """Return whether two arrays of one owner overlap (exactly, with bounded work)."""
    if type(a) is not np.ndarray or type(b) is not np.ndarray:
        return a is b
    if a.size == 0 or b.size == 0:
        return False
    if a is b:
        return True
    if a.base is None and b.base is None:
        return False
    if not np.may_share_memory(a, b):
        return False
    if owner_of(a) is not owner_of(b):
        return False
    try:
        return np.shares_memory(a, b, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _lies_in(array: Any, base: Any) -> bool:
    """Return whether an array addresses memory that belongs to the owner of `base`."""
    if type(array) is not np.ndarray or type(base) is not np.ndarray:
        return getattr(array, "storage", array) is getattr(base, "storage", base)
    return owner_of(array) is owner_of(base) or np.may_share_memory(array, base)


def _what(value: Any) -> str:
    if value is None:
        return "None"
    if type(value) in ARRAY_TYPES:
        return f"{type(value).__name__} of shape {value.shape}"
    return f"{type(value).__name__} {short_repr(value)}"
