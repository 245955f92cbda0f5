"""The functional level at work: every call reaches the level below without a written argument.

View operators become geometries; an operator that writes is run in a pure form, and the regions of
its destinations take the new values; all else is called on current values.

Imports floors 0 to 4, `level.py`, `writes.py`. Read next: `run.py`.
"""

from __future__ import annotations

from typing import Any

from .._tree import tree_map
from ..dispatch.interpreter import Frame
from ..dispatch.operator import Operator
from ..errors import AliasError
from ..prims import lift
from ..tensor.tensor import Tensor
from .level import Level, facts_of
from .writes import WritingCall

__all__ = ["Functionalize"]


class Functionalize(Level):
    """The interpreter of one functional run."""

    def call(self, frame: Frame, op: Operator[..., Any], args: tuple[Any, ...]) -> Any:
        """Run one call on values."""
        facts = facts_of(op)
        if facts.is_mutable:
            return WritingCall(self, op, args).run()
        if facts.is_view or op.view_rule is not None:
            viewed = self.view(op, args)
            if viewed is not None:
                if op.effects:  # which the geometry of a view has not
                    op.call_positional(self.values_of(facts, args))
                return viewed
        if op is lift and not self.owns(args[0]):
            return self.wrap(op.call_positional(list(args)))
        result = op.call_positional(self.values_of(facts, args))
        return self.wrap(result) if facts.one_result else tree_map(self.wrap, result)

    def requires_grad_changed(self, tensor: Tensor, value: bool) -> None:
        """Let the run know that ``requires_grad`` of a handle was set."""
        self.after_flag(tensor, value)

    def grad_replaced(self, tensor: Tensor) -> None:
        """Note the input whose gradient was set or cleared."""
        self.cleared.update(i for i, handle in enumerate(self.handles) if handle is tensor)

    def before_data(self, tensor: Tensor) -> None:
        """Refuse to hand out the data of a tensor outside that is written when the run ends."""
        for outside, storage in zip(self.inputs, self.storages, strict=True):
            waits = storage.version > outside._storage.version
            if waits and outside._storage is tensor._storage:
                raise AliasError(
                    "the data of a tensor of the enclosing scope was read around the operators, "
                    "while writes to it wait for the end of a functional run\n"
                    "  pass the tensor to the function as an argument, and read that"
                )
