"""What a gradient rule saves in the forward call, and how it is run in backward.

A named rule says by its parameters what it needs (see `dispatch/gradient_rule.py`); a `Recorder`
saves exactly that for the rules that will run, and hands it over by name. A ctx rule gets its
`OperatorContext`. A node without a rule keeps everything, for a rule that is registered later.

Imports floors 0 to 4, `wrapper.py`, `gradients.py`, `returned.py`, `context.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .. import _state
from .._tree import tree_map
from ..dispatch.facets import GradientRule
from ..dispatch.gradient_rule import rule_names, written_unreturned
from ..dispatch.keys import AUTOGRAD
from ..dispatch.lifting import tensor_leaves
from ..dispatch.operator import Operator
from ..errors import AutogradError
from ..shapes import TensorSpec
from ..tensor.grad_meta import NodeKind, WideGradNode
from ..tensor.tensor import Tensor
from .context import NOTHING_KEPT, OperatorContext, new_context
from .gradients import zeros_for
from .modes import grad_off
from .returned import Argument, count_of, needs_of, spread
from .wrapper import PackedTensor, Record, TensorWrapper, recover, recover_output, save, save_copy

__all__ = ["Call", "Recorder", "missing_rule_message", "refuse_missing"]


def missing_rule_message(op: Operator[..., Any]) -> str:
    """Return the call that registers a gradient rule for `op`."""
    argument = next(iter(op.schema.differentiable_arguments), "x")
    return (
        f'register one: oplib.register_vjp("{op.qualname}", {argument}=lambda grad, ...: ...)  '
        f"(defined {op.definition_source})"
    )


def refuse_missing(op: Operator[..., Any], argument: str) -> NoReturn:
    """Raise for an argument that needs a gradient and has no rule."""
    raise AutogradError(
        f"{op.qualname} has no gradient rule for argument `{argument}`\n"
        f"  register one: {op.name}.register_vjp({argument}=lambda grad, ...: ...), "
        f"or {argument}=None if it is not differentiable"
    )


class Call:
    """The tensors of one call: edges, their grouping by argument, and what needs a gradient.

    Attributes
    ----------
    values : dict
        Argument name -> value.
    arguments : list of Argument
    inputs : list of Tensor
        Of the differentiable arguments, flattened.
    edges : tuple of AutogradMeta or None
        One per input.
    layout : tuple of int or None
        Per differentiable argument None for a single tensor, else the number of tensors.
    """

    __slots__ = ("arguments", "edges", "inputs", "layout", "spans", "values", "written_storages")

    def __init__(self, op: Operator[..., Any], args: Sequence[Any]) -> None:
        tensors = op.schema.differentiable_arguments
        self.values: dict[str, Any] = {}
        self.inputs: list[Tensor] = []
        self.arguments: list[Argument] = []
        self.spans: dict[str, tuple[int, int]] = {}
        layout: list[int | None] = []
        for declared, value in zip(op.schema.arguments, args, strict=True):
            name, start = declared.name, len(self.inputs)
            self.values[name] = value
            if name not in tensors:
                self.arguments.append(Argument.plain(name, False))
                continue
            self.arguments.append(Argument(name, value, self.inputs, tensor=True))
            self.spans[name] = (start, len(self.inputs))
            layout.append(None if isinstance(value, Tensor) else len(self.inputs) - start)
        self.layout = tuple(layout)
        self.edges = tuple([t.autograd_meta if t._keys & AUTOGRAD else None for t in self.inputs])
        self.written_storages: set[int] = set()
        for name in op.schema.mutated_arguments:
            self.written_storages |= {id(t._storage) for t in tensor_leaves(self.values[name])}

    def needs(self, name: str) -> bool:
        """Return whether any tensor of an argument needs a gradient."""
        start, stop = self.spans[name]
        return any(edge is not None for edge in self.edges[start:stop])

    def needs_input_grad(self) -> tuple[Any, ...]:
        """Return, per argument, which of its tensors need a gradient."""
        flat = iter([edge is not None for edge in self.edges])
        return tuple([needs_of(a.structure, flat) if a.tensor else False for a in self.arguments])


class Recorder:
    """What is saved for one operator's rule, and how the rule is run in backward."""

    def __init__(self, op: Operator[..., Any], rule: GradientRule | None) -> None:
        self.op = op
        self.rule = rule
        self.meanings = rule_names(op.schema)
        self.kind = NodeKind(op, self._backward)

    # ------------------------------------------------------------------ forward

    def undifferentiable(self) -> frozenset[int]:
        """Return the fresh returns whose gradient no named rule asks for: they have none."""
        if self.rule is None or self.rule.style == "ctx":
            return frozenset()
        words = {word for needs in self.rule.needs.values() for word in needs}
        asked = [self.meanings[word] for word in words]
        if any(kind == "grads" for kind, _ in asked):
            return frozenset()
        schema = self.op.schema
        fresh = [i for i in range(len(schema.returns)) if schema.returned_argument(i) is None]
        return frozenset(fresh) - {target for kind, target in asked if kind == "grad"}

    def save_before(self, call: Call) -> dict[str, Any]:
        """Return the records of what the rules that will run name of the arguments.

        A value that is about to be overwritten is copied.
        """
        saved: dict[str, Any] = {}
        for word in self._words(call):
            kind, name = self.meanings[word]
            if kind == "spec":
                saved[word] = tree_map(_spec_of, call.values[name])
            elif kind == "argument":
                saved[word] = tree_map(
                    lambda leaf: _save_argument(leaf, call.written_storages), call.values[name]
                )
        return saved

    def save_after(self, call: Call, saved: dict[str, Any], result: Any) -> None:
        """Add the records of named returns, and of new values of written arguments."""
        for word in self._words(call):
            kind, target = self.meanings[word]
            if kind == "new":
                saved[word] = tree_map(_save_leaf, call.values[target])
            elif kind == "result":
                value = result if len(self.op.schema.returns) == 1 else result[target]
                saved[word] = tree_map(_save_leaf, value)

    def _words(self, call: Call) -> list[str]:
        """Return the words to save for this call."""
        if self.rule is None:
            names = [a.name for a in self.op.schema.arguments]
            return [*names, *(w for w, (kind, _) in self.meanings.items() if kind == "result")]
        if self.rule.style == "ctx":
            return []
        found: dict[str, None] = {}
        for name, needs in self.rule.needs.items():
            if not name or call.needs(name):
                found.update(dict.fromkeys(needs))
        return list(found)

    def fill(
        self,
        node: WideGradNode,
        call: Call,
        saved: dict[str, Any],
        args: Sequence[Any],
        result: Any,
        outputs: list[Tensor | None],
    ) -> OperatorContext | None:
        """Put what backward needs into the node; return the ctx of a ctx rule."""
        context, kept = None, NOTHING_KEPT
        needs = call.needs_input_grad()
        if self.rule is not None and self.rule.style == "ctx":
            context = new_context(OperatorContext, self.op.qualname, needs)
            _set_up(self.op, self.rule, context, args, result)
            kept = context._ctx_attach(node, call.inputs, outputs)
        node.saved = (saved, call.arguments, needs, context, kept)
        return context

    # ------------------------------------------------------------------ backward

    def _backward(
        self, node: WideGradNode, saved: tuple[Any, ...], incoming: list[Tensor | None]
    ) -> list[Any]:
        records, arguments, needs, context, _ = saved
        rule = self.rule if self.rule is not None else self.op.gradient_rule
        if rule is None:
            message = f"{self.op.qualname} has no gradient rule\n  {missing_rule_message(self.op)}"
            raise AutogradError(message)
        values = _Values(self, node, incoming, records, needs)
        result: Any
        if rule.style == "ctx":
            if context is None:
                context = values.late_context(rule)
            function = rule.functions[""]
            assert function is not None
            result = function(context, *values.gradients(context.materialize_grads))
        elif rule.style == "fused":
            result = values.run(rule, "", rule.materialize_grads)
        else:
            result = self._per_argument(rule, values, arguments, node)
        needed = [edge is not None for edge in node.edges]
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
            edges = node.edges[position : position + count_of(argument.structure)]
            position += len(edges)
            name = argument.name
            if all(edge is None for edge in edges):
                result[name] = None
                continue
            if name not in rule.functions:
                refuse_missing(self.op, name)
            result[name] = None if rule.functions[name] is None else values.run(rule, name, True)
        return result


