"""`Tensor`: an array with keys.

A Tensor never computes. It holds an array (NumPy's, a backend's, or an interpreter's), the key set
that array implies, its gradient record and its storage. Operators make new ones with
`tensor_from_result` and `view_of`; arrays from outside enter through `tensor_from_array`.

The methods that call operators are installed by `methods.py`; what needs the gradient engine is
reached through `engine`, which the autograd package fills.

Imports floors 0 to 2 and the files above. Read next: `methods.py`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .. import _state
from ..dispatch import registry
from ..dispatch.keys import AUTOGRAD, CPU, INTERPRETER, META, VIEW, WEAK
from ..dispatch.operator import hooks as operator_hooks
from ..dtypes import CPU as CPU_DEVICE
from ..dtypes import Device, as_device, is_inexact, short_dtype
from ..errors import ArgumentError, AutogradError, DataDependentError
from .grad_meta import (
    AccumulationNode,
    AutogradMeta,
    Family,
    GradNode,
    HookHandle,
    ViewRecord,
    new_leaf_meta,
    new_view_record,
)
from .meta_array import meta_array
from .storage import Storage, new_storage, publish, storage_of_array

__all__ = [
    "ARRAY_TYPES",
    "ArrayType",
    "Tensor",
    "alias_of",
    "blank_tensor",
    "engine",
    "introduce",
    "join_family",
    "settle_apart",
    "stranger_of",
    "tensor_from_array",
    "tensor_from_result",
    "view_of",
    "weak_scalar",
]

_ndarray: Final = np.ndarray


class ArrayType:
    """What the framework knows about one array class: its key, device, and way to NumPy."""

    __slots__ = ("device", "key", "to_numpy")

    def __init__(
        self,
        key: Callable[[Any], int],
        device: Callable[[Any], Device],
        to_numpy: Callable[[Any], Any],
    ) -> None:
        self.key = key
        self.device = device
        self.to_numpy = to_numpy


ARRAY_TYPES: Final[dict[type, ArrayType]] = {}
"""Array class -> what is known about it; backends and interpreters fill it."""


class _Engine:
    """Functions of the autograd package that methods of Tensor call, installed at import."""

    refresh: Callable[[Tensor], None]
    check_write: Callable[[Any, str, Tensor], None]
    backward_from: Callable[[Tensor, Tensor | None, bool | None, bool], None]
    register_hook: Callable[..., HookHandle]
    register_post_accumulate_grad_hook: Callable[..., HookHandle]
    retain_grads: Callable[[Tensor], None]
    set_grad: Callable[[Tensor, Any], None]
    set_requires_grad: Callable[[Tensor, bool], None]


engine: Final = _Engine()


if TYPE_CHECKING:
    from .._signatures import _Methods as _OperatorMethods  # generated: what methods.py installs
else:
    _OperatorMethods = object


class _MadeElsewhere(type):
    """The class of Tensor, which refuses calls.

    Not ``Tensor.__new__``: making an instance around that takes ``object.__new__``, 0.06 µs more
    than what is left for `blank_tensor` here.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise ArgumentError("make a Tensor with oplib.tensor(data) or oplib.from_numpy(array)")


