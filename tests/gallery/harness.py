"""What every operator of the gallery must hold, as data: one `Case` per operator.

A module ``cases_<name>.py`` beside this file declares ``CASES``; `test_gallery.py` makes the tests.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import oplib
from oplib._tree import leaves
from oplib.testing.memory import copy_tree

__all__ = ["Case", "Fails", "gallery", "normal", "snapshot", "tensor", "wide"]

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"


def gallery(name: str) -> ModuleType:
    """Return a module of examples/gallery, imported as a script there imports it."""
    if str(GALLERY) not in sys.path:
        sys.path.insert(0, str(GALLERY))
    return importlib.import_module(name)


def normal(*shape: int, seed: int = 0) -> Any:
    """Return a tensor of normal numbers."""
    return oplib.from_numpy(np.random.default_rng([seed, *shape]).normal(size=shape))


def wide(*shape: int, seed: int = 0) -> Any:
    """Return complex normal numbers."""
    numbers = np.random.default_rng([seed, *shape]).normal(size=(2, *shape))
    return oplib.from_numpy(numbers[0] + 1j * numbers[1])


def tensor(values: Any, dtype: str | None = None) -> Any:
    """Return a tensor of given values."""
    return oplib.from_numpy(np.array(values, dtype))


@dataclass(frozen=True)
class Fails:
    """A call that raises `error` with `words`, and leaves its arguments as they were."""

    args: tuple[Any, ...]
    error: type[Exception]
    words: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Case:
    """One operator.

    Attributes
    ----------
    op : Operator
    schema : str
        As it is specified, without namespace.
    calls : sequence of tuples
        Valid arguments; the first is what opcheck starts from.
    opcheck : dict
        Options of `opcheck`.
    gradients : sequence of (function, tensors)
        Held against central differences to 1e-7, and in second order if `second`.
    fails : sequence of Fails
    program : (function, arguments) or None
        A small program that calls the operator; it is captured, saved, loaded and run.
    half : bool
        Whether float16 arguments give what float32 gives, cast.
    """

    op: Any
    schema: str
    calls: Sequence[tuple[Any, ...]]
    opcheck: dict[str, Any] = field(default_factory=dict)
    gradients: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]] = ()
    second: bool = True
    fails: Sequence[Fails] = ()
    program: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
    half: bool = False

    @property
    def name(self) -> str:
        """Short name for the id of a test."""
        return str(self.op.qualname).removeprefix("gallery::")


def snapshot(value: Any) -> list[bytes]:
    """Return the bytes of all tensors of nested arguments.

    Versions are no part of it: a kernel that raises may have written, so its call counts.
    """
    return [leaf.array.tobytes() for leaf in leaves(value) if isinstance(leaf, oplib.Tensor)]


def fresh(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return copies of arguments; a tensor given twice stays one."""
    return tuple(copy_tree(list(args)))


def all_cases() -> list[Case]:
    """Return the cases of every module beside this one."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("cases_*.py"))
    modules = [importlib.import_module(f"tests.gallery.{name}") for name in names]
    return [case for module in modules for case in module.CASES]
