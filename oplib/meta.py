"""Tensors without data: the Meta stage, `FakeTensorMode`, and what authors of shape rules need.

On key Meta a call runs the operator's fake rule instead of a kernel. The rule is pure: it reads
shapes, dtypes and plain values, and returns descriptions of fresh results. What it returns is
checked on every call; consequences of writes and views are applied by the stage from the schema, so
a rule cannot disagree about them.

A *meta* tensor lives on device ``"meta"``; a *fake* claims another device and belongs to a mode.

Imports floors 0 to 4.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from . import _state
from ._dims import Facts, SymBool, SymInt
from ._text import caller_site, function_site, join_names
from ._tree import tree_map
from .dispatch.bind import ADOPTERS, describe_call, tensor_leaves
from .dispatch.interpreter import BELOW_AUTOGRAD, Frame, Interpreter, pop, push
from .dispatch.keys import INTERPRETER, META, WEAK
from .dispatch.operator import Operator, Plan
from .dispatch.plan import python_call, resolve
from .dtypes import CPU as CPU_DEVICE
from .dtypes import META as META_DEVICE
from .dtypes import Device, short_dtype
from .errors import AliasError, ArgumentError, DataDependentError, FakeTensorError
from .schema import ListType, OptionalType, Return, TensorType
from .shapes import TensorSpec, broadcast, like, reduced
from .tensor.geometry import Geometry, contiguous_strides, self_overlap
from .tensor.meta_array import MetaArray, meta_array
from .tensor.storage import Storage, new_storage, owner_of
from .tensor.tensor import (
    ARRAY_TYPES,
    ArrayType,
    Tensor,
    alias_of,
    tensor_from_result,
    view_of,
)

__all__ = [
    "FakeContext",
    "FakeTensorMode",
    "MetaStage",
    "TensorSpec",
    "broadcast",
    "check",
    "get_ctx",
    "install",
    "like",
    "reduced",
    "to_meta",
]


# ---------------------------------------------------------------------- the context of a rule


class FakeContext:
    """What a fake rule may ask for beside its arguments."""

    __slots__ = ("mode", "op")

    def __init__(self, op: Operator[..., Any], mode: FakeTensorMode | None) -> None:
        self.op = op
        self.mode = mode

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:
        """Return a size that is known only when the kernel runs.

        Raises
        ------
        ArgumentError
            Unless ``0 <= min <= max`` are plain ints.
        DataDependentError
            On meta tensors, and in a mode made without ``dynamic=True``.
        """
        for name, bound in (("min", min), ("max", max)):
            if bound is None and name == "max":
                continue
            if type(bound) is not int or bound < 0:
                raise ArgumentError(f"{name} is a non-negative int, got {bound!r}")
        if max is not None and max < min:
            raise ArgumentError(f"min is {min}, max is {max}; a size cannot be in between")
        if self.mode is None or not self.mode.dynamic:
            raise DataDependentError(
                f"{self.op.qualname} has a result whose size depends on data\n"
                "  run it in FakeTensorMode(dynamic=True), or on real tensors"
            )
        return self.mode.facts.fresh(min, max)


def get_ctx() -> FakeContext:
    """Return the context of the fake rule that is running.

    Raises
    ------
    FakeTensorError
        Outside of a fake rule.
    """
    context = _state.current().config.get("fake_context")
    if context is None:
        raise FakeTensorError("get_ctx() is called inside a fake rule; none is running")
    return context  # type: ignore[no-any-return]


def check(relation: Any) -> None:
    """State that a comparison of sizes holds; from here on it is taken for granted.

    Parameters
    ----------
    relation : bool or comparison of sizes
        For example ``x.shape[0] > 1``, where the size depends on data.

    Raises
    ------
    ArgumentError
        If it is known not to hold.
    """
    if isinstance(relation, SymBool):
        relation.left.facts.assume(relation)
    elif not relation:
        raise ArgumentError("a size check does not hold")


# ---------------------------------------------------------------------- the mode


class FakeTensorMode(Interpreter):
    """Run a program on shapes: factories make fakes, real tensors are refused or converted.

    Parameters
    ----------
    allow_real : bool
        Convert real tensors met in a call instead of refusing them.
    dynamic : bool
        Allow result sizes that depend on data.

    Examples
    --------
    >>> import oplib
    >>> with oplib.FakeTensorMode() as mode:
    ...     x = mode.from_tensor(oplib.ones((2, 3)))
    ...     (x * 2).shape
    (2, 3)
    """

    def __init__(self, allow_real: bool = False, dynamic: bool = False) -> None:
        self.allow_real = allow_real
        self.dynamic = dynamic
        self.facts = Facts()
        self._fakes: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}  # == of tensors is no bool
        self._storages: weakref.WeakKeyDictionary[Storage, Storage] = weakref.WeakKeyDictionary()

    def __enter__(self) -> Self:
        push(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pop(next(f for f in reversed(_state.current().stack) if f.interpreter is self))

    def from_tensor(self, tensor: Tensor) -> Tensor:
        """Return the fake of a tensor: same geometry, dtype, device, `stop_gradient`.

        The same tensor gives the same fake, tensors over one storage give fakes over one storage.
        Its data is neither read nor kept.
        """
        if tensor._keys & META:
            if tensor.array.mode is self:
                return tensor
            if tensor.array.mode is not None:
                raise FakeTensorError("this fake belongs to another FakeTensorMode")
        key, fakes = id(tensor), self._fakes
        if key not in fakes:
            forget = weakref.ref(tensor, lambda _: fakes.pop(key, None))
            fakes[key] = forget, self._convert(tensor)
        return fakes[key][1]

    def _convert(self, tensor: Tensor) -> Tensor:
        array = tensor.array
        device = tensor.device
        storage = self._storages.get(tensor._storage)
        if storage is None:
            storage = self._storages[tensor._storage] = new_storage()
        fake = tensor_from_result(
            MetaArray(
                array.shape, array.strides, array.dtype, device, storage, _offset(tensor), self
            )
        )
        if tensor._keys & WEAK:
            fake._keys |= WEAK
        if tensor.requires_grad:
            fake.requires_grad = True
        return fake

    def call(self, frame: Frame, op: Operator[..., Any], args: tuple[Any, ...]) -> Any:
        """Run the call on fakes."""
        converted = [tree_map(lambda leaf: self._faked(op, leaf), value) for value in args]
        state = _state.current()
        with _state.enter(
            state.replace(include=state.include | META).with_config(fake_mode=self)
        ):
            return op.call_positional(converted)

    def _faked(self, op: Operator[..., Any], leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf._keys & (META | INTERPRETER):
            return leaf
        if leaf._keys & WEAK:
            return leaf
        if self.allow_real:
            return self.from_tensor(leaf)
        raise FakeTensorError(
            f"{op.qualname}: a real tensor {leaf.describe()} was used inside a FakeTensorMode\n"
            "  convert it: mode.from_tensor(x), or make the mode with allow_real=True"
        )


def _offset(tensor: Tensor) -> int:
    """Return the byte of its storage at which a tensor begins."""
    array = tensor.array
    if isinstance(array, np.ndarray):
        owner = owner_of(array)
        if not isinstance(owner, np.ndarray):
            return 0
        start: int = owner.__array_interface__["data"][0]
        return int(array.__array_interface__["data"][0]) - start
    return int(getattr(array, "offset", 0))


def to_meta(tensor: Tensor) -> Tensor:
    """Return a meta tensor of the same geometry and dtype."""
    array = tensor.array
    made = meta_array(array.shape, array.dtype, META_DEVICE, array.strides)
    return tensor_from_result(made)


def _adopt(constant: Tensor, like: Tensor) -> Tensor:
    """Turn a constant beside a tensor without data into one, on the same device."""
    if not like._keys & META or like._keys & INTERPRETER or constant._keys & WEAK:
        return constant
    array = constant.array
    made = meta_array(array.shape, array.dtype, like.device, array.strides, like.array.mode)
    return tensor_from_result(made)


# ---------------------------------------------------------------------- the stage


class MetaStage:
    """The stage of the key Meta: run the fake rule and check what it returns."""

    key = META

    def build(self, op: Operator[..., Any], keys: int, below: Plan | None) -> Plan:
        """Return the plan that infers the results of a call."""
        found = resolve(op, META)
        if found.kind == "missing" and op.view_rule is None:
            return _missing_rule(op)
        if op.view_rule is not None and op.schema.is_view:
            return _ViewCall(op, op.view_rule).plan
        if found.kind == "derived":
            return _DerivedCall(op, None).plan
        registration = found.registration
        assert registration is not None
        rule = registration.payload
        function = rule if found.kind == "fake" else rule.function
        return _FakeCall(op, function, registration.function).plan

    def describe(self, op: Operator[..., Any], keys: int, args: list[Any]) -> list[str]:
        """Return the lines `explain` shows for this stage."""
        found = resolve(op, META)
        if found.kind == "missing":
            return [_missing_text(op)]
        if found.kind == "derived":
            return ["Meta: derived, every return is a written argument"]
        assert found.registration is not None
        return [f"Meta: {found.kind} rule registered {found.registration.source}"]


class _MetaCall:
    """Base of the ways to infer a call: devices, modes, the state a rule runs in."""

    def __init__(self, op: Operator[..., Any], function: Any) -> None:
        self.op = op
        self.function = function
        schema = op.schema
        self.written = [
            (i, a.name) for i, a in enumerate(schema.arguments) if a.name in schema.mutated_arguments
        ]
        self.device_index = next(
            (i for i, a in enumerate(schema.arguments) if a.name == "device"), None
        )

    def surroundings(self, args: Sequence[Any]) -> tuple[Device, FakeTensorMode | None]:
        """Return device and mode of a call's results; refuse mixed ones."""
        device: Device | None = None
        mode: Any = _NO_MODE
        for tensor in tensor_leaves(args):
            if not tensor._keys & META:
                if tensor._keys & WEAK:
                    continue
                raise FakeTensorError(self._mixed(args, "a real tensor beside tensors without data"))
            array = tensor.array
            if mode is _NO_MODE:
                mode = array.mode
            elif mode is not array.mode:
                raise FakeTensorError(self._mixed(args, "fakes of two modes"))
            if device is None or (not array.shape and "pointwise" in self.op.tags):
                device = device or array.device
            elif array.device != device:
                raise ArgumentError(self._mixed(args, "tensors of several devices"))
        if mode is _NO_MODE:
            mode = _state.current().config.get("fake_mode")
        asked = args[self.device_index] if self.device_index is not None else None
        if asked is not None:
            device = asked
        return device or (META_DEVICE if mode is None else CPU_DEVICE), mode

    def _mixed(self, args: Sequence[Any], what: str) -> str:
        return (
            f"{self.op.qualname}: {what} in one call\n"
            f"  called as  {describe_call(self.op, list(args))}\n"
            "  convert real tensors with mode.from_tensor(x), or make the mode with allow_real=True"
        )

    def run(self, args: Sequence[Any], function: Callable[..., Any], mode: Any) -> Any:
        """Run Tensor-level code below autograd, where factories make tensors without data."""
        state = _state.current()
        inner = state.replace(
            include=(state.include & ~INTERPRETER) | META,
            handled=state.handled | BELOW_AUTOGRAD,
            stack=(),
        ).with_config(fake_mode=mode, fake_context=FakeContext(self.op, mode))
        with _state.enter(inner):
            return function(*args)

    def check_destinations(self, args: Sequence[Any]) -> None:
        """Refuse a destination that overlaps itself, as the backend does."""
        if "std:own_overlap_check" in self.op.tags:
            return
        for i, name in self.written:
            for tensor in tensor_leaves([args[i]]):
                if tensor._keys & META and self_overlap(tensor.array.geometry):
                    raise AliasError(
                        f"{self.op.qualname}: argument `{name}` overlaps itself, so the result would "
                        "depend on the order of the writes\n  pass a copy: x.clone()"
                    )

    def bump(self, args: Sequence[Any]) -> None:
        """Count the declared writes."""
        written = tensor_leaves([args[i] for i, _ in self.written])
        for storage in {id(t._storage): t._storage for t in written}.values():
            storage.version += 1
            storage.writer = self.op.qualname

    def with_written(self, args: Sequence[Any], fresh: Sequence[Any]) -> Any:
        """Return the results of a call: fresh ones, and the arguments that are returned."""
        schema = self.op.schema
        given = {a.name: value for a, value in zip(schema.arguments, args, strict=True)}
        values = iter(fresh)
        complete = []
        for i in range(len(schema.returns)):
            name = schema.returned_argument(i)
            complete.append(next(values) if name is None else given[name])
        if not complete:
            return None
        return complete[0] if len(complete) == 1 else tuple(complete)


