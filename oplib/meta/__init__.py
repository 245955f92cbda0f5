"""Tensors without data: the Meta stage, `FakeTensorMode`, and what authors of shape rules need.

On key Meta a call runs the operator's fake rule instead of a kernel. The rule is pure: it reads
shapes, dtypes and plain values, and returns descriptions of fresh results. What it returns is
checked on every call; consequences of writes and views are applied by the stage from the schema, so
a rule cannot disagree about them.

A *meta* tensor lives on device ``"meta"``; a *fake* claims another device and belongs to a mode.

    conversion   from real tensors to fakes
    mode         `FakeTensorMode`
    context      what a rule may ask for; the error for reading a value
    placement    which device and mode a call belongs to
    results      what a rule returned, checked
    stage        the calls: by rule, by geometry, derived
    estimate     what a program would allocate

Imports floors 0 to 4.
"""

from ..dispatch.keys import META
from ..dispatch.lifting import ADOPTERS
from ..shapes import (
    TensorSpec,
    as_size,
    broadcast,
    broadcast_shapes,
    check,
    concat,
    contiguous_strides,
    gather,
    keep_layout,
    like,
    matmul,
    normalize_dim,
    normalize_dims,
    numel,
    outputs,
    reduced,
    reduced_shape,
    result_type,
    same_shape,
    spec,
    stacked,
    windowed_shape,
    windows,
)
from ..tensor.meta_array import MetaArray
from ..tensor.tensor import ARRAY_TYPES, ArrayType
from .context import FakeContext, get_ctx, refuse_value
from .estimate import Estimate, OperatorCost, estimate
from .mode import FakeTensorMode, adopt
from .stage import MetaStage

__all__ = [
    "Estimate",
    "FakeContext",
    "FakeTensorMode",
    "MetaStage",
    "OperatorCost",
    "TensorSpec",
    "as_size",
    "broadcast",
    "broadcast_shapes",
    "check",
    "concat",
    "contiguous_strides",
    "estimate",
    "gather",
    "get_ctx",
    "install",
    "keep_layout",
    "like",
    "matmul",
    "normalize_dim",
    "normalize_dims",
    "numel",
    "outputs",
    "reduced",
    "reduced_shape",
    "result_type",
    "same_shape",
    "spec",
    "stacked",
    "windowed_shape",
    "windows",
]


def install() -> None:
    """Make MetaArrays the arrays of the Meta key, and constants beside them fakes."""
    ARRAY_TYPES[MetaArray] = ArrayType(
        key=lambda array: META, device=lambda array: array.device, to_numpy=refuse_value
    )
    ADOPTERS.append(adopt)
