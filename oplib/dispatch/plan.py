"""Plans: the stages of a call, composed once per key set.

A `Stage` handles one key: it *builds* the part of a plan above the rest. `build_plan` picks the
highest stage of a key set and hands it the plan without that key. Which implementation serves a key
set is decided by `resolve`, in one place and independent of the order of registration.

Imports floors 0 and 1 and the files above. Read next: `explain.py`, which prints what this decides;
then the stages themselves, in `backends/stage.py`, `meta.py` and `autograd/stage.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias

from .. import _state
from .._record import record
from .._tree import tree_map
from ..errors import ArgumentError, DispatchError
from .bind import bind_arguments
from .choice import choose, rejections
from .describe import describe_call
from .facets import FAKE, KernelEntry, Registration
from .keys import (
    AUTOCAST,
    AUTOGRAD,
    AUTOGRAD_KEY,
    BACKENDS,
    COMPOSITE_EXPLICIT,
    COMPOSITE_IMPLICIT,
    CPU,
    INTERPRETER,
    META,
    VIEW,
    KeySet,
    canonical_key,
    highest_stage,
    key_bit,
)
from .lifting import ADOPTERS, tensor_leaves
from .operator import Operator, Plan, hooks

__all__ = [
    "Resolution",
    "Stage",
    "backend_of",
    "device_error",
    "fallthrough",
    "implementations",
    "install_stage",
    "python_call",
    "resolve",
    "stage_of",
    "tensor_call",
    "tensor_plan",
]

AnyOperator: TypeAlias = Operator[..., Any]


class Stage(Protocol):
    """What handles one key.

    `build` returns the plan for `keys`, whose highest stage is this one. `below` is the plan
    without this key; backends and Meta, which compute, get None.
    """

    key: int

    def build(self, op: AnyOperator, keys: int, below: Plan | None) -> Plan:
        """Return the plan of `op` for `keys`."""
        ...

    def describe(self, op: AnyOperator, keys: int, args: list[Any]) -> list[str]:
        """Return what `explain` prints for this stage: rules found, with their places."""
        ...


_stages: Final[dict[int, Stage]] = {}


def install_stage(stage: Stage) -> None:
    """Make `stage` serve its key (or each key of its key set)."""
    keys = stage.key
    while keys:
        bit = keys & -keys
        _stages[bit] = stage
        keys &= ~bit


def stage_of(keys: int) -> tuple[int, Stage]:
    """Return the highest stage bit of a key set and its stage."""
    bit = highest_stage(keys) or CPU
    return bit, _stages[bit]


def build_plan(op: AnyOperator, keys: int) -> Plan:
    """Build the plan of `op` for a key set."""
    if keys & AUTOCAST:
        return _stages[AUTOCAST].build(op, keys, op.find_plan(keys & ~AUTOCAST))
    several = _several_backends(keys)
    if several and not _takes_mixed(op, keys):
        return _refuse_mixed(op)
    kernels = op.entries(AUTOGRAD_KEY) if keys & AUTOGRAD else []
    found = resolve(op, backend_of(keys))
    if found.kind == "implicit" and not kernels:
        return tensor_plan(op, found.registrations, keys)
    bit, stage = stage_of(keys)
    if bit & BACKENDS and several:
        return _mixed(op, keys)
    if bit & (BACKENDS | META | INTERPRETER):
        return stage.build(op, keys, None)
    if bit == AUTOGRAD and kernels:
        if kernels[0].function is fallthrough:
            return op.find_plan(keys & ~bit)
        return tensor_plan(op, kernels, keys)
    return stage.build(op, keys, op.find_plan(keys & ~bit))


def backend_of(keys: int) -> int:
    """Return the backend bit (or META) of a key set; without tensors the default device's."""
    return keys & META or keys & BACKENDS or CPU


# ---------------------------------------------------------------------- tensors in several places


def _several_backends(keys: int) -> bool:
    """Return whether tensors of a call live on several backends; Meta and interpreters decide."""
    bits = keys & BACKENDS
    return bool(bits & (bits - 1)) and not keys & (META | INTERPRETER)


def _takes_mixed(op: AnyOperator, keys: int) -> bool:
    """Return whether an operator may take tensors of several devices at all."""
    return "mixed_devices" in op.tags or ("pointwise" in op.tags and bool(keys & CPU))


def _mixed(op: AnyOperator, keys: int) -> Plan:
    """Return the plan that chooses a device per call.

    With the tag ``mixed_devices`` the first tensor's decides. A 0-d CPU tensor beside others of a
    ``pointwise`` operator goes where they are.
    """
    refuse = _refuse_mixed(op)
    elsewhere = keys & BACKENDS & ~CPU

    def first(*args: Any) -> Any:
        backend = tensor_leaves(args)[0]._keys & BACKENDS
        return op.find_plan(keys & ~BACKENDS | backend)(*args)

    def scalars_moved(*args: Any) -> Any:
        tensors = tensor_leaves(args)
        if elsewhere & (elsewhere - 1) or any(t.ndim and t._keys & CPU for t in tensors):
            return refuse(*args)
        like = next(t for t in tensors if t._keys & elsewhere)

        def move(leaf: Any) -> Any:
            if type(leaf) is hooks.tensor and leaf._keys & CPU:
                for adopt in ADOPTERS:
                    leaf = adopt(leaf, like)
            return leaf

        return op.find_plan(keys & ~CPU)(*[tree_map(move, value) for value in args])

    return first if "mixed_devices" in op.tags else scalars_moved


def _refuse_mixed(op: AnyOperator) -> Plan:
    def refuse(*args: Any) -> Any:
        raise device_error(op, args)

    return refuse


