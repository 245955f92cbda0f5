"""Built-in operators, namespace ``std``: written with the public API, four facets in one screen.

They are also the tutorial. An operator is defined when its name is first touched: `MODULES` says
which module defines it, and a test keeps the table exact.

Imports floors 0 to 6.
"""

from __future__ import annotations

import importlib
from typing import Final

from ..dispatch.registry import LOADERS
from ..tensor.methods import IN_PLACE, STORED

__all__ = ["MODULES", "load", "load_all"]

MODULES: Final[dict[str, tuple[str, ...]]] = {
    "elementwise": (
        *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "clamp", "cos"),
        *("cosh", "deg2rad", "div", "exp", "exp2", "expm1", "floor", "floor_divide", "log"),
        *("log10", "log1p", "log2", "masked_fill", "maximum", "minimum", "mul", "neg", "pow"),
        *("rad2deg", "reciprocal", "relu", "remainder", "round", "rsqrt", "sigmoid", "sign", "sin"),
        *("sinh", "sqrt", "square", "sub", "tan", "tanh", "trunc", "where"),
    ),
    "comparison": (
        *("bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift"),
        *("bitwise_xor", "eq", "ge", "gt", "isfinite", "isinf", "isnan", "le", "logical_and"),
        *("logical_not", "logical_or", "logical_xor", "lt", "ne", "signbit"),
    ),
    "reductions": (
        *("all", "any", "argmax", "argmin", "logsumexp", "max", "mean", "min", "norm", "prod"),
        *("std", "sum", "var"),
    ),
    "joining": ("concat", "stack"),
    "views": (
        *("as_strided", "chunk", "contiguous", "diagonal", "flatten", "flip"),
        *("movedim", "narrow", "reshape", "select", "slice", "split", "squeeze", "swapaxes"),
        *("transpose", "unbind", "unflatten", "unfold", "unsqueeze", "view"),
    ),
    "indexing": (
        *("basic_index", "gather", "index", "index_put", "index_put_", "index_select"),
        *("index_sum", "index_winners", "take_along_dim"),
    ),
    "linalg": ("cross", "dot", "matmul", "matmul_", "outer", "vecdot"),
    "decompositions": (
        *("cholesky", "det", "eigh", "inv", "lstsq", "pinv", "qr", "slogdet", "solve"),
        *("solve_triangular", "svd", "trace", "tril", "triu"),
    ),
    "matrices": ("matrix_norm", "matrix_power", "matrix_rank"),
    "scan": ("cumargmax", "cumargmin", "cummax", "cummin", "cumprod", "cumsum", "diff"),
    "contractions": ("contract", "einsum", "kron", "tensordot"),
    "fft": (
        *("fft", "fft_c2c", "fftn", "fftshift", "ifft", "ifft_c2c", "ifftn", "ifftshift", "irfft"),
        *("irfft_c2r", "irfftn", "rfft", "rfft_r2c", "rfftn", "roll"),
    ),
    "scatter": (
        *("index_add", "index_copy", "masked_select", "one_hot", "pad", "repeat_interleave"),
        *("scatter", "scatter_add", "take", "tile"),
    ),
    "special": (
        *("atan2", "copysign", "digamma", "erf", "erfc", "erfinv", "fmod", "gammaln", "hypot"),
        *("i0", "i1", "logaddexp", "logit", "nan_to_num", "ndtr", "nextafter", "polygamma", "sinc"),
        "xlogy",
    ),
    "activations": (*("elu", "gelu", "leaky_relu", "lerp", "log_sigmoid", "silu", "softplus"),),
    "losses": (
        *("binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy"),
        *("huber_loss", "kl_div", "l1_loss", "mse_loss", "nll_loss"),
    ),
    "layers": (
        *("attention", "avg_pool1d", "avg_pool2d", "batch_norm", "conv1d", "conv2d", "conv3d"),
        *("cosine_similarity", "embedding", "group_norm", "layer_norm", "linear", "max_pool1d"),
        *("max_pool2d", "rms_norm"),
    ),
    "random": ("bernoulli", "dropout", "rand", "randint", "randn", "randperm"),
    "sorting": (
        *("argsort", "count_nonzero", "isclose", "isin", "median", "nonzero", "quantile"),
        *("searchsorted", "sort", "topk", "unique", "unique_all"),
    ),
    "nn": ("log_softmax", "softmax"),
    "complex": ("angle", "complex", "imag", "polar"),
    "inplace": (
        *(f"{name}_" for name in IN_PLACE),
        *("fill_", "masked_fill_", "set_value", "zero_"),
    ),
    "stored": tuple(f"{name}_" for name in STORED),
    "creation": (
        *("arange", "empty", "empty_like", "eye", "full_like", "linspace", "new_empty"),
        *("new_ones", "new_zeros", "ones", "zeros"),
    ),
}
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
