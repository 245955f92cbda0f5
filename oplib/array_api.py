"""The array API standard, 2024.12, over the built-in operators: ``x.__array_namespace__()``.

Most of it is the table `OPERATORS`: a standard name, the operator, and the operator's words for
``axis`` and its kin. What needs more than words is a function below; `linalg` and `fft` are the
standard's extensions. Results carry gradients as the operators' do. `docs/operators.md` lists where
oplib deviates, and why.

Imports floors 0 to 7, of them `std.creation`.
"""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from .dispatch.registry import get_op
from .dtypes import CPU, as_dtype
from .errors import ArgumentError
from .shapes import broadcast_shapes, normalize_dims, result_type  # noqa: F401
from .std import creation
from .std.creation import empty, full, ones, zeros  # noqa: F401 (the standard's)
from .tensor import protocols
from .tensor.tensor import Tensor

__array_api_version__: Final = "2024.12"
_VERSIONS: Final = ("2021.12", "2022.12", "2023.12", "2024.12")

_KINDS: Final = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
_DTYPES: Final = {name: np.dtype(name) for names in _KINDS.values() for name in names}
globals().update(_DTYPES)
e, inf, nan, pi, newaxis = math.e, math.inf, math.nan, math.pi, None


def check_version(api_version: str | None) -> None:
    """Raise if this module does not implement a version of the standard."""
    if api_version not in (None, *_VERSIONS):
        raise ValueError(f"oplib implements the array API {_VERSIONS}, not {api_version!r}")


# ---------------------------------------------------------------------- operators by name

_WORDS: Final = {"axis": "dim", "keepdims": "keepdim", "axes": "dims", "k": "diagonal"}
_SAME: Final = (
    "abs acos acosh add all any argmax argmin asin asinh atan atan2 atanh bitwise_and "
    "bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor ceil conj copysign cos cosh "
    "count_nonzero exp expm1 flip floor floor_divide hypot imag isfinite isin isinf isnan log "
    "log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor matmul max maximum "
    "mean min minimum nextafter pow prod real reciprocal remainder round sign signbit sin sinh "
    "sqrt square stack sum tan tanh tile tril triu trunc vecdot where"
)
OPERATORS: Final = {
    **{name: name for name in _SAME.split()},
    "bitwise_invert": "bitwise_not",
    "broadcast_to": "expand",
    "divide": "div",
    "equal": "eq",
    "expand_dims": "unsqueeze",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "moveaxis": "movedim",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "permute_dims": "permute",
    "positive": "clone",
    "subtract": "sub",
    "take_along_axis": "take_along_dim",
}
"""Function of the standard -> operator of the same meaning."""


def _operator(name: str, target: str, words: dict[str, str] = _WORDS) -> Callable[..., Any]:
    """Return a function that calls an operator, found at the first call, in its own words."""

    @functools.cache
    def found() -> Any:
        return get_op(f"std::{target}")

    def function(*args: Any, **kwargs: Any) -> Any:
        return found()(*args, **{words.get(key, key): value for key, value in kwargs.items()})

    function.__name__ = name
    function.__doc__ = f"The standard's `{name}`: operator ``std::{target}``."
    return function


_MADE: Final = {name: _operator(name, target) for name, target in OPERATORS.items()}
globals().update(_MADE)  # from here on `abs`, `all`, `bool`, `max` ... are the standard's


class _Std:
    """The operators of namespace std as attributes, each found when first used."""

    def __getattr__(self, name: str) -> Any:
        found = get_op(f"std::{name}")
        setattr(self, name, found)
        return found


_std: Final = _Std()


# ---------------------------------------------------------------------- creation and dtypes


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: Any = None) -> Tensor:
    """Return `obj` as a Tensor, sharing memory where `copy` does not ask otherwise."""
    x = protocols.from_numpy(obj) if type(obj) is np.ndarray and copy is not True else obj
    if not isinstance(x, Tensor):
        if copy is False:
            raise ValueError(f"asarray cannot share the memory of a {type(obj).__name__}")
        x, copy = creation.tensor(x, dtype), False
    elif copy is False and dtype not in (None, x.dtype):
        raise ValueError(f"asarray cannot make {dtype} of {x.dtype} without a copy")
    return astype(x, dtype or x.dtype, copy=copy and x is obj, device=device)


def astype(x: Tensor, dtype: Any, /, *, copy: Any = True, device: Any = None) -> Tensor:
    """Return `x` in a dtype: a copy, or with ``copy=False`` itself if it has the dtype."""
    converted = x.cast(dtype) if copy or as_dtype(dtype) != x.dtype else x
    return converted if device is None else converted.to(device)


