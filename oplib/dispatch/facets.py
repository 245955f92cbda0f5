"""Facets: what can be attached to an operator, and the record of each attachment.

A facet is data: a kernel entry, a fake rule, a gradient rule, a view rule, a functional twin.
Stages read facets; nothing here runs one. Every attachment is a `Registration`: it knows where it
was made, can be undone, and stacks on the registration it overrides.

Imports floor 0. Read next: `operator.py`.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np

from .._record import record, replace
from .._text import shorten_path

__all__ = [
    "AUTOCAST_RULE",
    "DEFINITION",
    "FAKE",
    "FUNCTIONAL",
    "GRADIENT",
    "KERNEL",
    "SAMPLES",
    "VIEW_RULE",
    "BackwardRule",
    "Convention",
    "Facet",
    "GradientRule",
    "Kernel",
    "KernelEntry",
    "Registration",
    "Source",
    "TwinRule",
    "Undoable",
    "Unique",
    "calling_source",
]

Kernel: TypeAlias = Callable[..., Any]
BackwardRule: TypeAlias = Callable[..., Any]
Convention: TypeAlias = Literal["array", "tensor"]

# The facets an operator can have.
DEFINITION: Final = "definition"
KERNEL: Final = "kernel"
FAKE: Final = "fake rule"
GRADIENT: Final = "gradient rule"
AUTOCAST_RULE: Final = "autocast rule"
FUNCTIONAL: Final = "functional twin"
VIEW_RULE: Final = "view rule"
SAMPLES: Final = "samples"


# ---------------------------------------------------------------------- where it was made


@record(eq=False)
class Source:
    """Where a registration was made: the innermost frame outside the registration machinery.

    `run` stands for one execution of the file, so that a reload can be told from a second
    registration in the same run; None if that cannot be seen.
    """

    file: str
    line: int
    module: str
    run: object
    interactive: bool

    def __str__(self) -> str:
        return f"{shorten_path(self.file)}:{self.line}"

    def same_as(self, other: Source) -> bool:
        """Return whether `self` re-executes what `other` executed, so it may replace it silently.

        True for one file and line, for one file run anew, and for two interactive inputs.
        """
        if self.interactive and other.interactive:
            return True
        if self.file != other.file:
            return False
        if self.line == other.line:
            return True
        return None not in (self.run, other.run) and self.run is not other.run


_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MACHINERY: Final = (
    "<oplib",
    *(_PACKAGE + package + os.sep for package in ("backends", "dispatch", "schema", "tensor")),
    *(
        _PACKAGE + module
        for module in ("custom", "definitions", "facet_registration", "kernels", "library")
    ),
    *(_PACKAGE + os.path.join(package, "declare.py") for package in ("prims", "std")),
)


def calling_source() -> Source:
    """Return the `Source` of the innermost frame outside the registration machinery.

    Operators of oplib itself are registered by files of oplib; those are sources like any other.
    """
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_MACHINERY):
        frame = frame.f_back
    names = frame.f_globals
    module = str(names.get("__name__", "__main__"))
    interactive = module == "__main__" and "__file__" not in names
    return Source(frame.f_code.co_filename, frame.f_lineno, module, _run_of(frame), interactive)


def _run_of(frame: FrameType) -> object:
    """Return what is one object per execution of the file of `frame`, as far as it can be seen.

    A reload gives a module a new spec. Where there is none (scripts, ``exec``), it is the code of
    the module, if that is still running.
    """
    spec = frame.f_globals.get("__spec__")
    if spec is not None:
        return spec
    file = frame.f_code.co_filename
    walk: FrameType | None = frame
    while walk is not None:
        if walk.f_code.co_name == "<module>" and walk.f_code.co_filename == file:
            return walk.f_code
        walk = walk.f_back
    return None


# ---------------------------------------------------------------------- what can be attached


@record(eq=False)
class KernelEntry:
    """One way to compute an operator at a key.

    Attributes
    ----------
    convention : {"array", "tensor"}
        Whether `function` receives the backend's arrays or Tensors.
    dtypes : None, frozenset, or mapping
        Dtypes every tensor argument must have, or per argument.
    supports : callable or None
        Predicate on what the kernel would receive.
    contiguous : tuple of str
        Arguments that must arrive C-contiguous.
    dtype : numpy.dtype or None
        Dtype in which inexact arguments are computed.
    on_alias : {"error", "copy"}
        What happens to a result that shares memory undeclared.
    """

    function: Kernel
    key: str
    convention: Convention
    provider: str = "default"
    priority: int = 0
    dtypes: frozenset[np.dtype[Any]] | Mapping[str, frozenset[np.dtype[Any]]] | None = None
    supports: Callable[..., bool] | None = None
    contiguous: tuple[str, ...] = ()
    dtype: np.dtype[Any] | None = None
    on_alias: Literal["error", "copy"] = "error"
    with_keyset: bool = False

    @property
    def is_conditional(self) -> bool:
        """Whether some calls are refused by dtype or predicate."""
        return self.dtypes is not None or self.supports is not None

    @property
    def prepares_data(self) -> bool:
        """Whether arguments are copied or cast before the kernel sees them."""
        return bool(self.contiguous) or self.dtype is not None


@record(eq=False)
class GradientRule:
    """How gradients flow back through an operator.

    Attributes
    ----------
    style : {"per_argument", "fused", "ctx"}
        Named rules per argument, one named rule for all, or ``backward(ctx, *grads)``.
    functions : mapping
        Per argument: the rule, or None for an argument declared non-differentiable. For the other
        styles the single key ``""``.
    needs : mapping
        Per function: the parameter names it asks for, in its own order (named styles).
    setup_context : callable or None
        For the ctx style.
    optional : mapping
        Per function: names of gradient parameters with default None, which receive None.
    """

    style: Literal["per_argument", "fused", "ctx"]
    functions: Mapping[str, BackwardRule | None]
    needs: Mapping[str, tuple[str, ...]]
    setup_context: Callable[..., Any] | None = None
    optional: frozenset[str] = frozenset()
    materialize_grads: bool = True


@record(eq=False)
class TwinRule:
    """The functional twin of a mutating operator.

    `twin` takes the same arguments and returns the fresh results, then one new value per written
    argument. `pre_state` says that the in-place kernel computes from the state before the call, so
    the twin is exact also when a written argument overlaps another one.
    """

    twin: Callable[..., Any]
    pre_state: bool = False


@record(eq=False)
class Facet:
    """One thing to attach to an operator, validated: what the registry commits.

    `function` is what the author gave, `payload` what stages read.
    """

    kind: str
    function: Any
    payload: Any
    key: str = ""
    provider: str = "default"

    @property
    def slot(self) -> Slot:
        """What this facet competes for on its operator."""
        return (self.kind, self.key, self.provider)


Slot: TypeAlias = tuple[str, str, str]
_serials: Final = itertools.count()


class Unique:
    """Something that exists once in a process: a copy of it is itself."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} belongs to this process and cannot be pickled; "
            "operators, packets and namespaces can, by name"
        )


