"""The stage of the key Autograd: record a call as a `GradNode`.

The order of a recorded call: read the edges, check what will be written, save what the rule names
(copies of values about to be overwritten), run the plan below, make the node, attach it. What flows
backwards is decided then. Operators with plain tensors, one plain result and a named rule get
generated code; every other shape of schema takes the general path in `general.py`.

Imports floors 0 to 4, `wrapper.py`, `engine.py`, `family.py`, `general.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ..dispatch.facets import KERNEL, GradientRule
from ..dispatch.gradient_rule import derivative, rule_names
from ..dispatch.keys import ANOMALY, AUTOGRAD, AUTOGRAD_KEY, SAVED_TENSOR_HOOKS, VIEW, key_set_names
from ..dispatch.operator import Operator, Plan
from ..dispatch.plan import python_call
from ..dispatch.source import generate, local_name, tuple_text
from ..errors import AutogradError
from ..schema import OptionalType, TensorType
from ..shapes import TensorSpec
from ..tensor.grad_meta import AutogradMeta, GradNode, NodeKind, move_retained
from ..tensor.tensor import Tensor, blank_tensor
from .anomaly import noting_line
from .family import check_write, rebase
from .general import general_plan, record_view
from .gradients import scaled
from .recorder import missing_rule_message, refuse_missing
from .returned import Argument, spread
from .wrapper import overwritten, recover, recover_output, save, save_copy

__all__ = ["AutogradStage"]

_KEPT: Final = ~(AUTOGRAD | VIEW)


class AutogradStage:
    """Builds the recording part of a plan from the operator's gradient rule."""

    key = AUTOGRAD

    def build(self, op: Operator[..., Any], keys: int, below: Plan | None) -> Plan:
        """Return the plan that records a call; `below` is the rest of the plan."""
        assert below is not None
        plan = self._recording(op, keys, below)
        return noting_line(op, plan) if keys & ANOMALY else plan

    def _recording(self, op: Operator[..., Any], keys: int, below: Plan) -> Plan:
        kernel = op.top(KERNEL, AUTOGRAD_KEY)
        if kernel is not None:
            return python_call(op, kernel.function)
        rule = op.gradient_rule
        if rule is None:
            return _without_rule(op, below)
        if not (op.schema.is_mutable or any(rule.functions.values())):
            return below
        if _is_plain(op) and rule.style != "ctx":
            return _PlainPlan(op, rule, keys, below).build()
        return general_plan(op, rule, below)

    def describe(self, op: Operator[..., Any], keys: int, args: list[Any]) -> list[str]:
        """Return the lines `explain` shows: the gradient rule and where it was registered."""
        from_rule = op.top("gradient rule")
        if from_rule is not None:
            style = from_rule.payload.style.replace("_", " ")
            return [f"records a node; {style} rule registered {from_rule.source}"]
        if op.schema.is_view:
            return ["records a node; gradients follow the addresses of the view"]
        return [f"records a node that raises in backward: {missing_rule_message(op)}"]


def _without_rule(op: Operator[..., Any], below: Plan) -> Plan:
    if op.schema.is_mutable:
        return _refuse_write(op)
    if op.schema.is_view:
        return record_view(op, below)
    return general_plan(op, None, below)


def _refuse_write(op: Operator[..., Any]) -> Plan:
    """Return the plan of a mutating operator without a rule: raise before the kernel runs."""

    def refuse(*args: Any) -> Any:
        raise AutogradError(
            f"{op.qualname} writes to {', '.join(op.schema.mutated_arguments)} and was called with "
            "a tensor that requires grad, but it has no gradient rule; the gradient would be "
            f"silently wrong\n  {missing_rule_message(op)}\n"
            "  or call it under `with oplib.no_grad():`"
        )

    return refuse


def _is_plain(op: Operator[..., Any]) -> bool:
    """Return whether generated code serves: plain or optional tensors in, one plain tensor out."""
    schema = op.schema
    for name in schema.differentiable_arguments:
        kind = schema.argument(name).type
        inner = kind.element if isinstance(kind, OptionalType) else kind
        if not isinstance(inner, TensorType):
            return False
    if len(schema.returns) != 1 or not isinstance(schema.returns[0].type, TensorType):
        return False
    return not schema.is_mutable or schema.is_inplace