def device_error(op: AnyOperator, args: Sequence[Any]) -> ArgumentError:
    """Return the error for tensors of one call that live on several devices."""
    lines = [
        f"  {argument.name}: {tensor.device}"
        for argument, value in zip(op.schema.arguments, args, strict=True)
        for tensor in tensor_leaves([value])
    ]
    return ArgumentError(
        f"{op.qualname}: tensors of one call must live on one device\n"
        + "\n".join(lines)
        + "\n  move them first, or make the constant inside the call"
    )


# ---------------------------------------------------------------------- which implementation


def fallthrough(*args: Any, **kwargs: Any) -> Any:
    """Make a key transparent: registered as a kernel, calls go on as if the key were not there.

    At ``Autograd`` nothing is recorded; at a backend's key the composite kernel serves it.
    """
    raise DispatchError(
        "oplib.fallthrough is no function to call; register it as a kernel: "
        'lib.impl("name", oplib.fallthrough, "Autograd")'
    )


@record
class Resolution:
    """Which implementation serves a backend: its kind, and the registrations that provide it."""

    kind: Literal["kernel", "explicit", "implicit", "fake", "derived", "missing"]
    registrations: tuple[Registration, ...] = ()

    @property
    def registration(self) -> Registration | None:
        """The preferred registration."""
        return self.registrations[0] if self.registrations else None


def resolve(op: AnyOperator, backend: int) -> Resolution:
    """Decide which implementation of `op` serves `backend` (one bit; META for fakes)."""
    if backend == META:
        fake = op.top(FAKE)
        if fake is not None and fake.function is not fallthrough:
            return Resolution("fake", (fake,))
        if _returns_only_written(op) and not op.entries(COMPOSITE_IMPLICIT):
            return Resolution("derived")
    for kind, registrations in implementations(op, backend):
        return Resolution(kind, tuple(registrations))
    return Resolution("missing")


Kind: TypeAlias = Literal["kernel", "explicit", "implicit"]


def implementations(op: AnyOperator, backend: int) -> Iterator[tuple[Kind, list[Registration]]]:
    """Yield what can serve a backend in order of precedence: its kernels, then composite ones."""
    keys = [key for key in op.kernels if key_bit(key) == backend and backend != META]
    kinds: list[tuple[Kind, list[Registration]]] = [
        ("kernel", [r for key in keys for r in op.entries(key)]),
        ("explicit", op.entries(COMPOSITE_EXPLICIT)),
        ("implicit", op.entries(COMPOSITE_IMPLICIT)),
    ]
    for kind, registrations in kinds:
        found = [r for r in registrations if r.function is not fallthrough]
        if found:
            yield kind, found


def _returns_only_written(op: AnyOperator) -> bool:
    """Return whether a fake rule can be derived: every return is a written argument, or none."""
    schema = op.schema
    return all(schema.returned_argument(i) is not None for i in range(len(schema.returns)))


# ---------------------------------------------------------------------- Tensor-level code


def python_call(op: AnyOperator, function: Callable[..., Any]) -> Plan:
    """Return `function` taking all arguments in schema order: keyword-only ones by keyword."""
    count = len(op.schema.positional)
    names = tuple(argument.name for argument in op.schema.keyword_only)
    if not names:
        return function

    def call(*args: Any) -> Any:
        return function(*args[:count], **dict(zip(names, args[count:], strict=True)))

    return call


def tensor_call(op: AnyOperator, entry: KernelEntry, keys: int) -> Plan:
    """Return a kernel that receives Tensors as a function of all arguments in schema order.

    It gets the key set first if it asks for it.
    """
    function = entry.function
    return python_call(op, partial(function, KeySet(keys)) if entry.with_keyset else function)


def tensor_plan(op: AnyOperator, registrations: Sequence[Registration], keys: int) -> Plan:
    """Return the plan of kernels that run above autograd: at its key, or a composite body."""

    def none_left() -> Plan:
        return _refused_by_all(op, registrations)

    candidates = [(r, partial(tensor_call, op, r.payload, keys)) for r in registrations]
    return choose(op, candidates, keys, none_left)


def _refused_by_all(op: AnyOperator, registrations: Sequence[Registration]) -> Plan:
    def refused(*args: Any) -> Any:
        reasons = "\n".join(f"  {line}" for line in rejections(op, registrations, args))
        raise DispatchError(
            f"{op.qualname}: every kernel refuses this call\n"
            f"  called as  {describe_call(op, args)}\n{reasons}\n"
            "  register one for these arguments, or cast them"
        )

    return refused


# ---------------------------------------------------------------------- redispatch


def redispatch(op: AnyOperator, keys: int, /, *args: Any, **kwargs: Any) -> Any:
    """Run a call of `op` with a given key set."""
    values = bind_arguments(op, args, kwargs)
    return op.find_plan(keys)(*values)


def below(op: AnyOperator, key: str) -> Plan:
    """Return `op` as a callable that starts below `key`."""
    if not key_bit(canonical_key(key)) & (AUTOGRAD | VIEW):
        raise DispatchError(f"{op.qualname}.below() takes 'Autograd', got {key!r}")

    def call(*args: Any, **kwargs: Any) -> Any:
        values = bind_arguments(op, args, kwargs)
        state = _state.current()
        keys = state.include
        for tensor in tensor_leaves(values):
            keys |= tensor._keys
        return op.find_plan(KeySet(keys & state.mask).below(key))(*values)

    return call


hooks.build_plan = build_plan
hooks.below = below
hooks.redispatch = redispatch
