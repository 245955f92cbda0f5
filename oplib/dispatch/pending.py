"""Pending kernels: what `IMPL` libraries implement, whether or not the operator exists yet.

A kernel of an ``IMPL`` library is attached whenever an operator of its name is defined: now, later,
and again after that was removed and defined anew.

Imports floors 0 and 1, `registry.py` and above. Read next: `source.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

from ..errors import RegistrationError, RegistrationWarning, SchemaError
from . import ledger, registry
from .facets import KERNEL, Registration, Source, Undoable
from .operator import Operator

__all__ = ["PendingKernel", "add", "detached", "pending"]

AnyOperator = Operator[..., Any]
Attach = Callable[[AnyOperator], Registration]

_kernels: Final[dict[str, list[PendingKernel]]] = {}


class PendingKernel(Undoable):
    """A kernel that follows the definitions of a name; ``remove()`` ends that.

    Attributes
    ----------
    qualname, key : str
        What it implements, and where.
    function : callable
    source : Source
        Where it was registered.
    registration : Registration or None
        Its registration on the operator of that name, while there is one and it fits.
    """

    facet = KERNEL

    def __init__(
        self, qualname: str, key: str, function: Any, source: Source, attach: Attach
    ) -> None:
        self.qualname = qualname
        self.key = key
        self.function = function
        self.source = source
        self.registration: Registration | None = None
        self._attach = attach

    @property
    def op(self) -> AnyOperator | None:
        """The operator it is attached to, or None while it waits."""
        return self.registration.op if self.registration is not None and self.active else None

    @property
    def active(self) -> bool:
        """Whether it takes part in calls."""
        return self.registration is not None and self.registration.active

    @property
    def waits(self) -> bool:
        """Whether no operator of its name exists."""
        return self in _kernels.get(self.qualname, ()) and ledger.find(self.qualname) is None

    def attach(self, op: AnyOperator) -> None:
        """Register on `op`, or warn that the kernel does not fit it."""
        try:
            self.registration = self._attach(op)
        except (RegistrationError, SchemaError) as error:
            self.registration = None
            warnings.warn(
                f"a kernel for {self.qualname} at {self.key} waited for its definition and "
                f"does not fit it, so it takes no part\n  kernel      {self.source}\n"
                f"  definition  {op.definition_source}\n  {error}",
                RegistrationWarning,
                stacklevel=2,
            )

    def remove(self) -> None:
        """Stop waiting, and take the kernel off the operator; calling it again does nothing."""
        with ledger.lock:
            waiting = _kernels.get(self.qualname, [])
            if self in waiting:
                waiting.remove(self)
                if not waiting:
                    del _kernels[self.qualname]
        if self.registration is not None:
            self.registration.remove()

    def __str__(self) -> str:
        return f"{self.qualname} at {self.key}, registered {self.source}"

    def __repr__(self) -> str:
        state = "waits" if self.waits else "attached" if self.active else "detached"
        return f"<kernel for {self.qualname} at {self.key}, {self.source}, {state}>"


def add(kernel: PendingKernel) -> None:
    """Make a kernel follow the definitions of its name, beginning with the one that is there."""
    with ledger.lock:
        waiting = _kernels.setdefault(kernel.qualname, [])
        waiting[:] = [old for old in waiting if not _replaces(kernel, old)]
        waiting.append(kernel)


def _replaces(new: PendingKernel, old: PendingKernel) -> bool:
    """Return whether `new` is `old` executed again."""
    return new.key == old.key and new.source.same_as(old.source)


def pending() -> list[PendingKernel]:
    """Return the kernels of ``IMPL`` libraries whose operators are not defined (yet)."""
    with ledger.lock:
        return [kernel for kernels in _kernels.values() for kernel in kernels if kernel.waits]


def detached(qualname: str) -> list[PendingKernel]:
    """Return the kernels that follow a name and do not fit its operator."""
    return [k for k in _kernels.get(qualname, ()) if not k.active and not k.waits]


def _defined(qualname: str) -> None:
    """Attach what waits for a name to the operator that now has it."""
    op = ledger.find(qualname)
    if op is not None:
        for kernel in list(_kernels.get(qualname, ())):
            if kernel.op is not op:
                kernel.attach(op)


def _notes(qualname: str) -> list[str]:
    return [
        f"a kernel waits for it: {kernel.key}  {kernel.source}"
        for kernel in _kernels.get(qualname, ())
    ]


ledger.DEFINITION_LISTENERS.append(_defined)
registry.NOTES.append(_notes)
