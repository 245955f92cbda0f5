"""Values and gradients are torch's, where torch implements the same function.

Every differentiable built-in operator is compared on its cases, complex ones included, or stands
in `NOT_IN_TORCH` with the reason. A case that torch refuses (a shape it does not take) is left out,
but each operator keeps at least one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oplib
from oplib.std import MODULES
from tests.std.cases import CASES, Call, as_tensors, operator
from tests.std.test_facets import COMPLEX_NAMES, DIFFERENTIABLE, complex_part

pytestmark = [pytest.mark.peer("torch"), pytest.mark.filterwarnings("ignore")]

NOT_IN_TORCH: dict[str, str] = {
    **dict.fromkeys(("cbrt", "cbrt_"), "torch has no cube root"),
    **dict.fromkeys(("floor_divide", "floor_divide_", "unique_all"), "torch has no derivative"),
    **dict.fromkeys(
        [f"logical_{name}_" for name in ("and", "not", "or", "xor")], "zero; torch's is refused"
    ),
    "view": "torch's view as another dtype has no gradient",
    **dict.fromkeys(("index_sum", "contract"), "a part of another operator's gradient"),
    **dict.fromkeys(("dropout",), "random"),
    **dict.fromkeys(("fill_", "zero_", "masked_fill_"), "writes constants: test_inplace.py"),
}


MUST_TAKE_COMPLEX = {
    *MODULES["views"],
    *MODULES["fft"],
    *MODULES["contractions"],
    *(*MODULES["linalg"], *MODULES["decompositions"], "mul", "div", "pow", "exp", "sum", "prod"),
}
"""Of these torch takes complex numbers; others may be for real ones there."""


def herm(x: Any) -> Any:
    return (x + x.mH) / 2


def resized(x: Any, pad: Any, mode: str = "constant", value: float = 0.0) -> Any:
    """Pad as torch does; its other modes take batches of channels only."""
    import torch

    if mode == "constant":
        return torch.nn.functional.pad(x, pad, mode, value)
    axes = len(pad) // 2
    lead = x.shape[: x.ndim - axes]
    flat = x.reshape(1, -1, *x.shape[x.ndim - axes :])
    padded = torch.nn.functional.pad(flat, pad, mode)
    return padded.reshape(*lead, *padded.shape[2:])


def adapters() -> dict[str, Callable[..., Any]]:
    """Return torch's forms of the operators that it calls differently."""
    import torch

    f, linalg, fft = torch.nn.functional, torch.linalg, torch.fft

    def extreme(name: str) -> Callable[..., Any]:
        function = getattr(torch, f"a{name}")
        return lambda x, dim=None, keepdim=False: function(x, () if dim is None else dim, keepdim)

    def cut(function: Any) -> Callable[..., Any]:
        return lambda x, dim, index, src: function(
            x, dim, index, src[tuple(slice(n) for n in index.shape)]
        )

    def product(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        for axis in sorted(range(x.ndim) if dim is None else np.atleast_1d(dim), reverse=True):
            x = torch.prod(x, int(axis), True)
        return (
            x if keepdim else x.squeeze([*(range(x.ndim) if dim is None else np.atleast_1d(dim))])
        )

    def moment(name: str) -> Callable[..., Any]:
        function = getattr(torch, name)
        return lambda x, dim=None, correction=1, keepdim=False: function(
            x, dim=dim, correction=correction, keepdim=keepdim
        )

    def one(axis: int, norm: str = "backward") -> dict[str, Any]:
        return {"dim": axis, "norm": norm}

    def triangular(a: Any, b: Any, upper: bool) -> Any:
        if b.ndim > 1:
            return linalg.solve_triangular(a, b, upper=upper)
        return linalg.solve_triangular(a, b[..., None], upper=upper)[..., 0]

    def spectrum(x: Any) -> Any:
        values, vectors = linalg.eigh(herm(x))
        return values, (vectors * values[..., None, :].exp()) @ vectors.mH

    def factors(x: Any) -> Any:
        u, s, vh = linalg.svd(x, full_matrices=False)
        return s, u @ vh

    def padded_all(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return torch.logsumexp(x, [*range(x.ndim)] if dim is None else dim, keepdim)

    return {
        **{name: extreme(name) for name in ("max", "min")},
        **{name: moment(name) for name in ("var", "std")},
        "sign": torch.sgn,
        "prod": product,
        "logsumexp": padded_all,
        "round": lambda x, decimals=0: torch.round(x, decimals=decimals),
        "norm": linalg.vector_norm,
        "median": lambda x, *rest: torch.quantile(x, 0.5, *rest),
        "cummax": lambda x, dim: torch.cummax(x, dim)[0],
        "cummin": lambda x, dim: torch.cummin(x, dim)[0],
        "sort": lambda x, *rest: torch.sort(x, *rest)[0],
        "topk": lambda x, *rest: torch.topk(x, *rest)[0],
        "unique_all": torch.unique,
        "einsum": lambda equation, operands: torch.einsum(equation, *operands),
        "tensordot": lambda x, y, a, b: torch.tensordot(x, y, (a, b)),
        "matrix_norm": lambda x, ord="fro", keepdim=False: linalg.matrix_norm(
            x, ord if ord in ("fro", "nuc") else float(ord), keepdim=keepdim
        ),
        "matmul_": lambda x, y: x @ y,
        "vecdot": lambda x, y, dim=-1: linalg.vecdot(x, y, dim=dim),
        "cross": lambda x, y, dim=-1: linalg.cross(x, y, dim=dim),
        "trace": lambda x: x.diagonal(0, -2, -1).sum(-1),
        "lstsq": lambda a, b: linalg.pinv(a) @ b,
        "cholesky": lambda x: linalg.cholesky(herm(x)),
        "eigh": spectrum,
        "svd": factors,
        "qr": linalg.qr,
        "solve_triangular": triangular,
        **{name: getattr(fft, name) for name in ("fft", "ifft", "rfft", "irfft", "fftn", "ifftn")},
        "fft_c2c": lambda x, *rest: fft.fft(x, **one(*rest)),
        "ifft_c2c": lambda x, *rest: fft.ifft(x, **one(*rest)),
        "rfft_r2c": lambda x, *rest: fft.rfft(x, **one(*rest)),
        "irfft_c2r": lambda x, n, *rest: fft.irfft(x, n, **one(*rest)),
        "index_select": lambda x, index, dim=0: torch.index_select(x, dim, index),
        "take": lambda x, index: torch.take(x, index),
        "take_along_dim": lambda x, i, dim=-1: torch.take_along_dim(x, i, dim),
        "index": lambda x, indices: x[tuple(slice(None) if i is None else i for i in indices)],
        "index_put": lambda x, indices, value: put(x, indices, value),
        "index_put_": lambda x, indices, value: put(x, indices, value),
        "basic_index": lambda x, index: x.flip(0)[:, None, ..., 1] if reverses(index) else x[index],
        "pad": resized,
        **{name: cut(getattr(torch, name)) for name in ("scatter", "scatter_add")},
        "gammaln": torch.lgamma,
        "gammaln_": torch.lgamma,
        "embedding": lambda weight, index: f.embedding(index, weight),
        "attention": lambda q, k, v, mask=None, causal=False, scale=None: (
            f.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)
        ),
        "batch_norm": lambda x, mean, var, w=None, b=None: f.batch_norm(x, mean, var, w, b),
        "rms_norm": lambda x, w=None: f.rms_norm(x, x.shape[-1:], w, 1e-6),
        "log_sigmoid": f.logsigmoid,
        "layer_norm": f.layer_norm,
        "flip": lambda x, dim=None: torch.flip(x, [*range(x.ndim)] if dim is None else dim),
        "transpose": lambda x, dims=None: x.permute(dims or [*range(x.ndim)][::-1]),
        "unsqueeze": lambda x, dim: (
            x[None, ..., None] if isinstance(dim, list) else x.unsqueeze(dim)
        ),
        "squeeze": lambda x, dim=None: x.squeeze() if dim is None else x.squeeze(dim),
        "slice": lambda x, dim=0, start=None, end=None, step=1: (
            x.flip(dim)[..., ::-step]
            if step < 0
            else x[(slice(None),) * dim][start:end]
            if dim == 0
            else x[:, start:end:step]
        ),
        "contiguous": lambda x: x.contiguous(),
        "view": lambda x, dtype: x.view(torch.float64),
        "expand": lambda x, size: x.expand(size),
        "unfold": lambda x, dim, size, step: x.unfold(dim, size, step),
        "repeat_interleave": torch.repeat_interleave,
        "imag": lambda x: x.imag if x.is_complex() else x * 0,
        "xlogy": torch.special.xlogy,
        "clamp": lambda x, min=None, max=None: torch.clamp(x, min, max),
        "clamp_": lambda x, min=None, max=None: torch.clamp(x, min, max),
        "round_": lambda x, decimals=0: torch.round(x, decimals=decimals),
        "sign_": torch.sgn,
    }


def put(x: Any, indices: Any, value: Any) -> Any:
    """Store as `index_put` does, at distinct places: torch's gradient counts overwritten values."""
    rows = np.broadcast_arrays(*[i.numpy() for i in indices if i is not None])
    if len(set(zip(*[row.ravel().tolist() for row in rows], strict=True))) != rows[0].size:
        raise ValueError("places occur twice")
    made = x.clone()
    made[tuple(slice(None) if i is None else i for i in indices)] = value
    return made


def reverses(index: Any) -> bool:
    return any(isinstance(part, slice) and part.step == -1 for part in index)


def torch_function(name: str) -> Callable[..., Any]:
    """Return torch's function of the name, from where torch has it."""
    import torch

    f, known = torch.nn.functional, adapters()
    if name in known:
        return known[name]
    plain = name.removesuffix("_")
    if plain != name and (found := torch_function(plain)):
        return found  # a form that writes has the values and gradients of the one that does not
    for place in (f, torch.linalg, torch, torch.special, torch.fft, torch.Tensor):
        if hasattr(place, name):
            return getattr(place, name)  # type: ignore[no-any-return]
    raise LookupError(f"torch has no {name}: give it an adapter or a reason")


OURS: dict[str, Callable[..., Any]] = {
    "svd": lambda x: (lambda u, s, vh: (s, u @ vh))(*oplib.svd(x)),
    "eigh": lambda x: (lambda w, v: (w, (v * w[..., None, :].exp()) @ v.swapaxes(-1, -2).conj()))(
        *oplib.eigh(x)
    ),
    "sort": lambda *args: oplib.sort(*args)[0],
    "topk": lambda *args: oplib.topk(*args)[0],
    "cummax": lambda x, dim: oplib.cummax(x, dim)[0],
    "cummin": lambda x, dim: oplib.cummin(x, dim)[0],
    "unique_all": lambda x: oplib.unique_all(x)[0],
}
"""What is unique up to signs is compared in a form that is not; positions have no gradient."""

CONSTANT = {"batch_norm": (1, 2), "nll_loss": (2,), "cross_entropy": (2,)}
"""Arguments torch gives no gradient."""


def compared(name: str, given: Call) -> bool:
    """Compare one call; return False if torch refuses it."""
    import torch

    ours = as_tensors(given, requires_grad=True)
    if isinstance(given.args[-1], str) and given.args[-1] in ("sum", "none"):
        given = Call(given.args[:-1], {**given.kwargs, "reduction": given.args[-1]})
    theirs = given.mapped(
        lambda a: torch.tensor(np.ascontiguousarray(a), requires_grad=a.dtype.kind in "fc")
    )
    for position in CONSTANT.get(name, ()):
        if position < len(theirs.args) and theirs.args[position] is not None:
            theirs.args[position].requires_grad_(False)
    args = theirs.args
    numbers = (int, float, complex)
    if name not in ("lerp", "pow", "pow_", "masked_fill", "clamp", "clamp_", "where"):
        scalars = ("Tensor x", "Tensor y", "Tensor(a!) x")
        tensors = [str(a) in scalars for a in operator(name).schema.arguments]
        args = tuple(
            torch.tensor(v, dtype=torch.float64) if isinstance(v, numbers) and is_tensor else v
            for v, is_tensor in zip(args, tensors, strict=False)
        )
    try:
        expected = torch_function(name)(*args, **theirs.kwargs)
    except (TypeError, RuntimeError, IndexError, ValueError):
        return False
    written = name.endswith("_")
    first = ours.args[0]
    call = (first * 1, *ours.args[1:]) if written else ours.args
    result = OURS.get(name, operator(name))(*call, **ours.kwargs)
    several = isinstance(result, tuple | list)
    mine, others = (result, expected) if several else ([result], [expected])
    total, wanted = [], []
    for a, b in zip(mine, others, strict=True):
        np.testing.assert_allclose(
            a.detach().numpy(), b.detach().resolve_conj().numpy(), rtol=1e-8, atol=1e-10
        )
        if a.requires_grad:
            weights = np.cos(np.arange(a.size)).reshape(a.shape)
            weights = np.asarray(weights * (1 - 0.5j) if a.dtype.kind == "c" else weights)
            total.append((a, oplib.from_numpy(weights)))
            wanted.append((b, torch.tensor(weights)))
    if any(not b.requires_grad for b, _ in wanted):
        return False
    oplib.autograd.backward([a for a, _ in total], [w for _, w in total])
    try:
        torch.autograd.backward([b for b, _ in wanted], [w for _, w in wanted])
    except RuntimeError:  # of shapes it takes forward only
        return False
    for a, b in zip(leaves(ours), leaves(theirs), strict=True):
        if b.grad is not None and a.requires_grad:
            zero = np.zeros(a.shape)
            grad = zero if a.grad is None else a.grad.numpy()
            np.testing.assert_allclose(
                grad, b.grad.resolve_conj().numpy(force=True), rtol=1e-8, atol=1e-10
            )
    return True


def leaves(call: Call) -> list[Any]:
    """Return the tensors of a call in order."""
    found: list[Any] = []

    def visit(value: Any) -> None:
        if isinstance(value, list | tuple):
            for part in value:
                visit(part)
        elif hasattr(value, "requires_grad"):
            found.append(value)

    visit(call.args)
    visit(list(call.kwargs.values()))
    return found


@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if n not in NOT_IN_TORCH])
def test_values_and_gradients_are_torchs(name):
    outcomes = [compared(name, given) for given in CASES[name]]
    assert any(outcomes), "torch took no case"


SLOW = pytest.mark.slow  # forms that write, whose rules are those of the others
TURNED = [
    pytest.param(name, marks=SLOW) if name.endswith("_") else name
    for name in COMPLEX_NAMES
    if name not in NOT_IN_TORCH
]


@pytest.mark.parametrize("name", TURNED)
def test_complex_values_and_gradients_are_torchs(name):
    outcomes = [compared(name, given.mapped(complex_part)) for given in CASES[name]]
    assert any(outcomes) or name not in MUST_TAKE_COMPLEX
    if not any(outcomes):
        pytest.skip("torch takes real numbers only")


def test_only_differentiable_operators_need_a_reason():
    assert set(NOT_IN_TORCH) <= {*DIFFERENTIABLE}


def test_a_wrong_gradient_is_reported(monkeypatch):
    monkeypatch.setitem(OURS, "exp", lambda x: x.detach().exp() + x - x.detach())
    with pytest.raises(AssertionError, match="Mismatched"):
        compared("exp", CASES["exp"][0])
