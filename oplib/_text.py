"""The pieces error messages are made of: carets, did-you-mean, places, short descriptions.

Nothing here is on the path of an operator call that succeeds. Imports nothing of oplib.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import linecache
import os
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

__all__ = [
    "caller_site",
    "caret_excerpt",
    "did_you_mean",
    "function_site",
    "is_internal_file",
    "join_names",
    "short_repr",
    "shorten_path",
    "user_line",
]

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_BUILT_IN = _PACKAGE + "std" + os.sep
_EXCERPT_WIDTH = 60


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the candidate nearest to `word`, or ``""``."""
    lowered = {candidate.lower(): candidate for candidate in candidates}
    near = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""


def join_names(names: Iterable[str], conjunction: str = "and") -> str:
    """Return ``"`a`, `b` and `c`"``."""
    quoted = [f"`{name}`" for name in names]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {conjunction} {quoted[-1]}"


def caret_excerpt(text: str, start: int, end: int) -> str:
    """Return the line of `text` around ``start`` with carets under ``start:end``.

    Lines longer than 60 characters are cut to the surroundings of the caret; newlines, tabs and
    other control characters are shown as spaces so that columns agree.
    """
    end = max(end, start + 1)
    flat = "".join(char if char.isprintable() else " " for char in text)
    low, high = 0, len(flat)
    if high > _EXCERPT_WIDTH:
        low = max(0, min(start - _EXCERPT_WIDTH // 2, high - _EXCERPT_WIDTH))
        high = low + _EXCERPT_WIDTH
    head = "..." if low else ""
    tail = "..." if high < len(flat) else ""
    carets = "^" * max(1, min(end, high) - start)
    return f"  {head}{flat[low:high]}{tail}\n  {' ' * (len(head) + start - low)}{carets}"


def short_repr(value: Any, limit: int = 60) -> str:
    """Return ``repr(value)`` on one line, cut to `limit` characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:  # a broken __repr__ must not hide the error being reported
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def function_site(function: Any) -> str:
    """Return ``"file.py:12"`` where `function` is defined, or a description of a builtin."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function) if callable(function) else function
    code = getattr(function, "__code__", None)
    if code is None:  # an instance whose class defines __call__
        code = getattr(getattr(type(function), "__call__", None), "__code__", None)  # noqa: B004
    if code is None:
        return f"built-in {getattr(function, '__name__', type(function).__name__)}"
    return f"{shorten_path(code.co_filename)}:{code.co_firstlineno}"


def caller_site() -> str:
    """Return ``"file.py:12"`` of the innermost frame outside the oplib package.

    Frames of ``oplib/std`` count as outside: built-in operators are written with the public API.
    """
    filename, line = caller_location()
    return f"{shorten_path(filename)}:{line}"


def caller_location() -> tuple[str, int]:
    """Return (absolute file name, line) of the innermost frame outside the oplib package."""
    frame = caller_frame()
    return frame.f_code.co_filename, frame.f_lineno


def caller_frame() -> FrameType:
    """Return the innermost frame outside the oplib package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_internal_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_line() -> str:
    """Return ``"file.py:12: source"`` of the innermost frame outside oplib, built-ins included."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_PACKAGE, "<oplib")):
        frame = frame.f_back
    if frame is None:  # everything on this thread is oplib's
        return "an unknown line"
    filename, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(filename, line, frame.f_globals).strip()
    return f"{shorten_path(filename)}:{line}" + (f": {text}" if text else "")


def is_internal_file(filename: str) -> bool:
    """Return whether `filename` belongs to oplib itself (its generated code included)."""
    if filename.startswith("<oplib"):
        return True
    if filename.startswith(_BUILT_IN) and not filename.endswith("declare.py"):
        return False  # built-in operators are defined by users of the public API
    return filename.startswith(_PACKAGE)


def shorten_path(filename: str) -> str:
    """Return `filename` relative to the working directory when it lies below it."""
    if filename.startswith("<"):
        return filename
    relative = os.path.relpath(filename) if os.path.isabs(filename) else filename
    return relative if not relative.startswith("..") else filename
