"""Dtypes and devices: NumPy's dtypes under their names, short names, torch's words, `Device`.

A dtype in oplib *is* a `numpy.dtype`; this module only translates names. Promotion is
`numpy.result_type` and lives where arrays are known. Names of the optional package ``ml_dtypes``
(``bfloat16``, ``float8_*``) are names here; turning one into a dtype imports the package.

Imports `errors.py` and `_text.py`.
"""

from __future__ import annotations

import importlib
import re
from functools import total_ordering
from typing import Any, Final

import numpy as np

from ._record import record
from ._text import did_you_mean, short_repr
from .errors import ArgumentError

__all__ = [
    "DTYPE_NAMES",
    "Device",
    "as_device",
    "as_dtype",
    "dtype_name",
    "is_device_name",
    "is_inexact",
    "register_device_type",
    "short_dtype",
]

_SHORT: Final = {
    "bool": "bool",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "c64",
    "complex128": "c128",
}
_ML_DTYPES: Final = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
DTYPE_NAMES: Final = frozenset(_SHORT) | frozenset(_ML_DTYPES)
"""Canonical names a schema may use for a `ScalarType`."""

TORCH_DTYPE_WORDS: Final = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
    "cfloat": "complex64",
    "cdouble": "complex128",
}
"""Torch's short words, which keep torch's meaning inside a schema."""

_FROM_SHORT: Final = {short: name for name, short in _SHORT.items()}
_PYTHON_TYPES: Final = {float: "float64", int: "int64", bool: "bool", complex: "complex128"}
_DEVICE: Final = re.compile(r"([a-z_][a-z0-9_]*)(?::(0|[1-9][0-9]*))?")
_device_types: set[str] = {"cpu", "meta", "cuda", "xpu", "npu", "mps", "hpu", "xla", "tpu", "mtia"}


def as_dtype(value: Any) -> np.dtype[Any]:
    """Return the `numpy.dtype` that `value` names.

    Accepts a dtype, a NumPy scalar class, its name (``"float32"``, ``"f32"``), or the Python types
    ``float``, ``int``, ``bool``, ``complex`` with NumPy's meaning.

    Raises
    ------
    ArgumentError
        For anything else, and for a name of ``ml_dtypes`` when that package is missing.
    """
    if isinstance(value, np.dtype):
        return value
    if isinstance(value, str):
        name = _FROM_SHORT.get(value, value)
        if name in _ML_DTYPES:
            extended: np.dtype[Any] = np.dtype(getattr(_ml_dtypes(name), name))
            return extended
        if name in DTYPE_NAMES:
            return np.dtype(name)
        raise ArgumentError(f"{value!r} is not a dtype name{did_you_mean(value, DTYPE_NAMES)}")
    if isinstance(value, type):
        if value in _PYTHON_TYPES:
            return np.dtype(_PYTHON_TYPES[value])
        if issubclass(value, np.generic) or value.__module__.startswith("ml_dtypes"):
            return np.dtype(value)
    raise ArgumentError(f"expected a dtype or its name, got {short_repr(value)}")


def _ml_dtypes(name: str) -> Any:
    try:
        return importlib.import_module("ml_dtypes")
    except ImportError as error:
        raise ArgumentError(f"dtype {name!r} needs ml_dtypes: pip install ml_dtypes") from error


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the canonical name, for example ``"float32"``."""
    return dtype.name


def short_dtype(dtype: np.dtype[Any]) -> str:
    """Return the short name used in messages and graphs, for example ``"f32"``."""
    return _SHORT.get(dtype.name, dtype.name)


def is_inexact(dtype: np.dtype[Any]) -> bool:
    """Return whether tensors of `dtype` can require grad: float or complex."""
    return dtype.kind in "fc" or (dtype.kind == "V" and dtype.name in _ML_DTYPES)


@total_ordering
@record
class Device:
    """Where a tensor lives: a device type and an optional index; prints as ``npu:0``."""

    type: str
    index: int | None = None

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Device):
            return NotImplemented
        places = [(d.type, -1 if d.index is None else d.index) for d in (self, other)]
        return places[0] < places[1]

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"


CPU: Final = Device("cpu")
META: Final = Device("meta")


def as_device(value: Any) -> Device:
    """Return the `Device` that `value` (a Device or a string such as ``"npu:0"``) names."""
    if isinstance(value, Device):
        return value
    if isinstance(value, str):
        match = _DEVICE.fullmatch(value)
        if match and match[1] in _device_types:
            return Device(match[1], None if match[2] is None else int(match[2]))
        hint = did_you_mean(value.partition(":")[0], _device_types)
        hint = _cast_hint(value) or f"{hint}; known: {_known_devices()}"
        raise ArgumentError(f"{value!r} is not a device{hint}")
    raise ArgumentError(
        f"expected a Device or its name, got {short_repr(value)}{_cast_hint(value)}"
    )


def _cast_hint(value: Any) -> str:
    """Return what to do instead, if a dtype was given for a device."""
    try:
        return f"; it is a dtype: x.cast({dtype_name(as_dtype(value))!r})"
    except ArgumentError:
        return ""


def is_device_name(text: str) -> bool:
    """Return whether `text` names a device of a known type."""
    match = _DEVICE.fullmatch(text)
    return match is not None and match[1] in _device_types


def register_device_type(name: str) -> None:
    """Make `name` a known device type (a backend does this)."""
    _device_types.add(name)


def _known_devices() -> str:
    return ", ".join(sorted(_device_types))
