"""`recompute`: a function whose intermediate values are computed again in backward, not kept.

The first run is recorded as usual, but a pack hook keeps an empty `_Place` for every tensor that
would be saved. The first place that is read in a backward run has the function run again, and what
it saves fills the places in order. The graph is the ordinary one, so captured parameters, higher
derivatives and nesting need nothing of their own. Inputs are saved by way of the hooks outside: an
outer region does not keep those of an inner one.

Imports floors 0 to 4, `engine.py`, `wrapper.py`.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from .. import _state
from .._text import short_repr
from .._tree import flatten, leaves, unflatten
from ..dispatch.keys import AUTOGRAD, INTERPRETER, SAVED_TENSOR_HOOKS
from ..errors import ArgumentError, AutogradError
from ..tensor.grad_meta import GradNode, NodeKind
from ..tensor.tensor import Tensor
from .engine import Run
from .wrapper import Record, TensorWrapper, recover, save

__all__ = ["recompute"]

T = TypeVar("T")


def recompute(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call a function, and keep only its inputs for backward: the rest is computed again there.

    Also known as activation checkpointing. Each backward run that needs the values runs the
    function once more, under the grad mode, autocast policy and random state of the first run: that
    of NumPy's and Python's global generators, and of every generator among the arguments.

    Parameters
    ----------
    function : callable
        Must compute the same when run again. It may use captured tensors, parameters say.
    *args, **kwargs
        Tensors at any depth of lists, tuples and dicts, and anything else.

    Raises
    ------
    AutogradError
        If the function wrote to an argument; in backward, if it did not compute the same again, or
        an argument was written to in between.

    Examples
    --------
    >>> import oplib
    >>> x = oplib.tensor([1.0, 2.0], requires_grad=True)
    >>> y = oplib.autograd.recompute(lambda x: (x * x).exp(), x)
    >>> y.sum().backward()
    >>> x.grad
    Tensor([  5.43656366, 218.39260013])
    """
    if not callable(function):
        raise ArgumentError(f"recompute takes a function, got {short_repr(function)}")
    state = _state.current()
    if not state.mask & AUTOGRAD:
        return function(*args, **kwargs)
    region = _Region(function, (args, kwargs), state)
    with region.running(region.keep, region.fill):
        result = function(*args, **kwargs)
    region.finish(result)
    return result


class _Place:
    """Stands for one tensor that the first run would have saved."""

    __slots__ = ("__weakref__",)


class _Input(NamedTuple):
    """A tensor argument, saved."""

    record: Record
    tracked: bool


_Filled: TypeAlias = weakref.WeakKeyDictionary[_Place, Record]


