"""Which kernel entries a context prefers or switches off: ``op.prefer``, ``op.set_kernel_enabled``.

Both live in the ambient State, so they hold for one thread and task and are restored on exceptions.
While one is active the key bit `PREFER` selects plans that ask here; off, they cost nothing.

Imports floor 0, `keys.py` and `facets.py`. Read next: `operator.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from .. import _state
from .facets import Registration
from .keys import PREFER, canonical_key

__all__ = ["carry", "is_enabled", "prefer", "ranked", "set_kernel_enabled"]

_PREFERENCES: Final = "preferred_providers"
_SWITCHES: Final = "kernel_switches"


@contextmanager
def prefer(op: Any, providers: tuple[str, ...]) -> Iterator[None]:
    """Choose entries of the named providers first, in that order, in calls of `op`."""
    state = _state.current()
    preferences = (*state.config.get(_PREFERENCES, ()), (op, providers))
    with _entered(state, _PREFERENCES, preferences):
        yield


@contextmanager
def set_kernel_enabled(op: Any, device: str, enabled: bool, provider: str | None) -> Iterator[None]:
    """Skip (or use again) the entries of `op` at a device, of one provider or of all."""
    state = _state.current()
    key = canonical_key(device)
    named = [r for r in op.entries(key) if provider in (None, r.provider)]
    if not named:
        _warn("%s has no kernel for %s to switch", op.qualname, device)
    elif all(is_enabled(op, registration) is enabled for registration in named):
        word = "on" if enabled else "off"
        _warn("the kernel of %s for %s is switched %s already", op.qualname, device, word)
    switches = (*state.config.get(_SWITCHES, ()), (op, key, provider, enabled))
    with _entered(state, _SWITCHES, switches):
        yield


def _warn(message: str, *words: str) -> None:
    """Log a warning; `logging` costs more to import than all of this package's dispatch."""
    logging = importlib.import_module("logging")
    logging.getLogger("oplib").warning(message, *words)


def _entered(state: _state.State, setting: str, value: Any) -> _state.enter:
    changed = state.replace(include=state.include | PREFER)
    return _state.enter(changed.with_config(**{setting: value}))


def carry(state: _state.State, outer: _state.State) -> _state.State:
    """Return `outer` with the preferences of `state`: they hold on all levels."""
    if not (state.include | outer.include) & PREFER:
        return outer
    settings = {name: state.config.get(name) for name in (_PREFERENCES, _SWITCHES)}
    include = outer.include & ~PREFER | state.include & PREFER
    return outer.replace(include=include).with_config(**settings)


def is_enabled(op: Any, registration: Registration) -> bool:
    """Return whether an entry is switched on here: the innermost switch that names it decides."""
    for whose, key, provider, enabled in reversed(_state.current().config.get(_SWITCHES, ())):
        named = whose is op and key == registration.key
        if named and provider in (None, registration.provider):
            return bool(enabled)
    return True


def ranked(op: Any, registrations: Sequence[Registration]) -> list[Registration]:
    """Return the entries that are switched on, those of preferred providers first."""
    used = [r for r in registrations if is_enabled(op, r)]
    for whose, providers in reversed(_state.current().config.get(_PREFERENCES, ())):
        if whose is op:
            order = {provider: place for place, provider in enumerate(providers)}
            return sorted(used, key=lambda r: order.get(r.provider, len(order)))
    return used
