"""Recording of every shape of schema: lists, optionals, containers, several outputs, ctx rules.

`stage.py` generates code for the common shape; this path walks the call instead. It serves named
and ctx rules, operators without a rule (whose node raises, or uses a rule registered meanwhile), and
views without a rule.

Imports floors 0 to 4, `wrapper.py`, `engine.py`, `family.py`, `returned.py`, `context.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from .. import _state
from .._tree import leaves, tree_map
from ..dispatch.bind import tensor_leaves
from ..dispatch.facets import GradientRule
from ..dispatch.gradient_rule import rule_names, written_unreturned
from ..dispatch.keys import AUTOGRAD
from ..dispatch.operator import Operator, Plan
from ..dtypes import is_inexact
from ..errors import AutogradError
from ..shapes import TensorSpec
from ..tensor.grad_meta import AutogradMeta, NodeKind, WideGradNode, move_retained, new_meta
from ..tensor.tensor import Tensor
from .context import NOTHING_KEPT, OperatorContext
from .family import check_write, derive_from, rebase
from .gradients import zeros_for
from .returned import Argument, needs_of, spread
from .wrapper import PackedTensor, TensorWrapper, recover, recover_output, save, save_copy

__all__ = ["attach", "general_plan", "missing_rule_message", "record_view", "wide_node"]

_new: Final = object.__new__


def missing_rule_message(op: Operator[..., Any]) -> str:
    """Return the call that registers a gradient rule for `op`."""
    argument = next(iter(op.schema.differentiable_arguments), "x")
    return (
        f'register one: oplib.register_vjp("{op.qualname}", {argument}=lambda grad, ...: ...)  '
        f"(defined {op.definition_source})"
    )


# ---------------------------------------------------------------------- the plan


def general_plan(op: Operator[..., Any], rule: GradientRule | None, below: Plan) -> Plan:
    """Return the recording plan of any operator."""
    recorder = _Recorder(op, rule)
    written = [
        (i, a.name)
        for i, a in enumerate(op.schema.arguments)
        if a.name in op.schema.mutated_arguments
    ]

    def plan(*args: Any) -> Any:
        call = _Call(op, args)
        for i, name in written:
            for tensor in tensor_leaves([args[i]]):
                check_write(op, name, tensor)
        words = recorder.words(call)
        saved = {word: recorder.save_argument(call, word) for word in words if recorder.early(word)}
        result = below(*args)
        outputs, layout = _outputs(op, args, result)
        if not any(tensor is not None and is_inexact(tensor.dtype) for tensor in outputs):
            return result
        for word in words:
            if word not in saved:
                saved[word] = recorder.save_result(call, word, result)
        node = wide_node(recorder.kind, call.edges, call.layout, outputs, layout)
        recorder.fill(node, call, saved, args, result, outputs)
        attach(node, outputs, [t for i, _ in written for t in tensor_leaves([args[i]])])
        return result

    return plan


class _Call:
    """The tensors of one call: edges, their grouping by argument, and what needs a gradient."""

    __slots__ = (
        "arguments",
        "edges",
        "first_edge",
        "inputs",
        "layout",
        "values",
        "written_storages",
    )

    def __init__(self, op: Operator[..., Any], args: Sequence[Any]) -> None:
        tensors = set(op.schema.differentiable_arguments)
        self.values = {a.name: v for a, v in zip(op.schema.arguments, args, strict=True)}
        written = [self.values[name] for name in op.schema.mutated_arguments]
        self.written_storages = {id(t._storage) for t in tensor_leaves(written)}
        self.inputs: list[Tensor] = []
        self.arguments: list[Argument] = []
        self.first_edge: dict[str, int] = {}
        layout: list[int | None] = []
        for argument, value in zip(op.schema.arguments, args, strict=True):
            name, start = argument.name, len(self.inputs)
            self.arguments.append(Argument(name, value, self.inputs, name in tensors))
            if name in tensors:
                self.first_edge[name] = start
                count = len(self.inputs) - start
                layout.append(None if isinstance(value, Tensor) else count)
        self.layout = tuple(layout)
        self.edges = tuple(t.autograd_meta if t._keys & AUTOGRAD else None for t in self.inputs)

    def needs(self, name: str) -> bool:
        """Return whether any tensor of an argument needs a gradient."""
        names = list(self.first_edge)
        start = self.first_edge[name]
        after = names.index(name) + 1
        end = self.first_edge[names[after]] if after < len(names) else len(self.edges)
        return any(edge is not None for edge in self.edges[start:end])

    def needs_input_grad(self) -> tuple[Any, ...]:
        """Return, per argument, which of its tensors need a gradient."""
        flat = iter([edge is not None for edge in self.edges])
        return tuple(
            needs_of(argument.structure, flat) if argument.tensor else False
            for argument in self.arguments
        )


def _outputs(
    op: Operator[..., Any], args: Sequence[Any], result: Any
) -> tuple[list[Tensor | None], tuple[int | None, ...]]:
    """Return the output tensors of a call, flattened, and how they are grouped.

    After the returns come the written arguments that no return is.
    """
    returns = op.schema.returns
    values = [result] if len(returns) == 1 else list(result or ())
    given = {a.name: value for a, value in zip(op.schema.arguments, args, strict=True)}
    values += [given[name] for name in written_unreturned(op.schema)]
    flat: list[Tensor | None] = []
    layout: list[int | None] = []
    for value in values:
        if isinstance(value, Tensor):
            layout.append(None)
            flat.append(value)
        else:
            found = tensor_leaves([value])
            layout.append(len(found))
            flat += found
    return flat, tuple(layout)


def wide_node(
    kind: NodeKind,
    edges: tuple[AutogradMeta | None, ...],
    inputs: tuple[int | None, ...],
    outputs: Sequence[Tensor | None],
    layout: tuple[int | None, ...],
) -> WideGradNode:
    """Return a node for a call with any number of outputs."""
    node: WideGradNode = _new(WideGradNode)
    node.kind = kind
    node.edges = edges
    node.saved = ()
    node.hooks = None
    node.shapes = tuple(t.shape if t is not None else () for t in outputs)
    node.dtypes = tuple(t.dtype if t is not None else None for t in outputs)
    node.input_layout = inputs
    node.output_layout = layout
    return node


def attach(
    node: WideGradNode, outputs: Sequence[Tensor | None], written: Sequence[Tensor] = ()
) -> None:
    """Give every inexact output its record, and rebase the families of written ones."""
    rewritten = {id(tensor) for tensor in written}
    for position, tensor in enumerate(outputs):
        if tensor is None or not is_inexact(tensor.dtype):
            continue
        meta = new_meta(node, position, tensor.shape, tensor.dtype)
        before = tensor.autograd_meta
        if before is not None and before.retained is not None and id(tensor) in rewritten:
            move_retained(meta, before)
        tensor.autograd_meta = meta
        tensor._keys |= AUTOGRAD
        if id(tensor) in rewritten and tensor._view is not None:
            rebase(tensor)


# ---------------------------------------------------------------------- rules


class _Recorder:
    """What is saved for one operator's rule, and how the rule is run in backward."""

    def __init__(self, op: Operator[..., Any], rule: GradientRule | None) -> None:
        self.op = op
        self.rule = rule
        self.meanings = rule_names(op.schema)
        self.kind = NodeKind(op, self._backward)

    # ------------------------------------------------------------------ forward

    def words(self, call: _Call) -> list[str]:
        """Return the words to save for this call."""
        if self.rule is None:
            names = [a.name for a in self.op.schema.arguments]
            return [*names, *(w for w, (kind, _) in self.meanings.items() if kind == "result")]
        wanted = {
            word
            for name, needs in self.rule.needs.items()
            if not name or call.needs(name)
            for word in needs
        }
        keep = ("argument", "spec", "result", "new")
        return [w for w, (kind, _) in self.meanings.items() if w in wanted and kind in keep]

    def early(self, word: str) -> bool:
        """Return whether a word is saved before the kernel runs."""
        return self.meanings[word][0] in ("argument", "spec")

    def save_argument(self, call: _Call, word: str) -> Any:
        """Return the record of an argument (a copy of what is about to be overwritten)."""
        kind, name = self.meanings[word]
        value = call.values[name]
        if kind == "spec":
            return tree_map(lambda t: TensorSpec.of(t) if isinstance(t, Tensor) else t, value)
        written = call.written_storages
        def keep(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return save_copy(leaf) if id(leaf._storage) in written else save(leaf)

        return tree_map(keep, value)

    def save_result(self, call: _Call, word: str, result: Any) -> Any:
        """Return the record of a return, or of the new value of a written argument."""
        kind, target = self.meanings[word]
        if kind == "new":
            value = call.values[target]
        else:
            value = result if len(self.op.schema.returns) == 1 else result[target]
        return tree_map(lambda t: save(t) if isinstance(t, Tensor) else t, value)

    def fill(
        self,
        node: WideGradNode,
        call: _Call,
        saved: dict[str, Any],
        args: Sequence[Any],
        result: Any,
        outputs: list[Tensor | None],
    ) -> None:
        """Put what backward needs into the node."""
        context, kept = None, NOTHING_KEPT
        if self.rule is not None and self.rule.style == "ctx":
            context = OperatorContext()
            context._ctx_needs = call.needs_input_grad()
            _set_up(self.op, self.rule, context, args, result)
            kept = context._ctx_attach(node, call.inputs, outputs)
        node.saved = (saved, call.arguments, call.needs_input_grad(), context, kept)

    # ------------------------------------------------------------------ backward

    def _backward(
        self, node: WideGradNode, kept: tuple[Any, ...], incoming: list[Tensor | None]
    ) -> list[Any]:
        saved, arguments, needs, context, _ = kept
        rule = self.rule if self.rule is not None else self.op.gradient_rule
        if rule is None:
            raise AutogradError(f"{self.op.qualname} has no gradient rule\n  {missing_rule_message(self.op)}")
        values = _Values(self, node, incoming, saved, needs)
        needed = [edge is not None for edge in node.edges]
        if rule.style == "ctx":
            if context is None:
                context = values.late_context(rule)
            gradients = values.per_return(context.materialize_grads)
            result = rule.functions[""](context, *gradients)  # type: ignore[misc]
        elif rule.style == "fused":
            result = values.run(rule, "", rule.materialize_grads)
        else:
            result = self._per_argument(rule, values, arguments, node)
        return spread(result, arguments, needed, node.name())

    def _per_argument(
        self,
        rule: GradientRule,
        values: _Values,
        arguments: Sequence[Argument],
        node: WideGradNode,
    ) -> dict[str, Any]:
        result: dict[str, Any] = {}
        position = 0
        for argument in arguments:
            if not argument.tensor:
                continue
            count = sum(1 for leaf in leaves(argument.structure) if leaf is True)
            needed = any(edge is not None for edge in node.edges[position : position + count])
            position += count
            if not needed:
                result[argument.name] = None
            elif argument.name not in rule.functions:
                raise AutogradError(
                    f"{self.op.qualname} has no gradient rule for argument `{argument.name}`\n"
                    f"  register one, or {argument.name}=None if it is not differentiable"
                )
            else:
                function = rule.functions[argument.name]
                result[argument.name] = (
                    None if function is None else values.run(rule, argument.name, True)
                )
        return result


class _Values:
    """What one backward call can give its rule."""

    def __init__(
        self,
        recorder: _Recorder,
        node: WideGradNode,
        incoming: list[Tensor | None],
        saved: dict[str, Any],
        needs: tuple[Any, ...],
    ) -> None:
        self.recorder = recorder
        self.node = node
        self.incoming = incoming
        self.saved = saved
        self.needs = needs

    def per_return(self, materialize: bool) -> list[Any]:
        """Return one value per return (and unreturned written argument): gradient, list, None."""
        like = next(gradient for gradient in self.incoming if gradient is not None)
        values: list[Any] = []
        position = 0
        for length in self.node.layout or (None,) * self.node.width:
            count = 1 if length is None else length
            group = [self._gradient(position + i, like, materialize) for i in range(count)]
            values.append(group[0] if length is None else (group or None))
            position += count
        return values

    def _gradient(self, position: int, like: Tensor, materialize: bool) -> Tensor | None:
        gradient = self.incoming[position]
        if gradient is None and materialize:
            return zeros_for(self.node, position, like)
        return gradient

    def run(self, rule: GradientRule, name: str, materialize: bool) -> Any:
        """Run one function of a named rule with what it asks for."""
        function = rule.functions[name]
        assert function is not None
        words = {}
        for word in rule.needs[name]:
            words[word] = self._word(word, materialize and word not in rule.optional)
        return function(**words)

    def _word(self, word: str, materialize: bool) -> Any:
        kind, target = self.recorder.meanings[word]
        if kind == "grad":
            return self.per_return(materialize)[target]
        if kind == "grads":
            return tuple(self.per_return(materialize))
        if kind == "needs":
            return self.needs
        if kind == "argument":
            return self.argument(word, target)
        if kind == "spec":
            return self._spec(word, target)
        return self.result(word, kind, target)

    def argument(self, word: str, name: str) -> Any:
        """Return a saved argument with the history its edges have."""
        names = self.recorder.op.schema.differentiable_arguments
        slot = names.index(name) if name in names else None
        edges = iter(self._edges_of(slot) if slot is not None else ())
        return _recover_tree(
            self.saved[word], lambda record: recover(record, self.node, next(edges), f"argument `{name}`")
        )

    def _edges_of(self, slot: int) -> Iterator[AutogradMeta | None]:
        layout = self.node.inputs or ()
        start = sum(1 if n is None else n for n in layout[:slot])
        count = layout[slot]
        return iter(self.node.edges[start : start + (1 if count is None else count)])

    def _spec(self, word: str, name: str) -> Any:
        if word in self.saved:
            return self.saved[word]
        value = self.argument(name, name)
        return tree_map(lambda t: TensorSpec.of(t) if isinstance(t, Tensor) else t, value)

    def result(self, word: str, kind: str, target: Any) -> Any:
        """Return a saved result with its own history."""
        position = self._first_position(kind, target)
        counter = iter(range(position, self.node.width))
        return _recover_tree(
            self.saved[word],
            lambda record: recover_output(record, self.node, next(counter), f"result `{word}`"),
        )

    def _first_position(self, kind: str, target: Any) -> int:
        schema = self.recorder.op.schema
        if kind == "new":
            returned = [schema.returned_argument(i) for i in range(len(schema.returns))]
            unreturned = written_unreturned(schema)
            slot = (
                returned.index(target)
                if target in returned
                else len(returned) + unreturned.index(target)
            )
        else:
            slot = target
        layout = self.node.layout or ()
        return sum(1 if n is None else n for n in layout[:slot])

    def late_context(self, rule: GradientRule) -> OperatorContext:
        """Return the ctx of a rule that was registered after the forward call."""
        op = self.recorder.op
        args = [self.argument(a.name, a.name) for a in op.schema.arguments]
        names = [w for w, (kind, _) in self.recorder.meanings.items() if kind == "result"]
        results = [self.result(word, *self.recorder.meanings[word]) for word in names]
        result = results[0] if len(results) == 1 else tuple(results)
        context = OperatorContext()
        context._ctx_needs = self.needs
        _set_up(op, rule, context, args, result)
        return context


def _recover_tree(tree: Any, back: Callable[[Any], Any]) -> Any:
    """Return a saved value with its records recovered, in order."""
    if isinstance(tree, TensorWrapper | PackedTensor):
        return back(tree)
    if isinstance(tree, list):
        return [_recover_tree(element, back) for element in tree]
    if isinstance(tree, tuple):
        return tuple([_recover_tree(element, back) for element in tree])
    if isinstance(tree, dict):
        return {key: _recover_tree(element, back) for key, element in tree.items()}
    return tree


def _set_up(
    op: Operator[..., Any],
    rule: GradientRule,
    context: OperatorContext,
    args: Sequence[Any],
    result: Any,
) -> None:
    """Call ``setup_context`` with grad off, by name where its parameters have these names."""
    function = rule.setup_context
    if function is None:
        return
    count = len(op.schema.positional)
    given: dict[str, Any] = {"ctx": context, "inputs": tuple(args[:count]), "output": result}
    names = _parameter_names(function)
    keyword_only = {a.name: v for a, v in zip(op.schema.keyword_only, args[count:], strict=True)}
    extra = {"keyword_only_inputs": keyword_only} if "keyword_only_inputs" in names else {}
    state = _state.current()
    with _state.enter(state.replace(user=state.user & ~AUTOGRAD)):
        if set(given) <= set(names):
            function(**given, **extra)
        else:
            function(*given.values(), **extra)


def _parameter_names(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


# ---------------------------------------------------------------------- views without a rule


def record_view(op: Operator[..., Any], below: Plan) -> Plan:
    """Return the plan of a view operator without a rule: gradients follow the addresses."""

    def plan(*args: Any) -> Any:
        result = below(*args)
        bases = {id(t._view.family): t for t in tensor_leaves(args) if t._view is not None}
        for view in tensor_leaves([result]):
            if view._view is None or view._keys & AUTOGRAD:
                continue
            base = bases.get(id(view._view.family))
            if base is not None and base._keys & AUTOGRAD:
                view.autograd_meta = derive_from(base, view)
                view._keys |= AUTOGRAD
        return result

    return plan
