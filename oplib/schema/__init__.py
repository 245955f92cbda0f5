"""The schema language: a text that says everything oplib knows about an operator's interface.

`parse` turns text into a frozen `FunctionSchema`, ``str`` turns it back, `infer_schema` makes one
from the annotations of a function, and `check_signature` says whether a function can serve it.

Reading order: `types.py` (what a type is), `literals.py` (defaults), `model.py` (what a schema is
and can be asked), `lexer.py`, `cursor.py`, `type_syntax.py`, `literal_syntax.py` and `syntax.py`
(text to model), `rules.py` (what is well formed), `hints.py` (what to write instead),
`annotations.py`, `defaults.py` and `infer.py` (functions to schemas), `signature.py`. Nothing here
has heard of tensors.
"""

from __future__ import annotations

from .annotations import Convention, register_annotation
from .defaults import adopt
from .infer import Inference, infer, infer_schema, kernel_convention
from .literals import DtypeName, format_literal
from .model import NO_DEFAULT, Argument, FunctionSchema, Return, Slot
from .signature import check_signature
from .syntax import parse
from .type_syntax import parse_type
from .types import (
    AliasSet,
    BasicType,
    ClassType,
    DictType,
    ListType,
    OpaqueRegistration,
    OptionalType,
    SchemaType,
    TensorType,
    TupleType,
    Type,
    UnionType,
    map_tensors,
    opaque_class,
    opaque_name,
    register_opaque_type,
    tensors_of,
    union_of,
)

__all__ = [
    "NO_DEFAULT",
    "AliasSet",
    "Argument",
    "BasicType",
    "ClassType",
    "Convention",
    "DictType",
    "DtypeName",
    "FunctionSchema",
    "Inference",
    "ListType",
    "OpaqueRegistration",
    "OptionalType",
    "Return",
    "SchemaType",
    "Slot",
    "TensorType",
    "TupleType",
    "Type",
    "UnionType",
    "adopt",
    "check_signature",
    "format_literal",
    "infer",
    "infer_schema",
    "kernel_convention",
    "map_tensors",
    "opaque_class",
    "opaque_name",
    "parse",
    "parse_type",
    "register_annotation",
    "register_opaque_type",
    "tensors_of",
    "union_of",
]
