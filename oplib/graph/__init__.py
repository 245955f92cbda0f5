"""Functional graphs: data, text, verification, evaluation, source, passes.

    literals.py   which Python values a graph may hold, their text and bits
    values.py     values, their metadata, references;  names.py  how they are called
    ir.py         nodes and `Graph`
    builder.py    `GraphBuilder`, what a recorder calls
    text.py       ``str(graph)`` and the grammar;  tokens.py operands.py parse.py  the way back
    compare.py    ``==``: do two graphs compute the same in the same steps
    fitting.py    does a value fit a schema type
    invariants.py one function per invariant;  verify.py  runs them
    evaluate.py   runs a graph node by node, on any tensors
    source.py     the same as generated Python
    draw.py       Graphviz, Mermaid, HTML
    passes/       `Graph -> Graph`, one pass per file
    readiness.py  is an operator ready for graph compilers

A graph knows nothing of how it was captured: that is `oplib/program/`. Imports floors 0 to 4.
"""

from __future__ import annotations

from .builder import GraphBuilder
from .compare import same_graph
from .draw import dot, html, mermaid
from .evaluate import (
    Region,
    RegionView,
    constant_tensor,
    evaluate,
    pack,
    set_functionalized_runner,
)
from .invariants import DIALECTS, INVARIANTS, Dialect, Invariant
from .ir import (
    KNOWN_FLAGS,
    BodyNode,
    Call,
    Constant,
    Functionalized,
    Graph,
    Node,
    OperatorNode,
    Output,
    Placeholder,
    Provenance,
    Rebind,
    Role,
    Write,
    defined_values,
    substitute,
    used_values,
)
from .parse import parse
from .passes import (
    MemoryPlan,
    Pass,
    constant_folding,
    cse,
    dead_code,
    graph_pass,
    peepholes,
    plan_memory,
    reinplace,
    run_passes,
    without_history,
)
from .readiness import Readiness, readiness
from .source import compile_graph, python_source
from .text import graph_text, line_of
from .values import Digest, Meta, PyMeta, Reference, Same, TensorMeta, TokenMeta, Value
from .verify import Failure, failures, verify

__all__ = [
    "DIALECTS",
    "INVARIANTS",
    "KNOWN_FLAGS",
    "BodyNode",
    "Call",
    "Constant",
    "Dialect",
    "Digest",
    "Failure",
    "Functionalized",
    "Graph",
    "GraphBuilder",
    "Invariant",
    "MemoryPlan",
    "Meta",
    "Node",
    "OperatorNode",
    "Output",
    "Pass",
    "Placeholder",
    "Provenance",
    "PyMeta",
    "Readiness",
    "Rebind",
    "Reference",
    "Region",
    "RegionView",
    "Role",
    "Same",
    "TensorMeta",
    "TokenMeta",
    "Value",
    "Write",
    "compile_graph",
    "constant_folding",
    "constant_tensor",
    "cse",
    "dead_code",
    "defined_values",
    "dot",
    "evaluate",
    "failures",
    "graph_pass",
    "graph_text",
    "html",
    "line_of",
    "mermaid",
    "pack",
    "parse",
    "peepholes",
    "plan_memory",
    "python_source",
    "readiness",
    "reinplace",
    "run_passes",
    "same_graph",
    "set_functionalized_runner",
    "substitute",
    "used_values",
    "verify",
    "without_history",
]
