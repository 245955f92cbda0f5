"""The recorder: an interpreter that writes down every call and infers its results on fakes.

A captured tensor holds the graph value it stands for and a fake. Shape questions are answered by
the fake and leave no node; values have no answer. Inference runs under an empty stack, so no other
level sees it.

Imports floors 0 to 5. Read next: `capture.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from .. import _state
from .._text import caller_frame
from .._tree import tree_map
from ..dispatch.bind import tensor_leaves
from ..dispatch.interpreter import Frame, Interpreter
from ..dispatch.keys import AUTOGRAD, BACKENDS, CONSTANT, INTERPRETER, META, WEAK
from ..dispatch.operator import Operator
from ..dispatch.registry import get_op
from ..dtypes import Device
from ..errors import CaptureError, DataDependentError
from ..functionalize.opaque import At, functionalized
from ..graph import (
    GraphBuilder,
    Provenance,
    PyMeta,
    Reference,
    TensorMeta,
    Value,
    defined_values,
    fresh_returns,
)
from ..meta import FakeTensorMode
from ..prims import clone
from ..tensor.geometry import Geometry, same_geometry
from ..tensor.meta_array import meta_array
from ..tensor.storage import Storage
from ..tensor.tensor import ARRAY_TYPES, ArrayType, Tensor, alias_of, tensor_from_result

__all__ = ["CapturedArray", "Recorder", "install"]


class CapturedArray:
    """The array of a captured tensor: a graph value and the fake that answers for it."""

    __slots__ = ("fake", "frame", "value")

    def __init__(self, frame: Frame, value: Value, fake: Tensor) -> None:
        self.frame = frame
        self.value = value
        self.fake = fake

    @property
    def shape(self) -> tuple[Any, ...]:
        """Length of every axis."""
        return self.fake.shape

    @property
    def strides(self) -> tuple[Any, ...]:
        """Strides in bytes."""
        return self.fake.strides

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.fake.dtype

    @property
    def device(self) -> Device:
        """Device the fake claims."""
        return self.fake.device

    @property
    def geometry(self) -> Geometry:
        """Geometry over the fake's storage."""
        return self.fake.array.geometry  # type: ignore[no-any-return]

    @property
    def storage(self) -> Storage:
        """Storage of the fake."""
        return self.fake._storage

    def __repr__(self) -> str:
        return f"CapturedArray({self.value.stem})"


