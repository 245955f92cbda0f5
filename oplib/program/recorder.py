"""The recorder: an interpreter that writes down every call and infers its results on fakes.

A captured tensor holds the graph value it stands for and a fake. Shape questions are answered by
the fake and leave no node; values have no answer. Inference runs under an empty stack, so no other
level sees it.

Imports floors 0 to 5. Read next: `capture.py`.
"""

from __future__ import annotations

import sys
from types import CodeType, MappingProxyType
from typing import Any, Final

import numpy as np

from .. import _state
from .._text import is_internal_file
from .._tree import leaves, tree_map
from ..dispatch.interpreter import Frame, Interpreter
from ..dispatch.keys import AUTOGRAD, BACKENDS, CONSTANT, INTERPRETER, META, WEAK
from ..dispatch.operator import Operator
from ..dispatch.registry import get_op
from ..dtypes import Device
from ..errors import CaptureError, DataDependentError
from ..functionalize.opaque import At, functionalized
from ..graph import (
    Call,
    GraphBuilder,
    Provenance,
    PyMeta,
    Reference,
    Role,
    TensorMeta,
    Value,
    defined_values,
)
from ..meta import FakeTensorMode
from ..prims import clone, lift
from ..tensor.geometry import Geometry, same_geometry
from ..tensor.meta_array import meta_array
from ..tensor.storage import Storage
from ..tensor.tensor import ARRAY_TYPES, ArrayType, Tensor, blank_tensor, tensor_from_result

__all__ = ["CapturedArray", "Recorder", "install"]

AnyOperator = Operator[..., Any]
_CONTAINERS: Final = frozenset({list, tuple, dict})


