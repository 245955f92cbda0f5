"""The Meta stage: how a call without data is inferred.

By a fake rule (or a composite kernel run on fakes), by the geometry rule of a view operator, or, if
every result is a written argument, by nothing at all. The order of checks is that of real calls:
place, destinations, then what the rule or the functional twin finds.

Imports floors 0 to 4, and the files above.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from .. import _state
from .._dims import same
from .._text import caller_site
from ..dispatch.describe import signature_of
from ..dispatch.keys import META, WEAK
from ..dispatch.lifting import may_hold_tensors, tensor_leaves
from ..dispatch.operator import Operator, Plan
from ..dispatch.plan import python_call, resolve
from ..dtypes import Device
from ..errors import FakeTensorError
from ..schema import ListType, OptionalType, TensorType, Type
from ..shapes import TensorSpec
from ..tensor.geometry import Geometry
from ..tensor.meta_array import MetaArray
from ..tensor.tensor import Tensor, stranger_of, view_of
from ..tensor.writes import check_destination
from .context import note_rule, rule_state
from .placement import Place, place_of
from .results import FakeResults, joins_family, tensor_of

__all__ = ["MetaStage"]

_current: Final = _state.current
_set_state: Final = _state.set_state


class MetaStage:
    """The stage of the key Meta: run the fake rule and check what it returns."""

    key = META

    def build(self, op: Operator[..., Any], keys: int, below: Plan | None) -> Plan:
        """Return the plan that infers the results of a call."""
        if op.view_rule is not None and op.schema.is_view:
            return _ViewCall(op).plan
        found = resolve(op, META)
        if found.kind == "missing":
            return _missing_rule(op)
        if found.kind == "derived":
            return _DerivedCall(op).plan
        registration = found.registration
        assert registration is not None
        if found.kind == "fake":
            call = _RuleCall(op, registration.payload, registration.function)
            return _simple_plan(call) if call.is_simple else call.plan
        return _CompositeCall(op, registration.payload.function, registration.function).plan

    def describe(self, op: Operator[..., Any], keys: int, args: list[Any]) -> list[str]:
        """Return the lines `explain` shows for this stage."""
        if op.view_rule is not None and op.schema.is_view:
            return ["Meta: the geometry of the view"]
        found = resolve(op, META)
        if found.kind == "missing":
            return [_missing_text(op)]
        if found.kind == "derived":
            return ["Meta: derived, every return is a written argument"]
        registration = found.registration
        assert registration is not None
        text = getattr(registration.function, "text", "")
        rule = f"{found.kind} rule {text}" if text else f"{found.kind} rule"
        return [f"Meta: {rule} registered {registration.source}"]


# ---------------------------------------------------------------------- what all calls share


class _Call:
    """Base of the ways to infer a call."""

    def __init__(self, op: Operator[..., Any]) -> None:
        self.op = op
        arguments = op.schema.arguments
        mutated = op.schema.mutated_arguments
        self.written = [(i, a.name) for i, a in enumerate(arguments) if a.name in mutated]
        devices = [i for i, a in enumerate(arguments) if a.name == "device"]
        self.device_index = devices[0] if devices else None
        self.plain = [i for i, a in enumerate(arguments) if isinstance(a.type, TensorType)]
        holders = [i for i, a in enumerate(arguments) if may_hold_tensors(a.type)]
        self.only_plain = self.plain == holders

    def tensors(self, args: Sequence[Any]) -> list[Tensor]:
        """Return the tensors among the arguments."""
        return [args[i] for i in self.plain] if self.only_plain else tensor_leaves(args)

    def place(self, args: Sequence[Any]) -> Place:
        """Return where the call belongs, after the checks that come before any rule."""
        asked = None if self.device_index is None else args[self.device_index]
        if isinstance(asked, Device):
            place = place_of(self.op, args, asked)
        else:
            common = _common_place(self.tensors(args))
            place = Place(*common, args) if common else place_of(self.op, args, None)
        for i, name in self.written:
            for tensor in tensor_leaves(args[i]):
                check_destination(self.op, name, tensor)
        return place

    def count_writes(self, args: Sequence[Any]) -> None:
        """Raise the version of every written storage by one."""
        if self.written:
            written = tensor_leaves([args[i] for i, _ in self.written])
            for storage in {tensor._storage for tensor in written}:
                storage.version += 1
                storage.writer = self.op.qualname


def _common_place(tensors: Sequence[Tensor]) -> tuple[Device, Any] | None:
    """Return the device and mode of tensors without data that evidently agree, numbers aside."""
    device = mode = None
    for tensor in tensors:
        array = tensor.array
        if type(array) is MetaArray:
            if device is None:
                device, mode = array.device, array.mode
            elif array.device is not device or array.mode is not mode:
                return None
        elif not tensor._keys & WEAK:
            return None
    return None if device is None else (device, mode)


class _RuleRun(_Call):
    """Base of the calls that run Tensor-level code."""

    def __init__(self, op: Operator[..., Any], function: Callable[..., Any], source: Any) -> None:
        super().__init__(op)
        self.function = python_call(op, function)
        self.results = FakeResults(op, source)
        self.meta_state = rule_state(op, None, self.results.site)

    def state_for(self, mode: Any) -> _state.State:
        """Return the State in which the code runs, made once per mode."""
        if mode is None:
            return self.meta_state
        state: _state.State | None = mode.states.get(self)
        if state is None:
            state = mode.states[self] = rule_state(self.op, mode, self.results.site)
        return state

    def run(self, place: Place) -> Any:
        """Run the code on the arguments of a call."""
        outer = _current()
        _set_state(self.state_for(place.mode))
        try:
            return self.function(*place.args)
        except Exception as error:
            note_rule(error, self.op, self.results.site, place.args)
            raise
        finally:
            _set_state(outer)


# ---------------------------------------------------------------------- by a rule

_observe: Final = attrgetter("array", "autograd_meta", "_storage.version")
"""What a rule must leave as it was."""


class _RuleCall(_RuleRun):
    """A call inferred by a fake rule."""

    def __init__(self, op: Operator[..., Any], function: Callable[..., Any], source: Any) -> None:
        super().__init__(op, function, source)
        returns = op.schema.returns
        self.is_simple = (
            len(returns) == 1
            and returns[0].type == TensorType(None)
            and self.device_index is None
            and not self.written
            and self.only_plain
            and bool(self.plain)
        )

    def plan(self, *args: Any) -> Any:
        """Run the rule, check what it returned, count writes, and hand out the results."""
        place = self.place(args)
        tensors = self.tensors(place.args)
        before = list(map(_observe, tensors))
        result = self.run(place)
        self.check_untouched(tensors, before)
        finished = self.results.finish(result, place)
        self.count_writes(place.args)
        return finished

    def check_untouched(self, tensors: Sequence[Any], before: list[Any]) -> None:
        """Refuse a rule that wrote to an argument, moved it, or changed its gradient state."""
        for tensor, old in zip(tensors, before, strict=True):
            if _observe(tensor) != old:
                self.results.wrong(
                    f"wrote to an argument {tensor.describe()}; a rule describes results, the "
                    "schema says what is written"
                )


def _simple_plan(call: _RuleCall) -> Plan:
    """Return the plan for one fresh result of plain tensor arguments: the usual call, inlined.

    A fake call has a budget of 2.5 µs over its rule; the general way takes twice that.
    """
    general, function, op, results = call.plan, call.function, call.op, call.results
    positions = call.plain

    def plan(*args: Any) -> Any:
        tensors = [args[i] for i in positions]
        common = _common_place(tensors)
        if common is None:
            return general(*args)
        device, mode = common
        before = [*map(_observe, tensors)]
        outer = _current()
        _set_state(call.state_for(mode))
        try:
            result = function(*args)
        except Exception as error:
            note_rule(error, op, results.site, args)
            raise
        finally:
            _set_state(outer)
        if before != [*map(_observe, tensors)]:
            call.check_untouched(tensors, before)
        if type(result) is TensorSpec:
            if result.device is None and _is_valid(result):
                return tensor_of(result, device, mode)
        elif type(result) is Tensor and result._keys == META:
            array, storage = result.array, result._storage
            fresh = not [t for t in tensors if t._storage is storage]
            if fresh and array.device is device and array.mode is mode:
                return result
        return results.finish(result, Place(device, mode, args))

    return plan


def _is_valid(spec: TensorSpec) -> bool:
    """Return whether a description is evidently right; what is not is looked at again."""
    for length in spec.shape:
        if type(length) is not int or length < 0:
            return False
    strides = spec.strides
    return (strides is None or len(strides) == len(spec.shape)) and spec.dtype.isnative


class _CompositeCall(_RuleRun):
    """A call whose composite kernel runs on fakes; what it writes it may write."""

    def plan(self, *args: Any) -> Any:
        """Run the kernel below autograd, and hand out its results."""
        place = self.place(args)
        finished = self.results.finish(self.run(place), place)
        self.count_writes(place.args)
        return finished


# ---------------------------------------------------------------------- derived


class _DerivedCall(_Call):
    """A call all of whose results are written arguments: the checks of its twin are its rule."""

    def __init__(self, op: Operator[..., Any]) -> None:
        super().__init__(op)
        twin = op.twin
        self.twin = None if twin is None else _RuleRun(op, twin.twin, twin.twin)
        self.results = FakeResults(op, None)

    def plan(self, *args: Any) -> Any:
        """Check and count the writes, and return the arguments."""
        place = self.place(args)
        if self.twin is not None:
            self.check_values(self.twin.run(place), place.args)
        self.count_writes(place.args)
        return self.results.finish(None, place)

    def check_values(self, values: Any, args: Sequence[Any]) -> None:
        """Refuse a twin whose new values do not have the shape and dtype of what is written."""
        written = tensor_leaves([args[i] for i, _ in self.written])
        for target, value in zip(written, tensor_leaves([values]), strict=False):
            if target.dtype != value.dtype or not _may_be_equal(target.shape, value.shape):
                raise FakeTensorError(
                    f"{self.op.qualname}: the functional twin at {self.twin_site} gives "
                    f"{value.describe()} for a destination {target.describe()}\n"
                    f"  called  {caller_site()}\n"
                    "  a twin returns new values in the shape and dtype of the written arguments"
                )

    @property
    def twin_site(self) -> str:
        """Where the twin was written."""
        return "" if self.twin is None else self.twin.results.site


def _may_be_equal(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return whether two shapes are the same, as far as their lengths are known."""
    return len(a) == len(b) and all(
        same(n, m) or not type(n) is int is type(m) for n, m in zip(a, b, strict=True)
    )


