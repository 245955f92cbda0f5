"""Programs in files: JSON and arrays in one zip archive, nothing that is executed when it is read.

The graph is its own text, which parses back to the bit. Signature and outcome are trees of a few
frozen classes, written field by field. Arrays are raw bytes under their SHA-256 digest.

Imports floors 0 to 5, `program.py`.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from .._dims import Facts, SymInt
from .._tree import TreeDef
from ..dispatch.operator import Operator
from ..dispatch.registry import get_op, has_op
from ..dtypes import Device, as_dtype, short_dtype
from ..errors import CaptureError
from ..functionalize import outcome as outcomes
from ..functionalize.storage import ViewStep
from ..graph import Digest, TensorMeta, graph_text, parse, verify
from ..graph.literals import array_digest, float_from_bits, literal_text
from ..tensor.geometry import Geometry, extent
from ..tensor.tensor import Tensor, tensor_from_array
from .program import Program
from .signature import Signature, TensorGuard

__all__ = ["load", "save"]

FORMAT: Final = (1, 0)
_CLASSES: Final[dict[str, type]] = {
    cls.__name__: cls
    for cls in (
        *(getattr(outcomes, name) for name in outcomes.__all__ if name != "Record"),
        Signature,
        TensorGuard,
        Geometry,
        TreeDef,
        ViewStep,
    )
}
_KINDS: Final[dict[str, type]] = {"list": list, "tuple": tuple, "dict": dict}


def save(program: Program, path: str | Path | IO[bytes]) -> None:
    """Write a program to a file that `load` reads, on any machine that has its operators.

    Tensors of the enclosing scope are saved with it, as they are now.

    Raises
    ------
    CaptureError
        If the program writes such a tensor, or if it holds a value that has no text. No file is
        written then.
    """
    graph, signature = program.graph, program.signature
    touched = {*signature.written, *signature.differentiated, *(i for i, _ in signature.offsets)}
    if not touched.isdisjoint(signature.captured_inputs):
        raise CaptureError(
            f"program {graph.name} writes a tensor of the enclosing scope, or depends on its "
            "memory; a file holds copies\n  save program.lift(), which takes it as an argument"
        )
    verify(graph)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    record = {
        "format": list(FORMAT),
        "requires": [],
        "operators": [_described(op) for op in _operators(program)],
        "graph": graph_text(graph),
        "signature": _encoded(signature, arrays),
        "outcome": _encoded(program.outcome, arrays),
        "captured": [_encoded(tensor.detach().numpy(), arrays) for tensor in program.captured],
    }
    for node in graph.constants:
        assert isinstance(node.data, np.ndarray)
        arrays[array_digest(node.data)] = node.data
    raw = {digest: np.frombuffer(array.tobytes(), np.uint8) for digest, array in arrays.items()}
    record["arrays"] = {k: [short_dtype(a.dtype), list(a.shape)] for k, a in arrays.items()}
    stream = io.BytesIO()
    np.savez(stream, **raw)  # type: ignore[arg-type]
    text = json.dumps(record, indent=1)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("program.json", text)
        archive.writestr("arrays.npz", stream.getvalue())


def load(path: str | Path | IO[bytes]) -> Program:
    """Return the program in a file that `save` wrote.

    Raises
    ------
    CaptureError
        If the file is damaged or of another format, or if operators are missing or have another
        schema; all of them are listed, with the modules that defined them.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            record = json.loads(archive.read("program.json"))
            with np.load(io.BytesIO(archive.read("arrays.npz")), allow_pickle=False) as found:
                raw = dict(found)
        _check_format(record)
        _check_operators(record["operators"])
        arrays = {
            digest: raw[digest].view(as_dtype(dtype)).reshape(shape)
            for digest, (dtype, shape) in record["arrays"].items()
        }
        for digest, array in arrays.items():
            if array_digest(array) != digest:
                raise CaptureError(f"the bytes of {digest[:20]}... are not those that were saved")
        graph = parse(record["graph"], constants=arrays)
        verify(graph)
        for node in graph.constants:
            meta, data = node.value.tensor, node.data
            if isinstance(data, Digest) or (data.dtype, data.shape) != (meta.dtype, meta.shape):
                raise CaptureError(f"the data of the constant {node} is not what was saved")
        sizes = [n for value in graph.symbol_sites for n in value.tensor.shape]
        facts = next((n.facts for n in sizes if isinstance(n, SymInt)), Facts())
        signature: Signature = _decoded(record["signature"], arrays, facts)
        outcome = _decoded(record["outcome"], arrays, facts)
        captured = [
            _restored(_decoded(item, arrays, facts), guard)
            for item, guard in zip(record["captured"], signature.captured, strict=True)
        ]
    except CaptureError as error:
        error.add_note(f"while loading {path}")
        raise
    except (KeyError, ValueError, TypeError, EOFError, OSError, zipfile.BadZipFile) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise CaptureError(f"{path} is no program that oplib saved, or damaged: {error}") from error
    return Program(graph, outcome, signature, captured)


# Operators ----------------------------------------------------------------------------------------


def _operators(program: Program) -> list[Operator[..., Any]]:
    steps = (
        step.op
        for record in program.outcome.places
        if isinstance(record, outcomes.InputView | outcomes.ValueView)
        for step in record.past.steps or ()
    )
    return list(dict.fromkeys((*(node.op for node in program.graph.calls), *steps)))


