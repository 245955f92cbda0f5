"""What a functional run leaves behind, as data: values, writes, results.

`functionalize` settles an outcome at once on the tensors it was called with; a captured program
settles it at every call. Everything is computed before anything is stored, so a run that raises has
changed nothing.

Imports floors 0 to 4, `storage.py`. Read next: `settle.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .._tree import TreeDef
from ..tensor.geometry import Geometry
from .storage import ViewStep

__all__ = [
    "Derived",
    "Gradient",
    "InputResult",
    "InputView",
    "LiteralResult",
    "Outcome",
    "Past",
    "Rebinding",
    "Record",
    "SameResult",
    "ValueResult",
    "ValueView",
    "WriteBack",
]


@dataclass(frozen=True, slots=True)
class Past:
    """How a view result came about, and what it remembers besides its addresses.

    Attributes
    ----------
    start, steps : int or None, tuple of ViewStep or None
        The view operators that lead to it, from an input (or from the temporary) on; None if some
        other operator returned it.
    requires_grad : bool
    value : int or None
        The value of the detached handle it is a view of, if that has a history of its own.
    detached_at : int
        After how many steps there was that handle.
    """

    start: int | None
    steps: tuple[ViewStep, ...] | None
    requires_grad: bool
    value: int | None = None
    detached_at: int = 0


@dataclass(frozen=True, slots=True)
class InputResult:
    """A result that is an input itself."""

    index: int


@dataclass(frozen=True, slots=True)
class InputView:
    """A result that is a view of an input, relative to the input's own geometry."""

    index: int
    base: Geometry
    geometry: Geometry
    past: Past


@dataclass(frozen=True, slots=True)
class ValueResult:
    """A result in a buffer of its own, with promised strides."""

    value: int
    form: Geometry
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class ValueView:
    """A result that is a view of a temporary, which other results may share."""

    value: int
    form: Geometry
    geometry: Geometry
    past: Past


@dataclass(frozen=True, slots=True)
class SameResult:
    """A result that is the same object as an earlier one."""

    result: int


@dataclass(frozen=True, slots=True)
class LiteralResult:
    """A result that is no tensor."""

    value: Any


Record: TypeAlias = InputResult | InputView | ValueResult | ValueView | SameResult | LiteralResult


@dataclass(frozen=True, slots=True)
class Rebinding:
    """An input whose handle is to lie where a result would."""

    index: int
    place: Record


@dataclass(frozen=True, slots=True)
class WriteBack:
    """A value to store into an input when the run is over."""

    index: int
    value: int
    no_grad: bool


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of an input after the run; value None clears it.

    That of a leaf replaces what it had; that of any other tensor goes on into the graph outside.
    Without `adds` the program cleared what was there before. With `of_root` it is the gradient of
    the tensor that the input is a view of.
    """

    index: int
    value: int | None
    adds: bool = True
    of_root: bool = False


@dataclass(frozen=True, slots=True)
class Derived:
    """An input that is memory around another input, relative to that one's own geometry."""

    index: int
    base: Geometry
    geometry: Geometry


@dataclass(slots=True)
class Outcome:
    """Everything a functional run leaves behind.

    Attributes
    ----------
    writes : list of WriteBack
    versions : list of (input index, count)
        By how much the version of an input's storage rises, once per written storage.
    records : list of Record
        One per leaf of the result.
    structure : TreeDef
    gradients : list of Gradient
    flags : list of (input index, bool)
        ``requires_grad`` of inputs, where the program set it.
    rebindings : list of Rebinding
    """

    writes: list[WriteBack] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    structure: TreeDef = field(default_factory=lambda: TreeDef(None))
    gradients: list[Gradient] = field(default_factory=list)
    flags: list[tuple[int, bool]] = field(default_factory=list)
    rebindings: list[Rebinding] = field(default_factory=list)

    @property
    def places(self) -> list[Record]:
        """Where results lie, and then the handles of inputs that are rebound."""
        return [*self.records, *(each.place for each in self.rebindings)]

    @property
    def extras(self) -> list[int]:
        """The values that are neither stored nor results: histories and gradients, in order."""
        found = [
            record.past.value
            for record in self.places
            if isinstance(record, InputView | ValueView) and record.past.value is not None
        ]
        found += [gradient.value for gradient in self.gradients if gradient.value is not None]
        return list(dict.fromkeys(found))