# ---------------------------------------------------------------------- by geometry


class _ViewCall(_Call):
    """A view operator with a geometry rule."""

    def __init__(self, op: Operator[..., Any]) -> None:
        super().__init__(op)
        assert op.view_rule is not None
        self.rule = python_call(op, op.view_rule)
        self.make = view_of if joins_family(op) else stranger_of
        fake = op.fake_rule
        self.copy = None if fake is None else _RuleCall(op, fake, fake)

    def plan(self, *args: Any) -> Any:
        """Return a handle with the geometry the rule gives, or a copy where it gives none."""
        if not self.only_plain or len(self.plain) > 1:
            args = tuple(self.place(args).args)
        base = args[0]
        geometry = self.rule(base.array.geometry, *args[1:])
        if geometry is None:
            if self.copy is None:
                raise FakeTensorError(f"{self.op.qualname} makes a copy here, but has no fake rule")
            return self.copy.plan(*args)
        if isinstance(geometry, Geometry):
            return self.make(base, base.array.with_geometry(geometry))
        return [self.make(base, base.array.with_geometry(part)) for part in geometry]


# ---------------------------------------------------------------------- nothing infers the call


def _missing_rule(op: Operator[..., Any]) -> Plan:
    def missing(*args: Any) -> Any:
        raise FakeTensorError(f"{_missing_text(op)}\n  called  {caller_site()}")

    return missing


