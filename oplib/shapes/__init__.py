"""Describing results instead of computing them: what fake rules are made of.

A fake rule returns `TensorSpec`s (or Tensors without data). The common ones need no function: pass
``like("x")``, ``broadcast("x", "y")`` or ``reduced("x", "dim", "keepdim")`` where a rule is wanted.

    spec         `TensorSpec`, and the array that a spec promises
    functions    shapes, dtypes and layouts, for rules and kernels alike
    builders     rules stated by argument names

Imports floors 0 to 3. Read next: `prims/`.
"""

from ..tensor.geometry import contiguous_strides, keep_layout, numel
from ..tensor.view_rules import normalize_dim, normalize_dims
from .builders import (
    ShapeRule,
    broadcast,
    concat,
    gather,
    like,
    matmul,
    outputs,
    reduced,
    spec,
    stacked,
    windows,
)
from .functions import (
    as_size,
    broadcast_shapes,
    broadcast_spec,
    check,
    concat_spec,
    gather_spec,
    like_spec,
    matmul_spec,
    reduced_shape,
    reduced_spec,
    result_type,
    same_shape,
    stacked_spec,
    windowed_shape,
)
from .spec import TensorSpec, allocate

__all__ = [
    "ShapeRule",
    "TensorSpec",
    "allocate",
    "as_size",
    "broadcast",
    "broadcast_shapes",
    "broadcast_spec",
    "check",
    "concat",
    "concat_spec",
    "contiguous_strides",
    "gather",
    "gather_spec",
    "keep_layout",
    "like",
    "like_spec",
    "matmul",
    "matmul_spec",
    "normalize_dim",
    "normalize_dims",
    "numel",
    "outputs",
    "reduced",
    "reduced_shape",
    "reduced_spec",
    "result_type",
    "same_shape",
    "spec",
    "stacked",
    "stacked_spec",
    "windowed_shape",
    "windows",
]
