"""`estimate`: what a program would allocate and call, found on fakes.

Imports floors 0 to 4, `mode.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from .._tree import tree_map
from ..dispatch.interpreter import DispatchMode
from ..dispatch.lifting import tensor_leaves
from ..dispatch.operator import Operator
from ..tensor.storage import Storage
from ..tensor.tensor import Tensor
from .mode import FakeTensorMode

__all__ = ["Estimate", "OperatorCost", "estimate"]


class OperatorCost(NamedTuple):
    """What the calls of one operator allocate."""

    calls: int
    nbytes: int


class Estimate(NamedTuple):
    """What a call of a program costs; prints as a table.

    Attributes
    ----------
    peak_bytes : int
        The most bytes of results of operators that are alive at one time, beside the arguments.
    argument_bytes : int
        Bytes of the memory behind the arguments, each storage once.
    operators : dict
        Calls and allocated bytes by qualified name, most bytes first.
    """

    peak_bytes: int
    argument_bytes: int
    operators: dict[str, OperatorCost]

    def __str__(self) -> str:
        rows = [("operator", "calls", "bytes")]
        rows += [(name, f"{c.calls:,}", f"{c.nbytes:,}") for name, c in self.operators.items()]
        width = max(len(name) for name, _, _ in rows)
        lines = [f"{name:{width}} {calls:>8} {nbytes:>16}" for name, calls, nbytes in rows]
        return "\n".join(
            [
                f"peak {self.peak_bytes:,} bytes beside {self.argument_bytes:,} of arguments",
                *lines,
            ]
        )


def estimate(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Estimate:
    """Return what ``function(*args, **kwargs)`` would allocate and call; no kernel runs.

    A result counts from the call that makes it until nothing holds it: handles, views and values
    saved for backward do. What a kernel uses while it runs is not seen.

    Parameters
    ----------
    function : callable
        Runs on fakes; tensors it closes over are converted.
    *args, **kwargs
        Tensors, real or on device ``"meta"``, in any nesting, and plain values.

    Raises
    ------
    DataDependentError
        If the function reads a value, or a size depends on data.

    Examples
    --------
    >>> import oplib
    >>> x = oplib.zeros(1000, 1000, device="meta")
    >>> oplib.meta.estimate(lambda x: (x * 2).sum(), x).peak_bytes
    8000008
    """
    mode = FakeTensorMode(allow_real=True)

    def fake(leaf: Any) -> Any:
        return mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf

    inputs = tree_map(fake, [args, kwargs])
    counter = _Counter()
    with mode, counter:
        function(*inputs[0], **inputs[1])
    spans = {t._storage: t for t in tensor_leaves(inputs)}
    found = sorted(counter.operators.items(), key=lambda item: -item[1].nbytes)
    return Estimate(counter.peak, sum(map(_storage_bytes, spans.values())), dict(found))


def _storage_bytes(tensor: Tensor) -> int:
    array = tensor.array
    known: int | None = array.nbytes
    return array.size * array.dtype.itemsize if known is None else known


class _Counter(DispatchMode):
    """Counts calls, and the bytes of the storages they make until each dies."""

    def __init__(self) -> None:
        self.operators: dict[str, OperatorCost] = {}
        self.alive: dict[int, weakref.ref[Storage]] = {}
        self.live = self.peak = 0

    def handle(self, op: Operator[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = op(*args, **kwargs)
        given = {t._storage for t in tensor_leaves([args, kwargs])}
        fresh = {t._storage: t for t in tensor_leaves([result]) if t._storage not in given}
        allocated = sum([self.allocate(tensor) for tensor in fresh.values()])
        calls, nbytes = self.operators.get(op.qualname, (0, 0))
        self.operators[op.qualname] = OperatorCost(calls + 1, nbytes + allocated)
        return result

    def allocate(self, tensor: Tensor) -> int:
        """Count a new storage until it dies, and return its size."""
        storage, nbytes = tensor._storage, tensor.size * tensor.dtype.itemsize

        def free(_: object, key: int = id(storage)) -> None:
            del self.alive[key]
            self.live -= nbytes

        self.alive[id(storage)] = weakref.ref(storage, free)
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        return nbytes
