"""`compile`: a function that captures itself for every kind of arguments it is called with.

Each kind gets a program, which runs as straight-line kernels (`kernels.py`) where it can: forward
and backward in one node if inputs require grad (`joint.py`). A program that writes into such
inputs, or returns views of them, runs operator by operator, as `Program` does. Inside of modes,
captures, autocast, and on backends other than NumPy the function itself runs.

Imports floors 0 to 5 and the files above.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Generic, ParamSpec, TypeVar

import numpy as np

from .. import _state
from .._tree import flatten, unflatten
from ..autograd.modes import is_grad_enabled
from ..autograd.pylayer import PyLayer
from ..dispatch.keys import AUTOGRAD, CPU, VIEW
from ..errors import ArgumentError, CaptureError, FakeTensorError
from ..functionalize.outcome import (
    InputView,
    LiteralResult,
    Outcome,
    SameResult,
    ValueResult,
    ValueView,
)
from ..functionalize.settle import settle
from ..graph.literals import literal_key
from ..tensor.tensor import Tensor, tensor_from_result
from .capture import capture
from .joint import differentiable
from .kernels import KernelRun, is_compilable, optimized
from .program import Program

__all__ = ["Compiled", "compile"]

P = ParamSpec("P")
R = TypeVar("R")

LIMIT: Final = 8
"""Programs a compiled function keeps."""
_FLAT: Final = frozenset((Tensor, bool, int, float, str, type(None)))
_PLAIN: Final = ~(CPU | AUTOGRAD | VIEW)


class Compiled(Generic[P, R]):
    """A function that runs as captured programs; see `compile`.

    Attributes
    ----------
    function : callable
        What was compiled.
    name : str
    programs : tuple of Program
        The programs it has at the moment, the one used last first.
    """

    def __init__(self, function: Callable[P, R], limit: int) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.limit = limit
        self._entries: list[_Entry] = []
        self._found: dict[Hashable, _Entry] = {}
        self._warned = False
        self._lock = threading.RLock()

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs at hand, the one used last first."""
        return tuple(entry.program for entry in self._entries)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        state = _state.current()
        if state.include or state.stack or state.handled:
            return self.function(*args, **kwargs)
        leaves: Sequence[Any] = args
        structure: Hashable = len(args)  # of a plain call, which has no containers
        if kwargs or not _FLAT.issuperset(map(type, args)):
            leaves, structure = flatten((args, kwargs))
        key = _key(leaves, structure, state)
        if key is None:
            return self.function(*args, **kwargs)
        entry = self._found.get(key)
        if entry is None or not entry.fits(args, kwargs):
            entry = self._entry(key, args, kwargs)
            if entry is None:
                return self.function(*args, **kwargs)  # raises its own error
        return entry.run(leaves)  # type: ignore[no-any-return]

    def _captured(self, args: Any, kwargs: Any) -> Program | None:
        """Return a new program; None if the function raises what it may raise uncompiled too."""
        try:
            return capture(self.function, *args, **kwargs)
        except (CaptureError, FakeTensorError):
            raise
        except Exception:
            return None

    def _entry(self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Entry | None:
        """Return the first program whose guards hold, or a new one."""
        with self._lock:
            self._entries = [entry for entry in self._entries if entry.is_current()]
            entry = next((e for e in self._entries if not e.program.check(*args, **kwargs)), None)
            if entry is None:
                program = self._captured(args, kwargs)
                if program is None:
                    return None
                if len(self._entries) >= self.limit:
                    self._warn(args, kwargs)
                leaves, _ = flatten((args, kwargs))
                entry = _Entry(program, leaves)
            else:
                self._entries.remove(entry)
            self._entries = [entry, *self._entries[: self.limit - 1]]
            kept = set(map(id, self._entries))
            known = {k: e for k, e in self._found.items() if id(e) in kept}
            self._found = {**(known if len(known) < 8 * self.limit else {}), key: entry}
            return entry

    def _warn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._warned:
            self._warned = True
            failed = "; ".join(self._entries[0].program.check(*args, **kwargs)[:3])
            warnings.warn(
                f"compiled {self.name} has {self.limit} programs and captures one more, in "
                f"place of the oldest; the last one does not fit because\n  {failed}\n"
                "  pass what changes as a 0-d tensor, or call oplib.compile with a larger limit=",
                RuntimeWarning,
                stacklevel=4,
            )

    def __repr__(self) -> str:
        return f"<compiled {self.name}: {len(self._entries)} programs>"


def compile(function: Callable[P, R], *, limit: int = LIMIT) -> Compiled[P, R]:
    """Return `function` compiled: captured once per kind of arguments, then run as kernels.

    The result does what the function does: values, gradients, what it writes, which results are
    inputs or views of them. A call whose arguments fit no program captures another one, so Python
    code in the function runs then, and not at later calls. What `capture` refuses, it refuses.

    Parameters
    ----------
    function : callable
    limit : int
        How many programs are kept. Beyond that the oldest goes, and the first time a warning names
        the guard that fails.

    Raises
    ------
    DataDependentError
        At a call, if the function reads the value of a tensor.

    Examples
    --------
    >>> import oplib
    >>> @oplib.compile
    ... def f(x, y):
    ...     return (x * y + 1).exp()
    >>> f(oplib.zeros(2), oplib.ones(2))
    Tensor([2.71828183, 2.71828183])
    >>> f
    <compiled f: 1 programs>
    """
    if not callable(function):
        raise ArgumentError(f"compile takes a function, got {function!r}")
    if type(limit) is not int or limit < 1:
        raise ArgumentError(f"limit is a positive int, got {limit!r}")
    return Compiled(function, limit)


# Which program ------------------------------------------------------------------------------------


def _key(leaves: Sequence[Any], structure: Any, state: _state.State) -> Hashable | None:
    """Return what calls that may share a program have in common; None for one that has none."""
    parts: list[Hashable] = [structure, state.user & AUTOGRAD]
    for leaf in leaves:
        if type(leaf) is Tensor:
            array = leaf.array
            if leaf._keys & _PLAIN or type(array) is not np.ndarray:
                return None
            parts += (array.dtype, array.shape, array.strides, leaf.stop_gradient)
        elif type(leaf) is np.ndarray:
            parts.append((leaf.dtype.str, leaf.shape, leaf.tobytes()))
        else:
            parts.append(literal_key(leaf))
    key = tuple(parts)
    try:
        hash(key)
    except TypeError:
        return None
    return key


class _Entry:
    """One program and how it is run: by kernels, in one node of the autograd graph, or as it is."""

    def __init__(self, program: Program, leaves: Sequence[Any]) -> None:
        self.program = program
        self._ops = list({node.op: node.op._plans for node in program.graph.calls}.items())
        self._layer: type[PyLayer] | None = None
        self._kernels: KernelRun | None = None
        signature, outcome = program.signature, program.outcome
        tensors = [i for i in signature.inputs if i >= 0]
        distinct = tensors == list(range(len(tensors))) and not signature.hidden
        self._places = [i for i, x in enumerate(signature.inputs) if x >= 0] if distinct else None
        self._needs_check = bool(not distinct or signature.written or signature.offsets)
        self._is_plain = _is_plain(outcome)
        if is_compilable(program.graph):
            self._compile(leaves)

    def _compile(self, leaves: Sequence[Any]) -> None:
        outcome = self.program.outcome
        inputs = self.program.signature.inputs_of(leaves, self.program.captured)
        graph = self.program.value_graph()
        results = {r.value: r for r in outcome.records if isinstance(r, ValueResult)}
        strides = [
            results[i].form.strides if i in results else value.tensor.strides
            for i, value in enumerate(graph.output.results)
        ]
        recording = is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
        if not _has_history(outcome) and (self._is_plain or not recording):
            if not outcome.gradients and not outcome.flags:
                self._kernels = KernelRun(optimized(graph), strides)
        elif self._is_plain and len(set(graph.output.results)) == len(results) > 0:
            flags = [results[i].requires_grad for i in range(len(results))]
            self._layer = differentiable(graph, inputs, strides, flags)

    def is_current(self) -> bool:
        """Return whether no registration has changed what the operators of the graph do."""
        return all(op._plans is plans for op, plans in self._ops)

    def fits(self, args: Any, kwargs: Any) -> bool:
        """Return whether the guards hold that the key of a call says nothing about."""
        return self.is_current() and not (self._needs_check and self.program.check(*args, **kwargs))

    def run(self, leaves: Sequence[Any]) -> Any:
        """Run the program on arguments that fit it."""
        if self._kernels is None and self._layer is None:
            return self.program.run(leaves)
        signature, outcome = self.program.signature, self.program.outcome
        if self._places is not None:
            inputs = [leaves[place] for place in self._places]
        else:
            inputs = signature.inputs_of(leaves, self.program.captured)
        values: Any
        if self._layer is not None:
            values = self._layer.apply(*inputs)
            values = (values,) if type(values) is Tensor else values
        else:
            given = signature.with_spans(inputs) if signature.spans else inputs
            arrays = self._kernels([tensor.array for tensor in given])  # type: ignore[misc]
            values = list(map(tensor_from_result, arrays))
        if not self._is_plain:
            return settle(outcome, inputs, values)
        found: list[Any] = []
        for record in outcome.records:
            if type(record) is ValueResult:
                found.append(values[record.value])
            elif type(record) is SameResult:
                found.append(found[record.result])
            else:
                found.append(record.value)  # type: ignore[union-attr]
        return unflatten(outcome.structure, iter(found))


def _is_plain(outcome: Outcome) -> bool:
    """Return whether a run stores nothing and returns values only, each once."""
    records = outcome.records
    if any(not isinstance(r, ValueResult | SameResult | LiteralResult) for r in records):
        return False
    values = [record.value for record in records if isinstance(record, ValueResult)]
    stores = outcome.writes or outcome.versions or outcome.gradients or outcome.flags
    return (
        not (stores or outcome.rebindings)
        and len(set(values)) == len(values)
        and not outcome.extras
    )


def _has_history(outcome: Outcome) -> bool:
    """Return whether a result requires grad or remembers what did."""
    return any(
        record.requires_grad if isinstance(record, ValueResult) else record.past.requires_grad
        for record in outcome.places
        if isinstance(record, ValueResult | ValueView | InputView)
    )
