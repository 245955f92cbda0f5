"""The rows in other libraries: the same work, the way their users write it.

Each module imports one library when its function runs, and returns, for the key of a case,
callables by label; they are timed in the rounds of that case. A library that is not installed is
left out and named.

Read next: `table.py`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Final

from .autograd_rows import autograd_rows
from .jax_rows import jax_rows
from .paddle_rows import paddle_rows
from .rows import Rows
from .torch_rows import torch_rows

__all__ = ["PEERS", "Rows", "is_installed"]

PEERS: Final[dict[str, Callable[[], Rows]]] = {
    "torch": torch_rows,
    "paddle": paddle_rows,
    "autograd": autograd_rows,
    "jax": jax_rows,
}


def is_installed(peer: str) -> bool:
    """Return whether a peer can be imported."""
    return importlib.util.find_spec(peer) is not None
