"""`describe`: the backward graph as a tree and as drawings."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import oplib
from oplib import PyLayer, Tensor
from oplib.autograd import describe, saved_tensors_hooks
from tests.autograd.helpers import leaf, tensor


def two_output_graph() -> Tensor:
    """Return a loss through an operator and a layer with several outputs, and a shared node."""

    class Pair(PyLayer):
        @staticmethod
        def forward(ctx: Any, xs: list[Tensor], k: int, z: Tensor) -> Any:
            ctx.save_for_backward(*xs)
            ctx.kept = z
            return [xs[0] * 2, xs[1] * 3], z.exp()

        @staticmethod
        def backward(ctx: Any, grads: list[Tensor], grad: Tensor) -> Any:
            return [grads[0] * 2, grads[1] * 3], None, grad

    x = leaf(1.0, 2.0)
    y = x * x
    rows = y.unbind()
    (first, second), third = Pair.apply(list(rows), 3, y)
    return (first + second) * third.sum()


def test_the_tree_shows_names_shapes_slots_leaves_and_shared_nodes_once() -> None:
    assert str(describe(two_output_graph())) == "\n".join(
        [
            "backward graph of f64[]: 7 nodes",
            "GradNode_std::mul  f64[]  keeps f64[], f64[]",
            "├─ x: GradNode_std::add  f64[]",
            "│  ├─ x: output 0, element 0 of #1 GradNodePyLayer_Pair  (f64[], f64[], f64[2])  "
            "keeps f64[], f64[], f64[2]",
            "│  │  ├─ xs, tensor 0: output 0, element 0 of #2 GradNode_std::unbind  (f64[], f64[])",
            "│  │  │  └─ x: #3 GradNode_std::mul  f64[2]  keeps f64[2], f64[2]",
            "│  │  │     ├─ x: #4 leaf  f64[2]",
            "│  │  │     └─ y: #4 above",
            "│  │  ├─ xs, tensor 1: output 0, element 1 of #2 above",
            "│  │  └─ z: #3 above",
            "│  └─ y: output 0, element 1 of #1 above",
            "└─ y: GradNode_std::sum  f64[]",
            "   └─ x: output 1 of #1 above",
        ]
    )


def test_it_prints_the_same_at_the_prompt() -> None:
    graph = describe(leaf(1.0) * 2)
    assert repr(graph) == str(graph)


def test_stopped_arguments_are_left_out() -> None:
    assert str(describe(leaf(1.0) * tensor(2.0))).splitlines()[1:] == [
        "GradNode_std::mul  f64[1]  keeps f64[1]",
        "└─ x: leaf  f64[1]",
    ]


def test_a_leaf_is_its_own_graph_and_a_stopped_tensor_has_none() -> None:
    assert str(describe(leaf(1.0))) == "backward graph of f64[1]: 1 node\nleaf  f64[1]"
    text = str(describe(tensor(1.0)))
    assert text == "f64[1] has no backward graph: it does not require grad"
    assert describe(tensor(1.0)).nodes == []


def test_a_released_node_says_so_and_keeps_its_edges() -> None:
    loss = two_output_graph()
    before = len(describe(loss).nodes)
    loss.backward()
    assert len(describe(loss).nodes) == before
    lines = str(describe(loss)).splitlines()[1:]
    nodes = [line for line in lines if "GradNode" in line]
    assert nodes
    assert all(line.endswith("  released") for line in nodes)


def test_packed_values_are_told_apart() -> None:
    with saved_tensors_hooks(Tensor.numpy, oplib.tensor):
        y = leaf(1.0, 2.0).exp()
    assert "keeps f64[2] packed" in str(describe(y))


def test_a_view_that_is_behind_its_base_is_described_as_it_is_now() -> None:
    base = leaf(1.0, 2.0, 3.0) * 1
    view = base[:2]
    base.mul_(tensor(2.0, 3.0, 4.0))
    assert "mul_" in str(describe(view))


def test_deep_parts_are_continued_below_with_little_indentation() -> None:
    x = leaf(1.0)
    for _ in range(100):
        x = x * 2
    lines = str(describe(x)).splitlines()
    assert len([line for line in lines if "GradNode_std::mul" in line]) == 100
    assert max(len(line) - len(line.lstrip(" │├└─")) for line in lines) <= 3 * 16
    below = [re.search(r"#\d+ below", line) for line in lines]
    numbers = [found[0].removesuffix(" below") for found in below if found]
    starts = [line.split()[0] for line in lines if line.startswith("#")]
    assert numbers == starts
    assert len(numbers) == 6


def test_a_graph_of_a_hundred_thousand_nodes_is_described_without_recursion() -> None:
    x = leaf(1.0)
    for _ in range(100_000):
        x = x * 1
    graph = describe(x)
    assert len(graph.nodes) == 100_001
    assert len(str(graph).splitlines()) >= 100_001
    assert len(graph.dot().splitlines()) == 200_004


def test_dot_has_a_box_per_node_and_an_arrow_per_edge() -> None:
    drawn = describe(two_output_graph()).dot().splitlines()
    assert drawn[0] == 'digraph "backward" {'
    assert '    n0 [label="GradNode_std::mul  f64[]  keeps f64[], f64[]"];' in drawn
    assert '    n6 [label="leaf  f64[2]", shape=ellipse];' in drawn
    assert '    n2 -> n3 [label="x, output 1"];' in drawn
    assert '    n1 -> n3 [label="y, output 0, element 1"];' in drawn
    assert sum("->" in line for line in drawn) == 11


def test_mermaid_has_the_same() -> None:
    drawn = describe(two_output_graph()).mermaid().splitlines()
    assert drawn[0] == "flowchart TD"
    assert '    n6(["leaf  f64[2]"])' in drawn
    assert "    n2 -->|x, output 1| n3" in drawn
    assert sum("-->" in line for line in drawn) == 11


@pytest.mark.parametrize("wrong", [None, 3, np.ones(2), [leaf(1.0)]])
def test_only_a_tensor_is_described(wrong: Any) -> None:
    with pytest.raises(oplib.ArgumentError, match="describe takes a Tensor"):
        describe(wrong)
