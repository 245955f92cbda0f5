"""Source that repeats one failing call: what a failure ends with.

Small arrays are written out, others drawn from a seed; layouts and shared memory are built again.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import numpy as np

from ..dtypes import dtype_name
from ..tensor.storage import owner_of
from ..tensor.tensor import Tensor
from .calls import Call
from .compare import Array
from .memory import address_of

__all__ = ["reproduction"]


LITERAL_LIMIT: Final = 64
"""Arrays up to this many elements are written out; larger ones are drawn from a seed."""


def reproduction(call: Call, check: str) -> str:
    """Return source that builds the arguments of a call and runs one check on it.

    It imports the module that defines what is checked; what a script defines has to stand above.
    """
    subject = call.subject
    modules = {subject.module, *(_home(leaf) for _, leaf in call.leaves)}
    own = sorted(m for m in modules if m and m != "__main__" and m.partition(".")[0] != "oplib")
    lines = [f"import {module}" for module in ["numpy as np", "oplib", *own]]
    lines.append("from oplib.testing import opcheck")
    if "__main__" in modules:
        lines.append(f"# below the script that defines {subject.name}")
    names: dict[int, str] = {}
    buffers: dict[int, str] = {}
    for name, tensor in call.tensors:
        if id(tensor) in names or not isinstance(tensor.array, np.ndarray):
            continue
        variable = "".join(c if c.isalnum() else "_" for c in name).strip("_")
        names[id(tensor)] = variable
        lines += _array_lines(variable, tensor.array, buffers)
    args = ", ".join(_source(value, names) for value in call.args)
    args = f"({args},)" if len(call.args) == 1 else f"({args})"
    kwargs = ", ".join(f"{name!r}: {_source(v, names)}" for name, v in call.kwargs.items())
    given = repr(subject.name) if subject.layer is None else _path(subject.layer)
    lines.append(
        f"opcheck({given}, {args}, {{{kwargs}}}, checks={check!r}, samples=0)"
        if kwargs
        else f"opcheck({given}, {args}, checks={check!r}, samples=0)"
    )
    return "\n".join(lines)


def _home(value: Any) -> str:
    """Return the module that must be imported to write a value down."""
    return type(value).__module__ if isinstance(value, enum.Enum) else ""


def _path(kind: type) -> str:
    """Return how a class is written after its module was imported."""
    return (
        kind.__qualname__
        if kind.__module__ == "__main__"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _source(value: Any, names: dict[int, str]) -> str:
    if isinstance(value, Tensor):
        return f"oplib.from_numpy({names[id(value)]})" if id(value) in names else "<fake>"
    if isinstance(value, list):
        return f"[{', '.join(_source(v, names) for v in value)}]"
    if isinstance(value, tuple):
        inner = ", ".join(_source(v, names) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k!r}: {_source(v, names)}' for k, v in value.items())}}}"
    if isinstance(value, np.random.Generator):
        return "np.random.default_rng(0)"
    if isinstance(value, np.dtype):
        return f"np.dtype({value.name!r})"
    if isinstance(value, enum.Enum):
        return f"{_path(type(value))}.{value.name}"
    return _number(value)


def _number(value: Any) -> str:
    """Return the source of a scalar; NaN and infinities have no literal."""
    if isinstance(value, float) and not np.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _array_lines(name: str, array: Array, buffers: dict[int, str]) -> list[str]:
    """Return lines that build an array with its layout, in a buffer it may share."""
    owner = owner_of(array)
    shared = buffers.get(id(owner))
    dense = array.flags.c_contiguous and array.base is None and array.flags.writeable
    if shared is None and dense:
        return [f"{name} = {_values(array)}"]
    low, high = np.lib.array_utils.byte_bounds(owner if isinstance(owner, np.ndarray) else array)
    lines = []
    if shared is None:
        shared = buffers[id(owner)] = f"{name}_buffer"
        lines.append(f"{shared} = {_buffer_values(array, int(low), int(high))}")
    offset = address_of(array) - int(low)
    dtype = f"np.dtype({dtype_name(array.dtype)!r})"
    lines.append(
        f"{name} = np.ndarray({array.shape}, {dtype}, {shared}, {offset}, {array.strides})"
    )
    if not array.flags.writeable:
        lines.append(f"{name}.flags.writeable = False")
    return lines


def _values(array: Array) -> str:
    if array.size > LITERAL_LIMIT:
        drawn = f"np.random.default_rng(0).standard_normal({array.shape})"
        return f"{drawn}.astype({dtype_name(array.dtype)!r})"
    text = np.array2string(array, separator=", ", threshold=10**6, floatmode="unique")
    text = " ".join(text.split()).replace("nan", "np.nan").replace("inf", "np.inf")
    text = text if array.size else f"np.zeros({array.shape})"
    return f"np.array({text}, {dtype_name(array.dtype)!r})"


def _buffer_values(array: Array, low: int, high: int) -> str:
    """Return the owning buffer as an array of the view's dtype, if it divides evenly."""
    item = array.itemsize
    if (high - low) % item:
        return f"np.zeros({high - low}, np.uint8)"
    count = (high - low) // item
    if count > LITERAL_LIMIT:
        dtype = dtype_name(array.dtype)
        return f"np.random.default_rng(0).standard_normal({count}).astype({dtype!r})"
    owner = owner_of(array)
    if not isinstance(owner, np.ndarray):
        return f"np.zeros({count}, {dtype_name(array.dtype)!r})"
    flat = owner.ravel(order="K").view(np.uint8).view(array.dtype)
    return _values(flat)
