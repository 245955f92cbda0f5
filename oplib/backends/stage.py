"""The backend stage: from Tensors to a kernel on arrays and back.

For each kernel entry and key set one plan is generated: it takes the arrays out, calls the kernel
with every argument (keyword-only ones by keyword), checks the result, and wraps it. Written
arguments are checked before the kernel runs and their storages are bumped whether it succeeds or
not.

Imports floors 0 to 4, `results.py` and above. Read next: `missing.py`, `host.py`, `numpy.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from .. import _state
from .._text import function_site
from ..dispatch.choice import Candidate, choose, refusal, unwrap
from ..dispatch.facets import KernelEntry, Registration
from ..dispatch.interpreter import BELOW_AUTOGRAD
from ..dispatch.keys import AUTOGRAD, BACKENDS, CHECKED, CPU, VIEW, WEAK, key_name, key_set_names
from ..dispatch.lifting import may_hold_tensors, tensor_leaves
from ..dispatch.operator import Operator, Plan
from ..dispatch.plan import backend_of, implementations, tensor_call
from ..dispatch.preference import is_enabled
from ..dispatch.source import generate, local_name, tuple_text
from ..schema import Argument, ListType, OptionalType, TensorType
from ..tensor.grad_meta import ViewRecord
from ..tensor.storage import Storage
from ..tensor.tensor import blank_tensor, join_family
from ..tensor.writes import check_destination
from .arrays import BACKENDS_BY_BIT, Backend
from .entries import prepared
from .host import host_plan
from .missing import missing_kernel, missing_text
from .results import UNSHARED, ResultFinisher

__all__ = ["GUARDS", "BackendStage", "Guard"]

AnyOperator: TypeAlias = Operator[..., Any]
Lines: TypeAlias = list[str]


class Guard(Protocol):
    """What checked mode puts around kernels and plans."""

    def kernel(self, op: AnyOperator, entry: KernelEntry, kernel: Callable[..., Any]) -> Any:
        """Return a kernel that is watched while it runs."""
        ...

    def plan(self, op: AnyOperator, entry: KernelEntry, plan: Plan) -> Plan:
        """Return a plan whose results are compared with what the operator declares."""
        ...


GUARDS: Final[list[Guard]] = []
"""What plans with the key bit CHECKED are wrapped in."""


class BackendStage:
    """The stage of every backend key."""

    key = BACKENDS

    def build(self, op: AnyOperator, keys: int, below: Plan | None) -> Plan:
        """Return the plan that runs the kernel for a backend."""
        backend = backend_of(keys)
        candidates = list(_candidates(op, backend, keys))
        return choose(op, candidates, keys, partial(_without_kernel, op, backend, keys, candidates))

    def describe(self, op: AnyOperator, keys: int, args: list[Any]) -> list[str]:
        """Return the lines `explain` shows: the backend, the choice, or what is missing."""
        backend = backend_of(keys)
        known = BACKENDS_BY_BIT.get(backend)
        name = key_name(backend) if known is None else f"{known.key} ({known.name})"
        lines = []
        for kind, registrations in implementations(op, backend):
            for registration in registrations:
                entry: KernelEntry = registration.payload
                details = [f"provider {entry.provider!r}"] if entry.provider != "default" else []
                details += [f"priority {entry.priority}"] if entry.priority else []
                reason = refusal(op, entry, args, ask=False)
                reason = reason if is_enabled(op, registration) else "it is switched off here"
                details += [f"refuses: {reason}"] if reason else []
                details += ["asks its predicate"] if entry.supports is not None else []
                extra = f" ({', '.join(details)})" if details else ""
                lines.append(f"{name}: {kind} at {entry.key}, {registration.source}{extra}")
        if lines:
            return lines
        if known is not None and known.fallback == "host":
            return [f"{name}: no kernel; runs on the host, on copies"]
        return missing_text(op, backend, args).splitlines()


def _candidates(op: AnyOperator, backend: int, keys: int) -> Iterator[Candidate]:
    """Yield every entry that can serve a backend, in order of precedence, with its plan."""
    for _, registrations in implementations(op, backend):
        for registration in registrations:
            yield registration, partial(_entry_plan, op, registration.payload, backend, keys)


def _entry_plan(op: AnyOperator, entry: KernelEntry, backend: int, keys: int) -> Plan:
    tensors = entry.convention == "tensor"
    plan = (_tensor_plan if tensors else _array_plan)(op, entry, backend, keys)
    for guard in GUARDS if keys & CHECKED else ():
        plan = guard.plan(op, entry, plan)
    return plan


def _without_kernel(
    op: AnyOperator, backend: int, keys: int, candidates: Sequence[Candidate]
) -> Plan:
    """Return the plan for calls that no entry takes."""
    known = BACKENDS_BY_BIT.get(backend)
    if known is not None and known.fallback == "host" and backend != CPU:
        return host_plan(op, known, keys)
    rejected: list[Registration] = [registration for registration, _ in candidates]
    return missing_kernel(op, backend, rejected)


# ---------------------------------------------------------------------- kernels on arrays


def _array_plan(op: AnyOperator, entry: KernelEntry, backend: int, keys: int) -> Plan:
    """Generate the plan for a kernel that receives the backend's arrays."""
    kernel = prepared(op, entry)
    for guard in GUARDS if keys & CHECKED else ():
        kernel = guard.kernel(op, entry, kernel)
    finisher = ResultFinisher(op, entry, _backend(backend), _joins_family(op))
    locals_ = [local_name(argument.name) for argument in op.schema.arguments]
    names: dict[str, Any] = {
        "_op_kernel": kernel,
        "_op_note": partial(_add_note, op, entry),
        "_op_unwrap": unwrap,
        "_op_type": type,
        "_op_ndarray": np.ndarray,
        "_op_references": sys.getrefcount,
        "_op_float64": np.dtype(np.float64),
        "_op_scalars": _SCALARS,
        "_op_asarray": np.asarray,
        "_op_finish": finisher.finish,
        "_op_blank": blank_tensor,
        "_op_Storage": Storage,
        "_op_check": partial(_check_destination, op),
        "_op_storages": _written_storages,
        "_op_current": _state.current,
        "_op_join": join_family,
        "_op_Record": ViewRecord,
    }
    taken, call = _kernel_call(op, keys)
    every = tuple_text(locals_)
    if op.schema.is_mutable:
        run = _writing_lines(op, call, every, backend)
    else:
        run = _functional_lines(op, call, every, backend, isinstance(kernel, np.ufunc))
    lines = [f"def plan({', '.join(locals_)}):", *taken, *run]
    name = f"plan {key_set_names(keys)}"
    return generate(op, name, "plan", lines, names)  # type: ignore[no-any-return]


