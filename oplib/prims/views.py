"""Primitive view operators: handles on the same memory.

The kernel of a view with a geometry rule is that rule, applied to an array by `view_at`.

Imports floors 0 to 3, `library.py`, `arithmetic.py`. Read next: `addresses.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.lib.stride_tricks import as_strided

from ..tensor import view_rules
from ..tensor.geometry import Geometry, contiguous_strides
from ..tensor.tensor import Tensor
from .arithmetic import cast, with_layout
from .declare import Array, TensorOperator, declare

__all__ = [
    "alias",
    "byte_view",
    "contiguous_last",
    "detach",
    "expand",
    "permute",
    "real",
    "strided_view",
    "view_as_complex",
    "view_as_real",
]


def view_at(x: Array, geometry: Geometry) -> Array:
    """Return the view of memory around `x` whose `geometry` counts bytes from its first element.

    Addresses are reached with NumPy's own strided views, so the view may begin before the first
    element of `x`, as long as that memory has the same owner.
    """
    if 0 in geometry.shape:
        start = as_strided(x, (0,), (x.itemsize,)).view(geometry.dtype)
    else:
        count = max(1, geometry.dtype.itemsize // x.itemsize)
        start = as_strided(x, (count,), (x.itemsize,)).view(geometry.dtype)[:1]
        if geometry.offset:
            start = as_strided(start, (2,), (geometry.offset,))[1:]
    return as_strided(start, geometry.shape, geometry.strides)


def _by_rule(rule: Callable[..., Geometry]) -> Callable[..., Array]:
    """Return the kernel that makes the view a geometry rule describes."""

    def kernel(x: Array, *args: Any) -> Array:
        return view_at(x, rule(Geometry(x.dtype, x.shape, x.strides), *args))

    return kernel


# ---------------------------------------------------------------------- the same geometry

alias: TensorOperator = declare(
    "alias(Tensor(a) x) -> Tensor(a)",
    "A second handle on the same elements, joined to its base by autograd.",
)
alias.register_kernel("cpu", lambda x: x.view())
alias.register_view(lambda geometry: geometry)
alias.register_vjp(x=lambda grad: grad)

detach: TensorOperator = declare(
    "detach(Tensor(a) x) -> Tensor(a)", "A second handle on the same elements, without history."
)
detach.register_kernel("cpu", lambda x: x.view())
detach.register_view(lambda geometry: geometry)
detach.register_vjp(x=None)


# ---------------------------------------------------------------------- other geometries

permute: TensorOperator = declare(
    "permute(Tensor(a) x, int[] dims) -> Tensor(a)",
    "Permute the axes: axis k of the result is axis ``dims[k]`` of `x`.",
)
permute.register_kernel("cpu", lambda x, dims: x.transpose(view_rules.normalize_dims(dims, x.ndim)))
permute.register_view(view_rules.transpose)


@permute.register_vjp
def _permute_grad(grad: Tensor, dims: Sequence[int]) -> Tensor:
    places = view_rules.normalize_dims(dims, grad.ndim)
    return permute(grad, sorted(range(grad.ndim), key=places.__getitem__))


expand: TensorOperator = declare(
    "expand(Tensor(a) x, SymInt[] size) -> Tensor(a)",
    "Broadcast to `size` without a copy, by axes of stride zero; -1 keeps an axis.",
)
expand.register_kernel("cpu", _by_rule(view_rules.expand))
expand.register_view(view_rules.expand)
expand.register_vjp(x=lambda grad: grad)  # the engine sums it over what was repeated

strided_view: TensorOperator = declare(
    "strided_view(Tensor(a) x, SymInt[] size, SymInt[] stride, SymInt offset) -> Tensor(a)",
    "The view of memory at addresses, in elements from the first element of `x`.",
)


def _strided_geometry(g: Geometry, size: Any, stride: Any, offset: Any) -> Geometry:
    item = g.dtype.itemsize
    strides = tuple([step * item for step in stride])
    return Geometry(g.dtype, tuple(size), strides, g.offset + offset * item)


strided_view.register_kernel("cpu", _by_rule(_strided_geometry))
strided_view.register_view(_strided_geometry)


byte_view: TensorOperator = declare(
    "byte_view(Tensor(a) x, ScalarType dtype, SymInt[] size, SymInt[] stride, SymInt offset)"
    " -> Tensor(a)",
    "Memory around `x` as elements of another dtype, counted in bytes from its first element.",
)


def _byte_view(g: Geometry, dtype: Any, size: Any, stride: Any, offset: Any) -> Geometry:
    return Geometry(dtype, tuple(size), tuple(stride), g.offset + offset)


byte_view.register_kernel("cpu", _by_rule(_byte_view))
byte_view.register_view(_byte_view)
byte_view.register_vjp(x=None)


# ---------------------------------------------------------------------- complex numbers

view_as_real: TensorOperator = declare(
    "view_as_real(Tensor(a) x) -> Tensor(a)",
    "A complex tensor as real numbers, with one more axis of length 2.",
)
view_as_real.register_kernel("cpu", _by_rule(view_rules.view_as_real))
view_as_real.register_view(view_rules.view_as_real)
view_as_real.register_vjp(x=lambda grad: view_as_complex(contiguous_last(grad)))

view_as_complex: TensorOperator = declare(
    "view_as_complex(Tensor(a) x) -> Tensor(a)",
    "Real numbers, whose last axis has length 2 and stride 1, as a complex tensor.",
)
view_as_complex.register_kernel("cpu", _by_rule(view_rules.view_as_complex))
view_as_complex.register_view(view_rules.view_as_complex)
view_as_complex.register_vjp(x=lambda grad: view_as_real(grad))


def contiguous_last(x: Tensor) -> Tensor:
    """Return `x`, copied to C order unless its last axis is contiguous."""
    return x if x.strides[-1] == x.itemsize else with_layout(x, contiguous_strides(x.shape, 1))


real: TensorOperator = declare(
    "real(Tensor(a) x) -> Tensor(a)", "The real part as a view; of a real tensor all of it."
)
real.register_kernel("cpu", lambda x: x.real if x.dtype.kind == "c" else x.view())
real.register_view(lambda g: view_rules.real(g) if g.dtype.kind == "c" else g)
real.register_vjp(x=lambda grad, x_spec: cast(grad, x_spec.dtype))