class _Region:
    """One call of `recompute`: what it takes to run the function again."""

    def __init__(self, function: Any, arguments: Any, state: _state.State) -> None:
        self.function = function
        self.node = GradNode()  # names this call in messages
        name = getattr(function, "__qualname__", type(function).__name__)
        self.node.kind = NodeKind(f"recompute({name})", _Region)
        self.state = state.with_config(backward_run=None)
        flat, self.tree = flatten(arguments)
        self.versions = [(t._storage, t._storage.version) for t in flat if isinstance(t, Tensor)]
        self.inputs = [
            _Input(save(leaf), leaf.requires_grad) if isinstance(leaf, Tensor) else leaf
            for leaf in flat
        ]
        self.random = [get() for get, _ in _generators(flat)]
        self.places: list[tuple[weakref.ref[_Place], Any]] = []
        self.samples: list[_Sample] | None = None
        # What fills the places belongs to a run, and each value to the node it is for.
        self.filled: weakref.WeakKeyDictionary[Run, _Filled] = weakref.WeakKeyDictionary()

    def running(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> Any:
        """Return the context the function runs in: that of the first run, with saving diverted."""
        now, first = _state.current(), self.state
        include = now.include & INTERPRETER | first.include & ~INTERPRETER | SAVED_TENSOR_HOOKS
        state = _state.State(include, first.user, now.handled, now.stack, first.config)
        return _state.enter(state.with_config(saved_tensors_hooks=(pack, unpack)))

    def keep(self, tensor: Tensor) -> _Place:
        """Make a place for a tensor of the first run."""
        place = _Place()
        self.places.append((weakref.ref(place), (tensor.shape, tensor.dtype)))
        return place

    def finish(self, result: Any) -> None:
        """Note what the function returned, after checking that it wrote to no argument."""
        for storage, version in self.versions:
            if storage.version != version:
                raise AutogradError(
                    f"{self.node.name()}: the function wrote to one of its arguments, last by "
                    f"{storage.writer}; run again, it would start from the written value\n"
                    "  write to a copy: x.clone()"
                )
        self.samples = _samples(result)

    def fill(self, place: _Place) -> Tensor:
        """Return the tensor of a place, running the function again if this run has not yet."""
        run = _state.current().config.get("backward_run")
        filled = None if run is None else self.filled.get(run)
        if filled is None or place not in filled:
            filled = self.again()
            if run is not None:
                self.filled[run] = filled
        return recover(filled[place], self.node, None, "an intermediate value")

    def again(self) -> _Filled:
        """Run the function again and return what it saves."""
        filled: _Filled = weakref.WeakKeyDictionary()
        count = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal count
            if count < len(self.places):
                place, spec = self.places[count]
                if spec != (tensor.shape, tensor.dtype):
                    raise self.differs(f"saves {tensor.describe()} as value {count}")
                own = place()
                if own is not None:
                    storage = tensor._storage
                    filled[own] = TensorWrapper(
                        tensor.array, storage, storage.version, tensor._keys
                    )
            count += 1
            return tensor

        flat = [self.argument(leaf) if isinstance(leaf, _Input) else leaf for leaf in self.inputs]
        args, kwargs = unflatten(self.tree, iter(flat))
        generators = list(_generators(flat))
        now = [get() for get, _ in generators]
        try:
            for (_, put), state in zip(generators, self.random, strict=True):
                put(state)
            with self.running(pack, lambda tensor: tensor):
                samples = _samples(self.function(*args, **kwargs))
        finally:
            for (_, put), state in zip(generators, now, strict=True):
                put(state)
        if self.samples is not None:  # else the function itself runs backward
            self.compare(count, self.samples, samples)
        return filled

    def argument(self, saved: _Input) -> Tensor:
        """Return a tensor argument for the second run: a leaf, whose history is the first run's."""
        tensor = recover(saved.record, self.node, None, "an argument")
        return tensor.requires_grad_() if saved.tracked else tensor

    def compare(self, count: int, first: list[_Sample], again: list[_Sample]) -> None:
        """Raise unless the second run did what the first did."""
        if count != len(self.places):
            raise self.differs(f"saves {count} tensors, not {len(self.places)}")
        if len(first) != len(again):
            raise self.differs(f"returns {len(again)} tensors, not {len(first)}")
        for index, (sample, other) in enumerate(zip(first, again, strict=True)):
            if not _agree(sample, other):
                raise self.differs(f"returns another value as output {index}")

    def differs(self, what: str) -> AutogradError:
        return AutogradError(
            f"{self.node.name()}: run again in backward, the function {what}\n"
            "  it must compute the same: pass random generators as arguments, and change no "
            "captured tensor before backward"
        )


def _generators(flat: list[Any]) -> Iterator[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Yield how to get and put the state of every random generator a function may draw from."""
    yield random.getstate, random.setstate
    yield partial(np.random.get_state, legacy=False), np.random.set_state
    for leaf in flat:
        if isinstance(leaf, np.random.Generator):
            bits = leaf.bit_generator
            yield partial(getattr, bits, "state"), partial(setattr, bits, "state")
        elif isinstance(leaf, np.random.RandomState):
            yield leaf.get_state, leaf.set_state
        elif isinstance(leaf, random.Random):
            yield leaf.getstate, leaf.setstate


_Sample: TypeAlias = tuple[Any, Any, Any]


def _samples(result: Any) -> list[_Sample]:
    """Return what two runs are compared by: of every tensor shape, dtype and some values."""
    found = []
    for tensor in leaves(result):
        if isinstance(tensor, Tensor):
            has_values = type(tensor.array) is np.ndarray
            values = tensor.array.flat[:: max(1, tensor.size // 64)] if has_values else None
            found.append((tensor.shape, tensor.dtype, values))
    return found


def _agree(first: _Sample, again: _Sample) -> bool:
    """Return whether two samples are equal up to rounding."""
    a, b = first[2], again[2]
    if first[:2] != again[:2] or a is None or b is None:
        return first[:2] == again[:2]
    eps = np.finfo(a.dtype).eps if a.dtype.kind in "fc" else 2**-8 if a.dtype.kind == "V" else 0
    scale = np.abs(a[np.isfinite(a)]).max(initial=0)
    return np.allclose(a, b, rtol=0, atol=16 * eps * scale, equal_nan=True)
