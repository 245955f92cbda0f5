"""What a gradient rule may return, brought into one form: one gradient or None per tensor.

A tuple holds one value per tensor argument, or one per argument with None for the others; a dict
names arguments; anything else is the value of the only tensor argument. The value for a container
mirrors it.

Imports floors 0 to 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .._text import did_you_mean, join_names
from ..errors import AutogradError
from ..tensor.tensor import Tensor

__all__ = ["Argument", "count_of", "mirrored", "needs_of", "spread", "structure_of"]


class Argument:
    """One argument of a recorded call, as far as gradients are concerned.

    Attributes
    ----------
    name : str
    structure : object
        None for a leaf that is no tensor, True for a tensor, or a list or dict of these.
    tensor : bool
        Whether it holds tensors (its value counts in a tuple of tensor gradients).
    """

    __slots__ = ("name", "structure", "tensor")

    def __init__(
        self, name: str, value: Any, found: list[Tensor], tensor: bool | None = None
    ) -> None:
        before = len(found)
        self.name = name
        self.structure = structure_of(value, found)
        self.tensor = len(found) > before if tensor is None else tensor

    @classmethod
    def plain(cls, name: str, tensor: bool) -> Argument:
        """Return the description of an argument that is one tensor, or no tensor at all."""
        argument = cls(name, None, [], tensor)
        argument.structure = True if tensor else None
        return argument

    @property
    def length(self) -> int | None:
        """None for a single tensor, else the number of tensors."""
        return None if self.structure is True else count_of(self.structure)


def structure_of(value: Any, found: list[Tensor]) -> Any:
    """Return the structure of a value (see `Argument`), and append its tensors to `found`."""
    if isinstance(value, Tensor):
        found.append(value)
        return True
    if isinstance(value, list | tuple):
        return [structure_of(element, found) for element in value]
    if isinstance(value, dict):
        return {key: structure_of(element, found) for key, element in value.items()}
    return None


def mirrored(structure: Any, flat: Iterator[Any]) -> Any:
    """Return values from `flat` nested like a structure, with None for what is no tensor."""
    if structure is True:
        return next(flat)
    if isinstance(structure, list):
        return [mirrored(element, flat) for element in structure]
    if isinstance(structure, dict):
        return {key: mirrored(element, flat) for key, element in structure.items()}
    return None


def spread(
    result: Any, arguments: Sequence[Argument], needed: Sequence[bool], node: str
) -> list[Any]:
    """Return one gradient or None per tensor of `arguments`, containers flattened.

    Parameters
    ----------
    result : object
        What the rule returned.
    arguments : sequence of Argument
    needed : sequence of bool
        Per tensor, whether it needs a gradient.
    node : str
        For messages.

    Raises
    ------
    AutogradError
        For another number of values, unknown names, or a container that does not mirror the
        argument's.
    """
    values = _per_argument(result, arguments, needed, node)
    flat: list[Any] = []
    for argument, value in zip(arguments, values, strict=True):
        if argument.tensor:
            _flatten(argument.structure, value, flat, argument.name, node)
        elif value is not None:
            raise AutogradError(
                f"{node}: a gradient was returned for `{argument.name}`, which holds no tensor; "
                "return None there"
            )
    return flat


def _per_argument(
    result: Any, arguments: Sequence[Argument], needed: Sequence[bool], node: str
) -> list[Any]:
    tensors = [argument for argument in arguments if argument.tensor]
    if isinstance(result, dict):
        return _from_dict(result, arguments, needed, node)
    if not isinstance(result, tuple):
        if len(tensors) != 1:
            hint = "; return a tuple" if isinstance(result, list) else ""
            raise AutogradError(_count_message(node, 1, arguments) + hint)
        result = (result,)
    if len(result) == len(tensors):
        values = iter(result)
        return [next(values) if argument.tensor else None for argument in arguments]
    if len(result) == len(arguments):
        return list(result)
    raise AutogradError(_count_message(node, len(result), arguments))


def _count_message(node: str, count: int, arguments: Sequence[Argument]) -> str:
    tensors = [argument.name for argument in arguments if argument.tensor]
    every = [argument.name for argument in arguments]
    plural = "" if count == 1 else "s"
    return (
        f"{node}: {count} gradient{plural} returned; "
        f"the tensor arguments are {', '.join(tensors)} ({len(tensors)}); "
        f"all arguments are {', '.join(every)} ({len(every)})"
    )


def _from_dict(
    result: dict[Any, Any], arguments: Sequence[Argument], needed: Sequence[bool], node: str
) -> list[Any]:
    names = [argument.name for argument in arguments]
    for name in result:
        if name not in names:
            hint = did_you_mean(str(name), names)
            if any(isinstance(argument.structure, dict) for argument in arguments):
                hint += "; the gradient of a dict stands in a tuple: ({...},)"
            raise AutogradError(f"{node}: a gradient was returned for {name!r}, no argument{hint}")
    position = 0
    for argument in arguments:
        if not argument.tensor:
            continue
        count = count_of(argument.structure)
        if any(needed[position : position + count]) and argument.name not in result:
            missing = join_names([argument.name])
            raise AutogradError(
                f"{node}: no gradient returned for {missing}; None states there is none"
            )
        position += count
    return [result.get(name) for name in names]


def count_of(structure: Any) -> int:
    """Return the number of tensors in a structure."""
    if structure is True:
        return 1
    if isinstance(structure, list):
        return sum(count_of(element) for element in structure)
    if isinstance(structure, dict):
        return sum(count_of(element) for element in structure.values())
    return 0


def _flatten(structure: Any, value: Any, flat: list[Any], name: str, node: str) -> None:
    """Append the gradients of one argument in the order of its tensors."""
    if structure is True:
        flat.append(value)
    elif value is None:
        flat.extend([None] * count_of(structure))
    elif isinstance(structure, list):
        _flatten_sequence(structure, value, flat, name, node)
    elif isinstance(structure, dict):
        if not isinstance(value, dict) or not set(value) <= set(structure):
            raise AutogradError(
                f"{node}: the gradient of `{name}` must be a dict with keys {list(structure)}, "
                f"got {_shape_of(value)}"
            )
        for key, element in structure.items():
            _flatten(element, value.get(key), flat, name, node)
    else:
        raise AutogradError(f"{node}: a gradient was returned inside `{name}` for a non-tensor")


def _flatten_sequence(
    structure: list[Any], value: Any, flat: list[Any], name: str, node: str
) -> None:
    holding = [element for element in structure if count_of(element)]
    if isinstance(value, list | tuple) and len(value) == len(structure):
        for element, part in zip(structure, value, strict=True):
            if count_of(element) or part is not None:
                _flatten(element, part, flat, name, node)
    elif isinstance(value, list | tuple) and len(value) == len(holding):
        for element, part in zip(holding, value, strict=True):
            _flatten(element, part, flat, name, node)
    else:
        raise AutogradError(
            f"{node}: the gradient of `{name}` must be a list of {len(structure)}, "
            f"got {_shape_of(value)}"
        )


def _shape_of(value: Any) -> str:
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__


def needs_of(structure: Any, needed: Any) -> Any:
    """Return bools nested like an argument: which of its tensors need a gradient.

    `needed` is an iterator over the flat bools.
    """
    if structure is True:
        return next(needed)
    if isinstance(structure, list):
        return [needs_of(element, needed) for element in structure]
    if isinstance(structure, dict):
        return {key: needs_of(element, needed) for key, element in structure.items()}
    return False
