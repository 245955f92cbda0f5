"""Automatic mixed precision: `auto_cast`, the stage that casts, `GradScaler`.

Inside ``with auto_cast():`` operators whose cost is in products run in float16 (or bfloat16), those
that lose precision run in float32, the rest run in what their inputs ask for. The casts are
ordinary differentiable calls above the tape, so gradients come back in the dtype of the parameters.
The module is loaded, and its stage installed, when it is first used: nobody can be inside before.

Imports floors 0 to 4, `autograd/modes.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from . import _state
from ._text import short_repr
from ._tree import tree_map
from .autograd.modes import no_grad
from .dispatch.facets import AUTOCAST_RULE, KernelEntry
from .dispatch.keys import AUTOCAST, BACKENDS, CPU, WEAK, key_name
from .dispatch.lifting import tensor_leaves
from .dispatch.operator import Operator, Plan
from .dispatch.plan import install_stage
from .dtypes import as_dtype, short_dtype
from .errors import ArgumentError, AutogradError
from .prims import cast
from .tensor.tensor import Tensor

__all__ = ["BLACK", "WHITE", "AutocastStage", "GradScaler", "auto_cast"]

AnyOperator: TypeAlias = Operator[..., Any]
DType: TypeAlias = np.dtype[Any]
Level: TypeAlias = Literal["O0", "O1", "O2"]

WHITE: Final = frozenset({"matmul", "mm", "bmm", "mv", "linear", "conv1d", "conv2d", "attention"})
"""Built-in operators that run in the low precision: their cost is in products."""

BLACK: Final = frozenset(
    "exp expm1 log log2 log10 log1p pow square reciprocal rsqrt softmax log_softmax logsumexp "
    "mean sum prod cumsum cumprod var std norm layer_norm group_norm rms_norm cosine_similarity "
    "cross_entropy binary_cross_entropy binary_cross_entropy_with_logits kl_div".split()
)
"""Built-in operators that run in float32 at level O1, with every one named ``*_loss``."""

_BLACK_AT_O2: Final = frozenset({"scatter", "index_add"})
_KEEP_DTYPE: Final = frozenset({"broadcast_to", "cast", "clone", "mask"})
_COMBINE: Final = frozenset({"concat", "stack", "outer", "dot", "tensordot", "einsum"})
_FLOAT32: Final = np.dtype(np.float32)
_ELIGIBLE: Final = frozenset({"float16", "bfloat16", "float32"})


@dataclass(frozen=True, slots=True)
class _Policy:
    """What one `auto_cast` asks for."""

    level: Level
    dtype: DType
    white: frozenset[str]
    black: frozenset[str]
    promote: bool

    def __str__(self) -> str:
        lists = (("white", self.white), ("black", self.black))
        named = [f"{color} {', '.join(sorted(names))}" for color, names in lists if names]
        alone = [] if self.promote else ["no promotion"]
        return "; ".join([f"{self.level} {short_dtype(self.dtype)}", *named, *alone])

    def target(self, op: AnyOperator, tensors: Sequence[Tensor]) -> DType | None:
        """Return the dtype a call of `op` runs in, or None for an operator that is left alone.

        `tensors` are those that may be cast.
        """
        names = (op.qualname, op.schema.name) if op.schema.namespace == "std" else (op.qualname,)
        if any(name in self.black for name in names):
            return _FLOAT32
        if any(name in self.white for name in names):
            return self.dtype
        if op.schema.namespace != "std":
            return None
        if op.schema.name in WHITE:
            return self.dtype
        if _is_black(op.schema.name, self.level):
            return _FLOAT32
        if not self.promote or not _follows_inputs(op):
            return None
        deciding = tensors[:1] if op.schema.name.endswith("_norm") else tensors
        wide = self.level == "O1" and any(t.dtype == _FLOAT32 for t in deciding)
        return _FLOAT32 if wide else self.dtype


def _is_black(name: str, level: Level) -> bool:
    if level == "O2":
        return name in _BLACK_AT_O2
    return name in BLACK or name.endswith("_loss")


def _follows_inputs(op: AnyOperator) -> bool:
    """Return whether a neutral built-in computes with elements, rather than moving them."""
    name = op.schema.name
    return ("pointwise" in op.tags and name not in _KEEP_DTYPE) or name in _COMBINE


# ---------------------------------------------------------------------- the context manager


@contextmanager
def auto_cast(
    enable: bool = True,
    custom_white_list: Iterable[str] | None = None,
    custom_black_list: Iterable[str] | None = None,
    level: Level = "O1",
    dtype: Any = "float16",
    use_promote: bool = True,
) -> Iterator[None]:
    """Cast the inputs of operators called inside to a low precision, or back to float32.

    Only float16, bfloat16 and float32 tensors are cast, never float64, complex or integers, never
    Python numbers, and never an argument that is written or viewed. Backward rules of operators run
    without casts; a PyLayer's backward runs under the policy of its forward.

    Parameters
    ----------
    enable : bool
        False switches an outer `auto_cast` off inside.
    custom_white_list, custom_black_list : iterable of str
        Names of operators (``"sum"`` or ``"mylib::attention"``) that run in `dtype`, or in float32;
        they override the built-in lists `WHITE` and `BLACK`.
    level : {"O0", "O1", "O2"}
        O0 casts nothing. At O1 operators on neither list run in float32 if an input is float32,
        else in `dtype`; at O2 they run in `dtype`, and nearly no operator is black.
    dtype : "float16" or "bfloat16"
        bfloat16 needs the package ml_dtypes.
    use_promote : bool
        False leaves operators on neither list alone.

    Raises
    ------
    ArgumentError
        For a level or dtype that does not exist, or a name in both lists.

    Notes
    -----
    The lists and levels are those of mixed precision training in Paddle (``paddle.amp.auto_cast``);
    Micikevicius et al., "Mixed Precision Training", ICLR 2018.

    Examples
    --------
    >>> import oplib
    >>> x = oplib.ones((2, 2), dtype="float32", requires_grad=True)
    >>> with oplib.amp.auto_cast():
    ...     y = x @ x
    >>> y.dtype
    dtype('float16')
    """
    policy = _policy(custom_white_list, custom_black_list, level, dtype, use_promote)
    state = _state.current()
    if enable and level != "O0":
        inner = state.replace(include=state.include | AUTOCAST).with_config(autocast=policy)
    else:
        inner = state.replace(include=state.include & ~AUTOCAST).with_config(autocast=None)
    with _state.enter(inner):
        yield


def _policy(
    white: Iterable[str] | None, black: Iterable[str] | None, level: Any, dtype: Any, promote: bool
) -> _Policy:
    if level not in ("O0", "O1", "O2"):
        raise ArgumentError(f"auto_cast: level is 'O0', 'O1' or 'O2', got {short_repr(level)}")
    low = as_dtype(dtype)
    if low.name not in ("float16", "bfloat16"):
        raise ArgumentError(f"auto_cast: dtype is float16 or bfloat16, got {short_dtype(low)}")
    names = {"custom_white_list": white or (), "custom_black_list": black or ()}
    for argument, given in names.items():
        if isinstance(given, str):
            raise ArgumentError(f"auto_cast: {argument} is a list of names; write [{given!r}]")
    lists = [frozenset(given) for given in names.values()]
    if both := sorted(lists[0] & lists[1]):
        raise ArgumentError(f"auto_cast: on the white and the black list: {', '.join(both)}")
    return _Policy(level, low, lists[0], lists[1], promote)


# ---------------------------------------------------------------------- the stage


class AutocastStage:
    """The stage of the key AUTOCAST: cast, then go on without the key."""

    key = AUTOCAST

    def build(self, op: AnyOperator, keys: int, below: Plan | None) -> Plan:
        """Return the plan that casts what `op` and the policy in force agree on."""
        assert below is not None
        places = _castable(op)
        if not places:
            return below

        def autocast(*args: Any) -> Any:
            state = _state.current()
            targets = _targets(op, keys, state.config["autocast"], [args[i] for i in places])
            if targets is None:
                return below(*args)
            values = list(args)
            for i in places:
                values[i] = tree_map(lambda leaf: _cast(leaf, targets), values[i])
            _state.set_state(state.replace(include=state.include & ~AUTOCAST))
            try:
                return below(*values)
            finally:
                _state.set_state(state)

        return autocast

    def describe(self, op: AnyOperator, keys: int, args: list[Any]) -> list[str]:
        """Return the lines `explain` shows: what the tensors are cast to, and by which rule."""
        given = [args[i] for i in _castable(op)]
        targets = _targets(op, keys, _state.current().config["autocast"], given)
        if targets is None:
            return ["leaves this operator alone"]
        lines = [f"casts {device} tensors to {short_dtype(to)}" for device, to in targets.items()]
        rules = [op.top(AUTOCAST_RULE, device) for device in targets]
        return lines + [f"by the rule registered {rule.source}" for rule in rules if rule]


def _castable(op: AnyOperator) -> Sequence[int]:
    """Return the positions of arguments that may be cast."""
    built_in = op.schema.namespace == "std"
    return () if built_in and op.schema.is_mutable else op.schema.read_only_arguments


def _targets(
    op: AnyOperator, keys: int, policy: _Policy, values: Sequence[Any]
) -> Mapping[str, DType] | None:
    """Return the dtype to cast to per device type, or None for a call that is left alone."""
    tensors = [leaf for leaf in tensor_leaves(values) if _is_eligible(leaf)]
    if not tensors:
        return None
    devices = {tensor.device.type for tensor in tensors}
    rules = [op.top(AUTOCAST_RULE, device) for device in devices]
    if any(rules):
        return {rule.key: rule.payload for rule in rules if rule is not None}
    target = policy.target(op, tensors)
    wanted = {tensor.dtype for tensor in tensors} if target is None else {target}
    if not all(dtype == _FLOAT32 or _has_kernel(op, keys, dtype) for dtype in wanted):
        target = _FLOAT32
    if target is None:
        return None
    return dict.fromkeys(devices, target)


def _has_kernel(op: AnyOperator, keys: int, dtype: DType) -> bool:
    """Return whether `op` computes in `dtype` where the call goes, or does not say."""
    entries = op.kernels.get(key_name(keys & BACKENDS or CPU), ())
    return not entries or any(_takes(entry, dtype) for entry in entries)


def _takes(entry: KernelEntry, dtype: DType) -> bool:
    limits = entry.dtypes
    allowed = limits.values() if isinstance(limits, Mapping) else () if limits is None else [limits]
    return all(dtype in each for each in allowed)


def _is_eligible(tensor: Tensor) -> bool:
    return not tensor._keys & WEAK and tensor.dtype.name in _ELIGIBLE


def _cast(leaf: Any, targets: Mapping[str, DType]) -> Any:
    """Return a leaf in the dtype its device asks for, if it is a tensor that may be cast."""
    if type(leaf) is not Tensor or not _is_eligible(leaf):
        return leaf
    target = targets.get(leaf.device.type)
    return leaf if target is None or leaf.dtype == target else cast(leaf, target)


# ---------------------------------------------------------------------- the scale of the loss


class GradScaler:
    """Keep small float16 gradients from vanishing: scale the loss, and the gradients back.

    The scale grows while gradients stay finite and shrinks when they do not; a step whose gradients
    are not finite is to be skipped.

    Parameters
    ----------
    init_loss_scaling : float
        The first scale, positive.
    incr_ratio, decr_ratio : float
        What the scale is multiplied by, above 1 and between 0 and 1.
    incr_every_n_steps, decr_every_n_nan_or_inf : int
        After how many steps in a row, finite ones or others.
    enable : bool
        False makes every method a no-op.

    Notes
    -----
    Dynamic loss scaling as in Micikevicius et al., "Mixed Precision Training", ICLR 2018.

    Examples
    --------
    >>> import oplib
    >>> weight = oplib.ones(2, dtype="float32", requires_grad=True)
    >>> scaler = oplib.amp.GradScaler()
    >>> scaler.scale((weight * 3).sum()).backward()
    >>> if scaler.unscale_([weight]):  # finite: take the step
    ...     print(weight.grad)
    Tensor([3., 3.], dtype=float32)
    >>> scaler.update()
    """

    def __init__(
        self,
        init_loss_scaling: float = 65536.0,
        incr_ratio: float = 2.0,
        decr_ratio: float = 0.5,
        incr_every_n_steps: int = 2000,
        decr_every_n_nan_or_inf: int = 1,
        enable: bool = True,
    ) -> None:
        if not init_loss_scaling > 0 or not incr_ratio > 1 or not 0 < decr_ratio < 1:
            raise ArgumentError(
                "GradScaler: init_loss_scaling > 0, incr_ratio > 1, 0 < decr_ratio < 1; got "
                f"{init_loss_scaling}, {incr_ratio}, {decr_ratio}"
            )
        if min(incr_every_n_steps, decr_every_n_nan_or_inf) < 1:
            raise ArgumentError("GradScaler: numbers of steps are at least 1")
        self.loss_scaling = float(init_loss_scaling)
        self._enabled = enable
        self._ratios = {True: incr_ratio, False: decr_ratio}
        self._patience = {True: incr_every_n_steps, False: decr_every_n_nan_or_inf}
        self._finite: bool | None = None
        self._streak = (True, 0)

    def scale(self, loss: Tensor) -> Tensor:
        """Return ``loss * loss_scaling``."""
        return loss * self.loss_scaling if self._enabled else loss

    def unscale_(self, parameters: Iterable[Tensor]) -> bool:
        """Divide the gradients of `parameters` in place; return whether all are finite.

        Gradients that are None are skipped. Call it once per step.

        Raises
        ------
        AutogradError
            If called again before `update`: the gradients would be divided twice.
        """
        if not self._enabled:
            return True
        if self._finite is not None:
            raise AutogradError(
                "GradScaler.unscale_ was called twice in one step: pass all parameters in one "
                "call, and call update() after the step"
            )
        gradients = [p.grad for p in parameters if p.grad is not None]
        with no_grad():
            for gradient in gradients:
                gradient.mul_(1 / self.loss_scaling)
        self._finite = all(bool(np.isfinite(g.numpy()).all()) for g in gradients)
        return self._finite

    def update(self) -> None:
        """Adjust the scale to what `unscale_` found; at the end of each step."""
        if self._finite is None:
            return
        finite, self._finite = self._finite, None
        before, steps = self._streak
        steps = steps + 1 if before is finite else 1
        if steps == self._patience[finite]:
            self.loss_scaling *= self._ratios[finite]
            steps = 0
        self._streak = (finite, steps)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` restores: the scale and the streak it is in."""
        finite, steps = self._streak
        return {"loss_scaling": self.loss_scaling, "finite": finite, "steps": steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the scaler that returned `state` was."""
        self.loss_scaling = float(state["loss_scaling"])
        self._streak = (bool(state["finite"]), int(state["steps"]))


install_stage(AutocastStage())