def _declare_like(name: str) -> Callable[..., Tensor]:
    def like(x: Tensor, /, *value: Any, device: Any = None, **options: Any) -> Tensor:
        made: Tensor = getattr(creation, name)(x, *value, **options)
        return made if device is None else made.to(device)

    like.__name__ = name
    like.__doc__ = f"`oplib.{name}`, on a device."
    return like


empty_like, full_like, ones_like, zeros_like = map(
    _declare_like, ("empty_like", "full_like", "ones_like", "zeros_like")
)


def arange(start: Any, /, stop: Any = None, step: Any = 1, **options: Any) -> Tensor:
    """Return numbers from `start` (or 0) to before `stop`."""
    return creation.arange(start, stop, step, **options)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, **options: Any) -> Tensor:
    """Return ones on the k-th diagonal."""
    return creation.eye(n_rows, n_cols, k, **options)


def linspace(
    start: Any, stop: Any, /, num: int, *, endpoint: bool = True, **options: Any
) -> Tensor:
    """Return `num` numbers evenly spaced, the last one `stop` if `endpoint`."""
    if endpoint:
        return creation.linspace(start, stop, num, **options)
    return creation.linspace(start, stop, num + 1, **options)[:-1]


def from_dlpack(x: Any, /, *, device: Any = None, copy: Any = None) -> Tensor:
    """Return a Tensor on the memory of what speaks DLPack, or a copy of it."""
    shared = protocols.from_dlpack(x)
    return astype(shared, shared.dtype, copy=copy, device=device)


def _one_of(word: str, *words: str) -> None:
    if word not in words:
        raise ValueError(f"expected one of {words}, got {word!r}")


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Return the coordinates of a grid."""
    _one_of(indexing, "xy", "ij")
    turn = indexing == "xy" and len(arrays) > 1
    order = [1, 0, *range(2, len(arrays))] if turn else [*range(len(arrays))]
    parts = [
        x.reshape([-1 if i == order[axis] else 1 for axis in range(len(arrays))])
        for i, x in enumerate(arrays)
    ]
    return [x.clone() for x in broadcast_arrays(*parts)]


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether a dtype is, or is of a kind, named by the standard."""
    return np.isdtype(dtype, kind)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Return whether promotion of both gives `to`."""
    return np.result_type(getattr(from_, "dtype", from_), to) == to


_FloatInfo = namedtuple("_FloatInfo", "bits eps max min smallest_normal dtype")
_IntInfo = namedtuple("_IntInfo", "bits max min dtype")


def finfo(type: Any, /) -> Any:
    """Return the limits of a floating dtype, as Python floats."""
    dtype = as_dtype(getattr(type, "dtype", type))
    known = np.finfo(dtype)
    values = (float(getattr(known, name)) for name in _FloatInfo._fields[1:5])
    return _FloatInfo._make([known.bits, *values, known.dtype])


def iinfo(type: Any, /) -> Any:
    """Return the limits of an integer dtype."""
    dtype = as_dtype(getattr(type, "dtype", type))
    known = np.iinfo(dtype)
    return _IntInfo(known.bits, int(known.max), int(known.min), dtype)


# ---------------------------------------------------------------------- elementwise, order


def clip(x: Tensor, /, min: Any = None, max: Any = None) -> Tensor:
    """Limit elements; a bound may be a Tensor, and does not change the dtype."""
    for bound, limited in ((min, _std.maximum), (max, _std.minimum)):
        x = x if bound is None else limited(x, bound).cast(x.dtype)
    return x.clone() if min is None and max is None else x


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Sort along an axis, always stably."""
    return _std.sort(x, axis, descending)[0]


