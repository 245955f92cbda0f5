"""From a module to the operators it defines, and to one test per operator and check.

Imports `opcheck.py`; pytest only when used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from ..dispatch.operator import Operator
from ..dispatch.registry import get_op, list_ops
from .opcheck import CHECKS

__all__ = ["operators", "operators_of"]

AnyOperator: TypeAlias = Operator[..., Any]
F = TypeVar("F", bound=Callable[..., Any])


def operators_of(module: ModuleType) -> list[AnyOperator]:
    """Return the operators that were defined in a module, in the order of their names."""
    found = [get_op(name) for name in list_ops()]
    return [op for op in found if op.definition_source.module == module.__name__]


def operators(module: ModuleType, checks: Iterable[str] | None = None) -> Callable[[F], F]:
    """Parametrize a test over the operators a module defines and the checks of `opcheck`.

    The test takes ``op`` and ``check``; each pair is a test of its own, ``ns::op-check``, with the
    marker ``opcheck``.

    Parameters
    ----------
    module : module
    checks : iterable of str, optional
        Names of checks, all by default.

    Raises
    ------
    ValueError
        If the module defines no operator: a test that runs nothing is no test.

    Examples
    --------
    ::

        @oplib.testing.operators(my_operators)
        def test_facets_agree(op, check):
            opcheck(op, checks=check)
    """
    found = operators_of(module)
    if not found:
        raise ValueError(f"{module.__name__} defines no operator")
    names = list(CHECKS if checks is None else checks)
    pytest = importlib.import_module("pytest")
    pairs = [
        pytest.param(op, check, id=f"{op.qualname}-{check}", marks=pytest.mark.opcheck)
        for op in found
        for check in names
    ]
    return pytest.mark.parametrize(("op", "check"), pairs)  # type: ignore[no-any-return]
