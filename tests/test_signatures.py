"""`oplib/_signatures.pyi` tells static checkers what the registry tells callers.

It holds the built-in operators as functions, and as methods of Tensor those that `methods.py`
installs at run time. After a change of a schema or of the table of methods, write it anew::

    python -m tests.test_signatures
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oplib
from oplib.schema.model import NO_DEFAULT
from oplib.schema.types import BasicType, ClassType, ListType, OptionalType, TensorType, Type
from oplib.std import load_all
from oplib.tensor import methods

ROOT = Path(__file__).parents[1]
STUB = ROOT / "oplib" / "_signatures.pyi"

HEADER = '''"""Operators as functions and methods; written by `python -m tests.test_signatures`."""

import builtins as _b
from collections.abc import Sequence as _S
from typing import Any as _A

from numpy import ndarray as _N
from numpy.random import Generator as _G

from .dtypes import Device as _D
from .tensor.tensor import Tensor as _T

_X = _T | _N[_A, _A] | _b.complex
'''

WORDS = {
    **{"int": "int", "SymInt": "int", "float": "float", "bool": "bool", "str": "str"},
    **{"Scalar": "_b.complex", "ScalarType": "_A", "Index": "_A", "Generator": "_G"},
    "Device": "_D | str",
}


def parameter_type(type_: Type) -> str:
    """Return a schema type as the annotation of an argument."""
    match type_:
        case TensorType():
            return "_X"
        case BasicType(name) | ClassType(name):
            return WORDS[name]
        case OptionalType(element):
            inner = parameter_type(element)
            return inner if inner == "_A" else f"{inner} | None"
        case ListType(element, size):
            inner = parameter_type(element)
            return f"{inner} | _S[{inner}]" if size == 1 else f"_S[{inner}]"
    raise TypeError(f"no annotation for {type_}")


def return_type(op: Any) -> str:
    """Return what a call returns."""

    def one(type_: Type) -> str:
        return "list[_T]" if isinstance(type_, ListType) else "_T"

    parts = [one(returned.type) for returned in op.schema.returns]
    return parts[0] if len(parts) == 1 else f"tuple[{', '.join(parts)}]" if parts else "None"


def parameters(op: Any, first: str | None = None) -> str:
    """Return the parameters of an operator; `first` stands for the first one."""
    texts: list[str] = []
    keyword_only = False
    for position, argument in enumerate(op.schema.arguments):
        if argument.kwarg_only and not keyword_only:
            keyword_only = True
            texts.append("*")
        if position == 0 and first is not None:
            texts.append(first)
            continue
        default = "" if argument.default is NO_DEFAULT else f" = {argument.default!r}"
        texts.append(f"{argument.name}: {parameter_type(argument.type)}{default}")
    returns = op.schema.returns
    if len(returns) == 1 and isinstance(returns[0].type, TensorType) and op.schema.is_functional:
        texts += ["out: _T | None = None"] if keyword_only else ["*", "out: _T | None = None"]
    return ", ".join(texts)


def operator(name: str) -> Any:
    return oplib.get_op(f"std::{name}")


def function_lines() -> Iterator[str]:
    """Yield a function per operator that is an attribute of `oplib`."""
    for name in sorted(name.partition("::")[2] for name in oplib.list_ops("std")):
        op = operator(name)
        own = Path(op.definition_source.file).parent.name in ("std", "prims")
        if own and getattr(oplib, name, None) is op:
            yield f"def {name}({parameters(op)}) -> {return_type(op)}: ..."


def method_lines() -> Iterator[str]:
    """Yield a method per entry of the tables in `methods.py`."""
    for name in sorted({*methods.METHODS, *methods.REFLECTED} - {"T", "astype"}):
        op = operator(methods.METHODS.get(name) or methods.REFLECTED[name])
        other = ", y: _X" if len(op.schema.arguments) > 1 else ""
        ignored = "  # type: ignore[override]" if name in ("__eq__", "__ne__") else ""
        yield f"def {name}(self{other}) -> _T: ...{ignored}"
    yield "def __getitem__(self, index: _A) -> _T: ..."
    yield "def __setitem__(self, index: _A, value: _A) -> None: ..."
    for name in sorted({"astype", *methods.NAMED, "contiguous", "conj"}):
        op = operator(methods.METHODS.get(name, name))
        yield f"def {name}({parameters(op, 'self')}) -> {return_type(op)}: ..."
    for name in sorted(methods.SIZED):
        rest = ", *, dtype: _A = None" if name.startswith("new_") else ""
        rest = rest.removeprefix(", *") if rest else ""
        yield f"def {name}(self, *size: int | _S[int]{rest}) -> _T: ..."
    yield f"def new_full({parameters(operator('new_full'), 'self')}) -> _T: ..."
    yield "def to_device(self, device: _D | str, /, *, stream: None = None) -> _T: ..."
    yield "def __array_namespace__(self, /, *, api_version: str | None = None) -> _A: ..."
    for name in ("T", "mT", "real", "imag"):
        yield f"{name}: _T"


def stub() -> str:
    """Return the text of the stub."""
    load_all()
    functions = "\n".join(function_lines())
    body = "\n".join(f"    {line}" for line in method_lines())
    return f"{HEADER}\n{functions}\n\nclass _Methods:\n{body}\n"


def test_the_stub_is_what_the_registry_says() -> None:
    assert stub() == STUB.read_text("utf-8"), "run: python -m tests.test_signatures"


def test_every_method_installed_at_run_time_is_in_the_stub() -> None:
    tables = (methods.METHODS, methods.REFLECTED, methods.NAMED, methods.SIZED, methods.LATE)
    text = STUB.read_text("utf-8").partition("class _Methods")[2]
    known = set(re.findall(r"^    (?:def )?(\w+)", text, re.MULTILINE))
    assert {name for table in tables for name in table} <= known


# ---------------------------------------------------------------------- a checker reads it

PROGRAM = """\
import numpy as np
import oplib

x = oplib.ones(2, 3)
reveal_type(x.sum(dim=0))
reveal_type(x.split(2, dim=1))
reveal_type(oplib.qr(x))
reveal_type(oplib.topk(x, 2, largest=False)[0].reshape(2, -1))
reveal_type(oplib.einsum("ij,jk", [x, x.T]) @ np.ones(2) + 2j)
x.sum(dims=0)
x.reshape("2")
oplib.clamp(x, min="0")
x.summ()
x.exp(out=x).masked_fill_(x > 0, 1.0)
"""


@pytest.mark.peer("mypy")
def test_mypy_sees_signatures_of_functions_and_methods(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM, "utf-8")
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--config-file", ""]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "signatures"), str(file)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    tensor = "oplib.tensor.tensor.Tensor"
    found = re.findall(r'Revealed type is "(.*)"', run.stdout)
    found = [text.replace("builtins.", "") for text in found]
    assert found == [
        *(tensor, f"list[{tensor}]", f"tuple[{tensor}, {tensor}]"),
        *(tensor, tensor),
    ], run.stdout + run.stderr
    errors = re.findall(r"program\.py:(\d+): error: .*\[([\w-]+)\]", run.stdout)
    assert errors == [
        *(("10", "call-arg"), ("11", "arg-type"), ("12", "arg-type"), ("13", "attr-defined")),
    ], run.stdout


if __name__ == "__main__":
    STUB.write_text(stub(), "utf-8")
