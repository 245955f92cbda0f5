"""Keys: the bits that say which stages a call passes through, and the names people type for them.

A tensor carries a key set in ``_keys``; a call ORs them. The highest stage bit present runs first.
Bits that are no stages (`WEAK`, `CHECKED`, ...) only select another plan.

Imports floor 0. Read next: `facets.py`.
"""

from __future__ import annotations

from typing import Final, final

from .._text import did_you_mean, short_repr
from ..dtypes import register_device_type
from ..errors import ArgumentError, RegistrationError

__all__ = [
    "ANOMALY",
    "AUTOCAST",
    "AUTOGRAD",
    "AUTOGRAD_KEY",
    "BACKENDS",
    "CHECKED",
    "COMPOSITE_EXPLICIT",
    "COMPOSITE_IMPLICIT",
    "CONSTANT",
    "CPU",
    "DEVICE_BITS",
    "INTERPRETER",
    "META",
    "PREFER",
    "PRIVATE_USE",
    "SAVED_TENSOR_HOOKS",
    "STAGES",
    "VIEW",
    "WEAK",
    "KeySet",
    "canonical_key",
    "claim_device",
    "device_bit",
    "highest_stage",
    "key_bit",
    "key_name",
    "key_set_names",
    "release_device",
]

# Note [Key order]
# ~~~~~~~~~~~~~~~~
# Lowest bit first; a call runs the highest stage present. Why each stands where it stands:
#   backends     compute on plain arrays, so nothing can be below them
#   META         above the backends: a fake claims a device, but only its shape rule may run
#   INTERPRETER  above META: a capture records a call and then infers its shape on fakes
#   AUTOGRAD     above INTERPRETER: the tape sees the program as written; what is recorded into a
#                graph, or made functional, is what the tape asks for
#   VIEW         above AUTOGRAD: a stale view must know its history before edges are read
#   AUTOCAST     above VIEW: casts are ordinary differentiable calls
CPU: Final = 1 << 0
PRIVATE_USE: Final = (1 << 1, 1 << 2, 1 << 3)
META: Final = 1 << 4
INTERPRETER: Final = 1 << 5
AUTOGRAD: Final = 1 << 6
VIEW: Final = 1 << 7
AUTOCAST: Final = 1 << 8
WEAK: Final = 1 << 9
CHECKED: Final = 1 << 10
SAVED_TENSOR_HOOKS: Final = 1 << 11
CONSTANT: Final = 1 << 12
PREFER: Final = 1 << 13
ANOMALY: Final = 1 << 14

BACKENDS: Final = CPU | PRIVATE_USE[0] | PRIVATE_USE[1] | PRIVATE_USE[2]
STAGES: Final = AUTOCAST | VIEW | AUTOGRAD | INTERPRETER | META | BACKENDS

COMPOSITE_IMPLICIT: Final = "CompositeImplicitAutograd"
COMPOSITE_EXPLICIT: Final = "CompositeExplicitAutograd"
AUTOGRAD_KEY: Final = "Autograd"

_NAMES: Final = {
    CPU: "CPU",
    PRIVATE_USE[0]: "PrivateUse1",
    PRIVATE_USE[1]: "PrivateUse2",
    PRIVATE_USE[2]: "PrivateUse3",
    META: "Meta",
    INTERPRETER: "Interpreter",
    AUTOGRAD: "Autograd",
    VIEW: "View",
    AUTOCAST: "Autocast",
    WEAK: "Weak",
    CHECKED: "Checked",
    SAVED_TENSOR_HOOKS: "SavedTensorHooks",
    CONSTANT: "Constant",
    PREFER: "Prefer",
    ANOMALY: "Anomaly",
}
_BITS: Final = {name: bit for bit, name in _NAMES.items()}
_REGISTRABLE: Final = (
    "CPU",
    "Meta",
    "PrivateUse1",
    "PrivateUse2",
    "PrivateUse3",
    AUTOGRAD_KEY,
    COMPOSITE_IMPLICIT,
    COMPOSITE_EXPLICIT,
)
_REFUSED: Final = {
    "CompositeExplicitAutogradNonFunctional": "use 'CompositeExplicitAutograd'",
    "BackendSelect": "give the operator a `device` argument; it chooses the backend",
    "Functionalize": "use register_functional",
}
_UNCLAIMED_DEVICES: Final = frozenset({"cuda", "xpu", "npu", "mps", "hpu", "xla", "tpu", "mtia"})