def _spec_of(leaf: Any) -> Any:
    return TensorSpec.of(leaf) if isinstance(leaf, Tensor) else leaf


def _save_leaf(leaf: Any) -> Any:
    return save(leaf) if isinstance(leaf, Tensor) else leaf


def _save_argument(leaf: Any, written: set[int]) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return save_copy(leaf) if id(leaf._storage) in written else save(leaf)


# ---------------------------------------------------------------------- what a rule is given


class _Values:
    """What one backward call can give its rule."""

    def __init__(
        self,
        recorder: Recorder,
        node: WideGradNode,
        incoming: list[Tensor | None],
        saved: dict[str, Any],
        needs: tuple[Any, ...],
    ) -> None:
        self.op = recorder.op
        self.meanings = recorder.meanings
        self.node = node
        self.incoming = incoming
        self.saved = saved
        self.needs = needs

    def gradients(self, materialize: bool) -> list[Any]:
        """Return one value per return (and unreturned written argument): gradient, list, None."""
        incoming = self.incoming
        if materialize:
            like = next(gradient for gradient in incoming if gradient is not None)
            incoming = [
                zeros_for(self.node, position, like)
                if gradient is None and self.node.dtypes[position] is not None
                else gradient
                for position, gradient in enumerate(incoming)
            ]
        flat = iter(incoming)
        values: list[Any] = []
        for length in self.node.layout or ():
            if length is None:
                values.append(next(flat))
            else:
                values.append([next(flat) for _ in range(length)] or None)
        return values

    def run(self, rule: GradientRule, name: str, materialize: bool) -> Any:
        """Run one function of a named rule with what it asks for."""
        function = rule.functions[name]
        assert function is not None
        words = {
            word: self._word(word, materialize and word not in rule.optional)
            for word in rule.needs[name]
        }
        return function(**words)

    def _word(self, word: str, materialize: bool) -> Any:
        kind, target = self.meanings[word]
        if kind == "grad":
            return self.gradients(materialize)[target]
        if kind == "grads":
            return tuple(self.gradients(materialize))
        if kind == "needs":
            return self.needs
        if kind == "argument":
            return self._argument(target)
        if kind == "spec":
            found = self.saved.get(word)
            return tree_map(_spec_of, self._argument(target)) if found is None else found
        return self._result(word, kind, target)

    def _argument(self, name: str) -> Any:
        """Return a saved argument with the history its edges have."""
        names = self.op.schema.differentiable_arguments
        layout = self.node.inputs or ()
        start = (
            sum(1 if n is None else n for n in layout[: names.index(name)]) if name in names else 0
        )
        edges = iter(self.node.edges[start:])

        def back(record: Record) -> Tensor:
            return recover(record, self.node, next(edges), f"argument `{name}`")

        return _recover_tree(self.saved[name], back)

    def _result(self, word: str, kind: str, target: Any) -> Any:
        """Return a saved result with its own history."""
        layout = self.node.layout or ()
        slot = self._slot_of_written(target) if kind == "new" else target
        positions = iter(range(sum(1 if n is None else n for n in layout[:slot]), self.node.width))

        def back(record: Record) -> Tensor:
            return recover_output(record, self.node, next(positions), f"result `{word}`")

        return _recover_tree(self.saved[word], back)

    def _slot_of_written(self, name: str) -> int:
        schema = self.op.schema
        returned = [schema.returned_argument(i) for i in range(len(schema.returns))]
        if name in returned:
            return returned.index(name)
        return len(returned) + written_unreturned(schema).index(name)

    def late_context(self, rule: GradientRule) -> OperatorContext:
        """Return the ctx of a rule that was registered after the forward call."""
        args = [self._argument(a.name) for a in self.op.schema.arguments]
        results = [
            self._result(word, kind, target)
            for word, (kind, target) in self.meanings.items()
            if kind == "result"
        ]
        context = new_context(OperatorContext, self.op.qualname, self.needs, recording=False)
        result = results[0] if len(results) == 1 else tuple(results)
        _set_up(self.op, rule, context, args, result)
        return context


def _recover_tree(tree: Any, back: Callable[[Record], Tensor]) -> Any:
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
    given = {"ctx": context, "inputs": tuple(args[:count]), "output": result}
    names = list(inspect.signature(function).parameters)
    extra = {}
    if "keyword_only_inputs" in names:
        keywords = [argument.name for argument in op.schema.keyword_only]
        extra["keyword_only_inputs"] = dict(zip(keywords, args[count:], strict=True))
    with _state.enter(grad_off(_state.current())):
        if set(given) <= set(names):
            function(**given, **extra)
        else:
            function(*given.values(), **extra)
