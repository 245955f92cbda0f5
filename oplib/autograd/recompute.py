"""`recompute`: a function whose intermediate values are computed again in backward, not kept.

Note [Recomputing]
~~~~~~~~~~~~~~~~~~
The function runs once and is recorded as usual, except that a pack hook keeps an empty `_Place` for
every tensor that would be saved. The first place that is read in a backward run has the function
run again; what it would save, in the same order, fills the places. So captured parameters, higher
derivatives and nesting need nothing of their own: the graph is the ordinary one. The inputs are
saved the way a node saves them, by way of the hooks outside, which is how an inner region's inputs
are not kept by an outer one. What fills the places belongs to the run and dies with it, each value
as soon as the node it is for was released.

Imports floors 0 to 4, `modes.py`, `wrapper.py`, `engine.py`, `hooks.py`.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import numpy as np

from .. import _state
from .._text import short_repr
from .._tree import flatten, leaves, unflatten
from ..dispatch.keys import AUTOGRAD, INTERPRETER, META, SAVED_TENSOR_HOOKS
from ..errors import ArgumentError, AutogradError
from ..tensor.grad_meta import GradNode, NodeKind
from ..tensor.tensor import Tensor
from .engine import Run
from .wrapper import Record, TensorWrapper, recover, save

__all__ = ["recompute"]

T = TypeVar("T")


def recompute(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call a function, and keep only its inputs for backward: the rest is computed again there.

    Also known as activation checkpointing: memory for time. The function runs once more in each
    backward run that needs its values, under the grad mode, autocast and settings of the first run
    and with the random state of then: that of NumPy's and Python's global generators, and of every
    generator among the arguments.

    Parameters
    ----------
    function : callable
        Must compute the same when run again. It may use captured tensors, parameters say.
    *args, **kwargs
        Its arguments: tensors at any depth of lists, tuples and dicts, and anything else.

    Returns
    -------
    object
        What the function returned.

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
    region = _Region(function, args, kwargs, state)
    with region.running(region.keep, region.fill):
        result = function(*args, **kwargs)
    region.finish(result)
    return result


class _Place:
    """Stands for one tensor that the first run would have saved."""

    __slots__ = ("__weakref__", "region")

    def __init__(self, region: _Region) -> None:
        self.region = region


class _Region:
    """One call of `recompute`: what it takes to run the function again."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        state: _state.State,
    ) -> None:
        self.function = function
        name = getattr(function, "__qualname__", type(function).__name__)
        self.node: GradNode = object.__new__(GradNode)  # names this call in messages
        self.node.kind = NodeKind(f"recompute({name})", _Region)
        self.state = state.with_config(backward_run=None)
        flat, self.tree = flatten((args, kwargs))
        self.versions = [(t._storage, t._storage.version) for t in flat if isinstance(t, Tensor)]
        self.inputs = [_Input(leaf) if isinstance(leaf, Tensor) else leaf for leaf in flat]
        self.random = [get() for get, _ in _generators(flat)]
        self.places: list[weakref.ref[_Place]] = []
        self.specs: list[tuple[Any, Any]] = []
        self.samples: list[Any] | None = None
        self.filled: weakref.WeakKeyDictionary[Run, _Filled] = weakref.WeakKeyDictionary()

    def running(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> Any:
        """Return the context the function runs in: that of the first run, with saving diverted."""
        now, first = _state.current(), self.state
        include = now.include & INTERPRETER | first.include & ~INTERPRETER | SAVED_TENSOR_HOOKS
        state = _state.State(include, first.user, now.handled, now.stack, first.config)
        return _state.enter(state.with_config(saved_tensors_hooks=(pack, unpack)))

    def keep(self, tensor: Tensor) -> _Place:
        """Make a place for a tensor of the first run."""
        place = _Place(self)
        self.places.append(weakref.ref(place))
        self.specs.append((tensor.shape, tensor.dtype))
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
        self.samples = [_sample(leaf) for leaf in leaves(result) if isinstance(leaf, Tensor)]

    def fill(self, place: _Place) -> Tensor:
        """Return the tensor of a place, running the function again if this run has not yet."""
        run = _state.current().config.get("backward_run")
        filled = None if run is None else self.filled.get(run)
        if filled is None or place not in filled:
            filled = self._again()
            if run is not None:
                self.filled[run] = filled
        return recover(filled[place], self.node, None, "an intermediate value")

    def _again(self) -> _Filled:
        """Run the function again and return what it saves."""
        filled: _Filled = weakref.WeakKeyDictionary()
        count = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal count
            if count < len(self.places):
                spec = tensor.shape, tensor.dtype
                if spec != self.specs[count]:
                    raise self._differs(f"saves {tensor.describe()} as value {count}")
                place = self.places[count]()
                if place is not None:
                    storage = tensor._storage
                    record = TensorWrapper(tensor.array, storage, storage.version, tensor._keys)
                    filled[place] = record
            count += 1
            return tensor

        flat = [leaf.again(self.node) if isinstance(leaf, _Input) else leaf for leaf in self.inputs]
        args, kwargs = unflatten(self.tree, iter(flat))
        generators = list(_generators(flat))
        now = [get() for get, _ in generators]
        try:
            for (_, put), state in zip(generators, self.random, strict=True):
                put(state)
            with self.running(pack, lambda tensor: tensor):
                result = self.function(*args, **kwargs)
        finally:
            for (_, put), state in zip(generators, now, strict=True):
                put(state)
        if self.samples is not None:  # else the function itself runs backward
            self._compare(count, result)
        return filled

    def _compare(self, count: int, result: Any) -> None:
        """Raise unless the second run did what the first did."""
        if count != len(self.places):
            raise self._differs(f"saves {count} tensors, not {len(self.places)}")
        samples = [_sample(leaf) for leaf in leaves(result) if isinstance(leaf, Tensor)]
        if len(samples) != len(self.samples or ()):
            raise self._differs(f"returns {len(samples)} tensors, not {len(self.samples or ())}")
        for index, (first, again) in enumerate(zip(self.samples or (), samples, strict=True)):
            if not _agree(first, again):
                raise self._differs(f"returns another value as output {index}")

    def _differs(self, what: str) -> AutogradError:
        return AutogradError(
            f"{self.node.name()}: run again in backward, the function {what}\n"
            "  it must compute the same: pass random generators as arguments, and change no "
            "captured tensor before backward"
        )


_Filled = weakref.WeakKeyDictionary[_Place, Record]


class _Input:
    """A tensor argument, saved."""

    __slots__ = ("record", "tracked")

    def __init__(self, tensor: Tensor) -> None:
        self.tracked = tensor.requires_grad
        self.record = save(tensor)

    def again(self, node: GradNode) -> Tensor:
        """Return the argument for the second run: a leaf, whose history is the first run's."""
        tensor = recover(self.record, node, None, "an argument")
        return tensor.requires_grad_() if self.tracked else tensor


def _generators(
    flat: list[Any],
) -> Iterator[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Yield how to get and put the state of every random generator a function may draw from."""
    yield random.getstate, random.setstate
    yield np.random.get_state, np.random.set_state
    for leaf in flat:
        if isinstance(leaf, np.random.Generator):
            bits = leaf.bit_generator
            yield (lambda bits=bits: bits.state), (lambda s, bits=bits: setattr(bits, "state", s))
        elif isinstance(leaf, np.random.RandomState):
            yield leaf.get_state, leaf.set_state
        elif isinstance(leaf, random.Random):
            yield leaf.getstate, leaf.setstate


_SAMPLED: Final = 64


def _sample(tensor: Tensor) -> Any:
    """Return what two runs are compared by: shape, dtype and some values, if there are any."""
    array = tensor.array
    values = None
    if type(array) is np.ndarray and not tensor._keys & (META | INTERPRETER):
        values = array.flat[:: max(1, array.size // _SAMPLED)]
    return tensor.shape, tensor.dtype, values


def _agree(first: Any, again: Any) -> bool:
    """Return whether two samples are equal up to rounding."""
    if first[:2] != again[:2]:
        return False
    a, b = first[2], again[2]
    if a is None or b is None or np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"):
        return True
    if a.dtype.kind not in "fc":
        return bool((a == b).all())
    limit = 64 * np.finfo(a.dtype).eps * np.nanmax(np.abs(a), initial=0)
    return bool(np.allclose(a, b, rtol=0, atol=limit, equal_nan=True))