def argsort(
    x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """Return the positions that sort along an axis, always stably."""
    return _std.argsort(x, axis, descending)


def searchsorted(x1: Tensor, x2: Tensor, /, *, side: str = "left", sorter: Any = None) -> Tensor:
    """Return where to insert `x2` into the sorted `x1`."""
    _one_of(side, "left", "right")
    x1 = x1 if sorter is None else x1.index_select(sorter)
    return _std.searchsorted(x1, x2, right=side == "right")


_Unique = namedtuple("_Unique", "values indices inverse_indices counts")
_UniqueCounts = namedtuple("_UniqueCounts", "values counts")
_UniqueInverse = namedtuple("_UniqueInverse", "values inverse_indices")


def unique_all(x: Tensor, /) -> Any:
    """Return distinct elements, first positions, which each element is, and counts."""
    return _Unique(*_std.unique_all(x))


def unique_counts(x: Tensor, /) -> Any:
    """Return distinct elements and how often each occurs."""
    values, _, _, counts = _std.unique_all(x)
    return _UniqueCounts(values, counts)


def unique_inverse(x: Tensor, /) -> Any:
    """Return distinct elements and which of them each element is."""
    return _UniqueInverse(*_std.unique_all(x)[::2])


def unique_values(x: Tensor, /) -> Tensor:
    """Return distinct elements."""
    return _std.unique_all(x)[0]


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Return the positions of non-zero elements, a Tensor per axis."""
    if not x.ndim:
        raise ArgumentError("nonzero takes a tensor with axes")
    return tuple(_std.nonzero(x).unbind(1))


# ---------------------------------------------------------------------- reductions and scans


def _declare_moment(name: str) -> Callable[..., Tensor]:
    def moment(
        x: Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False
    ) -> Tensor:
        return getattr(_std, name)(x, axis, correction, keepdims)

    moment.__name__ = name
    moment.__doc__ = f"Operator ``std::{name}`` with the standard's correction, 0 by default."
    return moment


std, var = map(_declare_moment, ("std", "var"))


def _declare_scan(name: str, target: str, start: int) -> Callable[..., Tensor]:
    def scan(
        x: Tensor, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False
    ) -> Tensor:
        if axis is None and x.ndim != 1:
            raise ArgumentError(f"{name} of {x.describe()} needs an axis")
        [dim] = normalize_dims(-1 if axis is None else axis, x.ndim)
        result: Tensor = getattr(_std, target)(x, dim, dtype=dtype)
        if not include_initial:
            return result
        shape = [1 if i == dim else n for i, n in enumerate(x.shape)]
        return concat([full(shape, start, dtype=result.dtype), result], axis=dim)

    scan.__name__ = name
    scan.__doc__ = f"Operator ``std::{target}``, and the initial {start} if asked for."
    return scan


cumulative_sum = _declare_scan("cumulative_sum", "cumsum", 0)
cumulative_prod = _declare_scan("cumulative_prod", "cumprod", 1)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None
) -> Tensor:
    """Return n-th differences along an axis, of `x` between two more tensors."""
    parts = [part for part in (prepend, x, append) if part is not None]
    return _std.diff(concat(parts, axis=axis) if len(parts) > 1 else x, n, axis)


# ---------------------------------------------------------------------- shapes


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Return views of the shape that all broadcast to."""
    shape = broadcast_shapes(*[x.shape for x in arrays])
    return [_std.expand(x, shape) for x in arrays]


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Join along an axis; flattened if it is None."""
    if axis is None:
        arrays, axis = [x.reshape([-1]) for x in arrays], 0
    return _std.concat(arrays, axis)


def repeat(x: Tensor, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Repeat every element, as often as `repeats`, a number or one per element, says."""
    if isinstance(repeats, int):
        return _std.repeat_interleave(x, repeats, axis)
    x, axis = (x.reshape([-1]), 0) if axis is None else (x, axis)
    places = np.repeat(np.arange(x.shape[axis]), repeats.numpy())
    return _std.index_select(x, places, axis)


def reshape(x: Tensor, /, shape: Sequence[int], *, copy: bool | None = None) -> Tensor:
    """Return `x` in a shape: a view where possible, which `copy` may forbid or demand."""
    found: Tensor = _std.reshape(x, shape)
    shares = found._storage is x._storage
    if copy is False and not shares:
        raise ValueError(f"{x.describe()} cannot take shape {list(shape)} without a copy")
    return found.clone() if copy and shares else found


def roll(x: Tensor, /, shift: Any, *, axis: Any = None) -> Tensor:
    """Shift elements in a circle."""
    several = isinstance(axis, tuple) and isinstance(shift, int)
    return _std.roll(x, [shift] * len(axis) if several else shift, axis)


def squeeze(x: Tensor, /, axis: Any) -> Tensor:
    """Remove axes, which must be of length one."""
    for dim in normalize_dims(axis, x.ndim):
        if x.shape[dim] != 1:
            raise ValueError(f"axis {dim} of {x.describe()} is not of length one")
    return _std.squeeze(x, axis)


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Return elements along an axis."""
    if axis is None and x.ndim != 1:
        raise ArgumentError(f"take from {x.describe()} needs an axis")
    return _std.index_select(x, indices, axis or 0)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the parts of a tensor along an axis, without it."""
    return tuple(x.unbind(axis))


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Swap the last two axes."""
    return _std.swapaxes(x, -1, -2)


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: Any = 2) -> Tensor:
    """Sum products over pairs of axes, or over a number of last and first ones."""
    if isinstance(axes, int):
        axes = range(x1.ndim - axes, x1.ndim), range(axes)
    return _std.tensordot(x1, x2, list(axes[0]), list(axes[1]))


# ---------------------------------------------------------------------- extensions

_Eigh = namedtuple("_Eigh", "eigenvalues eigenvectors")
_QR = namedtuple("_QR", "Q R")
_Slogdet = namedtuple("_Slogdet", "sign logabsdet")
_SVD = namedtuple("_SVD", "U S Vh")


def _trace(x: Tensor, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    return _std.diagonal(x, offset, -2, -1).sum(-1, dtype=dtype)


def _vector_norm(x: Tensor, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Tensor:
    return _std.norm(x, ord, axis, keepdims)


def _cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    lower: Tensor = _std.cholesky(x)
    return lower.mT.conj() if upper else lower


linalg: Final = SimpleNamespace(
    __name__=f"{__name__}.linalg",
    cholesky=_cholesky,
    cross=_operator("cross", "cross"),
    det=_operator("det", "det"),
    diagonal=lambda x, /, *, offset=0: _std.diagonal(x, offset, -2, -1),
    eigh=lambda x, /: _Eigh(*_std.eigh(x)),
    eigvalsh=lambda x, /: _std.eigh(x)[0],
    inv=_operator("inv", "inv"),
    matmul=_operator("matmul", "matmul"),
    matrix_norm=lambda x, /, *, keepdims=False, ord="fro": _std.matrix_norm(x, str(ord), keepdims),
    matrix_power=_operator("matrix_power", "matrix_power"),
    matrix_rank=_operator("matrix_rank", "matrix_rank"),
    matrix_transpose=matrix_transpose,
    outer=_operator("outer", "outer"),
    pinv=_operator("pinv", "pinv"),
    qr=lambda x, /, *, mode="reduced": _QR(*_std.qr(x, mode)),
    slogdet=lambda x, /: _Slogdet(*_std.slogdet(x)),
    solve=_operator("solve", "solve"),
    svd=lambda x, /, *, full_matrices=True: _SVD(*_std.svd(x, full_matrices)),
    svdvals=lambda x, /: _std.svd(x)[1],
    tensordot=tensordot,
    trace=_trace,
    vecdot=_MADE["vecdot"],
    vector_norm=_vector_norm,
)

_SWAPPED: Final = {"backward": "forward", "forward": "backward", "ortho": "ortho"}
_FFT_WORDS: Final = {"axis": "dim", "axes": "dim"}


def _hfft(x: Tensor, /, *, n: Any = None, axis: int = -1, norm: str = "backward") -> Tensor:
    return _std.irfft(x.conj(), n, axis, _SWAPPED[norm])


def _ihfft(x: Tensor, /, *, n: Any = None, axis: int = -1, norm: str = "backward") -> Tensor:
    return _std.rfft(x, n, axis, _SWAPPED[norm]).conj()


def _declare_frequencies(name: str) -> Callable[..., Tensor]:
    def frequencies(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
        return asarray(getattr(np.fft, name)(n, d), dtype=dtype, device=device)

    return frequencies


fft: Final = SimpleNamespace(
    __name__=f"{__name__}.fft",
    hfft=_hfft,
    ihfft=_ihfft,
    **{name: _declare_frequencies(name) for name in ("fftfreq", "rfftfreq")},
    **{
        name: _operator(name, name, _FFT_WORDS)
        for name in (
            *("fft", "fftn", "fftshift", "ifft", "ifftn", "ifftshift"),
            *("irfft", "irfftn", "rfft", "rfftn"),
        )
    },
)


# ---------------------------------------------------------------------- inspection


def _dtypes(*, device: Any = None, kind: Any = None) -> dict[str, np.dtype[Any]]:
    if kind is None:
        return dict(_DTYPES)
    return {name: dtype for name, dtype in _DTYPES.items() if np.isdtype(dtype, kind)}


_DEFAULTS: Final = {
    "real floating": _DTYPES["float64"],
    "complex floating": _DTYPES["complex128"],
    "integral": _DTYPES["int64"],
    "indexing": _DTYPES["int64"],
}


def __array_namespace_info__() -> SimpleNamespace:  # noqa: N807 (the standard's name)
    """Return what the standard's inspection interface asks for."""
    return SimpleNamespace(
        capabilities=lambda: {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": 64,
        },
        default_device=lambda: CPU,
        default_dtypes=lambda *, device=None: dict(_DEFAULTS),
        devices=lambda: [CPU],
        dtypes=_dtypes,
    )


_HERE: Final = """
arange argsort asarray astype broadcast_arrays can_cast clip concat cumulative_prod cumulative_sum
diff e empty empty_like eye fft finfo from_dlpack full full_like iinfo inf isdtype linalg linspace
matrix_transpose meshgrid nan newaxis nonzero ones ones_like pi repeat reshape result_type roll
searchsorted sort squeeze std take tensordot unique_all unique_counts unique_inverse unique_values
unstack var zeros zeros_like
"""

__all__ = [*_DTYPES, *OPERATORS, *_HERE.split()]
