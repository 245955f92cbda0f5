"""Random programs run in oplib and in torch: values and gradients must be equal.

A program is a list of steps over a pool of tensors: operators, views, writes, hooks. What one side
refuses the other must refuse too, but for writes that only oplib can follow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oplib

pytestmark = pytest.mark.peer("torch")

SHAPES = [(3,), (2, 3), (2, 1), (3, 3), ()]
Step = tuple[str, int, int]
Pool = list[Any]


@dataclass
class Side:
    """One library: how to make a leaf, and where it spells things differently."""

    leaf: Callable[[np.ndarray, bool], Any]
    lib: Any
    refusals: tuple[type[Exception], ...]
    operand: Callable[[Any, Any], Any]
    retain: Callable[[Any], Any]
    grad: Callable[..., Any]


def oplib_side() -> Side:
    return Side(
        lambda array, tracked: oplib.tensor(array.copy()).requires_grad_(tracked),
        oplib,
        (oplib.OplibError, ValueError, TypeError, IndexError),
        lambda x, y: y,
        lambda t: t.retain_grads(),
        oplib.grad,
    )


def share_memory(x: Any, y: Any) -> bool:
    return bool(x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr())


def torch_side() -> Side:
    torch = importlib.import_module("torch")
    return Side(
        lambda array, tracked: torch.tensor(array.copy()).requires_grad_(tracked),
        torch,
        (RuntimeError, IndexError, TypeError),
        lambda x, y: y.clone() if share_memory(x, y) else y,  # else it may read what it wrote
        lambda t: t.retain_grad(),
        torch.autograd.grad,
    )


# ---------------------------------------------------------------------- steps

UNARY: dict[str, Callable[[Any], Any]] = {
    "sin": lambda x: x.sin(),
    "cos": lambda x: x.cos(),
    "tanh": lambda x: x.tanh(),
    "exp": lambda x: (x * 0.1).exp(),
    "sigmoid": lambda x: x.sigmoid(),
    "square": lambda x: x.square() * 0.1,
    "sqrt": lambda x: (x * x + 1).sqrt(),
    "log": lambda x: (x * x + 2).log(),
    "cube": lambda x: (x * 0.3) ** 3,
    "mean": lambda x: x.mean(),
    "sum0": lambda x: x.sum(0),
    "keep": lambda x: x.sum(-1, keepdim=True),
    "cumsum": lambda x: x.cumsum(0) * 0.5,
    "softmax": lambda x: x.softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach() * 0.5,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y * 0.5,
    "div": lambda x, y: x / (y * y + 1),
    "pow": lambda x, y: (x * x + 1) ** (y.tanh()),
    "matmul": lambda x, y: (x @ y) * 0.3,
    "outer": lambda x, y: x.unsqueeze(-1) * y,
    "swap": lambda x, y: y.sin() * x + y,
}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "transpose": lambda x: x.swapaxes(0, -1),
    "row": lambda x: x[0],
    "last": lambda x: x[..., -1],
    "tail": lambda x: x[1:],
    "step": lambda x: x[..., ::2],
    "flat": lambda x: x.reshape([-1] if isinstance(x, oplib.Tensor) else (-1,)),
    "new": lambda x: x[None],
    "expand": lambda x: x.expand([2, *x.shape]),
    "diagonal": lambda x: x.diagonal(),
    "unbind": lambda x: x.unbind(0)[-1],
    "narrow": lambda x: x.narrow(0, 0, 1),
    "index": lambda x: x[[0, -1, 0]],
}
COMPLEX: dict[str, Callable[[Any], Any]] = {
    "conj": lambda x: x.conj() * 1,
    "abs": lambda x: (x * 0.5).abs(),
    "real": lambda x: x.real * 1,
    "imag": lambda x: (x.imag if number_kind(x) == "complex" else x) * 1,
    "norm": lambda x: (x * x.conj()).sum(0),
}
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "sin_": lambda x, y: x.sin_(),
    "tanh_": lambda x, y: x.tanh_(),
    "scale_": lambda x, y: x.mul_(0.7),
    "add_": lambda x, y: x.add_(y),
    "mul_": lambda x, y: x.mul_(y),
    "sub_": lambda x, y: x.sub_(y),
    "copy_": lambda x, y: x.copy_(y),
    "zero_": lambda x, y: x.zero_(),
    "set_first": lambda x, y: x.__setitem__(0, y),
    "set_tail": lambda x, y: x.__setitem__(slice(1, None), y),
    "set_step": lambda x, y: x.__setitem__((Ellipsis, slice(None, None, 2)), 0.5),
    "set_index": lambda x, y: x.__setitem__([0], y),
}
HOOKS: dict[str, Callable[[Any], Any]] = {
    "hook_double": lambda g: g * 2,
    "hook_square": lambda g: g * g * 0.1,
    "hook_nothing": lambda g: None,
    "hook_bounded": lambda g: g / (g * g.conj() + 1),
}
NEED_AN_AXIS = {
    "norm",
    "sum0",
    "keep",
    "cumsum",
    "softmax",
    "logsumexp",
    "transpose",
}  # torch invents one
STEPS = [*UNARY, *BINARY, *VIEWS, *WRITES, *HOOKS, "retain"]
ONLY_OPLIB_FOLLOWS = (
    "is a view and is being modified inplace",  # an output of unbind
    "to a single memory location",  # a uniform fill of repeated elements
    "a view of a leaf Variable",  # x[0] = x[0], which writes nothing
    "same dtype",  # of the operands of matmul
    "dtypes match",  # of an indexed write
    "input_is_complex == grad_is_complex",  # a real value stored into a complex tensor
    "modified by an inplace operation",  # saved by torch only: the result of a power
    "its base or another view of its base has been modified inplace",  # unbind again
)
ONLY_TORCH_FOLLOWS = (
    "overlaps itself",  # a destination; torch does not always notice
    "cannot store complex128",  # what torch drops the imaginary part of
    "GradNode_std::matmul: argument",  # written since; torch saves a copy of what it expands
    "a write never changes a shape",  # a value with leading axes of length one
)


def perform(side: Side, pool: Pool, retained: list[Any], step: Step, is_view: bool) -> None:
    """Do one step, or raise what the library raises."""
    name, i, j = step
    x, y = pool[i % len(pool)], pool[j % len(pool)]
    if name in NEED_AN_AXIS and x.ndim == 0:
        return
    if name in UNARY:
        pool.append(UNARY[name](x))
    elif name in COMPLEX:
        pool.append(COMPLEX[name](x))
    elif name in BINARY:
        pool.append(BINARY[name](x, y))
    elif name in VIEWS:
        pool.append(VIEWS[name](x))
    elif name in WRITES:
        WRITES[name](x, side.operand(x, y))
    elif is_view or not x.requires_grad:
        return  # torch does not survive a hook on some views whose base was written
    elif name == "retain":
        side.retain(x)
        retained.append(x)
    else:
        x.register_hook(HOOKS[name])


def loss_of(pool: Pool) -> Any:
    """Return a scalar in which every tensor of the pool counts differently."""
    total = 0.0
    for number, x in enumerate(pool):
        if x.requires_grad:
            part = (x * (0.5 + 0.37 * number)).sum()
            total = total + (part if number_kind(x) == "real" else part.real + part.imag * 0.7)
    return total


def number_kind(x: Any) -> str:
    return "complex" if "complex" in str(x.dtype) else "real"


def array(x: Any) -> np.ndarray | None:
    if x is None:
        return None
    x = x.detach()
    return np.array((x if isinstance(x, oplib.Tensor) else x.resolve_conj().resolve_neg()).numpy())


# ---------------------------------------------------------------------- programs


@st.composite
def programs(
    draw: Any, names: list[str] = STEPS, dtypes: tuple[type, ...] = (float,)
) -> tuple[list[Any], list[Step]]:
    leaf = st.tuples(st.sampled_from(SHAPES), st.booleans(), st.sampled_from(dtypes))
    leaves = draw(st.lists(leaf, min_size=1, max_size=3))
    steps = draw(
        st.lists(
            st.tuples(st.sampled_from(names), st.integers(0, 11), st.integers(0, 11)),
            min_size=1,
            max_size=14,
        )
    )
    return [((2, 3), True, dtypes[-1]), *leaves], steps


class Outcome:
    """A program after its forward part on one side."""

    def __init__(self, side: Side, leaves: list[Any], moved: tuple[int, int, float] = (-1, 0, 0)):
        rng = np.random.default_rng(3)
        arrays = [
            np.array(
                rng.uniform(-1.5, 1.5, shape)
                + (0.7j * rng.normal(size=shape) if dtype is complex else 0)
            )
            for shape, _, dtype in leaves
        ]
        if moved[0] >= 0:
            arrays[moved[0]].flat[moved[1]] += moved[2]
        self.side = side
        self.leaves = [side.leaf(a, leaf[1]) for a, leaf in zip(arrays, leaves, strict=True)]
        self.tracked = [x for x in self.leaves if x.requires_grad]
        self.pool: Pool = [*self.leaves, *(x * 1.1 for x in self.tracked)]
        self.views: set[int] = set()
        self.retained: list[Any] = []

    def perform(self, step: Step) -> str:
        """Do one step; return why it was refused, or an empty string."""
        count, is_view = len(self.pool), step[1] % len(self.pool) in self.views
        try:
            perform(self.side, self.pool, self.retained, step, is_view)
        except self.side.refusals as error:
            return str(error) or "refused"
        if step[0] in VIEWS and len(self.pool) > count:
            self.views.add(count)
        return ""


def forward(leaves: list[Any], steps: list[Step]) -> tuple[Outcome, ...]:
    """Run the forward part on both sides, step by step; nothing if torch cannot follow."""
    ours, theirs = Outcome(oplib_side(), leaves), Outcome(torch_side(), leaves)
    for step in steps:
        refused, reason = ours.perform(step), theirs.perform(step)
        if is_known(refused, reason):
            return ()
        assert bool(refused) == bool(reason), (step, refused, reason)
    for x, y in zip(ours.pool, theirs.pool, strict=True):
        assert x.requires_grad == y.requires_grad
        np.testing.assert_allclose(array(x), array(y), rtol=1e-10, atol=1e-12)  # type: ignore[arg-type]
    return ours, theirs


def is_known(refused: str, reason: str) -> bool:
    """Return whether one side alone refuses something that the other is known to follow."""
    if refused:
        return not reason and any(text in refused for text in ONLY_TORCH_FOLLOWS)
    return any(text in reason for text in ONLY_OPLIB_FOLLOWS)


def loss_at(program: tuple[list[Any], list[Step]], leaf: int, place: int, step: float) -> float:
    """Return the loss with one element of one leaf moved."""
    outcome = Outcome(oplib_side(), program[0], (leaf, place, step))
    for each in program[1]:
        outcome.perform(each)
    return float(loss_of(outcome.pool))


def compare_numerically(program: tuple[list[Any], list[Step]]) -> None:
    """Compare the gradients with numeric differences, where torch gives none."""
    if {"detach", *HOOKS} & {name for name, _, _ in program[1]}:
        return
    if any(dtype is complex for *_, dtype in program[0]):
        return
    outcome = Outcome(oplib_side(), program[0])
    for each in program[1]:
        outcome.perform(each)
    gradients = oplib.grad(loss_of(outcome.pool), outcome.tracked, allow_unused=True)
    step = 1e-6
    for x, gradient in zip(outcome.tracked, gradients, strict=True):
        number = next(i for i, leaf in enumerate(outcome.leaves) if leaf is x)
        found = [
            loss_at(program, number, k, step) - loss_at(program, number, k, -step)
            for k in range(x.size)
        ]
        expected = np.reshape(found, x.shape) / (2 * step)
        got = np.zeros(x.shape) if gradient is None else gradient.numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(got).max(initial=1))


def compare(run: Callable[[Outcome], list[Any]], program: tuple[list[Any], list[Step]]) -> None:
    """Run a program and then something on both sides: the same arrays, or both refuse."""
    sides = forward(*program)
    found: list[Any] = []
    for outcome in sides:
        try:
            found.append([array(x) for x in run(outcome)])
        except outcome.side.refusals as error:
            found.append(error)
    if not found:
        return
    ours, theirs = found
    if isinstance(theirs, Exception) and not isinstance(ours, Exception):
        assert is_known("", str(theirs)), theirs
        compare_numerically(program)
        return
    if isinstance(ours, Exception):
        assert isinstance(theirs, Exception) or is_known(str(ours), ""), ours
        return
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None and np.isfinite(b).all():
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10 * np.abs(b).max(initial=1))


def backward(outcome: Outcome) -> list[Any]:
    loss = loss_of(outcome.pool)
    loss.backward(retain_graph=True)
    loss.backward()
    return [x.grad for x in (*outcome.tracked, *outcome.retained)]


def second_order(outcome: Outcome) -> list[Any]:
    grad = outcome.side.grad
    loss = loss_of(outcome.pool)
    first = grad(loss, outcome.tracked, create_graph=True, allow_unused=True)
    penalty = loss * 0.1
    for g in first:
        if g is not None:
            penalty = penalty + (g * g).sum()
    second = grad(penalty, outcome.tracked, allow_unused=True)
    return [*first, *second]


def interior(outcome: Outcome) -> list[Any]:
    targets = [x for x in outcome.pool if x.requires_grad][::2]
    return list(outcome.side.grad(loss_of(outcome.pool), targets, allow_unused=True))


# What torch cannot follow is known by its messages, so the programs are the same in every run.
COMMON = settings(
    derandomize=True,
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
NOT_COMPLEX = {"pow", "softmax", "logsumexp", "sigmoid"}
FOR_COMPLEX = [name for name in (*STEPS, *COMPLEX) if name not in NOT_COMPLEX]
FUNCTIONAL = [*UNARY, *BINARY, *VIEWS, "retain"]
"""Without hooks: torch gives an input's gradient before its hooks, if a node below it runs."""


@COMMON
@given(programs())
def test_backward_of_random_programs_accumulates_the_same_gradients(program):
    compare(backward, program)


@COMMON
@given(programs())
def test_second_derivatives_of_random_programs_are_the_same(program):
    compare(second_order, program)


@COMMON
@given(programs(FOR_COMPLEX, (float, complex)))
def test_first_and_second_derivatives_of_complex_programs_are_the_same(program):
    compare(second_order, program)


@COMMON
@given(programs(FUNCTIONAL))
def test_gradients_of_interior_tensors_are_the_same(program):
    compare(interior, program)


def test_a_gradient_that_is_wrong_is_found():
    def broken(outcome: Outcome) -> list[Any]:
        scale = 1 + 1e-9 * (outcome.side.lib is oplib)
        return [x * scale for x in second_order(outcome) if x is not None]

    program = ([((3,), True, float), ((2, 3), True, float)], [("mul", 0, 1), ("sin", 4, 0)])
    compare(second_order, program)
    with pytest.raises(AssertionError, match="Mismatched elements"):
        compare(broken, program)
