"""Names of values: a stem, and a number where several values share it.

Names are a function of the stems in node order, so text does not depend on how a graph was made;
and stems are a function of the names, so a text that is parsed keeps them.

Imports `literals.py`. Read next: `values.py`.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from typing import Final

from .literals import DTYPE_WORDS

__all__ = ["Namer", "is_symbol"]

_TEXT_WORDS: Final = ("_", "inf", "infj", "nan", "nanj", "same", "token")
_SOURCE_WORDS: Final = ("constants", "epilogue", "run_functionalized")
_RESERVED: Final = frozenset({*keyword.kwlist, *_TEXT_WORDS, *_SOURCE_WORDS, *DTYPE_WORDS})
"""Words that stand for something else where a value's name may stand, in text or in source."""

_SYMBOL: Final = re.compile(r"u[0-9]+")


def is_symbol(name: str) -> bool:
    """Return whether `name` is one of a size symbol: ``u0``."""
    return _SYMBOL.fullmatch(name) is not None


class Namer:
    """Hands out distinct names: ``stem``, ``stem_1``, ``stem_2``, ... leaving out those taken.

    Words of the language, Python's keywords and the names of size symbols are always taken.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = {*_RESERVED, *taken}
        self._next: dict[str, int] = {}

    def preview(self, stem: str) -> str:
        """Return the name the next value of this stem would get."""
        if stem not in self.taken and not is_symbol(stem):
            return stem
        count = self._next.get(stem, 1)
        while f"{stem}_{count}" in self.taken:
            count += 1
        self._next[stem] = count
        return f"{stem}_{count}"

    def name(self, stem: str) -> str:
        """Return a name for a value of this stem and keep it."""
        name = self.preview(stem)
        self.taken.add(name)
        return name

    def take(self, name: str) -> str:
        """Keep a name that is given and return its stem: the one that `name` would number so."""
        stem, _, number = name.rpartition("_")
        if not (stem and number.isdigit() and self.preview(stem) == name):
            stem = name
        self.name(stem)
        return stem