_SCALARS: Final = frozenset(
    np.dtype(name).type for name in np.typecodes["AllFloat"] + "?bhilqBHILQ"
)
"""NumPy's scalars that are numbers; they share memory with nothing."""


def _backend(bit: int) -> Backend:
    """Return the backend of a bit; a key nobody claimed computes on NumPy arrays."""
    return BACKENDS_BY_BIT.get(bit) or BACKENDS_BY_BIT[CPU]


def _kernel_call(op: AnyOperator, keys: int) -> tuple[Lines, str]:
    """Return the lines that take arrays out of the arguments, and the call of the kernel."""
    lines, passed, by_keyword = [], [], []
    for argument in op.schema.arguments:
        local = local_name(argument.name)
        source = _array_text(argument, local, keys)
        if source != local:
            lines.append(f"    _op_a_{argument.name} = {source}")
            local = f"_op_a_{argument.name}"
        if not argument.kwarg_only:
            passed.append(local)
        elif local_name(argument.name) == argument.name:
            passed.append(f"{argument.name}={local}")
        else:
            by_keyword.append(f"{argument.name!r}: {local}")
    if by_keyword:
        passed.append(f"**{{{', '.join(by_keyword)}}}")
    return lines, f"_op_kernel({', '.join(passed)})"


def _array_text(argument: Argument, local: str, keys: int) -> str:
    """Return the expression for what the kernel receives for one argument."""
    kind = argument.type
    one = "{0}.array"
    if keys & WEAK:
        one = f"({{0}}.array.item() if {{0}}._keys & {WEAK} else {{0}}.array)"
    if isinstance(kind, TensorType):
        return one.format(local)
    if isinstance(kind, OptionalType) and isinstance(kind.element, TensorType):
        return f"None if {local} is None else {one.format(local)}"
    if isinstance(kind, ListType) and isinstance(kind.element, TensorType):
        return f"[{one.format('_op_t')} for _op_t in {local}]"
    return f"_op_unwrap({local})" if may_hold_tensors(kind) else local