class Undoable(Unique):
    """Something with a ``remove()`` that also works as a context manager."""

    __slots__ = ()

    def remove(self) -> None:
        """Undo; calling it again does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Registration(Undoable):
    """The record of one registration and its undo.

    ``remove()`` takes it back, in any order relative to others, and exposes the one it had
    overridden. Used as a context manager it removes itself on exit.

    Attributes
    ----------
    op : Operator
    facet, key, provider : str
        What it competes for: ``"kernel"`` at a key from a provider, ``"fake rule"``, ...
    function : object
        What was registered.
    source : Source
        The file:line it was registered at.
    active : bool
        Whether it is still in the stack of its slot.
    serial : int
        Age: newer registrations have higher numbers; one that replaces keeps its predecessor's.
    """

    __slots__ = ("_facet", "_undo", "active", "op", "serial", "source")

    def __init__(
        self, op: Any, facet: Facet, source: Source, undo: Callable[[Registration], None]
    ) -> None:
        self.op = op
        self.source = source
        self.active = True
        self.serial = next(_serials)
        self._facet = facet
        self._undo = undo

    @property
    def facet(self) -> str:
        """What kind of facet this is."""
        return self._facet.kind

    @property
    def key(self) -> str:
        """The dispatch key of a kernel, else an empty string."""
        return self._facet.key

    @property
    def provider(self) -> str:
        """Who provides a kernel."""
        return self._facet.provider

    @property
    def function(self) -> Any:
        """What the author registered."""
        return self._facet.function

    @property
    def payload(self) -> Any:
        """What stages read."""
        return self._facet.payload

    @property
    def slot(self) -> Slot:
        """What this registration competes for on its operator."""
        return self._facet.slot

    def remove(self) -> None:
        """Undo the registration; calling it again does nothing."""
        self._undo(self)

    def move(self, key: str) -> None:
        """Serve another key from now on (a backend claims the device's name)."""
        entry = replace(self._facet.payload, key=key)
        self._facet = replace(self._facet, key=key, payload=entry)

    def __str__(self) -> str:
        return str(self.op.qualname)

    def __repr__(self) -> str:
        where = f" at {self.key}" if self.key else ""
        state = "" if self.active else ", removed"
        return f"<{self.facet} of {self.op.qualname}{where}, {self.source}{state}>"
