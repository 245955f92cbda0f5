"""The backend stage: from Tensors to a kernel on arrays and back.

For each operator and key set one plan is generated: it takes the arrays out, calls the kernel with
every argument (keyword-only ones by keyword), checks the result, and wraps it. Written arguments
are checked before the kernel runs and their storages are bumped whether it succeeds or not.

Imports floors 0 to 4, `results.py`. Read next: `numpy.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .. import _state
from .._text import function_site
from .._tree import tree_map
from ..dispatch.bind import describe_call, may_hold_tensors, tensor_leaves
from ..dispatch.facets import KernelEntry, Registration
from ..dispatch.interpreter import BELOW_AUTOGRAD
from ..dispatch.keys import AUTOGRAD, BACKENDS, CPU, VIEW, WEAK, key_set_names
from ..dispatch.operator import Operator, Plan
from ..dispatch.plan import backend_of, python_call, resolve
from ..dispatch.source import generate, local_name
from ..errors import DispatchError
from ..schema import Argument, ListType, OptionalType, TensorType
from ..tensor.grad_meta import ViewRecord
from ..tensor.storage import Storage, new_storage
from ..tensor.tensor import Tensor, join_family
from ..tensor.writes import check_destination
from .entries import kernel_function
from .results import ResultFinisher

__all__ = ["ARRAY_CLASSES", "BackendStage"]

ARRAY_CLASSES: Final[dict[int, type]] = {}
"""Backend bit -> the backend's array class."""

_new: Final = object.__new__


class BackendStage:
    """The stage of every backend key."""

    key = BACKENDS

    def build(self, op: Operator[..., Any], keys: int, below: Plan | None) -> Plan:
        """Return the plan that runs the kernel for a backend."""
        backend = backend_of(keys)
        found = resolve(op, backend)
        registration = found.registration
        if registration is None:
            return _missing_kernel(op, backend)
        entry: KernelEntry = registration.payload
        if entry.convention == "tensor":
            return _tensor_plan(op, entry, backend)
        return _array_plan(op, found.registrations, backend, keys)

    def describe(self, op: Operator[..., Any], keys: int, args: list[Any]) -> list[str]:
        """Return the lines `explain` shows: the backend, the choice, or what is missing."""
        backend = backend_of(keys)
        found = resolve(op, backend)
        name = key_set_names(backend).strip("{}")
        if found.kind == "missing":
            return _missing_text(op, backend, args).splitlines()
        lines = [f"{name}: {found.kind}, {len(found.registrations)} registered"]
        for registration in found.registrations:
            entry = registration.payload
            conditions = " (conditional)" if entry.is_conditional else ""
            lines.append(
                f"  provider {entry.provider!r} priority {entry.priority}{conditions}, "
                f"{registration.source}"
            )
        return lines


# ---------------------------------------------------------------------- kernels on arrays


def _array_plan(
    op: Operator[..., Any], registrations: Sequence[Registration], backend: int, keys: int
) -> Plan:
    """Generate the plan for a kernel that receives the backend's arrays."""
    entry: KernelEntry = registrations[0].payload
    array_type = ARRAY_CLASSES[backend]
    finisher = ResultFinisher(op, entry, array_type, _joins_family(op))
    locals_ = [local_name(argument.name) for argument in op.schema.arguments]
    names: dict[str, Any] = {
        "_op_kernel": kernel_function(op, registrations),
        "_op_note": lambda error: _add_note(op, entry, error),
        "_op_number": lambda tensor: tensor.array.item(),
        "_op_unwrap": _unwrap_deep,
        "_op_type": array_type,
        "_op_finish": finisher.finish,
        "_op_array": finisher.array,
        "_op_new": _new,
        "_op_Tensor": Tensor,
        "_op_Storage": Storage,
        "_op_storage": new_storage,
        "_op_check": lambda name, value: _check_destination(op, name, value),
        "_op_storages": _written_storages,
        "_op_current": _state.current,
        "_op_join": join_family,
        "_op_Record": ViewRecord,
    }
    taken, call = _kernel_call(op, keys)
    lines = [f"def plan({', '.join(locals_)}):", *taken]
    every = f"({', '.join(locals_)}{',' if len(locals_) == 1 else ''})"
    if op.schema.is_mutable:
        lines += _writing_lines(op, call, every)
    else:
        lines += _functional_lines(op, call, every, backend)
    name = f"plan {key_set_names(keys)}"
    return generate(op, name, "plan", lines, names)  # type: ignore[no-any-return]


