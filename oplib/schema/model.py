"""`FunctionSchema` and its parts: what a schema says, as frozen data with cached queries.

Equality is equality of the canonical text, so two schemas are equal exactly when they print alike:
``1`` and ``1.0`` of a `Scalar` differ, ``0.0`` and ``-0.0`` differ, ``nan`` equals ``nan``.

Imports `types.py` and `literals.py`. Read next: `syntax.py`, which makes schemas from text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, total_ordering
from typing import Any, Final, final

from .._record import record
from .literals import format_literal
from .types import AliasSet, Path, TensorType, Type, tensors_of

__all__ = ["NO_DEFAULT", "Argument", "FunctionSchema", "Return", "Slot"]


@final
class _NoDefault:
    """The type of `NO_DEFAULT`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NO_DEFAULT"

    def __reduce__(self) -> str:
        return "NO_DEFAULT"  # a name pickles and copies as the one object


NO_DEFAULT: Final = _NoDefault()
"""The default of an argument that has none."""


@record(eq=False, repr=False)
class Argument:
    """``Tensor(a!) x``, ``float eps=1e-05``.

    Attributes
    ----------
    name : str
    type : Type
    default : object
        The converted value: a float for ``float x=1``, a tuple for lists and tuples, a
        `numpy.dtype`, a `Device`, an enum member; `NO_DEFAULT` if there is none.
    kwarg_only : bool
        Whether it stands after the ``*``.
    """

    name: str
    type: Type
    default: Any = NO_DEFAULT
    kwarg_only: bool = False

    @property
    def has_default(self) -> bool:
        """Whether the argument may be left out of a call."""
        return self.default is not NO_DEFAULT

    @property
    def is_written(self) -> bool:
        """Whether at least one Tensor of the argument is written."""
        return _is_written(self.type)

    def __str__(self) -> str:
        if self.default is NO_DEFAULT:
            return f"{self.type} {self.name}"
        return f"{self.type} {self.name}={format_literal(self.default, self.type)}"

    def __repr__(self) -> str:
        return f"<Argument {'*, ' if self.kwarg_only else ''}{self}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Argument):
            return NotImplemented
        return self.kwarg_only == other.kwarg_only and str(self) == str(other)

    def __hash__(self) -> int:
        return hash((str(self), self.kwarg_only))


@record(repr=False)
class Return:
    """``Tensor(a!)``, or ``Tensor mean`` when the return has a name."""

    type: Type
    name: str | None = None

    @property
    def is_annotated(self) -> bool:
        """Whether the return is, or may be a view of, an argument."""
        return any(tensor.alias is not None for _, _, tensor in tensors_of(self.type))

    def __str__(self) -> str:
        return str(self.type) if self.name is None else f"{self.type} {self.name}"

    def __repr__(self) -> str:
        return f"<Return {self}>"


@record
class Slot:
    """One Tensor position of the arguments or the returns.

    Attributes
    ----------
    index : int
        Which argument, or which return.
    path : tuple
        The steps from its value to the tensor: ``"[]"`` into a list, ``"{}"`` into a dict, an int
        into a tuple; empty for the value itself.
    optional : bool
        Whether the tensor may be absent: a ``?`` or a union stands on the way.
    alias : AliasSet or None
    """

    index: int
    path: Path
    optional: bool
    alias: AliasSet | None