class Tensor(_OperatorMethods, metaclass=_MadeElsewhere):
    """An n-dimensional array that operators, gradients and graphs understand.

    Make one with `oplib.tensor` (copies) or `oplib.from_numpy` (shares memory). It is final.
    """

    __slots__ = ("__weakref__", "_keys", "_storage", "_view", "array", "autograd_meta")

    array: Any
    _keys: int
    autograd_meta: AutogradMeta | None
    _storage: Storage
    _view: ViewRecord | None

    def __init_subclass__(cls) -> None:
        raise ArgumentError("Tensor is final; wrap one instead of subclassing it")

    # ------------------------------------------------------------------ what the array says

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every axis."""
        return self.array.shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type, a NumPy dtype."""
        return self.array.dtype  # type: ignore[no-any-return]

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes to step along every axis, as in NumPy."""
        return self.array.strides  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.array.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.array.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.array.dtype.itemsize  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def device(self) -> Device:
        """Where the tensor lives."""
        kind = type(self.array)
        return CPU_DEVICE if kind is _ndarray else ARRAY_TYPES[kind].device(self.array)

    def is_contiguous(self) -> bool:
        """Return whether elements lie in C order without gaps."""
        expected = self.itemsize
        if 0 in self.shape:
            return True
        for length, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if length != 1:
                if stride != expected:
                    return False
                expected *= length
        return True

    def to(self, device: Device | str) -> Tensor:
        """Return the tensor on a device: itself if it is there.

        Gradients flow back through the copy. ``to("meta")`` gives a tensor of the same shape,
        layout and dtype without data, a leaf that requires grad if this does; nothing leads back.

        Raises
        ------
        DataDependentError
            From device ``"meta"`` to another.
        ArgumentError
            To a device that no backend serves.
        """
        target, own = as_device(device), self.device
        if target == own:
            return self
        if target.type == "meta":
            made = tensor_from_result(meta_array(self.shape, self.dtype, target, self.strides))
            return made.requires_grad_(self.requires_grad)
        if own.type == "meta":
            raise DataDependentError(
                f"a meta tensor {self.describe()} has no data to bring to {target}\n"
                "  make a tensor there (oplib.empty), or a fake: FakeTensorMode.from_tensor"
            )
        return registry.get_op("std::to_device")(self, target)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ values

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the array, sharing memory where the backend allows.

        Writes made through it are not counted as writes by version checks.

        Raises
        ------
        DataDependentError
            For a tensor without data.
        """
        array = self._data()
        if array is self.array:
            publish(array, self._storage)
            if self._keys & AUTOGRAD:
                join_family(self)
            introduce(self)  # to what comes back of it
        return array

    def _data(self) -> np.ndarray[Any, Any]:
        """Return the array for reading."""
        if type(self.array) is not _ndarray:
            return ARRAY_TYPES[type(self.array)].to_numpy(self.array)  # type: ignore[no-any-return]
        for frame in _state.current().stack:
            frame.interpreter.before_data(self)
        return self.array

    def item(self) -> Any:
        """Return the value of a one-element tensor as a Python number."""
        if self.size != 1:
            raise ArgumentError(f"item() needs one element; the tensor has shape {self.shape}")
        return self._data().item()

    def tolist(self) -> Any:
        """Return the values as nested lists of Python numbers."""
        return self._data().tolist()

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ArgumentError(
                f"the truth of a tensor of shape {self.shape} is ambiguous; use any() or all()"
            )
        return bool(self._data())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        value = self.item()
        if type(value) is not int:
            raise ArgumentError(f"only an integer tensor can be an index, not {self.describe()}")
        return value

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentError("a 0-d tensor has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise ArgumentError("a 0-d tensor cannot be iterated over")
        return (self[i] for i in range(self.shape[0]))

    # ------------------------------------------------------------------ gradients

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded; the inverse of `stop_gradient`."""
        if self._view is not None:
            engine.refresh(self)
        return bool(self._keys & AUTOGRAD)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        engine.set_requires_grad(self, value)

    @property
    def stop_gradient(self) -> bool:
        """Whether operations on this tensor are not recorded (Paddle's word)."""
        return not self.requires_grad

    @stop_gradient.setter
    def stop_gradient(self, value: bool) -> None:
        engine.set_requires_grad(self, not value)

    def requires_grad_(self, value: bool = True) -> Tensor:
        """Set `requires_grad` and return the tensor itself."""
        engine.set_requires_grad(self, value)
        return self

    @property
    def grad(self) -> Tensor | None:
        """The accumulated gradient of a leaf (or of a tensor that retains it), or None.

        The gradient of a complex tensor is dL/dRe + i dL/dIm.
        """
        meta = self.autograd_meta
        if meta is None:
            return None
        if isinstance(meta.grad_node, AccumulationNode):
            return meta.grad_node.grad  # type: ignore[no-any-return]
        return meta.retained[0] if meta.retained is not None else None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        engine.set_grad(self, value)

    @property
    def grad_fn(self) -> GradNode | None:
        """The node that produced this tensor; None for a leaf."""
        if self._view is not None:
            engine.refresh(self)
        meta = self.autograd_meta
        if meta is None or isinstance(meta.grad_node, AccumulationNode):
            return None
        return meta.grad_node

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation produced this tensor."""
        return self.grad_fn is None

    @property
    def inplace_version(self) -> int:
        """Number of declared writes to the storage so far."""
        return self._storage.version

    def backward(
        self,
        grad_tensor: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
    ) -> None:
        """Accumulate the gradient of this tensor into the leaves it was computed from.

        Parameters
        ----------
        grad_tensor : Tensor, optional
            Incoming gradient of this tensor's shape; ones by default (required if complex).
        retain_graph : bool, optional
            Keep saved values for another run; defaults to `create_graph`.
        create_graph : bool
            Record the gradient computation itself, for higher derivatives.

        Raises
        ------
        AutogradError
            If the tensor does not require grad, or the graph was released before.
        """
        engine.backward_from(self, grad_tensor, retain_graph, create_graph)

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> HookHandle:
        """Call ``hook(grad)`` once per run with the summed gradient; a return value replaces it.

        A hook that refers to its own tensor makes a cycle only the garbage collector frees.
        """
        return engine.register_hook(self, hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> HookHandle:
        """Call ``hook(leaf)`` after ``.grad`` of this leaf was written by a backward run."""
        return engine.register_post_accumulate_grad_hook(self, hook)

    def retain_grads(self) -> None:
        """Keep the gradient of this non-leaf in ``.grad``; it accumulates like a leaf's."""
        engine.retain_grads(self)

    def clear_grad(self, set_to_zero: bool = False) -> None:
        """Drop ``.grad``, or write zeros into it with ``set_to_zero=True``."""
        if set_to_zero and self.grad is not None:
            self.grad.zero_()
        else:
            engine.set_grad(self, None)

    # ------------------------------------------------------------------ text

    def describe(self) -> str:
        """Return type and place in short: ``"f32[2, 3]"``, ``"f32[2] npu"``."""
        shape = ", ".join(map(str, self.shape))
        device = self.device
        where = "" if device == CPU_DEVICE else f" {device}"
        fake = " fake" if self._keys & META and device.type != "meta" else ""
        return f"{short_dtype(self.dtype)}[{shape}]{where}{fake}"

    def __repr__(self) -> str:
        suffix = ", requires_grad=True" if self.requires_grad else ""
        if self._keys & (META | INTERPRETER):
            return f"Tensor({self._kind()}{suffix})"
        array = self._data()
        text = np.array2string(array, separator=", ", prefix="Tensor(")
        if array.dtype not in (np.float64, np.int64, np.bool_, np.complex128) or 0 in array.shape:
            suffix = f", dtype={array.dtype}{suffix}"
        return f"Tensor({text}{suffix})"

    def _kind(self) -> str:
        """Return what stands for the values of a tensor that has none to show."""
        text = f"{short_dtype(self.dtype)}[{', '.join(map(str, self.shape))}]"
        if self._keys & INTERPRETER:
            return f"{type(self.array).__name__}, {text}"
        device = self.device
        return f"meta, {text}" if device.type == "meta" else f"fake, {text}, device={device}"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and not self.shape else format(repr(self), spec)

    __hash__ = object.__hash__


operator_hooks.tensor = Tensor


# ---------------------------------------------------------------------- making tensors


blank_tensor: Final[Callable[[], Tensor]] = type.__call__.__get__(Tensor)
"""Makes a Tensor whose every slot is still to be set."""


def tensor_from_result(array: Any) -> Tensor:
    """Return a Tensor for an array that a kernel has just allocated."""
    tensor = blank_tensor()
    tensor.array = array
    tensor.autograd_meta = None
    tensor._view = None
    if type(array) is _ndarray:
        tensor._keys = CPU
        tensor._storage = new_storage()
    else:
        tensor._keys = ARRAY_TYPES[type(array)].key(array)
        storage = getattr(array, "storage", None)
        tensor._storage = storage if storage is not None else new_storage()
    return tensor


def tensor_from_array(array: Any) -> Tensor:
    """Return a Tensor that shares memory with an array from outside."""
    tensor = tensor_from_result(array)
    if getattr(array, "storage", None) is None:
        tensor._storage = storage_of_array(array)
    return tensor


def weak_scalar(value: Any) -> Tensor:
    """Return the 0-d tensor of a Python number; it does not take part in promotion (NEP 50)."""
    tensor = blank_tensor()
    tensor.array = np.array(value)
    if tensor.array.dtype.kind == "O":
        raise ArgumentError(f"the number {value} does not fit any dtype")
    tensor._keys = WEAK
    tensor.autograd_meta = None
    tensor._view = None
    tensor._storage = new_storage()
    return tensor


def alias_of(base: Tensor, array: Any) -> Tensor:
    """Return a handle on `base`'s storage without history: it starts a family of its own."""
    tensor = blank_tensor()
    tensor.array = array
    tensor._keys = base._keys & ~(AUTOGRAD | VIEW)
    tensor.autograd_meta = None
    tensor._view = None
    tensor._storage = base._storage
    return tensor


# Note [Strangers]
# ~~~~~~~~~~~~~~~~
# Two handles on one buffer that are no views of each other (one came from `detach`, or both from
# one ndarray) do not share a history. A write through one is refused while the other requires grad;
# after a recorded write to one, the other must not pass as a constant. The Storage knows its
# families as soon as there are several; a handle alone on its buffer never pays.


def stranger_of(base: Tensor, array: Any) -> Tensor:
    """Return a handle on `base`'s storage that is detached from its history, and known to be."""
    tensor = alias_of(base, array)
    if base._keys & AUTOGRAD:
        join_family(base)
    introduce(base)
    settle_apart(tensor).detached = True
    return tensor


def introduce(tensor: Tensor) -> None:
    """Note on its Storage that a tensor, or its family, is there."""
    record = tensor._view
    known: weakref.ref[Any] = weakref.ref(tensor if record is None else record.family)
    storage = tensor._storage
    if not storage.strangers:
        storage.strangers = [known]
    elif not any(ref is known for ref in storage.strangers):  # == would compare elements
        storage.strangers = [*(ref for ref in storage.strangers if ref() is not None), known]


def settle_apart(tensor: Tensor) -> Family:
    """Make a tensor the root of a family that its Storage knows, apart from all others there."""
    family = join_family(tensor)
    introduce(tensor)
    return family


def view_of(base: Tensor, array: Any, opaque: str = "") -> Tensor:
    """Return a view handle: it shares `base`'s storage and belongs to its family."""
    tensor = alias_of(base, array)
    family = join_family(base)
    record = base._view
    assert record is not None
    no_grad = record.no_grad or not _state.current().user & AUTOGRAD
    tensor._view = new_view_record(family, no_grad, record.opaque or opaque)
    tensor._view.epoch = record.epoch
    tensor._keys |= VIEW
    return tensor


def join_family(base: Tensor) -> Family:
    """Return the family of `base`, making it the root of a new one if it has none."""
    record = base._view
    if record is None:
        root = base.autograd_meta if base._keys & AUTOGRAD else None
        family = Family(root, base.array, base._keys & ~(AUTOGRAD | VIEW))
        base._view = record = new_view_record(family)
        base._keys |= VIEW
        if not base._storage.strangers:
            base._storage.strangers = ()  # every write through a view asks; a slot answers at once
    return record.family


def leaf_meta_of(tensor: Tensor) -> AutogradMeta:
    """Return a fresh leaf record for a tensor."""
    if not is_inexact(tensor.dtype):
        raise AutogradError(
            f"only float and complex tensors can require grad; this one is {tensor.describe()}; "
            "cast it first"
        )
    return new_leaf_meta(tensor.shape, tensor.dtype, tensor)
