"""What an argument of each kind adds to a call, and what registering and parsing cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import oplib
from oplib import Library
from oplib.schema import parse as parse_text

from .cases import OVER_KERNEL, SIZE, TOTAL, Calls, case, vector
from .operators import multiply

__all__ = ["KINDS", "SIGNATURE"]

KINDS: Final[dict[str, tuple[str, Callable[[Any], tuple[Any, ...]]]]] = {
    "tensor": ("Tensor y", lambda x: (x,)),
    "optional_none": ("Tensor? y=None", lambda x: (None,)),
    "optional": ("Tensor? y=None", lambda x: (x,)),
    "list_2": ("Tensor[] ys", lambda x: ([x, x],)),
    "list_of_optional": ("Tensor?[] ys", lambda x: ([x, None],)),
    "float": ("float a", lambda x: (0.5,)),
    "int": ("int a", lambda x: (3,)),
    "bool": ("bool a", lambda x: (True,)),
    "str": ("str a", lambda x: ("mean",)),
    "ints": ("int[] a", lambda x: ([1, 2],)),
    "dtype": ("ScalarType a", lambda x: (np.dtype("float64"),)),
    "default": ("float a=0.5", lambda x: ()),
}
"""Per kind of argument: how the schema declares it, and the value a call gives, of one tensor."""

SIGNATURE: Final = "kind_{0}(Tensor x, {1}) -> Tensor"

_library: Final = Library("bench", "FRAGMENT")
_count: Final = itertools.count()


def _kernel(x: Any, *rest: Any) -> Any:
    return multiply(x, x)


def _case_of(kind: str, declared: str, values: Callable[[Any], tuple[Any, ...]]) -> None:
    def setup() -> Calls:
        x, a = vector(), np.ones(SIZE)
        op = getattr(oplib.ops.bench, f"kind_{kind}").default
        given, bare = values(x), values(a)
        return {"oplib": lambda: op(x, *given), "kernel": lambda: _kernel(a, *bare)}

    _library.define(SIGNATURE.format(kind, declared))
    _library.impl(f"kind_{kind}", _kernel, "CPU")
    setup.__name__ = f"kind_{kind}"
    case(f"call: one tensor and `{declared}` ({kind}), over the kernel", None, OVER_KERNEL)(setup)


for _kind, (_declared, _values) in KINDS.items():
    _case_of(_kind, _declared, _values)


# -- registration ------------------------------------------------------------------------------

LONG: Final = (
    "bench::long(Tensor(a!) x, Tensor? y, Tensor(b!)[] zs, *, int[2] stride=[1, 1], "
    'float eps=1e-05, str mode="mean", ScalarType? dtype=None) -> (Tensor(a!), Tensor)'
)


@case("parse a long schema", None, TOTAL)
def parse() -> Calls:
    return {"oplib": lambda: parse_text(LONG)}


@case("define an operator and remove it", None, TOTAL)
def define() -> Calls:
    def run() -> None:
        library = Library("bench_define", "FRAGMENT")
        library.define(f"op{next(_count)}(Tensor x, Tensor y) -> Tensor")
        library.close()

    return {"oplib": run}


@case("define, give a kernel, call once and remove", None, TOTAL)
def first_call() -> Calls:
    x, y = vector(), vector()

    def run() -> None:
        library = Library("bench_define", "FRAGMENT")
        name = f"op{next(_count)}"
        library.define(f"{name}(Tensor x, Tensor y) -> Tensor")
        library.impl(name, multiply, "CPU")
        getattr(oplib.ops.bench_define, name)(x, y)
        library.close()

    return {"oplib": run}
