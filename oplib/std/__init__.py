"""Built-in operators, namespace ``std``: written with the public API, four facets in one screen.

They are also the tutorial. An operator is defined when its name is first touched: `MODULES` says
which module defines it, and a test keeps the table exact.

Imports floors 0 to 6.
"""

from __future__ import annotations

import importlib
from typing import Final

from ..dispatch.registry import LOADERS

__all__ = ["MODULES", "load", "load_all"]

MODULES: Final[dict[str, tuple[str, ...]]] = {}
"""Module of this package -> the operators it defines."""

_MODULE_OF: Final = {name: module for module, names in MODULES.items() for name in names}


def load(name: str) -> bool:
    """Import the module that defines ``std::name``; return whether there is one not yet loaded."""
    module = _MODULE_OF.pop(name, None)
    if module is None:
        return False
    for other in MODULES[module]:
        _MODULE_OF.pop(other, None)
    importlib.import_module(f"{__name__}.{module}")
    return True


def load_all() -> None:
    """Define every built-in operator."""
    for module in MODULES:
        importlib.import_module(f"{__name__}.{module}")


LOADERS["std"] = load