_NO_MODE: Final = object()


class _DerivedCall(_MetaCall):
    """A call all of whose results are written arguments: no rule is needed."""

    def plan(self, *args: Any) -> Any:
        """Check and count the writes, and return the arguments."""
        _, mode = self.surroundings(args)
        self.check_destinations(args)
        twin = self.op.twin
        if twin is not None:
            self.run(args, python_call(self.op, twin.twin), mode)
        self.bump(args)
        return self.with_written(args, ())


class _ViewCall(_MetaCall):
    """A view operator with a geometry rule."""

    def plan(self, *args: Any) -> Any:
        """Return a handle with the geometry the rule gives, or a copy where it gives none."""
        device, mode = self.surroundings(args)
        base = args[0]
        geometry = self.function(base.array.geometry, *args[1:])
        if geometry is None:
            fake = self.op.fake_rule
            if fake is None:
                raise FakeTensorError(f"{self.op.qualname} makes a copy here, but has no fake rule")
            return _FakeCall(self.op, fake, fake).plan(*args)
        if isinstance(geometry, list):
            return [self._view(base, part) for part in geometry]
        return self._view(base, geometry)

    def _view(self, base: Tensor, geometry: Geometry) -> Tensor:
        array = base.array.with_geometry(geometry)
        return view_of(base, array) if joins_family(self.op) else alias_of(base, array)


