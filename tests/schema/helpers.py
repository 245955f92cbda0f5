"""What the tests of the schema language share."""

from __future__ import annotations

from enum import Enum, IntEnum

import pytest

from oplib.errors import SchemaError
from oplib.schema import FunctionSchema, TensorType, parse, register_annotation


class Tensor:
    """Stands in for the class a higher floor registers."""


register_annotation(Tensor, TensorType(), "tensor")


class Mode(Enum):
    FAST = "fast"
    EXACT = "exact"


class Level(IntEnum):
    LOW = 1
    HIGH = 7


class Codec:
    """An opaque class; tests register it."""


def canonical(text: str) -> str:
    """Return the canonical text, which must read back as an equal schema that prints alike."""
    schema = parse(text)
    again = parse(str(schema))
    assert again == schema
    assert hash(again) == hash(schema)
    assert str(again) == str(schema)
    return str(schema)


def argument_text(text: str) -> str:
    """Return how the only argument prints, round trip included."""
    return canonical(f"f({text}) -> ()").removeprefix("f(").removesuffix(") -> ()")


def default_of(text: str) -> object:
    """Return the stored default of the only argument."""
    (argument,) = parse(f"f({text}) -> ()").arguments
    return argument.default


def refused(
    text: str, rule: str, *, hint: str = "", message: str = "", at: int = -1
) -> SchemaError:
    """Check that `text` breaks `rule`, and what is said about it; return the error."""
    with pytest.raises(SchemaError) as caught:
        parse(text)
    error = caught.value
    assert error.rule == rule, str(error)
    assert hint in error.hint, str(error)
    assert message in error.message, str(error)
    assert at in (-1, error.span[0]), str(error)
    assert error.text == text
    assert 0 <= error.span[0] <= error.span[1] <= len(text)
    return error


def schema_of(arguments: str, returns: str = "()") -> FunctionSchema:
    """Return the schema with these arguments and returns."""
    return parse(f"ns::f({arguments}) -> {returns}")