class CapturedArray:
    """The array of a captured tensor: a graph value and the fake that answers for it."""

    __slots__ = ("dtype", "fake", "frame", "shape", "strides", "value")

    def __init__(self, frame: Frame, value: Value, fake: Tensor) -> None:
        self.frame = frame
        self.value = value
        self.fake = fake
        array = fake.array
        self.shape: tuple[Any, ...] = array.shape
        self.strides: tuple[Any, ...] = array.strides
        self.dtype: np.dtype[Any] = array.dtype

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
    builds_graph = True

    def __init__(self, name: str) -> None:
        self.builder = GraphBuilder(name)
        self.mode = FakeTensorMode(dynamic=True)
        self.frame: Frame
        self.records_gradients = bool(_state.current().user & AUTOGRAD)
        self.asked_grad_mode = False
        config = MappingProxyType({"fake_mode": self.mode})
        self._inference: Final = _state.State(include=META, config=config)

    def grad_mode_asked(self) -> None:
        """Note that the program depends on the grad mode."""
        self.asked_grad_mode = True

    # ------------------------------------------------------------------ tensors

    def owns(self, value: Any) -> bool:
        """Return whether a value is a tensor of this capture."""
        if type(value) is not Tensor:
            return False
        array = value.array
        return type(array) is CapturedArray and array.frame is self.frame

    def track(self, value: Value, fake: Tensor) -> Tensor:
        """Return a captured tensor for a graph value."""
        tensor = blank_tensor()
        tensor.array = CapturedArray(self.frame, value, fake)
        tensor._keys = INTERPRETER | (fake._keys & (BACKENDS | META))
        tensor.autograd_meta = None
        tensor._view = None
        tensor._storage = fake._storage
        return tensor

    def placeholder(self, stem: str, tensor: Tensor, role: Role = "argument") -> Tensor:
        """Return a captured tensor for what the caller supplies, a leaf if that requires grad."""
        fake = self._fake(tensor.array, tensor.device)
        captured = self.track(self.builder.placeholder(stem, meta_of(fake), role), fake)
        if tensor.requires_grad:
            captured.requires_grad = True
        return captured

    def known(self, value: Value) -> Tensor:
        """Return a captured tensor for a value of a graph."""
        meta = value.tensor
        return self.track(value, self._fake(meta, meta.device))

    def constant(self, tensor: Tensor) -> Tensor:
        """Return a captured tensor for a value fixed at capture; its data is copied."""
        data = tensor.numpy().copy(order="K")
        value = self.builder.constant(data, where=provenance())
        return self.track(value, self._fake(data, tensor.device))

    def _fake(self, array: Any, device: Device) -> Tensor:
        """Return a fake of this capture with the geometry of an array."""
        shape, strides = tuple(array.shape), tuple(array.strides)
        return tensor_from_result(meta_array(shape, array.dtype, device, strides, self.mode))

    # ------------------------------------------------------------------ calls

    def call(self, frame: Frame, op: AnyOperator, args: tuple[Any, ...]) -> Any:
        """Record one call and return captured tensors for its results."""
        if op is lift and not self.owns(args[0]):
            args = (self.constant(args[0]),)
        if op is functionalized:
            return self._functionalized([tree_map(self._lifted, value) for value in args])
        values: list[Any] = []
        fakes: list[Any] = []
        for value in args:
            kind = type(value)
            if kind is Tensor:
                array = value.array
                if type(array) is CapturedArray and array.frame is frame:
                    values.append(array.value)
                    fakes.append(array.fake)
                    continue
            elif kind not in _CONTAINERS:
                values.append(value)
                fakes.append(value)
                continue
            lifted = tree_map(self._lifted, value)
            values.append(tree_map(_value_leaf, lifted))
            fakes.append(tree_map(_fake_leaf, lifted))
        inferred = self._infer(op, fakes)
        if type(inferred) is Tensor:
            node = self._record(op, values, (meta_of(inferred),))
            return self.track(node.results[0], inferred)
        if inferred is not None and not op.effects and not _has_tensors((args, inferred)):
            return inferred
        returns = (inferred,) if len(op.schema.returns) == 1 else tuple(inferred or ())
        node = self._record(op, values, tuple([tree_map(meta_of, result) for result in returns]))
        tracked = [self._tracked(v, r) for v, r in zip(node.results, returns, strict=True)]
        if not tracked:
            return None
        return tracked[0] if len(tracked) == 1 else tuple(tracked)

    def _infer(self, op: AnyOperator, fakes: list[Any]) -> Any:
        """Return the results of a call on fakes."""
        state = _state.current()
        _state.set_state(self._inference)
        try:
            return op.call_positional(fakes)
        finally:
            _state.set_state(state)

    def _record(self, op: AnyOperator, values: list[Any], metas: tuple[Any, ...]) -> Call:
        return self.builder.call(op, tuple(values), metas, flags=self._flags(), where=provenance())

    def _functionalized(self, lifted: list[Any]) -> Any:
        """Record an opaque mutating call as a `functionalized` node."""
        name, arguments, bases, forms = lifted
        fresh, regions = self._infer(
            functionalized, [tree_map(_fake_leaf, value) for value in lifted]
        )
        op = get_op(name)
        distinct: list[Tensor] = []
        for base in bases:
            seen = any(base.array.value is other.array.value for other in distinct)
            distinct.append(clone(base) if seen else base)
        values = [base.array.value for base in distinct]

        def refer(leaf: Any) -> Any:
            if type(leaf) is not At:
                return _value_leaf(leaf)
            whole = same_geometry(leaf.geometry, forms[leaf.region])
            return Reference(values[leaf.region], None if whole else leaf.geometry)

        bound = tuple([tree_map(refer, value) for value in arguments])
        assert len(op.schema.fresh_returns(bound)) == len(fresh)
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
        recorded_off = self.records_gradients and not _state.current().user & AUTOGRAD
        return ("no_grad",) if recorded_off else ()

    def _lifted(self, leaf: Any) -> Any:
        """Return an argument leaf as something a graph can hold."""
        if type(leaf) is not Tensor or self.owns(leaf) or leaf._keys & WEAK:
            return leaf
        if leaf._keys & CONSTANT:
            return self.constant(leaf)
        raise CaptureError(
            f"a tensor {leaf.describe()} from outside of the capture was met in an unexpected place"
        )


def _fake_leaf(leaf: Any) -> Any:
    return leaf.array.fake if type(leaf) is Tensor and not leaf._keys & WEAK else leaf


def _value_leaf(leaf: Any) -> Any:
    """Return the graph value of a captured tensor, and the number of a weak one."""
    if type(leaf) is not Tensor:
        return leaf
    return leaf.array.item() if leaf._keys & WEAK else leaf.array.value


def _has_tensors(tree: Any) -> bool:
    return any(type(leaf) is Tensor for leaf in leaves(tree))


def meta_of(result: Any) -> Any:
    """Return the metadata of one inferred result."""
    if type(result) is Tensor:
        array = result.array
        return TensorMeta(array.dtype, array.shape, array.strides, array.device)
    return None if result is None else PyMeta(type(result).__name__)


# ---------------------------------------------------------------------- provenance

_sites: Final[dict[tuple[CodeType, int], Provenance]] = {}
_is_internal: Final[dict[str, bool]] = {}


def provenance() -> Provenance:
    """Return the user's line that is being recorded."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        filename = frame.f_code.co_filename
        internal = _is_internal.get(filename)
        if internal is None:
            internal = _is_internal[filename] = is_internal_file(filename)
        if not internal:
            break
        frame = frame.f_back
    code = frame.f_code
    key = code, frame.f_lineno
    site = _sites.get(key)
    if site is None:
        site = _sites[key] = Provenance(code.co_filename, frame.f_lineno, code.co_name)
    return site


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
