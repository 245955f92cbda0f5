"""`register_backend`: make another array library one of oplib's.

Everything a backend brings is a row in a table: its arrays' classes and device, the key their
tensors carry, the way to NumPy and back, what happens where it has no kernel. Autograd, shapes and
graphs need nothing else.

Imports floors 0 to 4, `arrays.py`. The last file of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import numpy as np

from .._text import did_you_mean, short_repr
from ..dispatch import ledger
from ..dispatch.facets import Source, Undoable, calling_source
from ..dispatch.keys import (
    BACKENDS,
    CONSTANT,
    DEVICE_BITS,
    PRIVATE_USE,
    canonical_key,
    claim_device,
    key_bit,
    key_name,
    release_device,
)
from ..dispatch.lifting import ADOPTERS, ARRAYS, LIFTERS
from ..dtypes import Device
from ..errors import RegistrationError
from ..prims.arithmetic import FROM_NUMPY
from ..schema import TensorType, register_annotation
from ..tensor.geometry import Geometry
from ..tensor.tensor import (
    ARRAY_TYPES,
    ArrayType,
    Tensor,
    tensor_from_array,
    tensor_from_result,
)
from .arrays import BACKENDS_BY_BIT, Backend

__all__ = ["BackendRegistration", "register_backend"]

_FALLBACKS: Final = ("error", "host")
_sources: Final[dict[str, Source]] = {}


class BackendRegistration(Undoable):
    """The handle `register_backend` returns; ``remove()`` takes the backend out of all tables."""

    __slots__ = ("active", "backend", "source")

    def __init__(self, backend: Backend, source: Source) -> None:
        self.backend = backend
        self.source = source
        self.active = True

    def remove(self) -> None:
        """Undo; tensors of the backend that still exist become unusable."""
        with ledger.lock:
            if self.active:
                self.active = False
                _withdraw(self.backend)

    def __repr__(self) -> str:
        state = "" if self.active else ", removed"
        return f"<backend {self.backend.name!r} at {self.backend.key}, {self.source}{state}>"


def register_backend(
    name: str,
    *,
    array_types: type | Iterable[type],
    to_numpy: Callable[[Any], np.ndarray[Any, Any]],
    from_numpy: Callable[[np.ndarray[Any, Any]], Any],
    dispatch_key: str | None = None,
    fallback: Literal["error", "host"] = "error",
    view: Callable[[Any, Geometry], Any] | None = None,
    assign: Callable[[Any, np.ndarray[Any, Any]], None] | None = None,
) -> BackendRegistration:
    """Register an array library as a backend.

    Its arrays must have ``shape`` and ``strides`` (tuples of int, strides in bytes), ``nbytes``,
    and ``dtype`` (a `numpy.dtype`); one that shares memory with another has that as its ``base``,
    and as ``offset`` the byte of that memory at which it begins.

    Parameters
    ----------
    name : str
        Name of the backend, of its device type, and of its key: ``"npu"``.
    array_types : type or iterable of type
        Its array classes. Functions annotated with them are kernels on arrays.
    to_numpy, from_numpy : callable
        Copies to and from NumPy.
    dispatch_key : str, optional
        ``"PrivateUse1"`` to ``"PrivateUse3"``; by default the first that is free.
    fallback : {"error", "host"}
        Where the backend has no kernel: raise, or copy to NumPy, run the CPU kernel, copy back, and
        warn once per operator.
    view : callable, optional
        ``view(array, geometry)`` returns a view: dtype, shape, strides, and the offset of its first
        element from that of `array`, in bytes. Lets the host fallback serve view operators.
    assign : callable, optional
        ``assign(array, values)`` copies NumPy values into an array, for written arguments under the
        host fallback; by default ``array[...] = from_numpy(values)``.

    Returns
    -------
    BackendRegistration
        Its ``remove()`` undoes all of it.

    Raises
    ------
    RegistrationError
        If the name, the key or an array class belongs to another backend.
    """
    source = calling_source()
    classes = (array_types,) if isinstance(array_types, type) else tuple(array_types)
    _check(name, classes, fallback, {"to_numpy": to_numpy, "from_numpy": from_numpy})
    with ledger.lock:
        _replace_same_source(name, source)
        bit = _free_bit(name, dispatch_key)
        _refuse_taken(name, bit, classes)
        backend = Backend(
            name=name,
            key=key_name(bit),
            bit=bit,
            array_types=classes,
            to_numpy=to_numpy,
            from_numpy=from_numpy,
            device=lambda array: Device(name),
            fallback=fallback,
            view=view,
            assign=assign or _assign_by_item(from_numpy),
        )
        ledger.move_key(name, backend.key)
        _enter(backend, source)
    return BackendRegistration(backend, source)


def _assign_by_item(from_numpy: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    def assign(array: Any, values: np.ndarray[Any, Any]) -> None:
        array[...] = from_numpy(values)

    return assign


# ---------------------------------------------------------------------- checks


def _check(name: str, classes: tuple[type, ...], fallback: str, functions: dict[str, Any]) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name.lower() != name:
        raise RegistrationError(
            f"a backend is named by a lower-case identifier, got {short_repr(name)}"
        )
    if not classes or not all(isinstance(cls, type) for cls in classes):
        raise RegistrationError(f"backend {name!r}: array_types are classes, got {classes!r}")
    if fallback not in _FALLBACKS:
        hint = did_you_mean(str(fallback), _FALLBACKS)
        raise RegistrationError(
            f"backend {name!r}: fallback is 'error' or 'host', got {fallback!r}{hint}"
        )
    for word, function in functions.items():
        if not callable(function):
            raise RegistrationError(
                f"backend {name!r}: {word} must be callable, got {short_repr(function)}"
            )


def _replace_same_source(name: str, source: Source) -> None:
    """Withdraw a backend that the same lines registered before: they are executed anew."""
    known = _sources.get(name)
    if known is not None and known.same_as(source):
        _withdraw(BACKENDS_BY_BIT[DEVICE_BITS[name]])


def _free_bit(name: str, dispatch_key: str | None) -> int:
    """Return the bit a backend gets."""
    if dispatch_key is not None:
        bit = key_bit(canonical_key(dispatch_key))
        if bit not in PRIVATE_USE:
            raise RegistrationError(
                f"backend {name!r}: dispatch_key is PrivateUse1, 2 or 3, got {dispatch_key!r}"
            )
        return bit
    free = [bit for bit in PRIVATE_USE if bit not in BACKENDS_BY_BIT]
    if not free:
        raise RegistrationError(f"backend {name!r}: all backend keys are taken; remove() one")
    return free[0]


def _refuse_taken(name: str, bit: int, classes: tuple[type, ...]) -> None:
    if name in DEVICE_BITS:
        where = f" at {_sources[name]}" if name in _sources else " by oplib itself"
        raise RegistrationError(f"backend {name!r} is registered already{where}; remove() it first")
    if bit in BACKENDS_BY_BIT:
        other = BACKENDS_BY_BIT[bit]
        raise RegistrationError(
            f"backend {name!r}: {other.key} belongs to backend {other.name!r}, "
            f"registered at {_sources[other.name]}"
        )
    for cls in classes:
        if cls in ARRAY_TYPES:
            raise RegistrationError(
                f"backend {name!r}: arrays of class {cls.__name__} belong to another backend"
            )


# ---------------------------------------------------------------------- tables


def _enter(backend: Backend, source: Source) -> None:
    """Fill the tables that lower floors consult."""
    claim_device(backend.name, backend.key)
    BACKENDS_BY_BIT[backend.bit] = backend
    _sources[backend.name] = source
    FROM_NUMPY[backend.name] = backend.from_numpy
    for cls in backend.array_types:
        ARRAY_TYPES[cls] = ArrayType(
            key=lambda array: backend.bit, device=backend.device, to_numpy=backend.to_numpy
        )
        LIFTERS[cls] = _lift
        ARRAYS.add(cls)
        register_annotation(cls, TensorType(), "array")


def _lift(array: Any) -> Tensor:
    """Return the constant that an array beside a Tensor stands for; it shares memory."""
    tensor = tensor_from_array(array)
    tensor._keys |= CONSTANT
    return tensor


def _withdraw(backend: Backend) -> None:
    release_device(backend.name)
    BACKENDS_BY_BIT.pop(backend.bit, None)
    _sources.pop(backend.name, None)
    FROM_NUMPY.pop(backend.name, None)
    for cls in backend.array_types:
        ARRAY_TYPES.pop(cls, None)
        LIFTERS.pop(cls, None)
        ARRAYS.discard(cls)
    for op in ledger.operators():
        op.change_facets(op._stacks)  # plans were made for the backend


def _adopt(constant: Tensor, like: Tensor) -> Tensor:
    """Put a constant beside a tensor of another backend where that tensor lives."""
    backend = BACKENDS_BY_BIT.get(like._keys & BACKENDS)
    if backend is None or constant._keys & backend.bit or not constant._keys & BACKENDS:
        return constant
    source = BACKENDS_BY_BIT[constant._keys & BACKENDS]
    return tensor_from_result(backend.from_numpy(source.to_numpy(constant.array)))


ADOPTERS.append(_adopt)