def joins_family(op: Operator[..., Any]) -> bool:
    """Return whether views by `op` are differentiable views of their base."""
    rule = op.gradient_rule
    if rule is None or rule.style != "per_argument":
        return True
    return any(function is not None for function in rule.functions.values())


class _FakeCall(_MetaCall):
    """A call inferred by a fake rule (or by a composite kernel run on fakes)."""

    def __init__(self, op: Operator[..., Any], function: Any, written_by_user: Any) -> None:
        super().__init__(op, python_call(op, function))
        self.site = function_site(written_by_user)
        returns = op.schema.returns
        self.fresh = [i for i in range(len(returns)) if op.schema.returned_argument(i) is None]
        self.simple = len(returns) == 1 and returns[0].type == TensorType(None) and not self.written

    def plan(self, *args: Any) -> Any:
        """Run the rule, check what it returned, apply writes, and hand out the results."""
        device, mode = self.surroundings(args)
        self.check_destinations(args)
        tensors = tensor_leaves(args)
        versions = [t._storage.version for t in tensors]
        geometry = [(t.array, t._keys) for t in tensors]
        result = self.run(args, self.function, mode)
        for tensor, version, (array, _) in zip(tensors, versions, geometry, strict=True):
            if tensor._storage.version != version or tensor.array is not array:
                raise self._wrong("wrote to an argument; a rule describes results, the schema writes")
        if self.simple and type(result) is TensorSpec:
            return self._make(result, device, mode)
        values = self._values(result, args)
        seen: list[Storage] = []
        fresh = [
            self._result(self.op.schema.returns[i], i, value, args, device, mode, seen)
            for i, value in zip(self.fresh, values, strict=True)
        ]
        self.bump(args)
        return self.with_written(args, fresh)

    def _values(self, result: Any, args: Sequence[Any]) -> list[Any]:
        """Return the values of the fresh results."""
        total, fresh = len(self.op.schema.returns), len(self.fresh)
        if fresh == 0:
            return []
        if total == 1:
            if isinstance(result, tuple) and not _is_container(self.op.schema.returns[0]):
                raise self._wrong(f"returned a tuple of {len(result)} for one result")
            return [result]
        if fresh == 1 and not isinstance(result, tuple | list):
            return [result]
        if not isinstance(result, tuple | list) or len(result) not in (total, fresh):
            count = len(result) if isinstance(result, tuple | list) else 1
            raise self._wrong(f"returned {count} results; the schema says {total}")
        return [result[i] for i in self.fresh] if len(result) == total else list(result)

    def _result(
        self,
        ret: Return,
        index: int,
        value: Any,
        args: Sequence[Any],
        device: Device,
        mode: Any,
        seen: list[Storage],
    ) -> Any:
        kind = ret.type
        if isinstance(kind, OptionalType):
            if value is None:
                return None
            kind = kind.element
        if isinstance(kind, ListType):
            if not isinstance(value, list | tuple):
                raise self._wrong(f"result {index} is {type(value).__name__}; the schema says {kind}")
            inner = Return(kind.element, ret.name)
            return [self._result(inner, index, v, args, device, mode, seen) for v in value]
        if not isinstance(kind, TensorType):
            return value
        if type(value) is TensorSpec:
            return self._make(value, device, mode)
        return self._checked(kind, index, value, args, device, mode, seen)

    def _make(self, spec: TensorSpec, device: Device, mode: Any) -> Tensor:
        """Return the fake that a `TensorSpec` describes."""
        for length in spec.shape:
            if type(length) is not int and not isinstance(length, SymInt | np.integer):
                raise self._wrong(f"returned the size {length!r}, which is no int")
            if type(length) is int and length < 0:
                raise self._wrong(f"returned the negative size {length}")
        if spec.device is not None:
            device = spec.device
        strides = spec.strides
        if strides is None:
            strides = contiguous_strides(spec.shape, spec.dtype.itemsize)
        elif len(strides) != len(spec.shape):
            raise self._wrong(f"returned {len(strides)} strides for shape {spec.shape}")
        array = MetaArray(spec.shape, strides, spec.dtype, device, new_storage(), 0, mode)
        tensor: Tensor = object.__new__(Tensor)
        tensor.array = array
        tensor._keys = META
        tensor.autograd_meta = None
        tensor._view = None
        tensor._storage = array.storage
        return tensor

    def _checked(
        self,
        kind: TensorType,
        index: int,
        value: Any,
        args: Sequence[Any],
        device: Device,
        mode: Any,
        seen: list[Storage],
    ) -> Any:
        """Return a Tensor the rule made, after checking that it is a fake of this call."""
        where = f"result {index}"
        if not isinstance(value, Tensor):
            raise self._wrong(f"{where} is {type(value).__name__}; the schema says Tensor")
        if not value._keys & META or value._keys & INTERPRETER:
            raise self._wrong(f"{where} is a real tensor; make it with oplib.empty_like or TensorSpec")
        if value.array.mode is not mode:
            raise self._wrong(f"{where} belongs to another FakeTensorMode")
        if value.device != device:
            raise self._wrong(
                f"{where}: device must be {device}, got {value.device}; make results from an argument"
            )
        if kind.alias is not None:
            return self._declared_view(kind, index, value, args)
        for argument, given in zip(self.op.schema.arguments, args, strict=True):
            for tensor in tensor_leaves([given]):
                if tensor._storage is value._storage and value.size:
                    what = "its argument" if value is tensor else "a view of its argument"
                    raise self._wrong(
                        f"{where} is {what} `{argument.name}`; return oplib.empty_like(x), or "
                        "declare the alias in the schema"
                    )
        if any(value._storage is other for other in seen) and value.size:
            raise self._wrong(f"{where} shares storage with another result")
        seen.append(value._storage)
        return value

    def _declared_view(self, kind: TensorType, index: int, value: Tensor, args: Sequence[Any]) -> Any:
        names = self.op.schema.aliased_arguments(index)
        given = {a.name: v for a, v in zip(self.op.schema.arguments, args, strict=True)}
        for name in names:
            for base in tensor_leaves([given[name]]):
                if base._storage is value._storage:
                    make = view_of if joins_family(self.op) else alias_of
                    return make(base, value.array)
        if kind.alias is not None and "*" in kind.alias.before:
            return value
        raise self._wrong(
            f"result {index} must be a view of {join_names(names, 'or')}; make it with view operators"
        )

    def _wrong(self, problem: str) -> FakeTensorError:
        return FakeTensorError(
            f"{self.op.qualname}: the fake rule at {self.site} {problem}\n  schema  {self.op.schema}"
        )