def _run_lines(call: str) -> Lines:
    """Return the lines that call the kernel and say on its exceptions whose it is."""
    return [
        "    try:",
        f"        _op_r = {call}",
        "    except BaseException as _op_error:",
        "        _op_note(_op_error)",
        "        raise",
    ]


# ---------------------------------------------------------------------- what writes nothing


def _functional_lines(
    op: AnyOperator, call: str, every: str, backend: int, is_ufunc: bool
) -> Lines:
    """Return the lines that call a kernel which writes nothing, and wrap its result.

    An array that a ufunc returns is its own, writable, and of numbers.
    """
    lines = _run_lines(call)
    base = _viewed_argument(op)
    if base is not None and backend == CPU:
        return [*lines, *_view_lines(op, base, every)]
    returns = op.schema.returns
    if len(returns) != 1 or returns[0].type != TensorType(None) or backend != CPU:
        return [*lines, f"    return _op_finish(_op_r, {every})"]
    tests = ["_op_type(_op_r) is not _op_ndarray"]
    if not is_ufunc:
        tests += [
            "_op_r.base is not None",
            f"_op_references(_op_r) != {UNSHARED}",
            "(_op_r.dtype is not _op_float64 and _op_r.dtype.kind in 'OUSMm')",
        ]
    return [
        *lines,
        f"    if {' or '.join(tests)}:",
        "        if _op_type(_op_r) not in _op_scalars:",
        f"            return _op_finish(_op_r, {every})",
        "        _op_r = _op_asarray(_op_r)  # NumPy returns scalars for arrays without dimensions",
        "    _op_t = _op_blank()",
        "    _op_t.array = _op_r",
        f"    _op_t._keys = {CPU}",
        "    _op_t.autograd_meta = _op_t._view = None",
        "    _op_t._storage = _op_s = _op_Storage()",
        "    _op_s.version = 0",
        "    return _op_t",
    ]


def _viewed_argument(op: AnyOperator) -> str | None:
    """Return the argument that the single result of a differentiable view operator is a view of."""
    returns = op.schema.returns
    if len(returns) != 1 or not isinstance(returns[0].type, TensorType) or not _joins_family(op):
        return None
    names = op.schema.aliased_arguments(0)
    if len(names) != 1 or not isinstance(op.schema.argument(names[0]).type, TensorType):
        return None
    return names[0]


def _view_lines(op: AnyOperator, base: str, every: str) -> Lines:
    """Return the lines that wrap a view of `base`; what is no evident view goes to `finish`."""
    array, local = f"_op_a_{base}", local_name(base)
    return [
        "    _op_b = _op_r.base if _op_type(_op_r) is _op_ndarray else None",
        f"    if _op_b is None or (_op_b is not {array} and _op_b is not {array}.base):",
        f"        return _op_finish(_op_r, {every})",
        f"    _op_v = {local}._view",
        "    if _op_v is None:",
        f"        _op_join({local})",
        f"        _op_v = {local}._view",
        "    _op_w = _op_Record()",
        "    _op_w.family = _op_v.family",
        "    _op_w.epoch = _op_v.epoch",
        f"    _op_w.no_grad = _op_v.no_grad or not _op_current().user & {AUTOGRAD}",
        f"    _op_w.opaque = _op_v.opaque or {_opaque_name(op)!r}",
        "    _op_w.split = None",
        "    _op_t = _op_blank()",
        "    _op_t.array = _op_r",
        f"    _op_t._keys = {local}._keys & {~AUTOGRAD} | {VIEW}",
        "    _op_t.autograd_meta = None",
        f"    _op_t._storage = {local}._storage",
        "    _op_t._view = _op_w",
        "    return _op_t",
    ]


