"""What a program was captured for, and whether a call fits: guards.

A program never runs on arguments it was not made for. The guards are checked in one order, and the
first that fails is reported: structure of the arguments, types, literals, dtype, device, shape,
strides, `stop_gradient`, grad mode, gradients that are there already, writability, shared memory.

Imports floors 0 to 4 and `functionalize/`. Read next: `program.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from .. import _state
from .._text import short_repr
from .._tree import TreeDef, flatten, leaf_paths
from ..dispatch.keys import AUTOGRAD
from ..dtypes import short_dtype
from ..functionalize.memory import memory_groups, own_geometry, span_of
from ..functionalize.outcome import Derived, Outcome
from ..functionalize.run import FunctionalRun, memory_around
from ..tensor.storage import is_read_only
from ..tensor.tensor import Tensor

__all__ = ["Signature", "TensorGuard"]


@dataclass(frozen=True, slots=True)
class TensorGuard:
    """What a tensor must be like."""

    dtype: Any
    device: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    stop_gradient: bool

    @classmethod
    def of(cls, tensor: Tensor) -> TensorGuard:
        """Return the guard that `tensor` passes; strides of axes of length one do not count."""
        shape = tensor.shape
        strides = tuple(
            [0 if n == 1 or 0 in shape else s for n, s in zip(shape, tensor.strides, strict=True)]
        )
        return cls(tensor.dtype, tensor.device, shape, strides, tensor.stop_gradient)

    def mismatch(self, found: TensorGuard) -> str:
        """Return the first field in which `found` differs: ``"dtype: expected ..., found ..."``."""
        for name in ("dtype", "device", "shape", "strides", "stop_gradient"):
            expected, value = getattr(self, name), getattr(found, name)
            if expected != value:
                return f"{name}: expected {expected}, found {value}"
        return ""

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        flag = "" if self.stop_gradient else ", requires grad"
        return f"{short_dtype(self.dtype)}[{shape}] strides {self.strides} on {self.device}{flag}"


@dataclass(frozen=True, slots=True)
class Signature:
    """What a program was captured for.

    Attributes
    ----------
    structure : TreeDef
        Of the arguments.
    leaves : tuple
        Per leaf a `TensorGuard` or a literal.
    inputs : tuple of int
        Per leaf, which distinct input it is; -1 for literals.
    captured : tuple of TensorGuard
        Tensors of the enclosing scope.
    hidden : tuple of (Derived or None)
        The inputs that follow the arguments: memory around another input, or the next captured
        tensor.
    offsets : tuple of (input index, int)
        Where inputs begin in their storage, for those of which the program depends on it.
    spans : tuple of tuple of int
        Inputs whose common memory is an input of its own.
    recording : bool or None
        The grad mode, if it matters: some input requires grad, or the function asked for it.
    written : tuple of int
        The inputs that are written.
    differentiated : tuple of int
        The inputs that receive a gradient inside, beside one they may have.
    storages : tuple of int
        Per written input, the first written one that lies in the same storage.
    groups : tuple
        Which inputs share written memory, and how.
    autocast : str
        The policy of `auto_cast`, as text.
    """

    structure: TreeDef
    leaves: tuple[Any, ...]
    inputs: tuple[int, ...]
    captured: tuple[TensorGuard, ...]
    hidden: tuple[Derived | None, ...]
    offsets: tuple[tuple[int, int], ...]
    spans: tuple[tuple[int, ...], ...]
    recording: bool | None
    written: tuple[int, ...]
    differentiated: tuple[int, ...]
    storages: tuple[int, ...]
    groups: tuple[Any, ...]
    autocast: str = "off"

    @classmethod
    def of(
        cls,
        leaves: Sequence[Any],
        structure: TreeDef,
        run: FunctionalRun,
        spans: Sequence[tuple[int, ...]],
        outcome: Outcome,
        asked: bool,
    ) -> Signature:
        """Return the signature of a capture; `asked` says if the function asked for grad mode."""
        inputs = run.inputs
        position = {id(tensor): i for i, tensor in enumerate(inputs)}
        places = tuple([position[id(x)] if isinstance(x, Tensor) else -1 for x in leaves])
        written = tuple([write.index for write in outcome.writes])
        hidden = range(max(places, default=-1) + 1, len(inputs))
        addressed = sorted({*run.interpreter.addressed, *(d.index for d in run.derived.values())})
        return cls(
            structure,
            tuple([TensorGuard.of(x) if isinstance(x, Tensor) else x for x in leaves]),
            places,
            tuple([TensorGuard.of(inputs[i]) for i in hidden if i not in run.derived]),
            tuple([run.derived.get(i) for i in hidden]),
            tuple([(i, own_geometry(inputs[i]).offset) for i in addressed]),
            tuple(spans),
            _grad_mode() if asked or any(tensor.requires_grad for tensor in inputs) else None,
            written,
            tuple([gradient.index for gradient in outcome.gradients if gradient.adds]),
            _storages_of(inputs, written),
            memory_groups(inputs, written),
            _autocast(),
        )

    # ------------------------------------------------------------------ a call

    def inputs_of(self, leaves: Sequence[Any], captured: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs of a call, each once, in the order of the program."""
        found: dict[int, Tensor] = {}
        for index, leaf in zip(self.inputs, leaves, strict=True):
            if index >= 0:
                found.setdefault(index, leaf)
        inputs: list[Tensor] = []
        rest, hidden = iter(captured), iter(self.hidden)
        for index in range(len(found) + len(self.hidden)):
            if index in found:
                inputs.append(found[index])
            else:
                derived = next(hidden)
                inputs.append(next(rest) if derived is None else memory_around(inputs, derived))
        return inputs

    @property
    def captured_inputs(self) -> list[int]:
        """The inputs that are captured tensors."""
        count = len({*self.inputs} - {-1}) + len(self.hidden)
        hidden = (index for index in range(count) if index not in self.inputs)
        return [i for i, derived in zip(hidden, self.hidden, strict=True) if derived is None]

    def lifted(self) -> Signature:
        """Return a signature in which captured tensors are the last positional arguments."""
        args, kwargs = self.structure.children
        first = len(list(leaf_paths(args, "")))
        more = TreeDef(tuple, (), (*args.children, *[TreeDef(None)] * len(self.captured)))
        return replace(
            self,
            structure=TreeDef(tuple, (), (more, kwargs)),
            leaves=(*self.leaves[:first], *self.captured, *self.leaves[first:]),
            inputs=(*self.inputs[:first], *self.captured_inputs, *self.inputs[first:]),
            captured=(),
            hidden=tuple([derived for derived in self.hidden if derived is not None]),
        )

    def with_spans(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs, then the memory that some of them lie in."""
        spans = [span_of([inputs[i] for i in members]) for members in self.spans]
        return [*inputs, *spans]

    def failures(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], captured: Sequence[Tensor]
    ) -> Iterator[str]:
        """Iterate over the guards a call fails, in their order."""
        leaves, structure = flatten((args, kwargs))
        if structure != self.structure:
            yield f"arguments: expected the structure {self.structure}, found {structure}"
            return
        problems = list(self._leaf_failures(leaves, captured))
        yield from problems
        if not problems:
            inputs = self.inputs_of(leaves, captured)
            yield from self._state_failures(inputs)
            yield from self._memory_failures(leaves, inputs)

    def _leaf_failures(self, leaves: Sequence[Any], captured: Sequence[Tensor]) -> Iterator[str]:
        for path, guard, leaf in zip(self.paths, self.leaves, leaves, strict=True):
            problem = _problem(guard, leaf)
            if problem:
                yield f"{path}: {problem}"
        for index, (guard, tensor) in enumerate(zip(self.captured, captured, strict=True)):
            problem = guard.mismatch(TensorGuard.of(tensor))
            if problem:
                yield f"captured[{index}]: {problem}"

    def _state_failures(self, inputs: Sequence[Tensor]) -> Iterator[str]:
        if self.recording not in (None, _grad_mode()):
            yield f"grad mode: expected {_SWITCH[self.recording]}, found {_SWITCH[_grad_mode()]}"
        if self.autocast != _autocast():
            yield f"autocast: expected {self.autocast}, found {_autocast()}"
        for index in self.differentiated:
            if inputs[index].is_leaf and inputs[index].grad is not None:
                yield f"{self.name_of(index)}: .grad: expected None, found a Tensor; clear it first"

    def _memory_failures(self, leaves: Sequence[Any], inputs: Sequence[Tensor]) -> Iterator[str]:
        for path, index, leaf in zip(self.paths, self.inputs, leaves, strict=True):
            if index >= 0 and leaf is not inputs[index]:
                yield f"{path}: expected the same tensor as {self.name_of(index)}"
        for index in self.written:
            array = inputs[index].array
            if isinstance(array, np.ndarray) and is_read_only(array, inputs[index]._storage):
                yield f"{self.name_of(index)}: expected a writable array, found a read-only one"
        for index, offset in self.offsets:
            at = own_geometry(inputs[index]).offset
            if at != offset:
                place = f"expected at byte {offset} of its storage"
                yield f"{self.name_of(index)}: {place}, found {at}"
        storages = _storages_of(inputs, self.written)
        for index, at_capture, first in zip(self.written, self.storages, storages, strict=True):
            if at_capture != first:
                expected, found = self.name_of(at_capture), self.name_of(first)
                yield (
                    f"{self.name_of(index)}: expected in the storage of {expected}, "
                    f"found in that of {found}"
                )
        if self.written:
            groups = memory_groups(inputs, self.written)
            if groups != self.groups:
                expected, now = self._shown(self.groups), self._shown(groups)
                yield f"shared memory: expected {expected}, found {now}"

    # ------------------------------------------------------------------ text

    @property
    def paths(self) -> list[str]:
        """A readable path per leaf of the arguments: ``args[0]['w']``."""
        args, kwargs = self.structure.children
        return [*leaf_paths(args, "args"), *leaf_paths(kwargs, "kwargs")]

    def lines(self) -> Iterator[str]:
        """Iterate over the guards as text."""
        for path, guard in zip(self.paths, self.leaves, strict=True):
            yield f"{path}: {guard}"
        for index, captured in enumerate(self.captured):
            yield f"captured[{index}]: {captured}"
        if self.recording is not None:
            yield f"grad mode: {_SWITCH[self.recording]}"
        if self.autocast != "off":
            yield f"autocast: {self.autocast}"
        for index in self.differentiated:
            yield f"{self.name_of(index)}: .grad is None"
        for index, offset in self.offsets:
            yield f"{self.name_of(index)}: at byte {offset} of its storage"
        for index in self.written:
            yield f"{self.name_of(index)}: writable"
        if self.groups:
            yield f"memory: {self._shown(self.groups)}"

    def name_of(self, index: int) -> str:
        """Return what users call an input."""
        if index in self.inputs:
            return self.paths[self.inputs.index(index)]
        captured = self.captured_inputs
        return f"captured[{captured.index(index)}]" if index in captured else f"memory {index}"

    def _shown(self, groups: tuple[Any, ...]) -> str:
        texts = [
            " with ".join(f"{self.name_of(index)} at {geometry}" for index, geometry in group)
            for group in groups
        ]
        return "; ".join(texts) or "nothing that is written is shared"


def _storages_of(inputs: Sequence[Tensor], written: Sequence[int]) -> tuple[int, ...]:
    """Return, per written input, the first one in the same storage: they share a version."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(id(inputs[index]._storage), index) for index in written])


_SWITCH: Final = {True: "on", False: "off"}


def _grad_mode() -> bool:
    return bool(_state.current().user & AUTOGRAD)


def _autocast() -> str:
    return str(_state.current().config.get("autocast", "off"))


def _problem(guard: Any, leaf: Any) -> str:
    """Return why a leaf does not fit its guard, or the empty string."""
    if isinstance(guard, TensorGuard):
        if not isinstance(leaf, Tensor):
            return f"expected a Tensor, found {short_repr(leaf)}"
        return guard.mismatch(TensorGuard.of(leaf))
    if isinstance(leaf, Tensor):
        return f"expected {guard!r}, found a Tensor"
    return "" if _same_literal(guard, leaf) else f"expected {guard!r}, found {leaf!r}"


def _same_literal(a: Any, b: Any) -> bool:
    """Return whether two literals have one type and one bit pattern."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return _same_literal(a.real, b.real) and _same_literal(a.imag, b.imag)
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    return bool(a == b)
