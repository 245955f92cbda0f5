"""What the fake rule says about a call, and the first thing in which a real run differs from it.

Imports floors 0 to 7, `calls.py`, `memory.py`. Read next: `checks/fake.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._dims import SymInt
from .._tree import flatten, tree_map
from ..meta import FakeTensorMode
from ..tensor.tensor import Tensor
from .calls import Call, Outcome
from .memory import address_of, overlap

__all__ = ["Difference", "Prediction", "agrees", "first_difference", "predict", "shown"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A wrong prediction: of which result, of what, and both values."""

    where: str
    what: str
    expected: str
    got: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the fake rule says about a call: results on fakes, or the exception."""

    call: Call
    result: Any
    error: Exception | None

    @property
    def outcome(self) -> Outcome:
        """The prediction as if it were a run."""
        return Outcome(self.call, self.result, self.error)


def predict(call: Call) -> Prediction:
    """Run the fake rule on fakes of a call."""
    mode = FakeTensorMode(allow_real=True, dynamic=True)

    def faked(leaf: Any) -> Any:
        return mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf

    args, kwargs = tree_map(faked, (call.args, dict(call.kwargs)))
    fakes = Call(call.subject, args, kwargs, call.label, call.kind)
    with mode:
        outcome = fakes.run()
    return Prediction(fakes, outcome.result, outcome.error)


# ---------------------------------------------------------------------- comparison


def first_difference(real: Outcome, fake: Outcome) -> Difference | None:
    """Return where, what, expected, got, advice of the first wrong prediction."""
    for index, (r, f) in enumerate(zip(real.results, fake.results, strict=True)):
        name = real.call.subject.result_name(index)
        (flat, structure), (predicted, predicted_structure) = flatten(r), flatten(f)
        if structure != predicted_structure:
            return Difference(
                name, "structure", str(shown(r)), str(shown(f)), "return one fake per tensor"
            )
        for position, (a, b) in enumerate(zip(flat, predicted, strict=True)):
            where = name if len(flat) == 1 else f"{name}, element {position}"
            found = _leaf_difference(real, fake, where, a, b)
            if found is not None:
                return found
    return _alias_difference(real, fake)


def shown(value: Any) -> Any:
    """Return a nested result with its tensors in words."""
    return tree_map(lambda leaf: leaf.describe() if isinstance(leaf, Tensor) else leaf, value)


def _leaf_difference(real: Outcome, fake: Outcome, where: str, a: Any, b: Any) -> Difference | None:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        if isinstance(a, Tensor) or isinstance(b, Tensor) or a is None or b is None:
            if a is b:
                return None
            return Difference(where, "kind of result", str(shown(a)), str(shown(b)), "")
        if type(a) is type(b) and a != b and not (a != a and b != b):
            return Difference(where, "value", repr(a), repr(b), "")
        return None
    if len(a.shape) != len(b.shape) or not all(map(_covers, b.shape, a.shape)):
        return Difference(where, "shape", str(a.shape), str(tuple(b.shape)), _shape_advice(b))
    if a.dtype != b.dtype:
        return Difference(
            where, "dtype", str(a.dtype), str(b.dtype), "the kernel's dtype is what callers get"
        )
    if a.device != b.device:
        return Difference(where, "device", str(a.device), str(b.device), "")
    return _stride_difference(real, where, a, b)


def _covers(predicted: Any, actual: int) -> bool:
    """Return whether a predicted size allows the real one: equal, or within its bounds."""
    if not isinstance(predicted, SymInt):
        return bool(predicted == actual)
    low, high = predicted.facts.bounds(predicted)
    return bool(low <= actual <= high)


def _shape_advice(b: Tensor) -> str:
    for length in b.shape:
        if isinstance(length, SymInt):
            low, high = length.facts.bounds(length)
            return f"the rule says new_dynamic_size(min={low}, max={high})"
    return "compute shapes from the shapes of the arguments"


def _stride_difference(real: Outcome, where: str, a: Tensor, b: Tensor) -> Difference | None:
    if not a.size or any(isinstance(n, SymInt) for n in b.shape):
        return None
    pairs = zip(a.shape, a.strides, b.strides, strict=True)
    if all(n == 1 or s == t for n, s, t in pairs):
        return None
    keeps = any(t.strides == a.strides for _, t in real.call.tensors)
    advice = "the kernel keeps the order of an argument; use oplib.empty_like" if keeps else ""
    return Difference(where, "strides", str(a.strides), str(b.strides), advice)


def _alias_difference(real: Outcome, fake: Outcome) -> Difference | None:
    """Compare which argument, and which other result, every result shares memory with."""
    arguments = list(zip(real.call.tensors, fake.call.tensors, strict=True))
    predicted = {name: t for name, t in fake.leaves if isinstance(t, Tensor)}
    for name, result in real.leaves:
        if not isinstance(result, Tensor) or not result.size:
            continue
        twin = predicted[name]
        for (argument, a), (_, b) in arguments:
            if (result is a) != (twin is b):
                says = [f"`{argument}` itself", f"not `{argument}`"]
                says = says if result is a else says[::-1]
                return Difference(name, "identity", says[0], says[1], "")
            shares = overlap(result.array, a.array)
            if shares and twin._storage is not b._storage:
                return Difference(
                    name, "memory", f"a view of `{argument}`", "memory of its own", ""
                )
            if not shares and twin._storage is b._storage and result._storage is not a._storage:
                return Difference(
                    name, "memory", "memory of its own", f"a view of `{argument}`", ""
                )
            if shares and a is not result and not _same_offset(result, a, twin, b):
                return Difference(
                    name, "offset", f"that of the kernel in `{argument}`", "another", ""
                )
    return None


def _same_offset(result: Tensor, a: Tensor, twin: Tensor, b: Tensor) -> bool:
    distance = address_of(result.array) - address_of(a.array)
    return bool(twin.array.offset - b.array.offset == distance)


def agrees(call: Call) -> bool:
    """Return whether the fake rule predicts a real run of a call."""
    given = call.fresh()
    predicted = predict(given)
    if predicted.error is not None:
        return False
    real = given.run()
    return real.error is None and first_difference(real, predicted.outcome) is None
