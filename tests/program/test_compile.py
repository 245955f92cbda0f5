"""`oplib.compile`: which program runs, what it may share, and what it does like eager code."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import Tensor
from oplib.program import joint, kernels

Array = np.ndarray[Any, Any]


def leaf(*shape: int, seed: int = 0, dtype: Any = float) -> Tensor:
    """Return a tensor of positive numbers that requires grad."""
    numbers = np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(dtype)
    return oplib.tensor(numbers, requires_grad=True)


def same(a: Any, b: Any) -> bool:
    """Return whether two tensors, or None, agree to the bit, strides and flags included."""
    if a is None or b is None:
        return a is b
    x, y = a.numpy(), b.numpy()
    agree = x.dtype == y.dtype and x.shape == y.shape and x.strides == y.strides
    return bool(agree and x.tobytes() == y.tobytes() and a.requires_grad == b.requires_grad)


def entry_of(compiled: Any) -> Any:
    """Return what runs the program that was used last."""
    return compiled._entries[0]


# Random functions with gradients ------------------------------------------------------------------

TEMPLATES = [
    "{a} + {b}", "{a} * {b}", "{a} - {b} * 0.5", "{a} / ({b} * {b} + 1)", "{a}.tanh()", "{a}.exp()",
    "{a}.sigmoid()", "{a}.sin()", "{a} @ {b}", "{a}.T", "{a}.T @ {b}", "{a}.sum(0) + {b}",
    "{a}.mean()", "{a}[0] + {b}", "oplib.where({a} > {b}, {a}, {b} * 2)", "{a}.relu()",
    "{a}.detach() * {b}", "{a}.sum(0, keepdim=True) + {b}",
    "{a}.clone()", "{a}.reshape([-1]).reshape([3, 3])", "oplib.maximum({a}, {b})", "captured * {a}",
    "{a}.cast(np.float32).cast(np.float64)", "({a} > 0.5)", "{a}.abs().sqrt()", "2 ** {a}",
    "frozen({a})", "written({a}, {b})", "oplib.ones(3, 3) * {a}", "-{a}", "{a} ** 2",
]  # fmt: skip

CAPTURED = leaf(3, 3, seed=9)


def frozen(x: Tensor) -> Tensor:
    """Compute something without a history."""
    with oplib.no_grad():
        return x * 3


def written(x: Tensor, y: Tensor) -> Tensor:
    """Write into a temporary, also through a view."""
    z = x * 1.5
    z[0].mul_(2.0)
    z.add_(y)
    return z


def random_function(seed: int) -> tuple[Callable[..., Any], str]:
    """Return a function of two 3 by 3 tensors, and its text."""
    pick = random.Random(seed)
    names, lines = ["x", "y"], []
    for number in range(pick.randint(1, 12)):
        a, b = pick.choice(names), pick.choice(names)
        lines.append(f"    v{number} = {pick.choice(TEMPLATES).format(a=a, b=b)}")
        names.append(f"v{number}")
    results = [pick.choice(names[2:]) for _ in range(pick.randint(1, 3))]
    text = "\n".join(["def f(x, y):", *lines, f"    return [{', '.join(results)}]"])
    scope = {
        "oplib": oplib, "np": np, "frozen": frozen, "written": written, "captured": CAPTURED,
    }  # fmt: skip
    exec(text, scope)
    return scope["f"], text


def outcome(function: Any, double: bool) -> Any:
    """Return results and gradients of a function of two leaves, or its error."""
    with np.errstate(all="ignore"):
        return _outcome(function, double)


def _outcome(function: Any, double: bool) -> Any:
    x, y = leaf(3, 3, seed=1), leaf(3, 3, seed=2)
    try:
        results = function(x, y)
        memory = [tensor.detach().numpy() for tensor in (x, y, *results)]
        shared = [[np.shares_memory(a, b) for a in memory] for b in memory]
        losses = [r for r in dict.fromkeys(results) if r.requires_grad]
        if not losses:
            return results, shared, []
        seeds = [
            oplib.tensor(np.cos(np.arange(r.size)).reshape(r.shape), dtype=r.dtype) for r in losses
        ]
        wanted = [x, y, CAPTURED]
        found = oplib.grad(losses, wanted, seeds, create_graph=double, allow_unused=True)
        if double:
            total = sum(g.square().sum() for g in found if g is not None and g.requires_grad)
            found += (
                oplib.grad(total, wanted, allow_unused=True) if isinstance(total, Tensor) else []
            )
        return results, shared, found
    except (oplib.OplibError, ValueError, TypeError, IndexError) as error:
        return type(error), [], []


def near(a: Tensor | None, b: Tensor | None) -> bool:
    """Return whether two gradients agree; none is zero."""
    if a is None or b is None:
        present = b if a is None else a
        return present is None or not present.numpy().any()
    return bool(
        a.dtype == b.dtype
        and np.allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-9, equal_nan=True)
    )


def problem(seed: int) -> str:
    """Return how a compiled random function differs from eager code."""
    function, text = random_function(seed)
    double = seed % 3 == 0
    compiled = oplib.compile(function)
    expected, memory, gradients = outcome(function, double)
    for _ in range(2):
        results, shared, found = outcome(compiled, double)
        if isinstance(results, type) or isinstance(expected, type):
            if results is not expected:
                return f"{text}\nexpected {expected}, found {results}"
            continue
        if not all(map(same, expected, results)):
            return f"{text}\nexpected {expected}, found {results}"
        if memory != shared:
            return f"{text}\nexpected memory {memory}, found {shared}"
        if len(gradients) != len(found) or not all(map(near, gradients, found)):
            return f"{text}\nexpected gradients {gradients}, found {found}"
    return ""


@pytest.mark.fuzz
@pytest.mark.parametrize("chunk", range(4))
def test_compiled_functions_have_the_gradients_of_eager_code(chunk: int, fuzz_range: range) -> None:
    for seed in range(chunk, max(120, len(fuzz_range) // 10), 4):
        assert not problem(seed), problem(seed)


def test_random_functions_are_run_as_one_node() -> None:
    count = 0
    for seed in range(40):
        compiled = oplib.compile(random_function(seed)[0])
        outcome(compiled, False)
        count += any(entry._layer is not None for entry in compiled._entries)
    assert count > 15


# Which program ------------------------------------------------------------------------------------


def counted(function: Callable[..., Any]) -> tuple[Any, list[int]]:
    """Return a compiled function, and a list with one element per capture."""
    captures: list[int] = []

    def body(*args: Any, **kwargs: Any) -> Any:
        captures.append(len(captures))
        return function(*args, **kwargs)

    return oplib.compile(body), captures


def test_a_program_serves_all_calls_that_fit_it() -> None:
    f, captures = counted(lambda x, y: x * y)
    for number in range(5):
        x = oplib.full([3], float(number))
        assert f(x, x + 1).tolist() == [number * (number + 1.0)] * 3
    assert len(captures) == 1
    assert len(f.programs) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((oplib.ones(3), 2), (oplib.ones(3), 2.0)),
        ((oplib.ones(3), 1), (oplib.ones(3), True)),
        ((oplib.ones(3), 0.0), (oplib.ones(3), -0.0)),
        ((oplib.ones(3), 1), (oplib.ones(4), 1)),
        ((oplib.ones(3), 1), (oplib.ones(3).cast(np.float32), 1)),
        ((oplib.ones(2, 3), 1), (oplib.ones(3, 2).T, 1)),
        ((oplib.ones(3), 1), (oplib.tensor(np.ones(3), requires_grad=True), 1)),
        ((oplib.ones(3), [1, 2]), (oplib.ones(3), (1, 2))),
        ((oplib.ones(3), None), (oplib.ones(3), "None")),
    ],
)
def test_other_arguments_get_a_program_of_their_own(first: Any, second: Any) -> None:
    f, captures = counted(lambda x, other: (x * 2, str(other)))
    for _ in range(2):
        for args in (first, second):
            assert f(*args)[1] == str(args[1])
    assert len(captures) == 2


def test_grad_mode_selects_the_program() -> None:
    f, captures = counted(lambda x: x * 2)
    x = leaf(3)
    assert f(x).requires_grad
    with oplib.no_grad():
        assert not f(x).requires_grad
    assert f(x).requires_grad
    assert len(captures) == 2


def test_containers_and_keywords_keep_their_structure() -> None:
    f, captures = counted(lambda d, *, scale: {"a": d["x"] * scale, "b": [d["y"], None, "text"]})
    x, y = oplib.ones(2), oplib.zeros(2)
    for _ in range(2):
        found = f({"x": x, "y": y}, scale=3.0)
        assert found["a"].tolist() == [3.0, 3.0]
        assert found["b"][0] is y
        assert found["b"][1:] == [None, "text"]
    assert len(captures) == 1


def test_beyond_the_limit_the_oldest_program_goes_with_one_warning() -> None:
    f = oplib.compile(lambda x, n: x * n, limit=2)
    x = oplib.ones(2)
    assert f(x, 1).tolist() == f(x, 1).tolist()
    f(x, 2)
    with pytest.warns(RuntimeWarning, match=r"has 2 programs .*\n  args\[1\]: expected 2, found 3"):
        f(x, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert f(x, 4).tolist() == [4.0, 4.0]
    assert len(f.programs) == 2
    with pytest.raises(oplib.ArgumentError, match="limit is a positive int, got 0"):
        oplib.compile(lambda x: x, limit=0)


def test_inputs_that_share_written_memory_are_told_apart() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1.0)
        return y * 2

    compiled, captures = counted(f)
    memory = np.zeros(6)
    for _ in range(2):
        apart = oplib.zeros(4), oplib.zeros(4)
        assert compiled(*apart).tolist() == f(oplib.zeros(4), oplib.zeros(4)).tolist()
        memory[:] = 0
        shared = oplib.from_numpy(memory[:4]), oplib.from_numpy(memory[2:])
        assert compiled(*shared).tolist() == [2.0, 2.0, 0.0, 0.0]
    assert len(captures) == 2


def test_the_same_tensor_twice_fits_a_program_for_two_that_writes_nothing() -> None:
    f, captures = counted(lambda x, y: x * y)
    f(leaf(3), leaf(3))
    x = leaf(3)
    f(x, x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == (2 * x).tolist()
    assert len(captures) == 1


def test_a_tensor_of_the_enclosing_scope_is_read_anew() -> None:
    outside = oplib.ones(2)
    f, captures = counted(lambda x: x + outside)
    assert f(oplib.zeros(2)).tolist() == [1.0, 1.0]
    outside.fill_(5.0)
    assert f(oplib.zeros(2)).tolist() == [5.0, 5.0]
    assert len(captures) == 1


def test_another_kernel_is_used_as_soon_as_it_is_registered() -> None:
    with oplib.scoped_library("compiled", "DEF") as library:
        op = library.define("twice(Tensor x) -> Tensor").op
        op.register_kernel("cpu", lambda x: x * 2)
        op.register_fake(lambda x: oplib.TensorSpec(x.shape, x.dtype))
        f, captures = counted(lambda x: op(x) + 1)
        assert f(oplib.ones(2)).tolist() == [3.0, 3.0]
        with op.register_kernel("cpu", lambda x: x * 3, provider="other", priority=1):
            assert f(oplib.ones(2)).tolist() == [4.0, 4.0]
        assert f(oplib.ones(2)).tolist() == [3.0, 3.0]
        assert len(captures) == 3


def test_modes_and_transforms_see_the_function_itself() -> None:
    f = oplib.compile(lambda x: x * 2)
    seen: list[str] = []

    class Log(oplib.DispatchMode):
        def handle(self, op: Any, args: Any, kwargs: Any) -> Any:
            seen.append(op.qualname)
            return op(*args, **kwargs)

    f(oplib.ones(2))
    x = oplib.ones(2)
    with Log():
        assert f(x).tolist() == [2.0, 2.0]
    assert seen == ["std::mul"]
    assert "std.mul(x, 2)" in str(oplib.capture(f, oplib.ones(2)))
    with oplib.FakeTensorMode():
        assert f(oplib.empty([2])).shape == (2,)


# What runs ----------------------------------------------------------------------------------------


def operators(graph: Any) -> list[str]:
    return [node.op.name for node in graph.calls]


def test_calls_of_a_chain_write_into_one_buffer() -> None:
    f = oplib.compile(lambda x: ((x * 2 + 1).exp() - 3).sum())
    f(oplib.ones(4))
    run = entry_of(f)._kernels
    assert operators(run.graph) == ["mul", "add_", "exp_", "sub_", "sum"]
    assert len(run._places) == 1
    assert run._size == 32


def test_an_arena_is_used_by_one_run_at_a_time() -> None:
    f = oplib.compile(lambda x: ((x * 2 + 1).exp() - 3).sum(0))
    x = oplib.from_numpy(np.random.default_rng(0).normal(size=(500, 100)))
    expected = f(x).tolist()
    wrong: list[Any] = []

    def work(factor: float) -> None:
        for _ in range(20):
            right = f.function(x * factor).tolist()
            wrong.extend([] if f(x * factor).tolist() == right else [factor])

    threads = [threading.Thread(target=work, args=(1.0 + i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert f(x).tolist() == expected


def test_results_are_in_memory_of_their_own() -> None:
    f = oplib.compile(lambda x: (x.clone(), x * 1, (x * 1).clone(), oplib.tensor([1.0])))
    x = oplib.ones(3)
    found = [*f(x), *f(x)]
    for i, one in enumerate(found):
        assert not any(np.shares_memory(one.numpy(), other.numpy()) for other in [x, *found[:i]])


def test_backward_saves_only_what_it_needs() -> None:
    f = oplib.compile(lambda x, w: ((x + 1).exp() * w + x * 5).sum())
    f(leaf(3), leaf(3, seed=1))
    layer = entry_of(f)._layer
    halves = layer.halves
    assert [value.stem for value in halves.saved] == ["primals", "exp"]
    assert halves.saved[0] is halves.forward.placeholders[1].value
    assert operators(halves.forward) == ["add", "exp", "mul", "mul", "add", "sum"]


def test_a_saved_input_that_is_written_to_is_noticed() -> None:
    f = oplib.compile(lambda x, y: (x * y).sum())
    x, y = leaf(3), oplib.ones(3)
    result = f(x, y)
    y.add_(1)
    with pytest.raises(oplib.AutogradError, match="written to since"):
        result.backward()


def test_an_input_that_backward_does_not_need_may_be_written_to() -> None:
    f = oplib.compile(lambda x, y: (x * 2 + y).sum())
    x, y = leaf(3), oplib.ones(3)
    result = f(x, y)
    y.add_(1)
    result.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_dropped_random_elements_are_those_of_eager_code_under_one_seed() -> None:
    f = oplib.compile(lambda x: (x * oplib.ops.std.dropout(x, 0.5, True)).sum())
    x = leaf(40)
    gradients = []
    for function in (f.function, f, f):
        np.random.seed(3)
        gradients.append(oplib.grad(function(x), x)[0].tolist())
    assert gradients[0] == gradients[1] == gradients[2]
    with pytest.raises(oplib.AutogradError, match="cannot be differentiated again"):
        oplib.grad(f(x), x, create_graph=True)


def test_a_layer_by_hand_has_its_gradient_or_a_named_error() -> None:
    class Double(oplib.PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    f = oplib.compile(lambda x: Double.apply(x).sum())
    with pytest.raises(oplib.AutogradError, match="PyLayer Double"):
        f(leaf(3)).backward()


def test_errors_are_those_of_eager_code() -> None:
    f = oplib.compile(lambda x, y: x @ y)
    with pytest.raises(oplib.ArgumentError, match="disagree: 3 != 2") as caught:
        f(oplib.ones(2, 3), oplib.ones(2, 3))
    assert "in the CPU kernel of std::matmul" in caught.value.__notes__[0]
    assert f(oplib.ones(2, 3), oplib.ones(3)).tolist() == [3.0, 3.0]
    g = oplib.compile(lambda x: x if x.sum() > 0 else -x)
    with pytest.raises(oplib.DataDependentError):
        g(oplib.ones(2))
    with pytest.raises(oplib.ArgumentError, match="compile takes a function, got 3"):
        oplib.compile(3)  # type: ignore[arg-type]


def test_an_exception_of_a_kernel_names_node_and_line() -> None:
    @oplib.custom_op("compiled_test::fails", mutates_args=())
    def fails(x: np.ndarray) -> np.ndarray:
        if x[0] > 1:
            raise KeyError("too large")
        return x + 1

    fails.register_fake(lambda x: oplib.TensorSpec(x.shape, x.dtype))
    f = oplib.compile(lambda x: fails(x * 2))
    assert f(oplib.zeros(2)).tolist() == [1.0, 1.0]
    with pytest.raises(KeyError) as caught:
        f(oplib.ones(2))
    assert "while running graph `f`: fails: f64[2] = compiled_test.fails(mul)" in "".join(
        caught.value.__notes__
    )
    assert f(oplib.zeros(2)).tolist() == [1.0, 1.0]


# Is it seen? --------------------------------------------------------------------------------------


def _all_buffers_are_temporary(patch: pytest.MonkeyPatch) -> None:
    places = kernels.plan_memory

    def one_place(graph: Any, among: Any) -> Any:
        plan = places(graph, among)
        plan.places.update((value, (0, size)) for value, (_, size) in plan.places.items())
        return plan

    patch.setattr(kernels, "plan_memory", one_place)


def _results_are_not_copied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kernels, "_placed", lambda strides, own, array: array)


def _gradients_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    grad = joint.grad
    patch.setattr(joint, "grad", lambda o, i, *a, **k: grad(o, i, *a, **k)[::-1])


def _backward_forgets_an_operand(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(joint, "_source", lambda value, inputs, results: (0, 0))


def _inputs_are_not_flattened(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(joint, "_once_more", lambda graph, made, primals, seeds: list(primals))


@pytest.mark.fuzz
@pytest.mark.parametrize(
    "switch",
    [
        _all_buffers_are_temporary,
        _results_are_not_copied,
        _gradients_in_the_wrong_order,
        _backward_forgets_an_operand,
        _inputs_are_not_flattened,
    ],
)
def test_a_wrong_compiler_is_noticed(
    switch: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    switch(monkeypatch)
    for seed in range(300):
        try:
            if problem(seed):
                return
        except Exception:
            return
    pytest.fail("no function of 300 notices")