DEVICE_BITS: Final[dict[str, int]] = {"cpu": CPU, "meta": META}
"""Bit of each device type that a backend (or the framework) has claimed."""


def canonical_key(name: str) -> str:
    """Return the canonical spelling of a key, a device or a backend name.

    ``"cpu"`` gives ``"CPU"``, ``"meta"`` gives ``"Meta"``, the name of a registered backend gives
    its key. A well-known device that no backend has claimed yet stays as it is: kernels registered
    under it are found once a backend of that name is registered.

    Raises
    ------
    RegistrationError
        For an unknown name, a device with an index, or a key that oplib does not have.
    """
    if not isinstance(name, str):
        raise RegistrationError(f"a dispatch key is a string, got {type(name).__name__}")
    if name in _REGISTRABLE:
        return name
    if name.isupper() and name.lower() in _UNCLAIMED_DEVICES:
        name = name.lower()  # torch's key CUDA is its device cuda
    if name in DEVICE_BITS:
        return _NAMES[DEVICE_BITS[name]]
    if name in _UNCLAIMED_DEVICES:
        return name
    refusal = _refusal(name)
    if refusal:
        raise RegistrationError(f"no dispatch key {name!r} here: {refusal}")
    known = [*_REGISTRABLE, *DEVICE_BITS, *sorted(_UNCLAIMED_DEVICES)]
    raise RegistrationError(
        f"unknown dispatch key {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}"
    )


def _refusal(name: str) -> str:
    """Return what to use instead of a key that torch has and oplib has not, or an empty string."""
    if name.startswith(AUTOGRAD_KEY):
        return "use 'Autograd'; one gradient rule serves every backend"
    device, colon, _ = name.partition(":")
    if colon:
        return f"a kernel serves every device of a type; write {device!r}"
    return _REFUSED.get(name, "")


def claim_device(device_type: str, key: str) -> None:
    """Make tensors of `device_type` carry `key` (what registering a backend does)."""
    DEVICE_BITS[device_type] = _BITS[key]
    register_device_type(device_type)


def release_device(device_type: str) -> None:
    """Undo `claim_device`."""
    DEVICE_BITS.pop(device_type, None)


def key_bit(key: str) -> int:
    """Return the bit of a canonical key, or 0 for a device that no backend has claimed."""
    return _BITS.get(key) or DEVICE_BITS.get(key, 0)


def key_name(bit: int) -> str:
    """Return the name of one bit."""
    return _NAMES[bit]


def device_bit(device_type: str) -> int:
    """Return the bit of a device type.

    Raises
    ------
    ArgumentError
        If no backend serves it.
    """
    bit = DEVICE_BITS.get(device_type, 0)
    if not bit:
        served = ", ".join(DEVICE_BITS)
        raise ArgumentError(
            f"no backend serves device {device_type!r}; served are {served}\n"
            f"  add one: oplib.register_backend({device_type!r}, ...)"
        )
    return bit


def highest_stage(keys: int) -> int:
    """Return the highest stage bit in `keys`, or 0."""
    stages = keys & STAGES
    return 1 << stages.bit_length() - 1 if stages else 0


def key_set_names(keys: int) -> str:
    """Return ``"{Autograd, CPU}"``, highest key first."""
    return "{" + ", ".join(name for bit, name in reversed(_NAMES.items()) if keys & bit) + "}"


@final
class KeySet(int):
    """The keys of one call, as kernels registered with ``with_keyset=True`` receive them.

    Examples
    --------
    >>> from oplib.dispatch.keys import AUTOGRAD, CPU, KeySet
    >>> keys = KeySet(AUTOGRAD | CPU)
    >>> keys
    {Autograd, CPU}
    >>> "Autograd" in keys, keys.below("Autograd")
    (True, {CPU})
    """

    __slots__ = ()

    def below(self, key: str) -> KeySet:
        """Return this set without the stage `key` and every stage above it."""
        bit = _BITS.get(key, 0)
        if not bit & STAGES:
            stages = ", ".join(name for name, b in _BITS.items() if b & STAGES)
            raise ArgumentError(f"{short_repr(key)} is no stage of a call; stages are {stages}")
        return KeySet(self & (bit - 1 | ~STAGES))

    def __contains__(self, key: str) -> bool:
        return bool(self & _BITS.get(key, 0))

    def __repr__(self) -> str:
        return key_set_names(self)
