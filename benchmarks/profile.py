"""Where a call spends its time, in bytecodes: ``python -m benchmarks.profile [PATH ...]``.

A small call costs some 8 ns per bytecode on the machine of the budgets; a profiler that times
functions would cost more than they do. The counts do not depend on the machine, nor on what else it
is doing. Kernels count as one bytecode each.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from .paths import paths

__all__ = ["bytecodes"]

SHOWN = 6


def bytecodes(call: Callable[[], object]) -> Counter[str]:
    """Return how many bytecodes each function runs in one call, once it is warm."""
    for _ in range(10):
        call()
    found: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            found[_name(frame)] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return Counter({name: n for name, n in found.items() if name})


def _name(frame: FrameType) -> str:
    """Return what a function is called: where it is from, or what it was generated for."""
    code = frame.f_code
    generated = re.match(r"<oplib (.*?)(?: \d+)?>$", code.co_filename)
    if generated:
        return generated[1]
    module = str(frame.f_globals.get("__name__", ""))
    if module in ("benchmarks.paths", "benchmarks.profile"):
        return ""
    return f"{module.removeprefix('oplib.')}: {getattr(code, 'co_qualname', code.co_name)}"


def main() -> None:
    """Print a table: per path the sum, and the functions that run most."""
    chosen = sys.argv[1:]
    for name, call in paths().items():
        if chosen and name not in chosen:
            continue
        found = bytecodes(call)
        print(f"{name:<22}{found.total():>6}")
        for function, count in found.most_common(SHOWN):
            print(f"{'':22}{count:>6}  {function}")


if __name__ == "__main__":
    main()
