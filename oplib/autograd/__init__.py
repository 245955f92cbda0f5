"""Reverse-mode differentiation: one engine for operators, rules of custom operators, and PyLayer.

Reading order, as data flows: `stage.py` records a call, `wrapper.py` saves its tensors, `engine.py`
runs the graph backwards, `general_grad.py` holds the entry points, `pylayer.py` user-defined pairs;
`family.py` is about views and writes through them.
"""

from __future__ import annotations

from .anomaly import detect_anomaly
from .describe import BackwardGraph, describe
from .general_grad import backward, grad
from .hooks import register_final_hook, saved_tensors_hooks
from .modes import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from .pylayer import PyLayer, PyLayerContext, once_differentiable
from .recompute import recompute

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