def _described(op: Operator[..., Any]) -> dict[str, Any]:
    return {
        "name": op.qualname,
        "schema": str(op.schema),
        "effects": sorted(op.effects),
        "hash": _hash_of(op),
        "module": op.definition_source.module,
    }


def _hash_of(op: Operator[..., Any]) -> str:
    """Return the digest of what a graph relies on: schema, effects, if there is a view rule."""
    text = f"{op.schema}|{','.join(sorted(op.effects))}|{op.view_rule is not None}"
    return hashlib.sha256(text.encode()).hexdigest()


def _check_format(record: Mapping[str, Any]) -> None:
    major, minor = record["format"]
    unknown = record["requires"] if minor > FORMAT[1] else []
    if major != FORMAT[0] or unknown:
        needs = f" and needs {', '.join(unknown)}" if unknown else ""
        raise CaptureError(
            f"the file has format {major}.{minor}{needs}; this oplib reads {FORMAT[0]}.{FORMAT[1]}"
        )


def _check_operators(saved: list[dict[str, Any]]) -> None:
    """Raise one error for all operators that are missing or have changed."""
    lines = []
    for each in saved:
        name = each["name"]
        if not has_op(name):
            lines.append(f"{name} is not registered; it was defined in {each['module']}: import it")
        elif _hash_of(op := get_op(name)) != each["hash"]:
            lines.append(
                f"{name} has changed\n    saved       {each['schema']} {each['effects']}\n"
                f"    registered  {op.schema} {sorted(op.effects)}"
            )
    if lines:
        raise CaptureError("the program cannot be loaded\n  " + "\n  ".join(lines))


# Values -------------------------------------------------------------------------------------------


def _encoded(value: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """Return JSON for a tree; what JSON has no word for is a dict with one key that says what."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is list:
        return [_encoded(item, arrays) for item in value]
    if kind is tuple:
        return {"tuple": [_encoded(item, arrays) for item in value]}
    if kind is dict:
        return {"dict": [[_encoded(k, arrays), _encoded(v, arrays)] for k, v in value.items()]}
    if kind is float:
        text = literal_text(value)
        return {"float": text if text.startswith("nan") else value.hex()}
    if kind is complex:
        return {"complex": [_encoded(value.real, arrays), _encoded(value.imag, arrays)]}
    if kind is SymInt:
        return {"size": [[list(factors), count] for factors, count in value.terms]}
    if kind is np.ndarray and value.dtype.kind in "biufc":
        digest = array_digest(value)
        arrays[digest] = value
        return {"array": digest}
    if isinstance(value, np.dtype):
        return {"dtype": short_dtype(value)}
    if kind is Device:
        return {"device": [value.type, value.index]}
    if isinstance(value, Operator):
        return {"op": value.qualname}
    if kind is slice:
        return {"slice": [_encoded(x, arrays) for x in (value.start, value.stop, value.step)]}
    if value is ...:
        return {"ellipsis": None}
    if kind is type and value in _KINDS.values():
        return {"kind": value.__name__}
    if _CLASSES.get(kind.__name__) is kind:
        names = inspect.signature(kind).parameters
        return {kind.__name__: {n: _encoded(getattr(value, n), arrays) for n in names}}
    what = f"the container {value.__name__}" if kind is type else f"a {kind.__name__}, {value!r}"
    raise CaptureError(
        f"the program holds {what}, for which a file has no word\n"
        "  pass numbers, strings, dtypes, tensors, and lists, tuples and dicts of them"
    )


def _float_of(text: str) -> float:
    if text.startswith("nan("):
        return float_from_bits(int(text[4:-1], 16))
    return float("nan") if text == "nan" else float.fromhex(text)


_WORDS: Final[dict[str, Callable[[Any, Callable[[Any], Any]], Any]]] = {
    "tuple": lambda data, inner: tuple(map(inner, data)),
    "dict": lambda data, inner: {inner(key): inner(value) for key, value in data},
    "float": lambda data, inner: _float_of(data),
    "complex": lambda data, inner: complex(*map(inner, data)),
    "dtype": lambda data, inner: as_dtype(data),
    "device": lambda data, inner: Device(*data),
    "op": lambda data, inner: get_op(data),
    "slice": lambda data, inner: slice(*map(inner, data)),
    "ellipsis": lambda data, inner: ...,
    "kind": lambda data, inner: _KINDS[data],
}


def _decoded(data: Any, arrays: Mapping[str, np.ndarray[Any, Any]], facts: Facts) -> Any:
    """Return what `_encoded` was given; sizes that depend on data are bound by `facts`."""

    def inner(item: Any) -> Any:
        return _decoded(item, arrays, facts)

    if isinstance(data, list):
        return [inner(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((word, content),) = data.items()
    if word == "array":
        return arrays[content]
    if word == "size":
        return SymInt(facts, tuple([(tuple(factors), count) for factors, count in content]))
    if word in _WORDS:
        return _WORDS[word](content, inner)
    return _CLASSES[word](**{name: inner(value) for name, value in content.items()})


def _restored(array: np.ndarray[Any, Any], guard: TensorGuard) -> Tensor:
    """Return a tensor with the bytes of `array` that passes a guard."""
    meta = TensorMeta(guard.dtype, guard.shape, guard.strides)
    memory = np.zeros(extent(meta.form)[1], np.uint8)
    laid_out = np.ndarray(guard.shape, guard.dtype, memory, meta.form.offset, guard.strides)
    laid_out[...] = array
    tensor = tensor_from_array(laid_out)
    tensor.requires_grad = not guard.stop_gradient
    return tensor
