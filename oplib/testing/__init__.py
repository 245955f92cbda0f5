"""Proof that the facets of an operator agree.

`gradcheck` and `gradgradcheck` compare gradients with numeric differences, `assert_close` compares
values.
"""

from .compare import assert_close
from .gradcheck import gradcheck, gradgradcheck
from .report import GradCheckReport, GradientMismatch

__all__ = [
    "GradCheckReport",
    "GradientMismatch",
    "assert_close",
    "gradcheck",
    "gradgradcheck",
]
