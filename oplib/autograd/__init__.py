"""Reverse-mode differentiation: one engine for operators, rules of custom operators, and PyLayer.

Reading order, as data flows: `stage.py` records a call, `wrapper.py` saves its tensors, `engine.py`
runs the graph backwards, `general_grad.py` holds the entry points, `pylayer.py` user-defined pairs;
`family.py` is about views and writes through them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from .general_grad import backward, grad
from .hooks import register_final_hook, saved_tensors_hooks
from .modes import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from .pylayer import PyLayer, PyLayerContext, once_differentiable

if TYPE_CHECKING:
    from .anomaly import detect_anomaly
    from .backward_graph import BackwardGraph, describe
    from .checkpoint import recompute

__all__ = [
    "BackwardGraph",
    "PyLayer",
    "PyLayerContext",
    "backward",
    "describe",
    "detect_anomaly",
    "enable_grad",
    "grad",
    "is_grad_enabled",
    "no_grad",
    "once_differentiable",
    "recompute",
    "register_final_hook",
    "saved_tensors_hooks",
    "set_grad_enabled",
]

_LAZY: Final = {
    "BackwardGraph": "backward_graph",
    "describe": "backward_graph",
    "detect_anomaly": "anomaly",
    "recompute": "checkpoint",
}
"""Names that most programs never use -> the module that defines them."""


def __getattr__(name: str) -> Any:
    """Load what is used for the first time."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = found
    return found