def _opaque_name(op: AnyOperator) -> str:
    """Return the operator's name if its own gradient rule says more than addresses do."""
    if op.gradient_rule is None or op.namespace == "std":
        return ""
    return op.qualname


def _joins_family(op: AnyOperator) -> bool:
    """Return whether views of this operator are differentiable views of their base."""
    rule = op.gradient_rule
    if rule is None or rule.style != "per_argument":
        return True
    return not all(function is None for function in rule.functions.values())


# ---------------------------------------------------------------------- what writes


def _writing_lines(op: AnyOperator, call: str, every: str, backend: int) -> Lines:
    """Return the lines that check destinations, call the kernel, and bump what it wrote."""
    schema = op.schema
    written = [schema.argument(name) for name in schema.mutated_arguments]
    lines = []
    for argument in written:
        local = local_name(argument.name)
        if isinstance(argument.type, TensorType) and backend == CPU:
            lines += [
                f"    _op_f = _op_a_{argument.name}.flags",
                "    if not (_op_f.writeable and _op_f.forc):",
                f"        _op_check({argument.name!r}, {local})",
            ]
        else:
            lines.append(f"    _op_check({argument.name!r}, {local})")
    # Others may have written before they failed; a built-in operator fails before it writes.
    lines += [*_run_lines(call), "    else:" if op.namespace == "std" else "    finally:"]
    if len(written) == 1 and isinstance(written[0].type, TensorType):
        lines.append(f"        _op_s = {local_name(written[0].name)}._storage")
        indent = "        "
    else:
        values = ", ".join(local_name(argument.name) for argument in written)
        lines.append(f"        for _op_s in _op_storages([{values}]):")
        indent = "            "
    lines += [f"{indent}_op_s.version += 1", f"{indent}_op_s._writer = {op.qualname!r}"]
    if schema.is_inplace:
        return [*lines, f"    return {local_name(written[0].name)}"]
    return [*lines, f"    return _op_finish(_op_r, {every})"]


def _written_storages(values: Sequence[Any]) -> list[Storage]:
    """Return the storages of written arguments, each once."""
    return list({id(t._storage): t._storage for t in tensor_leaves(list(values))}.values())


def _check_destination(op: AnyOperator, name: str, value: Any) -> None:
    """Check every tensor of a written argument before anything runs."""
    for tensor in tensor_leaves(value):
        check_destination(op, name, tensor)


def _add_note(op: AnyOperator, entry: KernelEntry, error: BaseException) -> None:
    error.add_note(f"in the {entry.key} kernel of {op.qualname}, {function_site(entry.function)}")


# ---------------------------------------------------------------------- kernels on Tensors


def _tensor_plan(op: AnyOperator, entry: KernelEntry, backend: int, keys: int) -> Plan:
    """Return the plan for a kernel that receives Tensors: it runs below autograd."""
    finisher = ResultFinisher(op, entry, _backend(backend), _joins_family(op))
    kernel = tensor_call(op, entry, keys)
    names = [argument.name for argument in op.schema.arguments]
    written = [(i, name) for i, name in enumerate(names) if name in op.schema.mutated_arguments]
    current, set_state = _state.current, _state.set_state

    def plan(*args: Any) -> Any:
        for i, name in written:
            _check_destination(op, name, args[i])
        state = current()
        if state.handled & BELOW_AUTOGRAD != BELOW_AUTOGRAD:
            set_state(state.replace(handled=state.handled | BELOW_AUTOGRAD))
        try:
            result = kernel(*args)
        except BaseException as error:
            _add_note(op, entry, error)
            raise
        finally:
            set_state(state)
            for storage in _written_storages([args[i] for i, _ in written]):
                storage.version += 1
                storage.writer = op.qualname
        return finisher.finish(result, args)

    return plan
