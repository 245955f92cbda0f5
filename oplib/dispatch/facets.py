"""Facets: what can be attached to an operator, and the record of each attachment.

A facet is data: a kernel entry, a fake rule, a gradient rule, a view rule, a functional twin.
Stages read facets; nothing here runs one. Every attachment is a `Registration`: it knows where it
was made, can be undone, and stacks on the registration it overrides.

Imports floor 0. Read next: `operator.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from .._text import caller_site, is_internal_file

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
    "GradientRule",
    "Kernel",
    "KernelEntry",
    "Registration",
    "Source",
    "TwinRule",
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


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Where a registration was made: the innermost frame outside oplib.

    `run` identifies one execution of the file (its module code object), so that a reload can be
    told from a second registration in the same run.
    """

    file: str
    line: int
    site: str
    run: object
    interactive: bool

    def __str__(self) -> str:
        return self.site

    def same_as(self, other: Source) -> bool:
        """Return whether `self` re-executes what `other` executed, so it may replace it silently.

        True for one file and line, for one file run anew, and for two interactive inputs.
        """
        if self.interactive and other.interactive:
            return True
        if self.file != other.file:
            return False
        return self.line == other.line or self.run is not other.run


def calling_source() -> Source:
    """Return the `Source` of the innermost frame outside oplib."""
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and is_internal_file(frame.f_code.co_filename):
        frame = frame.f_back
    names = frame.f_globals
    interactive = names.get("__name__") == "__main__" and "__file__" not in names
    file = frame.f_code.co_filename
    return Source(file, frame.f_lineno, caller_site(), _module_code(frame), interactive)


def _module_code(frame: FrameType) -> object:
    """Return the code object of the module whose execution led to `frame`, as far as it shows."""
    file = frame.f_code.co_filename
    walk: FrameType | None = frame
    while walk is not None:
        if walk.f_code.co_name == "<module>" and walk.f_code.co_filename == file:
            return walk.f_code
        walk = walk.f_back
    return frame.f_code


@dataclass(frozen=True, slots=True, eq=False)
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


@dataclass(frozen=True, slots=True, eq=False)
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


@dataclass(frozen=True, slots=True, eq=False)
class TwinRule:
    """The functional twin of a mutating operator.

    `twin` takes the same arguments and returns the fresh results, then one new value per written
    argument. `pre_state` says that the in-place kernel computes from the state before the call, so
    the twin is exact also when a written argument overlaps another one.
    """

    twin: Callable[..., Any]
    pre_state: bool = False


class Registration:
    """The record of one registration and its undo.

    ``remove()`` takes it back, in any order relative to others, and exposes the one it had
    overridden. Used as a context manager it removes itself on exit.
    """

    __slots__ = (
        "_undo",
        "active",
        "facet",
        "function",
        "key",
        "op",
        "payload",
        "provider",
        "source",
    )

    def __init__(
        self,
        op: Any,
        facet: str,
        key: str,
        provider: str,
        function: Any,
        payload: Any,
        source: Source,
        undo: Callable[[Registration], None],
    ) -> None:
        self.op = op
        self.facet = facet
        self.key = key
        self.provider = provider
        self.function = function
        self.payload = payload
        self.source = source
        self.active = True
        self._undo = undo

    @property
    def slot(self) -> tuple[str, str, str]:
        """What this registration competes for on its operator."""
        return (self.facet, self.key, self.provider)

    def remove(self) -> None:
        """Undo the registration; calling it again does nothing."""
        self._undo(self)

    def __enter__(self) -> Registration:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def __str__(self) -> str:
        return str(self.op.qualname)

    def __repr__(self) -> str:
        where = f" at {self.key}" if self.key else ""
        state = "" if self.active else ", removed"
        return f"<{self.facet} of {self.op.qualname}{where}, {self.source}{state}>"


def top(stack: Sequence[Registration]) -> Registration | None:
    """Return the registration that is in effect."""
    return stack[-1] if stack else None
