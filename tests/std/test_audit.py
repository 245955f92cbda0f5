"""Every built-in operator has all its facets, or stands in a list with the reason.

`counts` is what the registry holds; `python -m tests.std.test_audit` prints it.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import oplib
from oplib.schema.types import TensorType
from oplib.std import MODULES, load_all
from oplib.tensor.methods import IN_PLACE, STORED
from tests.std.cases import operator

load_all()
NAMES = [name for names in MODULES.values() for name in names]
FUNCTIONAL = [n for n in NAMES if operator(n).schema.is_functional]


def is_composite(op: Any) -> bool:
    """Return whether the operator's body, made of operators, is its kernel and every rule."""
    return "CompositeImplicitAutograd" in op.kernels


def differentiable(op: Any) -> bool:
    """Return whether a gradient of some argument is computed."""
    rule = op.gradient_rule
    return is_composite(op) or (rule is not None and any(rule.functions.values()))


# ---------------------------------------------------------------------- kernels and rules


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_has_a_kernel_and_a_shape_rule(name):
    op = operator(name)
    assert is_composite(op) or "CPU" in op.kernels
    derived = op.view_rule is not None or not op.schema.is_functional  # from the geometry, or x's
    assert is_composite(op) or op.fake_rule is not None or derived


NO_GRADIENT: dict[str, str] = {
    **dict.fromkeys(MODULES["creation"], "makes values from none"),
    **dict.fromkeys(("rand", "randn", "randint", "randperm", "bernoulli"), "draws values"),
    **dict.fromkeys((*MODULES["comparison"],), "integers or truth"),
    **dict.fromkeys(("any", "all", "isin"), "truth"),
    **dict.fromkeys(("argmax", "argmin", "argsort", "searchsorted", "nonzero"), "positions"),
    **dict.fromkeys(("cumargmax", "cumargmin", "index_winners", "one_hot"), "positions"),
    "unique": "torch has none either; unique_all has one",
}


def test_operators_without_a_gradient_are_those_with_a_reason():
    found = {name for name in NAMES if not differentiable(operator(name))}
    views = {n for n in found if operator(n).view_rule is not None}  # theirs goes by address
    composites = {n for n in NO_GRADIENT if is_composite(operator(n))}
    assert found - views == set(NO_GRADIENT) - composites


# ---------------------------------------------------------------------- words

SHAPE_WORDS = re.compile(
    r"axis|axes|shape|element|matri|1-d|broadcast|\[|size|tensor|diagonal|layout|Elements|`numpy\.|window"
)
SHAPE_OF_X = (
    *MODULES["activations"],
    *MODULES["losses"],
    *("batch_norm", "attention", "logit", "xlogy", "new_empty", "new_ones", "new_zeros", "index"),
)
"""Whose result has the shape of x (or the broadcast one) as its module says."""

SOURCE = re.compile(r"`(numpy|scipy)\.|``|\(\w[\w .]*,? \d{4}\)|arXiv")
SAYS_ITSELF = (
    *MODULES["views"],
    *MODULES["creation"],
    *MODULES["indexing"],
    *MODULES["scatter"],
    *("cumargmax", "cumargmin", "cummax", "cummin", "sort", "topk", "unique_all", "imag", "dot"),
    *("avg_pool1d", "avg_pool2d", "max_pool1d", "max_pool2d", "cosine_similarity", "masked_fill"),
    "set_value",
)
"""Selections and arrangements of elements: the sentence is the definition, no formula has one."""


@pytest.mark.parametrize("name", [n for n in NAMES if not n.endswith("_")])
def test_a_docstring_says_shapes_and_source(name):
    doc = operator(name).__doc__
    assert doc
    assert doc.endswith((".", ".)"))
    assert SHAPE_WORDS.search(doc) or name in SHAPE_OF_X
    assert SOURCE.search(doc) or name in SAYS_ITSELF


def test_the_gradient_of_a_decomposition_cites_its_source():
    rules = [operator(n).gradient_rule for n in ("qr", "svd", "cholesky", "pinv")]
    docs = [inspect.getdoc(rule.functions[""]) or "" for rule in rules]
    assert all(re.search(r"\d{4}", doc) for doc in docs)


# ---------------------------------------------------------------------- forms that write

NO_IN_PLACE: dict[str, str] = {
    **dict.fromkeys(("eq", "ge", "gt", "le", "lt", "ne"), "truth, which x does not hold"),
    **dict.fromkeys(("isfinite", "isinf", "isnan", "signbit"), "truth, which x does not hold"),
    **dict.fromkeys(("angle", "complex", "polar"), "another kind of dtype than the operand's"),
    "where": "its first argument is the condition; masked_fill_ writes",
    "polygamma": "its first argument is a number",
}


def test_elementwise_operators_have_a_form_that_writes():
    elementwise = [n for n in FUNCTIONAL if "pointwise" in {str(tag) for tag in operator(n).tags}]
    missing = {name for name in elementwise if not oplib.has_op(f"std::{name}_")}
    assert missing == set(NO_IN_PLACE)


def one_tensor(op: Any) -> bool:
    returns = op.schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, TensorType)


@pytest.mark.parametrize("name", [n for n in FUNCTIONAL if one_tensor(operator(n))])
def test_a_functional_operator_with_one_tensor_takes_out(name):
    assert "'out' in _op_given" in operator(name).source()


# ---------------------------------------------------------------------- numbers


def counts() -> dict[str, int]:
    """Return how many operators have each facet."""
    ops = [operator(name) for name in NAMES]
    return {
        "operators": len(ops),
        "with a NumPy kernel": sum("CPU" in op.kernels for op in ops),
        "made of operators": sum(map(is_composite, ops)),
        "with a fake rule of their own": sum(op.fake_rule is not None for op in ops),
        "views": sum(op.view_rule is not None for op in ops),
        "with a gradient rule of their own": sum(op.gradient_rule is not None for op in ops),
        "differentiable": sum(map(differentiable, ops)),
        "that write": sum(not op.schema.is_functional and op.view_rule is None for op in ops),
        "with out=": sum(op.schema.is_functional and one_tensor(op) for op in ops),
    }


def test_there_are_as_many_operators_as_the_tables_say():
    found = counts()
    assert found["operators"] == len(set(NAMES)) > 300
    assert found["that write"] >= len(IN_PLACE) + len(STORED)
    assert found["operators"] == found["with a NumPy kernel"] + found["made of operators"] - sum(
        is_composite(operator(n)) and "CPU" in operator(n).kernels for n in NAMES
    )


if __name__ == "__main__":
    for what, number in counts().items():
        print(f"{number:4} {what}")