def _kernel_call(op: Operator[..., Any], keys: int) -> tuple[list[str], str]:
    """Return the lines that take arrays out of the arguments, and the call of the kernel."""
    lines, passed = [], []
    for argument in op.schema.arguments:
        local = local_name(argument.name)
        source = _array_text(argument, local, keys)
        if source != local:
            lines.append(f"    _op_a_{argument.name} = {source}")
            local = f"_op_a_{argument.name}"
        passed.append(f"{argument.name}={local}" if argument.kwarg_only else local)
    return lines, f"_op_kernel({', '.join(passed)})"


def _array_text(argument: Argument, local: str, keys: int) -> str:
    """Return the expression for what the kernel receives for one argument."""
    kind = argument.type
    one = "{0}.array"
    if keys & WEAK:
        one = f"_op_number({{0}}) if {{0}}._keys & {WEAK} else {{0}}.array"
    if isinstance(kind, TensorType):
        return one.format(local)
    if isinstance(kind, OptionalType) and isinstance(kind.element, TensorType):
        return f"None if {local} is None else ({one.format(local)})"
    if isinstance(kind, ListType) and isinstance(kind.element, TensorType):
        return f"[{one.format('_op_t')} for _op_t in {local}]"
    if not may_hold_tensors(kind):
        return local
    return f"_op_unwrap({local})"


def _functional_lines(op: Operator[..., Any], call: str, every: str, backend: int) -> list[str]:
    """Return the lines that call a kernel which writes nothing, and wrap its result."""
    lines = [
        "    try:",
        f"        _op_r = {call}",
        "    except BaseException as _op_error:",
        "        _op_note(_op_error)",
        "        raise",
    ]
    returns = op.schema.returns
    base = _viewed_argument(op)
    if base is not None and backend == CPU:
        return [*lines, *_view_lines(op, base, every)]
    plain = len(returns) == 1 and returns[0].type == TensorType(None)
    if not plain or backend != CPU:
        return [*lines, f"    return _op_finish(_op_r, {every})"]
    same = "".join(
        f" or _op_r is _op_a_{a.name}"
        for a in op.schema.arguments
        if isinstance(a.type, TensorType)
    )
    if any(
        may_hold_tensors(a.type) and not isinstance(a.type, TensorType) for a in op.schema.arguments
    ):
        same = " or True"
    return [
        *lines,
        f"    if type(_op_r) is not _op_type or _op_r.base is not None{same}:",
        f"        _op_r = _op_array(_op_r, {every})",
        "    _op_t = _op_new(_op_Tensor)",
        "    _op_t.array = _op_r",
        f"    _op_t._keys = {CPU}",
        "    _op_t.autograd_meta = _op_t._view = None",
        "    _op_t._storage = _op_s = _op_new(_op_Storage)",
        "    _op_s.version = 0",
        "    _op_s.owner = _op_s.writer = None",
        "    return _op_t",
    ]


def _viewed_argument(op: Operator[..., Any]) -> str | None:
    """Return the argument that the single result of a differentiable view operator is a view of."""
    returns = op.schema.returns
    if len(returns) != 1 or not isinstance(returns[0].type, TensorType) or not _joins_family(op):
        return None
    names = op.schema.aliased_arguments(0)
    if len(names) != 1 or not isinstance(op.schema.argument(names[0]).type, TensorType):
        return None
    return names[0]


def _view_lines(op: Operator[..., Any], base: str, every: str) -> list[str]:
    """Return the lines that wrap a view of `base`; what is no evident view goes to `finish`."""
    array, local = f"_op_a_{base}", local_name(base)
    return [
        "    _op_b = _op_r.base if type(_op_r) is _op_type else None",
        f"    if _op_b is None or (_op_b is not {array} and _op_b is not {array}.base):",
        f"        return _op_finish(_op_r, {every})",
        f"    _op_v = {local}._view",
        "    if _op_v is None:",
        f"        _op_join({local})",
        f"        _op_v = {local}._view",
        "    _op_w = _op_new(_op_Record)",
        "    _op_w.family = _op_v.family",
        "    _op_w.epoch = _op_v.epoch",
        f"    _op_w.no_grad = _op_v.no_grad or not _op_current().user & {AUTOGRAD}",
        f"    _op_w.opaque = _op_v.opaque or {_opaque_name(op)!r}",
        "    _op_w.split = None",
        "    _op_t = _op_new(_op_Tensor)",
        "    _op_t.array = _op_r",
        f"    _op_t._keys = {local}._keys & {~AUTOGRAD} | {VIEW}",
        "    _op_t.autograd_meta = None",
        f"    _op_t._storage = {local}._storage",
        "    _op_t._view = _op_w",
        "    return _op_t",
    ]


def _opaque_name(op: Operator[..., Any]) -> str:
    """Return the operator's name if its own gradient rule says more than addresses do."""
    if op.gradient_rule is None or op.namespace == "std":
        return ""
    return op.qualname