class _PlainPlan:
    """Generates the recording plan and the backward of one operator."""

    def __init__(self, op: Operator[..., Any], rule: GradientRule, keys: int, below: Plan) -> None:
        self.op = op
        self.rule = rule
        self.keys = keys
        self.below = below
        schema = op.schema
        self.tensors = list(schema.differentiable_arguments)
        self.locals = {a.name: local_name(a.name) for a in schema.arguments}
        self.written = schema.arguments[0].name if schema.is_mutable else None
        self.meanings = rule_names(schema)
        self.saved = self._saved_names()
        self.names: dict[str, Any] = {
            "_op_below": below,
            "_op_Node": GradNode,
            "_op_Meta": AutogradMeta,
            "_op_save": save,
            "_op_save_copy": save_copy,
            "_op_Spec": TensorSpec.of,
            "_op_blank": blank_tensor,
            "_op_overwritten": overwritten,
            "_op_recover": recover,
            "_op_recover_output": recover_output,
            "_op_check_write": lambda name, value: check_write(op, name, value),
            "_op_rebase": rebase,
            "_op_retain": move_retained,
            "_op_scaled": scaled,
        }

    # ------------------------------------------------------------------ what is saved

    def _saved_names(self) -> list[str]:
        """Return the words to save, in the order of the schema, each once."""
        wanted = {word for needs in self.rule.needs.values() for word in needs}
        keep = ("argument", "spec", "result", "new")
        return [
            word for word, (kind, _) in self.meanings.items() if word in wanted and kind in keep
        ]

    def _users(self, word: str) -> list[str]:
        """Return the tensor arguments whose rules ask for a word (all of them if fused)."""
        if self.rule.style == "fused":
            return self.tensors
        return [name for name, needs in self.rule.needs.items() if word in needs]

    def _condition(self, word: str) -> str:
        return " or ".join(f"_op_m_{name} is not None" for name in self._users(word))

    # ------------------------------------------------------------------ the plan

    def build(self) -> Plan:
        """Return the generated plan."""
        self.names["_op_kind"] = NodeKind(self.op, self._backward())
        every = ", ".join(self.locals.values())
        lines = [f"def plan({every}):"]
        if self.written is not None:
            lines.append(f"    _op_check_write({self.written!r}, {self.locals[self.written]})")
        for name in self.tensors:
            local = self.locals[name]
            given = f"{local} is not None and " if self._is_optional(name) else ""
            lines.append(
                f"    _op_m_{name} = {local}.autograd_meta if {given}{local}._keys & {AUTOGRAD} "
                "else None"
            )
        before = [w for w in self.saved if self.meanings[w][0] in ("argument", "spec")]
        after = [w for w in self.saved if w not in before]
        early = before if self.written is not None else []
        lines += [self._save_line(word) for word in early]
        lines.append(f"    _op_out = _op_below({every})")
        lines += ["    _op_a = _op_out.array", "    _op_d = _op_a.dtype"]
        lines += ["    if _op_d.kind not in 'fcV':", "        return _op_out"]
        lines += [
            self._save_line(word) for word in [*(w for w in before if w not in early), *after]
        ]
        edges = tuple_text([f"_op_m_{name}" for name in self.tensors])
        lines += [
            "    _op_n = _op_Node()",
            "    _op_n.kind = _op_kind",
            f"    _op_n.edges = {edges}",
            f"    _op_n.saved = {tuple_text([f'_op_s_{word}' for word in self.saved])}",
            "    _op_n.hooks = None",
            "    _op_m = _op_Meta()",
            "    _op_m.grad_node = _op_n",
            "    _op_m.position = 0",
            "    _op_m.retained = None",
            "    _op_n.shapes = _op_m.shape = _op_a.shape",
            "    _op_n.dtypes = _op_m.dtype = _op_d",
            *self._attach_lines(),
            f"    _op_out._keys |= {AUTOGRAD}",
        ]
        if self.written is not None:
            lines.append("    if _op_out._view is not None: _op_rebase(_op_out)")
        lines.append("    return _op_out")
        what = f"autograd plan {key_set_names(self.keys)}"
        return generate(self.op, what, "plan", lines, self.names)  # type: ignore[no-any-return]

    def _attach_lines(self) -> list[str]:
        """Return the lines that give the result its record; retain_grads follows the handle."""
        if self.written is None:
            return ["    _op_out.autograd_meta = _op_m"]
        return [
            "    _op_o = _op_out.autograd_meta",
            "    if _op_o is not None and _op_o.retained is not None:",
            "        _op_retain(_op_m, _op_o)",
            "    _op_out.autograd_meta = _op_m",
        ]

    def _is_optional(self, name: str) -> bool:
        return isinstance(self.op.schema.argument(name).type, OptionalType)

    def _save_line(self, word: str) -> str:
        """Return the line that saves one word, if some rule that will run needs it."""
        kind, target = self.meanings[word]
        condition = self._condition(word)
        if kind == "argument":
            if target not in self.tensors:
                return f"    _op_s_{word} = {self.locals[target]}"
            value = self._saved_argument(target)
        elif kind == "spec":
            local = self.locals[target]
            value = f"_op_Spec({local})"
            if self._is_optional(target):
                condition = f"{local} is not None and ({condition})"
        else:
            value = self._saved_tensor("_op_out")
        return f"    _op_s_{word} = {value} if {condition} else None"

    def _saved_argument(self, name: str) -> str:
        local = self.locals[name]
        if name == self.written:
            return f"_op_save_copy({local})"
        text = self._saved_tensor(local)
        if self.written is not None:
            shared = f"{local}._storage is {self.locals[self.written]}._storage"
            text = f"(_op_save_copy({local}) if {shared} else {text})"
        return f"({text} if {local} is not None else None)" if self._is_optional(name) else text

    def _saved_tensor(self, local: str) -> str:
        if self.keys & SAVED_TENSOR_HOOKS:
            return f"_op_save({local})"
        storage = f"{local}._storage"
        return f"({local}.array, {storage}, {storage}.version, {local}._keys & {_KEPT})"

    # ------------------------------------------------------------------ the backward

    def _backward(self) -> Any:
        """Generate ``backward(node, saved, grad)``."""
        lines = ["def backward(node, saved, grad):"]
        edges = "".join(f"_op_m_{name}, " for name in self.tensors)
        lines.append(f"    ({edges}) = node.edges")
        if self.saved:
            lines.append(f"    ({''.join(f'_op_s_{word}, ' for word in self.saved)}) = saved")
        for word in self._arguments_in_place():
            lines += self._recover_lines(word)
        if self.rule.style == "fused":
            lines += self._fused_lines()
        else:
            lines += [f"    return {tuple_text([self._gradient(name) for name in self.tensors])}"]
        return generate(self.op, f"backward {self.keys}", "backward", lines, self.names)

    def _arguments_in_place(self) -> list[str]:
        """Return the saved tensor arguments that are recovered without a call (none if packed)."""
        if self.keys & SAVED_TENSOR_HOOKS:
            return []
        return [
            word
            for word in self.saved
            if self.meanings[word][0] == "argument" and self.meanings[word][1] in self.tensors
        ]

    def _recover_lines(self, word: str) -> list[str]:
        """Return the lines that do what `recover` does, which costs a third of calling it."""
        _, name = self.meanings[word]
        return [
            f"    _op_v_{word} = None",
            f"    if _op_s_{word} is not None:",
            f"        _op_a, _op_st, _op_ver, _op_k = _op_s_{word}",
            "        if _op_st.version != _op_ver:",
            f"            raise _op_overwritten(_op_st, _op_ver, node, 'argument `{name}`')",
            f"        _op_v_{word} = _op_t = _op_blank()",
            "        _op_t.array = _op_a",
            "        _op_t._storage = _op_st",
            "        _op_t._view = None",
            f"        _op_t.autograd_meta = _op_m_{name}",
            f"        _op_t._keys = _op_k if _op_m_{name} is None else _op_k | {AUTOGRAD}",
        ]

    def _gradient(self, name: str) -> str:
        """Return the expression for the gradient of one argument."""
        if name not in self.rule.functions:
            self.names["_op_missing"] = lambda argument: refuse_missing(self.op, argument)
            return f"_op_missing({name!r}) if _op_m_{name} is not None else None"
        function = self.rule.functions[name]
        if function is None:
            return "None"
        if isinstance(function, derivative):
            self.names[f"_op_rule_{name}"] = function.function
            later = self.tensors[self.tensors.index(name) + 1 :]
            last = " and ".join(f"_op_m_{other} is None" for other in later) or "True"
            own = [word for word in self.rule.needs[name] if word != "grad"]
            text = f"_op_scaled(grad, {self._call(name, own)}, {last})"
        else:
            self.names[f"_op_rule_{name}"] = function
            text = self._call(name, self.rule.needs[name])
        return f"{text} if _op_m_{name} is not None else None"

    def _call(self, name: str, words: Sequence[str]) -> str:
        passed = ", ".join(f"{word}={self._value(word)}" for word in words)
        return f"_op_rule_{name}({passed})"

    def _value(self, word: str) -> str:
        """Return the expression that gives a rule what it asks for."""
        kind, target = self.meanings[word]
        if kind == "grad":
            return "grad"
        if kind == "grads":
            return "(grad,)"
        if kind == "needs":
            needs = [
                f"_op_m_{a.name} is not None" if a.name in self.tensors else "False"
                for a in self.op.schema.arguments
            ]
            return tuple_text(needs)
        if word in self._arguments_in_place():
            return f"_op_v_{word}"
        if kind == "argument" and target in self.tensors:
            saved = f"_op_recover(_op_s_{word}, node, _op_m_{target}, 'argument `{target}`')"
            optional = self._is_optional(target)
            return f"(None if _op_s_{word} is None else {saved})" if optional else saved
        if kind in ("result", "new"):
            return f"_op_recover_output(_op_s_{word}, node, 0, 'the result')"
        return f"_op_s_{word}"

    def _fused_lines(self) -> list[str]:
        """Return the lines that run one rule for all arguments and spread what it returns."""
        self.names["_op_rule_"] = self.rule.functions[""]
        self.names["_op_spread"] = _spreading(self.op)
        edges = tuple_text([f"_op_m_{name}" for name in self.tensors])
        return [f"    return _op_spread({self._call('', self.rule.needs[''])}, {edges})"]


def _spreading(op: Operator[..., Any]) -> Callable[..., Sequence[Any]]:
    """Return the function that makes a gradient or None per tensor of what a fused rule returns."""
    tensors = op.schema.differentiable_arguments
    names = [argument.name for argument in op.schema.arguments]
    arguments = [Argument.plain(name, name in tensors) for name in names]
    title = f"GradNode_{op.qualname}"

    def spread_plain(result: Any, edges: tuple[Any, ...]) -> Sequence[Any]:
        if type(result) is Tensor and len(edges) == 1:
            return (result,)
        return spread(result, arguments, [edge is not None for edge in edges], title)

    return spread_plain
