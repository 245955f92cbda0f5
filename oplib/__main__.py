"""The command line: ``oplib list | show | explain | check | graph | info``.

Commands that take a module import it as Python would from the current directory. What goes wrong
in there is shown with its own traceback, without frames of this file.

Imports floors 0 to 8.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import platform
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, Final

import numpy as np

import oplib

from . import meta, testing
from ._text import did_you_mean
from .backends.arrays import BACKENDS_BY_BIT
from .dispatch.explain import explain
from .dispatch.interpreter import DispatchMode
from .dispatch.operator import Operator
from .dispatch.packet import OperatorPacket
from .dispatch.registry import get_op, has_op, list_ops
from .dtypes import as_dtype
from .errors import OplibError
from .program.capture import capture
from .testing.parametrize import operators_of

__all__ = ["main"]

FAILED: Final = 1
NOTHING: Final = 2

AnyOperator = Operator[..., Any]


class CommandError(Exception):
    """What a command cannot do; the message goes to stderr, the code to the shell."""

    def __init__(self, message: str, code: int = NOTHING) -> None:
        super().__init__(message)
        self.code = code


# ---------------------------------------------------------------------- commands


def list_command(options: argparse.Namespace) -> int:
    """Print the operators of a namespace, or the namespaces."""
    if options.namespace is None:
        names = [name.partition("::")[0] for name in list_ops()] + ["std"]
        for namespace in dict.fromkeys(names):
            print(f"{namespace:<20} {len(_names_of(namespace)):>4} operators")
        return 0
    names = _names_of(options.namespace)
    if not names:
        raise CommandError(f"no operator in namespace {options.namespace!r}")
    for name in names:
        print(get_op(name).schema)
    return 0


def _names_of(namespace: str) -> list[str]:
    if namespace == "std":
        oplib.std.load_all()
    return list_ops(namespace)


def show_command(options: argparse.Namespace) -> int:
    """Print what an operator is: schema, facets with their places, generated source."""
    operator = _operator(options.operator)
    print(operator.schema)
    if operator.__doc__:
        print(f"\n  {operator.__doc__.strip().splitlines()[0]}")
    print(f"\n  defined        {operator.definition_source}")
    for key, value in {"tags": operator.tags, "effects": sorted(operator.effects)}.items():
        if value:
            print(f"  {key:<14} {', '.join(value)}")
    for registration in operator.registrations:
        where = f" at {registration.key}" if registration.key else ""
        print(f"  {registration.facet:<14} {registration.source}{where}")
    if options.source:
        print(f"\n{operator.source()}")
    return 0


def _operator(name: str) -> AnyOperator:
    if not has_op(name):
        _names_of("std")  # so that all of them can be meant
    try:
        return get_op(name)
    except OplibError as error:
        raise CommandError(str(error)) from None


class _Explained(DispatchMode):
    """Prints how each operator is called, once per operator and kinds of arguments."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def handle(self, op: AnyOperator, args: Any, kwargs: Any) -> Any:
        text = explain(op, *args, **kwargs)
        if text not in self.seen:
            self.seen.add(text)
            print(f"{text}\n")
        return op(*args, **kwargs)


def explain_command(options: argparse.Namespace) -> int:
    """Call a function without arguments and explain every operator call it makes."""
    function = _named(options.target)
    mode = _Explained()
    with _users_own_errors(), mode:
        function()
    if not mode.seen:
        raise CommandError(f"{options.target} calls no operator")
    return 0


def check_command(options: argparse.Namespace) -> int:
    """Run opcheck on the operators a module defines."""
    module, _, wanted = options.target.partition(":")
    defined = operators_of(_module(module))
    found = [op for op in defined if not wanted or wanted in (op.qualname, op.name)]
    if not found:
        known = [op.qualname for op in defined]
        which = f"operator {wanted!r}{did_you_mean(wanted, known)}" if wanted else "operator"
        raise CommandError(f"{module} defines no {which}")
    reports = []
    for operator in _with_progress(found, options.json):
        report = testing.opcheck(
            operator,
            checks=options.checks,
            skip=options.skip or (),
            seed=options.seed,
            raise_exception=False,
        )
        reports.append(report)
        if not options.json:
            print(report)
    if options.json:
        print(json.dumps([json.loads(report.to_json()) for report in reports], indent=2))
    if not any(result.status != "skipped" for report in reports for result in report):
        raise CommandError("nothing could be checked: every check was skipped")
    return 0 if all(report.ok for report in reports) else FAILED


def graph_command(options: argparse.Namespace) -> int:
    """Capture a function on fake inputs and print its graph."""
    function = _named(options.target)
    inputs = [_input(text) for text in options.input]
    with _users_own_errors():
        program = capture(function, *inputs)
    graph = program.graph
    print(getattr(graph, options.format)() if options.format != "text" else graph)
    return 0