def _is_container(ret: Return) -> bool:
    return not isinstance(ret.type, TensorType)


# ---------------------------------------------------------------------- nothing infers the call


def _missing_rule(op: Operator[..., Any]) -> Plan:
    def missing(*args: Any) -> Any:
        raise FakeTensorError(_missing_text(op))

    return missing


def _missing_text(op: Operator[..., Any]) -> str:
    """Return the message for a missing fake rule, with a stub that runs when pasted."""
    names = [a.name for a in op.schema.positional]
    if op.schema.keyword_only:
        names += ["*", *(a.name for a in op.schema.keyword_only)]
    first = next(iter(op.schema.differentiable_arguments), None)
    body = f"oplib.empty_like({first})" if first else "oplib.empty(...)"
    many = len(op.schema.returns)
    returned = body if many == 1 else ", ".join([body] * many)
    return (
        f"{op.qualname} has no fake rule, so its result cannot be inferred without data\n"
        f"  defined  {op.definition_source}\n"
        "  add one:\n"
        f'    @oplib.register_fake("{op.qualname}")\n'
        f"    def _({', '.join(names)}):\n"
        f"        return {returned}"
    )


def _no_value(array: MetaArray) -> Any:
    raise DataDependentError(
        f"the value of a tensor without data, {short_dtype(array.dtype)}{list(array.shape)}, was "
        f"read at {caller_site()}\n"
        "  use oplib.where instead of `if`, or make the value an argument of the program"
    )


def install() -> None:
    """Make MetaArrays the arrays of the Meta key, and constants beside them fakes."""
    ARRAY_TYPES[MetaArray] = ArrayType(
        key=lambda array: META, device=lambda array: array.device, to_numpy=_no_value
    )
    ADOPTERS.append(_adopt)