def _missing_text(op: Operator[..., Any]) -> str:
    """Return the message for a missing fake rule, with a stub that runs when pasted."""
    signature = signature_of(op.schema)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    parts = [
        _stub_of(ret.type, op, op.schema.aliased_arguments(i))
        for i, ret in enumerate(op.schema.returns)
        if not op.schema.returned_argument(i)
    ]
    body = ", ".join(parts) or "None"
    if op.schema.is_view:
        body += "  # the view, made with view operators"
    return (
        f"{op.qualname} has no fake rule, so its result cannot be inferred without data\n"
        f"  defined  {op.definition_source}\n"
        "  add one:\n"
        f'    @oplib.register_fake("{op.qualname}")\n'
        f"    def _{signature.replace(parameters=bare)}:\n"
        f"        return {body}"
    )


def _stub_of(kind: Type, op: Operator[..., Any], viewed: Sequence[str] = ()) -> str:
    """Return an expression for one result: a view, or like the first tensor argument."""
    if isinstance(kind, ListType):
        return f"[{_stub_of(kind.element, op, viewed)}]"
    if isinstance(kind, OptionalType):
        kind = kind.element
    if not isinstance(kind, TensorType):
        return "0"
    for name in viewed:
        listed = isinstance(op.schema.argument(name).type, ListType)
        return f"{name}{'[0]' if listed else ''}[...]"
    tensors = {name: op.schema.argument(name).type for name in op.schema.differentiable_arguments}
    for name, given in sorted(tensors.items(), key=lambda item: isinstance(item[1], OptionalType)):
        listed = isinstance(given, ListType)
        return f"oplib.empty_like({name}{'[0]' if listed else ''})"
    return "oplib.empty(())"
