"""Mutating operators made pure: the `functionalized` operator.

Every written region is cloned once; every argument that lives in one of them, written or only read,
is rebuilt as a view of that clone; the operator runs on these; its fresh results and the clones are
the results. That one rule is exact under any aliasing among the arguments.

Imports floors 0 to 4, `storage.py`. Read next: `interpreter.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from .._tree import tree_map
from ..dispatch.operator import Operator
from ..dispatch.registry import get_op
from ..errors import AliasError
from ..prims import PRIMS, clone, strided_view, view_as_complex, view_as_real, with_layout
from ..tensor.geometry import Geometry
from ..tensor.tensor import Tensor

__all__ = ["At", "functionalized", "run_functionalized"]


@dataclass(frozen=True, slots=True)
class At:
    """An argument that is a view of the clone of a region."""

    region: int
    geometry: Geometry


def run_functionalized(
    op: str, arguments: tuple[Any, ...], bases: list[Tensor], forms: tuple[Geometry, ...]
) -> tuple[Any, list[Tensor]]:
    """Run a mutating operator on clones of its regions.

    Parameters
    ----------
    op : str
        Qualified name.
    arguments : tuple
        In schema order, `At` in place of every tensor that lives in a region.
    bases : list of Tensor
        The value of each region.
    forms : tuple of Geometry
        Where its elements lie.

    Returns
    -------
    fresh : tuple
        The results that are no written arguments.
    regions : list of Tensor
        The value of each region afterwards.
    """
    operator = get_op(op)
    clones = [_clone(base, form) for base, form in zip(bases, forms, strict=True)]

    def rebuild(leaf: Any) -> Any:
        if type(leaf) is not At:
            return leaf
        return view_at(clones[leaf.region], forms[leaf.region], leaf.geometry)

    result = operator.call_positional([tree_map(rebuild, value) for value in arguments])
    return fresh_results(operator, result), clones


def fresh_results(op: Operator[..., Any], result: Any) -> tuple[Any, ...]:
    """Return the results of a call that are no written arguments."""
    returns = op.schema.returns
    values = (result,) if len(returns) == 1 else tuple(result or ())
    return tuple(v for i, v in enumerate(values) if op.schema.returned_argument(i) is None)


def _clone(base: Tensor, form: Geometry) -> Tensor:
    """Return a copy of a region's value that lies in memory as its form says."""
    if base.strides == form.strides:
        copy: Tensor = clone(base)
        if copy.strides == form.strides:
            return copy
    item = form.dtype.itemsize
    return with_layout(base, [step // item for step in form.strides])  # type: ignore[no-any-return]


def view_at(root: Tensor, form: Geometry, geometry: Geometry) -> Tensor:
    """Return the view of `root` that has `geometry`, where `root` has `form`."""
    if geometry.dtype != form.dtype:
        if form.dtype.kind == "c":
            root = view_as_real(root)
            item = form.dtype.itemsize // 2
        elif geometry.dtype.kind == "c":
            item = form.dtype.itemsize
            real = Geometry(
                form.dtype, (*geometry.shape, 2), (*geometry.strides, item), geometry.offset
            )
            return view_as_complex(view_at(root, form, real))  # type: ignore[no-any-return]
        else:
            raise AliasError(f"a view of dtype {geometry.dtype} of memory of dtype {form.dtype}")
    else:
        item = form.dtype.itemsize
    if geometry.shape == root.shape and geometry.strides == root.strides:
        if geometry.offset == form.offset:
            return root
    stride = [step // item for step in geometry.strides]
    offset = (geometry.offset - form.offset) // item
    return strided_view(root, list(geometry.shape), stride, offset)  # type: ignore[no-any-return]


functionalized: Final[Any] = PRIMS.define(
    "functionalized(str op, Any arguments, Tensor[] bases, Any forms) -> (Any, Tensor[])"
).op
# Below autograd it runs as it is; above, the clones, views and the operator's own rule record.
functionalized.register_kernel(None, run_functionalized)
functionalized.register_kernel("Autograd", run_functionalized)
