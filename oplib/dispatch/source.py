"""Generated Python: compile it, make tracebacks show it, and spell argument names in it.

Only what must be fast is generated: the bind, the backend plan, the autograd plan. Names that
belong to the generated code start with ``_op_``; an argument whose name is a Python keyword, or
starts with ``_op_`` itself, gets a mangled local name.

Imports `operator.py`. Read next: `bind.py`.
"""

from __future__ import annotations

import keyword
import linecache
import weakref
from collections.abc import Sequence
from typing import Any, Final

from .operator import Operator, hooks

__all__ = ["generate", "local_name", "tuple_text"]

_texts: Final[weakref.WeakKeyDictionary[Operator[..., Any], dict[str, str]]] = (
    weakref.WeakKeyDictionary()
)


def local_name(argument: str) -> str:
    """Return the local variable that holds an argument in generated code."""
    if keyword.iskeyword(argument) or argument.startswith("_op_"):
        return f"_op_arg_{argument}"
    return argument


def tuple_text(parts: Sequence[str]) -> str:
    """Return the text of a tuple display: ``()``, ``(a,)``, ``(a, b)``."""
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def generate(
    op: Operator[..., Any], what: str, name: str, lines: Sequence[str], names: dict[str, Any]
) -> Any:
    """Compile `lines`, which define the function `name`, and return that function.

    The text is kept for `Operator.source` and shown by tracebacks and debuggers under the file name
    ``<oplib ns::op what>``. It is dropped with the operator.
    """
    texts = _texts.get(op)
    if texts is None:
        texts = _texts[op] = {}
        weakref.finalize(op, _forget, texts).atexit = False
    filename = _free_filename(f"{op.qualname} {what}", texts)
    text = "\n".join(lines) + "\n"
    texts[filename] = text
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(compile(text, filename, "exec"), names)
    return names[name]


def _free_filename(what: str, own: dict[str, str]) -> str:
    """Return a file name no other operator's text has (older definitions of a name live on)."""
    filename, number = f"<oplib {what}>", 1
    while filename in linecache.cache and filename not in own:
        number += 1
        filename = f"<oplib {what} #{number}>"
    return filename


def _forget(texts: dict[str, str]) -> None:
    for filename in texts:
        linecache.cache.pop(filename, None)


def _source(op: Operator[..., Any]) -> str:
    op.bind()
    return "\n".join(f"# {name}\n{text}" for name, text in _texts.get(op, {}).items())


hooks.source = _source