class Recorder(Interpreter):
    """Records the calls of one capture into a `GraphBuilder`."""

    wraps = True

    def __init__(self, name: str) -> None:
        self.builder = GraphBuilder(name)
        self.mode = FakeTensorMode(dynamic=True)
        self.frame: Frame
        self.user = _state.current().user
        self.lift: Callable[[Tensor], Tensor] = self.refuse
        config = MappingProxyType({"fake_mode": self.mode})
        self._inference: Final = _state.State(include=META, config=config)

    # ------------------------------------------------------------------ tensors

    def owns(self, value: Any) -> bool:
        """Return whether a value is a tensor of this capture."""
        return (
            isinstance(value, Tensor)
            and type(value.array) is CapturedArray
            and value.array.frame is self.frame
        )

    def track(self, value: Value, fake: Tensor) -> Tensor:
        """Return a captured tensor for a graph value."""
        tensor = tensor_from_result(CapturedArray(self.frame, value, fake))
        tensor._storage = fake._storage
        return tensor

    def placeholder(self, stem: str, tensor: Tensor, role: Any = "argument") -> Tensor:
        """Return a captured tensor for a tensor the caller supplies."""
        fake = self.fake_of(tensor)
        return self.track(self.builder.placeholder(stem, meta_of(fake), role), fake)

    def fake_of(self, tensor: Tensor) -> Tensor:
        """Return the fake that stands for a tensor, without history."""
        if tensor._keys & INTERPRETER:
            device, array = tensor.device, tensor.array
            fake = _plain_fake(self.mode, array.shape, array.strides, array.dtype, device)
        else:
            fake = self.mode.from_tensor(tensor)
        return alias_of(fake, fake.array) if fake.requires_grad else fake

    def constant(self, tensor: Tensor) -> Tensor:
        """Return a captured tensor for a value fixed at capture; its data is copied."""
        data = tensor.numpy().copy(order="K")
        fake = _plain_fake(self.mode, data.shape, data.strides, data.dtype, tensor.device)
        found = self.track(self.builder.constant(data, where=provenance()), fake)
        return found

    def refuse(self, tensor: Tensor) -> Tensor:
        """Raise for a tensor that this capture cannot take in."""
        raise CaptureError(
            f"a tensor {tensor.describe()} from outside of the capture was met in an unexpected place"
        )

    # ------------------------------------------------------------------ calls

    def call(self, frame: Frame, op: Operator[..., Any], args: tuple[Any, ...]) -> Any:
        """Record one call and return captured tensors for its results."""
        lifted = [tree_map(self._lifted, value) for value in args]
        with _state.enter(self._inference):
            inferred = op.call_positional([tree_map(_fake_leaf, value) for value in lifted])
        if op is functionalized:
            return self._functionalized(lifted, inferred)
        if not tensor_leaves(lifted) and not tensor_leaves([inferred]) and not op.effects:
            return inferred
        arguments = tuple([tree_map(_value_leaf, value) for value in lifted])
        returns = (inferred,) if len(op.schema.returns) == 1 else tuple(inferred or ())
        node = self.builder.call(
            op,
            arguments,
            tuple([tree_map(meta_of, result) for result in returns]),
            flags=self._flags(),
            where=provenance(),
        )
        tracked = [self._tracked(v, r) for v, r in zip(node.results, returns, strict=True)]
        if not tracked:
            return None
        return tracked[0] if len(tracked) == 1 else tuple(tracked)

    def _functionalized(self, lifted: list[Any], inferred: Any) -> Any:
        """Record an opaque mutating call as a `functionalized` node."""
        name, arguments, bases, forms = lifted
        op = get_op(name)
        distinct: list[Tensor] = []
        for base in bases:
            seen = any(base.array.value is other.array.value for other in distinct)
            distinct.append(clone(base) if seen else base)
        values = [base.array.value for base in distinct]

        def refer(leaf: Any) -> Any:
            if type(leaf) is not At:
                return _value_leaf(leaf)
            form = forms[leaf.region]
            whole = same_geometry(leaf.geometry, form)
            return Reference(values[leaf.region], None if whole else leaf.geometry)

        fresh, regions = inferred
        bound = tuple([tree_map(refer, value) for value in arguments])
        assert len(fresh_returns(op.schema, bound)) == len(fresh)
        node = self.builder.functionalized(
            op,
            bound,
            tuple([tree_map(meta_of, result) for result in fresh]),
            flags=self._flags(),
            where=provenance(),
        )
        order = [values.index(base) for base in node.bases]
        new: list[Any] = [None] * len(values)
        for position, value in zip(order, node.regions, strict=True):
            new[position] = self.track(value, regions[position])
        results = tuple(self._tracked(v, r) for v, r in zip(node.results, fresh, strict=True))
        return results, new

    def _tracked(self, value: Any, result: Any) -> Any:
        """Return captured tensors in the structure of a result."""
        if isinstance(result, Tensor):
            return self.track(value, result)
        if isinstance(result, list | tuple):
            return type(result)(self._tracked(v, r) for v, r in zip(value, result, strict=True))
        return result

    def name_written(self, old: Tensor, new: Tensor) -> None:
        """Let the node that made a region's new value be called like the region."""
        value = new.array.value
        if self.builder.nodes and value in defined_values(self.builder.nodes[-1]):
            self.builder.rename(value, old.array.value.stem)

    def _flags(self) -> tuple[str, ...]:
        """Return the flags of a node recorded now."""
        recorded_off = self.user & AUTOGRAD and not _state.current().user & AUTOGRAD
        return ("no_grad",) if recorded_off else ()

    def _lifted(self, leaf: Any) -> Any:
        """Return an argument leaf as something a graph can hold."""
        if not isinstance(leaf, Tensor) or self.owns(leaf):
            return leaf
        if leaf._keys & WEAK:
            return leaf
        if leaf._keys & CONSTANT:
            return self.constant(leaf)
        return self.lift(leaf)


def _plain_fake(
    mode: FakeTensorMode, shape: Any, strides: Any, dtype: np.dtype[Any], device: Device
) -> Tensor:
    return tensor_from_result(meta_array(tuple(shape), dtype, device, tuple(strides), mode))


def _fake_leaf(leaf: Any) -> Any:
    return leaf.array.fake if isinstance(leaf, Tensor) and not leaf._keys & WEAK else leaf


def _value_leaf(leaf: Any) -> Any:
    """Return the graph value of a captured tensor, and the number of a weak one."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.array.item() if leaf._keys & WEAK else leaf.array.value


def meta_of(result: Any) -> Any:
    """Return the metadata of one inferred result."""
    if isinstance(result, Tensor):
        return TensorMeta(result.dtype, result.shape, result.strides, result.device)
    return None if result is None else PyMeta(type(result).__name__)


def provenance() -> Provenance:
    """Return the user's line that is being recorded."""
    frame = caller_frame()
    return Provenance(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _no_value(array: CapturedArray) -> Any:
    where = provenance()
    raise DataDependentError(
        f"the value of a captured tensor `{array.value.stem}` was read at {where}; "
        "a graph holds one program for all values\n"
        "  use oplib.where instead of `if`, or make the value an argument"
    )


def install() -> None:
    """Make captured arrays known to tensors."""
    ARRAY_TYPES[CapturedArray] = ArrayType(
        key=lambda array: INTERPRETER | (array.fake._keys & (BACKENDS | META)),
        device=lambda array: array.device,
        to_numpy=_no_value,
    )