_INPUT: Final = re.compile(r"(\w+)\[([\d, ]*)\]")


def _input(text: str) -> Any:
    """Return a meta tensor for ``f64[2,3]``."""
    match = _INPUT.fullmatch(text)
    if match is None:
        raise CommandError(f"an input is written like f64[2,3], got {text!r}")
    size = [int(part) for part in match[2].split(",") if part.strip()]
    try:
        kind = as_dtype(match[1])
    except OplibError as error:
        raise CommandError(str(error)) from None
    with meta.FakeTensorMode():
        return oplib.zeros(size, dtype=kind)


def info_command(options: argparse.Namespace) -> int:
    """Print versions, backends and kernel providers."""
    print(f"oplib     {oplib.__version__}")
    print(f"python    {platform.python_version()}")
    print(f"numpy     {np.__version__}")
    for name in ("scipy", "ml_dtypes", "hypothesis", "tqdm"):
        try:
            version = importlib.import_module("importlib.metadata").version(name)
        except ImportError:
            version = "not installed"
        print(f"{name:<9} {version}")
    for backend in BACKENDS_BY_BIT.values():
        print(f"backend   {backend.name} at {backend.key}")
    providers = {r.provider for name in _names_of("std") for r in get_op(name).registrations}
    print(f"providers {', '.join(sorted(providers))}")
    return 0


# ---------------------------------------------------------------------- the user's module


@contextlib.contextmanager
def _users_own_errors() -> Iterator[None]:
    """Show an exception of the user's code with the user's frames only, and stop."""
    try:
        yield
    except CommandError:
        raise
    except Exception as error:
        kept = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename != __file__ and "importlib" not in frame.filename
        ]
        lines = traceback.format_exception_only(error)
        text = "".join(
            ["Traceback (most recent call last):\n", *traceback.format_list(kept), *lines]
        )
        raise CommandError(text.rstrip()) from None


def _module(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")
    with _users_own_errors():
        return importlib.import_module(name)


def _named(target: str) -> Callable[..., Any]:
    """Return what ``module:name`` names, or the operator ``ns::name``."""
    if "::" in target and has_op(target):
        return get_op(target)
    module, colon, path = target.partition(":")
    if not colon or not path:
        raise CommandError(f"write module:function, got {target!r}")
    found: Any = _module(module)
    for name in path.split("."):
        if not hasattr(found, name):
            raise CommandError(f"{module} has no {path!r}{did_you_mean(name, dir(found))}")
        found = getattr(found, name)
    if isinstance(found, OperatorPacket):
        return found.single
    if not callable(found):
        raise CommandError(f"{target} is a {type(found).__name__}, which cannot be called")
    return found  # type: ignore[no-any-return]


def _with_progress(operators: Sequence[AnyOperator], quiet: bool) -> Iterable[AnyOperator]:
    """Return the operators with a progress bar on a terminal, if tqdm is installed."""
    if quiet or len(operators) < 2 or not sys.stderr.isatty():
        return operators
    try:
        tqdm = importlib.import_module("tqdm").tqdm
    except ImportError:
        return operators
    return tqdm(operators, unit="operator")  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- the command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="oplib", description="Custom operators: look and check.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    def command(name: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        assert run.__doc__ is not None
        made = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        made.set_defaults(run=run)
        return made

    made = command("list", list_command)
    made.add_argument("namespace", nargs="?")
    made = command("show", show_command)
    made.add_argument("operator", metavar="ns::op")
    made.add_argument("--source", action="store_true", help="also the code generated for it")
    made = command("explain", explain_command)
    made.add_argument("target", metavar="module:function")
    made = command("check", check_command)
    made.add_argument("target", metavar="module[:op]")
    made.add_argument("--json", action="store_true", help="print the reports as JSON")
    made.add_argument("--checks", type=_words, metavar="NAMES", help="run these, by commas")
    made.add_argument("--skip", type=_words, metavar="NAMES", help="leave these out")
    made.add_argument("--seed", type=int, default=0)
    made = command("graph", graph_command)
    made.add_argument("target", metavar="module:function")
    made.add_argument("input", nargs="*", help="its tensors, like f64[2,3]")
    made.add_argument("--format", choices=("text", "dot", "mermaid"), default="text")
    command("info", info_command)
    return parser


def _words(text: str) -> list[str]:
    return text.split(",")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 if a check failed, 2 if it could not run."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)  # type: ignore[no-any-return]
    except CommandError as stop:
        print(stop, file=sys.stderr)
        return stop.code
    except ValueError as error:  # an unknown check
        print(error, file=sys.stderr)
        return NOTHING


if __name__ == "__main__":
    raise SystemExit(main())