def _writing_lines(op: Operator[..., Any], call: str, every: str) -> list[str]:
    """Return the lines that check destinations, call the kernel, and bump what it wrote."""
    schema = op.schema
    written = [schema.argument(name) for name in schema.mutated_arguments]
    single = len(written) == 1 and isinstance(written[0].type, TensorType)
    lines = []
    for argument in written:
        local = local_name(argument.name)
        if isinstance(argument.type, TensorType):
            array = f"_op_a_{argument.name}"
            lines += [
                f"    _op_f = getattr({array}, 'flags', None)",
                "    if _op_f is None or not (_op_f.writeable and _op_f.forc):",
                f"        _op_check({argument.name!r}, {local})",
            ]
        else:
            lines.append(f"    _op_check({argument.name!r}, {local})")
    lines += ["    try:", f"        _op_r = {call}"]
    lines += [
        "    except BaseException as _op_error:",
        "        _op_note(_op_error)",
        "        raise",
    ]
    if single:
        target = local_name(written[0].name)
        lines += [
            "    finally:",
            f"        _op_s = {target}._storage",
            "        _op_s.version += 1",
            f"        _op_s.writer = {op.qualname!r}",
        ]
    else:
        values = ", ".join(local_name(argument.name) for argument in written)
        lines += [
            "    finally:",
            f"        for _op_s in _op_storages([{values}]):",
            "            _op_s.version += 1",
            f"            _op_s.writer = {op.qualname!r}",
        ]
    if schema.is_inplace:
        return [*lines, f"    return {local_name(written[0].name)}"]
    return [*lines, f"    return _op_finish(_op_r, {every})"]


def _unwrap_deep(value: Any) -> Any:
    """Return a nested argument with arrays (or numbers, for weak ones) in place of tensors."""

    def unwrap(leaf: Any) -> Any:
        if not hasattr(leaf, "_keys"):
            return leaf
        return leaf.array.item() if leaf._keys & WEAK else leaf.array

    return tree_map(unwrap, value)


def _written_storages(values: list[Any]) -> list[Storage]:
    """Return the storages of written arguments, each once."""
    return list({id(t._storage): t._storage for t in tensor_leaves(values)}.values())


def _check_destination(op: Operator[..., Any], name: str, value: Any) -> None:
    """Check every tensor of a written argument."""
    for tensor in tensor_leaves([value]):
        check_destination(op, name, tensor)


def _joins_family(op: Operator[..., Any]) -> bool:
    """Return whether views of this operator are differentiable views of their base."""
    rule = op.gradient_rule
    if rule is None or rule.style != "per_argument":
        return True
    return not all(function is None for function in rule.functions.values())


def _add_note(op: Operator[..., Any], entry: KernelEntry, error: BaseException) -> None:
    error.add_note(f"in the {entry.key} kernel of {op.qualname}, {function_site(entry.function)}")


# ---------------------------------------------------------------------- kernels on Tensors


def _tensor_plan(op: Operator[..., Any], entry: KernelEntry, backend: int) -> Plan:
    """Return the plan for a kernel that receives Tensors: it runs below autograd."""
    finisher = ResultFinisher(op, entry, ARRAY_CLASSES[backend], _joins_family(op))
    call = python_call(op, entry.function)
    written = [
        i for i, a in enumerate(op.schema.arguments) if a.name in op.schema.mutated_arguments
    ]

    def plan(*args: Any) -> Any:
        for i in written:
            _check_destination(op, op.schema.arguments[i].name, args[i])
        state = _state.current()
        try:
            with _state.enter(state.replace(handled=state.handled | BELOW_AUTOGRAD)):
                result = call(*args)
        except BaseException as error:
            _add_note(op, entry, error)
            raise
        finally:
            for storage in _written_storages([args[i] for i in written]):
                storage.version += 1
                storage.writer = op.qualname
        return finisher.finish(result, args)

    return plan


# ---------------------------------------------------------------------- nothing serves the call


def _missing_kernel(op: Operator[..., Any], backend: int) -> Plan:
    def missing(*args: Any) -> Any:
        raise DispatchError(_missing_text(op, backend, list(args)))

    return missing


def _missing_text(op: Operator[..., Any], backend: int, args: list[Any]) -> str:
    """Return the whole message for a missing kernel."""
    key = key_set_names(backend).strip("{}")
    device = next((t.device.type for t in tensor_leaves(args)), "cpu")
    have = [
        f"{r.key or 'Meta'}  {r.source}"
        for r in op.registrations
        if r.facet in ("kernel", "fake rule")
    ]
    lines = [
        f"{op.qualname} has no kernel for {key}",
        f"  called as   {describe_call(op, args)}",
        f"  registered  {' · '.join(have) or 'nothing'}",
        f"  defined     {op.definition_source}",
        f'  add one:    @oplib.register_kernel("{op.qualname}", "{device}")',
    ]
    return "\n".join(lines)