@total_ordering
@record(eq=False, repr=False)
class FunctionSchema:
    """Everything oplib knows about an operator's interface.

    Attributes
    ----------
    namespace, name, overload_name : str
        Empty where the text has none; a nameless schema has an empty `name`.
    arguments : tuple of Argument
    returns : tuple of Return

    Examples
    --------
    >>> from oplib.schema import parse
    >>> schema = parse("ns::add_(Tensor(a!) x, Tensor y, *, float alpha=1) -> Tensor(a!)")
    >>> schema
    <FunctionSchema ns::add_(Tensor(a!) x, Tensor y, *, float alpha=1.0) -> Tensor(a!)>
    >>> schema.mutated_arguments, schema.is_inplace, schema.returned_argument(0)
    (('x',), True, 'x')
    """

    # `__dict__` holds what the cached queries computed; fields live in slots.
    __slots__ = ("__dict__", "arguments", "name", "namespace", "overload_name", "returns")

    namespace: str
    name: str
    overload_name: str
    arguments: tuple[Argument, ...]
    returns: tuple[Return, ...]

    # Text, order and identity ------------------------------------------------------------------

    @cached_property
    def qualname(self) -> str:
        """``ns::name`` or ``ns::name.overload``; empty for a nameless schema."""
        space = f"{self.namespace}::" if self.namespace else ""
        overload = f".{self.overload_name}" if self.overload_name else ""
        return f"{space}{self.name}{overload}"

    @cached_property
    def _text(self) -> str:
        arguments = [str(argument) for argument in self.positional]
        if self.keyword_only:
            arguments += ["*", *map(str, self.keyword_only)]
        returns = ", ".join(map(str, self.returns))
        if len(self.returns) != 1 or returns.startswith("("):
            returns = f"({returns})"
        return f"{self.qualname}({', '.join(arguments)}) -> {returns}"

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<FunctionSchema {self}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FunctionSchema):
            return NotImplemented
        return self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, FunctionSchema):
            return NotImplemented
        return self._order < other._order

    @property
    def _order(self) -> tuple[str, ...]:
        return self.namespace, self.name, self.overload_name, self._text

    def __reduce__(self) -> tuple[Any, ...]:
        fields = self.namespace, self.name, self.overload_name, self.arguments, self.returns
        return FunctionSchema, fields

    def named(self, namespace: str, name: str, overload_name: str = "") -> FunctionSchema:
        """Return this interface under another name."""
        return FunctionSchema(namespace, name, overload_name, self.arguments, self.returns)

    # Arguments and returns ---------------------------------------------------------------------

    @cached_property
    def positional(self) -> tuple[Argument, ...]:
        """The arguments before the ``*``."""
        return tuple(argument for argument in self.arguments if not argument.kwarg_only)

    @cached_property
    def keyword_only(self) -> tuple[Argument, ...]:
        """The arguments after the ``*``."""
        return tuple(argument for argument in self.arguments if argument.kwarg_only)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the arguments."""
        return tuple([argument.name for argument in self.arguments])

    @cached_property
    def _by_name(self) -> dict[str, Argument]:
        return {argument.name: argument for argument in self.arguments}

    def argument(self, name: str) -> Argument:
        """Return the argument called `name`.

        Raises
        ------
        KeyError
            If there is none.
        """
        return self._by_name[name]

    def return_(self, name: str) -> Return:
        """Return the return called `name`.

        Raises
        ------
        KeyError
            If there is none.
        """
        for each in self.returns:
            if each.name == name:
                return each
        raise KeyError(name)

    # What is written, what may share memory ----------------------------------------------------

    @cached_property
    def mutated_arguments(self) -> tuple[str, ...]:
        """Names of the arguments with at least one written Tensor, in order."""
        return tuple(argument.name for argument in self.arguments if argument.is_written)

    @cached_property
    def is_mutable(self) -> bool:
        """Whether any argument is written."""
        return bool(self.mutated_arguments)

    @cached_property
    def is_functional(self) -> bool:
        """Whether nothing is written, every return is fresh, and there is at least one."""
        return bool(self.returns) and not self.is_mutable and not self._has_annotated_return

    @cached_property
    def is_view(self) -> bool:
        """Whether nothing is written and at least one return may be a view of an argument."""
        return not self.is_mutable and self._has_annotated_return

    @cached_property
    def _has_annotated_return(self) -> bool:
        return any(each.is_annotated for each in self.returns)

    @cached_property
    def is_inplace(self) -> bool:
        """Whether the first positional argument is written and is all that is returned.

        It is a plain ``Tensor``, and nothing else is written.
        """
        first = self.positional[0] if self.positional else None
        return (
            first is not None
            and isinstance(first.type, TensorType)
            and self.mutated_arguments == (first.name,)
            and self._returned == (first.name,)
        )

    @cached_property
    def is_out(self) -> bool:
        """Whether the returns are exactly the written arguments, all keyword-only plain Tensors."""
        written = [argument for argument in self.arguments if argument.is_written]
        return (
            bool(written)
            and all(each.kwarg_only and isinstance(each.type, TensorType) for each in written)
            and self._returned == self.mutated_arguments
        )

    @cached_property
    def is_effect(self) -> bool:
        """Whether nothing is returned and nothing written, so a call is made for its effect."""
        return not self.returns and not self.is_mutable

    def returned_argument(self, index: int) -> str | None:
        """Return the name of the written argument that return `index` is, or None."""
        return self._returned[index]

    def fresh_returns(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        """Return the indices of the returns of a call that are no written argument, nor a view.

        A return that is a written optional argument (``Tensor(a!)? out=None -> Tensor(a!)``) is
        fresh when the argument was left out. `arguments` are in the order of the schema.
        """
        given = zip(self.arguments, arguments, strict=True)
        written = {a.name for a, value in given if a.is_written and value is not None}

        def is_fresh(index: int) -> bool:
            returned = self._returned[index]
            if returned is not None:
                return returned not in written
            return written.isdisjoint(self._aliased[index])

        return tuple(filter(is_fresh, range(len(self.returns))))

    @cached_property
    def _returned(self) -> tuple[str | None, ...]:
        return tuple(self._argument_returned_as(each) for each in self.returns)

    def _argument_returned_as(self, each: Return) -> str | None:
        labels = _written_labels(each.type)
        if not labels:
            return None
        return next(
            (item.name for item in self.arguments if labels & _written_labels(item.type)), None
        )

    def aliased_arguments(self, index: int) -> tuple[str, ...]:
        """Return the names of the arguments that return `index` may be a view of.

        Empty for a fresh return, and for one that *is* a written argument.
        """
        return self._aliased[index]

    @cached_property
    def _aliased(self) -> tuple[tuple[str, ...], ...]:
        return tuple(self._arguments_viewed_by(index) for index in range(len(self.returns)))

    def _arguments_viewed_by(self, index: int) -> tuple[str, ...]:
        if self._returned[index] is not None:
            return ()
        slots = [slot for slot in self.output_slots if slot.index == index and slot.alias]
        labels = frozenset[str]().union(*(slot.alias.before for slot in slots if slot.alias))
        anything = any(slot.alias.is_wildcard for slot in slots if slot.alias)
        viewed = {
            slot.index: None
            for slot in self.input_slots
            if anything or (slot.alias is not None and labels & slot.alias.labels)
        }
        return tuple(self.arguments[position].name for position in viewed)

    # Slots -------------------------------------------------------------------------------------

    @cached_property
    def input_slots(self) -> tuple[Slot, ...]:
        """Every Tensor position of the arguments, in order."""
        return _slots(argument.type for argument in self.arguments)

    @cached_property
    def output_slots(self) -> tuple[Slot, ...]:
        """Every Tensor position of the returns, in order."""
        return _slots(each.type for each in self.returns)

    @cached_property
    def differentiable_arguments(self) -> tuple[str, ...]:
        """Names of the arguments with at least one slot; dtypes decide the rest per call."""
        positions = dict.fromkeys(slot.index for slot in self.input_slots)
        return tuple(self.arguments[position].name for position in positions)

    @cached_property
    def read_only_arguments(self) -> tuple[int, ...]:
        """Positions of the arguments that hold Tensors none of which is written or viewed."""
        annotated = {slot.index for slot in self.input_slots if slot.alias is not None}
        positions = dict.fromkeys(slot.index for slot in self.input_slots)
        return tuple(position for position in positions if position not in annotated)


def _slots(types: Iterable[Type]) -> tuple[Slot, ...]:
    return tuple(
        Slot(index, path, optional, tensor.alias)
        for index, type_ in enumerate(types)
        for path, optional, tensor in tensors_of(type_)
    )


def _is_written(type_: Type) -> bool:
    return any(tensor.is_written for _, _, tensor in tensors_of(type_))


def _written_labels(type_: Type) -> frozenset[str]:
    return frozenset(
        label
        for _, _, tensor in tensors_of(type_)
        if tensor.alias is not None and tensor.alias.written
        for label in tensor.alias.before
    )
