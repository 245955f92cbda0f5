"""Proof that the facets of an operator agree.

`opcheck` checks an operator: what it writes, what its results share, what its fake rule predicts,
whether its gradient is right. `gradcheck` and `gradgradcheck` compare the gradients of any function
with numeric differences; `assert_close` compares values.
"""

from .compare import assert_close
from .gradcheck import gradcheck, gradgradcheck
from .opcheck import opcheck
from .parametrize import operators
from .report import CheckResult, Failure, GradCheckReport, GradientMismatch, OpCheckReport

__all__ = [
    "CheckResult",
    "Failure",
    "GradCheckReport",
    "GradientMismatch",
    "OpCheckReport",
    "assert_close",
    "gradcheck",
    "gradgradcheck",
    "opcheck",
    "operators",
]
